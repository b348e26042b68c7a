"""Checkpoints, and the end of a store.

A checkpoint is a second folder with a manifest of its own that shares the tables by hard links (they
never change), so it costs no space until the stores diverge. Where links are not possible the table
is copied.

    TARGET.tmp/ (tables linked, manifest, CURRENT, all synced) ──rename──▶ TARGET/

Invariants:
1. TARGET appears whole or not at all. What a crash leaves is TARGET.tmp, which the next attempt clears.
2. A checkpoint has no log: the memtable is flushed before, so the tables hold everything.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from lsm.errors import InvalidArgument
from lsm.filenames import LOCK, TMP_SUFFIX, parse_name, table_name
from lsm.manifest import ManifestWriter
from lsm.opening import PathLike, folder_name, lock_store
from simfs.api import SyncKind, SyncLevel, World, default_world

if TYPE_CHECKING:
    from lsm.versions import VersionSet
    from simfs.api import Filesystem

COPY_BYTES = 1 << 20
NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
LOST = "lost"  # where `repair` puts what it could not use


def write_checkpoint(fs: Filesystem, source: str, target: str, versions: VersionSet) -> None:
    """Make `target` a store with the tables of the version in force. Raises `InvalidArgument` if it exists."""
    if fs.exists(target):
        raise InvalidArgument(f"{target}: exists; a checkpoint makes a new folder")
    _check_outside(fs, source, target)
    building = target + TMP_SUFFIX
    if fs.exists(building):
        if not fs.stat(building).is_dir or LOCK in fs.listdir(building):  # nobody ever opened an unfinished one
            raise InvalidArgument(f"{building}: a checkpoint is built under this name, but something else is there")
        remove_store_files(fs, building)
        fs.rmdir(building)
    fs.mkdir(building)
    for _, table in versions.current.tables():
        name = table_name(table.number)
        link_or_copy(fs, f"{source}/{name}", f"{building}/{name}")
    edit = replace(versions.state_edit(), log_number=0)
    manifest = ManifestWriter.create(fs, building, versions.next_file_number, edit, level=SyncLevel.FSYNC)
    manifest.finish()
    fs.rename(building, target)
    parent = target.rpartition("/")[0]
    fs.sync_dir(parent or ("/" if target.startswith("/") else "."), "checkpoint.rename", SyncKind.FULL)


def _check_outside(fs: Filesystem, source: str, target: str) -> None:
    """A store's folder holds one store: a checkpoint inside it would be in the way of `destroy`, and of people.

    Folders are compared by inode, upwards to the root, so that no spelling of a path slips through.
    """
    home = fs.stat(source).inode
    above = target.rpartition("/")[0] or ("/" if target.startswith("/") else ".")
    seen = -1
    while fs.exists(above) and (inode := fs.stat(above).inode) != seen:
        if inode == home:
            raise InvalidArgument(f"{target}: inside the store {source}; a checkpoint makes a folder outside of it")
        seen, above = inode, f"{above.rstrip('/')}/.."


def link_or_copy(fs: Filesystem, source: str, target: str) -> None:
    """A second name for a file; a synced copy where the filesystem gives none."""
    try:
        fs.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with fs.open(source) as reading, fs.create(target) as writing:
            for offset in range(0, reading.size(), COPY_BYTES):
                writing.append(reading.pread(offset, COPY_BYTES))
            writing.sync(SyncKind.DATA, "checkpoint.copy")


def destroy(path: PathLike, *, world: World | None = None) -> None:
    """Remove a store's files, and its folder if nothing else is in it. No store there: nothing happens.

    CURRENT and the manifests go first, so that a half-destroyed store is not taken for a whole one.
    Raises `BlockingIOError` if the store is open.
    """
    directory = folder_name(path)
    fs = (world if world is not None else default_world()).fs
    if not fs.exists(directory):
        return
    with_lock = any(parse_name(name) is not None for name in fs.listdir(directory))
    if not with_lock:
        return
    lock = lock_store(fs, directory)
    try:
        lost = f"{directory}/{LOST}"
        if fs.exists(lost):
            remove_store_files(fs, lost)
            with contextlib.suppress(OSError):  # something else lies there: it stays
                fs.rmdir(lost)
        remove_store_files(fs, directory)
    finally:
        lock.release()
    with contextlib.suppress(FileNotFoundError):
        fs.remove(f"{directory}/{LOCK}")
    with contextlib.suppress(OSError):
        fs.rmdir(directory)


def remove_store_files(fs: Filesystem, directory: str) -> None:
    """Remove what is a store's by name, but for the lock; foreign files stay."""
    order = {"current": 0, "tmp": 1, "manifest": 2, "log": 3, "table": 4}
    names = [
        (order[parsed.kind], name)
        for name in fs.listdir(directory)
        if (parsed := parse_name(name)) and parsed.kind != "lock"
    ]
    for _, name in sorted(names):
        fs.remove(f"{directory}/{name}")
