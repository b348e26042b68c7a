"""Everything that can be chosen about a store. Names are RocksDB's where RocksDB has the thing.

`Options()` suits a laptop and a lesson; `Options.rocksdb()` has RocksDB's defaults. Parts of the
engine are injected here as well: a memtable factory or a picker of your own instead of a name.

Invariant: an `Options` value that was constructed is valid (checked once, in `__post_init__`).
Options are not stored with the data: a store may be reopened under other ones. What a file needs to
be read (its format, its codec, its checksum) stands in the file.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from lsm.errors import InvalidArgument
from simfs.api import SyncLevel

if TYPE_CHECKING:
    from lsm.events import Listener
    from lsm.memtable import Memtable
    from lsm.picking.plan import Picker

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
KEY_BYTES_MAX = 65_535
VALUE_BYTES_MAX = GIB

CHOICES = {
    "memtable": ("hash", "skiplist"),
    "strategy": ("leveled", "tiered", "none"),
    "table_format": ("block", "scan"),
    "compression": ("none", "zlib", "zstd", "lz4"),
    "wal_recovery_mode": ("tolerate_torn_tail", "absolute", "point_in_time", "skip_corrupted"),
    "structural_sync": ("floor", "follow_dial"),
    "compaction_pri": ("min_overlapping_ratio", "round_robin", "oldest_first", "largest_first"),
}
INJECTED = {"memtable": ("__call__",), "strategy": ("pick", "scores")}  # what a part of your own must have
INTEGERS: dict[str, tuple[int, int | None]] = {  # least, most; None: no bound
    "wal_buffer_bytes": (1, None),
    "write_buffer_size": (1, None),
    "block_size": (64, 64 * MIB),
    "block_cache_bytes": (0, None),
    "open_tables_max": (1, None),
    "level0_file_num_compaction_trigger": (1, None),
    "max_bytes_for_level_base": (1, None),
    "num_levels": (2, 32),
    "target_file_size_base": (1, None),
    "target_file_size_multiplier": (1, None),
    "max_compaction_bytes": (0, None),
    "tiered_min_merge_width": (2, None),
    "tiered_max_merge_width": (2, None),
    "max_manifest_file_size": (1, None),
}
NUMBERS: dict[str, tuple[float, float | None]] = {
    "filter_bits_per_key": (0, 64),
    "max_bytes_for_level_multiplier": (2, 1_000_000),
    "tiered_size_ratio": (1, None),
}
SWITCHES = (
    "create_if_missing", "error_if_exists", "read_only", "verify_checksums", "level_compaction_dynamic_level_bytes",
)  # fmt: skip
COMPRESSION_LEVELS: dict[str, tuple[int, int] | None] = {
    "none": None,
    "zlib": (-1, 9),
    "zstd": (-131_072, 22),
    "lz4": (1, 12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See the comment of each field; `Options.make(**changes)` reports an unknown name kindly."""

    # opening
    create_if_missing: bool = True
    error_if_exists: bool = False
    read_only: bool = False
    wal_recovery_mode: str = "tolerate_torn_tail"
    # log
    sync: SyncLevel = SyncLevel.FLUSH  # the dial; each write may ask for another point
    wal_buffer_bytes: int = 64 * KIB  # at NONE this much gathers in the process before a write(2)
    structural_sync: str = "floor"  # tables and manifest at max(dial, FSYNC); "follow_dial" is the A/B option
    # memtable
    write_buffer_size: int = 4 * MIB  # bytes of keys, values and overhead until a flush
    memtable: str | Callable[[], Memtable] = "hash"
    # tables
    table_format: str = "block"  # v2; "scan" is v1
    block_size: int = 4 * KIB  # uncompressed bytes of a data block
    filter_bits_per_key: float = 10.0  # 0: no Bloom filter
    key_range_filter: bool | None = None  # skip tables by their key range; None: as the strategy suggests
    compression: str = "none"
    compression_level: int | None = None  # None: the codec's default
    verify_checksums: bool = True  # check a block's checksum whenever it is read from the file
    # caches
    block_cache_bytes: int = 32 * MIB  # decoded blocks, their decoded form counted; 0: none
    open_tables_max: int = 512
    # compaction
    strategy: str | Picker = "leveled"
    level0_file_num_compaction_trigger: int = 4
    max_bytes_for_level_base: int = 16 * MIB
    max_bytes_for_level_multiplier: float = 10.0
    level_compaction_dynamic_level_bytes: bool = True
    num_levels: int = 7
    target_file_size_base: int = 2 * MIB
    target_file_size_multiplier: int = 1
    max_compaction_bytes: int = 0  # 0: 25 × target_file_size_base
    compaction_pri: str = "min_overlapping_ratio"
    tiered_min_merge_width: int = 4  # size-tiered: tables of like size that make a merge
    tiered_max_merge_width: int = 32
    tiered_size_ratio: float = 2.0  # size-tiered: largest ÷ smallest within a merge
    # manifest
    max_manifest_file_size: int = MIB
    # observation
    listener: Listener | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sync", parse_sync(self.sync))
        for name, choices in CHOICES.items():
            _one_of(name, getattr(self, name), choices)
        for name, (least, most) in INTEGERS.items():
            _integer(name, getattr(self, name), least, most)
        for name, bounds in NUMBERS.items():
            _number(name, getattr(self, name), *bounds)
        for name in SWITCHES:
            _one_of(name, getattr(self, name), (True, False))
        _one_of("key_range_filter", self.key_range_filter, (True, False, None))
        _integer("tiered_max_merge_width", self.tiered_max_merge_width, self.tiered_min_merge_width, None)
        if self.compression_level is not None:
            _integer(
                "compression_level", self.compression_level, *(COMPRESSION_LEVELS[self.compression] or (None, None))
            )
        if self.listener is not None and not callable(self.listener):
            raise InvalidArgument(f"listener={self.listener!r}: expected a function of one event, or None")

    @classmethod
    def make(cls, base: Options | None = None, **changes: Any) -> Self:
        """`base` (or the defaults) with `changes`.

        >>> Options.make(block_sise=1)
        Traceback (most recent call last):
        lsm.errors.InvalidArgument: unknown option block_sise; did you mean block_size?
        """
        if base is not None and not isinstance(base, Options):
            raise TypeError(
                f"options: expected lsm.Options, got {type(base).__name__}; name single ones, as in sync='fsync'"
            )
        known = [field.name for field in dataclasses.fields(cls)]
        for name in changes:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
                raise InvalidArgument(f"unknown option {name}{hint}")
        values = {name: getattr(base, name) for name in known} if base is not None else {}
        return cls(**(values | changes))

    @classmethod
    def rocksdb(cls, **changes: Any) -> Self:
        """RocksDB's defaults (9.x `AdvancedColumnFamilyOptions`, `BlockBasedTableOptions`).

        Stock RocksDB ships without a filter; pass `filter_bits_per_key=10` to match a tuned one.
        """
        defaults: dict[str, Any] = {
            "write_buffer_size": 64 * MIB,
            "max_bytes_for_level_base": 256 * MIB,
            "target_file_size_base": 64 * MIB,
            "memtable": "skiplist",
            "filter_bits_per_key": 0,
            "max_manifest_file_size": GIB,
        }
        return cls.make(None, **(defaults | changes))

    @property
    def compaction_bytes_max(self) -> int:
        """`max_compaction_bytes`, its default resolved."""
        return self.max_compaction_bytes or 25 * self.target_file_size_base

    @property
    def structural_floor(self) -> SyncLevel:
        """The least level at which tables, manifest and folder are synced."""
        return max(self.sync, SyncLevel.FSYNC) if self.structural_sync == "floor" else self.sync

    @property
    def filters_by_range(self) -> bool:
        """`key_range_filter`, its default resolved.

        Where tables of a level never overlap (leveled), a range check picks the one table that can
        hold a key; where every table spans the whole key space (size-tiered, none) it is wasted work.
        """
        return self.strategy not in ("tiered", "none") if self.key_range_filter is None else self.key_range_filter


def parse_sync(value: SyncLevel | str | int) -> SyncLevel:
    """A point of the dial from its name, number or value. A bool is refused: it would be taken for FLUSH.

    >>> parse_sync("fsync")
    <SyncLevel.FSYNC: 2>
    """
    try:
        if isinstance(value, str):
            return SyncLevel[value.upper()]
        if isinstance(value, int) and not isinstance(value, bool):
            return SyncLevel(value)
    except (KeyError, ValueError):
        pass
    raise InvalidArgument(f"sync={value!r}: expected one of none, flush, fsync, fullfsync")


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """One of `choices` itself (1 is not True), or a part of your own in place of a name."""
    parts = INJECTED.get(name, ())
    if parts and not isinstance(value, str) and all(callable(getattr(value, part, None)) for part in parts):
        if name == "strategy" and isinstance(value, type):
            raise InvalidArgument(f"{name}={value!r}: expected an object, not its class; call it")
        return
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        own = f", or an object with {' and '.join(parts)}" if parts else ""
        raise InvalidArgument(f"{name}={value!r}: expected one of {', '.join(map(str, choices))}{own}")


def _integer(name: str, value: Any, least: int | None, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not _within(value, least, most):
        raise InvalidArgument(f"{name}={value!r}: expected an integer{_bounds(least, most)}")


def _number(name: str, value: Any, least: float, most: float | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _within(value, least, most):
        raise InvalidArgument(f"{name}={value!r}: expected a number{_bounds(least, most)}")


def _within(value: float, least: float | None, most: float | None) -> bool:
    """Not-a-number is within nothing."""
    return (least is None or value >= least) and (most is None or value <= most)


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least}" if most is None else f" from {least} to {most}"
