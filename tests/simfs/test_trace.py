"""The recording wrapper, and what a trace adds up to."""

from __future__ import annotations

import pytest

from simfs.api import PowerLost, SyncKind
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem
from simfs.memory_runtime import MemoryRuntime
from simfs.trace import Operation, Totals, TracedFilesystem, fold
from simfs.wrapper import OPERATIONS, Call


def traced(inner: MemoryFilesystem | None = None) -> tuple[TracedFilesystem, list[Operation]]:
    operations: list[Operation] = []
    fs = TracedFilesystem(inner or MemoryFilesystem(), operations.append, MemoryRuntime(step_ns=1))
    return fs, operations


def everything(fs: TracedFilesystem) -> None:
    """Each operation once."""
    fs.mkdir("/d")
    with fs.create("/d/000001.log") as file:
        file.append(b"hello")
        file.pread(1, 100)
        file.flush()
        file.sync(SyncKind.DATA, "wal.write")
        file.truncate(3)
        file.size()
    fs.open("/d/000001.log").close()
    fs.link("/d/000001.log", "/a")
    fs.rename("/a", "/b")
    fs.remove("/b")
    fs.listdir("/d")
    fs.sync_dir("/d", "wal.rotate", SyncKind.FULL)
    fs.exists("/d")
    fs.stat("/d")
    fs.lock("/d/LOCK").release()
    fs.mkdir("/e")
    fs.rmdir("/e")


def test_every_operation_is_one_record() -> None:
    fs, seen = traced()
    everything(fs)
    assert sorted({each.operation for each in seen}) == sorted(OPERATIONS)
    assert all(each.start_ns < each.end_ns and each.error == "" for each in seen)
    assert seen[2:4] == [
        Operation("append", "/d/000001.log", "", 0, 5, None, "", 5, 6, ""),
        Operation("pread", "/d/000001.log", "", 1, 4, None, "", 7, 8, ""),
    ]
    assert seen[5][5:7] == (SyncKind.DATA, "wal.write")
    assert [each[:3] for each in seen if each.operation in ("rename", "link")] == [
        ("link", "/d/000001.log", "/a"),
        ("rename", "/a", "/b"),
    ]


def test_failures_are_recorded_with_what_arrived() -> None:
    fs, seen = traced(MemoryFilesystem(capacity_bytes=7))
    file = fs.create("/a.log")
    file.append(b"12345")
    with pytest.raises(OSError):
        file.append(b"6789")
    with pytest.raises(FileNotFoundError):
        fs.open("/no")
    with fs.open("/a.log") as reader, pytest.raises(OSError):
        reader.append(b"x")
    file.close()
    with pytest.raises(ValueError):
        file.append(b"x")
    assert [(each.operation, each.offset, each.size, each.error) for each in seen if each.error] == [
        ("append", 5, 2, "ENOSPC"),
        ("open", 0, 0, "ENOENT"),
        ("append", 7, 0, "EBADF"),
        ("append", 0, 0, "ValueError"),
    ]
    assert fold(seen).appended_bytes == {".log": 7}


def test_a_file_that_cannot_say_its_size_after_a_failed_append() -> None:
    fs, seen = traced()
    memory = fs.inner
    assert isinstance(memory, MemoryFilesystem)
    outer = TracedFilesystem(FaultyFilesystem(memory, "error(EIO) @ any(after=2)"), seen.append, MemoryRuntime())
    file = outer.create("/a")
    with pytest.raises(OSError):
        file.append(b"x")
    assert (seen[-1].size, seen[-1].error) == (0, "EIO")
    memory.crash_image("power")
    with pytest.raises(PowerLost):
        fs.exists("/a")
    assert seen[-1].error == "PowerLost"


def test_totals() -> None:
    fs, seen = traced()
    everything(fs)
    with fs.create("/MANIFEST-000005", buffer_bytes=100) as file:
        file.append(b"12")
        file.append(b"34")
        file.sync(SyncKind.FULL, "wal.write")
    totals = fold(seen)
    assert totals.appended_bytes == {".log": 5, "MANIFEST": 4}
    assert totals.read_bytes == {".log": 4}
    assert totals.syncs == {"wal.rotate": 1, "wal.write": 2}
    assert totals.operations["append"] == 3
    assert totals.errors == {}
    assert fold([]) == Totals({}, {}, {}, {}, {})


def test_errors_without_a_known_number_have_one_all_the_same() -> None:
    def odd(_: Call) -> None:
        raise OSError(99999, "odd")

    fs, seen = traced()
    with pytest.raises(OSError):
        fs.around(Call("exists", "/a"), odd)
    assert seen[-1].error == "99999"


def test_wrappers_come_off() -> None:
    memory = MemoryFilesystem()
    outer, _ = traced(memory)
    assert outer.inner is memory
    with outer.create("/a", direct=True) as file:
        assert file.inner is not file
        assert file.direct
    with outer.create("/b") as file:
        assert not file.direct
