"""Time, tasks and locks for one thread of control: the memory world's runtime.

The clock moves by a fixed step whenever somebody looks at it, so that the same calls see the same
times on every machine. A spawned task runs to its end before `spawn` returns: the one order that
needs no scheduler. Whatever would have to wait for somebody else can therefore never be woken, and
fails at once with `Deadlock` where another runtime would hang.

Left out: interleaving. Tasks that truly run beside each other belong to the simulated machine;
threads may share this runtime only where they need none of its locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from simfs import api

WALL_START_S = 1_796_083_200
"""2026-12-01, 00:00 UTC: when a memory world begins."""


class Deadlock(RuntimeError):
    """A call waits for something that no other task is there to do."""


class MemoryLock:
    """A lock that knows that nobody else can release it."""

    def __init__(self, runtime: MemoryRuntime) -> None:
        self._runtime = runtime
        self.held = False

    def acquire(self) -> bool:
        """Take the lock. Raises `Deadlock` if it is held."""
        self._runtime.check("Lock.acquire")
        if self.held:
            raise Deadlock("Lock.acquire: the lock is held, and in this runtime its holder cannot run on")
        self.held = True
        return True

    def release(self) -> None:
        """Give the lock back. Raises `RuntimeError` if it is not held."""
        if not self.held:
            raise RuntimeError("Lock.release: the lock is not held")
        self.held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class MemoryCondition:
    """A condition on which waiting is a deadlock and notifying finds nobody."""

    def __init__(self, runtime: MemoryRuntime, lock: api.Lock) -> None:
        self._runtime = runtime
        self._lock = lock

    def wait(self) -> None:
        """Raises `Deadlock`: no other task can notify."""
        self._runtime.check("Condition.wait")
        raise Deadlock("Condition.wait: in this runtime no other task can notify")

    def notify(self, n: int = 1) -> None:
        """Nobody waits, so nothing happens."""

    def notify_all(self) -> None:
        """Nobody waits, so nothing happens."""


class MemoryTask:
    """A task that has already run; `error` is the exception that ended it."""

    def __init__(self, name: str, error: BaseException | None) -> None:
        self.name = name
        self.error = error


class MemoryRuntime:
    """A clock that counts its readers, and tasks that run at once.

    >>> runtime = MemoryRuntime(step_ns=10)
    >>> runtime.now_ns(), runtime.now_ns()
    (10, 20)
    """

    def __init__(self, step_ns: int = 1000) -> None:
        self._now_ns = 0
        self._step_ns = step_ns
        self.critical = 0
        """How many `no_switch` sections are open."""

    def now_ns(self) -> int:
        """A clock that moves by one step a call."""
        self._now_ns += self._step_ns
        return self._now_ns

    def wall_s(self) -> int:
        """The same clock, begun at `WALL_START_S`; looking does not move it."""
        return WALL_START_S + self._now_ns // 1_000_000_000

    def process_id(self) -> int:
        """1: there is one process."""
        return 1

    def sleep_ns(self, duration_ns: int) -> None:
        """Move the clock."""
        self.check("Runtime.sleep_ns")
        self._now_ns += duration_ns

    def lock(self) -> api.Lock:
        """A new lock."""
        return MemoryLock(self)

    def condition(self, lock: api.Lock) -> api.Condition:
        """A new condition over `lock`."""
        return MemoryCondition(self, lock)

    def spawn(self, name: str, target: Callable[[], None]) -> MemoryTask:
        """Run `target` now, to its end. What it raises is kept for `join`; `PowerLost` passes."""
        try:
            target()
        except Exception as error:
            return MemoryTask(name, error)
        return MemoryTask(name, None)

    def join(self, task: api.Task) -> None:
        """Raise the exception that ended the task, once."""
        self.check("Runtime.join")
        assert isinstance(task, MemoryTask), f"join of a task of another runtime: {task!r}"
        error, task.error = task.error, None
        if error is not None:
            raise error

    @contextmanager
    def no_switch(self) -> Iterator[None]:
        """A section in which every call that may switch tasks fails with `AssertionError`."""
        self.critical += 1
        try:
            yield
        finally:
            self.critical -= 1

    def check(self, call: str) -> None:
        """Called by everything that may switch tasks."""
        if self.critical:
            raise AssertionError(f"{call} may switch tasks, but was called inside no_switch()")
