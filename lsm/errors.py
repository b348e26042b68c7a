"""The engine's errors: three kinds, and what each tells.

* `Corruption`: a file does not hold what it must. Names file, offset and reason; the file is left as it is.
* `InvalidArgument`: the caller asked for something that cannot be. Names the limit.
* plain `OSError`: the disk said no. It passes through unchanged.

A broken invariant inside the engine is an `AssertionError`: a defect, never an answer to bad input.
"""

from __future__ import annotations


class Corruption(Exception):
    """A file is damaged, foreign, truncated, or newer than this program.

    >>> str(Corruption("db/000007.sst", 4096, "block checksum: expected 0x1, found 0x2"))
    'db/000007.sst: offset 4096: block checksum: expected 0x1, found 0x2'
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path = path
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: {self.reason}"


class InvalidArgument(ValueError):
    """The request cannot be met: an unknown option, a key beyond the limit, a closed store."""


class MissingExtra(InvalidArgument):
    """An optional library is needed and not installed; `extra` names what brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} is not installed: pip install "lsmlab[{extra}]"')
        self.extra = extra
