"""A small, seeded life of a store, dense in events: the history that a crash sweep cuts at every operation.

Within a few hundred writes on a memory disk it rotates logs, flushes, compacts into several outputs, moves
tables unread, rotates the manifest, and deletes a range that a live snapshot still sees.
`Counts` proves it: a sweep over a workload in which nothing happens would test nothing.

A `Workload` names such a life in one line of text, so that whatever a sweep finds can be seen again
(`python -m labs.crash.replay`). `faults` breaks a part of the engine on purpose, in the run and in every
recovery: `lie() @ sync(site="table.finish")` is an engine that forgets to sync its tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import lsm
from labs.crash.history import History
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.events import Compacted, Event, Flushed, LogRotated, ManifestWritten, Recovered
from simfs.api import SyncLevel
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld

STORE = "/db"


class Generator:
    """Integers from a seed: splitmix64 (Steele, Lea, Flood 2014). The same on every machine and version."""

    def __init__(self, seed: int) -> None:
        self._state = seed & 0xFFFFFFFFFFFFFFFF

    def below(self, bound: int) -> int:
        """The next integer in [0, bound)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        return (z ^ (z >> 31)) % bound


@dataclass
class Counts:
    """What happened, folded from the store's events. The log and the manifest that each opening begins do not count."""

    log_rotations: int = 0
    flushes: int = 0
    compactions: int = 0
    wide_compactions: int = 0  # with several outputs
    trivial_moves: int = 0
    manifest_rotations: int = 0
    ranges_over_snapshots: int = 0

    def __call__(self, event: Event) -> None:
        """Listen."""
        match event:
            case LogRotated():
                self.log_rotations += 1
            case Flushed():
                self.flushes += 1
            case Compacted(moved=True):
                self.trivial_moves += 1
            case Compacted():
                self.compactions += 1
                self.wide_compactions += len(event.outputs) > 1
            case ManifestWritten(rotated=True):
                self.manifest_rotations += 1
            case Recovered():
                self.log_rotations -= 1
                self.manifest_rotations -= 1
            case _:
                pass

    def require(self, **least: int) -> None:
        """Assert that each named count is at least so large."""
        known = {item.name for item in fields(self)}
        for name, number in least.items():
            assert name in known, name
            assert getattr(self, name) >= number, f"the workload has {getattr(self, name)} {name}, {number} are needed"


def as_batch(ops: Sequence[Op]) -> lsm.WriteBatch:
    """The ops as a batch."""
    batch = lsm.WriteBatch()
    for kind, key, value in ops:
        if kind == RANGE_DELETE:
            batch.delete_range(key, value)
        elif kind == DELETE:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


@dataclass
class Recorder:
    """A store on a recording memory disk, and the history of what it was told."""

    fs: MemoryFilesystem
    options: lsm.Options
    faults: str = ""
    history: History = field(default_factory=History)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.options = lsm.Options.make(self.options, listener=self.counts)
        self.db = self.open()

    def open(self) -> lsm.DB:
        """Open, or reopen, the store."""
        self.db = lsm.open(STORE, self.options, world=self.world(self.fs))
        return self.db

    def world(self, fs: MemoryFilesystem) -> MemoryWorld:
        """The ground that the store stands on, over this disk: with the faults, if there are any."""
        return MemoryWorld(FaultyFilesystem(fs, self.faults) if self.faults else fs)

    def write(self, ops: Sequence[Op], level: SyncLevel | None = None) -> None:
        """Apply ops as one batch, and record it."""
        started = len(self.fs.log)
        self.db.write(as_batch(ops), level)
        chosen = self.options.sync if level is None else level
        self.history.add(ops, chosen, started, len(self.fs.log))

    def durable(self, what: str) -> None:
        """Call `flush`, `compact`, `sync` or `close`: afterwards everything so far outlives anything."""
        getattr(self.db, what)()
        if what != "close" or self.options.sync >= SyncLevel.FLUSH:
            self.history.mark_durable(len(self.fs.log))


SMALL = {
    "write_buffer_size": 1400,
    "block_size": 160,
    "target_file_size_base": 700,
    "level0_file_num_compaction_trigger": 2,
    "max_bytes_for_level_base": 1600,
    "max_bytes_for_level_multiplier": 3,
    "max_manifest_file_size": 900,
    "num_levels": 4,
    "block_cache_bytes": 64 * 1024,
    "wal_buffer_bytes": 400,
}
"""Options under which a few hundred writes make a tree of several levels."""


def run_workload(options: lsm.Options, *, ops: int, seed: int, mixed: bool = False, faults: str = "") -> Recorder:
    """A history of `ops` writes: sequential, overwrites, deletes, batches, range deletes, snapshots, a reopening.

    `mixed`: every write draws its own point of the dial, or takes the store's.
    """
    recorder = Recorder(MemoryFilesystem(), options, faults)
    recorder.fs.mkdir("/away")  # a change outside the store, which no rule of ours may depend on
    draw, levels = Generator(seed), Generator(~seed)
    snapshot: lsm.Snapshot | None = None
    for number in range(ops):
        level = (None, *SyncLevel)[levels.below(5)] if mixed else None
        choice = draw.below(100)
        key = b"k%03d" % draw.below(80)
        if choice >= 94 and number >= ops // 4:
            if snapshot is not None:
                snapshot.release()
            snapshot = recorder.db.snapshot()
        elif choice >= 92 and number >= ops // 4:
            recorder.durable("flush")
        else:
            drawn = _drawn_ops(draw, number, 0 if number < ops // 4 else choice, key, fresh=number < ops // 4)
            if drawn[0][0] == RANGE_DELETE and snapshot is not None:
                recorder.counts.ranges_over_snapshots += any(snapshot.scan(drawn[0][1], drawn[0][2]))
            recorder.write(drawn, level)
        if number == ops * 2 // 3:
            snapshot = None
            recorder.durable("close")
            recorder.open()
        if number == ops * 5 // 6:
            recorder.durable("sync")
    return recorder


def _drawn_ops(draw: Generator, number: int, choice: int, key: bytes, *, fresh: bool) -> list[Op]:
    """What the write of this number does; `fresh` ones fill the store in key order."""
    if fresh:
        return [(VALUE, b"k%03d" % number, b"first-%d-" % number + b"x" * draw.below(30))]
    if choice < 60:
        return [(VALUE, key, b"v%d-" % number + b"y" * draw.below(60))]
    if choice < 75:
        return [(DELETE, key, b"")]
    if choice < 88:
        batch = [(VALUE, b"b%02d" % draw.below(30), b"%d" % number) for _ in range(2 + draw.below(4))]
        return [*batch, (DELETE, key, b"")]
    return [(RANGE_DELETE, key, b"k%03d" % (int(key[1:]) + 1 + draw.below(12)))]


@dataclass(frozen=True)
class Workload:
    """A history by name: what it takes to record it again, the same to the byte.

    >>> Workload(sync="none", mixed=1).arguments()
    ['--sync', 'none', '--ops', '100', '--seed', '3', '--mixed', '1']
    """

    sync: str = "fsync"
    ops: int = 100
    seed: int = 3
    mixed: int = 0  # 1: every write draws its own point of the dial
    strategy: str = "leveled"
    structural_sync: str = "floor"
    memtable: str = "hash"
    table_format: str = "block"
    write_buffer_size: int = SMALL["write_buffer_size"]
    max_manifest_file_size: int = 300
    faults: str = ""

    def record(self) -> Recorder:
        """Run it."""
        own = ("ops", "seed", "mixed", "faults")
        changes = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in own}
        options = lsm.Options.make(None, **(SMALL | changes))
        return run_workload(options, ops=self.ops, seed=self.seed, mixed=bool(self.mixed), faults=self.faults)

    def arguments(self) -> list[str]:
        """For the command line of `labs.crash.replay`: the three that matter most, and all that is not the default."""
        found: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default or item.name in ("sync", "ops", "seed"):
                found += [f"--{item.name.replace('_', '-')}", str(value)]
        return found
