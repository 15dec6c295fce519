from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.jobs import PROGRAMS
from launcher.jobs import Ran, environment, written
from mirrored._jax.compilation_cache import write_on_every_process
from mirrored.launcher import Job

__all__ = ["environment"]  # a fixture for every test here

PROGRAM = """
import collections
import jax
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rpartition("/")[2]]))
import jax.numpy as jnp
import mirrored as mr
strategy = mr.MultiWorkerMirroredStrategy()

@mr.function
def step(x):
    return strategy.run(lambda: mr.get_replica_context().all_reduce("SUM", jnp.sin(x) * 3.0))

step(jnp.ones(7))
print("hits", events["cache_hits"], "misses", events["cache_misses"])
"""


def test_this_jax_has_the_check_that_is_taken_out():
    assert write_on_every_process()
    assert write_on_every_process()


@pytest.mark.multiprocess
@pytest.mark.slow
def test_every_worker_finds_what_it_has_compiled_before(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    job = Job(program=written(tmp_path, PROGRAM), workers=2)
    counts = []
    for _ in range(2):
        ran = Ran(job)
        assert ran.code == 0, ran.errors
        counts.append(sorted(line.split(" ", 2)[2] for line in ran.out.splitlines() if "hits" in line))
    assert all(int(line.split()[3]) > 0 for line in counts[0]), "the first start compiles"
    assert all(line.endswith("misses 0") and not line.startswith("hits 0") for line in counts[1]), counts


COUNTED = """
import collections, json
import jax
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name.rpartition("/")[2]]))
import jax.numpy as jnp
import training
import mirrored as mr
from mirrored._jax.bit_identical import jit

def compiled(bit_identical):
    jax.clear_caches()
    events.clear()
    text = jit(lambda x: jnp.sin(x) * 2 + jnp.sin(x), bit_identical=bit_identical).lower(1.0).compile().as_text()
    return [text.count(" sine("), events["cache_hits"], events["cache_misses"]]

def trained(deterministic):
    jax.clear_caches()
    events.clear()
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4, deterministic=deterministic)
    return [training.outcomes(strategy, "padded"), events["cache_misses"]]
"""


def counted(directory: Path, call: str) -> Any:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *sys.path]),
        "JAX_PLATFORMS": "cpu",
        "MIRRORED_VIRTUAL_DEVICES": "4",
        "JAX_COMPILATION_CACHE_DIR": str(directory),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", f"{COUNTED}\nprint(json.dumps({call}))"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.multiprocess
@pytest.mark.long
def test_the_deterministic_options_are_in_the_key(tmp_path):
    """One text, compiled with and without them: neither takes the other's program."""
    found = counted(tmp_path, "[compiled(bit_identical) for bit_identical in (False, True, True, False)]")
    assert found == [[1, 0, 1], [2, 0, 1], [2, 1, 0], [1, 1, 0]], "how many sines, hits, misses"


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_deterministic_run_is_the_same_from_a_cache_that_another_run_has_filled(tmp_path):
    (_, first) = counted(tmp_path, "trained(False)")
    cold, second = counted(tmp_path, "trained(True)")
    warm, third = counted(tmp_path, "trained(True)")
    assert first > 0
    assert second > 0
    assert third == 0
    assert warm == cold
    assert cold == counted(tmp_path / "other", "trained(True)")[0]
