"""The pickers: golden decisions (`picking/*.txt`), and properties over random trees.

A golden file is a list of cases. Options hold from where they stand to the end of the file.

    options max_bytes_for_level_base=100          the picker's options
    case: the oldest go down unread               what the case shows
    L0 12:a-c/10@40-49 11:d-f/10@30-39            tables, as number:smallest-largest/bytes@sequences
    L6 3:a-c/100                                  (sequences may be left out)
    busy 11                                       tables of other jobs
    cursor L1 f                                   where round robin goes on
    pick                                          or: scores, compact [start [stop]], move [start [stop]]
    ----
    the decision

`LSMLAB_REWRITE=1 pytest tests/lsm/test_picking.py` writes the decisions anew; read the difference.
"""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.options import Options
from lsm.picking import PickState, Plan, make_picker, manual_plan
from lsm.picking.plan import check_plan, hull, older_tables, overlapping
from lsm.picking.targets import level_targets
from lsm.version import Edit, TableMeta, Version, apply

FOLDER = pathlib.Path(__file__).parent / "picking"


@dataclass
class Case:
    """One case of a golden file."""

    title: str
    options: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def parse_file(text: str) -> list[Case]:
    cases: list[Case] = []
    options: dict[str, Any] = {}
    answering = False
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("options "):
            options = {**options, **dict(parse_option(word) for word in line.split()[1:])}
        elif line.startswith("case:"):
            cases.append(Case(line.removeprefix("case:").strip(), options))
            answering = False
        elif line == "----":
            answering = True
        elif line.strip():
            (cases[-1].expected if answering else cases[-1].lines).append(line)
    return cases


def parse_option(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    if value in ("true", "false"):
        return name, value == "true"
    try:
        return name, float(value) if "." in value else int(value)
    except ValueError:
        return name, value


def parse_table(word: str) -> TableMeta:
    number, _, rest = word.partition(":")
    keys, _, rest = rest.partition("/")
    size, _, sequences = rest.partition("@")
    smallest, _, largest = keys.partition("-")
    low, _, high = (sequences or f"{number}-{number}").partition("-")
    bounds = (smallest.encode(), (largest or smallest).encode())
    return TableMeta(int(number), int(size), 1, 0, 0, *bounds, int(low), int(high))


def decide(case: Case) -> list[str]:
    options = Options.make(**case.options)
    edit: list[tuple[int, TableMeta]] = []
    busy: frozenset[int] = frozenset()
    cursors: dict[int, bytes] = {}
    for line in case.lines:
        word, *rest = line.split()
        if word[0] == "L":
            edit += [(int(word[1:]), parse_table(table)) for table in rest]
        elif word == "busy":
            busy = frozenset(map(int, rest))
        elif word == "cursor":
            cursors[int(rest[0][1:])] = rest[1].encode()
    version = apply(Version.empty(options.num_levels), Edit(added=tuple(edit)))
    version.check()
    word, *rest = case.lines[-1].split()
    picker = make_picker(options.strategy)
    match word:
        case "pick":
            plan = picker.pick(version, PickState(busy, cursors), options)
        case "compact" | "move":
            bounds = [bound.encode() for bound in rest]
            plan = manual_plan(version, options, *bounds, force=word == "compact")
        case _:
            return show_scores(version, options)
    if plan is None:
        return ["nothing"]
    check_plan(version, plan)
    assert busy.isdisjoint(table.number for _, table in plan.inputs)
    return show_plan(plan)


def show_plan(plan: Plan) -> list[str]:
    levels = sorted({level for level, _ in plan.inputs})
    inputs = [f"L{level}[{' '.join(str(t.number) for at, t in plan.inputs if at == level)}]" for level in levels]
    verb = "move" if plan.trivial_move else "merge"
    lines = [f"{plan.kind}: {verb} {' '.join(inputs)} into L{plan.output_level}"]
    lines.append(f"  because {plan.reason}" + (f" (score {plan.score:.2f})" if plan.score else ""))
    if plan.target_file_size:
        below = " ".join(str(table.number) for table in plan.grandparents)
        cut = f", cut at {plan.max_overlap_bytes} bytes of L{plan.output_level + 1}: {below}" if below else ""
        lines.append(f"  files of {plan.target_file_size} bytes{cut}")
    if plan.next_cursor is not None:
        lines.append(f"  L{plan.next_cursor[0]} goes on at {plan.next_cursor[1]!r}")
    return lines


def show_scores(version: Version, options: Options) -> list[str]:
    scores = make_picker(options.strategy).scores(version, options)
    lines = []
    targets = level_targets(version, options)
    for level, score in enumerate(scores):
        limit = targets.limits[level]
        shown = "none" if limit > 1 << 60 else str(limit)
        base = ", base" if level == targets.base_level and options.strategy == "leveled" else ""
        drained = ", drained" if 0 < level <= targets.drained else ""
        if version.levels[level] or base:
            lines.append(
                f"L{level} {version.level_bytes(level)} bytes, target {shown}, score {score:.2f}{base}{drained}"
            )
    return lines


GOLDEN = [
    (path.name, index, case)
    for path in sorted(FOLDER.glob("*.txt"))
    for index, case in enumerate(parse_file(path.read_text()))
]


@pytest.mark.parametrize(("name", "index", "case"), GOLDEN, ids=[f"{n}-{c.title}" for n, _, c in GOLDEN])
def test_golden_decision(name: str, index: int, case: Case) -> None:
    decided = decide(case)
    if os.environ.get("LSMLAB_REWRITE"):
        rewrite(FOLDER / name, index, decided)
    else:
        assert decided == case.expected


def rewrite(path: pathlib.Path, index: int, decided: list[str]) -> None:
    lines = path.read_text().splitlines()
    begins = [at for at, line in enumerate(lines) if line == "----"][index]
    ends = begins + 1
    while ends < len(lines) and lines[ends].strip():
        ends += 1
    path.write_text("\n".join([*lines[: begins + 1], *decided, *lines[ends:]]) + "\n")


def test_there_are_golden_files() -> None:
    assert {name for name, _, _ in GOLDEN} >= {"leveled.txt", "dynamic.txt", "tiered.txt", "manual.txt"}


# random trees


@st.composite
def trees(draw: st.DrawFn) -> Version:
    """A version that passes `check`: flushes in level 0, sorted tables below."""
    added: list[tuple[int, TableMeta]] = []
    number = 0
    for _ in range(draw(st.integers(0, 9))):
        number += 1
        start, width = draw(st.integers(0, 40)), draw(st.integers(0, 20))
        added.append((0, table_of(number, start, start + width, draw(st.integers(10, 400)), 1000 + number)))
    for level in draw(st.lists(st.integers(1, 6), unique=True, max_size=4)):
        at = 0
        for _ in range(draw(st.integers(1, 7))):
            number += 1
            at += draw(st.integers(1, 6))
            width = draw(st.integers(0, 8))
            added.append((level, table_of(number, at, at + width, draw(st.integers(10, 400)), 100 - level)))
            at += width
    return apply(Version.empty(7), Edit(added=tuple(added)))


def table_of(number: int, start: int, end: int, size: int, sequence: int) -> TableMeta:
    return TableMeta(number, size, 1, 0, 0, b"%03d" % start, b"%03d" % end, sequence, sequence)


OPTIONS = [
    Options.make(max_bytes_for_level_base=500, max_bytes_for_level_multiplier=3, target_file_size_base=100, **changes)
    for changes in (
        {},
        {"level_compaction_dynamic_level_bytes": False},
        {"compaction_pri": "round_robin"},
        {"compaction_pri": "oldest_first", "max_compaction_bytes": 300},
        {"compaction_pri": "largest_first"},
        {"strategy": "tiered"},
    )
]


@given(trees(), st.sampled_from(OPTIONS), st.sets(st.integers(1, 30), max_size=4))
@settings(max_examples=300)
def test_plans_are_safe_deterministic_and_leave_busy_tables_alone(
    version: Version, options: Options, busy: set[int]
) -> None:
    version.check()
    state = PickState(frozenset(busy))
    plan = make_picker(options.strategy).pick(version, state, options)
    assert plan == make_picker(options.strategy).pick(version, state, options)
    if plan is not None:
        check_plan(version, plan)
        assert busy.isdisjoint(table.number for _, table in plan.inputs)
        assert plan.score >= 1


def carried_out(version: Version, plan: Plan, number: int) -> Version:
    """The plan's effect if no key is there twice: a move, or outputs of all bytes over the hull."""
    tables = [table for _, table in plan.inputs]
    added = [(plan.output_level, table) for table in tables]
    if not plan.trivial_move:
        start, end = hull(tables)
        merged = TableMeta(
            number,
            plan.input_bytes,
            1,
            0,
            0,
            start,
            end[:-1],
            min(t.seq_min for t in tables),
            max(t.seq_max for t in tables),
        )
        added = [(plan.output_level, merged)]
    removed = tuple((level, table.number) for level, table in plan.inputs)
    return apply(version, Edit(added=tuple(added), removed=removed))


@given(trees(), st.sampled_from(OPTIONS))
@settings(max_examples=100, deadline=None)
def test_every_tree_comes_to_rest(version: Version, options: Options) -> None:
    picker = make_picker(options.strategy)
    for step in range(200):
        plan = picker.pick(version, PickState(), options)
        if plan is None:
            assert all(score < 1 for score in picker.scores(version, options))
            return
        check_plan(version, plan)
        version = carried_out(version, plan, 1000 + step)
        version.check()
    raise AssertionError("still not content")


@given(trees(), st.sampled_from(OPTIONS), st.integers(0, 60), st.integers(0, 60), st.booleans())
@settings(max_examples=200)
def test_manual_plans_are_safe_and_complete(
    version: Version, options: Options, start: int, stop: int, force: bool
) -> None:
    low, high = b"%03d" % start, b"%03d" % stop
    plan = manual_plan(version, options, low, high, force=force)
    touched = [table for _, table in version.tables() if table.overlaps(low, high)]
    if plan is None:
        assert not (touched and force)
        return
    check_plan(version, plan)
    inputs = [table for _, table in plan.inputs]
    assert not plan.trivial_move or not force
    for table in older_tables(version, plan):
        if not plan.trivial_move:
            assert not any(table.overlaps(other.start, other.end) for other in inputs), "a tombstone would stay"
    if force:
        assert {table.number for table in touched} <= {table.number for table in inputs}


@given(trees(), st.integers(0, 6), st.integers(0, 60), st.integers(1, 20))
def test_overlapping_by_bisection(version: Version, level: int, start: int, width: int) -> None:
    if level > 0:
        low, high = b"%03d" % start, b"%03d" % (start + width)
        assert overlapping(version, level, low, high) == version.overlapping(level, low, high)
    assert overlapping(version, 7, b"", b"\xff") == ()


# what `check_plan` refuses


def version_of(*added: tuple[int, TableMeta]) -> Version:
    return apply(Version.empty(7), Edit(added=added))


T = table_of
UNSAFE = {
    "an input that is not there": (version_of((1, T(1, 0, 9, 1, 1))), [(1, T(2, 0, 9, 1, 1))], 2, False),
    "no input": (version_of(), [], 2, False),
    "an input twice": (version_of((1, T(1, 0, 9, 1, 1))), [(1, T(1, 0, 9, 1, 1))] * 2, 2, False),
    "rising": (version_of((3, T(1, 0, 9, 1, 1))), [(3, T(1, 0, 9, 1, 1))], 2, False),
    "an older table of level 0 stays above": (
        version_of((0, T(2, 0, 9, 1, 2)), (0, T(1, 9, 12, 1, 1))), [(0, T(2, 0, 9, 1, 2))], 6, False,
    ),
    "a level in between holds older versions": (
        version_of((1, T(2, 0, 9, 1, 2)), (2, T(1, 5, 7, 1, 1))), [(1, T(2, 0, 9, 1, 2))], 3, False,
    ),
    "an output over a table that stays": (
        version_of((1, T(2, 0, 9, 1, 2)), (2, T(1, 5, 7, 1, 1))), [(1, T(2, 0, 9, 1, 2))], 2, True,
    ),
    "a merge whose hull spans a table that stays": (
        version_of((1, T(2, 0, 1, 1, 2)), (1, T(3, 8, 9, 1, 2)), (2, T(1, 5, 7, 1, 1))),
        [(1, T(2, 0, 1, 1, 2)), (1, T(3, 8, 9, 1, 2))], 2, False,
    ),
    "a move of tables that overlap": (
        version_of((0, T(2, 0, 9, 1, 2)), (0, T(1, 5, 7, 1, 1))),
        [(0, T(2, 0, 9, 1, 2)), (0, T(1, 5, 7, 1, 1))], 6, True,
    ),
    "a run in between in recency": (
        version_of((0, T(3, 0, 9, 1, 3)), (0, T(2, 0, 9, 1, 2)), (0, T(1, 0, 9, 1, 1))),
        [(0, T(3, 0, 9, 1, 3)), (0, T(1, 0, 9, 1, 1))], 0, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_plans_are_refused(name: str) -> None:
    version, inputs, output_level, moved = UNSAFE[name]
    with pytest.raises(AssertionError):
        check_plan(version, Plan("test", tuple(inputs), output_level, moved))


def test_a_picker_of_ones_own_passes_through() -> None:
    picker = make_picker("none")
    assert make_picker(picker) is picker
    assert picker.pick(version_of((0, T(1, 0, 9, 1, 1))), PickState(), Options()) is None
    assert picker.scores(Version.empty(7), Options()) == [0.0] * 7
