"""Flush and compaction, driven to their end inline: whoever fills the memtable does the work.

    rotate:   new log B ─▶ memtable frozen, new one active
    flush:    frozen memtable ─▶ table of level 0 ─▶ edit(log number = B) ─▶ log A removed
    compact:  while the picker has a plan: merge or move ─▶ edit ─▶ inputs removed

Each job is decided (`pick`), done (an iterator of windows) and applied (`VersionSet.install`): see
`lsm.compact` and `lsm.picking`. Other drivers (slices, threads, processes) iterate the same jobs.

Invariants:
1. Memtables are flushed in the order in which they were filled, so the tables hold a prefix of history.
2. A log is removed only after the edit that moves the log number past it is durable.
3. Structural syncs are at max(dial, FSYNC, the strongest level that a write in the memtable asked
   for): a weak log may lose its tail, never a flushed table's place in the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lsm.compact import CompactionJob, FlushJob, JobContext
from lsm.events import Compacted, Event, Flushed, LogRotated
from lsm.filenames import log_name
from lsm.picking import PickState, Plan, manual_plan
from lsm.version import Edit
from lsm.wal import LogWriter
from simfs.api import SyncLevel

if TYPE_CHECKING:
    from lsm.cache import TableCache
    from lsm.memtable import Memtable
    from lsm.options import Options
    from lsm.picking import Picker
    from lsm.snapshot import SnapshotRegistry
    from lsm.versions import VersionSet
    from simfs.api import World


class Jobs:
    """Runs flushes and compactions of one store. The store's mutex is held by the caller."""

    def __init__(
        self,
        world: World,
        directory: str,
        options: Options,
        tables: TableCache,
        versions: VersionSet,
        snapshots: SnapshotRegistry,
        picker: Picker,
        emit: Callable[[Event], None],
    ) -> None:
        self._world = world
        self._directory = directory
        self._options = options
        self._tables = tables
        self._versions = versions
        self._snapshots = snapshots
        self._picker = picker
        self._emit = emit

    def new_log(self, first_sequence: int, predecessor: LogWriter | None) -> LogWriter:
        """The log that the next writes go to."""
        number = self._versions.new_file_number()
        log = LogWriter.create(
            self._world.fs,
            f"{self._directory}/{log_name(number)}",
            number=number,
            first_sequence=first_sequence,
            predecessor=predecessor,
            buffer_bytes=self._options.wal_buffer_bytes,
        )
        closed_bytes = 0 if predecessor is None else predecessor.size_bytes
        self._emit(LogRotated(number, first_sequence, closed_bytes))
        return log

    def flush(self, memtable: Memtable, old_log: LogWriter, new_log: LogWriter, last_sequence: int) -> None:
        """Make a frozen memtable a table, and its log superfluous."""
        level = max(self._options.structural_floor, old_log.strongest)
        built = self.build_table(memtable, level, new_log.number)
        edit = replace(built, log_number=new_log.number, last_sequence=last_sequence)
        self._versions.install(edit, level=level, names_changed=True)
        if level >= SyncLevel.FSYNC:
            new_log.names_synced()
        new_log.predecessor_done()
        old_log.close()
        self._world.fs.remove(f"{self._directory}/{log_name(old_log.number)}")
        if not built.added and level >= SyncLevel.FSYNC:
            # No table says that this log is done with: it must not come back, torn, before what the next log holds.
            self._world.fs.sync_dir(self._directory, "flush.log")

    def build_table(self, memtable: Memtable, level: SyncLevel, log_floor: int) -> Edit:
        """Write a memtable to a table and return the edit that adds it; the caller installs it."""
        start_ns = self._world.runtime.now_ns()
        job = FlushJob(self._context(level, log_floor), [memtable])
        job.run()
        table = job.outputs[0] if job.outputs else None
        self._emit(Flushed(table, memtable.entries, job.bytes_written, start_ns, self._world.runtime.now_ns()))
        return job.edit

    def compact_all(self) -> None:
        """Run what the picker asks for until it is content."""
        while (plan := self.pick()) is not None:
            self.run(plan)

    def compact_range(self, start: bytes, stop: bytes | None) -> None:
        """Merge every table that touches [start, stop) as deep as the strategy goes, then what that makes due."""
        plan = manual_plan(self._versions.current, self._options, start, stop)
        if plan is not None:
            self.run(plan)
        self.compact_all()

    def scores(self) -> list[float]:
        """Per level, how urgent a compaction out of it is (1 and above: due)."""
        return self._picker.scores(self._versions.current, self._options)

    def pick(self) -> Plan | None:
        """The picker's next plan for the version in force."""
        state = PickState(
            busy=frozenset(),
            cursors=self._versions.cursors,
            now_s=self._world.runtime.wall_s(),
            snapshots=self._snapshots.held(),
        )
        return self._picker.pick(self._versions.current, state, self._options)

    def run(self, plan: Plan) -> None:
        """Carry one plan out, and install what it made."""
        start_ns = self._world.runtime.now_ns()
        level = self._options.structural_floor
        job = CompactionJob(self._context(level, self._versions.log_number), plan)
        job.run()
        self._versions.install(job.edit, level=level, names_changed=bool(job.outputs) and not plan.trivial_move)
        self._emit(
            Compacted(
                plan.inputs,
                tuple(job.outputs),
                plan.output_level,
                plan.trivial_move,
                plan.reason,
                job.bytes_read,
                job.bytes_written,
                job.entries_read,
                job.entries_written,
                start_ns,
                self._world.runtime.now_ns(),
            )
        )

    def _context(self, level: SyncLevel, log_floor: int) -> JobContext:
        return JobContext(
            fs=self._world.fs,
            directory=self._directory,
            options=self._options,
            tables=self._tables,
            new_file_number=self._versions.new_file_number,
            snapshots=self._snapshots.held(),
            version=self._versions.current,
            sync=level >= SyncLevel.FSYNC,
            now_s=self._world.runtime.wall_s(),
            log_floor=log_floor,
            pending_obsolete=self._versions.pending,
        )
