"""Cut the power in the middle of a flush: at each operation of it, in several ways, and recover each time.

    memory disk: put … put │ create log, create table, append, sync, sync folder, append to manifest, sync, remove log
                           └── after each of these: what may be on the disk ──▶ reopen ──▶ compare with the model

A disk without power keeps what was synced. Of everything else each sector and each name may have
arrived or not (`simfs.crash`): we look at "nothing of it", "all of it", and seeded draws in between.
States that are the same, byte for byte, are looked at once.

At FSYNC every acknowledged write must be there, in every state. At NONE losses are what the dial says;
a wrong value, a hole or a returned delete is a violation there as well. That losses *are* seen at NONE shows
that the power was really cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import lsm
from labs.tour.workload import Change
from simfs.api import SyncLevel
from simfs.crash import ALL_KEPT, SYNCED_ONLY, Choice, CrashReplay, WorstCase
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.oplog import Tree

FOLDER = "/store"
VIOLATIONS_SHOWN_MAX = 5


@dataclass
class Crashes:
    """What a flush looked like in all the states in which the power may have left it."""

    operations: int = 0
    states: int = 0
    lossy: int = 0  # states in which acknowledged writes are missing
    violations: int = 0
    examples: list[str] = field(default_factory=list)

    def violation(self, text: str) -> None:
        """Count one, and keep the first few in words."""
        self.violations += 1
        if len(self.examples) < VIOLATIONS_SHOWN_MAX:
            self.examples.append(text)


def cut_power(changes: Sequence[Change], level: SyncLevel, seed: int, draws: int = 6) -> Crashes:
    """Apply `changes` at `level` to a store on a memory disk, flush, and cut the power at each operation of that."""
    fs = MemoryFilesystem()
    with lsm.open(FOLDER, sync=level, world=MemoryWorld(fs)) as db:
        for change in changes:
            change.apply(db)
        begin = len(fs.log)
        db.flush()
        end = len(fs.log)
    choices: list[Choice] = [SYNCED_ONLY, ALL_KEPT, *(WorstCase(seed * draws + i) for i in range(draws))]
    legal = legal_states(changes)
    crashes, replay, seen = Crashes(operations=end - begin), CrashReplay(fs), dict[object, None]()
    for at in range(begin, end + 1):
        replay.advance(at)
        for choice in choices:
            image = replay.image(choice)
            state = _fingerprint(image.tree())
            if state not in seen:
                seen[state] = None
                crashes.states += 1
                _judge(crashes, image, legal, level, f"after operation {at - begin} of the flush, {choice!r}")
    return crashes


def legal_states(changes: Sequence[Change]) -> list[dict[bytes, bytes]]:
    """The model after 0, 1, 2 … changes: a recovered store must equal one of them."""
    models: list[dict[bytes, bytes]] = [{}]
    for change in changes:
        models.append(change.applied(models[-1]))
    return models


def _fingerprint(tree: Tree) -> object:
    """The same for two disks that hold the same names and bytes."""
    folders = tuple((number, tuple(sorted(names.items()))) for number, names in sorted(tree.directories.items()))
    return folders, tuple(sorted(tree.files.items()))


def _judge(
    crashes: Crashes, image: MemoryFilesystem, legal: list[dict[bytes, bytes]], level: SyncLevel, where: str
) -> None:
    try:
        with lsm.open(FOLDER, world=MemoryWorld(image)) as db:
            found = dict(db.scan())
    except Exception as error:  # whatever it is: a store that does not open has lost everything
        crashes.violation(f"{where}: {error!r}")
        return
    if found == legal[-1]:
        return
    if found not in legal:
        crashes.violation(f"{where}: {len(found)} entries that are no prefix of what was written")
        return
    crashes.lossy += 1
    if level >= SyncLevel.FSYNC:
        crashes.violation(f"{where}: only the first {legal.index(found)} of {len(legal) - 1} acknowledged changes")
