"""Flush and compaction jobs: read, merge, drop, write, and say what has changed.

    inputs ─▶ merge_windows ─▶ collect ─▶ OutputWriter ─▶ Edit
              all versions     garbage     tables that
              in order         dropped     tile the keys

A job is an iterator: `for window in job:` does one window of blocking work a step, so that a driver may
run it to its end, in slices between other work, or beside it. After the last step `edit` says what has
changed. The job changes no version and removes no input: whoever drives it installs the edit.

Invariants:
1. For each key and each live snapshot, and for the present, what a reader sees is the same before and after.
2. A tombstone is dropped only if no table outside the job that may be older overlaps its key
   (`picking.plan.older_tables`, for a flush all tables), and no snapshot sees what it hides.
3. Outputs carry the numbers of the tables that they replace, for repair without a manifest.
4. An output of level 0 has the hull of its inputs' sequences, so it sorts where they stood.
5. A trivial move reads and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from lsm.garbage import collect
from lsm.key_ranges import KeyRanges
from lsm.merge import chosen, merge_windows
from lsm.outputs import JobContext, OutputWriter
from lsm.picking.plan import Plan, check_plan, older_tables
from lsm.rangedel import RangeDeletes, fragment
from lsm.version import Edit, TableMeta

if TYPE_CHECKING:
    from lsm.entry import Columns, RangeDelete
    from lsm.memtable import Memtable

__all__ = ["CompactionJob", "FlushJob", "JobContext", "merge_tables"]


class _Job:
    """What flush and compaction share. Iterate it once; then read `edit`, `outputs` and the counts."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.edit = Edit()
        self.outputs: list[TableMeta] = []
        self.bytes_read = 0
        self.bytes_written = 0
        self.entries_read = 0
        self.entries_written = 0
        self._writer: OutputWriter | None = None
        self._started = False

    def __iter__(self) -> Iterator[int]:
        """Do the work, and yield the number of entries read after each window of it."""
        assert not self._started, "a job runs once"
        self._started = True
        yield from self._run()

    def _run(self) -> Iterator[int]:
        raise NotImplementedError

    def _merge(self, sources: Sequence[Iterator[Columns]], deletes: RangeDeletes, older: KeyRanges) -> Iterator[int]:
        """Sources, newest first, through garbage collection into `_writer`."""
        writer = self._writer
        assert writer is not None
        for window in merge_windows(sources, settle=False):
            kept = collect(window, deletes, self.context.snapshots, older)
            writer.add(kept)
            self.entries_read += len(window.keys)
            self.entries_written += len(kept.keys)
            yield len(window.keys)
        writer.finish()
        self.outputs = writer.outputs
        self.bytes_written = writer.bytes_written

    def run(self) -> None:
        """To the end, inline. A job that fails takes its unfinished tables away: no edit knows them."""
        try:
            for _window in self:
                pass
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Remove what an interrupted job has written, as far as the disk lets us."""
        if self._writer is not None:
            self._writer.abandon()
        self.outputs = []


class FlushJob(_Job):
    """Memtables, oldest first, become one table of level 0, or none if nothing of them is left.

    They must be the oldest that are not in tables yet: a tombstone is dropped if no table overlaps it.
    The edit moves the log number to `context.log_floor`.
    """

    def __init__(self, context: JobContext, memtables: Sequence[Memtable]) -> None:
        super().__init__(context)
        self._memtables = memtables

    def _run(self) -> Iterator[int]:
        context = self.context
        older = KeyRanges.of((table.start, table.end) for _, table in context.version.tables())
        deletes = fragment(chain.from_iterable(memtable.range_deletes for memtable in self._memtables))
        self._writer = OutputWriter(context, deletes.thinned(context.snapshots, older))
        sources = [iter((memtable.columns(),)) for memtable in reversed(self._memtables)]
        yield from self._merge(sources, deletes, older)
        self.edit = Edit(added=tuple((0, table) for table in self.outputs), log_number=context.log_floor)


class CompactionJob(_Job):
    """Carries out a plan. Raises `AssertionError` at once if the plan is not safe."""

    def __init__(self, context: JobContext, plan: Plan) -> None:
        super().__init__(context)
        check_plan(context.version, plan)
        self.plan = plan

    def _run(self) -> Iterator[int]:
        plan = self.plan
        if plan.trivial_move:
            self.outputs = [table for _, table in plan.inputs]
        else:
            yield from self._rewrite()
        self.edit = Edit(
            added=tuple((plan.output_level, table) for table in self.outputs),
            removed=tuple((level, table.number) for level, table in plan.inputs),
            cursors=() if plan.next_cursor is None else (plan.next_cursor,),
        )

    def _rewrite(self) -> Iterator[int]:
        context, plan = self.context, self.plan
        older = KeyRanges.of((table.start, table.end) for table in older_tables(context.version, plan))
        deletes = fragment(_range_deletes(context, [table for _, table in plan.inputs]))
        self._writer = OutputWriter(
            context,
            deletes.thinned(context.snapshots, older),
            obsoletes=tuple(table.number for _, table in plan.inputs),
            sequences=_sequence_hull([table for _, table in plan.inputs]) if plan.output_level == 0 else None,
            target_bytes=plan.target_file_size,
            grandparents=plan.grandparents,
            max_overlap_bytes=plan.max_overlap_bytes,
        )
        yield from self._merge([_entries(context, run) for run in _runs(plan)], deletes, older)
        self.bytes_read = plan.input_bytes


def merge_tables(context: JobContext, tables: Sequence[TableMeta]) -> TableMeta:
    """One table of level 0 with every version that `tables` hold: nothing is dropped but exact twins.

    For repair, which does not know what of them belongs together. Newest first is faster, not required.
    """
    deletes = fragment(_range_deletes(context, tables))
    numbers = tuple(table.number for table in tables)
    writer = OutputWriter(context, deletes, obsoletes=numbers, sequences=_sequence_hull(tables))
    try:
        for window in merge_windows([_entries(context, [table]) for table in tables]):
            writer.add(_without_twins(window))
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return writer.outputs[0]


def _runs(plan: Plan) -> Iterator[list[TableMeta]]:
    """The inputs as sorted runs, newest first: each table of level 0, each deeper level."""
    for level in sorted({level for level, _ in plan.inputs}):
        tables = [table for at, table in plan.inputs if at == level]
        if level == 0:
            yield from ([table] for table in sorted(tables, key=lambda table: -table.seq_max))
        else:
            yield sorted(tables, key=lambda table: table.start)


def _entries(context: JobContext, run: Sequence[TableMeta]) -> Iterator[Columns]:
    """The blocks of a sorted run, past the block cache."""
    for table in run:
        yield from context.tables.get(table).blocks(b"", None, fill_cache=False)


def _range_deletes(context: JobContext, tables: Sequence[TableMeta]) -> Iterator[RangeDelete]:
    for table in tables:
        if table.range_deletes:
            yield from context.tables.get(table).range_deletes


def _sequence_hull(tables: Sequence[TableMeta]) -> tuple[int, int]:
    """The sequence bounds of all of them."""
    return min(table.seq_min for table in tables), max(table.seq_max for table in tables)


def _without_twins(window: Columns) -> Columns:
    """A window in which each (key, tag) is there once."""
    rows = list(zip(window.keys, window.tags, strict=True))
    keep = [i == 0 or rows[i] != rows[i - 1] for i in range(len(rows))]
    return window if all(keep) else chosen(window, keep)
