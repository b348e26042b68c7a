"""Varints, strings and printable text."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.coding import decode_bytes, decode_varint, encode_bytes, encode_varint, printable


@pytest.mark.parametrize(
    ("value", "golden"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2**32, "8080808010"),
        (2**64 - 1, "ffffffffffffffffff01"),
    ],
)
def test_golden_varints(value: int, golden: str) -> None:
    assert encode_varint(value).hex() == golden
    assert decode_varint(bytes.fromhex(golden), 0) == (value, len(golden) // 2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**70 - 1)))
def test_varints_round_trip_one_after_the_other(values: list[int]) -> None:
    data = b"".join(encode_varint(value) for value in values)
    position, found = 0, []
    while position < len(data):
        value, position = decode_varint(data, position)
        found.append(value)
    assert found == values


@settings(deadline=None)
@given(st.binary(max_size=12))
def test_what_decodes_is_the_one_encoding(data: bytes) -> None:
    try:
        value, end = decode_varint(data, 0)
    except ValueError:
        return
    assert encode_varint(value) == data[:end]


@pytest.mark.parametrize("data", ["", "80", "ff" * 10, "ff" * 30, "8000", "ff8000"])
def test_bad_varints_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match="varint at byte 0"):
        decode_varint(bytes.fromhex(data), 0)


def test_a_negative_integer_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        encode_varint(-1)


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=5))
def test_strings_round_trip_and_notice_every_cut(data: bytes, after: bytes) -> None:
    encoded = encode_bytes(data)
    assert decode_bytes(encoded + after, 0) == (data, len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(ValueError):
            decode_bytes(encoded[:cut], 0)


def test_a_huge_length_takes_no_memory() -> None:
    with pytest.raises(ValueError, match="only 1 bytes are left"):
        decode_bytes(encode_varint(2**60) + b"x", 0)


def unprint(text: str) -> bytes:
    r"""The inverse of `printable`: \\ and \xNN are escapes, all else is UTF-8."""
    return codecs.escape_decode(text.encode())[0]


@settings(deadline=None)
@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_printable_is_printable_and_reversible(data: bytes) -> None:
    text = printable(data)
    assert text.isprintable()
    assert unprint(text) == data


def test_printable_texts() -> None:
    assert printable(b"plain") == "plain"
    assert printable(b"a\\x00") == "a\\\\x00"
    assert printable(b"a\x00\n") == "a\\x00\\x0a"
    assert printable("grün\u200b".encode()) == "grün\\xe2\\x80\\x8b"
    assert printable(b"\xff\xfeab", 3) == "\\xff\\xfea… (1 bytes more)"
    assert printable(b"abc", 3) == "abc"
