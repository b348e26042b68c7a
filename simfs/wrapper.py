"""What `trace` and `faults` have in common: a filesystem around a filesystem, with one place to step in.

Each operation becomes a `Call` and passes through `around(call, perform, file)`, which may look at it, change
it, perform it or not, and answer in its place. Wrappers compose in any order; `inner` takes one off.

Left out: `Lock`, `Condition`, time. A wrapper changes what a program sees of its files, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from simfs.api import BytesLike, File, Filesystem, Held, Stat, SyncKind

T = TypeVar("T")

FILE_OPERATIONS = ("append", "pread", "flush", "sync", "truncate", "size", "close")
NAME_OPERATIONS = (
    *("create", "open", "rename", "remove", "link", "listdir", "mkdir"),
    *("rmdir", "sync_dir", "exists", "stat", "lock"),
)
OPERATIONS = FILE_OPERATIONS + NAME_OPERATIONS
"""Every operation, by the name of its method."""


class Call(NamedTuple):
    """One operation, as its caller asked for it. What an operation does not take keeps its default."""

    operation: str
    path: str
    target: str = ""
    offset: int = 0
    size: int = 0
    data: BytesLike = b""
    kind: SyncKind | None = None
    site: str = ""


class WrappedFile:
    """A handle whose operations pass through its filesystem's `around`."""

    def __init__(self, fs: WrappedFilesystem, inner: File) -> None:
        self.fs = fs
        self.inner = inner
        self.path = inner.path

    @property
    def direct(self) -> bool:
        """Whether the page cache is bypassed (asked for, and granted)."""
        return bool(getattr(self.inner, "direct", False))

    def append(self, data: BytesLike) -> None:
        """See `simfs.api.File`."""
        call = Call("append", self.path, size=memoryview(data).nbytes, data=data)
        self.fs.around(call, lambda call: self.inner.append(call.data), self)

    def pread(self, offset: int, size: int) -> bytes:
        """See `simfs.api.File`."""
        call = Call("pread", self.path, offset=offset, size=size)
        return self.fs.around(call, lambda call: self.inner.pread(call.offset, call.size), self)

    def flush(self) -> None:
        """See `simfs.api.File`."""
        self.fs.around(Call("flush", self.path), lambda _: self.inner.flush(), self)

    def sync(self, kind: SyncKind, site: str) -> None:
        """See `simfs.api.File`."""
        call = Call("sync", self.path, kind=kind, site=site)
        self.fs.around(call, lambda _: self.inner.sync(kind, site), self)

    def truncate(self, size: int) -> None:
        """See `simfs.api.File`."""
        self.fs.around(Call("truncate", self.path, size=size), lambda _: self.inner.truncate(size), self)

    def size(self) -> int:
        """See `simfs.api.File`."""
        return self.fs.around(Call("size", self.path), lambda _: self.inner.size(), self)

    def close(self) -> None:
        """See `simfs.api.File`."""
        self.fs.around(Call("close", self.path), lambda _: self.inner.close(), self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WrappedFilesystem:
    """A filesystem whose operations pass through `around`."""

    def __init__(self, inner: Filesystem) -> None:
        self.inner = inner

    @property
    def fsync_is_durable(self) -> bool:
        """See `simfs.api.Filesystem`."""
        return self.inner.fsync_is_durable

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:  # noqa: ARG002
        """Carry out a call; `file` is the handle of those in `FILE_OPERATIONS`."""
        return perform(call)

    def _wrap(self, file: File) -> WrappedFile:
        return WrappedFile(self, file)

    def create(self, path: str, *, exclusive: bool = True, buffer_bytes: int = 0, direct: bool = False) -> WrappedFile:
        """See `simfs.api.Filesystem`."""

        def perform(_: Call) -> WrappedFile:
            return self._wrap(self.inner.create(path, exclusive=exclusive, buffer_bytes=buffer_bytes, direct=direct))

        return self.around(Call("create", path), perform)

    def open(self, path: str, *, write: bool = False, buffer_bytes: int = 0, direct: bool = False) -> WrappedFile:
        """See `simfs.api.Filesystem`."""

        def perform(_: Call) -> WrappedFile:
            return self._wrap(self.inner.open(path, write=write, buffer_bytes=buffer_bytes, direct=direct))

        return self.around(Call("open", path), perform)

    def rename(self, source: str, target: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.around(Call("rename", source, target), lambda _: self.inner.rename(source, target))

    def remove(self, path: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.around(Call("remove", path), lambda _: self.inner.remove(path))

    def link(self, source: str, target: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.around(Call("link", source, target), lambda _: self.inner.link(source, target))

    def listdir(self, path: str) -> list[str]:
        """See `simfs.api.Filesystem`."""
        return self.around(Call("listdir", path), lambda _: self.inner.listdir(path))

    def mkdir(self, path: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.around(Call("mkdir", path), lambda _: self.inner.mkdir(path))

    def rmdir(self, path: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.around(Call("rmdir", path), lambda _: self.inner.rmdir(path))

    def sync_dir(self, path: str, site: str, kind: SyncKind = SyncKind.FILE) -> None:
        """See `simfs.api.Filesystem`."""
        call = Call("sync_dir", path, kind=kind, site=site)
        self.around(call, lambda _: self.inner.sync_dir(path, site, kind))

    def exists(self, path: str) -> bool:
        """See `simfs.api.Filesystem`."""
        return self.around(Call("exists", path), lambda _: self.inner.exists(path))

    def stat(self, path: str) -> Stat:
        """See `simfs.api.Filesystem`."""
        return self.around(Call("stat", path), lambda _: self.inner.stat(path))

    def lock(self, path: str) -> Held:
        """See `simfs.api.Filesystem`."""
        return self.around(Call("lock", path), lambda _: self.inner.lock(path))
