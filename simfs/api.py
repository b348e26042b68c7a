"""The contract between a storage engine and the ground it stands on.

An engine that is written against this module runs on a real disk (`simfs.real`), on a disk in
memory that can lose power (`simfs.memory`), and under wrappers that record (`simfs.trace`) or
break (`simfs.faults`) every operation. The engine is plain blocking code; it is handed a `World`
and asks nobody else for files, locks or the time.

Calls that may switch tasks
---------------------------
In a simulated world a call may suspend the calling task until the simulated device answers.
Exactly these may do so, and nothing else switches:

    File.append  File.pread  File.flush  File.sync  File.truncate  File.close
    every method of Filesystem
    Lock.acquire (and `with lock`)  Condition.wait  Runtime.sleep_ns  Runtime.join

`with runtime.no_switch():` guards a section that relies on this, and fails loudly when one of
the above is called inside it.

Invariants that every implementation keeps (the differential tests check them)
------------------------------------------------------------------------------
1. Paths are `str`, with "/" between the parts. Errors are `OSError` with `errno` and `filename`.
2. `append` writes everything or raises. After it raised, how much arrived is unknown: `size()` tells.
3. `pread` returns fewer bytes than asked for only at the end of the file. A closed handle raises `ValueError`.
4. A handle goes on working after its file was renamed, unlinked or replaced.
5. `listdir` is sorted. No result depends on hashing or on the order in which a directory was filled.
6. Nothing is durable until a sync says so: a file's content by `File.sync`, a name by `sync_dir` of its folder.

Left out, and why: reading through a cursor, seeks and writes in the middle of a file (an LSM tree
never needs them), permissions, times and extended attributes (nothing here depends on them).
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast

if TYPE_CHECKING:
    from typing import Any

BytesLike = bytes | bytearray | memoryview
"""What `append` takes."""


class SyncKind(enum.Enum):
    """What a sync asks of the layers below. `File.sync` takes one.

    | kind    | Linux           | macOS                    | afterwards                                |
    | ------- | --------------- | ------------------------ | ----------------------------------------- |
    | DATA    | `fdatasync(2)`  | `fsync(2)`               | content and size are on the device        |
    | FILE    | `fsync(2)`      | `fsync(2)`               | and the file's times                      |
    | BARRIER | no call         | `fcntl(F_BARRIERFSYNC)`  | all synced so far precedes what is later  |
    | FULL    | `fsync(2)`      | `fcntl(F_FULLFSYNC)`     | on the media, past the device's own cache |

    On Linux `fsync` flushes the device's cache as well, so a barrier has nothing left to order and is
    no call at all; on macOS `fsync` stops at the device's cache, and only F_FULLFSYNC empties that.
    """

    DATA = "data"
    FILE = "file"
    BARRIER = "barrier"
    FULL = "full"


class SyncLevel(enum.IntEnum):
    """The durability dial: what must be true of a write before it is acknowledged.

    | level     | what an append to the log does                                | survives             |
    | --------- | ------------------------------------------------------------- | -------------------- |
    | NONE      | stays in this process's buffer                                | nothing              |
    | FLUSH     | `write(2)`                                                    | death of the process |
    | FSYNC     | `fsync(2)` (macOS: reaches the device's cache only)           | power loss (Linux)   |
    | FULLFSYNC | macOS: `fcntl(F_FULLFSYNC)`; elsewhere the same as FSYNC      | power loss           |

    >>> SyncLevel.FLUSH < SyncLevel.FSYNC
    True
    """

    NONE = 0
    FLUSH = 1
    FSYNC = 2
    FULLFSYNC = 3


class PowerLost(BaseException):
    """The device lost power: no call on it returns any more.

    A `BaseException`, so that no `except Exception` in an engine can swallow it and write on.
    """


@dataclass(frozen=True, slots=True)
class Stat:
    """What `Filesystem.stat` tells. `inode` is equal for two names exactly if they are one file.

    A folder says size 0 and links 1: what filesystems tell there differs, and means nothing to a caller.
    """

    size: int
    is_dir: bool
    inode: int
    links: int


class File(Protocol):
    """An open file. Use it in a `with` statement or call `close`."""

    path: str
    """The path that it was opened under, for messages."""

    def append(self, data: BytesLike) -> None:
        """Write `data` at the end of the file: into this handle's buffer if it has one, else `write(2)`.

        Raises `OSError` (ENOSPC, EIO, EDQUOT…); EINTR and short writes are handled inside.
        """
        ...

    def pread(self, offset: int, size: int) -> bytes:
        """The bytes at [offset, offset + size); fewer at the end of the file, `b""` beyond it.

        Bytes that this handle still buffers are seen.
        """
        ...

    def flush(self) -> None:
        """Hand what this handle buffers to the operating system (`write(2)`). Durable it is not."""
        ...

    def sync(self, kind: SyncKind, site: str) -> None:
        """`flush`, then make content and size durable to the degree that `kind` names.

        `site` names the place in the caller's code (such as `"wal.write"`), so that tools can
        count, drop, move or weaken exactly this call. After it raised, nothing is known about what
        is durable, and a retry may falsely succeed: give the file up (Rebello et al., ATC '20).
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes, or grow it with zeros."""
        ...

    def size(self) -> int:
        """Bytes in the file, what this handle buffers included."""
        ...

    def close(self) -> None:
        """Flush and release the handle. A second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Held(Protocol):
    """A file lock that is held; `release` gives it back. It is lost when the process dies."""

    def release(self) -> None:
        """Give the lock back. A second call does nothing."""
        ...


class Filesystem(Protocol):
    """A tree of folders and files with POSIX semantics."""

    @property
    def fsync_is_durable(self) -> bool:
        """Whether what a DATA or FILE sync covered outlives a loss of power (Linux), or only FULL does (macOS)."""
        ...

    def create(self, path: str, *, exclusive: bool = True, buffer_bytes: int = 0, direct: bool = False) -> File:
        """A new empty file, open for append and read.

        `exclusive`: `FileExistsError` if the name is taken; otherwise such a file is cut to nothing.
        `buffer_bytes` > 0: appends gather in the process and are written once that many are there.
        `direct`: bypass the page cache (O_DIRECT; F_NOCACHE on macOS) where platform and filesystem can;
        appends are gathered to whole sectors then, and `flush` completes the last one.
        """
        ...

    def open(self, path: str, *, write: bool = False, buffer_bytes: int = 0, direct: bool = False) -> File:
        """An existing file: read only, or with `write` for append and truncate as well.

        Raises `FileNotFoundError`, `IsADirectoryError`.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically give `source` the name `target`; a file of that name is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Drop a file's name. Its content lives until the last name and the last handle are gone."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises `FileExistsError`; `OSError` where links are not supported."""
        ...

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def mkdir(self, path: str) -> None:
        """Make one folder. Raises `FileExistsError`, and `FileNotFoundError` if the parent is missing."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def sync_dir(self, path: str, site: str, kind: SyncKind = SyncKind.FILE) -> None:
        """Make the names in this folder durable: created, renamed and removed ones.

        `kind` FILE is `fsync(2)` on the folder; FULL is F_FULLFSYNC on macOS, as for files.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder has this name."""
        ...

    def stat(self, path: str) -> Stat:
        """Size, kind, identity and number of names. Raises `FileNotFoundError`."""
        ...

    def lock(self, path: str) -> Held:
        """Create the file if need be and lock it, against other processes and other callers in this one.

        Raises `BlockingIOError` at once if somebody else holds it.
        """
        ...


class Lock(Protocol):
    """A mutual exclusion lock; not reentrant."""

    def acquire(self) -> bool:
        """Wait for the lock and take it; always True."""
        ...

    def release(self) -> None:
        """Give the lock back. Raises `RuntimeError` if it is not held."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Condition(Protocol):
    """A condition variable over a `Lock` that the caller holds."""

    def wait(self) -> None:
        """Release the lock, wait until notified, take the lock again. May return without cause: test again."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake up to `n` of those who wait."""
        ...

    def notify_all(self) -> None:
        """Wake all who wait."""
        ...


class Task(Protocol):
    """Something that runs beside its creator; see `Runtime.spawn`."""

    name: str


class Runtime(Protocol):
    """Time, tasks and locks."""

    def now_ns(self) -> int:
        """A monotonic clock, in integer nanoseconds."""
        ...

    def wall_s(self) -> int:
        """The time of day, in whole seconds since 1970 (virtual in a simulated world)."""
        ...

    def process_id(self) -> int:
        """Which process this is: another number after a fork. What is open does not belong to the child."""
        ...

    def sleep_ns(self, duration_ns: int) -> None:
        """Let `duration_ns` nanoseconds pass."""
        ...

    def lock(self) -> Lock:
        """A new lock, not held."""
        ...

    def condition(self, lock: Lock) -> Condition:
        """A new condition over `lock`."""
        ...

    def spawn(self, name: str, target: Callable[[], None]) -> Task:
        """Run `target` beside the caller: a thread on a real machine, a task in a simulated one."""
        ...

    def join(self, task: Task) -> None:
        """Wait for a task. An exception that ended it is raised here."""
        ...

    def no_switch(self) -> AbstractContextManager[None]:
        """A section in which no call may switch tasks (see the head of this module)."""
        ...


class World(Protocol):
    """Everything that an engine stands on."""

    @property
    def fs(self) -> Filesystem:
        """The files."""
        ...

    @property
    def runtime(self) -> Runtime:
        """Time, tasks and locks."""
        ...

    def device_bytes_written(self) -> int | None:
        """Bytes that this process asked the device to write so far; None where nobody counts them.

        On Linux the kernel's `write_bytes` of the process: pages when they become dirty, whoever wrote them.
        """
        ...


def default_world() -> World:
    """The real disk and real threads.

    Loaded lazily and by name: the only edge from this module to an implementation.
    """
    real: Any = importlib.import_module("simfs.real")
    return cast(World, real.RealWorld())
