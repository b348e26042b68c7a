"""Leveled compaction, by RocksDB's rules: which level, which table, what goes along.

    score of level 0     max(tables ÷ trigger, bytes ÷ base bytes)
    score of level n     bytes ÷ target                               the highest score ≥ 1 wins
    table of level n     the least overlap with level n + 1 per byte of its own (`compaction_pri`)
    goes along           all that overlaps it in level n + 1
    nothing overlaps     the table is moved: an edit, and not a byte is read

Tables that other jobs work on (`state.busy`) are left alone; if that blocks level 0, its newest tables
are merged among themselves, so that readers meet fewer of them.

Moves out of level 0. A sequential fill flushes tables that overlap nothing. From the oldest on, each
table of level 0 that overlaps neither an older one that stays, nor another that moves, nor the base
level, goes down unread, many in one edit: the engine's write amplification stays 1.0. Out of deeper
levels, neighbours move along until the level is within its target. Not moved is what would overlap
more than `max_compaction_bytes` of the level after the next: merging it later would cost too much.

Dynamic levels scale scores as RocksDB does: a score above 1 counts tenfold, and a level is compared with its
target *plus* what will come down from above, so that levels that only swell for a moment wait.

Left out: compensation of sizes for deletes, TTL and periodic compactions, files marked by read seeks,
subcompactions, the round-robin expansion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lsm.key_ranges import KeyRanges
from lsm.picking.plan import PickState, Plan, fits_level0, hull, levels_at, overlapping, sizes_of, total_bytes
from lsm.picking.targets import Targets, level_targets, max_compaction_bytes, target_file_size
from lsm.version import TableMeta, Version

if TYPE_CHECKING:
    from lsm.options import Options

Tables = tuple[TableMeta, ...]
SCALE = 10.0  # of scores above 1 under dynamic level bytes
INTRA_LEVEL0_MIN = 4  # tables that make a merge within level 0 worth while


class LeveledPicker:
    """See the head of this module."""

    def pick(self, version: Version, state: PickState, options: Options) -> Plan | None:
        """The most urgent compaction."""
        targets = level_targets(version, options)
        scores = level_scores(version, options, targets, state.busy)
        for level in sorted(range(len(scores)), key=lambda level: (-scores[level], level)):
            if scores[level] < 1:
                return None
            choose = _from_level0 if level == 0 else _from_level
            plan = choose(_Case(version, state, options, targets, level, scores[level]))
            if plan is not None:
                return plan
        return None

    def scores(self, version: Version, options: Options) -> list[float]:
        """RocksDB's scores; the last level has none."""
        return level_scores(version, options, level_targets(version, options), frozenset())


def level_scores(version: Version, options: Options, targets: Targets, busy: frozenset[int]) -> list[float]:
    """Per level, how urgent a compaction out of it is; after `ComputeCompactionScore`."""
    sizes = sizes_of(version, options)
    working = [0] * len(sizes)
    for level, table in version.tables() if busy else ():
        working[level] += table.size_bytes if table.number in busy else 0
    idle_tables = sum(table.number not in busy for table in version.levels[0])
    scores = [_level0_score(idle_tables, sizes[0] - working[0], sizes[targets.base_level], options, targets)]
    coming_down = sizes[0]
    for level in range(1, len(sizes) - 1):
        size, limit = sizes[level] - working[level], targets.limits[level]
        score = size / limit
        if options.level_compaction_dynamic_level_bytes:
            if size >= limit:
                score = size / (limit + coming_down) * SCALE
            if size and level <= targets.drained:
                score = max(score, SCALE * (1.001 + 0.001 * (targets.drained - level)))
        scores.append(score)
        coming_down += max(0, sizes[level] - limit)
    return [*scores, 0.0]


def _level0_score(tables: int, size: int, base_size: int, options: Options, targets: Targets) -> float:
    """From the idle `tables` of level 0, their bytes, and the bytes of the base level."""
    score = tables / options.level0_file_num_compaction_trigger
    if not options.level_compaction_dynamic_level_bytes:
        return max(score, size / options.max_bytes_for_level_base)
    if size >= options.max_bytes_for_level_base:
        score = max(score, 1.01)
    limit = targets.limits[targets.base_level]
    if size > limit:
        score = max(score, size / max(base_size, limit))
    return score * SCALE if score > 1 else score


class _Case:
    """One level's turn: what the choosing functions share."""

    def __init__(
        self, version: Version, state: PickState, options: Options, targets: Targets, level: int, score: float
    ) -> None:
        self.version = version
        self.state = state
        self.options = options
        self.targets = targets
        self.level = level
        self.score = score
        self.output = targets.base_level if level == 0 else level + 1
        self.budget = max_compaction_bytes(options)

    def idle(self, tables: Iterable[TableMeta]) -> bool:
        return not any(table.number in self.state.busy for table in tables)

    def below(self, start: bytes, end: bytes) -> Tables:
        """What of the output level shares a key with [start, end)."""
        return overlapping(self.version, self.output, start, end)

    def movable(self, table: TableMeta) -> bool:
        """Whether it meets nothing in the output level, and not too much in the one after."""
        grandparents = overlapping(self.version, self.output + 1, table.start, table.end)
        cheap = table.size_bytes + total_bytes(grandparents) <= self.budget or not grandparents
        return cheap and not self.below(table.start, table.end)

    def move(self, tables: Sequence[TableMeta], reason: str) -> Plan:
        inputs = tuple((self.level, table) for table in tables)
        cursor = self.cursor(max(table.end for table in tables))
        return Plan("leveled", inputs, self.output, True, reason, self.score, next_cursor=cursor)

    def merge(self, upper: Sequence[TableMeta], lower: Sequence[TableMeta], reason: str) -> Plan:
        start, end = hull([*upper, *lower])
        return Plan(
            "leveled",
            tuple((self.level, table) for table in upper) + tuple((self.output, table) for table in lower),
            self.output,
            reason=reason,
            score=self.score,
            target_file_size=target_file_size(self.output, self.targets.base_level, self.options),
            grandparents=overlapping(self.version, self.output + 1, start, end),
            max_overlap_bytes=self.budget,
            next_cursor=self.cursor(max(table.end for table in upper)),
        )

    def cursor(self, end: bytes) -> tuple[int, bytes] | None:
        """Where the level's next round-robin compaction starts."""
        robin = self.level > 0 and self.options.compaction_pri == "round_robin"
        return (self.level, end) if robin else None


def _from_level0(case: _Case) -> Plan | None:
    """Moves if there are any, else the oldest idle table and all that overlaps it; else within level 0."""
    runs = case.version.levels[0]
    moving = _movable_from_level0(case)
    if moving:
        return case.move(moving, f"{len(runs)} tables in level 0; {len(moving)} of them overlap nothing")
    upper = _closure(runs, runs[-1])
    lower = case.below(*hull(upper))
    if case.idle([*upper, *lower]):
        return case.merge(upper, lower, f"{len(runs)} tables in level 0, {total_bytes(runs)} bytes")
    return _within_level0(case)


def _movable_from_level0(case: _Case) -> list[TableMeta]:
    """From the oldest on, tables that meet neither each other, nor an older one that stays, nor the base level."""
    moving: list[TableMeta] = []
    met: list[tuple[bytes, bytes]] = []
    for table in reversed(case.version.levels[0]):
        free = case.idle([table]) and not KeyRanges.of(met).overlaps(table.start, table.end)
        if free and case.movable(table):
            moving.append(table)
        met.append((table.start, table.end))
    return moving[::-1]


def _closure(runs: Tables, seed: TableMeta) -> list[TableMeta]:
    """The tables of level 0 that overlap `seed`, or overlap what overlaps it, and so on; newest first."""
    start, end = seed.start, seed.end
    while True:
        chosen = [table for table in runs if table.overlaps(start, end)]
        wider = hull(chosen)
        if wider == (start, end):
            return chosen
        start, end = wider


def _within_level0(case: _Case) -> Plan | None:
    """Level 0 is blocked: merge its newest tables, as long as that gets cheaper per table that goes away."""
    runs = case.version.levels[0]
    if len(runs) < case.options.level0_file_num_compaction_trigger + 2 or not case.idle(runs[:1]):
        return None
    size, per_table, width = runs[0].size_bytes, case.budget, 1
    for table in runs[1:]:
        size += table.size_bytes
        if not case.idle([table]) or size // width > per_table or size > case.budget:
            break
        per_table = size // width
        width += 1
    chosen = runs[:width]
    if width < INTRA_LEVEL0_MIN or not fits_level0(case.version, list(chosen)):
        return None
    reason = f"level 0 is blocked by other jobs; its {width} newest tables"
    return Plan("intra_level0", tuple((0, table) for table in chosen), 0, reason=reason, score=case.score)


def _from_level(case: _Case) -> Plan | None:
    """The level's first table, in the order of `compaction_pri`, that is free together with what it meets."""
    for table, why in _candidates(case):
        upper: Sequence[TableMeta] = (table,)
        lower = case.below(table.start, table.end)
        if case.idle([*upper, *lower]):
            if case.movable(table):
                return case.move(
                    _neighbours_to_move(case, table), f"{_state_of(case)}; {table.number} overlaps nothing"
                )
            return case.merge(_widened(case, upper, lower), lower, f"{_state_of(case)}; {table.number} {why}")
    return None


def _state_of(case: _Case) -> str:
    """Why the level is due, in words."""
    size, limit = case.version.sizes[case.level], case.targets.limits[case.level]
    surplus = case.level <= case.targets.drained
    return f"level {case.level} is superfluous" if surplus else f"level {case.level} holds {size} bytes of {limit}"


def _candidates(case: _Case) -> Iterator[tuple[TableMeta, str]]:
    """The idle tables of the level, most eligible first, each with the reason in words."""
    tables = [table for table in case.version.levels[case.level] if table.number not in case.state.busy]
    match case.options.compaction_pri:
        case "round_robin":
            cursor = case.state.cursors.get(case.level, b"")
            ahead = [table for table in tables if table.start >= cursor]
            passed = [table for table in tables if table.start < cursor]
            return ((table, f"is the next from {cursor!r}") for table in ahead + passed)
        case "oldest_first":
            return (
                (table, "has the oldest data")
                for table in sorted(tables, key=lambda table: (table.seq_max, table.number))
            )
        case "largest_first":
            return (
                (table, "is the largest")
                for table in sorted(tables, key=lambda table: (-table.size_bytes, table.number))
            )
        case _:
            met = _overlap_bytes(tables, levels_at(case.version, case.output))
            order = sorted(range(len(tables)), key=lambda i: met[i] * 1024 // max(tables[i].size_bytes, 1))
            return (
                (tables[i], f"meets the least: {met[i]} bytes with {tables[i].size_bytes} of its own") for i in order
            )


def _overlap_bytes(tables: Sequence[TableMeta], below: Tables) -> list[int]:
    """For each table of a level, the bytes that it meets in the next: one walk along both."""
    met = []
    first = 0
    for table in tables:
        start, end = table.start, table.end
        while first < len(below) and below[first].end <= start:
            first += 1
        size, i = 0, first
        while i < len(below) and below[i].start < end:
            size += below[i].size_bytes
            i += 1
        met.append(size)
    return met


def _neighbours_to_move(case: _Case, table: TableMeta) -> list[TableMeta]:
    """`table` and those after it that can be moved as well, until the level is within its target."""
    level = case.version.levels[case.level]
    excess = total_bytes(level) - case.targets.limits[case.level]
    if case.level <= case.targets.drained:
        excess = total_bytes(level)
    moving = [table]
    for neighbour in level[level.index(table) + 1 :]:
        if total_bytes(moving) >= excess or not (case.idle([neighbour]) and case.movable(neighbour)):
            break
        moving.append(neighbour)
    return moving


def _widened(case: _Case, upper: Sequence[TableMeta], lower: Tables) -> Sequence[TableMeta]:
    """More of the upper level, if that brings no more of the lower one along and stays within the budget."""
    wider = overlapping(case.version, case.level, *hull([*upper, *lower]))
    affordable = total_bytes(wider) + total_bytes(lower) <= case.budget
    return wider if affordable and case.idle(wider) and case.below(*hull(wider)) == lower else upper
