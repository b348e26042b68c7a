"""Where the tour works: a folder on a real disk that is gone afterwards, whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from types import FrameType

from lsm.errors import InvalidArgument

MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})


def filesystem_of(folder: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The kind of filesystem that a folder lies on, such as "ext4"; None where nobody tells (not Linux)."""
    folder = os.path.realpath(folder)
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            entries = [line.split(" ") for line in file]
    except OSError:
        return None
    best, kind = "", None
    for _, point, found, *_ in entries:
        point = point.replace("\\040", " ")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def temporary_parent() -> str:
    """The usual folder for temporary files, or /var/tmp where the usual one is in memory: a disk is to be toured."""
    usual = tempfile.gettempdir()
    for folder in (usual, "/var/tmp"):  # noqa: S108 - only made folders with random names are used in it
        if os.access(folder, os.W_OK | os.X_OK) and filesystem_of(folder) not in MEMORY_FILESYSTEMS:
            return folder
    return usual


@contextlib.contextmanager
def work_folders(kept: str | None) -> Iterator[tuple[str, str]]:
    """(a folder for the store, a folder for everything else). Only `kept` stays, and only after success.

    Raises `InvalidArgument` if `kept` is there and holds anything: nobody's files are touched.
    """
    if kept == "":
        raise InvalidArgument("path '': expected the name of a folder")
    if kept is not None and os.path.lexists(kept) and not (os.path.isdir(kept) and not os.listdir(kept)):
        raise InvalidArgument(f"{kept}: exists and is not an empty folder; the tour makes a new store")
    parent = os.path.dirname(os.path.abspath(kept)) if kept is not None else temporary_parent()
    with _terminated_as_exit(), _parents(parent):
        scratch = tempfile.mkdtemp(prefix="lsmlab-tour-", dir=parent)
        try:
            yield kept if kept is not None else os.path.join(scratch, "store"), scratch
        except BaseException:
            if kept is not None:
                _remove(kept)
            raise
        finally:
            _remove(scratch)


@contextlib.contextmanager
def _parents(folder: str) -> Iterator[None]:
    """Make `folder` with all above it; what was made goes again if the tour fails."""
    missing = folder
    made = []
    while not os.path.lexists(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    try:
        os.makedirs(folder, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: somebody else uses it by now
            for path in made:
                os.rmdir(path)
        raise


def _remove(folder: str) -> None:
    """Remove a folder of ours; a second Ctrl-C has to wait for it."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """SIGTERM ends the process the way an exception does, so that it cleans up as well."""

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signal module's signature
        sys.exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
