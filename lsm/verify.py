"""Verification: read every byte of every live file, and check all that can be checked without guessing.

1. CURRENT and the manifest are whole, and replaying the manifest gives the version in memory.
2. Every table: each section's checksum, the order of its keys, its counts and bounds against the manifest.
3. For one key, a shallower place holds newer versions than a deeper one (invariant 4 of `lsm.version`).
4. The log in force holds whole records only.

A store that was opened read-only may have a torn end in manifest and log: a crash leaves that, and nothing is lost.

The first damage is raised as `Corruption` with file, offset and reason. Nothing is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsm.entry import Columns
from lsm.errors import Corruption
from lsm.filenames import CURRENT, log_name, manifest_name, table_name
from lsm.manifest import read_current, read_manifest
from lsm.recover import list_store
from lsm.tables import TableReader, open_table
from lsm.wal import scan_log

if TYPE_CHECKING:
    from lsm.tables import TableProperties
    from lsm.version import TableMeta, Version
    from lsm.versions import VersionSet
    from lsm.wal import LogWriter
    from simfs.api import Filesystem


_DESCRIBED = (
    "number", "entries", "deletes", "range_deletes", "smallest", "largest", "range_start", "range_end", "raw_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class VerifyReport:
    """What was read and found whole."""

    tables: int
    entries: int
    log_records: int
    edits: int
    bytes: int


def verify_store(fs: Filesystem, directory: str, versions: VersionSet, log: LogWriter | None) -> VerifyReport:
    """Verify the live files of an open store; raises `Corruption`."""
    edits, total_bytes = _verify_manifest(fs, directory, versions)
    entries = 0
    for _, table in versions.current.tables():
        entries += verify_table(fs, directory, table)
        total_bytes += table.size_bytes
    _verify_order(fs, directory, versions.current)
    records, log_bytes = _verify_logs(fs, directory, versions, log)
    total_bytes += log_bytes
    return VerifyReport(len(list(versions.current.tables())), entries, records, edits, total_bytes)


def _verify_logs(fs: Filesystem, directory: str, versions: VersionSet, log: LogWriter | None) -> tuple[int, int]:
    """Records and bytes of the log in force; of a store that was opened read-only, of all logs that it replayed."""
    if log is not None:
        log.flush()
        return len(scan_log(fs, log.path, "absolute", expect_number=log.number).records), log.size_bytes
    records = total_bytes = 0
    for number in list_store(fs, directory).logs:
        if number >= versions.log_number:
            path = f"{directory}/{log_name(number)}"
            records += len(scan_log(fs, path, "tolerate_torn_tail", expect_number=number).records)
            total_bytes += fs.stat(path).size
    return records, total_bytes


def _verify_manifest(fs: Filesystem, directory: str, versions: VersionSet) -> tuple[int, int]:
    if versions.manifest is None:  # read-only: the manifest was read when the store was opened
        name = read_current(fs, directory)
    else:
        name = manifest_name(versions.manifest.number)
        found = read_current(fs, directory)
        if found != name:
            raise Corruption(f"{directory}/{CURRENT}", 0, f"expected {name}, found {found}")
    path = f"{directory}/{name}"
    state = read_manifest(fs, path)
    if state.status != "clean" and versions.manifest is not None:
        raise Corruption(path, state.end_offset, state.reason)
    listed = {(level, table.number) for level, table in state.version.tables()}
    in_force = {(level, table.number) for level, table in versions.current.tables()}
    if listed != in_force:
        differing = sorted(listed ^ in_force)
        raise Corruption(path, state.end_offset, f"lists other tables than are in force: {differing}")
    return state.edits, fs.stat(path).size


def verify_table(fs: Filesystem, directory: str, meta: TableMeta) -> int:
    """Check one table against its checksums and against the manifest; returns its entries."""
    path = f"{directory}/{table_name(meta.number)}"
    reader = open_table(fs, path, number=meta.number, cache=None, verify_checksums=True)
    try:
        entries = reader.verify()
        difference = meta_difference(meta, reader.properties)
        if difference:
            raise Corruption(path, 0, difference)
        return entries
    finally:
        reader.close()


def meta_difference(meta: TableMeta, stored: TableProperties) -> str:
    """Where the manifest and a table's own word differ; "" if nowhere.

    Sequence bounds are not asked for: the manifest's may be wider (`lsm.version`).
    """
    for name in _DESCRIBED:
        expected, found = getattr(meta, name), getattr(stored, name)
        if expected != found:
            return f"{name}: the manifest says {expected!r}, the table {found!r}"
    return ""


def _verify_order(fs: Filesystem, directory: str, version: Version) -> None:
    """Walk all places side by side; one key's tags must fall from each place to the next deeper one."""
    places = [[table] for table in version.levels[0]] + [list(level) for level in version.levels[1:] if level]
    previous: tuple[bytes, int] | None = None
    with ExitStack() as closing:  # a stream that is not at its end holds a file open
        streams = [_tags(fs, directory, tables, rank) for rank, tables in enumerate(places)]
        for stream in streams:
            closing.callback(stream.close)
        for key, _rank, _order, tag, number in heapq.merge(*streams):
            if previous is not None and previous[0] == key and previous[1] <= tag:
                path = f"{directory}/{table_name(number)}"
                raise Corruption(path, 0, f"key {key!r}: holds a newer version than a shallower table does")
            previous = (key, tag)


def _tags(
    fs: Filesystem, directory: str, tables: list[TableMeta], rank: int
) -> Generator[tuple[bytes, int, int, int, int], None, None]:
    for meta in tables:
        path = f"{directory}/{table_name(meta.number)}"
        reader: TableReader = open_table(fs, path, number=meta.number, cache=None, verify_checksums=False)
        try:
            order = 0
            columns: Columns
            for columns in reader.blocks(b"", None):
                for key, tag in zip(columns.keys, columns.tags, strict=True):
                    order += 1
                    yield key, rank, order, tag, meta.number
        finally:
            reader.close()
