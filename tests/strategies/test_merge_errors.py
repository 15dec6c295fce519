"""Merges that raise: every replica can catch the exception, and no assignment of the merge takes effect."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import DeviceError, LossScaleWarning, MergeError, StructureError, VariableError
from mirrored.runtime.variable_store import FunctionStore

ways = pytest.mark.ways(replicas=(1, 4))


class Wrong(Exception):
    """What the merges of this module raise."""


def made(way: Any) -> tuple[Any, Any]:
    with way.strategy.scope():
        return mr.Variable(jnp.zeros(()), name="a"), mr.Variable(jnp.full((), 7.0), name="b")


def failing(*variables: Any) -> Any:
    def merge(strategy: Any) -> None:
        for variable in variables:
            variable.assign(variable + 100.0)
        raise Wrong

    return merge


@ways
def test_the_assignments_of_a_merge_that_raises_are_undone(way):
    a, b = made(way)

    def replica() -> Any:
        context = mr.get_replica_context()
        context.merge_call(lambda strategy: a.assign(1.0))
        with contextlib.suppress(Wrong):
            context.merge_call(failing(a, b))
        return a + b

    result = way.compile(lambda: way.strategy.reduce("MEAN", way.strategy.run(replica), axis=None))()
    assert [float(a), float(b), float(result)] == [1.0, 7.0, 8.0]


@ways
def test_a_plain_variable_is_restored_too(way):
    _, b = made(way)
    plain = mr.Variable(jnp.full((), 3.0), name="plain")

    def replica() -> None:
        with contextlib.suppress(Wrong):
            mr.get_replica_context().merge_call(failing(plain, b))

    way.compile(lambda: way.strategy.run(replica))()
    assert [float(plain), float(b)] == [3.0, 7.0]


@ways
def test_a_merge_inside_a_merge_is_undone_alone(way):
    a, b = made(way)

    def merge(strategy: Any) -> None:
        a.assign(1.0)
        with contextlib.suppress(Wrong):
            strategy.run(lambda: mr.get_replica_context().merge_call(failing(a, b)))
        b.assign(b + 1.0)

    way.compile(lambda: way.strategy.run(lambda: mr.get_replica_context().merge_call(merge)))()
    assert [float(a), float(b)] == [1.0, 8.0]


@ways
def test_a_merge_whose_inner_merge_succeeds_is_undone_as_a_whole(way):
    a, b = made(way)

    def merge(strategy: Any) -> None:
        a.assign(1.0)
        strategy.run(lambda: mr.get_replica_context().merge_call(lambda strategy: b.assign(2.0)))
        raise Wrong

    def replica() -> None:
        with contextlib.suppress(Wrong):
            mr.get_replica_context().merge_call(merge)

    way.compile(lambda: way.strategy.run(replica))()
    assert [float(a), float(b)] == [0.0, 7.0]


@ways
def test_an_update_that_fails_halfway_updates_nothing(way):
    """The rule returns the new value of the second variable in a wrong shape: the first one is assigned by then."""
    with way.strategy.scope():
        first, second = mr.Variable(jnp.ones(2), name="first"), mr.Variable(jnp.ones(3), name="second")
        optimizer = mr.optimizers.SGD(0.5)
    optimizer.build([first, second])
    compute = optimizer._compute

    def wrong(*args: Any, **options: Any) -> Any:
        new, state = compute(*args, **options)
        return [new[0], new[1][:2]], state

    def replica() -> None:
        optimizer._compute = wrong
        with contextlib.suppress(VariableError):
            optimizer.apply_gradients([(jnp.ones(2), first), (jnp.ones(3), second)])
        optimizer._compute = compute
        optimizer.apply_gradients([(jnp.ones(3) / way.num_replicas, second)])

    way.compile(lambda: way.strategy.run(replica))()
    np.testing.assert_array_equal(first, [1.0, 1.0])
    np.testing.assert_array_equal(second, [0.5, 0.5, 0.5])
    assert int(optimizer.iterations) == 1


@pytest.mark.ways(modes=("compiled",), replicas=(4,))
@pytest.mark.parametrize("fails", [False, True])
def test_only_an_update_that_takes_effect_is_checked_for_the_scale_of_its_loss(way, fails):
    with way.strategy.scope():
        w = mr.Variable(jnp.ones(3), name="w")
        optimizer = mr.optimizers.SGD(0.5)
    compute = optimizer._compute

    def computed(*args: Any, **options: Any) -> Any:
        new, state = compute(*args, **options)
        return [jnp.ones(2)] if fails else new, state

    optimizer._compute = computed

    def replica(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = jnp.mean((x @ w) ** 2)
        with contextlib.suppress(VariableError):
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    (batch,) = way.strategy.experimental_distribute_dataset([np.ones((8, 3), np.float32)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        way.compile(lambda x: way.strategy.run(replica, args=(x,)))(batch)
    assert [warning.category for warning in caught] == ([] if fails else [LossScaleWarning])


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(1, 4))
def test_a_helper_that_read_the_undone_value_reads_the_old_one(way):
    a, b = made(way)

    @jax.jit
    def helper(x: Any) -> Any:
        return x + a.read_value()

    def merge(strategy: Any) -> None:
        a.assign(100.0)
        helper(jnp.ones(()))
        raise Wrong

    def replica() -> None:
        with contextlib.suppress(Wrong):
            mr.get_replica_context().merge_call(merge)
        b.assign(mr.get_replica_context().all_reduce("MEAN", helper(jnp.ones(()))))

    way.compile(lambda: way.strategy.run(replica))()
    assert float(b) == 1.0


@ways
def test_a_tape_goes_on_after_a_merge_that_raises(way):
    a, b = made(way)

    def replica() -> Any:
        with mr.GradientTape() as tape:
            loss = b * b
            with contextlib.suppress(Wrong):
                mr.get_replica_context().merge_call(failing(a, b))
            loss = loss + b
        gradient = tape.gradient(loss, b)
        return mr.get_replica_context().all_reduce("MEAN", gradient)

    result = way.compile(lambda: way.strategy.reduce("MEAN", way.strategy.run(replica), axis=None))()
    assert [float(a), float(b), float(result)] == [0.0, 7.0, 15.0]


@ways
def test_a_merge_that_raises_uncaught_ends_the_run(way):
    a, b = made(way)

    def replica() -> None:
        a.assign(5.0)
        mr.get_replica_context().merge_call(failing(a, b))

    with pytest.raises(Wrong):
        way.compile(lambda: way.strategy.run(replica))()
    assert [float(a), float(b)] == [0.0, 7.0]


@ways
def test_a_run_that_raises_in_a_function_assigns_nothing(way):
    a, b = made(way)

    def replica() -> None:
        a.assign(5.0)
        raise Wrong

    def step() -> None:
        with contextlib.suppress(Wrong):
            way.strategy.run(replica)
        b.assign(a + 1.0)

    way.compile(step)()
    assert [float(a), float(b)] == [0.0, 1.0]


def test_a_nested_call_that_succeeds_is_undone_with_the_outer_one():
    store = FunctionStore()
    variable: Any = mr.Variable(1.0)
    value = jnp.ones(())

    def outer() -> None:
        store.with_staged_rollback(lambda: store.set_whole(variable, value, ""))
        raise Wrong

    with pytest.raises(Wrong):
        store.with_staged_rollback(outer)
    assert store.staged == {}


# Calls that are not the same on all replicas. Only the values may differ.


def _chosen(*choices: Any) -> Any:
    """Returns the choice of the calling replica, as a Python branch on the replica id makes it in an eager run."""
    return choices[0 if mr.get_replica_context().local_index == 0 else 1]


def _largest(stacked: jax.Array) -> jax.Array:
    return jnp.max(stacked, axis=0)


def _smallest(stacked: jax.Array) -> jax.Array:
    return jnp.min(stacked, axis=0)


class Scaled(mr.ReduceOp):
    """A custom reduction with state, and without an equality of its own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def __call__(self, per_replica: jax.Array) -> jax.Array:
        return self.scale * jnp.sum(per_replica, axis=0)


DIFFERENT: dict[str, tuple[Any, str]] = {
    "reduction": (
        lambda context, _: context.all_reduce(_chosen("SUM", "MEAN"), jnp.ones(2)),
        "replica 0 called it with reduce_op SUM, and replica 1 with reduce_op MEAN",
    ),
    "custom reduction": (
        lambda context, _: context.all_reduce(_chosen(_largest, _smallest), jnp.ones(2)),
        "reduce_op _largest, and replica 1 with reduce_op _smallest",
    ),
    "state of a custom reduction": (
        lambda context, _: context.all_reduce(Scaled(_chosen(1.0, 2.0)), jnp.ones(2)),
        "reduce_op Scaled, and replica 1 with reduce_op Scaled",
    ),
    "structure": (
        lambda context, _: context.all_reduce("SUM", {_chosen("a", "b"): jnp.ones(2)}),
        r"the structure PyTreeDef\(\{'a': \*\}\), and replica 1 with the structure PyTreeDef\(\{'b': \*\}\)",
    ),
    "axis": (
        lambda context, _: context.all_gather(jnp.ones((1, 2)), axis=_chosen(0, 1)),
        "axis 0, and replica 1 with axis 1",
    ),
    "function of merge_call": (
        lambda context, _: context.merge_call(_chosen(lambda strategy: 1, lambda strategy: 2)),
        "the function",
    ),
    "variable": (
        lambda _, made: _chosen(*made["variables"]).assign(jnp.ones(())),
        r"with same \(id 0x.*\), and replica 1 with same \(id",
    ),
    "optimizer": (
        lambda _, made: _chosen(*made["optimizers"]).apply_gradients([(jnp.ones(()), made["variables"][0])]),
        r"SGD \(id 0x.*\), and replica 1 with SGD \(id",
    ),
}


@pytest.mark.ways(modes=("eager", "folded"), replicas=(2, 4))
@pytest.mark.parametrize("case", DIFFERENT)
def test_replicas_whose_collectives_differ_are_refused(way: Any, case: str) -> None:
    call, told = DIFFERENT[case]
    with way.strategy.scope():
        made = {
            "variables": [mr.Variable(0.0, name="same", aggregation=mr.VariableAggregation.SUM) for _ in range(2)],
            "optimizers": [mr.optimizers.SGD(1.0) for _ in range(2)],
        }

    def replica() -> None:
        call(mr.get_replica_context(), made)

    with pytest.raises(StructureError if case == "structure" else MergeError, match=told):
        way.compile(lambda: way.strategy.run(replica))()
    assert [float(variable) for variable in made["variables"]] == [0.0, 0.0]


@pytest.mark.ways(modes=("eager", "folded"), replicas=(2,))
def test_functions_and_reductions_that_every_replica_makes_anew_are_the_same(way: Any) -> None:
    def replica() -> Any:
        context = mr.get_replica_context()
        local, none = context.local_index, 0  # a number that differed between replicas would be refused
        merged = context.merge_call(
            lambda strategy, x: strategy.reduce("SUM", x, axis=None) + none, args=(jnp.ones(()),)
        )
        largest = context.all_reduce(lambda stacked: jnp.max(stacked, axis=0), jnp.float32(local))

        class Smallest(mr.ReduceOp):
            def __call__(self, per_replica: jax.Array) -> jax.Array:
                return jnp.min(per_replica, axis=0)

        smallest = context.all_reduce(Smallest(), jnp.float32(local))
        return merged, largest, smallest, context.all_reduce(Scaled(2.0), jnp.float32(local))

    results = way.compile(lambda: way.strategy.run(replica))()
    assert [float(way.strategy.experimental_local_results(one)[0]) for one in results] == [2.0, 1.0, 0.0, 2.0]


LAYOUTS = [(1, 2), (2, 2), (2, 4)]


def _combined(strategy: mr.MirroredStrategy, name: str) -> object:
    def own() -> jax.Array:
        context = mr.get_replica_context()
        return jnp.ones(2, jnp.float32 if context.replica_id_in_sync_group == 0 else jnp.int32)

    context = mr.get_replica_context
    if name == "all_reduce":
        return strategy.run(lambda: context().all_reduce("SUM", own()))
    if name == "all_gather":
        return strategy.run(lambda: context().all_gather(own(), axis=0))
    if name == "gather":
        return strategy.gather(strategy.run(own), axis=0)
    return strategy.reduce("SUM", strategy.run(own), axis=None)


@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "gather", "reduce"])
def test_values_of_several_dtypes_are_refused_in_every_layout(devices: int, replicas: int, name: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with pytest.raises(StructureError, match="the components have the dtypes float32, int32"):
        _combined(strategy, name)


def _times(strategy: object, x: object, factor: int) -> int:
    del strategy, x
    return factor


@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
@pytest.mark.parametrize("kind", ["partial", "closure", "default"])
def test_a_merged_function_bound_to_other_numbers_is_refused(devices: int, replicas: int, kind: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)

    def replica() -> object:
        context = mr.get_replica_context()
        own = context.replica_id_in_sync_group
        merged = {
            "partial": functools.partial(_times, factor=own),
            "closure": lambda strategy, x: _times(strategy, x, own),
            "default": lambda strategy, x, factor=own: _times(strategy, x, factor),
        }[kind]
        return context.merge_call(merged, args=(jnp.ones(2),))

    with pytest.raises(MergeError, match="(factor|own|0)=0, and replica 1 with .*=1"):
        strategy.run(replica)


@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
def test_a_merged_function_may_close_over_equal_numbers_and_over_own_objects(devices: int, replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)

    def replica() -> object:
        factor, nan, late = 3, float("nan"), []

        def merged(strategy: mr.MirroredStrategy, x: jax.Array, other: float = nan) -> jax.Array:
            late.append(other)
            return strategy.reduce("SUM", x, axis=None) * factor

        return mr.get_replica_context().merge_call(functools.partial(merged, other=nan), args=(jnp.ones(2),))

    for component in strategy.experimental_local_results(strategy.run(replica)):
        assert component.tolist() == [3.0 * replicas] * 2


@pytest.mark.first(3)
@ways
def test_an_update_that_fails_after_a_merge_is_undone_on_every_replica(way):
    """Each replica restored what another one had saved: the first kept its new values, and the replicas diverged."""
    with way.strategy.scope():
        a = mr.Variable(0.0, name="a")
        merged = mr.Variable(0.0, name="merged", aggregation="MEAN")
        wrong = mr.Variable(0.0, name="wrong", constraint=lambda value: jnp.stack([value, value]))
        optimizer = mr.optimizers.SGD(1.0)

    def replica() -> Any:
        pairs = [(jnp.ones(()), one) for one in (a, merged, wrong)]
        with contextlib.suppress(VariableError, StructureError):
            optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        read = [a.read_value(), merged.read_value()]
        a.assign(5.0)
        return read

    results = way.compile(lambda: way.strategy.run(replica))()
    for result in results:
        assert [float(one) for one in way.strategy.experimental_local_results(result)] == [0.0] * way.num_replicas
    assert [float(a), float(merged), int(optimizer.iterations)] == [5.0, 0.0, 0]


@pytest.mark.parametrize("kind", ["result of a reduction", "replicated array", "component"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_merge_under_an_eager_tape_explains_arrays_on_other_devices(kind: str, replicas: int) -> None:
    """The function computes on the device of the first replica; JAX raised its error about incompatible devices."""
    strategy = mr.MirroredStrategy(["cpu:0", "cpu:1"], num_replicas=replicas)
    x = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(2 + context.replica_id_in_sync_group)
    )
    outer = strategy.reduce("SUM", x, axis=None)
    if kind == "replicated array":
        mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
        outer = jax.device_put(outer, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    with strategy.scope():
        w = mr.Variable(1.5)

    def step(outer: Any) -> Any:
        def merged(strategy: Any, value: Any) -> Any:
            other = strategy.experimental_local_results(value)[-1] if kind == "component" else outer
            return strategy.reduce("SUM", value, axis=None) * other

        def body(value: Any) -> Any:
            with mr.GradientTape() as tape:
                y = mr.get_replica_context().merge_call(merged, args=(value * w,))
            return tape.gradient(y, w)

        return lambda: strategy.run(body, args=(x,))

    with pytest.raises(DeviceError, match=r"merge_call\(merged\): the function combines arrays on different devices"):
        step(outer)()
    if kind != "component":
        results = strategy.experimental_local_results(step(np.asarray(outer))())
        np.testing.assert_allclose(results, mr.function(step(outer))().values)
