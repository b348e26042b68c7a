"""The command group `lsmlab db PATH`: which store, with which options of the engine.

Options stand before PATH, after it, or after the command; what stands later wins:

    lsmlab db [OPTIONS] PATH [OPTIONS] COMMAND [OPTIONS] …
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

import lsm
from labs.option_values import parse_options
from labs.output import Function, format_option
from lsm.errors import InvalidArgument
from lsm.options import CHOICES, Options
from simfs.api import SyncLevel

SHORT_OPTIONS = ("sync", "strategy", "compression")


@dataclass(frozen=True)
class Store:
    """A store that commands are about: its folder, and the options that were given."""

    path: str
    changes: dict[str, Any]

    def with_options(self, changes: dict[str, Any]) -> Store:
        """The same store, opened with these changes as well."""
        return Store(self.path, self.changes | changes)

    def options(self, **defaults: Any) -> Options:
        """The engine's options: what was given, over `defaults`. Raises `InvalidArgument`."""
        return Options.make(None, **(defaults | self.changes))

    def open(self, *, create: bool = True) -> lsm.DB:
        """Open to read and write. Raises `InvalidArgument` if there is nothing and `create` is off."""
        return self._open(create_if_missing=create)

    def open_to_read(self) -> lsm.DB:
        """Open without writing anything. Raises `InvalidArgument` if there is no store."""
        return self._open(read_only=True, create_if_missing=False)

    def _open(self, **defaults: Any) -> lsm.DB:
        options = self.options(**defaults)
        if self.path and not options.create_if_missing and not os.path.isdir(self.path):
            raise InvalidArgument(f"{self.path}: there is no store here (put and load make one)")
        return lsm.open(self.path, options)


def store_options(command: Function) -> Function:
    """The engine's options as flags."""
    levels = [level.name.lower() for level in SyncLevel]
    decorators: list[Callable[[Function], Function]] = [
        click.option("--sync", type=click.Choice(levels), help="The durability dial."),
        click.option("--strategy", type=click.Choice(CHOICES["strategy"]), help="How tables are merged."),
        click.option("--compression", type=click.Choice(CHOICES["compression"]), help="The codec of new tables."),
        click.option("--option", "pairs", multiple=True, metavar="NAME=VALUE", help="Any option of the engine."),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def take_options(values: dict[str, Any]) -> dict[str, Any]:
    """Remove what `store_options` added from a command's arguments; what was given, by name."""
    changes = parse_options(values.pop("pairs"))
    short = {name: values.pop(name) for name in SHORT_OPTIONS}
    return changes | {name: value for name, value in short.items() if value is not None}


class StoreGroup(click.Group):
    """A group whose options may stand on either side of its PATH."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the options between PATH and the command in front of PATH."""
        _, rest, _ = self.make_parser(ctx).parse_args(list(args))
        if rest and rest[0].startswith("-"):
            at = len(args) - len(rest) - 1
            values, after, _ = self.make_parser(ctx).parse_args(list(rest))  # takes the command's name for the PATH
            options = len(rest) - (0 if values.get("path") is None else len(after) + 1)
            args = [*args[:at], *rest[:options], args[at], *rest[options:]]
        return super().parse_args(ctx, args)


@click.group(cls=StoreGroup, short_help="Read, write, load, check and repair a store.")
@click.argument("path", type=click.Path(file_okay=False))
@store_options
@click.pass_context
def db(ctx: click.Context, /, path: str, **values: Any) -> None:
    """Read, write, load, check and repair the store in the folder PATH."""
    ctx.obj = Store(path, take_options(values))


def store_command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of `db`: its first argument is the `Store`, with the command's own options taken in."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @click.pass_context
        def run(ctx: click.Context, /, **values: Any) -> Any:
            store: Store = ctx.obj
            return function(store.with_options(take_options(values)), **values)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return db.command(name)(format_option(store_options(run)))

    return decorate
