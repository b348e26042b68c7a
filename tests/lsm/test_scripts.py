"""Golden scripts: what a store answers, word for word. `LSMLAB_UPDATE_SCRIPTS=1 pytest …` writes them anew."""

import os
import pathlib

import pytest

from labs.script import play

FOLDER = pathlib.Path(__file__).parent / "scripts"
SCRIPTS = sorted(FOLDER.glob("*.txt"))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 8


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    played = play(text)
    if os.environ.get("LSMLAB_UPDATE_SCRIPTS"):
        path.write_text(played, encoding="utf-8")
    assert played == text
