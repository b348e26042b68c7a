"""The README's session in Python does what it says."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_the_first_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted >= 12
    assert result.failed == 0
    assert os.listdir(tmp_path) == ["my-store"]


def test_the_files_that_it_names_exist() -> None:
    text = README.read_text(encoding="utf-8")
    for name in ("simfs/api.py", "simfs/real.py", "simfs/memory.py", "simfs/crash.py", "lsm/db.py", "lsm/DESIGN.md"):
        assert f"`{name}`" in text
        assert (README.parent / name).exists()
