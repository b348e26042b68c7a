"""Blocks: round trips over every form, search raw and decoded, golden bytes, damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lsm.block import BLOCK_OVERHEAD_BYTES, ENTRY_OVERHEAD_BYTES, Block, decode_block, encode_block
from lsm.entry import DELETE, MAX_SEQUENCE, VALUE, Columns, make_tag

KEYS = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"", b"\0", b"a", b"a\0", b"a\0\0", b"prefix/", b"prefix/1", b"prefix/2", b"\xff\xff"]),
    st.integers(0, 99).map(lambda number: b"a-long-common-prefix-%02d" % number),
    st.integers(0, 9).map(lambda number: b"%d" % number * 3),
)
SEQUENCES = st.one_of(
    st.integers(0, 50), st.integers(1 << 30, 1 << 30 | 99), st.integers(MAX_SEQUENCE - 9, MAX_SEQUENCE)
)
VALUES = st.one_of(st.none(), st.just(b""), st.binary(max_size=6), st.just(b"same"), st.just(b"0123456789" * 30))


@st.composite
def columns(draw: st.DrawFn, min_size: int = 1) -> Columns:
    versions = draw(st.dictionaries(st.tuples(KEYS, SEQUENCES), VALUES, min_size=min_size, max_size=40))
    rows = sorted(versions.items(), key=lambda row: (row[0][0], -row[0][1]))
    return Columns(
        [key for (key, _), _ in rows],
        [make_tag(sequence, DELETE if value is None else VALUE) for (_, sequence), value in rows],
        [value or b"" for _, value in rows],
    )


def expected(entries: Columns, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
    for held, tag, value in zip(*entries, strict=True):
        if held == key and tag <= tag_max:
            return tag, value
    return None


@given(columns(min_size=0))
@example(Columns([], [], []))
@example(Columns([b""], [257], [b""]))
@example(Columns([b"k%05d" % number for number in range(20_000)], [257] * 20_000, [b"v"] * 20_000))
@example(Columns([b"a", b"b"], [257, 257], [bytes(70_000), b"x"]))
@example(Columns([b"a" * 65_535, b"b"], [257, (1 << 63) + 1], [b"", b"x"]))
def test_round_trip(entries: Columns) -> None:
    assert decode_block(encode_block(entries)) == entries


@given(columns(), st.lists(KEYS, max_size=5), SEQUENCES)
def test_raw_and_decoded_search_find_the_newest_visible_version(
    entries: Columns, others: list[bytes], sequence: int
) -> None:
    raw = Block(encode_block(entries))
    decoded = raw.decode()
    for key in [*entries.keys, *others, *(key + b"\0" for key in entries.keys[:3])]:
        for tag_max in (make_tag(sequence, 255), 1 << 64, *entries.tags[:3]):
            wanted = expected(entries, key, tag_max)
            assert raw.get(key, tag_max) == wanted
            assert decoded.get(key, tag_max) == wanted


def test_hits_across_two_keys_do_not_mislead_the_search() -> None:
    keys = sorted({b"%02d" % number for number in range(100)})
    entries = Columns(keys, [257] * 100, [b"v%s" % key for key in keys])
    block = Block(encode_block(entries))
    for key in keys:
        assert block.get(key, 257) == (257, b"v" + key)
    assert block.get(b"0a", 257) is None


GOLDEN = {
    "one length": (
        Columns([b"k1", b"k2"], [0x301, 0x200], [b"", b""]),
        "02000000 0100 00 00 04 0000000000000000 01000000 00000000 | 6b | 3132 | 01030000 00020000",
    ),
    "any length": (
        Columns([b"a", b"bcd"], [0x101, 0x201], [b"xy", b"z"]),
        "02000000 0000 02 02 04 0000000000000000 04000000 03000000|01000400|61626364|0101000001020000|02000300|78797a",
    ),
    "large tags close together": (
        Columns([b"a"], [(1 << 40) + 1], [b"v"]),
        "01000000 0000 00 00 04 0100000000010000 01000000 01000000 | 61 | 00000000 | 76",
    ),
    "large tags far apart": (
        Columns([b"a", b"b"], [(1 << 40) + 1, 1], [b"v", b"w"]),
        "02000000 0000 00 00 08 0100000000000000 01000000 01000000 | 6162 | 0000000000010000 0000000000000000 | 7677",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    entries, text = GOLDEN[name]
    assert encode_block(entries).hex() == text.replace(" ", "").replace("|", "")
    assert decode_block(bytes.fromhex(text.replace("|", ""))) == entries


def test_prefix_is_stripped_only_where_it_pays() -> None:
    keys = [b"path/to/file:%d" % number for number in range(10)]
    short, long = (Columns(keys, [257] * 10, [bytes(size)] * 10) for size in (10, 200))
    assert encode_block(short).count(b"path/to/file:") == 1
    assert encode_block(long).count(b"path/to/file:") == 10
    assert decode_block(encode_block(short)) == short
    assert decode_block(encode_block(long)) == long


def test_charges_cover_what_python_takes() -> None:
    entries = Columns(
        [b"%016d" % number for number in range(30)], [257 + number for number in range(30)], [bytes(100)] * 30
    )
    block = Block(encode_block(entries))
    assert block.charge_bytes == len(encode_block(entries)) + BLOCK_OVERHEAD_BYTES
    decoded = block.decode()
    assert decoded.item_bytes == 30 * 116
    assert decoded.charge_bytes == 30 * (116 + ENTRY_OVERHEAD_BYTES) + BLOCK_OVERHEAD_BYTES


@given(columns())
def test_cut_or_grown_blocks_are_refused(entries: Columns) -> None:
    raw = encode_block(entries)
    for damaged in [*(raw[:cut] for cut in range(len(raw))), raw + b"\0"]:
        with pytest.raises(ValueError, match="block"):
            Block(damaged)


@given(columns(), st.data())
def test_damage_without_a_checksum_is_an_error_or_other_entries_never_a_crash(
    entries: Columns, data: st.DataObject
) -> None:
    raw = bytearray(encode_block(entries))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        block = Block(bytes(raw))
        block.get(entries.keys[0], 1 << 64)
        found = block.decode().columns
    except ValueError:
        return
    assert len(found.keys) == len(found.tags) == len(found.values) == block.count


def test_impossible_ends_are_refused() -> None:
    raw = bytearray(encode_block(Columns([b"a", b"bcd"], [257, 513], [b"", b""])))
    struct.pack_into("<H", raw, 27, 3)  # the last end: 4 bytes of keys
    with pytest.raises(ValueError, match="ends"):
        Block(bytes(raw)).decode()
