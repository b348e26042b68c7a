r"""Keys and values on a terminal: bytes as text that a person can read, and that reads back as the same bytes.

    b"caf\xc3\xa9"      café          UTF-8 as it is
    b"\xff\x00A"        \xff\x00A     what is not UTF-8, and control characters, as \xNN
    b"C:\\new"          C:\\new       a backslash is doubled

`encode_text(data)` is the text, `decode_text(text)` the way back. Invariants:
1. `decode_text(encode_text(data)) == data` for all bytes.
2. The text holds no control characters: one key is one line, a tab can stand between key and value,
   and no stored bytes can drive a terminal.

On input only `\\` and `\xNN` are escapes; any other backslash stands for itself, so that `C:\new` may
be typed as it is.
"""

from __future__ import annotations

import re

from lsm.coding import printable
from lsm.errors import InvalidArgument

_ESCAPE = re.compile(rb"\\(\\|x[0-9a-fA-F]{2})")


encode_text = printable
"""Bytes as one line of text, as the engine itself shows them."""


def decode_text(text: str) -> bytes:
    r"""The bytes that a text stands for. Surrogates from a command line that is not UTF-8 stand for their bytes.

    >>> decode_text(r"\xff\x00A C:\new")
    b'\xff\x00A C:\\new'
    """
    return _ESCAPE.sub(_unescape, text.encode("utf-8", "surrogateescape"))


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    return b"\\" if code == b"\\" else bytes([int(code[1:], 16)])


def show(data: bytes, as_hex: bool) -> str:
    """Bytes for a line of output: as text, or as hex digits."""
    return data.hex() if as_hex else encode_text(data)


def read(text: str, as_hex: bool) -> bytes:
    """Bytes from an argument: text, or hex digits. Raises `InvalidArgument`."""
    if not as_hex:
        return decode_text(text)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is not hex: expected an even number of digits 0-9 a-f") from None


def json_field(name: str, data: bytes, as_hex: bool) -> dict[str, str]:
    r"""Bytes as a field of a JSON object: `name` if they are UTF-8, else `name_hex`.

    What `scan --format json` prints is what `load` reads, byte for byte.

    >>> json_field("key", b"a\\", False), json_field("key", b"\xff", False)
    ({'key': 'a\\'}, {'key_hex': 'ff'})
    """
    if not as_hex:
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            pass
    return {name + "_hex": data.hex()}
