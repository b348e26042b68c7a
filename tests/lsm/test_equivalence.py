"""Options change speed, size and shape, never an answer: one seeded life, under every combination that matters."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import lsm
from labs.crash.workload import SMALL, Generator
from lsm import codecs
from simfs.api import World
from simfs.memory import MemoryFilesystem, MemoryWorld
from simfs.real import RealWorld

OPERATIONS = 350
SEED = 11


def grid() -> Iterator[dict[str, Any]]:
    """The product of what shapes the tree, and each of the rest alone, the codecs with both formats."""
    shapes = itertools.product(("leveled", "tiered", "none"), ("block", "scan"), ("hash", "skiplist"), (0, 10))
    for strategy, table_format, memtable, bits in shapes:
        yield {
            "strategy": strategy,
            "table_format": table_format,
            "memtable": memtable,
            "filter_bits_per_key": bits,
        }
    for codec, table_format in itertools.product(("zlib", "zstd", "lz4"), ("block", "scan")):
        if codecs.available(codec):
            yield {"compression": codec, "table_format": table_format}
    singles: dict[str, list[Any]] = {
        "key_range_filter": [True, False],
        "block_size": [64, 100_000],
        "block_cache_bytes": [0, 2000],
        "open_tables_max": [1],
        "compaction_pri": ["round_robin", "oldest_first", "largest_first"],
        "level_compaction_dynamic_level_bytes": [False],
        "num_levels": [2, 9],
        "level0_file_num_compaction_trigger": [1, 8],
        "target_file_size_base": [200, 10_000],
        "max_compaction_bytes": [500],
        "write_buffer_size": [150, 10_000_000],
        "sync": ["none", "fsync", "fullfsync"],
        "structural_sync": ["follow_dial"],
        "verify_checksums": [False],
        "max_manifest_file_size": [100],
        "wal_recovery_mode": ["absolute", "point_in_time", "skip_corrupted"],
    }
    for name, values in singles.items():
        for value in values:
            yield {name: value}
    for width, ratio in ((2, 1), (2, 100), (4, 3)):
        yield {"strategy": "tiered", "tiered_min_merge_width": width, "tiered_size_ratio": ratio}


GRID = list(grid())


def life(world: World, path: str, options: dict[str, Any]) -> list[Any]:
    """Everything that a store answers in the course of some hundred operations."""
    draw = Generator(SEED)
    answers: list[Any] = []
    opened = lsm.Options.make(None, **(SMALL | options))
    db = lsm.open(path, opened, world=world)
    moment = db.snapshot()
    for number in range(OPERATIONS):
        action, key = draw.below(40), b"%s%02d" % ([b"a", b"key", b"key\0"][draw.below(3)], draw.below(40))
        if action < 20:
            db[key] = b"%d-" % number + b"v" * draw.below(50)
        elif action < 25:
            db.delete(key)
        elif action < 27:
            db.delete_range(key, key + b"5")
        elif action < 33:
            answers += [db.get(key), moment.get(key), key in db]
        elif action < 35:
            bounds = sorted((key, b"key%02d" % draw.below(40)))
            answers.append(list(db.scan(*bounds, reverse=draw.below(2) == 0)))
        elif action == 35:
            moment.release()
            moment = db.snapshot()
        elif action == 36:
            answers.append(list(moment.scan(prefix=b"key0")))
        elif action == 37:
            batch = lsm.WriteBatch()
            for _ in range(4):
                batch.put(b"b%d" % draw.below(9), b"%d" % number)
            batch.delete(key)
            db.write(batch)
        elif action == 38 and draw.below(4) == 0:
            db.compact(key, key + b"\xff")
        elif draw.below(8) == 0:
            moment.release()
            db.close()
            db = lsm.open(path, opened, world=world)
            moment = db.snapshot()
            answers.append(list(db.items()))
    answers += [list(db.items()), list(moment.scan(reverse=True)), len(db), db.last_sequence]
    moment.release()
    db.compact()
    db.verify()
    answers.append(list(reversed(db.items())))
    db.close()
    return answers


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """What the plainest store says: it never flushes."""
    answers = life(
        MemoryWorld(MemoryFilesystem(record=False)), "/db", {"strategy": "none", "write_buffer_size": 1 << 30}
    )
    assert sum(len(answer) for answer in answers if isinstance(answer, list)) > 400
    return answers


@pytest.mark.parametrize("options", GRID, ids=lambda options: ",".join(f"{n}={v}" for n, v in options.items()))
def test_the_same_answers(options: dict[str, Any], expected: list[Any]) -> None:
    assert life(MemoryWorld(MemoryFilesystem(record=False)), "/db", options) == expected


@pytest.mark.parametrize("number", range(0, len(GRID), 9))
def test_the_same_answers_on_a_real_disk(number: int, expected: list[Any], tmp_path: pathlib.Path) -> None:
    options = {
        name: value for name, value in GRID[number].items() if name != "sync"
    }  # a store with SMALL tables syncs often enough
    assert life(RealWorld(), str(tmp_path / "db"), options) == expected


def test_the_same_answers_under_options_that_change_at_each_opening(expected: list[Any]) -> None:
    """The store is written half under one combination and read under the next."""
    fs = MemoryFilesystem(record=False)
    with lsm.open("/db", lsm.Options.make(None, **SMALL), world=MemoryWorld(fs)) as db:
        db.update((b"%03d" % number, b"%d" % number) for number in range(150))
        content = dict(db)
    for number, options in enumerate(GRID):
        with lsm.open("/db", lsm.Options.make(None, **(SMALL | options)), world=MemoryWorld(fs)) as db:
            assert dict(db) == content
            db[b"%03d" % number] = content[b"%03d" % number] = b"again %d" % number
            key = b"%03d" % (149 - number)
            db.delete(key)
            content.pop(key, None)
            db.flush()
            assert dict(db) == content
            db.verify()
