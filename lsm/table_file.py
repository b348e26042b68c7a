"""What both table formats share: writing sections, what is counted on the way, opening, the counters of reads.

A format's builder feeds `TableWriter` with sections and counts; a format's reader builds on `TableFile`. What differs,
the data area and how a key is found in it, is in `lsm.table` (v2) and `lsm.scan_table` (v1).

Invariants:
1. A table is complete when `finish` returned, and synced if that was asked for. Before, it has no footer and
   nobody takes it for a table.
2. What is counted while writing is counted again by `verify`, with the same code (`Tally`).
3. A reader goes on working after `close` (the table cache may close it while somebody in the middle of a scan
   holds it): it then opens the file for each read.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING

from lsm.block import decode_block, encode_block
from lsm.codecs import require
from lsm.entry import DELETE, KIND_BITS, KIND_MASK, RANGE_DELETE, VALUE, Columns, RangeDelete, make_tag
from lsm.errors import Corruption
from lsm.properties import TableProperties, decode_properties, encode_properties
from lsm.sections import MAGIC_BLOCK, Footer, Tail, damage, encode_footer, seal
from simfs.api import File, SyncKind

if TYPE_CHECKING:
    from lsm.options import Options
    from lsm.version import TableMeta
    from simfs.api import Filesystem

WRITE_BYTES = 256 * 1024
"""Appends gather in the process until so much is there."""


@dataclass
class TableStats:
    """What reading has cost, over all tables that share this object. Compactions are not in it."""

    found: int = 0
    false_positives: int = 0  # the filter let the key through, the table did not hold it
    filter_negatives: int = 0
    blocks_read: int = 0  # from files, not from the cache
    bytes_read: int = 0
    useful_bytes: int = 0  # of values found, of keys and values scanned

    def lookups(self) -> dict[str, int]:
        """How the lookups ended that reached a table."""
        return {
            "probes": self.found + self.false_positives + self.filter_negatives,
            "found": self.found,
            "filter_negatives": self.filter_negatives,
            "filter_false_positives": self.false_positives,
            "blocks_read": self.blocks_read,
        }


class Tally:
    """Counts and bounds of entries that come in order. Raises `ValueError` if they do not."""

    def __init__(self) -> None:
        self.entries = self.deletes = self.raw_bytes = 0
        self.smallest: bytes | None = None
        self.largest: bytes | None = None
        self.seq_min, self.seq_max = 1 << 64, -1
        self._last_tag = 0

    def add(self, columns: Columns, raw_bytes: int) -> None:
        """Note entries of `raw_bytes` in keys and values."""
        keys, tags, values = columns
        if self.largest is not None and not (
            self.largest < keys[0] or (self.largest == keys[0] and self._last_tag > tags[0])
        ):
            raise ValueError(f"key {keys[0]!r} does not come after {self.largest!r}")
        if self.smallest is None:
            self.smallest = keys[0]
        self.largest, self._last_tag = keys[-1], tags[-1]
        self.entries += len(keys)
        self.raw_bytes += raw_bytes
        self.seq_min = min(self.seq_min, min(tags) >> KIND_BITS)
        self.seq_max = max(self.seq_max, max(tags) >> KIND_BITS)
        if values.count(b""):  # a delete's value is empty: without such values there is none
            self.deletes += sum(tag & KIND_MASK == DELETE for tag in tags)


def check_order(columns: Columns) -> None:
    """Raise `ValueError` if entries are out of order, of unknown kind, or a delete carries a value."""
    keys, tags, values = columns
    if not all(map(lt, keys, islice(keys, 1, None))):
        for i in range(1, len(keys)):
            if not (keys[i - 1] < keys[i] or (keys[i - 1] == keys[i] and tags[i - 1] > tags[i])):
                raise ValueError(f"key {keys[i]!r} does not come after {keys[i - 1]!r}")
    for tag, value in zip(tags, values, strict=True):
        kind = tag & KIND_MASK
        if kind != VALUE and (kind != DELETE or value):
            raise ValueError(f"impossible kind {kind} with a value of {len(value)} bytes")


class TableWriter:
    """A table file in the making. Sections go in by `append`; `finish` adds the rest."""

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        number: int,
        options: Options,
        *,
        log_floor: int,
        obsoletes: tuple[int, ...],
        created_s: int,
        job: int | None,
        magic: bytes,
    ) -> None:
        require(options.compression)
        self.offset = 0
        self.tally = Tally()
        self.blocks = 0
        self._fs = fs
        self._path = path
        self._number = number
        self._options = options
        self._log_floor = log_floor
        self._obsoletes = obsoletes
        self._created_s = created_s
        self._job = number if job is None else job
        self._magic = magic
        self._range_deletes: list[RangeDelete] = []
        self._file: File = fs.create(path, buffer_bytes=WRITE_BYTES)

    def append(self, data: bytes) -> None:
        """Write bytes of the data area."""
        self._file.append(data)
        self.offset += len(data)
        self.blocks += 1

    def pack(self, raw: bytes, offset: int) -> bytes:
        """A section of the data area, for `offset`, packed as the options say."""
        return seal(raw, offset, self._options.compression, self._options.compression_level)

    def add_range_deletes(self, deletes: Iterable[RangeDelete]) -> None:
        """Range deletes, in any order."""
        self._range_deletes += deletes

    def finish(
        self,
        index: bytes | None,
        filter_: bytes | None,
        sync: bool,
        sequences: tuple[int, int] | None,
        siblings: tuple[int, ...],
    ) -> TableMeta:
        """Write what follows the data, and close. None for a part that the format does not have."""
        properties = self._properties(sequences, siblings)
        data_bytes = offset = self.offset
        deletes = encode_range_deletes(self._range_deletes) if self._range_deletes else None
        sizes = []
        for raw in (index, filter_, deletes, encode_properties(properties)):
            section = b"" if raw is None else seal(raw, offset)
            self._file.append(section)
            offset += len(section)
            sizes.append(len(section))
        footer = encode_footer(Footer(self._magic, data_bytes, *sizes))
        self._file.append(footer)
        if sync:
            self._file.sync(SyncKind.DATA, "table.finish")
        self._file.close()
        return properties.meta(self._number, offset + len(footer))

    def _properties(self, sequences: tuple[int, int] | None, siblings: tuple[int, ...]) -> TableProperties:
        tally, deletes = self.tally, self._range_deletes
        assert tally.entries or deletes, f"{self._path}: a table of nothing"
        bounds = [tally.seq_min, tally.seq_max] if tally.entries else []
        bounds += [sequence for _, _, sequence in deletes]
        bounds += sequences or ()
        return TableProperties(
            format="block" if self._magic == MAGIC_BLOCK else "scan",
            number=self._number,
            entries=tally.entries,
            deletes=tally.deletes,
            range_deletes=len(deletes),
            smallest=tally.smallest,
            largest=tally.largest,
            seq_min=min(bounds),
            seq_max=max(bounds),
            range_start=min((start for start, _, _ in deletes), default=None),
            range_end=max((end for _, end, _ in deletes), default=None),
            raw_bytes=tally.raw_bytes,
            blocks=self.blocks,
            block_size=self._options.block_size,
            filter_bits_per_key=f"{self._options.filter_bits_per_key:g}",
            codec=self._options.compression,
            created_s=self._created_s,
            log_floor=self._log_floor,
            obsoletes=self._obsoletes,
            job=self._job,
            siblings=siblings,
        )

    def abandon(self) -> None:
        """Close and remove the unfinished file."""
        with suppress(OSError):
            self._file.close()
        self._fs.remove(self._path)


def encode_range_deletes(deletes: Iterable[RangeDelete]) -> bytes:
    """As a block: start → (sequence, end), sorted by start, newest first."""
    rows = sorted(deletes, key=lambda row: (row.start, -row.sequence))
    starts, ends, sequences = ([row[column] for row in rows] for column in range(3))
    return encode_block(Columns(starts, [make_tag(sequence, RANGE_DELETE) for sequence in sequences], ends))  # type: ignore[arg-type]


def decode_range_deletes(data: bytes) -> list[RangeDelete]:
    """Raises `ValueError`."""
    columns = decode_block(data)
    rows = [RangeDelete(start, end, tag >> KIND_BITS) for start, tag, end in zip(*columns, strict=True)]
    for tag in columns.tags:
        if tag & KIND_MASK != RANGE_DELETE:
            raise ValueError(f"range deletes: expected kind {RANGE_DELETE}, found {tag & KIND_MASK}")
    return rows


class TableFile:
    """An open table, as far as the formats agree. Raises `Corruption` from the constructor on."""

    def __init__(self, fs: Filesystem, path: str, file: File, tail: Tail, stats: TableStats) -> None:
        self.path = path
        self.size_bytes = tail.size_bytes
        self.footer = tail.footer
        self.stats = stats
        self._fs = fs
        self._file = file
        _, _, deletes_at, properties_at = tail.footer.offsets
        try:
            at = properties_at
            self.properties: TableProperties = decode_properties(tail.section(at, tail.footer.properties_bytes))
            at = deletes_at
            size = tail.footer.range_deletes_bytes
            self.range_deletes: list[RangeDelete] = decode_range_deletes(tail.section(at, size)) if size else []
        except ValueError as error:
            raise self.damage(at, error) from None
        self._number = self.properties.number

    def damage(self, offset: int, error: ValueError) -> Exception:
        """`error`, as found at `offset` of this file."""
        return damage(self.path, offset, error)

    def meta(self) -> TableMeta:
        """The table as the manifest knows it, under the number it was opened with."""
        return self.properties.meta(self._number, self.size_bytes)

    def pread(self, offset: int, size: int) -> bytes:
        """Bytes of the file; see invariant 3."""
        try:
            return self._file.pread(offset, size)
        except ValueError:
            with self._fs.open(self.path) as file:
                return file.pread(offset, size)

    def close(self) -> None:
        """Give the file handle back."""
        self._file.close()

    def check_counts(self, tally: Tally, blocks: int) -> None:
        """Raise `Corruption` if what was read is not what the properties say."""
        stored, deletes = self.properties, self.range_deletes
        found: dict[str, object] = {
            "entries": tally.entries,
            "deletes": tally.deletes,
            "smallest": tally.smallest,
            "largest": tally.largest,
            "raw_bytes": tally.raw_bytes,
            "blocks": blocks,
            "range_deletes": len(deletes),
            "range_start": min((start for start, _, _ in deletes), default=None),
            "range_end": max((end for _, end, _ in deletes), default=None),
        }
        for name, value in found.items():
            if getattr(stored, name) != value:
                reason = f"{name}: the properties say {getattr(stored, name)!r}, found {value!r}"
                raise Corruption(self.path, self.footer.offsets[3], reason)
        bounds = [sequence for _, _, sequence in deletes] + ([tally.seq_min, tally.seq_max] if tally.entries else [])
        if bounds and not stored.seq_min <= min(bounds) <= max(bounds) <= stored.seq_max:
            reason = f"sequences {min(bounds)}…{max(bounds)} are not within {stored.seq_min}…{stored.seq_max}"
            raise Corruption(self.path, self.footer.offsets[3], reason)
