"""The process that exists to be killed: writes numbered entries, and says of each that it was acknowledged.

    parent ── starts ──▶ this ── put 0, put 1, put 2 … ──▶ store
    parent ◀── one byte for each acknowledged put, in order ── this
    parent ── SIGKILL ─▶ this                               then the parent reopens the store and compares

    python -m labs.crash_writer FOLDER LEVEL ENTRIES

Entry i is `entry(i)`, so that whoever reopens the store knows what must be there. After ENTRIES it
waits to be killed; when its parent is gone (end of stdin, or nobody reads what it acknowledges) it
ends by itself. The store is never closed: that would be a clean end.
"""

from __future__ import annotations

import os
import sys

import lsm

VALUE_BYTES = 100


def entry(number: int) -> tuple[bytes, bytes]:
    """The key and the value of entry `number`.

    >>> entry(7)[0], len(entry(7)[1])
    (b'entry-00000007', 100)
    """
    key = b"entry-%08d" % number
    return key, (key * (VALUE_BYTES // len(key) + 1))[:VALUE_BYTES]


def write(folder: str, level: str, entries: int) -> None:
    """Put `entries` entries, acknowledge each on stdout, then wait."""
    db = lsm.open(folder, sync=level)
    for number in range(entries):
        db.put(*entry(number))
        os.write(1, b".")
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    try:
        write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except BrokenPipeError:
        os._exit(0)
