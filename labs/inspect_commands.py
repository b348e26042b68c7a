"""`lsmlab inspect wal|manifest|table FILE`: what stands in a single file. No store is needed, nothing is written.

Text is one line for each thing in the file, at its offset; JSON is one object a line. Damage is shown where it
lies, and makes the exit code 4 where it cannot be the torn tail of a file that was being written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click

from labs.output import Function, format_option, json_text, note, say_json, say_lines
from labs.text import encode_text
from lsm.entry import KIND_BITS, KIND_MASK, VALUE
from lsm.inspection import Entry, describe_manifest, describe_wal
from lsm.tables import TableReader, open_table
from simfs.api import default_world

SHOWN_BYTES = 60
SHOWN_OPS = 4


def file_argument(command: Function) -> Function:
    """FILE, which exists."""
    return click.argument("file", type=click.Path(exists=True, dir_okay=False))(command)


def full_option(command: Function) -> Function:
    """`--full`: keys and values are not cut."""
    about = f"Keys and values whole, not cut after {SHOWN_BYTES} bytes."
    return click.option("--full", is_flag=True, help=about)(command)


@click.group(short_help="Show what stands in a log, a manifest or a table.")
def inspect() -> None:
    """Show what stands in a single file of a store: a log, a manifest or a table."""


@inspect.command()
@file_argument
@full_option
@format_option
def wal(file: str, full: bool, form: str) -> int:
    """Show the records of a write-ahead log (*.log), and any damage in it. As JSON with all ops of a batch."""
    return _show(describe_wal(default_world().fs, file, limit_bytes=None if full else SHOWN_BYTES), _wal_text, form)


@inspect.command()
@file_argument
@format_option
def manifest(file: str, form: str) -> int:
    """Show the edits of a manifest (MANIFEST-*), and any damage in it."""
    return _show(describe_manifest(default_world().fs, file), _edit_text, form)


def _show(entries: Iterable[Entry], describe: Any, form: str) -> int:
    """Print entries as they are read; 4 if some of them are damage that was once whole."""
    damaged = []
    shown = 0

    def lines() -> Iterator[str]:
        nonlocal shown
        for entry in entries:
            shown += 1
            if entry["type"] == "damage" and entry["attested"]:
                damaged.append(entry["offset"])
            yield json_text(entry) if form == "json" else f"{entry['offset']:>8}  {_text(entry, describe)}"

    say_lines(lines())
    if not shown:
        note("lsmlab: the file is empty: a crash may leave it so before its header is written")
    return 4 if damaged else 0


def _text(entry: Entry, describe: Any) -> str:
    if entry["type"] == "header":
        return f"header  {entry['file']} {entry['number']}, first sequence {entry['first_sequence']}"
    if entry["type"] == "damage":
        kind = "damage in synced data" if entry["attested"] else "torn tail"
        return f"{kind}, {entry['length']} bytes: {entry['reason']}"
    if "error" in entry:
        return f"record passes its checksum, but: {entry['error']}"
    if "attests_only" in entry:
        return f"end     all before {entry['attests']} is synced"
    text: str = describe(entry)
    return text


def _wal_text(entry: Entry) -> str:
    ops = entry["ops"]
    shown = ", ".join(_op_text(op) for op in ops[:SHOWN_OPS])
    more = f", and {len(ops) - SHOWN_OPS:,} more" if len(ops) > SHOWN_OPS else ""
    return f"record  sequence {entry['first_sequence']}: {shown}{more}"


def _op_text(op: dict[str, Any]) -> str:
    if op["op"] == "delete_range":
        return f"delete [{op['key']}, {op['end']})"
    return f"put {op['key']} = {op['value']}" if op["op"] == "put" else f"delete {op['key']}"


def _edit_text(entry: Entry) -> str:
    edit = entry["edit"]
    parts = [f"- L{table['level']} {table['number']:06d}" for table in edit.get("removed", ())]
    parts += [f"+ L{table['level']} {_table_text(table)}" for table in edit.get("added", ())]
    counters = ("log_number", "next_file_number", "last_sequence")
    parts += [f"{name.replace('_', ' ')} {edit[name]}" for name in counters if name in edit]
    return "edit    " + "; ".join(parts)


def _table_text(table: dict[str, Any]) -> str:
    keys = f" [{table['smallest']} … {table['largest']}]" if "smallest" in table else ""
    return f"{table['number']:06d} ({table['entries']} entries, {table['size_bytes']} bytes){keys}"


@inspect.command()
@file_argument
@click.option("--entries", is_flag=True, help="Every entry as well, deletes and hidden versions included.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many entries.")
@full_option
@format_option
def table(file: str, entries: bool, limit: int | None, full: bool, form: str) -> None:
    """Show a table's properties (*.sst) after checking every byte of it; exit code 4 if it is damaged."""
    reader = open_table(default_world().fs, file, number=None, cache=None, verify_checksums=True)
    try:
        reader.verify()
        properties = {name: _plain(value) for name, value in dataclasses.asdict(reader.properties).items()}
        if form == "json":
            say_json({"type": "properties", **properties, "memory_bytes": reader.memory_bytes})
        else:
            width = max(map(len, properties))
            say_lines(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in properties.items())
        if entries:
            shown = islice(_table_entries(reader, None if full else SHOWN_BYTES), limit)
            say_lines(json_text(entry) if form == "json" else _entry_text(entry) for entry in shown)
    finally:
        reader.close()


def _plain(value: Any) -> Any:
    """JSON-ready: bytes as text, tuples as lists."""
    if isinstance(value, bytes):
        return encode_text(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _table_entries(reader: TableReader, limit_bytes: int | None) -> Iterator[Entry]:
    for start, end, sequence in reader.range_deletes:
        keys = {"key": encode_text(start, limit_bytes), "end": encode_text(end, limit_bytes)}
        yield {"type": "delete_range", **keys, "sequence": sequence}
    for columns in reader.blocks(b"", None):
        for key, tag, value in zip(*columns, strict=True):
            entry = {"type": "delete", "key": encode_text(key, limit_bytes), "sequence": tag >> KIND_BITS}
            if tag & KIND_MASK == VALUE:
                entry |= {"type": "put", "value": encode_text(value, limit_bytes)}
            yield entry


def _entry_text(entry: Entry) -> str:
    return f"{entry['sequence']:>8}  {_op_text({'op': entry['type'], **entry})}"
