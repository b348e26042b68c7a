"""What people do to a command line: close its streams, fill its disk, interrupt it early, feed it odd numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import lsm
from labs.cli import main
from labs.inputs import InputError, read_rows
from labs.tour.places import work_folders


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run a shell command in which "$@" is `python -m labs` with these arguments."""
    words = [sys.executable, "-m", "labs", *map(str, arguments)]
    return subprocess.run(["sh", "-c", command, "sh", *words], capture_output=True, check=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with lsm.open(tmp_path / "store") as db:
        db[b"a"] = b"1"
    return tmp_path / "store"


def test_closed_output_is_an_error_of_one_line(store: Path) -> None:
    done = shell('"$@" >&-', "db", store, "scan")
    assert (done.returncode, done.stderr) == (1, b"lsmlab: standard output: Bad file descriptor\n")
    assert shell('"$@" >&-', "--help").stderr == b"lsmlab: Bad file descriptor\n"


def test_no_file_of_a_store_takes_the_number_of_a_closed_stream(store: Path) -> None:
    done = shell('"$@" <&- >&- 2>&-', "db", store, "put", "b", "2")
    assert done.returncode == 0
    with lsm.open(store) as db:
        assert dict(db.scan()) == {b"a": b"1", b"b": b"2"}


def test_closed_input_is_an_error_and_not_an_empty_file(store: Path) -> None:
    done = shell('"$@" <&-', "db", store, "load", "-")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == b"lsmlab: Bad file descriptor"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_output_is_told_from_a_full_store(store: Path) -> None:
    done = shell('"$@" >/dev/full', "db", store, "scan")
    assert (done.returncode, done.stderr) == (1, b"lsmlab: standard output: No space left on device\n")


def test_ctrl_c_during_the_imports(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from labs.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"lsmlab: interrupted\n")


def test_a_load_that_ends_early_says_how_many_rows_are_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("key,value\na,1\nb,2\nc,3\n")
    write, calls = lsm.DB.write, []

    def full_at_the_second(db: lsm.DB, batch: lsm.WriteBatch) -> None:
        calls.append(len(batch))
        if len(calls) == 2:
            raise OSError(28, "No space left on device", "somewhere")
        write(db, batch)

    monkeypatch.setattr(lsm.DB, "write", full_at_the_second)
    done = CliRunner().invoke(main, ["db", str(tmp_path / "s"), "load", str(rows), "--batch", "1"])
    assert done.exit_code == 1
    assert done.stderr == ("lsmlab: 1 row before the end is in the store\nlsmlab: somewhere: No space left on device\n")


def test_an_empty_path_is_named() -> None:
    done = CliRunner().invoke(main, ["db", "", "get", "a"])
    assert (done.exit_code, done.stderr) == (2, "lsmlab: path '': expected the name of a folder\n")


@pytest.mark.parametrize("line", ["{0},k,1,5,3,set,0", "0,k,1,{0},3,set,0", "0,k,{0},5,3,set,0", "0,k,1,5,3,set,{0}"])
def test_numbers_of_a_trace_that_no_machine_holds(line: str) -> None:
    lines = [b"0,k,1,5,3,set,0\n", line.format("9" * 5000).encode()]
    with pytest.raises(InputError, match=r"line 2: .* expected a whole number, found '9{40}…'"):
        list(read_rows("trace", lines))
    [row] = read_rows("csv", [b"a,b,c,d,e,f,g\n", lines[1]])  # nor does looking at a first line fail
    assert row.kind == "put"


def test_a_failed_tour_takes_away_the_folders_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    def interrupted_tour() -> None:
        with work_folders(str(tmp_path / "mine" / "a" / "b" / "store")) as (folder, _):
            os.mkdir(folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_tour()
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(tmp_path / "mine") == []
    with work_folders(str(tmp_path / "mine" / "a" / "store")) as (folder, _):
        os.mkdir(folder)
    assert os.listdir(tmp_path / "mine" / "a") == ["store"]


def test_a_tour_in_the_empty_path_makes_nothing() -> None:
    done = CliRunner().invoke(main, ["tour", "--dir", ""])
    assert (done.exit_code, done.output) == (2, "lsmlab: path '': expected the name of a folder\n")


def test_output_in_an_encoding_that_lacks_a_character() -> None:
    """The tour's "✓" goes through the text layer of stdout."""
    code = (
        "import click; from labs.cli import main\n"
        "@main.command('tick')\ndef tick(): print('\u2713 good')\n"
        "main.get_command = lambda ctx, name: tick\nmain(['tick'])\n"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"? good\n", b"")


def test_an_input_that_cannot_be_read_makes_no_store(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,name\n1,a\n")
    store = tmp_path / "store"
    result = CliRunner().invoke(main, ["db", str(store), "load", str(rows), "--key", "nope"])
    assert result.exit_code != 0
    assert "nope" in result.output
    assert not store.exists()
    result = CliRunner().invoke(main, ["db", str(store), "load", str(rows), "--key", "id"])
    assert result.exit_code == 0, result.output
    with lsm.open(str(store)) as db:
        assert list(db) == [b"1"]


@pytest.mark.parametrize("kind", ["wal", "manifest"])
def test_inspect_says_that_a_file_is_empty(tmp_path: Path, kind: str) -> None:
    empty = tmp_path / "000001.log"
    empty.touch()
    result = CliRunner().invoke(main, ["inspect", kind, str(empty)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "empty" in result.stderr
