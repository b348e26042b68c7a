r"""Integers and strings as bytes, and bytes as text for people.

    varint      7 bits a byte, least significant first; the high bit says "one more follows"
    bytes       varint length, then the bytes

Invariants:
1. A value has one encoding: a varint that ends in a needless zero byte is refused.
2. A decoder never reads past the end and never takes an unbounded amount of memory: it raises `ValueError`
   with what it expected and what it found, and the caller, who knows the file, makes `Corruption` of that.
3. `printable` is reversible: different bytes never print alike.

Left out: signed integers (nothing stored is negative).
"""

from __future__ import annotations

VARINT_BYTES_MAX = 10


def encode_varint(value: int) -> bytes:
    """A non-negative integer below 2^70 in as few bytes as it needs.

    >>> encode_varint(127).hex(), encode_varint(300).hex()
    ('7f', 'ac02')
    """
    assert 0 <= value < 1 << 70, value
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """The integer at `position`, and the position after it. Raises `ValueError`.

    >>> decode_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    value = shift = 0
    for at in range(position, min(position + VARINT_BYTES_MAX, len(data))):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ValueError(f"varint at byte {position} is longer than it need be")
            return value, at + 1
        shift += 7
    raise ValueError(f"varint at byte {position} does not end within {len(data) - position} bytes")


def encode_bytes(data: bytes) -> bytes:
    """A length and that many bytes.

    >>> encode_bytes(b"key").hex()
    '036b6579'
    """
    return encode_varint(len(data)) + data


def decode_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    """The string at `position`, and the position after it. Raises `ValueError`."""
    length, start = decode_varint(data, position)
    if length > len(data) - start:
        raise ValueError(f"string of {length} bytes at byte {position}: only {len(data) - start} bytes are left")
    return data[start : start + length], start + length


def printable(data: bytes, limit_bytes: int | None = None) -> str:
    r"""Bytes as text for people and for JSON: UTF-8 stays, what cannot be printed becomes \xNN, \ becomes \\.

    Beyond `limit_bytes` the rest is only counted (the one case that cannot be reversed).

    >>> printable(b"caf\xc3\xa9\x00\xff\\")
    'café\\x00\\xff\\\\'
    >>> printable(b"abcdefgh", 3)
    'abc… (5 bytes more)'
    """
    if limit_bytes is not None and len(data) > limit_bytes:
        return f"{printable(data[:limit_bytes])}… ({len(data) - limit_bytes} bytes more)"
    text = data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
