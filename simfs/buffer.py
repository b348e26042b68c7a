"""A buffer in the process, in front of any handle: what the dial's level NONE loses.

Appends gather here and go on in one piece when `buffer_bytes` of them are there. With `align`, only
whole blocks go on by themselves, as direct I/O needs; `flush` sends the incomplete last one as well.

Invariants
----------
1. The file is `inner`'s content followed by the buffer: `size` and `pread` show both.
2. A byte is in exactly one of the two places. When `inner.append` fails half-way, what arrived leaves
   the buffer and the rest stays, so that a later flush neither loses nor doubles anything.

Left out: reading ahead. Blocks are cached above (by the engine) and below (by the operating system).
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from simfs.api import BytesLike, File, SyncKind


class RawFile(File, Protocol):
    """A handle without a buffer, as filesystems here make them."""

    writable: bool
    direct: bool

    def check(self) -> object:
        """Raise what any call would raise now: `ValueError` if closed, `PowerLost` if the device is gone."""
        ...


class BufferedFile:
    """`inner`, with appends gathered `buffer_bytes` at a time in whole multiples of `align` bytes."""

    def __init__(self, inner: RawFile, buffer_bytes: int, align: int = 1) -> None:
        self.inner = inner
        self.path = inner.path
        self._limit = max(buffer_bytes, align)
        self._align = align
        self._buffer = bytearray()

    @property
    def direct(self) -> bool:
        """Whether the page cache is bypassed (asked for, and granted)."""
        return self.inner.direct

    def append(self, data: BytesLike) -> None:
        """Into the buffer; on to the file when enough is there."""
        self.inner.check()
        if not self.inner.writable:
            self.inner.append(data)  # raises what the system says of such a handle
        self._buffer += data
        if len(self._buffer) >= self._limit:
            self._send(len(self._buffer) - (self.inner.size() + len(self._buffer)) % self._align)

    def _send(self, count: int) -> None:
        if count <= 0:
            return
        before = self.inner.size()
        chunk = bytes(self._buffer) if count == len(self._buffer) else bytes(self._buffer[:count])
        try:
            self.inner.append(chunk)
        except OSError:
            del self._buffer[: self.inner.size() - before]
            raise
        del self._buffer[:count]

    def pread(self, offset: int, size: int) -> bytes:
        """What is on file, then what is still here."""
        if not self._buffer:
            return self.inner.pread(offset, size)
        below = self.inner.size()
        data = self.inner.pread(offset, min(size, below - offset)) if offset < below else b""
        if offset + size <= below:
            return data
        start = max(offset - below, 0)
        return data + bytes(self._buffer[start : offset + size - below])

    def flush(self) -> None:
        """Empty the buffer into the file."""
        self.inner.check()
        self._send(len(self._buffer))

    def sync(self, kind: SyncKind, site: str) -> None:
        """`flush`, then sync the file."""
        self.flush()
        self.inner.sync(kind, site)

    def truncate(self, size: int) -> None:
        """`flush`, then cut or grow the file."""
        self.flush()
        self.inner.truncate(size)

    def size(self) -> int:
        """Bytes on file and here."""
        return self.inner.size() + len(self._buffer)

    def close(self) -> None:
        """Flush, then close; the handle is released even if the flush fails."""
        try:
            if self._buffer:
                self.flush()
        finally:
            self._buffer = bytearray()
            self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
