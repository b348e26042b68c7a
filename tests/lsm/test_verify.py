"""Verify finds each kind of planted damage, with file and offset, and changes nothing."""

from __future__ import annotations

import itertools
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import lsm
from labs.crash.workload import SMALL, STORE, run_workload
from lsm.batch import encode_ops
from lsm.cache import BlockCache, TableCache
from lsm.compact import FlushJob, JobContext
from lsm.entry import VALUE
from lsm.filenames import log_name, manifest_name, parse_name, table_name
from lsm.framing import RECORD_HEAD_BYTES
from lsm.manifest import ManifestWriter, encode_edit
from lsm.memtable import make_memtable
from lsm.tables import TableStats
from lsm.version import Edit, TableMeta, Version
from lsm.wal import LogWriter
from simfs.api import SyncLevel
from simfs.memory import MemoryFilesystem, MemoryWorld


def read(fs: MemoryFilesystem, name: str) -> bytes:
    with fs.open(f"{STORE}/{name}") as file:
        return file.pread(0, file.size())


def rewrite(fs: MemoryFilesystem, name: str, content: bytes) -> None:
    with fs.create(f"{STORE}/{name}", exclusive=False) as file:
        file.append(content)


def open_store(fs: MemoryFilesystem, **changes: Any) -> lsm.DB:
    return lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs), **changes)


def damage_of(fs: MemoryFilesystem) -> lsm.Corruption:
    """What a read-only opening and verify raise."""
    with pytest.raises(lsm.Corruption) as caught, open_store(fs, read_only=True) as db:
        db.verify()
    return caught.value


def small_store(**changes: Any) -> MemoryFilesystem:
    fs = MemoryFilesystem()
    with open_store(fs, **changes) as db:
        for number in range(12):
            db[b"k%02d" % number] = b"v%d" % number * 9
        db.delete(b"k03")
        db.delete_range(b"k05", b"k08")
        db.flush()
        db[b"a"] = b"in the log"
    return fs


def test_the_counts() -> None:
    fs = MemoryFilesystem()
    with open_store(fs) as db:
        assert db.verify() == lsm.VerifyReport(0, 0, 0, 1, db.verify().bytes)
        for number in range(9):
            db[b"k%d" % number] = b"v"
        db.flush()
        for number in range(5):
            db[b"k%d" % number] = b"w"
        report = db.verify()
        assert (report.tables, report.entries, report.log_records) == (1, 9, 5)
        assert report.edits >= 2
        sizes = {name: fs.stat(f"{STORE}/{name}").size for name in fs.listdir(STORE)}
        assert report.bytes == sum(size for name, size in sizes.items() if name not in ("CURRENT", "LOCK"))
    with open_store(fs, read_only=True) as db:
        report = db.verify()
        assert (report.tables, report.entries) == (1, 9)
        assert report.log_records == 6  # and the one that attests them


def test_verify_changes_nothing_but_hands_the_buffer_over() -> None:
    recorder = run_workload(lsm.Options.make(None, **SMALL, sync="none"), ops=90, seed=4)
    recorder.db.verify()
    before = recorder.fs.tree()
    recorder.db.verify()
    assert recorder.fs.tree() == before


@pytest.mark.parametrize("table_format", ["block", "scan"])
def test_every_flipped_byte_of_every_live_file(table_format: str) -> None:
    fs = small_store(table_format=table_format)
    tree = fs.tree()
    names = [name for name in fs.listdir(STORE) if name != "LOCK"]
    assert {parsed.kind for name in names if (parsed := parse_name(name))} == {"current", "manifest", "table", "log"}
    for name in names:
        content = read(fs, name)
        # The last record of log and manifest only attests (the manifest's: the log's end): without it they end as
        # after a crash.
        last_bytes = 0 if name.endswith((".sst", "CURRENT")) else RECORD_HEAD_BYTES
        if name.startswith("MANIFEST"):
            last_bytes += len(encode_edit(Edit(closed_log_bytes=200)))
        size = len(content) - last_bytes
        for offset in range(size):
            damaged = MemoryFilesystem(tree=tree)
            flipped = bytes([content[offset] ^ (1 << offset % 8)])
            rewrite(damaged, name, content[:offset] + flipped + content[offset + 1 :])
            error = damage_of(damaged)
            assert error.path == f"{STORE}/{name}", (name, offset, error)
            assert 0 <= error.offset <= len(content)
            assert error.reason


@pytest.mark.parametrize("kind", ["log", "manifest"])
def test_what_a_crash_leaves_at_the_end_is_no_damage(kind: str) -> None:
    fs = small_store()
    name = next(name for name in fs.listdir(STORE) if (parsed := parse_name(name)) and parsed.kind == kind)
    rewrite(fs, name, read(fs, name)[:-5])
    with open_store(fs, read_only=True) as db:
        db.verify()
        assert db[b"a"] == b"in the log"


def test_a_flip_under_an_open_store_is_found_by_verify_alone() -> None:
    """Handles and blocks are cached; verify reads the file."""
    fs = MemoryFilesystem()
    with open_store(fs) as db:
        for number in range(30):
            db[b"k%02d" % number] = b"v" * 20
        db.flush()
        assert len(db) == 30
        name = next(name for name in fs.listdir(STORE) if name.endswith(".sst"))
        content = read(fs, name)
        rewrite(fs, name, content[:10] + bytes([content[10] ^ 1]) + content[11:])
        with pytest.raises(lsm.Corruption) as caught:
            db.verify()
        assert caught.value.path == f"{STORE}/{name}"
        rewrite(fs, name, content)
        db.verify()


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_a_cut_file(cut: int) -> None:
    fs = small_store()
    tree = fs.tree()
    for name in fs.listdir(STORE):
        if name.endswith(".sst") or name == "CURRENT":
            damaged = MemoryFilesystem(tree=tree)
            content = read(fs, name)
            rewrite(damaged, name, content[:-cut])
            error = damage_of(damaged)
            assert error.path == f"{STORE}/{name}"
            assert error.offset <= len(content)


def tables_in(fs: MemoryFilesystem) -> list[str]:
    return [name for name in fs.listdir(STORE) if name.endswith(".sst")]


def test_a_table_replaced_by_another_valid_table() -> None:
    fs = MemoryFilesystem()
    with open_store(fs, strategy="none") as db:
        for _ in range(2):
            for number in range(9):
                db[b"k%d" % number] = b"v" * 20
            db.flush()
    first, second = tables_in(fs)
    assert len(read(fs, first)) == len(read(fs, second))
    rewrite(fs, second, read(fs, first))
    error = damage_of(fs)
    assert error.path == f"{STORE}/{second}"
    assert "number" in error.reason


def test_a_manifest_that_lists_other_tables() -> None:
    fs = MemoryFilesystem()
    with open_store(fs, strategy="none") as db:
        db[b"a"] = b"1"
        db.flush()
        db[b"b"] = b"2"
        db.flush()
        level, table = next(iter(db.version.tables()))
        manifest = next(name for name in fs.listdir(STORE) if name.startswith("MANIFEST"))
        number = int(manifest.removeprefix("MANIFEST-"))
        fs.rename(f"{STORE}/{manifest}", "/kept")
        other = ManifestWriter.create(fs, STORE, number, Edit(added=((level, table),)), level=SyncLevel.FSYNC)
        other.finish()
        with pytest.raises(lsm.Corruption, match="lists other tables than are in force") as caught:
            db.verify()
        assert caught.value.path == f"{STORE}/{manifest}"
        fs.rename("/kept", f"{STORE}/{manifest}")
        db.verify()


def test_current_that_names_another_manifest() -> None:
    fs = MemoryFilesystem()
    with open_store(fs) as db:
        db[b"a"] = b"1"
        current = read(fs, "CURRENT")
        ManifestWriter.create(fs, STORE, 77, Edit(), level=SyncLevel.FSYNC).close()
        with pytest.raises(lsm.Corruption, match=r"expected MANIFEST-.*found MANIFEST-000077"):
            db.verify()
        rewrite(fs, "CURRENT", current)
        db.verify()


def test_damage_in_the_log_under_an_open_store() -> None:
    fs = MemoryFilesystem()
    with open_store(fs) as db:
        for number in range(5):
            db[b"k%d" % number] = b"v"
        name = next(name for name in fs.listdir(STORE) if name.endswith(".log"))
        content = read(fs, name)
        rewrite(fs, name, content[:-3] + bytes([content[-3] ^ 16]) + content[-2:])
        with pytest.raises(lsm.Corruption, match="checksum") as caught:
            db.verify()
        assert caught.value.path == f"{STORE}/{name}"
        assert 0 < caught.value.offset < len(content)
        rewrite(fs, name, content)


def hand_built(places: list[tuple[int, int, bytes]]) -> MemoryFilesystem:
    """A store of one-entry tables for the key b"k": (level, sequence, value) each."""
    fs = MemoryFilesystem()
    fs.mkdir(STORE)
    numbers = itertools.count(10)
    options = lsm.Options()
    added: list[tuple[int, TableMeta]] = []
    for level, sequence, value in places:
        memtable = make_memtable("hash")
        memtable.put(b"k", sequence, value, -1)
        context = JobContext(
            fs=fs,
            directory=STORE,
            options=options,
            tables=TableCache(fs, STORE, options, BlockCache(0), TableStats()),
            new_file_number=lambda: next(numbers),
            snapshots=(),
            version=Version.empty(7),
            sync=True,
            now_s=0,
            log_floor=3,
            pending_obsolete=(),
        )
        job = FlushJob(context, [memtable])
        for _ in job:
            pass
        added.append((level, job.outputs[0]))
    last = max(sequence for _, sequence, _ in places)
    LogWriter.create(
        fs, f"{STORE}/{log_name(3)}", number=3, first_sequence=last + 1, predecessor=None, buffer_bytes=0
    ).close()
    edit = Edit(added=tuple(added), log_number=3, next_file_number=90, last_sequence=last)
    ManifestWriter.create(fs, STORE, 80, edit, level=SyncLevel.FSYNC).finish()
    return fs


def test_a_deeper_level_that_is_newer() -> None:
    fs = hand_built([(0, 9, b"newest"), (1, 4, b"old"), (2, 5, b"newer, but deeper")])
    with open_store(fs, read_only=True) as db:
        with pytest.raises(lsm.Corruption, match="newer version than a shallower table") as caught:
            db.verify()
        assert caught.value.path == f"{STORE}/{table_name(12)}"
    with open_store(hand_built([(0, 9, b"newest"), (1, 5, b"old"), (2, 4, b"older")]), read_only=True) as db:
        assert db.verify().entries == 3


def test_level_0_out_of_order_is_no_valid_manifest() -> None:
    fs = hand_built([(0, 9, b"newest"), (0, 9, b"twin")])
    error = damage_of(fs)
    assert error.path == f"{STORE}/{manifest_name(80)}"
    assert "no valid version" in error.reason


def test_payloads_with_a_fitting_checksum_and_wrong_sequences() -> None:
    fs = MemoryFilesystem()
    with open_store(fs) as db:
        db[b"a"] = b"1"
        assert db._log is not None
        db._log.append(encode_ops(1, ((VALUE, b"b", b"2"),)), SyncLevel.FLUSH)
    error = damage_of(fs)
    assert "expected sequence 2, found 1" in error.reason


def test_the_command_exits_with_4_and_names_file_and_offset(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "store"
    with lsm.open(path) as db:
        for number in range(50):
            db[b"key-%03d" % number] = b"value" * 4
        db.flush()

    def verify() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "labs", "db", str(path), "verify"], capture_output=True, text=True, check=False
        )

    assert verify().returncode == 0
    table = next(path.glob("*.sst"))
    content = table.read_bytes()
    before = {file.name for file in path.iterdir()}
    for offset in (0, len(content) // 3, len(content) - 1):
        table.write_bytes(content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :])
        done = verify()
        assert done.returncode == 4, done
        assert f"{table}: offset " in done.stderr
    assert {file.name for file in path.iterdir()} == before
