"""A store is a mutable mapping of bytes to bytes: everything that the word promises, and `shelve` on top."""

from __future__ import annotations

import collections.abc
import shelve
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lsm
from lsm.options import KEY_BYTES_MAX
from simfs.memory import MemoryFilesystem, MemoryWorld

NOT_BYTES: list[Any] = ["text", None, 1, 1.5, True, (b"a",), [b"a"], ...]
PAIRS = {b"": b"empty", b"\0": b"nul", b"a": b"1", b"a\0": b"2", b"b": b"", b"\xff": b"last"}


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld(MemoryFilesystem())


@pytest.fixture
def db(world: MemoryWorld) -> Iterator[lsm.DB]:
    with lsm.open("/db", world=world) as store:
        yield store


@pytest.fixture(params=["memtable", "table", "both"])
def full(request: pytest.FixtureRequest, db: lsm.DB) -> lsm.DB:
    """A store that holds PAIRS, in different places."""
    for number, (key, value) in enumerate(PAIRS.items()):
        if request.param == "both" and number == 3:
            db.flush()
        db[key] = value
    if request.param == "table":
        db.flush()
    return db


# what it is


def test_is_a_mutable_mapping(db: lsm.DB) -> None:
    assert isinstance(db, collections.abc.MutableMapping)
    assert isinstance(db, collections.abc.Reversible)
    assert isinstance(db.keys(), collections.abc.KeysView)
    assert isinstance(db.items(), collections.abc.ItemsView)
    assert isinstance(db.values(), collections.abc.ValuesView)


def test_an_empty_one(db: lsm.DB) -> None:
    assert not db
    assert len(db) == 0
    for empty in (db, reversed(db), db.keys(), db.values(), db.items()):
        assert not list(empty)
    assert db == {}
    assert b"" not in db


def test_truth_length_and_equality(full: lsm.DB) -> None:
    assert full
    assert len(full) == len(PAIRS)
    assert full == PAIRS
    assert full != {**PAIRS, b"a": b"other"}
    assert full != {b"a": b"1"}
    others: list[Any] = [{key.decode("latin-1"): value for key, value in PAIRS.items()}, list(PAIRS), None]
    for other in others:
        assert full != other
        assert not full == other  # noqa: SIM201  it has a method of its own
    assert full == collections.UserDict(PAIRS)
    assert dict(full) == PAIRS


def test_is_not_hashable(db: lsm.DB) -> None:
    with pytest.raises(TypeError):
        hash(db)


def test_two_stores_are_equal_if_their_content_is(full: lsm.DB) -> None:
    with lsm.open("/other", strategy="tiered", memtable="skiplist", world=full.world) as other:
        other.update(PAIRS)
        assert full == other
        del other[b"a"]
        assert full != other


def test_repr_names_the_path_and_the_state(db: lsm.DB) -> None:
    assert repr(db) == "<lsm.DB '/db' open>"
    db.close()
    assert repr(db) == "<lsm.DB '/db' closed>"


# getting


def test_getitem(full: lsm.DB) -> None:
    for key, value in PAIRS.items():
        assert full[key] == value
        assert full.get(key) == value
        assert full.get(key, b"default") == value
        assert key in full


@pytest.mark.parametrize("key", [b"missing", b"a\0\0", b"\0\0", b"\xfe", b"\xff\0"])
def test_missing(full: lsm.DB, key: bytes) -> None:
    with pytest.raises(KeyError) as caught:
        full[key]
    assert caught.value.args == (key,)
    assert full.get(key) is None
    assert full.get(key, b"default") == b"default"
    assert full.get(key, default=b"default") == b"default"
    assert key not in full


def test_an_empty_value_is_a_value(full: lsm.DB) -> None:
    assert full[b"b"] == b""
    assert full.get(b"b", b"default") == b""
    assert full.pop(b"b", b"default") == b""
    assert b"b" not in full


def test_answers_are_bytes(full: lsm.DB) -> None:
    full[bytearray(b"array")] = memoryview(b"view")  # type: ignore[index,assignment]
    for key, value in full.items():
        assert type(key) is bytes
        assert type(value) is bytes
    assert type(full[bytearray(b"array")]) is bytes  # type: ignore[index]


# setting and deleting


def test_setitem_overwrites(full: lsm.DB) -> None:
    full[b"a"] = b"new"
    assert full[b"a"] == b"new"
    assert len(full) == len(PAIRS)
    full[b"c"] = b"added"
    assert len(full) == len(PAIRS) + 1


def test_delitem(full: lsm.DB) -> None:
    del full[b"a"]
    assert b"a" not in full
    assert b"a\0" in full
    with pytest.raises(KeyError) as caught:
        del full[b"a"]
    assert caught.value.args == (b"a",)
    full[b"a"] = b"again"
    assert full[b"a"] == b"again"


def test_a_failed_delitem_writes_nothing(full: lsm.DB) -> None:
    before = full.last_sequence
    with pytest.raises(KeyError):
        del full[b"missing"]
    assert full.last_sequence == before


def test_pop(full: lsm.DB) -> None:
    assert full.pop(b"a") == b"1"
    assert b"a" not in full
    with pytest.raises(KeyError) as caught:
        full.pop(b"a")
    assert caught.value.args == (b"a",)
    assert full.pop(b"a", b"default") == b"default"
    assert full.pop(b"a", None) is None
    assert full.pop(b"a", default=b"default") == b"default"  # type: ignore[call-overload]


def test_popitem_takes_the_least_key_until_none_is_left(full: lsm.DB) -> None:
    assert [full.popitem() for _ in PAIRS] == sorted(PAIRS.items())
    with pytest.raises(KeyError):
        full.popitem()
    assert not full


def test_setdefault(full: lsm.DB) -> None:
    assert full.setdefault(b"a", b"other") == b"1"
    assert full.setdefault(b"c", b"new") == b"new"
    assert full[b"c"] == b"new"
    with pytest.raises(TypeError, match="value is bytes-like, not NoneType"):
        full.setdefault(b"d")  # type: ignore[call-arg]
    assert b"d" not in full
    assert full.setdefault(b"b", b"other") == b"", "an empty value is there"


def test_clear(full: lsm.DB) -> None:
    full.clear()
    assert full == {}
    full.clear()
    full[b"a"] = b"again"
    assert full == {b"a": b"again"}
    full.flush()
    full.clear()
    full.compact()
    assert full == {}


@pytest.mark.parametrize("flushed", [False, True])
def test_clear_reaches_a_last_key_that_has_no_successor(full: lsm.DB, flushed: bool) -> None:
    full[b"\xff" * KEY_BYTES_MAX] = b"the last that can be"
    if flushed:
        full.flush()
    with full.snapshot() as moment:
        full.clear()
        assert full == {}
        assert len(list(moment.scan())) == len(PAIRS) + 1
    full.compact()
    assert full == {}
    assert not any(full.version.tables())


def test_clear_of_an_empty_store_writes_nothing(db: lsm.DB) -> None:
    db.clear()
    assert db.last_sequence == 0


class Keyed:
    """What `update` takes for a mapping: `keys` and `[]`."""

    def keys(self) -> list[bytes]:
        return [b"x", b"y"]

    def __getitem__(self, key: bytes) -> bytes:
        return key * 2


def test_update_from_mapping_pairs_iterator_and_keyed(db: lsm.DB) -> None:
    db.update({b"a": b"1"})
    db.update([(b"b", b"2"), (b"b", b"3")])
    db.update((key, b"4") for key in (b"c", b"d"))
    db.update(Keyed())
    db.update({}.items())
    db.update()  # type: ignore[call-overload]
    assert db == {b"a": b"1", b"b": b"3", b"c": b"4", b"d": b"4", b"x": b"xx", b"y": b"yy"}
    with lsm.open("/other", world=db.world) as other:
        other.update(db)
        assert other == db


def test_update_of_itself(full: lsm.DB) -> None:
    full.update(full)
    assert full == PAIRS


def test_update_with_keywords_is_refused_for_they_are_text(db: lsm.DB) -> None:
    with pytest.raises(TypeError, match="encode it first"):
        db.update(a=b"1")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="encode it first"):
        db.update({b"b": b"2"}, a=b"1")  # type: ignore[call-overload]
    assert db == {b"b": b"2"}, "what came before the bad pair is there, as with a dict"


@pytest.mark.parametrize("bad", [42, [b"abc"], [(b"a", b"b", b"c")], None])
def test_update_of_what_is_no_mapping(db: lsm.DB, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        db.update(bad)
    assert db == {}


def test_update_takes_one_positional_argument(db: lsm.DB) -> None:
    with pytest.raises(TypeError):
        db.update({}, {})  # type: ignore[call-overload]


def test_an_error_in_the_source_of_an_update_passes_through(db: lsm.DB) -> None:
    def failing() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.update(failing())
    assert db == {b"a": b"1"}


# order and views


def test_iteration_ascends_by_unsigned_bytes(full: lsm.DB) -> None:
    ascending = sorted(PAIRS)
    assert list(full) == ascending
    assert list(reversed(full)) == ascending[::-1]
    assert list(full.keys()) == ascending
    assert list(full.values()) == [PAIRS[key] for key in ascending]
    assert list(full.items()) == [(key, PAIRS[key]) for key in ascending]


def test_views_are_reversible(full: lsm.DB) -> None:
    assert list(reversed(full.keys())) == sorted(PAIRS, reverse=True)
    assert list(reversed(full.values())) == [value for _, value in sorted(PAIRS.items(), reverse=True)]
    assert list(reversed(full.items())) == sorted(PAIRS.items(), reverse=True)


def test_views_show_later_writes(full: lsm.DB) -> None:
    views = full.keys(), full.values(), full.items()
    full[b"late"] = b"come"
    assert b"late" in views[0]
    assert b"come" in views[1]
    assert (b"late", b"come") in views[2]
    assert [len(view) for view in views] == [len(PAIRS) + 1] * 3
    del full[b"late"]
    assert [len(view) for view in views] == [len(PAIRS)] * 3


def test_view_membership(full: lsm.DB) -> None:
    assert b"a" in full.keys()  # noqa: SIM118
    assert b"missing" not in full.keys()  # noqa: SIM118
    assert b"1" in full.values()
    assert b"missing" not in full.values()
    assert (b"a", b"1") in full.items()
    assert (b"a", b"2") not in full.items()
    assert (b"missing", b"1") not in full.items()


def test_set_operations_of_keys(full: lsm.DB) -> None:
    keys, some = full.keys(), {b"a", b"b", b"zz"}
    assert keys & some == {b"a", b"b"} == some & keys
    assert keys | some == set(PAIRS) | some == some | keys
    assert keys - some == set(PAIRS) - some
    assert some - keys == {b"zz"}
    assert keys ^ some == set(PAIRS) ^ some
    assert keys >= {b"a"}
    assert keys > {b"a"}
    assert {b"a"} < keys
    assert not keys <= {b"a"}
    assert keys.isdisjoint({b"zz"})
    assert not keys.isdisjoint({b"a"})
    assert keys == PAIRS.keys()
    assert keys.__eq__(set(PAIRS))


def test_set_operations_of_items(full: lsm.DB) -> None:
    items, some = full.items(), {(b"a", b"1"), (b"b", b"other")}
    assert items & some == {(b"a", b"1")}
    assert items | some == set(PAIRS.items()) | some
    assert items - some == set(PAIRS.items()) - some
    assert some - items == {(b"b", b"other")}
    assert items ^ some == set(PAIRS.items()) ^ some
    assert items == PAIRS.items()
    assert items >= {(b"a", b"1")}
    assert items.isdisjoint({(b"a", b"2")})


def test_iteration_shows_the_moment_at_which_it_began(full: lsm.DB) -> None:
    """Other than a dict, which refuses to go on: a scan holds a snapshot."""
    seen = []
    for key in full:
        seen.append(key)
        full[b"new-" + key] = b"x"
        full[key] = b"changed"
    assert seen == sorted(PAIRS)
    for key in full:
        del full[key]
    assert full == {}


def test_two_iterations_at_once(full: lsm.DB) -> None:
    assert [(one, two) for one in full for two in full] == [
        (one, two) for one in sorted(PAIRS) for two in sorted(PAIRS)
    ]


# bad keys and values


@pytest.mark.parametrize("bad", NOT_BYTES, ids=repr)
def test_keys_that_are_not_bytes_are_refused_everywhere(full: lsm.DB, bad: Any) -> None:
    before = full.last_sequence
    batch = lsm.WriteBatch()
    moment = full.snapshot()
    calls: list[Any] = [
        lambda: full[bad],
        lambda: full.get(bad),
        lambda: full.get(bad, b"default"),
        lambda: bad in full,
        lambda: full.__setitem__(bad, b"1"),
        lambda: full.__delitem__(bad),
        lambda: full.pop(bad),
        lambda: full.pop(bad, b"default"),
        lambda: full.setdefault(bad, b"1"),
        lambda: full.update([(bad, b"1")]),
        lambda: full.put(bad, b"1"),
        lambda: full.delete(bad),
        lambda: full.delete_range(bad, b"z"),
        lambda: full.delete_range(b"", bad),
        lambda: full.multi_get([b"a", bad]),
        lambda: batch.put(bad, b"1"),
        lambda: batch.delete(bad),
        lambda: moment.get(bad),
    ]
    if bad is not None:
        calls += [lambda: full.scan(bad), lambda: full.scan(None, bad), lambda: full.scan(prefix=bad)]
        calls += [lambda: full.compact(bad), lambda: moment.scan(bad)]
    for call in calls:
        with pytest.raises(TypeError, match="key is bytes-like, not"):
            call()
    assert full.last_sequence == before
    assert not batch.ops
    moment.release()
    assert full == PAIRS


@pytest.mark.parametrize("bad", NOT_BYTES, ids=repr)
def test_values_that_are_not_bytes_are_refused_everywhere(full: lsm.DB, bad: Any) -> None:
    before = full.last_sequence
    batch = lsm.WriteBatch()
    calls: list[Any] = [
        lambda: full.__setitem__(b"a", bad),
        lambda: full.put(b"a", bad),
        lambda: full.setdefault(b"new", bad),
        lambda: full.update({b"a": bad}),
        lambda: batch.put(b"a", bad),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="value is bytes-like, not"):
            call()
    assert full.last_sequence == before
    assert full == PAIRS


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_like_keys_and_values(db: lsm.DB, kind: Any) -> None:
    db[kind(b"key")] = kind(b"value")
    assert db[kind(b"key")] == b"value"
    assert db.get(kind(b"key")) == b"value"
    assert kind(b"key") in db
    assert db.multi_get([kind(b"key"), kind(b"x")]) == [b"value", None]
    assert list(db.scan(kind(b"k"), kind(b"l"))) == [(b"key", b"value")]
    assert list(db.scan(prefix=kind(b"ke"))) == [(b"key", b"value")]
    del db[kind(b"key")]
    assert db.pop(kind(b"key"), None) is None
    batch = lsm.WriteBatch()
    batch.put(kind(b"k"), kind(b"v"))
    batch.delete_range(kind(b"a"), kind(b"b"))
    db.write(batch)
    assert db == {b"k": b"v"}


def test_a_buffer_that_changes_later_changes_nothing(db: lsm.DB) -> None:
    key, value = bytearray(b"key"), bytearray(b"value")
    db[key] = value  # type: ignore[index,assignment]
    key[0], value[0] = 0, 0
    assert db == {b"key": b"value"}


def test_a_subclass_of_bytes_is_stored_as_bytes(db: lsm.DB) -> None:
    class Special(bytes):
        pass

    db[Special(b"k")] = Special(b"v")
    [(key, value)] = db.items()
    assert type(key) is type(value) is bytes


def test_the_longest_key_and_one_beyond(db: lsm.DB) -> None:
    longest = b"k" * KEY_BYTES_MAX
    db[longest] = b"1"
    db[longest[:-1]] = b"2"
    db.flush()
    assert db[longest] == b"1"
    assert list(db) == [longest[:-1], longest]
    too_long = longest + b"k"
    for call in (
        db.get,
        db.delete,
        db.__contains__,
        lambda key: db.put(key, b""),
        lambda key: db.delete_range(b"", key),
    ):
        with pytest.raises(lsm.InvalidArgument, match=f"key of {KEY_BYTES_MAX + 1} bytes.*KEY_BYTES_MAX = 65535"):
            call(too_long)
    assert len(db) == 2


def test_too_long_keys_are_refused_in_every_form_and_change_nothing(full: lsm.DB) -> None:
    long: Any = b"k" * (KEY_BYTES_MAX + 1)
    before = full.last_sequence
    batch = lsm.WriteBatch()
    with full.snapshot() as moment:
        calls: list[Any] = [
            lambda: full[long],
            lambda: full.__setitem__(long, b""),
            lambda: full.__delitem__(long),
            lambda: full.pop(long, None),
            lambda: full.setdefault(long, b""),
            lambda: full.update({long: b""}),
            lambda: full.get(bytearray(long)),  # type: ignore[arg-type]
            lambda: full.put(memoryview(long), b""),  # type: ignore[arg-type]
            lambda: full.multi_get([b"a", long]),
            lambda: full.delete_range(long, long),
            lambda: full.scan(long),
            lambda: full.scan(None, long),
            lambda: full.scan(prefix=long),
            lambda: full.compact(long),
            lambda: batch.put(long, b""),
            lambda: batch.delete(long),
            lambda: batch.delete_range(b"", long),
            lambda: moment.get(long),
            lambda: moment.multi_get([long]),
            lambda: moment.scan(long),
        ]
        for call in calls:
            with pytest.raises(lsm.InvalidArgument, match="key of 65536 bytes: the limit is KEY_BYTES_MAX = 65535"):
                call()
    assert full.last_sequence == before
    assert not batch.ops
    assert full == PAIRS


@pytest.mark.parametrize("bad", [[(1, b"a", b"b")], {b"a": b"b"}, None, b"ab", 7], ids=repr)
def test_what_is_no_batch_and_no_snapshot(full: lsm.DB, bad: Any) -> None:
    before = full.last_sequence
    with pytest.raises(TypeError, match=f"batch: expected lsm.WriteBatch, got {type(bad).__name__}"):
        full.write(bad)
    if bad is not None:
        with pytest.raises(TypeError, match=f"snapshot: expected lsm.Snapshot, got {type(bad).__name__}"):
            full.scan(snapshot=bad)
    assert full.last_sequence == before
    assert full == PAIRS


def test_a_value_beyond_the_limit_names_it(db: lsm.DB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsm.batch.VALUE_BYTES_MAX", 1000)  # a gibibyte would take long
    db[b"a"] = b"v" * 1000
    with pytest.raises(lsm.InvalidArgument, match="value of 1001 bytes: the limit is VALUE_BYTES_MAX = 1000"):
        db[b"a"] = b"v" * 1001
    assert db[b"a"] == b"v" * 1000


def test_a_range_the_wrong_way_round(full: lsm.DB) -> None:
    with pytest.raises(lsm.InvalidArgument, match="start b'b' lies after end b'a'"):
        full.delete_range(b"b", b"a")
    full.delete_range(b"a", b"a")
    assert full == PAIRS
    assert list(full.scan(b"b", b"a")) == []
    assert list(full.scan(b"a", b"a")) == []
    assert list(full.scan(b"b", b"a", reverse=True)) == []


# a store that is closed, or somebody else's


def test_a_closed_store_refuses_everything(full: lsm.DB) -> None:
    moment, scan = full.snapshot(), full.scan()
    assert next(scan) == min(PAIRS.items())
    full.close()
    assert full.closed
    calls: list[Any] = [
        lambda: full[b"a"],
        lambda: full.get(b"a"),
        lambda: b"a" in full,
        lambda: full.__setitem__(b"a", b"1"),
        lambda: full.__delitem__(b"a"),
        lambda: list(full),
        lambda: len(full),
        lambda: bool(full),
        lambda: full.popitem(),
        lambda: full.clear(),
        lambda: full.scan(),
        lambda: full.multi_get([b"a"]),
        lambda: full.snapshot(),
        lambda: full.flush(),
        lambda: full.compact(),
        lambda: full.sync(),
        lambda: full.verify(),
        lambda: full.metrics(),
        lambda: full.checkpoint("/copy"),
        lambda: moment.get(b"a"),
        lambda: moment.multi_get([b"a"]),
        lambda: moment.scan(),
    ]
    for call in calls:
        with pytest.raises(lsm.InvalidArgument, match="/db: the store is closed"):
            call()
    moment.release()
    scan.close()
    full.close()
    assert not full.world.fs.exists("/copy")


CLOSED_CALLS: dict[str, Callable[[Any], object]] = {
    "__contains__": lambda db: b"a" in db,
    "__delitem__": lambda db: db.__delitem__(b"a"),
    "__eq__": lambda db: db == {},
    "__getitem__": lambda db: db[b"a"],
    "__iter__": iter,
    "__len__": len,
    "__reversed__": reversed,
    "__setitem__": lambda db: db.__setitem__(b"a", b"1"),
    "__bool__": bool,
    "checkpoint": lambda db: db.checkpoint("/copy"),
    "clear": lambda db: db.clear(),
    "compact": lambda db: db.compact(),
    "delete": lambda db: db.delete(b"a"),
    "delete_range": lambda db: db.delete_range(b"a", b"a"),
    "flush": lambda db: db.flush(),
    "get": lambda db: db.get(b"a"),
    "items": lambda db: list(db.items()),
    "keys": lambda db: len(db.keys()),
    "metrics": lambda db: db.metrics(),
    "multi_get": lambda db: db.multi_get([]),
    "pop": lambda db: db.pop(b"a", None),
    "popitem": lambda db: db.popitem(),
    "put": lambda db: db.put(b"a", b"1"),
    "scan": lambda db: db.scan(b"z", b"a"),
    "setdefault": lambda db: db.setdefault(b"a", b"1"),
    "snapshot": lambda db: db.snapshot(),
    "sync": lambda db: db.sync(),
    "update": lambda db: db.update({b"a": b"1"}),
    "values": lambda db: b"1" in db.values(),
    "verify": lambda db: db.verify(),
    "write": lambda db: db.write(lsm.WriteBatch()),
}
WORK_WHEN_CLOSED = {"close", "closed", "last_sequence", "version"}


def test_no_method_is_left_out_of_what_a_closed_store_refuses() -> None:
    public = {name for name in dir(lsm.DB) if not name.startswith("_")}
    assert public - WORK_WHEN_CLOSED == {name for name in CLOSED_CALLS if not name.startswith("_")}


@pytest.mark.parametrize("name", CLOSED_CALLS)
def test_each_method_of_a_closed_store_refuses(world: MemoryWorld, name: str) -> None:
    with lsm.open("/db", world=world) as db:
        db.update(PAIRS)
    with pytest.raises(lsm.InvalidArgument, match="/db: the store is closed"):
        CLOSED_CALLS[name](db)
    assert db.closed
    with lsm.open("/db", world=world) as again:
        assert again == PAIRS


def test_an_empty_batch_needs_a_store_that_can_be_written(world: MemoryWorld) -> None:
    with lsm.open("/db", world=world) as db:
        db.write(lsm.WriteBatch(), sync="fsync")
        with pytest.raises(lsm.InvalidArgument, match="sync='often': expected one of"):
            db.write(lsm.WriteBatch(), sync="often")
        assert db.last_sequence == 0
    with lsm.open("/db", world=world, read_only=True) as db:
        calls: list[Callable[[], None]] = [
            lambda: db.write(lsm.WriteBatch()),
            lambda: db.delete_range(b"a", b"a"),
            lambda: db.put(b"a", b"1"),
        ]
        for call in calls:
            with pytest.raises(lsm.InvalidArgument, match="read-only"):
                call()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_ends_with_its_store(db: lsm.DB, reverse: bool) -> None:
    for number in range(2000):
        db[b"%05d" % number] = b"v" * 50
    db.flush()
    scan = db.scan(reverse=reverse)
    next(scan)
    db.close()
    with pytest.raises(lsm.InvalidArgument, match="/db: the store is closed"):
        list(scan)
    scan.close()


def test_readers_given_back_after_the_close_remove_nothing(world: MemoryWorld) -> None:
    """A scan that outlives its store must not tidy up in a folder that may be another opener's by now."""
    db = lsm.open("/db", world=world)
    db.update(PAIRS)
    db.flush()
    scan, moment = db.scan(), db.snapshot()
    db[b"a"] = b"new"
    db.compact()
    db.close()
    with lsm.open("/db", world=world) as again:
        names = world.fs.listdir("/db")
        scan.close()
        moment.release()
        for call in (db.scan, db.flush, lambda: db.put(b"a", b"")):
            with pytest.raises(lsm.InvalidArgument, match="closed"):
                call()
        assert world.fs.listdir("/db") == names
        assert again == {**PAIRS, b"a": b"new"}


def test_a_snapshot_of_another_store_is_refused(full: lsm.DB) -> None:
    with lsm.open("/other", world=full.world) as other, other.snapshot() as foreign:
        with pytest.raises(lsm.InvalidArgument, match="snapshot is of another store"):
            full.scan(snapshot=foreign)
        assert full.metrics().snapshots == 0


def test_a_released_snapshot_is_refused(full: lsm.DB) -> None:
    with full.snapshot() as moment:
        assert dict(moment.scan()) == PAIRS
    calls: list[Any] = [lambda: moment.get(b"a"), lambda: moment.multi_get([b"a"]), moment.scan]
    for call in [*calls, lambda: full.scan(snapshot=moment)]:
        with pytest.raises(lsm.InvalidArgument, match="released"):
            call()
    moment.release()


def test_nothing_is_held_once_readers_are_gone(full: lsm.DB) -> None:
    assert bool(full)
    len(full)
    full.scan()
    list(full)
    with full.scan() as scan:
        next(scan)
    for _ in full.items():
        break
    full.multi_get([b"a"])
    measured = full.metrics()
    assert (measured.snapshots, measured.pinned_versions) == (0, 0)


# shelve


def open_shelf(world: MemoryWorld, *, writeback: bool = False) -> shelve.Shelf[Any]:
    return shelve.Shelf(lsm.open("/shelf", world=world), writeback=writeback)


def test_shelve(world: MemoryWorld) -> None:
    with open_shelf(world) as shelf:
        shelf["numbers"] = [1, 2, 3]
        shelf["ünïcode"] = {"nested": (1, None)}
        shelf["numbers"].append(4)  # not written back
        assert shelf["numbers"] == [1, 2, 3]
        assert "numbers" in shelf
        assert "missing" not in shelf
        assert len(shelf) == 2
        assert sorted(shelf) == ["numbers", "ünïcode"]
        assert shelf.get("missing", "default") == "default"
        with pytest.raises(KeyError):
            shelf["missing"]
        with pytest.raises(KeyError):
            del shelf["missing"]
        assert shelf.pop("numbers") == [1, 2, 3]
        shelf.sync()
    with open_shelf(world) as shelf:
        assert dict(shelf) == {"ünïcode": {"nested": (1, None)}}
    with pytest.raises(ValueError, match="closed shelf"):
        shelf["numbers"]


def test_shelve_with_writeback(world: MemoryWorld) -> None:
    with open_shelf(world, writeback=True) as shelf:
        shelf["numbers"] = [1]
        shelf["numbers"].append(2)
        shelf.sync()
        shelf["numbers"].append(3)
    with open_shelf(world) as shelf:
        assert shelf["numbers"] == [1, 2, 3]


def test_a_synced_shelf_outlives_a_loss_of_power(world: MemoryWorld) -> None:
    shelf = open_shelf(world)
    shelf["a"] = 1
    shelf.sync()
    shelf["b"] = 2
    disk: Any = world.fs
    after = MemoryWorld(disk.crash_image("power"))
    shelf.__dict__["dict"] = {}  # the device is gone: there is nothing to close
    with open_shelf(after) as recovered:
        assert dict(recovered) == {"a": 1}
