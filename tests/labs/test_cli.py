"""`lsmlab db` and `lsmlab inspect`: every command, in text and in JSON, and every exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import lsm
from labs.cli import main
from lsm.errors import MissingExtra


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def lsmlab(*arguments: object, code: int = 0, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def as_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(lsmlab(*arguments, "--format", "json", code=code).stdout)


def json_lines(*arguments: object) -> list[Any]:
    return [json.loads(line) for line in lsmlab(*arguments, "--format", "json").stdout.splitlines()]


# reading and writing


def test_put_get_delete(store: str) -> None:
    assert lsmlab("db", store, "put", "a", "1").output == ""
    assert lsmlab("db", store, "get", "a").stdout == "1\n"
    assert lsmlab("db", store, "delete", "a").output == ""
    missing = lsmlab("db", store, "get", "a", code=1)
    assert (missing.stdout, missing.stderr) == ("", "lsmlab: a: no such key\n")


def test_put_get_delete_in_json(store: str) -> None:
    assert as_json("db", store, "put", "a", "1") == {"key": "a", "sequence": 1}
    assert as_json("db", store, "get", "a") == {"key": "a", "found": True, "value": "1"}
    assert as_json("db", store, "delete", "a") == {"key": "a", "sequence": 2}
    assert as_json("db", store, "get", "a", code=1) == {"key": "a", "found": False}


def test_bytes_are_escaped_and_read_back(store: str) -> None:
    lsmlab("db", store, "put", "--hex", "ff00", "5c0a")
    assert lsmlab("db", store, "scan").stdout == "\\xff\\x00\t\\\\\\x0a\n"
    assert lsmlab("db", store, "get", r"\xff\x00").stdout == "\\\\\\x0a\n"
    assert lsmlab("db", store, "get", "--hex", "FF00").stdout == "5c0a\n"
    assert as_json("db", store, "scan") == {"key_hex": "ff00", "value": "\\\n"}
    assert "is not hex" in lsmlab("db", store, "get", "--hex", "x", code=2).stderr


def filled(store: str, count: int = 50) -> None:
    with lsm.open(store) as db:
        for number in range(count):
            db[b"key-%03d" % number] = b"value-%d" % number


def test_scan(store: str) -> None:
    filled(store)
    keys = [f"key-{number:03d}" for number in range(50)]
    assert lsmlab("db", store, "scan", "--keys-only").stdout.split() == keys
    assert lsmlab("db", store, "scan", "--keys-only", "--reverse").stdout.split() == keys[::-1]
    bounded = lsmlab("db", store, "scan", "--start", "key-010", "--stop", "key-013").stdout
    assert bounded == "key-010\tvalue-10\nkey-011\tvalue-11\nkey-012\tvalue-12\n"
    assert lsmlab("db", store, "scan", "--prefix", "key-04", "--limit", 2, "--keys-only").stdout.split() == keys[40:42]
    assert lsmlab("db", store, "scan", "--prefix", "other").stdout == ""
    assert json_lines("db", store, "scan", "--limit", 2) == [
        {"key": "key-000", "value": "value-0"},
        {"key": "key-001", "value": "value-1"},
    ]


def test_delete_until(store: str) -> None:
    filled(store)
    lsmlab("db", store, "delete", "key-001", "--until", "key-049")
    assert lsmlab("db", store, "scan", "--keys-only").stdout.split() == ["key-000", "key-049"]
    assert "start" in lsmlab("db", store, "delete", "b", "--until", "a", code=2).stderr


def test_options_stand_anywhere_and_the_last_one_wins(store: str) -> None:
    lsmlab("db", "--option", "block_size=1k", store, "--strategy", "tiered", "put", "a", "1", "--sync", "fsync")
    lsmlab("db", "--sync", "none", store, "put", "a", "2", "--option", "memtable=skiplist")
    assert lsmlab("db", store, "--compression", "zlib", "get", "a").stdout == "2\n"
    unknown = lsmlab("db", store, "put", "a", "1", "--option", "block_sise=1", code=2)
    assert unknown.stderr == "lsmlab: unknown option block_sise; did you mean block_size?\n"
    assert "num_levels" in lsmlab("db", store, "--option", "num_levels=99", "put", "a", "1", code=2).stderr
    wins = lsmlab("db", store, "--option", "num_levels=99", "put", "a", "1", "--option", "num_levels=4")
    assert wins.output == ""


def test_commands_that_read_create_nothing_and_change_nothing(store: str) -> None:
    for command in (["get", "a"], ["scan"], ["stats"], ["verify"], ["compact"], ["delete", "a"], ["checkpoint", "c"]):
        assert f"{store}: there is no store here" in lsmlab("db", store, *command, code=2).stderr
    assert not os.path.exists(store)
    filled(store)
    before = {path.name: path.read_bytes() for path in Path(store).iterdir()}
    for command in (["get", "key-001"], ["scan"], ["stats"], ["verify"]):
        lsmlab("db", store, *command)
    assert {path.name: path.read_bytes() for path in Path(store).iterdir()} == before


# the whole store


def test_stats_and_compact(store: str) -> None:
    filled(store)
    assert "Level" in lsmlab("db", store, "compact").stdout
    text = lsmlab("db", store, "stats", "--space").stdout
    assert text.split()[0] == "Level"
    assert "last sequence 50" in text
    assert "space " in text.splitlines()[-1]
    figures = as_json("db", store, "stats")
    assert sum(row["files"] for row in figures["levels"] if row["level"] != "Sum") == 1
    assert set(figures["write_amp"]) == {"engine", "logical", "device"}
    assert as_json("db", store, "compact", "--start", "a", "--stop", "b")["levels"] == figures["levels"]


def test_verify_names_the_file_and_the_offset_of_the_first_damage(store: str) -> None:
    filled(store)
    with lsm.open(store) as db:
        db.flush()
    report = as_json("db", store, "verify")
    assert (report["ok"], report["entries"]) == (True, 50)
    assert lsmlab("db", store, "verify").stdout.startswith("ok: tables 1, entries 50")
    (path,) = Path(store).glob("*.sst")
    whole = path.read_bytes()
    for position in range(0, len(whole), 29):
        damaged = whole[:position] + bytes([whole[position] ^ 1 << position % 8]) + whole[position + 1 :]
        path.write_bytes(damaged)
        assert re.match(f"lsmlab: {re.escape(str(path))}: offset \\d+: ", lsmlab("db", store, "verify", code=4).stderr)
    found = as_json("db", store, "verify", code=4)
    assert (found["ok"], found["path"]) == (False, str(path))
    assert path.read_bytes() == damaged


def test_repair(store: str) -> None:
    filled(store)
    os.remove(f"{store}/CURRENT")
    for path in Path(store).glob("MANIFEST-*"):
        path.unlink()
    assert lsmlab("db", store, "get", "key-001", code=4).stderr.startswith("lsmlab: ")
    assert lsmlab("db", store, "repair").stdout.startswith("repaired: ")
    assert len(lsmlab("db", store, "scan").stdout.splitlines()) == 50
    assert as_json("db", store, "repair")["entries"] == 50


def test_checkpoint(store: str, tmp_path: Path) -> None:
    filled(store)
    copy = str(tmp_path / "copy")
    assert lsmlab("db", store, "checkpoint", copy).stdout == f"{copy}: a store of its own, with 1 tables\n"
    lsmlab("db", store, "put", "key-000", "changed")
    assert lsmlab("db", copy, "get", "key-000").stdout == "value-0\n"
    assert "exists" in lsmlab("db", store, "checkpoint", copy, code=2).stderr


# loading


def test_load_csv(store: str, tmp_path: Path) -> None:
    file = tmp_path / "cities.csv"
    file.write_text("id,name\n" + "".join(f"{number},city {number}\n" for number in range(2500)), encoding="utf-8")
    assert lsmlab("db", store, "load", file).stdout.startswith("loaded 2,500 entries (")
    assert lsmlab("db", store, "get", "7").stdout == '{"name":"city 7"}\n'
    loaded = as_json("db", store, "load", file, "--value", "name", "--sync", "fsync", "--batch", 7, "--progress")
    assert (loaded["puts"], loaded["deletes"]) == (2500, 0)
    assert lsmlab("db", store, "get", "7").stdout == "city 7\n"


def test_what_scan_prints_as_json_is_what_load_reads(store: str, tmp_path: Path) -> None:
    with lsm.open(store) as db:
        for key in (b"", b"a\\", b"\xff\x00", "ü\n".encode()):
            db[key] = key[::-1]
    lines = lsmlab("db", store, "scan", "--format", "json").stdout_bytes
    copy = str(tmp_path / "copy")
    lsmlab("db", copy, "load", "-", stdin=lines)
    assert lsmlab("db", copy, "scan", "--format", "json").stdout_bytes == lines
    assert len(lines.splitlines()) == 4


def test_load_a_cache_trace(store: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("1,a,1,4,0,set,0\n2,b,1,4,0,set,0\n3,a,1,0,0,get,0\n4,b,1,0,0,delete,0\n", encoding="utf-8")
    text = lsmlab("db", store, "load", file).stdout
    assert text.endswith(", 1 delete, 1 read skipped\n")
    assert lsmlab("db", store, "scan").stdout == "a\ta@1 \n"


def test_a_damaged_line_ends_the_load_and_what_was_before_it_is_there(store: str, tmp_path: Path) -> None:
    file = tmp_path / "cities.csv"
    file.write_text("id,name\n1,a\n2,b\n3\n4,d\n", encoding="utf-8")
    result = lsmlab("db", store, "load", file, code=4)
    assert result.stderr == (
        f"lsmlab: 2 rows before the damaged line are in the store\nlsmlab: {file}: line 4: 1 columns, expected 2\n"
    )
    assert lsmlab("db", store, "scan", "--keys-only").stdout.split() == ["1", "2"]


def test_a_key_beyond_the_limit_is_an_error_of_its_line(store: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    file.write_text(json.dumps({"key": "a"}) + "\n" + json.dumps({"key": "b" * 65_536}) + "\n", encoding="utf-8")
    assert "line 2: " in lsmlab("db", store, "load", file, code=4).stderr
    assert lsmlab("db", store, "scan", "--keys-only").stdout.split() == ["a"]


# inspecting


def test_inspect_wal_and_manifest(store: str) -> None:
    with lsm.open(store) as db:
        db.put(b"a", b"1")
        db.delete(b"b")
        db.delete_range(b"c", b"d")
    (log,) = Path(store).glob("*.log")
    text = lsmlab("inspect", "wal", log).stdout
    for part in ("header  wal", "put a = 1", "delete b", "delete [c, d)", "all before"):
        assert part in text
    entries = json_lines("inspect", "wal", log)
    assert [op["op"] for entry in entries for op in entry.get("ops", ())] == ["put", "delete", "delete_range"]
    with lsm.open(store) as db:
        db.flush()
    (manifest,) = Path(store).glob("MANIFEST-*")
    assert "+ L0 " in lsmlab("inspect", "manifest", manifest).stdout
    edits = [
        json.loads(line) for line in lsmlab("inspect", "manifest", manifest, "--format", "json").stdout.splitlines()
    ]
    assert edits[0]["file"] == "manifest"
    assert any("added" in entry.get("edit", {}) for entry in edits)


def test_inspect_shows_damage_and_tells_it_from_a_torn_tail(store: str) -> None:
    filled(store, 3)
    (log,) = Path(store).glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    assert "damage in synced data" in lsmlab("inspect", "wal", log, code=4).stdout
    log.write_bytes(whole[:-20])
    assert "torn tail" in lsmlab("inspect", "wal", log).stdout


def test_inspect_table(store: str) -> None:
    filled(store)
    with lsm.open(store) as db:
        db[b"x1"] = b"to be deleted"
        db.compact()
        db.delete(b"key-001")
        db.delete_range(b"x", b"y")
        db.flush()
    newest = sorted(Path(store).glob("*.sst"))[-1]
    assert "entries" in lsmlab("inspect", "table", newest).stdout
    lines = lsmlab("inspect", "table", newest, "--entries").stdout.splitlines()
    assert any(line.endswith("delete [x, y)") for line in lines)
    assert any(line.endswith("delete key-001") for line in lines)
    properties, *entries = json_lines("inspect", "table", newest, "--entries")
    assert properties["entries"] == len(entries) - 1
    content = newest.read_bytes()
    newest.write_bytes(content[:-1])
    assert str(newest) in lsmlab("inspect", "table", newest, code=4).stderr


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing that a store has written\n" * 100, encoding="utf-8")
    for kind in ("wal", "manifest", "table"):
        assert str(file) in lsmlab("inspect", kind, file, code=4).stderr
    assert lsmlab("inspect", "wal", tmp_path / "missing", code=2).stderr.startswith("Usage")


# exit codes


def test_usage(store: str) -> None:
    for arguments in ([], ["nothing"], ["db"], ["db", store], ["db", store, "nothing"], ["db", store, "get"]):
        assert "Usage" in lsmlab(*arguments, code=2).output
    assert "tour" in lsmlab("--help").stdout
    assert lsmlab("--version").stdout.startswith("lsmlab, version ")
    for group in ("db", "inspect"):
        assert "Usage" in lsmlab(group, "--help").stdout
    assert "requires an argument" in lsmlab("db", store, "--sync", code=2).stderr
    assert lsmlab("db", store, "--sync", "fsync", code=2).stderr.startswith("Usage")


def test_an_error_of_the_operating_system_is_one_line(store: str, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    assert lsmlab("db", store, "load", tmp_path / "missing.csv", code=1).stderr.count("\n") == 1
    with lsm.open(store):
        locked = lsmlab("db", store, "put", "a", "1", code=1)
    assert "open elsewhere" in locked.stderr
    assert locked.stderr.count("\n") == 1


def test_something_missing_is_exit_code_3(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **changes: object) -> None:
        raise MissingExtra("zstandard", "speed")

    monkeypatch.setattr(lsm, "open", fail)
    assert "pip install" in lsmlab("db", store, "put", "a", "1", code=3).stderr


def test_an_interrupt_is_exit_code_130(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **changes: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lsm, "open", fail)
    assert "interrupted" in lsmlab("db", store, "put", "a", "1", code=130).stderr


def test_a_reader_that_leaves_is_no_error(store: str) -> None:
    filled(store, 5000)
    command = [sys.executable, "-m", "labs", "db", store, "scan"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"key-000\tvalue-0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
