"""The read path: which places hold a key, in which order they are asked, and when to stop.

    memtable ─▶ frozen memtables ─▶ level 0, newest table first ─▶ level 1 ─▶ level 2 …

Each place is newer than all behind it (for one key), so the first hit is the answer, unless a range
delete met on the way, or in the same place, is newer than the hit.

Invariants:
1. A `View` is one tuple of frozen parts and one growing memtable; a reader takes it once and needs no lock.
2. A table is asked only if its key range covers the key (with the key-range filter), and read only if
   its Bloom filter does not rule the key out.
3. Once a range delete covers the key, nothing behind that place can hold a newer version: stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from lsm.entry import KIND_MASK, MAX_SEQUENCE, VALUE, Columns, RangeDelete, read_tag
from lsm.merge import merge_scan
from lsm.rangedel import RangeDeletes, fragment

if TYPE_CHECKING:
    from lsm.cache import TableCache
    from lsm.memtable import Memtable
    from lsm.version import TableMeta, Version


class MemorySlot:
    """A memtable with its range deletes in searchable form, redone when new ones came."""

    __slots__ = ("_count", "_fragments", "memtable")

    def __init__(self, memtable: Memtable) -> None:
        self.memtable = memtable
        self._fragments = fragment([])
        self._count = 0

    def deletes(self) -> RangeDeletes:
        """The memtable's range deletes, fragmented."""
        known = self.memtable.range_deletes
        if len(known) != self._count:
            self._count = len(known)
            self._fragments = fragment(list(known))
        return self._fragments


class View(NamedTuple):
    """Everything that a reader looks at. `memory` is newest first."""

    memory: tuple[MemorySlot, ...]
    version: Version


class Reader:
    """Lookups and scans over a view."""

    def __init__(self, tables: TableCache, *, by_range: bool) -> None:
        self._tables = tables
        self._by_range = by_range
        self._deletes: dict[int, RangeDeletes] = {}  # of tables that have some, by number

    def get(self, view: View, key: bytes, sequence: int = MAX_SEQUENCE) -> bytes | None:
        """The value of `key` at `sequence`; None if it is missing or deleted."""
        for slot in view.memory:
            memtable = slot.memtable
            found = memtable.get(key, sequence)
            if memtable.range_deletes:
                covering = slot.deletes().covering(key, sequence)
                if covering >= 0 and (found is None or found[0] < covering):
                    return None
            if found is not None:
                return found[1]
        tag_max = read_tag(sequence)
        version = view.version
        for table in version.levels[0]:
            if not self._by_range or table.start <= key < table.end:
                done, value = self._probe(table, key, tag_max, sequence)
                if done:
                    return value
        for level in range(1, len(version.levels)):
            if version.levels[level]:
                for table in self._candidates(version, level, key):
                    done, value = self._probe(table, key, tag_max, sequence)
                    if done:
                        return value
        return None

    def _candidates(self, version: Version, level: int, key: bytes) -> tuple[TableMeta, ...]:
        if not self._by_range:
            return version.levels[level]
        table = version.table_at(level, key)
        return () if table is None else (table,)

    def _probe(self, table: TableMeta, key: bytes, tag_max: int, sequence: int) -> tuple[bool, bytes | None]:
        """Whether this table decides, and what it says."""
        hit = self._tables.get(table).get(key, tag_max)
        if table.range_deletes:
            covering = self._table_deletes(table).covering(key, sequence)
            if covering >= 0 and (hit is None or hit[0] >> 8 < covering):
                return True, None
        if hit is None:
            return False, None
        return True, hit[1] if hit[0] & KIND_MASK == VALUE else None

    def _table_deletes(self, table: TableMeta) -> RangeDeletes:
        deletes = self._deletes.get(table.number)
        if deletes is None:
            deletes = fragment(list(self._tables.get(table).range_deletes))
            self._deletes[table.number] = deletes
        return deletes

    def forget(self, live: set[int]) -> None:
        """Drop what is remembered of tables that are gone."""
        for number in [number for number in self._deletes if number not in live]:
            del self._deletes[number]

    # scans

    def scan(
        self, view: View, start: bytes, stop: bytes | None, sequence: int, *, reverse: bool
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Windows of visible (keys, values) in [start, stop), ascending; or descending with `reverse`."""
        deletes: list[RangeDelete] = []
        sources: list[Iterator[Columns]] = []
        for slot in view.memory:
            deletes += slot.memtable.range_deletes
            memtable = slot.memtable
            sources.append(memtable.blocks_reverse(start, stop) if reverse else memtable.blocks(start, stop))
        for number, level in enumerate(view.version.levels):
            tables = [table for table in level if table.overlaps(start, stop)]
            for table in tables:
                if table.range_deletes:
                    deletes += self._tables.get(table).range_deletes
            runs = [[table] for table in tables] if number == 0 else [tables] if tables else []
            sources += [self._run(run, start, stop, reverse) for run in runs]
        return merge_scan(sources, fragment(deletes), sequence, reverse=reverse)

    def _run(self, tables: list[TableMeta], start: bytes, stop: bytes | None, reverse: bool) -> Iterator[Columns]:
        """The blocks of one sorted run; a table is opened when the scan reaches it."""
        for table in reversed(tables) if reverse else tables:
            reader = self._tables.get(table)
            yield from reader.blocks_reverse(start, stop) if reverse else reader.blocks(start, stop)
