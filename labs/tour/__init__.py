"""`lsmlab tour`: what an LSM-tree store does, shown on this machine in about half a minute.

    load ─▶ overwrite, delete ─▶ reopen, compare ─▶ kill a writer, four times ─▶ cut the power ─▶ measure

Every chapter checks what it shows; one failed check makes the exit code 1. The store lies in a temporary
folder unless `--dir` keeps it. An interrupted tour leaves nothing behind.
"""

from __future__ import annotations

import sys
import time

import click

import lsm
from labs.output import format_option, say_json
from labs.tour import workload
from labs.tour.guide import Guide
from labs.tour.kills import Killed, kill_writer
from labs.tour.places import MEMORY_FILESYSTEMS, filesystem_of, work_folders
from labs.tour.power import cut_power
from labs.tour.report import Report
from labs.tour.store import OPTIONS, MainJob
from simfs.api import SyncLevel

KILL_AFTER = {SyncLevel.NONE: 3000, SyncLevel.FLUSH: 3000, SyncLevel.FSYNC: 150, SyncLevel.FULLFSYNC: 150}
ATTEMPTS_MAX = 3
POWER_CHANGES = 150
INPUT_HELP = "A CSV, JSON lines or cache trace, instead of the sources of Python's standard library."


@click.command()
@click.option("--dir", "kept", type=click.Path(), metavar="FOLDER", help="Keep the store in this new folder.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=1, show_default=True, help="For all that is drawn.")
@click.option("--input", "source", type=click.Path(dir_okay=False), metavar="FILE", help=INPUT_HELP)
@format_option
def tour(kept: str | None, seed: int, source: str | None, form: str) -> int:
    """See a store work, crash and recover.

    Loads real data on this machine's disk, overwrites and deletes part of it, reopens it and compares, kills
    writers, cuts the power of a disk in memory, and measures where the bytes went. Exit code 1 if a check fails.
    """
    guide = Guide(silent=form == "json")
    with work_folders(kept) as (folder, scratch):
        report = take_tour(guide, folder, scratch, seed, source, kept is not None)
    guide.ending(report)
    if form == "json":
        say_json(report.to_json())
    return 1 if report.failures() else 0


def take_tour(guide: Guide, folder: str, scratch: str, seed: int, source: str | None, kept: bool) -> Report:
    """All chapters; `scratch` is for the stores of the killed writers."""
    started = time.perf_counter()
    data = workload.read_corpus(seed) if source is None else workload.read_input(source)
    report = main_job(guide, folder, seed, data, kept)
    with guide.working("killing writers", len(SyncLevel)) as tick:
        for level in SyncLevel:
            report.dial[level] = kill_at(f"{scratch}/killed-{level.name.lower()}", level)
            tick(1)
    guide.dial(report.dial)
    changes = workload.few_changes(data.rows, seed, POWER_CHANGES)
    with guide.working("cutting the power"):
        report.crashes = cut_power(changes, SyncLevel.FSYNC, seed)
        report.unsafe = cut_power(changes, SyncLevel.NONE, seed)
    guide.power(report.crashes, report.unsafe)
    guide.amplification(report)
    report.seconds = time.perf_counter() - started
    return report


def main_job(guide: Guide, folder: str, seed: int, data: workload.Data, kept: bool) -> Report:
    """Load, change, reopen, compare."""
    guide.opening(data, folder, seed)
    job = MainJob(folder, data.rows, seed)
    with lsm.open(folder, OPTIONS) as db:
        with guide.working("loading", len(data.rows)) as tick:
            load = job.load(db, tick)
        guide.loaded(load, db.metrics())
        with guide.working("overwriting and deleting") as tick:
            changed = job.change(db, tick)
        db.flush()
        written = db.metrics()
    guide.changed(changed)
    with guide.working("comparing"):
        compared, reopened = job.compare()
    guide.compared(compared)
    filesystem = filesystem_of(folder)
    return Report(
        data, seed, folder, filesystem, kept, load, changed, written, compared, reopened,
        live_user_bytes=sum(len(key) + len(value) for key, value in job.model.items()),
        device_reason=why_no_device_count(filesystem, written.write_amp.device.value),
    )  # fmt: skip


def kill_at(folder: str, level: SyncLevel) -> Killed:
    """Kill a writer. At NONE once more if by chance its buffer was empty at that moment: then nothing was shown."""
    for attempt in range(ATTEMPTS_MAX):
        killed = kill_writer(f"{folder}-{attempt}", level, KILL_AFTER[level] + 37 * attempt)
        if level != SyncLevel.NONE or killed.lost:
            break
    return killed


def why_no_device_count(filesystem: str | None, device: float | None) -> str | None:
    """Why the operating system's count of bytes written says nothing; None if it does."""
    if device is None:
        return "this operating system does not count them for a process" if sys.platform != "linux" else "not readable"
    if filesystem in MEMORY_FILESYSTEMS:
        return f"{filesystem} is memory: nothing goes to a device"
    return None
