"""The program of each worker of benchmarks/multi_worker.py: mirrored and hand-written JAX alternate over all devices.

mirrored run --workers 2 benchmarks/multi_worker_program.py W1 8
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
from contenders import jax_hand_written, mirrored_training
from contenders.job import Job
from spec import WORKLOADS

import mirrored as mr

STEPS_IN_FLIGHT = 8
SECONDS_PER_TIMING = 0.25


def seconds_per_step(job: Job, steps: int) -> float:
    """Returns the mean time per step over `steps` steps, with up to eight in flight; waits at the end."""
    assert job.launch is not None
    pending: list[Any] = []
    start = time.perf_counter()
    for _ in range(steps):
        pending.append(job.launch())
        if len(pending) > STEPS_IN_FLIGHT:
            jax.block_until_ready(pending.pop(0))
    jax.block_until_ready(pending)
    return (time.perf_counter() - start) / steps


def main(name: str, rounds: int) -> None:
    """Measures one workload; worker 0 prints the seconds per step of every round."""
    workload = WORKLOADS[name]
    plain, same_bits = (mr.MultiWorkerMirroredStrategy(deterministic=chosen) for chosen in (False, True))
    devices = plain.num_replicas_in_sync
    makers: dict[str, Callable[[], Job]] = {
        "mirrored": lambda: mirrored_training.train(workload, devices, strategy=plain),
        "mirrored deterministic": lambda: mirrored_training.train(workload, devices, strategy=same_bits),
        "hand-written JAX": lambda: jax_hand_written.train(workload, devices),
    }
    jobs = {name: make() for name, make in makers.items()}
    for job in jobs.values():
        seconds_per_step(job, 3)
    # All workers must make the same number of steps: worker 0 chooses it for hand-written JAX.
    once = seconds_per_step(jobs["hand-written JAX"], 10)
    with plain.scope():  # a new variable has the value of worker 0
        steps = int(mr.Variable(max(10, min(500, round(SECONDS_PER_TIMING / once)))).numpy())
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for round_ in range(rounds):
        order = list(jobs) if round_ % 2 == 0 else list(jobs)[::-1]
        for name in order:
            seconds[name].append(seconds_per_step(jobs[name], steps))
    if jax.process_index() == 0:
        print("RESULT", json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
