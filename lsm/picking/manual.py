"""The plan behind `DB.compact`: everything that touches a key range, merged once into one place.

    leveled     level 0 … last level  ─▶  last level          every table on the way goes along
    tiered      all runs              ─▶  one run of level 0

One merge instead of one per level writes each byte once; it needs as much free space as its inputs
take. What only old snapshots needed is dropped even if every table is in place already, so the merge is
done in any case; with `force=False`, tables that overlap nothing are moved, and those in place stay.

The range is widened until it cuts no table; so nothing that stays shares a key with the output.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lsm.picking.plan import Plan, hull, levels_of, overlapping
from lsm.picking.targets import level_targets, max_compaction_bytes, target_file_size

if TYPE_CHECKING:
    from lsm.options import Options
    from lsm.version import TableMeta, Version

Placed = tuple[tuple[int, "TableMeta"], ...]


def manual_plan(
    version: Version, options: Options, start: bytes = b"", stop: bytes | None = None, *, force: bool = True
) -> Plan | None:
    """One plan that brings the keys of [start, stop) together; None if there is nothing to do.

    The output level is level 0 for the strategies "tiered" and "none", else the last one (static level bytes: the
    deepest that is not empty).
    """
    touched = [table for _, table in version.tables() if table.overlaps(start, stop)]
    if not touched:
        return None
    into_level0 = options.strategy in ("tiered", "none")
    inputs = _widen(version, *hull(touched))
    reason = f"asked for, from {start!r} to {'the end' if stop is None else repr(stop)}"
    if into_level0:
        return None if len(inputs) == 1 and not force else Plan("manual", inputs, 0, reason=reason)
    levels = levels_of(version, options)
    dynamic = options.level_compaction_dynamic_level_bytes
    deepest = max((level for level in range(1, len(levels)) if levels[level]), default=1)
    output = len(levels) - 1 if dynamic else deepest
    if not force and _meets_nothing(inputs):
        moving = tuple((level, table) for level, table in inputs if level != output)
        return Plan("manual", moving, output, True, reason) if moving else None
    return Plan(
        "manual",
        inputs,
        output,
        reason=reason,
        target_file_size=target_file_size(output, level_targets(version, options).base_level, options),
        grandparents=overlapping(version, output + 1, *hull([table for _, table in inputs])),
        max_overlap_bytes=max_compaction_bytes(options),
    )


def _widen(version: Version, start: bytes, end: bytes) -> Placed:
    """All tables that overlap [start, end), and what they overlap, until nothing more comes along."""
    while True:
        inputs = tuple((level, table) for level, table in version.tables() if table.overlaps(start, end))
        wider = hull([table for _, table in inputs])
        if wider == (start, end):
            return inputs
        start, end = wider


def _meets_nothing(inputs: Placed) -> bool:
    """Whether no input shares a key with another, and none has a tombstone to get rid of."""
    pieces = sorted((table.start, table.end) for _, table in inputs)
    apart = all(left[1] <= right[0] for left, right in pairwise(pieces))
    return apart and not any(table.deletes or table.range_deletes for _, table in inputs)
