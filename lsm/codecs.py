"""Compression of blocks: four codecs behind two functions.

| code | name | library         | brought by        |
| ---- | ---- | --------------- | ----------------- |
| 0    | none |                 |                   |
| 1    | zlib | zlib            | Python itself     |
| 2    | zstd | zstandard       | `lsmlab[speed]`   |
| 3    | lz4  | lz4.block       | `lsmlab[speed]`   |

The code stands with each block, so a file is read whatever the options say by then.

Invariants:
1. `decompress(code, compress(name, data, level), len(data)) == data`.
2. `decompress` makes exactly the size it was told, or raises: a damaged block takes no memory beyond that.
3. Nothing but `compress` and `decompress` knows the libraries; one that is missing is `MissingExtra`.

Left out: dictionaries (zstd's gain on small blocks is real, but the dictionary is one more section to keep);
snappy (lz4 is as fast and packs as well).
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any

from lsm.errors import MissingExtra

NONE, ZLIB, ZSTD, LZ4 = 0, 1, 2, 3
CODES = {"none": NONE, "zlib": ZLIB, "zstd": ZSTD, "lz4": LZ4}
NAMES = {code: name for name, code in CODES.items()}

# zstd's objects are costly to make and serve one thread at a time: idle ones wait here to be taken
_COMPRESSORS: dict[int, list[Any]] = {}
_DECOMPRESSORS: list[Any] = []


def require(name: str) -> None:
    """Raise `MissingExtra` now, rather than at the first block, if the codec's library is not installed."""
    if name == "zstd":
        _library("zstandard")
    elif name == "lz4":
        _library("lz4.block")


def available(name: str) -> bool:
    """Whether the codec can be used here.

    >>> available("zlib")
    True
    """
    try:
        require(name)
    except MissingExtra:
        return False
    return True


def compress(name: str, data: bytes, level: int | None = None) -> bytes:
    """`data` packed by the codec `name`; `level` in the codec's own terms, None for its default.

    >>> len(compress("zlib", bytes(1000)))
    17
    """
    if name == "none":
        return data
    if name == "zlib":
        return zlib.compress(data, -1 if level is None else level)
    if name == "zstd":
        return _zstd_compress(data, 3 if level is None else level)
    assert name == "lz4", name
    block = _library("lz4.block")
    fast: bytes = (
        block.compress(data, store_size=False)
        if level is None
        else block.compress(data, mode="high_compression", compression=level, store_size=False)
    )
    return fast


def decompress(code: int, data: bytes, size: int) -> bytes:
    """The `size` bytes that were compressed. Raises `ValueError` for damage, `MissingExtra`."""
    if code == NONE:
        raw = data
    elif code == ZLIB:
        raw = _unzlib(data, size)
    elif code == ZSTD:
        raw = _unzstd(data, size)
    elif code == LZ4:
        raw = _unlz4(data, size)
    else:
        raise ValueError(f"codec: expected one of {sorted(NAMES)}, found {code}")
    if len(raw) != size:
        raise ValueError(f"{NAMES[code]}: expected {size} bytes uncompressed, found {len(raw)}")
    return raw


def _unzlib(data: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, size + 1)  # one more, to notice a stream that goes on
    except zlib.error as error:
        raise ValueError(f"zlib: {error}") from None
    if (not stream.eof and len(raw) <= size) or stream.unused_data:
        raise ValueError("zlib: the stream does not end where the block does")
    return raw


def _zstd_compress(data: bytes, level: int) -> bytes:
    idle = _COMPRESSORS.setdefault(level, [])
    compressor = _take(idle) or _library("zstandard").ZstdCompressor(level=level)
    packed: bytes = compressor.compress(data)
    idle.append(compressor)
    return packed


def _unzstd(data: bytes, size: int) -> bytes:
    zstandard = _library("zstandard")
    decompressor = _take(_DECOMPRESSORS) or zstandard.ZstdDecompressor()
    try:
        stated = zstandard.frame_content_size(data)
        if stated != size:
            raise ValueError(f"zstd: expected a frame of {size} bytes, found one of {stated}")
        raw: bytes = decompressor.decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from None
    finally:
        _DECOMPRESSORS.append(decompressor)
    return raw


def _take(idle: list[Any]) -> Any:
    """An idle object, or None. One step, so that two threads never get the same."""
    try:
        return idle.pop()
    except IndexError:
        return None


def _unlz4(data: bytes, size: int) -> bytes:
    block = _library("lz4.block")
    try:
        raw: bytes = block.decompress(data, uncompressed_size=size)
    except (block.LZ4BlockError, ValueError, OverflowError) as error:
        raise ValueError(f"lz4: {error}") from None
    return raw


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], "speed") from None
