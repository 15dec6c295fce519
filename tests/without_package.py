"""Imports and trains with copies of `mirrored` that each lack a package. `test_deletable.py` runs it.

Every copy is checked in a process of its own, which is forked from one that has imported JAX and the frameworks.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
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
    """Checks one copy, in a process that has not imported `mirrored` yet."""
    sys.path.insert(0, str(root))
    mr = importlib.import_module("mirrored")
    assert mr.__file__ is not None
    assert Path(mr.__file__).is_relative_to(root), mr.__file__
    import_everything(root)
    train(mr)
    package = importlib.import_module("mirrored.cli.main").NEEDED
    for name, answer in ask_for_commands().items():
        deleted = not root.joinpath(*package[name].split(".")).is_dir()
        assert (f"{name!r} needs {package[name]}" in answer) == deleted, (name, answer)


def main() -> None:
    """Checks the copies that the arguments name, and exits with the number of those that fail."""
    for name in FRAMEWORKS:
        importlib.import_module(name)
    failed = 0
    for root in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            try:
                check(Path(root))
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(Path(root).name, "ok" if status == 0 else "fails", flush=True)
        failed += status != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
