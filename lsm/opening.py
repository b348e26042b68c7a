"""Opening a store for use: lock it, recover it, make what was recovered durable, sweep.

The order of durable events is the point of this module:

    LOCK ─▶ (read everything) ─▶ new log ─▶ table of what the logs held, synced
         ─▶ manifest synced ─▶ folder synced ─▶ CURRENT renamed, folder synced      ← commit point
         ─▶ old logs, old manifest and orphans removed

See `lsm.recover` for the invariants. If anything fails, what was opened is closed, the lock is given
back, and the folder still holds the store as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lsm import codecs
from lsm.cache import BlockCache, TableCache
from lsm.errors import InvalidArgument
from lsm.events import Event, Recovered
from lsm.filenames import CURRENT, LOCK
from lsm.jobs import Jobs
from lsm.memtable import Memtable, make_memtable
from lsm.picking import make_picker
from lsm.recover import Recovery, orphans, recover
from lsm.tables import TableStats
from lsm.version import Version, apply
from lsm.versions import VersionSet
from lsm.wal import LogWriter
from simfs.api import SyncLevel

if TYPE_CHECKING:
    from lsm.options import Options
    from lsm.snapshot import SnapshotRegistry
    from simfs.api import Filesystem, Held, World


class FsPath(Protocol):
    """A path object, such as `pathlib.Path`."""

    def __fspath__(self) -> str: ...


PathLike = str | FsPath


@dataclass(frozen=True)
class Opening:
    """The parts of an open store."""

    lock: Held | None
    blocks: BlockCache
    tables: TableCache
    stats: TableStats
    versions: VersionSet
    jobs: Jobs
    log: LogWriter | None  # None: read-only
    memtable: Memtable
    last_sequence: int


def folder_name(path: PathLike) -> str:
    """A store's path as a string. Raises `TypeError`, and `InvalidArgument` for an empty one."""
    if not isinstance(path, str):
        try:
            path = path.__fspath__()
        except AttributeError:
            raise TypeError(f"path: expected str or a path object, got {type(path).__name__}") from None
    if not isinstance(path, str):
        raise TypeError(f"path: expected str, got {type(path).__name__}")
    if not path or "\0" in path:
        raise InvalidArgument(f"path {path!r}: expected the name of a folder")
    return path.rstrip("/") or "/"


def open_store(
    world: World, directory: str, options: Options, snapshots: SnapshotRegistry, emit: Callable[[Event], None]
) -> Opening:
    """Lock and recover. Raises what `lsm.open` documents."""
    fs = world.fs
    codecs.require(options.compression)
    if options.read_only:
        return _assemble(world, directory, options, snapshots, emit, None)
    if not options.create_if_missing and not fs.exists(directory):
        raise InvalidArgument(f"{directory}: no store here, and create_if_missing is off")
    if not fs.exists(f"{directory}/{CURRENT}"):
        _make_folders(fs, directory)
    lock = lock_store(fs, directory)
    try:
        return _assemble(world, directory, options, snapshots, emit, lock)
    except BaseException:
        lock.release()
        raise


def lock_store(fs: Filesystem, directory: str) -> Held:
    """Take the store's lock. Raises `BlockingIOError` that says what to do."""
    try:
        return fs.lock(f"{directory}/{LOCK}")
    except BlockingIOError as error:
        text = "the store is open elsewhere (in this process or another); close it there first"
        raise BlockingIOError(error.errno, text, directory) from None


def _make_folders(fs: Filesystem, directory: str) -> None:
    """The folder and its missing parents, each new name synced in its parent before the next is made.

    So where an opening before this one was killed on the way, the last name that is there may not have been
    synced. It is synced too, or a loss of power would take the folder and all that it will hold.
    """
    parent = directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")
    if not fs.exists(directory):
        _make_folders(fs, parent)
        fs.mkdir(directory)
    if directory not in ("/", "."):
        fs.sync_dir(parent, "open.mkdir")


def _assemble(
    world: World,
    directory: str,
    options: Options,
    snapshots: SnapshotRegistry,
    emit: Callable[[Event], None],
    lock: Held | None,
) -> Opening:
    start_ns = world.runtime.now_ns()
    recovery = recover(world.fs, directory, options)
    stats = TableStats()
    blocks = BlockCache(options.block_cache_bytes)
    tables = TableCache(world.fs, directory, options, blocks, stats)
    versions = VersionSet(world.fs, directory, options, tables, emit)
    jobs = Jobs(world, directory, options, tables, versions, snapshots, make_picker(options.strategy), emit)
    memtable, last_sequence = _replayed(options, recovery)
    _restore(versions, options, recovery)
    removed: tuple[str, ...] = ()
    log = None
    try:
        if not options.read_only:
            log = _commit(jobs, versions, options, memtable, last_sequence)
            memtable = make_memtable(options.memtable)
            assert versions.manifest is not None
            removed = orphans(recovery.listing, versions.current, log.number, versions.manifest.number)
            _sweep(world.fs, directory, removed, durably=_unrecorded(options, recovery, versions.current))
    except BaseException:
        with ExitStack() as closing:
            closing.callback(tables.close)
            closing.callback(versions.close, clean=False)
            if log is not None:
                closing.callback(log.close)
        raise
    replay = recovery.replay
    emit(
        Recovered(
            versions.manifest.number if versions.manifest else 0,
            replay.log_records if replay else 0,
            last_sequence,
            tuple(replay.dropped) if replay else (),
            removed,
            start_ns,
            world.runtime.now_ns(),
        )
    )
    return Opening(lock, blocks, tables, stats, versions, jobs, log, memtable, last_sequence)


def _unrecorded(options: Options, recovery: Recovery, version: Version) -> bool:
    """Whether something is swept that no table says is done with: then it must not come back after a crash.

    Unfinished or never installed tables; logs of which nothing was worth a table.
    """
    known = {table.number for _, table in version.tables()}
    replay = recovery.replay
    content = replay is not None and (replay.log_records > 0 or bool(replay.dropped))
    flushed = len(known) > len(list(recovery.version.tables()))
    orphaned = any(number not in known for number in recovery.listing.tables)
    return options.structural_floor >= SyncLevel.FSYNC and (orphaned or (content and not flushed))


def _sweep(fs: Filesystem, directory: str, names: tuple[str, ...], *, durably: bool) -> None:
    for name in names:
        fs.remove(f"{directory}/{name}")
    if names and durably:
        fs.sync_dir(directory, "open.sweep")


def _replayed(options: Options, recovery: Recovery) -> tuple[Memtable, int]:
    """The memtable that the logs describe, and the newest sequence of all."""
    memtable = make_memtable(options.memtable)
    replay = recovery.replay
    if replay is None:
        return memtable, recovery.last_sequence
    for first_sequence, ops in replay.batches:
        memtable.apply(first_sequence, ops, -1)
    return memtable, max(recovery.last_sequence, replay.last_sequence)


def _restore(versions: VersionSet, options: Options, recovery: Recovery) -> None:
    levels = recovery.version.levels
    missing = max(0, options.num_levels - len(levels))
    versions.current = Version(levels + ((),) * missing)
    versions.next_file_number = recovery.next_file_number
    versions.log_number = recovery.log_number
    versions.last_sequence = recovery.last_sequence
    versions.cursors = recovery.cursors


def _commit(jobs: Jobs, versions: VersionSet, options: Options, memtable: Memtable, last_sequence: int) -> LogWriter:
    """Make what was recovered durable, under a new log and a new manifest; see the head of the module."""
    level = options.structural_floor
    if memtable.entries or memtable.range_deletes:
        # What the log promised may have been promised at a higher level than today's dial.
        level = max(level, SyncLevel.FSYNC)
    log = jobs.new_log(last_sequence + 1, None)
    try:
        if memtable.entries or memtable.range_deletes:
            edit = jobs.build_table(memtable, level, log.number)
            versions.current = apply(versions.current, edit)
            versions.current.check()
        versions.log_number = log.number
        versions.last_sequence = last_sequence
        versions.start_manifest(level)
    except BaseException:
        log.close()
        raise
    if level >= SyncLevel.FSYNC:
        log.names_synced()
    return log
