"""The names of a store's files, and what they say.

    CURRENT            the name of the manifest in force
    LOCK               held while a process has the store open
    MANIFEST-000005    the log of edits
    000007.log         a write-ahead log
    000008.sst         a table
    *.tmp              unfinished; swept at the next open

Numbers come from one counter, so a larger number is a later file, whatever its kind.
"""

from __future__ import annotations

from typing import NamedTuple

CURRENT = "CURRENT"
LOCK = "LOCK"
TMP_SUFFIX = ".tmp"


class ParsedName(NamedTuple):
    """A file name taken apart: `kind` is "table", "log", "manifest", "current", "lock" or "tmp"."""

    kind: str
    number: int


def table_name(number: int) -> str:
    """The name of a table.

    >>> table_name(7)
    '000007.sst'
    """
    return f"{number:06d}.sst"


def log_name(number: int) -> str:
    """The name of a write-ahead log."""
    return f"{number:06d}.log"


def manifest_name(number: int) -> str:
    """The name of a manifest."""
    return f"MANIFEST-{number:06d}"


def parse_name(name: str) -> ParsedName | None:
    """Take a name apart; None for a name that is not ours.

    >>> parse_name("MANIFEST-000012")
    ParsedName(kind='manifest', number=12)
    >>> parse_name("notes.txt") is None
    True
    """
    if name == CURRENT:
        return ParsedName("current", 0)
    if name == LOCK:
        return ParsedName("lock", 0)
    if name == CURRENT + TMP_SUFFIX:
        return ParsedName("tmp", 0)
    stem, dot, suffix = name.partition(".")
    if name.startswith("MANIFEST-"):
        return _numbered("manifest", name.removeprefix("MANIFEST-"))
    if dot and suffix == "sst":
        return _numbered("table", stem)
    if dot and suffix == "log":
        return _numbered("log", stem)
    return None


def _numbered(kind: str, digits: str) -> ParsedName | None:
    well_formed = len(digits) >= 6 and digits.isascii() and digits.isdigit()
    return ParsedName(kind, int(digits)) if well_formed and int(digits) > 0 else None
