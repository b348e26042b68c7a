"""A skip list as memtable: sorted at all times, its links in one arena of integers.

    level 2   head ───────────────────────▶ m ──────────────▶ end
    level 1   head ───────▶ d ────────────▶ m ─────▶ s ─────▶ end
    level 0   head ─▶ a ──▶ d ──▶ f ──────▶ m ──▶ p ▶ s ────▶ end

A node is an offset into `_links`; an entry is an index into three parallel lists:

    _links   … | entry | next at level 0 | next at level 1 | … |            a node of height h: 1 + h integers
    _keys, _sequences, _values            [entry]

Heights are LevelDB's (Pugh's with p = 1/4, at most 12), drawn from a generator of our own, so that the same
puts make the same list on every machine.

Invariants:
1. On each level, nodes ascend by (key, then newest sequence first); a level's nodes are on every level below.
2. A node that becomes reachable is complete: a reader beside the writer sees it whole or not at all.
3. Nothing moves: nodes and entries are only added, and die with the memtable.
4. As in `lsm.memtable`: a key's newest version is replaced in place unless its sequence is ≤ `keep`.

Left out: a free list (nothing is freed), the concurrent insertion of RocksDB (one writer at a time).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from lsm.batch import Op
from lsm.entry import KIND_BITS, Columns, Found, RangeDelete
from lsm.memtable import ENTRY_OVERHEAD_BYTES, WINDOW_MAX, WINDOW_MIN, apply_each

HEIGHT_MAX = 12
BRANCHING = 4
_END = 0  # the head's own offset: no link leads there, so it stands for "no next node"


class Lehmer:
    """The minimal standard generator of Park and Miller (1988): state × 16807 mod 2³¹ − 1.

    >>> generator = Lehmer(1)
    >>> [generator.next() for _ in range(3)]
    [16807, 282475249, 1622650073]
    """

    def __init__(self, seed: int) -> None:
        self._state = seed % 2147483647 or 1

    def next(self) -> int:
        """An integer in [1, 2³¹ − 2]."""
        self._state = self._state * 16807 % 2147483647
        return self._state


class SkipListMemtable:
    """A memtable that never sorts; see `lsm.memtable.Memtable` for the contract."""

    def __init__(self, seed: int = 301) -> None:
        self.size_bytes = 0
        self.range_deletes: list[RangeDelete] = []
        self._keys: list[bytes] = [b""]  # entry 0 belongs to the head and is never compared
        self._sequences: list[int] = [0]
        self._values: list[bytes | None] = [None]
        self._links = array("I", [0] * (1 + HEIGHT_MAX))
        self._height = 1
        self._generator = Lehmer(seed)
        self._columns = (0, Columns([], [], []))  # with the size at which they were made

    @property
    def entries(self) -> int:
        """Versions held."""
        return len(self._keys) - 1

    # writing

    def put(self, key: bytes, sequence: int, value: bytes | None, keep: int) -> None:
        """Add a version; see `Memtable`."""
        self.size_bytes += len(key) + ENTRY_OVERHEAD_BYTES + (0 if value is None else len(value))
        before = self._predecessors(key)
        links = self._links
        node = links[before[0] + 1]
        if node != _END:
            entry = links[node]
            if self._keys[entry] == key and self._sequences[entry] > keep:
                self._sequences[entry] = sequence
                self._values[entry] = value
                return
        height = self._draw_height()
        before += [0] * (height - len(before))
        node = len(links)
        links.append(len(self._keys))
        self._keys.append(key)
        self._sequences.append(sequence)
        self._values.append(value)
        for level in range(1, height + 1):
            links.append(links[before[level - 1] + level])
        for level in range(1, height + 1):
            links[before[level - 1] + level] = node
        self._height = max(self._height, height)

    def _draw_height(self) -> int:
        height = 1
        while height < HEIGHT_MAX and self._generator.next() % BRANCHING == 0:
            height += 1
        return height

    def delete_range(self, start: bytes, end: bytes, sequence: int) -> None:
        """Add a range delete."""
        self.range_deletes.append(RangeDelete(start, end, sequence))
        self.size_bytes += len(start) + len(end) + ENTRY_OVERHEAD_BYTES

    def apply(self, first_sequence: int, ops: Sequence[Op], keep: int) -> None:
        """Add a batch."""
        apply_each(self, first_sequence, ops, keep)

    # reading

    def _predecessors(self, key: bytes) -> list[int]:
        """For each level, the last node whose key is less than `key` (level 0 first)."""
        links, keys = self._links, self._keys
        before = []
        node = 0
        for level in range(self._height, 0, -1):
            after = links[node + level]
            while after and keys[links[after]] < key:
                node = after
                after = links[node + level]
            before.append(node)
        before.reverse()
        return before

    def _seek(self, key: bytes) -> int:
        """The first node whose key is at least `key`."""
        links, keys = self._links, self._keys
        node = after = 0
        for level in range(self._height, 0, -1):
            after = links[node + level]
            while after and keys[links[after]] < key:
                node = after
                after = links[node + level]
        return after

    def get(self, key: bytes, sequence: int) -> Found | None:
        """The newest visible version; see `Memtable`."""
        links, keys, sequences = self._links, self._keys, self._sequences
        node = self._seek(key)
        while node:
            entry = links[node]
            if keys[entry] != key:
                return None
            if sequences[entry] <= sequence:
                return sequences[entry], self._values[entry]
            node = links[node + 1]
        return None

    def columns(self) -> Columns:
        """All entries: level 0 from end to end; cached until the next write."""
        size, columns = self._columns
        if size != self.size_bytes:
            size = self.size_bytes
            columns = self.scan(b"", None)
            self._columns = (size, columns)
        return columns

    def scan(self, start: bytes, stop: bytes | None) -> Columns:
        """The entries in [start, stop)."""
        return self._gather(self._walk(self._seek(start), stop, len(self._keys))[0])

    def blocks(self, start: bytes, stop: bytes | None) -> Iterator[Columns]:
        """As `scan`, in windows that grow."""
        return self._windows(self._seek(start), stop)

    def _windows(self, node: int, stop: bytes | None) -> Iterator[Columns]:
        size = WINDOW_MIN
        while node:
            entries, node = self._walk(node, stop, size)
            size = min(2 * size, WINDOW_MAX)
            if entries:
                yield self._gather(entries)

    def blocks_reverse(self, start: bytes, stop: bytes | None) -> Iterator[Columns]:
        """As `blocks`, last window first. A list linked in one direction: the whole range is read at once."""
        columns = self.scan(start, stop)
        return iter((columns,) if columns.keys else ())

    def _walk(self, node: int, stop: bytes | None, limit: int) -> tuple[list[int], int]:
        """At most `limit` entries from `node` on, and the node after them (0: none in the range)."""
        links, keys = self._links, self._keys
        entries: list[int] = []
        while node:
            entry = links[node]
            if stop is not None and keys[entry] >= stop:
                return entries, _END
            if len(entries) == limit:
                return entries, node
            entries.append(entry)
            node = links[node + 1]
        return entries, _END

    def _gather(self, entries: list[int]) -> Columns:
        sequences = map(self._sequences.__getitem__, entries)
        values = list(map(self._values.__getitem__, entries))
        return Columns(
            list(map(self._keys.__getitem__, entries)),
            [sequence << KIND_BITS | (value is not None) for sequence, value in zip(sequences, values, strict=True)],
            [value or b"" for value in values],
        )
