"""Finding the next valid record behind damage: at any byte, in time proportional to the file.

1. A record's head has 16 bytes that can stand at every offset. Seen as strided arrays over the file's bytes,
   `length` and `attested` are compared with what fits for all offsets at once; few are left.
2. Those are checksummed, each over its own length.

Data may be such that step 2 gets quadratic: in an array of small integers and zeros every eighth byte looks like the
head of a long record. So once the checksummed bytes exceed a few times the file, the CRC comes from *prefixes*: CRCs
are linear, so the CRC of any slice follows from those of two prefixes of the file. With `|` for concatenation
and `shift(c, n)` for what n zero bytes do to a CRC c,

    crc(A | B) = shift(crc(A), n) ^ crc(B)          n = len(B)
    crc(B, seed) = shift(seed, n) ^ crc(B) = shift(seed ^ crc(A), n) ^ crc(A | B)

A shift by n is a product of shifts by powers of two, each a 32 × 32 matrix over bits (zlib's `crc32_combine`).

Invariant: both ways find the same offsets.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lsm.framing import RECORD_HEAD, RECORD_HEAD_BYTES

CHUNK_BYTES = 1 << 18
BUDGET_FACTOR = 4
BUDGET_BYTES_MIN = 1 << 20
PREFIX_BLOCK_BYTES = 1024
_MASK = 0xFFFF_FFFF

U32s = NDArray[np.uint32]


class Resync:
    """Searches one file. `base` is its `framing.seed_base`; `budget_bytes` is checksummed slice by slice."""

    def __init__(self, data: bytes, base: int, budget_bytes: int | None = None) -> None:
        self._data = data
        self._view = memoryview(data)
        self._base = base
        default = max(BUDGET_FACTOR * len(data), BUDGET_BYTES_MIN)
        self._budget_bytes = default if budget_bytes is None else budget_bytes
        self._prefixes: Prefixes | None = None

    def find(self, start: int, attests_min: int) -> int | None:
        """The offset of the first valid record at or after `start` that attests at least `attests_min`."""
        end = len(self._data) - RECORD_HEAD_BYTES + 1
        for chunk in range(start, end, CHUNK_BYTES):
            candidates = self._plausible(chunk, min(chunk + CHUNK_BYTES, end), attests_min)
            for i, offset in enumerate(candidates):
                if self._budget_bytes <= 0:
                    found = self._find_by_prefixes(candidates[i:])
                    if found is not None:
                        return found
                    break
                crc, length, _ = RECORD_HEAD.unpack_from(self._data, offset)
                self._budget_bytes -= length
                covered = self._view[offset + 4 : offset + RECORD_HEAD_BYTES + length]
                if crc32(covered, (self._base + offset) & _MASK) == crc:
                    return offset
        return None

    def _plausible(self, start: int, stop: int, attests_min: int) -> list[int]:
        """Offsets in [start, stop) where a head fits the file and is not all zeros."""
        count = stop - start
        offsets = np.arange(start, stop, dtype=np.int64)
        crcs = np.ndarray((count,), "<u4", self._data, start, (1,))
        lengths = np.ndarray((count,), "<u4", self._data, start + 4, (1,))
        attested = np.ndarray((count,), "<u8", self._data, start + 8, (1,))
        fits = lengths <= len(self._data) - RECORD_HEAD_BYTES - offsets
        fits &= (attested <= offsets.view(np.uint64)) & (attested >= np.uint64(attests_min))
        fits &= ((crcs | lengths) != 0) | (attested != 0)
        found: list[int] = (np.flatnonzero(fits) + start).tolist()
        return found

    def _find_by_prefixes(self, candidates: list[int]) -> int | None:
        if self._prefixes is None:
            self._prefixes = Prefixes(self._data)
        at = self._prefixes.at
        offsets = np.array(candidates, np.int64)
        heads = np.lib.stride_tricks.sliding_window_view(np.frombuffer(self._data, np.uint8), 8)[offsets]
        stored, lengths = heads.view("<u4").T
        ends = offsets + RECORD_HEAD_BYTES + lengths
        before = np.array([at(offset + 4) for offset in candidates], np.uint32)
        until = np.array([at(end) for end in ends.tolist()], np.uint32)
        seeds = ((self._base + offsets) & _MASK).astype(np.uint32)
        valid = np.flatnonzero(shift(seeds ^ before, ends - offsets - 4) ^ until == stored)
        return candidates[int(valid[0])] if len(valid) else None


class Prefixes:
    """The CRC of any prefix of `data`, from those at block ends."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._blocks = [0]
        for start in range(0, len(data), PREFIX_BLOCK_BYTES):
            self._blocks.append(crc32(self._view[start : start + PREFIX_BLOCK_BYTES], self._blocks[-1]))

    def at(self, position: int) -> int:
        """The CRC of the first `position` bytes."""
        block = position // PREFIX_BLOCK_BYTES
        return crc32(self._view[block * PREFIX_BLOCK_BYTES : position], self._blocks[block])


def shift(crcs: U32s, zeros: NDArray[np.int64]) -> U32s:
    """What so many zero bytes after them make of these CRCs, less the CRC of the zeros.

    >>> a, b = b"lsm", b"tree"
    >>> int(shift(np.array([crc32(a)], np.uint32), np.array([len(b)]))[0]) ^ crc32(b) == crc32(a + b)
    True
    """
    matrix = np.array([crc32(b"\0", 1 << bit) ^ crc32(b"\0") for bit in range(32)], np.uint32)
    for power in range(int(zeros.max(initial=0)).bit_length()):
        crcs = np.where(zeros >> power & 1, _apply(matrix, crcs), crcs)
        matrix = _apply(matrix, matrix)
    return crcs


def _apply(matrix: U32s, crcs: U32s) -> U32s:
    """Matrix × vector over bits, for each of `crcs`; row `bit` of the matrix is the image of that bit."""
    byte = np.arange(256, dtype=np.uint32)
    product = np.zeros_like(crcs)
    for low in range(0, 32, 8):
        image = np.zeros(256, np.uint32)
        for bit in range(8):
            image ^= (byte >> np.uint32(bit) & np.uint32(1)) * matrix[low + bit]
        product ^= image[crcs >> np.uint32(low) & np.uint32(0xFF)]
    return product
