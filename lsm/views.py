"""The mapping's views: iterated, either way round, by one scan instead of one lookup a key."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lsm.db import DB


class Keys(KeysView[bytes]):
    """What `db.keys()` returns: keys ascending, with the operations of a set."""

    _mapping: DB

    def __reversed__(self) -> Iterator[bytes]:
        return reversed(self._mapping)


class Items(ItemsView[bytes, bytes]):
    """What `db.items()` returns: (key, value) pairs, keys ascending."""

    _mapping: DB

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._mapping.scan())

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._mapping.scan(reverse=True))


class Values(ValuesView[bytes]):
    """What `db.values()` returns: values in the order of their keys."""

    _mapping: DB

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.scan())

    def __reversed__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.scan(reverse=True))

    def __contains__(self, value: object) -> bool:
        return any(held == value for held in self)
