"""Sections of a table file: bytes under a checksum, and the footer that says where they are.

    file      │ data │ index │ filter │ range deletes │ properties │ footer │      nothing between, nothing left over
    section   stored bytes | raw size u32 | codec u8 | crc u32
    footer    bytes of the five areas, each u64 | format version u16 | checksum kind u8 | crc u32 | magic, 8 bytes

Integers are little-endian. The CRC (`zlib.crc32`, kind 1) of a section covers everything before it in the section
and begins from the section's offset (its low 32 bits), that of the footer covers the footer and the magic. In
the data area sections stand one after the other (each a block in v2, a chunk in v1); the other areas are one section.

Invariants:
1. Every byte of a file is under exactly one checksum, or is compared with what it must be (the magic). So no flipped
   bit goes unnoticed by opening the file and reading all of it.
2. The areas add up to the file: one that was cut or grew is refused when it is opened.
3. A section that is read at another place than it was written to fails its checksum.
4. A codec that does not save an eighth is not used for that section: reading it would cost more than it saves.

Left out: a checksum over the whole file (the sections' checksums say where the damage is); encryption.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from lsm.codecs import CODES, NONE, compress, decompress
from lsm.errors import Corruption, InvalidArgument
from simfs.api import File

CHECKSUM_CRC32 = 1
MAGIC_SCAN = b"lsm.scn1"
MAGIC_BLOCK = b"lsm.blk2"
VERSIONS = {MAGIC_SCAN: 1, MAGIC_BLOCK: 1}
"""The newest version that this program reads of each format (and the one it writes)."""

_TRAILER = struct.Struct("<IBI")
_TRAILER_HEAD = struct.Struct("<IB")
_FOOTER = struct.Struct("<5QHB")
_FOOTER_END = struct.Struct("<I8s")
TRAILER_BYTES = _TRAILER.size
FOOTER_BYTES = _FOOTER.size + _FOOTER_END.size
TAIL_BYTES = 64 * 1024
"""Read in one go when a table is opened: mostly index, filter and all the rest are in it."""


def seal(raw: bytes, offset: int, codec: str = "none", level: int | None = None) -> bytes:
    """The section that holds `raw`, to be written at `offset` of the file.

    >>> seal(b"abc", 0).hex(" ", -3)
    '616263 030000 0000a4 258aac'
    """
    code, stored = NONE, raw
    if codec != "none":
        packed = compress(codec, raw, level)
        if len(packed) <= len(raw) - len(raw) // 8:
            code, stored = CODES[codec], packed
    head = _TRAILER_HEAD.pack(len(raw), code)
    crc = zlib.crc32(head, zlib.crc32(stored, offset & 0xFFFFFFFF))
    return b"".join((stored, head, crc.to_bytes(4, "little")))


def unseal(section: bytes, offset: int, *, verify: bool = True) -> bytes:
    """What a section holds. Raises `ValueError`; with `verify` false the checksum is not looked at."""
    if len(section) < TRAILER_BYTES:
        raise ValueError(f"section: expected at least {TRAILER_BYTES} bytes, found {len(section)}")
    size, code, expected = _TRAILER.unpack_from(section, len(section) - TRAILER_BYTES)
    stored = section[:-TRAILER_BYTES]
    if verify:
        found = zlib.crc32(section[-TRAILER_BYTES:-4], zlib.crc32(stored, offset & 0xFFFFFFFF))
        if found != expected:
            raise ValueError(f"checksum: expected {expected:#010x}, found {found:#010x}")
    return stored if code == NONE and size == len(stored) else decompress(code, stored, size)


@dataclass(frozen=True)
class Footer:
    """The format, and the sizes of the areas in the order of the file."""

    magic: bytes
    data_bytes: int
    index_bytes: int
    filter_bytes: int
    range_deletes_bytes: int
    properties_bytes: int

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Where index, filter, range deletes and properties begin."""
        index = self.data_bytes
        filter_ = index + self.index_bytes
        range_deletes = filter_ + self.filter_bytes
        return index, filter_, range_deletes, range_deletes + self.range_deletes_bytes


def encode_footer(footer: Footer) -> bytes:
    """The last bytes of a file."""
    sizes = (footer.data_bytes, footer.index_bytes, footer.filter_bytes, footer.range_deletes_bytes)
    head = _FOOTER.pack(*sizes, footer.properties_bytes, VERSIONS[footer.magic], CHECKSUM_CRC32)
    return head + _FOOTER_END.pack(zlib.crc32(footer.magic, zlib.crc32(head)), footer.magic)


def decode_footer(data: bytes, path: str, size_bytes: int) -> Footer:
    """The footer from the last bytes of a file of `size_bytes`. Raises `Corruption`."""
    offset = max(0, size_bytes - FOOTER_BYTES)
    if len(data) < FOOTER_BYTES:
        raise Corruption(path, offset, f"expected a table, at least {FOOTER_BYTES} bytes, found a file of {size_bytes}")
    head, end = data[-FOOTER_BYTES : -_FOOTER_END.size], data[-_FOOTER_END.size :]
    data_size, index, filter_, range_deletes, properties, version, checksum = _FOOTER.unpack(head)
    sizes = (data_size, index, filter_, range_deletes, properties)
    crc, magic = _FOOTER_END.unpack(end)
    if magic not in VERSIONS:
        known = " or ".join(repr(known) for known in VERSIONS)
        raise Corruption(path, size_bytes - 8, f"magic: expected {known}, found {magic!r}: cut short, or no table")
    found = zlib.crc32(magic, zlib.crc32(head))
    if version > VERSIONS[magic] and found == crc:
        raise Corruption(
            path, offset, f"format version {version} is newer than {VERSIONS[magic]}, the newest this program reads"
        )
    if found != crc:
        raise Corruption(path, offset, f"footer checksum: expected {crc:#010x}, found {found:#010x}")
    if version == 0 or checksum != CHECKSUM_CRC32:
        raise Corruption(path, offset, f"footer: unknown version {version} or checksum kind {checksum}")
    if sum(sizes) + FOOTER_BYTES != size_bytes:
        raise Corruption(path, offset, f"expected {sum(sizes) + FOOTER_BYTES} bytes, found {size_bytes}")
    return Footer(magic, *sizes)


def damage(path: str, offset: int, error: ValueError) -> Exception:
    """What a decoder said, as `Corruption`. A missing library is not damage and stays what it is."""
    return error if isinstance(error, InvalidArgument) else Corruption(path, offset, str(error))


class Tail:
    """The end of a table file, read once; hands out sections from what was read."""

    def __init__(self, file: File, path: str) -> None:
        self.size_bytes = file.size()
        self._file = file
        self._path = path
        self._start = max(0, self.size_bytes - TAIL_BYTES)
        self._data = file.pread(self._start, self.size_bytes - self._start)
        self.footer = decode_footer(self._data, path, self.size_bytes)

    def section(self, offset: int, size: int) -> bytes:
        """The checked content of the section at `offset`. Raises `Corruption`, `MissingExtra`."""
        if offset >= self._start:
            stored = self._data[offset - self._start : offset - self._start + size]
        else:
            stored = self._file.pread(offset, size)
        try:
            return unseal(stored, offset)
        except ValueError as error:
            raise damage(self._path, offset, error) from None
