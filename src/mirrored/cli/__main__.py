"""Makes ``python -m mirrored.cli`` run the command line program `mirrored`."""

from mirrored.cli.main import main

if __name__ == "__main__":
    main(prog_name="mirrored")
