"""`jax.checking_leaks` reports no tracer that the library keeps, and still reports those that a program keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


class State:
    """The variables of a program, and its optimizer."""

    def __init__(self):
        self.w = mr.Variable(1.5, name="w")
        self.loss = mr.Variable(
            0.0, aggregation=mr.VariableAggregation.MEAN, synchronization=mr.VariableSynchronization.ON_READ
        )
        self.optimizer = mr.optimizers.SGD(0.1, momentum=0.9)
        self.optimizer.build([self.w])


def total(strategy, value):
    return strategy.reduce("SUM", value, axis=None)


def second_derivative(state, x):
    with mr.GradientTape() as outer:
        with mr.GradientTape() as inner:
            y = jnp.sin(x * state.w)
        first = inner.gradient(y, state.w)
    return outer.gradient(first, state.w)


def jax_grad(state, x):
    return jax.grad(lambda w: jnp.sin(x * w))(state.w.read_value())


def scan_with_a_variable(state, x):
    with mr.GradientTape() as tape:
        y = jax.lax.scan(lambda carry, _: (carry * state.w, carry), x, None, length=3)[0]
    return tape.gradient(y, state.w)


def cond_with_a_variable(state, x):
    with mr.GradientTape() as tape:
        y = jax.lax.cond(x > 2, lambda: x * state.w, lambda: x)
    return tape.gradient(y, state.w)


def nested_function(state, x):
    with mr.GradientTape() as tape:
        y = mr.function(lambda value: jnp.sin(value * state.w))(x)
    return tape.gradient(y, state.w)


def optimizer_update(state, x):
    with mr.GradientTape() as tape:
        y = mr.losses.average_loss(jnp.full((2,), x * state.w**2))
    state.optimizer.apply_gradients([(tape.gradient(y, state.w), state.w)])
    state.loss.assign_add(y)
    return state.loss.read_value()


def all_reduce(state, x):
    with mr.GradientTape() as tape:
        y = mr.get_replica_context().all_reduce("SUM", jnp.sin(x * state.w)) ** 2
    return tape.gradient(y, state.w)


def all_gather(state, x):
    with mr.GradientTape() as tape:
        y = mr.get_replica_context().all_gather(jnp.sin(x * state.w)[None], axis=0)
    return tape.gradient(y, state.w)


def merge(state, x):
    return mr.get_replica_context().merge_call(total, args=(x * state.w,))


def recorded_merge(state, x):
    with mr.GradientTape() as tape:
        y = mr.get_replica_context().merge_call(total, args=(jnp.sin(x * state.w),))
    return tape.gradient(y, state.w)


def merge_that_assigns(state, x):
    def merged(strategy, value):
        state.w.assign(total(strategy, value))

    with mr.GradientTape() as tape:
        y = jnp.sin(x * state.w)
        mr.get_replica_context().merge_call(merged, args=(y,))
        y = y * state.w
    return tape.gradient(y, state.w)


def run_in_a_merge(state, x):
    def merged(strategy, value):
        return strategy.run(lambda one, other: one * other, args=(value, total(strategy, value)))

    with mr.GradientTape() as tape:
        y = mr.get_replica_context().merge_call(merged, args=(jnp.sin(x * state.w),))
    return tape.gradient(y, state.w)


BODIES = (
    second_derivative,
    jax_grad,
    scan_with_a_variable,
    cond_with_a_variable,
    nested_function,
    optimizer_update,
    all_reduce,
    all_gather,
    merge,
    recorded_merge,
    merge_that_assigns,
    run_in_a_merge,
)


def strategy_and_input(devices, replicas, *, deterministic=False):
    names = [f"CPU:{i}" for i in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    return strategy, strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(2.0 + context.replica_id_in_sync_group)
    )


@pytest.mark.first(5)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (1, 2), (2, 2), (2, 4)])
@pytest.mark.parametrize("body", BODIES)
def test_no_leak_in_a_run(body, devices, replicas, compiled):
    strategy, x = strategy_and_input(devices, replicas)
    with strategy.scope():
        expected, state = State(), State()

    def step_of(one):
        return lambda batch: strategy.run(lambda value: body(one, value), args=(batch,))

    wanted = step_of(expected)(x)
    step = mr.function(step_of(state)) if compiled else step_of(state)
    with jax.checking_leaks():
        result = step(x)
    np.testing.assert_allclose(
        *([float(one) for one in strategy.experimental_local_results(each)] for each in (result, wanted)), rtol=1e-5
    )


@pytest.mark.first(1)
@pytest.mark.parametrize("body", [optimizer_update, all_reduce, recorded_merge])
def test_no_leak_in_a_deterministic_run(body):
    strategy, x = strategy_and_input(2, 4, deterministic=True)
    with strategy.scope():
        state = State()
    with jax.checking_leaks():
        mr.function(lambda batch: strategy.run(lambda value: body(state, value), args=(batch,)))(x)


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 4)])
def test_no_leak_with_a_tape_around_the_run(devices, replicas, compiled):
    strategy, x = strategy_and_input(devices, replicas)
    with strategy.scope():
        w = mr.Variable(1.5)

    def gradient(batch):
        with mr.GradientTape() as tape:
            y = total(strategy, strategy.run(lambda value: value * w**2, args=(batch,)))
        return tape.gradient(y, w)

    with jax.checking_leaks():
        result = (mr.function(gradient) if compiled else gradient)(x)
    assert result == 3.0 * sum(2 + i for i in range(replicas))


@pytest.mark.first(1)
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 3), (2, 4)])
def test_no_leak_of_a_collective_in_a_loop(devices, replicas):
    strategy, x = strategy_and_input(devices, replicas)

    def summed(value):
        def once(carry, _):
            return carry + mr.get_replica_context().all_reduce("SUM", carry), None

        return jax.lax.scan(once, value, None, length=2)[0]

    with jax.checking_leaks():
        mr.function(lambda batch: strategy.run(summed, args=(batch,)))(x)


def test_no_leak_of_several_steps_per_call():
    strategy, x = strategy_and_input(2, 4)
    with strategy.scope():
        state = State()
    step = mr.function(
        lambda batch: strategy.run(lambda value: optimizer_update(state, value), args=(batch,)), steps_per_call=2
    )
    with jax.checking_leaks():
        step([x, x])


def test_no_leak_of_a_tape_around_a_function():
    v = mr.Variable(2.0)
    function = mr.function(lambda: v.assign_add(v * 3.0))
    with jax.checking_leaks(), mr.GradientTape() as tape:
        y = function() * v
    assert tape.gradient(y, v) == 16.0


def test_no_leak_of_a_concrete_function():
    v = mr.Variable(2.0)
    function = mr.function(lambda x: v.assign_add(x))
    with jax.checking_leaks():
        function.get_concrete_function(jax.ShapeDtypeStruct((), jnp.float32))


@pytest.mark.long
def test_a_leak_of_the_program_is_reported():
    strategy, x = strategy_and_input(1, 2)
    kept = []

    def body(value):
        kept.append(value * 2)
        return value

    with jax.checking_leaks(), pytest.raises(Exception, match="Leaked trace"):
        mr.function(lambda batch: strategy.run(body, args=(batch,)))(x)
    kept.clear()
