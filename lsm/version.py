"""Which tables make up the store: a frozen `Version`, and the `Edit` that leads to the next.

    version 7 ──edit──▶ version 8 ──edit──▶ version 9        apply(version, edit) → version

Level 0 holds sorted runs as they were flushed (or merged, size-tiered), newest first. Every deeper
level is one sorted run cut into tables. A table covers the half-open key range [start, end): the
hull of its entries and of its range deletes.

Invariants (`Version.check`):
1. A table number appears once.
2. Level 0 is ordered by `seq_max`, largest first; where two of its tables overlap in keys, their
   sequence ranges [seq_min, seq_max] are disjoint. So the first hit of a lookup is the newest.
3. In a deeper level tables ascend by key and do not overlap: end[i] ≤ start[i + 1].
4. For one key, what a shallower level holds is newer than what a deeper one holds.
   (Not checked here, it needs the tables: `DB.verify` does.)

Edits are self-sufficient: replaying them opens no table.
Left out: column families, blob files.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class TableMeta:
    """One table as the manifest knows it. Sequence bounds are the hull of what went into it."""

    number: int
    size_bytes: int
    entries: int  # point entries, deletes included
    deletes: int
    range_deletes: int
    smallest: bytes | None  # of the point entries; None if there are none
    largest: bytes | None
    seq_min: int
    seq_max: int
    range_start: bytes | None = None  # hull of the range deletes, end exclusive
    range_end: bytes | None = None
    raw_bytes: int = 0  # keys and values before compression
    created_s: int = 0

    @cached_property
    def start(self) -> bytes:
        """The least key covered."""
        return min(key for key in (self.smallest, self.range_start) if key is not None)

    @cached_property
    def end(self) -> bytes:
        """The first key after all that are covered."""
        after_largest = None if self.largest is None else self.largest + b"\0"
        return max(key for key in (after_largest, self.range_end) if key is not None)

    def overlaps(self, start: bytes, end: bytes | None) -> bool:
        """Whether it shares a key with [start, end); an `end` of None is no bound."""
        return self.end > start and (end is None or self.start < end)


@dataclass(frozen=True)
class Edit:
    """A step from one version to the next, and the counters that must be durable with it."""

    added: tuple[tuple[int, TableMeta], ...] = ()  # (level, table)
    removed: tuple[tuple[int, int], ...] = ()  # (level, table number)
    log_number: int | None = None  # logs below it are in tables
    next_file_number: int | None = None
    last_sequence: int | None = None
    cursors: tuple[tuple[int, bytes], ...] = ()  # (level, where its next round-robin compaction starts)
    closed_log_bytes: int | None = None  # a clean close: so much of the log in force is durable, and whole


@dataclass(frozen=True)
class Version:
    """The tables of each level. Level 0 newest first, deeper levels by key."""

    levels: tuple[tuple[TableMeta, ...], ...]

    @staticmethod
    def empty(num_levels: int) -> Version:
        """A store without tables."""
        return Version(((),) * num_levels)

    @cached_property
    def starts(self) -> tuple[list[bytes], ...]:
        """The first keys of each level's tables, for binary search (deeper levels only)."""
        return tuple([table.start for table in level] for level in self.levels)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """File bytes of each level."""
        return tuple(sum(table.size_bytes for table in level) for level in self.levels)

    def table_at(self, level: int, key: bytes) -> TableMeta | None:
        """The one table of a deeper level whose range holds `key`."""
        i = bisect_right(self.starts[level], key) - 1
        if i < 0:
            return None
        table = self.levels[level][i]
        return table if key < table.end else None

    def overlapping(self, level: int, start: bytes, end: bytes | None) -> tuple[TableMeta, ...]:
        """The tables of a level that share a key with [start, end), in the level's order."""
        return tuple(table for table in self.levels[level] if table.overlaps(start, end))

    def tables(self) -> Iterator[tuple[int, TableMeta]]:
        """Every (level, table)."""
        for number, level in enumerate(self.levels):
            for table in level:
                yield number, table

    def level_bytes(self, level: int) -> int:
        """Bytes of the level's files."""
        return self.sizes[level]

    def check(self) -> None:
        """Assert invariants 1 to 3."""
        numbers = [table.number for _, table in self.tables()]
        assert len(numbers) == len(set(numbers)), f"a table appears twice: {sorted(numbers)}"
        for table in (table for _, table in self.tables()):
            assert table.start < table.end, f"table {table.number} covers no key"
            assert table.seq_min <= table.seq_max, f"table {table.number}: sequence bounds crossed"
        newest_first = self.levels[0]
        for i, newer in enumerate(newest_first):
            for older in newest_first[i + 1 :]:
                assert newer.seq_max >= older.seq_max, f"level 0: {older.number} before {newer.number}"
                if newer.overlaps(older.start, older.end):
                    assert newer.seq_min > older.seq_max, f"level 0: {newer.number}, {older.number} share sequences"
        for number, level in enumerate(self.levels[1:], 1):
            for left, right in itertools.pairwise(level):
                assert left.end <= right.start, f"level {number}: {left.number} and {right.number} overlap"


def apply(version: Version, edit: Edit) -> Version:
    """The version after `edit`. Raises `ValueError` if the edit does not fit (a damaged manifest).

    Removals come first, so that a trivial move is one edit that removes and adds the same table.
    """
    levels = [list(level) for level in version.levels]
    for level, number in edit.removed:
        kept = [table for table in levels[level] if table.number != number] if level < len(levels) else []
        if level >= len(levels) or len(kept) == len(levels[level]):
            raise ValueError(f"removes table {number} from level {level}, where it is not")
        levels[level] = kept
    for level, table in edit.added:
        while level >= len(levels):
            levels.append([])
        levels[level].append(table)
    if edit.added:
        levels[0].sort(key=lambda table: (-table.seq_max, -table.number))
        for deeper in levels[1:]:
            deeper.sort(key=lambda table: table.start)
    return Version(tuple(tuple(level) for level in levels))


def renumbered(table: TableMeta, number: int) -> TableMeta:
    """The same table under another number."""
    return replace(table, number=number)
