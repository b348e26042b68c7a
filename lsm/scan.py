"""A scan in progress: it holds a sequence and a version from its creation to its end.

    for key, value in db.scan(b"a", b"m"): …        the store as it was when `scan` was called

Invariants:
1. What the scan sees was fixed when it was created; later writes do not show, however long it runs.
2. Its hold is given back once: when the scan is exhausted, closed, or forgotten (garbage collected).
3. It reads nothing of a closed store: it then ends with `InvalidArgument` after the pairs that it had at hand.

Why the hold is an object of its own: a generator that was never started runs no `finally`, so a scan
that nobody iterated would keep its files for ever. The hold is referred to by the scan and by its
generator, and goes when the last of them goes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator

Windows = Iterable[tuple[list[bytes], list[bytes]]]
Pairs = Generator[tuple[bytes, bytes], None, None]


class Hold:
    """Calls `release` once: when asked to, or when nobody refers to it any more."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give back what is held."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.release()


def _flatten(windows: Windows, hold: Hold, check: Callable[[], None]) -> Pairs:
    try:
        check()
        for keys, values in windows:
            yield from zip(keys, values, strict=True)
            check()
    finally:
        hold.release()


class Scan(Iterator[tuple[bytes, bytes]]):
    """Ascending (or descending) (key, value) pairs. `close`, or the end of a `with`, ends it early.

    `check` raises if nothing may be read any more.
    """

    def __init__(self, windows: Windows, hold: Hold, check: Callable[[], None]) -> None:
        self._hold = hold
        self._pairs = _flatten(windows, hold, check)

    def __iter__(self) -> Pairs:
        """The generator itself: a `for` loop then pays for no Python call an entry."""
        return self._pairs

    def __next__(self) -> tuple[bytes, bytes]:
        return next(self._pairs)

    def close(self) -> None:
        """Give the hold back and end the iteration. A second call does nothing."""
        self._pairs.close()
        self._hold.release()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
