"""A filesystem in memory, with POSIX semantics and a log of what was done to it.

    folder ── name ──▶ inode ◀── handle        an inode lives while a name or a handle leads to it

What callers see is the *visible* state, kept here and nowhere else. What would be left after a crash is
computed from `log` by `simfs.crash`; nothing in this module knows about durability.

Invariants
----------
1. The visible state is `base` (the tree at the beginning) with all records of `log` applied.
2. Errors carry the errno that Linux gives, checks are made in the order in which Linux makes them.
3. After `crash_image` with `at=None`, every call on this filesystem and its handles raises `PowerLost`.
4. Inside `runtime.no_switch()`, every call that may switch tasks raises `AssertionError`.

Left out: permissions, times, symbolic links. ".." is resolved by name. One thread at a time.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from simfs.api import File, Filesystem, PowerLost, Stat, SyncKind
from simfs.buffer import BufferedFile
from simfs.memory_file import Directory, Inode, MemoryFile, MemoryHeld, fail
from simfs.memory_runtime import MemoryRuntime
from simfs.oplog import ROOT, Create, Link, Mkdir, Record, Rename, Rmdir, SyncDir, Tree, Truncate, Unlink

if TYPE_CHECKING:
    from simfs.crash import Choice, Failure

__all__ = ["MemoryFile", "MemoryFilesystem", "MemoryHeld", "MemoryRuntime", "MemoryWorld"]

DIRECT_ALIGN_BYTES = 4096
"""Direct handles gather appends to multiples of this, as on a real disk."""


def _parts(path: str) -> list[str]:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return parts


class MemoryFilesystem:
    """A tree of files in memory.

    `record` False keeps no log (faster; no power loss can be computed then). `capacity_bytes` bounds the
    sum of all contents: beyond it appends raise ENOSPC; it may be changed at any time. `tree` is what
    is there at the beginning, and counts as durable.

    >>> fs = MemoryFilesystem()
    >>> with fs.create("/a") as file:
    ...     file.append(b"hello")
    >>> fs.listdir("/"), fs.stat("/a").size, len(fs.log)
    (['a'], 5, 2)
    """

    fsync_is_durable = True
    """As on Linux; see `simfs.api.Filesystem`."""

    def __init__(self, *, record: bool = True, capacity_bytes: int | None = None, tree: Tree | None = None) -> None:
        self.base = tree or Tree.empty()
        self.log: list[Record] = []
        self.log_start = 0
        """The first record of `log` that was made here; those before it were made before a process died."""
        self.recording = record
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.locks: dict[int, MemoryHeld] = {}
        self.fenced = False
        self.runtime: MemoryRuntime | None = None
        self._next_inode = self.base.next_inode
        self._root = self._load(self.base)

    def _load(self, tree: Tree) -> Directory:
        nodes: dict[int, Inode | Directory] = {number: Directory(number) for number in tree.directories}
        for number, data in tree.files.items():
            nodes[number] = Inode(number, data)
            self.used_bytes += len(data)
        for number, names in tree.directories.items():
            folder = nodes[number]
            assert isinstance(folder, Directory)
            for name, child in names.items():
                node = folder.names[name] = nodes[child]
                if isinstance(node, Inode):
                    node.links += 1
        root = nodes[ROOT]
        assert isinstance(root, Directory)
        return root

    def tree(self) -> Tree:
        """The visible state, as a value. Contents are shared, not copied."""
        directories: dict[int, dict[str, int]] = {}
        files: dict[int, bytes] = {}
        folders = [self._root]
        for folder in folders:
            directories[folder.number] = {name: node.number for name, node in folder.names.items()}
            for node in folder.names.values():
                if isinstance(node, Directory):
                    folders.append(node)
                elif node.number not in files:
                    files[node.number] = node.frozen()
        return Tree(directories, files, self._next_inode)

    def crash_image(self, failure: Failure, choice: Choice | None = None, at: int | None = None) -> MemoryFilesystem:
        """A new filesystem that holds what survived; see `simfs.crash.crash_image`."""
        from simfs import crash  # the only edge in this direction: images are made of filesystems

        return crash.crash_image(self, failure, choice, at)

    # What the handles share

    def check(self, call: str) -> None:
        """Called first by everything here. Raises `PowerLost` when fenced."""
        if self.fenced:
            raise PowerLost(f"{call}: the device is gone")
        if self.runtime is not None and self.runtime.critical:
            self.runtime.check(call)

    def record(self, record: Record) -> None:
        """Add a record to the log, if there is one."""
        if self.recording:
            self.log.append(record)

    def room_bytes(self) -> int:
        """How many more bytes fit."""
        return 1 << 62 if self.capacity_bytes is None else max(self.capacity_bytes - self.used_bytes, 0)

    def resize(self, inode: Inode, size: int, path: str) -> None:
        """Cut or grow a file."""
        grown = size - len(inode.data)
        if grown > self.room_bytes():
            fail(errno.ENOSPC, path)
        data = inode.writable()
        if grown > 0:
            data.extend(bytes(grown))
        else:
            del data[size:]
        self.used_bytes += grown
        if grown:
            self.record(Truncate(inode.number, size, path))

    def free_if_unused(self, inode: Inode) -> None:
        """Give a file's space back once neither a name nor a handle leads to it."""
        if inode.links == 0 and inode.handles == 0:
            self.used_bytes -= len(inode.data)

    # Names

    def _folder_of(self, path: str, told: tuple[str, str] | None = None) -> tuple[Directory, str]:
        """The folder that `path` lies in, and the last part of the path ("" for the root itself).

        Errors name `told`, the two paths of a call that takes two, or else `path`.
        """
        names = told or (path, None)
        if not path:
            fail(errno.ENOENT, *names)
        parts = _parts(path)
        node: Inode | Directory | None = self._root
        for part in parts[:-1]:
            if not isinstance(node, Directory):
                break
            node = node.names.get(part)
        if node is None:
            fail(errno.ENOENT, *names)
        if not isinstance(node, Directory):
            fail(errno.ENOTDIR, *names)
        return node, parts[-1] if parts else ""

    def _look_up(self, path: str) -> Inode | Directory | None:
        folder, name = self._folder_of(path)
        return folder.names.get(name) if name else self._root

    def _node(self, path: str) -> Inode | Directory:
        node = self._look_up(path)
        if node is None:
            fail(errno.ENOENT, path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._node(path)
        if not isinstance(node, Directory):
            fail(errno.ENOTDIR, path)
        return node

    def _new_number(self) -> int:
        self._next_inode += 1
        return self._next_inode - 1

    def _make(self, folder: Directory, name: str, path: str) -> Inode:
        inode = folder.names[name] = Inode(self._new_number())
        inode.links = 1
        self.record(Create(folder.number, name, inode.number, path))
        return inode

    def _handle(self, inode: Inode, path: str, writable: bool, buffer_bytes: int, direct: bool) -> File:
        file = MemoryFile(self, inode, path, writable, direct)
        if direct:
            return BufferedFile(file, buffer_bytes, DIRECT_ALIGN_BYTES)
        return BufferedFile(file, buffer_bytes) if buffer_bytes > 0 else file

    # The protocol

    def create(self, path: str, *, exclusive: bool = True, buffer_bytes: int = 0, direct: bool = False) -> File:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.create")
        folder, name = self._folder_of(path)
        node = folder.names.get(name) if name else self._root
        if node is not None and exclusive:
            fail(errno.EEXIST, path)
        if isinstance(node, Directory):
            fail(errno.EISDIR, path)
        if node is None:
            node = self._make(folder, name, path)
        else:
            self.resize(node, 0, path)
        return self._handle(node, path, True, buffer_bytes, direct)

    def open(self, path: str, *, write: bool = False, buffer_bytes: int = 0, direct: bool = False) -> File:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.open")
        node = self._node(path)
        if isinstance(node, Directory):
            fail(errno.EISDIR, path)
        return self._handle(node, path, write, buffer_bytes, direct)

    def rename(self, source: str, target: str) -> None:
        """See `simfs.api.Filesystem`. A folder may replace an empty folder, a file a file."""
        self.check("Filesystem.rename")
        old_folder, old_name = self._folder_of(source, (source, target))
        new_folder, new_name = self._folder_of(target, (source, target))
        if not old_name or not new_name:
            fail(errno.EBUSY, source, target)
        node, victim = old_folder.names.get(old_name), new_folder.names.get(new_name)
        if node is None:
            fail(errno.ENOENT, source, target)
        code = self._rename_refused(node, victim, _parts(source), _parts(target))
        if code:
            fail(code, source, target)
        if node is victim:
            return
        replaced = 0
        if isinstance(victim, Inode):
            victim.links -= 1
            self.free_if_unused(victim)
        if victim is not None:
            replaced = victim.number
        del old_folder.names[old_name]
        new_folder.names[new_name] = node
        folders = old_folder.number, new_folder.number
        self.record(Rename(folders[0], old_name, folders[1], new_name, node.number, replaced, source, target))

    def _rename_refused(
        self, node: Inode | Directory, victim: Inode | Directory | None, source: list[str], target: list[str]
    ) -> int:
        if node is victim:
            return 0
        if isinstance(node, Directory) and target[: len(source)] == source:
            return errno.EINVAL
        if isinstance(victim, Directory) and source[: len(target)] == target:
            return errno.ENOTEMPTY
        if isinstance(node, Directory) and isinstance(victim, Inode):
            return errno.ENOTDIR
        if isinstance(victim, Directory) and isinstance(node, Inode):
            return errno.EISDIR
        if isinstance(victim, Directory) and victim.names:
            return errno.ENOTEMPTY
        return 0

    def remove(self, path: str) -> None:
        """See `simfs.api.Filesystem`. Raises `IsADirectoryError`."""
        self.check("Filesystem.remove")
        folder, name = self._folder_of(path)
        node = self._node(path)
        if isinstance(node, Directory):
            fail(errno.EISDIR, path)
        del folder.names[name]
        node.links -= 1
        self.record(Unlink(folder.number, name, node.number, path))
        self.free_if_unused(node)

    def link(self, source: str, target: str) -> None:
        """See `simfs.api.Filesystem`. Raises EPERM for a folder."""
        self.check("Filesystem.link")
        old_folder, old_name = self._folder_of(source, (source, target))
        node = old_folder.names.get(old_name) if old_name else self._root
        if node is None:
            fail(errno.ENOENT, source, target)
        folder, name = self._folder_of(target, (source, target))
        if not name or name in folder.names:
            fail(errno.EEXIST, source, target)
        if isinstance(node, Directory):
            fail(errno.EPERM, source, target)
        folder.names[name] = node
        node.links += 1
        self.record(Link(folder.number, name, node.number, target))

    def listdir(self, path: str) -> list[str]:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.listdir")
        return sorted(self._directory(path).names)

    def mkdir(self, path: str) -> None:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.mkdir")
        folder, name = self._folder_of(path)
        if not name or name in folder.names:
            fail(errno.EEXIST, path)
        made = folder.names[name] = Directory(self._new_number())
        self.record(Mkdir(folder.number, name, made.number, path))

    def rmdir(self, path: str) -> None:
        """See `simfs.api.Filesystem`. Raises ENOTEMPTY, ENOTDIR."""
        self.check("Filesystem.rmdir")
        folder, name = self._folder_of(path)
        node = self._directory(path)
        if not name:
            fail(errno.EBUSY, path)
        if node.names:
            fail(errno.ENOTEMPTY, path)
        del folder.names[name]
        self.record(Rmdir(folder.number, name, node.number, path))

    def sync_dir(self, path: str, site: str, kind: SyncKind = SyncKind.FILE) -> None:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.sync_dir")
        self.record(SyncDir(self._directory(path).number, kind, site, path))

    def exists(self, path: str) -> bool:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.exists")
        try:
            return self._look_up(path) is not None
        except (FileNotFoundError, NotADirectoryError):
            return False

    def stat(self, path: str) -> Stat:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.stat")
        node = self._node(path)
        if isinstance(node, Directory):
            return Stat(0, True, node.number, 1)
        return Stat(len(node.data), False, node.number, node.links)

    def lock(self, path: str) -> MemoryHeld:
        """See `simfs.api.Filesystem`."""
        self.check("Filesystem.lock")
        node = self._look_up(path)
        if isinstance(node, Directory):
            fail(errno.EISDIR, path)
        if node is None:
            node = self._make(*self._folder_of(path), path)
        if node.number in self.locks:
            fail(errno.EAGAIN, path)
        held = self.locks[node.number] = MemoryHeld(self, node)
        return held


class MemoryWorld:
    """A filesystem in memory and a runtime for one thread of control."""

    def __init__(self, fs: Filesystem | None = None, runtime: MemoryRuntime | None = None) -> None:
        self.fs: Filesystem = fs if fs is not None else MemoryFilesystem()
        self.runtime = runtime if runtime is not None else MemoryRuntime()
        ground: Any = self.fs
        while hasattr(ground, "inner"):
            ground = ground.inner
        if isinstance(ground, MemoryFilesystem):
            ground.runtime = self.runtime

    def device_bytes_written(self) -> int | None:
        """None: there is no device, and no page cache before it."""
        return None
