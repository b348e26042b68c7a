"""What the tour writes: the rows of a corpus or a file, then seeded overwrites and deletes of part of them.

"Seeded" means: chosen by a hash of the key and the seed (XXH3, whose values are fixed for all time), so
the same seed makes the same choice on every machine, in every version of Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import xxhash

import lsm
from labs import corpus
from labs.inputs import Row, read_rows
from lsm.errors import InvalidArgument

ROWS_MAX = 200_000
BATCH_ROWS = 200
OVERWRITTEN_PERCENT = 15
DELETED_PERCENT = 10


@dataclass(frozen=True, slots=True)
class Change:
    """A put, or a delete where `value` is None."""

    key: bytes
    value: bytes | None

    def apply(self, db: lsm.DB) -> None:
        """To a store."""
        if self.value is None:
            db.delete(self.key)
        else:
            db.put(self.key, self.value)

    def applied(self, model: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """To a copy of a model."""
        others = {key: value for key, value in model.items() if key != self.key}
        return others if self.value is None else others | {self.key: self.value}


def draw(key: bytes, seed: int, purpose: str) -> int:
    """A number below 2**64 that depends on key, seed and purpose alone."""
    return int(xxhash.xxh3_64_intdigest(purpose.encode() + key, seed))


@dataclass(frozen=True)
class Data:
    """What is loaded. `given`: a person's file. `truncated`: it has more rows than are used."""

    name: str
    rows: Sequence[Row]
    given: bool
    truncated: bool


def read_corpus(seed: int) -> Data:
    """The lines of the standard library, shuffled: so keys do not arrive in the order in which they are stored."""
    rows = [Row(0, "put", key, value) for key, value in corpus.lines(lines_max=ROWS_MAX)]
    if not rows:
        raise InvalidArgument(f"{corpus.stdlib_folder()} holds no sources: name a file with --input")
    name = f"lines of the standard library of Python {sys.version_info.major}.{sys.version_info.minor}, shuffled"
    return Data(name, sorted(rows, key=lambda row: draw(row.key, seed, "order")), given=False, truncated=False)


def read_input(path: str) -> Data:
    """The first rows of a file. Raises `InputError`, `InvalidArgument`, `OSError`."""
    with open(path, "rb") as file:
        rows = list(islice(read_rows(path, file), ROWS_MAX + 1))
    if not any(row.kind == "put" for row in rows):
        raise InvalidArgument(f"{path}: holds nothing to put into a store")
    return Data(path, rows[:ROWS_MAX], given=True, truncated=len(rows) > ROWS_MAX)


def changes_of(keys: Iterable[bytes], model: Mapping[bytes, bytes], seed: int) -> Iterator[Change]:
    """Overwrites and deletes of some of `keys`."""
    for key in keys:
        lot = draw(key, seed, "change") % 100
        if lot < OVERWRITTEN_PERCENT:
            yield Change(key, model[key][::-1] + b" (overwritten)")
        elif lot < OVERWRITTEN_PERCENT + DELETED_PERCENT:
            yield Change(key, None)


def few_changes(rows: Sequence[Row], seed: int, count: int) -> list[Change]:
    """A small workload with overwrites and deletes in it, for a disk that loses power."""
    puts = [Change(row.key, row.value[:200]) for row in rows if row.kind == "put"][:count]
    model = {change.key: change.value for change in puts if change.value is not None}
    return puts + list(changes_of(sorted(model), model, seed))
