"""Snapshots: a moment stays as it was, through everything that the store does, and is let go of once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsm
from labs.crash.workload import SMALL, STORE, Generator
from lsm.snapshot import SnapshotRegistry
from simfs.memory import MemoryFilesystem, MemoryWorld


@given(st.lists(st.integers(0, 9), max_size=20), st.randoms(use_true_random=False))
def test_the_registry_counts_holds(sequences: list[int], random: object) -> None:
    registry = SnapshotRegistry()
    for sequence in sequences:
        registry.register(sequence)
    left = sorted(sequences)
    while left:
        assert registry.held() == tuple(sorted(set(left)))
        assert registry.newest == left[-1]
        assert len(registry) == len(left)
        registry.release(left.pop(len(left) // 2))
    assert registry.held() == ()
    assert registry.newest == -1


def test_what_is_not_registered_cannot_be_released() -> None:
    registry = SnapshotRegistry()
    registry.register(4)
    for missing in (3, 5):
        with pytest.raises((AssertionError, IndexError)):
            registry.release(missing)
    assert registry.held() == (4,)


@pytest.mark.parametrize("strategy", ["leveled", "tiered", "none"])
@pytest.mark.parametrize("memtable", ["hash", "skiplist"])
def test_moments_stay_through_flushes_compactions_and_range_deletes(strategy: str, memtable: str) -> None:
    fs = MemoryFilesystem()
    options = lsm.Options.make(None, **SMALL, strategy=strategy, memtable=memtable)
    with lsm.open(STORE, options, world=MemoryWorld(fs)) as db:
        draw = Generator(17)
        model: dict[bytes, bytes] = {}
        moments: list[tuple[lsm.Snapshot, dict[bytes, bytes]]] = []
        for number in range(400):
            key = b"k%02d" % draw.below(40)
            choice = draw.below(20)
            if choice < 13:
                db[key] = model[key] = b"%d-" % number + b"x" * draw.below(40)
            elif choice < 17:
                db.delete(key)
                model.pop(key, None)
            elif choice < 18:
                stop = key + b"~" if draw.below(2) else b"k3"
                if key <= stop:
                    db.delete_range(key, stop)
                    model = {held: value for held, value in model.items() if not key <= held < stop}
            elif choice < 19:
                moments.append((db.snapshot(), dict(model)))
            else:
                (db.compact if draw.below(2) else db.flush)()
            if len(moments) > 4:
                moments.pop(draw.below(5))[0].release()
            if number % 25 == 0:
                for moment, expected in moments:
                    assert dict(moment.scan()) == expected
                    assert dict(moment.scan(reverse=True)) == expected
                    keys = [b"k%02d" % i for i in range(40)]
                    assert moment.multi_get(keys) == [expected.get(key) for key in keys]
                    part = dict(moment.scan(b"k1", b"k3"))
                    assert part == {key: value for key, value in expected.items() if b"k1" <= key < b"k3"}
        assert db.metrics().snapshots == len(moments)
        for moment, expected in moments:
            assert dict(moment.scan()) == expected
            moment.release()
        assert db.metrics().snapshots == 0
        db.compact()
        assert dict(db.scan()) == model


def test_versions_that_nobody_sees_any_more_go() -> None:
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        db[b"a"] = b"1"
        moment = db.snapshot()
        db[b"a"] = b"2"
        db.compact()
        assert sum(table.entries for _, table in db.version.tables()) == 2
        assert moment.get(b"a") == b"1"
        moment.release()
        db[b"b"] = b"1"
        db.compact()
        assert sum(table.entries for _, table in db.version.tables()) == 2
        assert db[b"a"] == b"2"


def test_two_snapshots_of_one_moment_are_two_holds() -> None:
    with lsm.open(STORE, world=MemoryWorld()) as db:
        db[b"a"] = b"1"
        first, second = db.snapshot(), db.snapshot()
        assert first.sequence == second.sequence == db.last_sequence
        assert db.metrics().snapshots == 2
        db[b"a"] = b"2"
        first.release()
        db.compact()
        assert second.get(b"a") == b"1"
        assert db.metrics().snapshots == 1
        first.release()
        assert db.metrics().snapshots == 1
        second.release()
        assert db.metrics().snapshots == 0


def test_a_snapshot_after_its_release() -> None:
    with lsm.open(STORE, world=MemoryWorld()) as db:
        db[b"a"] = b"1"
        with db.snapshot() as moment:
            assert moment.get(b"a", b"no") == b"1"
            assert moment.get(b"b", b"no") == b"no"
        for call in (lambda: moment.get(b"a"), lambda: moment.multi_get([b"a"]), lambda: moment.scan()):
            with pytest.raises(lsm.InvalidArgument, match="released"):
                call()
        with pytest.raises(lsm.InvalidArgument, match="released"):
            db.scan(snapshot=moment)
        assert db.metrics().snapshots == 0


def test_a_scan_of_a_snapshot_outlives_its_release() -> None:
    with lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld()) as db:
        for number in range(30):
            db[b"k%02d" % number] = b"old"
        with db.snapshot() as moment:
            scan = moment.scan()
        for number in range(30):
            db[b"k%02d" % number] = b"new"
        db.compact()
        assert dict(scan) == {b"k%02d" % number: b"old" for number in range(30)}


def test_a_snapshot_of_another_store() -> None:
    with lsm.open("/a", world=MemoryWorld()) as one, lsm.open("/b", world=MemoryWorld()) as two:
        one[b"a"] = b"1"
        with one.snapshot() as moment, pytest.raises(lsm.InvalidArgument, match="another store"):
            two.scan(snapshot=moment)


def test_an_exception_releases() -> None:
    with lsm.open(STORE, world=MemoryWorld()) as db:
        with pytest.raises(KeyError), db.snapshot():
            raise KeyError
        assert db.metrics().snapshots == 0
        with pytest.raises(TypeError), db.snapshot() as moment:
            moment.get(7)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            db.multi_get([b"a", 7])  # type: ignore[list-item]
        assert db.metrics().snapshots == 0
