"""Logs and manifests as JSON-ready entries, damage among them."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from lsm.batch import encode_ops
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.errors import Corruption
from lsm.inspection import Entry, describe_manifest, describe_wal
from lsm.manifest import ManifestWriter
from lsm.version import Edit, TableMeta
from lsm.wal import LogWriter
from simfs.api import SyncLevel
from simfs.memory import MemoryFilesystem

WAL = "/000007.log"
MANIFEST = "/MANIFEST-000005"


def content(fs: MemoryFilesystem, path: str) -> bytes:
    with fs.open(path) as file:
        return file.pread(0, file.size())


def put(path: str, data: bytes) -> MemoryFilesystem:
    fs = MemoryFilesystem(record=False)
    with fs.create(path) as file:
        file.append(data)
    return fs


def wal() -> bytes:
    fs = MemoryFilesystem()
    log = LogWriter.create(fs, WAL, number=7, first_sequence=3, predecessor=None, buffer_bytes=1)
    log.append(encode_ops(3, [(VALUE, b"k\0", b"v" * 10)]), SyncLevel.FSYNC)
    log.append(encode_ops(4, [(DELETE, b"d", b""), (RANGE_DELETE, b"a", b"\xff")]), SyncLevel.FLUSH)
    log.append(b"no batch", SyncLevel.FLUSH)
    log.finish(sync=True)
    return content(fs, WAL)


def manifest() -> bytes:
    fs = MemoryFilesystem()
    points = TableMeta(3, 100, 2, 1, 0, b"a", b"b\n", 1, 9, raw_bytes=7, created_s=8)
    ranges = TableMeta(4, 50, 0, 0, 1, None, None, 10, 10, b"x", b"y")
    writer = ManifestWriter.create(fs, "/", 5, Edit(log_number=1, last_sequence=2), level=SyncLevel.FSYNC)
    edit = Edit(added=((0, points), (1, ranges)), removed=((0, 2),), next_file_number=9, cursors=((1, b"c"),))
    writer.append(edit, barrier=False)
    writer.finish()
    return content(fs, MANIFEST)


def check_tiles(entries: Iterable[Entry], size_bytes: int) -> list[Entry]:
    """The entries tile the file, and are JSON."""
    found: list[Entry] = json.loads(json.dumps(list(entries)))
    position = 0
    for entry in found:
        assert entry["offset"] == position
        assert entry["crc_ok"] == (entry["type"] != "damage")
        position += entry["length"]
    assert position == size_bytes
    return found


def test_a_whole_log() -> None:
    data = wal()
    head, put_record, batch, malformed, end = check_tiles(describe_wal(put(WAL, data), WAL), len(data))
    assert head == {
        "type": "header", "offset": 0, "length": 32, "crc_ok": True, "file": "wal", "number": 7, "first_sequence": 3,
    }  # fmt: skip
    assert put_record == {
        "type": "record",
        "offset": 32,
        "length": 47,
        "crc_ok": True,
        "attested": True,
        "attests": 0,
        "first_sequence": 3,
        "ops": [{"op": "put", "sequence": 3, "key": "k\\x00", "value": "vvvvvvvvvv"}],
    }
    assert batch["attests"] == 79
    assert batch["ops"] == [
        {"op": "delete", "sequence": 4, "key": "d"},
        {"op": "delete_range", "sequence": 5, "key": "a", "end": "\\xff"},
    ]
    assert "batch of 8 bytes" in malformed["error"]
    assert (end["attests_only"], end["attests"], end["attested"]) == (True, end["offset"], False)


def test_long_values_are_shortened() -> None:
    entries = list(describe_wal(put(WAL, wal()), WAL, limit_bytes=4))
    assert entries[1]["ops"][0]["value"] == "vvvv… (6 bytes more)"


def test_a_whole_manifest() -> None:
    data = manifest()
    head, snapshot, edit, end = check_tiles(describe_manifest(put(MANIFEST, data), MANIFEST), len(data))
    assert (head["file"], head["number"]) == ("manifest", 5)
    assert snapshot["edit"] == {"log_number": 1, "last_sequence": 2}
    assert edit["edit"]["next_file_number"] == 9
    assert edit["edit"]["cursors"] == [{"level": 1, "key": "c"}]
    assert edit["edit"]["removed"] == [{"level": 0, "number": 2}]
    points, ranges = edit["edit"]["added"]
    assert points == {
        "level": 0, "number": 3, "size_bytes": 100, "entries": 2, "deletes": 1, "range_deletes": 0, "smallest": "a",
        "largest": "b\\x0a", "seq_min": 1, "seq_max": 9, "raw_bytes": 7, "created_s": 8,
    }  # fmt: skip
    assert (ranges["range_start"], ranges["range_end"]) == ("x", "y")
    assert "smallest" not in ranges
    assert end["attests_only"]


@pytest.mark.parametrize("kind", ["wal", "manifest"])
def test_damage_is_an_entry(kind: str) -> None:
    path, data = (WAL, wal()) if kind == "wal" else (MANIFEST, manifest())
    describe = describe_wal if kind == "wal" else describe_manifest
    whole = list(describe(put(path, data), path))
    for offset in range(len(data)):
        flipped = data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :]
        entries = check_tiles(describe(put(path, flipped), path), len(data))
        hit = max(i for i, entry in enumerate(whole) if entry["offset"] <= offset)
        assert [entry["type"] for entry in entries].count("damage") == 1
        assert entries[hit]["type"] == "damage"
        assert entries[hit]["attested"] == (hit < len(whole) - 1), "the last record is the witness of all others"
        assert entries[:hit] == json.loads(json.dumps(whole))[:hit] or hit == len(whole) - 1
    for cut in range(len(data)):
        entries = check_tiles(describe(put(path, data[:cut]), path), cut)
        assert all(entry["type"] != "damage" for entry in entries[:-1])


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(Corruption, match="foreign file"):
        describe_wal(put("/copy", manifest()), "/copy")
    with pytest.raises(Corruption, match="foreign file"):
        describe_manifest(put("/copy", b"some text"), "/copy")
