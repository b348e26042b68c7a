"""A small, seeded life of a store, dense in events: the history that a crash sweep cuts at every operation.

Within a few hundred writes on a memory disk it rotates logs, flushes, compacts into several outputs, moves
tables unread, rotates the manifest, and deletes a range that a live snapshot still sees.
`Counts` proves it: a sweep over a workload in which nothing happens would test nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import lsm
from labs.crash.history import History
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.events import Compacted, Event, Flushed, LogRotated, ManifestWritten
from simfs.api import SyncLevel
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
    """What happened, folded from the store's events."""

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
            case _:
                pass

    def require(self, **least: int) -> None:
        """Assert that each named count is at least so large."""
        known = {item.name for item in fields(self)}
        for name, number in least.items():
            assert name in known, name
            assert getattr(self, name) >= number, f"the workload has {getattr(self, name)} {name}, {number} are needed"


@dataclass
class Recorder:
    """A store on a recording memory disk, and the history of what it was told."""

    fs: MemoryFilesystem
    options: lsm.Options
    history: History = field(default_factory=History)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.options = lsm.Options.make(self.options, listener=self.counts)
        self.db = self.open()

    def open(self) -> lsm.DB:
        """Open, or reopen, the store."""
        self.db = lsm.open(STORE, self.options, world=MemoryWorld(self.fs))
        return self.db

    def write(self, ops: Sequence[Op], level: SyncLevel | None = None) -> None:
        """Apply ops as one batch, and record it."""
        batch = lsm.WriteBatch()
        for kind, key, value in ops:
            if kind == RANGE_DELETE:
                batch.delete_range(key, value)
            elif kind == DELETE:
                batch.delete(key)
            else:
                batch.put(key, value)
        started = len(self.fs.log)
        self.db.write(batch, level)
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


def run_workload(options: lsm.Options, *, ops: int, seed: int) -> Recorder:
    """A history of `ops` writes: sequential, overwrites, deletes, batches, range deletes, snapshots, a reopening."""
    recorder = Recorder(MemoryFilesystem(), options)
    recorder.fs.mkdir("/away")  # a change outside the store, which no rule of ours may depend on
    draw = Generator(seed)
    snapshot: lsm.Snapshot | None = None
    for number in range(ops):
        choice = draw.below(100)
        key = b"k%03d" % draw.below(80)
        if number < ops // 4:
            recorder.write([(VALUE, b"k%03d" % number, b"first-%d-" % number + b"x" * draw.below(30))])
        elif choice < 60:
            recorder.write([(VALUE, key, b"v%d-" % number + b"y" * draw.below(60))])
        elif choice < 75:
            recorder.write([(DELETE, key, b"")])
        elif choice < 88:
            batch = [(VALUE, b"b%02d" % draw.below(30), b"%d" % number) for _ in range(2 + draw.below(4))]
            recorder.write([*batch, (DELETE, key, b"")])
        elif choice < 92:
            recorder.write([(RANGE_DELETE, key, b"k%03d" % (int(key[1:]) + 1 + draw.below(12)))])
            recorder.counts.ranges_over_snapshots += snapshot is not None
        elif choice < 94:
            recorder.durable("flush")
        else:
            if snapshot is not None:
                snapshot.release()
            snapshot = recorder.db.snapshot()
        if number == ops * 2 // 3:
            snapshot = None
            recorder.durable("close")
            recorder.open()
        if number == ops * 5 // 6:
            recorder.durable("sync")
    return recorder
