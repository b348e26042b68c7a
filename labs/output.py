"""Where output goes: results to stdout as text or JSON, everything else to stderr.

Results are written as UTF-8 whatever the locale says, so that what one machine prints another reads.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

Function = Callable[..., Any]

CHUNK_LINES = 1000
FORMATS = ("text", "json")


def format_option(command: Function) -> Function:
    """`--format text|json`, as `form`."""
    about = "How to print the result."
    return click.option("--format", "form", type=click.Choice(FORMATS), default="text", help=about)(command)


def hex_option(command: Function) -> Function:
    """`--hex`, as `as_hex`."""
    about = "Keys and values are hex digits, in arguments and in output."
    return click.option("--hex", "as_hex", is_flag=True, help=about)(command)


def say(text: str) -> None:
    """One line (or more) of the result."""
    with naming_stdout():
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace") + b"\n")


@contextlib.contextmanager
def naming_stdout() -> Iterator[None]:
    """An error of writing to stdout says so: else "No space left on device" could be about a store."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = "standard output"
        raise


def say_json(value: Any) -> None:
    """The result as one JSON value on one line."""
    say(json_text(value))


def json_text(value: Any) -> str:
    """JSON on one line, its text as it is."""
    return json.dumps(value, ensure_ascii=False)


def say_lines(lines: Iterable[str]) -> int:
    """Many lines, written in chunks; how many there were."""
    count, chunk = 0, []
    for line in lines:
        chunk.append(line)
        count += 1
        if len(chunk) == CHUNK_LINES:
            say("\n".join(chunk))
            chunk.clear()
    if chunk:
        say("\n".join(chunk))
    return count


def note(text: str) -> None:
    """A remark, on stderr."""
    click.echo(text, err=True)


def size_text(size_bytes: float) -> str:
    """Bytes for people.

    >>> size_text(999), size_text(1536), size_text(5 << 20)
    ('999 B', '1.5 KiB', '5.0 MiB')
    """
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun.

    >>> count_text(1, "entry", "entries"), count_text(12000, "table")
    ('1 entry', '12,000 tables')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
