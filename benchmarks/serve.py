"""The process of a contender: creates jobs and times calls on request over a pipe, so that rounds interleave.

Reads and writes one JSON object per line; the output of frameworks goes to stderr.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# After the installed packages: `benchmarks/keras.py` is a script, not the framework.
sys.path.append(sys.path.pop(0))

from contenders.job import Job
from spec import ATTENTION_VARIABLE
from spec import workload as named

_jobs: dict[str, Job] = {}


def make(name: str, contender: str, job: str, workload: str, devices: int, **more: Any) -> dict[str, Any]:
    """Creates a job under a name and calls it once: the first step, with tracing and compiling."""
    start = time.perf_counter()
    module = importlib.import_module(f"contenders.{contender}")
    imported = time.perf_counter()
    made = _jobs[name] = getattr(module, job)(named(workload), devices, **more)
    ready = time.perf_counter()
    made.before(1)
    result = made.call()
    return {
        "import_seconds": imported - start,
        "set_up_seconds": ready - imported,
        "first_seconds": time.perf_counter() - ready,
        "result": result if isinstance(result, float) else None,
    }


def measure(name: str, calls: int) -> dict[str, Any]:
    """Returns seconds per step: `calls` calls in a row, waiting for each."""
    job = _jobs[name]
    job.before(calls)
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(calls):
        result = job.call()
    seconds = time.perf_counter() - start
    gc.enable()
    return {
        "seconds": seconds / calls / job.steps,
        "result": result if isinstance(result, float) else None,
    }


def stream(name: str, calls: int) -> dict[str, Any]:
    """Returns seconds per step: `calls` calls in a row, waiting only for the last."""
    job = _jobs[name]
    if job.launch is None or job.wait is None:
        return measure(name, calls)
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(calls):
        result = job.launch()
    job.wait(result)
    seconds = time.perf_counter() - start
    gc.enable()
    return {"seconds": seconds / calls / job.steps}


def load(contender: str) -> dict[str, Any]:
    """Imports a contender. mirrored adds to the key of JAX's caches, so that earlier programs are compiled again."""
    importlib.import_module(f"contenders.{contender}")
    return {}


def choose(attention: str) -> dict[str, Any]:
    """Selects the implementation of fused attention for jobs created from now on."""
    os.environ[ATTENTION_VARIABLE] = attention
    return {}


def drop(name: str) -> dict[str, Any]:
    """Drops a job to free its memory."""
    _jobs.pop(name, None)
    gc.collect()
    return {}


def dispatch(name: str, calls: int) -> dict[str, Any]:
    """Returns seconds until a call returns, without its result; waits for each result before the next call."""
    job = _jobs[name]
    if job.launch is None or job.wait is None:
        return {"seconds": None}
    spent = 0.0
    for _ in range(calls):
        start = time.perf_counter()
        result = job.launch()
        spent += time.perf_counter() - start
        job.wait(result)
    return {"seconds": spent / calls / job.steps}


def facts(name: str) -> dict[str, Any]:
    """Returns facts about a job that has run."""
    return _jobs[name].facts()


def memory() -> dict[str, Any]:
    """Returns the peak resident memory of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return {"mib": int(line.split()[1]) / 1024}
    return {"mib": None}


def versions(packages: list[str]) -> dict[str, Any]:
    """Returns the installed versions of some packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def device() -> dict[str, Any]:
    """Returns the first device's kind and its peak memory, from JAX if it is loaded."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if jax is not None:
        one = jax.local_devices()[0]
        peak = (one.memory_stats() or {}).get("peak_bytes_in_use")
        return {"device": one.device_kind, "peak_mib": peak and peak / 2**20}
    if torch is not None and torch.cuda.is_available():
        return {"device": torch.cuda.get_device_name(), "peak_mib": torch.cuda.max_memory_allocated() / 2**20}
    return {"device": "cpu", "peak_mib": None}


def main() -> None:
    """Answers requests until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    served = (choose, load, make, measure, stream, drop, dispatch, facts, memory, device, versions)
    commands = {one.__name__: one for one in served}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = commands[command.pop("do")](**command)
        except Exception as error:  # reported to the driver, which continues without this contender
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
