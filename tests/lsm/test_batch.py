"""Write batches: checks of input, and the payload of a log record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lsm.batch
from lsm.batch import Op, WriteBatch, as_key, as_value, decode_ops, encode_op, encode_ops
from lsm.entry import DELETE, MAX_SEQUENCE, RANGE_DELETE, VALUE
from lsm.errors import InvalidArgument
from lsm.options import KEY_BYTES_MAX

keys = st.binary(max_size=20)


def _range_op(ends: tuple[bytes, bytes]) -> Op:
    return (RANGE_DELETE, min(ends), max(ends) + b"\0")


ops_lists = st.lists(
    st.one_of(
        st.tuples(st.just(VALUE), keys, st.binary(max_size=40)),
        st.tuples(st.just(DELETE), keys, st.just(b"")),
        st.tuples(keys, keys).map(_range_op),
    ),
    min_size=1,
    max_size=8,
)


def test_golden_payload() -> None:
    ops = [(VALUE, b"key", b"value"), (DELETE, b"", b""), (RANGE_DELETE, b"a", b"b\0")]
    golden = """
        2a000000 00000000  03000000
        01 0300 05000000 6b6579 76616c7565
        00 0000 00000000
        0f 0100 02000000 61 6200
    """
    assert encode_ops(42, ops) == bytes.fromhex(golden)
    assert decode_ops(bytes.fromhex(golden)) == (42, ops)


@settings(deadline=None)
@given(st.integers(0, MAX_SEQUENCE - 8), ops_lists)
def test_round_trip(first: int, ops: list[Op]) -> None:
    payload = encode_ops(first, ops)
    assert decode_ops(payload) == (first, ops)
    if len(ops) == 1:
        assert encode_op(first, *ops[0]) == payload


@settings(deadline=None)
@given(ops_lists)
def test_every_cut_and_every_extra_byte_is_noticed(ops: list[Op]) -> None:
    payload = encode_ops(7, ops)
    for cut in range(len(payload)):
        with pytest.raises(ValueError):
            decode_ops(payload[:cut])
    with pytest.raises(ValueError):
        decode_ops(payload + b"\0")


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_what_decodes_was_encoded_so(payload: bytes) -> None:
    try:
        first, ops = decode_ops(payload)
    except ValueError:
        return
    assert encode_ops(first, ops) == payload


@pytest.mark.parametrize(
    ("first", "ops", "why"),
    [
        (1, [], "0 ops"),
        (MAX_SEQUENCE, [(VALUE, b"a", b""), (VALUE, b"b", b"")], "from sequence"),
        (MAX_SEQUENCE + 1, [(VALUE, b"a", b"")], "from sequence"),
        (1, [(7, b"a", b"")], "kind 7"),
        (1, [(DELETE, b"a", b"v")], "carries a value"),
        (1, [(RANGE_DELETE, b"b", b"b")], "covers nothing"),
        (1, [(RANGE_DELETE, b"b", b"a")], "covers nothing"),
    ],
)
def test_malformed_batches_are_refused(first: int, ops: list[Op], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_ops(encode_ops(first, ops))


def test_a_huge_count_takes_no_time() -> None:
    with pytest.raises(ValueError, match="4294967295 ops in 12 bytes"):
        decode_ops(bytes(8) + b"\xff\xff\xff\xff")


def test_a_batch_counts_and_clears() -> None:
    batch = WriteBatch()
    assert len(batch) == 0
    batch.put(b"a", bytearray(b"1"))
    batch.delete(memoryview(b"b"))
    batch.delete_range(b"c", b"d")
    batch.delete_range(b"e", b"e")
    assert batch.ops == [(VALUE, b"a", b"1"), (DELETE, b"b", b""), (RANGE_DELETE, b"c", b"d")]
    assert all(type(part) is bytes for _, *parts in batch.ops for part in parts)
    assert batch.size_bytes == len(encode_ops(1, batch.ops))
    batch.clear()
    assert (len(batch), batch.ops, batch.size_bytes) == (0, [], 12)


def test_a_failed_call_leaves_the_batch_as_it_was() -> None:
    batch = WriteBatch()
    batch.put(b"a", b"1")
    calls: list[Callable[[], Any]] = [
        lambda: batch.put("a", b"1"),  # type: ignore[arg-type]
        lambda: batch.put(b"a", 5),  # type: ignore[arg-type]
        lambda: batch.delete(None),  # type: ignore[arg-type]
        lambda: batch.delete(bytes(KEY_BYTES_MAX + 1)),
        lambda: batch.delete_range(b"b", b"a"),
        lambda: batch.delete_range(b"a", "b"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises((TypeError, InvalidArgument)):
            call()
    assert batch.ops == [(VALUE, b"a", b"1")]
    assert batch.size_bytes == len(encode_ops(1, batch.ops))


def test_keys_and_values_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sub(bytes):
        pass

    for given_key in (b"k", bytearray(b"k"), memoryview(b"k"), Sub(b"k"), memoryview(b"kxkx")[::4]):
        assert as_key(given_key) == b"k"
        assert type(as_key(given_key)) is bytes
    with pytest.raises(TypeError, match=r"a key is bytes-like, not str; encode it first"):
        as_key("k")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a value is bytes-like, not int"):
        as_value(5)  # type: ignore[arg-type]
    assert as_key(bytes(KEY_BYTES_MAX)) == bytes(KEY_BYTES_MAX)
    with pytest.raises(InvalidArgument, match="key of 65536 bytes: the limit is KEY_BYTES_MAX = 65535"):
        as_key(bytes(KEY_BYTES_MAX + 1))
    monkeypatch.setattr(lsm.batch, "VALUE_BYTES_MAX", 10)
    assert as_value(bytearray(10)) == bytes(10)
    for too_large in (bytes(11), bytearray(11)):
        with pytest.raises(InvalidArgument, match="value of 11 bytes: the limit is VALUE_BYTES_MAX = 10"):
            as_value(too_large)


def test_a_key_that_changes_later_does_not_change_the_batch() -> None:
    key = bytearray(b"a")
    batch = WriteBatch()
    batch.put(key, b"1")
    key[0] = 0x7A
    assert batch.ops == [(VALUE, b"a", b"1")]
