"""Tables, format v1 ("scan"): a sorted run, and nothing above it. The baseline that every index is measured against.

    get b"k"   read chunk after chunk from the beginning, record after record, until b"k" or a larger key comes

The file, to the byte (integers little-endian; sections and footer: `lsm.sections`):

    data            chunk │ chunk │ …              chunk:   section bytes u32 | section of records
                                                   record:  key length u16 | value length u32 | tag u64 | key | value
    range deletes   section of a block             as in v2; not there without any
    properties      section of a block             `lsm.properties`
    footer          55 bytes, magic b"lsm.scn1"    index and filter have size 0

It is honest, not crippled: a chunk is read with one `pread`, records are small, sorted and checked, and a lookup stops
as soon as the key cannot come any more. What it lacks is any means to begin elsewhere than at the beginning: a lookup
costs time in proportion to the table, and so does the beginning of a scan. Nothing is cached.

Invariants: as in `lsm.table`, where they are not about blocks; a record is never cut by a chunk's end.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lsm.entry import Columns, RangeDelete
from lsm.errors import Corruption
from lsm.sections import MAGIC_SCAN, unseal
from lsm.table_file import TableFile, TableWriter, Tally, check_order

if TYPE_CHECKING:
    from lsm.cache import BlockCache
    from lsm.options import Options
    from lsm.sections import Tail
    from lsm.table_file import TableStats
    from lsm.version import TableMeta
    from simfs.api import File, Filesystem

_RECORD = struct.Struct("<HIQ")
_LENGTH = struct.Struct("<I")


def encode_records(columns: Columns) -> bytes:
    """The records of a chunk.

    >>> encode_records(Columns([b"k"], [257], [b"v"])).hex()
    '01000100000001010000000000006b76'
    """
    pack = _RECORD.pack
    return b"".join(
        [pack(len(key), len(value), tag) + key + value for key, tag, value in zip(*columns, strict=True)]
    )  # fmt: skip


def iter_records(raw: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """(key, tag, value) of each record. Raises `ValueError`."""
    at, end = 0, len(raw)
    while at < end:
        if end - at < _RECORD.size:
            raise ValueError(f"record at byte {at} of the chunk: its header is cut short")
        key_length, value_length, tag = _RECORD.unpack_from(raw, at)
        key_at = at + _RECORD.size
        value_at = key_at + key_length
        at = value_at + value_length
        if at > end:
            raise ValueError(f"record of {value_length} bytes ends {at - end} bytes after the chunk")
        yield raw[key_at:value_at], tag, raw[value_at:at]


def decode_records(raw: bytes) -> Columns:
    """The records of a chunk as columns. Raises `ValueError`."""
    rows = list(iter_records(raw))
    return Columns([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])


class ScanTableBuilder:
    """Builds one table; see `lsm.tables.TableBuilder`."""

    def __init__(self, fs: Filesystem, path: str, number: int, options: Options, **identity: Any) -> None:
        self._chunk_bytes = options.block_size
        self._writer = TableWriter(fs, path, number, options, magic=MAGIC_SCAN, **identity)
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    @property
    def entries(self) -> int:
        """Entries added so far."""
        return self._writer.tally.entries

    @property
    def size_estimate(self) -> int:
        """Bytes of the file if it were finished now, but for compression of the last chunk."""
        return self._writer.offset + self._pending_bytes

    def add(self, columns: Columns) -> None:
        """Take the next entries."""
        if not columns.keys:
            return
        self._writer.tally.add(columns, sum(map(len, columns.keys)) + sum(map(len, columns.values)))
        for key, tag, value in zip(*columns, strict=True):
            record = encode_records(Columns([key], [tag], [value]))
            if self._pending and self._pending_bytes + len(record) > self._chunk_bytes:
                self._write_chunk()
            self._pending.append(record)
            self._pending_bytes += len(record)

    def _write_chunk(self) -> None:
        writer = self._writer
        section = writer.pack(b"".join(self._pending), writer.offset + _LENGTH.size)
        writer.append(_LENGTH.pack(len(section)) + section)
        self._pending, self._pending_bytes = [], 0

    def add_range_deletes(self, deletes: Iterable[RangeDelete]) -> None:
        """Take range deletes, in any order, at any time."""
        self._writer.add_range_deletes(deletes)

    def finish(
        self, sync: bool, *, sequences: tuple[int, int] | None = None, siblings: tuple[int, ...] = ()
    ) -> TableMeta:
        """Write the rest and close; see `lsm.tables.TableBuilder`."""
        if self._pending:
            self._write_chunk()
        return self._writer.finish(None, None, sync, sequences, siblings)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._writer.abandon()


class ScanTable(TableFile):
    """An open v1 table; see `lsm.tables.TableReader`."""

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        file: File,
        tail: Tail,
        stats: TableStats,
        *,
        number: int | None,
        cache: BlockCache | None,  # noqa: ARG002  both formats are opened alike
        verify_checksums: bool,
    ) -> None:
        super().__init__(fs, path, file, tail, stats)
        self._verify_checksums = verify_checksums
        if number is not None:
            self._number = number
        self.memory_bytes = 4096
        if tail.footer.index_bytes or tail.footer.filter_bytes:
            raise Corruption(path, tail.footer.offsets[0], "a scan table has neither index nor filter")

    def may_contain(self, _key: bytes) -> bool:
        """There is no filter: perhaps."""
        return True

    def get(self, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
        """(tag, value) of the newest entry of `key` with a tag of at most `tag_max`."""
        stats = self.stats
        for offset, raw in self._chunks(count=True, verify=self._verify_checksums):
            try:
                for found, tag, value in iter_records(raw):
                    if found > key:
                        stats.false_positives += 1
                        return None
                    if found == key and tag <= tag_max:
                        stats.found += 1
                        stats.useful_bytes += len(value)
                        return tag, value
            except ValueError as error:
                raise self.damage(offset, error) from None
        stats.false_positives += 1
        return None

    def _chunks(self, *, count: bool, verify: bool) -> Iterator[tuple[int, bytes]]:
        """(offset, records) of each chunk. One read brings a chunk and the length of the next."""
        end = self.footer.data_bytes
        offset = 0
        head = self.pread(0, _LENGTH.size) if end else b""
        while offset < end:
            length = self._length(head, offset, end)
            begin = offset + _LENGTH.size
            data = self.pread(begin, length + _LENGTH.size)
            if count:
                self.stats.blocks_read += 1
                self.stats.bytes_read += length + _LENGTH.size
            yield offset, self._unsealed(data[:length], begin, verify=verify)
            head = data[length:]
            offset = begin + length

    def _length(self, head: bytes, offset: int, end: int) -> int:
        if len(head) < _LENGTH.size or offset + _LENGTH.size > end:
            raise Corruption(self.path, offset, "chunk: its length is cut short")
        length: int = _LENGTH.unpack_from(head)[0]
        if length > end - offset - _LENGTH.size:
            raise Corruption(self.path, offset, f"chunk of {length} bytes: only {end - offset - _LENGTH.size} are left")
        return length

    def _unsealed(self, section: bytes, offset: int, *, verify: bool) -> bytes:
        try:
            return unseal(section, offset, verify=verify)
        except ValueError as error:
            raise self.damage(offset, error) from None

    def _decoded(self, raw: bytes, offset: int) -> Columns:
        try:
            return decode_records(raw)
        except ValueError as error:
            raise self.damage(offset, error) from None

    def blocks(self, start: bytes, stop: bytes | None, *, fill_cache: bool = True) -> Iterator[Columns]:
        """The entries with keys in [start, stop), chunk by chunk; all before `start` is read as well."""
        for offset, raw in self._chunks(count=fill_cache, verify=self._verify_checksums):
            columns = self._decoded(raw, offset)
            trimmed = _trimmed(columns, start, stop)
            if trimmed.keys:
                if fill_cache:
                    self.stats.useful_bytes += sum(map(len, trimmed.keys)) + sum(map(len, trimmed.values))
                yield trimmed
            if stop is not None and columns.keys and columns.keys[-1] >= stop:
                return

    def blocks_reverse(self, start: bytes, stop: bytes | None, *, fill_cache: bool = True) -> Iterator[Columns]:
        """The same chunks, last first: the way is paved by hopping from length to length first."""
        end = self.footer.data_bytes
        places: list[tuple[int, int]] = []
        offset = 0
        while offset < end:
            length = self._length(self.pread(offset, _LENGTH.size), offset, end)
            places.append((offset + _LENGTH.size, length))
            offset += _LENGTH.size + length
        for begin, length in reversed(places):
            if fill_cache:
                self.stats.blocks_read += 1
                self.stats.bytes_read += length
            raw = self._unsealed(self.pread(begin, length), begin, verify=self._verify_checksums)
            columns = self._decoded(raw, begin)
            trimmed = _trimmed(columns, start, stop)
            if trimmed.keys:
                if fill_cache:
                    self.stats.useful_bytes += sum(map(len, trimmed.keys)) + sum(map(len, trimmed.values))
                yield trimmed
            if columns.keys and columns.keys[0] < start:
                return

    def verify(self) -> int:
        """Read and check every byte; see `lsm.tables.TableReader`."""
        tally = Tally()
        chunks = 0
        for offset, raw in self._chunks(count=False, verify=True):
            columns = self._decoded(raw, offset)
            try:
                if not columns.keys:
                    raise ValueError("chunk: no record")
                check_order(columns)
                tally.add(columns, sum(map(len, columns.keys)) + sum(map(len, columns.values)))
            except ValueError as error:
                raise self.damage(offset, error) from None
            chunks += 1
        self.check_counts(tally, chunks)
        return tally.entries

    def cache_keys(self) -> list[int]:
        """Nothing of this table is cached."""
        return []


def _trimmed(columns: Columns, start: bytes, stop: bytes | None) -> Columns:
    """The entries with keys in [start, stop)."""
    keys, tags, values = columns
    lo = bisect_left(keys, start)
    hi = len(keys) if stop is None else bisect_left(keys, stop, lo)
    return columns if hi - lo == len(keys) else Columns(keys[lo:hi], tags[lo:hi], values[lo:hi])
