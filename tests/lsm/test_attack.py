"""A Ctrl-C in the middle of a write: whatever the moment, the store stays one that opens, and loses nothing before."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lsm
from lsm.db import DB

CODE = DB._commit.__code__


class InterruptAfter:
    """A profile function that raises `KeyboardInterrupt` when the n-th call made by `DB._commit` returns.

    The interpreter looks for signals after calls and at loops: these are the moments of a real Ctrl-C.
    """

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        caller = {"c_return": frame, "return": frame.f_back}.get(event)
        if caller is not None and caller.f_code is CODE:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def put_interrupted(db: DB, number: int) -> bool:
    """Put k=1, interrupted after the n-th call; False if there are not so many."""
    before = sys.getprofile()
    sys.setprofile(InterruptAfter(number))
    try:
        db.put(b"k", b"1")
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(before)
    return False


def test_an_interrupt_at_any_moment_of_a_write(tmp_path: Path) -> None:
    number = refused = 0
    interrupted = True
    while interrupted:
        number += 1
        path = tmp_path / str(number)
        with lsm.open(path) as db:
            db.put(b"a", b"0")
            interrupted = put_interrupted(db, number)
            possible: set[bytes | None] = {b"2"}
            try:
                db.put(b"k", b"2")
            except lsm.InvalidArgument:
                refused, possible = refused + 1, {None, b"1"}
            assert db.get(b"a") == b"0"
        with lsm.open(path) as db:
            db.verify()
            assert db.get(b"a") == b"0"
            assert db.get(b"k") in possible
    assert number > 5
    assert refused > 2


def test_stores_and_snapshots_are_not_copied(tmp_path: Path) -> None:
    with lsm.open(tmp_path) as db, db.snapshot() as before:
        for thing in (db, before):
            for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    duplicate(thing)
        db.put(b"a", b"1")


FORK = """
import os, sys
import lsm

db = lsm.open(sys.argv[1])
db[b"before"] = b"1"
child = os.fork()
if child == 0:
    said = []
    for call in (lambda: db.put(b"child", b"1"), lambda: list(db.scan()), db.flush, db.verify, db.snapshot):
        try:
            call()
        except lsm.InvalidArgument as error:
            said.append("before a fork" in str(error))
    assert db.get(b"before") == b"1"
    db.close()
    os._exit(0 if said == [True] * 5 else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
db[b"after"] = b"1"
try:
    lsm.open(sys.argv[1])
except BlockingIOError:
    pass
else:
    raise SystemExit("the child's close gave the parent's lock back")
db.close()
"""


def test_a_store_does_not_come_along_through_a_fork(tmp_path: Path) -> None:
    """Two processes on one log would write over each other: the child is refused, and takes nothing away."""
    path = str(tmp_path / "db")
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, path], check=True)
    with lsm.open(path) as db:
        assert dict(db) == {b"before": b"1", b"after": b"1"}
