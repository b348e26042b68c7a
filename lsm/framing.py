"""Files of checksummed records: the framing that write-ahead log and manifest share. Writing side.

    file:     header | record | record | …
    header:   magic 8 bytes | format version u16 | checksum kind u8 (1 = CRC-32) | zero u8 |
              number u64 | first sequence u64 | crc u32 of all before                     (32 bytes)
    record:   crc u32 | length u32 | attested u64 | payload of `length` bytes    (16 bytes + payload)

Integers are little-endian. A record's CRC covers all of it but the CRC, and starts from a seed made of
the file's magic, its number and the record's offset: the same bytes at another place, or left over from
another file, do not pass.

`attested` is the offset up to which this file was known to be durable when the record was written. A
reader that finds damage at offset o, and behind it a record that attests more than o, knows that the
damage is no torn tail: those bytes were once safely there. (See `lsm.logscan`.)

Invariants:
1. `attested` is at most the record's own offset, and never decreases.
2. A record of all zeros is never written: where one is found, a zero-filled tail begins.
3. Every later format version keeps this header, so that an old program can tell a newer file from a damaged one.
4. After an error nothing is known about the end of the file: the writer refuses everything from then on
   with that first error. It never guesses, and never retries a sync (Rebello et al., ATC '20).

Left out: LevelDB's 32 KiB blocks with records in fragments (a CRC on each whole record does not need them;
resynchronisation searches every offset instead), recycled files, compression of records.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, NoReturn
from zlib import crc32

from lsm.errors import InvalidArgument
from simfs.api import File, Filesystem, SyncKind

FORMAT_VERSION = 1
CHECKSUM_CRC32 = 1
PAYLOAD_BYTES_MAX = 0xFFFF_FFFF

_HEADER = struct.Struct("<8sHBBQQ")
_CRC = struct.Struct("<I")
_COVERED = struct.Struct("<IQ")
RECORD_HEAD = struct.Struct("<IIQ")
HEADER_BYTES = _HEADER.size + _CRC.size
RECORD_HEAD_BYTES = RECORD_HEAD.size
_MASK = 0xFFFF_FFFF


class Header(NamedTuple):
    """What the head of a file says."""

    magic: bytes
    version: int
    checksum_kind: int
    number: int
    first_sequence: int


def encode_header(magic: bytes, number: int, first_sequence: int) -> bytes:
    """The head of a new file.

    >>> encode_header(b"lsmlabWL", 7, 1).hex(" ", -8)
    '6c736d6c6162574c 0100010007000000 0000000001000000 00000000adf702e1'
    """
    head = _HEADER.pack(magic, FORMAT_VERSION, CHECKSUM_CRC32, 0, number, first_sequence)
    return head + _CRC.pack(crc32(head))


def decode_header(data: bytes) -> Header:
    """The head of a file, its checksum verified. Raises `ValueError` if it is cut short or damaged."""
    if len(data) < HEADER_BYTES:
        raise ValueError(f"incomplete header: expected {HEADER_BYTES} bytes, found {len(data)}")
    magic, version, kind, _, number, first_sequence = _HEADER.unpack_from(data)
    (stored,) = _CRC.unpack_from(data, _HEADER.size)
    computed = crc32(data[: _HEADER.size])
    if stored != computed:
        raise ValueError(f"header checksum: expected 0x{stored:08x}, found 0x{computed:08x} (magic {magic!r})")
    return Header(magic, version, kind, number, first_sequence)


def seed_base(magic: bytes, number: int) -> int:
    """What the file adds to the CRC seeds of its records; the record's offset comes on top."""
    return crc32(number.to_bytes(8, "little"), crc32(magic))


def encode_record(base: int, offset: int, attested: int, payload: bytes) -> bytes:
    """A record as it stands at `offset` of the file whose `seed_base` is `base`.

    >>> encode_record(seed_base(b"lsmlabWL", 7), 32, 0, b"hello").hex(" ", -8)
    '51a7652205000000 0000000000000000 68656c6c6f'
    """
    covered = _COVERED.pack(len(payload), attested) + payload
    return _CRC.pack(crc32(covered, (base + offset) & _MASK)) + covered


def record_crc(base: int, offset: int, covered: bytes | memoryview) -> int:
    """The CRC of the bytes after the CRC field of the record at `offset`."""
    return crc32(covered, (base + offset) & _MASK)


class RecordWriter:
    """Appends records to one new file. Not thread-safe: the caller serialises.

    Records may gather in this process (`held`) until `flush`, until `buffer_bytes` of them are there,
    or until one comes that may not wait. The `File` beneath is unbuffered.
    """

    __slots__ = (
        "_append", "_base", "_buffer_bytes", "_error", "_file", "_file_bytes", "_full_bytes", "_held", "_held_bytes",
        "fs", "number", "path", "size_bytes", "synced_bytes",
    )  # fmt: skip

    def __init__(
        self, fs: Filesystem, path: str, magic: bytes, *, number: int, first_sequence: int, buffer_bytes: int = 0
    ) -> None:
        self.fs = fs
        self.path = path
        self.number = number
        self.size_bytes = HEADER_BYTES
        """Bytes of the file, those that are still held included."""
        self.synced_bytes = 0
        """Bytes known to be durable: what the next record attests. (On macOS, only a FULL sync makes anything so.)"""
        self._file_bytes = 0
        self._full_bytes = 0
        self._base = seed_base(magic, number)
        self._buffer_bytes = buffer_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._error: Exception | None = None
        self._file: File = fs.create(path)
        self._append = self._file.append
        try:
            self._append(encode_header(magic, number, first_sequence))
        except BaseException:
            self._file.close()
            raise

    def add(self, payload: bytes, held: bool = False) -> None:
        """Append one record; it is with the operating system on return, unless `held`.

        Raises `OSError`, and from then on the same error for every call; `InvalidArgument` for a
        payload beyond 4 GiB, which changes nothing.
        """
        if self._error is not None:
            self._refuse()
        offset = self.size_bytes
        try:
            covered = _COVERED.pack(len(payload), self.synced_bytes) + payload
        except struct.error:
            raise InvalidArgument(f"batch of {len(payload)} bytes: the limit is {PAYLOAD_BYTES_MAX}") from None
        record = _CRC.pack(crc32(covered, (self._base + offset) & _MASK)) + covered
        self.size_bytes = offset + len(record)
        if held or self._held:
            self._hold(record, held)
            return
        try:
            self._append(record)
        except BaseException as error:
            self._break(error)
            raise

    def _hold(self, record: bytes, may_wait: bool) -> None:
        self._held.append(record)
        self._held_bytes += len(record)
        if not may_wait or self._held_bytes >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        """Hand what is held to the operating system, in one write."""
        if self._error is not None:
            self._refuse()
        if not self._held:
            return
        try:
            self._append(b"".join(self._held))
            self._held = []
            self._held_bytes = 0
        except BaseException as error:
            self._break(error)
            raise

    def sync_file(self, kind: SyncKind, site: str) -> None:
        """`flush`, then make all that was added durable; no call if it is, to that degree."""
        self.flush()
        full = kind is SyncKind.FULL
        if self.size_bytes == (self._full_bytes if full else self._file_bytes):
            return
        try:
            self._file.sync(kind, site)
            self._file_bytes = self.size_bytes
            if full:
                self._full_bytes = self.size_bytes
            if full or self.fs.fsync_is_durable:
                self.synced_bytes = self.size_bytes
        except BaseException as error:
            self._break(error)
            raise

    def barrier(self, site: str) -> None:
        """All that was synced so far, in any file, precedes what is synced later."""
        self.flush()
        try:
            self._file.sync(SyncKind.BARRIER, site)
        except BaseException as error:
            self._break(error)
            raise

    def attest(self) -> None:
        """Append an empty record if that attests anything new: a clean end leaves no record unattested."""
        self.flush()
        if self.synced_bytes == self.size_bytes:
            self.add(b"")

    def close(self) -> None:
        """Release the file and drop what is held. Writes nothing; a second call does nothing."""
        self._held = []
        if self._error is None:
            self._error = ValueError(f"{self.path}: the file is closed")
        self._file.close()

    @property
    def error(self) -> Exception | None:
        """The first error: why this writer refuses; None while it works."""
        return self._error

    def _refuse(self) -> NoReturn:
        assert self._error is not None
        raise self._error

    def _break(self, error: BaseException) -> None:
        """Remember the first error. An interrupt in the middle of a write leaves the end unknown as well."""
        if self._error is None:
            interrupted = OSError(4, f"interrupted by {type(error).__name__} in the middle of a write", self.path)
            self._error = error if isinstance(error, Exception) else interrupted
