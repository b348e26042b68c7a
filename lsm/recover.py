"""Opening a store: from what lies in the folder to a state that can be served.

    CURRENT ─▶ manifest ─▶ version, log number      which tables there are
    logs from the log number on ─▶ one memtable     what is not yet in tables
    memtable ─▶ a table of level 0                  made durable before it is served
    new log, new manifest, CURRENT                  the commit point of the opening
    sweep                                           files that belong to nothing

Invariants:
1. Until CURRENT names the new manifest, durably, nothing is removed and no existing file is changed: a crash at any
   step leaves the store as it was, so recovery may be repeated.
2. What recovery serves it has made durable (a value once read never goes away), except in a
   read-only opening, which writes nothing and keeps the log's content in memory.
3. New file numbers start above every number on the disk, known or orphaned.
4. Each table of the version must exist in its full size, and the log that the manifest names must exist.
   Otherwise the store is damaged and nothing is guessed.

Where CURRENT is missing but manifests are there, a rename was cut in two (a filesystem whose rename
is not atomic), somebody removed it, or the store was never opened to the end: the newest manifest that begins whole
is in force. It cannot be a wrong one, for it says the same as the one before. But a crash may have taken the log or
the tables that it names, whose names become durable just before CURRENT points to it: such a manifest, if it has
no edit beyond its first, never was in force, and the one before it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsm.errors import Corruption, InvalidArgument
from lsm.filenames import CURRENT, log_name, manifest_name, parse_name, table_name
from lsm.manifest import ManifestState, read_current, read_manifest
from lsm.version import Version
from lsm.wal import REMEDY, Replay, replay_logs, scan_log

if TYPE_CHECKING:
    from lsm.options import Options
    from simfs.api import Filesystem


@dataclass(frozen=True)
class Listing:
    """The numbered files of a store's folder, each kind ascending."""

    tables: tuple[int, ...]
    logs: tuple[int, ...]
    manifests: tuple[int, ...]
    has_current: bool

    @property
    def number_max(self) -> int:
        """The largest number on the disk; 0 if there is none."""
        return max(self.numbers, default=0)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Every number on the disk."""
        return (*self.tables, *self.logs, *self.manifests)


@dataclass(frozen=True)
class Recovery:
    """What was found: the manifest's state, and what the logs hold beyond it."""

    listing: Listing
    manifest_name: str | None  # None: a new store
    version: Version
    last_sequence: int  # the newest in tables
    log_number: int
    next_file_number: int
    cursors: dict[int, bytes]
    replay: Replay | None


def list_store(fs: Filesystem, directory: str) -> Listing:
    """Which files of a store lie in the folder. Foreign names are left alone."""
    found: dict[str, list[int]] = {"table": [], "log": [], "manifest": [], "current": [], "lock": [], "tmp": []}
    for name in fs.listdir(directory):
        parsed = parse_name(name)
        if parsed is not None:
            found[parsed.kind].append(parsed.number)
    return Listing(
        tuple(sorted(found["table"])),
        tuple(sorted(found["log"])),
        tuple(sorted(found["manifest"])),
        bool(found["current"]),
    )


def recover(fs: Filesystem, directory: str, options: Options) -> Recovery:
    """Read the state of a store; writes nothing.

    Raises `Corruption` for damage and for a store that lost files; `InvalidArgument` where there is
    no store and none may be created, or where there is one and none should be.
    """
    listing = list_store(fs, directory)
    in_force = manifest_in_force(fs, directory, listing)
    if in_force is None:
        return _new_store(fs, directory, options, listing)
    if options.error_if_exists:
        raise InvalidArgument(f"{directory}: a store exists and error_if_exists is set")
    name, state = in_force
    _check_tables(fs, directory, state.version, name)
    replay = _replay(fs, directory, options, listing, state, name)
    return Recovery(
        listing,
        name,
        state.version,
        state.last_sequence,
        state.log_number,
        max(state.next_file_number, listing.number_max + 1),
        dict(state.cursors),
        replay,
    )


def _new_store(fs: Filesystem, directory: str, options: Options, listing: Listing) -> Recovery:
    """No manifest is in force. A first opening that crashed may have left an empty log and a torn manifest."""
    replay = replay_logs(fs, directory, listing.logs, "skip_corrupted", start_sequence=0) if listing.logs else None
    if listing.tables or (replay is not None and replay.batches):
        held = f"{len(listing.tables)} tables and {0 if replay is None else replay.log_records} log records"
        reason = f"missing, and no whole manifest is left, but there are {held}: run repair"
        raise Corruption(f"{directory}/{CURRENT}", 0, reason)
    if options.read_only or not options.create_if_missing:
        raise InvalidArgument(f"{directory}: no store here, and none may be created")
    version = Version.empty(options.num_levels)
    return Recovery(listing, None, version, 0, 0, listing.number_max + 1, {}, None)


def manifest_in_force(fs: Filesystem, directory: str, listing: Listing) -> tuple[str, ManifestState] | None:
    """The manifest that CURRENT names; the newest whole one if CURRENT is missing; None if there is none either."""
    if listing.has_current:
        name = read_current(fs, directory)
        path = f"{directory}/{name}"
        if not fs.exists(path):
            raise Corruption(f"{directory}/{CURRENT}", 0, f"names {name}, which is missing: run repair")
        return name, _whole(fs, path)
    for number in reversed(listing.manifests):
        state = read_manifest(fs, f"{directory}/{manifest_name(number)}")
        if state.edits > 1 or (state.edits == 1 and _relies_on(state) <= {*listing.tables, *listing.logs}):
            return manifest_name(number), state
    return None


def _relies_on(state: ManifestState) -> set[int]:
    """The numbers of the files that must be there if this manifest ever was in force."""
    named = {table.number for _, table in state.version.tables()}
    return named | {state.log_number} if state.log_number else named


def _whole(fs: Filesystem, path: str) -> ManifestState:
    state = read_manifest(fs, path)
    if state.edits == 0:
        raise Corruption(path, state.end_offset, f"the first edit, the state to begin with, is missing: {state.reason}")
    return state


def _check_tables(fs: Filesystem, directory: str, version: Version, manifest: str) -> None:
    for level, table in version.tables():
        path = f"{directory}/{table_name(table.number)}"
        try:
            size = fs.stat(path).size
        except FileNotFoundError:
            raise Corruption(path, 0, f"missing, but {manifest} lists it in level {level}: run repair") from None
        if size != table.size_bytes:
            raise Corruption(path, min(size, table.size_bytes), f"expected {table.size_bytes} bytes, found {size}")


def _replay(
    fs: Filesystem, directory: str, options: Options, listing: Listing, state: ManifestState, manifest: str
) -> Replay:
    logs = [number for number in listing.logs if number >= state.log_number]
    if state.log_number and state.log_number not in logs:
        path = f"{directory}/{log_name(state.log_number)}"
        raise Corruption(path, 0, f"missing, but {manifest} names it as the log in force: run repair")
    mode = options.wal_recovery_mode
    if state.closed_log_bytes is not None and state.log_number and mode in ("tolerate_torn_tail", "absolute"):
        _check_closed_log(fs, f"{directory}/{log_name(state.log_number)}", mode, state.closed_log_bytes)
    return replay_logs(fs, directory, logs, mode, start_sequence=state.last_sequence)


def _check_closed_log(fs: Filesystem, path: str, mode: str, closed_bytes: int) -> None:
    """After a clean close there is no torn tail: what the manifest says was durable must be there, and whole."""
    scan = scan_log(fs, path, mode)
    if scan.end_offset < closed_bytes:
        found = scan.reason or "the file ends there"
        reason = (
            f"expected {closed_bytes} bytes, durable when the store was closed, found whole records to here: {found}"
        )
        raise Corruption(path, scan.end_offset, f"{reason}; {REMEDY}")


def orphans(listing: Listing, version: Version, log_number: int, manifest_number: int) -> tuple[str, ...]:
    """The names of the files that belong to no version: what a crash in the middle of a job leaves."""
    live = {table.number for _, table in version.tables()}
    names = [table_name(number) for number in listing.tables if number not in live]
    names += [log_name(number) for number in listing.logs if number < log_number]
    names += [manifest_name(number) for number in listing.manifests if number != manifest_number]
    return tuple(names)  # a CURRENT.tmp was replaced and renamed when the new manifest was put in force
