"""Imports and trains with a copy of `mirrored` that lacks packages. `test_deletable.py` runs it.

Each case is checked in a process of its own, which is forked from one that has imported JAX and the frameworks.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FRAMEWORKS = (
    "jax.numpy",
    "optax",
    "keras",
    "flax.nnx",
    "equinox",
    "grain",
    "orbax.checkpoint",
    "click.testing",
)


def import_everything(root: Path) -> None:
    """Imports all modules of the copy."""
    for path in sorted(root.joinpath("mirrored").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def train(mr: Any) -> None:
    """Trains for one epoch on two replicas, compiled, saves, and continues from the checkpoint."""
    import jax.numpy as jnp
    import numpy as np

    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight = mr.Variable(jnp.zeros(2), name="weight")
        optimizer = mr.optimizers.SGD(0.1)

    def replica_step(batch: Any) -> Any:
        features, targets = batch
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss((features @ weight - targets) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    @mr.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    features = np.eye(4, 2, dtype=np.float32)
    batches = [(features, features @ np.ones(2, np.float32))] * 3
    losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset(batches)]
    assert losses == sorted(losses, reverse=True), losses
    assert losses[-1] < losses[0]
    with tempfile.TemporaryDirectory() as folder:
        saved = mr.checkpoint.Checkpoint(weight=weight, optimizer=optimizer).save(f"{folder}/checkpoint")
        trained = weight.numpy()
        weight.assign(jnp.zeros(2))
        mr.checkpoint.Checkpoint(weight=weight, optimizer=optimizer).restore(saved)
    np.testing.assert_array_equal(weight.numpy(), trained)
    mirrored = mr.mirror({"scale": jnp.ones(2)}, strategy)
    assert mr.unmirror(mirrored)["scale"].tolist() == [1.0, 1.0]


def ask_for_commands() -> dict[str, str]:
    """Returns what the command line answers about each command: the first line of its help, or why it is missing."""
    from click.testing import CliRunner

    cli = importlib.import_module("mirrored.cli.main")
    asked = {name: CliRunner().invoke(cli.main, [name, "--help"]) for name in cli.NEEDED}
    return {name: "" if answer.exit_code == 0 else answer.output for name, answer in asked.items()}


def check(root: Path) -> None:
    """Checks the copy, in a process that has not imported `mirrored` yet."""
    sys.path.insert(0, str(root))
    mr = importlib.import_module("mirrored")
    assert mr.__file__ is not None
    assert Path(mr.__file__).is_relative_to(root), mr.__file__
    import_everything(root)
    train(mr)
    needed = importlib.import_module("mirrored.cli.main").NEEDED
    for name, answer in ask_for_commands().items():
        is_deleted = not root.joinpath(*needed[name].split(".")).is_dir()
        assert (f"{name!r} needs {needed[name]}" in answer) == is_deleted, (name, answer)


@contextlib.contextmanager
def without(root: Path, paths: Sequence[str]) -> Iterator[None]:
    """Moves packages and modules out of the copy for the duration of the block."""
    with tempfile.TemporaryDirectory(dir=root) as aside, contextlib.ExitStack() as moves:
        for number, path in enumerate(paths):
            inside, outside = root / "mirrored" / path, Path(aside, str(number))
            inside.rename(outside)
            moves.callback(outside.rename, inside)
        yield


def main(root: Path, cases: Sequence[str]) -> None:
    """Checks the copy in each case, and prints the exit status of each check.

    Args:
        root: The folder of the copy.
        cases: What the copy lacks: paths in the package, separated by commas.
    """
    for name in FRAMEWORKS:
        importlib.import_module(name)
    sys.dont_write_bytecode = False  # the cases share what is compiled of the copy
    for case in cases:
        with without(root, case.split(",")):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    check(root)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                os._exit(status)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), case, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
