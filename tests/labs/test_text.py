"""Keys and values as text: what is printed reads back as the same bytes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import text
from lsm.errors import InvalidArgument


@given(st.binary() | st.text().map(lambda value: value.encode("utf-8", "surrogatepass")))
def test_round_trip(data: bytes) -> None:
    shown = text.encode_text(data)
    assert text.decode_text(shown) == data
    assert shown.isprintable()
    assert text.read(text.show(data, True), True) == data


@given(st.binary(), st.booleans())
def test_a_json_field_holds_the_bytes(data: bytes, as_hex: bool) -> None:
    field = json.loads(json.dumps(text.json_field("key", data, as_hex)))
    (name,) = field
    assert (field[name].encode() if name == "key" else bytes.fromhex(field[name])) == data


def test_a_backslash_that_escapes_nothing_is_one() -> None:
    assert text.decode_text(r"C:\new\xg") == rb"C:\new\xg"


def test_what_is_not_hex_is_named() -> None:
    with pytest.raises(InvalidArgument, match="'abc' is not hex"):
        text.read("abc", True)
