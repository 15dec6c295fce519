"""What a replica returns of `merge_call`: one object for all replicas is one value, eagerly and compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

CLOSED_OVER = jnp.arange(3.0)


def total(strategy, x):
    return strategy.reduce("SUM", x, axis=None)


def merged(function):
    return lambda x: mr.get_replica_context().merge_call(function, args=(x,))


FUNCTIONS = {
    "reduced": merged(total),
    "created": merged(lambda strategy, x: jnp.zeros(2)),
    "closed over": merged(lambda strategy, x: CLOSED_OVER),
    "number": merged(lambda strategy, x: 3.0),
    "computed in the merge": merged(lambda strategy, x: total(strategy, x) * 2 + 1),
    "mirrored": merged(lambda strategy, x: strategy.extended.reduce_to("SUM", x, x)),
    "argument": merged(lambda strategy, x: x),
    "several": merged(lambda strategy, x: (x, {"total": total(strategy, x)}, None)),
    "computed after the merge": lambda x: merged(total)(x) + 1,
    "all-reduced": lambda x: mr.get_replica_context().all_reduce("SUM", x),
    "two merges": lambda x: (merged(total)(x), merged(total)(x * 2)),
    "nested": lambda x: merged(total)(merged(total)(x) * x),
    "twice": merged(lambda strategy, x: (total(strategy, x),) * 2),
    "integers": lambda x: merged(total)(x.astype(jnp.int32)),
}


def under_tape(merge_fn):
    def replica(x):
        with mr.GradientTape() as tape:
            tape.watch(x)
            result = merged(merge_fn)(x)
        return result

    return replica


FUNCTIONS |= {
    "NumPy scalar": merged(lambda strategy, x: np.float32(3)),
    "NumPy array": merged(lambda strategy, x: np.ones(2, np.float32)),
    "under a tape": under_tape(total),
    "independent of the tape": under_tape(lambda strategy, x: jnp.zeros(2)),
    "squared under a tape": under_tape(lambda strategy, x: total(strategy, x) ** 2),
    "NumPy scalar under a tape": under_tape(lambda strategy, x: np.float32(3)),
    "in a dict under a tape": under_tape(lambda strategy, x: {"total": total(strategy, x), "x": x}),
}
LAYOUTS = [(2, 1), (2, 2), (4, 2), (3, 2)]


def inputs(strategy):
    return strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(context.replica_id_in_sync_group + 1)
    )


def described(result):
    """Returns the structure of a result, where a per-replica value is a list, and its arrays."""

    def is_leaf(leaf):
        return leaf is None or isinstance(leaf, mr.PerReplica)

    leaves, treedef = jax.tree.flatten(result, is_leaf=is_leaf)
    arrays = [
        [*map(np.asarray, leaf.values)] if isinstance(leaf, mr.PerReplica) else np.asarray(leaf) for leaf in leaves
    ]
    return treedef, [isinstance(leaf, mr.PerReplica) for leaf in leaves], arrays


@pytest.mark.sampled(5)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "deterministic"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.first(6)
def test_eager_and_compiled_runs_return_the_same_structure(name, layout, deterministic):
    replicas, devices = layout
    strategy = mr.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], num_replicas=replicas, deterministic=deterministic
    )

    def run(x):
        return strategy.run(FUNCTIONS[name], args=(x,))

    eager, compiled = described(run(inputs(strategy))), described(mr.function(run)(inputs(strategy)))
    assert compiled[:2] == eager[:2]
    jax.tree.map(np.testing.assert_array_equal, compiled[2], eager[2])


def test_one_object_is_one_value():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4)
    compiled = mr.function(lambda x: strategy.run(FUNCTIONS["reduced"], args=(x,)))
    result = compiled(inputs(strategy))
    assert not isinstance(result, mr.PerReplica)
    assert float(result) == 10.0


_ASSIGNING = {
    "update": lambda strategy, count: strategy.extended.update(count, lambda count: count.assign_add(1.0)),
    "assign": lambda strategy, count: count.assign_add(1.0),
    "both": lambda strategy, count: (count.assign_add(1.0), strategy.extended.update(count, lambda _: jnp.ones(2))),
    "of the values": lambda strategy, count: strategy.extended.update(
        count, lambda count: count.assign_add(1.0), group=False
    ),
}


@pytest.mark.first(12)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "deterministic"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", _ASSIGNING)
def test_the_new_value_of_a_variable_is_each_replicas_own(name, layout, deterministic):
    replicas, devices = layout
    strategy = mr.MirroredStrategy(
        [f"CPU:{i}" for i in range(devices)], num_replicas=replicas, deterministic=deterministic
    )
    with strategy.scope():
        counts = [mr.Variable(1.0), mr.Variable(1.0)]

    def run(count):
        return strategy.run(lambda: merged(_ASSIGNING[name])(count))

    eager, compiled = described(run(counts[0])), described(mr.function(lambda: run(counts[1]))())
    assert compiled[:2] == eager[:2]
    assert eager[1][0]
    jax.tree.map(np.testing.assert_array_equal, compiled[2], eager[2])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_gradient_through_one_value_is_the_same_eagerly_and_compiled(layout):
    replicas, devices = layout
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)
    with strategy.scope():
        w = mr.Variable(2.0)

    def gradient(x):
        with mr.GradientTape() as tape:
            loss = strategy.run(lambda x: merged(total)(x * w), args=(x,)) ** 2
        return tape.gradient(loss, w)

    expected = 2 * 2.0 * sum(range(1, replicas + 1)) ** 2
    assert float(gradient(inputs(strategy))) == expected
    assert float(mr.function(gradient)(inputs(strategy))) == expected


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_variables_and_numpy_scalars_stay_the_same_objects_in_all_replicas(layout):
    replicas, devices = layout
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)
    with strategy.scope():
        count = mr.Variable(1.0)
    found = []

    def step(x):
        variable, number = merged(lambda strategy, x: (count, np.float32(3)))(x)
        variable.assign_add(1.0)
        found.append((variable is count, type(number)))
        return variable.read_value()

    total_of = mr.function(lambda x: strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None))
    assert float(total_of(inputs(strategy))) == 2.0 * replicas
    assert set(found) == {(True, np.float32)}
    assert float(count) == 2.0
