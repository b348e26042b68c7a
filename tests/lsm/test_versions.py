"""Versions and what leads from one to the next: order, pins, removals, and the syncs between them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lsm
from labs.crash.workload import SMALL, STORE, run_workload
from lsm.cache import BlockCache, TableCache
from lsm.events import Event, FilesDeleted
from lsm.filenames import table_name
from lsm.manifest import read_manifest
from lsm.options import Options
from lsm.tables import TableStats
from lsm.version import Edit, TableMeta, Version, apply, renumbered
from lsm.versions import VersionSet
from simfs.api import SyncLevel
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.oplog import Create, SyncDir, Unlink


def table(number: int, smallest: bytes = b"a", largest: bytes = b"m", seq_min: int = 0, seq_max: int = 0) -> TableMeta:
    return TableMeta(
        number=number,
        size_bytes=100,
        entries=2,
        deletes=0,
        range_deletes=0,
        smallest=smallest,
        largest=largest,
        seq_min=seq_min or number,
        seq_max=seq_max or number,
    )


# Version and apply


def test_ranges_are_half_open() -> None:
    points = table(1, b"b", b"d")
    assert (points.start, points.end) == (b"b", b"d\0")
    ranges = TableMeta(2, 1, 0, 0, 1, None, None, 1, 1, b"c", b"f")
    assert (ranges.start, ranges.end) == (b"c", b"f")
    both = TableMeta(3, 1, 1, 0, 1, b"b", b"b", 1, 1, b"c", b"f")
    assert (both.start, both.end) == (b"b", b"f")
    assert points.overlaps(b"d", None)
    assert points.overlaps(b"d", b"e")
    assert not points.overlaps(b"d\0", None)
    assert not points.overlaps(b"", b"b")
    assert not ranges.overlaps(b"f", b"g")
    assert renumbered(points, 9) == table(9, b"b", b"d", 1, 1)


def test_apply_sorts_and_moves() -> None:
    version = apply(Version.empty(3), Edit(added=((0, table(1)), (0, table(3)), (0, table(2)))))
    assert [each.number for each in version.levels[0]] == [3, 2, 1]
    moved = apply(version, Edit(added=((2, table(1)),), removed=((0, 1),)))
    assert [[each.number for each in level] for level in moved.levels] == [[3, 2], [], [1]]
    deep = apply(moved, Edit(added=((2, table(7, b"x", b"z")), (2, table(8, b"n", b"p")))))
    assert [each.number for each in deep.levels[2]] == [1, 8, 7]
    deep.check()
    assert deep.table_at(2, b"o") == table(8, b"n", b"p")
    assert deep.table_at(2, b"p\0") is None
    assert deep.table_at(2, b"") is None
    assert [each.number for each in deep.overlapping(2, b"b", b"o")] == [1, 8]
    assert deep.level_bytes(2) == 300
    assert version.levels[0] != moved.levels[0], "a version never changes"
    wider = apply(Version.empty(2), Edit(added=((4, table(1)),)))
    assert len(wider.levels) == 5


@pytest.mark.parametrize("removed", [((0, 9),), ((1, 1),), ((7, 1),)])
def test_an_edit_that_does_not_fit(removed: tuple[tuple[int, int], ...]) -> None:
    version = apply(Version.empty(3), Edit(added=((0, table(1)),)))
    with pytest.raises(ValueError, match="where it is not"):
        apply(version, Edit(removed=removed))


BROKEN = {
    "a table twice": ((0, table(1)), (1, table(1))),
    "shared sequences in level 0": ((0, table(1, seq_min=1, seq_max=5)), (0, table(2, seq_min=4, seq_max=9))),
    "overlap in a deeper level": ((1, table(1, b"a", b"m")), (1, table(2, b"m", b"z"))),
    "sequences crossed": ((0, table(1, seq_min=5, seq_max=4)),),
    "no key": ((0, TableMeta(1, 1, 0, 0, 1, None, None, 1, 1, b"c", b"c")),),
}


@pytest.mark.parametrize("what", BROKEN)
def test_check_finds(what: str) -> None:
    with pytest.raises(AssertionError):
        apply(Version.empty(3), Edit(added=BROKEN[what])).check()


def test_level_0_may_share_sequences_where_keys_are_apart() -> None:
    added = ((0, table(1, b"a", b"c", 1, 5)), (0, table(2, b"d", b"f", 2, 4)))
    apply(Version.empty(3), Edit(added=added)).check()


# The set: a memory disk with files that hold nothing, for removals read nothing


class Set:
    def __init__(self, **changes: Any) -> None:
        self.fs = MemoryFilesystem()
        self.fs.mkdir("/db")
        self.events: list[Event] = []
        self.options = Options.make(None, **changes)
        self.versions = self.over(self.fs)
        self.level = self.options.structural_floor
        self.versions.start_manifest(self.level)

    def over(self, fs: Any) -> VersionSet:
        tables = TableCache(fs, "/db", self.options, BlockCache(0), TableStats())
        return VersionSet(fs, "/db", self.options, tables, self.events.append)

    def add(self, *tables: tuple[int, TableMeta]) -> None:
        for _, each in tables:
            self.fs.create(f"/db/{table_name(each.number)}").close()
        self.versions.install(Edit(added=tables), level=self.level, names_changed=True)

    def drop(self, *places: tuple[int, int]) -> list[str]:
        """Remove tables by an edit without outputs; what happened to names and folder since."""
        start = len(self.fs.log)
        self.versions.install(Edit(removed=places), level=self.level, names_changed=False)
        return self.since(start)

    def since(self, start: int) -> list[str]:
        told = []
        for record in self.fs.log[start:]:
            if isinstance(record, Unlink):
                told.append(record.name.removesuffix(".sst").lstrip("0"))
            elif isinstance(record, SyncDir):
                told.append("sync")
        return told


def test_tables_merged_into_nothing_go_deepest_and_oldest_first_with_syncs_between() -> None:
    made = Set()
    made.add((0, table(4)), (0, table(5)), (1, table(2)), (2, table(1, b"a", b"c")), (2, table(3, b"d", b"f", 1, 2)))
    assert made.drop((0, 4), (0, 5), (1, 2), (2, 1), (2, 3)) == [
        "sync",
        "1",
        "3",
        "sync",
        "2",
        "sync",
        "4",
        "sync",
        "5",
    ]
    assert made.versions.pending == ()


def test_level_0_goes_by_sequence_not_by_number() -> None:
    made = Set(strategy="tiered")
    made.add((0, table(5, seq_min=6, seq_max=6)), (0, table(9, seq_min=1, seq_max=5)))  # 9: merged from older ones
    assert made.drop((0, 5), (0, 9)) == ["sync", "9", "sync", "5"]


def test_replaced_tables_go_at_once_without_a_sync_of_their_own() -> None:
    made = Set()
    made.add((0, table(1)), (0, table(2)))
    made.fs.create("/db/000007.sst").close()
    start = len(made.fs.log)
    edit = Edit(added=((1, table(7)),), removed=((0, 1), (0, 2)))
    made.versions.install(edit, level=made.level, names_changed=True)
    assert made.since(start) == ["sync", "1", "2"]
    assert made.events[-1] == FilesDeleted((table_name(1), table_name(2)))


def test_a_moved_table_is_not_removed() -> None:
    made = Set()
    made.add((0, table(1)))
    start = len(made.fs.log)
    made.versions.install(Edit(added=((1, table(1)),), removed=((0, 1),)), level=made.level, names_changed=False)
    assert made.since(start) == []
    assert made.fs.exists(f"/db/{table_name(1)}")


def test_pins_hold_files_and_later_unnamed_ones_wait() -> None:
    made = Set()
    made.add((0, table(1)))
    held = made.versions.current
    made.versions.pin(held)
    made.versions.pin(held)
    made.fs.create("/db/000003.sst").close()
    edit = Edit(added=((1, table(3)),), removed=((0, 1),))
    made.versions.install(edit, level=made.level, names_changed=True)
    assert list(made.versions.pending) == [1]
    assert made.drop((1, 3)) == []
    assert list(made.versions.pending) == [1, 3]
    start = len(made.fs.log)
    made.versions.unpin(held)
    made.versions.remove_unneeded()
    assert made.since(start) == []
    made.versions.unpin(held)
    made.versions.remove_unneeded()
    assert (made.versions.pinned, made.since(start)) == (0, ["1", "sync", "3"])


def test_what_a_new_table_names_need_not_wait() -> None:
    made = Set()
    made.add((0, table(1)), (0, table(2, b"x", b"z")))
    held = made.versions.current
    made.versions.pin(held)
    made.add((0, table(4)))
    made.versions.install(Edit(removed=((0, 1),)), level=made.level, names_changed=False)
    assert made.drop((0, 4)) == []
    made.add((0, table(6)))  # its job was told of 1 and 4
    assert made.versions.pending == (1,)
    assert not made.fs.exists(f"/db/{table_name(4)}")


def test_follow_dial_leaves_the_syncs_out() -> None:
    made = Set(sync="none", structural_sync="follow_dial")
    made.add((0, table(1)), (0, table(2)))
    assert made.drop((0, 1), (0, 2)) == ["1", "2"]
    assert not any(isinstance(record, SyncDir) for record in made.fs.log)


@given(st.lists(st.sampled_from(["add", "drop", "pin", "unpin", "rewrite"]), max_size=30), st.data())
def test_a_file_is_there_exactly_as_long_as_somebody_may_read_it(steps: list[str], data: st.DataObject) -> None:
    made = Set(max_manifest_file_size=300)
    pins: list[Version] = []
    number = 0
    for step in steps:
        live = [(level, each) for level, each in made.versions.current.tables()]
        if step == "add" or (step == "rewrite" and not live):
            number += 1
            made.add((0, table(number)))
        elif step == "rewrite":
            number += 1
            made.fs.create(f"/db/{table_name(number)}").close()
            gone = tuple((level, each.number) for level, each in live)
            made.versions.install(Edit(added=((0, table(number)),), removed=gone), level=made.level, names_changed=True)
        elif step == "drop" and live:
            level, each = data.draw(st.sampled_from(live))
            made.drop((level, each.number))
        elif step == "pin":
            pins.append(made.versions.current)
            made.versions.pin(pins[-1])
        elif step == "unpin" and pins:
            made.versions.unpin(pins.pop(data.draw(st.integers(0, len(pins) - 1))))
            made.versions.remove_unneeded()
        needed = {each.number for version in (*pins, made.versions.current) for _, each in version.tables()}
        names = {int(name[:6]) for name in made.fs.listdir("/db") if name.endswith(".sst")}
        assert needed <= names
        assert names - needed <= set(made.versions.pending)
        assert (
            read_manifest(made.fs, made.versions.manifest_path()).version.levels[0] == made.versions.current.levels[0]
        )
    for version in pins:
        made.versions.unpin(version)
    made.versions.remove_unneeded()
    live_now = {table_name(each.number) for _, each in made.versions.current.tables()}
    assert {name for name in made.fs.listdir("/db") if name.endswith(".sst")} == live_now
    assert len([name for name in made.fs.listdir("/db") if name.startswith("MANIFEST")]) == 1


@pytest.mark.parametrize("operation", ["append", "sync", "sync_dir"])
def test_after_a_failed_edit_nothing_is_removed(operation: str) -> None:
    made = Set()
    made.add((0, table(1)), (0, table(2)))
    faulty = FaultyFilesystem(made.fs, "")
    failing = made.over(faulty)
    failing.current = made.versions.current
    failing.next_file_number = 50
    failing.start_manifest(SyncLevel.FSYNC)
    faulty.plan = faulty.plan.parse(f"error(EIO) @ {operation}()")
    faulty.seen, faulty.fired = [0], [0]
    before = failing.current
    edit = Edit(added=((1, table(7)),), removed=((0, 1), (0, 2)))
    with pytest.raises(OSError, match="Input/output"):
        failing.install(edit, level=SyncLevel.FSYNC, names_changed=True)
    assert failing.current is before
    assert made.fs.exists(f"/db/{table_name(1)}")
    assert made.fs.exists(f"/db/{table_name(2)}")


def test_numbers_are_never_used_twice() -> None:
    recorder = run_workload(lsm.Options.make(None, **SMALL), ops=120, seed=9)
    for _ in range(3):
        recorder.db.close()
        recorder.open()
    made = [record.name for record in recorder.fs.log if isinstance(record, Create)]
    ours = [name for name in made if name.endswith((".sst", ".log")) or name.startswith("MANIFEST")]
    numbers = [int("".join(filter(str.isdigit, name))) for name in ours]
    assert len(numbers) > 20
    assert len(numbers) == len(set(numbers))
    assert numbers == sorted(numbers)


def test_the_version_in_memory_is_what_the_manifest_gives() -> None:
    fs = MemoryFilesystem()

    with lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs)) as db:
        for number in range(400):
            db[b"k%03d" % (number * 37 % 150)] = b"v%d" % number * 5
            if number % 40 == 0:
                state = read_manifest(fs, db._versions.manifest_path())
                assert list(state.version.tables()) == list(db.version.tables())
                assert state.log_number == db._versions.log_number
                assert state.last_sequence == db._versions.last_sequence
                assert state.cursors == db._versions.cursors
        assert db.metrics().manifest_rotations > 0
