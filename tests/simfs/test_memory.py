"""The memory filesystem alone: the log, capacity, fences, locks, sections without switches."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from simfs import oplog
from simfs.api import File, Filesystem, PowerLost, SyncKind
from simfs.buffer import BufferedFile
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.memory_runtime import Deadlock, MemoryRuntime
from simfs.real import RealFilesystem
from simfs.trace import TracedFilesystem
from simfs.wrapper import WrappedFilesystem


def test_every_change_is_one_record_in_order() -> None:
    fs = MemoryFilesystem()
    fs.mkdir("/d")
    with fs.create("/d/a") as file:
        file.append(b"xyz")
        file.sync(SyncKind.DATA, "here")
        file.truncate(1)
    fs.link("/d/a", "/b")
    fs.create("/c").close()
    fs.rename("/c", "/b")
    fs.remove("/b")
    fs.sync_dir("/d", "there", SyncKind.FULL)
    fs.mkdir("/e")
    fs.rmdir("/e")
    assert fs.log == [
        oplog.Mkdir(1, "d", 2, "/d"),
        oplog.Create(2, "a", 3, "/d/a"),
        oplog.Append(3, 0, b"xyz", "/d/a"),
        oplog.Sync(3, SyncKind.DATA, "here", "/d/a"),
        oplog.Truncate(3, 1, "/d/a"),
        oplog.Link(1, "b", 3, "/b"),
        oplog.Create(1, "c", 4, "/c"),
        oplog.Rename(1, "c", 1, "b", 4, 3, "/c", "/b"),
        oplog.Unlink(1, "b", 4, "/b"),
        oplog.SyncDir(2, SyncKind.FULL, "there", "/d"),
        oplog.Mkdir(1, "e", 5, "/e"),
        oplog.Rmdir(1, "e", 5, "/e"),
    ]


def test_refused_reads_and_empty_operations_leave_no_record() -> None:
    fs = MemoryFilesystem()
    file = fs.create("/a")
    before = len(fs.log)
    file.append(b"")
    file.truncate(0)
    file.pread(0, 10)
    fs.rename("/a", "/a")
    fs.create("/a", exclusive=False).close()
    for refused in (lambda: fs.mkdir("/a"), lambda: fs.remove("/x"), lambda: fs.create("/a")):
        with pytest.raises(OSError):
            refused()
    assert len(fs.log) == before


def test_without_recording_there_is_no_log() -> None:
    fs = MemoryFilesystem(record=False)
    with fs.create("/a") as file:
        file.append(b"x")
        file.sync(SyncKind.FULL, "s")
    assert fs.log == []
    assert fs.stat("/a").size == 1


def test_a_file_lives_while_a_name_or_a_handle_leads_to_it() -> None:
    fs = MemoryFilesystem(capacity_bytes=100)
    file = fs.create("/a")
    file.append(b"x" * 60)
    reader = fs.open("/a")
    fs.link("/a", "/b")
    fs.remove("/a")
    fs.remove("/b")
    assert fs.listdir("/") == []
    file.append(b"y" * 10)
    assert reader.pread(55, 20) == b"x" * 5 + b"y" * 10
    file.close()
    assert fs.used_bytes == 70
    reader.close()
    assert fs.used_bytes == 0


def test_a_full_disk_takes_what_fits_and_goes_on_when_space_returns() -> None:
    fs = MemoryFilesystem(capacity_bytes=10)
    file = fs.create("/a")
    file.append(b"12345678")
    with pytest.raises(OSError) as caught:
        file.append(b"abcd")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/a")
    assert file.pread(0, 100) == b"12345678ab"
    assert fs.log[-1] == oplog.Append(2, 8, b"ab", "/a")
    before = len(fs.log)
    with pytest.raises(OSError):
        file.append(b"z")
    with pytest.raises(OSError):
        file.truncate(11)
    assert len(fs.log) == before
    fs.capacity_bytes = 20
    file.append(b"z")
    file.truncate(12)
    assert file.pread(0, 100) == b"12345678abz\0"
    fs.capacity_bytes = 5
    file.truncate(2)
    file.append(b"!!!")
    assert fs.used_bytes == file.size() == 5


def test_a_buffer_keeps_just_what_did_not_arrive() -> None:
    fs = MemoryFilesystem(capacity_bytes=10)
    file = fs.create("/a", buffer_bytes=8)
    file.append(b"abcd")
    assert fs.stat("/a").size == 0
    assert (file.size(), file.pread(1, 2)) == (4, b"bc")
    file.append(b"efgh")
    assert fs.stat("/a").size == 8
    with pytest.raises(OSError):
        file.append(b"ijklmnopq")
    assert (fs.stat("/a").size, file.size()) == (10, 17)
    assert file.pread(0, 20) == b"abcdefghijklmnopq"
    assert file.pread(12, 2) == b"mn"
    with pytest.raises(OSError):
        file.close()
    with pytest.raises(ValueError):
        file.size()
    file.close()


def test_a_buffer_that_is_closed_after_space_returned_is_whole() -> None:
    fs = MemoryFilesystem(capacity_bytes=3)
    file = fs.create("/a", buffer_bytes=4)
    with pytest.raises(OSError):
        file.append(b"abcdef")
    fs.capacity_bytes = None
    file.close()
    with fs.open("/a") as again:
        assert again.pread(0, 10) == b"abcdef"


def test_direct_handles_gather_whole_blocks() -> None:
    fs = MemoryFilesystem()
    with fs.create("/a", direct=True) as file:
        assert isinstance(file, BufferedFile)
        assert file.direct
        file.append(b"x" * 5000)
        assert fs.stat("/a").size == 4096
        file.flush()
        assert fs.stat("/a").size == 5000
        file.append(b"y" * 4200)
        assert fs.stat("/a").size == 8192
    assert fs.stat("/a").size == 9200


def test_appends_take_what_write_takes() -> None:
    fs = MemoryFilesystem()
    with fs.create("/a") as file, fs.create("/b", buffer_bytes=100) as buffered:
        for each in (file, buffered):
            each.append(bytearray(b"ab"))
            each.append(memoryview(b"cd"))
            each.append(memoryview(b"\1\0\0\0").cast("I"))
            for wrong in ("text", 5):
                with pytest.raises(TypeError):
                    each.append(wrong)  # type: ignore[arg-type]
            assert each.pread(0, 10) == b"abcd\1\0\0\0"


def test_paths_are_taken_apart_by_name() -> None:
    fs = MemoryFilesystem()
    fs.mkdir("d")
    fs.create("/d//./a").close()
    assert fs.listdir("/d/../d/.") == ["a"]
    assert fs.exists("../d/a")
    assert not fs.exists("")


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (errno.ENOENT, lambda fs: fs.open("")),
        (errno.EEXIST, lambda fs: fs.create("/")),
        (errno.EISDIR, lambda fs: fs.create("/", exclusive=False)),
        (errno.EISDIR, lambda fs: fs.open("/")),
        (errno.EBUSY, lambda fs: fs.rename("/", "/b")),
        (errno.EBUSY, lambda fs: fs.rename("/d", "/")),
        (errno.EBUSY, lambda fs: fs.rmdir("/")),
        (errno.EISDIR, lambda fs: fs.rename("/f", "/d")),
        (errno.ENOTDIR, lambda fs: fs.rename("/d", "/f")),
        (errno.EINVAL, lambda fs: fs.rename("/d", "/d/e/x")),
        (errno.ENOTEMPTY, lambda fs: fs.rename("/d/e", "/d")),
        (errno.ENOTEMPTY, lambda fs: fs.rename("/g", "/d")),
        (errno.ENOTEMPTY, lambda fs: fs.rmdir("/d")),
        (errno.ENOTDIR, lambda fs: fs.rename("/f", "/f/x")),
        (errno.ENOENT, lambda fs: fs.rename("/no", "/d")),
        (errno.EISDIR, lambda fs: fs.remove("/")),
        (errno.EEXIST, lambda fs: fs.mkdir("/")),
        (errno.EEXIST, lambda fs: fs.link("/", "/d")),
        (errno.EPERM, lambda fs: fs.link("/d", "/l")),
        (errno.EISDIR, lambda fs: fs.lock("/d")),
        (errno.EINVAL, lambda fs: fs.create("/new").pread(-1, 1)),
        (errno.EINVAL, lambda fs: fs.create("/new").truncate(-1)),
    ],
)
def test_errors_at_the_edges(code: int, call: Callable[[MemoryFilesystem], object]) -> None:
    fs = MemoryFilesystem()
    for path in ("/d", "/d/e", "/g"):
        fs.mkdir(path)
    fs.create("/f").close()
    with pytest.raises(OSError) as caught:
        call(fs)
    assert caught.value.errno == code


def test_a_lock_excludes_until_released_and_is_not_in_an_image() -> None:
    fs = MemoryFilesystem()
    held = fs.lock("/LOCK")
    with pytest.raises(BlockingIOError):
        fs.lock("/LOCK")
    fs.rename("/LOCK", "/moved")
    with pytest.raises(BlockingIOError):
        fs.lock("/moved")
    image = fs.crash_image("kill")
    image.lock("/moved").release()
    with pytest.raises(PowerLost):
        held.release()


def calls_of(fs: Filesystem, file: File) -> list[Callable[[], object]]:
    """Every call that may switch tasks."""
    return [
        lambda: file.append(b"x"),
        lambda: file.pread(0, 1),
        lambda: file.flush(),
        lambda: file.sync(SyncKind.FILE, "s"),
        lambda: file.truncate(0),
        lambda: file.close(),
        lambda: fs.create("/n"),
        lambda: fs.open("/a"),
        lambda: fs.rename("/a", "/b"),
        lambda: fs.remove("/a"),
        lambda: fs.link("/a", "/b"),
        lambda: fs.listdir("/"),
        lambda: fs.mkdir("/d"),
        lambda: fs.rmdir("/d"),
        lambda: fs.sync_dir("/", "s"),
        lambda: fs.exists("/a"),
        lambda: fs.stat("/a"),
        lambda: fs.lock("/a"),
    ]


@pytest.mark.parametrize("buffer_bytes", [0, 100])
def test_a_fenced_filesystem_answers_nothing(buffer_bytes: int) -> None:
    fs = MemoryFilesystem()
    file = fs.create("/a", buffer_bytes=buffer_bytes)
    file.append(b"x")
    fs.crash_image("power")
    for call in [*calls_of(fs, file), file.size]:
        with pytest.raises(PowerLost):
            call()
    assert not issubclass(PowerLost, Exception)


@pytest.mark.parametrize("buffer_bytes", [0, 100])
def test_no_switch_fails_loudly_at_each_call_that_may_switch(buffer_bytes: int) -> None:
    runtime = MemoryRuntime()
    world = MemoryWorld(TracedFilesystem(MemoryFilesystem(), lambda _: None, runtime), runtime)
    file = world.fs.create("/a", buffer_bytes=buffer_bytes)
    lock = runtime.lock()
    task = runtime.spawn("t", lambda: None)
    condition = runtime.condition(lock)
    others: list[Callable[[], object]] = [
        lock.acquire,
        condition.wait,
        lambda: runtime.sleep_ns(1),
        lambda: runtime.join(task),
    ]
    with runtime.no_switch():
        with runtime.no_switch():
            pass
        for call in [*calls_of(world.fs, file), *others]:
            with pytest.raises(AssertionError, match="no_switch"):
                call()
        assert file.size() == 0, "size is not among the calls that may switch"
    file.append(b"x")
    assert file.size() == 1


def test_a_world_around_a_foreign_filesystem_is_possible() -> None:
    world = MemoryWorld(MemoryFilesystem())
    assert MemoryWorld(world.fs, world.runtime).runtime is world.runtime
    assert MemoryWorld().fs.listdir("/") == []


def test_the_clock_counts_and_sleeps() -> None:
    runtime = MemoryRuntime(step_ns=7)
    assert [runtime.now_ns(), runtime.now_ns()] == [7, 14]
    start = runtime.wall_s()
    runtime.sleep_ns(3_000_000_000)
    assert runtime.wall_s() == start + 3
    assert runtime.now_ns() == 3_000_000_021


def test_a_task_runs_at_once_and_join_raises_its_error_once() -> None:
    runtime = MemoryRuntime()
    done: list[str] = []
    runtime.join(runtime.spawn("good", lambda: done.append("ran")))
    assert done == ["ran"]

    def bad() -> None:
        raise KeyError("why")

    task = runtime.spawn("bad", bad)
    with pytest.raises(KeyError, match="why"):
        runtime.join(task)
    runtime.join(task)


def test_power_loss_passes_through_spawn() -> None:
    fs = MemoryFilesystem()
    file = fs.create("/a")
    fs.crash_image("power")
    with pytest.raises(PowerLost):
        MemoryRuntime().spawn("t", lambda: file.append(b"x"))


def test_waiting_for_nobody_is_a_deadlock() -> None:
    runtime = MemoryRuntime()
    lock = runtime.lock()
    condition = runtime.condition(lock)
    with lock:
        with pytest.raises(Deadlock, match="held"):
            lock.acquire()
        condition.notify()
        condition.notify_all()
        with pytest.raises(Deadlock, match="notify"):
            condition.wait()
    with pytest.raises(RuntimeError, match="not held"):
        lock.release()


def test_a_read_of_what_is_on_file_does_not_see_the_buffer() -> None:
    with MemoryFilesystem().create("/a", buffer_bytes=4) as file:
        file.append(b"abcd")
        file.append(b"ef")
        assert [file.pread(0, 3), file.pread(2, 9), file.pread(4, 1), file.pread(9, 9)] == [b"abc", b"cdef", b"e", b""]


def test_a_world_knows_the_memory_below_all_wrappers() -> None:
    memory, runtime = MemoryFilesystem(), MemoryRuntime()
    world = MemoryWorld(WrappedFilesystem(WrappedFilesystem(memory)), runtime)
    world.fs.mkdir("/d")
    assert memory.runtime is runtime
    assert world.device_bytes_written() is None
    assert MemoryWorld(RealFilesystem()).fs.exists("/")
