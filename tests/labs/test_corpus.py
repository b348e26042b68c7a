"""The corpus: which lines, in which order, under which keys."""

from __future__ import annotations

from pathlib import Path

from labs import corpus


def make(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_the_rules(tmp_path: Path) -> None:
    make(tmp_path, "b.py", b"one\r\n\n\xff three")
    make(tmp_path, "a/z.py", b"z\n")
    make(tmp_path, "a.py", b"")
    for excluded in ("test/x.py", "a/tests/x.py", "idlelib/idle_test/x.py", "site-packages/x.py", "a/test_x.py"):
        make(tmp_path, excluded, b"no\n")
    for excluded in ("config-3.11-x86_64/x.py", "__pycache__/x.py", "notes.txt"):
        make(tmp_path, excluded, b"no\n")
    expected = [
        (b"a/z.py:000001", b"z"),
        (b"b.py:000001", b"one"),
        (b"b.py:000002", b""),
        (b"b.py:000003", b"\xff three"),
    ]
    assert list(corpus.lines(str(tmp_path))) == expected
    assert list(corpus.lines(str(tmp_path), lines_max=2)) == expected[:2]


def test_this_machine_has_a_corpus() -> None:
    lines = list(corpus.lines())
    keys = [key for key, _ in lines]
    assert 100_000 < len(lines) <= corpus.LINES_MAX
    assert len(set(keys)) == len(keys)
    assert not any(b"test" in key.split(b"/")[:-1] for key in keys)
    by_file = [key for key in keys if key.startswith(b"json/decoder.py:")]
    assert by_file == sorted(by_file)
