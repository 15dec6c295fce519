"""Components of variables in compiled functions, outside and inside `run`: the values of an eager call.

Covers every public way to get per-replica values out of a variable: none may leak a tracer or freeze a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ContextError, MirroredError

ON_READ = mr.VariableSynchronization.ON_READ
LAYOUTS = {
    "2 devices": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"]),
    "2 on 1 device": lambda: mr.MirroredStrategy(["CPU:0"], num_replicas=2),
    "3 on 2 devices": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=3),
    "deterministic": lambda: mr.MirroredStrategy(["CPU:0"], num_replicas=2, deterministic=True),
}
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


class Made:
    """A strategy with variables of each kind, and per-replica values of their components."""

    def __init__(self, layout: str) -> None:
        self.strategy: Any = LAYOUTS[layout]()
        with self.strategy.scope():
            self.none = mr.Variable(jnp.arange(2.0), synchronization=ON_READ, aggregation="NONE", name="none")
            self.sum = mr.Variable(jnp.arange(2.0), synchronization=ON_READ, aggregation="SUM", name="sum")
            self.mirrored = mr.Variable(jnp.arange(2.0), name="mirrored")
        self.count = self.strategy.num_replicas_in_sync

        def differ() -> None:
            replica = jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, jnp.float32)
            self.none.assign_add(jnp.full(2, replica))
            self.sum.assign_add(jnp.full(2, 10 * replica))

        self.strategy.run(differ)
        self.held = mr.PerReplica(self.none.values)

    def doubled(self, value: Any) -> Any:
        return self.strategy.run(lambda x: x * 2, args=(value,))


OUTSIDE: dict[str, Callable[[Made], Any]] = {
    "values": lambda made: [one.read_value() for v in (made.none, made.sum, made.mirrored) for one in v.values],
    "arithmetic on values": lambda made: [one + 1 for one in made.none.values],
    "a PerReplica of values in run": lambda made: made.doubled(mr.PerReplica(made.none.values)),
    "a PerReplica that was made before": lambda made: made.doubled(made.held),
    "reduced": lambda made: made.strategy.reduce("SUM", mr.PerReplica(made.none.values), axis=None),
    "gathered": lambda made: made.strategy.gather(mr.PerReplica(made.sum.values), axis=0),
    "local results": lambda made: [jnp.asarray(one) for one in made.strategy.experimental_local_results(made.none)],
    "mirrored values": lambda made: made.doubled(mr.PerReplica(made.mirrored.values)),
    "the variable itself": lambda made: made.doubled(made.sum),
    "after an assignment": lambda made: (
        made.none.values[1].assign(jnp.full(2, 7.0)),
        made.doubled(made.held),
        [jnp.asarray(one) for one in made.none.values],
    ),
    "assigned from components": lambda made: (
        made.sum.assign(mr.PerReplica(made.none.values)),
        made.mirrored.assign(made.none.values[1]),
        made.mirrored.read_value(),
    ),
    "after a run": lambda made: (
        made.strategy.run(lambda: made.none.assign_add(jnp.ones(2), read_value=False)),
        made.doubled(made.held),
    )[1],
    "the aggregate": lambda made: made.sum.read_value(),
}


def arrays(result: Any) -> list[Any]:
    leaves = [
        one
        for leaf in jax.tree.leaves(result, is_leaf=lambda leaf: isinstance(leaf, mr.DistributedValues))
        for one in (leaf.values if isinstance(leaf, mr.PerReplica) else [leaf])
    ]
    return [np.asarray(leaf) for leaf in leaves if leaf is not None]


def state(made: Made) -> list[Any]:
    return [one.numpy() for v in (made.none, made.sum, made.mirrored) for one in v.values]


@LAYOUT
@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.sampled(8)
@pytest.mark.first(5)
def test_components_outside_run_have_the_values_of_an_eager_call(name: str, layout: str) -> None:
    eager, compiled = Made(layout), Made(layout)
    function = mr.function(lambda: OUTSIDE[name](compiled))
    for _ in range(2):  # the second call must not see values that the first one has traced
        expected, found = arrays(OUTSIDE[name](eager)), arrays(function())
        assert len(expected) == len(found) > 0
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(state(eager), state(compiled), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(arrays(eager.doubled(eager.held)), arrays(compiled.doubled(compiled.held)))


INSIDE: dict[str, Callable[[Made], Any]] = {
    "the own value": lambda made: made.none.read_value() * 1,
    "all values": lambda made: jnp.stack([one.read_value() for one in made.mirrored.values]),
    "all components": lambda made: jnp.stack([one.read_value() for one in made.none.values]),
    "the aggregate of a replica": lambda made: made.sum * 1,
    "a held PerReplica": lambda made: mr.get_replica_context().merge_call(
        lambda strategy: strategy.reduce("SUM", made.held, axis=None)
    ),
    "values in a merge": lambda made: mr.get_replica_context().merge_call(
        lambda strategy: strategy.reduce("SUM", mr.PerReplica(made.none.values), axis=None)
    ),
    "values in a merge, read": lambda made: mr.get_replica_context().merge_call(
        lambda strategy: jnp.stack([one.read_value() for one in made.none.values])
    ),
}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return arrays(call())
    except MirroredError as error:
        return type(error)


@LAYOUT
@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.sampled(8)
def test_components_inside_run_have_the_values_of_an_eager_run(name: str, layout: str) -> None:
    eager, compiled = Made(layout), Made(layout)
    expected = outcome(lambda: eager.strategy.run(lambda: INSIDE[name](eager)))
    found = outcome(mr.function(lambda: compiled.strategy.run(lambda: INSIDE[name](compiled))))
    np.testing.assert_array_equal(expected, found)


def test_a_function_takes_the_components_as_an_argument() -> None:
    made = Made("2 devices")
    function = mr.function(made.doubled)
    for _ in range(2):
        np.testing.assert_array_equal(arrays(function(made.held)), [[0.0, 2.0], [2.0, 4.0]])
        np.testing.assert_array_equal(arrays(function(mr.PerReplica(made.none.values))), [[0.0, 2.0], [2.0, 4.0]])
    made.strategy.run(lambda: made.none.assign_add(jnp.ones(2), read_value=False))
    np.testing.assert_array_equal(arrays(function(made.held)), [[2.0, 4.0], [4.0, 6.0]])
    assert function.trace_count == 1


@pytest.mark.parametrize("read", ["numpy", "__array__"])
def test_values_for_the_host_are_refused_with_the_remedy(read: str) -> None:
    made = Made("2 devices")
    with pytest.raises((ContextError, jax.errors.TracerArrayConversionError)):
        mr.function(lambda: getattr(made.none.values[0], read)())()


def test_slots_and_counters_of_optimizers_have_their_values() -> None:
    made = Made("2 on 1 device")
    with made.strategy.scope():
        optimizer = mr.optimizers.Adam(0.1)
        optimizer.build([made.mirrored])
    optimizer.apply_gradients([(jnp.ones(2), made.mirrored)])
    slots = optimizer.slots(made.mirrored)

    def read() -> Any:
        variables = [*optimizer.variables, *slots.values()]
        return [one.read_value() for v in variables for one in v.values], [
            made.doubled(mr.PerReplica(v.values)) for v in slots.values()
        ]

    for one, other in zip(arrays(read()), arrays(mr.function(read)()), strict=True):
        np.testing.assert_array_equal(one, other)
