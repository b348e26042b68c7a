"""A crash after every operation of a recorded history: recover, judge, and crash the recovery as well.

    for each position of the disk's log, for each choice of survivors:
        image ─▶ open ─▶ scan ─▶ judge against the history
              ─▶ verify, no leaked file ─▶ write one more ─▶ reopen: same content and that one
        and at some states: each position of the recovery's own log, and of one more write
                            that is acknowledged at FSYNC ─▶ image ─▶ all of that again

What a recovery does depends on what lies on the disk and on nothing else, so disks with the same names and
bytes are recovered once; each state is judged by itself, for what must be there depends on the position.

After a kill the machine runs on, and may lose power later: a recovery after a kill is crashed by both.

Under `structural_sync="follow_dial"` below FSYNC the manifest and the tables are as weak as the log. There a loss
of power may take acknowledged writes, and the store may say so (`Corruption`, counted as `refused`). What it
serves must be a prefix all the same.

A violation carries what is needed to see it again: a line for `labs.crash.replay`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import lsm
from labs.crash.history import Verdict
from labs.crash.workload import STORE, Recorder, Workload
from lsm.filenames import parse_name
from simfs.api import SyncLevel
from simfs.choice import Step
from simfs.crash import ALL_KEPT, SYNCED_ONLY, Choice, CrashReplay, Failure, WorstCase
from simfs.memory import MemoryFilesystem
from simfs.oplog import ROOT, Create, Link, Mkdir, Rename, Rmdir, Tree, Unlink

PROBE = b"~probe"  # sorts after every key of the workloads
LATER = (b"~later", b"2")  # written after a recovery that is to be crashed


@dataclass(frozen=True)
class Spot:
    """A crash: the failure, after how many operations, which survivors; perhaps a second one in the recovery.

    >>> Spot("kill", 7, ALL_KEPT, (3, "power", WorstCase(5))).arguments()
    ['--failure', 'kill', '--position', '7', '--choice', 'all', '--then', '3', 'power', 'worst:5']
    """

    failure: Failure
    position: int
    choice: Choice
    then: tuple[int, Failure, Choice] | None = None  # (operations of the recovery, failure, survivors)

    @property
    def weakest(self) -> Failure:
        """The failure whose promises hold: the graver of the two."""
        return self.failure if self.then is None or self.failure != "kill" else self.then[1]

    def arguments(self) -> list[str]:
        """For `labs.crash.replay`."""
        place = ["--failure", self.failure, "--position", str(self.position)]
        first = [*place, "--choice", choice_text(self.choice)]
        if self.then is None:
            return first
        return [*first, "--then", str(self.then[0]), self.then[1], choice_text(self.then[2])]


@dataclass(frozen=True)
class Violation:
    """A broken promise, and where."""

    workload: Workload | None
    spot: Spot
    problem: str

    def __str__(self) -> str:
        arguments = [*(self.workload.arguments() if self.workload else []), *self.spot.arguments()]
        return f"{self.problem}\n    python -m labs.crash.replay {shlex.join(arguments)}"


@dataclass
class Sweep:
    """What a sweep saw. `lost_max`: the most acknowledged writes that were gone in any state (allowed or not)."""

    states: int = 0
    recoveries: int = 0  # disks that differ
    lost_max: int = 0
    refused: int = 0  # states that follow_dial left unreadable, and said so
    depth_two: int = 0  # states that a second crash left
    violations: list[Violation] = field(default_factory=list)

    def report(self) -> str:
        """The first violations in words, for a failing test."""
        return "\n".join(map(str, [*self.violations[:5], f"{len(self.violations)} violations in {self.states} states"]))


@dataclass(frozen=True)
class Outcome:
    """What opening a disk came to. `problem`: what was wrong apart from the content."""

    found: dict[bytes, bytes] | None
    problem: str = ""
    refusal: bool = False  # a `Corruption`, as against any other error


def default_choices(seeds: Iterable[int]) -> list[Choice]:
    """The two ends, and seeded draws from what lies between."""
    return [SYNCED_ONLY, ALL_KEPT, *(WorstCase(seed) for seed in seeds)]


@dataclass(frozen=True)
class Only:
    """Of what was not synced, records of some types survive, and nothing else: an order that suits no store.

    `REMOVALS`: files go before what replaces them is there. `NAMES`: files are there before their content is.
    """

    kinds: tuple[type, ...]

    def survives(self, step: Step, part: int) -> bool:  # noqa: ARG002
        """Whether the record is of these types."""
        return isinstance(step.record, self.kinds)

    def filler(self, step: Step, size: int) -> bytes:  # noqa: ARG002
        """Zeros."""
        return bytes(size)


REMOVALS = Only((Unlink, Rmdir))
NAMES = Only((Create, Mkdir, Link, Rename))
_NAMED: dict[str, Choice] = {"synced": SYNCED_ONLY, "all": ALL_KEPT, "removals": REMOVALS, "names": NAMES}


def choice_text(choice: Choice) -> str:
    """A choice in a word: `synced`, `all`, `removals`, `names`, `worst:SEED`."""
    if isinstance(choice, WorstCase):
        return f"worst:{choice.seed}"
    return next((name for name, named in _NAMED.items() if named == choice), repr(choice))


def parse_choice(text: str) -> Choice:
    """Read what `choice_text` writes. Raises `ValueError`.

    >>> [choice_text(parse_choice(text)) for text in ("synced", "all", "removals", "names", "worst:12")]
    ['synced', 'all', 'removals', 'names', 'worst:12']
    """
    name, _, seed = text.partition(":")
    if name == "worst":
        return WorstCase(int(seed))
    if text not in _NAMED:
        raise ValueError(f"survivors {text!r}: expected {', '.join(_NAMED)} or worst:SEED")
    return _NAMED[text]


class Sweeper:
    """Judges states of one recorded history, and remembers what each disk led to."""

    def __init__(self, recorder: Recorder, workload: Workload | None = None) -> None:
        self.recorder = recorder
        self.workload = workload
        self.options = lsm.Options.make(recorder.options, listener=None)
        self.result = Sweep()
        self._weak = self.options.structural_floor < SyncLevel.FSYNC
        self._known: dict[object, Outcome] = {}

    def crash(self, replay: CrashReplay, spot: Spot) -> bool:
        """Judge the state that `spot` leaves of `replay`, which stands at its position. True if all is well."""
        outcome = self._recovered(replay.image(spot.choice, spot.failure))
        verdict = self.judge(outcome, spot)
        if verdict.prefix >= 0:
            lost = self.recorder.history.acknowledged(spot.position) - verdict.prefix
            self.result.lost_max = max(self.result.lost_max, lost)
        return self._note(verdict.problem, spot) and outcome.found is not None

    def judge(self, outcome: Outcome, spot: Spot) -> Verdict:
        """Ask the oracles about what was recovered."""
        history, failure = self.recorder.history, spot.weakest
        weak = self._weak and failure != "kill"
        if outcome.found is None:
            if weak and outcome.refusal:
                self.result.refused += 1
                return Verdict(-1, 0, 0, "")
            return Verdict(-1, 0, 0, outcome.problem)
        verdict = history.judge(outcome.found, failure, spot.position)
        problem = "" if weak and verdict.prefix >= 0 else verdict.problem
        return replace(verdict, problem=problem or outcome.problem)

    def crash_recovery(self, replay: CrashReplay, spot: Spot, seconds: Sequence[tuple[Failure, Choice]]) -> None:
        """Crash the recovery from `spot` at each of its operations, and those of a write that follows it.

        What it once served must stay; what was acknowledged after it must be there.
        """
        image = replay.image(spot.choice, spot.failure)
        db = lsm.open(STORE, self.options, world=self.recorder.world(image))
        served_at, served = len(image.log), dict(db.scan())
        db.put(*LATER, sync=SyncLevel.FSYNC)
        written_at = len(image.log)
        db.close()
        again = CrashReplay(image)
        for step in range(image.log_start, written_at + 1):
            again.advance(step)
            for failure, choice in seconds:
                second = replace(spot, then=(step - image.log_start, failure, choice))
                self.result.depth_two += 1
                outcome, later = _without_later(self._recovered(again.image(choice, failure)))
                problem = self.judge(outcome, second).problem
                if not problem and (failure == "kill" or not self._weak):
                    if step >= served_at and outcome.found != served:
                        problem = "what the recovery had served is not there after a second crash"
                    elif step == written_at and not later:
                        problem = "a write acknowledged after the recovery is not there after a second crash"
                self._note(problem, second)

    def _note(self, problem: str, spot: Spot) -> bool:
        self.result.states += 1
        if problem:
            self.result.violations.append(Violation(self.workload, spot, problem))
        return not problem

    def _recovered(self, image: MemoryFilesystem) -> Outcome:
        key = fingerprint(image.tree())
        outcome = self._known.get(key)
        if outcome is None:
            self.result.recoveries += 1
            outcome = self._known[key] = recover(image, self.recorder, self.options)
        return outcome


def _without_later(outcome: Outcome) -> tuple[Outcome, bool]:
    """An outcome less the write that followed the first recovery, and whether that one was there."""
    if outcome.found is None or outcome.found.get(LATER[0]) != LATER[1]:
        return outcome, False
    found = {key: value for key, value in outcome.found.items() if key != LATER[0]}
    return replace(outcome, found=found), True


def sweep(
    recorder: Recorder,
    failure: Failure,
    choices: Sequence[Choice],
    *,
    positions: Sequence[int] | None = None,
    depth_every: int = 0,
    progress: Callable[[int], None] | None = None,
    workload: Workload | None = None,
    until_first: bool = False,
) -> Sweep:
    """Crash after each of `positions` (default: every operation) under each choice.

    `depth_every` n > 0: at every n-th state the recovery is crashed at each of its operations too.
    `until_first` ends at the first violation.
    """
    sweeper = Sweeper(recorder, workload)
    replay = CrashReplay(recorder.fs)
    count = 0
    for position in range(len(recorder.fs.log) + 1) if positions is None else positions:
        replay.advance(position)
        for choice in [ALL_KEPT] if failure == "kill" else choices:
            count += 1
            spot = Spot(failure, position, choice)
            if sweeper.crash(replay, spot) and depth_every and count % depth_every == 0:
                sweeper.crash_recovery(replay, spot, list(_seconds(failure, choice, choices)))
            if until_first and sweeper.result.violations:
                return sweeper.result
        if progress is not None:
            progress(position)
    return sweeper.result


def _seconds(failure: Failure, choice: Choice, choices: Sequence[Choice]) -> Iterator[tuple[Failure, Choice]]:
    """What may strike the recovery: the same again; and power after a kill, a kill after the power came back."""
    if failure == "kill":
        yield from (("power", each) for each in choices)
    else:
        yield failure, choice
    yield "kill", ALL_KEPT


def recover(image: MemoryFilesystem, recorder: Recorder, options: lsm.Options) -> Outcome:
    """Open the disk and ask every oracle that needs no history. Changes `image`."""
    try:
        with lsm.open(STORE, options, world=recorder.world(image)) as db:
            found = dict(db.scan())
            db.version.check()
            db.verify()
            leaked = leaked_files(image, db)
            if leaked:
                return Outcome(found, f"leaked {', '.join(leaked)}")
            db.put(PROBE, b"1")
        with lsm.open(STORE, options, world=recorder.world(image)) as db:
            again = dict(db.scan())
    except Exception as error:  # whatever recovery raises is the finding
        return Outcome(None, f"{type(error).__name__}: {error}", isinstance(error, lsm.Corruption))
    if again != {**found, PROBE: b"1"}:
        return Outcome(found, "a second opening shows other content than the first")
    return Outcome(found)


def leaked_files(fs: MemoryFilesystem, db: lsm.DB) -> list[str]:
    """Files of the store that belong to nothing."""
    live = {f"{table.number:06d}.sst" for _, table in db.version.tables()}
    names = [name for name in fs.listdir(STORE) if (parsed := parse_name(name)) and parsed.kind in ("table", "tmp")]
    logs = [name for name in fs.listdir(STORE) if name.endswith(".log")]
    manifests = [name for name in fs.listdir(STORE) if name.startswith("MANIFEST")]
    return [name for name in names if name not in live] + logs[:-1] + manifests[:-1]


def fingerprint(tree: Tree) -> object:
    """Equal for two disks that hold the same names and bytes, whatever their inode numbers."""
    found: list[tuple[str, bytes | None]] = []
    waiting = [("", ROOT)]
    for path, number in waiting:
        for name, child in sorted(tree.directories[number].items()):
            if child in tree.directories:
                waiting.append((f"{path}/{name}", child))
            found.append((f"{path}/{name}", tree.files.get(child)))
    return tuple(found)
