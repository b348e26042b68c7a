"""`lsmlab`: the command line. Commands live in their own modules; here is what they share.

Exit codes:

    0    fine
    1    a check failed, a key is missing, or the operating system said no
    2    the command or an option was wrong
    3    something optional is needed and not installed
    4    the input is damaged: a file of a store, or a line of a file to load
    130  interrupted

Results go to stdout, progress and remarks to stderr. Errors are one line on stderr; a traceback means
a defect of this program.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from labs.inputs import InputError
from labs.output import naming_stdout
from lsm.errors import Corruption, InvalidArgument, MissingExtra

EXIT_FAILED, EXIT_USAGE, EXIT_MISSING, EXIT_CORRUPT, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


COMMANDS = {"tour": "labs.tour", "db": "labs.db_commands", "inspect": "labs.inspect_commands"}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called for: each lives in a module, under its own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands' names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run a command and leave with the exit code that the head of this module lists."""
        extra["standalone_mode"] = False
        try:
            fill_closed_streams()
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "✓" shows "?"
            result = super().main(args, prog_name, **extra)
            with naming_stdout():
                sys.stdout.flush()
        except BrokenPipeError:
            _leave_quietly()
        except click.Abort:
            _leave(EXIT_INTERRUPTED, "interrupted")
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (Corruption, InputError) as error:
            _leave(EXIT_CORRUPT, str(error))
        except MissingExtra as error:
            _leave(EXIT_MISSING, str(error))
        except InvalidArgument as error:
            _leave(EXIT_USAGE, str(error))
        except OSError as error:
            _drop_what_cannot_be_printed()
            _leave(EXIT_FAILED, _describe(error))
        sys.exit(result if isinstance(result, int) else 0)


def fill_closed_streams() -> None:
    """Give a standard stream that was closed (`>&-`) back its number, so that no file of a store gets it.

    Whatever reads or writes it then fails with "Bad file descriptor", but stderr just swallows remarks.
    """
    streams = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for number, (name, mode, flags) in enumerate(streams):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _leave(code: int, text: str) -> NoReturn:
    click.echo(f"lsmlab: {text}", err=True)
    sys.exit(code)


def _leave_quietly() -> NoReturn:
    """Whoever read our output has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_FAILED)


def _drop_what_cannot_be_printed() -> None:
    """Else the interpreter tries once more when it ends, fails, and shows what this program does not."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe(error: OSError) -> str:
    """An `OSError` in one line.

    >>> _describe(FileNotFoundError(2, "No such file or directory", "a"))
    'a: No such file or directory'
    """
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


@click.group("lsmlab", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lsmlab")
def main() -> None:
    """A teaching lab for LSM-tree storage engines.

    Begin with `lsmlab tour`: it loads, kills, recovers and measures a store on this machine, and takes
    about half a minute.
    """
