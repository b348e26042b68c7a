"""What only v1 does: it reads from the beginning, and nothing else. The rest is in `test_table.py`."""

from __future__ import annotations

import pytest

from lsm.entry import Columns
from lsm.errors import Corruption
from lsm.options import Options
from lsm.scan_table import ScanTable, decode_records, encode_records
from lsm.tables import TableReader, TableStats, create_builder, open_table
from simfs.memory import MemoryFilesystem

COUNT = 1000


def keys() -> list[bytes]:
    return [b"%06d" % (2 * number) for number in range(COUNT)]


def scan_table(stats: TableStats) -> TableReader:
    fs = MemoryFilesystem(record=False)
    chosen = Options.make(table_format="scan", block_size=1024)
    builder = create_builder(fs, "t", 1, chosen, log_floor=0, obsoletes=(), created_s=0)
    builder.add(Columns(keys(), [257] * COUNT, [b"value"] * COUNT))
    builder.finish(False)
    return open_table(fs, "t", number=1, cache=None, verify_checksums=True, stats=stats)


def test_a_lookup_reads_all_chunks_up_to_its_key() -> None:
    stats = TableStats()
    reader = scan_table(stats)
    assert isinstance(reader, ScanTable)
    chunks = reader.properties.blocks
    assert chunks == 25
    read = []
    for key in (keys()[0], keys()[COUNT // 2], keys()[-1]):
        before = stats.blocks_read
        assert reader.get(key, 257) == (257, b"value")
        read.append(stats.blocks_read - before)
    assert read == [1, 13, 25]
    before = stats.blocks_read
    assert reader.get(b"000001", 1 << 60) is None
    assert stats.blocks_read - before == 1, "it must stop where the key would have stood"
    assert reader.get(b"9", 1 << 60) is None
    assert (stats.found, stats.false_positives, stats.filter_negatives) == (3, 2, 0)
    assert reader.may_contain(b"nowhere")


def test_a_range_stops_at_its_end() -> None:
    stats = TableStats()
    reader = scan_table(stats)
    assert [key for window in reader.blocks(keys()[3], keys()[5]) for key in window.keys] == keys()[3:5]
    assert stats.blocks_read == 1
    assert [key for window in reader.blocks_reverse(keys()[-3], None) for key in window.keys] == keys()[-3:]
    assert stats.blocks_read == 2
    assert stats.useful_bytes == 5 * 11


def test_a_compaction_is_not_counted_and_nothing_is_cached() -> None:
    stats = TableStats()
    reader = scan_table(stats)
    assert sum(len(window.keys) for window in reader.blocks(b"", None, fill_cache=False)) == COUNT
    assert sum(len(window.keys) for window in reader.blocks_reverse(b"", None, fill_cache=False)) == COUNT
    assert stats == TableStats()
    assert reader.cache_keys() == []


def test_golden_records() -> None:
    columns = Columns([b"", b"key"], [0x100, 0x201], [b"", b"value"])
    raw = encode_records(columns)
    assert raw.hex(" ") == (
        "00 00 00 00 00 00 00 01 00 00 00 00 00 00 03 00 05 00 00 00 01 02 00 00 00 00 00 00 6b 65 79 76 61 6c 75 65"
    )
    assert decode_records(raw) == columns


def test_cut_records_are_refused() -> None:
    raw = encode_records(Columns([b"key"], [257], [b"value"]))
    for cut in range(1, len(raw)):
        with pytest.raises(ValueError, match="record"):
            decode_records(raw[:cut])


def test_a_length_beyond_the_data_is_damage() -> None:
    fs = MemoryFilesystem(record=False)
    builder = create_builder(
        fs, "t", 1, Options.make(table_format="scan"), log_floor=0, obsoletes=(), created_s=0
    )  # fmt: skip
    builder.add(Columns([b"k"], [257], [b"v"]))
    builder.finish(False)
    with fs.open("t") as file:
        data = file.pread(0, file.size())
    fs.remove("t")
    with fs.create("t") as file:
        file.append(b"\xff" + data[1:])
    reader = open_table(fs, "t", number=1, cache=None, verify_checksums=True)
    for read in (reader.verify, lambda: reader.get(b"k", 257), lambda: list(reader.blocks_reverse(b"", None))):
        with pytest.raises(Corruption, match="chunk of 255 bytes: only 25 are left"):
            read()
