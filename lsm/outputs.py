"""Writing what a job keeps: one stream of windows in, tables that tile the key space out.

    stream        a b c d │ e f g h │ k l m │
    grandparents  [────) [────) [──────) [───)        one level below the outputs
    tiles         [b""───────e)[e────────k)[k───────∞)
    range delete        [c─────────────────l)         clipped to the tiles: [c, e) [e, k) [k, l)

Where outputs are cut:
a. before they overlap too much of the level below: a later compaction would have to rewrite all of it;
b. where a table of the level below begins, once they have `ALIGN_FROM` of their target size. Then tables of
   two levels end at the same keys, and a compaction rewrites less that it only touches: a fifth less in all
   for random writes, as in RocksDB, which may let a file grow to twice its target for it;
c. at their target size; at twice that while a table of the level below is still to come.

Invariants:
1. All versions of a key are in one output: a cut lies between two keys.
2. Each output lies inside its tile, range deletes included; tiles do not overlap and leave nothing out. So
   outputs never overlap, and no range delete is lost or widened.
3. With neither target nor grandparents there is one tile.
4. An output without entries and range deletes is not written.
5. Outputs name the job by its first output's number; the last one names them all, so that repair can tell
   a finished job from one that was cut off. An output is therefore finished when the next one begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsm.filenames import table_name
from lsm.merge import part_of
from lsm.tables import create_builder

if TYPE_CHECKING:
    from lsm.cache import TableCache
    from lsm.entry import Columns
    from lsm.options import Options
    from lsm.rangedel import RangeDeletes
    from lsm.tables import TableBuilder
    from lsm.version import TableMeta, Version
    from simfs.api import Filesystem

ALIGN_FROM = 0.7  # of the target size; lower aligns more, and makes more and smaller tables
SAMPLE = 16  # entries looked at to guess how many fit


@dataclass(frozen=True)
class JobContext:
    """What a flush or compaction is run in."""

    fs: Filesystem
    directory: str
    options: Options
    tables: TableCache
    new_file_number: Callable[[], int]
    snapshots: tuple[int, ...]  # sequences of live snapshots, ascending
    version: Version  # in force when the job was decided
    sync: bool  # whether each output is synced
    now_s: int
    log_floor: int  # stored in each output: logs below are in tables
    pending_obsolete: tuple[int, ...]  # tables replaced earlier whose files may still be there


class OutputWriter:
    """See the head of this module. `outputs` are finished; `abandon` removes all that was written."""

    def __init__(
        self,
        context: JobContext,
        deletes: RangeDeletes,
        *,
        obsoletes: tuple[int, ...] = (),
        sequences: tuple[int, int] | None = None,
        target_bytes: int = 0,
        grandparents: Sequence[TableMeta] = (),
        max_overlap_bytes: int = 0,
    ) -> None:
        self.outputs: list[TableMeta] = []
        self._context = context
        self._deletes = deletes
        self._sequences = sequences  # to widen each output's sequence bounds to
        self._obsoletes = tuple(sorted({*obsoletes, *context.pending_obsolete}))
        self._target_bytes = target_bytes
        self._grandparents = grandparents if max_overlap_bytes else ()
        self._max_overlap_bytes = max_overlap_bytes
        self._builder: TableBuilder | None = None
        self._closing: TableBuilder | None = None  # whose tile has ended
        self._numbers: list[int] = []
        self._tile_start = b""
        self._entered = 0  # grandparents whose start the stream has passed
        self._overlap_bytes = 0  # of grandparents met since the last cut

    @property
    def bytes_written(self) -> int:
        """File bytes of the finished outputs."""
        return sum(table.size_bytes for table in self.outputs)

    def add(self, window: Columns) -> None:
        """The next entries, in order; all versions of a key in one window."""
        keys = window.keys
        lo = 0
        while keys and self._entered < len(self._grandparents):
            start = self._grandparents[self._entered].start
            if start > keys[-1]:
                break
            hi = bisect_left(keys, start, lo)
            self._add_sized(window, lo, hi)
            lo = hi
            self._enter_grandparent()
        self._add_sized(window, lo, len(keys))

    def finish(self) -> None:
        """Close the last output; range deletes beyond the last entry are cut like the rest."""
        while self._entered < len(self._grandparents):
            self._enter_grandparent()
        self._cut(None)
        self._settle(tuple(self._numbers))

    def abandon(self) -> None:
        """Remove everything that was written, as far as the disk lets us."""
        for builder in (self._builder, self._closing):
            if builder is not None:
                with suppress(OSError):
                    builder.abandon()
        for table in self.outputs:
            with suppress(OSError):
                self._context.fs.remove(f"{self._context.directory}/{table_name(table.number)}")
        self._builder = self._closing = None
        self.outputs = []

    def _enter_grandparent(self) -> None:
        """The stream reaches the next grandparent: cut before it if that would be too many, or fits well."""
        grandparent = self._grandparents[self._entered]
        empty = self._builder is None and self._deletes.clip(self._tile_start, grandparent.start).is_empty
        if empty:
            self._overlap_bytes = 0
        elif self._overlap_bytes + grandparent.size_bytes > self._max_overlap_bytes or self._nearly_full():
            self._cut(grandparent.start)
        self._overlap_bytes += grandparent.size_bytes
        self._entered += 1

    def _add_sized(self, window: Columns, lo: int, hi: int) -> None:
        """Entries [lo, hi), cut where the target size is reached."""
        keys = window.keys
        while lo < hi:
            if self._builder is not None and self._room() <= 0:
                self._cut(keys[lo])
                self._overlap_bytes = self._current_overlap(keys[lo])
            builder = self._builder or self._open()
            end = hi
            if self._target_bytes:
                end = min(hi, lo + max(1, self._room() // _entry_bytes(window, lo, hi)))
                end = bisect_right(keys, keys[end - 1], end, hi)
            builder.add(part_of(window, lo, end))
            lo = end

    def _nearly_full(self) -> bool:
        size = 0 if self._builder is None else self._builder.size_estimate
        return 0 < ALIGN_FROM * self._target_bytes <= size

    def _room(self) -> int:
        """Bytes until the output is full."""
        if not self._target_bytes:
            return 1
        limit = self._target_bytes * (2 if self._entered < len(self._grandparents) else 1)
        return limit - (0 if self._builder is None else self._builder.size_estimate)

    def _current_overlap(self, key: bytes) -> int:
        """Bytes of the grandparent that holds `key`, where a new output begins."""
        latest = self._grandparents[self._entered - 1] if self._entered else None
        return latest.size_bytes if latest is not None and latest.end > key else 0

    def _open(self) -> TableBuilder:
        self._settle(())
        context = self._context
        number = context.new_file_number()
        self._numbers.append(number)
        self._builder = create_builder(
            context.fs,
            f"{context.directory}/{table_name(number)}",
            number,
            context.options,
            log_floor=context.log_floor,
            obsoletes=self._obsoletes,
            created_s=context.now_s,
            job=self._numbers[0],
        )
        return self._builder

    def _cut(self, key: bytes | None) -> None:
        """End the tile before `key` (None: the last one)."""
        deletes = self._deletes.clip(self._tile_start, key).rows()
        if self._builder is not None or deletes:
            builder = self._builder or self._open()
            if deletes:
                builder.add_range_deletes(deletes)
            self._closing, self._builder = builder, None
        self._tile_start = key or b""
        self._overlap_bytes = 0

    def _settle(self, siblings: tuple[int, ...]) -> None:
        """Finish the output whose tile has ended."""
        if self._closing is not None:
            finished = self._closing.finish(self._context.sync, sequences=self._sequences, siblings=siblings)
            self.outputs.append(finished)
            self._closing = None


def _entry_bytes(window: Columns, lo: int, hi: int) -> int:
    """What one of the entries [lo, hi) takes, from a sample of them; at least 1."""
    step = max(1, (hi - lo) // SAMPLE)
    keys, values = window.keys[lo:hi:step], window.values[lo:hi:step]
    return max(1, (sum(map(len, keys)) + sum(map(len, values))) // len(keys))
