"""The codecs: round trips, bounds, damage, and a library that is not there."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsm.codecs import CODES, compress, decompress, require
from lsm.errors import MissingExtra

NAMES = list(CODES)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=500) | st.integers(0, 5000).map(bytes))
def test_round_trip(name: str, data: bytes) -> None:
    assert decompress(CODES[name], compress(name, data), len(data)) == data


@pytest.mark.parametrize(
    ("name", "level"), [("zlib", 1), ("zlib", 9), ("zstd", 1), ("zstd", 19), ("lz4", 3), ("lz4", 12)]
)
def test_levels(name: str, level: int) -> None:
    data = b"some text that repeats, some text that repeats. " * 50
    packed = compress(name, data, level)
    assert len(packed) < len(data) / 4
    assert decompress(CODES[name], packed, len(data)) == data


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stated", [0, 1, 999, 1001, 1_000_000])
def test_another_size_than_stated_is_damage(name: str, stated: int) -> None:
    packed = compress(name, bytes(1000))
    with pytest.raises(ValueError, match=name):
        decompress(CODES[name], packed, stated)


@pytest.mark.parametrize("name", ["zlib", "zstd", "lz4"])
def test_cut_streams_are_damage(name: str) -> None:
    data = b"abcdefgh" * 20 + bytes(range(100))
    packed = compress(name, data)
    for cut in range(len(packed)):
        with pytest.raises(ValueError, match=name):
            decompress(CODES[name], packed[:cut], len(data))


def test_unknown_code() -> None:
    with pytest.raises(ValueError, match="found 9"):
        decompress(9, b"", 0)


@pytest.mark.parametrize(("name", "library"), [("zstd", "zstandard"), ("lz4", "lz4")])
def test_a_missing_library_names_the_extra(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(name, bytes(100))
    real = importlib.import_module

    def without(module: str, package: str | None = None) -> ModuleType:
        if module.partition(".")[0] == library:
            raise ImportError(module)
        return real(module, package)

    monkeypatch.setattr(importlib, "import_module", without)
    for call in (lambda: require(name), lambda: decompress(CODES[name], packed, 100)):
        with pytest.raises(MissingExtra) as caught:
            call()
        assert caught.value.extra == "speed"
        assert f'{library} is not installed: pip install "lsmlab[speed]"' in str(caught.value)
    require("none")
    require("zlib")
