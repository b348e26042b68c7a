"""Tables of both formats: round trips against a model, golden bytes, properties, damage of every kind.

What only v1 does is in `test_scan_table.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lsm.cache import BlockCache
from lsm.entry import DELETE, VALUE, Columns, RangeDelete, make_tag, read_tag
from lsm.errors import Corruption, MissingExtra
from lsm.options import Options
from lsm.sections import FOOTER_BYTES, MAGIC_BLOCK, decode_footer
from lsm.tables import TableReader, TableStats, create_builder, open_table
from lsm.version import TableMeta
from simfs.memory import MemoryFilesystem

PATH = "000007.sst"
FORMATS = ["block", "scan"]
CODECS = ["none", "zlib", "zstd", "lz4"]
KEYS = st.one_of(
    st.sampled_from([b"", b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", b"\xff", b"common/prefix/", b"common/prefix/\0"]),
    st.integers(0, 40).map(lambda number: b"common/prefix/%02d" % number),
    st.binary(max_size=3),
)
SEQUENCES = st.integers(0, 60)
VALUES = st.one_of(st.none(), st.just(b""), st.binary(max_size=8), st.just(b"value" * 12))


class Content(NamedTuple):
    entries: Columns
    deletes: list[RangeDelete]


@st.composite
def contents(draw: st.DrawFn) -> Content:
    versions = draw(st.dictionaries(st.tuples(KEYS, SEQUENCES), VALUES, max_size=60))
    if draw(st.booleans()):  # many versions of one key, over several blocks
        key = draw(KEYS)
        versions |= {(key, sequence): b"version %d" % sequence for sequence in range(draw(st.integers(1, 40)))}
    rows = sorted(versions.items(), key=lambda row: (row[0][0], -row[0][1]))
    deletes = draw(
        st.lists(st.builds(RangeDelete, KEYS, KEYS, SEQUENCES), min_size=0 if rows else 1, max_size=4, unique=True)
    )
    return Content(
        Columns(
            [key for (key, _), _ in rows],
            [make_tag(sequence, DELETE if value is None else VALUE) for (_, sequence), value in rows],
            [value or b"" for _, value in rows],
        ),
        sorted(deletes, key=lambda row: (row.start, -row.sequence)),
    )


def options(form: str, codec: str = "none", block_size: int = 128, **changes: Any) -> Options:
    return Options.make(table_format=form, compression=codec, block_size=block_size, **changes)


def build(fs: MemoryFilesystem, content: Content, chosen: Options, path: str = PATH, window: int = 7) -> TableMeta:
    builder = create_builder(fs, path, 7, chosen, log_floor=3, obsoletes=(2, 5), created_s=1_700_000_000)
    keys, tags, values = content.entries
    builder.add_range_deletes(content.deletes[:1])
    for at in range(0, len(keys), window):
        builder.add(Columns(keys[at : at + window], tags[at : at + window], values[at : at + window]))
    builder.add_range_deletes(content.deletes[1:])
    assert builder.entries == len(keys)
    return builder.finish(True)


def opened(fs: MemoryFilesystem, path: str = PATH, cache: BlockCache | None = None) -> TableReader:
    return open_table(fs, path, number=7, cache=cache, verify_checksums=True)


def image(content: Content, chosen: Options) -> bytes:
    fs = MemoryFilesystem(record=False)
    build(fs, content, chosen)
    with fs.open(PATH) as file:
        return file.pread(0, file.size())


def from_bytes(data: bytes) -> MemoryFilesystem:
    fs = MemoryFilesystem(record=False)
    with fs.create(PATH) as file:
        file.append(data)
    return fs


def rows(windows: Iterator[Columns] | list[Columns]) -> list[tuple[bytes, int, bytes]]:
    found = []
    for window in windows:
        assert window.keys, "an empty window"
        found += list(zip(*window, strict=True))
    return found


def newest(entries: Columns, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
    return next(
        ((tag, value) for held, tag, value in zip(*entries, strict=True) if held == key and tag <= tag_max), None
    )


SMALL = Content(
    Columns(
        [b"", b"a", b"a", b"a\0", b"b"],
        [make_tag(9, VALUE), make_tag(8, DELETE), make_tag(3, VALUE), make_tag(4, VALUE), make_tag(5, VALUE)],
        [b"empty key", b"", b"old", b"", b"value" * 8],
    ),
    [RangeDelete(b"b", b"c", 7), RangeDelete(b"b", b"bb", 2)],
)
ONLY_DELETES = Content(Columns([], [], []), [RangeDelete(b"", b"\xff", 4)])


# round trips


@pytest.mark.parametrize("form", FORMATS)
@given(
    content=contents(),
    codec=st.sampled_from(CODECS),
    block_size=st.sampled_from([64, 200, 4096]),
    window=st.integers(1, 9),
)
@example(content=SMALL, codec="none", block_size=64, window=1)
@example(content=ONLY_DELETES, codec="none", block_size=64, window=1)
def test_what_goes_in_comes_out(form: str, content: Content, codec: str, block_size: int, window: int) -> None:
    fs = MemoryFilesystem(record=False)
    meta = build(fs, content, options(form, codec, block_size), window=window)
    reader = opened(fs)
    assert rows(reader.blocks(b"", None)) == list(zip(*content.entries, strict=True))
    assert rows(list(reader.blocks_reverse(b"", None))[::-1]) == list(zip(*content.entries, strict=True))
    assert reader.range_deletes == content.deletes
    assert reader.verify() == len(content.entries.keys) == meta.entries
    assert reader.meta() == meta
    assert meta.size_bytes == fs.stat(PATH).size
    reader.close()


@pytest.mark.parametrize("form", FORMATS)
@given(
    content=contents(), start=KEYS, stop=st.none() | KEYS, others=st.lists(KEYS, max_size=4), sequence=SEQUENCES,
    cache_bytes=st.sampled_from([0, 1500, 1 << 20]), fill=st.booleans(),
)  # fmt: skip
def test_lookups_and_ranges_against_brute_force(
    form: str, content: Content, start: bytes, stop: bytes | None, others: list[bytes], sequence: int,
    cache_bytes: int, fill: bool,
) -> None:  # fmt: skip
    fs = MemoryFilesystem(record=False)
    build(fs, content, options(form, block_size=64))
    cache = BlockCache(cache_bytes)
    reader = opened(fs, cache=cache)
    wanted = [row for row in zip(*content.entries, strict=True) if start <= row[0] and (stop is None or row[0] < stop)]
    for _ in range(3):  # raw, decoded, and as a scan left it
        for key in [*content.entries.keys, *others]:
            assert reader.get(key, read_tag(sequence)) == newest(content.entries, key, read_tag(sequence))
            if key in content.entries.keys:
                assert reader.may_contain(key)
        assert rows(reader.blocks(start, stop, fill_cache=fill)) == wanted
        assert rows(list(reader.blocks_reverse(start, stop, fill_cache=fill))[::-1]) == wanted
    assert cache.charge_bytes <= cache_bytes


@pytest.mark.parametrize("form", FORMATS)
@given(content=contents(), windows=st.tuples(st.integers(1, 70), st.integers(1, 70)))
def test_bytes_do_not_depend_on_the_windows(form: str, content: Content, windows: tuple[int, int]) -> None:
    fs = MemoryFilesystem(record=False)
    images = []
    for window in windows:
        build(fs, content, options(form), path=f"{window}", window=window) if not fs.exists(f"{window}") else None
        with fs.open(f"{window}") as file:
            images.append(file.pread(0, file.size()))
    assert images[0] == images[1]


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_of_many_blocks(form: str) -> None:
    keys = [b"%08d" % (3 * number) for number in range(20_000)]
    entries = Columns(
        keys, [make_tag(number, VALUE) for number in range(20_000)], [b"v%d" % number for number in range(20_000)]
    )
    fs = MemoryFilesystem(record=False)
    build(fs, Content(entries, []), options(form, block_size=4096), window=2048)
    stats = TableStats()
    reader = open_table(fs, PATH, number=7, cache=BlockCache(1 << 24), verify_checksums=True, stats=stats)
    assert reader.verify() == 20_000
    for number in range(0, 20_000, 1999):
        assert reader.get(keys[number], 1 << 60) == (make_tag(number, VALUE), b"v%d" % number)
        assert reader.get(keys[number] + b"x", 1 << 60) is None
    assert stats.found == 11
    assert stats.filter_negatives + stats.false_positives == 11
    some = rows(reader.blocks(keys[5000], keys[15_000]))
    assert [key for key, _, _ in some] == keys[5000:15_000]
    if form == "block":
        assert reader.memory_bytes > 20_000 * 10 / 8


@pytest.mark.parametrize("form", FORMATS)
def test_a_value_larger_than_a_block_and_the_longest_key(form: str) -> None:
    entries = Columns([b"a", b"b" * 65_535, b"c"], [257, 257, 257], [b"x", bytes(300_000), b"z"])
    fs = MemoryFilesystem(record=False)
    build(fs, Content(entries, []), options(form, block_size=64))
    reader = opened(fs, cache=BlockCache(1000))
    assert reader.verify() == 3
    assert reader.get(b"b" * 65_535, 1 << 60) == (257, bytes(300_000))
    assert rows(reader.blocks(b"b", None)) == list(zip(*entries, strict=True))[1:]


# what is stored, and how

GOLDEN_BLOCK = (
    "05000000000002020400000000000000000500000034000000000001000200040005006161610062010900000008000001030000"
    "0104000001050000090009000c000c003400656d707479206b65796f6c6476616c756576616c756576616c756576616c75657661"
    "6c756576616c756576616c756576616c75657a00000000128beee401000000000000000400000000000000000100000000000000"
    "62000000001e00000000777625db02000000010000020400000000000000000000000003000000620f0700000f02000001000300"
    "636262290000000013f8b49d1500000000000202040000000000000000af000000200000000a00100015001e0025002c003f0045"
    "0048004f0058005e00670074007d008800910098009f00a700af00626c6f636b5f73697a65626c6f636b73636f64656363726561"
    "7465645f7364656c65746573656e747269657366696c7465725f626974735f7065725f6b6579666f726d61746a6f626c61726765"
    "73746c6f675f666c6f6f726e756d6265726f62736f6c6574657372616e67655f64656c6574657372616e67655f656e6472616e67"
    "655f73746172747261775f62797465737365715f6d61787365715f6d696e7369626c696e6773736d616c6c657374000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000200030007000c000d000e000f00140015001600170018001a00"
    "1b001c001d001e001f002000200020008001016e6f6e6580e2cfaa06010530626c6f636b07620307020502636239090290010000"
    "0079f552618300000000000000270000000000000000000000000000003200000000000000990100000000000001000128a898dc"
    "6c736d2e626c6b32"
)
GOLDEN_SCAN = (
    "880000000000090000000109000000000000656d707479206b657901000000000000080000000000006101000300000001030000"
    "00000000616f6c640200000000000104000000000000610001002800000001050000000000006276616c756576616c756576616c"
    "756576616c756576616c756576616c756576616c756576616c75657f00000000e13cfc4102000000010000020400000000000000"
    "000000000003000000620f0700000f02000001000300636262290000000011e1babf1500000000000202040000000000000000af"
    "0000001f0000000a00100015001e0025002c003f00450048004f0058005e00670074007d008800910098009f00a700af00626c6f"
    "636b5f73697a65626c6f636b73636f646563637265617465645f7364656c65746573656e747269657366696c7465725f62697473"
    "5f7065725f6b6579666f726d61746a6f626c6172676573746c6f675f666c6f6f726e756d6265726f62736f6c6574657372616e67"
    "655f64656c6574657372616e67655f656e6472616e67655f73746172747261775f62797465737365715f6d61787365715f6d696e"
    "7369626c696e6773736d616c6c657374000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000002000300"
    "07000c000d000e000f001300140015001600170019001a001b001c001d001e001f001f001f008001016e6f6e6580e2cfaa060105"
    "307363616e0762030702050263623909028f01000000627355f58c00000000000000000000000000000000000000000000003200"
    "0000000000009801000000000000010001229ddd716c736d2e73636e31"
)
GOLDEN_FOOTER = (
    "830000000000000027000000000000004f0000000000000032000000000000009a0100000000000001000152f55a526c736d2e626c6b32"
)
GOLDEN_FILTER_SHA256 = "6f1354136b89be3b315763bf50b466adb4db8e4222d0f2b6e08f12473b2a7fad"


def test_golden_table() -> None:
    assert image(SMALL, options("block", filter_bits_per_key=0)).hex() == GOLDEN_BLOCK
    assert image(SMALL, options("scan", filter_bits_per_key=0)).hex() == GOLDEN_SCAN


def test_golden_filter_section_and_footer() -> None:
    data = image(SMALL, options("block"))
    footer = decode_footer(data[-FOOTER_BYTES:], PATH, len(data))
    assert data[-FOOTER_BYTES:].hex() == GOLDEN_FOOTER
    at = footer.offsets[1]
    assert hashlib.sha256(data[at : at + footer.filter_bytes]).hexdigest() == GOLDEN_FILTER_SHA256
    assert data[-8:] == MAGIC_BLOCK


@pytest.mark.parametrize("form", FORMATS)
def test_properties_keep_everything(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    builder = create_builder(
        fs,
        PATH,
        7,
        options(form, "zlib", filter_bits_per_key=12.5),
        log_floor=3,
        obsoletes=(2, 300),
        created_s=99,
        job=6,
    )
    builder.add(SMALL.entries)
    builder.add_range_deletes(SMALL.deletes)
    meta = builder.finish(False, sequences=(1, 20), siblings=(6, 7))
    stored = opened(fs).properties
    assert (stored.format, stored.number, stored.job, stored.siblings) == (form, 7, 6, (6, 7))
    assert (stored.entries, stored.deletes, stored.range_deletes) == (5, 1, 2)
    assert (stored.smallest, stored.largest, stored.range_start, stored.range_end) == (b"", b"b", b"b", b"c")
    assert (stored.seq_min, stored.seq_max) == (meta.seq_min, meta.seq_max) == (1, 20)
    assert (stored.log_floor, stored.obsoletes, stored.created_s) == (3, (2, 300), 99)
    assert (stored.codec, stored.block_size, stored.filter_bits_per_key) == ("zlib", 128, "12.5")
    assert stored.raw_bytes == sum(map(len, SMALL.entries.keys + SMALL.entries.values))
    assert stored.meta(7, meta.size_bytes) == meta


@pytest.mark.parametrize("form", FORMATS)
def test_bounds_of_entries_and_range_deletes_without_widening(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    meta = build(fs, SMALL, options(form))
    assert (meta.seq_min, meta.seq_max) == (2, 9)
    only = build(fs, ONLY_DELETES, options(form), path="other")
    assert (only.entries, only.smallest, only.largest, only.seq_min, only.seq_max) == (0, None, None, 4, 4)
    assert opened(fs, "other").properties.job == 7


@pytest.mark.parametrize("form", FORMATS)
def test_number_on_opening(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    meta = build(fs, SMALL, options(form))
    other = open_table(fs, PATH, number=12, cache=None, verify_checksums=True)
    own = open_table(fs, PATH, number=None, cache=None, verify_checksums=True)
    assert other.meta() == replace(meta, number=12)
    assert own.meta() == meta
    assert own.properties == other.properties


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("form", FORMATS)
def test_codecs_make_it_smaller_but_leave_what_does_not_pack(form: str, codec: str) -> None:
    text = Content(Columns([b"a", b"b"], [257, 257], [b"some text " * 300, b"more text " * 300]), [])
    assert len(image(text, options(form, codec, 4096))) < len(image(text, options(form, "none", 4096))) / 3
    noise = hashlib.shake_256(b"noise").digest(2000)
    data = image(Content(Columns([b"a"], [257], [noise]), []), options(form, codec))
    assert noise in data


@pytest.mark.parametrize("form", FORMATS)
def test_same_entries_same_bytes_whatever_the_hash_seed(form: str) -> None:
    program = f"""
import hashlib
from lsm.batch import Op
from lsm.entry import Columns, RangeDelete
from lsm.memtable import make_memtable
from lsm.options import Options
from lsm.tables import create_builder
from simfs.memory import MemoryFilesystem
fs = MemoryFilesystem(record=False)
for kind in ("hash", "skiplist"):
    memtable = make_memtable(kind)
    for i in range(3000):
        memtable.put(b"%d" % (i * 7919 % 2000), i + 1, None if i % 11 == 0 else b"value %d" % i, i // 500 * 500)
    builder = create_builder(fs, kind, 1, Options.make(table_format={form!r}), log_floor=0, obsoletes=(), created_s=0)
    builder.add(memtable.columns())
    builder.add_range_deletes([RangeDelete(b"1", b"2", 9), RangeDelete(b"0", b"2", 7)])
    builder.finish(True)
    with fs.open(kind) as file:
        print(hashlib.sha256(file.pread(0, file.size())).hexdigest())
"""
    printed = [
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout.split()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert printed[0] == printed[1]
    assert printed[0][0] == printed[0][1], "hash and skip list make different tables"


# damage


DAMAGE_OPTIONS = [options(form, codec, 64) for form in FORMATS for codec in CODECS]


def damaged_ids(chosen: Options) -> str:
    return f"{chosen.table_format}-{chosen.compression}"


def right_or_corrupt(reader: TableReader, content: Content) -> None:
    """Every read without `verify`: the right answer, or `Corruption` with an offset inside the file."""
    entries = content.entries
    wanted = list(zip(*entries, strict=True))
    offsets = []
    for key in [*entries.keys, b"absent"]:
        try:
            assert reader.get(key, 1 << 60) == newest(entries, key, 1 << 60)
        except Corruption as error:
            offsets.append(error.offset)
    found: list[Columns] = []
    try:
        found.extend(reader.blocks(b"", None))
    except Corruption as error:
        offsets.append(error.offset)
    assert rows(found) == wanted[: len(rows(found))]
    assert len(rows(found)) == len(wanted) or offsets
    behind: list[Columns] = []
    try:
        behind.extend(reader.blocks_reverse(b"", None))
    except Corruption as error:
        offsets.append(error.offset)
    assert rows(behind[::-1]) == wanted[len(wanted) - len(rows(behind)) :]
    assert len(rows(behind)) == len(wanted) or offsets
    assert all(0 <= offset <= reader.size_bytes for offset in offsets)


def read_all(fs: MemoryFilesystem, content: Content) -> None:
    reader = opened(fs)
    right_or_corrupt(reader, content)
    reader.verify()


def noticed(data: bytes, content: Content = SMALL) -> str:
    """Open, read, verify: damage must be found by opening or verifying. Returns what was said."""
    fs = from_bytes(data)
    with pytest.raises(Corruption) as caught:
        read_all(fs, content)
    assert caught.value.path == PATH
    assert 0 <= caught.value.offset <= len(data)
    with fs.open(PATH) as file:
        assert file.pread(0, len(data) + 1) == data, "the damaged file was changed"
    return caught.value.reason


@pytest.mark.parametrize("chosen", DAMAGE_OPTIONS, ids=damaged_ids)
def test_every_flipped_byte_is_noticed(chosen: Options) -> None:
    data = image(SMALL, chosen)
    for at in range(len(data)):
        noticed(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        if chosen.compression == "none":
            noticed(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])


@pytest.mark.parametrize("chosen", DAMAGE_OPTIONS, ids=damaged_ids)
def test_every_cut_is_noticed_when_the_table_is_opened(chosen: Options) -> None:
    data = image(SMALL, chosen)
    for cut in range(len(data)):
        with pytest.raises(Corruption) as caught:
            opened(from_bytes(data[:cut]))
        assert 0 <= caught.value.offset <= cut
    noticed(data + b"\0")
    noticed(b"\0" + data)


@pytest.mark.parametrize("form", FORMATS)
def test_two_blocks_in_each_others_place_are_noticed(form: str) -> None:
    content = Content(Columns([b"a", b"b"], [257, 257], [b"x" * 100, b"y" * 100]), [])
    data = image(content, options(form, block_size=64))
    size = decode_footer(data[-FOOTER_BYTES:], PATH, len(data)).data_bytes // 2
    assert "checksum" in noticed(data[size : 2 * size] + data[:size] + data[2 * size :], content)


@pytest.mark.parametrize("form", FORMATS)
def test_foreign_and_newer_files(form: str) -> None:
    assert "cut short, or no table" in noticed(b"something else altogether, and long enough to hold a footer")
    assert "found a file of 0" in noticed(b"")
    data = bytearray(image(SMALL, options(form)))
    at = len(data) - FOOTER_BYTES
    struct.pack_into("<H", data, at + 40, 2)
    struct.pack_into("<I", data, at + 43, zlib.crc32(data[-8:], zlib.crc32(data[at : at + 43])))
    assert "format version 2 is newer than 1" in noticed(bytes(data))


@pytest.mark.parametrize("form", FORMATS)
def test_checksums_may_be_left_out_but_not_in_verify(form: str) -> None:
    content = Content(Columns([b"key"], [257], [b"value"]), [])
    data = bytearray(image(content, options(form)))
    data[data.index(b"value")] ^= 1
    fs = from_bytes(bytes(data))
    trusting = open_table(fs, PATH, number=7, cache=None, verify_checksums=False)
    assert trusting.get(b"key", 1 << 60) == (257, b"walue")
    with pytest.raises(Corruption, match="checksum"):
        trusting.verify()
    with pytest.raises(Corruption, match="checksum"):
        opened(fs).get(b"key", 1 << 60)


@pytest.mark.parametrize(("codec", "library"), [("zstd", "zstandard"), ("lz4", "lz4")])
@pytest.mark.parametrize("form", FORMATS)
def test_a_missing_codec_library(form: str, codec: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = Content(Columns([b"key"], [257], [b"value" * 100]), [])
    fs = MemoryFilesystem(record=False)
    build(fs, content, options(form, codec))
    real = importlib.import_module

    def without(module: str, package: str | None = None) -> ModuleType:
        if module.partition(".")[0] == library:
            raise ImportError(module)
        return real(module, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtra, match=library):
        opened(fs).get(b"key", 1 << 60)
    with pytest.raises(MissingExtra, match=library):
        opened(fs).verify()
    with pytest.raises(MissingExtra, match=library):
        create_builder(fs, "new", 8, options(form, codec), log_floor=0, obsoletes=(), created_s=0)
    assert not fs.exists("new")


# writing


@pytest.mark.parametrize("form", FORMATS)
def test_entries_out_of_order_are_refused(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    builder = create_builder(fs, PATH, 7, options(form), log_floor=0, obsoletes=(), created_s=0)
    builder.add(Columns([b"b"], [513], [b""]))
    builder.add(Columns([b"b"], [257], [b""]))
    for key, tag in ((b"a", 257), (b"b", 257), (b"b", 513)):
        with pytest.raises(ValueError, match="does not come after"):
            builder.add(Columns([key], [tag], [b""]))


@pytest.mark.parametrize("form", FORMATS)
def test_abandon_removes_the_file(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    builder = create_builder(fs, PATH, 7, options(form), log_floor=0, obsoletes=(), created_s=0)
    builder.add(SMALL.entries)
    builder.abandon()
    assert not fs.exists(PATH)
    with pytest.raises(FileNotFoundError):
        opened(fs)


@pytest.mark.parametrize("form", FORMATS)
def test_a_table_of_nothing_is_a_defect(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    builder = create_builder(fs, PATH, 7, options(form), log_floor=0, obsoletes=(), created_s=0)
    with pytest.raises(AssertionError, match="nothing"):
        builder.finish(True)


@pytest.mark.parametrize("form", FORMATS)
def test_size_estimate_is_close(form: str) -> None:
    keys = [b"%08d" % number for number in range(5000)]
    fs = MemoryFilesystem(record=False)
    builder = create_builder(fs, PATH, 7, options(form, block_size=4096), log_floor=0, obsoletes=(), created_s=0)
    builder.add(Columns(keys, [257] * 5000, [bytes(50)] * 5000))
    estimate = builder.size_estimate
    assert builder.finish(True).size_bytes == pytest.approx(estimate, rel=0.02)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sync", [True, False])
def test_one_data_sync_if_asked_for_and_writes_in_large_pieces(form: str, sync: bool) -> None:
    fs = MemoryFilesystem()
    keys = [b"%08d" % number for number in range(10_000)]
    builder = create_builder(fs, PATH, 7, options(form, block_size=4096), log_floor=0, obsoletes=(), created_s=0)
    builder.add(Columns(keys, [257] * 10_000, [bytes(100)] * 10_000))
    builder.finish(sync)
    names = [type(record).__name__ for record in fs.log]
    assert names.count("Sync") == (1 if sync else 0)
    if sync:
        record = next(record for record in fs.log if type(record).__name__ == "Sync")
        assert record.site == "table.finish"  # type: ignore[union-attr]
    assert names.count("Append") <= 8


@pytest.mark.parametrize("form", FORMATS)
def test_a_closed_reader_still_reads(form: str) -> None:
    fs = MemoryFilesystem(record=False)
    build(fs, SMALL, options(form, block_size=64))
    reader = opened(fs)
    scan = reader.blocks(b"", None)
    first = next(scan)
    reader.close()
    reader.close()
    assert rows([first, *scan]) == list(zip(*SMALL.entries, strict=True))
    assert reader.get(b"b", 1 << 60) == (make_tag(5, VALUE), b"value" * 8)
