"""``python -m mirrored.cli`` is ``mirrored``."""

from mirrored.cli.main import main

if __name__ == "__main__":
    main(prog_name="mirrored")
