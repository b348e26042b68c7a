"""Disks that say no, at every operation in turn: the store stops writing, reads on, and reopens with all it promised.

run a workload ─▶ the n-th operation fails ─▶ the call raises; writes are refused with the first error; reads are right
               ─▶ close writes nothing ─▶ the fault goes ─▶ reopen: an admissible prefix ─▶ the rest of the life
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
from labs.crash.workload import SMALL, STORE
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.real import RealFilesystem
from simfs.syscalls import PosixCalls
from simfs.wrapper import Call, T, WrappedFile, WrappedFilesystem

OPTIONS = lsm.Options.make(None, **SMALL)
WRITING = ("append", "sync", "truncate", "create", "rename", "remove", "link", "mkdir", "rmdir", "sync_dir")


def writes() -> Iterator[tuple[Op, ...]]:
    """A life of 70 writes with flushes, compactions and a manifest of several edits."""
    for number in range(70):
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


class Run:
    """The life of a store on a disk, up to the first error."""

    def __init__(self, world: Any, options: lsm.Options = OPTIONS) -> None:
        self.world, self.options = world, options
        self.acknowledged = 0
        self.error: BaseException | None = None
        self.db: lsm.DB | None = None
        try:
            self.db = lsm.open(STORE, options, world=world)
            for ops in writes():
                self.db.write(batch_of(ops))
                self.acknowledged += 1
            self.db.flush()
        except (OSError, KeyboardInterrupt) as error:
            self.error = error

    def close_struck(self) -> None:
        """Close; the fault may strike just here. The handles and the lock are given back all the same."""
        assert self.db is not None
        try:
            self.db.close()
        except (OSError, KeyboardInterrupt) as error:
            self.error = error

    def check_after_the_error(self) -> None:
        """What an open store owes its user after an error of the disk."""
        db = self.db
        if db is None:
            return
        expected = STATES[self.acknowledged]
        assert dict(db.scan()) == expected
        assert {key: db.get(key) for key in expected} == expected
        with pytest.raises((OSError, lsm.InvalidArgument), match="refuses writes") as refused:
            db.put(b"more", b"")
        if isinstance(self.error, OSError):
            assert isinstance(refused.value, OSError)
            assert refused.value.errno == self.error.errno
        for call in (db.flush, db.compact, db.sync):
            with pytest.raises((OSError, lsm.InvalidArgument), match="refuses writes"):
                call()


def batch_of(ops: tuple[Op, ...]) -> lsm.WriteBatch:
    batch = lsm.WriteBatch()
    for kind, key, value in ops:
        if kind == RANGE_DELETE:
            batch.delete_range(key, value)
        elif kind == DELETE:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


def reopened(fs: Any, acknowledged: int, note: str) -> None:
    """The fault is gone: what was acknowledged is there, at most one write more, and life goes on."""
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(fs)) as db:
        found = dict(db.scan())
        assert found in STATES[acknowledged : acknowledged + 2], note
        db.verify()
        db.put(b"after", b"1")
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(fs)) as db:
        assert dict(db.scan()) == {**found, b"after": b"1"}, note


class Counting(WrappedFilesystem):
    """Counts the operations that write."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.written = 0

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        self.written += call.operation in WRITING
        return super().around(call, perform, file)


FAULTS = [
    ("append", "error(EIO)"), ("append", "error(ENOSPC)"), ("append", "short(0, ENOSPC)"),
    ("append", "short(9, ENOSPC)"),
    ("append", "short(40, EIO)"), ("sync", "error(EIO)"), ("sync", "failsync(EIO)"), ("sync_dir", "failsync(EIO)"),
    ("create", "error(ENOSPC)"), ("rename", "error(EIO)"), ("remove", "error(EIO)"), ("mkdir", "error(ENOSPC)"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "fault"), FAULTS)
@pytest.mark.parametrize("dial", ["none", "flush", "fsync"])
def test_a_fault_at_every_operation(operation: str, fault: str, dial: str) -> None:
    step = 3 if operation in ("append", "sync") else 1
    struck = 0
    for nth in range(1, 400, step):
        disk = MemoryFilesystem(record=False)
        faulty = FaultyFilesystem(disk, f"{fault} @ {operation}(nth={nth})")
        counting = Counting(faulty)
        run = Run(MemoryWorld(counting), lsm.Options.make(OPTIONS, sync=dial))
        note = f"{fault} @ {operation}(nth={nth}), dial {dial}, after {run.acknowledged} writes: {run.error!r}"
        if run.error is None:
            run.close_struck()
            if not faulty.fired[0]:
                break
        else:
            assert isinstance(run.error, OSError), note
            run.check_after_the_error()
        struck += 1
        if run.db is not None:
            before = counting.written
            run.db.close()
            assert counting.written == before, f"{note}: close wrote after an error"
        acknowledged = run.acknowledged
        if dial == "none":  # what the process held is gone with it; everything flushed is there
            with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk)) as db:
                assert dict(db.scan()) in STATES[: acknowledged + 2], note
        else:
            reopened(disk, acknowledged, note)
    else:
        raise AssertionError("the workload never ended")
    assert struck > 0


class Interrupting(WrappedFilesystem):
    """Ctrl-C arrives before (`late` False) or after the n-th operation that writes."""

    def __init__(self, inner: Any, nth: int, late: bool) -> None:
        super().__init__(inner)
        self.left, self.late = nth, late

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        if call.operation not in WRITING:
            return super().around(call, perform, file)
        self.left -= 1
        if self.left == 0 and not self.late:
            raise KeyboardInterrupt
        answer = super().around(call, perform, file)
        if self.left == 0:
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_at_every_operation(late: bool) -> None:
    struck = 0
    for nth in range(1, 2000):
        disk = MemoryFilesystem(record=False)
        run = Run(MemoryWorld(Interrupting(disk, nth, late)))
        if run.error is None:
            run.close_struck()
            if run.error is None:
                break
        else:
            assert isinstance(run.error, KeyboardInterrupt)
            run.check_after_the_error()
        struck += 1
        if run.db is not None:
            run.db.close()
        reopened(disk, run.acknowledged, f"interrupt at {nth}, late {late}")
    assert struck > 50


@pytest.mark.parametrize("room", range(300, 9000, 150))
def test_a_full_disk_of_memory(room: int) -> None:
    disk = MemoryFilesystem(record=False, capacity_bytes=room)
    run = Run(MemoryWorld(disk))
    if run.error is not None:
        assert isinstance(run.error, OSError)
        assert run.error.errno == errno.ENOSPC
        run.check_after_the_error()
    assert run.db is not None or run.error is not None
    if run.db is not None:
        run.db.close()
    disk.capacity_bytes = None
    reopened(disk, run.acknowledged, f"room for {room} bytes")


def test_a_store_on_a_full_disk_opens_to_read() -> None:
    disk = MemoryFilesystem(record=False, capacity_bytes=5000)
    run = Run(MemoryWorld(disk))
    assert isinstance(run.error, OSError)
    assert run.db is not None
    run.db.close()
    disk.capacity_bytes = disk.used_bytes
    with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk), read_only=True) as db:
        assert dict(db.scan()) in STATES[run.acknowledged : run.acknowledged + 2]
    with pytest.raises(OSError, match="No space left"):
        lsm.open(STORE, OPTIONS, world=MemoryWorld(disk))
    disk.capacity_bytes = None
    reopened(disk, run.acknowledged, "after a refused opening")


# Faults while reading


@pytest.mark.parametrize("fault", ["error(EIO)", "flip(3)", "flip(77)", "flip(1111)"])
def test_a_fault_at_every_read_is_an_error_or_does_no_harm(fault: str) -> None:
    disk = MemoryFilesystem(record=False)
    run = Run(MemoryWorld(disk))
    assert run.db is not None
    run.db.close()
    tree, struck, raised = disk.tree(), 0, 0
    for nth in range(1, 3000):
        image = MemoryFilesystem(record=False, tree=tree)
        faulty = FaultyFilesystem(image, f"{fault} @ pread(nth={nth})")
        try:
            with lsm.open(STORE, OPTIONS, world=MemoryWorld(faulty), read_only=True) as db:
                for key, value in STATES[-1].items():
                    assert db.get(key) == value, (fault, nth, key)
                assert db.get(b"k05x") is None
                assert dict(db.scan()) == STATES[-1], (fault, nth)
        except (OSError, lsm.Corruption):
            raised += 1
        if not faulty.fired[0]:
            break
        struck += 1
    assert struck > 10
    assert raised >= struck // 2


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_read_fault_in_a_compaction_writes_nothing_wrong(nth: int) -> None:
    disk = MemoryFilesystem(record=False)
    options = lsm.Options.make(OPTIONS, strategy="none")
    run = Run(MemoryWorld(disk), options)
    assert run.db is not None
    run.db.close()
    faulty = FaultyFilesystem(disk, f'flip({nth * 131}) @ pread(path="*.sst", nth={nth})')
    try:
        with lsm.open(STORE, OPTIONS, world=MemoryWorld(faulty)) as db:
            db.compact()
    except (OSError, lsm.Corruption):
        pass
    assert faulty.fired[0]
    reopened(disk, len(STATES) - 1, f"flip at read {nth}")


# Faults in what is not a write of the user's


def whole_store() -> MemoryFilesystem:
    disk = MemoryFilesystem(record=False)
    run = Run(MemoryWorld(disk))
    assert run.db is not None
    run.db.put(b"k00", b"in the log")
    run.db.close()
    return disk


FINAL = {**STATES[-1], b"k00": b"in the log"}


def opening(world: MemoryWorld) -> None:
    lsm.open(STORE, OPTIONS, world=world).close()


def checkpoint(world: MemoryWorld) -> None:
    with lsm.open(STORE, OPTIONS, world=world) as db:
        db.checkpoint("/copy")


def repair(world: MemoryWorld) -> None:
    lsm.repair(STORE, OPTIONS, world=world)


@pytest.mark.parametrize(("work", "headless"), [(opening, False), (checkpoint, False), (repair, False), (repair, True)])
@pytest.mark.parametrize("fault", ["error(EIO)", "interrupt"])
def test_a_fault_at_every_operation_of_other_work_loses_nothing(
    work: Callable[[MemoryWorld], None], fault: str, headless: bool
) -> None:
    """`headless`: CURRENT and the manifest are gone, which only a repair can do something about."""
    tree, struck = whole_store().tree(), 0
    for nth in range(1, 500):
        disk = MemoryFilesystem(record=False, tree=tree)
        if headless:
            for name in disk.listdir(STORE):
                if name == "CURRENT" or name.startswith("MANIFEST"):
                    disk.remove(f"{STORE}/{name}")
        fs: Any = Interrupting(disk, nth, late=False)
        if fault != "interrupt":
            fs = FaultyFilesystem(disk, f"{fault} @ any(nth={nth})")
        try:
            work(MemoryWorld(fs))
        except (OSError, KeyboardInterrupt):
            struck += 1
        else:
            if (fs.left > 0) if fault == "interrupt" else not fs.fired[0]:
                break
        disk.locks.clear()  # the process is gone
        if headless:
            lsm.repair(STORE, OPTIONS, world=MemoryWorld(disk))
        with lsm.open(STORE, OPTIONS, world=MemoryWorld(disk)) as db:
            assert dict(db.scan()) == FINAL, (nth, fault)
            db.verify()
            if work is checkpoint and not disk.exists("/copy"):
                db.checkpoint("/copy")
        if work is checkpoint:
            with lsm.open("/copy", OPTIONS, world=MemoryWorld(disk)) as db:
                assert dict(db.scan()) == FINAL
    else:
        raise AssertionError("it never ended")
    assert struck > 5


# The disk's own code, over a fake operating system


@pytest.mark.parametrize("room", [0, 1_000, 2_000, 3_500, 5_000])
def test_a_full_disk_under_the_real_filesystem(room: int) -> None:
    fake = FakeFilesystem(path_separator="/", total_size=room)
    disk = RealFilesystem(PosixCalls.without_pread(FakeOsModule(fake)))
    run = Run(MemoryWorld(disk))
    assert isinstance(run.error, OSError)
    assert run.error.errno == errno.ENOSPC
    run.check_after_the_error()
    if run.db is not None:
        run.db.close()
    fake.set_disk_usage(1 << 30)
    reopened(disk, run.acknowledged, f"room for {room} bytes")
