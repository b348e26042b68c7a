"""`lsmlab db PATH …`: everything that can be done to a store from the command line.

Commands that only read open the store read-only: they create nothing, recover nothing and write
nothing, and a misspelt path is an error instead of a new, empty store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

import lsm
from labs import text
from labs.load_command import load
from labs.output import hex_option, json_text, note, say, say_json, say_lines, size_text
from labs.store_group import Store, db, store_command
from lsm.errors import Corruption
from lsm.metrics import Metrics

__all__ = ["db", "load"]


@store_command("get")
@click.argument("key")
@hex_option
def get(store: Store, key: str, as_hex: bool, form: str) -> int:
    """Print the value of KEY. Exit code 1 if there is none."""
    key_bytes = text.read(key, as_hex)
    with store.open_to_read() as opened:
        value = opened.get(key_bytes)
    if form == "json":
        found = {} if value is None else text.json_field("value", value, as_hex)
        say_json({**text.json_field("key", key_bytes, as_hex), "found": value is not None, **found})
    elif value is not None:
        say(text.show(value, as_hex))
    else:
        note(f"lsmlab: {text.show(key_bytes, as_hex)}: no such key")
    return 0 if value is not None else 1


@store_command("put")
@click.argument("key")
@click.argument("value")
@hex_option
def put(store: Store, key: str, value: str, as_hex: bool, form: str) -> None:
    r"""Set KEY to VALUE.

    Text is UTF-8; \xNN stands for a byte and \\ for a backslash, as in what `get` and `scan` print.
    """
    key_bytes = text.read(key, as_hex)
    with store.open() as opened:
        opened.put(key_bytes, text.read(value, as_hex))
        sequence = opened.last_sequence
    if form == "json":
        say_json({**text.json_field("key", key_bytes, as_hex), "sequence": sequence})


@store_command("delete")
@click.argument("key")
@click.option("--until", metavar="STOP", help="Delete every key in [KEY, STOP), by one record.")
@hex_option
def delete(store: Store, key: str, until: str | None, as_hex: bool, form: str) -> None:
    """Remove KEY, whether it is there or not."""
    key_bytes = text.read(key, as_hex)
    with store.open(create=False) as opened:
        if until is None:
            opened.delete(key_bytes)
        else:
            opened.delete_range(key_bytes, text.read(until, as_hex))
        sequence = opened.last_sequence
    if form == "json":
        say_json({**text.json_field("key", key_bytes, as_hex), "sequence": sequence})


@store_command("scan")
@click.option("--start", help="The first key.")
@click.option("--stop", help="The first key after the last one.")
@click.option("--prefix", help="Only keys that begin with this.")
@click.option("--reverse", is_flag=True, help="Last key first.")
@click.option("--limit", type=click.IntRange(min=0), help="At most so many.")
@click.option("--keys-only", is_flag=True, help="No values.")
@hex_option
def scan(
    store: Store,
    start: str | None,
    stop: str | None,
    prefix: str | None,
    reverse: bool,
    limit: int | None,
    keys_only: bool,
    as_hex: bool,
    form: str,
) -> None:
    """Print keys and values in order.

    A tab stands between them; as JSON, one object a line, which `load` reads back.
    """
    low, high, first = (None if bound is None else text.read(bound, as_hex) for bound in (start, stop, prefix))
    with store.open_to_read() as opened:
        pairs = opened.scan(low, high, reverse=reverse, prefix=first)
        lines = _scan_lines(pairs, keys_only, as_hex, form)
        say_lines(islice(lines, limit))


def _scan_lines(pairs: Iterator[tuple[bytes, bytes]], keys_only: bool, as_hex: bool, form: str) -> Iterator[str]:
    for key, value in pairs:
        if form == "json":
            fields = text.json_field("key", key, as_hex)
            yield json_text(fields if keys_only else fields | text.json_field("value", value, as_hex))
        elif keys_only:
            yield text.show(key, as_hex)
        else:
            yield f"{text.show(key, as_hex)}\t{text.show(value, as_hex)}"


@store_command("stats")
@click.option("--space", is_flag=True, help="Scan the store to count its live data, which space amplification needs.")
def stats(store: Store, space: bool, form: str) -> None:
    """Print the per-level table, and more.

    As JSON, with every counter.
    """
    with store.open_to_read() as opened:
        metrics = opened.metrics(exact_space=space)
    _say_metrics(metrics, form)


def _say_metrics(metrics: Metrics, form: str) -> None:
    if form == "json":
        say_json(metrics.to_json())
        return
    memory, amp = metrics.memory, metrics.write_amp
    ratios = {"engine": amp.engine, "logical": amp.logical, "device": amp.device, "space": metrics.space_amp}
    known = [f"{name} {ratio.value:.2f}" for name, ratio in ratios.items() if ratio.value is not None]
    say(metrics.table())
    say(f"\nlive files {size_text(metrics.live_bytes)}, last sequence {metrics.last_sequence:,}")
    indexes, blocks = size_text(memory.indexes_and_filters_bytes), size_text(memory.block_cache_bytes)
    say(f"memory: memtable {size_text(memory.memtable_bytes)}, indexes and filters {indexes}, block cache {blocks}")
    if known:
        say("amplification since it was opened: " + ", ".join(known))


@store_command("compact")
@click.option("--start", help="The first key of the range; else from the beginning.")
@click.option("--stop", help="The first key after the range; else to the end.")
@hex_option
def compact(store: Store, start: str | None, stop: str | None, as_hex: bool, form: str) -> None:
    """Merge tables, in a range of keys or all.

    They are merged as deep as the strategy goes.
    """
    low, high = (None if bound is None else text.read(bound, as_hex) for bound in (start, stop))
    with store.open(create=False) as opened:
        opened.compact(low, high)
        metrics = opened.metrics()
    _say_metrics(metrics, form)


@store_command("verify")
def verify(store: Store, form: str) -> int:
    """Check every byte of every live file. Exit code 4 at the first damage.

    Checks the checksums, the order of keys and versions, and the tables against the manifest.
    """
    try:
        with store.open_to_read() as opened:
            report = dataclasses.asdict(opened.verify())
    except Corruption as error:
        if form == "text":
            raise
        say_json({"ok": False, "path": error.path, "offset": error.offset, "reason": error.reason})
        return 4
    if form == "json":
        say_json({"ok": True, **report})
    else:
        say("ok: " + _fields(report))
    return 0


@store_command("repair")
def repair(store: Store, form: str) -> None:
    """Rebuild a damaged store from what is left.

    Needs no manifest, only tables and logs; what could not be used is listed, and kept in `lost/`.
    """
    report = dataclasses.asdict(lsm.repair(store.path, store.options()))
    if form == "json":
        say_json(report)
        return
    dropped = report.pop("dropped", ())
    say("repaired: " + _fields(report))
    for line in dropped:
        say(f"dropped: {line}")


@store_command("checkpoint")
@click.argument("target", type=click.Path())
def checkpoint(store: Store, target: str, form: str) -> None:
    """Copy the store into the new folder TARGET.

    The copy is consistent, and shares its tables with the store by hard links.
    """
    with store.open(create=False) as opened:
        opened.checkpoint(target)
        tables = sum(len(level) for level in opened.version.levels)
    if form == "json":
        say_json({"path": target, "tables": tables})
    else:
        say(f"{target}: a store of its own, with {tables} tables")


def _fields(report: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in report.items() if isinstance(value, int))
