"""A contender's process: makes jobs and times calls, as asked over a pipe, so that rounds of processes interleave.

One JSON object a line comes in and one goes out; what a framework prints goes to stderr.
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

# Behind the installed packages: `benchmarks/keras.py` is a script, not the framework.
sys.path.append(sys.path.pop(0))

from contenders.job import Job
from spec import ATTENTION_VARIABLE
from spec import workload as named

_jobs: dict[str, Job] = {}


def make(name: str, contender: str, job: str, workload: str, devices: int, **more: Any) -> dict[str, Any]:
    """Makes a job under a name and calls it once: the first step, with tracing and compiling."""
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
    """Seconds for one step: `calls` calls in a row, each waited for."""
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
    """Seconds for one step: `calls` calls in a row, of which only the last is waited for."""
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
    """Imports a contender. mirrored adds to the key of JAX's caches: what was compiled before is compiled again."""
    importlib.import_module(f"contenders.{contender}")
    return {}


def choose(attention: str) -> dict[str, Any]:
    """Which implementation the fused attention of jobs made from now on takes."""
    os.environ[ATTENTION_VARIABLE] = attention
    return {}


def drop(name: str) -> dict[str, Any]:
    """Forgets a job, so that its memory is free."""
    _jobs.pop(name, None)
    gc.collect()
    return {}


def dispatch(name: str, calls: int) -> dict[str, Any]:
    """Seconds until a call returns, without waiting for its result; each is waited for before the next."""
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
    """What is known of a job once it has run."""
    return _jobs[name].facts()


def memory() -> dict[str, Any]:
    """The most resident memory this process ever had, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return {"mib": int(line.split()[1]) / 1024}
    return {"mib": None}


def versions(packages: list[str]) -> dict[str, Any]:
    """The installed versions of some packages."""
    return {package: importlib.metadata.version(package) for package in packages}


def device() -> dict[str, Any]:
    """The first device's kind and the most memory that was ever in use there; of JAX, if it is there."""
    jax, torch = sys.modules.get("jax"), sys.modules.get("torch")
    if jax is not None:
        one = jax.local_devices()[0]
        peak = (one.memory_stats() or {}).get("peak_bytes_in_use")
        return {"device": one.device_kind, "peak_mib": peak and peak / 2**20}
    if torch is not None and torch.cuda.is_available():
        return {"device": torch.cuda.get_device_name(), "peak_mib": torch.cuda.max_memory_allocated() / 2**20}
    return {"device": "cpu", "peak_mib": None}


def main() -> None:
    """Answers until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    served = (choose, load, make, measure, stream, drop, dispatch, facts, memory, device, versions)
    commands = {one.__name__: one for one in served}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = commands[command.pop("do")](**command)
        except Exception as error:  # told to the driver, which goes on without this contender
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
