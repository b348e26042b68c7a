"""What a store was told, when it said "done", and what therefore must be there after a crash.

    write:     1    2    3    4    5            each with the place in the disk's operation log
    started:   3    9   14   21   30            where the call began
    acked:     8   12   20   29    –            where it returned (– : it had not)
                         ▲ crash after 22 records: 1–3 are acknowledged, 4 is under way

The recovered content must be that of a **prefix** of the writes, which reaches at least the last write
that was acknowledged at a level that this failure respects, and at most the last one that had started.
(Oracles of the design: no wrong value, no hole, no half batch, no deleted key that returns.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE
from simfs.api import SyncLevel
from simfs.crash import Failure

SURVIVES = {"kill": SyncLevel.FLUSH, "os": SyncLevel.FSYNC, "power": SyncLevel.FSYNC}
"""The lowest point of the dial whose writes outlive each failure, under the worst-case profile."""


@dataclass(frozen=True)
class Write:
    """One call that wrote. Positions are lengths of the disk's operation log."""

    ops: tuple[Op, ...]
    level: SyncLevel
    started: int
    acked: int | None  # None: the call had not returned


@dataclass(frozen=True)
class Verdict:
    """What a recovered store was found to hold. `problem` is empty if every oracle is content."""

    prefix: int  # how many writes it holds; -1 if its content is that of no prefix
    required: int
    possible: int
    problem: str

    @property
    def lost(self) -> int:
        """Writes that had been acknowledged (at whatever level) or begun, and are not there."""
        return max(0, self.possible - self.prefix)


@dataclass
class History:
    """The writes in order, the content after each prefix, and moments at which all before was made durable."""

    writes: list[Write] = field(default_factory=list)
    durable_marks: list[tuple[int, int]] = field(default_factory=list)  # (position, writes before it)
    states: list[dict[bytes, bytes]] = field(default_factory=lambda: [{}])

    def add(self, ops: Sequence[Op], level: SyncLevel, started: int, acked: int | None) -> None:
        """Record a write."""
        self.writes.append(Write(tuple(ops), level, started, acked))
        self.states.append(apply_ops(self.states[-1], ops))

    def mark_durable(self, position: int) -> None:
        """A flush, sync or close returned here: every write so far must outlive anything."""
        self.durable_marks.append((position, len(self.writes)))

    def required(self, failure: Failure, at: int) -> int:
        """How many writes, at the least, must be there after this failure at this position."""
        needed = max((count for position, count in self.durable_marks if position <= at), default=0)
        for number, write in enumerate(self.writes, 1):
            if write.acked is not None and write.acked <= at and write.level >= SURVIVES[failure]:
                needed = max(needed, number)
        return needed

    def possible(self, at: int) -> int:
        """How many writes, at the most, can be there."""
        return sum(1 for write in self.writes if write.started < at or write.started == 0)

    def acknowledged(self, at: int) -> int:
        """How many writes had been acknowledged at this position, at whatever level."""
        return sum(1 for write in self.writes if write.acked is not None and write.acked <= at)

    def judge(self, found: dict[bytes, bytes], failure: Failure, at: int) -> Verdict:
        """Compare what a recovered store holds with what it must and may hold."""
        required, possible = self.required(failure, at), self.possible(at)
        for prefix in range(possible, -1, -1):
            if self.states[prefix] == found:
                # Equal states may follow one another; the longest prefix is the fairest reading.
                problem = "" if prefix >= required else f"lost acknowledged writes: {prefix} of {required} are there"
                return Verdict(prefix, required, possible, problem)
        return Verdict(-1, required, possible, self._explain(found, required, possible))

    def _explain(self, found: dict[bytes, bytes], required: int, possible: int) -> str:
        """Why the content is that of no prefix: the first key that tells."""
        nearest = min(range(required, possible + 1), key=lambda n: len(found.items() ^ self.states[n].items()))
        state = self.states[nearest]
        for key in sorted(found.keys() | state.keys()):
            if found.get(key) != state.get(key):
                expected, got = state.get(key), found.get(key)
                ever = any(older.get(key) == got for older in self.states)
                kind = "a value never written" if got is not None and not ever else "a hole or a returned delete"
                wanted = f"expected {expected!r} (as after {nearest} writes), found {got!r}"
                return f"no prefix of the writes: key {key!r}: {wanted}: {kind}"
        return "no prefix of the writes"


def apply_ops(state: dict[bytes, bytes], ops: Sequence[Op]) -> dict[bytes, bytes]:
    """The content after some operations, as a new dict."""
    state = dict(state)
    for kind, key, value in ops:
        if kind == RANGE_DELETE:
            for held in [held for held in state if key <= held < value]:
                del state[held]
        elif kind == DELETE:
            state.pop(key, None)
        else:
            state[key] = value
    return state
