"""A crash after every operation of a dense workload, recovered and judged; and engines broken on purpose, caught.

What fails prints the line that shows it again: `python -m labs.crash.replay …`. The grid in `make test` has every
position of the leveled workload for each point of the dial, with recovery crashed at sampled states;
`make campaign` has more seeds, every position of every workload, and a crash of every recovery.

Sync sites that may be dropped here without anybody noticing, and why:

* `manifest.barrier`: orders what was synced before what is synced later. Under this profile (as on Linux) a sync is
  durable when it returns, so nothing is left to order. It is for F_BARRIERFSYNC on macOS.
* `wal.predecessor`, `wal.create`: never called, for with flushes inline the memtable of log A is in a durable table,
  and the folder is synced, before the first write to log B. `tests/lsm/test_wal.py` has them.
* `flush.log`, `open.sweep`, `remove.order`: what they keep from coming back is older than the manifest in force, which
  recovery ignores and sweeps. Only `repair` reads it: `tests/lsm/test_repair.py`.
* `manifest.create` of the file alone is caught; of the folder too, though the sync of CURRENT's rename is the same
  call on the same folder: between the two, CURRENT would be durable and the manifest's name would not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import lsm
import lsm.compact
import lsm.jobs
import lsm.versions
from labs.crash.sweep import NAMES, REMOVALS, Spot, Sweep, Sweeper, default_choices, sweep
from labs.crash.workload import Recorder, Workload
from lsm.filenames import log_name
from simfs.crash import ALL_KEPT, SYNCED_ONLY, Choice, CrashReplay, Failure, WorstCase
from simfs.faults import FaultyFilesystem
from simfs.oplog import Sync, SyncDir

DENSE = {
    "log_rotations": 3, "flushes": 3, "wide_compactions": 2, "trivial_moves": 1, "manifest_rotations": 1,
    "ranges_over_snapshots": 1,
}  # fmt: skip
DIALS = ("none", "flush", "fsync", "fullfsync")
CHOICES = (*default_choices([1]), REMOVALS, NAMES)


@functools.cache
def recorded(workload: Workload) -> Recorder:
    return workload.record()


def swept(workload: Workload, failure: Failure, **more: Any) -> Sweep:
    recorder = recorded(workload)
    result = sweep(recorder, failure, CHOICES, workload=workload, **more)
    assert not result.violations, result.report()
    assert result.states > 0
    return result


def every(step: int, workload: Workload) -> list[int]:
    """Each `step`-th position, and the last."""
    end = len(recorded(workload).fs.log)
    return sorted({*range(0, end + 1, step), end})


@pytest.mark.parametrize("failure", ["kill", "power"])
@pytest.mark.parametrize("dial", DIALS)
def test_a_crash_at_every_operation(dial: str, failure: Failure) -> None:
    workload = Workload(sync=dial)
    recorded(workload).counts.require(**DENSE)
    result = swept(workload, failure, depth_every=97 if failure == "power" else 29)
    loses = dial == "none" or (dial == "flush" and failure == "power")
    assert (result.lost_max > 0) is loses, "a dial that promises nothing and loses nothing was not tested"
    assert result.depth_two > 0


@pytest.mark.parametrize("failure", ["kill", "power"])
@pytest.mark.parametrize(
    "workload",
    [
        Workload(sync="flush", mixed=1),
        Workload(sync="none", mixed=1, seed=2),
        Workload(strategy="tiered", ops=300, sync="flush"),
        Workload(strategy="none"),
        Workload(memtable="skiplist", table_format="scan", seed=3),
        Workload(write_buffer_size=600, seed=4, sync="flush"),
        Workload(write_buffer_size=20_000, seed=5, sync="none"),
    ],
    ids=lambda workload: " ".join(workload.arguments()) if isinstance(workload, Workload) else str(workload),
)
def test_other_workloads(workload: Workload, failure: Failure) -> None:
    swept(workload, failure, positions=every(7, workload), depth_every=53)


@pytest.mark.parametrize("dial", ["none", "flush"])
def test_follow_dial_may_refuse_but_serves_nothing_wrong(dial: str) -> None:
    workload = Workload(sync=dial, structural_sync="follow_dial", mixed=1)
    assert swept(workload, "kill", positions=every(4, workload), depth_every=41).lost_max > 0
    result = swept(workload, "power", positions=every(4, workload))
    assert result.lost_max > 0
    assert result.refused > 0, "weak structures were never seen to be weak"


@pytest.mark.campaign
@pytest.mark.parametrize("failure", ["kill", "power"])
@pytest.mark.parametrize("seed", [11, 12, 13])
@pytest.mark.parametrize("strategy", ["leveled", "tiered", "none"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dial", DIALS)
def test_the_full_grid(dial: str, mixed: bool, strategy: str, seed: int, failure: Failure) -> None:
    workload = Workload(sync=dial, mixed=int(mixed), strategy=strategy, seed=seed, ops=250)
    result = sweep(recorded(workload), failure, default_choices(range(6)), depth_every=5, workload=workload)
    assert not result.violations, result.report()


# Engines broken on purpose


def caught(workload: Workload, failures: Iterable[Failure] = ("power",)) -> str:
    """What the sweep says about a broken engine; "" if nothing, which is what no broken one may get."""
    recorder = workload.record()
    for failure in failures:
        result = sweep(recorder, failure, CHOICES, workload=workload, until_first=True)
        if result.violations:
            return result.report()
    return ""


DROPPED = [
    'lie() @ sync(site="wal.write")',
    'lie() @ sync(site="table.finish")',
    'lie() @ sync_dir(site="install.dir")',
    'lie() @ sync(site="manifest.edit")',
    'lie() @ sync(site="manifest.create")',
    'lie() @ sync_dir(site="manifest.create")',
    'lie() @ sync(site="current.write")',
    'lie() @ sync_dir(site="current.rename")',
    'lie() @ sync_dir(site="open.mkdir")',
    "lie() @ sync_dir()",
]


@pytest.mark.parametrize("faults", DROPPED)
def test_a_dropped_sync_is_caught(faults: str) -> None:
    said = caught(Workload(faults=faults, ops=110))
    assert "python -m labs.crash.replay --sync" in said, f"{faults} changed nothing that a sweep could see"


def test_the_sync_of_a_clean_close_is_caught_where_the_dial_syncs_nothing() -> None:
    said = caught(Workload(sync="flush", ops=110, faults='lie() @ sync(site="wal.finish")'))
    assert "lost acknowledged writes" in said


def test_every_sync_site_of_a_workload_is_listed() -> None:
    sites = {record.site for record in recorded(Workload()).fs.log if isinstance(record, Sync | SyncDir)}
    sites |= {record.site for record in recorded(Workload(sync="flush")).fs.log if isinstance(record, Sync | SyncDir)}
    broken = {part.split('"')[1] for part in DROPPED if '"' in part} | {"wal.finish"}
    assert sites - broken == {"manifest.barrier"}


def test_the_barrier_is_harmless_to_drop_here() -> None:
    workload = Workload(ops=110, faults='lie() @ sync(site="manifest.barrier")')
    result = sweep(workload.record(), "power", CHOICES, workload=workload, positions=range(60, 200))
    assert not result.violations, result.report()


def log_removed_before_the_edit(flush: Callable[..., None]) -> Callable[..., None]:
    def broken(self: Any, memtable: Any, old_log: Any, new_log: Any, last_sequence: int) -> None:
        remove = self._world.fs.remove
        remove(f"{self._directory}/{log_name(old_log.number)}")
        self._world.fs.remove = lambda path: None
        try:
            flush(self, memtable, old_log, new_log, last_sequence)
        finally:
            self._world.fs.remove = remove

    return broken


@pytest.mark.parametrize("failure", ["kill", "power"])
def test_a_log_removed_before_the_edit_is_caught(failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsm.jobs.Jobs, "flush", log_removed_before_the_edit(lsm.jobs.Jobs.flush))
    assert "000001.log: offset 0: missing" in caught(Workload(ops=60), [failure])


def test_tables_removed_before_the_edit_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    install = lsm.versions.VersionSet.install

    def broken(self: Any, edit: Any, **more: Any) -> None:
        kept = {table.number for _, table in edit.added}
        gone = [number for _, number in edit.removed if number not in kept]
        for number in gone:
            self._tables.evict(number)
            self._fs.remove(f"{self._directory}/{number:06d}.sst")
        self._fs, real = _Forgiving(self._fs), self._fs
        try:
            install(self, edit, **more)
        finally:
            self._fs = real

    monkeypatch.setattr(lsm.versions.VersionSet, "install", broken)
    assert "missing, but MANIFEST" in caught(Workload(ops=110), ["kill"])


class _Forgiving(FaultyFilesystem):
    """Removes what is there, and says nothing where nothing is."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, "")

    def remove(self, path: str) -> None:
        if self.exists(path):
            super().remove(path)


def test_a_tombstone_dropped_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsm.compact, "older_tables", lambda version, plan: ())
    assert "a hole or a returned delete" in caught(Workload(ops=300, sync="flush"), ["kill"])


def test_recovery_that_serves_what_it_did_not_sync_is_caught() -> None:
    """A write that reached the cache, a kill, a recovery that shows it, and then the power goes."""
    workload = Workload(sync="flush", ops=40)
    recorder = workload.record()
    recorder.faults = 'lie() @ sync(site="table.finish")'  # from now on: in recoveries only
    sweeper, replay = Sweeper(recorder, workload), CrashReplay(recorder.fs).advance(30)
    sweeper.crash_recovery(replay, Spot("kill", 30, ALL_KEPT), [("power", WorstCase(1)), ("power", ALL_KEPT)])
    assert sweeper.result.violations


def test_an_orphan_that_nobody_sweeps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsm.opening.orphans", lambda *_: ())
    assert "leaked" in caught(Workload(ops=60), ["kill"])


# What the sweep found


def then(position: int, failure: Failure, choice: Choice, workload: Workload) -> Sweep:
    """A kill at `position`, and the recovery crashed at each of its operations."""
    recorder = recorded(workload)
    sweeper, replay = Sweeper(recorder, workload), CrashReplay(recorder.fs).advance(position)
    sweeper.crash_recovery(replay, Spot("kill", position, ALL_KEPT), [(failure, choice)])
    assert not sweeper.result.violations, sweeper.result.report()
    return sweeper.result


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_first_opening_may_be_killed_anywhere_and_the_next_one_crashed(seed: int) -> None:
    """A manifest that was whole, but whose log's name was lost, was taken for the one in force."""
    for position in range(16):
        assert then(position, "power", WorstCase(seed), Workload()).depth_two > 10


def test_a_folder_whose_maker_was_killed_before_it_synced_the_name() -> None:
    """The next opening found the folder there and left it at that; then the power took it, and all writes in it."""
    recorder = recorded(Workload())
    assert [type(record).__name__ for record in recorder.fs.log[:2]] == ["Mkdir", "SyncDir"]
    assert then(1, "power", SYNCED_ONLY, Workload()).depth_two > 10


def test_a_current_that_has_two_names_is_not_written_into() -> None:
    """A rename cut in two left CURRENT.tmp as a second name of CURRENT; the next opening cut the file to nothing."""
    then(13, "power", WorstCase(5), Workload())
    recorder = recorded(Workload(ops=20))
    image = CrashReplay(recorder.fs).advance(len(recorder.fs.log)).image(ALL_KEPT, "kill")
    image.link("/db/CURRENT", "/db/CURRENT.tmp")
    sweeper = Sweeper(recorder)
    lsm.open("/db", sweeper.options, world=recorder.world(image)).close()
    again = CrashReplay(image)
    for step in range(image.log_start, len(image.log) + 1):
        sweeper.crash(again.advance(step), Spot("kill", len(recorder.fs.log), ALL_KEPT))
    assert not sweeper.result.violations, sweeper.result.report()
    assert sweeper.result.states > 10
