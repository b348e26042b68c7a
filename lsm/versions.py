"""The current version, the manifest that leads to it, and the files that it no longer needs.

    install(edit):   tables synced ─▶ folder synced ─▶ edit appended and synced ─▶ version switched ─▶ files removed

Invariants:
1. The version in memory is what replaying the manifest gives.
2. A file is removed only after the edit that drops it is durable, and only when no reader pins a
   version that holds it.
3. A table whose successors do not name it (it was merged into nothing) goes only after those before it have
   gone durably, oldest first. So whatever removals a crash undoes, and be the manifest lost as well, nothing
   comes back without the delete that hid it (see `lsm.salvage`).
4. File numbers only grow; none is used twice, not even after a crash (recovery starts above every
   number on the disk).
5. After any failure between the first byte of an edit and its sync nothing is removed: whether the
   edit is durable is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lsm.events import Event, FilesDeleted, ManifestWritten
from lsm.filenames import manifest_name, table_name
from lsm.manifest import ManifestWriter
from lsm.version import Edit, Version, apply
from simfs.api import SyncLevel

if TYPE_CHECKING:
    from lsm.cache import TableCache
    from lsm.options import Options
    from simfs.api import Filesystem


class VersionSet:
    """See the head of this module. Not thread-safe: the store's mutex guards it."""

    def __init__(
        self,
        fs: Filesystem,
        directory: str,
        options: Options,
        tables: TableCache,
        emit: Callable[[Event], None],
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._options = options
        self._tables = tables
        self._emit = emit
        self._pins: dict[int, tuple[Version, int]] = {}  # id → version, how often it is pinned
        self._unneeded: list[int] = []  # tables that left the current version and wait for their readers
        self._unnamed: list[tuple[int, ...]] = []  # those that no table obsoletes; in the order in which they may go
        self._snapshot_bytes = 0
        self.current = Version.empty(options.num_levels)
        self.manifest: ManifestWriter | None = None
        self.next_file_number = 1
        self.log_number = 0
        self.last_sequence = 0  # the newest sequence that is in tables
        self.cursors: dict[int, bytes] = {}
        self.manifest_bytes = 0

    def new_file_number(self) -> int:
        """Reserve the next number."""
        number = self.next_file_number
        self.next_file_number += 1
        return number

    def start_manifest(self, level: SyncLevel) -> None:
        """Write the whole state as the first edit of a new manifest, and make that the one in force."""
        number = self.new_file_number()
        old = self.manifest
        self.manifest = ManifestWriter.create(self._fs, self._directory, number, self.state_edit(), level=level)
        self._snapshot_bytes = self.manifest.size_bytes
        self.manifest_bytes += self.manifest.size_bytes
        self._emit(ManifestWritten(number, self.manifest.size_bytes, rotated=True))
        if old is not None:
            old.close()
            self._fs.remove(old.path)

    def state_edit(self) -> Edit:
        """One edit that leads from an empty version to the current one."""
        return Edit(
            added=tuple(self.current.tables()),
            log_number=self.log_number,
            next_file_number=self.next_file_number,
            last_sequence=self.last_sequence,
            cursors=tuple(sorted(self.cursors.items())),
        )

    def install(self, edit: Edit, *, level: SyncLevel, names_changed: bool) -> None:
        """Make `edit` durable at the structural `level`, then switch to the version it leads to.

        `names_changed`: tables or logs were created that the edit relies on, so the folder is synced first.
        """
        assert self.manifest is not None
        before, version = self.current, apply(self.current, edit)
        if __debug__:
            version.check()
        edit = replace(edit, next_file_number=self.next_file_number)
        synced = level >= SyncLevel.FSYNC
        if names_changed and synced:
            self._fs.sync_dir(self._directory, "install.dir")
        written = self.manifest.append(edit, barrier=names_changed and synced, level=level)
        self._adopt(version, edit)
        self.manifest_bytes += written
        self._emit(ManifestWritten(self.manifest.number, written, rotated=False))
        if self.manifest.size_bytes > max(self._options.max_manifest_file_size, 2 * self._snapshot_bytes):
            self.start_manifest(level)
        self._retire(before, edit, named=names_changed and bool(edit.added))
        self.remove_unneeded()

    def _retire(self, before: Version, edit: Edit, *, named: bool) -> None:
        """Take note of the tables that `edit` dropped. `named`: a new table says what it and its like replace."""
        moved = {table.number for _, table in edit.added}
        dropped = {number for _, number in edit.removed} - moved
        gone = [(level, table) for level, table in before.tables() if table.number in dropped]
        ordered = sorted(gone, key=lambda place: (-place[0], place[1].seq_max))
        self._unneeded += [table.number for _, table in ordered]
        if named:
            self._unnamed = []  # the new tables name all that waits
        else:
            runs = itertools.groupby(ordered, key=lambda place: place[0] or (0, place[1].number))
            self._unnamed += [tuple(table.number for _, table in run) for _, run in runs]

    def _adopt(self, version: Version, edit: Edit) -> None:
        self.current = version
        self.cursors.update(edit.cursors)
        if edit.log_number is not None:
            self.log_number = edit.log_number
        if edit.last_sequence is not None:
            self.last_sequence = edit.last_sequence

    # pins and removal

    def pin(self, version: Version) -> None:
        """Keep the files of `version` until `unpin`."""
        _, count = self._pins.get(id(version), (version, 0))
        self._pins[id(version)] = (version, count + 1)

    def unpin(self, version: Version) -> None:
        """Give one `pin` back; `remove_unneeded` then removes what nobody holds any more."""
        _, count = self._pins.pop(id(version))
        if count > 1:
            self._pins[id(version)] = (version, count - 1)

    @property
    def pinned(self) -> int:
        """How many versions are held by readers."""
        return len(self._pins)

    @property
    def pending(self) -> tuple[int, ...]:
        """Tables that left the current version and are not yet removed."""
        return tuple(self._unneeded)

    def remove_unneeded(self) -> None:
        """Remove the tables that neither the current nor a pinned version holds."""
        held = {table.number for version, _ in self._pins.values() for _, table in version.tables()}
        unnamed = {number for run in self._unnamed for number in run}
        self._remove([number for number in self._unneeded if number not in held and number not in unnamed])
        while self._unnamed:
            run = self._unnamed[0]
            if any(number in held for number in self._unneeded[: self._unneeded.index(run[-1]) + 1]):
                return
            if self._options.structural_floor >= SyncLevel.FSYNC:
                self._fs.sync_dir(self._directory, "remove.order")
            del self._unnamed[0]
            self._remove(list(run))

    def _remove(self, going: list[int]) -> None:
        if not going:
            return
        self._unneeded = [number for number in self._unneeded if number not in going]
        for number in going:
            self._tables.evict(number)
            self._fs.remove(f"{self._directory}/{table_name(number)}")
        self._emit(FilesDeleted(tuple(table_name(number) for number in going)))

    def close(self, *, clean: bool, closed_log_bytes: int | None = None) -> None:
        """Close the manifest; `clean` leaves a last record that attests all others, and the end of the log."""
        if self.manifest is not None and clean:
            self.manifest.finish(closed_log_bytes)
        elif self.manifest is not None:
            self.manifest.close()

    def manifest_path(self) -> str:
        """The manifest in force."""
        assert self.manifest is not None
        return f"{self._directory}/{manifest_name(self.manifest.number)}"
