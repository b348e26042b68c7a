"""The search for the next valid record: against a plain loop, and with and without prefix checksums."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm import resync
from lsm.framing import RECORD_HEAD, RECORD_HEAD_BYTES, encode_record, record_crc, seed_base
from lsm.resync import Prefixes, Resync, shift

BASE = seed_base(b"lsmlabWL", 7)


def slow_find(data: bytes, start: int, attests_min: int) -> int | None:
    """What `Resync.find` must find, said as plainly as possible."""
    for offset in range(start, len(data) - RECORD_HEAD_BYTES + 1):
        crc, length, attested = RECORD_HEAD.unpack_from(data, offset)
        end = offset + RECORD_HEAD_BYTES + length
        fits = end <= len(data) and attests_min <= attested <= offset and (crc or length or attested)
        if fits and record_crc(BASE, offset, data[offset + 4 : end]) == crc:
            return offset
    return None


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Records among noise that looks like record heads: small integers and zeros."""
    noise = st.lists(st.sampled_from([0, 0, 0, 1, 5, 16, 255]), max_size=60).map(bytes)
    data = bytearray(32)
    for _ in range(draw(st.integers(0, 4))):
        data += draw(noise)
        attested = draw(st.integers(0, len(data)))
        data += encode_record(BASE, len(data), attested, draw(st.binary(max_size=20)))
    return bytes(data + draw(noise))


@settings(deadline=None)
@given(files(), st.integers(0, 100), st.integers(0, 100), st.sampled_from([0, 20, 10_000]), st.integers(1, 40))
def test_both_ways_find_what_a_plain_loop_finds(
    data: bytes, start: int, attests_min: int, budget_bytes: int, chunk_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resync, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(resync, "PREFIX_BLOCK_BYTES", 16)
        assert Resync(data, BASE, budget_bytes).find(start, attests_min) == slow_find(data, start, attests_min)


def test_all_zeros_are_no_record() -> None:
    assert Resync(bytes(1000), BASE).find(0, 0) is None


def test_a_record_at_the_very_end_is_found() -> None:
    data = b"\xff" * 100 + encode_record(BASE, 100, 40, b"")
    assert Resync(data, BASE).find(0, 0) == 100
    assert Resync(data, BASE).find(0, 40) == 100
    assert Resync(data, BASE).find(0, 41) is None
    assert Resync(data[:-1], BASE).find(0, 0) is None


def test_an_array_of_small_integers_costs_linear_time() -> None:
    """Each candidate is checksummed over its own length only until the budget is spent."""
    values = [i % 70_000 if i % 3 == 0 else 0 for i in range(20_000)]
    data = b"".join(value.to_bytes(8, "little") for value in values)
    data += encode_record(BASE, len(data), 0, b"behind")
    search = Resync(data, BASE)
    assert search.find(0, 0) == len(data) - RECORD_HEAD_BYTES - 6
    candidates = search._plausible(0, len(data) - RECORD_HEAD_BYTES + 1, 0)
    lengths = sum(RECORD_HEAD.unpack_from(data, offset)[1] for offset in candidates)
    assert lengths > 100 * len(data), "this data is quadratic for a plain search"
    assert search._budget_bytes > -len(data)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), min_size=1), st.integers(0, 2**32 - 1))
def test_checksums_from_prefixes(parts: list[bytes], seed: int) -> None:
    data = b"".join(parts)
    prefixes = Prefixes(data)
    places = [0]
    for part in parts:
        places.append(places[-1] + len(part))
    spans = [*pairwise(places), (0, len(data))]
    before = np.array([prefixes.at(start) for start, _ in spans], np.uint32)
    until = np.array([prefixes.at(end) for _, end in spans], np.uint32)
    lengths = np.array([end - start for start, end in spans], np.int64)
    computed = shift(before ^ np.uint32(seed), lengths) ^ until
    assert computed.tolist() == [crc32(data[start:end], seed) for start, end in spans]


def test_a_long_shift() -> None:
    crc = np.array([crc32(b"head")], np.uint32)
    length = 3_000_001
    assert int(shift(crc, np.array([length]))[0]) ^ crc32(bytes(length)) == crc32(b"head" + bytes(length))
