"""Jobs against a model: whatever is picked, nobody's view changes, and garbage goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.batch import Op
from lsm.cache import BlockCache, TableCache
from lsm.compact import CompactionJob, FlushJob, JobContext, merge_tables
from lsm.entry import DELETE, KIND_MASK, RANGE_DELETE, VALUE, Columns, RangeDelete, make_tag, read_tag
from lsm.filenames import table_name
from lsm.garbage import collect
from lsm.key_ranges import KeyRanges
from lsm.memtable import make_memtable
from lsm.merge import merge_scan
from lsm.options import Options
from lsm.outputs import OutputWriter
from lsm.picking import PickState, Plan, make_picker, manual_plan
from lsm.rangedel import NOTHING, fragment
from lsm.tables import TableStats
from lsm.version import Edit, TableMeta, Version, apply
from simfs.memory import MemoryFilesystem

DIRECTORY = "db"
KEYS = [b"", b"\0", b"a", b"a\0", b"b", b"ba", b"c", b"d", b"e" * 70, b"e" * 70 + b"\0", b"f", b"\xff"]
SMALL = Options.make(
    block_size=64,
    max_bytes_for_level_base=1500,
    max_bytes_for_level_multiplier=3,
    target_file_size_base=600,
    max_compaction_bytes=2500,
    level0_file_num_compaction_trigger=3,
    tiered_max_merge_width=6,
    block_cache_bytes=0,
)


class Store:
    """Tables and a memtable, without logs and manifest; the history is the model."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.fs = MemoryFilesystem()
        self.fs.mkdir(DIRECTORY)
        self.tables = TableCache(self.fs, DIRECTORY, options, BlockCache(0), TableStats())
        self.version = Version.empty(options.num_levels)
        self.cursors: dict[int, bytes] = {}
        self.numbers = 0
        self.sequence = 0
        self.snapshots: list[int] = []
        self.history: list[tuple[int, Op]] = []
        self.memtable = make_memtable("hash")

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def write(self, *ops: Op) -> None:
        self.memtable.apply(self.sequence + 1, ops, max(self.snapshots, default=-1))
        for op in ops:
            self.sequence += 1
            self.history.append((self.sequence, op))

    def put(self, key: bytes, value: bytes) -> None:
        self.write((VALUE, key, value))

    def context(self) -> JobContext:
        return JobContext(
            fs=self.fs,
            directory=DIRECTORY,
            options=self.options,
            tables=self.tables,
            new_file_number=self.new_number,
            snapshots=tuple(sorted(set(self.snapshots))),
            version=self.version,
            sync=True,
            now_s=0,
            log_floor=1,
            pending_obsolete=(),
        )

    def flush(self) -> None:
        if self.memtable.entries or self.memtable.range_deletes:
            self.drive(FlushJob(self.context(), [self.memtable]))
            self.memtable = make_memtable("hash")

    def state(self) -> PickState:
        return PickState(cursors=self.cursors, snapshots=tuple(self.snapshots))

    def step(self) -> Plan | None:
        plan = make_picker(self.options.strategy).pick(self.version, self.state(), self.options)
        if plan is not None:
            self.run(plan)
        return plan

    def run(self, plan: Plan) -> CompactionJob:
        job = CompactionJob(self.context(), plan)
        self.drive(job)
        return job

    def drive(self, job: FlushJob | CompactionJob) -> None:
        for _ in job:
            pass
        self.install(job.edit)

    def install(self, edit: Edit) -> None:
        self.version = apply(self.version, edit)
        self.cursors.update(edit.cursors)
        self.version.check()

    def compact(self, **arguments: Any) -> None:
        self.flush()
        plan = manual_plan(self.version, self.options, **arguments)
        if plan is not None:
            self.run(plan)

    def settle(self) -> None:
        for _ in range(100):
            if self.step() is None:
                return
        raise AssertionError("the picker is never content")

    # what a reader sees, by the read path: the first hit wins, unless a range delete covers it

    def look_up(self, key: bytes, sequence: int) -> bytes | None:
        for level in self.version.levels:
            for table in level:
                if table.start <= key < table.end:
                    reader = self.tables.get(table)
                    hit = reader.get(key, read_tag(sequence))
                    covering = fragment(reader.range_deletes).covering(key, sequence)
                    if covering >= 0 and (hit is None or hit[0] >> 8 < covering):
                        return None
                    if hit is not None:
                        return hit[1] if hit[0] & KIND_MASK == VALUE else None
        return None

    def expected(self, key: bytes, sequence: int) -> bytes | None:
        value = None
        for at, (kind, first, second) in self.history:
            if at <= sequence:
                if kind == RANGE_DELETE:
                    value = None if first <= key < second else value
                elif first == key:
                    value = second if kind == VALUE else None
        return value

    def model(self, sequence: int) -> dict[bytes, bytes]:
        """Every live key at a sequence."""
        live: dict[bytes, bytes] = {}
        for at, (kind, first, second) in self.history:
            if at > sequence:
                break
            if kind == VALUE:
                live[first] = second
            elif kind == DELETE:
                live.pop(first, None)
            else:
                live = {key: value for key, value in live.items() if not first <= key < second}
        return live

    def scan(self, sequence: int) -> dict[bytes, bytes]:
        """Every live key at a sequence, by a scan."""
        readers = [self.tables.get(table) for _, table in self.version.tables()]
        deletes = fragment(row for reader in readers for row in reader.range_deletes)
        windows = merge_scan([reader.blocks(b"", None) for reader in readers], deletes, sequence)
        return {key: value for keys, values in windows for key, value in zip(keys, values, strict=True)}

    def readers(self) -> list[int]:
        return [*self.snapshots, self.sequence]

    def verify(self) -> None:
        """Every key as every reader sees it (the memtable must be flushed)."""
        for key in KEYS:
            for sequence in self.readers():
                assert self.look_up(key, sequence) == self.expected(key, sequence), (key, sequence)

    def entries(self) -> list[tuple[bytes, int, bytes]]:
        return [
            row
            for _, table in self.version.tables()
            for columns in self.tables.get(table).blocks(b"", None)
            for row in zip(*columns, strict=True)
        ]


Step = tuple[str, bytes, bytes]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from([b"", b"x" * 40, b"y" * 200])),
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from([b"", b"x" * 40, b"y" * 200])),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just(b"")),
        st.tuples(st.just("delete_range"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
        st.tuples(st.sampled_from(["flush", "flush", "step", "snapshot", "release"]), st.just(b""), st.just(b"")),
        st.tuples(st.just("compact"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
    ),
    min_size=10,
    max_size=70,
)


def play(store: Store, steps: list[Step]) -> None:
    for name, first, second in steps:
        match name:
            case "put":
                store.put(first, second)
            case "delete":
                store.write((DELETE, first, b""))
            case "delete_range":
                if first < second:
                    store.write((RANGE_DELETE, first, second))
            case "snapshot":
                store.snapshots.append(store.sequence)
            case "release":
                del store.snapshots[: 1 + len(store.snapshots) // 2]
            case "flush":
                store.flush()
                store.verify()
            case "compact":
                store.compact(start=first, stop=second if first < second else None)
                store.verify()
            case _:
                store.flush()
                if store.step() is not None:
                    store.verify()


CONFIGURATIONS: list[dict[str, Any]] = [
    {"strategy": "tiered"},
    {"strategy": "none"},
    {"level_compaction_dynamic_level_bytes": False},
    {"compaction_pri": "min_overlapping_ratio"},
    {"compaction_pri": "round_robin"},
    {"compaction_pri": "oldest_first"},
    {"compaction_pri": "largest_first"},
]


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=lambda changes: "-".join(map(str, changes.values())))
@given(steps=STEPS)
@settings(max_examples=40, deadline=None)
def test_no_reader_ever_sees_a_difference(changes: dict[str, Any], steps: list[Step]) -> None:
    store = Store(Options.make(SMALL, **changes))
    play(store, steps)
    store.flush()
    store.settle()
    store.verify()
    store.compact()
    store.verify()
    assert_no_garbage(store)
    store.snapshots.clear()
    store.compact()
    store.verify()
    assert_no_garbage(store)
    assert not any(table.deletes or table.range_deletes for _, table in store.version.tables())


def assert_no_garbage(store: Store) -> None:
    """After a full compaction each entry is what some reader sees, or a delete with something under it."""
    rows = sorted(store.entries(), key=lambda row: (row[0], row[1]))
    for i, (key, tag, value) in enumerate(rows):
        if tag & KIND_MASK == VALUE:
            assert value in [store.expected(key, sequence) for sequence in store.readers()], (key, tag)
        else:
            assert i > 0
            assert rows[i - 1][0] == key, "a delete with nothing under it"
    stripes = len(set(store.snapshots)) + 1
    assert len(rows) <= stripes * len({key for key, _, _ in rows})


@pytest.mark.parametrize("strategy", ["leveled", "tiered"])
def test_many_windows(strategy: str) -> None:
    """20,000 writes in windows of the usual size: versions, deletes and range deletes across their borders."""
    options = Options.make(
        strategy=strategy,
        max_bytes_for_level_base=200_000,
        target_file_size_base=30_000,
        compression="zlib",
        block_size=1024,
    )
    store = Store(options)
    state = 1
    for i in range(20_000):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        key = b"key%05d" % ((state >> 33) % 6000)
        if state >> 60 == 0:
            store.write((DELETE, key, b""))
        elif i % 997 == 0:
            store.write((RANGE_DELETE, key, key + b"~"), (RANGE_DELETE, key[:-2], key[:-2] + b"~"))
        else:
            store.put(key, key * (1 + i % 5))
        if i in (3_000, 11_111):
            store.snapshots.append(store.sequence)
        if i % 2_500 == 2_499:
            store.flush()
            store.settle()
    for step in ("settled", "compacted", "released"):
        if step == "released":
            store.snapshots.clear()
        if step != "settled":
            store.compact()
        for sequence in store.readers():
            seen = store.scan(sequence)
            assert seen == store.model(sequence), (step, sequence)
            assert len(seen) > 1000
    assert len(store.entries()) == len(store.model(store.sequence))


# one defect each


def test_a_tombstone_stays_while_a_deeper_table_overlaps() -> None:
    """A deep value under a tombstone that was merged above it (pebble 225d7c2, badger#2143)."""
    store = Store(SMALL)
    store.put(b"a", b"1")
    store.put(b"k", b"deep")
    store.put(b"z", b"1")
    store.compact()
    (deep,) = store.version.levels[6]
    for value in (b"2", b"3"):
        store.put(b"k", value)
        store.flush()
    store.write((DELETE, b"k", b""))
    store.flush()
    upper = store.version.levels[0]
    store.run(Plan("manual", tuple((0, table) for table in upper), 5))
    assert [(tag & KIND_MASK, key) for key, tag, _ in store.entries() if key == b"k"] == [(DELETE, b"k"), (VALUE, b"k")]
    assert deep in store.version.levels[6]
    store.verify()
    store.compact()
    assert store.look_up(b"k", store.sequence) is None
    assert [key for key, _, _ in store.entries()] == [b"a", b"z"]


def test_a_tombstone_stays_in_level_0_while_level_1_overlaps() -> None:
    """A store that was leveled once: merging all runs of level 0 leaves the deeper levels alone."""
    store = Store(Options.make(SMALL, strategy="tiered"))
    store.put(b"b", b"deep")
    store.put(b"k", b"deep")
    store.flush()
    (table,) = store.version.levels[0]
    store.run(Plan("manual", ((0, table),), 1, trivial_move=True))
    store.write((DELETE, b"k", b""))
    store.flush()
    store.write((RANGE_DELETE, b"a", b"c"))
    store.flush()
    store.run(Plan("tiered", tuple((0, table) for table in store.version.levels[0]), 0))
    (merged,) = store.version.levels[0]
    assert (merged.deletes, merged.range_deletes) == (1, 1)
    store.verify()


def test_versions_of_one_key_stay_in_one_output() -> None:
    """leveldb#320: a snapshot splits a key over two tables, and only the newer one is compacted down."""
    store = Store(Options.make(SMALL, target_file_size_base=200))
    for i in range(8):
        store.put(b"k", b"%d" % i * 150)
        store.snapshots.append(store.sequence)
    store.put(b"a", b"x" * 150)
    store.put(b"z", b"x" * 150)
    store.compact()
    tables = store.version.levels[6]
    assert len(tables) >= 2
    assert sum(table.smallest is not None and table.smallest <= b"k" < table.end for table in tables) == 1
    store.verify()


def test_a_range_delete_is_clipped_to_tiles_and_kept_for_a_snapshot() -> None:
    store = Store(SMALL)
    for key in KEYS:
        store.put(key, b"v" * 200)
    store.flush()
    store.snapshots.append(store.sequence)
    store.write((RANGE_DELETE, b"a", b"f"))
    store.put(b"c", b"new")
    store.compact()
    tables = store.version.levels[6]
    assert len(tables) >= 3
    assert sum(table.range_deletes for table in tables) >= 3
    rows = [row for table in tables for row in store.tables.get(table).range_deletes]
    assert fragment(rows) == fragment([RangeDelete(b"a", b"f", rows[0].sequence)])
    store.verify()


def test_a_range_delete_without_entries_is_a_table_and_is_cut_by_grandparents() -> None:
    store = Store(Options.make(SMALL, target_file_size_base=300))
    for i in range(30):
        store.put(b"%02d" % i, b"v" * 100)
    store.compact()
    grandparents = store.version.levels[6]
    assert len(grandparents) > 5
    limit = 2 * max(table.size_bytes for table in grandparents)
    store.write((RANGE_DELETE, b"00", b"99"))
    store.flush()
    (level0,) = store.version.levels[0]
    plan = Plan("manual", ((0, level0),), 5, grandparents=grandparents, max_overlap_bytes=limit)
    store.run(plan)
    tiles = store.version.levels[5]
    assert len(tiles) >= 3
    assert all(tile.entries == 0 for tile in tiles)
    assert [tile.range_start for tile in tiles[1:]] == [tile.range_end for tile in tiles[:-1]]
    for tile in tiles:
        met = [table for table in grandparents if table.overlaps(tile.start, tile.end)]
        assert sum(table.size_bytes for table in met) <= limit
    assert all(store.look_up(b"%02d" % i, store.sequence) is None for i in range(30))
    store.compact()
    assert list(store.version.tables()) == []


def test_outputs_end_where_tables_of_the_level_below_begin() -> None:
    keys = [b"%04d" % i for i in range(100)]
    starts = range(0, 100, 23)
    below = [TableMeta(900 + i, 10, 1, 0, 0, b"%04d" % i, b"%04d" % (i + 22), 1, 1) for i in starts]
    written = write(
        keys,
        lambda context: OutputWriter(context, NOTHING, target_bytes=1500, grandparents=below, max_overlap_bytes=10_000),
        7,
    )
    assert [table.smallest for table in written.tables] == [b"%04d" % i for i in starts]


@pytest.mark.parametrize("border", range(20, 90, 3))
def test_an_output_that_begins_inside_a_grandparent_counts_it(border: int) -> None:
    keys = [b"%04d" % i for i in range(100)]
    below = [
        TableMeta(900, 800, 1, 0, 0, b"0000", b"%04d" % (border - 1), 1, 1),
        TableMeta(901, 800, 1, 0, 0, b"%04d" % border, b"9999", 1, 1),
    ]
    written = write(
        keys,
        lambda context: OutputWriter(context, NOTHING, target_bytes=500, grandparents=below, max_overlap_bytes=1500),
        100,
    )
    assert len(written.tables) > 3
    assert all(not (table.start < b"%04d" % border < table.end) for table in written.tables)


def test_a_flush_of_what_deletes_itself_leaves_no_table() -> None:
    store = Store(SMALL)
    store.put(b"k", b"v")
    store.write((DELETE, b"k", b""), (RANGE_DELETE, b"a", b"z"))
    store.flush()
    assert list(store.version.tables()) == []
    assert store.fs.listdir(DIRECTORY) == []


def test_a_trivial_move_touches_no_file() -> None:
    store = Store(SMALL)
    for i in range(3):
        store.put(b"%d" % i, b"v")
        store.flush()
    before, records = store.fs.listdir(DIRECTORY), store.version.levels[0]
    plan = store.step()
    assert plan is not None
    assert plan.trivial_move
    assert store.fs.listdir(DIRECTORY) == before
    assert sorted(store.version.levels[6], key=lambda table: -table.number) == list(records)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_sequential_fill_is_written_once(dynamic: bool) -> None:
    """Engine write amplification 1.0: no table is ever rewritten, however deep the tree grows."""
    options = Options.make(SMALL, level_compaction_dynamic_level_bytes=dynamic, max_bytes_for_level_base=4000)
    store = Store(options)
    moves = 0
    for i in range(300):
        store.put(b"%06d" % i, b"v" * 100)
        if i % 5 == 4:
            store.flush()
            while (plan := store.step()) is not None:
                assert plan.trivial_move, plan
                moves += 1
    assert sum(bool(level) for level in store.version.levels) >= 3
    assert moves < 90  # several tables go in one edit
    assert len(store.fs.listdir(DIRECTORY)) == 60


def test_an_abandoned_job_leaves_no_file() -> None:
    store = Store(SMALL)
    for key in KEYS:
        store.put(key, b"v" * 300)
        store.flush()
    before = store.fs.listdir(DIRECTORY)
    inputs = tuple((0, table) for table in store.version.levels[0])
    job = CompactionJob(store.context(), Plan("manual", inputs, 6, target_file_size=600))
    next(iter(job))
    assert store.fs.listdir(DIRECTORY) != before
    job.abandon()
    assert store.fs.listdir(DIRECTORY) == before


def test_the_last_output_names_its_siblings() -> None:
    """So that repair can tell a finished job from one that was cut off."""
    store = Store(SMALL)
    for key in KEYS:
        store.put(key, b"v" * 300)
    store.flush()
    (source,) = store.version.levels[0]
    job = store.run(Plan("manual", ((0, source),), 6, target_file_size=600))
    numbers = tuple(table.number for table in job.outputs)
    properties = [store.tables.get(table).properties for table in job.outputs]
    assert len(numbers) >= 3
    assert [stored.siblings for stored in properties] == [()] * (len(numbers) - 1) + [numbers]
    assert {stored.job for stored in properties} == {numbers[0]}
    assert {stored.obsoletes for stored in properties} == {(source.number,)}


def test_a_job_runs_once() -> None:
    store = Store(SMALL)
    store.put(b"k", b"v")
    job = FlushJob(store.context(), [store.memtable])
    list(job)
    with pytest.raises(AssertionError, match="once"):
        list(job)


def test_counts_and_hull() -> None:
    store = Store(Options.make(SMALL, strategy="tiered"))
    for i in range(4):
        store.put(b"k", b"%d" % i)
        store.put(b"%d" % i, b"v")
        store.flush()
    inputs = store.version.levels[0]
    job = store.run(Plan("tiered", tuple((0, table) for table in inputs), 0))
    (output,) = store.version.levels[0]
    assert (output.seq_min, output.seq_max) == (1, 8)
    assert (job.entries_read, job.entries_written) == (8, 5)
    assert job.bytes_read == sum(table.size_bytes for table in inputs)
    assert job.bytes_written == output.size_bytes
    assert job.edit.removed == tuple((0, table.number) for table in inputs)


def test_several_memtables_flush_into_one_table() -> None:
    store = Store(SMALL)
    old, new = make_memtable("hash"), make_memtable("skiplist")
    old.put(b"a", 1, b"old", -1)
    old.put(b"b", 2, b"old", -1)
    new.put(b"a", 3, b"new", -1)
    new.delete_range(b"b", b"c", 4)
    store.drive(FlushJob(store.context(), [old, new]))
    assert store.entries() == [(b"a", make_tag(3, VALUE), b"new")]


def test_merge_tables_keeps_every_version_and_drops_twins() -> None:
    store = Store(SMALL)
    for value in (b"1", b"2", b"3"):
        store.put(b"k", value)
        store.flush()
    tables = list(store.version.levels[0])
    merged = merge_tables(store.context(), tables)
    again = merge_tables(store.context(), [*tables, merged])
    assert (again.entries, again.seq_min, again.seq_max) == (3, 1, 3)


def test_a_failed_merge_of_tables_leaves_no_file() -> None:
    store = Store(SMALL)
    store.put(b"k", b"v")
    store.flush()
    (table,) = store.version.levels[0]
    before = store.fs.listdir(DIRECTORY)
    with pytest.raises(FileNotFoundError):
        merge_tables(store.context(), [table, replace(table, number=99)])
    assert store.fs.listdir(DIRECTORY) == before


# garbage collection of one window, against the definition


ROWS = st.lists(st.tuples(st.sampled_from(KEYS[:6]), st.booleans()), max_size=25)
RANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS), st.integers(1, 30)), max_size=4)


@given(ROWS, RANGES, st.sets(st.integers(0, 30), max_size=3), RANGES)
def test_collect_keeps_what_readers_see_and_no_more(
    entries: list[tuple[bytes, bool]],
    ranges: list[tuple[bytes, bytes, int]],
    snapshots: set[int],
    deeper: list[tuple[bytes, bytes, int]],
) -> None:
    deletes = [RangeDelete(*item) for item in ranges if item[0] < item[1]]
    older = KeyRanges.of((start, end) for start, end, _ in deeper)
    rows = sorted(
        (
            (key, make_tag(sequence, VALUE if is_value else DELETE))
            for sequence, (key, is_value) in enumerate(entries, 1)
        ),
        key=lambda row: (row[0], -row[1]),
    )
    values = [b"%d" % (tag >> 8) if tag & KIND_MASK == VALUE else b"" for _, tag in rows]
    window = Columns([key for key, _ in rows], [tag for _, tag in rows], values)
    kept = collect(window, fragment(deletes), sorted(snapshots), older)
    readers = [*sorted(snapshots), 99]

    def seen(columns: Columns, key: bytes, reader: int) -> int:
        """The tag that a reader at `reader` meets first; -1: none, or hidden by a range delete."""
        found = [tag for k, tag in zip(columns.keys, columns.tags, strict=True) if k == key and tag >> 8 <= reader]
        tag = max(found, default=-1)
        covered = any(d.start <= key < d.end and tag >> 8 < d.sequence <= reader for d in deletes)
        return -1 if covered else tag

    wanted = set()
    for key in dict.fromkeys(window.keys):
        tags = [seen(window, key, reader) for reader in readers]
        while tags and (tags[0] == -1 or tags[0] & KIND_MASK == DELETE) and key not in older:
            tags.pop(0)  # the oldest readers see nothing, and nothing lies deeper
        wanted |= {(key, tag) for tag in tags if tag != -1}
    assert set(zip(kept.keys, kept.tags, strict=True)) == wanted


def test_collect_hands_back_a_window_without_garbage() -> None:
    window = Columns([b"a", b"b"], [make_tag(1, VALUE), make_tag(2, VALUE)], [b"1", b"2"])
    assert collect(window, NOTHING, [], KeyRanges()) is window


# cutting outputs


@dataclass
class Written:
    """What `OutputWriter` makes of a stream."""

    store: Store
    tables: list[TableMeta]


def write(keys: Sequence[bytes], make: Callable[[JobContext], OutputWriter], chunk: int) -> Written:
    store = Store(Options.make(SMALL, compression="none"))
    writer = make(store.context())
    for i in range(0, len(keys), chunk):
        part = list(keys[i : i + chunk])
        tags = [make_tag(i + n + 1, VALUE) for n in range(len(part))]
        writer.add(Columns(part, tags, [b"v" * 50] * len(part)))
    writer.finish()
    return Written(store, writer.outputs)


@given(
    st.integers(0, 120),
    st.integers(1, 50),
    st.sampled_from([0, 500, 2000]),
    st.lists(st.tuples(st.integers(0, 120), st.integers(1, 40), st.integers(100, 2000)), max_size=8),
    st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60), st.integers(1, 9)), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_outputs_tile_the_key_space(
    entries: int,
    chunk: int,
    target: int,
    grandparents: list[tuple[int, int, int]],
    ranges: list[tuple[int, int, int]],
) -> None:
    below: list[TableMeta] = []
    at = 0
    for number, (gap, width, size) in enumerate(grandparents):
        start, end = at + gap // 10, at + gap // 10 + width
        below.append(
            TableMeta(
                1000 + number, size, 0, 0, 1, None, None, 1, 1, range_start=b"%04d" % start, range_end=b"%04d" % end
            )
        )
        at = end
    deletes = fragment(RangeDelete(b"%04d" % start, b"%04d" % (start + width), seq) for start, width, seq in ranges)
    keys = [b"%04d" % i for i in range(entries)]
    limit = 1500
    written = write(
        keys,
        lambda context: OutputWriter(
            context, deletes, target_bytes=target, grandparents=below, max_overlap_bytes=limit
        ),
        chunk,
    )
    stored = [
        key for table in written.tables for c in written.store.tables.get(table).blocks(b"", None) for key in c.keys
    ]
    assert stored == keys
    rows = [row for table in written.tables for row in written.store.tables.get(table).range_deletes]
    assert fragment(rows) == deletes
    for left, right in zip(written.tables, written.tables[1:], strict=False):
        assert left.end <= right.start
    for table in written.tables:
        met = [other.size_bytes for other in below if other.overlaps(table.start, table.end)]
        assert sum(met) <= limit or len(met) == 1
        assert not target or table.raw_bytes < target * (2.2 if below else 1.2) + 200
    assert written.store.fs.listdir(DIRECTORY) == sorted(table_name(table.number) for table in written.tables)
