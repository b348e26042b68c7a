"""`python -m labs` is `lsmlab`."""

from labs.cli import main

if __name__ == "__main__":
    main(prog_name="lsmlab")
