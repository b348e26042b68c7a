"""A real corpus that every machine has: the sources of Python's own standard library, line by line.

    asyncio/base_events.py:000042  ──▶  "class Server(events.AbstractServer):"

The key is the path below the library's folder, a colon, and the line's number in six digits, so that
the order of keys is the order of the lines. The value is the line without its line end.

Rules: only `.py` files; no tests, no installed packages, nothing generated; files in the order of their
paths; `lines_max` lines at most, so that a tour takes as long everywhere.

Two machines with the same Python hold the same corpus; other versions have other lines. That is no
matter: everything that is compared is compared with a model of what was read.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from itertools import islice

LINES_MAX = 200_000
EXCLUDED = frozenset(
    {
        "test", "tests", "idle_test",  # tests
        "site-packages", "dist-packages", "__pycache__", "_bundled",  # not the library's own
    }
)  # fmt: skip


def stdlib_folder() -> str:
    """Where this Python's standard library lies."""
    return sysconfig.get_path("stdlib")


def source_files(folder: str) -> Iterator[str]:
    """The paths of the sources below `folder`, relative to it, with "/" between the parts, sorted."""
    found = []
    for parent, folders, files in os.walk(folder):
        # A dot, or "config-3.12-x86_64-linux-gnu": settings of the build, no package.
        folders[:] = [name for name in folders if name not in EXCLUDED and name.isidentifier()]
        below = os.path.relpath(parent, folder).replace(os.sep, "/")
        prefix = "" if below == "." else below + "/"
        found += [prefix + name for name in files if name.endswith(".py") and not name.startswith("test_")]
    return iter(sorted(found))


def lines(folder: str | None = None, lines_max: int = LINES_MAX) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the corpus, ascending within each file. Unreadable files are passed over."""
    return islice(_all_lines(folder or stdlib_folder()), lines_max)


def _all_lines(folder: str) -> Iterator[tuple[bytes, bytes]]:
    for path in source_files(folder):
        try:
            with open(os.path.join(folder, path), "rb") as file:
                content = file.read()
        except OSError:
            continue
        name = os.fsencode(path)
        for number, line in enumerate(content.splitlines(), 1):
            yield b"%s:%06d" % (name, number), line
