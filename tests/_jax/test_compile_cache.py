from __future__ import annotations

import pytest

from launch.jobs import Ran, environment, written
from mirrored._jax.compile_cache import write_on_every_process
from mirrored.launch import Job

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
