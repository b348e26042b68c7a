"""The writing side of record files: bytes, holding back, syncs, and errors that stick."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsm.errors import InvalidArgument
from lsm.framing import (
    HEADER_BYTES,
    RECORD_HEAD_BYTES,
    Header,
    RecordWriter,
    decode_header,
    encode_header,
    encode_record,
    seed_base,
)
from simfs.api import BytesLike, File, SyncKind
from simfs.faults import FaultyFilesystem
from simfs.memory import MemoryFilesystem
from simfs.oplog import Append, Sync

MAGIC = b"lsmlabWL"
PATH = "/000007.log"


def content(fs: MemoryFilesystem, path: str = PATH) -> bytes:
    with fs.open(path) as file:
        return file.pread(0, file.size())


def make(fs: MemoryFilesystem | FaultyFilesystem, buffer_bytes: int = 0) -> RecordWriter:
    return RecordWriter(fs, PATH, MAGIC, number=7, first_sequence=1, buffer_bytes=buffer_bytes)


def test_golden_header() -> None:
    golden = "6c736d6c6162574c 0100 01 00 0700000000000000 0100000000000000 adf702e1"
    assert encode_header(MAGIC, 7, 1) == bytes.fromhex(golden)
    assert decode_header(bytes.fromhex(golden) + b"more") == Header(MAGIC, 1, 1, 7, 1)


def test_every_cut_and_flip_of_the_header_is_noticed() -> None:
    header = encode_header(MAGIC, 2**63, 2**55)
    for cut in range(HEADER_BYTES):
        with pytest.raises(ValueError, match=f"expected 32 bytes, found {cut}"):
            decode_header(header[:cut])
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="header checksum"):
            decode_header(bytes(flipped))


def test_golden_file() -> None:
    fs = MemoryFilesystem()
    writer = make(fs)
    writer.add(b"hello")
    writer.sync_file(SyncKind.FILE, "wal.write")
    writer.add(b"")
    writer.close()
    golden = """
        6c736d6c6162574c 0100 01 00 0700000000000000 0100000000000000 adf702e1
        51a76522 05000000 0000000000000000 68656c6c6f
        ea51fa34 00000000 3500000000000000
    """
    assert content(fs).hex(" ") == bytes.fromhex(golden).hex(" ")
    assert (writer.size_bytes, writer.synced_bytes) == (69, 53)


@settings(deadline=None)
@given(st.binary(max_size=30), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_record_passes_at_its_own_place_only(payload: bytes, offset: int, other: int) -> None:
    base = seed_base(MAGIC, 7)
    record = encode_record(base, offset, 0, payload)
    assert (encode_record(base, other, 0, payload) == record) == ((offset - other) % 2**32 == 0)
    for stranger in (seed_base(MAGIC, 8), seed_base(b"lsmlabMF", 7)):
        assert encode_record(stranger, offset, 0, payload) != record


def test_held_records_are_written_at_the_limit_by_others_and_by_flush() -> None:
    fs = MemoryFilesystem()
    writer = make(fs, buffer_bytes=50)

    def appends() -> list[int]:
        return [len(record.data) for record in fs.log if isinstance(record, Append)]

    writer.add(b"1234", held=True)  # 20 bytes
    writer.add(b"1234", held=True)
    assert appends() == [32]
    assert writer.size_bytes == 72
    writer.add(b"1234", held=True)
    assert appends() == [32, 60]
    writer.add(b"1234", held=True)
    writer.add(b"12345678")
    assert appends() == [32, 60, 44]
    writer.add(b"1234", held=True)
    writer.flush()
    writer.flush()
    assert appends() == [32, 60, 44, 20]
    writer.add(b"1234", held=True)
    writer.sync_file(SyncKind.FILE, "wal.write")
    assert appends() == [32, 60, 44, 20, 20]
    writer.add(b"dropped", held=True)
    writer.close()
    assert len(content(fs)) == 32 + 60 + 44 + 20 + 20


def test_a_sync_is_made_only_where_it_adds_something() -> None:
    fs = MemoryFilesystem()
    writer = make(fs)

    def syncs() -> list[SyncKind]:
        return [record.kind for record in fs.log if isinstance(record, Sync)]

    writer.add(b"a")
    writer.sync_file(SyncKind.FILE, "wal.write")
    writer.sync_file(SyncKind.FILE, "wal.write")
    assert syncs() == [SyncKind.FILE]
    writer.sync_file(SyncKind.FULL, "wal.write")
    writer.sync_file(SyncKind.FULL, "wal.write")
    writer.sync_file(SyncKind.FILE, "wal.write")
    assert syncs() == [SyncKind.FILE, SyncKind.FULL]
    assert writer.synced_bytes == writer.size_bytes
    writer.add(b"b")
    writer.barrier("wal.barrier")
    assert writer.synced_bytes < writer.size_bytes, "a barrier makes nothing durable"


def test_attest_adds_a_record_only_if_all_is_durable() -> None:
    fs = MemoryFilesystem()
    writer = make(fs)
    writer.attest()
    writer.add(b"a")
    writer.attest()
    assert writer.size_bytes == HEADER_BYTES + RECORD_HEAD_BYTES + 1
    writer.sync_file(SyncKind.FILE, "wal.write")
    writer.attest()
    writer.attest()
    assert writer.size_bytes == HEADER_BYTES + 2 * RECORD_HEAD_BYTES + 1


ACTIONS: dict[str, Callable[[RecordWriter], object]] = {
    "append": lambda writer: writer.add(b"x"),
    "held": lambda writer: writer.add(b"x" * 100, held=True),
    "sync": lambda writer: writer.sync_file(SyncKind.FILE, "wal.write"),
    "barrier": lambda writer: writer.barrier("wal.barrier"),
}
PLANS = {
    "append": "error(EIO) @ append(nth=3)",
    "held": "short(5, ENOSPC) @ append(nth=3)",
    "sync": "error(EIO) @ sync(nth=1)",
    "barrier": "error(EIO) @ sync(nth=1)",
}


@pytest.mark.parametrize("failing", sorted(ACTIONS))
def test_the_first_error_sticks(failing: str) -> None:
    inner = MemoryFilesystem()
    writer = make(FaultyFilesystem(inner, PLANS[failing]), buffer_bytes=50)
    writer.add(b"first")
    with pytest.raises(OSError) as first:
        ACTIONS[failing](writer)
    assert writer.error is first.value
    size = len(content(inner))
    for name, action in [*ACTIONS.items(), ("flush", RecordWriter.flush)]:
        with pytest.raises(OSError) as again:
            action(writer)
        assert again.value is first.value, name
    writer.close()
    writer.close()
    with pytest.raises(OSError):
        writer.add(b"x")
    assert len(content(inner)) == size, "a broken writer writes nothing"


def test_an_interrupt_in_a_write_breaks_the_writer() -> None:
    class Interrupting:
        def __init__(self, file: File) -> None:
            self.file = file

        def append(self, data: BytesLike) -> None:
            self.file.append(bytes(data)[:3])
            raise KeyboardInterrupt

    fs = MemoryFilesystem()
    writer = make(fs)
    writer._append = Interrupting(writer._file).append
    with pytest.raises(KeyboardInterrupt):
        writer.add(b"x")
    with pytest.raises(OSError, match="interrupted by KeyboardInterrupt in the middle of a write") as caught:
        writer.add(b"y")
    assert caught.value.errno == errno.EINTR
    assert caught.value.filename == PATH


def test_a_closed_writer_refuses() -> None:
    writer = make(MemoryFilesystem())
    writer.close()
    for action in (*ACTIONS.values(), RecordWriter.flush):
        with pytest.raises(ValueError, match="closed"):
            action(writer)


def test_a_file_of_that_name_is_not_overwritten() -> None:
    fs = MemoryFilesystem()
    make(fs).close()
    with pytest.raises(FileExistsError):
        make(fs)


def test_a_failed_header_leaves_no_handle_open() -> None:
    inner = MemoryFilesystem(capacity_bytes=10)
    with pytest.raises(OSError) as caught:
        make(inner)
    assert caught.value.errno == errno.ENOSPC
    inner.remove(PATH)
    assert inner.used_bytes == 0, "an open handle would keep the file's space"


def test_a_payload_beyond_four_gibibytes_changes_nothing() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    fs = MemoryFilesystem()
    writer = make(fs)
    with pytest.raises(InvalidArgument, match="batch of 4294967296 bytes: the limit is 4294967295"):
        writer.add(Huge())
    writer.add(b"next")
    assert writer.size_bytes == len(content(fs)) == HEADER_BYTES + RECORD_HEAD_BYTES + 4
