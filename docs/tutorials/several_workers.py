# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Several workers, with a failure and a recovery
#
# A *worker* is one process of a job. This tutorial trains on two workers with two replicas each, kills one of them in
# the middle of the training, and lets the launcher restart the job from its newest checkpoint. The final weights have
# the same bits as those of an undisturbed run.
#
# ![A worker ends, the job restarts from its newest checkpoint](../figures/recovery.svg)
#
# ## The program
#
# All workers execute the same program from beginning to end. It differs from a program for one process in the strategy,
# and in the checkpoint, which a restarted job needs. The last argument lets worker 1 kill itself at a step, once.

# %%
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import matplotlib.pyplot as plt

folder = pathlib.Path(tempfile.mkdtemp())
program = folder / "train.py"
program.write_text("""
import hashlib, os, pathlib, signal, sys
import jax.numpy as jnp
import numpy as np
import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

folder, steps, failure = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
strategy = mr.MultiWorkerMirroredStrategy(deterministic=True)
worker = strategy.cluster_resolver.task_id

random = np.random.default_rng(0)
x = random.normal(size=(256, 8)).astype(np.float32)
y = x[:, :1] * x[:, 1:2]
with strategy.scope():
    hidden = mr.Variable(random.normal(size=(8, 32)).astype(np.float32) / 3, name="hidden")
    out = mr.Variable(random.normal(size=(32, 1)).astype(np.float32) / 6, name="out")
    optimizer = mr.optimizers.Adam(1e-2)

dataset = mr.data.Dataset.from_tensor_slices((x, y)).shuffle(256, seed=3).repeat().batch(32)
iterator = iter(strategy.experimental_distribute_dataset(dataset))
checkpoint = Checkpoint(hidden=hidden, out=out, optimizer=optimizer, dataset=iterator, step=0)
manager = CheckpointManager(checkpoint, folder / "checkpoints", save_interval_steps=5)

def replica_step(x, y):
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(((jnp.tanh(x @ hidden) @ out - y) ** 2)[:, 0])
    optimizer.apply_gradients(zip(tape.gradient(loss, [hidden, out]), [hidden, out]))
    return loss

@mr.function
def train_step(x, y):
    return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

start = manager.restore_latest() or 0
print("starting after step", start, flush=True)
for step in range(start + 1, steps + 1):
    loss = float(train_step(*next(iterator)))
    print("step", step, "loss", f"{loss:.4f}", flush=True)
    checkpoint.step = step
    manager.save(step)
    failed = folder / "failed"
    if step == failure and worker == 1 and not failed.exists():
        failed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
manager.wait()
iterator.close()
weights = hidden.numpy().tobytes() + out.numpy().tobytes()
print("weights", hashlib.sha256(weights).hexdigest()[:16], flush=True)
""")

# %% [markdown]
# ## The launcher
#
# `mirrored run` starts the workers on this machine, and prefixes each line of output with its worker. On several
# machines the same command runs on each, with `--nodes` and `--coordinator`.


# %%
def mirrored_run(name, failure, *options):
    (folder / name).mkdir()
    arguments = ["--workers", "2", "--replicas-per-worker", "2", *options, str(program), str(folder / name), "30"]
    print("$ mirrored run", " ".join(arguments[:-3]), "train.py", name, "30", failure)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "mirrored.cli", "run", *arguments, str(failure)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    print(f"exit status {done.returncode}")
    return done.stdout + done.stderr, time.perf_counter() - begin


def show(output, pattern):
    print("\n".join(line for line in output.splitlines() if re.search(pattern, line)))


undisturbed, _ = mirrored_run("undisturbed", 0)
show(undisturbed, r"starting|step (1|2|29|30) |weights")

# %% [markdown]
# ## A worker is killed
#
# In this run, worker 1 is killed by SIGKILL after step 17, as the kernel does when memory is exhausted. Worker 0 could
# only wait for it permanently, so the launcher ends the whole job, and `--max-restarts 1` starts it again. All workers
# resume after step 15, the newest checkpoint. The position in the data is part of the checkpoint: no example is skipped
# or used twice.

# %%
disturbed, _ = mirrored_run("disturbed", 17, "--max-restarts", "1")
show(disturbed, r"starting|step (17|16|30) |weights|killed|[Rr]estart")

# %% [markdown]
# The weights of both runs have the same bits:

# %%
digests = [set(re.findall(r"weights (\w+)", output)) for output in (undisturbed, disturbed)]
print(digests)
assert len(digests[0]) == 1, undisturbed
assert digests[0] == digests[1], disturbed

# %%
figure, axes = plt.subplots(figsize=(6, 3))
for name, output, style in (("undisturbed", undisturbed, {"linewidth": 5, "alpha": 0.3}), ("killed", disturbed, {})):
    lines = re.findall(r"worker 0\].*step (\d+) loss ([\d.]+)", output)
    axes.plot([int(step) for step, _ in lines], [float(loss) for _, loss in lines], label=name, marker=".", **style)
axes.axvline(17, color="gray", linestyle=":", label="worker 1 is killed")
axes.set(xlabel="step", ylabel="loss")
axes.legend()
figure.tight_layout()

# %% [markdown]
# Steps 16 and 17 were computed twice, with the same losses.
#
# ## Which part does what
#
# | part | purpose |
# |---|---|
# | `MultiWorkerMirroredStrategy()` | joins the job that the launcher describes |
# | `Checkpoint(..., dataset=iterator, step=0)` | names the state: variables, optimizer, position in the data, step |
# | `CheckpointManager.save(step)` in every step | saves in the background, every 5 steps; after SIGTERM at once |
# | `restore_latest()` | restores the newest complete checkpoint; returns its step, or None |
# | `deterministic=True` | the resumed run has the same bits; without it, the losses are equal up to rounding |
#
# ## Next
#
# - [Several GPUs and machines](../guides/multi_worker.md): Slurm, Kubernetes, and what happens at each kind of failure
# - `mirrored doctor` checks the machines of a job before it starts.
