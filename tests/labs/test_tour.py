"""The tour: what it checks can fail, what it prints is whole, and what it leaves behind is nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lsm
from labs.cli import main
from labs.inputs import Row
from labs.tour import kill_at, places, why_no_device_count
from labs.tour.kills import Killed, WriterFailed, kill_writer
from labs.tour.power import cut_power, legal_states
from labs.tour.store import OPTIONS, MainJob
from labs.tour.workload import Change, few_changes, read_input
from lsm.errors import InvalidArgument
from simfs.api import SyncLevel
from simfs.memory import MemoryFile

POLLS_MAX = 3000


@pytest.fixture
def cities(tmp_path: Path) -> str:
    file = tmp_path / "cities.csv"
    file.write_text("id,name\n" + "".join(f"{number:05d},city {number}\n" for number in range(3000)), encoding="utf-8")
    return str(file)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the tour takes for the temporary one."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(places, "temporary_parent", lambda: str(folder))
    return folder


def rows(count: int) -> list[Row]:
    return [Row(0, "put", b"key-%04d" % number, b"value %d" % number) for number in range(count)]


# chapters


@pytest.mark.parametrize("level", list(SyncLevel))
def test_a_killed_writer_loses_at_none_and_nowhere_else(tmp_path: Path, level: SyncLevel) -> None:
    killed = kill_at(str(tmp_path / "store"), level)
    assert killed.acknowledged > 0
    assert killed.wrong == 0
    assert (killed.lost > 0) == (level == SyncLevel.NONE)


def test_a_writer_that_ends_by_itself_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(WriterFailed, match=r"ended before it was killed: .*file"):
        kill_writer(str(blocked), SyncLevel.FLUSH, 1)


def test_power_loss_in_a_flush_violates_nothing() -> None:
    changes = few_changes(rows(60), 1, 60)
    assert {change.value is None for change in changes} == {True, False}
    safe, unsafe = cut_power(changes, SyncLevel.FSYNC, 1), cut_power(changes, SyncLevel.NONE, 1)
    assert (safe.violations, safe.lossy, unsafe.violations) == (0, 0, 0)
    assert unsafe.lossy > 0
    assert safe.operations > 5
    assert safe.states > safe.operations


def test_power_loss_finds_a_store_that_does_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFile, "sync", lambda self, kind, site: None)
    crashes = cut_power(few_changes(rows(20), 1, 20), SyncLevel.FSYNC, 1)
    assert crashes.violations > 0
    assert crashes.examples


def test_legal_states_are_the_models_after_each_change() -> None:
    changes = [Change(b"a", b"1"), Change(b"b", b"2"), Change(b"a", None)]
    assert legal_states(changes) == [{}, {b"a": b"1"}, {b"a": b"1", b"b": b"2"}, {b"b": b"2"}]


def test_comparing_finds_what_differs(tmp_path: Path) -> None:
    job = MainJob(str(tmp_path / "store"), rows(1000), seed=1)
    with lsm.open(job.folder, OPTIONS) as db:
        load = job.load(db, lambda count: None)
        changed = job.change(db, lambda count: None)
    assert load.entries == 1000
    assert changed.range_deleted > 0
    assert len(job.model) == 1000 - changed.deleted - changed.range_deleted
    assert job.compare()[0].ok
    with lsm.open(job.folder) as db:
        del db[min(job.model)]
        db[b"key-0500?"] = b"never written"
    compared, _ = job.compare()
    assert compared.differing > 0
    assert not compared.ok


def test_a_trace_is_carried_out_with_its_reads(tmp_path: Path) -> None:
    file = tmp_path / "trace"
    lines = [f"{t},key-{t % 7},5,{t},0,{('set', 'get', 'delete', 'get')[t % 4]},0\n" for t in range(400)]
    file.write_text("".join(lines), encoding="utf-8")
    data = read_input(str(file))
    job = MainJob(str(tmp_path / "store"), data.rows, seed=1)
    with lsm.open(job.folder, OPTIONS) as db:
        load = job.load(db, lambda count: None)
        assert dict(db) == job.model
    assert (load.entries, load.deletes, load.reads, load.wrong_reads, data.truncated) == (100, 100, 200, 0, False)


def test_the_device_is_not_counted_where_nobody_counts() -> None:
    assert why_no_device_count("ext4", 1.5) is None
    assert why_no_device_count("tmpfs", 0.0) == "tmpfs is memory: nothing goes to a device"
    assert why_no_device_count(None, None) is not None


def test_the_filesystem_of_a_folder(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"dev / ext4 rw 0 0\nx {tmp_path} tmpfs rw 0 0\ny {tmp_path}/a\\040b xfs rw 0 0\n", encoding="utf-8"
    )
    folders = [str(tmp_path.parent), str(tmp_path / "c"), str(tmp_path / "a b/c"), str(tmp_path) + "x"]
    kinds = [places.filesystem_of(folder, str(mounts)) for folder in folders]
    assert kinds == ["ext4", "tmpfs", "xfs", "ext4"]
    assert places.filesystem_of("/", str(tmp_path / "missing")) is None


# the whole


def tour(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ["tour", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_json(cities: str, scratch: Path) -> None:
    report = json.loads(tour("--input", cities, "--seed", "7", "--format", "json").stdout)
    assert report["ok"] is True
    assert report["corpus"]["entries"] == 3000
    assert set(report["dial"]) == {"NONE", "FLUSH", "FSYNC", "FULLFSYNC"}
    for level, killed in report["dial"].items():
        assert killed["acknowledged"] > 0
        assert (killed["lost"] > 0) == (level == "NONE")
    assert report["crash"]["states"] > 0
    assert report["crash"]["violations"] == 0
    assert report["write_amp"]["engine"] >= 1.0
    assert report["write_amp"]["logical"] > report["write_amp"]["engine"]
    assert (report["write_amp"]["device"] is None) == (report["write_amp"]["device_reason"] is not None)
    assert report["space_amp"] > 0
    assert report["seconds"] > 0
    assert os.listdir(scratch) == []


@pytest.mark.campaign
def test_the_real_tour_takes_less_than_a_minute(scratch: Path) -> None:
    report = json.loads(tour("--format", "json").stdout)
    assert report["ok"] is True
    assert report["corpus"]["entries"] > 100_000
    assert report["metrics"]["compactions"] > 5
    assert report["seconds"] < 60
    assert os.listdir(scratch) == []


def test_text_and_a_store_that_is_kept(cities: str, scratch: Path, tmp_path: Path) -> None:
    kept = str(tmp_path / "new/kept")
    text = tour("--input", cities, "--dir", kept).stdout
    for part in (
        "1. Load",
        "2. Overwrite",
        "3. Reopen",
        "4. Kill",
        "5. Cut",
        "6. Where",
        "every check passed",
        "Next:",
    ):
        assert part in text
    assert f"db {kept} verify" in " ".join(text.split())
    assert os.listdir(tmp_path / "new") == ["kept"]
    with lsm.open(kept, read_only=True) as db:
        assert len(db) > 2000
    assert "not an empty folder" in tour("--dir", kept, code=2).stderr


def test_a_failed_check_is_exit_code_1(cities: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labs.tour.kill_at", lambda folder, level: Killed(100, 90, 0))
    report = json.loads(tour("--input", cities, "--format", "json", code=1).stdout)
    assert report["failures"] == [
        f"{level}: 10 acknowledged writes did not survive the kill" for level in ("FLUSH", "FSYNC", "FULLFSYNC")
    ]
    text = tour("--input", cities, code=1).stdout
    assert text.count("WRONG") == 3


def test_input_that_cannot_be_used(scratch: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.csv"
    damaged.write_text("a,b\n1\n", encoding="utf-8")
    assert "line 2" in tour("--input", str(damaged), code=4).stderr
    damaged.write_text("a,b\n", encoding="utf-8")
    assert "nothing to put" in tour("--input", str(damaged), code=2).stderr
    assert tour("--input", str(tmp_path / "missing"), code=1).stderr.count("\n") == 1
    assert os.listdir(scratch) == []


def fail_in_work_folders(kept: str) -> None:
    with places.work_folders(kept) as (store, scratch):
        os.mkdir(store)
        os.mkdir(f"{scratch}/x")
        raise ZeroDivisionError


def test_only_what_is_kept_after_success_stays(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    with pytest.raises(ZeroDivisionError):
        fail_in_work_folders(kept)
    assert os.listdir(tmp_path) == []
    with places.work_folders(kept) as (store, _):
        os.mkdir(store)
    assert os.listdir(tmp_path) == ["kept"]
    (tmp_path / "kept/file").write_bytes(b"")
    with pytest.raises(InvalidArgument), places.work_folders(kept):
        pass
    assert os.listdir(kept) == ["file"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_tour_leaves_nothing_behind(cities: str, tmp_path: Path, number: int, code: int) -> None:
    kept = tmp_path / "new/kept"
    command = [sys.executable, "-m", "labs", "tour", "--input", cities, "--dir", str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        children = wait_for_a_killed_writers_store(process, kept.parent)
        process.send_signal(number)
        _, error = process.communicate()
    assert process.returncode == code, error
    assert b"Traceback" not in error
    assert not kept.parent.exists(), "the folder above it was made by the tour as well"
    assert not any(alive(child) for child in children)


def wait_for_a_killed_writers_store(process: subprocess.Popen[bytes], folder: Path) -> list[int]:
    """Until the tour is in its fourth chapter; the processes that it has started."""
    for _ in range(POLLS_MAX):
        if list(folder.glob("lsmlab-tour-*/killed-*")):
            return children_of(process.pid)
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("the tour never came to its fourth chapter")


def children_of(pid: int) -> list[int]:
    """On Linux; elsewhere nobody tells."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text(encoding="ascii").split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
