"""The operating system's calls as a value, so that they can be swapped.

`RealFilesystem` calls nothing of `os` or `fcntl` itself, but the functions in a `PosixCalls`. So the
calls that macOS would see are tested on Linux, and the same code runs over a faked `os` module.

    PosixCalls.native()               what this machine has
    PosixCalls.without_pread(module)  a stand-in for `os`, such as pyfakefs's, that has no positional reads

Such a stand-in hands on what it does not fake, and its descriptor numbers then hit *real* files of the
same number: pyfakefs 6.3 does so with `pread`, `pwrite`, `preadv`. Therefore:

1. `without_pread` refuses a module any of whose needed functions is the operating system's own.
2. It reads by seek and read, under a lock.
3. It refuses `fcntl` and `preadv` with ENOTSUP, and keeps file locks in a table of its own, which is
   exact, since no other process can see the faked files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posix
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from mmap import mmap
from sys import platform
from types import ModuleType
from typing import Any, NoReturn, Self

from simfs.api import BytesLike

Buffer = BytesLike | mmap

F_FULLFSYNC = 51
"""macOS, <sys/fcntl.h>; Python names it on macOS only."""

F_BARRIERFSYNC = 85
"""macOS, <sys/fcntl.h>; Python does not name it."""

F_NOCACHE = 48
"""macOS, <sys/fcntl.h>; Python names it on macOS only."""

_FILE_CALLS = ("open", "close", "write", "ftruncate", "fstat", "fsync")
_NAME_CALLS = ("rename", "unlink", "link", "listdir", "mkdir", "rmdir", "stat")
_TAKEN = (*_FILE_CALLS, *_NAME_CALLS)


@dataclass(frozen=True, slots=True)
class PosixCalls:
    """What `RealFilesystem` asks of the operating system. Each field behaves as the function in `os` or `fcntl`."""

    platform: str
    """As `sys.platform`: "darwin" chooses macOS's ways of syncing and of going round the cache."""

    direct_flag: int
    """O_DIRECT, or 0 where there is none."""

    open: Callable[[str, int, int], int]
    close: Callable[[int], None]
    write: Callable[[int, Buffer], int]
    pread: Callable[[int, int, int], bytes]
    preadv: Callable[[int, Sequence[Any], int], int]
    ftruncate: Callable[[int, int], None]
    fstat: Callable[[int], os.stat_result]
    fsync: Callable[[int], None]
    fdatasync: Callable[[int], None]
    fcntl: Callable[[int, int, int], int]
    flock: Callable[[int, int], None]
    rename: Callable[[str, str], None]
    unlink: Callable[[str], None]
    link: Callable[[str, str], None]
    listdir: Callable[[str], list[str]]
    mkdir: Callable[[str], None]
    rmdir: Callable[[str], None]
    stat: Callable[[str], os.stat_result]

    @classmethod
    def native(cls) -> Self:
        """The calls of the machine that we run on. Raises `ValueError` while a fake has replaced `os`."""
        if not isinstance(os, ModuleType):
            raise ValueError(f"os is replaced by {os!r}: use PosixCalls.without_pread(os)")
        return cls(
            platform=platform,
            direct_flag=getattr(os, "O_DIRECT", 0),
            pread=os.pread,
            preadv=os.preadv,
            fdatasync=getattr(os, "fdatasync", os.fsync),
            fcntl=fcntl.fcntl,
            flock=fcntl.flock,
            **{name: getattr(os, name) for name in _TAKEN},
        )

    @classmethod
    def without_pread(cls, module: Any) -> Self:
        """The calls of `module`, which stands in for `os`.

        Raises `ValueError` if one of them would reach the real disk.
        """
        taken = {name: getattr(module, name) for name in _TAKEN}
        taken["fdatasync"] = getattr(module, "fdatasync", module.fsync)
        for name in ("lseek", "read", *taken):
            if getattr(module, name, None) is getattr(posix, name, module):
                raise ValueError(f"{module!r} does not fake {name!r}: the call would reach the real disk")
        taken["write"] = _write_what_fits(module)
        taken["ftruncate"] = _cut_or_extend(module, taken["write"])
        return cls(
            platform="linux",
            direct_flag=0,
            pread=_seek_and_read(module),
            preadv=_refused,
            fcntl=_refused,
            flock=_LockTable(module.fstat).flock,
            **taken,
        )


def _seek_and_read(module: Any) -> Callable[[int, int, int], bytes]:
    """`pread` made of two calls; handles that append do not depend on the position."""
    lock = threading.Lock()

    def pread(fd: int, size: int, offset: int) -> bytes:
        with lock:
            module.lseek(fd, offset, os.SEEK_SET)
            return bytes(module.read(fd, size))

    return pread


def _write_what_fits(module: Any) -> Callable[[int, Buffer], int]:
    """`write` that is short on a full disk: pyfakefs 6.3 would refuse the whole and spoil the descriptor."""
    filesystem = getattr(module, "filesystem", None)

    def write(fd: int, data: Buffer) -> int:
        if filesystem is not None:
            free = filesystem.get_disk_usage().free
            if 0 < free < len(data):
                return int(module.write(fd, bytes(data)[:free]))
            if free == 0 < len(data):
                module.fstat(fd)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(module.write(fd, data))

    return write


def _cut_or_extend(module: Any, write: Callable[[int, Buffer], int]) -> Callable[[int, int], None]:
    """`ftruncate` that grows a file by appending zeros: pyfakefs 6.3 grows an empty file in size only."""

    def ftruncate(fd: int, size: int) -> None:
        grown = size - module.fstat(fd).st_size
        if grown <= 0:
            module.ftruncate(fd, size)
        elif write(fd, bytes(grown)) < grown:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return ftruncate


def _refused(*_: object) -> NoReturn:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


class _LockTable:
    """`flock` for files that exist in this process only."""

    def __init__(self, fstat: Callable[[int], os.stat_result]) -> None:
        self._fstat = fstat
        self._held: dict[int, int] = {}

    def flock(self, fd: int, operation: int) -> None:
        inode = self._fstat(fd).st_ino
        if operation & fcntl.LOCK_UN:
            self._held.pop(inode, None)
        elif self._held.setdefault(inode, fd) != fd:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
