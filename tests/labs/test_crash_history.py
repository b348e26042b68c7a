"""The oracle of the crash sweep rejects each kind of wrong recovery, and accepts what a crash may leave."""

from __future__ import annotations

import pytest

from labs.crash.history import History
from labs.crash.replay import main
from labs.crash.sweep import Spot, Sweep, Violation
from labs.crash.workload import Workload
from lsm.batch import Op
from lsm.entry import DELETE, RANGE_DELETE, VALUE
from simfs.api import SyncLevel
from simfs.crash import ALL_KEPT, Failure, WorstCase

WRITES: list[list[Op]] = [
    [(VALUE, b"a", b"1")],
    [(VALUE, b"b", b"1")],
    [(VALUE, b"c", b"1"), (VALUE, b"d", b"1")],
    [(DELETE, b"a", b"")],
    [(VALUE, b"e", b"1")],
    [(RANGE_DELETE, b"b", b"c")],
    [(VALUE, b"f", b"1")],
]


def history(level: SyncLevel = SyncLevel.FSYNC, acknowledged: int = 7) -> History:
    """Write n began after 10·n operations of the disk, and returned after 10·n + 5, if it did."""
    told = History()
    for number, ops in enumerate(WRITES):
        told.add(ops, level, 10 * number, 10 * number + 5 if number < acknowledged else None)
    return told


def test_every_state_on_the_way_is_as_the_writes_say() -> None:
    assert [sorted(state) for state in history().states] == [
        [], [b"a"], [b"a", b"b"], [b"a", b"b", b"c", b"d"], [b"b", b"c", b"d"], [b"b", b"c", b"d", b"e"],
        [b"c", b"d", b"e"], [b"c", b"d", b"e", b"f"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "found", "says"),
    [
        ("a hole", {b"c": b"1", b"d": b"1", b"f": b"1"}, "a hole or a returned delete"),
        ("half a batch", {b"a": b"1", b"b": b"1", b"c": b"1"}, "no prefix"),
        ("a returned delete", {b"a": b"1", b"c": b"1", b"d": b"1", b"e": b"1", b"f": b"1"}, "returned delete"),
        ("a returned range", {b"b": b"1", b"c": b"1", b"d": b"1", b"e": b"1", b"f": b"1"}, "returned delete"),
        ("a value never written", {b"c": b"1", b"d": b"1", b"e": b"1", b"f": b"2"}, "a value never written"),
        ("a key never written", {b"c": b"1", b"d": b"1", b"e": b"1", b"f": b"1", b"x": b"1"}, "a value never written"),
        ("an older value", {b"c": b"0", b"d": b"1", b"e": b"1", b"f": b"1"}, "a value never written"),
        ("the last write", {b"c": b"1", b"d": b"1", b"e": b"1"}, "lost acknowledged writes: 6 of 7"),
        ("all", {}, "lost acknowledged writes: 0 of 7"),
    ],
)
def test_planted_wrong_recoveries_are_rejected(name: str, found: dict[bytes, bytes], says: str) -> None:
    assert says in history().judge(found, "power", 100).problem


@pytest.mark.parametrize(
    ("level", "failure", "required"),
    [
        (SyncLevel.NONE, "kill", 0),
        (SyncLevel.FLUSH, "kill", 7),
        (SyncLevel.FLUSH, "power", 0),
        (SyncLevel.FLUSH, "os", 0),
        (SyncLevel.FSYNC, "power", 7),
        (SyncLevel.FULLFSYNC, "os", 7),
    ],
)
def test_the_dial_says_what_must_be_there(level: SyncLevel, failure: Failure, required: int) -> None:
    told = history(level)
    assert told.required(failure, 100) == required
    for prefix, state in enumerate(told.states):
        assert (told.judge(state, failure, 100).problem == "") is (prefix >= required)


def test_a_write_under_way_may_be_there_or_not_but_none_that_had_not_begun() -> None:
    told = history()
    assert (told.required("power", 22), told.possible(22), told.acknowledged(22)) == (2, 3, 2)
    assert [told.judge(state, "power", 22).problem == "" for state in told.states] == [
        False, False, True, True, False, False, False, False,
    ]  # fmt: skip


def test_one_durable_write_carries_all_before_it_and_so_does_a_mark() -> None:
    told = History()
    for number, level in enumerate((SyncLevel.NONE, SyncLevel.FSYNC, SyncLevel.NONE)):
        told.add([(VALUE, b"%d" % number, b"")], level, number, number + 1)
    assert told.required("power", 3) == 2
    told.mark_durable(4)
    assert (told.required("power", 3), told.required("power", 4)) == (2, 3)


def test_a_violation_prints_the_line_that_shows_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    workload = Workload(sync="none", ops=60, faults='lie() @ sync(site="table.finish")')
    spot = Spot("power", 57, WorstCase(3), (2, "kill", ALL_KEPT))
    text = str(Violation(workload, spot, "lost"))
    assert "replay --sync none --ops 60 --seed 3 --faults 'lie() @ sync(site=" in text
    assert text.endswith("--failure power --position 57 --choice worst:3 --then 2 kill all")
    sweep = Sweep(violations=[Violation(workload, spot, "lost")])
    assert text in sweep.report()


def replay(place: str, *workload: str) -> int:
    failure, position, choice, *then = place.split()
    at = ["--failure", failure, "--position", position, "--choice", choice]
    return main([*at, *(["--then", *then] if then else []), "--ops", "60", *workload])


def test_replay_says_what_is_found_and_fails_where_a_promise_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay("power 50 synced", "--sync", "none") == 0
    assert "every promise is kept" in capsys.readouterr().out
    assert replay("power 20 synced", "--faults", 'lie() @ sync(site="wal.write")') == 1
    said = capsys.readouterr().out
    assert "lost acknowledged writes" in said
    assert "MANIFEST-000002" in said
    assert replay("kill 50 all 3 power synced") == 0


@pytest.mark.parametrize("place", ["kill 1 most", "death 1 all", "kill 1 all 1 death all"])
def test_replay_refuses_what_it_does_not_know(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        replay(place)
    assert "error: " in capsys.readouterr().err
