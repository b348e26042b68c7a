"""A whole small store: each file cut at every byte, each byte flipped, somebody else's file in its place.

What may come of it:

| store           | flipped byte                          | cut                                                      |
| --------------- | ------------------------------------- | -------------------------------------------------------- |
| closed cleanly  | everything, or `Corruption`           | the same: the manifest's last record says how much of    |
|                 |                                       | the log there was                                        |
| killed          | a prefix of the writes that holds all | a prefix, or `Corruption`                                |
|                 | attested ones, or `Corruption`        |                                                          |

`Corruption` names the damaged file and an offset in it, or the file that the damage makes one miss. An opening that is
refused changes no byte.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

import pytest

import lsm
from lsm.filenames import parse_name
from lsm.framing import HEADER_BYTES, RECORD_HEAD_BYTES, encode_header
from lsm.manifest import MANIFEST_MAGIC
from lsm.sections import FOOTER_BYTES
from lsm.wal import WAL_MAGIC
from simfs.memory import MemoryFilesystem, MemoryWorld

STORE = "/db"
LAST_RECORD_BYTES = RECORD_HEAD_BYTES + 4  # of the log: empty; of the manifest: how much of the log is durable
OPTIONS = lsm.Options.make(None, strategy="none", block_size=64, sync="flush")
Content = dict[bytes, bytes]


@dataclass(frozen=True)
class Store:
    """A store's files, and what it may hold: the content after each write that is not in a table."""

    files: dict[str, bytes]
    states: list[Content]
    attested: int  # so many of these writes were synced, and later records say so
    clean: bool


@functools.cache
def store(clean: bool) -> Store:
    """Two tables, one of each format, a range delete, and a log of five writes, the first two of them synced."""
    fs = MemoryFilesystem(record=False)
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(fs), table_format="scan") as db:
        for number in range(4):
            db.put(b"s%d" % number, b"scan")
        db.flush()
    db = lsm.open(STORE, OPTIONS, world=MemoryWorld(fs))
    for number in range(6):
        db.put(b"b%d" % number, b"block%d" % number)
    db.delete_range(b"s1", b"s3")
    db.flush()
    states = [dict(db.scan())]
    late = [(b"b1", b"new", "fsync"), (b"l1", b"log", "fsync"), (b"l2", b"log", None), (b"s0", b"", None)]
    for key, value, sync in [*late, (b"z", b"9", None)]:
        db.put(key, value, sync)
        states.append(dict(db.scan()))
    if clean:
        db.close()
    files = contents(fs)
    assert sorted(parsed.kind for name in files if (parsed := parse_name(name))) == [
        "current", "lock", "log", "manifest", "table", "table",
    ]  # fmt: skip
    return Store(files, states, 2, clean)


def contents(fs: MemoryFilesystem) -> dict[str, bytes]:
    found = {}
    for name in fs.listdir(STORE):
        with fs.open(f"{STORE}/{name}") as file:
            found[name] = file.pread(0, file.size())
    return found


def disk_of(files: dict[str, bytes]) -> MemoryFilesystem:
    fs = MemoryFilesystem(record=False)
    fs.mkdir(STORE)
    for name, data in files.items():
        with fs.create(f"{STORE}/{name}") as file:
            file.append(data)
    return fs


def read_all(files: dict[str, bytes]) -> Content | lsm.Corruption:
    """Open the store, get, scan and verify. What it holds, or the `Corruption` that was raised."""
    fs = disk_of(files)
    try:
        db = lsm.open(STORE, OPTIONS, world=MemoryWorld(fs))
    except lsm.Corruption as error:
        assert contents(fs) == files, "a refused opening changed files"
        assert not fs.locks
        return error
    damage: lsm.Corruption | None = None
    try:
        found = dict(db.scan())
        backward = dict(db.scan(reverse=True))
        assert backward == found
        for key in KEYS:
            assert db.get(key) == found.get(key)
        db.verify()
        return found
    except lsm.Corruption as error:
        damage = error
    finally:
        db.close()
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk_of(files))) as db:  # each single get is right or says so, too
        for key in KEYS:
            try:
                answer = db.get(key)
            except lsm.Corruption:
                continue
            assert answer in [state.get(key) for state in store(True).states], key
    return damage


KEYS = sorted({key for state in store(True).states for key in state} | {b"s1", b"s2", b"nothing"})


def check(base: Store, name: str, damaged: bytes, admissible: list[Content], note: str) -> bool:
    """One damaged file. True if it was noticed."""
    outcome = read_all({**base.files, name: damaged})
    if isinstance(outcome, lsm.Corruption):
        assert outcome.reason, note
        assert outcome.path.startswith(f"{STORE}/"), note
        if outcome.path == f"{STORE}/{name}":
            assert 0 <= outcome.offset <= max(len(damaged), len(base.files[name])), note
        else:  # what the damaged file no longer accounts for
            assert parse_name(outcome.path.rpartition("/")[2]), note
        return True
    assert outcome in admissible, f"{note}: served {outcome}"
    return False


def names(base: Store) -> list[str]:
    return [name for name in base.files if name != "LOCK"]


CASES = [
    (clean, name) for clean in (True, False) for name in names(store(clean)) if clean or not name.endswith(".sst")
]  # tables are the same in both


@pytest.mark.parametrize(("clean", "name"), CASES)
def test_every_byte_flipped(clean: bool, name: str) -> None:
    base = store(clean)
    data = base.files[name]
    admissible = base.states[-1:] if clean or not name.endswith(".log") else base.states[base.attested :]
    noticed = 0
    for offset in range(len(data)):
        damaged = data[:offset] + bytes([data[offset] ^ (1 << offset % 8)]) + data[offset + 1 :]
        noticed += check(base, name, damaged, admissible, f"{name}: byte {offset} flipped")
    if name.endswith(".sst") or name == "CURRENT":
        assert noticed == len(data), "a flipped byte of a table or of CURRENT is always noticed"
    elif clean:
        # All but the last record, which attests the others and is itself attested by none.
        assert noticed >= len(data) - LAST_RECORD_BYTES
    elif name.endswith(".log"):
        assert noticed >= HEADER_BYTES + 2 * RECORD_HEAD_BYTES


@pytest.mark.parametrize(("clean", "name"), CASES)
def test_cut_at_every_byte(clean: bool, name: str) -> None:
    base = store(clean)
    data = base.files[name]
    admissible = base.states if name.endswith(".log") and not clean else base.states[-1:]
    noticed = sum(
        check(base, name, data[:size], admissible, f"{name}: cut to {size} bytes") for size in range(len(data))
    )
    if name.endswith(".sst") or name == "CURRENT":
        assert noticed == len(data)
    elif clean:
        assert noticed >= len(data) - LAST_RECORD_BYTES


@pytest.mark.parametrize(("clean", "name"), CASES)
def test_a_missing_file_is_noticed_or_does_no_harm(clean: bool, name: str) -> None:
    base = store(clean)
    outcome = read_all({other: data for other, data in base.files.items() if other != name})
    if name == "CURRENT":  # a rename that a crash cut in two: the manifest is found without it
        assert outcome == base.states[-1]
    else:
        assert isinstance(outcome, lsm.Corruption)


@pytest.mark.parametrize(("clean", "name"), CASES)
@pytest.mark.parametrize("extra", [b"\0", b"x", bytes(700), b"not a record " * 50])
def test_bytes_behind_the_end(clean: bool, name: str, extra: bytes) -> None:
    base = store(clean)
    noticed = check(base, name, base.files[name] + extra, base.states[-1:], f"{name}: {len(extra)} bytes more")
    assert noticed or not name.endswith(".sst")


# Somebody else's files, and those of a later version of this program

FOREIGN = {
    "text": b"Dear diary, this is not a database.\n" * 20,
    "an image": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3,
    "an SQLite file": b"SQLite format 3\0" + bytes(500),
    "an archive": b"PK\x03\x04" + bytes(range(256)) * 2,
}


@pytest.mark.parametrize(
    ("name", "what"),
    [(name, what) for name in names(store(True)) for what in FOREIGN],
)
def test_a_foreign_file(name: str, what: str) -> None:
    base = store(True)
    files = {**base.files, name: FOREIGN[what]}
    fs = disk_of(files)
    with pytest.raises(lsm.Corruption) as caught:
        lsm.open(STORE, OPTIONS, world=MemoryWorld(fs))
    assert caught.value.path == f"{STORE}/{name}"
    assert caught.value.reason
    assert contents(fs) == files


def newer_log(data: bytes) -> bytes:
    return _newer_header(data, WAL_MAGIC)


def newer_manifest(data: bytes) -> bytes:
    return _newer_header(data, MANIFEST_MAGIC)


def _newer_header(data: bytes, magic: bytes) -> bytes:
    """The head that a later version would write, under a right checksum, over records that we need not understand."""
    head = bytearray(data[:HEADER_BYTES])
    assert bytes(head) == encode_header(
        magic, int.from_bytes(head[12:20], "little"), int.from_bytes(head[20:28], "little")
    )
    head[8:10] = (2).to_bytes(2, "little")
    head[28:] = crc32(head[:28]).to_bytes(4, "little")
    return bytes(head) + b"records of a later version" * 4


def newer_table(data: bytes) -> bytes:
    footer = bytearray(data[-FOOTER_BYTES:])
    footer[40:42] = (9).to_bytes(2, "little")
    footer[43:47] = crc32(footer[47:], crc32(footer[:43])).to_bytes(4, "little")
    return data[:-FOOTER_BYTES] + bytes(footer)


NEWER: dict[str, Callable[[bytes], bytes]] = {"log": newer_log, "manifest": newer_manifest, "table": newer_table}


def newer_cases() -> Iterator[tuple[str, str]]:
    for name in names(store(True)):
        parsed = parse_name(name)
        if parsed is not None and parsed.kind in NEWER:
            yield name, parsed.kind


@pytest.mark.parametrize(("name", "kind"), list(newer_cases()))
def test_a_file_of_a_newer_version(name: str, kind: str) -> None:
    base = store(True)
    files = {**base.files, name: NEWER[kind](base.files[name])}
    fs = disk_of(files)
    with (
        pytest.raises(lsm.Corruption, match="version") as caught,
        lsm.open(STORE, OPTIONS, world=MemoryWorld(fs), read_only=True) as db,
    ):
        dict(db.scan())
    assert caught.value.path == f"{STORE}/{name}"
    assert contents(fs) == files


def test_repair_moves_damage_aside_and_serves_what_is_left() -> None:
    """One table with a flipped byte: the rest is kept, the table is listed and lies in lost/."""
    base = store(True)
    name = next(name for name in base.files if name.endswith(".sst"))
    data = base.files[name]
    damaged = data[:3] + bytes([data[3] ^ 1]) + data[4:]
    fs = disk_of({**base.files, name: damaged})
    report = lsm.repair(STORE, OPTIONS, world=MemoryWorld(fs))
    assert any(name in line for line in report.dropped)
    with fs.open(f"{STORE}/lost/{name}") as file:
        assert file.pread(0, file.size()) == damaged
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(fs)) as db:
        found = dict(db.scan())
        db.verify()
    assert found
    assert found.items() < base.states[-1].items()
