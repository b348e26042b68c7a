"""Size-tiered compaction: merge neighbouring runs of like size.

    level 0, newest first     1  1  1  1 │ 4  4  4 │ 16
    merge the four 1s         4 │ 4  4  4 │ 16
    merge the four 4s         16 │ 16

Every sorted run is one table of level 0. A merge takes runs that are *neighbours in recency*: recency is
kept per table, so a merged table that skipped one in between would be both newer and older than it.

Rules, in this order:
1. A window of neighbours whose largest is at most `tiered_size_ratio` × their smallest, between
   `tiered_min_merge_width` and `tiered_max_merge_width` wide: the widest, then the smallest in bytes,
   then the newest.
2. More runs than `tiered_max_merge_width`: the `tiered_min_merge_width` neighbours that are smallest in
   bytes, whatever their ratio. Without this rule, runs of alternating size would pile up for ever.

The output is one table of level 0, as old as its inputs. Its tombstones go only when no older run (and
no deeper level, should the store once have been leveled) overlaps them.

Left out: tables of deeper levels are never touched by `pick`, only by a manual compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lsm.picking.plan import PickState, Plan, fits_level0, total_bytes
from lsm.version import TableMeta, Version

if TYPE_CHECKING:
    from lsm.options import Options

Runs = tuple[TableMeta, ...]


class TieredPicker:
    """See the head of this module."""

    def pick(self, version: Version, state: PickState, options: Options) -> Plan | None:
        """The widest window of like-sized neighbours."""
        runs = version.levels[0]
        alike = [window for window in _alike(runs, options) if _allowed(version, window, state)]
        if alike:
            chosen = min(alike, key=lambda window: (-len(window), total_bytes(window)))
            sizes = [table.size_bytes for table in chosen]
            reason = f"{len(chosen)} neighbours of like size, {min(sizes)} to {max(sizes)} bytes"
        elif len(runs) > options.tiered_max_merge_width:
            width = options.tiered_min_merge_width
            windows = [runs[i : i + width] for i in range(len(runs) - width + 1)]
            allowed = [window for window in windows if _allowed(version, window, state)]
            if not allowed:
                return None
            chosen = min(allowed, key=total_bytes)
            reason = f"{len(runs)} runs, more than {options.tiered_max_merge_width}"
        else:
            return None
        inputs = tuple((0, table) for table in chosen)
        return Plan("tiered", inputs, 0, reason=reason, score=self.scores(version, options)[0])

    def scores(self, version: Version, options: Options) -> list[float]:
        """Level 0: the widest window ÷ the width that makes a merge, or runs ÷ the most that may be."""
        runs = version.levels[0]
        widest = max((_reach(runs, i, options) for i in range(len(runs))), default=0)
        due = widest / options.tiered_min_merge_width
        if len(runs) > options.tiered_max_merge_width:
            due = max(due, len(runs) / options.tiered_max_merge_width)
        return [due, *[0.0] * (max(len(version.levels), options.num_levels) - 1)]


def _reach(runs: Runs, first: int, options: Options) -> int:
    """How many runs from `first` on are alike."""
    least = most = runs[first].size_bytes
    width = 0
    for table in runs[first : first + options.tiered_max_merge_width]:
        least, most = min(least, table.size_bytes), max(most, table.size_bytes)
        if most > options.tiered_size_ratio * least:
            break
        width += 1
    return width


def _alike(runs: Runs, options: Options) -> Iterator[Runs]:
    """For each first run, the widest window, if it is wide enough; newest first."""
    for first in range(len(runs)):
        width = _reach(runs, first, options)
        if width >= options.tiered_min_merge_width:
            yield runs[first : first + width]


def _allowed(version: Version, window: Runs, state: PickState) -> bool:
    idle = not any(table.number in state.busy for table in window)
    return idle and fits_level0(version, list(window))
