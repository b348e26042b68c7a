"""Files of checksummed records, the reading side: where a file ends, and what damage means.

Reading goes record by record until one does not fit. What is behind it decides what that means:

    valid │ valid │ valid │ ?????? │ valid, attests more than o
                          o
    nothing valid behind o, or nothing that attests o   the bytes at o were never known to be durable: a torn tail
    a record behind o attests more than o               they once were: damage

| mode               | torn tail            | damage               |
| ------------------ | -------------------- | -------------------- |
| tolerate_torn_tail | the file ends there  | `Corruption`         |
| absolute           | `Corruption`         | `Corruption`         |
| point_in_time      | the file ends there  | the file ends there  |
| skip_corrupted     | the file ends there  | go on behind it      |

Invariants:
1. In every mode but skip_corrupted the records returned are a prefix of those written; there, a subsequence.
2. Reading costs time in proportion to the file, whatever is in it (see `lsm.resync`).
3. A file of another kind, of a newer format version or of another number is `Corruption` in every mode.
   A head that is damaged is judged as a record is; its number is known from the file's name.
4. Nothing here writes.

Two limits. The last records of a file are attested by none, unless it was closed cleanly: damage there looks like
a torn tail. And a CRC is no signature: a value that was forged to look like a record of just this file
and offset may be taken for one while resynchronising; it never is while reading from the front.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from lsm.errors import Corruption
from lsm.filenames import parse_name
from lsm.framing import (
    CHECKSUM_CRC32,
    FORMAT_VERSION,
    HEADER_BYTES,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    Header,
    decode_header,
    seed_base,
)
from lsm.resync import Resync
from simfs.api import Filesystem

_MASK = 0xFFFF_FFFF


class Record(NamedTuple):
    """A record that passed its checksum."""

    offset: int
    payload: bytes
    attested: int


class Damage(NamedTuple):
    """Bytes that could not be read as a record."""

    offset: int
    length: int
    reason: str


@dataclass(frozen=True)
class Scan:
    """What a file of records holds, and how its reading ended."""

    path: str
    number: int
    first_sequence: int  # 0 if the head is damaged
    records: list[Record]
    status: str  # "clean" | "torn"
    end_offset: int  # where reading ended
    reason: str  # why it ended there, if torn
    damages: list[Damage]
    attested: int  # the largest offset that a record attests

    @property
    def dropped(self) -> list[str]:
        """One line for each stretch that was left out."""
        return [f"{self.path}: offset {at}: {length} bytes dropped: {why}" for at, length, why in self.damages]


def scan_file(
    fs: Filesystem, path: str, magic: bytes, mode: str, *, expect_number: int | None = None, remedy: str = ""
) -> Scan:
    """Read the records of a file; see the head of this module. `remedy` ends the message of a `Corruption`.

    Without `expect_number` the file's own word for its number is taken; if its head is damaged, its name's.
    Raises `Corruption`, `OSError`.
    """
    with fs.open(path) as file:
        data = file.pread(0, file.size())
    return _Scanner(path, data, magic, mode, remedy).run(expect_number)


class _Scanner:
    def __init__(self, path: str, data: bytes, magic: bytes, mode: str, remedy: str) -> None:
        self.path = path
        self.data = data
        self.magic = magic
        self.mode = mode
        self.remedy = remedy
        self.records: list[Record] = []
        self.damages: list[Damage] = []

    def run(self, expect_number: int | None) -> Scan:
        parsed = parse_name(self.path.rpartition("/")[2])
        number = (parsed.number if parsed else 0) if expect_number is None else expect_number
        header: Header | None = None
        try:
            header = decode_header(self.data)
            number = header.number if expect_number is None else number
        except ValueError as error:
            reason = str(error)
        base = seed_base(self.magic, number)
        self.resync = Resync(self.data, base)
        offset = 0
        if header is not None:
            self._check_header(header, number)
            offset, reason = read_records(self.data, HEADER_BYTES, base, self.records)
        while reason:
            resumed = self._judge(offset, reason)
            if resumed is None:
                break
            offset, reason = read_records(self.data, resumed, base, self.records)
        attested = max((record.attested for record in self.records), default=0)
        status = "torn" if reason else "clean"
        first_sequence = header.first_sequence if header is not None else 0
        return Scan(self.path, number, first_sequence, self.records, status, offset, reason, self.damages, attested)

    def _check_header(self, header: Header, number: int) -> None:
        if header.magic != self.magic:
            raise Corruption(self.path, 0, f"foreign file: expected magic {self.magic!r}, found {header.magic!r}")
        if header.version != FORMAT_VERSION:
            found = f"format version {header.version}; this program reads {FORMAT_VERSION}: use a newer one"
            raise Corruption(self.path, 8, found)
        if header.checksum_kind != CHECKSUM_CRC32:
            raise Corruption(self.path, 10, f"checksum kind {header.checksum_kind}: expected {CHECKSUM_CRC32} (CRC-32)")
        if header.number != number:
            raise Corruption(self.path, 12, f"expected file number {number}, found {header.number}: was it renamed?")

    def _judge(self, offset: int, reason: str) -> int | None:
        """Where to read on after the damage at `offset`, or None if the file ends there. Raises `Corruption`."""
        start = max(offset + 1, HEADER_BYTES)
        left = len(self.data) - offset
        if self.mode == "absolute":
            raise self._corruption(offset, reason)
        resumed = None
        if self.mode == "tolerate_torn_tail":
            witness = self.resync.find(start, offset + 1)
            if witness is not None:
                attested = RECORD_HEAD.unpack_from(self.data, witness)[2]
                raise self._corruption(offset, f"{reason}; the record at {witness} attests {attested} durable bytes")
        elif self.mode == "skip_corrupted":
            resumed = self.resync.find(start, 0)
        if offset == 0 and resumed is None and _looks_foreign(self.data, self.magic):
            raise Corruption(self.path, 0, f"foreign file: expected magic {self.magic!r}, found {self.data[:8]!r}")
        dropped = left if resumed is None else resumed - offset
        if dropped:
            self.damages.append(Damage(offset, dropped, reason))
        return resumed

    def _corruption(self, offset: int, reason: str) -> Corruption:
        return Corruption(self.path, offset, f"{reason}; {self.remedy}" if self.remedy else reason)


def _looks_foreign(data: bytes, magic: bytes) -> bool:
    """Whether a head without valid records is somebody else's text rather than what a crash left of ours.

    A crash leaves the beginning of our head, zeros or garbage; readable text is hardly garbage.
    """
    found = data[: len(magic)]
    text = all(0x20 <= byte < 0x7F or byte in b"\t\r\n" for byte in found)
    return bool(found) and text and not magic.startswith(found)


def read_records(data: bytes, offset: int, base: int, records: list[Record]) -> tuple[int, str]:
    """Append the valid records from `offset` on to `records`.

    Returns where reading ended, and why if that is not the end of the file.
    """
    size = len(data)
    view = memoryview(data)
    unpack = RECORD_HEAD.unpack_from
    while offset + RECORD_HEAD_BYTES <= size:
        crc, length, attested = unpack(data, offset)
        start = offset + RECORD_HEAD_BYTES
        end = start + length
        fits = end <= size and attested <= offset and (crc or length or attested)
        if not fits or crc32(view[offset + 4 : end], (base + offset) & _MASK) != crc:
            return offset, _explain(data, offset, base)
        records.append(Record(offset, data[start:end], attested))
        offset = end
    return offset, "" if offset == size else _explain(data, offset, base)


def _explain(data: bytes, offset: int, base: int) -> str:
    """Why there is no valid record at `offset`."""
    size = len(data)
    if data.count(0, offset) == size - offset:
        return f"{size - offset} zeros to the end of the file"
    if offset + RECORD_HEAD_BYTES > size:
        return f"incomplete record head: expected {RECORD_HEAD_BYTES} bytes, found {size - offset}"
    crc, length, attested = RECORD_HEAD.unpack_from(data, offset)
    start = offset + RECORD_HEAD_BYTES
    if start + length > size:
        return f"record of {length} bytes: the file has {size - start} more"
    if attested > offset:
        return f"record attests {attested} durable bytes, beyond its own offset"
    computed = crc32(memoryview(data)[offset + 4 : start + length], (base + offset) & _MASK)
    return f"record checksum: expected 0x{crc:08x}, found 0x{computed:08x}"
