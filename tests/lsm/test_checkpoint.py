"""Checkpoints are whole or absent, share tables, and go their own way; `destroy` takes only what is ours."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import lsm
from labs.crash.sweep import default_choices
from labs.crash.workload import SMALL, STORE, Generator
from lsm.checkpoint import link_or_copy
from simfs.crash import ALL_KEPT, CrashReplay, WorstCase
from simfs.crash import SYNCED_ONLY as SYNCED
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.wrapper import Call, T, WrappedFile, WrappedFilesystem

COPY = "/copy"


def filled(fs: MemoryFilesystem, ops: int = 120, **changes: Any) -> lsm.DB:
    db = lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs), **changes)
    draw = Generator(3)
    for number in range(ops):
        key = b"k%02d" % draw.below(50)
        if draw.below(5):
            db[key] = b"%d-" % number + b"x" * draw.below(60)
        else:
            db.delete(key)
    db.delete_range(b"k10", b"k13")
    return db


def content(fs: MemoryFilesystem, path: str) -> dict[bytes, bytes]:
    options = lsm.Options.make(None, **SMALL, create_if_missing=False)
    with lsm.open(path, options, world=MemoryWorld(fs)) as db:
        db.version.check()
        db.verify()
        return dict(db.scan())


def tables(fs: MemoryFilesystem, path: str) -> dict[str, int]:
    return {name: fs.stat(f"{path}/{name}").inode for name in fs.listdir(path) if name.endswith(".sst")}


def test_a_checkpoint_has_the_same_content_and_shares_the_tables() -> None:
    fs = MemoryFilesystem()
    with filled(fs) as db:
        expected = dict(db.scan())
        db.checkpoint(COPY)
        assert tables(fs, STORE) == tables(fs, COPY) != {}
        assert not [name for name in fs.listdir(COPY) if name.endswith((".log", ".tmp"))]
        placed = {table.number: level for level, table in db.version.tables()}
        sequence = db.last_sequence
    with lsm.open(COPY, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs)) as copy:
        assert {table.number: level for level, table in copy.version.tables()} == placed
        assert copy.last_sequence == sequence
    assert content(fs, COPY) == expected


def test_both_go_their_own_way() -> None:
    fs = MemoryFilesystem()
    with filled(fs) as db:
        expected = dict(db.scan())
        db.checkpoint(COPY)
        with lsm.open(COPY, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs)) as copy:
            for key in list(expected)[::2]:
                del copy[key]
            copy.compact()
            copied = dict(copy.scan())
            db[b"only here"] = b"1"
            db.compact()
            assert dict(db.scan()) == {**expected, b"only here": b"1"}
            assert dict(copy.scan()) == copied == dict(list(expected.items())[1::2])
    lsm.destroy(STORE, world=MemoryWorld(fs))
    assert not fs.exists(STORE)
    assert content(fs, COPY) == copied


class NoLinks(WrappedFilesystem):
    """A filesystem that refuses hard links."""

    def __init__(self, inner: MemoryFilesystem, code: int) -> None:
        super().__init__(inner)
        self.code = code

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        if call.operation == "link":
            raise OSError(self.code, os.strerror(self.code), call.path)
        return perform(call)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_links_are_refused_tables_are_copied_and_synced(code: int) -> None:
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(NoLinks(fs, code))) as db:
        db[b"a"] = b"x" * 3_000_000  # more than one piece
        db.checkpoint(COPY)
    assert tables(fs, STORE).keys() == tables(fs, COPY).keys()
    assert not set(tables(fs, STORE).values()) & set(tables(fs, COPY).values())
    image = fs.crash_image("power", SYNCED)
    assert content(image, COPY) == {b"a": b"x" * 3_000_000}


def test_another_error_of_link_is_not_taken_for_a_missing_feature() -> None:
    fs = MemoryFilesystem()
    with fs.create("/a") as file:
        file.append(b"1")
    faulty = FaultyFilesystem(fs, "error(EIO) @ link()")
    with pytest.raises(OSError, match="Input/output") as caught:
        link_or_copy(faulty, "/a", "/b")
    assert caught.value.errno == errno.EIO
    assert not fs.exists("/b")


def test_an_existing_target_is_refused_and_untouched() -> None:
    fs = MemoryFilesystem()
    with filled(fs) as db:
        fs.mkdir(COPY)
        with pytest.raises(lsm.InvalidArgument, match=r"/copy: exists"):
            db.checkpoint(COPY)
        assert fs.listdir(COPY) == []
        with pytest.raises(lsm.InvalidArgument, match="exists"):
            db.checkpoint(STORE)
        with pytest.raises(lsm.InvalidArgument, match="expected the name of a folder"):
            db.checkpoint("")
        db[b"still"] = b"works"


def test_somebody_elses_store_under_the_temporary_name_is_left_alone() -> None:
    fs = MemoryFilesystem()
    with lsm.open(f"{COPY}.tmp", world=MemoryWorld(fs)) as other:
        other[b"mine"] = b"1"
    with filled(fs) as db, pytest.raises(lsm.InvalidArgument, match=r"copy\.tmp.*something else"):
        db.checkpoint(COPY)
    assert content(fs, f"{COPY}.tmp") == {b"mine": b"1"}


def test_an_empty_store_and_a_store_with_live_snapshots() -> None:
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        db.checkpoint("/empty")
        db[b"a"] = b"old"
        with db.snapshot() as moment:
            db[b"a"] = b"new"
            del db[b"a"]
            db[b"b"] = b"1"
            db.checkpoint(COPY)
            assert moment.get(b"a") == b"old"
    assert content(fs, "/empty") == {}
    assert content(fs, COPY) == {b"b": b"1"}


def test_a_read_only_store_makes_no_checkpoint() -> None:
    fs = MemoryFilesystem()
    filled(fs).close()
    with (
        lsm.open(STORE, world=MemoryWorld(fs), read_only=True) as db,
        pytest.raises(lsm.InvalidArgument, match="read-only"),
    ):
        db.checkpoint(COPY)
    assert not fs.exists(COPY)


def test_a_crash_at_every_operation_leaves_the_source_whole_and_the_target_whole_or_absent() -> None:
    fs = MemoryFilesystem()
    db = filled(fs, 80)
    expected = dict(db.scan())
    db.flush()
    start = len(fs.log)
    db.checkpoint(COPY)
    done = len(fs.log)
    db.close()
    replay = CrashReplay(fs)
    absent = whole = 0
    for position in range(start, done + 1):
        replay.advance(position)
        for choice in default_choices(range(6)):
            image = replay.image(choice, "power")
            assert content(image, STORE) == expected
            if image.exists(COPY):
                whole += 1
                assert content(image, COPY) == expected
            else:
                absent += 1
                assert position < done
                with lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld(image)) as again:
                    again.checkpoint(COPY)
                assert not image.exists(f"{COPY}.tmp")
                assert content(image, COPY) == expected
    assert absent > 0
    assert whole > 0


@pytest.mark.parametrize("operation", ["mkdir", "link", "append", "sync", "sync_dir", "rename", "create"])
def test_a_failing_disk_leaves_the_source_whole(operation: str) -> None:
    fs = MemoryFilesystem()
    db = filled(fs)
    db.flush()
    expected = dict(db.scan())
    db.close()
    path = "*.sst" if operation == "link" else "*copy*"
    faulty = FaultyFilesystem(fs, f"error(ENOSPC) @ {operation}(path='{path}', nth=1)")
    with lsm.open(STORE, world=MemoryWorld(faulty)) as again:
        with pytest.raises(OSError, match="No space left"):
            again.checkpoint(COPY)
        assert not fs.exists(COPY) or operation == "sync_dir"
        again[b"more"] = b"1"
        again.checkpoint("/second")
    assert content(fs, STORE) == {**expected, b"more": b"1"} == content(fs, "/second")


def test_relative_and_absolute_paths_on_a_real_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lsm.open("store") as db:
        db[b"a"] = b"1"
        db.flush()
        db.checkpoint("near/")
        db.checkpoint(tmp_path / "far")
        db.checkpoint(f"{tmp_path}/farther//")
        with pytest.raises(FileNotFoundError):
            db.checkpoint("missing/parent")
    for name in ("near", "far", "farther"):
        with lsm.open(name) as copy:
            assert dict(copy) == {b"a": b"1"}
        table = next((tmp_path / name).glob("*.sst"))
        assert table.stat().st_ino == (tmp_path / "store" / table.name).stat().st_ino
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "farther", "near", "store"]


# destroy


def test_destroy_removes_what_is_ours_and_nothing_else() -> None:
    fs = MemoryFilesystem()
    filled(fs).close()
    foreign = ("notes.txt", "000001.sst.bak", "MANIFEST-x")
    for name in foreign:
        fs.create(f"{STORE}/{name}").close()
    lsm.destroy(STORE, world=MemoryWorld(fs))
    assert fs.listdir(STORE) == sorted(foreign)
    lsm.destroy(STORE, world=MemoryWorld(fs))
    assert fs.listdir(STORE) == sorted(foreign)


def test_destroy_takes_lost_files_and_the_folder_along() -> None:
    fs = MemoryFilesystem()
    filled(fs).close()
    for name in fs.listdir(STORE):
        if name.startswith(("MANIFEST", "CURRENT")):
            fs.remove(f"{STORE}/{name}")
    lsm.repair(STORE, world=MemoryWorld(fs))
    assert fs.listdir(f"{STORE}/lost")
    for _ in range(2):
        lsm.destroy(STORE, world=MemoryWorld(fs))
        assert not fs.exists(STORE)


def test_destroy_of_no_store_does_nothing() -> None:
    fs = MemoryFilesystem()
    fs.mkdir("/folder")
    fs.create("/folder/notes.txt").close()
    before = fs.tree()
    lsm.destroy("/folder", world=MemoryWorld(fs))
    lsm.destroy("/nowhere", world=MemoryWorld(fs))
    with pytest.raises(lsm.InvalidArgument):
        lsm.destroy("", world=MemoryWorld(fs))
    assert fs.tree() == before


def test_destroy_refuses_an_open_store() -> None:
    fs = MemoryFilesystem()
    with filled(fs) as db:
        expected = dict(db.scan())
        before = fs.tree()
        with pytest.raises(BlockingIOError, match="open elsewhere"):
            lsm.destroy(STORE, world=MemoryWorld(fs))
        assert fs.tree() == before
    assert content(fs, STORE) == expected


def test_a_crash_in_the_middle_of_destroy_is_finished_by_the_next() -> None:
    fs = MemoryFilesystem()
    filled(fs, 60).close()
    start = len(fs.log)
    lsm.destroy(STORE, world=MemoryWorld(fs))
    replay = CrashReplay(fs)
    for position in range(start, len(fs.log) + 1):
        replay.advance(position)
        for choice in (SYNCED, ALL_KEPT, WorstCase(1)):
            image = replay.image(choice, "power")
            lsm.destroy(STORE, world=MemoryWorld(image))
            # An empty folder may have been there before the store.
            assert not image.exists(STORE) or image.listdir(STORE) == []


def test_half_destroyed_is_not_taken_for_a_whole_store() -> None:
    """Killed after each removal: the store opens whole (nothing gone yet), or says what is missing, or is gone."""
    fs = MemoryFilesystem()
    filled(fs, 60).close()
    expected = content(fs, STORE)
    start = len(fs.log)
    lsm.destroy(STORE, world=MemoryWorld(fs))
    refused = 0
    replay = CrashReplay(fs)
    for position in range(start, len(fs.log) + 1):
        image = replay.advance(position).image(ALL_KEPT, "kill")
        try:
            found = content(image, STORE)
        except lsm.Corruption as error:
            refused += "missing" in error.reason
        except lsm.InvalidArgument:
            assert not image.exists(STORE) or not [name for name in image.listdir(STORE) if name.endswith(".sst")]
        else:
            assert found == expected
    assert refused > 0


@pytest.mark.parametrize("inside", ["copy", "./copy", "../db/copy", "ABSOLUTE"])
def test_a_checkpoint_is_not_made_inside_its_own_store(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    home = tmp_path / "db"
    with lsm.open(str(home)) as db:
        db[b"a"] = b"1"
        monkeypatch.chdir(home)
        with pytest.raises(lsm.InvalidArgument, match="inside the store"):
            db.checkpoint(str(home / "copy") if inside == "ABSOLUTE" else inside)
        assert not [name for name in os.listdir(home) if name.startswith("copy")]
        db.checkpoint("../copy")
    with lsm.open(str(tmp_path / "copy")) as copied:
        assert dict(copied) == {b"a": b"1"}
