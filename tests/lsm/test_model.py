"""The whole store against a dict, in any order of operations, under any options, through any crash.

`labs.crash.twin` holds the store and the dict together and compares every answer. Here Hypothesis chooses what
happens; a long run from a seed proves that everything that can happen does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lsm
from labs.crash.sweep import NAMES, REMOVALS
from labs.crash.twin import Twin
from labs.crash.workload import SMALL, Generator
from lsm import codecs
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.events import Compacted, Event, Flushed, ManifestWritten, Recovered
from simfs.api import SyncLevel
from simfs.choice import Step
from simfs.crash import ALL_KEPT, SYNCED_ONLY, Choice, Failure, WorstCase
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.oplog import Unlink
from simfs.real import RealWorld

ODD_KEYS = [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0\0", b"a\0b", b"ab", b"\xfe", b"\xff", b"\xff\xff", b"\xff\xff\0"]
LONG_KEYS = [b"L" * 64, b"L" * 64 + b"\0", b"L" * 65, b"L" * 300]
SHARED = [b"common/prefix/%02d" % number for number in range(12)] + [b"common/prefix/05/%d" % n for n in range(4)]
PLAIN = [b"k%03d" % number for number in range(60)]
KEYS = ODD_KEYS + LONG_KEYS + SHARED + PLAIN
PREFIXES = [b"", b"\0", b"a", b"a\0", b"common/", b"common/prefix/05", b"k", b"k01", b"L", b"\xff", b"zz"]


CHANGES: dict[str, list[Any]] = {
    "strategy": ["leveled", "tiered", "none"],
    "table_format": ["block", "scan"],
    "memtable": ["hash", "skiplist"],
    "compression": [codec for codec in ("none", "zlib", "zstd", "lz4") if codecs.available(codec)],
    "block_size": [64, 160, 1024],
    "filter_bits_per_key": [0, 1, 10],
    "key_range_filter": [None, True, False],
    "block_cache_bytes": [0, 3000, 65536],
    "open_tables_max": [1, 2, 512],
    "compaction_pri": ["min_overlapping_ratio", "round_robin", "oldest_first", "largest_first"],
    "level_compaction_dynamic_level_bytes": [True, False],
    "sync": [SyncLevel.NONE, SyncLevel.FLUSH, SyncLevel.FSYNC, SyncLevel.FULLFSYNC],
    "write_buffer_size": [300, 1400, 4000],
    "target_file_size_base": [300, 700],
    "target_file_size_multiplier": [1, 2],
    "level0_file_num_compaction_trigger": [1, 2, 4],
    "max_bytes_for_level_base": [600, 1600],
    "max_compaction_bytes": [0, 900],
    "num_levels": [2, 3, 4, 7],
    "max_manifest_file_size": [200, 900],
    "wal_buffer_bytes": [1, 400],
    "verify_checksums": [True, False],
    "tiered_min_merge_width": [2, 3],
    "tiered_size_ratio": [1, 2, 50],
    "wal_recovery_mode": ["tolerate_torn_tail", "point_in_time"],
}
"""Options among which a store is reopened."""
WEAK = {"structural_sync": ["floor", "follow_dial"]}
"""Below FSYNC the second leaves the store as weak as its log: no loss of power from then on, only kills."""

keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"1", b"zeros\0\0", b"v" * 20, b"w" * 90])
levels = st.sampled_from([None, None, None, SyncLevel.NONE, SyncLevel.FLUSH, SyncLevel.FSYNC, SyncLevel.FULLFSYNC])
CHOICES = CHANGES | WEAK
changes = st.dictionaries(st.sampled_from([*CHANGES, *WEAK]), st.integers(0, 11), max_size=8).map(
    lambda drawn: {name: CHOICES[name][number % len(CHOICES[name])] for name, number in sorted(drawn.items())}
)
one_op = st.one_of(
    st.tuples(st.just(VALUE), keys, values),
    st.tuples(st.just(VALUE), keys, values),
    st.tuples(st.just(DELETE), keys, st.just(b"")),
    st.tuples(keys, keys).map(lambda pair: (RANGE_DELETE, *sorted(pair))),
)
bounds = st.fixed_dictionaries(
    {},
    optional={
        "start": keys | st.binary(max_size=3),
        "stop": keys | st.binary(max_size=3),
        "prefix": st.sampled_from(PREFIXES),
        "reverse": st.booleans(),
    },
)
moments = st.none() | st.integers(0, 5)
ENDS: dict[str, Choice] = {"SYNCED_ONLY": SYNCED_ONLY, "ALL_KEPT": ALL_KEPT, "REMOVALS": REMOVALS, "NAMES": NAMES}
survivors: st.SearchStrategy[Choice] = st.sampled_from(list(ENDS.values())) | st.integers(0, 99).map(WorstCase)
backs = st.just(0) | st.integers(
    1, 80
)  # a crash after the last operation of the disk, or in the midst of the last call


class StoreMachine(RuleBasedStateMachine):
    """Everything but crashes; the ground is a subclass's."""

    twin: Twin

    @rule(ops=st.lists(one_op, min_size=1, max_size=1), level=levels)
    def write(self, ops: list[Op], level: SyncLevel | None) -> None:
        self.twin.write(ops, level)

    @rule(ops=st.lists(one_op, max_size=6), level=levels)
    def write_batch(self, ops: list[Op], level: SyncLevel | None) -> None:
        self.twin.write(ops, level)

    @rule(first=st.integers(0, 59), count=st.integers(5, 40), value=values)
    def fill(self, first: int, count: int, value: bytes) -> None:
        for number in range(first, first + count):
            self.twin.write([(VALUE, b"k%03d" % (number % 60), b"%d-" % self.twin.writes + value)])

    @rule(chosen=st.lists(keys, min_size=1, max_size=8), moment=moments)
    def get(self, chosen: list[bytes], moment: int | None) -> None:
        self.twin.get(chosen, moment)

    @rule(limits=bounds, moment=moments)
    def scan(self, limits: dict[str, Any], moment: int | None) -> None:
        self.twin.scan(moment, **limits)

    @rule()
    def take_snapshot(self) -> None:
        self.twin.take_snapshot()

    @rule(moment=st.integers(0, 5))
    def release_snapshot(self, moment: int) -> None:
        self.twin.release_snapshot(moment)

    @rule(limits=bounds, moment=moments)
    def begin_scan(self, limits: dict[str, Any], moment: int | None) -> None:
        self.twin.begin_scan(moment, **limits)

    @rule(number=st.integers(0, 5), count=st.integers(1, 40))
    def advance_scan(self, number: int, count: int) -> None:
        self.twin.advance_scan(number, count)

    @rule(number=st.integers(0, 5), forget=st.booleans())
    def drop_scan(self, number: int, forget: bool) -> None:
        self.twin.drop_scan(number, forget=forget)

    @rule()
    def flush(self) -> None:
        self.twin.flush()

    @rule(start=st.none() | keys, stop=st.none() | keys)
    def compact(self, start: bytes | None, stop: bytes | None) -> None:
        self.twin.compact(start, stop)

    @rule()
    def sync(self) -> None:
        self.twin.sync()

    @rule()
    def verify(self) -> None:
        self.twin.verify()

    @rule()
    def checkpoint(self) -> None:
        self.twin.checkpoint()

    @rule()
    def read_only(self) -> None:
        self.twin.read_only()

    @rule(changes=changes)
    def reopen(self, changes: dict[str, Any]) -> None:
        self.twin.reopen(**changes)

    @rule()
    def lose_clear(self) -> None:
        self.twin.write([(RANGE_DELETE, b"", b"\xff\xff\xff")])

    @rule(lose_manifest=st.booleans())
    def repair(self, lose_manifest: bool) -> None:
        lost_before = self.twin.lost
        self.twin.repair(lose_manifest=lose_manifest)
        assert self.twin.lost == lost_before

    @rule()
    def metrics(self) -> None:
        measured = self.twin.db.metrics(exact_space=True)
        expected = sum(len(key) + len(value) for key, value in self.twin.content.items())
        assert measured.space_amp.denominator == expected
        assert measured.snapshots >= len(self.twin.moments)
        assert measured.error is None

    @invariant()
    def agree(self) -> None:
        self.twin.check()

    def teardown(self) -> None:
        if hasattr(self, "twin") and not self.twin.broken:
            self.twin.verify()
            self.twin.reopen()
            self.twin.close()


class MemoryMachine(StoreMachine):
    """On the disk that can lose power."""

    @initialize(changes=changes)
    def begin(self, changes: dict[str, Any]) -> None:
        self.twin = Twin(MemoryWorld(MemoryFilesystem()), "/db", lsm.Options.make(None, **(SMALL | changes)))

    @rule(back=backs, changes=changes)
    def kill(self, back: int, changes: dict[str, Any]) -> None:
        self.twin.crash("kill", None, back=back, **changes)

    @precondition(lambda self: not self.twin.weak)
    @rule(choice=survivors, back=backs, changes=changes)
    def lose_power(self, choice: Choice, back: int, changes: dict[str, Any]) -> None:
        self.twin.crash("power", choice, back=back, **changes)

    @rule(lose_manifest=st.booleans(), choice=st.none() | survivors, back=backs)
    def crash_and_repair(self, lose_manifest: bool, choice: Choice | None, back: int) -> None:
        failure: Failure = "power" if choice and not self.twin.weak else "kill"
        self.twin.repair(lose_manifest=lose_manifest, failure=failure, choice=choice, back=back)


class RealMachine(StoreMachine):
    """On the real disk, in a temporary folder."""

    @initialize(changes=changes)
    def begin(self, changes: dict[str, Any]) -> None:
        self.folder = tempfile.mkdtemp(prefix="lsmlab-model-")
        changes = {name: value for name, value in changes.items() if name != "sync"}
        options = lsm.Options.make(None, **(SMALL | {"sync": SyncLevel.FLUSH} | changes))
        self.twin = Twin(RealWorld(), f"{self.folder}/db", options)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "folder"):
                shutil.rmtree(self.folder)


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize(("machine", "examples", "steps"), [(MemoryMachine, 100, 40), (RealMachine, 15, 25)])
def test_any_order(machine: type[StoreMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(machine, settings=_bounded(examples, steps))


@pytest.mark.campaign
@pytest.mark.parametrize(("machine", "examples", "steps"), [(MemoryMachine, 3000, 60), (RealMachine, 200, 40)])
def test_any_order_for_long(machine: type[StoreMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(machine, settings=_bounded(examples, steps))


def _bounded(examples: int, steps: int) -> settings:
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=QUIET)


# a long run from a seed, in which everything must have happened


@dataclass
class Seen:
    """What happened, counted."""

    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, event: Event) -> None:
        """Listen."""
        self.counts[type(event).__name__] += 1
        match event:
            case Flushed():
                self.counts["flush to nothing"] += event.table is None
            case Compacted():
                self.counts["trivial move"] += event.moved
                self.counts["wide compaction"] += not event.moved and len(event.outputs) > 1
                self.counts["compaction to nothing"] += not event.moved and not event.outputs
                self.counts["deep compaction"] += event.output_level > 1
            case ManifestWritten():
                self.counts["manifest rotation"] += event.rotated
            case Recovered():
                self.counts["log replayed"] += event.log_records > 0
                self.counts["log cut"] += bool(event.dropped)
                self.counts["orphans swept"] += bool(event.orphans)
            case _:
                pass

    def require(self, *names: str) -> None:
        """Assert that each was seen."""
        missing = [name for name in names if not self.counts[name]]
        assert not missing, f"never happened: {missing}; {dict(self.counts)}"


EVERYTHING = (
    *("Flushed", "Compacted", "LogRotated", "ManifestWritten", "FilesDeleted", "Recovered", "flush to nothing"),
    *("trivial move", "wide compaction", "compaction to nothing", "deep compaction", "manifest rotation"),
    *("log replayed", "log cut", "orphans swept", "range delete over a snapshot", "table pinned by a reader"),
    *("kill", "power SYNCED_ONLY", "power ALL_KEPT", "power REMOVALS", "power NAMES", "power WorstCase"),
    *("writes lost by kill", "writes lost by power", "crash in the past"),
    *("repair", "repair without manifest", "repair after a crash", "checkpoint", "read-only"),
)


class LongRun:
    """A `Twin` and draws from a seed."""

    def __init__(self, seed: int, seen: Seen, failures_percent: int) -> None:
        self.draw = Generator(seed)
        self.failures_percent = failures_percent
        self.seen = seen
        options = lsm.Options.make(None, **(SMALL | {"listener": seen}))
        self.twin = Twin(MemoryWorld(MemoryFilesystem()), "/db", options)

    def pick(self, items: Sequence[Any]) -> Any:
        """One of them."""
        return items[self.draw.below(len(items))]

    def changes(self) -> dict[str, Any]:
        """Some options for the next opening."""
        names = sorted({self.pick(sorted(CHANGES)) for _ in range(self.draw.below(8))})
        drawn = {name: self.pick(CHANGES[name]) for name in names}
        for name, value in drawn.items():
            self.seen.counts[f"{name}={value}"] += 1
        return drawn

    def ops(self, count: int) -> list[Op]:
        """Some writes."""
        ops: list[Op] = []
        for _ in range(count):
            kind, key, value = self.draw.below(10), self.pick(KEYS), b"%d-" % self.draw.below(1000)
            if kind == 0:
                ops.append((RANGE_DELETE, *sorted((key, self.pick(KEYS)))))
                self.seen.counts["range delete over a snapshot"] += bool(self.twin.moments)
            elif kind < 4:
                ops.append((DELETE, key, b""))
            else:
                ops.append((VALUE, key, value + b"v" * self.draw.below(60)))
        return ops

    def limits(self) -> dict[str, Any]:
        """Bounds of a scan."""
        drawn = {"start": self.pick(KEYS), "stop": self.pick(KEYS), "prefix": self.pick(PREFIXES), "reverse": True}
        return {name: value for name, value in drawn.items() if self.draw.below(3) == 0}

    def survivors(self) -> Choice:
        """What a loss of power leaves."""
        name = self.pick([*ENDS, "WorstCase"])
        self.seen.counts[f"power {name}"] += 1
        return ENDS.get(name) or WorstCase(self.draw.below(1000))

    def back(self) -> int:
        """How many operations of the disk ago a crash came."""
        drawn = self.draw.below(3) and self.draw.below(80)
        self.seen.counts["crash in the past"] += drawn > 0
        return drawn

    def step(self) -> None:
        """One action, by weight."""
        action, twin = self.draw.below(100), self.twin
        level = self.pick([None, None, None, *SyncLevel])
        if self.draw.below(100) < self.failures_percent:
            self.fail()
        elif action < 45:
            for op in self.ops(1 + self.draw.below(6)):
                twin.write([op], level)
        elif action < 55:
            twin.write(self.ops(self.draw.below(8)), level)
        elif action < 80:
            self.read()
        elif action < 94:
            self.maintain()
        else:
            twin.reopen(**self.changes())

    def read(self) -> None:
        """Look at something, now or later."""
        action, twin, moment = self.draw.below(9), self.twin, self.pick([None, 0, 1, 2])
        if action == 0:
            twin.get([self.pick(KEYS) for _ in range(5)], moment)
        elif action == 1:
            twin.scan(moment, **self.limits())
        elif action == 2:
            twin.take_snapshot()
        elif action == 3:
            twin.release_snapshot(self.draw.below(5))
        elif action == 4:
            twin.begin_scan(moment, **self.limits())
        elif action < 7:
            twin.advance_scan(self.draw.below(5), 1 + self.draw.below(30))
        elif action == 7:
            twin.drop_scan(self.draw.below(5), forget=bool(self.draw.below(2)))
        else:
            twin.verify()

    def maintain(self) -> None:
        """Flush, compact, sync, copy, look from outside."""
        action, twin = self.draw.below(9), self.twin
        if action < 2:
            twin.flush()
        elif action == 2:
            twin.compact(*self.pick([(None, None), tuple(sorted((self.pick(KEYS), self.pick(KEYS))))]))
        elif action == 3:
            twin.sync(self.pick([SyncLevel.FLUSH, SyncLevel.FSYNC]))
        elif action == 4:
            twin.checkpoint()
            self.seen.counts["checkpoint"] += 1
        elif action == 5:
            twin.read_only()
            self.seen.counts["read-only"] += 1
        elif action == 6:  # sequential keys, which need no merging
            for number in range(60):
                twin.write([(VALUE, b"s%03d" % number, b"w" * self.draw.below(40))])
        elif action == 7:  # nothing is left
            twin.write([(RANGE_DELETE, b"", b"\xff\xff\xff")])
            twin.compact()
        else:  # deletes of nothing, in a tree that holds nothing below
            twin.write([(DELETE, b"~", b"")])
            twin.flush()
        on_disk = sum(name.endswith(".sst") for name in twin.disk.listdir(twin.path))
        self.seen.counts["table pinned by a reader"] += on_disk > len(list(twin.db.version.tables()))

    def fail(self) -> None:
        """Crash, or repair, or both."""
        action, lost_before = self.draw.below(3), self.twin.lost
        if action == 0:
            if self.draw.below(2):
                self.twin.write(self.ops(3), SyncLevel.NONE)
            self.seen.counts["kill"] += 1
            self.twin.crash("kill", None, back=self.back(), **self.changes())
            self.seen.counts["writes lost by kill"] += self.twin.lost - lost_before
        elif action == 1:
            self.twin.crash("power", self.survivors(), back=self.back(), **self.changes())
            self.seen.counts["writes lost by power"] += self.twin.lost - lost_before
        else:
            lose, crash = bool(self.draw.below(2)), self.draw.below(3)
            choice = self.survivors() if crash == 2 else None
            failure: Failure | None = (None, "kill", "power")[crash]
            self.twin.repair(lose_manifest=lose, failure=failure, choice=choice, back=self.back() if crash else 0)
            self.seen.counts["repair"] += 1
            self.seen.counts["repair without manifest"] += lose
            self.seen.counts["repair after a crash"] += crash > 0


def live(seed: int, steps: int, seen: Seen, failures_percent: int) -> None:
    """A whole life; every answer is compared."""
    run = LongRun(seed, seen, failures_percent)
    for number in range(steps):
        try:
            run.step()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {number}")
            raise
    run.twin.check()
    run.twin.verify()
    run.twin.close()


def test_long_lives_in_which_everything_happens() -> None:
    seen = Seen()
    for seed, failures_percent in ((1, 5), (2, 5), (3, 40)):
        live(seed, 700, seen, failures_percent)
    seen.require(*EVERYTHING)
    seen.require(*(f"{name}={value}" for name, values in CHANGES.items() for value in values))


@pytest.mark.parametrize("level", [*SyncLevel, "fsync"])
def test_sync_brings_all_writes_to_each_point(level: SyncLevel | str) -> None:
    """At NONE it has nothing to do, at FLUSH the operating system gets what the process holds."""
    fs = MemoryFilesystem()
    db = lsm.open("/db", world=MemoryWorld(fs), sync="none")
    db[b"a"] = b"1"
    with pytest.raises(lsm.InvalidArgument, match="expected one of none, flush, fsync, fullfsync"):
        db.sync("always")
    db.sync(level)
    after_kill = fs.crash_image("kill", at=len(fs.log))
    with lsm.open("/db", world=MemoryWorld(after_kill)) as recovered:
        assert dict(recovered) == ({b"a": b"1"} if level != SyncLevel.NONE else {})
    after_power_loss = fs.crash_image("power", at=len(fs.log))
    with lsm.open("/db", world=MemoryWorld(after_power_loss)) as recovered:
        assert dict(recovered) == ({} if level in (SyncLevel.NONE, SyncLevel.FLUSH) else {b"a": b"1"})
    db[b"b"] = b"2"
    assert dict(db) == {b"a": b"1", b"b": b"2"}, "a bad point does not make the store refuse writes"
    db.close()


@pytest.mark.campaign
@pytest.mark.parametrize("failures_percent", [2, 10, 40])
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_long_lives(seed: int, failures_percent: int) -> None:
    live(seed, 1000, Seen(), failures_percent)


@pytest.mark.parametrize("mode", ["tolerate_torn_tail", "point_in_time", "absolute", "skip_corrupted"])
def test_repair_passes_over_a_log_that_came_back_empty(mode: str) -> None:
    """Found by long lives: a synced write was lost if MANIFEST and CURRENT were.

    Tables do not say where the sequences stand (the last deletes left nothing of themselves), the log that would
    have said it was swept unused, and comes back with its name alone: a gap, behind which nothing was replayed.
    """
    fs = MemoryFilesystem()
    with lsm.open("/db", world=MemoryWorld(fs)) as db:
        db[b"a"] = b"1"
        db.flush()
        db.delete(b"x")
        db.delete(b"x")
        db.flush()
        assert [table.seq_max for _, table in db.version.tables()] == [1]
    db = lsm.open("/db", world=MemoryWorld(fs))
    db.put(b"c", b"3", sync="fsync")
    after = fs.crash_image("power", SYNCED_ONLY)
    logs = [name for name in after.listdir("/db") if name.endswith(".log")]
    assert [after.stat(f"/db/{name}").size > 0 for name in logs] == [False, True]
    for name in after.listdir("/db"):
        if name.startswith(("MANIFEST", "CURRENT")):
            after.remove(f"/db/{name}")
    lsm.repair("/db", world=MemoryWorld(after), wal_recovery_mode=mode)
    with lsm.open("/db", world=MemoryWorld(after)) as repaired:
        assert dict(repaired) == {b"a": b"1", b"c": b"3"}


@dataclass(frozen=True)
class Early:
    """What was done in the first `records` operations survives, less removals."""

    records: int

    def survives(self, step: Step, part: int) -> bool:
        """Whether it is early enough, and removes nothing."""
        return step.number < self.records and not isinstance(step.record, Unlink)

    def filler(self, step: Step, size: int) -> bytes:
        """Zeros."""
        return bytes(size)


def test_a_log_that_came_to_nothing_does_not_come_back_in_part() -> None:
    """A put and its delete, recovered after a kill: no table tells of them, so only the folder's sync does.

    Were the log's removal not durable by the time the store is open, a loss of power could leave the put without the
    delete, and a repair without MANIFEST and CURRENT would serve what was deleted.
    """
    fs = MemoryFilesystem()
    db = lsm.open("/db", world=MemoryWorld(fs), sync="flush")
    begun = len(fs.log)
    db[b"a"] = b"1"
    put = len(fs.log)
    db.delete(b"a")
    killed = fs.crash_image("kill")
    recovered = lsm.open("/db", world=MemoryWorld(killed), sync="flush")
    assert list(recovered.version.tables()) == []
    assert dict(recovered) == {}
    assert begun < put < killed.log_start
    for records in range(begun, killed.log_start + 1):
        after = killed.crash_image("power", Early(records), at=len(killed.log))
        for name in after.listdir("/db"):
            if name.startswith(("MANIFEST", "CURRENT")):
                after.remove(f"/db/{name}")
        lsm.repair("/db", world=MemoryWorld(after))
        with lsm.open("/db", world=MemoryWorld(after)) as repaired:
            assert dict(repaired) == {}, f"after {records} operations"
    recovered.close()


def test_repair_makes_the_tables_that_it_finds_durable() -> None:
    """Found by long lives: a flush was killed before it synced its table, which repair took as it was seen."""
    fs = MemoryFilesystem()
    with lsm.open("/db", world=MemoryWorld(fs), sync="flush") as db:
        db[b"a"] = b"1"
        begun = len(fs.log)
        db.flush()
        ended = len(fs.log)
    unsynced = 0
    for at in range(begun, ended + 1):
        killed = fs.crash_image("kill", at=at)
        tables = {name for name in killed.listdir("/db") if name.endswith(".sst") and killed.stat(f"/db/{name}").size}
        unsynced += len(tables) - sum(
            after.stat(f"/db/{name}").size > 0
            for after in [killed.crash_image("power", at=at)]
            for name in sorted(tables)
            if after.exists(f"/db/{name}")
        )
        for name in killed.listdir("/db"):
            if name.startswith(("MANIFEST", "CURRENT")):
                killed.remove(f"/db/{name}")
        lsm.repair("/db", world=MemoryWorld(killed))
        after = killed.crash_image("power", SYNCED_ONLY)
        with lsm.open("/db", world=MemoryWorld(after)) as repaired:
            assert dict(repaired) == {b"a": b"1"}, f"killed after {at} operations"
    assert unsynced > 0
