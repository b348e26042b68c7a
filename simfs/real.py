"""The real disk and real threads: POSIX files, folder syncs, file locks, the monotonic clock.

Everything goes through a `PosixCalls` (`simfs.syscalls`); handles are in `simfs.realfile`, O_DIRECT in
`simfs.direct`, buffers in `simfs.buffer`.

Decisions
---------
1. **Folders** are synced by fsync(2) on a descriptor of the folder. On macOS that stops at the device's cache, as
   it does for a file; a later FULL sync of any file on the volume takes it along.
2. **Locks** are flock(2): they belong to the open file, so they exclude other callers in this process too, are
   not lost when another descriptor of the file is closed (as POSIX record locks are), and end with the
   process. A child that was forked while the lock was held keeps it alive.
3. **Errors that differ between platforms** are made one: opening a folder and unlinking a folder raise
   `IsADirectoryError` everywhere; cutting a read-only handle is EINVAL.

Left out: symbolic links get no treatment of their own; `no_switch` detects nothing, as threads switch anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from simfs import api
from simfs.api import File, Stat, SyncKind
from simfs.buffer import BufferedFile
from simfs.direct import ALIGN_BYTES, DirectFile, bypass_cache
from simfs.realfile import RealFile, Syncer
from simfs.syscalls import PosixCalls

_MODE = 0o644


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class RealHeld:
    """A file lock that is held."""

    def __init__(self, calls: PosixCalls, fd: int) -> None:
        self._calls = calls
        self._fd = fd
        self._owner = os.getpid()

    def release(self) -> None:
        """Give the lock back. A second call does nothing; a forked child lets go of its handle, not of the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            if os.getpid() == self._owner:
                self._calls.flock(fd, fcntl.LOCK_UN)
            self._calls.close(fd)


class RealFilesystem:
    """The files of this machine, or of whatever `calls` reaches."""

    def __init__(self, calls: PosixCalls | None = None) -> None:
        self.calls = calls if calls is not None else PosixCalls.native()
        self.syncer = Syncer(self.calls)
        self.fsync_is_durable = self.calls.platform != "darwin"

    def _file(self, path: str, flags: int, buffer_bytes: int, direct: bool) -> File:
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        fd = self.calls.open(path, flags | os.O_CLOEXEC, _MODE)
        try:
            if not writable and stat.S_ISDIR(self.calls.fstat(fd).st_mode):
                raise _error(errno.EISDIR, path)
            granted = direct and bypass_cache(self.calls, fd)
        except BaseException:
            self.calls.close(fd)
            raise
        kind = DirectFile if granted and self.calls.platform != "darwin" else RealFile
        file = kind(self.calls, self.syncer, fd, path, writable)
        file.direct = granted
        if direct:
            return BufferedFile(file, buffer_bytes, ALIGN_BYTES)
        return BufferedFile(file, buffer_bytes) if buffer_bytes > 0 else file

    def create(self, path: str, *, exclusive: bool = True, buffer_bytes: int = 0, direct: bool = False) -> File:
        """See `simfs.api.Filesystem`."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
        return self._file(path, flags, buffer_bytes, direct)

    def open(self, path: str, *, write: bool = False, buffer_bytes: int = 0, direct: bool = False) -> File:
        """See `simfs.api.Filesystem`."""
        return self._file(path, os.O_RDWR | os.O_APPEND if write else os.O_RDONLY, buffer_bytes, direct)

    def rename(self, source: str, target: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.calls.rename(source, target)

    def remove(self, path: str) -> None:
        """See `simfs.api.Filesystem`. Raises `IsADirectoryError`."""
        try:
            self.calls.unlink(path)
        except PermissionError:
            if stat.S_ISDIR(self.calls.stat(path).st_mode):
                raise _error(errno.EISDIR, path) from None
            raise

    def link(self, source: str, target: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.calls.link(source, target)

    def listdir(self, path: str) -> list[str]:
        """See `simfs.api.Filesystem`."""
        return sorted(self.calls.listdir(path))

    def mkdir(self, path: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.calls.mkdir(path)

    def rmdir(self, path: str) -> None:
        """See `simfs.api.Filesystem`. Raises ENOTEMPTY, ENOTDIR."""
        self.calls.rmdir(path)

    def sync_dir(self, path: str, site: str, kind: SyncKind = SyncKind.FILE) -> None:  # noqa: ARG002
        """See `simfs.api.Filesystem`."""
        fd = self.calls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, _MODE)
        try:
            self.syncer.sync(fd, SyncKind.FILE if kind is SyncKind.DATA else kind)
        except OSError as error:
            raise _error(error.errno or errno.EIO, path) from None
        finally:
            self.calls.close(fd)

    def exists(self, path: str) -> bool:
        """See `simfs.api.Filesystem`."""
        try:
            self.calls.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def stat(self, path: str) -> Stat:
        """See `simfs.api.Filesystem`."""
        found = self.calls.stat(path)
        if stat.S_ISDIR(found.st_mode):
            return Stat(0, True, found.st_ino, 1)
        return Stat(found.st_size, False, found.st_ino, found.st_nlink)

    def lock(self, path: str) -> RealHeld:
        """See `simfs.api.Filesystem`."""
        fd = self.calls.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            self.calls.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.calls.close(fd)
            raise _error(error.errno or errno.EIO, path) from None
        return RealHeld(self.calls, fd)


class RealTask:
    """A thread, and the exception that ended it."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._target = target
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._target()
        except BaseException as error:
            self.error = error


class RealRuntime:
    """Threads, their locks, and the monotonic clock.

    >>> runtime = RealRuntime()
    >>> found = []
    >>> runtime.join(runtime.spawn("search", lambda: found.append(7)))
    >>> found
    [7]
    """

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()

    def wall_s(self) -> int:
        """The time of day, in whole seconds since 1970."""
        return int(time.time())

    def process_id(self) -> int:
        """getpid(2)."""
        return os.getpid()

    def sleep_ns(self, duration_ns: int) -> None:
        """Sleep at least that long."""
        time.sleep(duration_ns / 1_000_000_000)

    def lock(self) -> api.Lock:
        """A `threading.Lock`."""
        return threading.Lock()

    def condition(self, lock: api.Lock) -> api.Condition:
        """A `threading.Condition`, whose `wait` also tells whether it was woken, which nobody here asks."""
        return cast(api.Condition, threading.Condition(cast(threading.Lock, lock)))

    def spawn(self, name: str, target: Callable[[], None]) -> RealTask:
        """Start a daemon thread: a program that forgets to close its store still ends."""
        return RealTask(name, target)

    def join(self, task: api.Task) -> None:
        """Wait for the thread; raise, once, the exception that ended it."""
        assert isinstance(task, RealTask), f"join of a task of another runtime: {task!r}"
        task.thread.join()
        error, task.error = task.error, None
        if error is not None:
            raise error

    def no_switch(self) -> AbstractContextManager[None]:
        """Nothing is detected here: the memory world does that."""
        return nullcontext()


class RealWorld:
    """The real disk and real threads."""

    def __init__(self, fs: api.Filesystem | None = None, runtime: api.Runtime | None = None) -> None:
        self.fs: api.Filesystem = fs if fs is not None else RealFilesystem()
        self.runtime: api.Runtime = runtime if runtime is not None else RealRuntime()

    def device_bytes_written(self) -> int | None:
        """`write_bytes` of /proc/self/io (Linux: proc(5)), for all that this process wrote; None elsewhere."""
        try:
            with open("/proc/self/io", encoding="ascii") as counters:
                lines = dict(line.split(": ") for line in counters.read().splitlines())
            return int(lines["write_bytes"])
        except (OSError, KeyError, ValueError):
            return None
