"""The real filesystem: system calls and their order, macOS's on Linux, locks between processes, direct I/O."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyfakefs import fake_filesystem, fake_os

from simfs import syscalls
from simfs.api import File, SyncKind, default_world
from simfs.buffer import BufferedFile
from simfs.direct import ALIGN_BYTES, CHUNK_BYTES, DirectFile
from simfs.real import RealFilesystem, RealRuntime, RealWorld
from simfs.realfile import RealFile
from simfs.syscalls import F_BARRIERFSYNC, F_FULLFSYNC, F_NOCACHE, PosixCalls

NATIVE = PosixCalls.native()


class Recorder:
    """Native calls that note what they were asked, and refuse what they are told to refuse."""

    def __init__(self, platform: str, refuse: dict[int, int] | None = None) -> None:
        self.seen: list[str] = []
        self._refuse = refuse or {}
        self.calls = replace(
            NATIVE, platform=platform, fcntl=self._fcntl, fsync=self._note("fsync"), fdatasync=self._note("fdatasync")
        )

    def _note(self, name: str) -> Callable[[int], None]:
        def call(_: int) -> None:
            self.seen.append(name)

        return call

    def _fcntl(self, fd: int, command: int, argument: int) -> int:
        self.seen.append({F_FULLFSYNC: "FULL", F_BARRIERFSYNC: "BARRIER", F_NOCACHE: "NOCACHE"}.get(command, "other"))
        if command in self._refuse:
            raise OSError(self._refuse[command], os.strerror(self._refuse[command]))
        return 0


def synced(recorder: Recorder, kind: SyncKind, folder: Path) -> list[str]:
    fs = RealFilesystem(recorder.calls)
    with fs.create(str(folder / "a"), exclusive=False) as file:
        file.sync(kind, "s")
    return recorder.seen


# Syncs


@pytest.mark.parametrize(
    ("platform", "kind", "expected"),
    [
        ("linux", SyncKind.DATA, ["fdatasync"]),
        ("linux", SyncKind.FILE, ["fsync"]),
        ("linux", SyncKind.BARRIER, []),
        ("linux", SyncKind.FULL, ["fsync"]),
        ("darwin", SyncKind.DATA, ["fsync"]),
        ("darwin", SyncKind.FILE, ["fsync"]),
        ("darwin", SyncKind.BARRIER, ["BARRIER"]),
        ("darwin", SyncKind.FULL, ["FULL"]),
    ],
)
def test_which_calls_a_sync_makes(platform: str, kind: SyncKind, expected: list[str], tmp_path: Path) -> None:
    assert synced(Recorder(platform), kind, tmp_path) == expected


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_macos_volumes_that_refuse_get_the_next_best_call(code: int, tmp_path: Path) -> None:
    assert synced(Recorder("darwin", {F_BARRIERFSYNC: code}), SyncKind.BARRIER, tmp_path) == ["BARRIER", "FULL"]
    assert synced(Recorder("darwin", {F_FULLFSYNC: code}), SyncKind.FULL, tmp_path) == ["FULL", "fsync"]
    both = Recorder("darwin", {F_BARRIERFSYNC: code, F_FULLFSYNC: code})
    assert synced(both, SyncKind.BARRIER, tmp_path) == ["BARRIER", "FULL", "fsync"]
    fs = RealFilesystem(both.calls)
    for _ in range(2):
        with fs.open(str(tmp_path / "a")) as file:
            file.sync(SyncKind.FULL, "s")
    assert fs.syncer.refused == {"F_FULLFSYNC": 2}, "a refusal is told, not hidden"


@pytest.mark.parametrize(("command", "kind"), [(F_BARRIERFSYNC, SyncKind.BARRIER), (F_FULLFSYNC, SyncKind.FULL)])
def test_a_failed_flush_on_macos_is_an_error_and_not_a_refusal(command: int, kind: SyncKind, tmp_path: Path) -> None:
    recorder = Recorder("darwin", {command: errno.EIO})
    with pytest.raises(OSError) as caught:
        synced(recorder, kind, tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "a"))
    assert len(recorder.seen) == 1


@pytest.mark.parametrize(
    ("platform", "kind", "expected"),
    [
        ("linux", SyncKind.DATA, ["fsync"]),
        ("linux", SyncKind.FILE, ["fsync"]),
        ("linux", SyncKind.BARRIER, []),
        ("linux", SyncKind.FULL, ["fsync"]),
        ("darwin", SyncKind.FILE, ["fsync"]),
        ("darwin", SyncKind.BARRIER, ["BARRIER"]),
        ("darwin", SyncKind.FULL, ["FULL"]),
    ],
)
def test_which_calls_a_folder_sync_makes(platform: str, kind: SyncKind, expected: list[str], tmp_path: Path) -> None:
    recorder = Recorder(platform)
    RealFilesystem(recorder.calls).sync_dir(str(tmp_path), "s", kind)
    assert recorder.seen == expected


def test_a_failed_folder_sync_names_the_folder_and_leaks_nothing(tmp_path: Path) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = os.listdir("/proc/self/fd") if sys.platform == "linux" else []
    with pytest.raises(OSError) as caught:
        RealFilesystem(replace(NATIVE, fsync=failing)).sync_dir(str(tmp_path), "s")
    assert caught.value.filename == str(tmp_path)
    assert not before or os.listdir("/proc/self/fd") == before


# Appends and reads


def test_short_writes_and_reads_are_completed(tmp_path: Path) -> None:
    calls = replace(
        NATIVE,
        write=lambda fd, data: os.write(fd, bytes(data)[:3]),
        pread=lambda fd, size, offset: os.pread(fd, min(size, 4), offset),
    )
    with RealFilesystem(calls).create(str(tmp_path / "a")) as file:
        file.append(b"0123456789")
        file.append(memoryview(b"\1\0\0\0\2\0\0\0").cast("I"))
        assert file.size() == 18
        assert file.pread(0, 10) == b"0123456789"
        assert file.pread(8, 100) == b"89\1\0\0\0\2\0\0\0"
        assert file.pread(18, 1) == b""


def test_an_append_in_the_common_case_is_one_write_and_a_read_one_pread(tmp_path: Path) -> None:
    seen: list[str] = []

    def write(fd: int, data: Any) -> int:
        seen.append("write")
        return os.write(fd, data)

    def pread(fd: int, size: int, offset: int) -> bytes:
        seen.append("pread")
        return os.pread(fd, size, offset)

    with RealFilesystem(replace(NATIVE, write=write, pread=pread)).create(str(tmp_path / "a")) as file:
        file.append(b"abc")
        assert file.pread(1, 2) == b"bc"
    assert seen == ["write", "pread"]


def test_a_write_that_writes_nothing_is_an_error_not_a_loop(tmp_path: Path) -> None:
    with RealFilesystem(replace(NATIVE, write=lambda *_: 0)).create(str(tmp_path / "a")) as file:
        with pytest.raises(OSError) as caught:
            file.append(b"x")
        assert caught.value.errno == errno.EIO


def test_a_disk_that_fills_in_the_middle_of_an_append(tmp_path: Path) -> None:
    room = [5]

    def write(fd: int, data: Any) -> int:
        count = min(room[0], len(data))
        if count == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= count
        return os.write(fd, bytes(data)[:count])

    with RealFilesystem(replace(NATIVE, write=write)).create(str(tmp_path / "a")) as file:
        with pytest.raises(OSError) as caught:
            file.append(b"12345678")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "a"))
        assert file.pread(0, 10) == b"12345"


def operations(file: File) -> list[Callable[[], object]]:
    return [
        lambda: file.append(b"x"),
        lambda: file.pread(0, 1),
        file.flush,
        lambda: file.sync(SyncKind.FILE, "s"),
        lambda: file.truncate(0),
        file.size,
    ]


@pytest.mark.parametrize("options", [{}, {"buffer_bytes": 10}, {"direct": True}])
def test_a_closed_handle_raises_value_error_everywhere(options: dict[str, Any], tmp_path: Path) -> None:
    file = RealFilesystem().create(str(tmp_path / "a"), **options)
    file.close()
    file.close()
    for call in operations(file):
        with pytest.raises(ValueError, match="the file is closed"):
            call()


def test_a_read_only_handle_refuses_changes(tmp_path: Path) -> None:
    fs = RealFilesystem()
    fs.create(str(tmp_path / "a")).close()
    for options in ({}, {"buffer_bytes": 10}, {"direct": True}):
        with fs.open(str(tmp_path / "a"), **options) as file:
            with pytest.raises(OSError) as caught:
                file.append(b"x")
            assert caught.value.errno == errno.EBADF
            with pytest.raises(OSError) as caught:
                file.truncate(0)
            assert caught.value.errno == errno.EINVAL


def test_unlinking_a_folder_is_one_error_everywhere(tmp_path: Path) -> None:
    def as_on_macos(path: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    (tmp_path / "file").write_bytes(b"")
    fs = RealFilesystem(replace(NATIVE, unlink=as_on_macos))
    with pytest.raises(IsADirectoryError):
        fs.remove(str(tmp_path))
    with pytest.raises(PermissionError):
        fs.remove(str(tmp_path / "file"))


def test_exists_is_false_only_for_what_is_not_there(tmp_path: Path) -> None:
    def failing(_: str) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    assert not RealFilesystem().exists(str(tmp_path / "no"))
    with pytest.raises(PermissionError):
        RealFilesystem(replace(NATIVE, stat=failing)).exists("/a")


# Locks

CONTENDER = """
import sys
from simfs.real import RealFilesystem
try:
    held = RealFilesystem().lock(sys.argv[1])
except BlockingIOError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.readline()
"""


def contender(path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONTENDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_lock_excludes_other_processes_and_ends_with_the_process(tmp_path: Path) -> None:
    path, fs = str(tmp_path / "LOCK"), RealFilesystem()
    with contender(path) as first:
        assert answer(first) == "locked"
        with pytest.raises(BlockingIOError) as caught:
            fs.lock(path)
        assert caught.value.filename == path
        first.kill()
        first.wait()
    held = fs.lock(path)
    with contender(path) as second:
        assert answer(second) == "refused"
    held.release()
    held.release()


def test_a_lock_excludes_callers_in_this_process_and_survives_closing_other_handles(tmp_path: Path) -> None:
    path, fs = str(tmp_path / "LOCK"), RealFilesystem()
    held = fs.lock(path)
    fs.open(path).close()
    with pytest.raises(BlockingIOError):
        fs.lock(path)
    held.release()
    fs.lock(path).release()


# Direct I/O


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[tuple[BufferedFile, DirectFile]]:
    """A handle that bypasses the page cache, and the one below its buffer."""
    file = RealFilesystem().create(str(tmp_path / "a"), direct=True)
    assert isinstance(file, BufferedFile)
    if not file.direct:
        file.close()
        pytest.skip(f"the filesystem of {tmp_path}, or the platform, has no O_DIRECT")
    inner = file.inner
    assert isinstance(inner, DirectFile)
    with file:
        yield file, inner


def test_direct_appends_and_reads_round_trip(direct: tuple[BufferedFile, DirectFile]) -> None:
    file, inner = direct
    content = b""
    for number, size in enumerate([1, 4095, 4096, 10_000, 2 * CHUNK_BYTES + 77, 3, 5000]):
        data = bytes((number + i) % 251 for i in range(size))
        file.append(data)
        content += data
        if number % 2:
            file.flush()
    file.sync(SyncKind.DATA, "s")
    assert inner.direct
    assert file.size() == len(content)
    for offset, size in [(0, len(content)), (0, 1), (4095, 2), (5000, 20_000), (len(content) - 5, 100), (1 << 30, 5)]:
        assert file.pread(offset, size) == content[offset : offset + size]
    assert file.pread(0, 0) == b""
    file.truncate(4100)
    file.append(b"tail")
    file.flush()
    assert file.pread(4090, 100) == (content[:4100] + b"tail")[4090:]


def test_only_whole_blocks_are_written_directly(direct: tuple[BufferedFile, DirectFile]) -> None:
    _, inner = direct
    seen: list[tuple[bool, int]] = []

    def write(fd: int, data: Any) -> int:
        seen.append((bool(fcntl.fcntl(fd, fcntl.F_GETFL) & NATIVE.direct_flag), len(data)))
        return os.write(fd, data)

    inner._calls = replace(NATIVE, write=write)
    inner._write = write
    inner.append(b"x" * 10_000)
    inner.append(b"y" * 10_000)
    assert seen == [(True, 8192), (False, 1808), (False, 2288), (True, 4096), (False, 3616)]


@pytest.mark.parametrize("when", ["open", "write", "read"])
def test_where_direct_is_refused_the_handle_goes_through_the_cache(when: str, tmp_path: Path) -> None:
    def refusing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, *arguments: Any) -> Any:
            is_direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & syscall_flag)
            setting = name == "open" and arguments[0] == fcntl.F_SETFL and arguments[1] & syscall_flag
            if setting or (name == when != "open" and is_direct):
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(fd, *arguments)

        return call

    syscall_flag = NATIVE.direct_flag
    if not syscall_flag:
        pytest.skip("no O_DIRECT on this platform")
    if when == "open":
        calls = replace(NATIVE, fcntl=refusing("open", NATIVE.fcntl))
    elif when == "write":
        calls = replace(NATIVE, write=refusing("write", NATIVE.write))
    else:
        calls = replace(NATIVE, preadv=refusing("read", NATIVE.preadv))
    data = bytes(range(256)) * (2 * CHUNK_BYTES // 256)
    with RealFilesystem(calls).create(str(tmp_path / "a"), direct=True) as file:
        assert isinstance(file, BufferedFile)
        file.append(data + b"tail")
        file.flush()
        assert file.pread(100, 1 << 30) == (data + b"tail")[100:]
        assert not file.direct
        file.append(data)
        assert file.pread(len(data), 1 << 30) == b"tail" + data
    assert (tmp_path / "a").read_bytes() == data + b"tail" + data


def test_other_errors_of_direct_io_are_raised(direct: tuple[BufferedFile, DirectFile]) -> None:
    def failing(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    _, inner = direct
    inner._calls = replace(NATIVE, write=failing, preadv=failing)
    for call in (lambda: inner.append(b"x" * ALIGN_BYTES), lambda: inner.pread(0, 1)):
        with pytest.raises(OSError) as caught:
            call()
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, inner.path)


def test_short_direct_writes_are_completed(direct: tuple[BufferedFile, DirectFile]) -> None:
    _, inner = direct
    inner._calls = replace(NATIVE, write=lambda fd, data: os.write(fd, data[:ALIGN_BYTES]))
    inner.append(b"x" * ALIGN_BYTES + b"y" * ALIGN_BYTES)
    assert inner.pread(0, 1 << 20) == b"x" * ALIGN_BYTES + b"y" * ALIGN_BYTES


def test_macos_bypasses_the_cache_by_a_flag_without_rules(tmp_path: Path) -> None:
    for refuse, granted in ({}, True), ({F_NOCACHE: errno.ENOTSUP}, False):
        recorder = Recorder("darwin", refuse)
        with RealFilesystem(recorder.calls).create(str(tmp_path / "a"), exclusive=False, direct=True) as file:
            assert recorder.seen == ["NOCACHE"]
            assert isinstance(file, BufferedFile)
            assert type(file.inner) is RealFile
            assert file.direct is granted
            file.append(b"x" * 5000)
            assert file.inner.size() == ALIGN_BYTES


def test_an_error_while_opening_leaks_no_descriptor(tmp_path: Path) -> None:
    closed: list[int] = []

    def close(fd: int) -> None:
        closed.append(fd)
        os.close(fd)

    recorder = Recorder("darwin", {F_NOCACHE: errno.EIO})
    fs = RealFilesystem(replace(recorder.calls, close=close))
    with pytest.raises(OSError):
        fs.create(str(tmp_path / "a"), direct=True)
    with pytest.raises(IsADirectoryError):
        fs.open(str(tmp_path))
    assert len(closed) == 2


# pyfakefs


def faked(fake: fake_filesystem.FakeFilesystem) -> RealFilesystem:
    return RealFilesystem(PosixCalls.without_pread(fake_os.FakeOsModule(fake)))


def test_a_full_disk_over_pyfakefs() -> None:
    fake = fake_filesystem.FakeFilesystem(path_separator="/", total_size=20)
    fs = faked(fake)
    with fs.create("/a") as file:
        file.append(b"x" * 15)
        with pytest.raises(OSError) as caught:
            file.append(b"y" * 15)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/a")
        assert file.pread(0, 100) == b"x" * 15 + b"y" * 5, "as much as fits is there"
        with pytest.raises(OSError) as caught:
            file.append(b"y")
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError) as caught:
            file.truncate(21)
        assert caught.value.errno == errno.ENOSPC
        file.truncate(18)
        with pytest.raises(OSError):
            file.truncate(21)
        assert file.size() == 20
        fake.set_disk_usage(100)
        file.append(b"z" * 15)
        file.truncate(36)
        assert file.pread(0, 100) == b"x" * 15 + b"y" * 3 + b"\0" * 2 + b"z" * 15 + b"\0"


def test_no_call_over_pyfakefs_reaches_the_real_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = faked(fake_filesystem.FakeFilesystem(path_separator="/"))
    reached: list[str] = []

    def forbidden(name: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            reached.append(name)
            raise AssertionError(f"os.{name} reached the real disk")

        return call

    names = (*syscalls._TAKEN, "lseek", "read", "pread", "preadv", "pwrite", "fdatasync", "ftruncate", "truncate")
    for name in names:
        monkeypatch.setattr(os, name, forbidden(name))
    for name in ("fcntl", "flock", "lockf", "ioctl"):
        monkeypatch.setattr(fcntl, name, forbidden(name))
    try:
        fs.mkdir("/d")
        for direct in (False, True):
            with fs.create("/d/a", exclusive=False, direct=direct) as file:
                file.append(b"hello")
                for kind in SyncKind:
                    file.sync(kind, "s")
                    fs.sync_dir("/d", "s", kind)
                file.truncate(10)
                file.truncate(3)
                assert file.pread(0, 100) == b"hel"
                assert file.size() == 3
        fs.link("/d/a", "/d/b")
        fs.rename("/d/b", "/c")
        held = fs.lock("/d/LOCK")
        with pytest.raises(BlockingIOError):
            fs.lock("/d/LOCK")
        held.release()
        fs.lock("/d/LOCK").release()
        assert fs.listdir("/d") == ["LOCK", "a"]
        assert fs.stat("/c").links == 2
        fs.remove("/c")
        fs.mkdir("/e")
        fs.rmdir("/e")
        assert not fs.exists("/e")
        with fs.open("/d/a") as file, pytest.raises(OSError):
            file.append(b"x")
    finally:
        monkeypatch.undo()
    assert reached == []


def test_a_module_that_hands_calls_on_is_refused() -> None:
    with pytest.raises(ValueError, match="would reach the real disk"):
        PosixCalls.without_pread(os)


def test_native_calls_are_refused_while_os_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_os.FakeOsModule(fake_filesystem.FakeFilesystem(path_separator="/"))
    monkeypatch.setattr(syscalls, "os", fake)
    with pytest.raises(ValueError, match="without_pread"):
        PosixCalls.native()


def test_a_stand_in_without_fdatasync_uses_fsync() -> None:
    fake = fake_filesystem.FakeFilesystem(path_separator="/")

    class Module:
        """As an `os` module on macOS."""

        def __init__(self) -> None:
            self.__dict__ |= {
                name: getattr(fake_os.FakeOsModule(fake), name) for name in (*syscalls._TAKEN, "lseek", "read")
            }

    calls = PosixCalls.without_pread(Module())
    assert calls.fdatasync == calls.fsync
    with RealFilesystem(calls).create("/a") as file:
        file.append(b"x")
        assert file.size() == 1


# The runtime and the world


def test_the_default_world_is_the_real_one() -> None:
    world = default_world()
    assert isinstance(world, RealWorld)
    assert isinstance(world.fs, RealFilesystem)
    assert RealWorld(world.fs, world.runtime).fs is world.fs


def test_threads_locks_and_conditions() -> None:
    runtime = RealRuntime()
    lock = runtime.lock()
    condition = runtime.condition(lock)
    box: list[int] = []

    def consumer() -> None:
        with lock:
            while not box:
                condition.wait()
            box.append(box[0] + 1)

    task = runtime.spawn("consumer", consumer)
    with lock:
        box.append(1)
        condition.notify_all()
    runtime.join(task)
    assert (task.name, box) == ("consumer", [1, 2])


def test_join_raises_what_ended_the_thread_once() -> None:
    runtime = RealRuntime()

    def bad() -> None:
        raise KeyError(threading.current_thread().name)

    task = runtime.spawn("worker", bad)
    with pytest.raises(KeyError, match="worker"):
        runtime.join(task)
    runtime.join(task)


def test_clocks_move() -> None:
    runtime = RealRuntime()
    before = runtime.now_ns()
    with runtime.no_switch():
        runtime.sleep_ns(1)
    assert runtime.now_ns() > before
    assert runtime.wall_s() > 1_700_000_000


def test_bytes_that_reached_the_device_are_counted_where_the_system_counts() -> None:
    count = RealWorld().device_bytes_written()
    assert (count is not None and count >= 0) == Path("/proc/self/io").exists()


def test_where_the_system_does_not_count_nobody_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr("builtins.open", missing)
    count = RealWorld().device_bytes_written()
    monkeypatch.undo()
    assert count is None
