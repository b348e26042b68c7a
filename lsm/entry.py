"""What the engine stores: versions of keys, ordered by (key ascending, sequence descending).

A *tag* packs an entry's sequence number and kind into one integer, as LevelDB does:

    tag = sequence << 8 | kind          kind: 0 delete, 1 value, 15 range delete

so that "newest first" is "largest tag first", and a reader at sequence `s` sees the first entry of a
key whose tag is at most `read_tag(s)`.

Entries travel in *columns* (three parallel lists) rather than one by one: a loop over entries that
belongs inside C can stay there (`sorted`, slices, `zip`).

Invariants of a `Columns` value:
1. The three lists have one length; a delete's value is `b""`.
2. Keys ascend; among equal keys tags descend strictly.
3. Range deletes are not among them: they travel beside, as `RangeDelete`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

DELETE = 0
VALUE = 1
RANGE_DELETE = 15
KIND_BITS = 8
KIND_MASK = 0xFF
MAX_SEQUENCE = (1 << 56) - 1


def make_tag(sequence: int, kind: int) -> int:
    """Pack a sequence number and a kind.

    >>> hex(make_tag(3, VALUE))
    '0x301'
    """
    return sequence << KIND_BITS | kind


def read_tag(sequence: int) -> int:
    """The largest tag that a reader at `sequence` may see."""
    return sequence << KIND_BITS | KIND_MASK


class Columns(NamedTuple):
    """A sorted run of entries as parallel lists; see the invariants above."""

    keys: list[bytes]
    tags: list[int]
    values: list[bytes]


class RangeDelete(NamedTuple):
    """Every version of a key in [start, end) older than `sequence` is deleted. Sorts by start."""

    start: bytes
    end: bytes
    sequence: int


Found: TypeAlias = tuple[int, bytes | None]
"""What a memtable's lookup found: (sequence, value) of the newest visible version; a delete's value is None.

A plain tuple: a named one costs four times as much to make, and a lookup makes one each time.
"""


def check_columns(columns: Columns) -> None:
    """Assert the invariants (tests and debugging; linear)."""
    keys, tags, values = columns
    assert len(keys) == len(tags) == len(values), "columns differ in length"
    for i in range(1, len(keys)):
        assert keys[i - 1] < keys[i] or (keys[i - 1] == keys[i] and tags[i - 1] > tags[i]), (keys[i - 1], keys[i])
    for tag, value in zip(tags, values, strict=True):
        assert tag & KIND_MASK in (DELETE, VALUE), tag
        assert tag & KIND_MASK == VALUE or value == b"", "a delete carries a value"
