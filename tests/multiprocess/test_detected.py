"""Processes that a scheduler has started, and that were given no cluster: JAX's detection has them form one job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]

PROGRAM = """
import mirrored as mr
strategy = mr.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
with strategy.scope():
    v = mr.Variable(1.0)
total = float(strategy.reduce("SUM", strategy.run(lambda: v + 0.0), axis=None))
again = mr.MultiWorkerMirroredStrategy()
print("RESULT", total, resolver.task_type, resolver.task_id, again.cluster_resolver.task_id)
"""
FORMED = """
import os, jax
jax.distributed.initialize(os.environ["ADDRESS"], 2, int(os.environ["INDEX"]))
"""


def started(index: int, source: str, port: int) -> subprocess.Popen[str]:
    environments = {
        "Open MPI": {
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_RANK": str(index),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
            "OMPI_MCA_orte_hnp_uri": "210698240.0;tcp://127.0.0.1:51213",
            "JAX_COORDINATOR_PORT": str(port),
        },
        "Slurm": {
            "SLURM_JOB_ID": "100",
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NTASKS": "2",
            "SLURM_PROCID": str(index),
            "SLURM_LOCALID": str(index),
            "JAX_COORDINATOR_PORT": str(port),
        },
        "jax.distributed": {"ADDRESS": f"127.0.0.1:{port}", "INDEX": str(index)},
    }
    own = ("TF_CONFIG", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "MIRRORED_VIRTUAL_DEVICES")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)} | environments[source]
    program = FORMED * (source == "jax.distributed") + PROGRAM
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.parametrize("source", ["Open MPI", "Slurm", "jax.distributed"])
@pytest.mark.long
def test_two_processes_train_one_model(source):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [started(index, source, port) for index in range(2)]
    try:
        outputs = [process.communicate(timeout=50)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    for index, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert process.returncode == 0, output
        assert f"RESULT 2.0 worker {index} {index}\n" in output
