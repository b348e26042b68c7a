"""What is shipped: one lock for uv and pip, no private index in it, a wheel that installs and runs."""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def test_the_constraints_for_pip_are_the_versions_of_the_lock() -> None:
    locked = {(package["name"], package["version"]) for package in toml("uv.lock")["package"]} - {("lsmlab", "0.1.0")}
    lines = (ROOT / ".ci/constraints.txt").read_text(encoding="utf-8").split("\n")
    pinned = {tuple(line.partition(" ;")[0].split("==")) for line in lines if line}
    assert pinned == locked


def test_the_lock_was_made_for_what_the_project_asks_for() -> None:
    project = toml("pyproject.toml")["project"]
    asked = {name_of(text): text.removeprefix(name_of(text)) for text in project["dependencies"]}
    for extra in project["optional-dependencies"].values():
        asked |= {name_of(text): text.removeprefix(name_of(text)) for text in extra}
    (package,) = (package for package in toml("uv.lock")["package"] if package["name"] == "lsmlab")
    locked = {item["name"]: item["specifier"] for item in package["metadata"]["requires-dist"]}
    assert {name: sorted(text.split(",")) for name, text in locked.items()} == {
        name: sorted(text.split(",")) for name, text in asked.items()
    }
    assert package["version"] == project["version"]


def test_the_lock_names_the_public_index_alone() -> None:
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    hosts = set(re.findall(r"[a-z]+://[^/\"]*", text))
    assert hosts == {"https://pypi.org", "https://files.pythonhosted.org"}
    assert "://" not in (ROOT / ".ci/constraints.txt").read_text(encoding="utf-8")


def test_ci_runs_the_command_of_the_readme() -> None:
    last = (ROOT / ".ci/run").read_text(encoding="utf-8").rstrip().split("\n")[-1]
    assert last == "make test"
    assert "\nmake test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_no_new_python_is_one_clear_line() -> None:
    script = ["sh", ".ci/environment", "no-such-folder/venv", "speed"]
    old = {"PATH": "/usr/bin:/bin", "PYTHON": "python2"}
    result = subprocess.run(script, cwd=ROOT, env=old, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.strip().split("\n")[-1].startswith("lsmlab needs Python 3.11 or newer, and python2 is not")


@pytest.mark.campaign
def test_the_wheel_installs_into_a_fresh_environment_and_runs(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("lsmlab-*.whl")
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    # Its dependencies are those of this environment: a line in a .pth adds a folder, and not what that one's .pth add.
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    script, store = str(tmp_path / "venv/bin/lsmlab"), str(tmp_path / "store")
    for arguments in (["--version"], ["db", store, "put", "a", "1"], ["db", store, "verify"]):
        subprocess.run([script, *arguments], cwd=tmp_path, check=True)
    got = subprocess.run([script, "db", store, "get", "a"], cwd=tmp_path, check=True, capture_output=True)
    assert got.stdout == b"1\n"
    which = [python, "-c", "import labs, lsm; print(labs.__file__, lsm.__file__)"]
    where = subprocess.run(which, cwd=tmp_path, check=True, capture_output=True)
    assert where.stdout.count(bytes(site)) == 2
