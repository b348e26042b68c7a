"""Tables, whatever their format: what a builder and a reader can do, and who makes them.

| magic       | format        | module            | find a key                                      |
| ----------- | ------------- | ----------------- | ----------------------------------------------- |
| `lsm.blk2`  | v2, "block"   | `lsm.table`       | filter, index, one block                        |
| `lsm.scn1`  | v1, "scan"    | `lsm.scan_table`  | read from the beginning until it must have come |

A store may hold both: the option `table_format` decides about new tables, the magic in a file's footer about existing
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from lsm.entry import Columns, RangeDelete
from lsm.properties import TableProperties
from lsm.scan_table import ScanTable, ScanTableBuilder
from lsm.sections import MAGIC_BLOCK, Tail
from lsm.table import BlockTable, BlockTableBuilder
from lsm.table_file import TableStats

if TYPE_CHECKING:
    from lsm.cache import BlockCache
    from lsm.options import Options
    from lsm.version import TableMeta
    from simfs.api import Filesystem

__all__ = ["TableBuilder", "TableProperties", "TableReader", "TableStats", "create_builder", "open_table"]


class TableBuilder(Protocol):
    """Writes one table. After an error, or when it is not wanted any more: `abandon`."""

    @property
    def entries(self) -> int:
        """Point entries added so far."""
        ...

    @property
    def size_estimate(self) -> int:
        """Bytes of the file, roughly, if it were finished now."""
        ...

    def add(self, columns: Columns) -> None:
        """The next entries, in order. Raises `OSError`, and `ValueError` if they do not come after those before."""
        ...

    def add_range_deletes(self, deletes: Iterable[RangeDelete]) -> None:
        """Range deletes, in any order."""
        ...

    def finish(
        self, sync: bool, *, sequences: tuple[int, int] | None = None, siblings: tuple[int, ...] = ()
    ) -> TableMeta:
        """Write the rest, sync (site "table.finish") if asked to, close, and say what the manifest has to know.

        `sequences`: widen the stored sequence bounds to hold these. `siblings`: all outputs of the job, this one
        included, if it is the last of them. At least one entry or range delete must have been added.
        """
        ...

    def abandon(self) -> None:
        """Close and remove the unfinished file."""
        ...


class TableReader(Protocol):
    """An open table. Every method that reads raises `Corruption` and `OSError`."""

    path: str
    size_bytes: int
    properties: TableProperties
    range_deletes: list[RangeDelete]
    """Sorted by start, then newest first. Not to be changed."""
    memory_bytes: int
    """What index, filter and the rest of the open table take."""

    def get(self, key: bytes, tag_max: int) -> tuple[int, bytes] | None:
        """(tag, value) of the newest entry of `key` with a tag of at most `tag_max`; range deletes not considered."""
        ...

    def may_contain(self, key: bytes, /) -> bool:
        """False for a key that is certainly not here; nothing is read."""
        ...

    def blocks(self, start: bytes, stop: bytes | None, *, fill_cache: bool = True) -> Iterator[Columns]:
        """The entries with keys in [start, stop) in windows, none of them empty. Not to be changed."""
        ...

    def blocks_reverse(self, start: bytes, stop: bytes | None, *, fill_cache: bool = True) -> Iterator[Columns]:
        """The same windows, last first; each ascends inside."""
        ...

    def verify(self) -> int:
        """Read every byte, check every checksum, the order, and all counts; returns the entries.

        Raises `Corruption` at the first damage, with its offset.
        """
        ...

    def meta(self) -> TableMeta:
        """The table as the manifest knows it."""
        ...

    def cache_keys(self) -> list[int]:
        """What the block cache may hold of this table."""
        ...

    def close(self) -> None:
        """Give the handle back. Reads still work, but open the file each time."""
        ...


def create_builder(
    fs: Filesystem,
    path: str,
    number: int,
    options: Options,
    *,
    log_floor: int,
    obsoletes: tuple[int, ...],
    created_s: int,
    job: int | None = None,
) -> TableBuilder:
    """A builder of the format that the options name; the file is created at once.

    `log_floor`, `obsoletes`, `created_s` and `job` (default: the table's own number) are stored for repair.
    Raises `OSError` (`FileExistsError`), and `MissingExtra` if the codec's library is not there.
    """
    kind = BlockTableBuilder if options.table_format == "block" else ScanTableBuilder
    return kind(
        fs, path, number, options, log_floor=log_floor, obsoletes=obsoletes, created_s=created_s, job=job
    )  # fmt: skip


def open_table(
    fs: Filesystem,
    path: str,
    *,
    number: int | None,
    cache: BlockCache | None,
    verify_checksums: bool,
    stats: TableStats | None = None,
) -> TableReader:
    """A reader of whatever format the file has. `number` None: as the table says itself, and nothing is cached.

    Raises `Corruption` for a file that is foreign, damaged, cut short or of a newer version; `OSError`.
    """
    file = fs.open(path)
    try:
        tail = Tail(file, path)
        kind = BlockTable if tail.footer.magic == MAGIC_BLOCK else ScanTable
        return kind(
            fs, path, file, tail, stats or TableStats(), number=number, cache=cache, verify_checksums=verify_checksums
        )
    except BaseException:
        file.close()
        raise
