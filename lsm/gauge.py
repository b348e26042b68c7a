"""Reading the gauges: a `Metrics` value from the parts of an open store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsm.metrics import Memory, Metrics, Ratio, WriteAmp

if TYPE_CHECKING:
    from lsm.db import DB


def measure(db: DB, live_user_bytes: int | None) -> Metrics:
    """The figures of this moment. `live_user_bytes` (keys and values that a scan returns) if it was counted.

    The caller holds the store's mutex.
    """
    tally, versions, log = db._tally, db._versions, db._log
    version = versions.current
    wal_bytes = tally.closed_log_bytes + (log.size_bytes if log is not None else 0)
    written = wal_bytes + tally.flush_bytes + tally.compaction_write_bytes + tally.manifest_bytes
    device = db.world.device_bytes_written()
    if device is not None and db._device_base is not None:
        device -= db._device_base
    live_bytes = sum(table.size_bytes for _, table in version.tables())
    live_bytes += log.size_bytes if log is not None else 0
    live_bytes += versions.manifest.size_bytes if versions.manifest is not None else 0
    sizes = [version.level_bytes(level) for level in range(len(version.levels))]
    reads = db._stats
    return Metrics(
        writes=tally.writes,
        user_bytes=tally.user_bytes,
        wal_bytes=wal_bytes,
        flush_bytes=tally.flush_bytes,
        compaction_read_bytes=tally.compaction_read_bytes,
        compaction_write_bytes=tally.compaction_write_bytes,
        moved_bytes=tally.moved_bytes,
        manifest_bytes=tally.manifest_bytes,
        flushes=tally.flushes,
        compactions=tally.compactions,
        moves=tally.moves,
        log_rotations=tally.log_rotations,
        manifest_rotations=tally.manifest_rotations,
        live_bytes=live_bytes,
        pinned_versions=versions.pinned,
        snapshots=len(db._snapshots),
        last_sequence=db.last_sequence,
        error=tally.error,
        write_amp=WriteAmp(
            Ratio(tally.flush_bytes + tally.compaction_write_bytes, tally.flush_bytes, "flush + compaction ÷ flush"),
            Ratio(written, tally.user_bytes, "log + flush + compaction + manifest ÷ user bytes"),
            Ratio(device, tally.user_bytes, "bytes sent to the device, whole process ÷ user bytes"),
        ),
        space_amp=Ratio(live_bytes, live_user_bytes, "bytes of live files ÷ live user bytes"),
        read_amp=Ratio(reads.bytes_read, reads.useful_bytes, "table bytes read ÷ bytes of values found"),
        lookups=reads.lookups(),
        block_cache=db._blocks.counters(),
        memory=Memory(
            memtable_bytes=sum(slot.memtable.size_bytes for slot in db._view.memory),
            indexes_and_filters_bytes=db._tables.memory_bytes,
            block_cache_bytes=db._blocks.charge_bytes,
            block_cache_capacity_bytes=db.options.block_cache_bytes,
            open_tables=len(db._tables),
        ),
        levels=tally.level_rows([len(level) for level in version.levels], sizes, db._jobs.scores()),
    )
