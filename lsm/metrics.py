"""What the store did and how it stands: folds over the engine's events, and ratios that say what they divide.

Write amplification is three figures, never one (users argue because each tool divides something else):

    engine    (flush + compaction bytes written) ÷ flushed bytes      RocksDB's W-Amp of the Sum row
    logical   (log + flush + compaction + manifest bytes) ÷ user bytes (keys and values as handed in)
    device    bytes the device was asked to write ÷ user bytes        by the operating system's count, if it has one

Per level n ≥ 1: bytes written into n ÷ bytes read from the levels above it; trivially moved bytes are
outside. Level 0: (flushed + rewritten within level 0) ÷ flushed. Space amplification: bytes of live
files ÷ bytes of live user data. The window is from the opening of the store to now.

The per-level table has RocksDB's columns, so that a reader of its `stats` feels at home.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lsm.events import BackgroundError, Compacted, Event, Flushed, Listener, LogRotated, ManifestWritten, Recovered

if TYPE_CHECKING:
    from lsm.batch import Op

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure with what was divided by what. `value` is None where the denominator is zero or unknown."""

    numerator: int | None
    denominator: int | None
    of: str  # "numerator ÷ denominator", in words

    @property
    def value(self) -> float | None:
        """The quotient."""
        if self.numerator is None or not self.denominator:
            return None
        return self.numerator / self.denominator

    def to_json(self) -> dict[str, Any]:
        """For machines: the quotient and its parts."""
        return {"value": self.value, "numerator": self.numerator, "denominator": self.denominator, "of": self.of}


@dataclass(frozen=True, slots=True)
class WriteAmp:
    """The three figures; see the head of this module."""

    engine: Ratio
    logical: Ratio
    device: Ratio


@dataclass(slots=True)
class LevelTally:
    """What went into one level. Bytes as stored; `rn` is read from above, `rnp1` from the level itself."""

    rn_bytes: int = 0
    rnp1_bytes: int = 0
    write_bytes: int = 0
    moved_bytes: int = 0
    count: int = 0
    duration_ns: int = 0
    keys_in: int = 0
    keys_dropped: int = 0


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One row of the per-level table, in RocksDB's columns."""

    level: str
    files: int
    size_bytes: int
    score: float
    read_bytes: int
    rn_bytes: int
    rnp1_bytes: int
    write_bytes: int
    wnew_bytes: int
    moved_bytes: int
    w_amp: float
    comp_count: int
    comp_seconds: float
    keys_in: int
    keys_dropped: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that the store holds in memory, by purpose."""

    memtable_bytes: int
    indexes_and_filters_bytes: int
    block_cache_bytes: int
    block_cache_capacity_bytes: int
    open_tables: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """A moment's figures. Counters run since the store was opened."""

    writes: int  # puts, deletes and range deletes, each op of a batch counted
    user_bytes: int
    wal_bytes: int
    flush_bytes: int
    compaction_read_bytes: int
    compaction_write_bytes: int
    moved_bytes: int
    manifest_bytes: int
    flushes: int
    compactions: int
    moves: int
    log_rotations: int
    manifest_rotations: int
    live_bytes: int
    pinned_versions: int
    snapshots: int
    last_sequence: int
    error: str | None
    write_amp: WriteAmp
    space_amp: Ratio
    read_amp: Ratio
    lookups: dict[str, int]
    block_cache: dict[str, int]
    memory: Memory
    levels: tuple[LevelRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-ready values; each ratio with numerator and denominator."""
        plain: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Ratio):
                plain[item.name] = value.to_json()
            elif isinstance(value, WriteAmp):
                plain[item.name] = {name: getattr(value, name).to_json() for name in ("engine", "logical", "device")}
            elif isinstance(value, Memory):
                plain[item.name] = dataclasses.asdict(value)
            elif item.name == "levels":
                plain[item.name] = [dataclasses.asdict(row) for row in value]
            else:
                plain[item.name] = value
        return plain

    def table(self) -> str:
        """The per-level table as text."""
        return level_table(self.levels)


@dataclass(slots=True)
class Tally:
    """The running fold. `emit` is where every event of a store goes, and then on to the user's listener."""

    listener: Listener | None = None
    writes: int = 0
    user_bytes: int = 0
    closed_log_bytes: int = 0
    flush_bytes: int = 0
    compaction_read_bytes: int = 0
    compaction_write_bytes: int = 0
    moved_bytes: int = 0
    manifest_bytes: int = 0
    flushes: int = 0
    compactions: int = 0
    moves: int = 0
    log_rotations: int = 0
    manifest_rotations: int = 0
    error: str | None = None
    levels: dict[int, LevelTally] = field(default_factory=dict)

    def wrote(self, ops: Sequence[Op]) -> None:
        """Count a write as the user handed it in."""
        self.writes += len(ops)
        self.user_bytes += sum([len(key) + len(value) for _, key, value in ops])

    def emit(self, event: Event) -> None:
        """Fold one event in."""
        match event:
            case Flushed():
                self._flushed(event)
            case Compacted():
                self._compacted(event)
            case ManifestWritten():
                self.manifest_bytes += event.bytes_written
                self.manifest_rotations += event.rotated
            case LogRotated():
                self.log_rotations += 1
                self.closed_log_bytes += event.closed_bytes
            case BackgroundError():
                self.error = self.error or event.error
            case Recovered():
                # A new manifest belongs to every opening; a rotation is one that came by growth.
                self.manifest_rotations = self.log_rotations = 0
            case _:
                pass
        if self.listener is not None:
            self.listener(event)

    def _level(self, number: int) -> LevelTally:
        return self.levels.setdefault(number, LevelTally())

    def _flushed(self, event: Flushed) -> None:
        self.flushes += 1
        self.flush_bytes += event.bytes_written
        level = self._level(0)
        level.write_bytes += event.bytes_written
        level.count += 1
        level.duration_ns += event.end_ns - event.start_ns
        level.keys_in += event.entries
        level.keys_dropped += event.entries - (event.table.entries if event.table else 0)

    def _compacted(self, event: Compacted) -> None:
        level = self._level(event.output_level)
        if event.moved:
            moved_bytes = sum(table.size_bytes for _, table in event.inputs)
            self.moves += 1
            self.moved_bytes += moved_bytes
            level.moved_bytes += moved_bytes
            return
        self.compactions += 1
        self.compaction_read_bytes += event.bytes_read
        self.compaction_write_bytes += event.bytes_written
        for number, table in event.inputs:
            if number == event.output_level:
                level.rnp1_bytes += table.size_bytes
            else:
                level.rn_bytes += table.size_bytes
        level.write_bytes += event.bytes_written
        level.count += 1
        level.duration_ns += event.end_ns - event.start_ns
        level.keys_in += event.entries_read
        level.keys_dropped += event.entries_read - event.entries_written

    def level_rows(self, files: Sequence[int], sizes: Sequence[int], scores: Sequence[float]) -> tuple[LevelRow, ...]:
        """The per-level table from the tally and the version's `files` and `sizes` (bytes) by level."""
        rows = []
        for number, (count, size) in enumerate(zip(files, sizes, strict=True)):
            tally = self.levels.get(number, LevelTally())
            if count or tally.write_bytes or tally.moved_bytes:
                base = self.flush_bytes if number == 0 else tally.rn_bytes
                rows.append(
                    _row(f"L{number}", count, size, scores[number] if number < len(scores) else 0.0, tally, base)
                )
        total = LevelTally()
        for tally in self.levels.values():
            for item in dataclasses.fields(LevelTally):
                setattr(total, item.name, getattr(total, item.name) + getattr(tally, item.name))
        rows.append(_row("Sum", sum(files), sum(sizes), 0.0, total, self.flush_bytes))
        return tuple(rows)


def _row(name: str, files: int, size: int, score: float, tally: LevelTally, base_bytes: int) -> LevelRow:
    return LevelRow(
        level=name,
        files=files,
        size_bytes=size,
        score=score,
        read_bytes=tally.rn_bytes + tally.rnp1_bytes,
        rn_bytes=tally.rn_bytes,
        rnp1_bytes=tally.rnp1_bytes,
        write_bytes=tally.write_bytes,
        wnew_bytes=tally.write_bytes - tally.rnp1_bytes,
        moved_bytes=tally.moved_bytes,
        w_amp=tally.write_bytes / base_bytes if base_bytes else 0.0,
        comp_count=tally.count,
        comp_seconds=tally.duration_ns / 1e9,
        keys_in=tally.keys_in,
        keys_dropped=tally.keys_dropped,
    )


def level_table(rows: Iterable[LevelRow]) -> str:
    """RocksDB's compaction statistics, in MiB."""
    heads: tuple[str, ...] = (
        "Level",
        "Files",
        "Size(MB)",
        "Score",
        "Read(MB)",
        "Rn(MB)",
        "Rnp1(MB)",
        "Write(MB)",
        "Wnew(MB)",
    )
    heads += ("Moved(MB)", "W-Amp", "Comp(cnt)", "Comp(sec)", "KeyIn", "KeyDrop")
    lines = [heads]
    for row in rows:
        sizes = (row.read_bytes, row.rn_bytes, row.rnp1_bytes, row.write_bytes, row.wnew_bytes, row.moved_bytes)
        read, rn, rnp1, write, wnew, moved = (f"{size / MIB:.1f}" for size in sizes)
        cells: tuple[str, ...] = (
            row.level,
            str(row.files),
            f"{row.size_bytes / MIB:.1f}",
            f"{row.score:.2f}",
            read,
            rn,
            rnp1,
            write,
        )
        cells += (wnew, moved, f"{row.w_amp:.1f}", str(row.comp_count), f"{row.comp_seconds:.2f}")
        lines.append((*cells, str(row.keys_in), str(row.keys_dropped)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
