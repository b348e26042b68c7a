"""Kill a writer: start `labs.crash_writer`, wait for some acknowledged writes, SIGKILL, reopen, compare."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import lsm
from labs.crash_writer import entry
from simfs.api import SyncLevel

ENTRIES_MAX = 1_000_000
WAIT_SECONDS_MAX = 60.0


class WriterFailed(OSError):
    """The writer ended before anybody killed it."""


@dataclass(frozen=True)
class Killed:
    """What one kill showed. `wrong` counts entries that are not what was written, or leave a hole."""

    acknowledged: int
    survived: int
    wrong: int

    @property
    def lost(self) -> int:
        """Acknowledged writes that are gone."""
        return max(self.acknowledged - self.survived, 0)


def kill_writer(folder: str, level: SyncLevel, acknowledged: int, seconds: float = 2.0) -> Killed:
    """Let a writer put entries into the new store `folder`, kill it, and look at what is left.

    It is killed once it has `acknowledged` writes, or after `seconds` (a disk may take long for each sync)
    once it has any. Raises `WriterFailed`.
    """
    with _writer(folder, level) as writer:
        count = _wait_for(writer, acknowledged, seconds)
        writer.kill()
        count += _drain(writer)
    return _compare(folder, count)


@contextmanager
def _writer(folder: str, level: SyncLevel) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-m", "labs.crash_writer", folder, level.name.lower(), str(ENTRIES_MAX)]
    # A session of its own: a Ctrl-C on the terminal reaches this process only, which then kills the writer.
    writer = subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield writer
    finally:
        writer.kill()
        writer.wait()
        for stream in (writer.stdin, writer.stdout, writer.stderr):
            if stream is not None:
                stream.close()


def _wait_for(writer: subprocess.Popen[bytes], acknowledged: int, seconds: float) -> int:
    assert writer.stdout is not None
    count, started = 0, time.monotonic()
    first = started
    while count < acknowledged and (count == 0 or time.monotonic() - first < seconds):
        ready, _, _ = select.select([writer.stdout], [], [], 0.1)
        if ready:
            acks = len(os.read(writer.stdout.fileno(), 65536))
            if acks == 0:
                raise WriterFailed(_last_words(writer))
            first = time.monotonic() if count == 0 else first
            count += acks
        elif time.monotonic() - started > WAIT_SECONDS_MAX:
            raise WriterFailed(f"the writer acknowledged {count} writes in {WAIT_SECONDS_MAX:.0f} s")
    return count


def _drain(writer: subprocess.Popen[bytes]) -> int:
    """What the writer acknowledged until it died."""
    assert writer.stdout is not None
    count = 0
    while acks := os.read(writer.stdout.fileno(), 65536):
        count += len(acks)
    return count


def _last_words(writer: subprocess.Popen[bytes]) -> str:
    assert writer.stderr is not None
    lines = writer.stderr.read().decode(errors="replace").strip().splitlines()
    return f"the writer ended before it was killed: {lines[-1] if lines else 'without a word'}"


def _compare(folder: str, acknowledged: int) -> Killed:
    survived = wrong = 0
    with lsm.open(folder) as db:
        for key, value in db.scan():
            wrong += (key, value) != entry(survived)
            survived += 1
    return Killed(acknowledged, survived, wrong)
