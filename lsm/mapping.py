"""The store as a mutable mapping of bytes to bytes, and its views.

Whatever is written for mappings runs on a store: `dict(db)`, `db.items()`, `shelve.Shelf(db)`. What a dict does in
one step costs what it costs in an LSM tree: `len` counts, `del` looks the key up first (a plain `delete` does not).

Invariants:
1. Iteration is by one scan, so it shows the moment at which it began, in the order of the keys.
2. Keys and values that are not bytes-like are a `TypeError`, in lookups too: no such key can be there.

`key_bounds` is how ranges are given, here and in `DB.scan`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from typing import TYPE_CHECKING, cast

from lsm.batch import WriteBatch, as_key

if TYPE_CHECKING:
    from lsm.scan import Scan
    from simfs.api import SyncLevel


class StoreMapping(MutableMapping[bytes, bytes]):
    """Everything that a mapping must have, from five methods of the store."""

    @abstractmethod
    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
        """The value of `key`, or `default`."""

    @abstractmethod
    def put(self, key: bytes, value: bytes, sync: SyncLevel | str | None = None) -> None:
        """Set `key` to `value`."""

    @abstractmethod
    def delete(self, key: bytes, sync: SyncLevel | str | None = None) -> None:
        """Remove `key`, whether it exists or not."""

    @abstractmethod
    def write(self, batch: WriteBatch, sync: SyncLevel | str | None = None) -> None:
        """Apply a batch, all or nothing."""

    @abstractmethod
    def scan(self, start: bytes | None = None, stop: bytes | None = None, *, reverse: bool = False) -> Scan:
        """The pairs in [start, stop)."""

    def __getitem__(self, key: bytes) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.put(key, value)

    def __delitem__(self, key: bytes) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self.delete(key)

    def __contains__(self, key: object) -> bool:
        return self.get(cast(bytes, key)) is not None

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan())

    def __reversed__(self) -> Iterator[bytes]:
        return (key for key, _ in self.scan(reverse=True))

    def __len__(self) -> int:
        """The number of keys. Counts them: an LSM tree cannot know it without reading."""
        return sum(1 for _ in self.scan())

    def __bool__(self) -> bool:
        return next(iter(self.scan()), None) is not None

    def keys(self) -> Keys:
        """A view of the keys."""
        return Keys(self)

    def items(self) -> Items:
        """A view of the pairs that is iterated by one scan."""
        return Items(self)

    def values(self) -> Values:
        """A view of the values that is iterated by one scan."""
        return Values(self)

    def popitem(self) -> tuple[bytes, bytes]:
        """Remove and return the pair with the least key. Raises `KeyError` if there is none."""
        with self.scan() as scan:
            pair = next(scan, None)
        if pair is None:
            raise KeyError("popitem(): the store is empty")
        self.delete(pair[0])
        return pair

    def clear(self) -> None:
        """Remove every key, by one batch of a range delete and the delete of the last key."""
        with self.scan(reverse=True) as scan:
            last = next(scan, None)
        if last is not None:
            batch = WriteBatch()
            batch.delete_range(b"", last[0])
            batch.delete(last[0])
            self.write(batch)


class Keys(KeysView[bytes]):
    """What `db.keys()` returns: keys ascending, with the operations of a set."""

    _mapping: StoreMapping

    def __reversed__(self) -> Iterator[bytes]:
        return reversed(self._mapping)


class Items(ItemsView[bytes, bytes]):
    """What `db.items()` returns: (key, value) pairs, keys ascending."""

    _mapping: StoreMapping

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._mapping.scan())

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._mapping.scan(reverse=True))


class Values(ValuesView[bytes]):
    """What `db.values()` returns: values in the order of their keys."""

    _mapping: StoreMapping

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.scan())

    def __reversed__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.scan(reverse=True))

    def __contains__(self, value: object) -> bool:
        return any(held == value for held in self)


def key_bounds(start: bytes | None, stop: bytes | None, prefix: bytes | None) -> tuple[bytes, bytes | None]:
    """[low, high) from what the caller gave; `prefix` narrows it."""
    low = b"" if start is None else as_key(start)
    high = None if stop is None else as_key(stop)
    if prefix is not None:
        first, after = as_key(prefix), successor(as_key(prefix))
        low = max(low, first)
        high = after if high is None else high if after is None else min(high, after)
    return low, high


def successor(prefix: bytes) -> bytes | None:
    """The first key after all that begin with `prefix`; None if there is none.

    >>> successor(b"ab"), successor(b"a\\xff"), successor(b"\\xff")
    (b'ac', b'b', None)
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
