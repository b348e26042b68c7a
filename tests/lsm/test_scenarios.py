"""Kinds of defect that real stores had, one test each: ours survives, the same story on a broken engine fails.

Each story runs on a recorded memory disk. `seen` cuts the power (or kills the process) after every operation, with the
survivors that the defect needs, recovers, and asks the oracles of `labs.crash`; it returns what they found wrong.
Left out: scenarios that need a second task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import pytest

import lsm
import lsm.compact
import lsm.db
import lsm.logscan
import lsm.outputs
import lsm.sections
import lsm.versions
from labs.crash.sweep import sweep
from labs.crash.workload import SMALL, STORE, Recorder
from lsm.batch import encode_ops
from lsm.entry import VALUE
from lsm.filenames import table_name
from lsm.framing import RECORD_HEAD, RECORD_HEAD_BYTES
from lsm.recover import Listing
from lsm.sections import FOOTER_BYTES, decode_footer
from lsm.wal import LogWriter, replay_logs
from simfs.api import SyncLevel
from simfs.crash import ALL_KEPT, SIZE, SYNCED_ONLY, Choice, CrashReplay, Failure, Step
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.oplog import Append, Create, Rename, Unlink
from simfs.wrapper import Call, T, WrappedFile, WrappedFilesystem


@dataclass(frozen=True)
class Keep:
    """The parts that a rule keeps survive."""

    rule: Callable[[Step, int], bool]

    def survives(self, step: Step, part: int) -> bool:
        return self.rule(step, part)

    def filler(self, step: Step, size: int) -> bytes:
        return bytes(size)


ONLY_REMOVALS = Keep(lambda step, _: isinstance(step.record, Unlink))
ONLY_RENAMES = Keep(lambda step, _: isinstance(step.record, Rename))
NO_SIZES = Keep(lambda step, part: not (isinstance(step.record, Append) and part == SIZE))


def story(faults: str = "", dial: str = "fsync", writes: int = 24, **options: Any) -> Recorder:
    """A store that flushes, compacts and reopens."""
    recorder = Recorder(MemoryFilesystem(), lsm.Options.make(None, **(SMALL | {"sync": dial} | options)), faults)
    for number in range(writes):
        recorder.write([(VALUE, b"k%02d" % (number % 17), b"value-%d-" % number + b"x" * 60)])
        if number == writes // 2:
            recorder.durable("close")
            recorder.open()
    recorder.durable("flush")
    return recorder


def seen(recorder: Recorder, choice: Choice, failure: Failure = "power") -> str:
    """What the oracles find wrong; "" for nothing."""
    result = sweep(recorder, failure, [choice], until_first=True)
    assert result.states > 1
    return result.report() if result.violations else ""


def reopened(fs: Any, **options: Any) -> dict[bytes, bytes]:
    with lsm.open(STORE, lsm.Options.make(None, **(SMALL | options)), world=MemoryWorld(fs)) as db:
        db.verify()
        return dict(db.scan())


# Log


def torn_in_the_middle() -> MemoryFilesystem:
    """A log record over four sectors, of which the second is lost."""
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs), sync="flush") as db:
        db.put(b"before", b"1", sync="fsync")
        db.put(b"large", b"L" * 1800)
        append = max(number for number, record in enumerate(fs.log) if isinstance(record, Append))
        return fs.crash_image("power", Keep(lambda step, part: step.number != append or part != 2), at=len(fs.log))


def test_a_log_record_with_a_hole() -> None:
    """leveldb#251: a corrupted value was served."""
    assert reopened(torn_in_the_middle()) == {b"before": b"1"}


def test_a_log_record_with_a_hole_is_served_without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    def believing(data: bytes, offset: int, base: int, records: list[Any]) -> tuple[int, str]:
        while offset < len(data):
            _, length, attested = RECORD_HEAD.unpack_from(data, offset)
            start = offset + RECORD_HEAD_BYTES
            records.append(lsm.logscan.Record(offset, data[start : start + length], attested))
            offset = start + length
        return offset, ""

    monkeypatch.setattr(lsm.logscan, "read_records", believing)
    assert bytes(512) in reopened(torn_in_the_middle())[b"large"]


def two_logs(faults: str) -> list[int]:
    """Log A takes a write that is not synced, log B one that is; then the power goes. The sequences that are left."""
    fs = MemoryFilesystem()
    fs.mkdir("/db")
    fs.sync_dir("/", "test")
    faulty = FaultyFilesystem(fs, faults)
    log_a = LogWriter.create(faulty, "/db/000001.log", number=1, first_sequence=1, predecessor=None, buffer_bytes=0)
    log_a.append(encode_ops(1, [(VALUE, b"a", b"1")]), SyncLevel.FLUSH)
    log_b = LogWriter.create(faulty, "/db/000002.log", number=2, first_sequence=2, predecessor=log_a, buffer_bytes=0)
    log_b.append(encode_ops(2, [(VALUE, b"b", b"2")]), SyncLevel.FSYNC)
    image = fs.crash_image("power", SYNCED_ONLY)
    numbers = [number for number in (1, 2) if image.exists(f"/db/{number:06d}.log")]
    return [first for first, _ in replay_logs(image, "/db", numbers, "tolerate_torn_tail", start_sequence=0).batches]


def test_log_a_not_synced_and_log_b_synced() -> None:
    """rocksdb fe09a6d: a hole. Syncing B syncs A first, and both names."""
    assert two_logs("") == [1, 2]
    assert two_logs('lie() @ sync(site="wal.predecessor")') == []
    assert two_logs('lie() @ sync_dir(site="wal.create")') == []


def test_what_was_recovered_and_served_stays() -> None:
    """fjall debb55b: an unsynced put, a kill, a recovery that serves it, power loss: an observed value vanished."""

    def served(faults: str) -> tuple[dict[bytes, bytes], MemoryFilesystem]:
        fs = MemoryFilesystem()
        with lsm.open(STORE, world=MemoryWorld(fs), sync="flush") as db:
            db.put(b"k", b"unsynced")
            killed = fs.crash_image("kill", at=len(fs.log))
        with lsm.open(STORE, world=MemoryWorld(FaultyFilesystem(killed, faults)), sync="flush") as db:
            return dict(db.scan()), killed.crash_image("power", SYNCED_ONLY, at=len(killed.log))

    found, image = served("")
    assert found == {b"k": b"unsynced"} == reopened(image)
    found, image = served("lie() @ sync() | lie() @ sync_dir()")
    assert found == {b"k": b"unsynced"}
    assert reopened(image) == {}  # vanished


class HalfBatches:
    """An engine that logs each operation of a batch by itself."""

    def __init__(self, real: Callable[..., None]) -> None:
        self.real = real

    def __get__(self, db: Any, owner: Any) -> Callable[..., None]:
        def commit(ops: Any, sync: Any) -> None:
            for op in ops:
                self.real(db, (op,), sync)

        return commit


def batches() -> Recorder:
    recorder = Recorder(MemoryFilesystem(), lsm.Options.make(None, **SMALL, sync="flush"))
    for number in range(3):
        recorder.write([(VALUE, b"a", b"%d" % number * 600), (VALUE, b"b", b"%d" % number * 600)])
    return recorder


@pytest.mark.parametrize("failure", ["kill", "power"])
def test_half_a_batch(failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-lsm#84: a batch of two torn between its records."""
    for sectors in range(1 if failure == "kill" else 4):  # the first few sectors of each append survive
        first = Keep(lambda step, part, n=sectors: not isinstance(step.record, Append) or part <= n)  # type: ignore[misc]
        assert seen(batches(), first, failure) == ""
    monkeypatch.setattr(lsm.db.DB, "_commit", HalfBatches(lsm.db.DB._commit))
    assert "no prefix of the writes" in seen(batches(), ALL_KEPT, failure)


def test_the_log_is_removed_after_the_table_has_a_durable_name() -> None:
    """mini-lsm#124, #172: lost writes."""
    assert seen(story(), ONLY_REMOVALS) == ""
    assert seen(story('lie() @ sync_dir(site="install.dir")'), ONLY_REMOVALS)


# Manifest and folder


def test_current_moved_and_the_rename_lost() -> None:
    """leveldb#195: the old manifest was gone, and CURRENT still named it."""
    assert seen(story(max_manifest_file_size=200), ONLY_REMOVALS) == ""
    said = seen(story('lie() @ sync_dir(site="current.rename")', max_manifest_file_size=200), ONLY_REMOVALS)
    assert "CURRENT" in said or "missing" in said


def test_one_folder_sync_for_the_manifest_and_its_marker() -> None:
    """pebble#5825: the marker survived, the manifest's name did not."""
    assert seen(story(), ONLY_RENAMES) == ""
    assert "which is missing" in seen(story('lie() @ sync_dir(site="manifest.create")'), ONLY_RENAMES)


class NoFolderSync(WrappedFilesystem):
    """The folder's handle is closed: syncing it does nothing."""

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        return cast(T, None) if call.operation == "sync_dir" else super().around(call, perform, file)


def test_a_folder_sync_that_does_nothing() -> None:
    """rocksdb#10460: the table was absent."""

    def after_power_loss(wrap: Callable[[MemoryFilesystem], Any]) -> MemoryFilesystem:
        fs = MemoryFilesystem()
        with lsm.open(STORE, world=MemoryWorld(fs)):
            pass
        with lsm.open(STORE, world=MemoryWorld(wrap(fs))) as db:
            db.put(b"k", b"v")
            db.flush()
            # The rename of CURRENT survives as well, so only the names of new files are at stake.
            return fs.crash_image("power", Keep(lambda step, _: not isinstance(step.record, Create)), at=len(fs.log))

    assert reopened(after_power_loss(lambda fs: fs)) == {b"k": b"v"}
    with pytest.raises(lsm.Corruption, match="missing"):
        reopened(after_power_loss(NoFolderSync))


FAILING_EDIT = 'failsync(EIO) @ sync(site="manifest.edit", nth=1)'


def edit_not_synced() -> MemoryFilesystem:
    """A flush whose edit was written and not synced: the sync failed, and the store was given up."""
    fs = MemoryFilesystem()
    db = lsm.open(STORE, world=MemoryWorld(FaultyFilesystem(fs, FAILING_EDIT)), sync="fsync")
    db.put(b"k", b"v")
    with pytest.raises(OSError, match="Input/output error"):
        db.flush()
    assert db.get(b"k") == b"v"
    with pytest.raises(OSError, match="refuses writes"):
        db.put(b"k", b"w")
    db.close()
    return fs


@pytest.mark.parametrize("choice", [ALL_KEPT, SYNCED_ONLY])
def test_the_sync_of_the_manifest_fails_and_its_edit_is_readable_later(choice: Choice) -> None:
    """rocksdb#4990, #5379: the new table was removed, and the edit that names it found again."""
    fs = edit_not_synced()
    assert reopened(fs.crash_image("power", choice, at=len(fs.log))) == {b"k": b"v"}
    assert reopened(fs) == {b"k": b"v"}


def test_a_table_removed_after_a_failed_edit_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    install = lsm.versions.VersionSet.install

    def tidy(self: Any, edit: Any, **more: Any) -> None:
        try:
            install(self, edit, **more)
        except OSError:
            for _, table in edit.added:
                self._fs.remove(f"{STORE}/{table_name(table.number)}")
            raise

    monkeypatch.setattr(lsm.versions.VersionSet, "install", tidy)
    with pytest.raises(lsm.Corruption, match="missing"):
        reopened(edit_not_synced())


def recovered_twice() -> dict[bytes, bytes]:
    """The edit above is lost, the files stay, and the recovery crashes once on its way as well."""
    fs = edit_not_synced()
    lost = Keep(lambda step, _: not (isinstance(step.record, Append) and "MANIFEST" in step.path))
    image = fs.crash_image("power", lost, at=len(fs.log))
    with lsm.open(STORE, world=MemoryWorld(image)):
        steps = len(image.log)
    found: dict[bytes, bytes] = {}
    for step in range(steps):
        found = reopened(CrashReplay(image).advance(step).image(ALL_KEPT))
        assert found == {b"k": b"v"}, step
    return found


def test_a_recovery_uses_no_file_number_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """rocksdb#7621: as before, and a second crash: the store did not open."""
    assert recovered_twice() == {b"k": b"v"}
    monkeypatch.setattr(Listing, "number_max", 0)
    with pytest.raises(FileExistsError):
        recovered_twice()


# Tables


@pytest.mark.parametrize("seed", range(4))
def test_the_versions_of_a_key_are_never_in_two_tables_of_a_level(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """leveldb#320: a snapshot split a key over two tables, the newer one was compacted down: stale reads."""

    def life() -> None:
        fs = MemoryFilesystem(record=False)
        with lsm.open(STORE, lsm.Options.make(None, **SMALL), world=MemoryWorld(fs)) as db:
            snapshots: list[tuple[lsm.Snapshot, bytes]] = []
            for number in range(60):
                value = b"%d-" % number + b"x" * 50
                db.put(b"hot", value)
                db.put(b"k%02d" % ((number * 7 + seed) % 20), value)
                snapshots.append((db.snapshot(), value))
                if number % 20 == 19:
                    db.compact()
            for snapshot, expected in snapshots:
                assert snapshot.get(b"hot") == expected
            for level in db.version.levels[1:]:
                assert all(one.end <= two.start for one, two in pairwise(level))
            assert sum(len(level) for level in db.version.levels[1:]) > 2
            assert db.get(b"hot") == snapshots[-1][1]
            for snapshot, _ in snapshots:
                snapshot.release()

    life()
    monkeypatch.setattr(lsm.outputs, "bisect_right", lambda _keys, _key, lo, _hi: lo)  # outputs are cut anywhere
    with pytest.raises(AssertionError):  # the version's own check, before anybody reads
        life()


def deep_value_under_a_tombstone() -> bytes | None:
    fs = MemoryFilesystem(record=False)
    tiered: dict[str, Any] = {"strategy": "tiered", "tiered_min_merge_width": 2, "filter_bits_per_key": 0}
    with lsm.open(STORE, world=MemoryWorld(fs), **tiered) as db:
        db.put(b"k", b"deep" * 1000)
        db.flush()
        db.delete(b"k")
        db.flush()
        for number in range(3):
            db.put(b"other%d" % number, b"")
            db.flush()
        assert len(db.version.levels[0]) < 5, "nothing was merged above the deep value"
        return db.get(b"k")


def test_a_tombstone_stays_while_something_lies_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """pebble 225d7c2, badger#2143: the tombstone was merged above the value and dropped; the key came back."""
    assert deep_value_under_a_tombstone() is None
    monkeypatch.setattr(lsm.compact, "older_tables", lambda *_: ())
    assert deep_value_under_a_tombstone() == b"deep" * 1000


def answers_under_flips() -> Iterator[bytes | lsm.Corruption | None]:
    """One table, each byte behind its data flipped (index, filter, properties, footer): what a get of its key says."""
    fs = MemoryFilesystem(record=False)
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        for number in range(40):
            db.put(b"k%02d" % number, b"v")
        db.flush()
        (table,) = [table for _, table in db.version.tables()]
    path = f"{STORE}/{table_name(table.number)}"
    with fs.open(path) as file:
        data = file.pread(0, file.size())
    for offset in range(decode_footer(data[-FOOTER_BYTES:], path, len(data)).offsets[0], len(data)):
        with fs.create(path, exclusive=False) as file:
            file.append(data[:offset] + bytes([data[offset] ^ 0x55]) + data[offset + 1 :])
        try:
            with lsm.open(STORE, world=MemoryWorld(fs), read_only=True) as db:
                yield db.get(b"k17")
        except lsm.Corruption as error:
            yield error


def test_a_flipped_bit_in_filter_or_footer(monkeypatch: pytest.MonkeyPatch) -> None:
    """slatedb#365, pebble#4344: a false "not found"."""
    for answer in answers_under_flips():
        assert isinstance(answer, lsm.Corruption)
        assert answer.path.endswith(".sst")
    unseal = lsm.sections.unseal
    monkeypatch.setattr(lsm.sections, "unseal", lambda stored, offset: unseal(stored, offset, verify=False))
    assert None in list(answers_under_flips())


def test_the_size_is_synced_with_the_data() -> None:
    """sled#1077: a shorter file, durable reads missed. And were it so, the opening would say it."""
    assert seen(story(), NO_SIZES) == ""
    said = seen(story('lie() @ sync(site="table.finish")'), NO_SIZES)
    assert "Corruption" in said
    assert "expected" in said
