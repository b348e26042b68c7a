"""The caches: order of eviction, bounds, and what the table cache opens and closes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsm.block import Block, DecodedBlock, encode_block
from lsm.cache import BlockCache, TableCache
from lsm.entry import Columns
from lsm.filenames import table_name
from lsm.options import Options
from lsm.tables import TableStats, create_builder
from lsm.version import TableMeta
from simfs.memory import MemoryFilesystem


def block(size: int) -> Block:
    return Block(encode_block(Columns([b"k"], [257], [bytes(size)])))


OVERHEAD = block(0).charge_bytes


@given(
    st.lists(st.tuples(st.sampled_from(["get", "put", "drop"]), st.integers(0, 9), st.integers(0, 400)), max_size=80),
    st.integers(0, 2000),
)
def test_least_recently_used_goes_first(steps: list[tuple[str, int, int]], capacity: int) -> None:
    cache = BlockCache(capacity)
    model: OrderedDict[int, Block] = OrderedDict()
    hits = gets = 0
    for step, key, size in steps:
        if step == "get":
            held = cache.get(key)
            assert held is model.get(key)
            gets += 1
            if held is not None:
                hits += 1
                model.move_to_end(key)
        elif step == "drop":
            cache.drop(key)
            model.pop(key, None)
        else:
            fresh = block(size)
            cache.put(key, fresh)
            model.pop(key, None)
            if fresh.charge_bytes <= capacity:
                model[key] = fresh
                while sum(held.charge_bytes for held in model.values()) > capacity:
                    model.popitem(last=False)
        assert cache.charge_bytes == sum(held.charge_bytes for held in model.values()) <= capacity
        assert len(cache) == len(model)
    assert (cache.hits, cache.misses) == (hits, gets - hits)
    assert cache.counters()["blocks"] == len(model)


def test_decoding_a_block_changes_its_charge_and_may_evict_others() -> None:
    entries = Columns([b"%04d" % number for number in range(50)], [257] * 50, [b"v"] * 50)
    raw = Block(encode_block(entries))
    decoded = raw.decode()
    assert decoded.charge_bytes > 2 * raw.charge_bytes
    cache = BlockCache(decoded.charge_bytes + OVERHEAD - 1)
    cache.put(1, block(0))
    cache.put(2, raw)
    assert len(cache) == 2
    cache.put(2, decoded)
    assert cache.get(1) is None
    assert cache.get(2) is decoded
    assert cache.evictions == 1


def test_what_is_larger_than_the_cache_is_not_held() -> None:
    cache = BlockCache(1000)
    cache.put(1, block(100))
    cache.put(2, block(2000))
    cache.put(1, block(2000))
    assert (len(cache), cache.charge_bytes, cache.evictions) == (0, 0, 0)


class Tables:
    """Some small tables, and a cache that opens them."""

    def __init__(self, count: int, **changes: Any) -> None:
        self.fs = MemoryFilesystem(record=False)
        self.fs.mkdir("db")
        self.stats = TableStats()
        self.blocks = BlockCache(1 << 20)
        options = Options.make(block_size=64, **changes)
        self.cache = TableCache(self.fs, "db", options, self.blocks, self.stats)
        self.metas: list[TableMeta] = []
        for number in range(1, count + 1):
            builder = create_builder(
                self.fs, f"db/{table_name(number)}", number, options, log_floor=0, obsoletes=(), created_s=0
            )
            builder.add(Columns([b"%d-%d" % (number, key) for key in range(9)], [257] * 9, [b"value" * 5] * 9))
            self.metas.append(builder.finish(True))

    def read(self, number: int) -> tuple[int, bytes] | None:
        return self.cache.get(self.metas[number - 1]).get(b"%d-8" % number, 257)


def test_tables_are_opened_once() -> None:
    tables = Tables(3)
    for _ in range(4):
        for number in (1, 2, 3):
            assert tables.read(number) == (257, b"value" * 5)
    assert (tables.cache.hits, tables.cache.misses, len(tables.cache)) == (9, 3, 3)
    assert tables.cache.memory_bytes == sum(tables.cache.get(meta).memory_bytes for meta in tables.metas)
    assert tables.stats.found == 12


def test_open_tables_are_bounded_and_the_least_recently_used_is_closed() -> None:
    tables = Tables(4, open_tables_max=2)
    first = tables.cache.get(tables.metas[0])
    for number in (2, 3):
        tables.read(number)
    assert len(tables.cache) == 2
    with pytest.raises(ValueError, match="closed"):
        first._file.pread(0, 1)  # type: ignore[attr-defined]
    assert first.get(b"1-8", 257) == (257, b"value" * 5)
    tables.read(2)
    tables.read(4)  # 3 goes, 2 was used since
    misses = tables.cache.misses
    tables.read(2)
    assert tables.cache.misses == misses
    tables.read(3)
    assert tables.cache.misses == misses + 1


def test_evicting_a_table_drops_its_blocks_and_closes_it() -> None:
    tables = Tables(2)
    for number in (1, 2):
        tables.read(number)
    held = len(tables.blocks)
    tables.cache.evict(1)
    tables.cache.evict(1)
    assert len(tables.blocks) == held // 2
    assert len(tables.cache) == 1
    tables.fs.remove(f"db/{table_name(1)}")
    with pytest.raises(FileNotFoundError):
        tables.read(1)
    assert tables.read(2) == (257, b"value" * 5)


def test_close_closes_all() -> None:
    tables = Tables(3)
    readers = [tables.cache.get(meta) for meta in tables.metas]
    tables.cache.close()
    assert len(tables.cache) == 0
    for reader in readers:
        with pytest.raises(ValueError, match="closed"):
            reader._file.pread(0, 1)  # type: ignore[attr-defined]


def test_first_touch_keeps_the_block_raw_the_second_decodes_it() -> None:
    tables = Tables(1)
    kinds = []
    for _ in range(3):
        tables.read(1)
        key = tables.cache.get(tables.metas[0]).cache_keys()[-1]
        held = tables.blocks.get(key)
        assert held is not None
        kinds.append(type(held))
    assert kinds == [Block, DecodedBlock, DecodedBlock]
    assert tables.stats.blocks_read == 1


def test_a_compaction_does_not_fill_the_cache_and_is_not_counted() -> None:
    tables = Tables(1)
    reader = tables.cache.get(tables.metas[0])
    before = tables.blocks.counters()
    assert sum(len(window.keys) for window in reader.blocks(b"", None, fill_cache=False)) == 9
    assert tables.blocks.counters() == before
    assert tables.stats == TableStats()
    assert sum(len(window.keys) for window in reader.blocks(b"", None)) == 9
    assert tables.blocks.counters()["blocks"] == reader.properties.blocks
    assert tables.stats.blocks_read == reader.properties.blocks
    assert tables.stats.useful_bytes == 9 * 28
