"""The tour in words: a heading, a few sentences and a table for each chapter, on stdout."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from labs.output import count_text, size_text
from labs.text import encode_text
from labs.tour.kills import Killed
from labs.tour.power import Crashes
from labs.tour.report import Report
from labs.tour.store import Changed, Compared, Load
from labs.tour.workload import Data
from lsm.metrics import Metrics
from lsm.options import MIB
from simfs.api import SyncLevel

WIDTH_MAX = 100
DOES = {
    SyncLevel.NONE: "stays in the process",
    SyncLevel.FLUSH: "write(2)",
    SyncLevel.FSYNC: "write(2), fsync(2)",
    SyncLevel.FULLFSYNC: "write(2), fcntl(F_FULLFSYNC)" if sys.platform == "darwin" else "write(2), fsync(2)",
}


class Guide:
    """Tells each chapter as it ends. A silent guide tells nothing."""

    def __init__(self, silent: bool = False) -> None:
        self.out = Console(quiet=silent, highlight=False, soft_wrap=False)
        self.out.width = min(self.out.width, WIDTH_MAX)
        self.err = Console(stderr=True, quiet=silent)
        self.chapter = 0

    @contextlib.contextmanager
    def working(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A bar on stderr while something goes on, if that is a terminal; yields what moves it."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        if not self.err.is_terminal:
            yield lambda count: None  # noqa: ARG005
            return
        with Progress(*(columns if total else columns[:2]), console=self.err, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda count: bar.advance(task, count)

    def heading(self, title: str) -> None:
        """The beginning of a chapter."""
        self.chapter += 1
        self.out.print()
        self.out.rule(f"[bold]{self.chapter}. {title}[/bold]", align="left")

    def say(self, text: str, style: str = "") -> None:
        """A paragraph. No markup is read in it: it may hold a person's data."""
        self.out.print(Padding(Text(text, style=style), (0, 0, 0, 3), expand=False))

    def check(self, good: bool, text: str) -> None:
        """A line that says whether a check passed."""
        self.say(("✓ " if good else "✗ ") + text, "green" if good else "bold red")

    def table(self, *heads: str) -> Table:
        """An empty table; numbers go to the right."""
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for head in heads:
            table.add_column(head.removeprefix(">"), justify="right" if head.startswith(">") else "left")
        return table

    def show(self, table: Table) -> None:
        """A table, a little indented."""
        self.out.print(Padding(table, (1, 0, 1, 3), expand=False))

    # the chapters

    def opening(self, data: Data, folder: str, seed: int) -> None:
        """What is going to happen."""
        self.out.print(Text("lsmlab: a tour of an LSM-tree store on this machine", style="bold"))
        first = f" (the first {len(data.rows):,} rows)" if data.truncated else ""
        self.say(f"input: {data.name}{first}\nstore: {folder}\nseed:  {seed}", "dim")

    def loaded(self, load: Load, metrics: Metrics) -> None:
        """Chapter 1."""
        self.heading("Load")
        rate = (load.entries + load.deletes) / load.seconds
        self.say(
            f"{count_text(load.entries, 'entry', 'entries')}, {size_text(load.user_bytes)} of keys and values, "
            f"in {load.seconds:.1f} s: {rate:,.0f} writes a second."
        )
        if load.reads:
            self.check(load.wrong_reads == 0, f"{count_text(load.reads, 'read')} in between saw the newest value")
        flushes, merges = count_text(metrics.flushes, "flush", "flushes"), count_text(metrics.compactions, "merge")
        self.say(
            "Each write went to the end of the log, then into a sorted table in memory (the memtable). A full "
            f"memtable was flushed to a file that never changes again ({flushes}); files that overlapped were merged "
            f"into deeper levels ({merges}), others moved down as they were ({count_text(metrics.moves, 'move')})."
        )

    def changed(self, changed: Changed) -> None:
        """Chapter 2."""
        self.heading("Overwrite and delete")
        self.say(
            f"{changed.overwritten:,} keys overwritten and {changed.deleted:,} deleted in {changed.seconds:.1f} s. "
            "Nothing was changed in place: an overwrite is a newer entry, a delete is an entry that says so (a "
            "tombstone), and compaction drops what they hide."
        )
        if changed.range_bounds is not None:
            start, stop = (encode_text(key) for key in changed.range_bounds)
            self.say(f"One more record deleted the {changed.range_deleted:,} keys left in [{start}, {stop}).")

    def compared(self, compared: Compared) -> None:
        """Chapter 3."""
        self.heading("Reopen, and compare everything with a dict")
        self.say(
            f"Opened again in {compared.reopen_seconds * 1000:.0f} ms: the manifest says which files count, the log "
            "is replayed."
        )
        rate = compared.entries / max(compared.scan_seconds, 1e-9)
        self.check(
            compared.differing == 0,
            f"{count_text(compared.entries, 'entry', 'entries')} scanned in order ({rate:,.0f} a second), "
            f"{compared.differing} differ from the dict",
        )
        each_us = compared.lookup_seconds / max(compared.lookups, 1) * 1e6
        self.check(
            compared.wrong_lookups == 0,
            f"{count_text(compared.lookups, 'lookup')}, half of them of keys that never were ({each_us:.0f} µs each), "
            f"{compared.wrong_lookups} wrong",
        )

    def dial(self, dial: dict[SyncLevel, Killed]) -> None:
        """Chapter 4."""
        self.heading("Kill a writer at each point of the durability dial")
        self.say(
            "A process writes and counts each acknowledged write; SIGKILL ends it in the middle. What had only "
            "reached its own memory is gone; what write(2) handed to the operating system is not."
        )
        table = self.table("level", "an append", ">acknowledged", ">survived", ">lost", "")
        for level, killed in dial.items():
            expected = (killed.lost > 0) == (level == SyncLevel.NONE) and not killed.wrong
            verdict = "as it must be" if expected else "WRONG"
            counts = (f"{count:,}" for count in (killed.acknowledged, killed.survived, killed.lost))
            table.add_row(level.name, DOES[level], *counts, Text(verdict, style="green" if expected else "bold red"))
        self.show(table)
        self.say("(One more than acknowledged may survive: written, and killed before it could say so.)", "dim")

    def power(self, safe: Crashes, unsafe: Crashes) -> None:
        """Chapter 5."""
        self.heading("Cut the power in the middle of a flush")
        self.say(
            f"A disk in memory keeps what was synced; of the rest, any sector and any name may be lost. A flush is "
            f"{count_text(safe.operations, 'operation')} on the disk: after each one the power goes, in several ways, "
            "and the store is opened on what is left."
        )
        table = self.table("dial", ">states", ">lost writes", ">violations")
        for name, crashes in (("FSYNC", safe), ("NONE", unsafe)):
            table.add_row(name, f"{crashes.states:,}", f"{crashes.lossy:,}", f"{crashes.violations:,}")
        self.show(table)
        self.say(
            "At NONE some states lack the newest writes: that is its promise. A hole, a wrong value, a returned "
            "delete or a store that does not open would be a violation at either."
        )

    def amplification(self, report: Report) -> None:
        """Chapter 6."""
        self.heading("Where the bytes went")
        self.levels(report.written)
        amp, table = report.written.write_amp, self.table("amplification", ">", "")
        for name, ratio in (("write, engine", amp.engine), ("write, logical", amp.logical)):
            table.add_row(name, "–" if ratio.value is None else f"{ratio.value:.2f}", ratio.of)
        unknown = report.device_reason is not None or amp.device.value is None
        table.add_row(
            "write, device",
            "–" if unknown else f"{amp.device.value:.2f}",
            report.device_reason or f"{amp.device.of} (counted by the operating system)",
        )
        space = "bytes of live files ÷ bytes of live keys and values, after reopening"
        table.add_row("space", f"{report.space_amp:.2f}", space)
        self.show(table)
        self.say(
            "Three write amplifications, because each divides something else: what compaction rewrites (engine), "
            "what the store writes for each byte you hand in (logical), and what the disk was asked to write (device)."
        )

    def levels(self, metrics: Metrics) -> None:
        """RocksDB's per-level table, without its time columns."""
        heads = ("Level", ">Files", ">Size", ">Score", ">Read", ">Rn", ">Rnp1", ">Write", ">Moved", ">W-Amp", ">Comp")
        table = self.table(*heads, ">KeyIn", ">KeyDrop")
        table.padding = (0, 1, 0, 0)
        for row in metrics.levels:
            sizes = (row.read_bytes, row.rn_bytes, row.rnp1_bytes, row.write_bytes, row.moved_bytes)
            cells = (
                str(row.files),
                f"{row.size_bytes / MIB:.1f}",
                f"{row.score:.2f}",
                *(f"{n / MIB:.1f}" for n in sizes),
            )
            counts = (str(row.comp_count), str(row.keys_in), str(row.keys_dropped))
            table.add_row(row.level, *cells, f"{row.w_amp:.1f}", *counts)
        self.show(table)
        self.say(
            "Sizes in MiB. Rn was read from the level above, Rnp1 from the level itself; Moved was not rewritten.",
            "dim",
        )

    def ending(self, report: Report) -> None:
        """The verdict, and where to go from here."""
        self.out.print()
        self.out.rule(align="left")
        failures = report.failures()
        for text in failures:
            self.check(False, text)
        if not failures:
            self.check(True, f"every check passed, in {report.seconds:.0f} s")
        if report.kept:
            self.say(f"The store is in {report.folder}.")
        self.say("Next:")
        self.out.print()
        commands = next_commands(report)
        width = max(len(command) for command, _ in commands)
        for command, purpose in commands:
            line = Text.assemble("   ", (command.ljust(width), "bold"), (f"  # {purpose}", "dim"))
            self.out.print(line, soft_wrap=True)


def next_commands(report: Report) -> list[tuple[str, str]]:
    """What to try now, and why."""
    lsmlab, store = shlex.quote(command_name()), shlex.quote(report.folder if report.kept else "my-store")
    some = "scan --limit 5" if report.data.given else "scan --prefix json/decoder.py --limit 5"
    keep = [] if report.kept else [(f"{lsmlab} tour --dir {store}", "the same, and the store is kept")]
    return [
        *keep,
        (f"{lsmlab} db {store} {some}", "some of its entries"),
        (f"{lsmlab} db {store} stats", "its levels"),
        (f"{lsmlab} db {store} verify", "every byte, checked"),
        (f"{lsmlab} inspect manifest {store}/MANIFEST-*", "which tables came and went"),
        (f"{lsmlab} --help", "everything else"),
    ]


def command_name() -> str:
    """How this program is called from here: `lsmlab` if the shell finds it, else by its path."""
    beside = os.path.join(os.path.dirname(sys.executable), "lsmlab")
    found = shutil.which("lsmlab")
    if (found and os.path.realpath(found) == os.path.realpath(beside)) or not os.path.exists(beside):
        return "lsmlab"
    return os.path.relpath(beside)
