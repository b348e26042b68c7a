"""A wrapper that records: one frozen `Operation` for everything a program asked of its files.

    fs = TracedFilesystem(inner, operations.append, runtime)

Invariants
----------
1. One record per call, handed over when the call ends, whether it returned or raised.
2. `size` is what moved: the bytes that arrived of a failed append, the bytes that a read returned.
3. Records are of the level where the wrapper sits: appends to a buffered handle are seen when they are
   made, not when the buffer is written. Bytes per file are the same in the end.

Left out: the content of appends. `MemoryFilesystem.log` keeps it, for the one purpose that needs it.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from simfs.api import Filesystem, PowerLost, Runtime, SyncKind
from simfs.wrapper import Call, T, WrappedFile, WrappedFilesystem


class Operation(NamedTuple):
    """One call: what was asked, how long it took, how it ended.

    `offset` and `size` are in bytes (of append, pread, truncate). `error` is "" or the errno's name ("ENOSPC"),
    or the exception's class where it has none.
    """

    operation: str
    path: str
    target: str
    offset: int
    size: int
    kind: SyncKind | None
    site: str
    start_ns: int
    end_ns: int
    error: str


class TracedFilesystem(WrappedFilesystem):
    """`inner`, with every operation handed to `sink` after it ended."""

    def __init__(self, inner: Filesystem, sink: Callable[[Operation], None], runtime: Runtime) -> None:
        super().__init__(inner)
        self._sink = sink
        self._now_ns = runtime.now_ns

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        """Perform, and record."""
        offset, size, error = call.offset, call.size, ""
        start_ns = self._now_ns()
        try:
            if file is not None and call.operation == "append":
                offset = file.inner.size()
            answer = perform(call)
            if isinstance(answer, bytes):
                size = len(answer)
            return answer
        except BaseException as raised:
            error = _name(raised)
            size = _arrived(file, offset, raised) if call.operation == "append" else size
            raise
        finally:
            end_ns = self._now_ns()
            self._sink(
                Operation(
                    call.operation, call.path, call.target, offset, size, call.kind, call.site, start_ns, end_ns, error
                )
            )


def _name(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


def _arrived(file: WrappedFile | None, offset: int, error: BaseException) -> int:
    """How much of a failed append is in the file."""
    if file is None or not isinstance(error, OSError):
        return 0
    try:
        return max(file.inner.size() - offset, 0)
    except (OSError, ValueError, PowerLost):
        return 0


@dataclass(frozen=True)
class Totals:
    """What a trace adds up to. Every dict is sorted by key."""

    appended_bytes: dict[str, int]
    """By kind of file (`kind_of`)."""

    read_bytes: dict[str, int]
    """By kind of file."""

    syncs: dict[str, int]
    """Syncs of files and folders that returned, by call site."""

    operations: dict[str, int]
    """All calls, by operation."""

    errors: dict[str, int]
    """Calls that raised, by error."""


def kind_of(path: str) -> str:
    """What kind of file this is, by its name: the suffix, or the name without its number.

    >>> [kind_of(path) for path in ("/db/000007.log", "/db/MANIFEST-000005", "CURRENT")]
    ['.log', 'MANIFEST', 'CURRENT']
    """
    name = posixpath.basename(path)
    stem, suffix = posixpath.splitext(name)
    return suffix if stem and suffix else name.rstrip("0123456789").rstrip("-") or name


def fold(operations: Iterable[Operation]) -> Totals:
    """Add a trace up."""
    appended: dict[str, int] = {}
    read: dict[str, int] = {}
    syncs: dict[str, int] = {}
    count: dict[str, int] = {}
    errors: dict[str, int] = {}

    def add(totals: dict[str, int], key: str, amount: int = 1) -> None:
        totals[key] = totals.get(key, 0) + amount

    for each in operations:
        add(count, each.operation)
        if each.operation == "append":
            add(appended, kind_of(each.path), each.size)
        if each.error:
            add(errors, each.error)
        elif each.operation == "pread":
            add(read, kind_of(each.path), each.size)
        elif each.operation in ("sync", "sync_dir"):
            add(syncs, each.site)
    return Totals(*(dict(sorted(totals.items())) for totals in (appended, read, syncs, count, errors)))
