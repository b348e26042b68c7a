"""What a crash leaves behind, computed from the operation log.

    base tree ──record──record──record──▶ visible state        (what a process kill leaves)
         └──── sync ────────── sync ────▶ durable state        (what must survive a power loss)
                    pending records between the two: a `Choice` says which parts of them survive

A **step** is a record with its place in the log. Its effect on the device falls into **parts** that
survive independently under the worst-case profile; a choice is asked about each part once:

| record           | part 0 (`SIZE`, `LINK`)      | further parts                                                  |
| ---------------- | ---------------------------- | -------------------------------------------------------------- |
| Append           | the new size                 | 1 + i: the i-th 512-byte sector that the data touches          |
| Truncate         | the new size                 | 1 + i: the i-th sector past the new end turns to zeros         |
| Create Mkdir Link| the name appears             |                                                                |
| Unlink Rmdir     | the name goes                |                                                                |
| Rename           | the target names the inode   | `UNLINK_SOURCE`: the old name goes; `UNLINK_TARGET`: so does   |
|                  |                              | the name of the file that was replaced                         |

Rules of the worst-case profile
-------------------------------
1. A sync of a file (DATA, FILE, FULL) makes its content and size durable: this inode only, not its name.
   BARRIER makes nothing durable. A sync of a folder makes the names in this folder durable, not the
   folder's own name.
2. Size and data are independent. Where the size survived and the data did not, the file reads as zeros or
   garbage. Data beyond the surviving size is lost.
3. A sector is written back whole: when a part of it survives, so does every older write to that sector.
   Sectors of one append survive in any combination.
4. A surviving name record applies to what is then there, in log order. A durable name is only dropped
   by a surviving removal of just this name of just this inode.
5. An inode that no surviving name leads to is gone. A surviving name of a file whose content did not
   survive leads to an empty file.
6. Renaming a *folder* is one part (a folder with two names would be no tree).

Left out: devices that break rule 3 (garbage over synced bytes of a sector that is written again), blocks
of a removed file that another file reuses, and all orders between records that real filesystems
keep: those are the persistence profiles, which are subsets of what is possible here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from simfs.api import SyncKind
from simfs.choice import (
    ALL_KEPT,
    LINK,
    SIZE,
    SYNCED_ONLY,
    UNLINK_SOURCE,
    UNLINK_TARGET,
    Choice,
    Chosen,
    Fixed,
    Step,
    WorstCase,
)
from simfs.memory import MemoryFilesystem
from simfs.oplog import ROOT, Append, Create, Link, Mkdir, Rename, Rmdir, Sync, SyncDir, Tree, Truncate, Unlink
from simfs.survivors import DirectoryState, FileState, NameChange

__all__ = [
    "ALL_KEPT",
    "LINK",
    "SIZE",
    "SYNCED_ONLY",
    "UNLINK_SOURCE",
    "UNLINK_TARGET",
    "Choice",
    "Chosen",
    "CrashReplay",
    "Failure",
    "Fixed",
    "Step",
    "WorstCase",
    "crash_image",
]

Failure: TypeAlias = Literal["kill", "os", "power"]
"""Death of the process, crash of the operating system, loss of power. The last two are one here: the
worst case does not tell the operating system's cache from the device's."""


class CrashReplay:
    """A log, replayed forward once; an image of any moment on the way costs what that moment's tree costs.

    >>> fs = MemoryFilesystem()
    >>> with fs.create("/a") as file:
    ...     file.append(b"x")
    >>> replay = CrashReplay(fs)
    >>> [replay.advance(at).image(ALL_KEPT).listdir("/") for at in range(len(fs.log) + 1)]
    [[], ['a'], ['a']]
    """

    def __init__(self, fs: MemoryFilesystem) -> None:
        if not fs.recording:
            raise ValueError("this filesystem keeps no log (record=False): only a kill of now has an image")
        self._fs = fs
        self._files = {number: FileState(data) for number, data in fs.base.files.items()}
        self._directories = {number: DirectoryState(names) for number, names in fs.base.directories.items()}
        self._seen: dict[str, int] = {}
        self._next_inode = fs.base.next_inode
        self.position = 0
        """How many records are replayed."""

    def advance(self, to: int) -> CrashReplay:
        """Replay up to and including record `to` - 1. Backwards is a `ValueError`."""
        log = self._fs.log
        if not self.position <= to <= len(log):
            raise ValueError(f"cannot advance to {to}: at {self.position} of {len(log)} records")
        for number in range(self.position, to):
            record = log[number]
            path = record.path
            nth = self._seen[path] = self._seen.get(path, 0) + 1
            _APPLY[type(record)](self, Step(number, path, nth, record), record)
        self.position = to
        return self

    def tree(self, choice: Choice) -> Tree:
        """What survives a power loss now."""
        directories: dict[int, dict[str, int]] = {}
        files: dict[int, bytes] = {}
        waiting = [ROOT]
        for number in waiting:
            names = directories[number] = {}
            for name, child in sorted(self._directories[number].names(choice).items()):
                if child in self._directories:
                    if child in waiting:
                        continue  # moved back and forth, and two of its names survived: the first one counts
                    waiting.append(child)
                elif child not in files:
                    files[child] = self._files[child].content(choice)
                names[name] = child
        return Tree(directories, files, self._next_inode)

    def image(self, choice: Choice = SYNCED_ONLY, failure: Failure = "power") -> MemoryFilesystem:
        """A new filesystem that holds what survives a failure now.

        After a loss of power, what it holds is durable and its log is empty. After a kill the machine runs
        on: everything visible is there, `choice` plays no part, and the log so far comes along, so that a
        later loss of power may still take what was never synced; `log_start` tells where it goes on.
        """
        capacity = self._fs.capacity_bytes
        if failure != "kill":
            return MemoryFilesystem(tree=self.tree(choice), capacity_bytes=capacity)
        image = MemoryFilesystem(tree=self.tree(ALL_KEPT), capacity_bytes=capacity)
        image.base = self._fs.base
        image.log = self._fs.log[: self.position]
        image.log_start = self.position
        return image

    def _add_name(self, step: Step, record: Create | Mkdir | Link) -> None:
        if isinstance(record, Create):
            self._files[record.inode] = FileState(b"")
        elif isinstance(record, Mkdir):
            self._directories[record.inode] = DirectoryState({})
        self._next_inode = max(self._next_inode, record.inode + 1)
        self._directories[record.directory].apply(NameChange(step, LINK, record.name, record.inode, True))

    def _drop_name(self, step: Step, record: Unlink | Rmdir) -> None:
        self._directories[record.directory].apply(NameChange(step, LINK, record.name, record.inode, False))

    def _rename(self, step: Step, record: Rename) -> None:
        source, target = self._directories[record.directory], self._directories[record.target_directory]
        whole = record.inode in self._directories
        if record.replaced:
            part = LINK if whole else UNLINK_TARGET
            target.apply(NameChange(step, part, record.target_name, record.replaced, False))
        target.apply(NameChange(step, LINK, record.target_name, record.inode, True))
        source.apply(NameChange(step, LINK if whole else UNLINK_SOURCE, record.name, record.inode, False))

    def _change(self, step: Step, record: Append | Truncate) -> None:
        self._files[record.inode].apply(step, record)

    def _sync(self, step: Step, record: Sync) -> None:  # noqa: ARG002
        if record.kind is not SyncKind.BARRIER:
            self._files[record.inode].sync()

    def _sync_dir(self, step: Step, record: SyncDir) -> None:  # noqa: ARG002
        if record.kind is SyncKind.BARRIER:
            return
        folder = self._directories[record.directory]
        moves = [change.step for change in folder.pending if isinstance(change.step.record, Rename)]
        folder.sync()
        for move in moves:
            self._finish_move(move)

    def _finish_move(self, move: Step) -> None:
        """Rule 6: when one end of a folder's move became durable, so does its other end, with that name's past."""
        record = move.record
        assert isinstance(record, Rename)
        if record.inode in self._directories:
            for number, name in (record.directory, record.name), (record.target_directory, record.target_name):
                self._directories[number].sync_name(name, move.number)


# Each method takes just the records that it is listed for, which this dict cannot say in types.
_APPLY: dict[type, Callable[..., None]] = {
    Create: CrashReplay._add_name,
    Mkdir: CrashReplay._add_name,
    Link: CrashReplay._add_name,
    Unlink: CrashReplay._drop_name,
    Rmdir: CrashReplay._drop_name,
    Rename: CrashReplay._rename,
    Append: CrashReplay._change,
    Truncate: CrashReplay._change,
    Sync: CrashReplay._sync,
    SyncDir: CrashReplay._sync_dir,
}


def crash_image(
    fs: MemoryFilesystem, failure: Failure, choice: Choice | None = None, at: int | None = None
) -> MemoryFilesystem:
    """What survives `failure`: now (`fs` is fenced then), or right after the first `at` records of its log.

    `choice` is `SYNCED_ONLY` unless given. Raises `ValueError` for a loss of power, or a moment in the past,
    of a filesystem that keeps no log.
    """
    if failure not in ("kill", "os", "power"):
        raise ValueError(f"failure is {failure!r}, not one of kill, os, power")
    if failure == "kill" and at is None and not fs.recording:
        image = MemoryFilesystem(tree=fs.tree(), capacity_bytes=fs.capacity_bytes, record=False)
    else:
        replay = CrashReplay(fs).advance(len(fs.log) if at is None else at)
        image = replay.image(SYNCED_ONLY if choice is None else choice, failure)
    if at is None:
        fs.fenced = True
    return image
