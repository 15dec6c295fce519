"""Many changes of the workers leave memory, threads and file descriptors of workers and launcher stable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

# Worker 0 reports after every third step that a collective has failed, so that the same workers form a new epoch.
TRAIN = """
import os, re, time
from pathlib import Path
import numpy as np
import mirrored as mr
from mirrored import elastic
from mirrored.checkpoint import Checkpoint
from mirrored.elastic.session import _Running

def sizes():
    found = re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) // 1024, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

@elastic.run(snapshot_every=1)
def train(session, epochs):
    strategy = mr.MultiWorkerMirroredStrategy(num_replicas=4, deterministic=True)
    with strategy.scope():
        w = mr.Variable(np.linspace(-1, 1, 8, dtype=np.float32)[:, None], name="w")
        optimizer = mr.optimizers.Adam(0.01)
    x = np.random.default_rng(0).normal(size=(48, 8)).astype(np.float32)
    dataset = mr.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(48, seed=1).repeat().batch(12)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    checkpoint = Checkpoint(w=w, optimizer=optimizer, dataset=iterator, step=0)

    @mr.function
    def step(x, y):
        def replica(x, y):
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss((x @ w.read_value() - y) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        strategy.run(replica, (x, y))

    session.resume(checkpoint)
    while session.epoch < epochs or checkpoint.step % 3 != 1:
        step(*next(iterator))
        checkpoint.step += 1
        session.commit()
        if session.epoch == epochs or checkpoint.step % 3:
            continue
        if os.environ["MIRRORED_ELASTIC"] == "0":
            while session._steps not in session._snapshots.steps:
                time.sleep(0.002)
            time.sleep(0.05)
            print("sizes", session.epoch, *sizes(), flush=True)
            _Running.link._send(kind="suspected")
        while True:
            _Running.link.check()
            time.sleep(0.002)

"""


def sizes_of(process: int) -> tuple[int, int, int]:
    """The memory in MiB, the threads, and the file descriptors of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return (
        int(found[1]) // 1024,
        len(os.listdir(f"/proc/{process}/task")),
        len(os.listdir(f"/proc/{process}/fd")),
    )


def measured(folder: Path, epochs: int) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Runs a job with changes of the workers; returns the sizes of worker 0 and of the launcher after each epoch."""
    program = folder / "train.py"
    program.write_text(TRAIN + f"train({epochs})\n")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("MIRRORED_VIRTUAL_DEVICES", None)
    command = [sys.executable, "-m", "mirrored.cli", "run", "--elastic", "--workers", "2", str(program)]
    found = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if sizes := re.search(r"sizes \d+ (\d+) (\d+) (\d+)", line):
                memory, threads, files = map(int, sizes.groups())
                found.append(((memory, threads, files), sizes_of(process.pid)))
    assert process.returncode == 0, "".join(lines[-40:])
    assert len(found) == epochs - 1, "".join(lines[-40:])
    return found


def check(found: list[tuple[tuple[int, int, int], tuple[int, int, int]]], first: int, most_mib: int) -> None:
    """Checks that nothing has grown from an epoch to the last one; one that is being left may count, too."""
    for before, after in zip(found[first], found[-1], strict=True):
        assert after[0] - before[0] <= most_mib, found
        assert after[1] - before[1] <= 2, found
        assert after[2] - before[2] <= 2, found


@pytest.mark.long
def test_a_few_changes_add_no_threads_and_descriptors(tmp_path):
    found = measured(tmp_path, 6)
    check(found, 2, most_mib=30)


@pytest.mark.slow
def test_thirty_changes_leave_memory_threads_and_descriptors_stable(tmp_path):
    found = measured(tmp_path, 31)
    check(found, 5, most_mib=15)
