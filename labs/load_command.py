"""`lsmlab db PATH load FILE`: put a file's rows into a store, in their order, a batch at a time.

    FILE ──line by line──▶ rows ──▶ batch ──▶ store           one batch is one log record: all of it or nothing

Invariants:
1. Rows arrive in the order of the file. After a crash at any moment the store holds a prefix of them
   (as long a one as the dial promises), cut between two batches.
2. A line that cannot be read ends the load with an error that names it. All rows before it are loaded.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

import lsm
from labs.inputs import FORMATS, InputError, Reading, Row, read_rows
from labs.output import count_text, note, say, say_json, size_text
from labs.store_group import Store, store_command
from lsm.errors import InvalidArgument

BATCH_BYTES_MAX = 1 << 20


@dataclass
class Loaded:
    """What a load did so far."""

    puts: int = 0
    deletes: int = 0
    reads_skipped: int = 0
    user_bytes: int = 0
    seconds: float = 0.0


@store_command("load")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--input-format", type=click.Choice(FORMATS), default="auto", show_default=True, help="What FILE is.")
@click.option("--key", metavar="COLUMN", help="The column that is the key; else the first, or `key` in JSON lines.")
@click.option("--value", metavar="COLUMN", help="The column that is the value; else all the others, as JSON.")
@click.option("--header/--no-header", default=True, show_default=True, help="Whether a CSV's first line is names.")
@click.option("--delimiter", default=",", show_default=True, help="Between the columns of a CSV.")
@click.option("--batch", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows in one atomic write.")
@click.option("--progress/--no-progress", default=None, help="A progress bar on stderr; else only on a terminal.")
def load(
    store: Store,
    file: str,
    input_format: str,
    key: str | None,
    value: str | None,
    header: bool,
    delimiter: str,
    batch: int,
    progress: bool | None,
    form: str,
) -> None:
    """Load a CSV, JSON lines or a cache trace.

    FILE `-` is standard input. A cache trace has the columns time, key, key size, value size, client, operation,
    TTL and no header; its reads are skipped.
    """
    how = Reading(input_format, key, value, header, "\t" if delimiter == "\\t" else delimiter)
    done, started = Loaded(), time.perf_counter()
    with _source(file) as source, _progress(source, progress) as tick:
        rows = read_rows(file, source, how)
        first = list(islice(rows, 1))  # an input that cannot be read at all makes no store
        _load(store, file, chain(first, rows), done, batch, tick)
    done.seconds = round(time.perf_counter() - started, 3)
    if form == "json":
        say_json(asdict(done))
        return
    say(
        f"loaded {count_text(done.puts, 'entry', 'entries')} ({size_text(done.user_bytes)}) in {done.seconds:.1f} s"
        + (f", {count_text(done.deletes, 'delete')}" if done.deletes else "")
        + (f", {count_text(done.reads_skipped, 'read')} skipped" if done.reads_skipped else "")
    )


def _load(store: Store, file: str, rows: Iterator[Row], done: Loaded, batch: int, tick: Callable[[], None]) -> None:
    """Open the store and write the rows; whatever ends it early, say how many are in."""
    with store.open() as db:
        try:
            for _ in load_rows(db, file, rows, done, batch):
                tick()
        except (InputError, OSError, KeyboardInterrupt) as error:
            count = count_text(done.puts + done.deletes, "row")
            cause = "the damaged line" if isinstance(error, InputError) else "the end"
            note(f"lsmlab: {count} before {cause} {'is' if count == '1 row' else 'are'} in the store")
            raise


def load_rows(db: lsm.DB, path: str, rows: Iterator[Row], done: Loaded, batch_rows: int = 1000) -> Iterator[None]:
    """Write `rows` into `db`, yielding after each batch; `done` counts what is written. Raises `InputError`."""
    batch, counted = lsm.WriteBatch(), Loaded()
    try:
        for row in rows:
            try:
                _add(batch, row, counted)
            except InvalidArgument as error:
                raise InputError(path, row.line, str(error)) from None
            if len(batch) >= batch_rows or batch.size_bytes >= BATCH_BYTES_MAX:
                _write(db, batch, counted, done)
                yield
    except InputError:
        _write(db, batch, counted, done)
        raise
    _write(db, batch, counted, done)
    yield


def _add(batch: lsm.WriteBatch, row: Row, counted: Loaded) -> None:
    if row.kind == "put":
        batch.put(row.key, row.value)
        counted.puts += 1
        counted.user_bytes += len(row.key) + len(row.value)
    elif row.kind == "delete":
        batch.delete(row.key)
        counted.deletes += 1
        counted.user_bytes += len(row.key)
    else:
        counted.reads_skipped += 1


def _write(db: lsm.DB, batch: lsm.WriteBatch, counted: Loaded, done: Loaded) -> None:
    db.write(batch)
    batch.clear()
    done.puts, done.deletes = counted.puts, counted.deletes
    done.reads_skipped, done.user_bytes = counted.reads_skipped, counted.user_bytes


@contextlib.contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
    else:
        with open(file, "rb") as source:
            yield source


@contextlib.contextmanager
def _progress(source: BinaryIO, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A bar over the bytes of the file that were read; yields what moves it."""
    console = Console(stderr=True)
    if not (console.is_terminal if wanted is None else wanted):
        yield lambda: None
        return
    status = os.fstat(source.fileno())
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("load", total=total)

        def tick() -> None:
            if total is not None:
                bar.update(task, completed=source.tell())

        yield tick
