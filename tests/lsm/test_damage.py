"""A whole store, each file cut at every byte and every byte flipped: the right answer, or `Corruption` that says where.

    table, CURRENT          every flip and every cut is noticed by open, scan or verify; what is served is right
    log, manifest           a flip is noticed or harmless; a cut may look like a crash: an admissible prefix
    last record of a log    attested by nobody unless the store was closed: damage there may look like a torn tail

A failed opening changes no file.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from zlib import crc32

import pytest

import lsm
from simfs.memory import MemoryFilesystem, MemoryWorld

STORE = "/db"
OPTIONS = lsm.Options.make(
    None, sync="fsync", strategy="none", block_size=64, compression="zlib", max_manifest_file_size=1 << 20
)
Files = dict[str, bytes]


@functools.cache
def life(closed: bool) -> tuple[Files, tuple[dict[bytes, bytes], ...]]:
    """The files of a store with tables of both formats and writes in its log; the contents it may be found with."""
    fs = MemoryFilesystem(record=False)
    states: list[dict[bytes, bytes]] = []
    db = lsm.open(STORE, OPTIONS, world=MemoryWorld(fs))
    for number in range(6):
        db.put(b"a%d" % number, b"block-%d" % number)
    db.delete_range(b"a1", b"a3")
    db.flush()
    db.close()
    db = lsm.open(STORE, OPTIONS, world=MemoryWorld(fs), table_format="scan")
    db.put(b"a5", b"scan")
    db.delete(b"a0")
    db.flush()
    states.append(dict(db.scan()))
    for number in range(4):
        db.put(b"c%d" % number, b"log-%d" % number)
        states.append(dict(db.scan()))
    db.delete(b"a4")
    states.append(dict(db.scan()))
    if closed:
        db.close()
    return contents(fs), tuple(states)


def contents(fs: MemoryFilesystem) -> Files:
    """Every file but the lock."""
    found: Files = {}
    for name in fs.listdir(STORE):
        if name != "LOCK":
            with fs.open(f"{STORE}/{name}") as file:
                found[name] = file.pread(0, file.size())
    return found


def disk_of(files: Files) -> MemoryFilesystem:
    fs = MemoryFilesystem(record=False)
    fs.mkdir(STORE)
    for name, content in files.items():
        with fs.create(f"{STORE}/{name}") as file:
            file.append(content)
    return fs


def look(files: Files) -> tuple[dict[bytes, bytes] | None, lsm.Corruption | None]:
    """Open, read all, verify. The content, if it could be read; the complaint, if there was one."""
    fs = disk_of(files)
    found = None
    try:
        db = lsm.open(STORE, OPTIONS, world=MemoryWorld(fs))
    except lsm.Corruption as error:
        assert contents(fs) == files, "a failed opening changed a file"
        complain(error)
        return None, error
    try:
        found = dict(db.scan())
        assert {key: db.get(key) for key in found} == found
        db.verify()
    except lsm.Corruption as error:
        complain(error)
        return found, error
    finally:
        db.close()
    return found, None


def complain(error: lsm.Corruption) -> None:
    """What a complaint must tell."""
    assert error.path.startswith(f"{STORE}/")
    assert error.offset >= 0
    assert error.reason


def names(closed: bool, kind: str) -> list[str]:
    suffix = {"table": ".sst", "log": ".log"}.get(kind)
    return [name for name in life(closed)[0] if (name.endswith(suffix) if suffix else name.startswith(kind))]


def damaged(name: str, closed: bool, change: Callable[[bytes, int], bytes]) -> list[tuple[int, Files]]:
    files = life(closed)[0]
    content = files[name]
    return [(at, {**files, name: change(content, at)}) for at in range(len(content))]


def cut(content: bytes, at: int) -> bytes:
    return content[:at]


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


def test_the_store_has_what_is_to_be_damaged() -> None:
    for closed in (False, True):
        files, states = life(closed)
        magics = {content[-8:] for name, content in files.items() if name.endswith(".sst")}
        assert len(names(closed, "table")) >= 2
        assert len(magics) == 2, "tables of one format only"
        assert len(names(closed, "log")) == len(names(closed, "MANIFEST")) == len(names(closed, "CURRENT")) == 1
        assert look(files) == (states[-1], None)


@pytest.mark.parametrize("change", [cut, flip])
@pytest.mark.parametrize("kind", ["table", "CURRENT"])
def test_damage_in_tables_and_current_is_always_noticed(kind: str, change: Callable[[bytes, int], bytes]) -> None:
    final = life(True)[1][-1]
    for name in names(True, kind):
        for at, files in damaged(name, True, change):
            found, complaint = look(files)
            assert complaint is not None, f"{change.__name__} of {name} at {at} went unnoticed"
            assert complaint.path == f"{STORE}/{name}"
            assert found in (None, final), f"{change.__name__} of {name} at {at}: wrong content was served"


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("change", [cut, flip])
@pytest.mark.parametrize("kind", ["log", "MANIFEST"])
def test_damage_in_logs_and_manifests_gives_a_prefix_at_worst(
    kind: str, change: Callable[[bytes, int], bytes], closed: bool
) -> None:
    states = life(closed)[1]
    complaints = 0
    for name in names(closed, kind):
        for at, files in damaged(name, closed, change):
            found, complaint = look(files)
            complaints += complaint is not None
            where = f"{change.__name__} of {name} at {at}, closed {closed}"
            assert found is None or found in states, where
            if change is flip and closed and complaint is None:
                assert found == states[-1], f"{where}: an attested record went missing in silence"
            if change is flip and not closed and complaint is None:
                assert found in states[-2:], f"{where}: more than the last record went missing in silence"
    if kind == "MANIFEST" or change is flip:
        assert complaints > 10
    else:
        assert complaints == 0, "a log that ends early is what a crash leaves"


@pytest.mark.parametrize("kind", ["table", "log", "MANIFEST", "CURRENT"])
@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\nexit 0\n" * 40, bytes(600), b"\xff" * 600])
def test_a_foreign_file_is_refused_or_no_loss(kind: str, content: bytes) -> None:
    files, states = life(True)
    (name, *_) = names(True, kind)
    found, complaint = look({**files, name: content})
    if kind == "log" and not content.strip(b"\0\xff"):
        assert found in (None, states[0])  # what a crash may leave of a log that was never synced
    else:
        assert complaint is not None
        assert complaint.path == f"{STORE}/{name}"


def newer(kind: str, content: bytes) -> bytes:
    """The same file, if format version 99 had written it: with a checksum that fits."""
    if kind == "table":
        head, magic = content[-55:-12], content[-8:]
        head = head[:40] + struct.pack("<H", 99) + head[42:]
        return content[:-55] + head + struct.pack("<I", crc32(magic, crc32(head))) + magic
    head = content[:8] + struct.pack("<H", 99) + content[10:28]
    return head + struct.pack("<I", crc32(head)) + content[32:]


@pytest.mark.parametrize("kind", ["table", "log", "MANIFEST"])
def test_a_file_of_a_newer_version_is_refused_and_named(kind: str) -> None:
    files = life(True)[0]
    for name in names(True, kind):
        found, complaint = look({**files, name: newer(kind, files[name])})
        assert found is None
        assert complaint is not None
        assert complaint.path == f"{STORE}/{name}"
        assert "version 99" in complaint.reason
