"""Which of the tables that lie around make up the store, when no manifest says so.

    0004 ┐
    0006 ┴─ job 9 ─▶ 0009, 0010 (last: "0009 and 0010")      0012 (a flush)

    0004 and 0006 are out: job 9 finished and replaced them. Were 0010 missing, 0009 would be out instead.

Each table records what it `obsoletes`, its `job`, and (the last output of a job) its `siblings`.

Invariants:
1. A table is out if an output of a finished job replaces it, or if it is an output of an unfinished job some
   of whose inputs are still there. Newer jobs are judged first, for they may replace the outputs of older ones.
2. Either way the store loses nothing: inputs and outputs of one job hold the same visible data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lsm.filenames import table_name
from lsm.recover import Listing
from lsm.version import TableMeta

if TYPE_CHECKING:
    from lsm.options import Options
    from lsm.tables import TableProperties
    from simfs.api import Filesystem


@dataclass
class Salvage:
    """What was found, in the course of a repair."""

    fs: Filesystem
    directory: str
    options: Options
    listing: Listing
    sound: dict[int, tuple[TableMeta, TableProperties]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # file names for lost/
    next_number: int = 1
    log_dropped: bool = False  # a whole log was unusable, so there is damage that no crash explains

    def new_file_number(self) -> int:
        """Reserve a number above all on the disk."""
        self.next_number += 1
        return self.next_number - 1

    def drop(self, name: str, reason: str) -> None:
        """Leave a file out, and say why."""
        self.dropped.append(f"{name}: {reason}")
        self.lost.append(name)


def judge(salvage: Salvage) -> dict[int, str]:
    """Which sound tables are not in force, and why; newest job first, so that what replaces decides first."""
    out: dict[int, str] = {}
    jobs: dict[int, list[int]] = {}
    for number, (_, properties) in salvage.sound.items():
        jobs.setdefault(properties.job, []).append(number)
    replaced: dict[int, int] = {}  # table → who replaced it
    for job in sorted(jobs, reverse=True):
        outputs = [number for number in sorted(jobs[job]) if number not in replaced]
        inputs = salvage.sound[jobs[job][0]][1].obsoletes
        waiting = [number for number in inputs if number in salvage.sound and number not in replaced]
        used = len(outputs) < len(jobs[job])  # a later job took an output as its input, so it was in a version
        if waiting and not used and not _finished(salvage, jobs[job], replaced):
            for number in outputs:
                out[number] = f"output of an unfinished compaction, whose inputs {list(inputs)} are there"
            continue
        for number in inputs:
            replaced.setdefault(number, max(jobs[job]))
    for number in salvage.sound:
        if number in replaced:
            out[number] = f"replaced by {table_name(replaced[number])}"
    return out


def _finished(salvage: Salvage, outputs: list[int], replaced: dict[int, int]) -> bool:
    """Whether every output of a job came to be: the last one is here, and those it names are here or were replaced.

    A damaged output that is still in the folder counts as here: that it was written is what matters.
    """
    for number in outputs:
        siblings = salvage.sound[number][1].siblings
        if siblings:
            return all(sibling in salvage.listing.tables or sibling in replaced for sibling in siblings)
    return False


def conflicting_groups(tables: list[TableMeta]) -> list[list[TableMeta]]:
    """Tables whose order is unknown, together: they overlap in keys and in sequences, directly or through others.

    A group is judged by its hull, since its merged table will cover that.
    """
    groups = [(table, [table]) for table in sorted(tables, key=lambda table: table.number)]
    changed = True
    while changed:
        changed = False
        settled: list[tuple[TableMeta, list[TableMeta]]] = []
        for hull, members in groups:
            clash = next((i for i, (other, _) in enumerate(settled) if _clash(hull, other)), None)
            if clash is None:
                settled.append((hull, members))
            else:
                members = settled[clash][1] + members
                settled[clash] = _hull(members), members
                changed = True
        groups = settled
    return [members for _, members in groups]


def _hull(group: list[TableMeta]) -> TableMeta:
    return replace(
        group[0],
        smallest=None,
        largest=None,
        range_start=min(table.start for table in group),
        range_end=max(table.end for table in group),
        seq_min=min(table.seq_min for table in group),
        seq_max=max(table.seq_max for table in group),
    )


def _clash(left: TableMeta, right: TableMeta) -> bool:
    return left.overlaps(right.start, right.end) and left.seq_min <= right.seq_max and right.seq_min <= left.seq_max
