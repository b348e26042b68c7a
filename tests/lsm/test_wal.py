"""One write-ahead log: which syncs happen when, and what reading makes of every cut and every flipped byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.batch import encode_ops
from lsm.entry import VALUE
from lsm.errors import Corruption
from lsm.framing import HEADER_BYTES, RECORD_HEAD_BYTES, encode_header, encode_record, seed_base
from lsm.wal import LogRecord, LogScan, LogWriter, scan_log
from simfs.api import Filesystem, SyncLevel
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem
from simfs.oplog import Append, Sync, SyncDir

NONE, FLUSH, FSYNC, FULLFSYNC = SyncLevel
PATH = "/db/000007.log"
MODES = ("tolerate_torn_tail", "absolute", "point_in_time", "skip_corrupted")


def new_fs() -> MemoryFilesystem:
    fs = MemoryFilesystem()
    fs.mkdir("/db")
    return fs


def make(fs: Filesystem, number: int = 7, predecessor: LogWriter | None = None) -> LogWriter:
    path = f"/db/{number:06d}.log"
    return LogWriter.create(fs, path, number=number, first_sequence=1, predecessor=predecessor, buffer_bytes=1000)


def payload(sequence: int) -> bytes:
    return encode_ops(sequence, [(VALUE, b"k%d" % sequence, b"v" * sequence)])


def content(fs: MemoryFilesystem, path: str = PATH) -> bytes:
    with fs.open(path) as file:
        return file.pread(0, file.size())


def scan(data: bytes, mode: str, number: int | None = 7) -> LogScan:
    fs = MemoryFilesystem(record=False)
    fs.mkdir("/db")
    with fs.create(PATH) as file:
        file.append(data)
    return scan_log(fs, PATH, mode, expect_number=number)


# Which syncs


def syncs(fs: MemoryFilesystem) -> list[str]:
    """The syncs so far, as "site kind file", and the writes between them as "write file"."""
    lines = []
    for record in fs.log:
        name = record.path.rpartition("/")[2] if hasattr(record, "path") else ""
        if isinstance(record, Sync | SyncDir):
            lines.append(f"{record.site} {record.kind.value} {name}")
        elif isinstance(record, Append):
            lines.append(f"write {name}")
    return lines


def after(fs: MemoryFilesystem, before: int) -> list[str]:
    return syncs(fs)[before:]


EXPECTED = {
    NONE: [],
    FLUSH: ["write 000007.log"],
    FSYNC: ["write 000007.log", "wal.create file db", "wal.write file 000007.log"],
    FULLFSYNC: ["write 000007.log", "wal.create file db", "wal.write full 000007.log"],
}


@pytest.mark.parametrize("level", SyncLevel)
def test_syncs_of_the_first_append_at_each_level(level: SyncLevel) -> None:
    fs = new_fs()
    log = make(fs)
    assert syncs(fs) == ["write 000007.log"], "creating a log syncs nothing"
    log.append(payload(1), level)
    assert after(fs, 1) == EXPECTED[level]
    assert log.strongest == level
    before = len(syncs(fs))
    log.append(payload(2), level)
    assert after(fs, before) == [line for line in EXPECTED[level] if "wal.create" not in line], "the folder once"


def test_levels_mixed_in_one_log() -> None:
    fs = new_fs()
    log = make(fs)
    for sequence, level in enumerate((NONE, FLUSH, NONE, FSYNC, FLUSH, FULLFSYNC, NONE, FSYNC), 1):
        log.append(payload(sequence), level)
    assert after(fs, 1) == [
        "write 000007.log",
        "write 000007.log", "wal.create file db", "wal.write file 000007.log",
        "write 000007.log",
        "write 000007.log", "wal.write full 000007.log",
        "write 000007.log", "wal.write file 000007.log",
    ]  # fmt: skip
    assert log.strongest == FULLFSYNC
    records = scan(content(fs), "absolute").records
    assert [record.payload for record in records] == [payload(sequence) for sequence in range(1, 9)]
    ends = [HEADER_BYTES, *(record.offset + RECORD_HEAD_BYTES + len(record.payload) for record in records)]
    synced_by = [0, 0, 0, 0, 4, 4, 6, 6]  # by which record the prefix was synced that record i attests
    assert [record.attested for record in records] == [ends[by] if by else 0 for by in synced_by]


def test_names_synced_by_the_caller_are_not_synced_again() -> None:
    fs = new_fs()
    log = make(fs)
    log.names_synced()
    log.append(payload(1), FSYNC)
    assert after(fs, 1) == ["write 000007.log", "wal.write file 000007.log"]


def test_an_explicit_sync() -> None:
    fs = new_fs()
    log = make(fs)
    log.append(payload(1), NONE)
    log.sync(FSYNC)
    log.sync(FSYNC)
    assert after(fs, 1) == ["write 000007.log", "wal.create file db", "wal.write file 000007.log"]
    log.sync(FULLFSYNC)
    log.sync(FULLFSYNC)
    log.sync(FSYNC)
    assert after(fs, 4) == ["wal.write full 000007.log"]
    log.append(payload(2), NONE)
    log.sync(FLUSH)
    assert after(fs, 5) == ["write 000007.log"]


@pytest.mark.parametrize("level", [FSYNC, FULLFSYNC])
def test_the_predecessor_is_synced_first_and_once(level: SyncLevel) -> None:
    fs = new_fs()
    first = make(fs, 5)
    first.append(payload(1), NONE)
    second = make(fs, 7, first)
    assert syncs(fs) == ["write 000005.log", "write 000005.log", "write 000007.log"], "rotation flushes, no more"
    second.append(payload(2), NONE)
    second.append(payload(3), FLUSH)
    assert after(fs, 3) == ["write 000007.log"], "lazy"
    second.append(payload(4), level)
    kind = "file" if level == FSYNC else "full"
    expected = ["wal.predecessor file 000005.log", "wal.create file db", f"wal.write {kind} 000007.log"]
    assert after(fs, 4) == ["write 000007.log", *expected]
    second.append(payload(5), level)
    assert after(fs, 8) == ["write 000007.log", f"wal.write {kind} 000007.log"]


def test_a_predecessor_that_was_synced_to_its_end_is_not_synced_again() -> None:
    fs = new_fs()
    first = make(fs, 5)
    first.append(payload(1), FSYNC)
    second = make(fs, 7, first)
    before = len(syncs(fs))
    second.append(payload(2), FULLFSYNC)
    assert after(fs, before) == ["write 000007.log", "wal.create file db", "wal.write full 000007.log"]


def test_a_predecessor_in_tables_is_not_synced() -> None:
    fs = new_fs()
    first = make(fs, 5)
    first.append(payload(1), FLUSH)
    second = make(fs, 7, first)
    second.predecessor_done()
    second.predecessor_done()
    before = len(syncs(fs))
    second.append(payload(2), FSYNC)
    assert after(fs, before) == ["write 000007.log", "wal.create file db", "wal.write file 000007.log"]
    assert first.error is not None, "closed with its successor's consent"


def test_a_chain_of_predecessors_is_synced_oldest_first_with_one_folder_sync() -> None:
    fs = new_fs()
    log = None
    for number in (3, 5, 6, 7):
        log = make(fs, number, log)
        log.append(payload(number), NONE if number == 6 else FLUSH)
    assert log is not None
    before = len(syncs(fs))
    log.append(payload(8), FSYNC)
    assert after(fs, before) == [
        "write 000007.log",
        *(f"wal.predecessor file 00000{number}.log" for number in (3, 5, 6)),
        "wal.create file db",
        "wal.write file 000007.log",
    ]


@pytest.mark.parametrize("strongest", SyncLevel)
def test_a_clean_finish_attests_every_record(strongest: SyncLevel) -> None:
    fs = new_fs()
    log = make(fs)
    log.append(payload(1), strongest)
    log.append(payload(2), NONE)
    before = len(syncs(fs))
    log.finish(sync=True)
    folder = ["wal.create file db"] if strongest < FSYNC else []
    kind = "full" if strongest == FULLFSYNC else "file"
    expected = ["write 000007.log", *folder, f"wal.finish {kind} 000007.log", "write 000007.log"]
    assert after(fs, before) == expected
    found = scan(content(fs), "absolute")
    assert [record.payload for record in found.records] == [payload(1), payload(2), b""]
    assert found.attested == found.records[-1].offset


def test_a_finish_without_sync_flushes_only() -> None:
    fs = new_fs()
    log = make(fs)
    log.append(payload(1), NONE)
    log.finish(sync=False)
    assert after(fs, 1) == ["write 000007.log"]
    assert scan(content(fs), "absolute").attested == 0


def test_finishing_an_empty_log() -> None:
    fs = new_fs()
    make(fs, 5).finish(sync=True)
    assert syncs(fs) == ["write 000005.log"], "nothing to make durable"
    first = make(fs, 6)
    first.append(payload(1), FLUSH)
    make(fs, 7, first).finish(sync=True)
    assert syncs(fs)[4:] == [
        "wal.predecessor file 000006.log", "wal.create file db", "wal.finish file 000007.log", "write 000007.log",
    ]  # fmt: skip


@pytest.mark.parametrize("site", ["wal.predecessor", "wal.create", "wal.write"])
def test_after_a_failed_sync_the_log_refuses(site: str) -> None:
    inner = new_fs()
    operation = "sync_dir" if site == "wal.create" else "sync"
    fs = FaultyFilesystem(inner, f'error(EIO) @ {operation}(site="{site}", nth=1)')
    first = make(fs, 5)
    first.append(payload(1), FLUSH)
    second = make(fs, 7, first)
    with pytest.raises(OSError) as caught:
        second.append(payload(2), FSYNC)
    size = len(content(inner))
    actions: list[Callable[[], None]] = [
        lambda: second.append(payload(3), FSYNC),
        lambda: second.append(payload(3), NONE),
        lambda: second.sync(FSYNC),
        lambda: second.finish(sync=True),
    ]
    for action in actions:
        with pytest.raises(OSError) as again:
            action()
        assert again.value is caught.value
    second.close()
    assert len(content(inner)) == size
    assert first.error is not None, "closed together"


def test_rotation_after_a_failed_write_raises_the_first_error() -> None:
    fs = FaultyFilesystem(new_fs(), "error(ENOSPC) @ append(nth=2)")
    first = make(fs, 5)
    with pytest.raises(OSError) as caught:
        first.append(payload(1), FLUSH)
    with pytest.raises(OSError) as again:
        make(fs, 7, first)
    assert again.value is caught.value


# Every cut and every flipped byte

SHAPES: dict[str, tuple[SyncLevel, ...]] = {
    "none": (NONE,) * 4,
    "flush": (FLUSH,) * 4,
    "fsync": (FSYNC,) * 4,
    "fullfsync": (FULLFSYNC,) * 4,
    "mixed": (FLUSH, FSYNC, NONE, FLUSH),
    "empty": (),
}


@dataclass(frozen=True)
class Written:
    """A log, and what is known of it."""

    data: bytes
    records: tuple[LogRecord, ...]

    def piece(self, offset: int) -> int:
        """Where the header or the record that holds this byte begins."""
        return max([0, *(record.offset for record in self.records if record.offset <= offset)])

    def before(self, offset: int) -> list[LogRecord]:
        return [record for record in self.records if record.offset < offset]

    def without(self, offset: int) -> list[LogRecord]:
        return [record for record in self.records if record.offset != offset]

    def attested_behind(self, offset: int) -> bool:
        """Whether a record behind this piece attests it."""
        return any(record.attested > offset for record in self.records if record.offset > offset)


@cache
def written(shape: str, clean: bool) -> Written:
    fs = new_fs()
    log = make(fs)
    for sequence, level in enumerate(SHAPES[shape], 1):
        log.append(payload(sequence), level)
    if clean:
        log.finish(sync=True)
    else:
        log.flush()
    data = content(fs)
    return Written(data, tuple(scan(data, "absolute").records))


ALL = [(shape, clean) for shape in SHAPES for clean in (False, True)]


@pytest.mark.parametrize(("shape", "clean"), ALL)
def test_a_whole_log_reads_alike_in_every_mode(shape: str, clean: bool) -> None:
    log = written(shape, clean)
    expected = [payload(sequence) for sequence in range(1, len(SHAPES[shape]) + 1)]
    for mode in MODES:
        found = scan(log.data, mode)
        assert [record.payload for record in found.records if record.payload] == expected
        assert (found.status, found.end_offset, found.reason, found.dropped) == ("clean", len(log.data), "", [])
        assert (found.number, found.first_sequence) == (7, 1)


def expect_end(log: Written, data: bytes, mode: str, end: int) -> None:
    """Reading ends at `end`, which is no damage: in `absolute` that is an error all the same."""
    if mode == "absolute":
        with pytest.raises(Corruption) as caught:
            scan(data, mode)
        assert (caught.value.path, caught.value.offset) == (PATH, end)
        return
    found = scan(data, mode)
    assert found.records == log.before(end)
    assert (found.status, found.end_offset) == ("torn", end)
    assert found.reason
    assert len(found.dropped) == (1 if len(data) > end else 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "clean"), ALL)
def test_cut_at_every_byte(shape: str, clean: bool, mode: str) -> None:
    log = written(shape, clean)
    for cut in range(len(log.data)):
        data = log.data[:cut]
        if cut == HEADER_BYTES or cut in [record.offset for record in log.records]:
            found = scan(data, mode)
            assert (found.status, found.records) == ("clean", log.before(cut))
        else:
            expect_end(log, data, mode, log.piece(cut))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "clean"), ALL)
def test_cut_at_every_byte_and_filled_with_zeros(shape: str, clean: bool, mode: str) -> None:
    log = written(shape, clean)
    for cut in range(len(log.data)):
        data = log.data[:cut] + bytes(len(log.data) - cut)
        if data != log.data:
            end = next(i for i, (was, now) in enumerate(zip(log.data, data, strict=True)) if was != now)
            expect_end(log, data, mode, log.piece(end))
        data = log.data[:cut] + bytes(1000)
        if cut >= HEADER_BYTES and cut == log.piece(cut):
            expect_end(log, data, mode, cut)


def check_damaged(log: Written, data: bytes, mode: str, piece: int) -> None:
    """The piece at `piece` is damaged, all else is whole."""
    if mode == "absolute" or (mode == "tolerate_torn_tail" and log.attested_behind(piece)):
        with pytest.raises(Corruption) as caught:
            scan(data, mode)
        assert (caught.value.path, caught.value.offset) == (PATH, piece)
        assert "wal_recovery_mode" in caught.value.reason, "says what to do"
    elif mode == "skip_corrupted" and log.records and piece < log.records[-1].offset:
        found = scan(data, mode)
        assert (found.status, found.records) == ("clean", log.without(piece))
        assert len(found.dropped) == 1
        assert f"{PATH}: offset {piece}: " in found.dropped[0]
    else:
        expect_end(log, data, mode, piece)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "clean"), ALL)
def test_every_byte_flipped(shape: str, clean: bool, mode: str) -> None:
    log = written(shape, clean)
    for offset in range(len(log.data)):
        for mask in (0xFF, 0x80):  # not ASCII any more: a foreign magic has a test of its own
            data = bytearray(log.data)
            data[offset] ^= mask
            check_damaged(log, bytes(data), mode, log.piece(offset))


@settings(deadline=None)
@given(st.sampled_from(ALL), st.sampled_from(MODES), st.data())
def test_a_stretch_overwritten(which: tuple[str, bool], mode: str, draws: st.DataObject) -> None:
    """Whatever is read was written, in order; damage below an attested offset is never swallowed."""
    log = written(*which)
    start = draws.draw(st.integers(0, len(log.data)))
    garbage = draws.draw(st.binary(max_size=80))
    data = log.data[:start] + garbage + log.data[start + len(garbage) :]
    try:
        found = scan(data, mode)
    except Corruption as error:
        found, refused = None, error
    if found is None:
        assert "foreign" in refused.reason or mode in ("absolute", "tolerate_torn_tail")
        assert data[refused.offset :] != log.data[refused.offset :]
        return
    kept = iter(log.records)
    assert all(record in kept for record in found.records), "a subsequence of what was written"
    if mode != "skip_corrupted":
        assert found.records == list(log.records[: len(found.records)]), "a prefix"
    if mode == "tolerate_torn_tail":
        whole = [record for record in log.records if data[record.offset :] == log.data[record.offset :]]
        witnessed = max((record.attested for record in whole), default=0)
        read = {record.offset for record in found.records}
        assert all(record.offset in read for record in log.records if record.offset < witnessed)


# Heads


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("head", "offset", "why"),
    [
        (encode_header(b"lsmlabMF", 7, 1), 0, "foreign file: expected magic b'lsmlabWL', found b'lsmlabMF'"),
        (b"SQLite format 3\0" + bytes(100), 0, "foreign file"),
        (b"key,value\na,1\nb,2\n", 0, "foreign file"),
        (b"hi", 0, "foreign file"),
        (encode_header(b"lsmlabWL", 9, 1), 12, "expected file number 7, found 9"),
    ],
)
def test_foreign_files_are_refused_in_every_mode(head: bytes, offset: int, why: str, mode: str) -> None:
    with pytest.raises(Corruption) as caught:
        scan(head, mode)
    assert why in caught.value.reason or mode == "absolute"
    assert caught.value.path == PATH
    assert caught.value.offset == offset


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("at", "value", "why"), [(8, 2, "format version 2; this program reads 1"), (10, 9, "checksum kind 9: expected 1")]
)
def test_newer_files_are_refused_in_every_mode(at: int, value: int, why: str, mode: str) -> None:
    head = bytearray(written("fsync", False).data[:28])
    head[at] = value
    data = bytes(head) + crc32(head).to_bytes(4, "little") + b"what only a newer program knows"
    with pytest.raises(Corruption, match=why) as caught:
        scan(data, mode)
    assert caught.value.offset == at


@pytest.mark.parametrize("head", [b"", bytes(10), bytes(32), bytes(5000), b"\x93\x01\xff" * 200, b"lsmlab"])
def test_what_a_crash_may_leave_of_an_unsynced_head_is_torn(head: bytes) -> None:
    for mode in ("tolerate_torn_tail", "point_in_time", "skip_corrupted"):
        found = scan(head, mode)
        assert (found.status, found.records, found.end_offset, found.first_sequence) == ("torn", [], 0, 0)
    with pytest.raises(Corruption):
        scan(head, "absolute")


def test_without_an_expected_number_the_head_or_the_name_tells_it() -> None:
    data = written("fsync", True).data
    assert scan(data, "absolute", None).number == 7
    damaged = b"\xff" + data[1:]
    assert scan(damaged, "skip_corrupted", None).records == list(written("fsync", True).records)


# Records that do not belong


def test_a_record_of_another_log_or_another_place_does_not_pass() -> None:
    fs = new_fs()
    for number in (7, 8):
        log = make(fs, number)
        for _ in range(4):
            log.append(payload(1), FLUSH)
    seven, eight = content(fs), content(fs, "/db/000008.log")
    size = len(encode_ops(1, [(VALUE, b"k1", b"v")])) + RECORD_HEAD_BYTES
    third = HEADER_BYTES + 2 * size
    for data in (
        seven[:third] + eight[third:],  # a stale block of another log
        seven[:third] + seven[third + size :] + seven[third : third + size],  # of this log, two exchanged
    ):
        for mode in ("tolerate_torn_tail", "point_in_time", "skip_corrupted"):
            found = scan(data, mode)
            assert len(found.records) == 2
            assert found.end_offset == third
            assert all(record.payload == payload(1) for record in found.records)


def three_stretches(attested: bool) -> tuple[bytes, int]:
    """A log whose second record lies over three stretches of 32 KiB; and where that record begins."""
    fs = new_fs()
    log = make(fs)
    log.append(encode_ops(1, [(VALUE, b"first", b"1")]), FSYNC)
    offset = log.size_bytes
    log.append(encode_ops(2, [(VALUE, b"large", bytes(range(256)) * 300)]), FSYNC if attested else FLUSH)
    if attested:
        log.append(encode_ops(3, [(VALUE, b"last", b"3")]), FSYNC)
    return content(fs), offset


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"stale"])
def test_a_record_over_three_stretches_whose_middle_was_lost(filler: bytes) -> None:
    """leveldb#251: the record is dropped whole, never served with a hole in it."""
    stretch = 32 * 1024
    lost = (filler * stretch)[:stretch]
    data, offset = three_stretches(attested=False)
    data = data[:stretch] + lost + data[2 * stretch :]
    for mode in ("tolerate_torn_tail", "point_in_time", "skip_corrupted"):
        found = scan(data, mode)
        assert [record.payload for record in found.records] == [encode_ops(1, [(VALUE, b"first", b"1")])]
        assert (found.status, found.end_offset) == ("torn", offset)
    data, offset = three_stretches(attested=True)
    data = data[:stretch] + lost + data[2 * stretch :]
    with pytest.raises(Corruption) as caught:
        scan(data, "tolerate_torn_tail")
    assert caught.value.offset == offset
    found = scan(data, "skip_corrupted")
    assert [record.payload[:8] for record in found.records] == [(1).to_bytes(8, "little"), (3).to_bytes(8, "little")]


def runs(values: Sequence[bytes]) -> Iterator[tuple[bytes, SyncLevel]]:
    for i, value in enumerate(values):
        yield value, SyncLevel(len(value) * 7 % 4 if i else 1)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=10), st.booleans())
def test_any_records_come_back(values: list[bytes], clean: bool) -> None:
    fs = new_fs()
    log = make(fs)
    for value, level in runs(values):
        log.append(value, level)
    if clean:
        log.finish(sync=True)
    else:
        log.flush()
    found = scan(content(fs), "absolute")
    assert [record.payload for record in found.records if record.payload] == values
    assert found.end_offset == len(content(fs)) == log.size_bytes
    attested = [record.attested for record in found.records]
    assert attested == sorted(attested)


def test_a_record_that_attests_beyond_itself_is_no_record() -> None:
    head = encode_header(b"lsmlabWL", 7, 1)
    forged = encode_record(seed_base(b"lsmlabWL", 7), len(head), len(head) + 1, b"x")
    found = scan(head + forged, "tolerate_torn_tail")
    assert (found.records, found.reason) == ([], "record attests 33 durable bytes, beyond its own offset")
