"""SIGKILL of a real process on the real disk: at each point of the dial, and in the middle of each kind of job.

    parent ─▶ child: open, put 0, put 1 …      "." for each acknowledged put, "!" where it stands still
    parent ─▶ SIGKILL ─▶ reopen: a prefix of the puts, as long as the dial promises; verify; reopen again

Nothing waits for time to pass. A child that is to die inside a job stands still there, holds the lock, and says so.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lsm
from labs.crash_writer import entry
from labs.tour.kills import kill_writer
from simfs.api import SyncLevel

LEVELS = tuple(SyncLevel)
KEYS = 101
PUTS_MAX = 5000

CHILD = """
import os, sys
from fnmatch import fnmatchcase

import lsm
from simfs.real import RealFilesystem, RealWorld
from simfs.wrapper import WrappedFilesystem
from labs.crash_writer import entry

folder, level, puts, job, operation, pattern, nth = sys.argv[1:]

class Standing(WrappedFilesystem):
    left = 0  # of the calls that fit; 0: not armed

    def around(self, call, perform, file=None):
        if self.left and call.operation == operation and fnmatchcase(call.path, pattern) and inside(job):
            self.left -= 1
            if self.left == 0:
                os.write(1, b"!")
                sys.stdin.buffer.read()
                os._exit(3)
        return perform(call)

def inside(name):
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_qualname != name:
        frame = frame.f_back
    return frame is not None

fs = Standing(RealFilesystem())
db = lsm.open(
    folder, world=RealWorld(fs), sync=level, write_buffer_size=2500, block_size=512, target_file_size_base=2000,
    level0_file_num_compaction_trigger=2, max_bytes_for_level_base=5000, max_bytes_for_level_multiplier=3,
    max_manifest_file_size=600,
)
fs.left = int(nth)
for number in range(int(puts)):
    db.put(*put_of(number))
    os.write(1, b".")
os.write(1, b"!")
sys.stdin.buffer.read()
os._exit(3)
"""


def put_of(number: int) -> tuple[bytes, bytes]:
    """Keys come again, in no order, so that there is something to merge; values tell which put they are of."""
    return b"key-%03d" % (number * 37 % KEYS), entry(number)[1]


def prefix_of(found: dict[bytes, bytes]) -> int:
    """After how many puts this is the content. Each put changes it, so there is one answer at most."""
    state: dict[bytes, bytes] = {}
    for number in range(PUTS_MAX):
        if state == found:
            return number
        key, value = put_of(number)
        state[key] = value
    raise AssertionError(f"the content is that of no prefix: {sorted(found)[:5]} …")


def killed(folder: Path, level: SyncLevel, *, puts: int = PUTS_MAX, stop: tuple[str, str, str, int]) -> int:
    """How many puts the child had acknowledged when it stood still and was killed."""
    arguments = [str(folder), level.name.lower(), str(puts), *map(str, stop)]
    with subprocess.Popen(
        [sys.executable, "-c", f"KEYS = {KEYS}\n{inspect.getsource(put_of)}\n{CHILD}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        said = b""
        while not said.endswith(b"!"):
            more = os.read(child.stdout.fileno(), 65536)
            if not more:
                raise AssertionError(f"the child ended: {child.stderr.read().decode()}")
            said += more
        with pytest.raises(BlockingIOError, match="open elsewhere"):
            lsm.open(folder)
        child.kill()
        child.wait()
    return said.count(b".")


def recovered(folder: Path) -> int:
    """Reopen: how many puts are there. What was found once stays, and the store is whole and goes on."""
    with lsm.open(folder) as db:
        found = dict(db.scan())
        db.verify()
        db.version.check()
        db[b"~after"] = b"1"
    with lsm.open(folder) as db:
        assert dict(db.scan()) == {**found, b"~after": b"1"}
        db.verify()
    return prefix_of(found)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_kill_loses_at_none_and_nowhere_else(tmp_path: Path, level: SyncLevel) -> None:
    folder = str(tmp_path / "store")
    found = kill_writer(folder, level, 200, seconds=60.0)
    assert found.acknowledged >= 200
    assert found.wrong == 0
    assert (found.lost > 0) == (level == SyncLevel.NONE)
    assert found.survived <= found.acknowledged + 1, "one more may have been under way"
    with lsm.open(folder) as db:
        assert db.verify().entries == found.survived
        assert len(db) == found.survived


STOPS = [
    ("Jobs.new_log", "create", "*.log", 2),
    ("Jobs.flush", "append", "*.sst", 1),
    ("Jobs.flush", "sync", "*.sst", 2),
    ("Jobs.flush", "sync_dir", "*", 2),
    ("Jobs.flush", "append", "*/MANIFEST-*", 3),
    ("Jobs.flush", "sync", "*/MANIFEST-*", 4),
    ("Jobs.flush", "remove", "*.log", 3),
    ("Jobs.run", "append", "*.sst", 5),
    ("Jobs.run", "sync", "*.sst", 3),
    ("Jobs.run", "append", "*/MANIFEST-*", 4),
    ("Jobs.run", "remove", "*.sst", 2),
    ("VersionSet.start_manifest", "append", "*/MANIFEST-*", 1),
    ("VersionSet.start_manifest", "rename", "*/CURRENT.tmp", 1),
    ("VersionSet.start_manifest", "remove", "*/MANIFEST-*", 2),
]
"""The method inside which the child dies, and before which call on which file: the n-th of that kind."""


@pytest.mark.parametrize("level", [SyncLevel.NONE, SyncLevel.FSYNC], ids=lambda level: level.name)
@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: "-".join(map(str, stop)))
def test_a_kill_inside_a_job(tmp_path: Path, stop: tuple[str, str, str, int], level: SyncLevel) -> None:
    """Each job begins by handing the log's buffer to the operating system, so here NONE loses nothing either."""
    acknowledged = killed(tmp_path / "store", level, stop=stop)
    assert 0 < acknowledged < PUTS_MAX, "the child was to die in a job"
    assert recovered(tmp_path / "store") == acknowledged


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_kill_after_many_jobs(tmp_path: Path, level: SyncLevel) -> None:
    puts = 333
    acknowledged = killed(tmp_path / "store", level, puts=puts, stop=("no job", "append", "*", 1))
    assert acknowledged == puts
    with lsm.open(tmp_path / "store", read_only=True) as db:
        assert sum(1 for _ in db.version.tables()) > 3, "the store was to have a tree"
    found = recovered(tmp_path / "store")
    assert found <= puts
    assert (found < puts) == (level == SyncLevel.NONE)


def test_killed_again_and_again_while_it_recovers(tmp_path: Path) -> None:
    """Each child recovers what the one before left, and dies inside its first job."""
    folder = tmp_path / "store"
    least = killed(folder, SyncLevel.FLUSH, stop=("Jobs.run", "sync", "*.sst", 3))
    for stop in (
        ("Jobs.flush", "sync_dir", "*", 1),
        ("Jobs.flush", "remove", "*.log", 1),
        ("Jobs.run", "remove", "*", 1),
    ):
        # The puts begin anew, with the same keys and values: after at least as many of them, the content is the same.
        least = max(least, killed(folder, SyncLevel.FLUSH, stop=stop))
        with lsm.open(folder) as db:
            db.verify()
            found = dict(db.scan())
        assert found.keys() <= {put_of(number)[0] for number in range(KEYS)}
        assert set(found.values()) <= {put_of(number)[1] for number in range(least + 1)}
        assert len(found) == min(least, KEYS)
