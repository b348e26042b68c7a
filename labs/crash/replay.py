"""See one crash state again: record the workload, crash it, recover, and say what was found.

    python -m labs.crash.replay --sync fsync --ops 100 --seed 3 --failure power --position 133 --choice worst:3
    python -m labs.crash.replay --sync none --failure kill --position 57 --choice all --then 4 power synced

The choice says what survives of all that was not synced: `synced` (nothing of it), `all`, or `worst:SEED` (a draw).
`--then` crashes the recovery as well, after so many operations of its own. The other options name the workload
(`labs.crash.workload.Workload`). Exit code 1: a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, cast, get_args

from labs.crash.sweep import Spot, Sweeper, parse_choice
from labs.crash.workload import STORE, Workload
from simfs.crash import CrashReplay, Failure
from simfs.memory import MemoryFilesystem

SHOWN = 12  # operations before the crash


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m labs.crash.replay", description="See one crash state again.")
    for item in fields(Workload):
        parser.add_argument(f"--{item.name.replace('_', '-')}", type=type(item.default), default=item.default)
    parser.add_argument("--failure", choices=get_args(Failure), required=True)
    parser.add_argument("--position", type=int, required=True)
    parser.add_argument("--choice", default="synced", help="synced, all, worst:SEED")
    parser.add_argument("--then", nargs=3, metavar=("STEP", "FAILURE", "CHOICE"))
    given = parser.parse_args(arguments)
    workload = Workload(**{item.name: getattr(given, item.name) for item in fields(Workload)})
    try:
        return _replay(workload, _spot(given))
    except ValueError as error:
        parser.error(str(error))


def _spot(given: Any) -> Spot:
    then = None
    if given.then is not None:
        step, failure, choice = given.then
        if failure not in get_args(Failure):
            raise ValueError(f"failure {failure!r}: expected one of {', '.join(get_args(Failure))}")
        then = int(step), cast(Failure, failure), parse_choice(choice)
    return Spot(given.failure, given.position, parse_choice(given.choice), then)


def _replay(workload: Workload, spot: Spot) -> int:
    recorder = workload.record()
    sweeper = Sweeper(recorder, workload)
    replay = CrashReplay(recorder.fs).advance(spot.position)
    for number in range(max(0, spot.position - SHOWN), spot.position):
        _say(f"{number:6d}  {_short(recorder.fs.log[number])}")
    _say(f"        {spot.failure}; what is left:")
    _list(replay.image(spot.choice, spot.failure))
    if spot.then is None:
        sweeper.crash(replay, spot)
    else:
        sweeper.crash_recovery(replay, spot, [spot.then[1:]])
    found = [each for each in sweeper.result.violations if each.spot == spot]
    for violation in found:
        _say(violation.problem)
    if not found:
        lost = sweeper.result.lost_max
        _say("every promise is kept" + (f"; {lost} acknowledged writes lost, which this dial allows" if lost else ""))
    return 1 if found else 0


def _short(record: object) -> str:
    values = cast("tuple[object, ...]", record)
    shown = [f"{len(value)} bytes" if isinstance(value, bytes) else str(value) for value in values]
    return f"{type(record).__name__:9s} {' '.join(shown)}"


def _list(image: MemoryFilesystem) -> None:
    if image.exists(STORE):
        for name in image.listdir(STORE):
            _say(f"        {name:20s} {image.stat(f'{STORE}/{name}').size} bytes")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
