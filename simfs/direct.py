"""Reads and writes that go round the page cache: O_DIRECT on Linux.

    file    |····block····|····block····|····block····|··|
    append        tttttttt hhhh ───────────────────── ttt        t: through the cache, until the block is full
                                  whole blocks: direct

O_DIRECT takes whole blocks from aligned memory only. An append that begins or ends inside a block writes
those ends through the cache, with the flag off for the moment (as GNU dd does with its last block), and
only what lies between goes direct. So nothing is padded, nothing is written twice, and the file
has its true length at every moment.

Invariants
----------
1. A block is written either through the cache or directly, never both at once: direct writes begin where
   a block begins, at the end of the file.
2. Where the filesystem refuses (EINVAL: tmpfs before Linux 6.6, some network filesystems), the handle goes
   on through the cache, and its `direct` says False.

Left out: asking for the true alignment (statx, STATX_DIOALIGN): 4096 suits every device that Linux mounts.
macOS has no O_DIRECT: F_NOCACHE there is a flag of the descriptor without any rule on alignment.
"""

from __future__ import annotations

import errno
import fcntl
from mmap import mmap

from simfs.api import BytesLike
from simfs.realfile import REFUSALS, RealFile, Syncer
from simfs.syscalls import F_NOCACHE, PosixCalls

ALIGN_BYTES = 4096
CHUNK_BYTES = 1 << 20
"""One direct write or read at most: the size of the aligned buffers."""


def bypass_cache(calls: PosixCalls, fd: int) -> bool:
    """Ask that this descriptor go round the cache; whether that was granted.

    The flag is set on the open file, not given to open(2): a filesystem that refuses would by then have
    created the file.
    """
    try:
        if calls.platform == "darwin":
            calls.fcntl(fd, F_NOCACHE, 1)
        else:
            flags = calls.fcntl(fd, fcntl.F_GETFL, 0)
            calls.fcntl(fd, fcntl.F_SETFL, flags | calls.direct_flag)
            return calls.direct_flag != 0
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return False
    return True


class DirectFile(RealFile):
    """A handle that bypasses the page cache as far as blocks are whole."""

    def __init__(self, calls: PosixCalls, syncer: Syncer, fd: int, path: str, writable: bool) -> None:
        super().__init__(calls, syncer, fd, path, writable)
        self.direct = True
        self._spare: list[mmap] = []

    def append(self, data: BytesLike) -> None:
        """Write at the end of the file: whole blocks directly, the ends through the cache."""
        if not self.direct or not self.writable:
            return super().append(data)
        view = memoryview(data).cast("B")
        head = min(-self.size() % ALIGN_BYTES, len(view))
        done = head + (len(view) - head) // ALIGN_BYTES * ALIGN_BYTES
        self._append_cached(view[:head])
        for start in range(head, done, CHUNK_BYTES):
            self._append_blocks(view[start : min(start + CHUNK_BYTES, done)])
        self._append_cached(view[done:])
        return None

    def _append_cached(self, view: memoryview) -> None:
        if len(view):
            self._set_direct(False)
            try:
                super().append(view)
            finally:
                self._set_direct(self.direct)

    def _append_blocks(self, view: memoryview) -> None:
        written = 0
        if self.direct:
            buffer = self._spare.pop() if self._spare else mmap(-1, CHUNK_BYTES)
            try:
                buffer[: len(view)] = view
                with memoryview(buffer) as whole, whole[: len(view)] as part:
                    written = self._calls.write(self._fd, part)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise self._explained(error) from None
                self._give_up()
            finally:
                self._spare.append(buffer)
        if written < len(view):
            self._append_cached(view[written:])

    def pread(self, offset: int, size: int) -> bytes:
        """The bytes at [offset, offset + size), read as whole blocks."""
        if not self.direct or offset < 0 or size <= 0:
            return super().pread(offset, size)
        pieces: list[bytes] = []
        while size > 0:
            skip = offset % ALIGN_BYTES
            piece = self._read_blocks(offset - skip, skip, min(size, CHUNK_BYTES - skip))
            if piece is None:
                return b"".join(pieces) + super().pread(offset, size)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_blocks(self, start: int, skip: int, size: int) -> bytes | None:
        """One read; None if the filesystem refuses direct reads after all."""
        buffer = self._spare.pop() if self._spare else mmap(-1, CHUNK_BYTES)
        try:
            with memoryview(buffer) as whole, whole[: -(-(skip + size) // ALIGN_BYTES) * ALIGN_BYTES] as part:
                got = self._calls.preadv(self._fd, [part], start)
            return buffer[skip : min(got, skip + size)]
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise self._explained(error) from None
            self._give_up()
            return None
        finally:
            self._spare.append(buffer)

    def _give_up(self) -> None:
        self.direct = False
        self._set_direct(False)

    def _set_direct(self, on: bool) -> None:
        flags = self._calls.fcntl(self._fd, fcntl.F_GETFL, 0)
        flag = self._calls.direct_flag
        self._calls.fcntl(self._fd, fcntl.F_SETFL, flags | flag if on else flags & ~flag)
