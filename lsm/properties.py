"""What a table says of itself: everything that the manifest knows of it, and what repair needs without one.

Stored as a block (`lsm.block`), name → value, so that a property can be added without a new format:

    integer      varint (`lsm.coding`)
    integers     varints, one after the other
    text         UTF-8
    key          the bytes as they are

A property that is None is not stored. Invariants: an unknown name is skipped; a known one that is missing or
malformed is damage. `job` and `siblings` tell which tables one compaction made: its last output names them all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from lsm.block import decode_block, encode_block
from lsm.coding import decode_varint, encode_varint
from lsm.entry import Columns
from lsm.version import TableMeta


@dataclass(frozen=True, kw_only=True)
class TableProperties:
    """See the comment of each field. Sequence bounds are the hull of what went into the table."""

    format: str  # "block" or "scan"
    number: int  # the table's when it was written
    entries: int  # point entries, deletes included
    deletes: int
    range_deletes: int
    smallest: bytes | None = None  # of the point entries
    largest: bytes | None = None
    seq_min: int
    seq_max: int
    range_start: bytes | None = None  # hull of the range deletes, end exclusive
    range_end: bytes | None = None
    raw_bytes: int  # keys and values before compression
    blocks: int  # sections in the data area
    block_size: int  # as asked for by the options
    filter_bits_per_key: str
    codec: str
    created_s: int
    log_floor: int  # logs below this number are in tables, as of this table's creation
    obsoletes: tuple[int, ...] = ()  # tables that it replaces
    job: int  # of the compaction or flush that made it
    siblings: tuple[int, ...] = ()  # all outputs of that job, in the last one of them

    def meta(self, number: int, size_bytes: int) -> TableMeta:
        """The table as the manifest knows it."""
        return TableMeta(
            number=number,
            size_bytes=size_bytes,
            entries=self.entries,
            deletes=self.deletes,
            range_deletes=self.range_deletes,
            smallest=self.smallest,
            largest=self.largest,
            seq_min=self.seq_min,
            seq_max=self.seq_max,
            range_start=self.range_start,
            range_end=self.range_end,
            raw_bytes=self.raw_bytes,
            created_s=self.created_s,
        )


_TEXT = ("format", "filter_bits_per_key", "codec")
_KEYS = ("smallest", "largest", "range_start", "range_end")
_LISTS = ("obsoletes", "siblings")


def encode_properties(properties: TableProperties) -> bytes:
    """The block of names and values."""
    named = {field.name: getattr(properties, field.name) for field in fields(properties)}
    stored = sorted((name.encode(), _encode(name, value)) for name, value in named.items() if value is not None)
    return encode_block(Columns([name for name, _ in stored], [0] * len(stored), [value for _, value in stored]))


def _encode(name: str, value: Any) -> bytes:
    if name in _TEXT:
        text: str = value
        return text.encode()
    if name in _KEYS:
        key: bytes = value
        return key
    return b"".join(map(encode_varint, value if name in _LISTS else (value,)))


def decode_properties(data: bytes) -> TableProperties:
    """Raises `ValueError`, naming the property."""
    columns = decode_block(data)
    stored = dict(zip(columns.keys, columns.values, strict=True))
    known: dict[str, Any] = {}
    for field in fields(TableProperties):
        value = stored.get(field.name.encode())
        if value is not None:
            known[field.name] = _decode(field.name, value)
        elif field.name not in _KEYS:
            raise ValueError(f"property {field.name} is missing")
    return TableProperties(**known)


def _decode(name: str, value: bytes) -> Any:
    if name in _TEXT:
        return value.decode()
    if name in _KEYS:
        return value
    numbers, position = [], 0
    while position < len(value):
        number, position = decode_varint(value, position)
        numbers.append(number)
    if name in _LISTS:
        return tuple(numbers)
    if len(numbers) != 1:
        raise ValueError(f"property {name}: expected one integer, found {len(numbers)}")
    return numbers[0]
