"""The training program of tools/chaos.py: a small network on several workers, with all state that must survive a kill.

    mirrored run --workers 2 tools/chaos_program.py FOLDER STEPS [SECONDS_PER_STEP]

Weights, optimizer slots, the step, a random generator and the position in a shuffled dataset are in the checkpoint.
Every worker records the examples on which it trains in each step.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

EXAMPLES, FEATURES, BATCH, SAVE_EVERY = 256, 32, 16, 5
_LEASH_SECONDS = 60.0


def train(folder: Path, steps: int, strategy: mr.Strategy, worker: int, seconds_per_step: float = 0.0) -> None:
    """Trains from the newest checkpoint to `steps`.

    Args:
        folder: The folder for checkpoints and for the records of examples.
        steps: The last step.
        strategy: The strategy; with the same number of replicas, results are bit-identical everywhere.
        worker: The rank of this worker.
        seconds_per_step: How long to sleep after each step.
    """
    random = np.random.default_rng(0)
    with strategy.scope():
        hidden = mr.Variable(random.normal(size=(FEATURES, 64)).astype(np.float32) / 8, name="hidden")
        out = mr.Variable(random.normal(size=(64, 1)).astype(np.float32) / 8, name="out")
        optimizer = mr.optimizers.Adam(1e-2)
        noise = mr.Variable(np.uint32(7), name="noise")
    x = random.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    y = x[:, :1] * x[:, 1:2]
    dataset = mr.data.Dataset.from_tensor_slices((np.arange(EXAMPLES), x, y)).shuffle(EXAMPLES, seed=3).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset.batch(BATCH)))
    checkpoint = Checkpoint(hidden=hidden, out=out, optimizer=optimizer, noise=noise, dataset=iterator, step=0)
    manager = CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=3, save_interval_steps=SAVE_EVERY)

    @mr.function
    def train_step(x, y):  # type: ignore[no-untyped-def]
        def replica_step(x, y):  # type: ignore[no-untyped-def]
            replica = mr.get_replica_context().replica_id_in_sync_group  # type: ignore[union-attr]
            key = jax.random.fold_in(jax.random.key(noise.read_value()), replica)
            with mr.GradientTape() as tape:
                kept = jax.random.bernoulli(key, 0.9, (x.shape[0], 64))
                y_hat = jnp.where(kept, jax.nn.relu(x @ hidden.read_value()), 0.0) @ out.read_value()
                loss = mr.losses.average_loss((y_hat - y) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, [hidden, out]), [hidden, out], strict=True))
            noise.assign_add(np.uint32(1))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, (x, y)), axis=None)

    start = manager.restore_latest() or 0
    print("resumed", start, flush=True)
    with open(folder / f"examples-{worker}.txt", "a") as noted:
        for step in range(start + 1, steps + 1):
            _wait_at_limit(folder / "leash", step)
            ids, x_share, y_share = next(iterator)
            loss = float(train_step(x_share, y_share))
            rows = sorted(int(one) for share in strategy.local_results(ids) for one in np.asarray(share))
            noted.write(f"{step} {' '.join(map(str, rows))}\n")
            noted.flush()
            checkpoint.step = step
            manager.save(step)
            print("step", step, f"{loss:.6f}", flush=True)
            time.sleep(seconds_per_step)
    manager.wait()
    iterator.close()
    weights = b"".join(np.asarray(one.numpy()).tobytes() for one in (hidden, out, noise, *optimizer.variables))
    (folder / f"weights-{worker}.txt").write_text(hashlib.sha256(weights).hexdigest())
    print("ended", flush=True)


def _wait_at_limit(leash: Path, step: int) -> None:
    """Waits for a kill if training has reached the step that it must not pass before the kill."""
    end = time.monotonic() + _LEASH_SECONDS
    while step > _step_limit(leash):
        if time.monotonic() > end:
            raise TimeoutError(f"no worker was killed before step {step}")
        time.sleep(0.01)


def _step_limit(leash: Path) -> float:
    try:
        return float(leash.read_text())
    except FileNotFoundError:
        return math.inf


def main() -> None:
    """Trains on all workers of the cluster."""
    strategy = mr.MultiWorkerMirroredStrategy(deterministic=True)
    worker = strategy.cluster_resolver.task_id or 0
    train(Path(sys.argv[1]), int(sys.argv[2]), strategy, worker, float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)


if __name__ == "__main__":
    main()
