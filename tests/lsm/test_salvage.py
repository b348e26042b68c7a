"""Which tables make up a store when no manifest says so: the judgement alone, on described tables."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lsm.options import Options
from lsm.properties import TableProperties
from lsm.recover import Listing
from lsm.salvage import Salvage, conflicting_groups, judge
from lsm.version import Edit, TableMeta, Version, apply
from simfs.memory import MemoryFilesystem


def described(
    number: int, *, job: int | None = None, siblings: tuple[int, ...] = (), obsoletes: tuple[int, ...] = ()
) -> TableProperties:
    return TableProperties(
        format="block",
        number=number,
        entries=1,
        deletes=0,
        range_deletes=0,
        smallest=b"a",
        largest=b"z",
        seq_min=number,
        seq_max=number,
        raw_bytes=2,
        blocks=1,
        block_size=64,
        filter_bits_per_key="10",
        codec="none",
        created_s=0,
        log_floor=0,
        obsoletes=obsoletes,
        job=number if job is None else job,
        siblings=siblings,
    )


def judged(*tables: TableProperties, damaged: tuple[int, ...] = ()) -> list[int]:
    """The numbers that are out; each with a reason."""
    numbers = tuple(sorted([table.number for table in tables] + list(damaged)))
    salvage = Salvage(MemoryFilesystem(), "/db", Options(), Listing(numbers, (), (), False))
    for table in tables:
        salvage.sound[table.number] = (table.meta(table.number, 100), table)
    out = judge(salvage)
    assert all(out.values())
    return sorted(out)


def flushed(number: int, obsoletes: tuple[int, ...] = ()) -> TableProperties:
    return described(number, siblings=(number,), obsoletes=obsoletes)


def test_flushed_tables_are_all_in_force() -> None:
    assert judged(flushed(3), flushed(5), flushed(7)) == []


def test_a_finished_job_replaces_its_inputs() -> None:
    first = described(9, job=9, obsoletes=(4, 6))
    last = described(10, job=9, obsoletes=(4, 6), siblings=(9, 10))
    assert judged(flushed(4), flushed(6), first, last, flushed(12)) == [4, 6]
    assert judged(flushed(6), first, last) == [6]
    assert judged(first, last) == []


def test_an_unfinished_job_leaves_its_inputs_in_force() -> None:
    first = described(9, job=9, obsoletes=(4, 6))
    last = described(10, job=9, obsoletes=(4, 6), siblings=(9, 10))
    assert judged(flushed(4), flushed(6), first) == [9]  # the last output never came to be
    assert judged(flushed(4), flushed(6), last) == [10]  # the first one's name was lost


def test_what_is_left_of_outputs_counts_where_no_input_is() -> None:
    assert judged(described(9, job=9, obsoletes=(4, 6))) == []


def test_a_damaged_output_still_proves_that_its_job_finished() -> None:
    last = described(10, job=9, obsoletes=(4, 6), siblings=(9, 10))
    assert judged(flushed(4), flushed(6), last, damaged=(9,)) == [4, 6]


def test_newer_jobs_are_judged_first() -> None:
    first, second = described(9, siblings=(9,), obsoletes=(4,)), described(11, siblings=(11,), obsoletes=(9,))
    assert judged(flushed(4), first, second) == [4, 9]


def test_an_output_that_was_used_proves_that_its_job_finished() -> None:
    """An input of job 9 whose removal a crash undid stays out, for job 12 took an output of job 9 further."""
    first = described(9, job=9, obsoletes=(4,))
    assert judged(flushed(4), first, flushed(12, obsoletes=(9,))) == [4, 9]
    used = described(10, job=9, obsoletes=(4,), siblings=(9, 10))
    assert judged(flushed(4), used, flushed(12, obsoletes=(9,))) == [4]


def test_an_unfinished_later_job_leaves_an_earlier_finished_one_alone() -> None:
    first = described(9, siblings=(9,), obsoletes=(4,))
    assert judged(flushed(4), first, described(11, job=11, obsoletes=(9,))) == [4, 11]


def test_a_flush_names_what_still_waited_for_readers() -> None:
    assert judged(flushed(4), flushed(12, obsoletes=(4,))) == [4]


KEYS = st.integers(0, 20)


@st.composite
def metas(draw: st.DrawFn) -> list[TableMeta]:
    made = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        low, high = sorted(draw(st.tuples(KEYS, KEYS)))
        seq_min, seq_max = sorted(draw(st.tuples(st.integers(1, 30), st.integers(1, 30))))
        first, last = b"%02d" % low, b"%02d" % high
        meta = replace(
            described(number).meta(number, 1), smallest=first, largest=last, seq_min=seq_min, seq_max=seq_max
        )
        made.append(meta)
    return made


@given(metas())
def test_merged_groups_fit_into_level_0(tables: list[TableMeta]) -> None:
    groups = conflicting_groups(tables)
    assert sorted(table.number for group in groups for table in group) == [table.number for table in tables]
    merged = [
        replace(
            group[0],
            smallest=min(table.smallest or b"" for table in group),
            largest=max(table.largest or b"" for table in group),
            seq_min=min(table.seq_min for table in group),
            seq_max=max(table.seq_max for table in group),
        )
        for group in groups
    ]
    apply(Version.empty(3), Edit(added=tuple((0, table) for table in merged))).check()


@given(metas())
def test_tables_that_do_not_conflict_are_not_merged(tables: list[TableMeta]) -> None:
    apart = [replace(table, seq_min=100 * table.number, seq_max=100 * table.number + 50) for table in tables]
    assert conflicting_groups(apart) == [[table] for table in apart]
