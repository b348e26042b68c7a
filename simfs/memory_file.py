"""The parts of a filesystem in memory: inodes, folders, handles, locks. `simfs.memory` puts them together."""

from __future__ import annotations

import errno
import os
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from simfs.api import BytesLike, PowerLost, SyncKind
from simfs.oplog import Append, Sync

if TYPE_CHECKING:
    from simfs.memory import MemoryFilesystem


class Inode:
    """A file. `data` is `bytes` while images may share it, and becomes a `bytearray` with the first change."""

    __slots__ = ("data", "handles", "links", "number")

    def __init__(self, number: int, data: bytes = b"") -> None:
        self.number = number
        self.data: bytes | bytearray = data
        self.links = 0
        self.handles = 0

    def writable(self) -> bytearray:
        """The content, to be changed in place."""
        if type(self.data) is not bytearray:
            self.data = bytearray(self.data)
        return self.data

    def frozen(self) -> bytes:
        """The content, to be shared."""
        if type(self.data) is not bytes:
            self.data = bytes(self.data)
        return self.data


class Directory:
    """A folder: its names, and what they lead to."""

    __slots__ = ("names", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: dict[str, Inode | Directory] = {}


def fail(code: int, path: str, target: str | None = None) -> NoReturn:
    """Raise the `OSError` of this errno."""
    raise OSError(code, os.strerror(code), path, None, target)


class MemoryFile:
    """A handle without a buffer."""

    __slots__ = ("_fs", "_inode", "direct", "path", "writable")

    def __init__(self, fs: MemoryFilesystem, inode: Inode, path: str, writable: bool, direct: bool) -> None:
        self._fs = fs
        self._inode: Inode | None = inode
        self.path = path
        self.writable = writable
        self.direct = direct
        inode.handles += 1

    def check(self) -> Inode:
        """Called first by all that may switch tasks; the file behind the handle."""
        if self._fs.fenced or self._fs.runtime is not None:
            self._fs.check("a call on a file")
        return self._inode if self._inode is not None else self._live()

    def _live(self) -> Inode:
        """The file behind the handle. Raises `PowerLost`, or `ValueError` if the handle is closed."""
        if self._fs.fenced:
            raise PowerLost(f"{self.path}: the device is gone")
        if self._inode is None:
            raise ValueError(f"{self.path}: the file is closed")
        return self._inode

    def append(self, data: BytesLike) -> None:
        """Write at the end of the file. Raises ENOSPC after writing what fits, EBADF if read only."""
        inode = self.check()
        if not self.writable:
            fail(errno.EBADF, self.path)
        content = data if type(data) is bytes else bytes(memoryview(data))
        fs = self._fs
        missing = 0 if fs.capacity_bytes is None else max(len(content) - fs.room_bytes(), 0)
        if missing:
            content = content[: len(content) - missing]
        if content:
            offset = len(inode.data)
            inode.writable().extend(content)
            fs.used_bytes += len(content)
            if fs.recording:
                fs.log.append(Append(inode.number, offset, content, self.path))
        if missing:
            fail(errno.ENOSPC, self.path)

    def pread(self, offset: int, size: int) -> bytes:
        """The bytes at [offset, offset + size), as far as the file reaches."""
        inode = self.check()
        if offset < 0 or size < 0:
            fail(errno.EINVAL, self.path)
        return bytes(inode.data[offset : offset + size])

    def flush(self) -> None:
        """Nothing to do: there is no buffer here."""
        self.check()

    def sync(self, kind: SyncKind, site: str) -> None:
        """Record the request; `simfs.crash` says what it was worth."""
        self._fs.record(Sync(self.check().number, kind, site, self.path))

    def truncate(self, size: int) -> None:
        """Cut, or grow with zeros. Raises EINVAL if read only, ENOSPC if the zeros do not fit."""
        inode = self.check()
        if not self.writable or size < 0:
            fail(errno.EINVAL, self.path)
        self._fs.resize(inode, size, self.path)

    def size(self) -> int:
        """Bytes in the file."""
        return len(self._live().data)

    def close(self) -> None:
        """Release the handle; with it the file, if no name is left."""
        self._fs.check("File.close")
        if self._inode is not None:
            inode, self._inode = self._inode, None
            inode.handles -= 1
            self._fs.free_if_unused(inode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MemoryHeld:
    """A file lock that is held."""

    def __init__(self, fs: MemoryFilesystem, inode: Inode) -> None:
        self._fs = fs
        self._inode: Inode | None = inode

    def release(self) -> None:
        """Give the lock back. A second call does nothing."""
        if self._fs.fenced:
            raise PowerLost("Held.release: the device is gone")
        if self._inode is not None:
            del self._fs.locks[self._inode.number]
            self._inode = None
