"""Each option does what its comment says, and each bad value is refused by name."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import pytest

import lsm
from labs.crash.workload import Generator
from lsm.entry import Found
from lsm.events import BackgroundError, Compacted, Event, FilesDeleted, Flushed, LogRotated, ManifestWritten, Recovered
from lsm.filenames import table_name
from lsm.memtable import ENTRY_OVERHEAD_BYTES, HashMemtable, make_memtable
from lsm.metrics import Tally
from lsm.options import CHOICES, INTEGERS, MIB, NUMBERS, SWITCHES, Options, parse_sync
from lsm.picking import LeveledPicker, PickState, Plan
from lsm.skiplist import SkipListMemtable
from lsm.tables import TableProperties, open_table
from lsm.version import TableMeta, Version
from simfs.api import SyncKind, SyncLevel
from simfs.memory import MemoryFilesystem, MemoryRuntime, MemoryWorld
from simfs.trace import Operation, TracedFilesystem, fold
from simfs.wrapper import WrappedFilesystem

STORE = "/db"
CODECS = CHOICES["compression"]


def key_of(number: int) -> bytes:
    return b"key%06d" % number


def value_of(number: int) -> bytes:
    return b"value %d " % number * 4


def fill(db: lsm.DB, count: int, *, seed: int | None = None) -> dict[bytes, bytes]:
    """Put `count` keys, ascending, or in an order (with repetitions) drawn from `seed`."""
    draw = Generator(seed or 0)
    model: dict[bytes, bytes] = {}
    for number in range(count):
        chosen = number if seed is None else draw.below(count)
        model[key_of(chosen)] = value_of(chosen + number)
        db[key_of(chosen)] = model[key_of(chosen)]
    return model


def tables_of(db: lsm.DB) -> list[TableMeta]:
    return [table for _, table in db.version.tables()]


def properties_of(db: lsm.DB) -> list[TableProperties]:
    found = []
    for table in tables_of(db):
        path = f"{STORE}/{table_name(table.number)}"
        reader = open_table(db.world.fs, path, number=None, cache=None, verify_checksums=True)
        found.append(reader.properties)
        reader.close()
    return found


def traced(level: str = "flush", **changes: Any) -> tuple[lsm.DB, list[Operation]]:
    """A store, and all that it asks of its files once it is open."""
    operations: list[Operation] = []
    runtime = MemoryRuntime()
    fs = TracedFilesystem(MemoryFilesystem(), operations.append, runtime)
    db = lsm.open(STORE, world=MemoryWorld(fs, runtime), sync=level, **changes)
    operations.clear()
    return db, operations


# What an Options value is


def test_options_are_frozen_values() -> None:
    assert Options() == Options()
    assert Options() != Options(block_size=8192)
    assert hash(Options()) == hash(Options())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().block_size = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Options(True)  # type: ignore[call-arg]


def test_changes_are_laid_over_a_base() -> None:
    base = Options(block_size=512, strategy="tiered", sync=SyncLevel.NONE)
    made = Options.make(base, block_size=1024)
    assert made == Options(block_size=1024, strategy="tiered", sync=SyncLevel.NONE)
    assert base.block_size == 512
    assert Options.make(base) == base
    assert Options.make() == Options()
    with lsm.open(STORE, base, world=MemoryWorld()) as db:
        assert db.options is base
    with lsm.open(STORE, base, world=MemoryWorld(), block_size=1024) as db:
        assert db.options == made


@pytest.mark.parametrize("options", [{"sync": "fsync"}, 42, "leveled", False])
def test_options_of_another_type(options: Any) -> None:
    world = MemoryWorld()
    calls: list[Callable[[], object]] = [
        lambda: lsm.open(STORE, options, world=world),
        lambda: lsm.open(STORE, options, world=world, sync="none"),
        lambda: lsm.repair(STORE, options, world=world),
        lambda: Options.make(options),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"options: expected lsm.Options, got {type(options).__name__}"):
            call()
    assert not world.fs.exists(STORE)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("block_sise", "did you mean block_size?"),
        ("compresion", "did you mean compression?"),
        ("Sync", "did you mean sync?"),
        ("write_bufer_size", "did you mean write_buffer_size?"),
        ("zzz", "known are create_if_missing, error_if_exists, "),
    ],
)
def test_an_unknown_option_comes_with_a_hint(name: str, hint: str) -> None:
    world = MemoryWorld()
    calls: list[Callable[..., object]] = [
        lambda **changes: lsm.open(STORE, world=world, **changes),
        lambda **changes: lsm.repair(STORE, world=world, **changes),
        Options.make,
        Options.rocksdb,
    ]
    for call in calls:
        with pytest.raises(lsm.InvalidArgument) as caught:
            call(**{name: 1})
        assert str(caught.value).startswith(f"unknown option {name}; ")
        assert hint in str(caught.value)
    assert not world.fs.exists(STORE)


def test_rocksdbs_defaults() -> None:
    rocksdb = Options.rocksdb()
    assert rocksdb.write_buffer_size == rocksdb.target_file_size_base == 64 * MIB
    assert rocksdb.max_bytes_for_level_base == 256 * MIB
    assert rocksdb.max_bytes_for_level_multiplier == 10
    assert rocksdb.level0_file_num_compaction_trigger == 4
    assert rocksdb.num_levels == 7
    assert rocksdb.level_compaction_dynamic_level_bytes
    assert rocksdb.compaction_pri == "min_overlapping_ratio"
    assert rocksdb.compaction_bytes_max == 25 * 64 * MIB
    assert rocksdb.block_size == 4096
    assert rocksdb.memtable == "skiplist"
    assert rocksdb.filter_bits_per_key == 0
    assert rocksdb.max_manifest_file_size == 1024 * MIB
    assert Options.rocksdb(filter_bits_per_key=10, sync="none").filter_bits_per_key == 10
    with lsm.open(STORE, rocksdb, world=MemoryWorld()) as db:
        db.update({b"a": b"1", b"b": b"2"})
        db.flush()
        assert dict(db) == {b"a": b"1", b"b": b"2"}


# Bad values


class Colour(enum.Enum):
    RED = 1


WRONG_FOR_ALL: list[Any] = [float("nan"), [], (), {}, b"none", object(), Colour.RED, 1j]


def expected_of(name: str) -> tuple[str, list[Any]]:
    """What the refusal says is allowed, and values of an option that are refused."""
    if name in CHOICES:
        return f"expected one of {', '.join(CHOICES[name])}", [None, True, 0, 42, "", "No", CHOICES[name][0].upper()]
    if name in INTEGERS:
        least, most = INTEGERS[name]
        bounds = f" of at least {least}" if most is None else f" from {least} to {most}"
        beyond = [] if most is None else [most + 1]
        wrong = [None, True, str(least), float(least + 1), least + 0.5, float("inf"), least - 1, -(10**30)]
        return f"expected an integer{bounds}", wrong + beyond
    if name in NUMBERS:
        low, high = NUMBERS[name]
        bounds = f" of at least {low}" if high is None else f" from {low} to {high}"
        over = [] if high is None else [high + 0.5, float("inf")]
        return f"expected a number{bounds}", [None, True, str(low), low - 0.01, -float("inf"), *over]
    if name in SWITCHES:
        return "expected one of True, False", [None, 0, 1, 1.0, "", "no", "true"]
    others: dict[str, tuple[str, list[Any]]] = {
        "sync": ("expected one of none, flush, fsync, fullfsync", [None, True, False, 1.0, 4, -1, "", "f", "fsync "]),
        "key_range_filter": ("expected one of True, False, None", [0, 1, "off", "none"]),
        "compression_level": ("expected an integer", [True, "9", 1.5]),
        "listener": ("expected a function of one event, or None", [True, 1, "print"]),
    }
    return others[name]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Options)])
def test_every_bad_value_is_refused_by_name_with_what_may_be(name: str) -> None:
    world = MemoryWorld()
    expected, wrong = expected_of(name)
    for value in wrong + WRONG_FOR_ALL:
        with pytest.raises(lsm.InvalidArgument) as caught:
            lsm.open(STORE, world=world, **{name: value})
        assert str(caught.value).startswith(f"{name}={value!r}: {expected}"), value
    assert not world.fs.exists(STORE), "nothing was made"


@pytest.mark.parametrize("name", [*INTEGERS, *NUMBERS])
def test_the_bounds_themselves_are_allowed(name: str) -> None:
    least, most = {**INTEGERS, **NUMBERS}[name]
    for value in (least, 10**15 if most is None else most):
        changes: dict[str, Any] = {"tiered_min_merge_width": 2, "tiered_max_merge_width": 10**15, name: value}
        assert getattr(Options.make(**changes), name) == value


@pytest.mark.parametrize("name", [*INTEGERS, *NUMBERS])
def test_a_store_works_at_the_bounds(name: str) -> None:
    least, most = {**INTEGERS, **NUMBERS}[name]
    base: dict[str, Any] = {"write_buffer_size": 700, "level0_file_num_compaction_trigger": 2}
    base |= {"target_file_size_base": 600, "max_bytes_for_level_base": 900, "tiered_min_merge_width": 2}
    for value in (least, 10**15 if most is None else most):
        for strategy in ("leveled", "tiered"):
            changes = base | {"strategy": strategy, name: value}
            if name == "tiered_min_merge_width" and value > 2:
                changes["tiered_max_merge_width"] = value
            with lsm.open(STORE, world=MemoryWorld(), **changes) as db:
                model = fill(db, 60, seed=3)
                db.compact()
                assert dict(db) == model, (value, strategy)
                assert all(db[key] == model[key] for key in model)


def test_merge_widths_fit_each_other() -> None:
    with pytest.raises(lsm.InvalidArgument, match="tiered_max_merge_width=5: expected an integer of at least 6"):
        Options(tiered_min_merge_width=6, tiered_max_merge_width=5)
    assert Options(tiered_min_merge_width=6, tiered_max_merge_width=6).tiered_max_merge_width == 6


@pytest.mark.parametrize(
    ("codec", "least", "most"), [("zlib", -1, 9), ("zstd", -131_072, 22), ("lz4", 1, 12)], ids=lambda item: str(item)
)
def test_the_codecs_own_levels(codec: str, least: int, most: int) -> None:
    for level in (least - 1, most + 1, 10**30):
        with pytest.raises(lsm.InvalidArgument, match=f"compression_level={level}: .* from {least} to {most}"):
            Options(compression=codec, compression_level=level)
    for level in (least, 1, most):
        world = MemoryWorld()
        with lsm.open(STORE, world=world, compression=codec, compression_level=level, block_size=512) as db:
            model = fill(db, 40)
            db.flush()
            assert dict(db) == model
            db.verify()


@pytest.mark.parametrize("strategy", [object(), Options(), 42])
def test_what_is_no_picker(strategy: Any) -> None:
    with pytest.raises(lsm.InvalidArgument, match=r"strategy=.*or an object with pick and scores"):
        Options(strategy=strategy)


def test_a_pickers_class_is_no_picker_but_a_memtables_class_makes_memtables() -> None:
    strategy: Any = LeveledPicker
    with pytest.raises(lsm.InvalidArgument, match=r"strategy=<class .*: expected an object, not its class"):
        Options(strategy=strategy)
    assert Options(memtable=HashMemtable).memtable is HashMemtable


# The dial


def test_points_of_the_dial_by_name_number_and_value() -> None:
    for level in SyncLevel:
        for said in (level, int(level), level.name, level.name.lower(), level.name.title()):
            assert parse_sync(said) is level
            assert Options.make(sync=said).sync is level
    bad: list[Any] = [True, False, 1.0, None, "", "none ", "0", -1, 4, b"fsync", [], float("nan")]
    for wrong in bad:
        with pytest.raises(lsm.InvalidArgument, match="expected one of none, flush, fsync, fullfsync"):
            parse_sync(wrong)


@pytest.mark.parametrize("wrong", [True, False, 7, "always", 1.5])
def test_a_bad_point_in_a_write_changes_nothing(wrong: Any) -> None:
    batch = lsm.WriteBatch()
    batch.put(b"a", b"1")
    with lsm.open(STORE, world=MemoryWorld()) as db:
        calls: list[Callable[[], object]] = [
            lambda: db.put(b"a", b"1", sync=wrong),
            lambda: db.delete(b"a", sync=wrong),
            lambda: db.delete_range(b"a", b"b", sync=wrong),
            lambda: db.write(batch, sync=wrong),
            lambda: db.sync(wrong),
        ]
        for call in calls:
            with pytest.raises(lsm.InvalidArgument, match=f"sync={wrong!r}: expected one of none"):
                call()
        assert db.last_sequence == 0
        db[b"still"] = b"writable"
        assert dict(db) == {b"still": b"writable"}


@pytest.mark.parametrize("level", list(SyncLevel), ids=lambda level: level.name)
def test_sync_is_what_a_write_asks_of_the_log(level: SyncLevel) -> None:
    db, operations = traced(level.name)
    for number in range(5):
        db[key_of(number)] = b"v"
    appends = [each for each in operations if each.operation == "append" and each.path.endswith(".log")]
    kinds = [each.kind for each in operations if each.site == "wal.write"]
    assert len(appends) == (0 if level == SyncLevel.NONE else 5)
    assert kinds == {2: [SyncKind.FILE] * 5, 3: [SyncKind.FULL] * 5}.get(int(level), [])
    operations.clear()
    db.put(b"k", b"v", sync="fullfsync")
    assert [each.kind for each in operations if each.site == "wal.write"] == [SyncKind.FULL]
    db.close()


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1000, 5000])
def test_wal_buffer_bytes_gather_at_none(buffer_bytes: int) -> None:
    db, operations = traced("none", wal_buffer_bytes=buffer_bytes)
    model = fill(db, 200)
    sizes = [each.size for each in operations if each.operation == "append" and each.path.endswith(".log")]
    record_max = 100
    assert sizes
    assert all(buffer_bytes <= size < buffer_bytes + record_max for size in sizes)
    record_bytes = db.metrics().wal_bytes / 200
    assert len(sizes) == pytest.approx(200 * record_bytes / (sum(sizes) / len(sizes)), abs=2)
    after = db.world.fs.inner.crash_image("kill")  # type: ignore[attr-defined]
    with lsm.open(STORE, world=MemoryWorld(after)) as survivor:
        lost = len(model) - len(survivor)
        assert dict(survivor) == dict(list(model.items())[: len(survivor)]), "a prefix"
        assert lost * 20 <= buffer_bytes


STRUCTURAL = ("table.finish", "install.dir", "manifest.barrier", "manifest.edit")


@pytest.mark.parametrize("level", ["none", "flush", "fsync", "fullfsync"])
def test_structural_sync_floor_syncs_tables_and_manifest_at_any_dial(level: str) -> None:
    assert Options.make(sync=level).structural_floor == max(parse_sync(level), SyncLevel.FSYNC)
    db, operations = traced(level)
    for _ in range(3):
        fill(db, 20)
        db.flush()
    syncs = fold(operations).syncs
    assert {site: syncs.get(site) for site in STRUCTURAL} == dict.fromkeys(STRUCTURAL, 3)
    assert syncs.get("wal.write", 0) == (60 if level in ("fsync", "fullfsync") else 0)
    db.close()


@pytest.mark.parametrize("level", ["none", "flush"])
def test_structural_sync_follow_dial_syncs_nothing_below_fsync(level: str) -> None:
    assert Options.make(sync=level, structural_sync="follow_dial").structural_floor == parse_sync(level)
    db, operations = traced(level, structural_sync="follow_dial", max_manifest_file_size=1)
    for _ in range(6):
        fill(db, 20)
        db.flush()
    assert db.metrics().compactions + db.metrics().moves > 0
    assert db.metrics().manifest_rotations > 0
    assert fold(operations).syncs == {}
    db.put(b"k", b"v", sync="fsync")
    db.flush()
    syncs = fold(operations).syncs
    assert syncs["table.finish"] == syncs["manifest.edit"] == 1, "what was promised durable stays durable"
    db.close()


def test_structural_sync_follow_dial_at_fsync_is_the_floor() -> None:
    totals = []
    for how in CHOICES["structural_sync"]:
        db, operations = traced("fsync", structural_sync=how)
        fill(db, 20)
        db.flush()
        totals.append(fold(operations).syncs)
        db.close()
    assert totals[0] == totals[1]
    assert totals[0]["table.finish"] == 1


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("tolerate_torn_tail", [0, 1]),
        ("point_in_time", [0, 1]),
        ("skip_corrupted", [0, 1, 3, 4]),
        ("absolute", None),
    ],
)
def test_wal_recovery_mode(mode: str, found: list[int] | None) -> None:
    fs = MemoryFilesystem()
    db = lsm.open(STORE, world=MemoryWorld(fs))
    for number in range(5):
        db[key_of(number)] = value_of(number)
    after = fs.crash_image("kill")
    path = next(f"{STORE}/{name}" for name in after.listdir(STORE) if name.endswith(".log"))
    flip(after, path, value_of(2))
    if found is None:
        with pytest.raises(lsm.Corruption) as caught:
            lsm.open(STORE, world=MemoryWorld(after), wal_recovery_mode=mode)
        assert caught.value.path == path
        return
    with lsm.open(STORE, world=MemoryWorld(after), wal_recovery_mode=mode) as again:
        assert list(again) == [key_of(number) for number in found]


def flip(fs: Any, path: str, inside: bytes) -> None:
    """Damage one byte where `inside` stands in a file."""
    with fs.open(path) as file:
        content = bytearray(file.pread(0, file.size()))
    assert content.count(inside) == 1
    content[content.index(inside)] ^= 0x20
    with fs.create(path, exclusive=False) as file:
        file.append(bytes(content))


# Memtables


@pytest.mark.parametrize("size", [1, 1000, 5000])
def test_write_buffer_size_is_what_a_flush_waits_for(size: int) -> None:
    flushed: list[Flushed] = []

    def listen(event: Event) -> None:
        if isinstance(event, Flushed):
            flushed.append(event)

    with lsm.open(STORE, world=MemoryWorld(), write_buffer_size=size, strategy="none", listener=listen) as db:
        model = fill(db, 60 if size == 1 else 300)
        entry_max = max(len(key) + len(value) for key, value in model.items()) + ENTRY_OVERHEAD_BYTES
        assert len(flushed) == len(tables_of(db)) > 0
        for event in flushed:
            assert event.table is not None
            held = event.table.raw_bytes + event.entries * ENTRY_OVERHEAD_BYTES
            assert size <= held < size + entry_max
        assert db.metrics().memory.memtable_bytes < size + entry_max


def test_memtables_of_either_kind_make_the_same_tables() -> None:
    images = []
    for name, kind in (("hash", HashMemtable), ("skiplist", SkipListMemtable)):
        assert type(make_memtable(name)) is kind
        fs = MemoryFilesystem()
        with lsm.open(STORE, world=MemoryWorld(fs), memtable=name, write_buffer_size=2000) as db:
            assert type(db._memtable) is kind
            fill(db, 300, seed=5)
            db.delete_range(key_of(50), key_of(60))
            db.flush()
            assert type(db._memtable) is kind
        content = {}
        for entry in fs.listdir(STORE):
            with fs.open(f"{STORE}/{entry}") as file:
                content[entry] = file.pread(0, file.size())
        images.append(content)
    assert images[0] == images[1]


def test_a_memtable_of_ones_own() -> None:
    made: list[Counting] = []

    class Counting(HashMemtable):
        def __init__(self) -> None:
            super().__init__()
            self.gets = 0
            made.append(self)

        def get(self, key: bytes, sequence: int) -> Found | None:
            self.gets += 1
            return super().get(key, sequence)

    for factory in (Counting, lambda: Counting()):
        made.clear()
        world = MemoryWorld()
        with lsm.open(STORE, world=world, memtable=factory, write_buffer_size=1000) as db:
            model = fill(db, 100)
            assert db._memtable is made[-1]
            assert len(made) > db.metrics().flushes > 3
            assert made[-1].gets == 0
            assert db[key_of(99)] == model[key_of(99)]
            assert made[-1].gets == 1
            assert dict(db) == model
        with lsm.open(STORE, world=world) as db:
            assert dict(db) == model


# Tables


def test_table_format_decides_about_new_tables_only() -> None:
    world, model = MemoryWorld(), {}
    for turn, form in enumerate(("block", "scan", "block")):
        with lsm.open(STORE, world=world, table_format=form, strategy="none") as db:
            for number in range(30):
                model[key_of(100 * turn + number)] = db[key_of(100 * turn + number)] = b"v"
            db.flush()
            assert dict(db) == model
            magics = []
            for table in tables_of(db):
                with world.fs.open(f"{STORE}/{table_name(table.number)}") as file:
                    content = file.pread(0, file.size())
                magics.append("block" if b"lsm.blk2" in content[-100:] else "scan" if b"lsm.scn1" in content else "?")
            formats = [found.format for found in properties_of(db)]
            assert magics == formats == ["block", "scan", "block"][: turn + 1][::-1]
            db.verify()
    with lsm.open(STORE, world=world, table_format="scan", strategy="none") as db:
        db.compact()
        assert [found.format for found in properties_of(db)] == ["scan"]
        assert dict(db) == model


@pytest.mark.parametrize("form", CHOICES["table_format"])
def test_compression_is_recorded_and_reopens_under_any_other(form: str) -> None:
    world, sizes = MemoryWorld(), {}
    for codec in CODECS:
        with lsm.open(STORE, world=world, table_format=form, compression=codec, strategy="none") as db:
            model = fill(db, 300)
            db.flush()
            newest = tables_of(db)[0]
            assert properties_of(db)[0].codec == codec
            sizes[codec] = newest.size_bytes
            assert dict(db) == model
    assert [found.codec for found in properties_of(db)] == list(CODECS)[::-1]
    assert all(sizes[codec] < 0.7 * sizes["none"] for codec in CODECS if codec != "none")


def test_compression_level_is_the_codecs() -> None:
    sizes = []
    for level in (0, 1, 9):
        with lsm.open(STORE, world=MemoryWorld(), compression="zlib", compression_level=level) as db:
            fill(db, 500)
            db.flush()
            sizes.append(tables_of(db)[0].size_bytes)
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("form", CHOICES["table_format"])
def test_block_size_is_the_size_of_blocks(form: str) -> None:
    for size in (64, 512, 4096):
        with lsm.open(STORE, world=MemoryWorld(), table_format=form, block_size=size) as db:
            model = fill(db, 200)
            db.flush()
            [found] = properties_of(db)
            assert found.block_size == size
            raw_bytes = sum(len(key) + len(value) for key, value in model.items())
            assert found.raw_bytes == raw_bytes
            if form == "block":
                assert raw_bytes / (size + 100) / 2 < found.blocks < 2.2 * raw_bytes / size + 1
            assert dict(db) == model


def test_filter_bits_per_key() -> None:
    memory, positives = [], []
    for bits in (0, 2, 10, 20):
        with lsm.open(STORE, world=MemoryWorld(), filter_bits_per_key=bits) as db:
            model = fill(db, 1000)
            db.flush()
            assert float(properties_of(db)[0].filter_bits_per_key) == bits
            assert all(db[key] == value for key, value in model.items()), "no false negative"
            before = db.metrics().lookups
            assert all(db.get(key + b"x") is None for key in list(model)[:-1])
            after = db.metrics().lookups
            asked = len(model) - 1
            passed = after["filter_false_positives"] - before["filter_false_positives"]
            assert passed + after["filter_negatives"] - before["filter_negatives"] == asked
            positives.append(passed / asked)
            memory.append(db.metrics().memory.indexes_and_filters_bytes)
    assert positives[0] == 1.0
    assert 0.1 < positives[1] < 0.7
    assert positives[2] <= 0.02
    assert positives[3] <= positives[2]
    assert memory == sorted(memory)
    assert memory[2] - memory[0] >= 1000 * 10 / 8


@pytest.mark.parametrize("strategy", CHOICES["strategy"])
def test_key_range_filter_changes_probes_and_no_answer(strategy: str) -> None:
    assert Options(strategy=strategy).filters_by_range == (strategy == "leveled")
    probes, answers = {}, {}
    changes: dict[str, Any] = {"write_buffer_size": 1000, "target_file_size_base": 700, "filter_bits_per_key": 0}
    for chosen in (None, True, False):
        with lsm.open(STORE, world=MemoryWorld(), strategy=strategy, key_range_filter=chosen, **changes) as db:
            fill(db, 300)
            db.delete_range(key_of(20), key_of(30))
            db.flush()
            answers[chosen] = [db.get(key_of(number)) for number in range(-5, 305)]
            probes[chosen] = db.metrics().lookups["probes"]
            assert len(tables_of(db)) > 3
    assert answers[True] == answers[False] == answers[None]
    assert probes[True] < probes[False]
    assert probes[None] == probes[strategy == "leveled"]


@pytest.mark.parametrize("form", CHOICES["table_format"])
def test_verify_checksums_off_hands_out_what_the_file_says(form: str) -> None:
    fs = MemoryFilesystem()
    changes: dict[str, Any] = {"table_format": form, "block_cache_bytes": 0}
    with lsm.open(STORE, world=MemoryWorld(fs), **changes) as db:
        db[b"a"], db[b"b"] = b"needle in a table", b"2"
        db.flush()
        path = f"{STORE}/{table_name(tables_of(db)[0].number)}"
    flip(fs, path, b"needle in")
    with lsm.open(STORE, world=MemoryWorld(fs), **changes) as db:
        for call in (lambda: db[b"a"], lambda: list(db.scan()), db.verify):
            with pytest.raises(lsm.Corruption) as caught:
                call()
            assert caught.value.path == path
    with lsm.open(STORE, world=MemoryWorld(fs), verify_checksums=False, **changes) as db:
        assert db[b"a"] == b"Needle in a table"
        assert dict(db) == {b"a": b"Needle in a table", b"b": b"2"}
        with pytest.raises(lsm.Corruption):
            db.verify()


# Caches


@pytest.mark.parametrize("bound", [0, 1, 3000, 20_000])
def test_block_cache_bytes_is_never_exceeded(bound: int) -> None:
    with lsm.open(STORE, world=MemoryWorld(), block_cache_bytes=bound, block_size=256) as db:
        model = fill(db, 1000)
        db.flush()
        draw = Generator(1)
        for turn in range(600):
            number = draw.below(1000)
            assert db[key_of(number)] == model[key_of(number)]
            if turn % 100 == 0:
                assert len(list(db.scan(key_of(number)))) == 1000 - number
            assert db._blocks.charge_bytes <= bound
        measured = db.metrics()
        assert measured.memory.block_cache_capacity_bytes == bound
        assert measured.memory.block_cache_bytes <= bound
        if bound < 100:
            assert measured.block_cache["blocks"] == measured.block_cache["hits"] == 0
        else:
            assert measured.block_cache["blocks"] > 0
            assert measured.block_cache["evictions"] > 0


def test_a_large_block_cache_reads_each_block_once() -> None:
    with lsm.open(STORE, world=MemoryWorld(), block_cache_bytes=64 * MIB, block_size=256) as db:
        model = fill(db, 500)
        db.flush()
        for _ in range(3):
            assert all(db[key] == value for key, value in model.items())
        assert db.metrics().lookups["blocks_read"] == properties_of(db)[0].blocks


class Handles(WrappedFilesystem):
    """Counts the handles of tables that are open at once."""

    def __init__(self) -> None:
        super().__init__(MemoryFilesystem())
        self.reading = self.most = 0

    def around(self, call: Any, perform: Any, file: Any = None) -> Any:
        answer = perform(call)
        if call.path.endswith(".sst"):
            if call.operation == "open":
                self.reading += 1
                self.most = max(self.most, self.reading)
            elif call.operation == "close" and not getattr(file, "writes", False):
                self.reading -= 1
            elif call.operation == "create":
                answer.writes = True
        return answer


@pytest.mark.parametrize("bound", [1, 3, 100])
def test_open_tables_max_bounds_the_open_handles(bound: int) -> None:
    fs = Handles()
    changes: dict[str, Any] = {"strategy": "none", "write_buffer_size": 1000, "block_cache_bytes": 0}
    with lsm.open(STORE, world=MemoryWorld(fs), open_tables_max=bound, **changes) as db:
        model = fill(db, 250, seed=2)
        assert len(tables_of(db)) > 10
        assert all(db[key] == value for key, value in model.items())
        assert dict(db) == model
        assert list(db.scan(reverse=True)) == sorted(model.items(), reverse=True)
        assert db.metrics().memory.open_tables == min(bound, len(tables_of(db)))
        assert min(bound, len(tables_of(db))) <= fs.most <= bound + 1, "one more while a table is opened"
        db.compact()
        assert dict(db) == model
        assert fs.reading <= bound
    assert fs.reading == 0


# The shape of the tree


def leveled(**changes: Any) -> dict[str, Any]:
    small = {"write_buffer_size": 1500, "target_file_size_base": 1000, "max_bytes_for_level_base": 6000}
    return small | {"max_bytes_for_level_multiplier": 4, "num_levels": 5} | changes


@pytest.mark.parametrize("base", [600, 2000, 10**6])
@pytest.mark.parametrize("dynamic", [True, False])
def test_target_file_size_base_cuts_outputs(base: int, dynamic: bool) -> None:
    merged: list[Compacted] = []

    def listen(event: Event) -> None:
        if isinstance(event, Compacted) and not event.moved:
            merged.append(event)

    changes = leveled(target_file_size_base=base, level_compaction_dynamic_level_bytes=dynamic, block_size=100)
    with lsm.open(STORE, world=MemoryWorld(), listener=listen, max_compaction_bytes=10**9, **changes) as db:
        model = fill(db, 600, seed=7)
        assert dict(db) == model
    assert merged
    for event in merged:
        # Where tables of a deeper level lie ahead, an output may grow to twice that, to end where one of them begins.
        limit = base * (1 if event.output_level == 4 else 2)
        assert all(table.raw_bytes < limit + 100 for table in event.outputs)
    assert any(len(event.outputs) > 1 for event in merged) == (base < 10**6)


@pytest.mark.parametrize("multiplier", [1, 4])
def test_target_file_size_multiplier_grows_with_the_level(multiplier: int) -> None:
    changes = leveled(target_file_size_multiplier=multiplier, level_compaction_dynamic_level_bytes=False)
    with lsm.open(STORE, world=MemoryWorld(), **changes, block_size=100) as db:
        fill(db, 1500, seed=8)
        largest = [max((table.raw_bytes for table in level), default=0) for level in db.version.levels]
        assert all(largest[level] < 2 * 1000 * multiplier ** (level - 1) + 100 for level in range(1, 5))
        assert largest[3] > (0 if multiplier == 1 else 4000)


@pytest.mark.parametrize("pri", CHOICES["compaction_pri"])
@pytest.mark.parametrize("dynamic", [True, False])
def test_leveled_keeps_each_level_within_its_target(pri: str, dynamic: bool) -> None:
    changes = leveled(compaction_pri=pri, level_compaction_dynamic_level_bytes=dynamic)
    with lsm.open(STORE, world=MemoryWorld(), **changes) as db:
        model = fill(db, 1200, seed=9)
        sizes = [db.version.level_bytes(level) for level in range(5)]
        assert len(db.version.levels) == 5
        assert len(db.version.levels[0]) < 4
        assert all(row.score < 1 for row in db.metrics().levels)
        if dynamic:
            assert sizes[4] == max(sizes)
        else:
            assert sizes[1] <= 6000
            assert sizes[2] <= 6000 * 4
            assert min(sizes[1:3]) > 0 == sizes[4]
        assert bool(db._versions.cursors) == (pri == "round_robin")
        assert dict(db) == model


@pytest.mark.parametrize(("dynamic", "level"), [(True, 4), (False, 1)])
def test_dynamic_level_bytes_fill_the_last_level_first(dynamic: bool, level: int) -> None:
    with lsm.open(STORE, world=MemoryWorld(), **leveled(level_compaction_dynamic_level_bytes=dynamic)) as db:
        while not any(db.version.levels[1:]):
            fill(db, 10, seed=1)
            db.flush()
        assert [number for number in range(1, 5) if db.version.levels[number]] == [level]


@pytest.mark.parametrize("trigger", [1, 2, 6])
def test_level0_file_num_compaction_trigger(trigger: int) -> None:
    with lsm.open(STORE, world=MemoryWorld(), level0_file_num_compaction_trigger=trigger) as db:
        for flushes in range(1, 3 * trigger + 1):
            fill(db, 5)
            db.flush()
            measured = db.metrics()
            assert len(db.version.levels[0]) < trigger
            assert (measured.compactions + measured.moves > 0) == (flushes >= trigger)


def test_max_compaction_bytes_has_a_default() -> None:
    assert Options(target_file_size_base=1000).compaction_bytes_max == 25_000
    assert Options(target_file_size_base=1000, max_compaction_bytes=7).compaction_bytes_max == 7


class Watching:
    """A picker of one's own: leveled, and it keeps what it decided."""

    def __init__(self) -> None:
        self.inner = LeveledPicker()
        self.plans: list[Plan] = []

    def pick(self, version: Version, state: PickState, options: Options) -> Plan | None:
        plan = self.inner.pick(version, state, options)
        if plan is not None:
            self.plans.append(plan)
        return plan

    def scores(self, version: Version, options: Options) -> list[float]:
        return self.inner.scores(version, options)


def test_max_compaction_bytes_bounds_what_an_output_meets_below() -> None:
    outputs = {}
    for bound in (1, 10**9):
        picker, events = Watching(), list[Event]()
        changes = leveled(target_file_size_base=10**6, max_bytes_for_level_base=4000, max_compaction_bytes=bound)
        with lsm.open(STORE, world=MemoryWorld(), strategy=picker, listener=events.append, **changes) as db:
            model = fill(db, 1500, seed=4)
            assert dict(db) == model
        merges = [plan for plan in picker.plans if not plan.trivial_move]
        assert {plan.max_overlap_bytes for plan in merges} == {bound}
        outputs[bound] = [len(event.outputs) for event in events if isinstance(event, Compacted) and not event.moved]
    assert max(outputs[1]) > 1
    assert max(outputs[10**9]) == 1


def test_a_picker_of_ones_own_decides() -> None:
    picker, events = Watching(), list[Event]()
    own = leveled(strategy=picker)
    with lsm.open(STORE, world=MemoryWorld(), listener=events.append, **own) as db:
        model = fill(db, 600, seed=3)
        levels = db.version.levels
        assert dict(db) == model
    assert len(picker.plans) == sum(isinstance(event, Compacted) for event in events) > 3
    with lsm.open(STORE, world=MemoryWorld(), **leveled()) as db:
        fill(db, 600, seed=3)
        assert db.version.levels == levels, "the same decisions as by name"


class Wrong(Watching):
    """Asks for what would put new under old: the newest table of level 0 alone, past older ones."""

    def pick(self, version: Version, state: PickState, options: Options) -> Plan | None:
        runs = version.levels[0]
        return Plan("wrong", ((0, runs[0]),), 1, True, "a mistake") if len(runs) > 1 else None


def test_a_plan_that_would_reorder_history_is_refused_and_loses_nothing() -> None:
    world = MemoryWorld()
    db = lsm.open(STORE, world=world, strategy=Wrong())
    db[b"a"] = b"1"
    db.flush()
    db[b"a"] = b"2"
    with pytest.raises(AssertionError, match="older"):
        db.flush()
    assert db[b"a"] == b"2"
    with pytest.raises(lsm.InvalidArgument, match="refuses writes until it is reopened"):
        db[b"a"] = b"3"
    db.close()
    with lsm.open(STORE, world=world) as again:
        assert dict(again) == {b"a": b"2"}


def test_strategy_none_keeps_every_flush() -> None:
    with lsm.open(STORE, world=MemoryWorld(), strategy="none", write_buffer_size=1000) as db:
        model = fill(db, 300, seed=6)
        measured = db.metrics()
        assert (measured.compactions, measured.moves) == (0, 0)
        assert len(db.version.levels[0]) == measured.flushes > 8
        assert not any(db.version.levels[1:])
        assert dict(db) == model


@pytest.mark.parametrize(("least", "most"), [(2, 2), (2, 8), (3, 5), (4, 32)])
def test_tiered_merges_between_its_widths_within_level0(least: int, most: int) -> None:
    merged: list[Compacted] = []

    def listen(event: Event) -> None:
        if isinstance(event, Compacted):
            merged.append(event)

    changes: dict[str, Any] = {"tiered_min_merge_width": least, "tiered_max_merge_width": most}
    with lsm.open(
        STORE, world=MemoryWorld(), strategy="tiered", write_buffer_size=1000, listener=listen, **changes
    ) as db:
        model = fill(db, 800, seed=6)
        assert not any(db.version.levels[1:])
        assert dict(db) == model
    assert len(merged) > 2
    for event in merged:
        assert least <= len(event.inputs) <= most
        assert (event.output_level, event.moved, len(event.outputs)) == (0, False, 1)
    assert max(table.size_bytes for event in merged for table in event.outputs) > 6000, "merges of merges"


@pytest.mark.parametrize("ratio", [1, 1.5, 10, float("inf")])
def test_tiered_size_ratio_bounds_what_is_alike(ratio: float) -> None:
    merged: list[Compacted] = []

    def listen(event: Event) -> None:
        if isinstance(event, Compacted):
            merged.append(event)

    with lsm.open(STORE, world=MemoryWorld(), strategy="tiered", tiered_size_ratio=ratio, listener=listen) as db:
        for turn in range(12):
            fill(db, 5 * (1 + turn % 4) ** 2)
            db.flush()
        runs = len(db.version.levels[0])
    for event in merged:
        sizes = [table.size_bytes for _, table in event.inputs]
        assert max(sizes) <= ratio * min(sizes)
    assert runs == 12 if ratio == 1 else runs < 12 or ratio == 1.5
    assert bool(merged) == (ratio >= 10)


# The manifest


@pytest.mark.parametrize("size", [1, 2000, 4000, MIB])
def test_max_manifest_file_size_starts_a_new_one(size: int) -> None:
    fs, events = MemoryFilesystem(), list[Event]()
    changes: dict[str, Any] = {"write_buffer_size": 1000, "target_file_size_base": 5000}
    with lsm.open(STORE, world=MemoryWorld(fs), max_manifest_file_size=size, listener=events.append, **changes) as db:
        model = fill(db, 800, seed=5)
        rotations = db.metrics().manifest_rotations
        [name] = [name for name in fs.listdir(STORE) if name.startswith("MANIFEST-")]
        written = [event for event in events if isinstance(event, ManifestWritten)]
        total = snapshot_bytes = 0
        for event in written:
            due = total > max(size, 2 * snapshot_bytes)
            assert event.rotated == (due or event is written[0])
            total = event.bytes_written if event.rotated else total + event.bytes_written
            snapshot_bytes = event.bytes_written if event.rotated else snapshot_bytes
        assert 0 <= fs.stat(f"{STORE}/{name}").size - total < 50, "the head of the file, if it is not counted"
    assert rotations == sum(event.rotated for event in written) - 1
    assert (rotations == 0) == (size == MIB)
    with lsm.open(STORE, world=MemoryWorld(fs)) as db:
        assert dict(db) == model


# Observation

FOLDED = (
    *("flush_bytes", "compaction_read_bytes", "compaction_write_bytes", "moved_bytes", "manifest_bytes", "flushes"),
    *("compactions", "moves", "log_rotations", "manifest_rotations", "error"),
)
"""The counters that are folds over events alone."""


@pytest.mark.parametrize("strategy", CHOICES["strategy"])
def test_events_fold_to_the_counters_of_metrics(strategy: str) -> None:
    events: list[Event] = []
    world = MemoryWorld()
    small: dict[str, Any] = leveled(strategy=strategy, max_manifest_file_size=900, tiered_min_merge_width=2)
    for seed in (1, 2):
        events.clear()
        with lsm.open(STORE, world=world, listener=events.append, **small) as db:
            before = {table.number for table in tables_of(db)}
            fill(db, 400, seed=seed)
            db.compact()
            fill(db, 10)
            measured = db.metrics()
            tally = Tally()
            for event in events:
                tally.emit(event)
            for name in FOLDED:
                assert getattr(tally, name) == getattr(measured, name), name
            assert (
                tally.level_rows(
                    [len(level) for level in db.version.levels],
                    [db.version.level_bytes(level) for level in range(len(db.version.levels))],
                    db._jobs.scores(),
                )
                == measured.levels
            )
            assert tally.closed_log_bytes < measured.wal_bytes
            kinds = {type(event) for event in events}
            assert kinds == {Recovered, LogRotated, Flushed, Compacted, ManifestWritten, FilesDeleted}
            made = {event.table.number for event in events if isinstance(event, Flushed) and event.table}
            made |= {table.number for event in events if isinstance(event, Compacted) for table in event.outputs}
            assert {table.number for table in tables_of(db)} - before <= made


def test_a_listener_hears_why_the_store_refuses() -> None:
    events: list[Event] = []
    db = lsm.open(STORE, world=MemoryWorld(), strategy=Wrong(), listener=events.append)
    db[b"a"] = b"1"
    db.flush()
    db[b"a"] = b"2"
    with pytest.raises(AssertionError):
        db.flush()
    [heard] = [event for event in events if isinstance(event, BackgroundError)]
    assert heard.error == db.metrics().error
    assert "older" in heard.error
    db.close()
