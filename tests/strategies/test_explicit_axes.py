"""Arrays of meshes with explicit axes in runs: accepted, or refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import mirrored as mr
from mirrored.errors import DeviceError
from mirrored.topology.device_assignment import AXIS

V = np.arange(4.0, dtype=np.float32)
GLOBAL: Any = None


def of_mesh(kind: AxisType, axis: str = "x", devices: int = 2, spec: str | None = "x") -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:devices]), (axis,), axis_types=(kind,))
    return jax.device_put(V, NamedSharding(mesh, PartitionSpec(axis if spec else None)))


ARRAYS: dict[str, Callable[[], jax.Array]] = {
    "sharded": lambda: of_mesh(AxisType.Explicit),
    "replicated": lambda: of_mesh(AxisType.Explicit, spec=None),
    "more devices": lambda: of_mesh(AxisType.Explicit, devices=4),
    "the axis of the run": lambda: of_mesh(AxisType.Explicit, axis=AXIS),
}


def used(how: str, strategy: mr.Strategy, x: Any) -> Callable[[], Any]:
    w = mr.Variable(jnp.ones(4))
    if how == "argument":
        return lambda: strategy.run(lambda x: (x * w).sum(), args=(x,))
    if how == "global":
        global GLOBAL
        GLOBAL = x
        return lambda: strategy.run(lambda: (GLOBAL * w).sum())
    return lambda: strategy.run(lambda: (x * w).sum())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("how", ["closure", "global", "argument"])
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_with_explicit_axes_are_refused_with_a_remedy(kind: str, how: str, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        step = used(how, strategy, ARRAYS[kind]())
    run = mr.function(step) if compiled else step
    if how == "argument" and kind == "replicated" and not compiled:
        assert [float(part) for part in strategy.local_results(run())] == [6.0, 6.0]
        return
    with pytest.raises(DeviceError, match=r"jax\.device_put\(x, jax\.devices\(\)\[0\]\)"):
        run()


@pytest.mark.parametrize("kind", ARRAYS)
def test_arguments_of_compiled_functions_too(kind: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = mr.Variable(jnp.ones(4))
    step = mr.function(lambda x: strategy.run(lambda x: (x * w).sum(), args=(x,)))
    # JAX 0.10 reshards sharded arguments of a compiled function; JAX 0.12 raises an error, which the remedy explains.
    refusal, results = "", []
    try:
        results = [float(part) for part in strategy.local_results(step(ARRAYS[kind]()))]
    except DeviceError as error:
        refusal = str(error)
    assert results == [6.0, 6.0] if not refusal else "jax.device_put" in refusal
    assert kind != ("more devices" if results else "replicated")


def test_arrays_of_other_meshes_are_operands() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = mr.Variable(jnp.ones(4))
    for x in (of_mesh(AxisType.Auto), of_mesh(AxisType.Auto, axis=AXIS), of_mesh(AxisType.Auto, devices=4)):
        results = mr.function(lambda: strategy.run(lambda: (x * w).sum()))()  # noqa: B023
        assert [float(part) for part in strategy.local_results(results)] == [6.0, 6.0]


def test_errors_of_the_function_stay_as_they_are() -> None:
    strategy, x = mr.MirroredStrategy(["CPU:0", "CPU:1"]), jnp.asarray(V)

    def replica() -> Any:
        return {"x": x}["y"]

    for run in (strategy.run, lambda fn: mr.function(lambda: strategy.run(fn))()):
        with pytest.raises(KeyError, match="y"):
            run(replica)
