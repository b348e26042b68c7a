r"""What a store can be loaded from: CSV, JSON lines, cache traces. Bytes in, rows out, each with its line.

    CSV           id,name,city            key: a column (the first), value: a column or all the others as JSON
    JSON lines    {"key": …, "value": …}  key: a field ("key"), value: a field or all the others as JSON
    cache trace   time,key,key size,value size,client,operation,TTL       (the format of Twitter's public traces)

All three are read a line at a time, so a file may be larger than memory, and may come through a pipe.
Where the key is one column and the only other one is called `value`, that column is the value itself.

A cache trace holds no values, only their sizes: a value is made up, the same in every run. `get` and
`gets` are reads, `delete` deletes, all others write. TTLs are not applied: the engine has no expiry.

Invariants:
1. A row's `line` is the line on which it begins, counted from 1.
2. What cannot be read raises `InputError` with that line; every row before it has been handed out.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

from lsm.errors import InvalidArgument
from lsm.options import VALUE_BYTES_MAX

FORMATS = ("auto", "csv", "jsonl", "trace")
TRACE_READS = frozenset({"get", "gets"})
TRACE_WRITES = frozenset({"set", "add", "replace", "cas", "append", "prepend", "incr", "decr"})
TRACE_DIGITS_MAX = 20  # what an unsigned 64-bit integer needs
TRACE_FIELDS = "time, key, key size, value size, client, operation, TTL"


class InputError(Exception):
    """A line of an input file cannot be read.

    >>> str(InputError("cities.csv", 7, "2 columns, expected 3"))
    'cities.csv: line 7: 2 columns, expected 3'
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}: {self.reason}"


class Row(NamedTuple):
    """One operation to carry out. `value` is `b""` unless it is a put."""

    line: int
    kind: Literal["put", "delete", "get"]
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Reading:
    """How to read. Columns are named, or given as positions from 1 where there is no header."""

    format: str = "auto"
    key: str | None = None
    value: str | None = None
    header: bool = True
    delimiter: str = ","


def read_rows(path: str, lines: Iterable[bytes], how: Reading = Reading()) -> Iterator[Row]:
    """The rows of an open file; `path` names it in errors. Raises `InputError`, `InvalidArgument`.

    >>> [row[1:] for row in read_rows("-", [b"id,name\\n", b'7,"Ada"\\n'])]
    [('put', b'7', b'{"name":"Ada"}')]
    """
    if len(how.delimiter) != 1:
        raise InvalidArgument(f"delimiter {how.delimiter!r}: expected one character")
    texts = _decode(path, lines)
    first = next(texts, None)
    if first is None:
        return iter(())
    kind = detect(first) if how.format == "auto" else how.format
    reader: Callable[[str, Iterator[str], Reading], Iterator[Row]] = _READERS[kind]
    return reader(path, chain([first], texts), how)


def detect(line: str) -> str:
    """The format that a file's first line belongs to.

    >>> detect('{"key": 1}'), detect("0,usr:17,6,120,3,get,0"), detect("id,name")
    ('jsonl', 'trace', 'csv')
    """
    if line.lstrip().startswith("{"):
        return "jsonl"
    try:
        _trace_row("-", 1, line)
    except InputError:
        return "csv"
    return "trace"


def _decode(path: str, lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(path, number, f"not UTF-8: byte 0x{line[error.start]:02x} at {error.start}") from None
        yield text.removeprefix("\ufeff") if number == 1 else text


# CSV


def _csv_rows(path: str, texts: Iterator[str], how: Reading) -> Iterator[Row]:
    csv.field_size_limit(VALUE_BYTES_MAX)
    reader = csv.reader(texts, delimiter=how.delimiter, strict=True)
    records = _csv_records(path, reader)
    line, first = next(records, (1, [""]))
    if how.header:
        names = first
        if len(set(names)) < len(names):
            raise InputError(path, line, f"column names repeat: {', '.join(names)}; is there a header (--no-header)?")
    else:
        names = [str(position) for position in range(1, len(first) + 1)]
        records = chain([(line, first)], records)
    key_at = _column(names, how.key or names[0])
    value_at = _value_column(names, key_at, how.value)
    for line, record in records:
        if len(record) != len(names):
            raise InputError(path, line, f"{len(record)} columns, expected {len(names)}")
        key = record[key_at]
        value = record[value_at] if value_at is not None else _others(names if how.header else None, record, key_at)
        yield Row(line, "put", key.encode(), value.encode())


def _others(names: list[str] | None, record: list[str], key_at: int) -> str:
    """All columns but the key as JSON: an object, or an array where the columns have no names."""
    rest = record[:key_at] + record[key_at + 1 :]
    return _compact(rest if names is None else dict(zip(names[:key_at] + names[key_at + 1 :], rest, strict=True)))


def _csv_records(path: str, reader: Any) -> Iterator[tuple[int, list[str]]]:
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise InputError(path, line, f"not CSV: {error}") from None
        if record is None:
            return
        if record:
            yield line, record


def _column(names: list[str], name: str) -> int:
    if name not in names:
        raise InvalidArgument(f"there is no column {name!r}; there are {', '.join(names)}")
    return names.index(name)


def _value_column(names: list[str], key_at: int, value: str | None) -> int | None:
    if value is not None:
        return _column(names, value)
    others = [i for i in range(len(names)) if i != key_at]
    return others[0] if len(others) == 1 and names[others[0]] == "value" else None


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# JSON lines


def _json_rows(path: str, texts: Iterator[str], how: Reading) -> Iterator[Row]:
    for line, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            record = json.loads(text.rstrip())
            if not isinstance(record, dict):
                raise ValueError(f"expected an object, found {_compact(record)[:40]}")
            key = _json_key(record, how.key or "key")
            value = _json_value(record, how.value)
        except json.JSONDecodeError as error:
            raise InputError(path, line, f"not JSON: {error.msg} (column {error.colno})") from None
        except (ValueError, RecursionError) as error:
            raise InputError(path, line, str(error)) from None
        yield Row(line, "put", key, value)


def _json_key(record: dict[str, Any], name: str) -> bytes:
    if name + "_hex" in record:
        return _hex_bytes(record.pop(name + "_hex"))
    if name not in record:
        raise ValueError(f"there is no field {name!r}; there are {', '.join(record)}")
    key = record.pop(name)
    if isinstance(key, bool) or not isinstance(key, str | int | float):
        raise ValueError(f"the key must be text or a number, found {_compact(key)[:40]}")
    return _json_bytes(key)


def _json_value(record: dict[str, Any], name: str | None) -> bytes:
    only = next(iter(record)) if len(record) == 1 else None
    if name is None and only not in ("value", "value_hex"):
        return _compact(record).encode()
    name = name or "value"
    if name + "_hex" in record:
        return _hex_bytes(record[name + "_hex"])
    if name not in record:
        raise ValueError(f"there is no field {name!r}; there are {', '.join(record)}")
    return _json_bytes(record[name])


def _hex_bytes(value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (ValueError, TypeError):
        raise ValueError(f"expected hex digits, found {_compact(value)[:40]}") from None


def _json_bytes(value: Any) -> bytes:
    """Text as it is, anything else as JSON."""
    return (value if isinstance(value, str) else _compact(value)).encode()


# Cache traces


def _trace_rows(path: str, texts: Iterator[str], how: Reading) -> Iterator[Row]:  # noqa: ARG001 - one signature for all
    for line, text in enumerate(texts, 1):
        if text.strip():
            yield _trace_row(path, line, text)


def _trace_row(path: str, line: int, text: str) -> Row:
    # A key may hold commas: the fields on either side of it cannot.
    time, _, rest = text.strip().partition(",")
    fields = rest.rsplit(",", 5)
    if len(fields) != 6:
        raise InputError(path, line, f"{text.count(',') + 1} fields, expected 7: {TRACE_FIELDS}")
    key, key_size, value_size, client, operation, ttl = fields
    for name, number in (("time", time), ("key size", key_size), ("value size", value_size), ("TTL", ttl)):
        if not (number.isascii() and number.isdigit() and len(number) <= TRACE_DIGITS_MAX):
            found = repr(number if len(number) <= 40 else number[:40] + "…")
            raise InputError(path, line, f"{name}: expected a whole number, found {found}")
    if operation in TRACE_READS:
        return Row(line, "get", key.encode(), b"")
    if operation == "delete":
        return Row(line, "delete", key.encode(), b"")
    if operation not in TRACE_WRITES:
        known = ", ".join(sorted(TRACE_READS | TRACE_WRITES | {"delete"}))
        raise InputError(path, line, f"operation {operation!r} of client {client}: expected one of {known}")
    if int(value_size) > VALUE_BYTES_MAX:
        raise InputError(path, line, f"value size {value_size}: at most {VALUE_BYTES_MAX} bytes")
    return Row(line, "put", key.encode(), made_up_value(key.encode(), int(time), int(value_size)))


def made_up_value(key: bytes, time: int, size: int) -> bytes:
    """`size` bytes that name the key and the time of their writing.

    >>> made_up_value(b"k", 7, 9)
    b'k@7 k@7 k'
    """
    unit = b"%s@%d " % (key, time)
    return (unit * (size // len(unit) + 1))[:size]


_READERS: dict[str, Callable[[str, Iterator[str], Reading], Iterator[Row]]] = {
    "csv": _csv_rows,
    "jsonl": _json_rows,
    "trace": _trace_rows,
}
