"""The write-ahead log: what was written since the last flush, in the order in which it was applied.

    000007.log:   header ("lsmlabWL", number, first sequence) | record | record | …     framing: lsm.framing
    record:       one batch (lsm.batch), or nothing: an empty payload only attests

A write is acknowledged at a point of the dial:

    NONE        the record is held in this process        ─▶ write(2) when 64 KiB are there
    FLUSH       one write(2)
    FSYNC       write, then sync FILE
    FULLFSYNC   write, then sync FULL

Rotation from log A to log B is lazy: creating B syncs nothing. Before the *first* synced write in B returns,

    sync A ("wal.predecessor") ─▶ sync the folder ("wal.create") ─▶ sync B ("wal.write")

so that B never outlives an end of A that was lost, nor its own name. The first two are at FILE at any level:
a FULL sync of B empties the device's cache, theirs included. Either is left out if it has been done, or
needs not be: A synced to its end or in tables (`predecessor_done`), the folder synced (`names_synced`).

Invariants:
1. If a record of log B attests offset a > 0, then B up to a was durable when the record was written, and so were
   all logs before B, to their ends, but for those whose content was in tables.
2. Op i of the store is in the log at sequence i: each record begins where the one before it ended.
3. After an error the writer refuses everything (lsm.framing).

Left out: group commit (a group of one, until there are threads), recycling and preallocation of logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsm.batch import Op, decode_ops
from lsm.errors import Corruption
from lsm.filenames import log_name
from lsm.framing import HEADER_BYTES, RecordWriter
from lsm.logscan import Record, Scan, scan_file
from simfs.api import Filesystem, SyncKind, SyncLevel

WAL_MAGIC = b"lsmlabWL"
REMEDY = "restore the file from a copy, or open with another wal_recovery_mode (point_in_time, skip_corrupted)"

LogRecord = Record
LogScan = Scan

_NONE = SyncLevel.NONE
_FSYNC = SyncLevel.FSYNC


class LogWriter(RecordWriter):
    """One write-ahead log file. Not thread-safe: the caller holds the store's mutex."""

    __slots__ = ("_names_synced", "_predecessor", "first_sequence", "strongest")

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        *,
        number: int,
        first_sequence: int,
        predecessor: LogWriter | None = None,
        buffer_bytes: int,
    ) -> None:
        super().__init__(fs, path, WAL_MAGIC, number=number, first_sequence=first_sequence, buffer_bytes=buffer_bytes)
        self.first_sequence = first_sequence
        self.strongest = SyncLevel.NONE
        """The strongest level that any append asked for."""
        self._predecessor = predecessor
        self._names_synced = False

    @staticmethod
    def create(
        fs: Filesystem,
        path: str,
        *,
        number: int,
        first_sequence: int,
        predecessor: LogWriter | None,
        buffer_bytes: int,
    ) -> LogWriter:
        """A new log. It takes `predecessor` over, hands what that one holds to the operating system, and
        closes it as soon as it needs no sync any more: leave it open until then.

        Raises `OSError`; `FileExistsError` if there is a file of that name.
        """
        if predecessor is not None:
            predecessor.flush()
        return LogWriter(
            fs,
            path,
            number=number,
            first_sequence=first_sequence,
            predecessor=predecessor,
            buffer_bytes=buffer_bytes,
        )

    def append(self, payload: bytes, level: SyncLevel) -> None:
        """Append a record and acknowledge it at `level`. Errors: see `RecordWriter.add`."""
        if level > self.strongest:
            self.strongest = level
        self.add(payload, level == _NONE)
        if level >= _FSYNC:
            self._make_durable(level, "wal.write")

    def sync(self, level: SyncLevel) -> None:
        """Bring everything so far to `level`: as if each record had been appended at it. No call where it is."""
        if level > self.strongest:
            self.strongest = level
        if level >= _FSYNC:
            self._make_durable(level, "wal.write")
        elif level != _NONE:
            self.flush()

    def _make_durable(self, level: SyncLevel, site: str) -> None:
        assert level >= _FSYNC, level
        if self._predecessor is not None or not self._names_synced:
            self._make_reachable()
        self.sync_file(SyncKind.FILE if level == _FSYNC else SyncKind.FULL, site)

    def _make_reachable(self) -> None:
        """What must be durable before anything in this log is acknowledged as durable; once a log."""
        self.flush()
        try:
            if self._predecessor is not None:
                self._predecessor.sync_for_successor()
                self.predecessor_done()
            if not self._names_synced:
                self.fs.sync_dir(self.path.rpartition("/")[0] or ".", "wal.create")
                self._names_synced = True
        except BaseException as error:
            self._break(error)
            raise

    def sync_for_successor(self) -> None:
        """Make this log, and those before it, durable to the end. The successor syncs the folder for all."""
        if self._predecessor is not None:
            self._predecessor.sync_for_successor()
            self.predecessor_done()
        self.sync_file(SyncKind.FILE, "wal.predecessor")

    def names_synced(self) -> None:
        """The caller has synced the folder since this log was created."""
        self._names_synced = True

    def predecessor_done(self) -> None:
        """What the predecessor holds is durable in tables: it needs no sync any more, and is closed."""
        predecessor, self._predecessor = self._predecessor, None
        if predecessor is not None:
            predecessor.predecessor_done()
            predecessor.close()

    def finish(self, *, sync: bool) -> None:
        """Close cleanly: flush; with `sync`, make all durable and attest it, so that no record is unattested.

        The file is released even if that fails.
        """
        try:
            self.flush()
            if sync and (self.size_bytes > HEADER_BYTES or self._predecessor is not None):
                least = _FSYNC if self.fs.fsync_is_durable else SyncLevel.FULLFSYNC
                self._make_durable(max(self.strongest, least), "wal.finish")
            self.attest()
        finally:
            self.close()

    def close(self) -> None:
        """Release the file, and the predecessor's. Writes nothing; a second call does nothing."""
        try:
            self.predecessor_done()
        finally:
            super().close()


def scan_log(fs: Filesystem, path: str, mode: str, *, expect_number: int | None = None) -> LogScan:
    """Read one log under a `wal_recovery_mode`; see `lsm.logscan`. Raises `Corruption`, `OSError`."""
    return scan_file(fs, path, WAL_MAGIC, mode, expect_number=expect_number, remedy=REMEDY)


@dataclass(frozen=True)
class Replay:
    """What the logs hold beyond the tables."""

    batches: list[tuple[int, list[Op]]]  # (first sequence, ops), sequences without a gap (skip_corrupted: with gaps)
    last_sequence: int
    dropped: list[str]  # what was left out, one line each
    log_records: int


def replay_logs(fs: Filesystem, directory: str, numbers: Sequence[int], mode: str, *, start_sequence: int) -> Replay:
    """Read several logs, in ascending order of their numbers: all batches after `start_sequence`.

    Raises `Corruption`, `OSError`. Before the caller acknowledges a write in a new log, it must have made
    durable that the logs replayed here are no longer needed: what lies behind a gap would come between.
    """
    replayer = _Replayer(mode, start_sequence)
    for number in numbers:
        replayer.add(scan_log(fs, f"{directory}/{log_name(number)}", mode, expect_number=number))
    batches = replayer.batches
    return Replay(batches, replayer.last_sequence, replayer.dropped, len(batches))


class _Replayer:
    """Joins the records of several logs into one run of sequences, and judges what does not fit.

    At a gap the prefix ends: a weak dial lost what was there. But a log with an attested record was synced, and
    all logs before it were, to their ends: a gap before such a record is damage.
    """

    def __init__(self, mode: str, start_sequence: int) -> None:
        self.mode = mode
        self.start_sequence = start_sequence
        self.last_sequence = start_sequence
        self.batches: list[tuple[int, list[Op]]] = []
        self.dropped: list[str] = []
        self.torn: Corruption | None = None  # the end of the log before, if records may be missing there
        self.end: Corruption | None = None  # where the prefix ended

    def add(self, scan: Scan) -> None:
        """Go on with the next log."""
        self.dropped += scan.dropped
        if self.end is not None and scan.attested > 0 and self.mode == "tolerate_torn_tail":
            synced = f"log {scan.number} was synced later, and this before it"
            raise Corruption(self.end.path, self.end.offset, f"{self.end.reason}; {synced}; {REMEDY}")
        if self.end is None and scan.first_sequence > self.last_sequence + 1:
            self._gap(scan, 0, scan.first_sequence)
        for i, record in enumerate(scan.records):
            if self.end is None and record.payload:
                self._add_record(scan, record)
            if self.end is not None:
                left = len(scan.records) - i
                self.dropped.append(f"{scan.path}: offset {record.offset}: {left} records dropped: {self.end}")
                return
        if self.torn is None and scan.status == "torn":
            self.torn = Corruption(scan.path, scan.end_offset, scan.reason)

    def _add_record(self, scan: Scan, record: Record) -> None:
        try:
            first, ops = decode_ops(record.payload)
        except ValueError as error:
            self._stop(Corruption(scan.path, record.offset, f"the checksum fits, the batch does not: {error}"))
            return
        last = first + len(ops) - 1
        if last <= self.start_sequence:
            return
        if first <= self.last_sequence:
            found = f"expected sequence {self.last_sequence + 1}, found {first} to {last}"
            self._stop(Corruption(scan.path, record.offset, found))
            return
        if first > self.last_sequence + 1:
            self._gap(scan, record.offset, first)
        if self.end is None:
            self.batches.append((first, ops))
            self.last_sequence = last
            self.torn = None

    def _gap(self, scan: Scan, offset: int, found: int) -> None:
        """Sequences are missing before `offset` of `scan`: lost at the torn end of the log before, if it has one."""
        missing = f"sequences {self.last_sequence + 1} to {found - 1} are missing before log {scan.number}"
        place = self.torn or Corruption(scan.path, offset, "gap")
        self._stop(Corruption(place.path, place.offset, f"{place.reason}; {missing}"), lawful=scan.attested <= offset)
        self.torn = None
        if self.end is None:
            self.last_sequence = found - 1

    def _stop(self, why: Corruption, lawful: bool = False) -> None:
        """End the prefix, raise, or (skip_corrupted) go on, as the mode says. `lawful`: a crash may leave this."""
        if self.mode == "skip_corrupted":
            self.dropped.append(str(why))
        elif self.mode == "point_in_time" or (lawful and self.mode == "tolerate_torn_tail"):
            self.end = why
        else:
            raise Corruption(why.path, why.offset, f"{why.reason}; {REMEDY}")
