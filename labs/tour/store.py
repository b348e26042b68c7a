"""The tour's main job: load, overwrite and delete, reopen, and compare all of it with a dict."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import lsm
from labs.inputs import Row
from labs.tour.workload import BATCH_ROWS, changes_of, draw
from lsm.metrics import Metrics
from lsm.options import KIB, MIB, Options

Tick = Callable[[int], None]

OPTIONS = Options(
    write_buffer_size=MIB,
    max_bytes_for_level_base=2 * MIB,
    target_file_size_base=512 * KIB,
    max_bytes_for_level_multiplier=4,
)
"""Smaller than the defaults, so that a few megabytes fill several levels."""

LOOKUPS = 5_000


@dataclass(frozen=True)
class Load:
    """The first pass over the rows."""

    entries: int  # puts
    deletes: int
    reads: int
    wrong_reads: int
    user_bytes: int
    seconds: float


@dataclass(frozen=True)
class Changed:
    """The second pass."""

    overwritten: int
    deleted: int
    range_deleted: int
    range_bounds: tuple[bytes, bytes] | None
    seconds: float


@dataclass(frozen=True)
class Compared:
    """The store, reopened, against the model."""

    reopen_seconds: float
    entries: int  # in the model
    differing: int
    scan_seconds: float
    lookups: int
    wrong_lookups: int
    lookup_seconds: float

    @property
    def ok(self) -> bool:
        """Whether all was as it must be."""
        return self.differing == 0 and self.wrong_lookups == 0


class Batcher:
    """Gathers writes for a store and a model, and hands them on `BATCH_ROWS` at a time."""

    def __init__(self, db: lsm.DB, model: dict[bytes, bytes], tick: Tick) -> None:
        self.db = db
        self.model = model
        self.tick = tick
        self.batch = lsm.WriteBatch()

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.batch.put(key, value)
        self.model[key] = value
        self._written()

    def delete(self, key: bytes) -> None:
        """Remove a key."""
        self.batch.delete(key)
        self.model.pop(key, None)
        self._written()

    def _written(self) -> None:
        if len(self.batch) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        count = len(self.batch)
        self.db.write(self.batch)
        self.batch.clear()
        self.tick(count)


class MainJob:
    """The store under test, and the dict that it must equal."""

    def __init__(self, folder: str, rows: Sequence[Row], seed: int) -> None:
        self.folder = folder
        self.rows = rows
        self.seed = seed
        self.model: dict[bytes, bytes] = {}

    def load(self, db: lsm.DB, tick: Tick) -> Load:
        """Carry the rows out, in their order; a read first writes what was gathered."""
        started, before = time.perf_counter(), db.metrics().user_bytes
        writer = Batcher(db, self.model, tick)
        deletes = reads = wrong = 0
        for row in self.rows:
            if row.kind == "put":
                writer.put(row.key, row.value)
            elif row.kind == "delete":
                writer.delete(row.key)
                deletes += 1
            else:
                writer.flush()
                wrong += db.get(row.key) != self.model.get(row.key)
                reads += 1
        writer.flush()
        puts = len(self.rows) - deletes - reads
        user_bytes = db.metrics().user_bytes - before
        return Load(puts, deletes, reads, wrong, user_bytes, time.perf_counter() - started)

    def change(self, db: lsm.DB, tick: Tick) -> Changed:
        """Overwrite some keys, delete others, and delete one range of them by a single record."""
        started = time.perf_counter()
        keys = sorted(self.model)
        writer = Batcher(db, self.model, tick)
        overwritten = deleted = 0
        for change in changes_of(sorted(keys, key=lambda key: draw(key, self.seed, "second")), self.model, self.seed):
            if change.value is None:
                writer.delete(change.key)
                deleted += 1
            else:
                writer.put(change.key, change.value)
                overwritten += 1
        writer.flush()
        ranged, bounds = self._delete_range(db, keys)
        return Changed(overwritten, deleted, ranged, bounds, time.perf_counter() - started)

    def _delete_range(self, db: lsm.DB, keys: Sequence[bytes]) -> tuple[int, tuple[bytes, bytes] | None]:
        """Delete a hundredth of the key space."""
        width = len(keys) // 100
        if width == 0:
            return 0, None
        first = draw(b"", self.seed, "range") % (len(keys) - width)
        start, stop = keys[first], keys[first + width]
        db.delete_range(start, stop)
        gone = [key for key in keys[first : first + width] if self.model.pop(key, None) is not None]
        return len(gone), (start, stop)

    def compare(self) -> tuple[Compared, Metrics]:
        """Open the store again; scan all of it, and look up keys that are there and keys that are not."""
        started = time.perf_counter()
        with lsm.open(self.folder, OPTIONS) as db:
            opened = time.perf_counter()
            expected = sorted(self.model.items())
            ready = time.perf_counter()
            differing = sum(found != wanted for found, wanted in zip_longest(db.scan(), expected))
            scanned = time.perf_counter()
            probes = self._probes()
            looking = time.perf_counter()
            wrong = sum(db.get(key) != self.model.get(key) for key in probes)
            looked = time.perf_counter()
            metrics = db.metrics()
        compared = Compared(
            reopen_seconds=opened - started,
            entries=len(expected),
            differing=differing,
            scan_seconds=scanned - ready,
            lookups=len(probes),
            wrong_lookups=wrong,
            lookup_seconds=looked - looking,
        )
        return compared, metrics

    def _probes(self) -> list[bytes]:
        """Keys that were once written, and as many that never were, in a seeded order."""
        known = sorted({row.key for row in self.rows}, key=lambda key: draw(key, self.seed, "lookup"))[: LOOKUPS // 2]
        probes = known + [key + b"?" for key in known]
        return sorted(probes, key=lambda key: draw(key, self.seed, "lookup order"))
