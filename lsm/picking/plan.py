"""What a picker decides, and what it may know: `Plan`, `PickState`, the `Picker` protocol.

    plan = picker.pick(version, state, options)        decide    (pure: no I/O, no clock, no lock)
    edit = run(plan)                                   do        (`lsm.compact`)
    version = apply(version, edit)                     apply     (`lsm.version`)

A picker is a pure function of the frozen version, so the same one drives a store on a disk, a store in
a simulated machine, a planner without any tables, and your own experiment.

`check_plan` asserts what makes a plan safe, whoever made it. With the inputs' tables written as one
sorted run at the output level, nothing that is newer may come to lie under something older:

1. The inputs are in the version, at the levels named, each once, and the output level is no shallower than
   them all (or is level 0).
2. A table that goes down passes no older one: nothing at the levels in between, and no older table of
   level 0, shares a key with it.
3. Outputs of a deeper level lie in the gaps between the tables that stay there.
4. An output of level 0 keeps recency contiguous: the hull of its sequences is disjoint from that of each
   table that stays there and shares a key with it.

`TableMeta.start` and `.end` include range deletes, so these hold for what a table hides as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lsm.version import TableMeta, Version

if TYPE_CHECKING:
    from lsm.options import Options


@dataclass(frozen=True)
class Plan:
    """One compaction: which tables, where to, and how the outputs are cut."""

    kind: str  # "leveled", "intra_level0", "tiered", "manual", or a picker's own word
    inputs: tuple[tuple[int, TableMeta], ...]  # (level, table), newest first: level 0 in its order, then by key
    output_level: int
    trivial_move: bool = False  # the edit only: no input shares a key with anything it meets
    reason: str = ""  # for people: why this one
    score: float = 0.0
    target_file_size: int = 0  # an output is closed at this size; 0: one output
    grandparents: tuple[TableMeta, ...] = ()  # tables one below the output level, by key
    max_overlap_bytes: int = 0  # an output is closed before it overlaps more of them; 0: no bound
    next_cursor: tuple[int, bytes] | None = None  # (level, where its next round-robin compaction starts)

    @property
    def input_bytes(self) -> int:
        """File bytes of the inputs."""
        return sum(table.size_bytes for _, table in self.inputs)


@dataclass(frozen=True)
class PickState:
    """What a picker must know besides the version."""

    busy: frozenset[int] = frozenset()  # numbers of the tables that other jobs are working on
    cursors: Mapping[int, bytes] = field(default_factory=dict)  # level → key
    now_s: int = 0
    snapshots: tuple[int, ...] = ()  # live ones, ascending


class Picker(Protocol):
    """A compaction strategy. Deterministic: equal arguments, equal answers."""

    def pick(self, version: Version, state: PickState, options: Options) -> Plan | None:
        """The most urgent compaction, or None if the tree is in shape."""
        ...

    def scores(self, version: Version, options: Options) -> list[float]:
        """Per level, how urgent a compaction out of it is; 1 and above is due."""
        ...


def levels_at(version: Version, level: int) -> tuple[TableMeta, ...]:
    """The tables of a level, which the version need not have."""
    return version.levels[level] if level < len(version.levels) else ()


def levels_of(version: Version, options: Options) -> tuple[tuple[TableMeta, ...], ...]:
    """The version's levels, with empty ones up to `options.num_levels`."""
    return version.levels + ((),) * (options.num_levels - len(version.levels))


def sizes_of(version: Version, options: Options) -> tuple[int, ...]:
    """File bytes of each of `levels_of`."""
    return version.sizes + (0,) * (options.num_levels - len(version.levels))


def overlapping(version: Version, level: int, start: bytes, end: bytes) -> tuple[TableMeta, ...]:
    """The tables of a deeper level that share a key with [start, end): one run of them, by bisection."""
    tables = levels_at(version, level)
    first, last = 0, len(tables)
    while first < last:  # the first table that ends after `start`
        middle = (first + last) // 2
        if tables[middle].end > start:
            last = middle
        else:
            first = middle + 1
    while last < len(tables) and tables[last].start < end:
        last += 1
    return tables[first:last]


def total_bytes(tables: tuple[TableMeta, ...] | list[TableMeta]) -> int:
    """File bytes of some tables."""
    return sum(table.size_bytes for table in tables)


def hull(tables: tuple[TableMeta, ...] | list[TableMeta]) -> tuple[bytes, bytes]:
    """The least [start, end) that holds all of them."""
    return min(table.start for table in tables), max(table.end for table in tables)


def fits_level0(version: Version, inputs: list[TableMeta]) -> bool:
    """Whether `inputs`, merged into one table of level 0, keep recency contiguous there (rule 4)."""
    numbers = {table.number for table in inputs}
    start, end = hull(inputs)
    seq_min, seq_max = min(table.seq_min for table in inputs), max(table.seq_max for table in inputs)
    return all(
        table.seq_max < seq_min or table.seq_min > seq_max
        for table in version.levels[0]
        if table.number not in numbers and table.overlaps(start, end)
    )


def older_tables(version: Version, plan: Plan) -> Iterator[TableMeta]:
    """The tables outside the plan that may hold older versions of its keys.

    Of those that overlap its hull these are all that lie deeper than the shallowest input, and those of
    level 0 that are older than the newest input there. (A table of the output level that stays shares no
    key with the inputs, but to count it costs nothing.)
    """
    tables = [table for _, table in plan.inputs]
    numbers = {table.number for table in tables}
    start, end = hull(tables)
    newest = max((table.seq_max for level, table in plan.inputs if level == 0), default=-1)
    for table in version.levels[0]:
        if table.number not in numbers and table.seq_min <= newest and table.overlaps(start, end):
            yield table
    for level in range(1 + min(level for level, _ in plan.inputs), len(version.levels)):
        yield from (table for table in overlapping(version, level, start, end) if table.number not in numbers)


def check_plan(version: Version, plan: Plan) -> None:
    """Assert the four rules at the head of this module."""
    tables = [table for _, table in plan.inputs]
    numbers = {table.number for table in tables}
    assert numbers, "a plan without inputs"
    assert len(numbers) == len(tables), f"an input twice: {sorted(numbers)}"
    for level in sorted({level for level, _ in plan.inputs}):
        assert level <= plan.output_level or plan.output_level == 0, f"level {level} would rise to {plan.output_level}"
        missing = {table.number for at, table in plan.inputs if at == level}
        missing -= {table.number for table in levels_at(version, level)}
        assert not missing, f"not in level {level}: {sorted(missing)}"
    if plan.output_level == 0:
        assert fits_level0(version, tables), "recency in level 0 is not contiguous"
        return
    for level, table in plan.inputs:
        for met in _passed(version, plan, level, table):
            assert met.number in numbers, f"table {table.number} passes {met.number}, which is older"
    pieces = sorted((table.start, table.end) for table in tables)
    if not plan.trivial_move:
        pieces = [hull(tables)]
    for i, (start, end) in enumerate(pieces):
        for met in overlapping(version, plan.output_level, start, end):
            assert met.number in numbers, f"an output over [{start!r}, {end!r}) meets {met.number}, which stays"
        assert i == 0 or pieces[i - 1][1] <= start, "a move of tables that overlap"


def _passed(version: Version, plan: Plan, level: int, table: TableMeta) -> Iterator[TableMeta]:
    """What `table` passes on its way to the output level and must not leave behind (rule 2)."""
    if level == 0:
        tops = version.levels[0]
        yield from (top for top in tops if top.seq_min <= table.seq_max and top.overlaps(table.start, table.end))
    for between in range(level + 1, plan.output_level):
        yield from overlapping(version, between, table.start, table.end)
