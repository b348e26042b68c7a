"""Tables, format v2 ("block"): data blocks, and above them an index and a filter that stay in memory.

    get b"k"   filter ── no ─▶ not here, nothing was read                                       `lsm.bloom`
                 └─ perhaps ─▶ index: the first block whose last key is ≥ b"k"                  one bisection
                                 └─▶ block: from the cache, or one `pread`                      `lsm.cache`
                                       └─▶ search                                               `lsm.block`

The file, to the byte (integers little-endian; sections and footer: `lsm.sections`, blocks: `lsm.block`):

    data            section │ section │ …          each a block of entries: key, tag (`lsm.entry`), value
    index           section of a block             an entry for each data block: last key, tag = its offset, no value
    filter          section of a Bloom filter      `lsm.bloom`; not there with `filter_bits_per_key` 0, or no entries
    range deletes   section of a block             start, tag = sequence << 8 | 15, value = end; not there without any
    properties      section of a block             name, tag 0, value: `lsm.properties`
    footer          55 bytes, magic b"lsm.blk2"    sizes of the five areas; a part that is not there has size 0

Data block i ends where block i + 1 begins, the last one where the index begins. Data blocks are compressed as the
options say, the other sections never.

Invariants:
1. Blocks are cut at `block_size` bytes of keys, values and 8 for each entry; one entry may be larger.
2. Versions of one key may lie in two blocks; a lookup goes on to the next block while the last key is still its own.
3. One `pread` reads a block, whole; index and filter are read once, when the table is opened.
4. The bytes depend on the entries and options alone (if compressed, on the codec's version as well), not on the
   windows in which the entries came.

Left out: a two-level index (a table is some MiB, its index some KiB), keys in the index shortened to separators (saves
memory for long keys only), filters per block, a hash index inside blocks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, repeat
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from lsm import bloom
from lsm.block import Block, DecodedBlock, decode_block, encode_block
from lsm.entry import Columns, RangeDelete
from lsm.sections import MAGIC_BLOCK, unseal
from lsm.table_file import TableFile, TableStats, TableWriter, Tally, check_order

if TYPE_CHECKING:
    from lsm.cache import BlockCache
    from lsm.options import Options
    from lsm.sections import Tail
    from lsm.version import TableMeta
    from simfs.api import File, Filesystem

ENTRY_BYTES = 8
"""Counted for an entry besides key and value when blocks are cut."""
_EMPTY = Columns([], [], [])


class BlockTableBuilder:
    """Builds one table; see `lsm.tables.TableBuilder`."""

    def __init__(self, fs: Filesystem, path: str, number: int, options: Options, **identity: Any) -> None:
        self._block_size = options.block_size
        self._bits_per_key = options.filter_bits_per_key
        self._writer = TableWriter(fs, path, number, options, magic=MAGIC_BLOCK, **identity)
        self._pending = _EMPTY  # less than a block
        self._pending_bytes = 0
        self._last_keys: list[bytes] = []
        self._offsets: list[int] = []
        self._hashes: list[bloom.Hashes] = []

    @property
    def entries(self) -> int:
        """Entries added so far."""
        return self._writer.tally.entries

    @property
    def size_estimate(self) -> int:
        """Bytes of the file if it were finished now, but for compression of the last block."""
        index_bytes = 16 * len(self._offsets)
        filter_bytes = int(self.entries * self._bits_per_key) // 8
        return self._writer.offset + self._pending_bytes + index_bytes + filter_bytes

    def add(self, columns: Columns) -> None:
        """Take the next entries: keys after all before, or the same key with a smaller tag."""
        if not columns.keys:
            return
        carried = len(self._pending.keys)
        keys, tags, values = map(add, self._pending, columns) if carried else columns
        sizes = map(add, map(add, map(len, keys), repeat(ENTRY_BYTES)), map(len, values))
        ends = list(accumulate(sizes, initial=0))  # entries [i, j) take ends[j] - ends[i]
        added = len(columns.keys)
        self._writer.tally.add(columns, ends[-1] - ends[carried] - added * ENTRY_BYTES)
        if self._bits_per_key:
            self._hashes.append(bloom.hash_keys(columns.keys, added))
        first = 0
        while ends[-1] - ends[first] > self._block_size:
            last = max(bisect_right(ends, ends[first] + self._block_size) - 1, first + 1)
            self._write_block(Columns(keys[first:last], tags[first:last], values[first:last]))
            first = last
        self._pending = Columns(keys[first:], tags[first:], values[first:])
        self._pending_bytes = ends[-1] - ends[first]

    def _write_block(self, columns: Columns) -> None:
        offset = self._writer.offset
        self._offsets.append(offset)
        self._last_keys.append(columns.keys[-1])
        self._writer.append(self._writer.pack(encode_block(columns), offset))

    def add_range_deletes(self, deletes: Iterable[RangeDelete]) -> None:
        """Take range deletes, in any order, at any time."""
        self._writer.add_range_deletes(deletes)

    def finish(
        self, sync: bool, *, sequences: tuple[int, int] | None = None, siblings: tuple[int, ...] = ()
    ) -> TableMeta:
        """Write the rest and close; see `lsm.tables.TableBuilder`."""
        if self._pending.keys:
            self._write_block(self._pending)
            self._pending = _EMPTY
        index = encode_block(Columns(self._last_keys, self._offsets, [b""] * len(self._offsets)))
        filter_ = bloom.build(np.concatenate(self._hashes), self._bits_per_key) if self._hashes else None
        return self._writer.finish(index, filter_, sync, sequences, siblings)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._writer.abandon()


def _always(_key: bytes) -> bool:
    return True


class BlockTable(TableFile):
    """An open v2 table; see `lsm.tables.TableReader`."""

    def __init__(
        self,
        fs: Filesystem,
        path: str,
        file: File,
        tail: Tail,
        stats: TableStats,
        *,
        number: int | None,
        cache: BlockCache | None,
        verify_checksums: bool,
    ) -> None:
        super().__init__(fs, path, file, tail, stats)
        self._verify_checksums = verify_checksums
        self._cache = cache if number is not None and cache is not None and cache.capacity_bytes else None
        if number is not None:
            self._number = number
        self._cache_base = self._number << 48  # cache keys: table number << 48 | offset
        index_at, filter_at, _, _ = tail.footer.offsets
        try:
            at = index_at
            index = decode_block(tail.section(at, tail.footer.index_bytes))
            self._last_keys, starts = index.keys, index.tags
            self._offsets = [*starts, tail.footer.data_bytes]
            if self._offsets[0] != 0 or not all(map(int.__lt__, self._offsets, self._offsets[1:])):
                raise ValueError("index: the data blocks do not fill the data area")
            at = filter_at
            size = tail.footer.filter_bytes
            filter_ = tail.section(at, size) if size else b""
            self.may_contain: Callable[[bytes], bool] = bloom.prober(filter_) if size else _always
        except ValueError as error:
            raise self.damage(at, error) from None
        keys_bytes = sum(map(len, self._last_keys))
        self.memory_bytes = 4096 + keys_bytes + 89 * len(starts) + bloom.memory_bytes(filter_)

    # lookups

    def get(self, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
        """(tag, value) of the newest entry of `key` with a tag of at most `tag_max`."""
        stats = self.stats
        if not self.may_contain(key):
            stats.filter_negatives += 1
            return None
        last_keys, cache = self._last_keys, self._cache
        i = bisect_left(last_keys, key)
        while i < len(last_keys):
            block = None
            if cache is not None:  # `_block`, without its calls where the block is there
                cache_key = self._cache_base + self._offsets[i]
                block = cache.peek(cache_key)
            if cache is not None and block is not None and block.decoded:
                cache.touch(cache_key)
            else:
                block = self._block(i)
            found = block.get(key, tag_max)
            if found is not None:
                stats.found += 1
                stats.useful_bytes += len(found[1])
                return found
            if last_keys[i] != key:
                break
            i += 1
        stats.false_positives += 1
        return None

    def _block(self, i: int) -> Block | DecodedBlock:
        """Block `i`: raw at the first touch, decoded from the second on."""
        cache = self._cache
        if cache is None:
            return self._read(i)
        cache_key = self._cache_base + self._offsets[i]
        block = cache.get(cache_key)
        if block is None:
            block = self._read(i)
            cache.put(cache_key, block)
        elif not block.decoded:
            block = self._decode(i, block)
            cache.put(cache_key, block)
        return block

    def _read(self, i: int) -> Block:
        offset = self._offsets[i]
        size = self._offsets[i + 1] - offset
        self.stats.blocks_read += 1
        self.stats.bytes_read += size
        return self._load(offset, size, verify=self._verify_checksums)

    def _load(self, offset: int, size: int, *, verify: bool) -> Block:
        try:
            return Block(unseal(self.pread(offset, size), offset, verify=verify))
        except ValueError as error:
            raise self.damage(offset, error) from None

    def _decode(self, i: int, block: Block | DecodedBlock) -> DecodedBlock:
        if isinstance(block, DecodedBlock):
            return block
        try:
            return block.decode()
        except ValueError as error:
            raise self.damage(self._offsets[i], error) from None

    # scans

    def blocks(self, start: bytes, stop: bytes | None, *, fill_cache: bool = True) -> Iterator[Columns]:
        """The entries with keys in [start, stop), block by block."""
        first, last = self._span(start, stop)
        return self._columns(range(first, last), start, stop, fill_cache)

    def blocks_reverse(self, start: bytes, stop: bytes | None, *, fill_cache: bool = True) -> Iterator[Columns]:
        """The same blocks, last first; each ascends inside."""
        first, last = self._span(start, stop)
        return self._columns(range(last - 1, first - 1, -1), start, stop, fill_cache)

    def _span(self, start: bytes, stop: bytes | None) -> tuple[int, int]:
        """The blocks [first, last) that can hold keys in [start, stop)."""
        last_keys = self._last_keys
        first = bisect_left(last_keys, start) if start else 0
        if stop is None:
            return first, len(last_keys)
        return first, min(bisect_left(last_keys, stop, first) + 1, len(last_keys)) if start < stop else first

    def _columns(self, order: range, start: bytes, stop: bytes | None, fill_cache: bool) -> Iterator[Columns]:
        """These blocks as columns, the outermost trimmed to [start, stop)."""
        stats = self.stats if fill_cache else TableStats()
        ends = (order[0], order[-1]) if order else ()
        for i in order:
            block = self._scanned(i, fill_cache)
            columns = block.columns
            if i not in ends:
                stats.useful_bytes += block.item_bytes
                yield columns
                continue
            keys, tags, values = columns
            lo = bisect_left(keys, start) if start else 0
            hi = len(keys) if stop is None else bisect_left(keys, stop, lo)
            if lo < hi:
                columns = columns if hi - lo == len(keys) else Columns(keys[lo:hi], tags[lo:hi], values[lo:hi])
                stats.useful_bytes += block.item_bytes * (hi - lo) // len(keys)
                yield columns

    def _scanned(self, i: int, fill_cache: bool) -> DecodedBlock:
        """Block `i` decoded. A scan that does not fill the cache uses what is there, and is not counted."""
        cache = self._cache
        cache_key = self._cache_base + self._offsets[i]
        block = cache.get(cache_key) if cache is not None and fill_cache else None
        if block is not None and block.decoded:
            return self._decode(i, block)
        if not fill_cache:
            offset = self._offsets[i]
            size = self._offsets[i + 1] - offset
            return self._decode(i, self._load(offset, size, verify=self._verify_checksums))
        decoded = self._decode(i, self._read(i) if block is None else block)
        if cache is not None:
            cache.put(cache_key, decoded)
        return decoded

    # checking

    def verify(self) -> int:
        """Read and check every byte; see `lsm.tables.TableReader`."""
        tally = Tally()
        for i, last_key in enumerate(self._last_keys):
            offset = self._offsets[i]
            block = self._decode(i, self._load(offset, self._offsets[i + 1] - offset, verify=True))
            keys = block.columns.keys
            try:
                check_order(block.columns)
                tally.add(block.columns, block.item_bytes)
                if keys[-1] != last_key:
                    raise ValueError(f"the index says that the block ends with {last_key!r}, found {keys[-1]!r}")
                missing = next((key for key in keys if not self.may_contain(key)), None)
                if missing is not None:
                    raise ValueError(f"the filter denies key {missing!r}")
            except ValueError as error:
                raise self.damage(offset, error) from None
        self.check_counts(tally, len(self._last_keys))
        return tally.entries

    def cache_keys(self) -> list[int]:
        """What this table's blocks are called in the block cache."""
        return [self._cache_base + offset for offset in self._offsets[:-1]]
