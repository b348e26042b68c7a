"""The mapping's views of pairs and values: iterated by one scan instead of one lookup a key."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, ValuesView
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lsm.db import DB


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
