"""Opening and closing: locks, modes, what is refused, and that nothing is left held."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import lsm
from labs.crash.workload import SMALL, STORE, run_workload
from lsm.filenames import parse_name
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.trace import Operation, TracedFilesystem


def filled(fs: MemoryFilesystem, **changes: Any) -> dict[bytes, bytes]:
    with lsm.open(STORE, world=MemoryWorld(fs), **changes) as db:
        for number in range(20):
            db[b"k%02d" % number] = b"v%d" % number
        db.flush()
        db[b"log"] = b"1"
        return dict(db)


def log_of(fs: MemoryFilesystem) -> str:
    return next(f"{STORE}/{name}" for name in fs.listdir(STORE) if name.endswith(".log"))


def damage(fs: MemoryFilesystem, path: str, offset: int) -> None:
    with fs.open(path) as file:
        content = bytearray(file.pread(0, file.size()))
    content[offset] ^= 0x10
    with fs.create(path, exclusive=False) as file:
        file.append(bytes(content))


# The lock


def test_a_second_opener_in_this_process_is_told_what_to_do(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "store"
    with lsm.open(path) as db:
        for attempt in (lambda: lsm.open(path), lambda: lsm.repair(path), lambda: lsm.destroy(path)):
            with pytest.raises(BlockingIOError, match="open elsewhere") as caught:
                attempt()
            assert caught.value.filename == str(path)
        db[b"a"] = b"1"
    with lsm.open(path) as db:
        assert db[b"a"] == b"1"


def test_a_second_process_is_told_too(tmp_path: pathlib.Path) -> None:
    script = "import sys, lsm\ntry:\n    lsm.open(sys.argv[1])\nexcept BlockingIOError as e:\n    print(e)"
    with lsm.open(tmp_path / "store"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "store")], capture_output=True, text=True, check=True
        )
    assert "open elsewhere" in done.stdout
    assert not done.stderr


def test_a_read_only_opening_takes_no_lock(tmp_path: pathlib.Path) -> None:
    with lsm.open(tmp_path / "store") as db:
        db[b"a"] = b"1"
        with lsm.open(tmp_path / "store", read_only=True) as first, lsm.open(tmp_path / "store", read_only=True) as two:
            assert first[b"a"] == two[b"a"] == b"1"


# What may be created


def test_create_if_missing_and_error_if_exists() -> None:
    fs = MemoryFilesystem()
    with pytest.raises(lsm.InvalidArgument, match="create_if_missing is off"):
        lsm.open(STORE, world=MemoryWorld(fs), create_if_missing=False)
    assert fs.listdir("/") == []
    fs.mkdir(STORE)
    with pytest.raises(lsm.InvalidArgument, match="no store here"):
        lsm.open(STORE, world=MemoryWorld(fs), create_if_missing=False)
    lsm.open(STORE, world=MemoryWorld(fs), error_if_exists=True).close()
    with pytest.raises(lsm.InvalidArgument, match="error_if_exists"):
        lsm.open(STORE, world=MemoryWorld(fs), error_if_exists=True)
    lsm.open(STORE, world=MemoryWorld(fs), create_if_missing=False).close()
    assert not fs.locks


def test_missing_parents_are_made_durably() -> None:
    fs = MemoryFilesystem()
    with lsm.open("/a/b/c", world=MemoryWorld(fs)) as db:
        db.put(b"k", b"v", sync="fsync")
    image = fs.crash_image("power")
    with lsm.open("/a/b/c", world=MemoryWorld(image), create_if_missing=False) as db:
        assert dict(db) == {b"k": b"v"}


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_names_nothing(path: str) -> None:
    with pytest.raises(lsm.InvalidArgument, match="expected the name of a folder"):
        lsm.open(path)


@pytest.mark.parametrize("path", [None, 7, b"bytes", ["a"]])
def test_a_path_of_another_type(path: Any) -> None:
    with pytest.raises(TypeError, match="path: expected str"):
        lsm.open(path)


class OfBytes:
    def __fspath__(self) -> Any:
        return b"/db"


def test_a_path_object_of_bytes() -> None:
    with pytest.raises(TypeError, match="path: expected str, got bytes"):
        lsm.open(OfBytes())


@pytest.mark.parametrize("read_only", [False, True])
def test_a_path_that_is_a_file(tmp_path: pathlib.Path, read_only: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(NotADirectoryError):
        lsm.open(path, read_only=read_only)
    with pytest.raises(NotADirectoryError):
        lsm.repair(path)
    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["file"]


def test_relative_paths_and_trailing_slashes_are_one_store(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lsm.open("store///") as db:
        db[b"a"] = b"1"
        assert db.path == "store"
    with lsm.open(tmp_path / "store") as db:
        assert db[b"a"] == b"1"


# Read-only


REFUSED: dict[str, Callable[[lsm.DB], object]] = {
    "put": lambda db: db.put(b"a", b"1"),
    "setitem": lambda db: db.__setitem__(b"a", b"1"),
    "delete": lambda db: db.delete(b"a"),
    "delitem": lambda db: db.__delitem__(b"log"),
    "delete_range": lambda db: db.delete_range(b"a", b"z"),
    "write": lambda db: db.write(batch()),
    "flush": lambda db: db.flush(),
    "compact": lambda db: db.compact(),
    "sync": lambda db: db.sync(),
    "checkpoint": lambda db: db.checkpoint("/copy"),
    "clear": lambda db: db.clear(),
    "popitem": lambda db: db.popitem(),
}


def batch() -> lsm.WriteBatch:
    made = lsm.WriteBatch()
    made.put(b"a", b"1")
    return made


def test_read_only_sees_everything_and_writes_nothing() -> None:
    fs = MemoryFilesystem()
    expected = filled(fs)
    before, logged = fs.tree(), len(fs.log)
    with lsm.open(STORE, world=MemoryWorld(fs), read_only=True) as db:
        assert dict(db.scan()) == expected
        assert dict(db.scan(reverse=True)) == expected
        assert db[b"log"] == b"1"
        with db.snapshot() as moment:
            assert moment.multi_get([b"k03", b"nothing"]) == [b"v3", None]
        assert db.verify().tables == 1
        assert db.metrics(exact_space=True).space_amp.denominator == sum(len(k) + len(v) for k, v in expected.items())
        for name, call in REFUSED.items():
            with pytest.raises(lsm.InvalidArgument, match="read-only"):
                call(db)
            assert dict(db.scan()) == expected, name
    assert fs.tree() == before
    assert len(fs.log) == logged


def test_read_only_makes_no_store() -> None:
    fs = MemoryFilesystem()
    for _ in range(2):
        with pytest.raises((lsm.InvalidArgument, FileNotFoundError)):
            lsm.open(STORE, world=MemoryWorld(fs), read_only=True)
        assert not fs.log or fs.listdir(STORE) == []
        if not fs.exists(STORE):
            fs.mkdir(STORE)


def test_read_only_of_a_killed_store_with_unfinished_work() -> None:
    recorder = run_workload(lsm.Options.make(None, **SMALL), ops=90, seed=6)
    for position in range(0, len(recorder.fs.log) + 1, 9):
        image = recorder.fs.crash_image("kill", at=position)
        if not image.exists(STORE):
            continue
        before = image.tree()
        try:
            with lsm.open(STORE, recorder.options, world=MemoryWorld(image), read_only=True) as db:
                assert not recorder.history.judge(dict(db.scan()), "kill", position).problem
        except lsm.InvalidArgument as error:
            assert "no store here" in str(error)  # noqa: PT017 (both outcomes are lawful)
        assert image.tree() == before


# CURRENT


def test_a_missing_current_is_found_again() -> None:
    fs = MemoryFilesystem()
    expected = filled(fs)
    fs.remove(f"{STORE}/CURRENT")
    with lsm.open(STORE, world=MemoryWorld(fs), create_if_missing=False) as db:
        assert dict(db) == expected
    assert fs.exists(f"{STORE}/CURRENT")


def test_a_stale_manifest_is_not_taken_for_a_damaged_newer_one() -> None:
    """CURRENT gone, the newest manifest damaged in its middle, and an older one that a crash brought back."""
    fs = MemoryFilesystem()
    filled(fs)
    stale = next(name for name in fs.listdir(STORE) if name.startswith("MANIFEST"))
    fs.link(f"{STORE}/{stale}", "/stale")
    expected = filled(fs)
    fs.link("/stale", f"{STORE}/{stale}")
    newest = max(name for name in fs.listdir(STORE) if name.startswith("MANIFEST"))
    assert newest != stale
    fs.remove(f"{STORE}/CURRENT")
    damage(fs, f"{STORE}/{newest}", 90)
    before = fs.tree()
    with pytest.raises(lsm.Corruption) as caught:
        lsm.open(STORE, world=MemoryWorld(fs))
    assert caught.value.path == f"{STORE}/{newest}"
    assert {k: v for k, v in fs.tree().files.items() if v} == {k: v for k, v in before.files.items() if v}
    lsm.repair(STORE, world=MemoryWorld(fs))
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        assert dict(db) == expected


def test_tables_without_any_manifest_ask_for_repair() -> None:
    fs = MemoryFilesystem()
    filled(fs)
    for name in fs.listdir(STORE):
        if name.startswith(("MANIFEST", "CURRENT")):
            fs.remove(f"{STORE}/{name}")
    with pytest.raises(lsm.Corruption, match="run repair") as caught:
        lsm.open(STORE, world=MemoryWorld(fs))
    assert caught.value.path == f"{STORE}/CURRENT"


@pytest.mark.parametrize("kind", ["table", "log", "manifest"])
def test_a_missing_file_is_named(kind: str) -> None:
    fs = MemoryFilesystem()
    filled(fs)
    gone = next(name for name in fs.listdir(STORE) if (parsed := parse_name(name)) and parsed.kind == kind)
    fs.remove(f"{STORE}/{gone}")
    with pytest.raises(lsm.Corruption, match="run repair") as caught:
        lsm.open(STORE, world=MemoryWorld(fs))
    assert gone in str(caught.value)
    assert not fs.locks


# After close


CLOSED: dict[str, Callable[[lsm.DB], object]] = {
    **REFUSED,
    "get": lambda db: db.get(b"a"),
    "getitem": lambda db: db[b"a"],
    "contains": lambda db: b"a" in db,
    "len": len,
    "bool": bool,
    "iter": list,
    "reversed": lambda db: list(reversed(db)),
    "items": lambda db: list(db.items()),
    "values": lambda db: list(db.values()),
    "keys": lambda db: list(db.keys()),
    "pop": lambda db: db.pop(b"a"),
    "setdefault": lambda db: db.setdefault(b"a", b"1"),
    "multi_get": lambda db: db.multi_get([b"a"]),
    "scan": lambda db: db.scan(),
    "snapshot": lambda db: db.snapshot(),
    "verify": lambda db: db.verify(),
    "metrics": lambda db: db.metrics(),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_store_refuses_everything(name: str) -> None:
    fs = MemoryFilesystem()
    filled(fs)
    db = lsm.open(STORE, world=MemoryWorld(fs))
    moment = db.snapshot()
    db.close()
    db.close()
    before = len(fs.log)
    assert db.closed
    with pytest.raises(lsm.InvalidArgument, match="closed"):
        CLOSED[name](db)
    with pytest.raises(lsm.InvalidArgument, match="closed"):
        moment.get(b"a")
    moment.release()
    assert len(fs.log) == before
    assert "closed" in repr(db)


def test_an_exception_inside_with_closes_and_passes_through() -> None:
    fs = MemoryFilesystem()

    def fail(db: lsm.DB) -> None:
        db[b"a"] = b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), lsm.open(STORE, world=MemoryWorld(fs)) as db:
        fail(db)
    assert db.closed
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        assert db[b"a"] == b"1"


# A failed opening


@pytest.mark.parametrize("operation", ["create", "append", "sync", "sync_dir", "rename", "remove", "open", "pread"])
def test_a_failed_opening_gives_lock_and_handles_back(operation: str) -> None:
    fs = MemoryFilesystem()
    expected = filled(fs)
    failures = 0
    for nth in range(1, 12):
        image = MemoryFilesystem(tree=fs.tree())
        seen: list[Operation] = []
        faulty = FaultyFilesystem(image, f"error(EIO) @ {operation}(nth={nth})")
        world = MemoryWorld(TracedFilesystem(faulty, seen.append, MemoryWorld().runtime))
        try:
            lsm.open(STORE, world=world).close()
        except OSError:
            failures += 1
        opened = sum(op.operation in ("open", "create") and not op.error for op in seen)
        closed = len([op for op in seen if op.operation == "close"])
        assert closed >= opened, (operation, nth)
        assert not image.locks
        with lsm.open(STORE, world=MemoryWorld(image)) as db:
            assert dict(db) == expected
            db.verify()
    assert failures > 0


# Recovery modes


def damaged_middle() -> MemoryFilesystem:
    """Ten records, cleanly closed, so all attested; the middle one damaged."""
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        for number in range(10):
            db[b"k%d" % number] = b"v"
    path = log_of(fs)
    size = fs.stat(path).size
    damage(fs, path, size // 2)
    return fs


@pytest.mark.parametrize("mode", ["tolerate_torn_tail", "absolute"])
def test_a_damaged_middle_is_refused(mode: str) -> None:
    fs = damaged_middle()
    before = fs.tree().files
    with pytest.raises(lsm.Corruption, match="wal_recovery_mode") as caught:
        lsm.open(STORE, world=MemoryWorld(fs), wal_recovery_mode=mode)
    assert caught.value.path == log_of(fs)
    assert 0 < caught.value.offset < fs.stat(log_of(fs)).size
    assert fs.tree().files == before
    assert not fs.locks


def test_point_in_time_keeps_what_was_before_the_damage() -> None:
    fs = damaged_middle()
    with lsm.open(STORE, world=MemoryWorld(fs), wal_recovery_mode="point_in_time") as db:
        kept = list(db)
        db[b"after"] = b"1"
    assert kept == [b"k%d" % number for number in range(len(kept))]
    assert 2 <= len(kept) <= 7
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        assert list(db) == sorted([*kept, b"after"])


def test_skip_corrupted_keeps_all_but_the_damaged_record() -> None:
    fs = damaged_middle()
    dropped: list[Any] = []
    with lsm.open(STORE, world=MemoryWorld(fs), wal_recovery_mode="skip_corrupted", listener=dropped.append) as db:
        assert len(db) == 9
    assert any(getattr(event, "dropped", ()) for event in dropped)
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        assert len(db) == 9


@pytest.mark.parametrize("mode", ["tolerate_torn_tail", "point_in_time", "skip_corrupted"])
def test_a_torn_tail_is_cut(mode: str) -> None:
    fs = MemoryFilesystem()
    db = lsm.open(STORE, world=MemoryWorld(fs))
    for number in range(10):
        db[b"k%d" % number] = b"v"
    image = fs.crash_image("kill")
    path = log_of(image)
    with image.open(path, write=True) as file:
        file.truncate(file.size() - 3)
    absolute = MemoryFilesystem(tree=image.tree())
    with lsm.open(STORE, world=MemoryWorld(image), wal_recovery_mode=mode) as again:
        assert list(again) == [b"k%d" % number for number in range(9)]
    with pytest.raises(lsm.Corruption) as caught:
        lsm.open(STORE, world=MemoryWorld(absolute), wal_recovery_mode="absolute")
    assert caught.value.path == path


# Other options than it was written with


@pytest.mark.parametrize("levels", [(7, 3), (2, 7), (4, 2)])
def test_another_number_of_levels(levels: tuple[int, int]) -> None:
    fs = MemoryFilesystem()
    small = {**SMALL, "num_levels": levels[0], "max_bytes_for_level_base": 700}
    expected = {}
    with lsm.open(STORE, lsm.Options.make(None, **small), world=MemoryWorld(fs)) as db:
        for number in range(300):
            db[b"k%03d" % (number * 37 % 200)] = expected[b"k%03d" % (number * 37 % 200)] = b"v%d" % number * 5
        db.compact()
    with lsm.open(STORE, lsm.Options.make(None, **{**small, "num_levels": levels[1]}), world=MemoryWorld(fs)) as db:
        assert dict(db) == expected
        for number in range(0, 200, 3):
            db[b"k%03d" % number] = expected[b"k%03d" % number] = b"again" * 5
        db.flush()
        db.compact()
        db.version.check()
        db.verify()
        assert dict(db) == expected


@pytest.mark.parametrize(
    "strategies", [("leveled", "tiered"), ("tiered", "leveled"), ("none", "leveled"), ("leveled", "none")]
)
def test_another_strategy_format_and_memtable(strategies: tuple[str, str]) -> None:
    fs = MemoryFilesystem()
    first, second = strategies
    recorder = run_workload(lsm.Options.make(None, **SMALL, strategy=first), ops=90, seed=8)
    recorder.durable("close")
    fs = recorder.fs
    options = lsm.Options.make(
        None, **SMALL, strategy=second, table_format="scan", memtable="skiplist", compression="zlib"
    )
    with lsm.open(STORE, options, world=MemoryWorld(fs)) as db:
        assert dict(db.scan()) == recorder.history.states[-1]
        for number in range(60):
            db[b"more%d" % number] = b"x" * 40
        db.compact()
        db.verify()
        assert len(db) == len(recorder.history.states[-1]) + 60
