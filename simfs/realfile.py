"""A handle on a real file, and what its syncs are on this platform.

| kind    | Linux        | macOS             | where macOS's volume refuses that     |
| ------- | ------------ | ----------------- | ------------------------------------- |
| DATA    | fdatasync(2) | fsync(2)          |                                       |
| FILE    | fsync(2)     | fsync(2)          |                                       |
| BARRIER | no call      | F_BARRIERFSYNC    | F_FULLFSYNC, then fsync(2)            |
| FULL    | fsync(2)     | F_FULLFSYNC       | fsync(2)                              |

A refusal (ENOTSUP, EINVAL, ENOTTY: network and foreign volumes) is told in `Syncer.refused`; any other error of
these commands is a failed sync and is raised. SQLite and libuv fall back to fsync on whatever error there is;
that would turn a failed flush of the device's cache into a success.

Invariants
----------
1. Descriptors are opened with O_APPEND: no handle has a position, and two handles never overwrite each other.
2. `append` is one write(2) and `pread` one pread(2), unless the system does less than it was asked.
3. Errors name the path. Calls on a closed handle raise `ValueError`, never reach another file's descriptor.

EINTR never arrives here: Python repeats the call (PEP 475).
"""

from __future__ import annotations

import errno
import os
from types import TracebackType
from typing import Self

from simfs.api import BytesLike, SyncKind
from simfs.syscalls import F_BARRIERFSYNC, F_FULLFSYNC, PosixCalls

REFUSALS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
"""How systems say that a file cannot do a thing, as opposed to having failed at it."""

_COMMANDS = {
    SyncKind.BARRIER: (("F_BARRIERFSYNC", F_BARRIERFSYNC), ("F_FULLFSYNC", F_FULLFSYNC)),
    SyncKind.FULL: (("F_FULLFSYNC", F_FULLFSYNC),),
}


class Syncer:
    """Turns a `SyncKind` into system calls."""

    def __init__(self, calls: PosixCalls) -> None:
        self._calls = calls
        self.refused: dict[str, int] = {}
        """macOS commands that a volume refused → how often a weaker or costlier call took their place."""

    def sync(self, fd: int, kind: SyncKind) -> None:
        """Make this descriptor's file durable to the degree `kind`. Raises `OSError`."""
        if self._calls.platform == "darwin":
            self._sync_darwin(fd, kind)
        elif kind is SyncKind.DATA:
            self._calls.fdatasync(fd)
        elif kind is not SyncKind.BARRIER:
            self._calls.fsync(fd)

    def _sync_darwin(self, fd: int, kind: SyncKind) -> None:
        for name, command in _COMMANDS.get(kind, ()):
            try:
                self._calls.fcntl(fd, command, 0)
            except OSError as error:
                if error.errno not in REFUSALS:
                    raise
                self.refused[name] = self.refused.get(name, 0) + 1
            else:
                return
        self._calls.fsync(fd)


class RealFile:
    """A handle without a buffer."""

    direct = False
    """Whether the page cache is bypassed (asked for, and granted)."""

    def __init__(self, calls: PosixCalls, syncer: Syncer, fd: int, path: str, writable: bool) -> None:
        self._calls = calls
        self._syncer = syncer
        self._write = calls.write
        self._pread = calls.pread
        self._fd = fd
        self.path = path
        self.writable = writable

    def check(self) -> None:
        """Raises `ValueError` if the handle is closed."""
        if self._fd < 0:
            raise ValueError(f"{self.path}: the file is closed")

    def _explained(self, error: OSError) -> Exception:
        """The error of a call on the descriptor, with the path; or that the handle is closed."""
        if self._fd < 0:
            return ValueError(f"{self.path}: the file is closed")
        code = error.errno or errno.EIO
        return OSError(code, os.strerror(code), self.path)

    def append(self, data: BytesLike) -> None:
        """Write at the end of the file. Raises `OSError`; what a short write left over is written too."""
        try:
            written = self._write(self._fd, data)
            if written != len(data):
                self._append_rest(memoryview(data).cast("B"), written)
        except OSError as error:
            raise self._explained(error) from None

    def _append_rest(self, view: memoryview, written: int) -> None:
        while written < len(view):
            count = self._write(self._fd, view[written:])
            if count == 0:
                raise OSError(errno.EIO, "write(2) wrote nothing")
            written += count

    def pread(self, offset: int, size: int) -> bytes:
        """The bytes at [offset, offset + size), as far as the file reaches."""
        try:
            data = self._pread(self._fd, size, offset)
            while 0 < len(data) < size:
                more = self._pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise self._explained(error) from None
        return data

    def flush(self) -> None:
        """Nothing to do: there is no buffer here."""
        self.check()

    def sync(self, kind: SyncKind, site: str) -> None:  # noqa: ARG002 - sites are for tools above
        """See the table at the head of this file."""
        self.check()
        try:
            self._syncer.sync(self._fd, kind)
        except OSError as error:
            raise self._explained(error) from None

    def truncate(self, size: int) -> None:
        """Cut, or grow with zeros. Raises EINVAL if the handle is read only."""
        self.check()
        try:
            if not self.writable:
                raise OSError(errno.EINVAL, "")
            self._calls.ftruncate(self._fd, size)
        except OSError as error:
            raise self._explained(error) from None

    def size(self) -> int:
        """Bytes in the file."""
        try:
            return self._calls.fstat(self._fd).st_size
        except OSError as error:
            raise self._explained(error) from None

    def close(self) -> None:
        """Release the descriptor."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._calls.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
