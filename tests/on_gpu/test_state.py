"""Variables on a GPU: donated, not leaking, and whole after an interrupt or an error."""

from __future__ import annotations

import random
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from on_gpu.programs import ON_GPU, REPLICAS, Training, strategy_of

pytestmark = pytest.mark.gpu
_SIDE = 4096 if ON_GPU else 256


def bytes_in_use() -> int:
    """Of all live arrays, or what the device's allocator has handed out."""
    stats = jax.devices()[0].memory_stats()
    return stats["bytes_in_use"] if stats else sum(array.nbytes for array in jax.live_arrays())


def test_memory_is_the_same_after_many_steps():
    training = Training(REPLICAS)
    training.train(20)
    before = bytes_in_use()
    training.train(2000 if ON_GPU else 200)
    assert bytes_in_use() <= before


def test_the_old_value_gives_its_memory_to_the_new_one():
    strategy = strategy_of(REPLICAS)
    with strategy.scope():
        v = mr.Variable(jnp.zeros((_SIDE, _SIDE)))

    @mr.function
    def step():
        strategy.run(lambda: v.assign_add(jnp.ones((_SIDE, _SIDE)), read_value=False))

    size = v.numpy().nbytes
    sizes = step.lower().compile().memory_analysis()
    assert sizes.alias_size_in_bytes >= size
    step()
    before = bytes_in_use()
    for _ in range(10):
        step()
    jax.block_until_ready(v.read_value())
    assert bytes_in_use() <= before


def test_an_error_in_one_replica_leaves_the_state_as_it_was():
    training = Training(REPLICAS, compiled=False)
    training.train(1)
    before = training.state()

    def fails(x, y):
        training.w.assign(training.w * 0.0)
        if mr.get_replica_context().replica_id_in_sync_group == REPLICAS - 1:
            raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        training.strategy.run(fails, args=training.batch)
    for now, then in zip(training.state(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_the_state_is_whole_after_interrupts():
    """A Ctrl-C at any moment of a compiled step: every variable has the value before or after that step, all alike."""
    strategy = strategy_of(2)
    with strategy.scope():
        variables = [mr.Variable(jnp.zeros((_SIDE, _SIDE)), name=f"v{k}") for k in range(4)]

    def replica():
        for variable in variables:
            variable.assign_add(jnp.ones((_SIDE, _SIDE)), read_value=False)

    step = mr.function(lambda: strategy.run(replica))
    step()
    rng, interrupted = random.Random(0), 0
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(30):
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 0.01))
            try:
                end = time.monotonic() + 10
                while time.monotonic() < end:
                    step()
            except KeyboardInterrupt:
                interrupted += 1
            counts = {float(value) for variable in variables for value in np.unique(variable.numpy())}
            assert len(counts) == 1, f"some variables are a step ahead of others: {counts}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupted == 30
