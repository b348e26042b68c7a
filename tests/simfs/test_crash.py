"""Crash images: a small worked case for each row of the worst-case column, then properties."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simfs import oplog
from simfs.api import PowerLost, SyncKind
from simfs.crash import (
    ALL_KEPT,
    LINK,
    SIZE,
    SYNCED_ONLY,
    UNLINK_SOURCE,
    UNLINK_TARGET,
    Choice,
    Chosen,
    CrashReplay,
    Failure,
    Fixed,
    Step,
    WorstCase,
)
from simfs.memory import MemoryFilesystem
from simfs.survivors import FileState


def contents(fs: MemoryFilesystem, folder: str = "") -> dict[str, bytes | None]:
    """Every name under `folder`, with the file's bytes, or None for a folder."""
    found: dict[str, bytes | None] = {}
    for name in fs.listdir(folder or "/"):
        path = f"{folder}/{name}"
        if fs.stat(path).is_dir:
            found[path] = None
            found |= contents(fs, path)
        else:
            with fs.open(path) as file:
                found[path] = file.pread(0, 1 << 20)
    return found


def kept(fs: MemoryFilesystem, *parts: tuple[int, int], garbage: bytes = b"\0") -> dict[str, bytes | None]:
    """What is left when exactly these (step, part) pairs survive a power loss after the whole log."""
    return contents(fs.crash_image("power", Chosen(frozenset(parts), garbage), at=len(fs.log)))


def fs_with(path: str, data: bytes) -> MemoryFilesystem:
    """A filesystem with one durable file; steps 0 to 3."""
    fs = MemoryFilesystem()
    with fs.create(path) as file:
        file.append(data)
        file.sync(SyncKind.FULL, "setup")
    fs.sync_dir("/", "setup")
    return fs


# write, append


def test_size_without_data_reads_as_zeros_or_garbage() -> None:
    fs = fs_with("/a", b"old")
    fs.open("/a", write=True).append(b"NEW")
    assert kept(fs) == {"/a": b"old"}
    assert kept(fs, (4, SIZE)) == {"/a": b"old\0\0\0"}
    assert kept(fs, (4, SIZE), garbage=b"?!") == {"/a": b"old?!?"}
    assert kept(fs, (4, SIZE), (4, 1)) == {"/a": b"oldNEW"}


def test_data_without_size_is_not_there() -> None:
    fs = fs_with("/a", b"old")
    fs.open("/a", write=True).append(b"NEW")
    assert kept(fs, (4, 1)) == {"/a": b"old"}


def test_a_large_append_tears_at_sectors_out_of_order() -> None:
    fs = fs_with("/a", b"-" * 500)
    fs.open("/a", write=True).append(b"a" * 12 + b"b" * 512 + b"c" * 100)
    assert kept(fs, (4, SIZE), (4, 2)) == {"/a": b"-" * 500 + b"\0" * 12 + b"b" * 512 + b"\0" * 100}
    assert kept(fs, (4, SIZE), (4, 1), (4, 3)) == {"/a": b"-" * 500 + b"a" * 12 + b"\0" * 512 + b"c" * 100}


def test_a_sector_is_written_back_whole() -> None:
    fs = fs_with("/a", b"")
    file = fs.open("/a", write=True)
    file.append(b"first,")
    file.append(b"second")
    steps = {type(record): n for n, record in enumerate(fs.log)}
    last = steps[oplog.Append]
    assert kept(fs, (last, SIZE), (last, 1)) == {"/a": b"first,second"}
    assert kept(fs, (last, SIZE), (last - 1, 1)) == {"/a": b"first,\0\0\0\0\0\0"}


def test_a_later_size_covers_an_earlier_one_that_was_lost() -> None:
    fs = fs_with("/a", b"0")
    file = fs.open("/a", write=True)
    file.append(b"1")
    file.append(b"2")
    assert kept(fs, (4, SIZE), (4, 1)) == {"/a": b"01"}
    assert kept(fs, (5, SIZE), (5, 1)) == {"/a": b"012"}


# fsync, fdatasync, F_FULLFSYNC, F_BARRIERFSYNC


@pytest.mark.parametrize("kind", [SyncKind.DATA, SyncKind.FILE, SyncKind.FULL])
def test_a_sync_makes_this_inode_durable_but_not_its_name(kind: SyncKind) -> None:
    fs = MemoryFilesystem()
    for path in ("/a", "/b"):
        fs.create(path).append(path.encode())
    with fs.open("/a") as file:
        file.sync(kind, "s")
    assert kept(fs) == {}
    assert kept(fs, (0, LINK), (2, LINK)) == {"/a": b"/a", "/b": b""}


def test_a_barrier_makes_nothing_durable() -> None:
    fs = fs_with("/a", b"")
    fs.create("/b")
    with fs.open("/a", write=True) as file:
        file.append(b"x")
        file.sync(SyncKind.BARRIER, "s")
    fs.sync_dir("/", "s", SyncKind.BARRIER)
    assert kept(fs) == {"/a": b""}


# directory sync


def test_a_folder_sync_makes_this_folder_durable_but_not_its_own_name() -> None:
    fs = MemoryFilesystem()
    fs.mkdir("/d")
    fs.create("/d/a")
    fs.create("/b")
    fs.sync_dir("/d", "s")
    assert kept(fs) == {}
    assert kept(fs, (0, LINK)) == {"/d": None, "/d/a": b""}


def test_a_durable_name_of_a_file_that_was_not_synced_leads_to_an_empty_file() -> None:
    fs = MemoryFilesystem()
    fs.create("/a").append(b"data")
    fs.sync_dir("/", "s")
    assert kept(fs) == {"/a": b""}


# rename


def renamed() -> MemoryFilesystem:
    """/new was renamed over /old (step 8); both durable before."""
    fs = fs_with("/old", b"old")
    with fs.create("/new") as file:
        file.append(b"new")
        file.sync(SyncKind.FULL, "setup")
    fs.sync_dir("/", "setup")
    fs.rename("/new", "/old")
    return fs


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ((), {"/new": b"new", "/old": b"old"}),
        ((LINK, UNLINK_SOURCE, UNLINK_TARGET), {"/old": b"new"}),
        ((UNLINK_TARGET,), {"/new": b"new"}),
        ((UNLINK_SOURCE,), {"/old": b"old"}),
        ((LINK,), {"/new": b"new", "/old": b"new"}),
        ((UNLINK_SOURCE, UNLINK_TARGET), {}),
        ((LINK, UNLINK_TARGET), {"/new": b"new", "/old": b"new"}),
        ((LINK, UNLINK_SOURCE), {"/old": b"new"}),
    ],
)
def test_a_rename_over_a_file_separates(parts: tuple[int, ...], left: dict[str, bytes]) -> None:
    assert kept(renamed(), *((8, part) for part in parts)) == left


def test_a_rename_between_folders_needs_both_of_them_synced() -> None:
    fs = MemoryFilesystem()
    for path in ("/d", "/e"):
        fs.mkdir(path)
    fs.create("/d/a")
    for path in ("/", "/d", "/e"):
        fs.sync_dir(path, "setup")
    fs.rename("/d/a", "/e/b")
    fs.sync_dir("/d", "s")
    assert kept(fs) == {"/d": None, "/e": None}, "the source's removal alone is durable"
    assert kept(fs, (6, LINK)) == {"/d": None, "/e": None, "/e/b": b""}


def test_a_renamed_folder_has_one_name_at_each_moment() -> None:
    fs = MemoryFilesystem()
    for path in ("/d", "/e", "/d/x", "/e/y"):
        fs.mkdir(path)
    for path in ("/", "/d", "/e"):
        fs.sync_dir(path, "setup")
    fs.rename("/d/x", "/e/y")
    old = {"/d": None, "/d/x": None, "/e": None, "/e/y": None}
    new: dict[str, bytes | None] = {"/d": None, "/e": None, "/e/y": None}
    number = len(fs.log) - 1
    assert kept(fs, (number, UNLINK_SOURCE), (number, UNLINK_TARGET)) == old
    assert kept(fs, (number, LINK)) == new
    for folder in ("/d", "/e"):
        image = fs.crash_image("kill", at=len(fs.log))
        image.sync_dir(folder, "s")
        assert contents(image.crash_image("power", SYNCED_ONLY)) == new


def test_a_folder_whose_two_names_survived_keeps_the_first() -> None:
    fs = MemoryFilesystem()
    for path in ("/a", "/b", "/x"):
        fs.mkdir(path)
    fs.sync_dir("/", "setup")
    fs.rename("/x", "/a/x")
    fs.rename("/a/x", "/b/x")
    fs.rename("/b/x", "/x")
    assert kept(fs, (4, LINK), (5, LINK)) == {"/a": None, "/b": None, "/b/x": None}
    assert kept(fs, (5, LINK)) == {"/a": None, "/b": None, "/x": None}, "its name in / was seen first"


# unlink


def test_an_unlink_may_be_durable_before_anything_else() -> None:
    fs = fs_with("/a", b"a")
    with fs.create("/b") as file:
        file.append(b"b")
    fs.remove("/a")
    assert kept(fs, (6, LINK)) == {}
    assert kept(fs) == {"/a": b"a"}


def test_an_unlink_drops_the_name_of_its_own_inode_only() -> None:
    fs = fs_with("/a", b"a")
    fs.remove("/a")
    fs.create("/a")
    fs.remove("/a")
    assert kept(fs, (6, LINK)) == {"/a": b"a"}, "the second removal was not of the first file"
    assert kept(fs, (4, LINK)) == {}


def test_links_and_folders_come_and_go() -> None:
    fs = fs_with("/a", b"a")
    fs.link("/a", "/b")
    fs.mkdir("/d")
    fs.rmdir("/d")
    assert kept(fs) == {"/a": b"a"}
    assert kept(fs, (4, LINK), (5, LINK)) == {"/a": b"a", "/b": b"a", "/d": None}
    both = fs.crash_image("power", Chosen(frozenset({(4, LINK)})), at=len(fs.log))
    assert both.stat("/a").inode == both.stat("/b").inode
    assert both.stat("/a").links == 2


# truncate


def test_a_truncate_may_be_dropped_or_take_sectors_one_by_one() -> None:
    fs = fs_with("/a", b"x" * 1500)
    fs.open("/a", write=True).truncate(100)
    assert kept(fs) == {"/a": b"x" * 1500}
    assert kept(fs, (4, SIZE)) == {"/a": b"x" * 100}
    assert kept(fs, (4, 2)) == {"/a": b"x" * 512 + b"\0" * 512 + b"x" * 476}
    assert kept(fs, (4, 1)) == {"/a": b"x" * 100 + b"\0" * 412 + b"x" * 988}


def test_what_was_cut_off_before_it_was_written_back_is_not_written_back_later() -> None:
    fs = fs_with("/a", b"x" * 100)
    file = fs.open("/a", write=True)
    file.append(b"y" * 1000)
    file.truncate(200)
    file.append(b"z" * 10)
    assert kept(fs, (4, SIZE), (6, 1)) == {"/a": b"x" * 100 + b"y" * 100 + b"z" * 10 + b"\0" * 890}
    assert kept(fs, (4, SIZE), (4, 2), (6, 1)) == {
        "/a": b"x" * 100 + b"y" * 100 + b"z" * 10 + b"\0" * 302 + b"y" * 512 + b"\0" * 76
    }
    assert kept(fs, (6, SIZE), (6, 1)) == {"/a": b"x" * 100 + b"y" * 100 + b"z" * 10}


def test_growing_by_truncate_shows_zeros() -> None:
    fs = fs_with("/a", b"x")
    file = fs.open("/a", write=True)
    file.truncate(5)
    file.append(b"y")
    assert kept(fs, (4, SIZE)) == {"/a": b"x\0\0\0\0"}
    assert kept(fs, (5, SIZE), garbage=b"?") == {"/a": b"x\0\0\0\0?"}
    file.sync(SyncKind.FULL, "s")
    assert kept(fs) == {"/a": b"x\0\0\0\0y"}


# failures, fences, images of images


def test_a_kill_leaves_all_that_is_visible_and_nothing_of_the_process() -> None:
    fs = MemoryFilesystem()
    file = fs.create("/a", buffer_bytes=100)
    file.append(b"in the process")
    fs.create("/b").append(b"in the system")
    gone = fs.create("/gone")
    gone.append(b"unlinked, but open")
    fs.remove("/gone")
    image = fs.crash_image("kill", SYNCED_ONLY)
    assert contents(image) == {"/a": b"", "/b": b"in the system"}
    with pytest.raises(PowerLost):
        file.append(b"more")


def test_after_a_kill_a_power_loss_still_takes_what_was_never_synced() -> None:
    fs = fs_with("/a", b"synced ")
    fs.open("/a", write=True).append(b"unsynced")
    image = fs.crash_image("kill")
    assert image.log_start == len(fs.log) == len(image.log)
    assert contents(image) == {"/a": b"synced unsynced"}
    assert contents(image.crash_image("power", at=image.log_start)) == {"/a": b"synced "}
    with image.open("/a") as file:
        file.sync(SyncKind.FULL, "recovery")
    assert contents(image.crash_image("power")) == {"/a": b"synced unsynced"}


def test_after_a_power_loss_what_is_there_is_durable() -> None:
    fs = MemoryFilesystem()
    fs.create("/a").append(b"x")
    image = fs.crash_image("os", ALL_KEPT)
    assert (image.log, image.log_start) == ([], 0)
    image.open("/a", write=True).append(b"y")
    assert contents(image.crash_image("power")) == {"/a": b"x"}


def test_an_image_goes_its_own_way() -> None:
    fs = fs_with("/a", b"x")
    image = fs.crash_image("power", at=len(fs.log))
    image.open("/a", write=True).append(b"1")
    fs.open("/a", write=True).append(b"2")
    assert (contents(image), contents(fs)) == ({"/a": b"x1"}, {"/a": b"x2"})
    made, also = image.create("/n"), fs.create("/n")
    assert made.path == also.path == "/n"
    assert image.stat("/n").inode == fs.stat("/n").inode


def test_a_moment_in_the_past_fences_nothing() -> None:
    fs = fs_with("/a", b"x")
    fs.remove("/a")
    assert contents(fs.crash_image("power", at=4)) == {"/a": b"x"}
    assert contents(fs.crash_image("kill", at=2)) == {"/a": b"x"}
    assert fs.listdir("/") == []


def test_without_a_log_only_a_kill_of_now_has_an_image() -> None:
    fs = MemoryFilesystem(record=False)
    fs.create("/a").append(b"x")
    with pytest.raises(ValueError, match="no log"):
        fs.crash_image("power")
    with pytest.raises(ValueError, match="no log"):
        fs.crash_image("kill", at=0)
    assert contents(fs.crash_image("kill")) == {"/a": b"x"}
    assert fs.fenced


def test_nonsense_is_refused() -> None:
    fs = fs_with("/a", b"x")
    with pytest.raises(ValueError, match="not one of kill, os, power"):
        fs.crash_image("fire")  # type: ignore[arg-type]
    assert not fs.fenced
    replay = CrashReplay(fs).advance(2)
    for to in (1, 5):
        with pytest.raises(ValueError, match="cannot advance"):
            replay.advance(to)


def test_capacity_comes_along() -> None:
    fs = MemoryFilesystem(capacity_bytes=3)
    fs.create("/a").append(b"ab")
    failures: tuple[Failure, ...] = ("kill", "power")
    for failure in failures:
        image = fs.crash_image(failure, ALL_KEPT, at=2)
        with pytest.raises(OSError), image.open("/a", write=True) as file:
            file.append(b"cd")


# draws


def test_draws_of_one_path_are_not_moved_by_work_on_another() -> None:
    def images(noise: bool) -> list[bytes]:
        fs = fs_with("/a", b"")
        if noise:
            fs.create("/noise").append(b"n" * 1000)
        file = fs.open("/a", write=True)
        for number in range(40):
            file.append(bytes([65 + number]) * 300)
        return [
            fs.crash_image("power", WorstCase(seed), at=len(fs.log)).open("/a").pread(0, 1 << 20) for seed in range(5)
        ]

    assert images(False) == images(True)
    assert len(set(images(False))) == 5


def test_draws_reach_from_nearly_all_to_nearly_nothing() -> None:
    fs = fs_with("/a", b"")
    fs.open("/a", write=True).append(b"x" * 51200)
    step = Step(3, "/a", 3, fs.log[-1])
    odds = {sum(WorstCase(seed).survives(step, part) for part in range(100)) // 34 for seed in range(20)}
    assert odds == {0, 1, 2}
    fillers = {WorstCase(seed).filler(step, 100)[:1] == b"\0" for seed in range(20)}
    assert fillers == {True, False}


def test_golden_draws() -> None:
    step = Step(0, "/db/000001.log", 3, oplog.Append(2, 0, b"", "/db/000001.log"))
    assert [int(WorstCase(7).survives(step, part)) for part in range(12)] == [1, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0]
    assert WorstCase(7).filler(step, 4) == b"\xa6\x03jK"


# properties

names = st.sampled_from(["/a", "/b", "/d/a", "/d/b", "/d", "/e"])

ATTEMPTS: list[Callable[[MemoryFilesystem, str, str, int], object]] = [
    lambda fs, path, _, size: fs.create(path, exclusive=False).append(bytes([size % 251 + 1]) * size),
    lambda fs, path, _, size: fs.open(path, write=True).append(bytes([size % 250 + 2]) * size),
    lambda fs, path, _, size: fs.open(path, write=True).truncate(size),
    lambda fs, path, *_: fs.open(path).sync(SyncKind.DATA, "s"),
    lambda fs, path, *_: fs.open(path).sync(SyncKind.BARRIER, "s"),
    lambda fs, path, *_: fs.sync_dir(path, "s"),
    lambda fs, *_: fs.sync_dir("/", "s"),
    lambda fs, path, other, _: fs.rename(path, other),
    lambda fs, path, other, _: fs.link(path, other),
    lambda fs, path, *_: fs.remove(path),
    lambda fs, path, *_: fs.mkdir(path),
    lambda fs, path, *_: fs.rmdir(path),
]


@st.composite
def workloads(draw: st.DrawFn) -> MemoryFilesystem:
    """A filesystem on which a drawn list of operations was tried."""
    fs = MemoryFilesystem()
    fs.mkdir("/d")
    for _ in range(draw(st.integers(1, 40))):
        attempt = draw(st.sampled_from(ATTEMPTS))
        with contextlib.suppress(OSError):
            attempt(fs, draw(names), draw(names), draw(st.sampled_from([0, 1, 100, 512, 700, 2000])))
    return fs


class Everything:
    """As `ALL_KEPT`, but not recognised as such: every part is asked for and folded."""

    def survives(self, step: Step, part: int) -> bool:
        return True

    def filler(self, step: Step, size: int) -> bytes:
        return b"?" * size


class Nothing(Everything):
    def survives(self, step: Step, part: int) -> bool:
        return False


@given(workloads())
def test_keeping_everything_is_a_kill_and_keeping_nothing_is_synced_only(fs: MemoryFilesystem) -> None:
    replay = CrashReplay(fs)
    for at in range(len(fs.log) + 1):
        replay.advance(at)
        assert replay.tree(Everything()) == replay.tree(ALL_KEPT) == replay.image(failure="kill").tree()
        assert replay.tree(Nothing()) == replay.tree(SYNCED_ONLY) == replay.image().tree()
    assert contents(replay.image(failure="kill")) == contents(fs)


@given(workloads(), st.integers(0, 1000))
def test_an_image_on_the_way_is_the_image_from_the_start(fs: MemoryFilesystem, seed: int) -> None:
    replay = CrashReplay(fs)
    shared = WorstCase(seed)
    for at in range(len(fs.log) + 1):
        on_the_way = replay.advance(at).image(shared).tree()
        assert on_the_way == fs.crash_image("power", WorstCase(seed), at=at).tree()


@given(workloads(), st.integers(0, 1000))
def test_what_was_synced_and_not_changed_since_is_in_every_image(fs: MemoryFilesystem, seed: int) -> None:
    replay = CrashReplay(fs).advance(len(fs.log))
    synced, drawn = replay.tree(SYNCED_ONLY), replay.tree(WorstCase(seed))
    last_sync = {record.inode: n for n, record in enumerate(fs.log) if isinstance(record, oplog.Sync)}
    cut = {
        record.inode
        for n, record in enumerate(fs.log)
        if isinstance(record, oplog.Truncate) and n > last_sync.get(record.inode, -1)
    }
    for number, data in synced.files.items():
        if number in drawn.files and number not in cut:
            assert drawn.files[number].startswith(data)
    renamed_or_removed = {
        (folder, name)
        for record in fs.log
        for folder, name in (
            [(record.directory, record.name), (record.target_directory, record.target_name)]
            if isinstance(record, oplog.Rename)
            else [(record.directory, record.name)]
            if isinstance(record, oplog.Unlink | oplog.Rmdir)
            else []
        )
    }
    for folder, names in synced.directories.items():
        for name in names:
            if folder in drawn.directories and (folder, name) not in renamed_or_removed:
                assert name in drawn.directories[folder]


@given(workloads(), st.integers(0, 1000))
def test_images_are_whole_filesystems(fs: MemoryFilesystem, seed: int) -> None:
    image = fs.crash_image("power", WorstCase(seed))
    assert image.tree() == MemoryFilesystem(tree=image.tree()).tree()
    for path, data in contents(image).items():
        if data is not None:
            with image.open(path, write=True) as file:
                before = file.pread(0, 1 << 20)
                assert before.startswith(data), "it may have grown under another of its names"
                file.append(b"more")
                assert file.pread(0, 1 << 20) == before + b"more"
                file.sync(SyncKind.FULL, "s")
    again = image.crash_image("power", at=len(image.log))
    assert contents(again) == contents(image)


def test_many_choices_do_not_pile_up() -> None:
    fs = fs_with("/a", b"")
    fs.open("/a", write=True).append(b"x" * 1000)
    replay = CrashReplay(fs).advance(len(fs.log))
    choices: list[Choice] = [WorstCase(seed) for seed in range(FileState.FOLDS_MAX + 5)]
    first = [replay.tree(choice).files for choice in choices]
    assert [replay.tree(choice).files for choice in choices] == first


def test_fixed_choices_answer_everything_alike() -> None:
    step = Step(0, "/a", 1, oplog.Append(2, 0, b"", "/a"))
    assert (ALL_KEPT.survives(step, 5), SYNCED_ONLY.survives(step, 5)) == (True, False)
    assert Fixed(True) == ALL_KEPT
    assert SYNCED_ONLY.filler(step, 3) == b"\0\0\0"


def test_a_move_that_became_durable_leaves_other_changes_pending() -> None:
    fs = MemoryFilesystem()
    for path in ("/d", "/e", "/d/x"):
        fs.mkdir(path)
    fs.sync_dir("/", "setup")
    fs.create("/e/other")
    fs.rename("/d/x", "/e/y")
    fs.sync_dir("/d", "s")
    assert kept(fs) == {"/d": None, "/e": None, "/e/y": None}
    assert kept(fs, (4, LINK)) == {"/d": None, "/e": None, "/e/other": b"", "/e/y": None}
