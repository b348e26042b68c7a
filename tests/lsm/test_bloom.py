"""The filter: no false negatives, the promised false positives, its bytes, and damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsm.bloom import (
    MASKS,
    _masks,
    _positions,
    build,
    classic_rate,
    false_positive_rate,
    hash_keys,
    memory_bytes,
    prober,
    probes,
)

GOLDEN = (
    "0303010000000000080002000000000040000000000000240000800010000800000008000804"
    "0000000000000000000004000000008000000000000008120000000040000400"
)
PUBLISHED = {5: 0.0918, 8: 0.0217, 10: 0.00844, 12: 0.00314, 16: 0.00046}  # LevelDB's formula, rounded


def filter_of(keys: list[bytes], bits_per_key: float) -> bytes:
    return build(hash_keys(keys, len(keys)), bits_per_key)


@given(st.lists(st.binary(max_size=20)), st.floats(0.5, 64))
def test_what_is_in_it_is_never_denied(keys: list[bytes], bits_per_key: float) -> None:
    ask = prober(filter_of(keys, bits_per_key))
    assert all(map(ask, keys))


@pytest.mark.parametrize(("bits_per_key", "published"), PUBLISHED.items())
def test_classic_formula_gives_the_published_rates(bits_per_key: int, published: float) -> None:
    assert classic_rate(bits_per_key) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("bits_per_key", PUBLISHED)
def test_measured_rate_meets_the_expected_one(bits_per_key: int) -> None:
    ask = prober(filter_of([b"key%013d" % number for number in range(50_000)], bits_per_key))
    asked = 100_000
    measured = sum(map(ask, (b"absent%010d" % number for number in range(asked)))) / asked
    expected = false_positive_rate(bits_per_key)
    assert abs(measured - expected) < 5 * (expected / asked) ** 0.5 + 0.02 * expected
    assert measured > 0.9 * PUBLISHED[bits_per_key], "better than theory: the test asks keys that are in"


def test_ten_bits_a_key_let_at_most_one_point_two_percent_through() -> None:
    assert false_positive_rate(10) <= 0.012
    for count in (100, 1000, 20_000):
        asked = passed = 0
        for turn in range(max(1, 20_000 // count)):
            ask = prober(filter_of([b"%08d-%08d" % (turn, number) for number in range(count)], 10))
            passed += sum(map(ask, (b"%08d-%08d" % (turn, number) for number in range(count, 3 * count))))
            asked += 2 * count
        assert passed / asked <= 0.013


def test_golden_bytes() -> None:
    data = filter_of([b"a", b"b", b"c"], 10)
    assert data.hex() == GOLDEN
    assert memory_bytes(data) == 104
    assert filter_of([], 10) == bytes.fromhex("030301000000") + bytes(64)


def test_order_and_repetition_change_nothing() -> None:
    keys = [b"%d" % number for number in range(1000)]
    assert filter_of(keys, 10) == filter_of(keys[::-1], 10)
    assert filter_of([keys[0], keys[0], *keys[1:]], 10) == filter_of(keys, 10)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 15])
@pytest.mark.parametrize("table", [0, 1])
def test_each_mask_has_its_number_of_bits(table: int, width: int) -> None:
    positions = _positions(table, width)
    assert positions.shape == (MASKS, width)
    assert int(positions.max()) < 512
    assert bool((np.diff(positions.astype(np.int64), axis=1) > 0).all())
    for row, mask in zip(positions.tolist()[:50], _masks(table, width)[:50], strict=True):
        assert mask == sum(1 << bit for bit in row)


def test_probes_stay_within_what_the_format_can_say() -> None:
    assert [probes(bits) for bits in (0.1, 1, 10, 43, 64)] == [2, 2, 6, 29, 30]


def test_what_is_no_filter_is_refused() -> None:
    data = filter_of([b"a"], 10)
    for cut in range(len(data)):
        with pytest.raises(ValueError, match="filter"):
            prober(data[:cut])
    for damaged in (b"\0" + data[1:], data[:1] + b"\xff" + data[2:], data[:2] + bytes(4) + data[6:], data + b"\0"):
        with pytest.raises(ValueError, match="filter"):
            prober(damaged)
