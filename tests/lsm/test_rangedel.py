"""Fragments against the range deletes that they were cut from, key by key."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lsm.entry import RangeDelete
from lsm.key_ranges import KeyRanges
from lsm.rangedel import NOTHING, RangeDeletes, fragment

POINTS = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"b", b"m" * 70, b"m" * 70 + b"\0", b"z", b"\xff\xff"]
KEYS = st.sampled_from(POINTS)
DELETES = st.lists(st.builds(RangeDelete, KEYS, KEYS, st.integers(0, 9)), max_size=8)
RANGES = st.lists(st.tuples(KEYS, KEYS), max_size=6)


def sequences_at(deletes: list[RangeDelete], key: bytes) -> list[int]:
    return sorted({d.sequence for d in deletes if d.start <= key < d.end}, reverse=True)


def check(fragments: RangeDeletes) -> None:
    for start, end, sequences in zip(fragments.starts, fragments.ends, fragments.sequences, strict=True):
        assert start < end
        assert sequences
        assert all(left > right for left, right in pairwise(sequences))
    for i in range(1, len(fragments.starts)):
        assert fragments.ends[i - 1] <= fragments.starts[i]
        joined = fragments.ends[i - 1] == fragments.starts[i] and fragments.sequences[i - 1] == fragments.sequences[i]
        assert not joined


@given(DELETES)
def test_fragments_cover_what_the_deletes_covered(deletes: list[RangeDelete]) -> None:
    fragments = fragment(deletes)
    check(fragments)
    assert fragments.is_empty == (not any(d.start < d.end for d in deletes))
    for key in POINTS:
        for sequence_max in range(-1, 10):
            known = [sequence for sequence in sequences_at(deletes, key) if sequence <= sequence_max]
            assert fragments.covering(key, sequence_max) == max(known, default=-1)


@given(DELETES, st.randoms(use_true_random=False))
def test_the_order_of_the_deletes_does_not_matter(deletes: list[RangeDelete], random: object) -> None:
    shuffled = list(deletes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fragment(shuffled) == fragment(deletes)


@given(DELETES)
def test_rows_say_the_same_in_fewer_words(deletes: list[RangeDelete]) -> None:
    fragments = fragment(deletes)
    rows = fragments.rows()
    assert rows == sorted(rows)
    assert fragment(rows) == fragments
    assert len(rows) <= len({d for d in deletes if d.start < d.end})


@given(DELETES, KEYS, st.one_of(st.none(), KEYS))
def test_clip_keeps_what_is_inside(deletes: list[RangeDelete], start: bytes, end: bytes | None) -> None:
    clipped = fragment(deletes).clip(start, end)
    check(clipped)
    for key in POINTS:
        inside = start <= key and (end is None or key < end)
        expected = sequences_at(deletes, key) if inside else []
        assert clipped.covering(key, 9) == max(expected, default=-1)
    if not clipped.is_empty:
        assert clipped.starts[0] >= start
        assert end is None or clipped.ends[-1] <= end


@given(DELETES, st.lists(KEYS))
def test_spans_find_every_covered_key(deletes: list[RangeDelete], keys: list[bytes]) -> None:
    keys.sort()
    found: dict[int, tuple[int, ...]] = {}
    for lo, hi, sequences in fragment(deletes).spans(keys):
        assert lo < hi
        for i in range(lo, hi):
            assert i not in found
            found[i] = sequences
    assert found == {i: tuple(known) for i, key in enumerate(keys) if (known := sequences_at(deletes, key))}


@given(DELETES, st.sets(st.integers(0, 9), max_size=3), RANGES)
def test_thinned_keeps_what_some_reader_needs(
    deletes: list[RangeDelete], snapshots: set[int], older: list[tuple[bytes, bytes]]
) -> None:
    borders = sorted(snapshots)
    thinned = fragment(deletes).thinned(borders, KeyRanges.of(older))
    check(thinned)
    for key in POINTS:
        for reader in [*borders, 99]:
            before = fragment(deletes).covering(key, reader)
            after = thinned.covering(key, reader)
            everybody_sees_it = not borders or before <= borders[0]
            if key in KeyRanges.of(older):
                assert after == before
            else:
                assert after == before or (after == -1 and everybody_sees_it)


def test_thinned_drops_at_the_bottom_and_keeps_above_an_older_table() -> None:
    fragments = fragment([RangeDelete(b"a", b"m", 9), RangeDelete(b"f", b"r", 5)])
    assert fragments.thinned([], KeyRanges()) == NOTHING
    kept = fragments.thinned([], KeyRanges.of([(b"q", b"s")]))
    assert kept.rows() == [RangeDelete(b"m", b"r", 5)]
    assert fragments.thinned([7], KeyRanges()).rows() == [RangeDelete(b"a", b"m", 9)]
    assert fragments.thinned([7], KeyRanges.of([(b"", b"z")])) == fragments


@given(RANGES, KEYS, KEYS, st.lists(KEYS))
def test_key_ranges(ranges: list[tuple[bytes, bytes]], start: bytes, end: bytes, keys: list[bytes]) -> None:
    union = KeyRanges.of(ranges)
    assert all(left < right for left, right in zip(union.starts, union.ends, strict=True))
    assert all(left < right for left, right in zip(union.ends, union.starts[1:], strict=False))

    def inside(key: bytes) -> bool:
        return any(low <= key < high for low, high in ranges)

    for key in POINTS:
        assert (key in union) == inside(key)
    if start < end:
        expected = any(low < end and start < high for low, high in ranges if low < high)
        assert union.overlaps(start, end) == expected
    keys.sort()
    spanned = [i for lo, hi in union.spans(keys) for i in range(lo, hi)]
    assert spanned == [i for i, key in enumerate(keys) if inside(key)]
