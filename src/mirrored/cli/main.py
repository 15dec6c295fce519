"""The command line: one sub-command per file, loaded when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mirrored.errors import MirroredError

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


class _Group(click.Group):
    """Shows the errors of mirrored as a message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MirroredError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings=_CONTEXT)
@click.version_option(package_name="mirrored")
def main() -> None:
    """Synchronous data-parallel training for JAX."""


@main.command()
@click.option("--replicas", type=int, help="Show where this many replicas would live.  [default: one per device]")
@click.option("--virtual", type=int, help="Simulate this many devices on the CPU.")
@click.option("--kind", type=click.Choice(["CPU", "GPU", "TPU"], case_sensitive=False), default="CPU",
              help="What the simulated devices stand for.")  # fmt: skip
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
def devices(names: tuple[str, ...], replicas: int | None, virtual: int | None, kind: str) -> None:
    """Show the devices, and which replicas would live where.

    DEVICE is a name like GPU:0 or /gpu:0; without any, all accelerators are taken, or all CPU devices.
    """
    from mirrored.cli.devices import show_devices

    show_devices(list(names), num_replicas=replicas, virtual=virtual, kind=kind)


@main.command()
@click.option("--replicas", type=click.IntRange(min=1), default=4, help="Number of replicas.")
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the training images.  [default: 12]")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("demo_report"),
              help="Where the report goes.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Two epochs: shows everything, learns less.")
def demo(replicas: int, epochs: int | None, out: Path, quick: bool) -> None:
    """Train a convnet on handwritten digits, on several replicas, and write a report."""
    from mirrored.cli.demo.command import run_demo

    run_demo(num_replicas=replicas, epochs=epochs or (2 if quick else 12), out=out, must_learn=not quick)
