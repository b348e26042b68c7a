"""Same operations, same bytes of every file: in another process, under another hash seed, in another Python.

What depends on the order of a set, on the built-in hash of a bytes object, on a clock or on an address shows here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

import lsm
from lsm import codecs

LIFE = r"""
import hashlib, json, sys
import lsm
from labs.crash.workload import SMALL, STORE, Generator
from simfs.memory import MemoryFilesystem, MemoryWorld

def live(changes, seed):
    '''A life with everything that writes files; then the digest of each file, and of every operation on the disk.'''
    fs = MemoryFilesystem()
    events = []
    options = lsm.Options.make(None, **(SMALL | changes | {"listener": events.append}))
    db, draw, moment, content = lsm.open(STORE, options, world=MemoryWorld(fs)), Generator(seed), None, {}
    for number in range(260):
        action, key = draw.below(30), b"key%02d" % draw.below(60)
        if action < 16:
            db[key] = content[key] = b"%d-" % number + b"v" * draw.below(60)
        elif action < 21:
            db.delete(key)
        elif action == 21:
            db.delete_range(key, key + b"9")
        elif action < 25:
            batch = lsm.WriteBatch()
            for _ in range(5):
                batch.put(b"b%02d" % draw.below(20), b"%d" % number)
            db.write(batch, "fsync")
        elif action < 27:
            moment = db.snapshot()
        elif action == 27:
            db.compact(key, None)
        elif action == 28 and draw.below(3) == 0:
            db.close()
            db = lsm.open(STORE, options, world=MemoryWorld(fs))
        else:
            list(db.scan(key, reverse=True))
    db.checkpoint("/copy")
    db.put(b"last", b"in the log")
    db.close()
    for name in fs.listdir("/copy"):
        if name.startswith(("MANIFEST", "CURRENT")):
            fs.remove(f"/copy/{name}")
    lsm.repair("/copy", options, world=MemoryWorld(fs))
    files = {}
    for folder in (STORE, "/copy"):
        for name in fs.listdir(folder):
            if name != "lost":
                with fs.open(f"{folder}/{name}") as file:
                    files[f"{folder}/{name}"] = hashlib.sha256(file.pread(0, file.size())).hexdigest()
    files["operations"] = hashlib.sha256("\n".join(map(repr, fs.log)).encode()).hexdigest()
    files["events"] = hashlib.sha256("\n".join(map(repr, events)).encode()).hexdigest()
    files["kinds"] = sorted({type(event).__name__ for event in events})
    return files

print(json.dumps([live(changes, seed) for changes, seed in json.loads(sys.argv[1])]))
"""


CHANGES: list[dict[str, Any]] = [
    {"strategy": strategy, "memtable": memtable}
    for strategy in ("leveled", "tiered", "none")
    for memtable in ("hash", "skiplist")
]
CHANGES += [{"table_format": "scan"}, {"compaction_pri": "round_robin", "level_compaction_dynamic_level_bytes": False}]
PLAIN = [(changes, seed) for seed, changes in enumerate(CHANGES)]
PACKED = [({"compression": codec}, 99) for codec in ("zlib", "zstd", "lz4") if codecs.available(codec)]


def lives(hash_seed: str, runs: list[tuple[dict[str, Any], int]], python: str = sys.executable) -> list[dict[str, Any]]:
    """The digests of some lives, in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.path.dirname(lsm.__path__[0])}
    command = [python, "-c", LIFE, json.dumps(runs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    digests: list[dict[str, Any]] = json.loads(done.stdout)
    return digests


@pytest.fixture(scope="module")
def first() -> list[dict[str, Any]]:
    return lives("1", PLAIN + PACKED)


def test_the_lives_are_eventful_and_differ(first: list[dict[str, Any]]) -> None:
    for (changes, _), found in zip(PLAIN + PACKED, first, strict=True):
        kinds = {"Recovered", "Flushed", "LogRotated", "ManifestWritten"}
        if changes.get("strategy") != "none":
            kinds |= {"Compacted", "FilesDeleted"}
        assert kinds <= set(found["kinds"]), changes
        assert sum(name.endswith(".sst") for name in found) >= 4
    assert len({found["operations"] for found in first}) == len(first)


def test_the_hash_seed_changes_nothing(first: list[dict[str, Any]]) -> None:
    assert lives("2", PLAIN + PACKED) == first


@pytest.mark.parametrize("seed", [3, 4])
def test_memtables_of_either_kind_give_the_same_files(seed: int) -> None:
    """Which structure the writes waited in does not show in what they become."""
    hashed, listed = lives("3", [({"memtable": "hash"}, seed), ({"memtable": "skiplist"}, seed)])
    assert hashed == listed


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_another_python_writes_the_same_bytes(version: str, first: list[dict[str, Any]]) -> None:
    """Compressed tables aside: another zlib may pack better."""
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no python{version} here")
    probe = [python, "-c", f"import sys, numpy, xxhash; assert sys.version.startswith({version + '.'!r})"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"python{version} lacks numpy or xxhash")
    assert lives("5", PLAIN, python) == first[: len(PLAIN)]
