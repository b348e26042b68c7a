"""A crash after every operation of a recorded history: recover, judge, and crash the recovery as well.

    for each position of the disk's log, for each choice of survivors:
        image ─▶ open ─▶ scan ─▶ judge against the history
              ─▶ verify, no leaked file ─▶ write one more ─▶ reopen: same content and that one
        and at some positions: each position of the recovery's own log ─▶ image ─▶ open ─▶ judge again

A violation carries what is needed to see it again: failure, position, choice, and the seed of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import lsm
from labs.crash.history import History, Verdict
from labs.crash.workload import STORE, Recorder
from lsm.filenames import parse_name
from simfs.crash import ALL_KEPT, SYNCED_ONLY, Choice, CrashReplay, Failure, WorstCase
from simfs.memory import MemoryFilesystem, MemoryWorld

PROBE = b"~probe"  # sorts after every key of the workloads


@dataclass(frozen=True)
class Violation:
    """A broken promise, and where."""

    failure: Failure
    position: int
    choice: str
    depth: int
    problem: str

    def __str__(self) -> str:
        depth = "" if self.depth == 1 else " (in the recovery)"
        return f"{self.failure} after operation {self.position}{depth}, survivors {self.choice}: {self.problem}"


@dataclass
class Sweep:
    """What a sweep saw. `lost_max`: the most acknowledged writes that were gone in any state (allowed or not)."""

    states: int = 0
    recoveries: int = 0
    lost_max: int = 0
    violations: list[Violation] = field(default_factory=list)


def default_choices(seeds: Iterable[int]) -> list[Choice]:
    """The two ends, and seeded draws from what lies between."""
    return [SYNCED_ONLY, ALL_KEPT, *(WorstCase(seed) for seed in seeds)]


def sweep(
    recorder: Recorder,
    failure: Failure,
    choices: Sequence[Choice],
    *,
    positions: Sequence[int] | None = None,
    depth_every: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Sweep:
    """Crash after each of `positions` (default: every operation) under each choice.

    `depth_every` n > 0: at every n-th state the recovery is crashed at each of its operations too.
    """
    result = Sweep()
    replay = CrashReplay(recorder.fs)
    for position in range(len(recorder.fs.log) + 1) if positions is None else positions:
        replay.advance(position)
        for choice in [ALL_KEPT] if failure == "kill" else choices:
            _one(result, recorder, replay, failure, position, choice, depth_every)
        if progress is not None:
            progress(position)
    return result


def _one(
    result: Sweep,
    recorder: Recorder,
    replay: CrashReplay,
    failure: Failure,
    position: int,
    choice: Choice,
    depth_every: int,
) -> None:
    result.states += 1
    image = replay.image(choice, failure)
    try:
        verdict = recover_and_judge(image, recorder.options, recorder.history, failure, position)
    except Exception as error:  # whatever recovery raises is the finding
        verdict = Verdict(-1, 0, 0, f"{type(error).__name__}: {error}")
    result.recoveries += 1
    if verdict.prefix >= 0:
        result.lost_max = max(result.lost_max, recorder.history.acknowledged(position) - verdict.prefix)
    if verdict.problem:
        result.violations.append(Violation(failure, position, repr(choice), 1, verdict.problem))
        return
    if depth_every and result.states % depth_every == 0:
        for found in _crash_recovery(replay.image(choice, failure), recorder, failure, position, choice, result):
            result.violations.append(found)


def recover_and_judge(
    image: MemoryFilesystem, options: lsm.Options, history: History, failure: Failure, position: int
) -> Verdict:
    """Open the image and ask every oracle. Raises what the store raises."""
    options = lsm.Options.make(options, listener=None)
    world = MemoryWorld(image)
    with lsm.open(STORE, options, world=world) as db:
        found = dict(db.scan())
        verdict = history.judge(found, failure, position)
        if verdict.problem:
            return verdict
        db.version.check()
        db.verify()
        leaked = leaked_files(image, db)
        if leaked:
            return Verdict(verdict.prefix, verdict.required, verdict.possible, f"leaked {', '.join(leaked)}")
        db.put(PROBE, b"1")
    with lsm.open(STORE, options, world=world) as db:
        again = dict(db.scan())
    if again != {**found, PROBE: b"1"}:
        return Verdict(-1, verdict.required, verdict.possible, "a second opening shows other content than the first")
    return verdict


def leaked_files(fs: MemoryFilesystem, db: lsm.DB) -> list[str]:
    """Files of the store that belong to nothing."""
    live = {f"{table.number:06d}.sst" for _, table in db.version.tables()}
    names = [name for name in fs.listdir(STORE) if (parsed := parse_name(name)) and parsed.kind in ("table", "tmp")]
    logs = [name for name in fs.listdir(STORE) if name.endswith(".log")]
    manifests = [name for name in fs.listdir(STORE) if name.startswith("MANIFEST")]
    return [name for name in names if name not in live] + logs[:-1] + manifests[:-1]


def _crash_recovery(
    image: MemoryFilesystem, recorder: Recorder, failure: Failure, position: int, choice: Choice, result: Sweep
) -> Iterator[Violation]:
    """Crash the recovery of `image` at each of its operations. Once it served something, that must stay."""
    options = lsm.Options.make(recorder.options, listener=None)
    db = lsm.open(STORE, options, world=MemoryWorld(image))
    served_at, served = len(image.log), dict(db.scan())
    db.close()
    replay = CrashReplay(image)
    for step in range(image.log_start, served_at + 1):
        replay.advance(step)
        second = replay.image(choice, failure)
        result.states += 1
        result.recoveries += 1
        try:
            with lsm.open(STORE, options, world=MemoryWorld(second)) as again:
                found = dict(again.scan())
            verdict = recorder.history.judge(found, failure, position)
            problem = verdict.problem
            if not problem and step == served_at and found != served:
                problem = "what the recovery had served is not there after a second crash"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            yield Violation(failure, position, f"{choice!r}, recovery operation {step}", 2, problem)
