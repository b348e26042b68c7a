"""Golden scripts: commands, then what a store answers. Worked examples for people, and tests.

    open write_buffer_size=1000
    put a=1 b=2
    flush
    version
    ---
    L0: 000004 [a..b] 2 entries

A script is blocks of commands, each followed by `---`, the expected output, and an empty line. Lines that
begin with # are comments. The store lives on a memory disk, so that `crash` is exact.

    open NAME=VALUE…              open the store /db (a second `open` closes it first)
    put K=V… [sync=LEVEL]         delete K…       delete-range START STOP      batch put K=V | delete K | …
    fill PREFIX COUNT SIZE        puts PREFIX00, PREFIX01, … with values of SIZE bytes
    get K… [at=NAME]              scan [START [STOP]] [reverse] [prefix=P] [at=NAME]
    snapshot NAME                 release NAME
    flush   compact [START STOP]  sync   verify   close   reopen
    version                       tables by level, with key ranges and counts
    files                         the names in the folder
    crash failure=kill|power keep=synced|all|worst [seed=N]      the disk is what survived; the store is not open
    remove NAME…   truncate NAME SIZE   flip NAME OFFSET         damage a file of the store
    repair

Errors are output too: `Corruption: …`. Keys and values are text, with \\x00 for bytes that are not.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lsm
from lsm.coding import printable
from lsm.options import parse_sync
from simfs.crash import ALL_KEPT, SYNCED_ONLY, Choice, WorstCase
from simfs.memory import MemoryFilesystem, MemoryWorld

STORE = "/db"
ERRORS = (lsm.Corruption, lsm.InvalidArgument, OSError)


def unescape(text: str) -> bytes:
    """Text with escapes to bytes.

    >>> unescape(r"a\\x00")
    b'a\\x00'
    """
    return codecs.escape_decode(text.encode())[0]


@dataclass
class Script:
    """An interpreter with a disk, and the store on it."""

    fs: MemoryFilesystem = field(default_factory=MemoryFilesystem)
    options: dict[str, Any] = field(default_factory=dict)
    db: lsm.DB | None = None
    snapshots: dict[str, lsm.Snapshot] = field(default_factory=dict)

    def run(self, line: str) -> list[str]:
        """Execute one command; returns the lines of its answer."""
        word, *arguments = line.split()
        command: Callable[[list[str]], list[str]] | None = getattr(self, "do_" + word.replace("-", "_"), None)
        if command is None:
            raise ValueError(f"unknown command {word!r} in {line!r}")
        try:
            return command(arguments)
        except ERRORS as error:
            return [f"{type(error).__name__}: {error}"]

    @property
    def store(self) -> lsm.DB:
        """The open store."""
        assert self.db is not None, "no store is open: begin with `open`"
        return self.db

    def do_open(self, arguments: list[str]) -> list[str]:
        """Open with options; numbers and booleans are read as such."""
        self.do_close([])
        self.options = {name: _literal(value) for name, value in (argument.split("=", 1) for argument in arguments)}
        return self.do_reopen([])

    def do_reopen(self, _: list[str]) -> list[str]:
        """Close if open, and open with the same options."""
        self.do_close([])
        self.db = lsm.open(STORE, world=MemoryWorld(self.fs), **self.options)
        return []

    def do_close(self, _: list[str]) -> list[str]:
        """Close the store."""
        self.snapshots = {}
        db, self.db = self.db, None
        if db is not None:
            db.close()
        return []

    def do_put(self, arguments: list[str]) -> list[str]:
        """One write a pair."""
        named, pairs = _named(arguments, "sync")
        level = parse_sync(named["sync"]) if "sync" in named else None
        for key, _, value in (pair.partition("=") for pair in pairs):
            self.store.put(unescape(key), unescape(value), level)
        return []

    def do_fill(self, arguments: list[str]) -> list[str]:
        """COUNT keys that ascend."""
        prefix, count, size = arguments
        for number in range(int(count)):
            self.store.put(unescape(prefix) + b"%02d" % number, b"." * int(size))
        return []

    def do_delete(self, arguments: list[str]) -> list[str]:
        """One delete a key."""
        for key in arguments:
            self.store.delete(unescape(key))
        return []

    def do_delete_range(self, arguments: list[str]) -> list[str]:
        """Everything in [start, stop)."""
        start, stop = arguments
        self.store.delete_range(unescape(start), unescape(stop))
        return []

    def do_batch(self, arguments: list[str]) -> list[str]:
        """Several operations as one write."""
        batch = lsm.WriteBatch()
        for part in " ".join(arguments).split("|"):
            word, *rest = part.split()
            if word == "put":
                for key, _, value in (pair.partition("=") for pair in rest):
                    batch.put(unescape(key), unescape(value))
            elif word == "delete":
                for key in rest:
                    batch.delete(unescape(key))
            else:
                batch.delete_range(unescape(rest[0]), unescape(rest[1]))
        self.store.write(batch)
        return []

    def do_get(self, arguments: list[str]) -> list[str]:
        """The values, or that there is none."""
        named, keys = _named(arguments, "at")
        source = self.snapshots[named["at"]] if "at" in named else self.store
        values = [(key, source.get(unescape(key))) for key in keys]
        return [f"{key}: {'not found' if value is None else printable(value)}" for key, value in values]

    def do_scan(self, arguments: list[str]) -> list[str]:
        """All pairs of the range."""
        named, rest = _named(arguments, "at", "prefix")
        bounds = [unescape(bound) for bound in rest if bound != "reverse"]
        pairs = self.store.scan(
            *bounds,
            reverse="reverse" in rest,
            prefix=unescape(named["prefix"]) if "prefix" in named else None,
            snapshot=self.snapshots[named["at"]] if "at" in named else None,
        )
        return [f"{printable(key)}={printable(value)}" for key, value in pairs] or ["nothing"]

    def do_snapshot(self, arguments: list[str]) -> list[str]:
        """Hold the present under a name."""
        self.snapshots[arguments[0]] = self.store.snapshot()
        return []

    def do_release(self, arguments: list[str]) -> list[str]:
        """Let it go."""
        self.snapshots.pop(arguments[0]).release()
        return []

    def do_flush(self, _: list[str]) -> list[str]:
        """Memtable to table."""
        self.store.flush()
        return []

    def do_compact(self, arguments: list[str]) -> list[str]:
        """Everything, or a range."""
        self.store.compact(*[unescape(bound) for bound in arguments])
        return []

    def do_sync(self, _: list[str]) -> list[str]:
        """Make the log durable."""
        self.store.sync()
        return []

    def do_verify(self, _: list[str]) -> list[str]:
        """Read and check everything."""
        report = self.store.verify()
        return [f"sound: {report.tables} tables, {report.entries} entries, {report.log_records} log records"]

    def do_version(self, _: list[str]) -> list[str]:
        """The tables by level."""
        lines = []
        for level, table in self.store.version.tables():
            deletes = f", {table.deletes} deletes" if table.deletes else ""
            ranges = f", {table.range_deletes} range deletes" if table.range_deletes else ""
            span = f"[{printable(table.start)}..{printable(table.end)})"
            lines.append(f"L{level}: {table.number:06d} {span} {table.entries} entries{deletes}{ranges}")
        return lines or ["no tables"]

    def do_files(self, _: list[str]) -> list[str]:
        """The folder's names."""
        return [" ".join(self.fs.listdir(STORE))]

    def do_crash(self, arguments: list[str]) -> list[str]:
        """The old disk is fenced; what survived takes its place."""
        named, rest = _named(arguments, "failure", "keep", "seed")
        assert not rest, rest
        choices: dict[str, Choice] = {
            "synced": SYNCED_ONLY,
            "all": ALL_KEPT,
            "worst": WorstCase(int(named.get("seed", "0"))),
        }
        failure: Any = named.get("failure", "power")
        choice = None if failure == "kill" else choices[named.get("keep", "synced")]
        self.db, self.snapshots = None, {}
        self.fs = self.fs.crash_image(failure, choice)
        return []

    def do_remove(self, arguments: list[str]) -> list[str]:
        """Lose files."""
        for name in arguments:
            self.fs.remove(f"{STORE}/{name}")
        return []

    def do_truncate(self, arguments: list[str]) -> list[str]:
        """Cut a file."""
        with self.fs.open(f"{STORE}/{arguments[0]}", write=True) as file:
            file.truncate(int(arguments[1]))
        return []

    def do_flip(self, arguments: list[str]) -> list[str]:
        """Flip all bits of one byte (a negative offset counts from the end)."""
        path = f"{STORE}/{arguments[0]}"
        with self.fs.open(path) as file:
            data = bytearray(file.pread(0, file.size()))
        data[int(arguments[1])] ^= 0xFF
        with self.fs.create(path, exclusive=False) as file:
            file.append(data)
        return []

    def do_repair(self, _: list[str]) -> list[str]:
        """Rebuild from what is left."""
        self.do_close([])
        report = lsm.repair(STORE, world=MemoryWorld(self.fs), **self.options)
        lines = [f"repaired: {report.tables} tables, {report.entries} entries, {report.log_records} log records"]
        return lines + [f"dropped {line}" for line in report.dropped]


def _named(arguments: list[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """NAME=VALUE arguments with one of these names, and the rest."""
    split = [argument.partition("=") for argument in arguments]
    named = {name: value for name, equals, value in split if equals and name in names}
    rest = [name + equals + value for name, equals, value in split if not (equals and name in names)]
    return named, rest


def _literal(value: str) -> Any:
    constants = {"true": True, "false": False}
    if value in constants:
        return constants[value]
    try:
        return int(value)
    except ValueError:
        return value


def play(text: str) -> str:
    """Run a script; returns it with the outputs that the store really gave."""
    script = Script()
    answer: list[str] = []
    commands: list[str] = []
    in_output = False
    for line in [*text.splitlines(), ""]:
        if in_output:
            if line.strip():
                continue  # the expected output: replaced by the real one
            answer += [*commands, ""] if commands else [""]
            commands, in_output = [], False
        elif line.strip() == "---":
            answer.append("---")
            in_output = True
        else:
            answer.append(line)
            if line.strip() and not line.startswith("#"):
                commands += script.run(line)
    script.do_close([])
    return "\n".join(answer).rstrip("\n") + "\n"
