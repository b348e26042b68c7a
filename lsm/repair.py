"""Repair: a store from whatever files are left, MANIFEST and CURRENT not needed.

    tables that verify ─┬─▶ those in force ─▶ level 0 (or where the manifest has them)
    logs not in tables ─┴─▶ one more table ─▶ new manifest, CURRENT ─▶ the rest into lost/

What must not happen is that a deleted key returns. Three things that tables record see to it:

* `obsoletes`: the tables that a compaction replaced. If its outputs are all there, the inputs that a
  crash left behind are dropped.
* `job` and `siblings`: which outputs belong together; the last one names them all. If a job's last output
  never came to be, its outputs are dropped, and the inputs stay.
* `log_floor`: logs below it were in tables when this table was written, so an old log that a crash
  left behind is not replayed over a delete that was since compacted away. That may have left no table at all; but a
  log gets its first record only after those before it are in tables (`lsm.db`: flushes run inline), so the newest log
  that holds one is a floor too.

Invariants:
1. Nothing is changed or moved before the new CURRENT is durable; then nothing is deleted, but moved to `lost/`.
2. Where tables overlap in keys and in sequences, their order is unknown, so they are merged by sequence.
3. Everything that is not in the new store is named in the report, with the reason.
4. Without damage the result is the prefix of the writes that recovery would have given: logs are replayed as an
   opening replays them (`wal_recovery_mode`), and only after damage that no crash explains what follows is kept too.

Left out: the readable blocks of a damaged table (what is lost of it may be deletes, so the rest would bring
deleted keys back). The table lies in `lost/`; `lsmlab inspect table` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lsm.cache import BlockCache, TableCache
from lsm.checkpoint import LOST
from lsm.compact import FlushJob, JobContext, merge_tables
from lsm.errors import Corruption, InvalidArgument
from lsm.filenames import CURRENT, log_name, manifest_name, table_name
from lsm.manifest import ManifestState, ManifestWriter
from lsm.memtable import make_memtable
from lsm.opening import PathLike, folder_name, lock_store
from lsm.options import Options
from lsm.recover import list_store, manifest_in_force
from lsm.salvage import Salvage, conflicting_groups, judge
from lsm.tables import TableStats, open_table
from lsm.verify import meta_difference
from lsm.version import Edit, TableMeta, Version, apply
from lsm.wal import LogScan, LogWriter, Replay, replay_logs, scan_log
from simfs.api import SyncKind, SyncLevel, World, default_world


@dataclass(frozen=True)
class RepairReport:
    """What the repaired store holds, and one line for each thing that it does not."""

    tables: int
    entries: int
    log_records: int
    dropped: tuple[str, ...]


def repair(
    path: PathLike, options: Options | None = None, *, world: World | None = None, **changes: Any
) -> RepairReport:
    """Rebuild the store in `path`.

    Raises `InvalidArgument` if no file of a store is there, `BlockingIOError` if the store is open.
    """
    directory = folder_name(path)
    chosen = Options.make(options, **changes)
    fs = (world if world is not None else default_world()).fs
    if not fs.exists(directory) or not any(list_store(fs, directory).numbers):
        raise InvalidArgument(f"{directory}: no file of a store is here")
    lock = lock_store(fs, directory)
    try:
        return _repair(Salvage(fs, directory, chosen, list_store(fs, directory)))
    finally:
        lock.release()


def _repair(salvage: Salvage) -> RepairReport:
    salvage.next_number = _number_max(salvage) + 1
    _examine_tables(salvage)
    state = _trusted_manifest(salvage)
    if state is not None:
        version, floor = _from_manifest(salvage, state)
        last_sequence = state.last_sequence
    else:
        version, floor = _from_tables(salvage)
        last_sequence = max((table.seq_max for _, table in version.tables()), default=0)
    return _commit(salvage, version, floor, last_sequence)


def _number_max(salvage: Salvage) -> int:
    """The largest number in the folder and in lost/, so that none is used twice."""
    numbers = [salvage.listing.number_max]
    if salvage.fs.exists(f"{salvage.directory}/{LOST}"):
        numbers.append(list_store(salvage.fs, f"{salvage.directory}/{LOST}").number_max)
    return max(numbers)


def _examine_tables(salvage: Salvage) -> None:
    """Read every table whole; what does not verify is dropped."""
    for number in salvage.listing.tables:
        name = table_name(number)
        try:
            reader = open_table(
                salvage.fs, f"{salvage.directory}/{name}", number=number, cache=None, verify_checksums=True
            )
            try:
                reader.verify()
                if reader.properties.number != number:
                    raise Corruption(name, 0, f"the table calls itself {table_name(reader.properties.number)}")
                salvage.sound[number] = (reader.meta(), reader.properties)
            finally:
                reader.close()
        except Corruption as error:
            salvage.drop(name, f"damaged at offset {error.offset}: {error.reason}")


def _trusted_manifest(salvage: Salvage) -> ManifestState | None:
    """The manifest in force, if it is whole and all tables that it lists are there (damaged ones too)."""
    try:
        try:
            in_force = manifest_in_force(salvage.fs, salvage.directory, salvage.listing)
        except Corruption as error:
            if not salvage.listing.has_current:
                raise
            salvage.dropped.append(f"{CURRENT}: {error}")
            in_force = manifest_in_force(salvage.fs, salvage.directory, replace(salvage.listing, has_current=False))
    except Corruption as error:
        salvage.dropped.append(f"manifest: {error}")
        return None
    if in_force is None:
        return None
    name, state = in_force
    missing = [table.number for _, table in state.version.tables() if table.number not in salvage.listing.tables]
    if missing or state.status != "clean":
        reason = f"lists missing tables {missing}" if missing else state.reason
        salvage.dropped.append(f"{name}: {reason}; the tables themselves are asked instead")
        return None
    return state


def _from_manifest(salvage: Salvage, state: ManifestState) -> tuple[Version, int]:
    """The manifest's version less the damaged tables. Also the log number."""
    levels = tuple(tuple(table for table in level if table.number in salvage.sound) for level in state.version.levels)
    version = Version(levels)
    listed = {table.number for _, table in state.version.tables()}
    for number in sorted(salvage.sound):
        if number not in listed:
            salvage.drop(table_name(number), "belongs to no version (an unfinished or replaced output)")
    for level, table in list(version.tables()):
        difference = meta_difference(table, salvage.sound[table.number][1])
        if difference:
            salvage.drop(table_name(table.number), difference)
            version = apply(version, Edit(removed=((level, table.number),)))
    return version, state.log_number


def _from_tables(salvage: Salvage) -> tuple[Version, int]:
    """A version made of the tables alone, all in level 0, and the log number that they imply."""
    floor = max((properties.log_floor for _, properties in salvage.sound.values()), default=0)
    in_force = {number: salvage.sound[number][0] for number in sorted(salvage.sound)}
    for number, reason in judge(salvage).items():
        del in_force[number]
        salvage.drop(table_name(number), reason)
    tables: list[TableMeta] = []
    for group in conflicting_groups(list(in_force.values())):
        tables += [group[0]] if len(group) == 1 else _merge(salvage, group, floor)
    version = Version.empty(salvage.options.num_levels)
    return apply(version, Edit(added=tuple((0, table) for table in tables))), floor


def _context(salvage: Salvage, version: Version, floor: int, obsolete: tuple[int, ...]) -> JobContext:
    blocks = BlockCache(0)
    tables = TableCache(salvage.fs, salvage.directory, salvage.options, blocks, TableStats())
    return JobContext(
        fs=salvage.fs,
        directory=salvage.directory,
        options=salvage.options,
        tables=tables,
        new_file_number=salvage.new_file_number,
        snapshots=(),
        version=version,
        sync=True,
        now_s=0,
        log_floor=floor,
        pending_obsolete=obsolete,
    )


def _merge(salvage: Salvage, group: list[TableMeta], floor: int) -> list[TableMeta]:
    """One table with every version that the group holds; nothing is garbage-collected."""
    context = _context(salvage, Version.empty(salvage.options.num_levels), floor, ())
    try:
        merged = merge_tables(context, group)
    finally:
        context.tables.close()
    for table in group:
        salvage.lost.append(table_name(table.number))
    return [merged]


def _commit(salvage: Salvage, version: Version, floor: int, last_sequence: int) -> RepairReport:
    """Replay the logs into one more table, write manifest and CURRENT, then clear away."""
    logs, first_sequence = _examine_logs(salvage, floor)
    # The tables may end before the first log begins: what lay between left no trace in them (needless deletes).
    last_sequence = max(last_sequence, first_sequence - 1)
    replay = _replay(salvage, logs, last_sequence)
    salvage.dropped += replay.dropped
    last_sequence = max(last_sequence, replay.last_sequence)
    path = salvage.directory
    log_number = salvage.new_file_number()
    log = LogWriter.create(
        salvage.fs,
        f"{path}/{log_name(log_number)}",
        number=log_number,
        first_sequence=last_sequence + 1,
        predecessor=None,
        buffer_bytes=salvage.options.wal_buffer_bytes,
    )
    try:
        version = _with_logs(salvage, version, replay.batches, log_number)
        manifest_number = _put_in_force(salvage, version, log_number, last_sequence)
        log.finish(sync=True)
    finally:
        log.close()
    _clear_away(salvage, manifest_number)
    entries = sum(table.entries for _, table in version.tables())
    return RepairReport(len(list(version.tables())), entries, replay.log_records, tuple(salvage.dropped))


def _examine_logs(salvage: Salvage, floor: int) -> tuple[list[int], int]:
    """The logs to replay, and the sequence at which the first of them begins (0 if its head is damaged)."""
    scans: list[tuple[int, LogScan]] = []
    for number in salvage.listing.logs:
        name = log_name(number)
        if number < floor:
            salvage.drop(name, f"its writes are in tables already (logs below {floor})")
            continue
        try:
            path = f"{salvage.directory}/{name}"
            scans.append((number, scan_log(salvage.fs, path, "skip_corrupted", expect_number=number)))
        except Corruption as error:  # not a log of this program's
            salvage.drop(name, error.reason)
            salvage.log_dropped = True
    written = max((number for number, scan in scans if any(record.payload for record in scan.records)), default=0)
    for number, _ in scans:
        if number < written:
            salvage.drop(log_name(number), f"its writes were in tables before {log_name(written)} got its first")
    scans = [(number, scan) for number, scan in scans if number >= written]
    first_sequence = scans[0][1].first_sequence if scans else 0
    logs = [number for number, _ in scans]
    salvage.lost += [log_name(number) for number in logs]
    return logs, first_sequence


def _replay(salvage: Salvage, logs: list[int], last_sequence: int) -> Replay:
    """What the logs hold beyond the tables.

    First as an opening would do it: after a crash the result is the prefix of the writes that recovery gives.
    Damage that no crash explains is skipped, and what follows it is kept.
    """
    fs, path, asked = salvage.fs, salvage.directory, salvage.options.wal_recovery_mode
    mode = "skip_corrupted" if salvage.log_dropped else asked
    try:
        return replay_logs(fs, path, logs, mode, start_sequence=last_sequence)
    except Corruption as error:
        replay = replay_logs(fs, path, logs, "skip_corrupted", start_sequence=last_sequence)
        return replay if replay.dropped else replace(replay, dropped=[str(error)])


def _put_in_force(salvage: Salvage, version: Version, log_number: int, last_sequence: int) -> int:
    """Write manifest and CURRENT; the manifest's number."""
    version.check()
    _make_durable(salvage, version)
    manifest_number = salvage.new_file_number()
    edit = Edit(
        added=tuple(version.tables()),
        log_number=log_number,
        next_file_number=salvage.next_number,
        last_sequence=last_sequence,
    )
    manifest = ManifestWriter.create(salvage.fs, salvage.directory, manifest_number, edit, level=SyncLevel.FSYNC)
    manifest.finish()
    return manifest_number


def _make_durable(salvage: Salvage, version: Version) -> None:
    """Sync the tables that were found: a process killed before it could may have left them whole in memory alone."""
    found = {*salvage.listing.tables}
    for _, table in version.tables():
        if table.number in found:
            with salvage.fs.open(f"{salvage.directory}/{table_name(table.number)}") as file:
                file.sync(SyncKind.DATA, "repair.table")


def _with_logs(salvage: Salvage, version: Version, batches: Any, log_number: int) -> Version:
    memtable = make_memtable(salvage.options.memtable)
    for first_sequence, ops in batches:
        memtable.apply(first_sequence, ops, -1)
    if not memtable.entries and not memtable.range_deletes:
        return version
    context = _context(salvage, version, log_number, ())
    job = FlushJob(context, [memtable])
    try:
        job.run()
    finally:
        context.tables.close()
    return apply(version, job.edit)


def _clear_away(salvage: Salvage, manifest_number: int) -> None:
    """What is not in the new store goes to lost/. The new store is durable by now."""
    fs, path = salvage.fs, salvage.directory
    names = salvage.lost + [manifest_name(number) for number in salvage.listing.manifests if number != manifest_number]
    going = [name for name in dict.fromkeys(names) if fs.exists(f"{path}/{name}")]
    if not going:
        return
    if not fs.exists(f"{path}/{LOST}"):
        fs.mkdir(f"{path}/{LOST}")
    for name in going:
        fs.rename(f"{path}/{name}", f"{path}/{LOST}/{name}")
    fs.sync_dir(f"{path}/{LOST}", "repair.lost")
    fs.sync_dir(path, "repair.lost")
