"""Loops over gradients end on devices with fewer replicas.

Such a device computes an empty slot. If its gradient were zero, a loop that doubles the gradient until it is large
would never end there, nor would the program.
"""

from __future__ import annotations

import ast
import textwrap

import pytest
from tests.fresh_process import run_python

PROGRAM = textwrap.dedent(
    """
    import mirrored as mr
    mr.config.set_virtual_devices(2)
    import jax, jax.numpy as jnp
    from jax import lax

    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=3, deterministic=DETERMINISTIC)
    replica = mr.get_replica_context
    values = lambda context: jnp.arange(1.0, 4.0) + context.replica_id_in_sync_group
    x = strategy.experimental_distribute_values_from_function(values)

    def merged(function):
        return lambda x: replica().merge_call(function, args=(jnp.sum(x**2),))

    def total(op):
        return lambda x: replica().all_reduce(op, jnp.sum(x**2))

    def gradient(function):
        def call(x):
            with mr.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)
        return call

    cases = {
        "sum": gradient(total("SUM")),
        "mean": gradient(total("MEAN")),
        "custom": gradient(total(lambda stacked: jnp.sum(stacked**2, 0))),
        "gather": gradient(lambda x: jnp.sum(replica().all_gather(x**2, axis=0))),
        "second order": gradient(lambda x: jnp.sum(gradient(lambda x: total("SUM")(x)**2)(x))),
        "jax.grad": jax.grad(total("SUM")),
        "jax.jvp": lambda x: jax.jvp(total("SUM"), (x,), (jnp.ones_like(x),))[1],
        "merge that reduces": gradient(merged(lambda s, v: s.reduce("SUM", v, axis=None))),
        "merge that reads": gradient(merged(lambda s, v: sum(s.experimental_local_results(v)))),
        "merge that runs": gradient(merged(lambda s, v: s.run(lambda own: own * 3, args=(v,)))),
    }

    def grown(function):
        return lambda x: lax.while_loop(lambda v: v < 100, lambda v: v * 2, jnp.sum(function(x)))

    results = {}
    for name, function in cases.items():
        compiled = mr.function(lambda function=function: strategy.run(grown(function), args=(x,)))
        results[name] = [float(value) for value in strategy.experimental_local_results(compiled())]
    print(results)
    """
)
# The values of the replicas have the sums 6, 9, 12, and the sums of squares 14, 29, 50, in total 27 and 93. Each
# gradient is summed over its elements, and doubled until it is at least 100.
SUMS = [144.0, 108.0, 144.0]  # from 3 * 2 * [6, 9, 12]
EXPECTED = {
    "sum": SUMS,
    "mean": [192.0, 144.0, 192.0],  # from 2 * [6, 9, 12]
    "custom": [1008.0, 3132.0, 7200.0],  # 3 * 2 * [14, 29, 50] * 2 * [6, 9, 12]
    "gather": SUMS,
    "second order": [7236.0, 9180.0, 11124.0],  # 12 * (27 * 2 * [6, 9, 12] + 3 * 93)
    "jax.grad": SUMS,
    "jax.jvp": [108.0, 108.0, 108.0],  # from 2 * 27
    "merge that reduces": SUMS,
    "merge that reads": SUMS,
    "merge that runs": SUMS,
}


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.long)])
def test_loops_over_gradients_end_in_empty_slots(deterministic: bool) -> None:
    done = run_python(PROGRAM.replace("DETERMINISTIC", str(deterministic)))
    assert done.returncode == 0, done.stderr
    results = ast.literal_eval(done.stdout)
    assert results == EXPECTED
