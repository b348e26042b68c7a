"""One state machine drives three filesystems: in memory, on the disk, and the disk's code over pyfakefs.

They must agree in every result, every error (class, errno, paths) and the whole tree after each step.
pyfakefs 6.3 refuses the same calls as Linux, but not always for the same reason: `PYFAKEFS_REASONS` lists
where, and nowhere else is a difference forgiven.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from pyfakefs import fake_filesystem, fake_os

from simfs.api import File, Filesystem, Held, Stat, SyncKind
from simfs.memory import MemoryFilesystem
from simfs.real import RealFilesystem
from simfs.syscalls import PosixCalls

PATHS = ["/a", "/b", "/c", "/d", "/d/a", "/d/b", "/d/e", "/d/e/a", "/a/a", "/no/a"]
paths = st.sampled_from(PATHS)
sizes = st.one_of(st.integers(0, 40), st.sampled_from([511, 512, 4095, 4096, 4097, 9000]))
buffers = st.sampled_from([0, 0, 0, 10, 5000])
kinds = st.sampled_from(list(SyncKind))

PYFAKEFS_REASONS = {
    # A file in the place of a folder along the path: "no such file" instead of "not a folder".
    *((operation, errno.ENOTDIR, errno.ENOENT) for operation in ("create", "open", "rename", "link")),
    *((operation, errno.ENOTDIR, errno.ENOENT) for operation in ("sync_dir", "mkdir", "lock")),
    # Two things are wrong with a call, and it looks at the other one first.
    ("link", errno.ENOENT, errno.EEXIST),
    ("link", errno.ENOTDIR, errno.EEXIST),
    ("link", errno.ENOTDIR, errno.EPERM),
    ("create", errno.EEXIST, errno.EISDIR),
    ("rename", errno.EINVAL, errno.ENOTDIR),
    ("rename", errno.EISDIR, errno.ENOTEMPTY),
}
"""(operation, errno on Linux, errno on pyfakefs)."""


class Side:
    """One filesystem, and where the tree under test begins in it."""

    def __init__(self, name: str, fs: Filesystem, root: str) -> None:
        self.name, self.fs, self.root = name, fs, root

    def at(self, path: str) -> str:
        return self.root + path


def outcome(side: Side, call: Callable[[Side], Any]) -> tuple[Any, ...]:
    """What a call came to: how it ended, with what, and for errors errno and paths."""
    try:
        return "returned", call(side)
    except OSError as error:
        names = error.filename, error.filename2
        if not isinstance(error.filename, str):
            raise AssertionError(f"{error!r} names no file") from error
        return "raised", type(error), error.errno, *(name and name.removeprefix(side.root) for name in names)
    except ValueError:
        return "raised", ValueError


def comparable(value: Any) -> Any:
    """Inode numbers are each filesystem's own business, handles too."""
    if isinstance(value, Stat):
        return value.size, value.is_dir, value.links
    return "a handle" if hasattr(value, "append") or hasattr(value, "release") else value


def snapshot(side: Side, path: str = "") -> dict[str, Any]:
    """The tree: names, contents, and which names are one file (by the first of them)."""
    tree: dict[str, Any] = {}
    first: dict[int, str] = {}
    waiting = [path]
    for folder in waiting:
        for name in side.fs.listdir(side.at(folder) or "/"):
            child = f"{folder}/{name}"
            found = side.fs.stat(side.at(child))
            if found.is_dir:
                waiting.append(child)
                tree[child] = "folder"
            else:
                with side.fs.open(side.at(child)) as file:
                    content = file.pread(0, 1 << 20)
                tree[child] = content, first.setdefault(found.inode, child), found.links
    return tree


class Differential(RuleBasedStateMachine):
    handles: Bundle[tuple[File, ...]] = Bundle("handles")
    locks: Bundle[tuple[Held, ...]] = Bundle("locks")

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="differential-")
        fake = fake_filesystem.FakeFilesystem(path_separator="/")
        fake.create_dir("/root")
        faked = RealFilesystem(PosixCalls.without_pread(fake_os.FakeOsModule(fake)))
        memory = MemoryFilesystem()
        memory.mkdir("/root")
        self.sides = [
            Side("memory", memory, "/root"),
            Side("real", RealFilesystem(), self.folder),
            Side("pyfakefs", faked, "/root"),
        ]
        self.open_handles: list[tuple[File, ...]] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for trio in self.open_handles:
                for file in trio:
                    file.close()
            shutil.rmtree(self.folder)

    def all_agree(self, what: str, call: Callable[[Side], Any]) -> tuple[Any, ...] | None:
        """Do it on all sides; the three values, or None if all refused."""
        outcomes = [outcome(side, call) for side in self.sides]
        memory, real, faked = ((how, comparable(value), *more) for how, value, *more in outcomes)
        assert memory == real, f"{what}: memory {memory}, real {real}"
        if memory[2:3] == faked[2:3]:
            assert memory[:3] == faked[:3], f"{what}: memory {memory}, pyfakefs {faked}"
        else:
            reason = (what.split()[0], *memory[2:3], *faked[2:3])
            assert reason in PYFAKEFS_REASONS, f"{what}: memory {memory}, pyfakefs {faked}"
        return tuple(value for _, value, *_ in outcomes) if memory[0] == "returned" else None

    def all_files_agree(self, what: str, trio: tuple[File, ...], call: Callable[[File], Any]) -> None:
        by_side = dict(zip([side.name for side in self.sides], trio, strict=True))
        self.all_agree(f"{what} {trio[0].path}", lambda side: call(by_side[side.name]))

    def opened(self, trio: tuple[Any, ...] | None) -> tuple[File, ...] | Any:
        if trio is None:
            return multiple()
        self.open_handles.append(trio)
        return trio

    @rule(target=handles, path=paths, exclusive=st.booleans(), buffer_bytes=buffers, direct=st.booleans())
    def create(self, path: str, exclusive: bool, buffer_bytes: int, direct: bool) -> Any:
        return self.opened(
            self.all_agree(
                f"create {path}",
                lambda side: side.fs.create(
                    side.at(path), exclusive=exclusive, buffer_bytes=buffer_bytes, direct=direct
                ),
            )
        )

    @rule(target=handles, path=paths, write=st.booleans(), buffer_bytes=buffers, direct=st.booleans())
    def open(self, path: str, write: bool, buffer_bytes: int, direct: bool) -> Any:
        return self.opened(
            self.all_agree(
                f"open {path}",
                lambda side: side.fs.open(side.at(path), write=write, buffer_bytes=buffer_bytes, direct=direct),
            )
        )

    @rule(trio=handles, size=sizes, fill=st.integers(0, 255), view=st.booleans())
    def append(self, trio: tuple[File, ...], size: int, fill: int, view: bool) -> None:
        data = bytes((fill + i) % 256 for i in range(size))
        self.all_files_agree("append", trio, lambda file: file.append(memoryview(data) if view else data))

    @rule(trio=handles, offset=sizes, size=sizes)
    def pread(self, trio: tuple[File, ...], offset: int, size: int) -> None:
        self.all_files_agree("pread", trio, lambda file: file.pread(offset, size))

    @rule(trio=handles, size=sizes)
    def truncate(self, trio: tuple[File, ...], size: int) -> None:
        self.all_files_agree("truncate", trio, lambda file: file.truncate(size))

    @rule(trio=handles)
    def flush(self, trio: tuple[File, ...]) -> None:
        self.all_files_agree("flush", trio, lambda file: file.flush())

    @rule(trio=handles, kind=kinds)
    def sync(self, trio: tuple[File, ...], kind: SyncKind) -> None:
        self.all_files_agree("sync", trio, lambda file: file.sync(kind, "test"))

    @rule(trio=handles)
    def size(self, trio: tuple[File, ...]) -> None:
        self.all_files_agree("size", trio, lambda file: file.size())

    @rule(trio=handles)
    def close(self, trio: tuple[File, ...]) -> None:
        self.all_files_agree("close", trio, lambda file: file.close())

    @rule(source=paths, onto=paths)
    def rename(self, source: str, onto: str) -> None:
        self.all_agree(f"rename {source} {onto}", lambda side: side.fs.rename(side.at(source), side.at(onto)))

    @rule(source=paths, onto=paths)
    def link(self, source: str, onto: str) -> None:
        self.all_agree(f"link {source} {onto}", lambda side: side.fs.link(side.at(source), side.at(onto)))

    @rule(path=paths)
    def remove(self, path: str) -> None:
        self.all_agree(f"remove {path}", lambda side: side.fs.remove(side.at(path)))

    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        self.all_agree(f"mkdir {path}", lambda side: side.fs.mkdir(side.at(path)))

    @rule(path=paths)
    def rmdir(self, path: str) -> None:
        self.all_agree(f"rmdir {path}", lambda side: side.fs.rmdir(side.at(path)))

    @rule(path=paths)
    def look(self, path: str) -> None:
        self.all_agree(f"listdir {path}", lambda side: side.fs.listdir(side.at(path)))
        self.all_agree(f"stat {path}", lambda side: side.fs.stat(side.at(path)))
        self.all_agree(f"exists {path}", lambda side: side.fs.exists(side.at(path)))

    @rule(path=paths, kind=kinds)
    def sync_dir(self, path: str, kind: SyncKind) -> None:
        self.all_agree(f"sync_dir {path}", lambda side: side.fs.sync_dir(side.at(path), "test", kind))

    @rule(target=locks, path=paths)
    def lock(self, path: str) -> Any:
        trio = self.all_agree(f"lock {path}", lambda side: side.fs.lock(side.at(path)))
        return multiple() if trio is None else trio

    @rule(trio=consumes(locks))
    def release(self, trio: tuple[Held, ...]) -> None:
        for held in trio:
            held.release()
            held.release()

    @invariant()
    def trees_agree(self) -> None:
        if hasattr(self, "sides"):
            memory, *others = (snapshot(side) for side in self.sides)
            for other in others:
                assert other == memory


Differential.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDifferential = Differential.TestCase
