"""The program of each worker of benchmarks/elastic_cost.py: steps without and with a session alternate.

mirrored run --elastic --workers 2 benchmarks/elastic_program.py W2 8 default,1,10,100
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
from contenders import mirrored_training
from contenders.job import Job
from spec import WORKLOADS

import mirrored as mr
from mirrored import elastic
from mirrored.checkpoint import Checkpoint
from mirrored.collectives.host_allgather import host_allgather

STEPS_IN_FLIGHT = 8
SECONDS_PER_TIMING = 0.5
SETTLING_STEPS = (
    150  # the default k is chosen anew at the 2nd, 4th and 8th snapshot, the first of which are 10 steps apart
)


def seconds_per_step(job: Job, steps: int, after: Callable[[], object]) -> float:
    """Returns the mean time per step over `steps` steps, with up to eight in flight; waits at the end."""
    assert job.launch is not None
    pending: list[Any] = []
    start = time.perf_counter()
    for _ in range(steps):
        pending.append(job.launch())
        after()
        if len(pending) > STEPS_IN_FLIGHT:
            jax.block_until_ready(pending.pop(0))
    jax.block_until_ready(pending)
    return (time.perf_counter() - start) / steps


def nothing() -> None:
    """Without a session."""


@elastic.run
def train(session: elastic.Session, name: str, rounds: int, every: str) -> None:
    """Measures one workload; worker 0 prints the figures."""
    workload = WORKLOADS[name]
    strategy = mr.MultiWorkerMirroredStrategy()
    settings = []
    state_bytes = 0
    for donates in (True, False):
        job = mirrored_training.train(workload, strategy.num_replicas_in_sync, strategy=strategy, donate=donates)
        checkpoint = Checkpoint(**job.state)
        variables = jax.tree.leaves(dict(job.state), is_leaf=lambda one: isinstance(one, mr.Variable))
        state_bytes = sum(one.numpy().nbytes for one in variables)
        for one in every.split(","):
            if one == "default" or donates or one == "10":
                settings.append(measured(session, job, checkpoint, one, donates, rounds))
    if jax.process_index() == 0:
        print("RESULT", json.dumps({"state_bytes": state_bytes, "settings": settings}), flush=True)


def measured(
    session: elastic.Session, job: Job, checkpoint: Checkpoint, every: str, donates: bool, rounds: int
) -> dict[str, Any]:
    """Returns the seconds per step of every round, without and with a session of its own."""
    is_default = every == "default"
    own = elastic.Session(session._place, session._snapshots, session._link, None if is_default else int(every))
    own.resume(checkpoint)
    once = seconds_per_step(job, 20, nothing)
    seconds_per_step(job, SETTLING_STEPS if is_default else 20, own.commit)
    k = own._pace.every
    # All workers make the same number of steps, a multiple of k.
    wanted = k * math.ceil(SECONDS_PER_TIMING / (once * k))
    steps = max(host_allgather("benchmark", "the number of steps", wanted)) if session.num_workers > 1 else wanted
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    for round_ in range(rounds):
        pairs = [("without", nothing), ("with", own.commit)]
        for name, after in pairs if round_ % 2 == 0 else pairs[::-1]:
            seconds[name].append(seconds_per_step(job, steps, after))
    return {"every": k, "is_default": is_default, "donates": donates, **seconds}


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3])
