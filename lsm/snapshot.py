"""Snapshots: a registered sequence number is all there is to one.

The store keeps every version that the reader at a registered sequence would see. Nothing is copied:

    put a=1 (seq 1)   snapshot s at 1   put a=2 (seq 2)        s.get(a) → 1    db.get(a) → 2

Invariants:
1. While sequence `s` is registered, no memtable, flush or compaction drops a version that is the
   newest one at or below `s`.
2. Registering happens under the mutex that publishes sequences, so no write slips in between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from lsm.batch import as_key
from lsm.errors import InvalidArgument

if TYPE_CHECKING:
    from lsm.db import DB
    from lsm.scan import Scan


class SnapshotRegistry:
    """The registered sequences, ascending, each as often as it is held."""

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self.newest = -1  # what a memtable must keep versions for; -1: nothing

    def register(self, sequence: int) -> None:
        """Hold `sequence`."""
        insort(self._sequences, sequence)
        self.newest = self._sequences[-1]

    def release(self, sequence: int) -> None:
        """Give one hold of `sequence` back."""
        i = bisect_left(self._sequences, sequence)
        assert self._sequences[i] == sequence, f"sequence {sequence} is not registered"
        del self._sequences[i]
        self.newest = self._sequences[-1] if self._sequences else -1

    def held(self) -> tuple[int, ...]:
        """The distinct sequences, ascending: the borders of compaction's stripes."""
        return tuple(dict.fromkeys(self._sequences))

    def __len__(self) -> int:
        return len(self._sequences)


class Snapshot:
    """The store as it was at one moment. Release it (or use `with`): while held, old versions stay on disk."""

    def __init__(self, db: DB, sequence: int) -> None:
        self._db = db
        self.sequence = sequence
        self._released = False

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """The value of `key` at this moment, or `default`."""
        value = self._db._get_at(as_key(key), self._held())
        return default if value is None else value

    def multi_get(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order; None for a missing one."""
        return [self._db._get_at(as_key(key), self._held()) for key in keys]

    def scan(
        self,
        start: bytes | None = None,
        stop: bytes | None = None,
        *,
        reverse: bool = False,
        prefix: bytes | None = None,
    ) -> Scan:
        """As `DB.scan`, at this moment."""
        return self._db.scan(start, stop, reverse=reverse, prefix=prefix, snapshot=self)

    def release(self) -> None:
        """Let go of the moment. A second call does nothing."""
        if not self._released:
            self._released = True
            self._db._release(self.sequence)
            self._db._settle_returns()

    def _held(self) -> int:
        if self._released:
            raise InvalidArgument("the snapshot was released")
        return self.sequence

    def __reduce__(self) -> NoReturn:
        raise TypeError("a snapshot cannot be copied or pickled: each is released once")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
