"""Several processes read the same global batches, each for its own replicas."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]

PROGRAM = """
import json, pathlib, sys
import jax
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
import numpy as np
from mirrored.checkpoint import Checkpoint, read_manifest
from mirrored.data import AutoShardPolicy, Dataset, Options, distribute_dataset, distribute_from_function
from mirrored.errors import ArgumentError, InputError
from mirrored.topology.device_assignment import DeviceAssignment

class Strategy:
    device_assignment = DeviceAssignment(tuple(jax.devices()), 2)

def mine(distributed):
    def local(value):
        if value.is_stacked:
            (shard,) = value.stacked(Strategy.device_assignment).addressable_shards
            return np.asarray(shard.data)[0].tolist()
        (share,) = value.values
        return np.asarray(share).tolist()
    return [local(value) for value in distributed]

def policy(dataset, kind):
    options = Options()
    options.experimental_distribute.auto_shard_policy = kind
    return dataset.with_options(options)

found = {
    "even": mine(distribute_dataset(Strategy, Dataset.range(8).batch(4))),
    "uneven": mine(distribute_dataset(Strategy, Dataset.range(9).batch(3))),
    "off": mine(distribute_dataset(Strategy, policy(Dataset.range(12).batch(8), AutoShardPolicy.OFF))),
    "off, of which one is short": mine(distribute_dataset(
        Strategy, policy(Dataset.range((16, 3)[int(sys.argv[2])]).batch(8), AutoShardPolicy.OFF))),
    "from function": mine(distribute_from_function(Strategy, lambda c: Dataset.range(8).shard(
        c.num_input_pipelines, c.input_pipeline_id).batch(c.get_per_replica_batch_size(4)))),
}
names = [pathlib.Path(__file__).parent / f"{number}.txt" for number in range(2)]
# With one seed the first batch of all lines is the full one, with the other the last one.
lines = Dataset.from_text_lines(names).map(int).batch(4).shuffle(2, seed=(2, 1)[int(sys.argv[2])])
found["files"] = mine(distribute_dataset(Strategy, policy(lines, AutoShardPolicy.FILE)))
def refuse(row):
    if sys.argv[2] == "1":
        raise OSError("the disk of worker 1")
    return row

for kind in ("OFF", "FILE"):
    try:
        distribute_dataset(Strategy, policy(lines.map(refuse), AutoShardPolicy[kind]))
    except (OSError, InputError) as error:
        found[f"one fails, {kind}"] = str(error)
shuffled = Dataset.range(64).shuffle(64)
if sys.argv[2] == "0":
    next(iter(shuffled.take(1)))
found["looked at by one worker"] = [mine(distribute_dataset(Strategy, shuffled.batch(16))) for _ in range(2)]
import mirrored.tf as tf
kept = tf.data.Dataset.range(64).filter(lambda _: tf.random.uniform([]) < 0.5)
if sys.argv[2] == "0":
    next(iter(kept))
found["random filter"] = [mine(distribute_dataset(Strategy, kept.batch(4))) for _ in range(2)]
reading = iter(distribute_dataset(Strategy, shuffled.batch(16)))
if sys.argv[2] == "0":
    next(iter(shuffled.take(1)))
path = Checkpoint(reading=reading).write(pathlib.Path(__file__).parent / "checkpoint")
found["saved by both"] = [one.value.get("reader") for one in read_manifest(path).leaves.values() if one.value]
try:
    distribute_dataset(Strategy, policy(Dataset.range(8).batch(4), AutoShardPolicy.FILE))
except ArgumentError as error:
    found["file"] = error.found
try:
    mine(distribute_dataset(Strategy, Dataset.range(2**40, 2**40 + 8).batch(4)))
except ArgumentError as error:
    found["large"] = error.rule
print("FOUND", json.dumps(found))
"""


def run_workers(program: Path) -> list[Any]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, str(program), str(port)]
    workers = [
        subprocess.Popen(
            [*command, str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for index in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=50) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    lines = [[line for line in out.splitlines() if line.startswith("FOUND ")] for out, _ in outputs]
    assert all(lines), [error[-2000:] for _, error in outputs]
    return [json.loads(line[0].removeprefix("FOUND ")) for line in lines]


@pytest.mark.long
def test_each_worker_gets_the_shares_of_its_replicas(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("".join(f"{3 * number + line}\n" for line in range(3)))
    first, second = run_workers(program)
    # Recorded with TensorFlow 2.21 in two processes, "off" from its tests.
    assert (first["even"], second["even"]) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
    assert (first["uneven"], second["uneven"]) == ([[0, 1], [3, 4], [6, 7]], [[2], [5], [8]])
    assert first["off"] == second["off"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    # The batch size is that of the largest first batch of all workers.
    short = "off, of which one is short"
    assert (first[short], second[short]) == ([[*range(n, n + 4)] for n in (0, 4, 8, 12)], [[0, 1, 2], [], [], []])
    assert (first["files"], second["files"]) == ([[0, 1], [2]], [[3, 4], [5]])
    for kind in ("OFF", "FILE"):
        assert "worker 1 cannot read its first batch: OSError: the disk of worker 1" in first[f"one fails, {kind}"]
        assert second[f"one fails, {kind}"].startswith("the disk of worker 1")
    assert (first["from function"], second["from function"]) == ([[0, 2], [4, 6]], [[1, 3], [5, 7]])
    assert "a dataset of no files" in first["file"]
    assert first["large"] == second["large"] == "integers on devices have 32 bits, unless JAX's 64-bit mode is on"
    # Its numbers were not seeded: the workers agree on them.
    for epoch in zip(first["random filter"], second["random filter"], strict=True):
        kept = sorted(number for worker in epoch for batch in worker for number in batch)
        assert 0 < len(set(kept)) == len(kept) < 64
    assert first["random filter"][0] != first["random filter"][1]
    for epoch in zip(first["looked at by one worker"], second["looked at by one worker"], strict=True):
        assert sorted(number for worker in epoch for batch in worker for number in batch) == list(range(64))
    (position,) = first["saved by both"]  # not one for each worker, which would fit only two workers
    assert position["source"]["next_iteration"] == position["source"]["iteration"] + 2
