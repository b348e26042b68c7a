"""Which versions nobody can see any more: the rules by which a flush or compaction drops entries.

    snapshots         s1            s2                       a reader at s sees the newest version ≤ s
    sequences    1  3 │ 4   7   8   │ 9  12                  (the present is a reader beyond the last)
    stripes      ──0──┴──────1──────┴───2───

Snapshots divide the sequences into *stripes*. Each reader that there can be looks from the upper end
of a stripe, so of each stripe it needs the newest version at most:

1. A version is dropped if a newer one of its key, or a covering range delete, lies in its own stripe.
2. A delete (oldest survivor of its key) is dropped if no older table may hold the key: then there is
   nothing left that it hides. This is the tombstone rule. `older` errs on the side of keeping.
3. Range deletes: of each stripe the newest; in stripe 0, which all readers see, none if no older table
   overlaps (`RangeDeletes.thinned`).

All versions of a key must come in one window. The work is array arithmetic on the tags; a window in
which nothing can be dropped is recognised by three passes in C and returned as it is.

Left out: a range delete above stripe 0 is kept even if the versions that it hid are gone; the next
merge after the snapshots' release drops it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import eq
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lsm.entry import DELETE, KIND_BITS, KIND_MASK, Columns
from lsm.merge import chosen, distinct, newest_first

if TYPE_CHECKING:
    from lsm.key_ranges import KeyRanges
    from lsm.rangedel import RangeDeletes

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]


def collect(columns: Columns, deletes: RangeDeletes, snapshots: Sequence[int], older: KeyRanges) -> Columns:
    """A window without what nobody needs. `snapshots` ascend; `older`: keys that older tables may hold.

    Versions of a key may come in any order, and leave newest first.
    """
    keys = columns.keys
    spans = [] if deletes.is_empty else list(deletes.spans(keys))
    unique = distinct(keys)
    if unique and not spans and all(columns.values):
        return columns
    columns = columns if unique else newest_first(columns)
    keys, tags, values = columns
    same_key = np.fromiter(map(eq, islice(keys, 1, None), keys), np.bool_, len(keys) - 1)
    packed = np.fromiter(tags, np.uint64, len(tags))
    sequences = packed >> np.uint64(KIND_BITS)
    borders = np.array(snapshots, np.uint64)
    stripes = np.searchsorted(borders, sequences)
    keep = np.ones(len(keys), np.bool_)
    keep[1:] = ~(same_key & (stripes[1:] == stripes[:-1]))
    for lo, hi, covering in spans:
        keep[lo:hi] &= ~_covered(sequences[lo:hi], stripes[lo:hi], covering, borders)
    if not all(values):
        _drop_tombstones(keep, same_key, (packed & np.uint64(KIND_MASK)) == DELETE, keys, older)
    return columns if keep.all() else chosen(columns, keep.tolist())


def _covered(sequences: Numbers, stripes: npt.NDArray[np.intp], covering: tuple[int, ...], borders: Numbers) -> Mask:
    """Which versions have a newer range delete in their stripe. `covering` are its sequences, newest first.

    The least newer one decides: if any lies in the stripe, it does.
    """
    ascending = np.array(covering[::-1], np.uint64)
    at = np.searchsorted(ascending, sequences, side="right")
    their_stripes = np.append(np.searchsorted(borders, ascending), -1)  # -1: there is no newer one
    return np.asarray(their_stripes[at] == stripes)


def _drop_tombstones(keep: Mask, same_key: Mask, deletes: Mask, keys: list[bytes], older: KeyRanges) -> None:
    """Rule 2, in place: from the oldest survivor of a key upwards, deletes go until a value stays."""
    for lo, hi in older.spans(keys):
        deletes[lo:hi] = False
    group = np.concatenate(([0], np.cumsum(~same_key)))
    while True:
        survivors = np.flatnonzero(keep)
        oldest = np.ones(len(survivors), np.bool_)
        oldest[:-1] = group[survivors[1:]] != group[survivors[:-1]]
        going = survivors[oldest & deletes[survivors]]
        if not len(going):
            return
        keep[going] = False
