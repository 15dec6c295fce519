"""Output gradients that are per-replica values: each replica's weighs the replica's component of the target."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

X = np.asarray([[1.0, 3.0], [2.0, 6.0], [3.0, 9.0]], np.float32)


def given_by(context: Any) -> Any:
    return jnp.ones(2) * (context.replica_id_in_sync_group + 1.0)


# How the output gradients are made: from components, or as one stacked array.
MADE = {
    "components": lambda strategy: strategy.experimental_distribute_values_from_function(given_by),
    "a run": lambda strategy: strategy.run(lambda: given_by(mr.get_replica_context())),
    "a compiled run": lambda strategy: mr.function(lambda: strategy.run(lambda: given_by(mr.get_replica_context())))(),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 2), (2, 3)])
@pytest.mark.parametrize("structure", ["one", "dict"])
def test_each_replica_weighs_its_component(
    structure: str, devices: int, replicas: int, compiled: bool, inside: bool, made: str
) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable([2.0, 1.0])
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(X[context.replica_id_in_sync_group])
    )
    weights = None if inside else MADE[made](strategy)

    def gradient(xs: Any, weights: Any) -> Any:
        weights = MADE[made](strategy) if inside else weights
        with mr.GradientTape() as tape:
            y = strategy.run(lambda x: x * v, args=(xs,))
        if structure == "dict":
            return tape.gradient({"y": y, "v": v * 1.0}, v, output_gradients={"y": weights, "v": jnp.zeros(2)})
        return tape.gradient(y, v, output_gradients=weights)

    found = (mr.function(gradient) if compiled else gradient)(xs, weights)
    wanted = sum(X[k] * (k + 1.0) for k in range(replicas))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
