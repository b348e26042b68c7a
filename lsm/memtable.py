"""The memtable: recent writes in memory, several versions of a key, sorted only when somebody asks.

    put ──▶ dict: key ─▶ (sequence, value, older) ─▶ (sequence, value, older) ─▶ None     newest first
            arrivals: [key, key, …]                 new keys, in the order in which they came

    sorted view   [a c f k … x] + tail [b d w]      made from the arrivals at the first scan, kept for
                                                    the next; what has come since is a short sorted tail

A dict answers `get` in one step and sorts once, at the flush: 2 times the speed of a sorted dict, and 4
of a skip list (`lsm.skiplist`), which in turn never pays for a sort. Both stand behind `Memtable`.

Invariants:
1. A key's chain has descending sequences. When a version is replaced it stays in the chain only if
   its sequence is ≤ `keep`, the newest registered snapshot: no other reader can see it any more.
2. `size_bytes` grows with each write, also with one that replaces: it bounds the log that recovery
   has to replay, and it is the stamp by which a cached view knows that it is stale.
3. One writer at a time (the store's mutex). Readers need no lock: lists only grow, and a view is
   replaced as a whole by one assignment.
4. A key's version that a registered snapshot sees is never dropped.

Left out: pruning chains when a snapshot is released (the memtable is flushed soon), a per-key row cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Protocol, TypeAlias

from lsm.batch import Op
from lsm.entry import DELETE, KIND_BITS, RANGE_DELETE, VALUE, Columns, Found, RangeDelete

ENTRY_OVERHEAD_BYTES = 24
"""Charged for an entry besides key and value: what an arena with a skip list takes (tag, lengths, links),
so that one `write_buffer_size` gives tables of one size whatever the memtable. (CPython's own overhead is larger.)"""

TAIL_MAX = 128
WINDOW_MIN = 64
WINDOW_MAX = 2048

Version: TypeAlias = tuple[int, bytes | None, Any]
"""(sequence, value, older version or None)."""


class Memtable(Protocol):
    """What the engine asks of a memtable. Sequences ascend from call to call."""

    size_bytes: int
    """Keys, values and overhead of all that was written; never shrinks."""
    range_deletes: list[RangeDelete]
    """In the order in which they came. Not to be changed by the caller."""

    @property
    def entries(self) -> int:
        """Versions held, deletes included, range deletes not."""
        ...

    def put(self, key: bytes, sequence: int, value: bytes | None, keep: int) -> None:
        """Add a version; `None` deletes. Replaced versions with a sequence above `keep` may be dropped."""
        ...

    def delete_range(self, start: bytes, end: bytes, sequence: int) -> None:
        """Note that all older versions of keys in [start, end) are deleted."""
        ...

    def apply(self, first_sequence: int, ops: Sequence[Op], keep: int) -> None:
        """Add a batch: op `i` has sequence `first_sequence + i`."""
        ...

    def get(self, key: bytes, sequence: int) -> Found | None:
        """The newest version with at most `sequence`, range deletes not considered."""
        ...

    def columns(self) -> Columns:
        """All entries. The same lists are handed out again: not to be changed."""
        ...

    def scan(self, start: bytes, stop: bytes | None) -> Columns:
        """The entries with keys in [start, stop)."""
        ...

    def blocks(self, start: bytes, stop: bytes | None) -> Iterator[Columns]:
        """As `scan`, in windows made when they are asked for: cheap where only the beginning is read.

        Sees every key put before the call. All windows are fixed then but for newer versions of these keys.
        """
        ...

    def blocks_reverse(self, start: bytes, stop: bytes | None) -> Iterator[Columns]:
        """The same entries, last window first, each window ascending."""
        ...


class HashMemtable:
    """The default: a dict, sorted when asked."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.range_deletes: list[RangeDelete] = []
        self._table: dict[bytes, Version] = {}
        self._arrivals: list[bytes] = []
        self._older = 0  # versions that are not the newest of their key
        self._view: tuple[list[bytes], list[bytes], int] = ([], [], 0)  # sorted, sorted tail, arrivals in both
        self._columns = (0, Columns([], [], []))  # with the size at which they were made

    @property
    def entries(self) -> int:
        """Versions held."""
        return len(self._table) + self._older

    # writing

    def put(self, key: bytes, sequence: int, value: bytes | None, keep: int) -> None:
        """Add a version; see `Memtable`."""
        table = self._table
        old = table.get(key)
        if old is None:
            table[key] = (sequence, value, None)
            self._arrivals.append(key)
        else:
            table[key] = (sequence, value, old if old[0] <= keep else old[2])
            if old[0] <= keep:
                self._older += 1
        self.size_bytes += len(key) + ENTRY_OVERHEAD_BYTES + (0 if value is None else len(value))

    def delete_range(self, start: bytes, end: bytes, sequence: int) -> None:
        """Add a range delete."""
        self.range_deletes.append(RangeDelete(start, end, sequence))
        self.size_bytes += len(start) + len(end) + ENTRY_OVERHEAD_BYTES

    def apply(self, first_sequence: int, ops: Sequence[Op], keep: int) -> None:
        """Add a batch; without deletes and snapshots all of it goes through C."""
        if not ops:
            return
        kinds, keys, values = zip(*ops, strict=True)
        if keep < 0 and not self._older and kinds.count(VALUE) == len(kinds):
            table = self._table
            known = len(table)
            sequences = range(first_sequence, first_sequence + len(ops))
            table.update(zip(keys, zip(sequences, values, repeat(None)), strict=False))
            new = len(table) - known
            self._arrivals += keys if new == len(keys) else islice(reversed(table), new)
            self.size_bytes += sum(map(len, keys)) + sum(map(len, values)) + len(ops) * ENTRY_OVERHEAD_BYTES
        else:
            apply_each(self, first_sequence, ops, keep)

    # reading

    def get(self, key: bytes, sequence: int) -> Found | None:
        """The newest visible version; see `Memtable`."""
        version = self._table.get(key)
        while version is not None:
            if version[0] <= sequence:
                return version[0], version[1]
            version = version[2]
        return None

    def columns(self) -> Columns:
        """All entries, sorted; cached until the next write."""
        size, columns = self._columns
        if size != self.size_bytes:
            size = self.size_bytes
            columns = self._gather(sorted(self._table))
            self._columns = (size, columns)
        return columns

    def scan(self, start: bytes, stop: bytes | None) -> Columns:
        """The entries in [start, stop)."""
        main, tail, _ = self._sorted()
        keys = main[_span(main, start, stop)]
        late = tail[_span(tail, start, stop)]
        if late:
            keys = sorted(keys + late)
        return self._gather(keys)

    def blocks(self, start: bytes, stop: bytes | None) -> Iterator[Columns]:
        """As `scan`, in windows."""
        main, tail, _ = self._sorted()
        return map(self._gather, _ascending(main, _span(main, start, stop), tail, _span(tail, start, stop)))

    def blocks_reverse(self, start: bytes, stop: bytes | None) -> Iterator[Columns]:
        """As `blocks`, last window first."""
        main, tail, _ = self._sorted()
        return map(self._gather, _descending(main, _span(main, start, stop), tail, _span(tail, start, stop)))

    def _sorted(self) -> tuple[list[bytes], list[bytes], int]:
        """The sorted view, with everything that has arrived."""
        main, tail, known = view = self._view
        arrived = len(self._arrivals)
        if arrived != known:
            tail = sorted(tail + self._arrivals[known:arrived])
            if len(tail) > TAIL_MAX:
                main, tail = sorted(main + tail), []  # two runs: linear
            self._view = view = (main, tail, arrived)
        return view

    def _gather(self, keys: list[bytes]) -> Columns:
        """The versions of these (sorted) keys."""
        versions = list(map(self._table.__getitem__, keys))
        if self._older:
            return _with_older(keys, versions)
        return Columns(
            keys,
            [sequence << KIND_BITS | (value is not None) for sequence, value, _ in versions],
            [value or b"" for _, value, _ in versions],
        )


def apply_each(memtable: Memtable, first_sequence: int, ops: Sequence[Op], keep: int) -> None:
    """Add a batch op by op."""
    for sequence, (kind, key, value) in enumerate(ops, first_sequence):
        if kind == RANGE_DELETE:
            memtable.delete_range(key, value, sequence)
        else:
            memtable.put(key, sequence, None if kind == DELETE else value, keep)


def _span(keys: list[bytes], start: bytes, stop: bytes | None) -> slice:
    """Where the keys in [start, stop) stand."""
    first = bisect_left(keys, start) if start else 0
    return slice(first, len(keys) if stop is None else bisect_left(keys, stop, first))


def _ascending(main: list[bytes], wanted: slice, tail: list[bytes], late: slice) -> Iterator[list[bytes]]:
    """The keys of two sorted lists in windows that grow, so that a short read stays short."""
    size, at, tail_at = WINDOW_MIN, wanted.start, late.start
    while at < wanted.stop or tail_at < late.stop:
        end = min(at + size, wanted.stop)
        tail_end = bisect_left(tail, main[end], tail_at, late.stop) if end < wanted.stop else late.stop
        keys = main[at:end]
        yield sorted(keys + tail[tail_at:tail_end]) if tail_at < tail_end else keys
        at, tail_at, size = end, tail_end, min(2 * size, WINDOW_MAX)


def _descending(main: list[bytes], wanted: slice, tail: list[bytes], late: slice) -> Iterator[list[bytes]]:
    """As `_ascending`, from the end; each window still ascends."""
    size, end, tail_end = WINDOW_MIN, wanted.stop, late.stop
    while end > wanted.start or tail_end > late.start:
        at = max(end - size, wanted.start)
        tail_at = bisect_left(tail, main[at], late.start, tail_end) if at > wanted.start else late.start
        keys = main[at:end]
        yield sorted(keys + tail[tail_at:tail_end]) if tail_at < tail_end else keys
        end, tail_end, size = at, tail_at, min(2 * size, WINDOW_MAX)


def _with_older(keys: list[bytes], newest: list[Version]) -> Columns:
    """The chains of these keys, laid out one after the other."""
    columns = Columns([], [], [])
    for key, head in zip(keys, newest, strict=True):
        version: Version | None = head
        while version is not None:
            sequence, value, older = version
            columns.keys.append(key)
            columns.tags.append(sequence << KIND_BITS | (value is not None))
            columns.values.append(value or b"")
            version = older
    return columns


def make_memtable(option: str | Callable[[], Memtable]) -> Memtable:
    """The memtable that `Options.memtable` names, or what its factory makes."""
    if callable(option):
        return option()
    if option == "skiplist":
        from lsm.skiplist import SkipListMemtable  # it builds on this module

        return SkipListMemtable()
    assert option == "hash", option
    return HashMemtable()
