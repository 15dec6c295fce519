"""The training program of `tools/chaos.py --elastic`: a small network whose workers are killed while it trains.

    mirrored run --elastic --workers 4 tools/chaos_elastic_program.py FOLDER STEPS [SECONDS_PER_STEP]

Weights, optimizer slots, the step, a random generator, a metric and the position in a shuffled dataset are in the
checkpoint. Every worker records the examples on which it trains in each step, with the number of its epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import mirrored as mr
from mirrored import elastic
from mirrored.checkpoint import Checkpoint, CheckpointManager

EXAMPLES, FEATURES, BATCH, REPLICAS, SAVE_EVERY = 240, 32, 24, 12, 50


@elastic.run(snapshot_every=int(os.environ.get("CHAOS_SNAPSHOT_EVERY", "10")))
def train(session: elastic.Session, folder: Path, steps: int, seconds_per_step: float) -> None:
    """Trains to `steps`, and writes the digest of the final state.

    Args:
        session: The session of the elastic job.
        folder: The folder for checkpoints and for the records of examples.
        steps: The last step.
        seconds_per_step: How long to sleep after each step.
    """
    import jax
    import jax.numpy as jnp

    is_deterministic = os.environ.get("CHAOS_DETERMINISTIC", "1") == "1"
    strategy = mr.MultiWorkerMirroredStrategy(num_replicas=REPLICAS, deterministic=is_deterministic)
    random = np.random.default_rng(0)
    with strategy.scope():
        hidden = mr.Variable(random.normal(size=(FEATURES, 64)).astype(np.float32) / 8, name="hidden")
        out = mr.Variable(random.normal(size=(64, 1)).astype(np.float32) / 8, name="out")
        optimizer = mr.optimizers.Adam(1e-2)
        noise = mr.Variable(np.uint32(7), name="noise")
        metric = mr.Variable(
            np.float32(0),
            name="metric",
            trainable=False,
            synchronization=mr.VariableSynchronization.ON_READ,
            aggregation=mr.VariableAggregation.SUM,
        )
    x = random.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    y = x[:, :1] * x[:, 1:2]
    dataset = mr.data.Dataset.from_tensor_slices((np.arange(EXAMPLES), x, y)).shuffle(EXAMPLES, seed=3).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(dataset.batch(BATCH)))
    checkpoint = Checkpoint(
        hidden=hidden, out=out, optimizer=optimizer, noise=noise, metric=metric, dataset=iterator, step=0
    )
    manager = CheckpointManager(checkpoint, folder / "checkpoints", max_to_keep=2, save_interval_steps=SAVE_EVERY)

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
            metric.assign_add(loss)
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, (x, y)), axis=None)

    session.resume(checkpoint, manager.restore_latest)
    with open(folder / f"examples-{os.getpid()}.txt", "a") as noted:
        while checkpoint.step < last_step(folder, steps):
            ids, x_share, y_share = next(iterator)
            loss = float(train_step(x_share, y_share))
            rows = sorted(int(one) for share in strategy.local_results(ids) for one in np.asarray(share).reshape(-1))
            checkpoint.step += 1
            noted.write(json.dumps([session.epoch, checkpoint.step, loss.hex(), rows]) + "\n")
            noted.flush()
            print("step", checkpoint.step, session.epoch, f"{time.time():.4f}", flush=True)
            session.commit()
            manager.save(checkpoint.step)
            time.sleep(seconds_per_step)
    manager.wait()
    total = float(metric.read_value())
    weights = b"".join(np.asarray(one.numpy()).tobytes() for one in (hidden, out, noise, *optimizer.variables))
    values = [float(np.sum(np.abs(np.asarray(one.numpy(), np.float64)))) for one in (hidden, out)]
    state = {"digest": hashlib.sha256(weights).hexdigest(), "metric": total.hex(), "sums": [*values, total]}
    (folder / f"final-{os.getpid()}.json").write_text(json.dumps(state))


def last_step(folder: Path, steps: int) -> int:
    """Returns the last step, which the tool may set while the program runs, long before it is reached."""
    try:
        return int((folder / "last_step").read_text())
    except FileNotFoundError:
        return steps


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
