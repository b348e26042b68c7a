"""Figures: computed by hand, reconciled with the files, and compared with published tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

import lsm
from labs.crash.workload import SMALL, STORE, Generator
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from lsm.events import BackgroundError, Compacted, Event, Flushed, LogRotated, ManifestWritten
from lsm.metrics import LevelTally, Ratio, Tally, level_table
from lsm.version import TableMeta
from simfs.memory import MemoryFilesystem, MemoryRuntime, MemoryWorld
from simfs.trace import Operation, TracedFilesystem, fold

GB = 10**6  # the unit of the published table does not matter


def table(number: int, size_bytes: int, entries: int = 1) -> TableMeta:
    return TableMeta(
        number=number,
        size_bytes=size_bytes,
        entries=entries,
        deletes=0,
        range_deletes=0,
        smallest=b"a",
        largest=b"b",
        seq_min=number,
        seq_max=number,
    )


def compacted(
    inputs: list[tuple[int, TableMeta]], outputs: list[TableMeta], level: int, *, moved: bool = False
) -> Compacted:
    return Compacted(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        output_level=level,
        moved=moved,
        reason="test",
        bytes_read=0 if moved else sum(meta.size_bytes for _, meta in inputs),
        bytes_written=0 if moved else sum(meta.size_bytes for meta in outputs),
        entries_read=0 if moved else sum(meta.entries for _, meta in inputs),
        entries_written=0 if moved else sum(meta.entries for meta in outputs),
        start_ns=10,
        end_ns=1_000_000_010,
    )


# Folds


def test_the_per_level_table_by_hand() -> None:
    tally = Tally()
    tally.emit(Flushed(table(1, 100, 8), 10, 100, 0, 500_000_000))
    tally.emit(Flushed(table(2, 60, 5), 5, 60, 0, 500_000_000))
    tally.emit(Flushed(None, 3, 0, 0, 0))  # nothing was left
    tally.emit(compacted([(0, table(1, 100, 8)), (0, table(2, 60, 5))], [table(3, 150, 11)], 1))
    tally.emit(compacted([(1, table(3, 150, 11)), (2, table(9, 400, 30))], [table(4, 250, 20), table(5, 250, 20)], 2))
    tally.emit(compacted([(2, table(4, 250, 20))], [table(4, 250, 20)], 3, moved=True))
    level0, level1, level2, level3, total = tally.level_rows([0, 0, 1, 1], [0, 0, 250, 250], [0.0, 0.1, 0.9])
    assert [row.level for row in (level0, level1, level2, level3, total)] == ["L0", "L1", "L2", "L3", "Sum"]
    assert (level0.write_bytes, level0.w_amp, level0.comp_count, level0.keys_in, level0.keys_dropped) == (
        160,
        1.0,
        3,
        18,
        5,
    )
    assert (level1.rn_bytes, level1.rnp1_bytes, level1.write_bytes, level1.wnew_bytes) == (160, 0, 150, 150)
    assert level1.w_amp == 150 / 160
    assert (level2.rn_bytes, level2.rnp1_bytes, level2.read_bytes, level2.wnew_bytes) == (150, 400, 550, 100)
    assert level2.w_amp == 500 / 150
    assert (level2.keys_in, level2.keys_dropped, level2.comp_seconds, level2.score) == (41, 1, 1.0, 0.9)
    assert (level3.moved_bytes, level3.write_bytes, level3.w_amp, level3.comp_count, level3.score) == (
        250,
        0,
        0.0,
        0,
        0.0,
    )
    assert (total.write_bytes, total.moved_bytes, total.files, total.size_bytes) == (810, 250, 2, 500)
    assert total.w_amp == 810 / 160  # flush + compaction ÷ flushed
    assert (tally.flushes, tally.compactions, tally.moves) == (3, 2, 1)
    assert (tally.flush_bytes, tally.compaction_read_bytes, tally.compaction_write_bytes) == (160, 710, 650)


def test_a_merge_within_level_0_counts_against_the_flushed() -> None:
    tally = Tally()
    for number in range(1, 5):
        tally.emit(Flushed(table(number, 100), 1, 100, 0, 0))
    tally.emit(compacted([(0, table(number, 100)) for number in range(1, 5)], [table(9, 380)], 0))
    level0, total = tally.level_rows([1], [380], [0.1])
    assert level0.w_amp == total.w_amp == (400 + 380) / 400
    assert (level0.rn_bytes, level0.rnp1_bytes) == (0, 400)


@pytest.mark.parametrize(("flushes", "written", "expected"), [(50, 69, "2.380"), (200, 407, "3.035")])
def test_tiered_figures_of_the_mini_lsm_book(flushes: int, written: int, expected: str) -> None:
    """Its figure counts tables: (flushed + rewritten) ÷ flushed, which is the engine's write amplification."""
    tally = Tally()
    for number in range(flushes):
        tally.emit(Flushed(table(number + 1, 1), 1, 1, 0, 0))
    tally.emit(compacted([(0, table(999, written))], [table(1000, written)], 0))
    assert f"{tally.level_rows([1], [1], [0.0])[-1].w_amp:.3f}" == expected


def test_the_per_level_table_of_the_tuning_guide() -> None:
    """RocksDB's tuning guide: L1 165.5 / 32.8 = 5.1, L2 7.6, L3 8.0; sum 718.7 / 32.786 = 21.9."""
    published = {  # Rn, Rnp1, Write, Wnew, W-Amp; in GB
        1: (32.8, 130.9, 165.5, 34.6, 5.1),
        2: (34.4, 228.4, 262.7, 34.3, 7.6),
        3: (31.7, 228.1, 254.1, 26.0, 8.0),
        4: (2.0, 2.0, 3.6, 1.6, 1.8),
    }
    tally = Tally(flush_bytes=int(32.786 * GB))
    tally.levels[0] = LevelTally(write_bytes=int(32.8 * GB))
    for level, (rn, rnp1, write, _, _) in published.items():
        tally.levels[level] = LevelTally(rn_bytes=int(rn * GB), rnp1_bytes=int(rnp1 * GB), write_bytes=int(write * GB))
    rows = tally.level_rows([2, 22, 227, 1634, 1819], [15, 125, 1276, 12794, 15132], [0.5, 1.0, 1.0, 1.0, 0.1])
    for row, (level, (_, _, _, wnew, w_amp)) in zip(rows[1:], published.items(), strict=False):
        assert row.level == f"L{level}"
        assert row.w_amp == pytest.approx(w_amp, abs=0.06)  # the published parts are rounded: 165.5 / 32.8 is 5.05
        assert round(row.wnew_bytes / GB, 1) == wnew
    assert rows[-1].level == "Sum"
    assert round(rows[-1].write_bytes / GB, 1) == 718.7
    assert round(rows[-1].w_amp, 1) == 21.9
    assert rows[-1].files == 3704


def test_the_text_is_aligned_and_has_rocksdbs_columns() -> None:
    tally = Tally()
    tally.emit(Flushed(table(1, 3 << 20, 123_456), 123_456, 3 << 20, 0, 2_340_000_000))
    text = level_table(tally.level_rows([1, 0], [3 << 20, 0], [0.25, 0.0]))
    head, *rows = text.splitlines()
    columns = (
        "Level Files Size(MB) Score Read(MB) Rn(MB) Rnp1(MB) Write(MB) Wnew(MB) Moved(MB) W-Amp Comp(cnt) Comp(sec) "
        "KeyIn KeyDrop"
    )
    assert head.split() == columns.split()
    assert {len(row) for row in rows} == {len(head)}
    expected = "L0 1 3.0 0.25 0.0 0.0 0.0 3.0 3.0 0.0 1.0 1 2.34 123456 0"
    assert rows[0].split() == expected.split()
    assert len(rows) == 2


def test_other_events() -> None:
    heard: list[Event] = []
    tally = Tally(heard.append)
    events: list[Event] = [LogRotated(3, 1, 40), ManifestWritten(4, 70, True), ManifestWritten(4, 7, False)]
    events += [BackgroundError("first"), BackgroundError("second")]
    for event in events:
        tally.emit(event)
    assert heard == events
    assert (tally.closed_log_bytes, tally.log_rotations) == (40, 1)
    assert (tally.manifest_bytes, tally.manifest_rotations) == (77, 1)
    assert tally.error == "first"


def test_ratios() -> None:
    assert Ratio(6, 4, "a ÷ b").value == 1.5
    for unknown in (Ratio(6, 0, ""), Ratio(6, None, ""), Ratio(None, 4, "")):
        assert unknown.value is None
    assert Ratio(6, 4, "a ÷ b").to_json() == {"value": 1.5, "numerator": 6, "denominator": 4, "of": "a ÷ b"}


def test_user_bytes_are_counted_as_handed_in() -> None:
    tally = Tally()
    ops: list[Op] = [(VALUE, b"key", b"value"), (DELETE, b"gone", b""), (RANGE_DELETE, b"a", b"zz")]
    tally.wrote(ops)
    assert (tally.writes, tally.user_bytes) == (3, 8 + 4 + 3)


# Stores


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("table_format", ["block", "scan"])
@pytest.mark.parametrize("count", [30, 700, 5000])
def test_a_sequential_fill_rewrites_nothing(dynamic: bool, table_format: str, count: int) -> None:
    options = lsm.Options(
        write_buffer_size=16_000,
        target_file_size_base=12_000,
        max_bytes_for_level_base=30_000,
        max_bytes_for_level_multiplier=4,
        level_compaction_dynamic_level_bytes=dynamic,
        table_format=table_format,
    )
    with lsm.open(STORE, options, world=MemoryWorld(MemoryFilesystem(record=False))) as db:
        for number in range(count):
            db[b"key-%06d" % number] = b"value" * 6
        db.flush()
        metrics = db.metrics()
        assert metrics.write_amp.engine.value == 1.0
        assert metrics.compactions == metrics.compaction_write_bytes == 0
        assert metrics.moves > 0 or count < 5000
        if count == 5000:
            assert metrics.flushes > 10
            assert len([row for row in metrics.levels if row.level != "Sum" and row.files]) >= 3
        assert len(db) == count


def random_store(fs: Any, *, ops: int = 600, **changes: Any) -> lsm.DB:
    db = lsm.open(STORE, lsm.Options.make(None, **{**SMALL, **changes}), world=MemoryWorld(fs))
    draw = Generator(21)
    for number in range(ops):
        key = b"k%03d" % draw.below(150)
        if draw.below(6):
            db[key] = b"%d-" % number + b"x" * draw.below(50)
        elif draw.below(5):
            db.delete(key)
        else:
            db.delete_range(key, key + b"~")
    return db


@pytest.mark.parametrize("strategy", ["leveled", "tiered", "none"])
@pytest.mark.parametrize("sync", ["none", "flush", "fsync"])
def test_engine_bytes_and_device_bytes_reconcile(strategy: str, sync: str) -> None:
    """Sum of levels = totals = sum of events = bytes appended to the files of each kind; log and manifest too."""
    operations: list[Operation] = []
    events: list[Event] = []
    inner = MemoryFilesystem()
    fs = TracedFilesystem(inner, operations.append, MemoryRuntime())
    with random_store(fs, ops=300, strategy=strategy, sync=sync):
        pass
    operations.clear()
    with random_store(fs, strategy=strategy, sync=sync, listener=events.append) as db:
        db.compact()
        db[b"one"] = b"more"
        db.sync()
        metrics = db.metrics()
        appended = fold(operations).appended_bytes
        assert appended[".sst"] == metrics.flush_bytes + metrics.compaction_write_bytes
        assert appended[".log"] == metrics.wal_bytes
        assert appended["MANIFEST"] == metrics.manifest_bytes
        flushed = sum(event.bytes_written for event in events if isinstance(event, Flushed))
        merged = sum(event.bytes_written for event in events if isinstance(event, Compacted))
        assert (flushed, merged) == (metrics.flush_bytes, metrics.compaction_write_bytes)
        *rows, total = metrics.levels
        for name in ("files", "size_bytes", "read_bytes", "write_bytes", "moved_bytes", "comp_count", "keys_in"):
            assert sum(getattr(row, name) for row in rows) == getattr(total, name), name
        assert total.write_bytes == metrics.flush_bytes + metrics.compaction_write_bytes
        assert total.read_bytes == metrics.compaction_read_bytes
        assert total.moved_bytes == metrics.moved_bytes
        assert total.comp_count == metrics.flushes + metrics.compactions
        assert total.files == len(list(db.version.tables()))
        assert metrics.write_amp.engine.value == pytest.approx(total.w_amp)
        assert metrics.write_amp.logical.numerator == sum(appended[kind] for kind in (".sst", ".log", "MANIFEST"))
        assert metrics.write_amp.logical.denominator == metrics.user_bytes
        assert metrics.compactions > 0
        assert metrics.write_amp.device.value is None  # nobody counts on a memory disk


def test_the_real_disk_counts_device_bytes(tmp_path: Any) -> None:
    with lsm.open(tmp_path / "store", sync="fsync") as db:
        for number in range(100):
            db[b"k%d" % number] = b"v" * 100
        device = db.metrics().write_amp.device
        assert device.denominator == db.metrics().user_bytes
        assert "whole process" in device.of
        assert device.numerator is None or device.numerator >= 0


def test_the_three_write_amplifications_by_hand() -> None:
    fs = MemoryFilesystem()
    with lsm.open(STORE, world=MemoryWorld(fs), level0_file_num_compaction_trigger=99) as db:
        for _ in range(2):
            for number in range(50):
                db[b"k%02d" % number] = b"value"
            db.flush()
        first, second = (meta.size_bytes for _, meta in db.version.tables())
        db.compact()
        merged = sum(meta.size_bytes for _, meta in db.version.tables())
        metrics = db.metrics()
        assert metrics.user_bytes == 2 * 50 * (3 + 5)
        assert metrics.write_amp.engine.numerator == first + second + merged
        assert metrics.write_amp.engine.denominator == first + second
        assert metrics.write_amp.engine.value == pytest.approx(1.5, abs=0.01)
        assert metrics.write_amp.logical.numerator == (
            first + second + merged + metrics.wal_bytes + metrics.manifest_bytes
        )
        last = metrics.levels[-2]
        assert (last.rn_bytes, last.rnp1_bytes, last.w_amp) == (first + second, 0, merged / (first + second))
        assert last.keys_dropped == 50


def test_space_amplification_is_exact() -> None:
    fs = MemoryFilesystem()
    with random_store(fs, strategy="tiered") as db:
        assert db.metrics().space_amp.value is None
        space = db.metrics(exact_space=True).space_amp
        assert space.denominator == sum(len(key) + len(value) for key, value in db.scan())
        live = [name for name in fs.listdir(STORE) if name.endswith((".sst", ".log")) or name.startswith("MANIFEST")]
        assert space.numerator == sum(fs.stat(f"{STORE}/{name}").size for name in live)
        assert space.value == space.numerator / space.denominator > 1
        assert (db.metrics().snapshots, db.metrics().pinned_versions) == (0, 0)


def test_an_empty_store_divides_by_nothing() -> None:
    with lsm.open(STORE, world=MemoryWorld()) as db:
        metrics = db.metrics(exact_space=True)
        assert metrics.write_amp.engine.value is None
        assert metrics.write_amp.logical.value is None
        assert metrics.space_amp.value is None
        assert metrics.read_amp.value is None
        assert [row.level for row in metrics.levels] == ["Sum"]
        json.dumps(metrics.to_json())


def test_memory_is_counted_and_bounded() -> None:
    options = lsm.Options(
        block_size=512, block_cache_bytes=20_000, open_tables_max=3, strategy="none", write_buffer_size=30_000
    )
    with lsm.open(STORE, options, world=MemoryWorld(MemoryFilesystem(record=False))) as db:
        for number in range(4000):
            db[b"key-%05d" % (number * 7919 % 4000)] = b"v" * 20
        for number in range(0, 4000, 3):
            assert db[b"key-%05d" % number] == b"v" * 20
        memory = db.metrics().memory
        assert len(list(db.version.tables())) > 3
        assert memory.open_tables == 3
        assert 0 < memory.block_cache_bytes <= memory.block_cache_capacity_bytes == 20_000
        sizes = sorted(table.size_bytes for _, table in db.version.tables())
        assert 0 < memory.indexes_and_filters_bytes < sum(sizes[-3:])
        assert 0 < memory.memtable_bytes <= 40_000
        assert db.metrics().block_cache["evictions"] > 0


def test_counters_of_lookups() -> None:
    with lsm.open(STORE, world=MemoryWorld(), block_size=256, block_cache_bytes=0) as db:
        for number in range(200):
            db[b"k%03d" % number] = b"v" * 20
        db.flush()
        assert db.metrics().lookups["probes"] == 0
        for number in range(0, 200, 4):
            assert db[b"k%03d" % number]
        found = db.metrics()
        assert found.lookups["probes"] == found.lookups["found"] == 50
        assert found.lookups["blocks_read"] >= 50 / 2
        assert found.lookups["filter_negatives"] == found.lookups["filter_false_positives"] == 0
        assert found.read_amp.denominator is not None
        assert 50 * 20 <= found.read_amp.denominator <= 50 * 24
        assert found.read_amp.numerator is not None
        assert found.read_amp.numerator >= 50 * 20
        for number in range(0, 200, 4):
            assert db.get(b"k%03d-" % number) is None
        missed = db.metrics()
        absent = missed.lookups["probes"] - 50
        assert 45 <= absent <= 50  # a key beyond the table's range is not asked for
        assert missed.lookups["filter_negatives"] + missed.lookups["filter_false_positives"] == absent
        assert missed.lookups["filter_false_positives"] <= 5
        assert missed.read_amp.denominator == found.read_amp.denominator


def test_warm_lookups_read_nothing() -> None:
    operations: list[Operation] = []
    fs = TracedFilesystem(MemoryFilesystem(), operations.append, MemoryRuntime())
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        for number in range(200):
            db[b"k%03d" % number] = b"v" * 20
        db.flush()
        for _ in range(2):
            for number in range(200):
                assert db[b"k%03d" % number]
        operations.clear()
        before = db.metrics().lookups["blocks_read"]
        for number in range(200):
            assert db[b"k%03d" % number]
        assert operations == []
        assert db.metrics().lookups["blocks_read"] == before
        db.get(b"k000")
        assert db.metrics().block_cache["hits"] > 200


def test_a_cold_lookup_is_one_read() -> None:
    operations: list[Operation] = []
    fs = TracedFilesystem(MemoryFilesystem(), operations.append, MemoryRuntime())
    with lsm.open(STORE, world=MemoryWorld(fs), block_size=256, block_cache_bytes=0) as db:
        for number in range(200):
            db[b"k%03d" % number] = b"v" * 20
        db.flush()
        assert db[b"k000"]
        operations.clear()
        assert db[b"k150"]
        assert [op.operation for op in operations] == ["pread"]


def test_everything_goes_through_json() -> None:
    with random_store(MemoryFilesystem()) as db:
        metrics = db.metrics(exact_space=True)
        plain = json.loads(json.dumps(metrics.to_json()))
        assert plain["write_amp"]["engine"]["value"] == pytest.approx(metrics.write_amp.engine.value)
        assert plain["levels"][-1]["level"] == "Sum"
        assert plain["memory"]["open_tables"] == metrics.memory.open_tables
        assert plain["space_amp"]["denominator"] == metrics.space_amp.denominator
        assert plain["last_sequence"] == db.last_sequence
        assert len(metrics.table().splitlines()) == len(metrics.levels) + 1


def test_the_window_begins_with_the_opening() -> None:
    fs = MemoryFilesystem()
    random_store(fs).close()
    with lsm.open(STORE, world=MemoryWorld(fs), read_only=True) as db:
        metrics = db.metrics()
        assert (metrics.writes, metrics.user_bytes, metrics.flushes, metrics.wal_bytes) == (0, 0, 0, 0)
        assert metrics.levels[-1].files == len(list(db.version.tables())) > 0
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        metrics = db.metrics()
        assert (metrics.log_rotations, metrics.manifest_rotations) == (0, 0)
        assert metrics.writes == 0
