"""The windowed merge against the heap merge, and the scan against the definition of visibility."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm import merge
from lsm.entry import DELETE, VALUE, Columns, RangeDelete, check_columns, make_tag
from lsm.merge import heap_merge, merge_scan, merge_windows, part_of, visible
from lsm.rangedel import fragment

LONG = b"common/prefix/" * 6
KEYS = st.one_of(
    st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0\0", b"\xff", b"\xff\xff", LONG, LONG + b"\0"]),
    st.binary(max_size=2),
    st.binary(max_size=2).map(lambda tail: LONG + tail),
)
Rows = list[tuple[bytes, int, bytes]]


def columns_of(rows: Rows) -> Columns:
    ordered = sorted(rows, key=lambda row: (row[0], -row[1]))
    return Columns([r[0] for r in ordered], [r[1] for r in ordered], [r[2] for r in ordered])


def blocks_of(rows: Rows, size: int) -> list[Columns]:
    columns = columns_of(rows)
    return [part_of(columns, i, min(i + size, len(rows))) for i in range(0, len(rows), size)]


@st.composite
def runs(draw: st.DrawFn) -> list[Rows]:
    """Up to four sorted sources; a sequence is used once, in any of them."""
    drawn = draw(st.lists(st.tuples(KEYS, st.integers(0, 3), st.booleans(), st.binary(max_size=3)), max_size=60))
    sources: list[Rows] = [[], [], [], []]
    for sequence, (key, source, is_delete, value) in enumerate(draw(st.permutations(drawn)), 1):
        kind = DELETE if is_delete else VALUE
        sources[source].append((key, make_tag(sequence, kind), b"" if is_delete else value))
    return sources


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few entries, so that short lists cross many of them."""
    monkeypatch.setattr(merge, "_share", lambda sources: 4)


@given(runs(), st.integers(1, 7))
@settings(max_examples=150)
def test_windows_are_the_heap_merge(sources: list[Rows], size: int) -> None:
    expected = list(heap_merge([blocks_of(rows, size) for rows in sources]))
    windows = list(merge_windows([iter(blocks_of(rows, size)) for rows in sources]))
    assert [row for window in windows for row in zip(*window, strict=True)] == expected
    for window in windows:
        assert window.keys
        check_columns(window)
    for left, right in itertools.pairwise(windows):
        assert left.keys[-1] < right.keys[0], "a key's versions were split over two windows"


RANGES = st.lists(st.tuples(KEYS, KEYS), max_size=4)


@given(runs(), RANGES, st.integers(0, 70), st.booleans(), st.integers(1, 7), st.data())
@settings(max_examples=150)
def test_scan_shows_the_newest_visible_version(
    sources: list[Rows], ranges: list[tuple[bytes, bytes]], reader: int, reverse: bool, size: int, data: st.DataObject
) -> None:
    deletes = [RangeDelete(start, end, data.draw(st.integers(1, 70))) for start, end in ranges if start < end]
    newest: dict[bytes, tuple[int, bytes]] = {}
    for key, tag, value in sorted((row for rows in sources for row in rows), key=lambda row: row[1]):
        if tag >> 8 <= reader:
            newest[key] = (tag, value)
    expected = [
        (key, value)
        for key, (tag, value) in sorted(newest.items(), reverse=reverse)
        if tag & 0xFF == VALUE and not any(d.start <= key < d.end and tag >> 8 < d.sequence <= reader for d in deletes)
    ]
    blocks = [blocks_of(rows, size)[:: -1 if reverse else 1] for rows in sources]
    windows = list(merge_scan([iter(source) for source in blocks], fragment(deletes), reader, reverse=reverse))
    assert [row for keys, values in windows for row in zip(keys, values, strict=True)] == expected
    assert all(keys for keys, _ in windows)


def test_no_sources_and_empty_sources() -> None:
    assert list(merge_windows([])) == []
    assert list(merge_windows([iter([]), iter([Columns([], [], [])])])) == []
    assert list(merge_scan([], fragment([]), 9)) == []
    assert visible(Columns([], [], []), fragment([]), 9) == ([], [])


def test_a_key_with_more_versions_than_a_window_stays_whole() -> None:
    rows = [(b"k", make_tag(sequence, VALUE), b"v") for sequence in range(1, 100)]
    others = [(b"a", make_tag(200, VALUE), b""), (b"z", make_tag(201, VALUE), b"")]
    windows = list(merge_windows([iter(blocks_of(rows, 3)), iter(blocks_of(others, 1))]))
    assert [window.keys.count(b"k") for window in windows if b"k" in window.keys] == [99]
    assert sum(len(window.keys) for window in windows) == 101


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_reverse_scan_sees_all_versions_of_a_key_before_it_shows_one(size: int) -> None:
    rows = [
        (key, make_tag(sequence, VALUE), b"%d" % sequence) for key in (b"a", b"b", b"c") for sequence in range(1, 8)
    ]
    for reader in range(1, 8):
        windows = list(merge_scan([iter(blocks_of(rows, size)[::-1])], fragment([]), reader, reverse=True))
        shown = [row for keys, values in windows for row in zip(keys, values, strict=True)]
        assert shown == [(key, b"%d" % reader) for key in (b"c", b"b", b"a")]


def test_sources_given_oldest_first_are_sorted_all_the_same() -> None:
    old = [(b"k", make_tag(1, VALUE), b"old")]
    new = [(b"k", make_tag(2, VALUE), b"new")]
    (window,) = merge_windows([iter([columns_of(old)]), iter([columns_of(new)])])
    assert window.values == [b"new", b"old"]


def test_a_short_scan_reads_one_block_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    read: list[int] = []

    def source(offset: int) -> Iterator[Columns]:
        rows = [(b"%04d" % i, make_tag(i + 1, VALUE), b"v") for i in range(offset, 4000, 2)]
        for i, block in enumerate(blocks_of(rows, 32)):
            read.append(i)
            yield block

    windows = merge_scan([source(0), source(1)], fragment([]), 9999)
    keys, _ = next(windows)
    assert keys[:2] == [b"0000", b"0001"]
    assert read == [0, 0]


def test_huge_values_are_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    read: list[int] = []

    def source() -> Iterator[Columns]:
        for i in range(100):
            read.append(i)
            yield Columns([b"%03d" % i], [make_tag(1, VALUE)], [b"x" * (merge.WINDOW_BYTES // 2)])

    windows = merge_windows([source()])
    next(windows)
    assert len(read) <= 3
    assert sum(len(window.keys) for window in windows) + 1 >= 99
