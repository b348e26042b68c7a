"""Repair without a manifest: nothing lost, nothing back from the dead, whatever a crash left lying around."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lsm
from labs.crash.sweep import default_choices
from labs.crash.workload import SMALL, STORE, Generator, Recorder, run_workload
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.filenames import parse_name
from lsm.repair import RepairReport
from simfs.choice import Step
from simfs.crash import ALL_KEPT, Choice, CrashReplay, Failure
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.oplog import SyncDir, Unlink

LOST = f"{STORE}/lost"


def names(fs: MemoryFilesystem, kind: str, folder: str = STORE) -> list[str]:
    return [name for name in fs.listdir(folder) if (parsed := parse_name(name)) and parsed.kind == kind]


def read(fs: MemoryFilesystem, name: str) -> bytes:
    with fs.open(f"{STORE}/{name}") as file:
        return file.pread(0, file.size())


def rewrite(fs: MemoryFilesystem, name: str, content: bytes) -> None:
    with fs.create(f"{STORE}/{name}", exclusive=False) as file:
        file.append(content)


def flip(fs: MemoryFilesystem, name: str, offset: int) -> None:
    content = bytearray(read(fs, name))
    content[offset] ^= 0x40
    rewrite(fs, name, bytes(content))


def forget(fs: MemoryFilesystem) -> None:
    """MANIFEST and CURRENT are gone."""
    for name in fs.listdir(STORE):
        if name.startswith(("MANIFEST", "CURRENT")):
            fs.remove(f"{STORE}/{name}")


def options_of(recorder: Recorder) -> lsm.Options:
    return lsm.Options.make(recorder.options, listener=None)


def content(fs: MemoryFilesystem, options: lsm.Options) -> dict[bytes, bytes]:
    with lsm.open(STORE, options, world=MemoryWorld(fs), create_if_missing=False) as db:
        db.verify()
        return dict(db.scan())


def repair_and_judge(
    image: MemoryFilesystem, recorder: Recorder, failure: Failure, position: int, *, go_on: bool = False
) -> str:
    """Repair an image that lost its manifest; "" if what it holds is what recovery may give."""
    options = options_of(recorder)
    found: dict[bytes, bytes] = {}
    if image.exists(STORE):
        forget(image)
        if any(names(image, kind) for kind in ("table", "log")):
            lsm.repair(STORE, options, world=MemoryWorld(image))
            found = content(image, options)
    verdict = recorder.history.judge(found, failure, position)
    if go_on and found and not verdict.problem:
        with lsm.open(STORE, options, world=MemoryWorld(image)) as db:
            for number in range(30):
                db[b"new%d" % number] = b"z" * 60
            db.delete(min(found))
            db.compact()
            db.verify()
        del found[min(found)]
        if content(image, options) != {**found, **{b"new%d" % number: b"z" * 60 for number in range(30)}}:
            return "a repaired store does not go on working"
    return verdict.problem


def sweep(recorder: Recorder, choices: Iterable[Choice], *, every: int = 1, go_on_every: int = 50) -> None:
    """A kill and losses of power after every operation (or every so many), the manifest gone, repair."""
    replay = CrashReplay(recorder.fs)
    cases: list[tuple[Failure, Choice]] = [("kill", ALL_KEPT), *(("power", choice) for choice in choices)]
    for position in range(0, len(recorder.fs.log) + 1, every):
        replay.advance(position)
        for failure, choice in cases:
            go_on = position // every % go_on_every == 0
            problem = repair_and_judge(replay.image(choice, failure), recorder, failure, position, go_on=go_on)
            assert not problem, f"{failure} after operation {position}, {choice!r}: {problem}"


def deleting_workload(options: lsm.Options, ops: int, seed: int) -> Recorder:
    """Few keys, mostly deleted; flushes and compactions that leave nothing; scans that hold old tables."""
    recorder = Recorder(MemoryFilesystem(), options)
    draw = Generator(seed)
    held: list[lsm.DB | Any] = []
    for number in range(ops):
        choice, key = draw.below(100), b"k%d" % draw.below(6)
        if choice < 25:
            recorder.write([(VALUE, key, b"v%d-" % number + b"x" * draw.below(200))])
        elif choice < 55:
            recorder.write([(DELETE, key, b"")])
        elif choice < 62:
            recorder.write([(RANGE_DELETE, key, b"k9")])
        elif choice < 66:
            recorder.write([(VALUE, key, b"w%d" % number), (DELETE, key, b"")])
        elif choice < 80:
            recorder.durable("flush")
        elif choice < 88:
            recorder.durable("compact")
        elif choice < 92:
            held.append(recorder.db.scan())
        elif choice < 96 and held:
            held.pop(draw.below(len(held))).close()
        elif choice < 98:
            held.append(recorder.db.scan(reverse=True, snapshot=recorder.db.snapshot()))
        elif draw.below(2):
            held.clear()
            recorder.durable("close")
            recorder.open()
    return recorder


@dataclass(frozen=True)
class AllBut:
    """Everything survives but the removals of these names: a crash undid just those."""

    undone: frozenset[str]

    def survives(self, step: Step, part: int) -> bool:
        return not (isinstance(step.record, Unlink) and step.record.name in self.undone)

    def filler(self, step: Step, size: int) -> bytes:
        return bytes(size)


@pytest.mark.parametrize("strategy", ["leveled", "tiered"])
@pytest.mark.parametrize("pinned", [False, True])
def test_whatever_removals_a_crash_undoes(strategy: str, pinned: bool) -> None:
    """Each subset of the removals that are not durable yet, after each operation: compactions that leave nothing."""
    quiet = {"max_manifest_file_size": 9999, "level0_file_num_compaction_trigger": 99, "tiered_min_merge_width": 32}
    options = lsm.Options.make(None, **(SMALL | quiet), strategy=strategy, sync="fsync")
    recorder = Recorder(MemoryFilesystem(), options)
    scan = None
    for round_ in (b"1", b"2"):
        puts = [(VALUE, b"a", round_)], [(VALUE, b"b", round_)]
        for ops in (*puts, [(DELETE, b"a", b"")], [(RANGE_DELETE, b"b", b"c")]):
            recorder.write(ops)
            if pinned and ops[0][:2] == (DELETE, b"a"):
                scan = recorder.db.scan()
            recorder.durable("flush")
        recorder.durable("compact")
    assert scan is None or list(scan) == [(b"b", b"2")]
    recorder.write([(VALUE, b"c", b"3")])
    recorder.durable("compact")
    log = recorder.fs.log
    gone = [record.name for record in log if isinstance(record, Unlink) and record.name.endswith((".sst", ".log"))]
    assert len(gone) >= 16
    states = 0
    replay = CrashReplay(recorder.fs)
    for position in range(len(log) + 1):
        replay.advance(position)
        if not isinstance(log[min(position, len(log) - 1)], SyncDir):
            continue  # the most removals wait just before the folder is synced
        folder = [at for at in range(position) if isinstance(log[at], SyncDir)]
        waiting = [record.name for record in log[max(folder, default=0) : position] if isinstance(record, Unlink)]
        for size in range(1, len(waiting) + 1):
            for undone in combinations(waiting, size):
                image = replay.image(AllBut(frozenset(undone)), "power")
                problem = repair_and_judge(image, recorder, "power", position)
                assert not problem, f"after operation {position}, removals undone: {undone}: {problem}"
                states += 1
    assert states >= 15


DIALS = ("flush", "fsync", "none")


@pytest.mark.parametrize("strategy", ["leveled", "tiered"])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_deleted_stays_deleted_at_every_operation(strategy: str, seed: int) -> None:
    """These seeds found, each in its own way, keys that came back when removals were neither ordered nor synced."""
    options = lsm.Options.make(
        None, **SMALL, strategy=strategy, sync=DIALS[seed % 3], table_format=("block", "scan")[seed % 2]
    )
    recorder = deleting_workload(options, 60, seed)
    recorder.counts.require(flushes=5, compactions=3, log_rotations=5)
    # The seed of the choice that lost what mattered comes along.
    sweep(recorder, default_choices([seed * 10 + (4 if seed == 1 else 3)]), every=2)


@pytest.mark.parametrize("strategy", ["leveled", "tiered", "none"])
def test_a_crash_at_any_operation_of_a_busy_store(strategy: str) -> None:
    seed = {"leveled": 11, "tiered": 12, "none": 13}[strategy]
    options = lsm.Options.make(None, **SMALL, strategy=strategy, sync=DIALS[seed % 3])
    recorder = run_workload(options, ops=150, seed=seed)
    least = {"leveled": 2, "tiered": 1, "none": 0}[strategy]
    recorder.counts.require(flushes=4, compactions=least, log_rotations=4)
    sweep(recorder, default_choices([seed]), every=4)


@pytest.mark.campaign
@pytest.mark.parametrize("strategy", ["leveled", "tiered", "none"])
@pytest.mark.parametrize("seed", range(12))
def test_campaign(strategy: str, seed: int) -> None:
    options = lsm.Options.make(
        None, **SMALL, strategy=strategy, sync=DIALS[seed % 3], table_format=("block", "scan")[seed % 2]
    )
    choices = default_choices(range(seed * 10, seed * 10 + 6))
    sweep(run_workload(options, ops=180, seed=seed), choices)
    sweep(deleting_workload(options, 90, seed), choices)


def closed_store(strategy: str = "leveled", seed: int = 5, ops: int = 120) -> tuple[Recorder, dict[bytes, bytes]]:
    recorder = run_workload(lsm.Options.make(None, **SMALL, strategy=strategy), ops=ops, seed=seed)
    recorder.durable("close")
    return recorder, recorder.history.states[-1]


def repair(recorder: Recorder, fs: MemoryFilesystem | None = None, **changes: Any) -> RepairReport:
    return lsm.repair(STORE, options_of(recorder), world=MemoryWorld(fs or recorder.fs), **changes)


def copy_of(fs: MemoryFilesystem) -> MemoryFilesystem:
    return MemoryFilesystem(tree=fs.tree())


@pytest.mark.parametrize("strategy", ["leveled", "tiered", "none"])
def test_every_table_and_log_entry_is_restored(strategy: str) -> None:
    recorder, expected = closed_store(strategy)
    manifest = names(recorder.fs, "manifest")
    forget(recorder.fs)
    before = recorder.fs.listdir(STORE)
    report = repair(recorder)
    assert report.dropped == ()
    assert report.log_records > 0
    assert content(recorder.fs, options_of(recorder)) == expected
    assert report.tables > 0
    assert report.entries >= len(expected)
    assert manifest[0] not in before
    assert [name for name in recorder.fs.listdir(LOST) if name.endswith(".log")]


def test_a_second_repair_changes_nothing_but_file_numbers() -> None:
    recorder, expected = closed_store()
    forget(recorder.fs)
    first = repair(recorder)
    tables = names(recorder.fs, "table")
    second = repair(recorder)
    assert (second.tables, second.entries, second.dropped, second.log_records) == (first.tables, first.entries, (), 0)
    assert names(recorder.fs, "table") == tables
    assert content(recorder.fs, options_of(recorder)) == expected


def test_an_intact_manifest_keeps_the_placement() -> None:
    recorder, expected = closed_store()
    with lsm.open(STORE, options_of(recorder), world=MemoryWorld(recorder.fs)) as db:
        before = {table.number: level for level, table in db.version.tables()}
    assert set(before.values()) != {0}
    for damage in ("nothing", "no CURRENT", "a flipped CURRENT"):
        fs = copy_of(recorder.fs)
        if damage == "no CURRENT":
            fs.remove(f"{STORE}/CURRENT")
        elif damage == "a flipped CURRENT":
            flip(fs, "CURRENT", 3)
        report = repair(recorder, fs)
        with lsm.open(STORE, options_of(recorder), world=MemoryWorld(fs)) as db:
            after = {table.number: level for level, table in db.version.tables()}
            assert {number: after[number] for number in before} == before, damage
            assert dict(db.scan()) == expected
        assert len(report.dropped) == (damage == "a flipped CURRENT"), report


def test_repair_is_crashed_at_every_operation_and_repeated() -> None:
    recorder, expected = closed_store(ops=70)
    forget(recorder.fs)
    base = recorder.fs.tree()
    running = MemoryFilesystem(tree=base)
    repair(recorder, running)
    replay = CrashReplay(running)
    for position in range(len(running.log) + 1):
        replay.advance(position)
        for failure, choice in (("kill", ALL_KEPT), *(("power", choice) for choice in default_choices([1, 2, 3]))):
            image = replay.image(choice, "kill" if failure == "kill" else "power")
            repair(recorder, image)
            found = content(image, options_of(recorder))
            assert found == expected, f"{failure} after operation {position} of the repair, {choice!r}"


def test_a_crash_after_current_was_switched_needs_no_second_repair() -> None:
    recorder, expected = closed_store(ops=70)
    forget(recorder.fs)
    running = MemoryFilesystem(tree=recorder.fs.tree())
    repair(recorder, running)
    switched = max(
        number for number, record in enumerate(running.log) if getattr(record, "target_name", "") == "CURRENT"
    )
    replay = CrashReplay(running)
    for position in range(switched + 2, len(running.log) + 1):
        for choice in default_choices([4, 5]):
            image = replay.advance(position).image(choice, "power")
            assert content(image, options_of(recorder)) == expected


def test_a_damaged_table_is_named_and_the_rest_is_restored() -> None:
    recorder, expected = closed_store("none")
    for number, name in enumerate(names(recorder.fs, "table")):
        fs = copy_of(recorder.fs)
        if number % 2:
            rewrite(fs, name, read(fs, name)[:-7])
        else:
            flip(fs, name, len(read(fs, name)) // 2)
        if number % 3:
            forget(fs)
        report = repair(recorder, fs)
        named = [line for line in report.dropped if name in line and "damaged at offset" in line]
        assert len(named) == 1, report.dropped
        assert name in fs.listdir(LOST)
        found = content(fs, options_of(recorder))
        ever = recorder.history.states
        assert all(any(state.get(key) == value for state in ever) for key, value in found.items())
        assert found
    assert expected


def test_each_flipped_byte_of_a_log_is_named_and_the_rest_is_restored() -> None:
    fs = MemoryFilesystem()
    world = MemoryWorld(fs)
    with lsm.open(STORE, world=world) as db:
        for number in range(6):
            db[b"k%d" % number] = b"v%d" % number
    log = names(fs, "log")[0]
    expected = {b"k%d" % number: b"v%d" % number for number in range(6)}
    forget(fs)
    size = len(read(fs, log))
    for offset in range(size):
        image = copy_of(fs)
        flip(image, log, offset)
        report = lsm.repair(STORE, world=MemoryWorld(image))
        found = content(image, lsm.Options())
        assert found.items() <= expected.items(), offset
        assert any(log in line for line in report.dropped), offset
        if offset >= 40:  # past the head: one record at most is lost
            assert len(found) >= 5, offset


def test_each_cut_of_a_log_leaves_the_records_before_it() -> None:
    fs = MemoryFilesystem()
    db = lsm.open(STORE, world=MemoryWorld(fs))
    ends = []
    for number in range(5):
        db[b"k%d" % number] = b"v%d" % number
        ends.append(fs.stat(f"{STORE}/{names(fs, 'log')[0]}").size)
    image = copy_of(fs)  # killed
    log = names(image, "log")[0]
    forget(image)
    whole = read(image, log)
    for size in range(len(whole)):
        cut = copy_of(image)
        rewrite(cut, log, whole[:size])
        lsm.repair(STORE, world=MemoryWorld(cut))
        assert len(content(cut, lsm.Options())) == sum(1 for end in ends if end <= size), size


def test_each_flipped_byte_of_the_manifest_loses_nothing() -> None:
    recorder, expected = closed_store(ops=60)
    manifest = names(recorder.fs, "manifest")[0]
    for offset in range(0, len(read(recorder.fs, manifest)), 5):
        fs = copy_of(recorder.fs)
        flip(fs, manifest, offset)
        report = repair(recorder, fs)
        assert report.dropped, offset
        assert content(fs, options_of(recorder)) == expected, offset


def test_a_missing_table_is_not_expected_of_the_others() -> None:
    recorder, _ = closed_store("none")
    gone = names(recorder.fs, "table")[0]
    recorder.fs.remove(f"{STORE}/{gone}")
    report = repair(recorder)
    assert any("lists missing tables" in line for line in report.dropped)
    assert content(recorder.fs, options_of(recorder))


def test_foreign_files_stay_and_foreign_content_is_named() -> None:
    recorder, expected = closed_store()
    forget(recorder.fs)
    rewrite(recorder.fs, "notes.txt", b"mine")
    rewrite(recorder.fs, "999999.sst", b"not a table at all, but some text that is long enough")
    rewrite(recorder.fs, "999998.log", b"not a log at all, but some text that is long enough for one")
    report = repair(recorder)
    for name in ("999999.sst", "999998.log"):
        assert [line for line in report.dropped if line.startswith(name)], report.dropped
        assert name in recorder.fs.listdir(LOST)
    assert read(recorder.fs, "notes.txt") == b"mine"
    assert content(recorder.fs, options_of(recorder)) == expected


def test_a_valid_table_under_a_wrong_number_is_not_used() -> None:
    recorder, expected = closed_store()
    forget(recorder.fs)
    rewrite(recorder.fs, "900000.sst", read(recorder.fs, names(recorder.fs, "table")[0]))
    report = repair(recorder)
    assert [line for line in report.dropped if line.startswith("900000.sst")]
    assert content(recorder.fs, options_of(recorder)) == expected


def test_nothing_there() -> None:
    fs = MemoryFilesystem()
    for _ in range(2):
        with pytest.raises(lsm.InvalidArgument, match="no file of a store is here"):
            lsm.repair(STORE, world=MemoryWorld(fs))
        if not fs.exists(STORE):
            fs.mkdir(STORE)
    assert fs.listdir(STORE) == []


def test_an_open_store_is_left_alone() -> None:
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        db[b"a"] = b"1"
        before = fs.tree()
        with pytest.raises(BlockingIOError, match="open elsewhere"):
            lsm.repair(STORE, world=MemoryWorld(fs))
        assert fs.tree() == before
    lsm.repair(STORE, world=MemoryWorld(fs))


def test_bad_options_are_refused_before_anything_is_read() -> None:
    recorder, _ = closed_store(ops=40)
    before = recorder.fs.tree()
    with pytest.raises(lsm.InvalidArgument, match="unknown option"):
        repair(recorder, blok_size=1)
    assert recorder.fs.tree() == before


@settings(max_examples=25, deadline=None)
@given(nth=st.integers(1, 60), operation=st.sampled_from(["append", "sync", "rename", "create", "sync_dir"]))
def test_a_full_or_failing_disk_loses_nothing(nth: int, operation: str) -> None:
    recorder, expected = closed_store(ops=70)
    forget(recorder.fs)
    faulty = FaultyFilesystem(recorder.fs, f"error(ENOSPC) @ {operation}(nth={nth})")
    failed = None
    try:
        lsm.repair(STORE, options_of(recorder), world=MemoryWorld(faulty))
    except OSError as error:
        failed = error
    assert not recorder.fs.locks
    if failed is not None:
        assert failed.errno == errno.ENOSPC
        repair(recorder)
    assert content(recorder.fs, options_of(recorder)) == expected


def test_skip_corrupted_asks_for_what_follows_a_gap_too() -> None:
    """The default ends the prefix at a gap, as recovery does; who wants every readable record says so."""
    fs = MemoryFilesystem()
    db = lsm.open(STORE, world=MemoryWorld(fs))
    for number in range(5):
        db[b"k%d" % number] = b"v"
    image = copy_of(fs)
    log = names(image, "log")[0]
    forget(image)
    flip(image, log, len(read(image, log)) * 3 // 4)
    lenient = copy_of(image)
    report = lsm.repair(STORE, world=MemoryWorld(image))
    prefix = content(image, lsm.Options())
    assert report.dropped
    lsm.repair(STORE, world=MemoryWorld(lenient), wal_recovery_mode="skip_corrupted")
    assert len(prefix) < len(content(lenient, lsm.Options())) == 4
