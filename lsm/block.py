"""A block: some sorted entries as columns, searchable as it lies in the file.

    entries                 block (integers little-endian)
    k1  tag1  v1            header │ prefix │ key ends │ keys      │ tags      │ value ends │ values
    k2  tag2  v2     ─▶     25 B   │ b"k"   │ –        │ "1" "2" … │ t1 t2 …   │ –          │ v1 v2 …
    …

    header:  count u32 | prefix length u16 | key width u8 | value width u8 | tag width u8 | tag base u64 |
             key bytes u32 | value bytes u32

    key width 0      all keys have one length: `key bytes` is that of one (prefix not counted), and there are no ends
    key width 2, 4   key i ends at ends[i], unsigned integers of that width; `key bytes` is that of all
    value width      likewise
    tag width 4, 8   tag i is tag base + tags[i]

Column by column and not entry by entry: keys and values of one length, the common case in a table, come out of one
`struct.unpack` in C, and a search touches no value. Every section of a table that is a list of something is a block:
data, index (last key → offset), range deletes (start → sequence, end), properties (name → value).

Invariants:
1. `decode_block(encode_block(columns)) == columns`, whatever the lengths; keys ascend, equal ones by falling tag.
2. A block describes its own length: one that is too short or too long is refused before anything is read from it.
3. `Block.get` answers on the raw bytes (a first touch costs no decoding) what `DecodedBlock.get` does on the columns.

The common prefix of all keys is stored once, but only where this saves an eighth of the block: joining it to each key
again costs a scan more than those bytes do. Likewise tags stand as they are (base 0) while they fit in 32 bits.

Left out: prefix compression from key to key with restart points (LevelDB's), which saves more on long keys that differ
late, and can only be decoded key by key, in Python.
"""

from __future__ import annotations

import functools
import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from lsm.entry import Columns

_HEADER = struct.Struct("<IHBBBQII")
_WIDTHS = {2: struct.Struct("<H"), 4: struct.Struct("<I"), 8: struct.Struct("<Q")}
_LETTERS = {2: "H", 4: "I", 8: "Q"}
_PREFIX_WORTH = 8  # strip a common prefix that is at least this fraction of the entries
_FIND_TRIES = 3
_STRINGS_MAX = 1024  # such a struct takes 32 bytes for each string: large ones are not kept

BLOCK_OVERHEAD_BYTES = 250
"""CPython's for a block: its object, the headers of bytes or lists."""
ENTRY_OVERHEAD_BYTES = 122
"""CPython's for a decoded entry: headers of key, value and tag, and three pointers."""


def encode_block(columns: Columns) -> bytes:
    """The block that holds these entries (at least one; keys sorted, at most 65,535 bytes long).

    >>> encode_block(Columns([b"k1", b"k2"], [257, 513], [b"a", b"b"])).hex(" ", -4)
    '02000000 01000000 04000000 00000000 00010000 00010000 006b3132 01010000 01020000 6162'
    """
    keys, tags, values = columns
    prefix_length = _common_prefix(keys[0], keys[-1]) if len(keys) > 1 else 0
    key_column = b"".join(keys)
    value_column = b"".join(values)
    if prefix_length * len(keys) * _PREFIX_WORTH < len(key_column) + len(value_column):
        prefix_length = 0
    if prefix_length:
        suffixes = [key[prefix_length:] for key in keys]
        key_column = b"".join(suffixes)
    else:
        suffixes = keys
    key_width, key_bytes, key_ends = _lengths(suffixes, len(key_column))
    value_width, value_bytes, value_ends = _lengths(values, len(value_column))
    tag_width, tag_base, tag_column = _narrow(tags)
    header = _HEADER.pack(
        len(keys), prefix_length, key_width, value_width, tag_width, tag_base, key_bytes, value_bytes
    )  # fmt: skip
    prefix = keys[0][:prefix_length] if prefix_length else b""
    return b"".join((header, prefix, key_ends, key_column, tag_column, value_ends, value_column))


def decode_block(raw: bytes) -> Columns:
    """The entries of a block. Raises `ValueError`."""
    return Block(raw).decode().columns


def _common_prefix(first: bytes, last: bytes) -> int:
    """How many bytes two keys have in common; of sorted keys, the outermost two tell for all."""
    shorter = min(len(first), len(last))
    differing = int.from_bytes(first[:shorter], "big") ^ int.from_bytes(last[:shorter], "big")
    return shorter - (differing.bit_length() + 7) // 8


def _lengths(items: Sequence[bytes], total_bytes: int) -> tuple[int, int, bytes]:
    """(width, bytes for the header, encoded ends) of a column."""
    lengths = list(map(len, items))
    if lengths.count(lengths[0] if lengths else 0) == len(lengths):
        return 0, lengths[0] if lengths else 0, b""
    width = 2 if total_bytes < 1 << 16 else 4
    return width, total_bytes, _numbers(len(items), width).pack(*accumulate(lengths))


def _narrow(tags: Sequence[int]) -> tuple[int, int, bytes]:
    """(width, base, encoded differences) of the tags."""
    largest = max(tags, default=0)
    if largest < 1 << 32:
        return 4, 0, _numbers(len(tags), 4).pack(*tags)
    base = min(tags)
    width = 4 if largest - base < 1 << 32 else 8
    return width, base, _numbers(len(tags), width).pack(*[tag - base for tag in tags])


@functools.lru_cache(maxsize=1024)
def _numbers(count: int, width: int) -> struct.Struct:
    return struct.Struct(f"<{count}{_LETTERS[width]}")


def _strings(count: int, length: int) -> struct.Struct:
    return _cached_strings(count, length) if count <= _STRINGS_MAX else struct.Struct(f"{length}s" * count)


@functools.lru_cache(maxsize=256)
def _cached_strings(count: int, length: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)


class Block:
    """A block as it was read: searched where it lies. Raises `ValueError` if it cannot be a block."""

    __slots__ = (
        "_key_bytes", "_key_ends", "_key_width", "_keys", "_prefix", "_raw", "_tag_base", "_tag_width", "_tags",
        "_value_bytes", "_value_ends", "_value_width", "_values", "charge_bytes", "count",
    )  # fmt: skip
    decoded = False

    def __init__(self, raw: bytes) -> None:
        if len(raw) < _HEADER.size:
            raise ValueError(f"block: expected {_HEADER.size} bytes of header, found {len(raw)}")
        self.count: int
        (
            self.count, prefix_length, self._key_width, self._value_width, self._tag_width, self._tag_base,
            self._key_bytes, self._value_bytes,
        ) = _HEADER.unpack_from(raw)  # fmt: skip
        count, key_width, value_width = self.count, self._key_width, self._value_width
        if key_width not in (0, 2, 4) or value_width not in (0, 2, 4) or self._tag_width not in (4, 8):
            raise ValueError(f"block: impossible widths {key_width}, {value_width}, {self._tag_width}")
        self._key_ends = _HEADER.size + prefix_length
        self._keys = self._key_ends + key_width * count
        self._tags = self._keys + self._key_bytes * (1 if key_width else count)
        self._value_ends = self._tags + self._tag_width * count
        self._values = self._value_ends + value_width * count
        end = self._values + self._value_bytes * (1 if value_width else count)
        if end != len(raw):
            raise ValueError(f"block: expected {end} bytes, found {len(raw)}")
        self._prefix = raw[_HEADER.size : self._key_ends] if prefix_length else b""
        self._raw = raw
        self.charge_bytes = len(raw) + BLOCK_OVERHEAD_BYTES

    def decode(self) -> DecodedBlock:
        """The same entries as columns. Raises `ValueError`."""
        tags = _numbers(self.count, self._tag_width).unpack_from(self._raw, self._tags)
        base = self._tag_base
        columns = Columns(
            self._decoded(self._key_ends, self._key_width, self._keys, self._key_bytes, self._prefix),
            [base + tag for tag in tags] if base else list(tags),
            self._decoded(self._value_ends, self._value_width, self._values, self._value_bytes, b""),
        )
        suffix_bytes, value_bytes = self._tags - self._keys, len(self._raw) - self._values
        return DecodedBlock(columns, len(self._prefix) * self.count + suffix_bytes + value_bytes)

    def _decoded(self, ends_at: int, width: int, start: int, size: int, prefix: bytes) -> list[bytes]:
        """One column of strings."""
        if width == 0:
            items = _strings(self.count, size).unpack_from(self._raw, start)
            return [prefix + item for item in items] if prefix else list(items)
        ends = _numbers(self.count, width).unpack_from(self._raw, ends_at)
        if not ends or ends[-1] != size:
            raise ValueError(f"block: a column of {size} bytes has ends {ends[-1:]}")
        column = self._raw[start : start + size]
        starts = (0, *ends[:-1])
        if prefix:
            return [prefix + column[lo:hi] for lo, hi in zip(starts, ends, strict=True)]
        return [column[lo:hi] for lo, hi in zip(starts, ends, strict=True)]

    def get(self, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
        """(tag, value) of the newest entry of `key` with a tag of at most `tag_max`."""
        if self._prefix:
            if not key.startswith(self._prefix):
                return None
            key = key[len(self._prefix) :]
        i = self._first(key)
        if i < 0:
            return None
        number, tags = _WIDTHS[self._tag_width], self._tags
        while True:
            tag = self._tag_base + number.unpack_from(self._raw, tags + i * number.size)[0]
            if tag <= tag_max:
                return tag, self._item(self._value_ends, self._value_width, self._values, self._value_bytes, i)
            i += 1
            if i == self.count or self._key(i) != key:
                return None

    # searching the raw bytes

    def _first(self, suffix: bytes) -> int:
        """The position of the first (newest) entry of a key, -1 if there is none."""
        if self._key_width == 0:
            size: int = self._key_bytes
            start: int = self._keys
            if len(suffix) != size:
                return -1
            if size:  # `bytes.find` searches in C, but may also hit across two keys
                at: int = self._raw.find(suffix, start, self._tags)
                for _ in range(_FIND_TRIES):
                    if at < 0:
                        return -1
                    if (at - start) % size == 0:
                        return (at - start) // size
                    at = self._raw.find(suffix, at + 1, self._tags)
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self._key(middle) < suffix:
                low = middle + 1
            else:
                high = middle
        return low if low < self.count and self._key(low) == suffix else -1

    def _key(self, i: int) -> bytes:
        """Key `i` without the prefix."""
        return self._item(self._key_ends, self._key_width, self._keys, self._key_bytes, i)

    def _item(self, ends_at: int, width: int, start: int, size: int, i: int) -> bytes:
        """String `i` of a column."""
        if width == 0:
            return self._raw[start + i * size : start + (i + 1) * size]
        number = _WIDTHS[width]
        low = number.unpack_from(self._raw, ends_at + (i - 1) * width)[0] if i else 0
        return self._raw[start + low : start + number.unpack_from(self._raw, ends_at + i * width)[0]]


class DecodedBlock:
    """The entries of a block as lists. They are shared by all who ask and must not be changed."""

    __slots__ = ("charge_bytes", "columns", "item_bytes")
    decoded = True

    def __init__(self, columns: Columns, item_bytes: int) -> None:
        self.columns = columns
        self.item_bytes = item_bytes  # of keys and values
        self.charge_bytes = item_bytes + ENTRY_OVERHEAD_BYTES * len(columns.keys) + BLOCK_OVERHEAD_BYTES

    def get(self, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
        """As `Block.get`."""
        keys, tags, values = self.columns
        i = bisect_left(keys, key)
        while i < len(keys) and keys[i] == key:
            if tags[i] <= tag_max:
                return tags[i], values[i]
            i += 1
        return None
