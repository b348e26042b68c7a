"""A batch of writes, and the bytes it becomes in the write-ahead log.

    payload:  first sequence u64 | count u32 | op | op | …
    op:       kind u8 | key length u16 | value length u32 | key | value

Integers are little-endian. Kinds are those of `lsm.entry`; a range delete has its start as key and
its (exclusive) end as value.

Invariants:
1. Op `i` of a payload has sequence `first + i`: a batch is a contiguous run of sequences.
2. What decodes was encoded so: unknown kinds, missing and left-over bytes are refused.
3. One payload is one log record, hence all or nothing: a batch is never torn in two.

Left out: read-your-writes batches (an index over the batch), savepoints, merge operands.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from lsm.entry import DELETE, MAX_SEQUENCE, RANGE_DELETE, VALUE
from lsm.errors import InvalidArgument
from lsm.options import KEY_BYTES_MAX, VALUE_BYTES_MAX
from simfs.api import BytesLike

Op: TypeAlias = tuple[int, bytes, bytes]
"""(kind, key, value)."""

_HEAD = struct.Struct("<QI")
_OP = struct.Struct("<BHI")
_SINGLE = struct.Struct("<QIBHI")


def as_key(key: BytesLike) -> bytes:
    """A key as `bytes`. Raises `TypeError` if it is not bytes-like, `InvalidArgument` if it is too long.

    >>> as_key(bytearray(b"k"))
    b'k'
    """
    if type(key) is bytes and len(key) <= KEY_BYTES_MAX:
        return key
    return _checked(key, "key", "KEY_BYTES_MAX", KEY_BYTES_MAX)


def as_value(value: BytesLike) -> bytes:
    """A value as `bytes`; errors as `as_key`."""
    if type(value) is bytes and len(value) <= VALUE_BYTES_MAX:
        return value
    return _checked(value, "value", "VALUE_BYTES_MAX", VALUE_BYTES_MAX)


def _checked(data: BytesLike, what: str, limit_name: str, limit_bytes: int) -> bytes:
    try:
        view = memoryview(data)
    except TypeError:
        hint = "; encode it first, as in text.encode()" if isinstance(data, str) else ""
        raise TypeError(f"a {what} is bytes-like, not {type(data).__name__}{hint}") from None
    if view.nbytes > limit_bytes:
        raise InvalidArgument(f"{what} of {view.nbytes} bytes: the limit is {limit_name} = {limit_bytes}")
    return view.tobytes()


class WriteBatch:
    """Writes that become visible, and durable, together. Later ops win over earlier ones.

    >>> batch = WriteBatch()
    >>> batch.put(b"a", b"1")
    >>> batch.delete(b"b")
    >>> len(batch), batch.size_bytes
    (2, 29)
    """

    __slots__ = ("ops", "size_bytes")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.size_bytes = _HEAD.size
        """Bytes of the log record's payload."""

    def put(self, key: BytesLike, value: BytesLike) -> None:
        """Set `key` to `value`."""
        self._add(VALUE, as_key(key), as_value(value))

    def delete(self, key: BytesLike) -> None:
        """Remove `key`, present or not."""
        self._add(DELETE, as_key(key), b"")

    def delete_range(self, start: BytesLike, end: BytesLike) -> None:
        """Remove every key in [start, end). Nothing if they are equal; `InvalidArgument` if start > end."""
        start, end = as_key(start), as_key(end)
        if start > end:
            raise InvalidArgument(f"delete_range: start {start[:40]!r} lies after end {end[:40]!r}")
        if start < end:
            self._add(RANGE_DELETE, start, end)

    def _add(self, kind: int, key: bytes, value: bytes) -> None:
        self.ops.append((kind, key, value))
        self.size_bytes += _OP.size + len(key) + len(value)

    def clear(self) -> None:
        """Forget all ops, to use the batch again."""
        self.ops = []
        self.size_bytes = _HEAD.size

    def __len__(self) -> int:
        return len(self.ops)


def encode_op(sequence: int, kind: int, key: bytes, value: bytes) -> bytes:
    """The payload of a single op; what `encode_ops` gives for it, a little faster.

    >>> encode_op(7, VALUE, b"k", b"v").hex(" ")
    '07 00 00 00 00 00 00 00 01 00 00 00 01 01 00 01 00 00 00 6b 76'
    """
    return _SINGLE.pack(sequence, 1, kind, len(key), len(value)) + key + value


def encode_ops(first_sequence: int, ops: Sequence[Op]) -> bytes:
    """The payload of checked ops (see `as_key`).

    >>> encode_ops(7, [(VALUE, b"k", b"v"), (DELETE, b"x", b"")]).hex(" ", -8)
    '0700000000000000 0200000001010001 0000006b76000100 0000000078'
    """
    if len(ops) == 1:
        kind, key, value = ops[0]
        return _SINGLE.pack(first_sequence, 1, kind, len(key), len(value)) + key + value
    pack = _OP.pack
    parts = [_HEAD.pack(first_sequence, len(ops))]
    for kind, key, value in ops:
        parts += (pack(kind, len(key), len(value)), key, value)
    return b"".join(parts)


def decode_ops(payload: bytes) -> tuple[int, list[Op]]:
    """First sequence and ops of a payload. Raises `ValueError` saying what does not fit."""
    size = len(payload)
    if size >= _SINGLE.size:  # most records are one put
        first, count, kind, key_length, value_length = _SINGLE.unpack_from(payload)
        middle = _SINGLE.size + key_length
        if count == 1 and kind == VALUE and middle + value_length == size and first <= MAX_SEQUENCE:
            return first, [(VALUE, payload[_SINGLE.size : middle], payload[middle:])]
    if size < _HEAD.size:
        raise ValueError(f"batch of {size} bytes: its head alone has {_HEAD.size}")
    first, count = _HEAD.unpack_from(payload)
    if count == 0 or first + count - 1 > MAX_SEQUENCE:
        raise ValueError(f"batch of {count} ops from sequence {first}")
    if count > size // _OP.size:
        raise ValueError(f"batch of {count} ops in {size} bytes")
    ops: list[Op] = []
    position = _HEAD.size
    unpack = _OP.unpack_from
    for _ in range(count):
        if position + _OP.size > size:
            raise ValueError(f"op {len(ops)} of {count} begins at byte {position} of {size}")
        kind, key_length, value_length = unpack(payload, position)
        middle = position + _OP.size + key_length
        position = middle + value_length
        if position > size:
            raise ValueError(f"op {len(ops)} of {count} ends at byte {position} of {size}")
        key, value = payload[middle - key_length : middle], payload[middle:position]
        if kind != VALUE:
            _check_kind(kind, key, value)
        ops.append((kind, key, value))
    if position != size:
        raise ValueError(f"{size - position} bytes after the last of {count} ops")
    return first, ops


def _check_kind(kind: int, key: bytes, value: bytes) -> None:
    if kind not in (DELETE, RANGE_DELETE):
        raise ValueError(f"op kind {kind} is unknown")
    if kind == DELETE and value:
        raise ValueError(f"a delete carries a value of {len(value)} bytes")
    if kind == RANGE_DELETE and key >= value:
        raise ValueError(f"range delete: {key!r} to {value!r} covers nothing")
