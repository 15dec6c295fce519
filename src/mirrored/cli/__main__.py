"""Runs the command `mirrored` by ``python -m mirrored.cli``."""

from mirrored.cli.main import main

if __name__ == "__main__":
    main(prog_name="mirrored")
