"""Which parts of what was never synced survive: the choices that a crash makes.

A crash image is a function of the log and a `Choice`. The choice is asked once about each part of each pending
step (`simfs.crash` lists the parts); its answers must depend on the question alone, never on the order of
the questions, so that images may be computed incrementally and in any order.

    SYNCED_ONLY   nothing that was not synced
    ALL_KEPT      everything
    Chosen        exactly the parts that are named: for golden tests, and for enumeration
    WorstCase     a seeded draw of each part

Left out: choices that respect an order between records (a journal's prefix, say). Those are the persistence profiles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

from simfs.oplog import Record

SIZE = LINK = 0
UNLINK_SOURCE = 1
UNLINK_TARGET = 2


class Step(NamedTuple):
    """A record, its number in the log, and which one it is among those of its path.

    Draws are keyed by (`path`, `nth`), so that work on other paths moves none of them.
    """

    number: int
    path: str
    nth: int
    record: Record


class Choice(Protocol):
    """Which parts of the pending steps survive."""

    def survives(self, step: Step, part: int) -> bool:
        """Whether this part reached the device. The answer depends on the arguments alone."""
        ...

    def filler(self, step: Step, size: int) -> bytes:
        """What is read where the size of an append survived and its data did not."""
        ...


@dataclass(frozen=True)
class Fixed:
    """One answer to every question."""

    kept: bool

    def survives(self, step: Step, part: int) -> bool:  # noqa: ARG002
        """`kept`."""
        return self.kept

    def filler(self, step: Step, size: int) -> bytes:  # noqa: ARG002
        """Zeros."""
        return bytes(size)


SYNCED_ONLY = Fixed(False)
"""Everything synced survives, nothing else."""

ALL_KEPT = Fixed(True)
"""Everything survives, synced or not."""


@dataclass(frozen=True)
class Chosen:
    """Exactly the named (step number, part) pairs survive: for golden tests and for enumeration."""

    parts: frozenset[tuple[int, int]]
    garbage: bytes = b"\0"

    def survives(self, step: Step, part: int) -> bool:
        """Whether the pair is named."""
        return (step.number, part) in self.parts

    def filler(self, step: Step, size: int) -> bytes:  # noqa: ARG002
        """`garbage`, repeated."""
        return (self.garbage * (size // len(self.garbage) + 1))[:size]


@dataclass(frozen=True)
class WorstCase:
    """A seeded draw from everything that the worst-case profile allows.

    Each path is mostly lost, half lost, or mostly kept (one draw per path), so that states near "all" and
    "nothing" occur in long logs too; each part is then drawn by itself with these odds.
    """

    seed: int
    _lots: dict[tuple[str, int, int], bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def _lot(self, path: str, nth: int, block: int) -> bytes:
        """64 random bytes for this purpose."""
        key = path, nth, block
        lot = self._lots.get(key)
        if lot is None:
            text = f"{self.seed}\0{path}\0{nth}\0{block}"
            lot = self._lots[key] = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=64).digest()
        return lot

    def survives(self, step: Step, part: int) -> bool:
        """One byte of the step's lot, against the odds of its path."""
        odds = (32, 128, 224)[self._lot(step.path, 0, 0)[0] % 3]
        return self._lot(step.path, step.nth, part // 64)[part % 64] < odds

    def filler(self, step: Step, size: int) -> bytes:
        """Zeros, or garbage."""
        lot = self._lot(step.path, step.nth, -1)
        return bytes(size) if lot[0] % 2 else (lot * (size // 64 + 1))[:size]
