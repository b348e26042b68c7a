"""The store: its public face, its write path and its state. Reading is `lsm.reads`, work is `lsm.jobs`.

    put ─▶ log record, acknowledged at the dial ─▶ memtable ─▶ (full) ─▶ table of level 0 ─▶ deeper levels
    get ─▶ memtable ─▶ level 0 ─▶ level 1 …

A `DB` is a mutable mapping of bytes to bytes, so that whatever is written for mappings runs on it.

Invariants:
1. A write is in the log, to the degree that its level of the dial asks for, before it is in the
   memtable, and in the memtable before it is acknowledged.
2. Sequence numbers are given out under the mutex, without gaps, in the order of the log.
3. After a failed write or sync the store refuses further writes with the first error until it is
   reopened: it never guesses what is on the disk. What was acknowledged stays readable.
4. Room is made *before* a write, so a flush that fails has not acknowledged the write that caused it.

Left out here: background work, group commit, stalls and transactions (they need more than one task).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn, Self

from lsm.batch import Op, WriteBatch, as_key, as_value, encode_ops
from lsm.cache import BlockCache, TableCache
from lsm.checkpoint import write_checkpoint
from lsm.entry import DELETE, MAX_SEQUENCE, RANGE_DELETE, VALUE
from lsm.errors import InvalidArgument
from lsm.events import BackgroundError
from lsm.gauge import measure
from lsm.jobs import Jobs
from lsm.mapping import StoreMapping, key_bounds
from lsm.memtable import Memtable, make_memtable
from lsm.metrics import Metrics, Tally
from lsm.opening import Opening, PathLike, folder_name, open_store
from lsm.options import Options, parse_sync
from lsm.reads import MemorySlot, Reader, View
from lsm.scan import Hold, Scan
from lsm.snapshot import Snapshot, SnapshotRegistry
from lsm.verify import VerifyReport, verify_store
from lsm.version import Version
from lsm.versions import VersionSet
from lsm.wal import LogWriter
from simfs.api import SyncLevel, World, default_world

BATCH_BYTES_MAX = (1 << 32) - 1024  # a log record's length is a u32


class DB(StoreMapping):
    """An open store. Make one with `lsm.open`; close it, or use it in a `with` statement.

    One process opens a store at a time. Within it, calls from several threads are safe.
    """

    def __init__(self, path: str, options: Options, world: World) -> None:
        self.path = path
        self.options = options
        self.world = world
        self._mutex = world.runtime.lock()
        self._tally = Tally(options.listener)
        self._snapshots = SnapshotRegistry()
        self._returns: deque[tuple[int, Version | None]] = deque()  # holds given back, not yet accounted for
        self._process_id = world.runtime.process_id
        self._owner = self._process_id()
        self._failure: BaseException | None = None
        self._closed = False
        self._device_base = world.device_bytes_written()
        opened = open_store(world, path, options, self._snapshots, self._tally.emit)
        self._adopt(opened)

    def _adopt(self, opened: Opening) -> None:
        self._lock = opened.lock
        self._tables: TableCache = opened.tables
        self._blocks: BlockCache = opened.blocks
        self._stats = opened.stats
        self._versions: VersionSet = opened.versions
        self._jobs: Jobs = opened.jobs
        self._log: LogWriter | None = opened.log
        self._reader = Reader(opened.tables, by_range=self.options.filters_by_range)
        self._last_sequence = opened.last_sequence
        self._memtable: Memtable = opened.memtable
        self._frozen: tuple[MemorySlot, ...] = ()
        self._active = MemorySlot(self._memtable)
        self._limit_bytes = self.options.write_buffer_size
        self._dial = self.options.sync
        self._refresh()
        if not self.options.read_only:
            try:
                with self._mutex:
                    self._guarded(self._jobs.compact_all)
            except BaseException:
                self.close()
                raise

    # writing

    def put(self, key: bytes, value: bytes, sync: SyncLevel | str | None = None) -> None:
        """Set `key` to `value`, acknowledged at `sync` (default: the store's dial).

        Raises `TypeError`, `InvalidArgument`, `OSError`; after an `OSError` the store refuses writes.
        """
        key = as_key(key)
        self._commit(((VALUE, key, as_value(value)),), sync)

    def delete(self, key: bytes, sync: SyncLevel | str | None = None) -> None:
        """Remove `key`, whether it exists or not (a delete is a write: nothing is looked up)."""
        self._commit(((DELETE, as_key(key), b""),), sync)

    def delete_range(self, start: bytes, stop: bytes, sync: SyncLevel | str | None = None) -> None:
        """Remove every key in [start, stop), by one record."""
        batch = WriteBatch()
        batch.delete_range(start, stop)
        self.write(batch, sync)

    def write(self, batch: WriteBatch, sync: SyncLevel | str | None = None) -> None:
        """Apply a batch: all of it or nothing, also after a crash. An empty one only checks that it could be."""
        if not isinstance(batch, WriteBatch):
            raise TypeError(f"batch: expected lsm.WriteBatch, got {type(batch).__name__}")
        if batch.size_bytes > BATCH_BYTES_MAX:
            raise InvalidArgument(f"batch of {batch.size_bytes} bytes: the limit is {BATCH_BYTES_MAX}")
        if batch.ops:
            self._commit(tuple(batch.ops), sync)
            return
        if sync is not None:
            parse_sync(sync)
        with self._mutex:
            self._writable()

    def _commit(self, ops: tuple[Op, ...], sync: SyncLevel | str | None) -> None:
        level = self._dial if sync is None else parse_sync(sync)
        with self._mutex:
            log = self._writable()
            if self._memtable.size_bytes >= self._limit_bytes:
                self._guarded(self._make_room)
                log = self._writable()
            sequence = self._last_sequence + 1
            try:
                log.append(encode_ops(sequence, ops), level)
                if len(ops) == 1 and ops[0][0] != RANGE_DELETE:
                    kind, key, value = ops[0]
                    self._memtable.put(key, sequence, value if kind == VALUE else None, self._snapshots.newest)
                else:
                    self._memtable.apply(sequence, ops, self._snapshots.newest)
                self._last_sequence = sequence + len(ops) - 1  # inside: a Ctrl-C before it must not reuse `sequence`
            except BaseException as error:
                self._fail(error)
                raise
            self._tally.wrote(ops)

    def _writable(self) -> LogWriter:
        """The log, if writes are possible now."""
        if self._closed or self._returns or self._process_id() != self._owner:
            self._check_open()
        if self._failure is not None:
            raise self._refusal(self._failure)
        if self._log is None:
            raise InvalidArgument(f"{self.path}: the store was opened read-only")
        return self._log

    def _refusal(self, failure: BaseException) -> BaseException:
        """The first error, as the answer to every later write."""
        if isinstance(failure, OSError):
            text = f"the store refuses writes until it is reopened, after: {failure.strerror or failure}"
            return OSError(failure.errno, text, failure.filename or self.path)
        text = f"{self.path}: the store refuses writes until it is reopened, after: {failure!r}"
        error = InvalidArgument(text)
        error.__cause__ = failure
        return error

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._tally.emit(BackgroundError(repr(error)))

    def _guarded(self, work: Any) -> None:
        """Run work that writes files; after any failure the store refuses writes."""
        try:
            work()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._refresh()

    def _make_room(self) -> None:
        """Rotate the log, flush the memtable, compact what the picker asks for."""
        self._rotate_and_flush()
        self._jobs.compact_all()

    def _rotate_and_flush(self) -> None:
        old_log, last_sequence = self._log, self._last_sequence
        assert old_log is not None
        new_log = self._jobs.new_log(last_sequence + 1, old_log)
        frozen = self._active
        self._log = new_log
        self._frozen = (frozen, *self._frozen)
        self._memtable = make_memtable(self.options.memtable)
        self._active = MemorySlot(self._memtable)
        self._refresh()
        self._jobs.flush(frozen.memtable, old_log, new_log, last_sequence)
        self._frozen = self._frozen[:-1]

    def _refresh(self) -> None:
        """Publish what readers see, as one tuple."""
        self._view = View((self._active, *self._frozen), self._versions.current)
        self._reader.forget({table.number for _, table in self._versions.current.tables()})

    # reading

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        """The value of `key`, or `default`."""
        value = self._get_at(as_key(key), MAX_SEQUENCE)
        return default if value is None else value

    def _get_at(self, key: bytes, sequence: int) -> bytes | None:
        if self._closed:
            raise InvalidArgument(f"{self.path}: the store is closed")
        view = self._view
        try:
            return self._reader.get(view, key, sequence)
        except FileNotFoundError:
            if view is self._view:
                raise
            # Another thread's compaction removed a table of this view before it was opened: look again.
            return self._get_at(key, sequence)

    def multi_get(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of `keys` at one moment, in their order; None for a missing one."""
        with self.snapshot() as moment:
            return moment.multi_get(keys)

    def scan(
        self,
        start: bytes | None = None,
        stop: bytes | None = None,
        *,
        reverse: bool = False,
        prefix: bytes | None = None,
        snapshot: Snapshot | None = None,
    ) -> Scan:
        """The (key, value) pairs in [start, stop), or with `prefix`, as of now (or of `snapshot`).

        `reverse` gives the same pairs, last first. Later writes do not show in a scan that has begun.
        """
        low, high = key_bounds(start, stop, prefix)
        if snapshot is not None and not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot: expected lsm.Snapshot, got {type(snapshot).__name__}")
        if snapshot is not None and snapshot._db is not self:
            raise InvalidArgument("the snapshot is of another store")
        with self._mutex:
            self._check_open()
            sequence = self._last_sequence if snapshot is None else snapshot._held()
            view = self._view
            self._snapshots.register(sequence)
            self._versions.pin(view.version)
        hold = Hold(lambda: self._returns.append((sequence, view.version)))
        windows: Iterable[tuple[list[bytes], list[bytes]]] = ()
        if high is None or low < high:
            windows = self._reader.scan(view, low, high, sequence, reverse=reverse)
        return Scan(windows, hold, self._check_not_closed)

    def snapshot(self) -> Snapshot:
        """The store as it is now, for later reads. Release it when done."""
        with self._mutex:
            self._check_open()
            self._snapshots.register(self._last_sequence)
            return Snapshot(self, self._last_sequence)

    def _release(self, sequence: int) -> None:
        """Take a hold back. Only queued: this may be called by the garbage collector, inside the mutex."""
        self._returns.append((sequence, None))

    def _settle_returns(self) -> None:
        with self._mutex:
            if not self._closed and self._process_id() == self._owner:
                self._account_returns()

    def _account_returns(self) -> None:
        while self._returns:
            sequence, version = self._returns.popleft()
            self._snapshots.release(sequence)
            if version is not None:
                self._versions.unpin(version)
        if self._failure is None and not self.options.read_only:
            self._guarded(self._versions.remove_unneeded)

    def _check_open(self) -> None:
        self._check_not_closed()
        if self._process_id() != self._owner:
            raise InvalidArgument(
                f"{self.path}: the store was opened before a fork, by process {self._owner}: it is that one's"
            )
        if self._returns:
            self._account_returns()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise InvalidArgument(f"{self.path}: the store is closed")

    # maintenance

    def flush(self) -> None:
        """Write the memtable to a table of level 0, durably; then compact what the picker asks for."""
        with self._mutex:
            self._writable()
            if self._memtable.entries or self._memtable.range_deletes:
                self._guarded(self._make_room)

    def compact(self, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Flush, then merge every table that touches [start, stop) as deep as the strategy goes."""
        low, high = key_bounds(start, stop, None)
        with self._mutex:
            self._writable()
            if self._memtable.entries or self._memtable.range_deletes:
                self._guarded(self._rotate_and_flush)
            self._guarded(lambda: self._jobs.compact_range(low, high))

    def sync(self, level: SyncLevel | str = SyncLevel.FSYNC) -> None:
        """Bring every write so far to `level`, whatever it was acknowledged at."""
        wanted = parse_sync(level)
        with self._mutex:
            log = self._writable()
            try:
                log.sync(wanted)
            except BaseException as error:
                self._fail(error)
                raise

    def checkpoint(self, path: PathLike) -> None:
        """A consistent copy of the store in the new folder `path`, sharing its tables by hard links."""
        target = folder_name(path)
        self.flush()
        with self._mutex:
            self._check_open()
            write_checkpoint(self.world.fs, self.path, target, self._versions)

    def verify(self) -> VerifyReport:
        """Read every byte of every live file and check all there is to check. Raises `Corruption`."""
        with self._mutex:
            self._check_open()
            return verify_store(self.world.fs, self.path, self._versions, self._log)

    def metrics(self, *, exact_space: bool = False) -> Metrics:
        """What the store did since it was opened, and how it stands.

        `exact_space` counts the live user data by a full scan, without which the space amplification has no
        denominator.
        """
        live_user_bytes = sum([len(key) + len(value) for key, value in self.scan()]) if exact_space else None
        with self._mutex:
            self._check_open()
            return measure(self, live_user_bytes)

    @property
    def version(self) -> Version:
        """The tables in force, frozen."""
        return self._versions.current

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest write."""
        return self._last_sequence

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Write out what is buffered, make the log durable (dial ≥ FLUSH) and release the store.

        A store that refuses writes is closed without writing anything, and so is what a fork brought along: it
        goes on in the parent. A second call does nothing.
        """
        with self._mutex:
            if self._closed:
                return
            clean = self._failure is None and self._process_id() == self._owner
            try:
                if clean and self._returns:
                    self._account_returns()
            finally:
                self._closed = True
                self._close_files(clean=clean)

    def _close_files(self, *, clean: bool) -> None:
        """Close everything, whatever fails on the way; the first error is raised in the end."""
        with ExitStack() as closing:
            if self._lock is not None:
                closing.callback(self._lock.release)
            closing.callback(self._tables.close)
            closing.callback(self._versions.close, clean=False)
            if self._log is not None:
                closing.callback(self._log.close)
            if clean:
                closed_log_bytes = None
                if self._log is not None:
                    self._log.finish(sync=self._dial >= SyncLevel.FLUSH)
                    closed_log_bytes = self._log.synced_bytes or None
                self._versions.close(clean=True, closed_log_bytes=closed_log_bytes)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be copied or pickled: two would give out the same sequence numbers")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "refusing writes" if self._failure is not None else "open"
        return f"<lsm.DB {self.path!r} {state}>"


def open(  # noqa: A001
    path: PathLike, options: Options | None = None, *, world: World | None = None, **changes: Any
) -> DB:
    """Open the store in the folder `path`; create it if need be.

    `options` and `changes` (single options by name) choose everything that can be chosen; `world` is
    the ground to stand on, the real disk if not given. Raises `InvalidArgument` (empty path, unknown
    option or value), `Corruption` (with file, offset and reason; nothing was changed), `BlockingIOError` (open
    elsewhere), `OSError`.
    """
    chosen = options if isinstance(options, Options) and not changes else Options.make(options, **changes)
    return DB(folder_name(path), chosen, world if world is not None else default_world())
