"""SIGKILL in the middle of `lsmlab db PATH load`: what is left is a prefix of the file, cut between two batches."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import lsm

ROWS = 100_000
BATCH = 100
POLLS_MAX = 3000


@pytest.mark.parametrize("level", ["flush", "fsync"])
def test_a_killed_load_leaves_a_prefix(tmp_path: Path, level: str) -> None:
    source, store = tmp_path / "rows.csv", tmp_path / "store"
    source.write_text("key,value\n" + "".join(f"{n:06d},value {n}\n" for n in range(ROWS)), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "labs",
        "db",
        str(store),
        "load",
        str(source),
        "--batch",
        str(BATCH),
        "--sync",
        level,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for_the_log_to_grow(process, store)
        process.kill()
        process.wait()
    with lsm.open(store) as db:
        found = list(db.scan())
        assert db.verify().entries >= 0
    assert found == [(b"%06d" % n, b"value %d" % n) for n in range(len(found))]
    assert 0 < len(found) < ROWS
    assert len(found) % BATCH == 0


def wait_for_the_log_to_grow(process: subprocess.Popen[bytes], store: Path) -> None:
    for _ in range(POLLS_MAX):
        if any(log.stat().st_size > 10_000 for log in store.glob("*.log")):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError("the load wrote nothing")
