"""Engine options as text: each field of `Options` that can be said in text can be set."""

from __future__ import annotations

import dataclasses

import pytest

from labs.option_values import parse_options
from lsm.errors import InvalidArgument
from lsm.options import Options


def test_the_default_of_every_field_can_be_said() -> None:
    for field in dataclasses.fields(Options):
        if field.name == "listener":
            continue
        default = getattr(Options(), field.name)
        text = default.name if field.name == "sync" else str(default)
        made = Options.make(None, **parse_options([f"{field.name}={text}"]))
        assert made == Options(), field.name


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("block_size=16k", 16384), ("block-size=1MiB", 1 << 20), ("block_cache_bytes=2g", 2 << 30),
        ("verify_checksums=off", False), ("key_range_filter=none", None), ("key_range_filter=yes", True),
        ("filter_bits_per_key=2.5", 2.5), ("compression_level=-3", -3), ("strategy=none", "none"),
    ],
)  # fmt: skip
def test_values(pair: str, value: object) -> None:
    assert list(parse_options([pair]).values()) == [value]


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("block_size", "expected name=value"), ("block_size=big", "expected a whole number"),
        ("verify_checksums=maybe", "expected true or false"), ("filter_bits_per_key=x", "expected a number"),
        ("listener=print", "only be given in Python"), ("block_size=none", "expected a whole number"),
    ],
)  # fmt: skip
def test_bad_values(pair: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        parse_options([pair])


def test_an_unknown_name_is_left_to_the_engine_which_knows_what_was_meant() -> None:
    with pytest.raises(InvalidArgument, match="did you mean block_size"):
        Options.make(None, **parse_options(["block_sise=1"]))
