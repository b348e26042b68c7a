"""What happened, as frozen records. Counters, amplification and every picture are folds over these.

The engine calls `options.listener(event)` when a job ends, a file is rotated or a store opens:
per job, not per operation, so that an attached listener costs a put nothing. Times are the
runtime's `now_ns`. A listener must not call the store and must not raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lsm.version import TableMeta


@dataclass(frozen=True, slots=True)
class Recovered:
    """A store opened. `log_records` were replayed; `dropped` tells what of the logs was not, and why."""

    manifest_number: int
    log_records: int
    last_sequence: int
    dropped: tuple[str, ...]
    orphans: tuple[str, ...]  # files that belonged to no version, removed
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class LogRotated:
    """A new write-ahead log took over. `closed_bytes` is the size of the one before."""

    number: int
    first_sequence: int
    closed_bytes: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """A memtable became a table of level 0 (or nothing, if nothing of it was left)."""

    table: TableMeta | None
    entries: int
    bytes_written: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """Tables were merged into `outputs` at `output_level`, or moved there unread."""

    inputs: tuple[tuple[int, TableMeta], ...]  # (level, table)
    outputs: tuple[TableMeta, ...]
    output_level: int
    moved: bool
    reason: str
    bytes_read: int  # of the inputs, as stored
    bytes_written: int
    entries_read: int
    entries_written: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """An edit was appended (`rotated`: as the first of a new manifest)."""

    number: int
    bytes_written: int
    rotated: bool


@dataclass(frozen=True, slots=True)
class FilesDeleted:
    """Files that no version and no reader needs any more were removed."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackgroundError:
    """The store refuses further writes: the first error, as text."""

    error: str


Event = Recovered | LogRotated | Flushed | Compacted | ManifestWritten | FilesDeleted | BackgroundError
Listener = Callable[[Event], None]
