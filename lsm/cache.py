"""The two caches of the read path: blocks, bounded in bytes, and open tables, bounded in number.

    TableCache   table number ─▶ reader: file handle, index, filter          at most `open_tables_max`
    BlockCache   table number << 48 | offset ─▶ block, raw or decoded        at most `capacity_bytes`

Both evict what was not used for longest (LRU). A block is charged what it takes in CPython's memory, some twice its
bytes once it is decoded, so that the bound is a bound of memory.

Invariants:
1. `charge_bytes` is the sum of the charges held and never exceeds `capacity_bytes` when a call returns.
2. A block that is larger than the whole cache is not held; capacity 0 holds nothing.
3. Several readers may call at the same time (each step is one operation in C; who finds a block evicted under its hands
   has it still), one writer opens and evicts tables. A block that two of them load at once is simply loaded twice.
4. A table's number is never given to another file, so a cached block is never stale.

Left out: priorities for indexes and filters (they are not in this cache, they stay with the open table), CLOCK and
other scan-resistant orders (compactions do not fill the cache: the worst of scans is kept out).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lsm.filenames import table_name
from lsm.tables import TableReader, TableStats, open_table

if TYPE_CHECKING:
    from lsm.block import Block, DecodedBlock
    from lsm.options import Options
    from lsm.version import TableMeta
    from simfs.api import Filesystem


class BlockCache:
    """Least recently used blocks go first. Keys are `table number << 48 | offset`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.charge_bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._blocks: OrderedDict[int, Block | DecodedBlock] = OrderedDict()
        self.peek: Callable[[int], Block | DecodedBlock | None] = self._blocks.get
        """`get` in one C call, which neither counts nor makes the block the most recent: with `touch`."""

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: int) -> Block | DecodedBlock | None:
        """The block, which is now the most recently used; or None."""
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
        else:
            self.touch(key)
        return block

    def touch(self, key: int) -> None:
        """Count a hit, and make the block the most recent."""
        self.hits += 1
        try:  # noqa: SIM105  a context manager costs more than the lookup
            self._blocks.move_to_end(key)
        except KeyError:  # evicted by another thread since
            pass

    def put(self, key: int, block: Block | DecodedBlock) -> None:
        """Hold a block, in place of what was held under this key; evict what no longer fits."""
        blocks = self._blocks
        self.drop(key)
        if block.charge_bytes > self.capacity_bytes:
            return
        blocks[key] = block
        self.charge_bytes += block.charge_bytes
        while self.charge_bytes > self.capacity_bytes and blocks:
            _, evicted = blocks.popitem(last=False)
            self.charge_bytes -= evicted.charge_bytes
            self.evictions += 1

    def drop(self, key: int) -> None:
        """Forget a block, if it is held."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self.charge_bytes -= block.charge_bytes

    def counters(self) -> dict[str, int]:
        """Hits, misses, evictions and the blocks held."""
        return {"hits": self.hits, "misses": self.misses, "evictions": self.evictions, "blocks": len(self._blocks)}


class TableCache:
    """Open tables by number; a table is opened when it is first asked for."""

    def __init__(
        self, fs: Filesystem, directory: str, options: Options, blocks: BlockCache | None, stats: TableStats
    ) -> None:
        self.stats = stats
        self.hits = 0
        self.misses = 0
        self._fs = fs
        self._directory = directory
        self._open_max = options.open_tables_max
        self._verify_checksums = options.verify_checksums
        self._blocks = blocks
        self._readers: OrderedDict[int, TableReader] = OrderedDict()
        self._full = False  # order matters to evictions only: it is not kept before the first

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def memory_bytes(self) -> int:
        """Indexes and filters of the open tables."""
        return sum(reader.memory_bytes for reader in list(self._readers.values()))

    def get(self, meta: TableMeta) -> TableReader:
        """The reader of a table. Raises `Corruption`, `OSError`."""
        reader = self._readers.get(meta.number)
        if reader is None:
            return self._opened(meta.number)
        self.hits += 1
        if self._full and meta.number in self._readers:
            self._readers.move_to_end(meta.number)
        return reader

    def _opened(self, number: int) -> TableReader:
        self.misses += 1
        reader = open_table(
            self._fs,
            f"{self._directory}/{table_name(number)}",
            number=number,
            cache=self._blocks,
            verify_checksums=self._verify_checksums,
            stats=self.stats,
        )
        self._readers[number] = reader
        while len(self._readers) > self._open_max:
            self._full = True
            self._readers.popitem(last=False)[1].close()
        return reader

    def evict(self, number: int) -> None:
        """Close a table, and forget its blocks: its file is about to go."""
        reader = self._readers.pop(number, None)
        if reader is not None:
            if self._blocks is not None:
                for key in reader.cache_keys():
                    self._blocks.drop(key)
            reader.close()

    def close(self) -> None:
        """Close all tables, even if one of them fails; its error is raised in the end."""
        with ExitStack() as closing:
            while self._readers:
                closing.callback(self._readers.popitem()[1].close)
