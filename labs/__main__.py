"""`python -m labs` is `lsmlab`, and where the console script begins.

The imports take a good part of a second. They come inside, so that a Ctrl-C in that time ends the program
like any later one, without a traceback.
"""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run `lsmlab` with this process's arguments."""
    try:
        from labs.cli import main as run
    except KeyboardInterrupt:
        print("lsmlab: interrupted", file=sys.stderr)  # noqa: T201 - nothing that could print it is imported
        sys.exit(EXIT_INTERRUPTED)
    run(prog_name="lsmlab")


if __name__ == "__main__":
    main()
