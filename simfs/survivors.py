"""What a device holds of one file and of one folder, step by step: the worst-case rules at work.

    visible   all records applied: what callers see
    durable   as of the last sync that counts
    pending   the steps in between, of which a `Choice` keeps some parts

The rules, and what the parts are, stand at the head of `simfs.crash`.

Invariants
----------
1. Where a choice keeps everything, the result is the visible state; where nothing, the durable one.
2. Folding is incremental: a fold that was built for an earlier moment goes on with the steps since, because a
   choice answers the same question always alike.
"""

from __future__ import annotations

from typing import NamedTuple

from simfs.choice import ALL_KEPT, SIZE, SYNCED_ONLY, Choice, Step
from simfs.oplog import Append, Truncate

SECTOR_BYTES = 512


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
