"""The manifest: a log of edits whose replay is the current version; and CURRENT, which names it.

    MANIFEST-000005:  header ("lsmlabMF", number, 0) | record | record | …           framing: lsm.framing
    record:           one edit; the first leads from an empty store to the state at creation
    edit:             field | field | …          tags ascend, integers are varints (lsm.coding)

    tag  field              after the tag
    1    log number         number                                    at most once
    2    next file number   number                                    at most once
    3    last sequence      number                                    at most once
    4    cursor             level | key
    5    removed            level | table number
    6    added              level | number | size | entries | deletes | range deletes | seq min | seq max |
                            raw bytes | created | key bounds | range bounds
    7    closed log bytes   number                                    at most once; counts in the last edit only
         bounds             0, or 1 and two length-prefixed keys: smallest and largest; start and end

    CURRENT:          the manifest's name, a space, the CRC-32 of the name in 8 hex digits, a newline

A new manifest comes into force in this order (at levels below FSYNC, `follow_dial`, without the syncs):

    write MANIFEST-n ─▶ sync it ─▶ sync folder ─▶ write CURRENT.tmp ─▶ sync it ─▶ rename to CURRENT ─▶ sync folder

Each step makes durable what the next one relies on: one folder sync for both names would let CURRENT
survive a manifest that did not (pebble#5825). An edit is one append and one sync; before it, a barrier keeps
the tables that it adds from being younger than itself.

Invariants:
1. An edit is in force once its sync has returned. Until then it may be found at the next opening, or not.
2. Replay opens no table: edits are self-sufficient.
3. An edit has one encoding.

Left out: atomic groups of edits (RocksDB needs them for column families), deltas against the previous edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

from lsm.coding import decode_bytes, decode_varint, encode_bytes, encode_varint
from lsm.errors import Corruption
from lsm.filenames import CURRENT, TMP_SUFFIX, manifest_name, parse_name
from lsm.framing import RecordWriter
from lsm.logscan import Scan, scan_file
from lsm.version import Edit, TableMeta, Version, apply
from simfs.api import Filesystem, SyncKind, SyncLevel

MANIFEST_MAGIC = b"lsmlabMF"
REMEDY = "restore the file from a copy, or run repair"
LEVELS_MAX = 64
CURRENT_BYTES_MAX = 100

_LOG_NUMBER, _NEXT_FILE_NUMBER, _LAST_SEQUENCE, _CURSOR, _REMOVED, _ADDED, _CLOSED_LOG_BYTES = range(1, 8)
_COUNTERS = {_LOG_NUMBER: "log_number", _NEXT_FILE_NUMBER: "next_file_number", _LAST_SEQUENCE: "last_sequence"}


def encode_edit(edit: Edit) -> bytes:
    """The bytes of an edit; see the head of this module.

    >>> encode_edit(Edit(removed=((0, 9),), log_number=300, cursors=((1, b"k"),))).hex(" ")
    '01 ac 02 04 01 01 6b 05 00 09'
    """
    parts: list[int | bytes] = []
    for tag, name in _COUNTERS.items():
        value = getattr(edit, name)
        if value is not None:
            parts += [tag, value]
    for level, key in edit.cursors:
        parts += [_CURSOR, level, key]
    for level, number in edit.removed:
        parts += [_REMOVED, level, number]
    for level, table in edit.added:
        parts += [_ADDED, level, *_table_fields(table)]
    if edit.closed_log_bytes is not None:
        parts += [_CLOSED_LOG_BYTES, edit.closed_log_bytes]
    return b"".join(encode_bytes(part) if isinstance(part, bytes) else encode_varint(part) for part in parts)


def _table_fields(table: TableMeta) -> list[int | bytes]:
    fields: list[int | bytes] = [
        table.number,
        table.size_bytes,
        table.entries,
        table.deletes,
        table.range_deletes,
        table.seq_min,
        table.seq_max,
        table.raw_bytes,
        table.created_s,
    ]
    for low, high in ((table.smallest, table.largest), (table.range_start, table.range_end)):
        fields += [0] if low is None or high is None else [1, low, high]
    return fields


class _Reader:
    """Reads the fields of an edit one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def integer(self) -> int:
        value, self.position = decode_varint(self.data, self.position)
        return value

    def string(self) -> bytes:
        value, self.position = decode_bytes(self.data, self.position)
        return value

    def level(self) -> int:
        level = self.integer()
        if level >= LEVELS_MAX:
            raise ValueError(f"level {level}: expected one below {LEVELS_MAX}")
        return level

    def bounds(self) -> tuple[bytes | None, bytes | None]:
        present = self.integer()
        if present > 1:
            raise ValueError(f"bounds begin with {present}: expected 0 or 1")
        return (self.string(), self.string()) if present else (None, None)

    def table(self) -> TableMeta:
        number, size_bytes, entries, deletes, range_deletes = (self.integer() for _ in range(5))
        seq_min, seq_max, raw_bytes, created_s = (self.integer() for _ in range(4))
        smallest, largest = self.bounds()
        range_start, range_end = self.bounds()
        table = TableMeta(
            number=number,
            size_bytes=size_bytes,
            entries=entries,
            deletes=deletes,
            range_deletes=range_deletes,
            smallest=smallest,
            largest=largest,
            seq_min=seq_min,
            seq_max=seq_max,
            range_start=range_start,
            range_end=range_end,
            raw_bytes=raw_bytes,
            created_s=created_s,
        )
        crossed = (smallest or b"") > (largest or b"") or (range_start or b"") > (range_end or b"")
        if crossed or (smallest is None and range_start is None) or seq_min > seq_max:
            raise ValueError(f"table {number}: bounds are missing or crossed")
        return table


def decode_edit(data: bytes) -> Edit:
    """The edit of these bytes. Raises `ValueError`: an unknown tag, a field twice or out of order, an end too soon."""
    reader = _Reader(data)
    counters: dict[str, int] = {}
    cursors: list[tuple[int, bytes]] = []
    removed: list[tuple[int, int]] = []
    added: list[tuple[int, TableMeta]] = []
    previous = 0
    while reader.position < len(data):
        at = reader.position
        tag = reader.integer()
        if tag < previous or (tag == previous and (tag in _COUNTERS or tag == _CLOSED_LOG_BYTES)):
            raise ValueError(f"tag {tag} at byte {at} follows tag {previous}")
        previous = tag
        if tag in _COUNTERS:
            counters[_COUNTERS[tag]] = reader.integer()
        elif tag == _CURSOR:
            cursors.append((reader.level(), reader.string()))
        elif tag == _REMOVED:
            removed.append((reader.level(), reader.integer()))
        elif tag == _ADDED:
            added.append((reader.level(), reader.table()))
        elif tag == _CLOSED_LOG_BYTES:
            counters["closed_log_bytes"] = reader.integer()
        else:
            raise ValueError(f"tag {tag} at byte {at} is unknown")
    return Edit(added=tuple(added), removed=tuple(removed), cursors=tuple(cursors), **counters)


class ManifestWriter(RecordWriter):
    """The manifest in force. Not thread-safe: the caller holds the store's mutex."""

    __slots__ = ("level",)

    def __init__(self, fs: Filesystem, directory: str, number: int, level: SyncLevel) -> None:
        super().__init__(fs, f"{directory}/{manifest_name(number)}", MANIFEST_MAGIC, number=number, first_sequence=0)
        self.level = level
        """The structural level: below FSYNC, edits are not synced."""

    @staticmethod
    def create(fs: Filesystem, directory: str, number: int, snapshot: Edit, *, level: SyncLevel) -> ManifestWriter:
        """Write a manifest that begins with `snapshot`, and let CURRENT name it. Raises `OSError`.

        If it fails before CURRENT is renamed, the manifest before it is in force.
        """
        writer = ManifestWriter(fs, directory, number, level)
        try:
            writer.add(encode_edit(snapshot))
            if level >= SyncLevel.FSYNC:
                writer.sync_file(SyncKind.DATA, "manifest.create")
                fs.sync_dir(directory, "manifest.create")
            set_current(fs, directory, number, level=level)
        except BaseException:
            writer.close()
            raise
        return writer

    def append(self, edit: Edit, *, barrier: bool, level: SyncLevel | None = None) -> int:
        """Append an edit and make it durable, unless `level` (the writer's by default) is below FSYNC.

        `barrier`: what the edit relies on has been synced since the last edit. Returns the bytes written.
        """
        before = self.size_bytes
        synced = (self.level if level is None else level) >= SyncLevel.FSYNC
        if barrier and synced:
            self.barrier("manifest.barrier")
        self.add(encode_edit(edit))
        if synced:
            self.sync_file(SyncKind.FULL, "manifest.edit")
        return self.size_bytes - before

    def finish(self, closed_log_bytes: int | None = None) -> None:
        """Close cleanly: a last record attests all edits. The file is released even if that fails.

        `closed_log_bytes`: what of the log in force is durable; then the record says so, and a log that is
        found shorter later has lost something. It is not synced: if it is lost, nothing is claimed.
        """
        try:
            if closed_log_bytes is not None:
                self.add(encode_edit(Edit(closed_log_bytes=closed_log_bytes)))
            self.attest()
        finally:
            self.close()


def set_current(fs: Filesystem, directory: str, number: int, *, level: SyncLevel) -> None:
    """Let CURRENT name manifest `number`, atomically. Raises `OSError`."""
    temporary = f"{directory}/{CURRENT}{TMP_SUFFIX}"
    synced = level >= SyncLevel.FSYNC
    if fs.exists(temporary):
        # Where a rename was cut in two, this is a second name of CURRENT: to write into it would be to write into that.
        fs.remove(temporary)
    with fs.create(temporary) as file:
        file.append(encode_current(manifest_name(number)))
        if synced:
            file.sync(SyncKind.DATA, "current.write")
    fs.rename(temporary, f"{directory}/{CURRENT}")
    if synced:
        fs.sync_dir(directory, "current.rename", SyncKind.FULL)


def encode_current(name: str) -> bytes:
    """The content of CURRENT.

    >>> encode_current("MANIFEST-000005")
    b'MANIFEST-000005 5d689b3a\\n'
    """
    return b"%s %08x\n" % (name.encode(), crc32(name.encode()))


def read_current(fs: Filesystem, directory: str) -> str:
    """The name of the manifest in force. Raises `FileNotFoundError` if there is no CURRENT, `Corruption`."""
    path = f"{directory}/{CURRENT}"
    with fs.open(path) as file:
        content = file.pread(0, CURRENT_BYTES_MAX)
    name = content.split(b" ")[0].decode("ascii", "replace")
    parsed = parse_name(name)
    if parsed is None or parsed.kind != "manifest" or content != encode_current(name):
        raise Corruption(path, 0, f"expected a manifest's name and its checksum, found {content!r}: run repair")
    return name


@dataclass(frozen=True)
class ManifestState:
    """What a manifest leads to, and how its reading ended. Without an edit: an empty version and zeros."""

    version: Version
    log_number: int = 0
    next_file_number: int = 0
    last_sequence: int = 0
    cursors: dict[int, bytes] = field(default_factory=dict)
    closed_log_bytes: int | None = None
    edits: int = 0
    end_offset: int = 0
    status: str = "clean"  # or "torn": an edit that never came into force
    reason: str = ""


def read_manifest(fs: Filesystem, path: str) -> ManifestState:
    """Replay a manifest. A torn end is an edit that never came into force; all else is `Corruption`."""
    scan = _scan(fs, path, "tolerate_torn_tail")
    counters: dict[str, int] = {}
    cursors: dict[int, bytes] = {}
    version = Version(((),))
    closed_log_bytes: int | None = None
    edits = 0
    offset = 0
    for offset, edit in _edits(scan):
        try:
            version = apply(version, edit)
        except ValueError as error:
            raise Corruption(path, offset, f"edit does not apply: {error}; {REMEDY}") from None
        for name in _COUNTERS.values():
            value = getattr(edit, name)
            if value is not None:
                counters[name] = value
        cursors.update(edit.cursors)
        closed_log_bytes = edit.closed_log_bytes
        edits += 1
    try:
        version.check()
    except AssertionError as error:
        raise Corruption(path, offset, f"the edits lead to no valid version: {error}; {REMEDY}") from None
    return ManifestState(
        version=version,
        cursors=cursors,
        closed_log_bytes=closed_log_bytes,
        edits=edits,
        end_offset=scan.end_offset,
        status=scan.status,
        reason=scan.reason,
        **counters,
    )


def iter_manifest(fs: Filesystem, path: str) -> Iterator[tuple[int, Edit]]:
    """The edits of a manifest, each with its offset. Raises `Corruption`, `OSError`."""
    return _edits(_scan(fs, path, "tolerate_torn_tail"))


def _scan(fs: Filesystem, path: str, mode: str) -> Scan:
    parsed = parse_name(path.rpartition("/")[2])
    number = parsed.number if parsed is not None and parsed.kind == "manifest" else None
    return scan_file(fs, path, MANIFEST_MAGIC, mode, expect_number=number, remedy=REMEDY)


def _edits(scan: Scan) -> Iterator[tuple[int, Edit]]:
    for record in scan.records:
        if record.payload:
            try:
                edit = decode_edit(record.payload)
            except ValueError as error:
                found = f"the checksum fits, the edit does not: {error}; {REMEDY}"
                raise Corruption(scan.path, record.offset, found) from None
            yield record.offset, edit
