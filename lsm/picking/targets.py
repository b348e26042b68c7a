"""How large each level may grow, and which level is the base: static and dynamic level bytes.

    static     L1 = base, L2 = base × 10, L3 = base × 100 …                 level 0 goes to L1
    dynamic    last = its size, above it ÷ 10, ÷ 100 … down to the base     level 0 goes to the base level

Static targets waste space: with a last level that is hardly fuller than the one above, half of the data
may be old versions. Dynamic targets start from the largest level and divide upwards, so the levels above
hold about a ninth of the last one. Levels above the base level are empty: a small store is level 0 and
the last level.

After RocksDB's `VersionStorageInfo::CalculateBaseBytes` (9.x), with its rounding (integers, truncated).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsm.picking.plan import sizes_of

if TYPE_CHECKING:
    from lsm.options import Options
    from lsm.version import Version

NO_LIMIT = (1 << 64) - 1


@dataclass(frozen=True)
class Targets:
    """`limits[n]`: the bytes that level n may hold (`NO_LIMIT`: never a reason to compact)."""

    base_level: int  # where level 0 is compacted to
    limits: tuple[int, ...]
    drained: int = 0  # levels 1 up to this one are superfluous and are emptied downwards; 0: none


def level_targets(version: Version, options: Options) -> Targets:
    """The targets for a version."""
    sizes = sizes_of(version, options)
    if options.level_compaction_dynamic_level_bytes:
        return _dynamic(sizes, options)
    limits = [NO_LIMIT, options.max_bytes_for_level_base]
    while len(limits) < len(sizes):
        limits.append(min(int(limits[-1] * options.max_bytes_for_level_multiplier), NO_LIMIT))
    return Targets(1, tuple(limits))


def _dynamic(sizes: tuple[int, ...], options: Options) -> Targets:
    last = len(sizes) - 1
    largest = max(sizes[1:])
    if not largest:
        return Targets(last, (NO_LIMIT,) * len(sizes))
    first = next(level for level in range(1, len(sizes)) if sizes[level])
    multiplier = options.max_bytes_for_level_multiplier
    most = options.max_bytes_for_level_base
    least = int(most / multiplier)
    # If the last level's target were its size, what would that of the first non-empty one be?
    size, drained = largest, 0
    for level in range(last - 1, first - 1, -1):
        size = int(size / multiplier)
        if size <= least and not drained:
            drained = level
    base = first
    if size <= least:  # more levels than the data needs
        size = least + 1
    else:
        while base > 1 and size > most:
            base -= 1
            size = int(size / multiplier)
        size = min(max(size, 1), most)
    limits = [NO_LIMIT] * base
    for _ in range(base, len(sizes)):
        # No level below base bytes: in an hourglass, level 0 would starve behind the levels under it.
        limits.append(max(size, most))
        size = min(int(size * multiplier), NO_LIMIT)
    return Targets(base, tuple(limits), drained)


def target_file_size(level: int, base_level: int, options: Options) -> int:
    """The size at which an output of a level is closed, in bytes."""
    return int(options.target_file_size_base * options.target_file_size_multiplier ** max(0, level - base_level))


def max_compaction_bytes(options: Options) -> int:
    """The option, or its default of 25 files."""
    return options.max_compaction_bytes or 25 * options.target_file_size_base
