"""Disks that say no, at every operation in turn: the store stops writing, reads on, and reopens with all it promised.

run a workload ─▶ the n-th operation fails ─▶ the call raises; writes are refused with the first error; reads are right
               ─▶ close writes nothing and gives handles and lock back ─▶ the fault goes (and perhaps the power)
               ─▶ reopen: an admissible prefix ─▶ life goes on
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_os import FakeOsModule

import lsm
from labs.crash.history import apply_ops
from labs.crash.workload import SMALL, STORE, as_batch
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.events import Compacted, Event, Flushed
from simfs.crash import ALL_KEPT, SYNCED_ONLY, WorstCase
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.real import RealFilesystem
from simfs.syscalls import PosixCalls
from simfs.wrapper import Call, T, WrappedFile, WrappedFilesystem

OPTIONS = lsm.Options.make(None, **SMALL)
WRITING = ("append", "sync", "truncate", "create", "rename", "remove", "link", "mkdir", "rmdir", "sync_dir")
WRITES = 90


def writes() -> Iterator[tuple[Op, ...]]:
    """A life with flushes, compactions and a manifest of several edits."""
    for number in range(WRITES):
        key = b"k%02d" % (number * 7 % 31)
        if number % 11 == 5:
            yield (DELETE, key, b""), (VALUE, b"b%d" % (number % 5), b"batch")
        elif number % 23 == 22:
            yield ((RANGE_DELETE, b"k05", b"k09"),)
        else:
            yield ((VALUE, key, b"v%d-" % number + b"x" * (number % 50)),)


STATES: list[dict[bytes, bytes]] = [{}]
for _ops in writes():
    STATES.append(apply_ops(STATES[-1], _ops))


class Watching(WrappedFilesystem):
    """Counts the operations that write, and knows which handles were not given back."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.written = 0
        self.handles: list[WrappedFile] = []

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        self.written += call.operation in WRITING
        if call.operation == "close" and file in self.handles:
            self.handles.remove(file)  # even if it raises: the caller has done what it can
        answer = super().around(call, perform, file)
        if isinstance(answer, WrappedFile):
            self.handles.append(answer)
        return answer


class Run:
    """The life of a store on a disk, up to the first error, its closing included."""

    def __init__(self, fs: Any, options: lsm.Options = OPTIONS) -> None:
        self.fs = Watching(fs)
        self.options = options
        self.acknowledged = 0
        self.error: BaseException | None = None
        self.db: lsm.DB | None = None
        try:
            self.db = lsm.open(STORE, options, world=MemoryWorld(self.fs))
            for ops in writes():
                self.db.write(as_batch(ops))
                self.acknowledged += 1
            self.db.flush()
        except (OSError, KeyboardInterrupt) as error:
            self.error = error
            self.check_after_the_error()
        self.close()

    def check_after_the_error(self) -> None:
        """What an open store owes its user after an error of the disk."""
        db = self.db
        if db is None:
            return
        expected = STATES[self.acknowledged]
        assert dict(db.scan()) == expected
        assert {key: db.get(key) for key in expected} == expected
        assert list(db.scan(reverse=True)) == sorted(expected.items(), reverse=True)
        calls: tuple[Callable[[], None], ...] = (lambda: db.put(b"more", b""), db.flush, db.compact, db.sync)
        for call in calls:
            with pytest.raises((OSError, lsm.InvalidArgument), match="refuses writes") as refused:
                call()
            if isinstance(self.error, OSError):
                assert isinstance(refused.value, OSError)
                assert refused.value.errno == self.error.errno

    def close(self) -> None:
        """Close; after an error that writes nothing. The lock and all handles are given back in any case."""
        if self.db is not None:
            before = self.fs.written
            try:
                self.db.close()
            except (OSError, KeyboardInterrupt) as error:
                self.error = self.error or error
            else:
                assert self.error is None or self.fs.written == before, "close wrote after an error"
            assert self.db.closed
        assert not self.fs.handles
        ground: Any = self.fs
        while isinstance(ground, WrappedFilesystem):
            ground = ground.inner
        if isinstance(ground, MemoryFilesystem):
            assert not ground.locks


def reopened(fs: Any, least: int, most: int, note: str) -> None:
    """The fault is gone: a prefix of `least` to `most` writes is there, and life goes on."""
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(fs)) as db:
        found = dict(db.scan())
        assert found in STATES[least : most + 1], note
        db.verify()
        db.put(b"after", b"1")
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(fs)) as db:
        assert dict(db.scan()) == {**found, b"after": b"1"}, note


def test_the_workload_is_dense_enough() -> None:
    events: list[Event] = []
    run = Run(MemoryFilesystem(), lsm.Options.make(OPTIONS, listener=events.append))
    assert run.error is None
    assert sum(isinstance(event, Flushed) for event in events) >= 3
    assert sum(isinstance(event, Compacted) and not event.moved for event in events) >= 2


# Every operation in turn. The dials differ in what they sync, not in how they append: each has every third of the
# operations that are many, so that together they have all of them.

FAULTS = {
    "append": ("error(EIO)", "short(0, ENOSPC)", "short(9, ENOSPC)"),
    "sync": ("failsync(EIO)",),
    "sync_dir": ("error(EIO)", "failsync(EIO)"),
    "create": ("error(ENOSPC)",),
    "rename": ("error(EIO)",),
    "remove": ("error(EIO)",),
    "mkdir": ("error(ENOSPC)",),
    "close": ("error(EIO)",),
}
DIALS = ("none", "flush", "fsync")


@pytest.mark.parametrize("dial", DIALS)
@pytest.mark.parametrize(("operation", "fault"), [(name, fault) for name, kinds in FAULTS.items() for fault in kinds])
def test_a_fault_at_every_operation(operation: str, fault: str, dial: str) -> None:
    many = operation == "append" or (operation == "sync" and dial == "fsync")
    first, step = (1 + DIALS.index(dial), 3) if many else (1, 1)
    for nth in range(first, 400, step):
        disk = MemoryFilesystem()
        faulty = FaultyFilesystem(disk, f"{fault} @ {operation}(nth={nth})")
        run = Run(faulty, lsm.Options.make(OPTIONS, sync=dial))
        note = f"{faulty.plan}, dial {dial}, after {run.acknowledged} writes: {run.error!r}"
        if not faulty.fired[0]:
            assert run.error is None
            break
        assert isinstance(run.error, OSError), note
        done = run.acknowledged
        reopened(disk.crash_image("kill", at=len(disk.log)), 0 if dial == "none" else done, done + 1, note)
        if dial == "fsync" and operation in ("sync", "sync_dir"):
            for choice in (SYNCED_ONLY, ALL_KEPT, WorstCase(nth)):
                reopened(disk.crash_image("power", choice, at=len(disk.log)), done, done + 1, note)
    else:
        raise AssertionError("the workload never ended")
    assert nth > 1, "nothing was struck"


class Interrupting(WrappedFilesystem):
    """Ctrl-C arrives before (or, if `late`, after) the n-th operation that fits."""

    def __init__(self, inner: Any, nth: int, late: bool, operations: tuple[str, ...] = WRITING) -> None:
        super().__init__(inner)
        self.left, self.late, self.operations = nth, late, operations

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        if call.operation not in self.operations:
            return super().around(call, perform, file)
        self.left -= 1
        if self.left == 0 and not self.late:
            raise KeyboardInterrupt
        answer = super().around(call, perform, file)
        if self.left == 0:
            if isinstance(answer, WrappedFile):
                answer.inner.close()  # the caller never saw it, so nobody else can
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_at_every_operation(late: bool) -> None:
    struck = 0
    for nth in range(1, 2000):
        disk = MemoryFilesystem(record=False)
        interrupting = Interrupting(disk, nth, late)
        run = Run(interrupting)
        if interrupting.left > 0:
            assert run.error is None
            break
        struck += 1
        assert isinstance(run.error, KeyboardInterrupt)
        reopened(disk, run.acknowledged, run.acknowledged + 1, f"interrupt at {nth}, late {late}")
    assert struck > 100


# Full disks


@pytest.mark.parametrize("start", range(5))
def test_a_full_disk_in_memory(start: int) -> None:
    struck = 0
    for room in range(start * 37, 9000, 185):
        disk = MemoryFilesystem(record=False, capacity_bytes=room)
        run = Run(disk)
        if run.error is not None:
            struck += 1
            assert isinstance(run.error, OSError)
            assert run.error.errno == errno.ENOSPC
        disk.capacity_bytes = None
        reopened(disk, run.acknowledged, run.acknowledged + 1, f"room for {room} bytes")
    assert struck > 5


def test_a_store_on_a_full_disk_opens_to_read() -> None:
    disk = MemoryFilesystem(record=False, capacity_bytes=5000)
    run = Run(disk)
    assert isinstance(run.error, OSError)
    disk.capacity_bytes = disk.used_bytes
    done = run.acknowledged
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk), read_only=True) as db:
        assert dict(db.scan()) in STATES[done : done + 2]
    with pytest.raises(OSError, match="No space left"):
        lsm.open(STORE, OPTIONS, world=MemoryWorld(disk))
    assert not disk.locks
    disk.capacity_bytes = None
    reopened(disk, done, done + 1, "after a refused opening")


@pytest.mark.parametrize("room", [0, 500, 1_000, 1_700, 3_000, 4_100, 5_000])
def test_a_full_disk_under_the_code_for_real_disks(room: int) -> None:
    fake = FakeFilesystem(path_separator="/", total_size=room)
    disk = RealFilesystem(PosixCalls.without_pread(FakeOsModule(fake)))
    run = Run(disk)
    assert isinstance(run.error, OSError)
    assert run.error.errno == errno.ENOSPC
    fake.set_disk_usage(1 << 30)
    reopened(disk, run.acknowledged, run.acknowledged + 1, f"room for {room} bytes")


def test_space_that_runs_out_later_under_the_code_for_real_disks() -> None:
    fake = FakeFilesystem(path_separator="/", total_size=1 << 30)
    disk = RealFilesystem(PosixCalls.without_pread(FakeOsModule(fake)))
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk)) as db:
        for ops in writes():
            db.write(as_batch(ops))
        fake.set_disk_usage(fake.get_disk_usage()[1] + 20)
        with pytest.raises(OSError, match="No space left"):
            db.put(b"large", b"x" * 100)
        assert dict(db.scan()) == STATES[-1]
    fake.set_disk_usage(1 << 30)
    reopened(disk, WRITES, WRITES, "a torn record is no write")


# Reads


@pytest.mark.parametrize("fault", ["error(EIO)", "flip(3)", "flip(77)", "flip(1111)"])
def test_a_fault_at_every_read_is_an_error_or_does_no_harm(fault: str) -> None:
    disk = MemoryFilesystem(record=False)
    assert Run(disk).error is None
    tree, struck, raised = disk.tree(), 0, 0
    for nth in range(1, 3000):
        image = MemoryFilesystem(record=False, tree=tree)
        faulty = FaultyFilesystem(image, f"{fault} @ pread(nth={nth})")
        watching = Watching(faulty)
        try:
            with lsm.open(STORE, OPTIONS, world=MemoryWorld(watching), read_only=True) as db:
                for key, value in STATES[-1].items():
                    assert db.get(key) == value, (fault, nth, key)
                assert db.get(b"k05x") is None
                assert dict(db.scan()) == STATES[-1], (fault, nth)
        except (OSError, lsm.Corruption):
            raised += 1
        assert not watching.handles
        if not faulty.fired[0]:
            break
        struck += 1
    assert struck > 10
    assert raised >= struck // 2


@pytest.mark.parametrize("fault", ["flip(1310)", "error(EIO)"])
def test_a_fault_at_every_read_of_a_compaction_writes_nothing_wrong(fault: str) -> None:
    flushed = MemoryFilesystem(record=False)
    assert Run(flushed, lsm.Options.make(OPTIONS, strategy="none")).error is None
    for nth in range(1, 200):
        disk = MemoryFilesystem(record=False, tree=flushed.tree())
        faulty = FaultyFilesystem(disk, f'{fault} @ pread(path="*.sst", nth={nth})')
        try:
            with lsm.open(STORE, OPTIONS, world=MemoryWorld(faulty)) as db:
                db.compact()
        except (OSError, lsm.Corruption):
            pass
        reopened(disk, WRITES, WRITES, f"{fault} at read {nth}")
        if not faulty.fired[0]:
            break
    assert nth > 5


# Other work: opening, checkpoint, repair, destroy


def whole_store() -> MemoryFilesystem:
    disk = MemoryFilesystem(record=False)
    assert Run(disk).error is None
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk)) as db:
        db.put(b"k00", b"in the log")
    return disk


FINAL = {**STATES[-1], b"k00": b"in the log"}


def opening(world: MemoryWorld) -> None:
    lsm.open(STORE, OPTIONS, world=world).close()


def reading(world: MemoryWorld) -> None:
    with lsm.open(STORE, OPTIONS, world=world, read_only=True) as db:
        assert dict(db.scan()) == FINAL
        db.verify()


def checkpoint(world: MemoryWorld) -> None:
    with lsm.open(STORE, OPTIONS, world=world) as db:
        db.checkpoint("/copy")


def repair(world: MemoryWorld) -> None:
    lsm.repair(STORE, OPTIONS, world=world)


def behead(disk: MemoryFilesystem) -> None:
    for name in disk.listdir(STORE):
        if name == "CURRENT" or name.startswith("MANIFEST"):
            disk.remove(f"{STORE}/{name}")


@pytest.mark.parametrize("fault", ["nth", "after", "early interrupt", "late interrupt"])
@pytest.mark.parametrize(
    ("work", "headless"), [(opening, False), (reading, False), (checkpoint, False), (repair, False), (repair, True)]
)
def test_a_fault_at_every_operation_of_other_work(
    work: Callable[[MemoryWorld], None], headless: bool, fault: str
) -> None:
    """`headless`: CURRENT and the manifest are gone, which only a repair can do something about.

    `after`: from then on, nothing works any more.
    """
    tree, struck = whole_store().tree(), 0
    for nth in range(1, 500):
        disk = MemoryFilesystem(record=False, tree=tree)
        if headless:
            behead(disk)
        inner: Any = Interrupting(disk, nth, fault.startswith("late"), (*WRITING, "open", "pread", "stat", "listdir"))
        if fault in ("nth", "after"):
            inner = FaultyFilesystem(disk, f"error(EIO) @ any({fault}={nth})")
        watching = Watching(inner)
        try:
            work(MemoryWorld(watching))
        except (OSError, KeyboardInterrupt):
            struck += 1
        note = f"{work.__name__}, {fault} at operation {nth}"
        assert not watching.handles, note
        assert not disk.locks, note
        if headless:
            repair(MemoryWorld(disk))
        with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk)) as db:
            assert dict(db.scan()) == FINAL, note
            db.verify()
            if work is checkpoint and not disk.exists("/copy"):
                db.checkpoint("/copy")
        if work is checkpoint:
            with lsm.open("/copy", OPTIONS, world=MemoryWorld(disk)) as db:
                assert dict(db.scan()) == FINAL, note
        if (inner.left > 0) if isinstance(inner, Interrupting) else not inner.fired[0]:
            break
    else:
        raise AssertionError("it never ended")
    assert struck > 5
