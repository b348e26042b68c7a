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
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol, TypeAlias

from simfs.api import SyncKind
from simfs.memory import MemoryFilesystem
from simfs.oplog import (
    ROOT,
    Append,
    Create,
    Link,
    Mkdir,
    Record,
    Rename,
    Rmdir,
    Sync,
    SyncDir,
    Tree,
    Truncate,
    Unlink,
)

Failure: TypeAlias = Literal["kill", "os", "power"]
"""Death of the process, crash of the operating system, loss of power. The last two are one here: the
worst case does not tell the operating system's cache from the device's."""

SECTOR_BYTES = 512
SIZE = LINK = 0
UNLINK_SOURCE = 1
UNLINK_TARGET = 2


class Step(NamedTuple):
    """A record, its number in the log, and which one it is among those of its path.

    Draws are keyed by (`path`, `nth`), so that work on other paths moves none of them.
    """

    number: int
    path: str
    nth: int
    record: Record


class Choice(Protocol):
    """Which parts of the pending steps survive."""

    def survives(self, step: Step, part: int) -> bool:
        """Whether this part reached the device. The answer depends on the arguments alone."""
        ...

    def filler(self, step: Step, size: int) -> bytes:
        """What is read where the size of an append survived and its data did not."""
        ...


@dataclass(frozen=True)
class Fixed:
    """One answer to every question."""

    kept: bool

    def survives(self, step: Step, part: int) -> bool:  # noqa: ARG002
        """`kept`."""
        return self.kept

    def filler(self, step: Step, size: int) -> bytes:  # noqa: ARG002
        """Zeros."""
        return bytes(size)


SYNCED_ONLY = Fixed(False)
"""Everything synced survives, nothing else."""

ALL_KEPT = Fixed(True)
"""Everything survives, synced or not."""


@dataclass(frozen=True)
class Chosen:
    """Exactly the named (step number, part) pairs survive: for golden tests and for enumeration."""

    parts: frozenset[tuple[int, int]]
    garbage: bytes = b"\0"

    def survives(self, step: Step, part: int) -> bool:
        """Whether the pair is named."""
        return (step.number, part) in self.parts

    def filler(self, step: Step, size: int) -> bytes:  # noqa: ARG002
        """`garbage`, repeated."""
        return (self.garbage * (size // len(self.garbage) + 1))[:size]


@dataclass(frozen=True)
class WorstCase:
    """A seeded draw from everything that the worst-case profile allows.

    Each path is mostly lost, half lost, or mostly kept (one draw per path), so that states near "all" and
    "nothing" occur in long logs too; each part is then drawn by itself with these odds.
    """

    seed: int
    _lots: dict[tuple[str, int, int], bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def _lot(self, path: str, nth: int, block: int) -> bytes:
        """64 random bytes for this purpose."""
        key = path, nth, block
        lot = self._lots.get(key)
        if lot is None:
            text = f"{self.seed}\0{path}\0{nth}\0{block}"
            lot = self._lots[key] = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=64).digest()
        return lot

    def survives(self, step: Step, part: int) -> bool:
        """One byte of the step's lot, against the odds of its path."""
        odds = (32, 128, 224)[self._lot(step.path, 0, 0)[0] % 3]
        return self._lot(step.path, step.nth, part // 64)[part % 64] < odds

    def filler(self, step: Step, size: int) -> bytes:
        """Zeros, or garbage."""
        lot = self._lot(step.path, step.nth, -1)
        return bytes(size) if lot[0] % 2 else (lot * (size // 64 + 1))[:size]


class Content:
    """A file's bytes while records are applied; `frozen` is shared by all images in between."""

    __slots__ = ("_frozen", "data")

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self._frozen: bytes | None = data

    def apply(self, record: Append | Truncate) -> None:
        """As the page cache sees it."""
        if isinstance(record, Append):
            self.data += record.data
        else:
            resize(self.data, record.size)
        self._frozen = None

    def frozen(self) -> bytes:
        """The bytes now."""
        if self._frozen is None:
            self._frozen = bytes(self.data)
        return self._frozen


def resize(data: bytearray, size: int) -> None:
    """Cut to `size` bytes, or grow with zeros."""
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


class ContentFold:
    """What a device holds of one file: its durable bytes, and of each pending step what `choice` kept.

    `disk` is what the blocks hold, `size` what the inode says; `held` has, by sector, the writes that did
    not reach the device yet and would go along with the next one to that sector (rule 3).
    """

    def __init__(self, choice: Choice, durable: bytes) -> None:
        self.choice = choice
        self.disk = bytearray(durable)
        self.size = len(durable)
        self.held: dict[int, list[tuple[int, bytes]]] = {}
        self.done = 0

    def add(self, step: Step) -> None:
        """Take the next pending step into account."""
        self.done += 1
        if isinstance(step.record, Append):
            self._append(step, step.record)
        else:
            assert isinstance(step.record, Truncate)
            self._truncate(step, step.record.size)

    def _append(self, step: Step, record: Append) -> None:
        start, data = record.offset, record.data
        end = start + len(data)
        if end > len(self.disk):
            known = max(start, len(self.disk))
            resize(self.disk, known)
            self.disk += self.choice.filler(step, end - known)
        first = start // SECTOR_BYTES
        for sector in range(first, (end - 1) // SECTOR_BYTES + 1):
            low, high = max(start, sector * SECTOR_BYTES), min(end, (sector + 1) * SECTOR_BYTES)
            writes = self.held.pop(sector, [])
            writes.append((low, data[low - start : high - start]))
            if self.choice.survives(step, 1 + sector - first):
                self._write_back(writes)
            else:
                self.held[sector] = writes
        if self.choice.survives(step, SIZE):
            self.size = end

    def _write_back(self, writes: list[tuple[int, bytes]]) -> None:
        for offset, data in writes:
            resize(self.disk, max(len(self.disk), offset + len(data)))
            self.disk[offset : offset + len(data)] = data

    def _truncate(self, step: Step, size: int) -> None:
        for sector in sorted(self.held):
            if (sector + 1) * SECTOR_BYTES > size:
                cut = [(offset, data[: max(size - offset, 0)]) for offset, data in self.held.pop(sector)]
                if sector * SECTOR_BYTES < size:
                    self.held[sector] = [(offset, data) for offset, data in cut if data]
        first = size // SECTOR_BYTES
        past = -(-len(self.disk) // SECTOR_BYTES) if size < len(self.disk) else first
        for sector in range(first, past):
            low, high = max(size, sector * SECTOR_BYTES), min(len(self.disk), (sector + 1) * SECTOR_BYTES)
            zeros = bytes(high - low)
            if self.choice.survives(step, 1 + sector - first):
                self._write_back([*self.held.pop(sector, []), (low, zeros)])
            elif low > sector * SECTOR_BYTES:
                self.held.setdefault(sector, []).append((low, zeros))
        if self.choice.survives(step, SIZE):
            self.size = size
            resize(self.disk, size)

    def result(self) -> bytes:
        """The file's content after the crash."""
        return bytes(self.disk[: self.size])


class FileState:
    """One file during a replay: what is seen, what is durable, and the steps in between."""

    FOLDS_MAX = 16

    def __init__(self, data: bytes) -> None:
        self.visible = Content(data)
        self.durable = Content(data)
        self.pending: list[Step] = []
        self._folds: dict[Choice, ContentFold] = {}

    def apply(self, step: Step, record: Append | Truncate) -> None:
        """A change that nobody has synced yet."""
        self.visible.apply(record)
        self.pending.append(step)

    def sync(self) -> None:
        """All that is visible is durable."""
        for step in self.pending:
            assert isinstance(step.record, Append | Truncate)
            self.durable.apply(step.record)
        self.pending = []
        self._folds = {}

    def content(self, choice: Choice) -> bytes:
        """What is left of the file. Work done for an earlier image of the same choice is continued."""
        if choice == ALL_KEPT:
            return self.visible.frozen()
        if choice == SYNCED_ONLY or not self.pending:
            return self.durable.frozen()
        fold = self._folds.get(choice)
        if fold is None:
            if len(self._folds) >= self.FOLDS_MAX:
                self._folds.clear()
            fold = self._folds[choice] = ContentFold(choice, self.durable.frozen())
        for step in self.pending[fold.done :]:
            fold.add(step)
        return fold.result()


class NameChange(NamedTuple):
    """A part of a step that makes (`link`) or drops a name in one folder."""

    step: Step
    part: int
    name: str
    inode: int
    link: bool

    def apply(self, names: dict[str, int]) -> None:
        """Rule 4: a removal only removes the name that it was meant for."""
        if self.link:
            names[self.name] = self.inode
        elif names.get(self.name) == self.inode:
            del names[self.name]


class DirectoryState:
    """One folder during a replay: the names that are seen, those that are durable, the changes in between."""

    def __init__(self, names: dict[str, int]) -> None:
        self.visible = dict(names)
        self.durable = dict(names)
        self.pending: list[NameChange] = []

    def apply(self, change: NameChange) -> None:
        """A change that nobody has synced yet."""
        change.apply(self.visible)
        self.pending.append(change)

    def sync(self) -> None:
        """All names that are visible are durable."""
        self.durable = dict(self.visible)
        self.pending = []

    def sync_name(self, name: str, to: int) -> None:
        """What became of this one name up to and including step `to` is durable."""
        waiting, self.pending = self.pending, []
        for change in waiting:
            if change.name == name and change.step.number <= to:
                change.apply(self.durable)
            else:
                self.pending.append(change)

    def names(self, choice: Choice) -> dict[str, int]:
        """What is left of the folder."""
        if choice == ALL_KEPT:
            return self.visible
        names = dict(self.durable)
        for change in self.pending:
            if choice.survives(change.step, change.part):
                change.apply(names)
        return names


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
