"""Range deletes, cut into fragments that do not overlap.

    as written      [a───────────m) @9        as fragments   [a──f) @9
                         [f──────────r) @5                   [f──m) @9, 5
                                                             [m──r) @5

Range deletes overlap as they please; a question about one key would have to ask them all. Cut at
every start and end, the pieces ascend and do not overlap, and one bisection finds the only piece that
holds a key, with all sequences that cover it.

Invariants of `RangeDeletes`:
1. starts[i] < ends[i] <= starts[i + 1].
2. sequences[i] is not empty, and descends strictly.
3. Fragments that touch differ in their sequences.

A range delete hides a version of a key if the key is in [start, end), the version is *older*
(smaller sequence), and the reader sees the range delete (its sequence ≤ the reader's).

Left out: truncating by sequence. A fragment lists every sequence that covers it, so n nested deletes
make up to 2n fragments of up to n sequences; compactions thin them out (`thinned`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lsm.entry import RangeDelete
from lsm.key_ranges import KeyRanges, ranges_over


@dataclass(frozen=True)
class RangeDeletes:
    """Fragments in key order; see the invariants above. Build it with `fragment`."""

    starts: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is deleted."""
        return not self.starts

    def covering(self, key: bytes, sequence_max: int) -> int:
        """The largest sequence <= `sequence_max` of a range delete that covers `key`, else -1."""
        i = bisect_right(self.starts, key) - 1
        if i < 0 or key >= self.ends[i]:
            return -1
        return next((sequence for sequence in self.sequences[i] if sequence <= sequence_max), -1)

    def clip(self, start: bytes, end: bytes | None) -> RangeDeletes:
        """What of it lies in [start, end); an `end` of None is no bound."""
        first = bisect_right(self.ends, start)
        last = len(self.starts) if end is None else bisect_left(self.starts, end)
        if first >= last or (end is not None and start >= end):
            return RangeDeletes()
        starts, ends = list(self.starts[first:last]), list(self.ends[first:last])
        starts[0] = max(starts[0], start)
        if end is not None:
            ends[-1] = min(ends[-1], end)
        return RangeDeletes(tuple(starts), tuple(ends), self.sequences[first:last])

    def spans(self, keys: list[bytes]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """For each fragment that covers some of the sorted `keys`: their indexes [lo, hi), and its sequences."""
        return ((lo, hi, self.sequences[i]) for i, lo, hi in ranges_over(self.starts, self.ends, keys))

    def thinned(self, snapshots: Sequence[int], older: KeyRanges) -> RangeDeletes:
        """What of it must be kept, given the live `snapshots` (ascending) and the keys of `older` tables.

        Within a snapshot stripe the newest says it all. One that every snapshot sees (stripe 0) hides
        nothing any more once this merge has dropped what it covered, unless an older table overlaps.
        """
        starts: list[bytes] = []
        ends: list[bytes] = []
        kept: list[tuple[int, ...]] = []
        for start, end, sequences in zip(self.starts, self.ends, self.sequences, strict=True):
            newest = {bisect_left(snapshots, sequence): sequence for sequence in reversed(sequences)}
            if not older.overlaps(start, end):
                newest.pop(0, None)
            if newest:
                _append(starts, ends, kept, (start, end, tuple(reversed(newest.values()))))
        return RangeDeletes(tuple(starts), tuple(ends), tuple(kept))

    def rows(self) -> list[RangeDelete]:
        """As few range deletes as say the same: neighbours of one sequence joined. Sorted."""
        rows: list[RangeDelete] = []
        open_at: dict[int, int] = {}  # sequence → index of its latest row
        for start, end, sequences in zip(self.starts, self.ends, self.sequences, strict=True):
            for sequence in sequences:
                i = open_at.get(sequence)
                if i is not None and rows[i].end == start:
                    rows[i] = RangeDelete(rows[i].start, end, sequence)
                else:
                    open_at[sequence] = len(rows)
                    rows.append(RangeDelete(start, end, sequence))
        return sorted(rows)


NOTHING = RangeDeletes()


def fragment(deletes: Iterable[RangeDelete]) -> RangeDeletes:
    """Cut range deletes, in any order, into fragments. Empty ones (start >= end) are ignored.

    >>> fragments = fragment([RangeDelete(b"a", b"m", 9), RangeDelete(b"f", b"r", 5)])
    >>> list(zip(fragments.starts, fragments.ends, fragments.sequences))
    [(b'a', b'f', (9,)), (b'f', b'm', (9, 5)), (b'm', b'r', (5,))]
    """
    events: list[tuple[bytes, bool, int]] = []  # (key, whether one starts here, sequence)
    for start, end, sequence in deletes:
        if start < end:
            events += ((start, True, sequence), (end, False, sequence))
    if not events:
        return NOTHING
    events.sort(key=lambda event: event[0])
    starts: list[bytes] = []
    ends: list[bytes] = []
    stacks: list[tuple[int, ...]] = []
    active: list[int] = []  # negated, so that ascending is newest first; one sequence may be there twice
    previous = b""
    for key, begins, sequence in events:
        if active and previous < key:
            _append(starts, ends, stacks, (previous, key, tuple(-s for s in dict.fromkeys(active))))
        previous = key
        if begins:
            insort(active, -sequence)
        else:
            del active[bisect_left(active, -sequence)]
    return RangeDeletes(tuple(starts), tuple(ends), tuple(stacks))


def _append(
    starts: list[bytes], ends: list[bytes], stacks: list[tuple[int, ...]], piece: tuple[bytes, bytes, tuple[int, ...]]
) -> None:
    """Add a fragment; one that goes on where the last one ended, with the same sequences, joins it."""
    start, end, sequences = piece
    if ends and ends[-1] == start and stacks[-1] == sequences:
        ends[-1] = end
    else:
        starts.append(start)
        ends.append(end)
        stacks.append(sequences)
