"""Fault plans print and parse; each fault does what its row says."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfs.api import File, SyncKind
from simfs.crash import SYNCED_ONLY
from simfs.faultplan import Plan, Rule
from simfs.faults import SECTOR_BYTES, FaultyFilesystem
from simfs.memory import MemoryFilesystem
from simfs.wrapper import FILE_OPERATIONS, OPERATIONS


def faulty(plan: str) -> tuple[FaultyFilesystem, MemoryFilesystem]:
    memory = MemoryFilesystem()
    return FaultyFilesystem(memory, plan), memory


def durable(memory: MemoryFilesystem, path: str) -> bytes:
    """What a power loss now would leave of a file."""
    image = memory.crash_image("power", SYNCED_ONLY, at=len(memory.log))
    if not image.exists(path):
        return b"(no such file)"
    with image.open(path) as file:
        return file.pread(0, 1 << 20)


# The grammar

texts = st.text(st.sampled_from("ab*?[]./ \"'\\|@#{}é\n\t雪"), min_size=1, max_size=8)
places = st.fixed_dictionaries({}, optional={"path": texts, "site": texts}).flatmap(
    lambda names: st.one_of(
        st.just(names),
        st.integers(1, 99).map(lambda n: {**names, "nth": n}),
        st.integers(1, 99).map(lambda n: {**names, "after": n}),
    )
)
numbers = st.integers(0, 1 << 40)
codes = st.sampled_from(["EIO", "ENOSPC", "EDQUOT"])
faults = st.one_of(
    st.tuples(st.just("error"), st.tuples(codes), st.sampled_from([*OPERATIONS, "any"])),
    st.tuples(st.just("short"), st.tuples(numbers, codes), st.sampled_from(["append", "any"])),
    st.tuples(st.just("torn"), st.tuples(numbers), st.just("append")),
    st.tuples(st.just("flip"), st.tuples(numbers), st.just("pread")),
    st.tuples(st.just("rot"), st.tuples(numbers), st.sampled_from(FILE_OPERATIONS)),
    st.tuples(st.just("lie"), st.just(()), st.sampled_from(["sync", "sync_dir", "any"])),
    st.tuples(st.just("failsync"), st.tuples(codes), st.sampled_from(["sync", "sync_dir"])),
)
rules = st.builds(lambda fault, place: Rule(*fault, **place), faults, places)


@given(st.lists(rules, max_size=5).map(lambda rules: Plan(tuple(rules))))
def test_a_plan_prints_and_parses_back(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan


def test_golden_expression() -> None:
    text = 'rot(800) @ close(path="*/000007.sst", nth=1) | failsync(EIO) @ sync(site="wal.*", after=2) | lie() @ any()'
    plan = Plan.parse(text)
    assert plan.rules[0] == Rule("rot", (800,), "close", path="*/000007.sst", nth=1)
    assert plan.rules[2] == Rule("lie", (), "any")
    assert str(plan) == text
    assert Plan.parse("  ") == Plan()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("error(EIO) @", "not a fault plan"),
        ("error(EIO)", "not a rule"),
        ("error(EIO) + sync()", "not a rule"),
        ("error(EIO) @ sync(1)", "not a rule"),
        ("error(code=EIO) @ sync()", "not a rule"),
        ("explode() @ sync()", "unknown fault 'explode'"),
        ("error() @ sync()", "error takes an errno's name"),
        ("error(5) @ sync()", "error takes an errno's name"),
        ("short(ENOSPC, 1) @ append()", "short takes a number, an errno's name"),
        ("lie(1) @ sync()", "lie takes nothing"),
        ("error(EWHAT) @ sync()", "EWHAT is not the name of an errno"),
        ("error(errorcode) @ sync()", "errorcode is not the name of an errno"),
        ("torn(-1) @ append()", "neither a number nor a name"),
        ("flip(1) @ append()", "flip cannot strike 'append'"),
        ("error(EIO) @ frobnicate()", "error cannot strike 'frobnicate'"),
        ("error(EIO) @ sync(nth=1, after=2)", "exclude each other"),
        ("error(EIO) @ sync(colour=3)", "not a condition"),
        ("error(EIO) @ sync(path=3)", "not a condition"),
        ("error(EIO) @ sync(**x)", "not a condition"),
        ("error(EIO) @ sync(nth=True)", "not a condition"),
        ("error(EIO) @ sync(nth=f())", "neither a number nor a name"),
    ],
)
def test_what_is_not_understood_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        Plan.parse(text)
    assert complaint in str(caught.value)


def test_a_rule_takes_no_negative_number() -> None:
    with pytest.raises(ValueError, match="no negative number"):
        Rule("torn", (-1,), "append")


# Where a fault strikes


def test_nth_after_path_and_site_choose_the_call() -> None:
    fs, _ = faulty(
        'error(EIO) @ append(path="*.log", nth=2) | error(ENOSPC) @ append(path="/b", after=2)'
        ' | error(EDQUOT) @ sync(site="wal.*")'
    )
    log, other = fs.create("/a.log"), fs.create("/b")
    log.append(b"1")
    other.append(b"1")
    with pytest.raises(OSError) as caught:
        log.append(b"2")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "/a.log")
    assert caught.value.__notes__ == ['injected by error(EIO) @ append(path="*.log", nth=2)']
    log.append(b"3")
    assert log.pread(0, 9) == b"13"
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            other.append(b"x")
        assert caught.value.errno == errno.ENOSPC
    log.sync(SyncKind.DATA, "table.finish")
    with pytest.raises(OSError) as caught:
        log.sync(SyncKind.DATA, "wal.write")
    assert caught.value.errno == errno.EDQUOT
    assert (fs.seen, fs.fired) == ([3, 3, 1], [1, 2, 1])


def test_the_first_rule_that_strikes_decides_and_the_others_count() -> None:
    fs, _ = faulty("error(EIO) @ exists(nth=2) | error(ENOSPC) @ any(nth=2)")
    assert fs.exists("/")
    with pytest.raises(OSError) as caught:
        fs.exists("/")
    assert caught.value.errno == errno.EIO
    assert (fs.seen, fs.fired) == ([2, 2], [1, 0])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_can_fail(operation: str) -> None:
    fs, memory = faulty(f"error(EIO) @ {operation}()")
    inner = memory.create("/a")
    file = fs._wrap(inner)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: file.append(b"x"),
        "pread": lambda: file.pread(0, 1),
        "flush": file.flush,
        "sync": lambda: file.sync(SyncKind.FILE, "s"),
        "truncate": lambda: file.truncate(0),
        "size": file.size,
        "close": file.close,
        "create": lambda: fs.create("/b"),
        "open": lambda: fs.open("/a"),
        "rename": lambda: fs.rename("/a", "/b"),
        "remove": lambda: fs.remove("/a"),
        "link": lambda: fs.link("/a", "/b"),
        "listdir": lambda: fs.listdir("/"),
        "mkdir": lambda: fs.mkdir("/d"),
        "rmdir": lambda: fs.rmdir("/d"),
        "sync_dir": lambda: fs.sync_dir("/", "s"),
        "exists": lambda: fs.exists("/a"),
        "stat": lambda: fs.stat("/a"),
        "lock": lambda: fs.lock("/a"),
    }
    before = len(memory.log)
    with pytest.raises(OSError) as caught:
        calls[operation]()
    assert caught.value.errno == errno.EIO
    assert len(memory.log) == before, "nothing was done"
    assert fs.fired == [1]


# What a fault does


def test_a_short_write_leaves_the_first_bytes_and_raises() -> None:
    fs, memory = faulty("short(3, ENOSPC) @ append(nth=1)")
    file = fs.create("/a")
    with pytest.raises(OSError) as caught:
        file.append(b"hello")
    assert caught.value.errno == errno.ENOSPC
    assert file.pread(0, 9) == b"hel"
    assert memory.stat("/a").size == file.size() == 3


@pytest.mark.parametrize("seed", range(8))
def test_a_torn_write_loses_whole_sectors_and_claims_success(seed: int) -> None:
    fs, _ = faulty(f"torn({seed}) @ append(nth=2)")
    file = fs.create("/a")
    file.append(b"-" * 100)
    data = b"x" * 3000
    file.append(data)
    content = file.pread(0, 1 << 20)
    assert content[:100] == b"-" * 100
    assert len(content) == 3100
    edges = [100, *range(SECTOR_BYTES, 3100, SECTOR_BYTES), 3100]
    sectors = [content[low:high] for low, high in pairwise(edges)]
    assert all(set(sector) in ({0}, {ord("x")}) for sector in sectors)
    assert any(set(sector) == {0} for sector in sectors)


def test_torn_writes_differ_by_seed_and_leave_some_sectors() -> None:
    contents = []
    for seed in range(8):
        fs, _ = faulty(f"torn({seed}) @ append()")
        file = fs.create("/a")
        file.append(b"x" * 3000)
        contents.append(file.pread(0, 3000))
    assert len(set(contents)) > 4
    assert any(b"x" in content for content in contents)
    fs, _ = faulty("torn(1) @ append()")
    file = fs.create("/a")
    file.append(b"x" * SECTOR_BYTES)
    file.append(b"")
    assert file.pread(0, 3000) == bytes(SECTOR_BYTES)


def test_a_bit_flips_at_one_read() -> None:
    fs, _ = faulty("flip(9) @ pread(nth=2)")
    file = fs.create("/a")
    file.append(b"\0\0")
    assert [file.pread(0, 2) for _ in range(3)] == [b"\0\0", b"\0\2", b"\0\0"]
    fs, _ = faulty("flip(9) @ pread()")
    file = fs.create("/a")
    assert file.pread(0, 2) == b""
    file.append(b"\0")
    assert file.pread(0, 2) == b"\2", "counted round"


def test_a_bit_that_rots_stays_and_follows_the_file() -> None:
    fs, memory = faulty('rot(17) @ close(path="/a", nth=1)')
    with fs.create("/a") as file:
        file.append(b"abcd")
    fs.rename("/a", "/b")
    with fs.open("/b", write=True) as file:
        assert file.pread(0, 9) == b"ababd"[:2] + b"a" + b"d"
        assert file.pread(2, 1) == b"a"
        assert file.pread(0, 2) == b"ab"
        assert file.pread(3, 9) == b"d"
        file.truncate(3)
        assert file.pread(0, 9) == b"aba"
        file.truncate(2)
        file.append(b"c")
        assert file.pread(0, 9) == b"abc", "written anew, it is sound"
    with memory.open("/b") as pristine:
        assert pristine.pread(0, 9) == b"abc"


def test_a_new_file_has_no_old_damage() -> None:
    fs, _ = faulty('rot(0) @ append(path="/a", nth=1)')
    with fs.create("/a") as file:
        file.append(b"\0")
        assert file.pread(0, 1) == b"\1"
    with fs.create("/a", exclusive=False) as file:
        file.append(b"\0")
        assert file.pread(0, 1) == b"\0"


def test_a_lying_sync_makes_nothing_durable_but_flushes() -> None:
    fs, memory = faulty("lie() @ sync(nth=1) | lie() @ sync_dir(nth=2)")
    file = fs.create("/a", buffer_bytes=100)
    fs.sync_dir("/", "s")
    file.append(b"x")
    file.sync(SyncKind.FULL, "s")
    assert memory.stat("/a").size == 1
    assert durable(memory, "/a") == b""
    file.sync(SyncKind.FULL, "s")
    assert durable(memory, "/a") == b"x"
    fs.create("/b")
    fs.sync_dir("/", "s")
    assert durable(memory, "/b") == b"(no such file)"
    fs.sync_dir("/", "s")
    assert durable(memory, "/b") == b""


def test_after_a_failed_sync_a_retry_succeeds_and_makes_nothing_durable() -> None:
    fs, memory = faulty('failsync(EIO) @ sync(path="/a", nth=1) | failsync(EIO) @ sync_dir(nth=2)')
    files: list[File] = [fs.create(path) for path in ("/a", "/b")]
    fs.sync_dir("/", "s")
    for file in files:
        file.append(b"x")
    with pytest.raises(OSError) as caught:
        files[0].sync(SyncKind.FULL, "s")
    assert caught.value.errno == errno.EIO
    for file in files:
        file.sync(SyncKind.FULL, "s")
    with fs.open("/a", write=True) as again:
        again.sync(SyncKind.FULL, "s")
    assert (durable(memory, "/a"), durable(memory, "/b")) == (b"", b"x")
    assert files[0].pread(0, 9) == b"x", "what is not durable stays readable"
    fs.create("/c")
    for _ in range(2):
        try:
            fs.sync_dir("/", "s")
        except OSError as error:
            caught_again = error.errno
    assert caught_again == errno.EIO
    assert durable(memory, "/c") == b"(no such file)"


def test_damage_of_a_closed_handle_is_nobody_elses() -> None:
    fs, _ = faulty('rot(0) @ append(path="/a", nth=1)')
    closed, file = fs.create("/a"), fs.create("/b")
    closed.close()
    with pytest.raises(ValueError):
        closed.append(b"x")
    file.append(b"\0")
    assert file.pread(0, 1) == b"\0"


def test_without_faults_nothing_changes() -> None:
    fs, memory = faulty("")
    with fs.create("/a") as file:
        file.append(b"x")
    assert fs.inner is memory
    assert (fs.seen, fs.fired, fs.plan) == ([], [], Plan())
