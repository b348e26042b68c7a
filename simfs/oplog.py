"""The operation log: what a filesystem was asked to do, one frozen record per change, in order.

`MemoryFilesystem` writes it, `simfs.crash` computes from it what a crash may leave behind. Anybody
else who can say what a program did to its files may write the same records.

    Create Mkdir Link     a name appears in a folder      (the first two with a new, empty inode)
    Unlink Rmdir          a name goes
    Rename                a name goes, another appears, and perhaps replaces a third
    Append Truncate       a file's content changes
    Sync SyncDir          a request to make content, or a folder's names, durable

Invariants
----------
1. Replaying the records onto the tree that they started from gives the visible state, exactly.
2. A refused operation has no record; an append that stopped half-way has one, of the part that arrived.
3. Files and folders are named by inode numbers, which are never used twice; `path` is what the
   caller said, for people to read and for keying random draws.

Left out: open, close, locks and reads. They change nothing that a crash could lose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from simfs.api import SyncKind

ROOT = 1
"""The inode number of the root folder."""


class Create(NamedTuple):
    """`inode`, a new empty file, got `name` in the folder `directory`."""

    directory: int
    name: str
    inode: int
    path: str


class Mkdir(NamedTuple):
    """`inode`, a new empty folder, got `name` in the folder `directory`."""

    directory: int
    name: str
    inode: int
    path: str


class Link(NamedTuple):
    """The file `inode` got one more name."""

    directory: int
    name: str
    inode: int
    path: str


class Unlink(NamedTuple):
    """The file `inode` lost the name `name`."""

    directory: int
    name: str
    inode: int
    path: str


class Rmdir(NamedTuple):
    """The empty folder `inode` lost its name."""

    directory: int
    name: str
    inode: int
    path: str


class Rename(NamedTuple):
    """`inode` moved; `replaced` is the inode that had the target's name before, or 0."""

    directory: int
    name: str
    target_directory: int
    target_name: str
    inode: int
    replaced: int
    path: str
    target_path: str


class Append(NamedTuple):
    """`data` was written at `offset`, which was the end of the file."""

    inode: int
    offset: int
    data: bytes
    path: str


class Truncate(NamedTuple):
    """The file was cut, or grown with zeros, to `size` bytes."""

    inode: int
    size: int
    path: str


class Sync(NamedTuple):
    """The file's content was to be made durable, to the degree `kind`, at the call site `site`."""

    inode: int
    kind: SyncKind
    site: str
    path: str


class SyncDir(NamedTuple):
    """The names in the folder `directory` were to be made durable."""

    directory: int
    kind: SyncKind
    site: str
    path: str


Record = Create | Mkdir | Link | Unlink | Rmdir | Rename | Append | Truncate | Sync | SyncDir


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole filesystem at one moment: names by folder, contents by file. Nobody changes one."""

    directories: dict[int, dict[str, int]]
    """Inode number of a folder → its names → their inode numbers. `ROOT` is always among them."""

    files: dict[int, bytes]
    """Inode number of a file → its content."""

    next_inode: int
    """The first inode number that was never given out."""

    @classmethod
    def empty(cls) -> Self:
        """A root folder without a name in it."""
        return cls({ROOT: {}}, {}, ROOT + 1)
