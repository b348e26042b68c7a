"""What a store can be loaded from: every format, and the line of everything that cannot be read."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.inputs import InputError, Reading, Row, made_up_value, read_rows
from lsm.errors import InvalidArgument

DEFAULT = Reading()


def rows(content: bytes | str, how: Reading = DEFAULT) -> list[Row]:
    data = content.encode() if isinstance(content, str) else content
    return list(read_rows("file", io.BytesIO(data), how))


def pairs(content: bytes | str, how: Reading = DEFAULT) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in rows(content, how)]


def error_of(content: bytes | str, how: Reading = DEFAULT) -> InputError:
    with pytest.raises(InputError) as caught:
        rows(content, how)
    return caught.value


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=8), st.sampled_from(",;\t"))
def test_csv_round_trip(records: list[tuple[str, str, str]], delimiter: str) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(["a", "b", "c"])
    writer.writerows(records)
    how = Reading("csv", key="b", delimiter=delimiter)
    expected = [(b.encode(), {"a": a, "c": c}) for a, b, c in records]
    assert [(key, json.loads(value)) for key, value in pairs(out.getvalue(), how)] == expected


def test_a_csvs_value_is_all_but_the_key_or_a_chosen_column_or_the_column_called_value() -> None:
    cities = "id,name,country\n1,Łódź,PL\n2,Köln,DE\n"
    assert pairs(cities)[0] == (b"1", '{"name":"Łódź","country":"PL"}'.encode())
    assert pairs(cities, Reading(key="name", value="id")) == [("Łódź".encode(), b"1"), ("Köln".encode(), b"2")]
    assert pairs("key,value\na,1\n") == [(b"a", b"1")]
    assert pairs("value,name\n1,a\n", Reading(key="name")) == [(b"a", b"1")]


def test_a_csv_without_a_header_has_numbered_columns() -> None:
    how = Reading(header=False)
    assert pairs("a,1,x\nb,2,y\n", how) == [(b"a", b'["1","x"]'), (b"b", b'["2","y"]')]
    assert pairs("a,1,x\n", Reading(header=False, key="2", value="3")) == [(b"1", b"x")]


def test_a_csvs_rows_know_the_line_on_which_they_begin() -> None:
    content = '\ufeffkey,value\r\na,"1\n2"\r\n\r\nb,3\r\n'
    assert [(row.line, row.key, row.value) for row in rows(content)] == [(2, b"a", b"1\n2"), (5, b"b", b"3")]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a,b\n1,2\n3\n", 3, "1 columns, expected 2"),
        ("a,b\n1,2\n3,4,5\n", 3, "3 columns, expected 2"),
        ('a,b\n"1\n2",3\n4\n', 4, "1 columns, expected 2"),
        ('a,b\n1,"2\n', 2, "not CSV: unexpected end of data"),
        ('a,b\n1,"2"x\n', 2, "not CSV: ',' expected after '\"'"),
        ("a,a\n1,2\n", 1, "column names repeat: a, a; is there a header (--no-header)?"),
        (b"a,b\n1,\xff\n", 2, "not UTF-8: byte 0xff at 2"),
    ],
)
def test_a_damaged_line_of_a_csv_is_named(content: bytes | str, line: int, reason: str) -> None:
    error = error_of(content)
    assert (error.path, error.line, error.reason) == ("file", line, reason)


def test_rows_before_a_damaged_line_are_handed_out() -> None:
    reader = read_rows("file", io.BytesIO(b"a,b\n1,2\n3,4\n5\n"))
    assert [next(reader).key, next(reader).key] == [b"1", b"3"]
    with pytest.raises(InputError):
        next(reader)


def test_an_unknown_column_is_no_damage() -> None:
    with pytest.raises(InvalidArgument, match="there is no column 'z'; there are a, b"):
        rows("a,b\n1,2\n", Reading(key="z"))
    with pytest.raises(InvalidArgument, match="delimiter ';;'"):
        rows("a,b\n1,2\n", Reading(delimiter=";;"))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3))


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(st.lists(st.tuples(TEXT, JSON), max_size=8))
def test_json_lines_round_trip(records: list[tuple[str, object]]) -> None:
    content = "".join(json.dumps({"key": key, "value": value}) + "\n\n" for key, value in records)
    found = rows(content, Reading("jsonl"))
    assert [row.key.decode() for row in found] == [key for key, _ in records]
    for row, (_, value) in zip(found, records, strict=True):
        assert row.value.decode() == (value if isinstance(value, str) else compact(value))


def test_json_lines_take_other_fields_and_hex() -> None:
    assert pairs('{"id": 7, "name": "Ada"}\n', Reading(key="id")) == [(b"7", b'{"name":"Ada"}')]
    assert pairs('{"id": "x", "n": [1, 2], "m": 3}\n', Reading(key="id", value="n")) == [(b"x", b"[1,2]")]
    assert pairs('{"key_hex": "ff00", "value_hex": "0a"}\n') == [(b"\xff\x00", b"\n")]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('{"key": "a", "value": 1}\n{"key": \n', 2, "not JSON: Expecting value (column 8)"),
        ('{"key": "a"}\n\n[1]\n', 3, "expected an object, found [1]"),
        ('{"name": "a"}\n', 1, "there is no field 'key'; there are name"),
        ('{"key": null}\n', 1, "the key must be text or a number, found null"),
        ('{"key": true}\n', 1, "the key must be text or a number, found true"),
        ('{"key_hex": 1}\n', 1, "expected hex digits, found 1"),
    ],
)
def test_a_damaged_json_line_is_named(content: str, line: int, reason: str) -> None:
    error = error_of(content)
    assert (error.line, error.reason) == (line, reason)


def test_json_that_no_bytes_can_hold_is_named() -> None:
    assert error_of('{"key": "\\ud800"}\n').line == 1
    assert error_of("{" + '"a":[' * 100_000 + "\n").line == 1


TRACE = "0,usr:17,6,0,3,get,0\n1,usr:17,6,12,3,set,3600\n2,a,b,3,5,4,add,0\n3,usr:17,6,0,3,delete,0\n"


def test_a_cache_trace_is_recognised_and_its_values_are_made_up() -> None:
    assert rows(TRACE) == [
        Row(1, "get", b"usr:17", b""),
        Row(2, "put", b"usr:17", b"usr:17@1 usr"),
        Row(3, "put", b"a,b", b"a,b@2"),
        Row(4, "delete", b"usr:17", b""),
    ]
    assert made_up_value(b"k", 0, 0) == b""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,k,1,2,3,get", "6 fields, expected 7: time, key, key size, value size, client, operation, TTL"),
        ("x,k,1,2,3,get,0", "time: expected a whole number, found 'x'"),
        ("1,k,1,-2,3,set,0", "value size: expected a whole number, found '-2'"),
        ("1,k,1,2,3,set,soon", "TTL: expected a whole number, found 'soon'"),
        ("1,k,1,2,3,touch,0", "operation 'touch' of client 3: expected one of add, append, cas, decr, delete"),
        ("1,k,1,9999999999,3,set,0", "value size 9999999999: at most"),
    ],
)
def test_a_damaged_line_of_a_trace_is_named(line: str, reason: str) -> None:
    error = error_of(TRACE + line + "\n")
    assert error.line == 5
    assert error.reason.startswith(reason)


def test_an_empty_file_has_no_rows() -> None:
    assert rows("") == []
    assert rows("a,b\n") == []
