"""Both memtables against a list of versions, and against each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.batch import Op
from lsm.entry import DELETE, MAX_SEQUENCE, RANGE_DELETE, VALUE, Columns, RangeDelete, check_columns
from lsm.memtable import ENTRY_OVERHEAD_BYTES, TAIL_MAX, HashMemtable, Memtable, make_memtable
from lsm.skiplist import SkipListMemtable

KINDS = ["hash", "skiplist"]
KEYS = st.sampled_from(
    [b"", b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", b"common-prefix-1", b"common-prefix-2", b"\xff"]
)
OPS = st.one_of(
    st.tuples(st.just(VALUE), KEYS, st.binary(max_size=3)),
    st.tuples(st.just(DELETE), KEYS, st.just(b"")),
    st.tuples(st.just(RANGE_DELETE), KEYS, KEYS),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.lists(OPS, max_size=5)),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("release"), st.none()),
        st.tuples(st.just("scan"), st.tuples(KEYS, st.none() | KEYS)),
    ),
    max_size=30,
)


def in_range(key: bytes, start: bytes, stop: bytes | None) -> bool:
    return start <= key and (stop is None or key < stop)


def joined(windows: list[Columns]) -> Columns:
    return Columns(
        [key for window in windows for key in window.keys],
        [tag for window in windows for tag in window.tags],
        [value for window in windows for value in window.values],
    )


class Model:
    """Every version ever written; the newest is found by looking at all."""

    def __init__(self) -> None:
        self.versions: list[tuple[bytes, int, bytes | None]] = []

    def get(self, key: bytes, sequence: int) -> tuple[int, bytes | None] | None:
        seen = [(at, value) for held, at, value in self.versions if held == key and at <= sequence]
        return max(seen, key=lambda version: version[0]) if seen else None


@pytest.mark.parametrize("kind", KINDS)
@given(steps=STEPS)
def test_every_read_agrees_with_all_versions_ever_written(kind: str, steps: list[tuple[str, object]]) -> None:
    memtable, model = make_memtable(kind), Model()
    ranges: list[RangeDelete] = []
    snapshots: list[int] = []
    last = 0
    for step, argument in steps:
        keep = max(snapshots, default=-1)
        if step == "batch":
            ops: list[Op] = argument  # type: ignore[assignment]
            memtable.apply(last + 1, ops, keep)
            for last, (op, key, value) in enumerate(ops, last + 1):  # noqa: B020
                if op == RANGE_DELETE:
                    ranges.append(RangeDelete(key, value, last))
                else:
                    model.versions.append((key, last, value if op == VALUE else None))
        elif step == "snapshot":
            snapshots.append(last)
        elif step == "release" and snapshots:
            snapshots.pop()
        elif step == "scan":
            bounds: tuple[bytes, bytes | None] = argument  # type: ignore[assignment]
            agree_in_range(memtable, model, *bounds, [*snapshots, last])
    assert memtable.range_deletes == ranges
    for sequence in [*snapshots, last, MAX_SEQUENCE]:
        for key in sorted({key for key, _, _ in model.versions} | {b"absent"}):
            assert memtable.get(key, sequence) == model.get(key, sequence)
    agree_in_range(memtable, model, b"", None, [*snapshots, last])
    assert memtable.columns() == memtable.scan(b"", None)
    assert memtable.entries == len(memtable.columns().keys)


def agree_in_range(memtable: Memtable, model: Model, start: bytes, stop: bytes | None, readers: list[int]) -> None:
    columns = memtable.scan(start, stop)
    check_columns(columns)
    assert joined(list(memtable.blocks(start, stop))) == columns
    assert joined(list(memtable.blocks_reverse(start, stop))[::-1]) == columns
    known = sorted({key for key, _, _ in model.versions if in_range(key, start, stop)})
    assert sorted(set(columns.keys)) == known
    rows = list(zip(*columns, strict=True))
    for sequence in readers:
        for key in known:
            seen = [(tag >> 8, value if tag & 1 else None) for held, tag, value in rows if held == key]
            assert next((row for row in seen if row[0] <= sequence), None) == model.get(key, sequence)


@given(steps=st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3), st.booleans()), max_size=60))
def test_hash_and_skip_list_hold_the_same(steps: list[tuple[bytes, bytes | None, bool]]) -> None:
    tables: list[Memtable] = [HashMemtable(), SkipListMemtable()]
    keep = -1
    for sequence, (key, value, snapshot) in enumerate(steps, 1):
        for table in tables:
            table.put(key, sequence, value, keep)
        keep = sequence if snapshot else keep
    first, second = tables
    assert first.columns() == second.columns()
    assert (first.entries, first.size_bytes) == (second.entries, second.size_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_a_large_memtable_with_late_arrivals(kind: str) -> None:
    memtable = make_memtable(kind)
    for sequence, number in enumerate(range(0, 6000, 2), 1):
        memtable.put(b"%05d" % (number * 7 % 6000), sequence, b"v", -1)
    memtable.scan(b"", None)  # what follows is the unsorted tail
    for sequence, number in enumerate(range(1, 6000, 10), 10_000):
        memtable.put(b"%05d" % number, sequence, b"late", -1)
        window = next(memtable.blocks(b"%05d" % (number - 1), None))
        assert window.values[:2] == [b"v", b"late"]
    assert sequence - 10_000 > TAIL_MAX
    for start, stop in [(b"", None), (b"00100", b"05000"), (b"00500", b"00501"), (b"9", None), (b"3", b"2")]:
        columns = memtable.scan(start, stop)
        check_columns(columns)
        assert columns.keys == [key for key in memtable.columns().keys if in_range(key, start, stop)]
        assert joined(list(memtable.blocks(start, stop))) == columns
        assert joined(list(memtable.blocks_reverse(start, stop))[::-1]) == columns


@pytest.mark.parametrize("kind", KINDS)
def test_windows_are_made_when_asked_for_but_of_the_keys_at_the_call(kind: str) -> None:
    memtable = make_memtable(kind)
    for number in range(300):
        memtable.put(b"%03d" % number, number + 1, b"old", -1)
    windows = memtable.blocks(b"", None)
    memtable.put(b"299", 1000, b"new", 300)  # a scan at sequence 300 is registered
    rows = [row for window in windows for row in zip(*window, strict=True)]
    assert (b"299", 300 << 8 | 1, b"old") in rows


@pytest.mark.parametrize("kind", KINDS)
def test_size_counts_every_write_and_the_columns_notice(kind: str) -> None:
    memtable = make_memtable(kind)
    memtable.put(b"key", 1, b"value", -1)
    assert memtable.size_bytes == 8 + ENTRY_OVERHEAD_BYTES
    assert memtable.columns().values == [b"value"]
    memtable.put(b"key", 2, b"", -1)
    assert memtable.columns() == Columns([b"key"], [2 << 8 | 1], [b""])
    memtable.apply(3, [(VALUE, b"key", b"x"), (VALUE, b"new", b"y")], -1)
    assert memtable.columns() == Columns([b"key", b"new"], [3 << 8 | 1, 4 << 8 | 1], [b"x", b"y"])
    assert memtable.size_bytes == 8 + 3 + 4 + 4 + 4 * ENTRY_OVERHEAD_BYTES
    memtable.delete_range(b"a", b"z", 5)
    assert memtable.size_bytes == 19 + 2 + 5 * ENTRY_OVERHEAD_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_replaced_versions_go_unless_a_snapshot_sees_them(kind: str) -> None:
    memtable = make_memtable(kind)
    memtable.put(b"k", 1, b"one", -1)
    memtable.put(b"k", 2, b"two", -1)
    assert memtable.entries == 1
    memtable.put(b"k", 3, None, 2)
    memtable.put(b"k", 4, b"four", 2)
    assert memtable.columns() == Columns([b"k", b"k"], [4 << 8 | 1, 2 << 8 | 1], [b"four", b"two"])
    assert memtable.get(b"k", 3) == (2, b"two")


def test_a_factory_may_be_injected() -> None:
    factory: Callable[[], Memtable] = HashMemtable
    assert isinstance(make_memtable(factory), HashMemtable)
    assert isinstance(make_memtable("hash"), HashMemtable)
    assert isinstance(make_memtable("skiplist"), SkipListMemtable)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([VALUE, DELETE]), KEYS, st.binary(max_size=2)), max_size=12))
def test_a_batch_through_c_equals_one_put_after_the_other(ops: list[Op]) -> None:
    ops = [(kind, key, value if kind == VALUE else b"") for kind, key, value in ops]
    at_once, singly = HashMemtable(), HashMemtable()
    at_once.apply(1, ops, -1)
    for sequence, (kind, key, value) in enumerate(ops, 1):
        singly.put(key, sequence, value if kind == VALUE else None, -1)
    assert at_once.columns() == singly.columns()
    assert at_once.size_bytes == singly.size_bytes
    assert at_once.scan(b"a", b"b") == singly.scan(b"a", b"b")
