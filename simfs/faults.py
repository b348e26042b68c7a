"""A wrapper that breaks: the faults of a plan (`simfs.faultplan`), injected into any filesystem.

Invariants
----------
1. The first rule that strikes decides; the rules after it still count the call.
2. `inner` holds what the device holds: damage at rest is an overlay on reads, the rest is done by calling `inner`
   otherwise than asked. Whoever unwraps sees the pristine files.
3. Damage belongs to the file, not to its name: it follows a rename, and ends where a new file is created.
4. After `failsync`, this file's content never becomes durable any more, whatever later syncs say. That is the worst
   that was observed (Rebello et al., ATC '20: the pages are marked clean, so a retry has nothing to write).

Left out: what a failed sync does on each filesystem in particular; that belongs to the persistence profiles.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, cast

from simfs.api import Filesystem
from simfs.faultplan import SYNCS, Plan, Rule
from simfs.wrapper import Call, T, WrappedFile, WrappedFilesystem

SECTOR_BYTES = 512


class _Strike(NamedTuple):
    """A rule, and the call that it breaks."""

    rule: Rule
    call: Call
    perform: Callable[[Call], Any]
    file: WrappedFile | None

    def number(self) -> int:
        """The fault's first argument."""
        return int(self.rule.arguments[0])

    def fail(self) -> NoReturn:
        """Raise the error that the fault names last."""
        code = getattr(errno, str(self.rule.arguments[-1]))
        error = OSError(code, os.strerror(code), self.call.path)
        error.add_note(f"injected by {self.rule}")
        raise error


@dataclass
class _Damage:
    """What is wrong with one file."""

    rotten_bits: list[int] = field(default_factory=list)
    lost_sync: bool = False


class FaultyFilesystem(WrappedFilesystem):
    """`inner`, with the faults of `plan`.

    >>> from simfs.memory import MemoryFilesystem
    >>> fs = FaultyFilesystem(MemoryFilesystem(), "short(2, ENOSPC) @ append(nth=1)")
    >>> file = fs.create("/a")
    >>> try:
    ...     file.append(b"hello")
    ... except OSError as error:
    ...     print(error, error.__notes__)
    [Errno 28] No space left on device: '/a' ['injected by short(2, ENOSPC) @ append(nth=1)']
    >>> file.pread(0, 10), fs.fired
    (b'he', [1])
    """

    def __init__(self, inner: Filesystem, plan: Plan | str) -> None:
        super().__init__(inner)
        self.plan = Plan.parse(plan) if isinstance(plan, str) else plan
        self.seen = [0] * len(self.plan.rules)
        """By rule: how many calls fitted it."""
        self.fired = [0] * len(self.plan.rules)
        """By rule: how many calls it broke."""
        self._damage: dict[int, _Damage] = {}
        self._inodes: dict[WrappedFile, int] = {}
        self._lasting = any(rule.fault in ("rot", "failsync") for rule in self.plan.rules)

    def around(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None = None) -> T:
        """Let the first rule that strikes answer; otherwise perform, through the damage that is there."""
        chosen = None
        for number, rule in enumerate(self.plan.rules):
            if rule.fits(call):
                self.seen[number] += 1
                if chosen is None and rule.strikes(self.seen[number]):
                    chosen = number
        if chosen is None:
            return self._through_damage(call, perform, file)
        self.fired[chosen] += 1
        rule = self.plan.rules[chosen]
        return cast(T, getattr(self, f"_{rule.fault}")(_Strike(rule, call, perform, file)))

    # Damage that lasts

    def _through_damage(self, call: Call, perform: Callable[[Call], T], file: WrappedFile | None) -> T:
        if not self._lasting:
            return perform(call)
        damage = self._damage.get(self._identity(call, file))
        if damage is not None and damage.lost_sync and call.operation in SYNCS:
            return cast(T, _flush(file))
        answer = perform(call)
        if isinstance(answer, WrappedFile):
            self._inodes[answer] = self.inner.stat(call.path).inode
            if call.operation == "create":
                self._damage.pop(self._inodes[answer], None)
        elif call.operation == "close" and file is not None:
            self._inodes.pop(file, None)
        elif damage is not None and call.operation == "truncate":
            damage.rotten_bits = [bit for bit in damage.rotten_bits if bit < call.size * 8]
        elif damage is not None and isinstance(answer, bytes):
            answer = cast(T, _flipped(answer, [bit - call.offset * 8 for bit in damage.rotten_bits]))
        return answer

    def _identity(self, call: Call, file: WrappedFile | None) -> int:
        if file is not None:
            return self._inodes.get(file, 0)
        return self.inner.stat(call.path).inode if call.operation == "sync_dir" else 0

    def _damaged(self, strike: _Strike) -> _Damage:
        return self._damage.setdefault(self._identity(strike.call, strike.file), _Damage())

    # One method a fault

    def _error(self, strike: _Strike) -> NoReturn:
        strike.fail()

    def _short(self, strike: _Strike) -> NoReturn:
        strike.perform(strike.call._replace(data=bytes(strike.call.data)[: strike.number()]))
        strike.fail()

    def _torn(self, strike: _Strike) -> None:
        assert strike.file is not None, "append is an operation of a file"
        data = _torn(strike.number(), bytes(strike.call.data), strike.file.inner.size())
        strike.perform(strike.call._replace(data=data))

    def _flip(self, strike: _Strike) -> bytes:
        data = self._through_damage(strike.call, cast("Callable[[Call], bytes]", strike.perform), strike.file)
        return _flipped(data, [strike.number() % (8 * len(data))]) if data else data

    def _rot(self, strike: _Strike) -> object:
        self._damaged(strike).rotten_bits.append(strike.number())
        return self._through_damage(strike.call, strike.perform, strike.file)

    def _lie(self, strike: _Strike) -> None:
        _flush(strike.file)

    def _failsync(self, strike: _Strike) -> NoReturn:
        self._damaged(strike).lost_sync = True
        _flush(strike.file)
        strike.fail()


def _flush(file: WrappedFile | None) -> None:
    """What a sync still does when it makes nothing durable."""
    if file is not None:
        file.inner.flush()


def _flipped(data: bytes, bits: list[int]) -> bytes:
    """`data` with these bits the other way; bits outside of it are left alone."""
    damaged = bytearray(data)
    for bit in bits:
        if 0 <= bit < 8 * len(data):
            damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _torn(seed: int, data: bytes, offset: int) -> bytes:
    """`data`, to be written at `offset`, with a drawn set of its sectors as zeros: one of them at least."""
    edges = [0, *range(-offset % SECTOR_BYTES or SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    draws = [blake2b(f"{seed}\0{number}".encode(), digest_size=8).digest() for number in range(len(edges) - 1)]
    worst = min(range(len(draws)), key=draws.__getitem__)
    pieces = []
    for number, (low, high) in enumerate(pairwise(edges)):
        lost = number == worst or draws[number][0] < 128
        pieces.append(bytes(high - low) if lost else data[low:high])
    return b"".join(pieces)
