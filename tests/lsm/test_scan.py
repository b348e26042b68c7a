"""Scans: what they show, what they hold, and how they let go."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import lsm
from labs.crash.workload import SMALL, STORE
from lsm.events import Event, FilesDeleted, Flushed
from lsm.scan import Hold, Scan
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.oplog import SyncDir


def nothing() -> None:
    pass


def filled(fs: MemoryFilesystem, **changes: Any) -> lsm.DB:
    db = lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs), **changes)
    for number in range(60):
        db[b"k%02d" % number] = b"v%d" % number * 4
    db.delete_range(b"k20", b"k30")
    db.flush()
    return db


def tables(fs: MemoryFilesystem) -> set[str]:
    return {name for name in fs.listdir(STORE) if name.endswith(".sst")}


def windows() -> Iterator[tuple[list[bytes], list[bytes]]]:
    yield [b"a", b"b"], [b"1", b"2"]
    yield [b"c"], [b"3"]


# The object alone


@pytest.mark.parametrize(
    "end", ["exhausted", "closed", "closed twice", "with", "forgotten", "never started", "broken off"]
)
def test_a_hold_is_given_back_once(end: str) -> None:
    released: list[int] = []
    scan = Scan(windows(), Hold(lambda: released.append(1)), nothing)
    if end == "exhausted":
        assert [key for key, _ in scan] == [b"a", b"b", b"c"]
    elif end.startswith("closed"):
        assert next(scan) == (b"a", b"1")
        scan.close()
        if end == "closed twice":
            scan.close()
        assert list(scan) == []
    elif end == "with":
        with scan:
            assert next(scan) == (b"a", b"1")
            assert released == []
    elif end == "broken off":
        for _ in scan:
            break
    elif end == "forgotten":
        next(scan)
    if end in ("forgotten", "never started", "broken off"):
        assert released == []
        del scan
        gc.collect()
    assert released == [1]
    gc.collect()
    assert released == [1]


def test_the_generator_alone_keeps_the_hold() -> None:
    released: list[int] = []
    pairs = iter(Scan(windows(), Hold(lambda: released.append(1)), nothing))
    gc.collect()
    assert next(pairs) == (b"a", b"1")
    assert released == []
    pairs.close()
    assert released == [1]


def test_an_error_on_the_way_gives_the_hold_back() -> None:
    def broken() -> Iterator[tuple[list[bytes], list[bytes]]]:
        yield [b"a"], [b"1"]
        raise lsm.Corruption("x", 0, "damaged")

    released: list[int] = []
    scan = Scan(broken(), Hold(lambda: released.append(1)), nothing)
    with pytest.raises(lsm.Corruption):
        list(scan)
    assert released == [1]


# In a store


@pytest.mark.parametrize("strategy", ["leveled", "tiered"])
def test_a_scan_keeps_its_tables_until_it_ends(strategy: str) -> None:
    fs = MemoryFilesystem()
    deleted: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, FilesDeleted):
            deleted.extend(event.names)

    with filled(fs, strategy=strategy, listener=listen) as db:
        expected = dict(db.scan())
        scan = db.scan()
        first = next(scan)
        before = {f"{table.number:06d}.sst" for _, table in db.version.tables()}
        for number in range(60):
            db[b"k%02d" % number] = b"other" * 4
        db.compact()
        assert db.metrics().pinned_versions == 1
        now = {f"{table.number:06d}.sst" for _, table in db.version.tables()}
        assert not before & now
        assert before <= tables(fs)
        assert dict([first, *scan]) == expected
        assert db.metrics().pinned_versions == 0
        assert tables(fs) == now
        assert before <= set(deleted)
        assert len(deleted) == len(set(deleted))


def test_tables_merged_into_nothing_wait_for_older_ones_that_are_held() -> None:
    """Else a crash, and a manifest that is lost as well, would bring what they deleted back."""
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs), level0_file_num_compaction_trigger=99) as db:
        db[b"a"] = b"1"
        db.flush()
        db.delete(b"a")
        db.flush()
        old = tables(fs)
        assert len(old) == 2
        scan = db.scan()
        db[b"b"] = b"2"
        db.compact()  # the old tables are replaced, but held
        db.delete(b"b")
        db.compact()  # nothing is left
        assert list(db.version.tables()) == []
        assert old < tables(fs)
        image = fs.crash_image("kill", at=len(fs.log))
        for name in image.listdir(STORE):
            if name.startswith(("MANIFEST", "CURRENT")):
                image.remove(f"{STORE}/{name}")
        lsm.repair(STORE, world=MemoryWorld(image))
        with lsm.open(STORE, world=MemoryWorld(image)) as repaired:
            assert dict(repaired) == {}
        assert list(scan) == []
        db[b"c"] = b"3"
        assert tables(fs) == set()
        synced = [record.site for record in fs.log if isinstance(record, SyncDir)]
        assert "remove.order" in synced


def test_bounds_prefixes_and_directions() -> None:
    with filled(MemoryFilesystem()) as db:
        everything = list(db.scan())
        assert [key for key, _ in everything] == [b"k%02d" % n for n in range(60) if not 20 <= n < 30]
        assert list(db.scan(reverse=True)) == everything[::-1]
        for start, stop in (
            (None, b"k15"),
            (b"k15", None),
            (b"k10", b"k40"),
            (b"k40", b"k10"),
            (b"", b""),
            (b"k25", b"k25"),
        ):
            expected = [
                (key, value) for key, value in everything if (start or b"") <= key and (stop is None or key < stop)
            ]
            assert list(db.scan(start, stop)) == expected
            assert list(db.scan(start, stop, reverse=True)) == expected[::-1]
        assert [key for key, _ in db.scan(prefix=b"k1")] == [b"k%02d" % n for n in range(10, 20)]
        assert [key for key, _ in db.scan(b"k15", b"k18", prefix=b"k1")] == [b"k15", b"k16", b"k17"]
        assert list(db.scan(prefix=b"\xff")) == []
        assert list(db.scan(prefix=b"")) == everything
        with pytest.raises(TypeError):
            db.scan(7)  # type: ignore[arg-type]


def test_later_writes_do_not_show() -> None:
    with filled(MemoryFilesystem()) as db:
        expected = list(db.scan())
        forward, backward = db.scan(), db.scan(reverse=True)
        begun = next(forward), next(backward)
        for key, _ in expected:
            db.delete(key)
        db[b"a"] = db[b"z"] = b"new"
        assert [begun[0], *forward] == expected
        assert [begun[1], *backward] == expected[::-1]


def test_metrics_count_scans_and_every_end_gives_back() -> None:
    with filled(MemoryFilesystem()) as db:
        scans = [db.scan() for _ in range(5)]
        assert (db.metrics().snapshots, db.metrics().pinned_versions) == (5, 1)
        list(scans[0])
        scans[1].close()
        next(scans[2])
        del scans[2]
        gc.collect()
        assert db.metrics().snapshots == 2
        with scans[2]:
            pass
        scans.clear()
        gc.collect()
        assert (db.metrics().snapshots, db.metrics().pinned_versions) == (0, 0)
        assert bool(db)
        assert len(db) == 50
        assert b"k01" in db
        assert next(iter(db)) == b"k00"
        assert (db.metrics().snapshots, db.metrics().pinned_versions) == (0, 0)


def test_a_scan_that_the_garbage_collector_finds_inside_the_mutex() -> None:
    """The collector may run at any allocation, the mutex held; giving back must not wait for it."""
    collected: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, Flushed):  # emitted inside the mutex
            collected.append(gc.collect())

    fs = MemoryFilesystem()
    with filled(fs, listener=listen) as db:
        collected.clear()
        for _ in range(3):
            ring: list[Any] = [db.scan()]
            next(ring[0])
            ring.append(ring)
        del ring
        db[b"x"] = b"1"
        db.flush()
        assert max(collected) > 0
        assert db.metrics().snapshots == 0
        db.compact()
        assert tables(fs) == {f"{table.number:06d}.sst" for _, table in db.version.tables()}


def test_a_scan_over_a_closed_store_ends_with_a_clear_error() -> None:
    fs = MemoryFilesystem()
    db = filled(fs)
    begun, fresh = db.scan(), db.scan()
    next(begun)
    db.compact()
    db.close()
    with pytest.raises(lsm.InvalidArgument, match="the store is closed"):
        list(begun)
    with pytest.raises(lsm.InvalidArgument, match="the store is closed"):
        next(fresh)


def test_a_closed_store_removes_nothing_however_late_its_scans_end() -> None:
    fs = MemoryFilesystem()
    db = filled(fs)
    scan = db.scan()
    next(scan)
    db[b"more"] = b"1"
    db.compact()
    db.close()
    before, logged = tables(fs), len(fs.log)
    scan.close()
    for call in (lambda: db.put(b"a", b"1"), db.flush, db.scan, db.metrics):
        with pytest.raises(lsm.InvalidArgument, match="closed"):
            call()
    assert (tables(fs), len(fs.log)) == (before, logged)
    with lsm.open(STORE, world=MemoryWorld(fs)) as again:
        assert len(again) == 51
        assert tables(fs) == {f"{table.number:06d}.sst" for _, table in again.version.tables()} < before
