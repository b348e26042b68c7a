"""A store beside a dict that must always agree with it: the oracle for tests that do everything in any order.

    twin.write(ops) ─┬─▶ store                       every answer of the store is compared with
                     └─▶ history of dicts            what the dict says; they differ: AssertionError

A snapshot, an open scan and a checkpoint are pairs too: the store's, and a dict of that moment. After a crash the
dict becomes what the store recovered, provided that this is the content after some admissible prefix of the
writes (`labs.crash.history`).

Works on any world. A crash needs a memory disk that records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lsm
from labs.crash.history import History, Verdict
from labs.crash.sweep import leaked_files
from labs.crash.workload import as_batch
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE
from simfs.api import SyncLevel, World
from simfs.crash import Choice, Failure
from simfs.memory import MemoryFilesystem, MemoryWorld

Pairs = list[tuple[bytes, bytes]]


@dataclass
class Moment:
    """A registered snapshot, and what it must go on to show."""

    snapshot: lsm.Snapshot
    content: dict[bytes, bytes]


@dataclass
class OpenScan:
    """A scan that was begun, and what it has still to give."""

    scan: Any
    expected: Pairs


@dataclass
class Twin:
    """The two. `options` may be changed at each `reopen`."""

    world: World
    path: str
    options: lsm.Options
    history: History = field(default_factory=History)
    moments: list[Moment] = field(default_factory=list)
    scans: list[OpenScan] = field(default_factory=list)
    weak: bool = False  # tables were written without syncs (structural_sync="follow_dial"): no power failure then
    writes: int = 0
    lost: int = 0  # of the writes, by crashes that were allowed to take them
    copies: int = 0
    settled: int = 0  # the position at which the last recovery had ended: no crash goes back behind it

    def __post_init__(self) -> None:
        self.open()

    # state

    @property
    def content(self) -> dict[bytes, bytes]:
        """What the store must hold now."""
        return self.history.states[-1]

    @property
    def disk(self) -> MemoryFilesystem:
        """The memory disk."""
        fs = self.world.fs
        assert isinstance(fs, MemoryFilesystem)
        return fs

    def position(self) -> int:
        """The place in the disk's operation log; on a real disk a count of writes."""
        fs = self.world.fs
        return len(fs.log) if isinstance(fs, MemoryFilesystem) else self.writes

    def open(self) -> None:
        """Open the store."""
        self._open()
        self._durable()
        self.settled = self.settled or self.position()

    def _open(self) -> None:
        self.db = lsm.open(self.path, self.options, world=self.world)
        self.weak = self.weak or self.options.structural_floor < SyncLevel.FSYNC

    def _durable(self) -> None:
        if not self.weak:
            self.history.mark_durable(self.position())

    # writing and reading

    def write(self, ops: Sequence[Op], level: SyncLevel | None = None) -> None:
        """One op by the call for it, several as a batch."""
        started = self.position()
        if len(ops) == 1:
            kind, key, value = ops[0]
            if kind == RANGE_DELETE:
                self.db.delete_range(key, value, level)
            elif kind == DELETE:
                self.db.delete(key, level)
            else:
                self.db.put(key, value, level)
        else:
            self.db.write(as_batch(ops), level)
        self.writes += 1
        if any(kind != RANGE_DELETE or key < value for kind, key, value in ops):  # else nothing was written
            self.history.add(ops, self.options.sync if level is None else level, started, self.position())

    def get(self, keys: Sequence[bytes], moment: int | None = None) -> None:
        """Look the keys up, one by one and together."""
        source, content = self._at(moment)
        expected = [content.get(key) for key in keys]
        found = [source.get(key) for key in keys]
        assert found == expected, f"get {keys}: expected {expected}, found {found}"
        found = source.multi_get(keys)
        assert found == expected, f"multi_get {keys}: expected {expected}, found {found}"

    def scan(self, moment: int | None = None, **bounds: Any) -> None:
        """A whole scan of some bounds (`start`, `stop`, `prefix`, `reverse`)."""
        source, content = self._at(moment)
        found, expected = list(source.scan(**bounds)), select(content, **bounds)
        assert found == expected, f"scan {bounds}: {difference(expected, found)}"

    def _at(self, moment: int | None) -> tuple[Any, dict[bytes, bytes]]:
        if moment is None or not self.moments:
            return self.db, self.content
        chosen = self.moments[moment % len(self.moments)]
        return chosen.snapshot, chosen.content

    def check(self) -> None:
        """Compare everything that is visible, and the invariants of the tree."""
        self.scan()
        self.scan(reverse=True)
        self.db.version.check()
        for number in range(len(self.moments)):
            self.scan(number)

    def verify(self) -> None:
        """Read and check every file; no file may belong to nothing."""
        report = self.db.verify()
        assert report.tables == len(list(self.db.version.tables()))
        if not self.scans and isinstance(self.world.fs, MemoryFilesystem):
            with self.db.scan():  # accounts for what was given back
                pass
            leaked = leaked_files(self.disk, self.db)
            assert not leaked, f"leaked {leaked}"

    # long-lived readers

    def take_snapshot(self) -> None:
        """Hold the present."""
        self.moments.append(Moment(self.db.snapshot(), dict(self.content)))

    def release_snapshot(self, moment: int) -> None:
        """Let a moment go."""
        if self.moments:
            self.moments.pop(moment % len(self.moments)).snapshot.release()

    def begin_scan(self, moment: int | None = None, **bounds: Any) -> None:
        """Begin a scan, to be read later."""
        source, content = self._at(moment)
        self.scans.append(OpenScan(source.scan(**bounds), select(content, **bounds)))

    def advance_scan(self, number: int, count: int) -> None:
        """Read on; a scan that has given everything ends."""
        if not self.scans:
            return
        open_scan = self.scans[number % len(self.scans)]
        for _ in range(count):
            found = next(open_scan.scan, None)
            expected = open_scan.expected.pop(0) if open_scan.expected else None
            assert found == expected, f"open scan: expected {expected}, found {found}"
            if found is None:
                self.scans.remove(open_scan)
                return

    def drop_scan(self, number: int, *, forget: bool) -> None:
        """End a scan early: by `close`, or by forgetting it."""
        if self.scans:
            open_scan = self.scans.pop(number % len(self.scans))
            if not forget:
                open_scan.scan.close()

    # maintenance

    def flush(self) -> None:
        """Flush."""
        self.db.flush()
        self._durable()

    def compact(self, start: bytes | None = None, stop: bytes | None = None) -> None:
        """Compact everything, or a range."""
        self.db.compact(start, stop)
        self._durable()

    def sync(self, level: SyncLevel = SyncLevel.FSYNC) -> None:
        """Make the log durable."""
        self.db.sync(level)
        if level >= SyncLevel.FSYNC:
            self._durable()

    def close(self) -> None:
        """Close; every reader dies."""
        self.db.close()
        if self.options.sync >= SyncLevel.FLUSH:
            self._durable()
        self._forget_readers()

    @property
    def broken(self) -> bool:
        """Whether a crash was not recovered from: the disk of old is gone."""
        fs = self.world.fs
        return self.db.closed or (isinstance(fs, MemoryFilesystem) and self.db.world is not self.world)

    def _forget_readers(self) -> None:
        self.moments, self.scans = [], []

    def reopen(self, **changes: Any) -> None:
        """Close, and open under other options: the same content."""
        self.close()
        self.options = lsm.Options.make(self.options, **changes)
        self.open()
        self.check()

    def checkpoint(self) -> None:
        """Make a checkpoint, and open it as a store of its own: the same content, and independent from then on."""
        self.copies += 1
        target = f"{self.path}-copy{self.copies}"
        self.db.checkpoint(target)
        self._durable()
        with lsm.open(target, lsm.Options.make(self.options, listener=None), world=self.world) as copy:
            found, expected = list(copy.scan()), select(self.content)
            assert found == expected, f"checkpoint: {difference(expected, found)}"
            copy.verify()
            copy.clear()
            copy.compact()
        lsm.destroy(target, world=self.world)
        assert not self.world.fs.exists(target)
        self.check()

    def read_only(self) -> None:
        """A read-only opening beside the open store: what a killed process would leave, and nothing is written."""
        before = self.position()
        options = lsm.Options.make(self.options, read_only=True, listener=None)
        with lsm.open(self.path, options, world=self.world) as reader:
            found = dict(reader.scan())
            assert all(reader.get(key) == value for key, value in found.items())
        verdict = self.history.judge(found, "kill", self.position())
        assert not verdict.problem, f"read-only: {verdict.problem}"
        assert self.position() == before, "a read-only opening wrote"

    # failures

    def crash(self, failure: Failure, choice: Choice | None, *, back: int = 0, **changes: Any) -> Verdict:
        """The machine fails; what survived is opened (under other options) and must be that of a prefix.

        `back`: the failure came so many operations of the disk ago, in the middle of whatever was done then; all that
        followed never happened. It goes back no further than to the last recovery.
        """
        at = self._fail(failure, choice, back)
        self.options = lsm.Options.make(self.options, **changes)
        return self._recover(failure, at)

    def repair(
        self, *, lose_manifest: bool, failure: Failure | None = None, choice: Choice | None = None, back: int = 0
    ) -> Verdict:
        """Close (or crash), perhaps lose MANIFEST and CURRENT, and repair: the same content."""
        if failure is None:
            self.close()
            at = self.position()
        else:
            at = self._fail(failure, choice, back)
        fs = self.world.fs
        if lose_manifest:
            for name in fs.listdir(self.path):
                if name.startswith(("MANIFEST", "CURRENT")):
                    fs.remove(f"{self.path}/{name}")
        lsm.repair(self.path, self.options, world=self.world)
        return self._recover(failure or "power", at)

    def _fail(self, failure: Failure, choice: Choice | None, back: int) -> int:
        assert failure == "kill" or not self.weak, "nothing was promised"
        at = max(self.position() - back, self.settled)
        self._forget_readers()
        broken = self.disk
        self.world = MemoryWorld(broken.crash_image(failure, choice, at))
        broken.fenced = True
        if failure == "kill":
            assert self.position() == at
        return at

    def _recover(self, failure: Failure, at: int) -> Verdict:
        self._open()
        found = dict(self.db.scan())
        verdict = self.history.judge(found, failure, at)
        assert not verdict.problem, f"after {failure}: {verdict.problem}"
        self.lost += max(self.history.acknowledged(at) - verdict.prefix, 0)
        self.history = History(states=[found])
        self._durable()
        self.settled = self.position()
        self.check()
        self.verify()
        return verdict


def select(
    content: dict[bytes, bytes],
    start: bytes | None = None,
    stop: bytes | None = None,
    *,
    prefix: bytes | None = None,
    reverse: bool = False,
) -> Pairs:
    """What a scan must give.

    >>> select({b"a": b"1", b"ab": b"2", b"b": b"3"}, prefix=b"a", reverse=True)
    [(b'ab', b'2'), (b'a', b'1')]
    """
    chosen = [
        (key, value)
        for key, value in content.items()
        if (start is None or key >= start)
        and (stop is None or key < stop)
        and (prefix is None or key.startswith(prefix))
    ]
    return sorted(chosen, reverse=reverse)


def difference(expected: Pairs, found: Pairs) -> str:
    """The first place where two lists of pairs differ."""
    for at, (wanted, got) in enumerate(zip(expected, found, strict=False)):
        if wanted != got:
            return f"pair {at}: expected {wanted}, found {got}"
    return f"expected {len(expected)} pairs, found {len(found)}"
