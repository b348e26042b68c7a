"""Events: one for each thing that happened, in order, with numbers that agree with the files."""

from __future__ import annotations

import dataclasses

import pytest

import lsm
from labs.crash.workload import SMALL, STORE, Generator
from lsm.events import (
    BackgroundError,
    Compacted,
    Event,
    FilesDeleted,
    Flushed,
    LogRotated,
    ManifestWritten,
    Recovered,
)
from lsm.version import Edit, Version, apply
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem, MemoryRuntime, MemoryWorld


class SlowRuntime(MemoryRuntime):
    """Time passes with each look at the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def now_ns(self) -> int:
        self.looks += 1
        return self.looks


def busy(events: list[Event], fs: MemoryFilesystem, **changes: object) -> lsm.DB:
    options = lsm.Options.make(None, **SMALL, listener=events.append, **changes)
    db = lsm.open(STORE, options, world=MemoryWorld(fs, SlowRuntime()))
    draw = Generator(5)
    for number in range(400):
        key = b"k%03d" % draw.below(120)
        if draw.below(5):
            db[key] = b"v%d-" % number + b"x" * draw.below(40)
        else:
            db.delete(key)
    return db


@pytest.mark.parametrize("strategy", ["leveled", "tiered"])
def test_folding_the_events_gives_the_version(strategy: str) -> None:
    events: list[Event] = []
    fs = MemoryFilesystem()
    with busy(events, fs, strategy=strategy) as db:
        version = Version.empty(4)
        sizes: dict[int, int] = {}
        for event in events:
            if isinstance(event, Flushed) and event.table is not None:
                version = apply(version, Edit(added=((0, event.table),)))
                assert event.bytes_written == event.table.size_bytes
            elif isinstance(event, Compacted):
                added = tuple((event.output_level, table) for table in event.outputs)
                removed = tuple((level, table.number) for level, table in event.inputs)
                version = apply(version, Edit(added=added, removed=removed))
                written = sum(table.size_bytes for table in event.outputs)
                read = sum(table.size_bytes for _, table in event.inputs)
                assert (event.bytes_read, event.bytes_written) == ((0, 0) if event.moved else (read, written))
                assert event.entries_written <= event.entries_read
                assert event.reason
            if isinstance(event, Flushed | Compacted | Recovered):
                assert event.start_ns < event.end_ns
            version.check()
            sizes |= {table.number: table.size_bytes for _, table in version.tables()}
        assert version == db.version
        deleted = [name for event in events if isinstance(event, FilesDeleted) for name in event.names]
        assert len(deleted) == len(set(deleted))
        gone = {f"{number:06d}.sst" for number in sizes} - {f"{table.number:06d}.sst" for _, table in version.tables()}
        assert set(deleted) == gone
        assert not gone & set(fs.listdir(STORE))


def test_the_first_events_of_a_store() -> None:
    events: list[Event] = []
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs), listener=events.append) as db:
        log, manifest, recovered = events
        assert log == LogRotated(1, 1, 0)
        assert isinstance(manifest, ManifestWritten)
        assert manifest.rotated
        assert isinstance(recovered, Recovered)
        assert recovered.manifest_number == manifest.number
        assert (recovered.log_records, recovered.last_sequence, recovered.dropped, recovered.orphans) == (0, 0, (), ())
        db[b"a"] = b"1"
        assert len(events) == 3, "no event per operation"
        db.flush()
        assert [type(event) for event in events[3:]] == [LogRotated, Flushed, ManifestWritten]


def test_recovered_tells_what_was_found_and_swept() -> None:
    fs = MemoryFilesystem()
    db = lsm.open(STORE, world=MemoryWorld(fs))
    for number in range(5):
        db[b"k%d" % number] = b"v"
    image = fs.crash_image("kill")
    image.create(f"{STORE}/000099.sst").close()
    events: list[Event] = []
    with lsm.open(STORE, world=MemoryWorld(image), listener=events.append) as again:
        (recovered,) = [event for event in events if isinstance(event, Recovered)]
        assert recovered.log_records == 5
        assert recovered.last_sequence == 5 == again.last_sequence
        assert "000099.sst" in recovered.orphans
        assert not set(recovered.orphans) & set(image.listdir(STORE))
        assert sum(isinstance(event, Flushed) for event in events) == 1


def test_a_failure_is_told_once() -> None:
    events: list[Event] = []
    fs = MemoryFilesystem()
    lsm.open(STORE, world=MemoryWorld(fs)).close()
    faulty = FaultyFilesystem(fs, "error(ENOSPC) @ append(path='*.log', nth=3)")
    with lsm.open(STORE, world=MemoryWorld(faulty), listener=events.append) as db:
        written = 0
        for number in range(5):
            try:
                db[b"k%d" % number] = b"v"
                written += 1
            except OSError:
                pass
        assert 0 < written < 5
        told = [event for event in events if isinstance(event, BackgroundError)]
        assert len(told) == 1
        assert "No space left" in told[0].error
        assert db.metrics().error == told[0].error


def test_events_are_frozen() -> None:
    event = LogRotated(1, 2, 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.number = 7  # type: ignore[misc]


def test_a_listener_changes_nothing() -> None:
    loud: list[Event] = []
    fs = MemoryFilesystem()
    busy(loud, fs).close()
    silent = MemoryFilesystem()
    options = lsm.Options.make(None, **SMALL)
    with lsm.open(STORE, options, world=MemoryWorld(silent, SlowRuntime())) as db:
        draw = Generator(5)
        for number in range(400):
            key = b"k%03d" % draw.below(120)
            if draw.below(5):
                db[key] = b"v%d-" % number + b"x" * draw.below(40)
            else:
                db.delete(key)
    assert fs.tree() == silent.tree()
    assert len(loud) > 50
