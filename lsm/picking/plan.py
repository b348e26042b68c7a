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

from lsm.key_ranges import KeyRanges
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

    These are all that lie deeper than the shallowest input, and those of level 0 that are older than
    the newest input there. (A table of the output level that stays shares no key with the inputs, but
    to count it costs nothing.)
    """
    numbers = {table.number for _, table in plan.inputs}
    shallowest = min(level for level, _ in plan.inputs)
    newest = max((table.seq_max for level, table in plan.inputs if level == 0), default=-1)
    for level, table in version.tables():
        if table.number not in numbers and (level > shallowest or (level == 0 and table.seq_min <= newest)):
            yield table


def check_plan(version: Version, plan: Plan) -> None:
    """Assert the four rules at the head of this module."""
    numbers = [table.number for _, table in plan.inputs]
    assert numbers, "a plan without inputs"
    assert len(set(numbers)) == len(numbers), f"an input twice: {numbers}"
    for level, table in plan.inputs:
        assert table in levels_at(version, level), f"{table.number} is not in level {level}"
        assert level <= plan.output_level or plan.output_level == 0, f"{table.number} would rise to {plan.output_level}"
    stays = [(level, table) for level, table in version.tables() if table.number not in set(numbers)]
    _check_passes(plan, stays)
    if plan.output_level > 0:
        _check_gaps(plan, [table for level, table in stays if level == plan.output_level])
    else:
        assert fits_level0(version, [table for _, table in plan.inputs]), "recency in level 0 is not contiguous"


def _check_passes(plan: Plan, stays: list[tuple[int, TableMeta]]) -> None:
    """Rule 2."""
    if plan.output_level == 0:
        return
    for level in range(plan.output_level):
        passed = KeyRanges.of((table.start, table.end) for at, table in stays if level < at < plan.output_level)
        going = [table for at, table in plan.inputs if at == level]
        for table in going:
            assert not passed.overlaps(table.start, table.end), f"table {table.number} passes an older one"
        for top in (table for at, table in stays if at == 0 == level):
            for table in going:
                older = top.seq_min <= table.seq_max and top.overlaps(table.start, table.end)
                assert not older, f"table {table.number} passes {top.number} of level 0, which is older"


def _check_gaps(plan: Plan, stays: list[TableMeta]) -> None:
    """Rule 3: a move needs a gap for each table, a merge one for the hull of them all."""
    taken = KeyRanges.of((table.start, table.end) for table in stays)
    pieces = sorted((table.start, table.end) for _, table in plan.inputs)
    if not plan.trivial_move:
        pieces = [(pieces[0][0], max(end for _, end in pieces))]
    for i, (start, end) in enumerate(pieces):
        assert not taken.overlaps(start, end), f"an output over [{start!r}, {end!r}) meets a table that stays"
        assert i == 0 or pieces[i - 1][1] <= start, "a move of tables that overlap"
