"""Logs and manifests for people: one JSON-ready dict for each thing in the file, damage included.

    {"type": "header", "offset": 0, "length": 32, "crc_ok": true, "file": "wal", "number": 7, …}
    {"type": "record", "offset": 32, "length": 37, "crc_ok": true, "attests": 0, "attested": true, "ops": […]}
    {"type": "damage", "offset": 69, "length": 12, "crc_ok": false, "attested": false, "reason": …}

`attests` is what the record says of those before it; `attested` whether another record says it of this
one. Damage that is attested is damage indeed, other damage a torn tail. Keys and values are `printable`.

Invariants:
1. The entries tile the file: each begins where the one before it ended.
2. Nothing is raised for damage, only for what is another kind of file or of a newer version (`Corruption`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lsm.batch import decode_ops
from lsm.coding import printable
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.framing import HEADER_BYTES, RECORD_HEAD_BYTES
from lsm.logscan import Record, Scan, scan_file
from lsm.manifest import MANIFEST_MAGIC, decode_edit
from lsm.version import TableMeta
from lsm.wal import WAL_MAGIC
from simfs.api import Filesystem

Entry = dict[str, Any]
_KIND_NAMES = {DELETE: "delete", VALUE: "put", RANGE_DELETE: "delete_range"}


def describe_wal(fs: Filesystem, path: str, *, limit_bytes: int | None = None) -> Iterator[Entry]:
    """The header, records and damaged stretches of a log; of keys and values at most `limit_bytes` each."""
    scan = scan_file(fs, path, WAL_MAGIC, "skip_corrupted")
    return _entries(scan, "wal", lambda payload: _batch(payload, limit_bytes))


def describe_manifest(fs: Filesystem, path: str) -> Iterator[Entry]:
    """The header, edits and damaged stretches of a manifest."""
    scan = scan_file(fs, path, MANIFEST_MAGIC, "skip_corrupted")
    return _entries(scan, "manifest", _edit)


def _entries(scan: Scan, file: str, describe: Callable[[bytes], Entry]) -> Iterator[Entry]:
    whole_head = scan.end_offset > 0 and (not scan.damages or scan.damages[0].offset > 0)
    if whole_head:
        head: Entry = {"type": "header", "offset": 0, "length": HEADER_BYTES, "crc_ok": True}
        yield head | {"file": file, "number": scan.number, "first_sequence": scan.first_sequence}
    pieces: list[tuple[int, int, Record | str]] = [
        (damage.offset, damage.length, damage.reason) for damage in scan.damages
    ]
    pieces += [(record.offset, RECORD_HEAD_BYTES + len(record.payload), record) for record in scan.records]
    for offset, length, piece in sorted(pieces, key=lambda piece: piece[0]):
        is_record = isinstance(piece, Record)
        entry: Entry = {"type": "record" if is_record else "damage", "offset": offset, "length": length}
        entry |= {"crc_ok": is_record, "attested": offset < scan.attested}
        if isinstance(piece, Record):
            entry |= {"attests": piece.attested} | _described(piece.payload, describe)
        else:
            entry["reason"] = piece
        yield entry


def _described(payload: bytes, describe: Callable[[bytes], Entry]) -> Entry:
    try:
        return describe(payload) if payload else {"attests_only": True}
    except ValueError as error:
        return {"error": str(error)}


def _batch(payload: bytes, limit_bytes: int | None) -> Entry:
    first, ops = decode_ops(payload)
    described = []
    for i, (kind, key, value) in enumerate(ops):
        op: Entry = {"op": _KIND_NAMES[kind], "sequence": first + i, "key": printable(key, limit_bytes)}
        if kind != DELETE:
            op["end" if kind == RANGE_DELETE else "value"] = printable(value, limit_bytes)
        described.append(op)
    return {"first_sequence": first, "ops": described}


def _edit(payload: bytes) -> Entry:
    edit = decode_edit(payload)
    described: Entry = {}
    for name in ("log_number", "next_file_number", "last_sequence"):
        if getattr(edit, name) is not None:
            described[name] = getattr(edit, name)
    if edit.cursors:
        described["cursors"] = [{"level": level, "key": printable(key)} for level, key in edit.cursors]
    if edit.removed:
        described["removed"] = [{"level": level, "number": number} for level, number in edit.removed]
    if edit.added:
        described["added"] = [{"level": level} | _table(table) for level, table in edit.added]
    if edit.closed_log_bytes is not None:
        described["closed_log_bytes"] = edit.closed_log_bytes
    return {"edit": described}


def _table(table: TableMeta) -> Entry:
    """The stored fields of a table, those that are absent left out."""
    fields = {name: getattr(table, name) for name in TableMeta.__dataclass_fields__}
    shown = {name: printable(value) if isinstance(value, bytes) else value for name, value in fields.items()}
    return {name: value for name, value in shown.items() if value is not None}
