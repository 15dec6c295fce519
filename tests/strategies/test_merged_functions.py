"""Functions of `merge_call`, and custom reductions, that close over arrays: equal ones only, and none on a tape."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import MergeError, ReplicaDivergenceError, TapeError
from wrapping import decorator

LAYOUTS = [(2, 2), (1, 2), (2, 4)]
layouts = pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def made(devices: int, replicas: int, compiled: bool) -> tuple[mr.MirroredStrategy, Any]:
    """Returns a strategy, and a function that runs a replica function, with one number per replica as an argument."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(context.replica_id_in_sync_group)
    )

    def run(replica: Any) -> Any:
        whole = lambda numbers: strategy.run(replica, args=(numbers,))  # noqa: E731
        return (mr.function(whole) if compiled else whole)(numbers)

    return strategy, run


def closure(value: Any) -> Any:
    return lambda strategy: value * 10.0


def nested(value: Any) -> Any:
    def helper() -> Any:
        return value * 10.0

    return lambda strategy: helper()


def contained(value: Any) -> Any:
    values = {"deep": [value]}
    return lambda strategy: values["deep"][0] * 10.0


def default(value: Any) -> Any:
    return lambda strategy, own=value: own * 10.0


def bound(value: Any) -> Any:
    return functools.partial(lambda strategy, own: own * 10.0, own=value)


def jitted(value: Any) -> Any:
    helper = jax.jit(lambda number: number * value)
    return lambda strategy: helper(10.0)


class Decorator:
    def __init__(self, function: Any, value: Any) -> None:
        functools.update_wrapper(self, function)
        self.function, self.value = function, value

    def __call__(self, strategy: Any) -> Any:
        return self.function(strategy) * self.value


def decorator_object(value: Any) -> Any:
    return Decorator(lambda strategy: 10.0, value)


class Attribute:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, strategy: Any) -> Any:
        return self.value * 10.0


KINDS = [closure, nested, contained, default, bound, decorator, jitted, decorator_object, Attribute]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@layouts
@ways
@kinds
def test_a_merged_function_must_not_close_over_arrays_that_differ(
    devices: int, replicas: int, compiled: bool, kind: Any
) -> None:
    _, run = made(devices, replicas, compiled)
    with pytest.raises(MergeError, match="merge_call"):
        run(lambda number: mr.get_replica_context().merge_call(kind(number + 1.0)))


@layouts
@ways
def test_a_merged_function_must_not_close_over_the_replica_id(devices: int, replicas: int, compiled: bool) -> None:
    _, run = made(devices, replicas, compiled)

    def replica(number: Any) -> Any:
        context = mr.get_replica_context()
        return context.merge_call(closure(context.replica_id_in_sync_group))

    with pytest.raises(MergeError, match="merge_call"):
        run(replica)


@layouts
@ways
@kinds
@pytest.mark.first(18)
def test_a_merged_function_may_close_over_arrays_that_are_equal(
    devices: int, replicas: int, compiled: bool, kind: Any
) -> None:
    strategy, run = made(devices, replicas, compiled)
    total = lambda number: mr.get_replica_context().all_reduce("SUM", number)  # noqa: E731
    results = strategy.experimental_local_results(
        run(lambda number: mr.get_replica_context().merge_call(kind(total(number) + jnp.ones(()))))
    )
    assert [float(one) for one in results] == [10.0 * (sum(range(replicas)) + 1)] * len(results)


@layouts
@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(3.0),
        lambda: np.float32("nan"),
        lambda: jax.random.key(3),
        lambda: jnp.zeros((0, 2), "bfloat16"),
    ],
    ids=["numpy", "nan", "key", "empty"],
)
def test_arrays_that_each_replica_creates_are_compared_by_their_bits(devices: int, replicas: int, make: Any) -> None:
    _, run = made(devices, replicas, False)

    def replica(number: Any) -> Any:
        own = make()
        return mr.get_replica_context().merge_call(
            lambda strategy: None if own is None else strategy.num_replicas_in_sync
        )

    assert run(replica) == replicas


def test_the_error_shows_the_arrays() -> None:
    _, run = made(1, 2, False)
    with pytest.raises(MergeError, match=r"value=float32\[\] 1.0, and replica 1 with .* value=float32\[\] 2.0"):
        run(lambda number: mr.get_replica_context().merge_call(closure(number + 1.0)))


@layouts
@ways
def test_a_custom_reduction_must_not_close_over_arrays_that_differ(devices: int, replicas: int, compiled: bool) -> None:
    _, run = made(devices, replicas, compiled)
    with pytest.raises(MergeError, match="all_reduce"):
        run(lambda number: mr.get_replica_context().all_reduce(lambda stacked: stacked.max(0) * number, jnp.ones(2)))


# Tapes


@layouts
@ways
def test_a_merged_function_must_not_close_over_what_a_tape_tracks(devices: int, replicas: int, compiled: bool) -> None:
    strategy, run = made(devices, replicas, compiled)
    with strategy.scope():
        variable = mr.Variable(3.0, name="v")

    def replica(number: Any) -> Any:
        with mr.GradientTape() as tape:
            doubled = variable * 2.0
            result = mr.get_replica_context().merge_call(lambda strategy: doubled * 5.0)
        return tape.gradient(result, variable)

    with pytest.raises(TapeError, match=r"closes over 'doubled'(.|\n)*args=\(doubled,\)"):
        run(replica)


@pytest.mark.parametrize("inner", [False, True], ids=["no inner tape", "inner tape"])
@pytest.mark.parametrize("where", ["eager", "compiled", "tape in the compiled function"])
@layouts
@pytest.mark.first(4)
def test_a_merged_function_closes_over_what_an_outer_tape_tracks(
    devices: int, replicas: int, where: str, inner: bool
) -> None:
    strategy, _ = made(devices, replicas, compiled=False)
    with strategy.scope():
        variable = mr.Variable(3.0, name="v")

    def replica(tracked: Any) -> Any:
        context = mr.get_replica_context()
        with mr.GradientTape() if inner else contextlib.nullcontext():
            merged = context.merge_call(lambda strategy: tracked * 5.0)
        return merged * (context.replica_id_in_sync_group + 1)

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            tracked = x * variable
            call: Any = lambda tracked: strategy.run(lambda: replica(tracked))  # noqa: E731
            shares = (mr.function(call) if where == "compiled" else call)(tracked)
            total = strategy.reduce("SUM", shares, axis=None)
        return total, tape.gradient(total, [x, variable])

    total, gradients = (mr.function(step) if where.startswith("tape") else step)(jnp.float32(2.0))
    ids = sum(range(1, replicas + 1))
    assert float(total) == 30.0 * ids
    assert [float(gradient) for gradient in gradients] == [15.0 * ids, 10.0 * ids]


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("tape", [False, True], ids=["no tape", "tape"])
@layouts
@pytest.mark.first(6)
def test_a_merged_function_closes_over_what_a_run_computes_from_mirrored_values(
    devices: int, replicas: int, tape: bool, deterministic: bool
) -> None:
    """Under a tape around a deterministic run each replica has a read of its own, but of one value."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        variable = mr.Variable(3.0, name="v")

    @mr.function
    def step(factor: Any) -> Any:
        def replica(factor: Any) -> Any:
            context = mr.get_replica_context()
            own, passed = variable * 2.0, factor * 5.0
            number = context.replica_id_in_sync_group + 1.0
            merged: Any = lambda strategy, number: strategy.reduce("SUM", number, axis=None) * own * passed  # noqa: E731
            return context.merge_call(merged, args=(number,))

        return strategy.run(replica, args=(factor,))

    with mr.GradientTape() if tape else contextlib.nullcontext() as recorder:
        result = step(jnp.float32(2.0))
    ids = sum(range(1, replicas + 1))
    assert float(result) == 60.0 * ids
    if tape:
        assert float(recorder.gradient(result, variable)) == 20.0 * ids


@layouts
def test_a_merged_function_of_a_deterministic_run_must_not_close_over_arrays_that_differ(
    devices: int, replicas: int
) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=True)
    with strategy.scope():
        variable = mr.Variable(3.0, name="v")

    def replica() -> Any:
        context = mr.get_replica_context()
        own = variable * context.replica_id_in_sync_group
        return context.merge_call(lambda strategy: own)

    with mr.GradientTape(), pytest.raises(MergeError, match="closes over 'own'"):
        mr.function(lambda: strategy.run(replica))()


@layouts
@ways
def test_a_merged_function_under_a_tape_must_not_return_a_function_of_a_variable(
    devices: int, replicas: int, compiled: bool
) -> None:
    strategy, run = made(devices, replicas, compiled)
    with strategy.scope():
        variable = mr.Variable(3.0, name="v")

    def replica(number: Any) -> Any:
        with mr.GradientTape() as tape:
            result = mr.get_replica_context().merge_call(lambda strategy: variable * 5.0)
        return tape.gradient(result, variable)

    with pytest.raises(TapeError, match=r"reads the trainable variable 'v'"):
        run(replica)


@layouts
@ways
def test_a_merged_function_under_a_tape_may_update_variables(devices: int, replicas: int, compiled: bool) -> None:
    strategy, run = made(devices, replicas, compiled)
    with strategy.scope():
        variable = mr.Variable(3.0, name="v")
        statistic = mr.Variable(1.0, name="s", trainable=False)

    def update(strategy: mr.MirroredStrategy, value: Any) -> None:
        total = strategy.reduce("SUM", value, axis=None)
        variable.assign(variable + total)

    def average(strategy: mr.MirroredStrategy, value: Any) -> Any:
        return statistic * strategy.reduce("MEAN", value, axis=None)

    def replica(number: Any) -> Any:
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            loss = context.merge_call(average, args=(variable * 2.0,))
            context.merge_call(update, args=(number,))
        return tape.gradient(loss, variable)

    gradients = strategy.experimental_local_results(run(replica))
    assert [float(gradient) for gradient in gradients] == [2.0] * len(gradients)
    assert float(variable) == 3.0 + sum(range(replicas))


@pytest.mark.parametrize("under_tape", [False, True], ids=["no tape", "tape"])
@pytest.mark.ways(replicas=(2, 4))
def test_a_merge_reads_the_component_that_a_run_in_it_has_assigned_on_another_replica(way, under_tape):
    """Under a tape in a compiled run, the merge read the components of its own device: replicas diverged, silently."""
    with way.strategy.scope():
        on_read = mr.VariableSynchronization.ON_READ
        count = mr.Variable(0.0, trainable=False, synchronization=on_read, aggregation=mr.VariableAggregation.SUM)
        factor = mr.Variable(1.0)
    last = way.num_replicas - 1

    def number() -> Any:
        return jnp.float32(mr.get_replica_context().replica_id_in_sync_group)

    def merged(strategy: Any, value: Any) -> Any:
        strategy.run(lambda: count.assign(number() + 1.0))
        return [jnp.asarray(count.values[last]), count.read_value()]

    def replica_step() -> Any:
        with mr.GradientTape() if under_tape else contextlib.nullcontext():
            return mr.get_replica_context().merge_call(merged, args=(factor * 2.0,))

    component, total = way.compile(lambda: way.strategy.run(replica_step))()
    for result, expected in ((component, last + 1.0), (total, (last + 1) * (last + 2) / 2)):
        results = [float(one) for one in way.strategy.experimental_local_results(result)]
        assert results == [expected] * len(results)
    assert [float(one) for one in count.values] == [k + 1.0 for k in range(way.num_replicas)]


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(2, 4))
def test_a_merge_reads_components_in_a_jitted_function_and_again_after_it(way):
    """The components that the function had joined, tracers of its trace, were kept and read after it."""
    with way.strategy.scope():
        count = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    last = way.num_replicas - 1

    def merged(_: Any) -> Any:
        first = jax.jit(lambda x: count.values[0].read_value() + x)(0.0)
        return first, count.values[last].read_value() * 1.0

    def replica_step() -> Any:
        count.assign(jnp.float32(mr.get_replica_context().replica_id_in_sync_group) + 1.0)
        return mr.get_replica_context().merge_call(merged)

    first, second = mr.function(lambda: way.strategy.run(replica_step))()
    assert (float(first), float(second)) == (1.0, last + 1.0)


@layouts
@ways
@pytest.mark.parametrize("under_tape", [False, True], ids=["no tape", "tape"])
@pytest.mark.parametrize("equal", [False, True], ids=["different", "equal"])
def test_a_merge_reads_a_mirrored_variable_only_if_the_replicas_have_assigned_equal_values(
    devices, replicas, compiled, under_tape, equal
):
    """In a compiled run each device read its own value if the variable had another value again at the end."""
    strategy, run = made(devices, replicas, compiled)
    with strategy.scope():
        v = mr.Variable(0.0, trainable=False)

    def replica(number: Any) -> Any:
        context = mr.get_replica_context()
        v.assign(context.all_reduce("SUM", number) if equal else number)
        with mr.GradientTape() if under_tape else contextlib.nullcontext():
            result = context.merge_call(lambda _, x: v.read_value(), args=(number,))
        v.assign(0.0)
        return result

    if not equal:
        with pytest.raises(ReplicaDivergenceError, match=r"would differ between replicas"):
            run(replica)
        return
    results = [float(one) for one in strategy.experimental_local_results(run(replica))]
    assert results == [replicas * (replicas - 1) / 2] * len(results)


@layouts
@ways
def test_a_merge_checks_a_variable_of_which_a_replica_has_read_a_component_of_another(devices, replicas, compiled):
    """In a compiled run the merge used the value that the read had combined, and each device its own, silently."""
    strategy, run = made(devices, replicas, compiled)
    with strategy.scope():
        v = mr.Variable(0.0, trainable=False)

    def merged(_: Any) -> Any:
        value = v * 2.0
        v.assign(1.0)
        return value

    def replica(number: Any) -> Any:
        v.assign(number)
        v.values[1].read_value()
        return mr.get_replica_context().merge_call(merged)

    with pytest.raises(ReplicaDivergenceError, match=r"would differ between replicas"):
        run(replica)


@pytest.mark.parametrize("concrete", [0, 1])
def test_a_merged_function_closes_over_a_concrete_array_on_one_replica_and_a_traced_one_on_another(concrete):
    """Only the traced array was recorded, and the compiled run raised a ValueError of `zip`."""
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2)
    values: list[Any] = []

    def replica(x: Any) -> Any:
        values.append(jnp.float32(2.0) if len(values) == concrete else x * 2.0)
        return mr.get_replica_context().merge_call(closure(values[-1]))

    with pytest.raises(MergeError, match=r"(?s)closes over 'value', which would differ.*the constant 2.0"):
        mr.function(lambda x: strategy.run(replica, args=(x,)))(jnp.float32(1.0))
