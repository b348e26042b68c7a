"""A union of half-open key ranges: "might any of these tables hold this key?"

    tables   [a────f)   [d────k)      [p──r)
    union    [a───────────────k)      [p──r)

A compaction asks before it drops a tombstone: a key outside the union of all older tables is held by
none of them. The answer errs on one side only: a key inside may still be held by none.

Invariants: starts[i] < ends[i] < starts[i + 1]; touching ranges are one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KeyRanges:
    """The union; build it with `KeyRanges.of`."""

    starts: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()

    @staticmethod
    def of(ranges: Iterable[tuple[bytes, bytes]]) -> KeyRanges:
        """The union of [start, end) pairs.

        >>> KeyRanges.of([(b"d", b"k"), (b"a", b"f"), (b"p", b"r")])
        KeyRanges(starts=(b'a', b'p'), ends=(b'k', b'r'))
        """
        starts: list[bytes] = []
        ends: list[bytes] = []
        for start, end in sorted(ranges):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            elif start < end:
                starts.append(start)
                ends.append(end)
        return KeyRanges(tuple(starts), tuple(ends))

    def __contains__(self, key: bytes) -> bool:
        i = bisect_right(self.starts, key) - 1
        return i >= 0 and key < self.ends[i]

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Whether a key of [start, end) is in the union."""
        i = bisect_right(self.ends, start)  # the first range that ends after `start`
        return i < len(self.starts) and self.starts[i] < end

    def spans(self, keys: list[bytes]) -> Iterator[tuple[int, int]]:
        """The index ranges [lo, hi) of the sorted `keys` that lie in the union, one bisection a range."""
        return ((lo, hi) for _, lo, hi in ranges_over(self.starts, self.ends, keys))


def ranges_over(starts: Sequence[bytes], ends: Sequence[bytes], keys: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """(i, lo, hi) for each of the ascending, disjoint ranges that holds some of the sorted `keys`: keys[lo:hi].

    Two bisections a range, whatever the number of keys.
    """
    if not keys:
        return
    for i in range(bisect_right(ends, keys[0]), len(starts)):
        lo = bisect_left(keys, starts[i])
        if lo == len(keys):
            return
        hi = bisect_left(keys, ends[i], lo)
        if lo < hi:
            yield i, lo, hi
