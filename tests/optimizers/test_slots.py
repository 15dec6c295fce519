"""Slots are created per variable, at its first update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError, ContextError
from mirrored.gradients import GradientAccumulator, aggregate_gradients
from mirrored.optimizers import SGD, Adam, Optimizer
from optimizers.steps import step_of


@pytest.mark.ways(replicas=(1, 2))
@pytest.mark.first(3)
def test_one_optimizer_over_two_models_in_separate_calls(way):
    """Each model's slots and step counter are its own: the same as with an optimizer of its own."""
    with way.strategy.scope():
        one, two = mr.Variable(1.0, name="one"), mr.Variable(1.0, name="two")
        joint, first, second = Adam(0.1), Adam(0.1), Adam(0.1)
        one_alone, two_alone = mr.Variable(1.0), mr.Variable(1.0)

    def replica_step(k: Any) -> None:
        joint.apply_gradients([(k, one)])
        joint.apply_gradients([(k * k, two)])
        first.apply_gradients([(k, one_alone)])
        second.apply_gradients([(k * k, two_alone)])

    step = way.compile(lambda k: way.strategy.run(replica_step, args=(k,)))
    for k in (1.0, -0.5, 2.0):
        step(jnp.asarray(k))
    np.testing.assert_allclose([one.numpy(), two.numpy()], [one_alone.numpy(), two_alone.numpy()], rtol=1e-6)
    assert int(joint.iterations.numpy()) == 6
    assert [slot.name for slot in joint.variables] == [
        "adam/iterations", "adam/learning_rate", "adam/shared/count", "adam/one/mu", "adam/one/nu",
        "adam/shared_1/count", "adam/two/mu", "adam/two/nu",
    ]  # fmt: skip


@pytest.mark.ways(replicas=(1, 2))
@pytest.mark.first(3)
def test_a_variable_may_join_later(way):
    with way.strategy.scope():
        early, late = mr.Variable(1.0), mr.Variable(1.0)
        optimizer = Adam(0.1)

    def replica_step() -> None:
        optimizer.apply_gradients([(jnp.array(1.0), early)])

    def larger_step() -> None:
        optimizer.apply_gradients([(jnp.array(1.0), early), (jnp.array(1.0), late)])

    way.compile(lambda: way.strategy.run(replica_step))()
    way.compile(lambda: way.strategy.run(larger_step))()
    # With a constant gradient Adam's step is the learning rate, if the bias is corrected by the variable's own count.
    np.testing.assert_allclose([early.numpy(), late.numpy()], [0.8, 0.9], rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.first(1)
def test_hierarchical_models_with_a_tape_each(way):
    """Gradients of a shared trunk are summed over two tapes; one optimizer updates trunk and heads."""
    with way.strategy.scope():
        trunk, head_1, head_2 = (mr.Variable(value) for value in (0.5, 1.0, -1.0))
        optimizer = Adam(0.1)
    alone = [mr.Variable(value) for value in (0.5, 1.0, -1.0)]
    plain = Adam(0.1)

    def gradients(variables: Any, x: Any) -> Any:
        shared, one, two = variables
        with mr.GradientTape() as tape_1:
            loss_1 = jnp.mean((one * jnp.tanh(shared * x) - 1.0) ** 2)
        with mr.GradientTape() as tape_2:
            loss_2 = jnp.mean((two * jnp.tanh(shared * x) + 2.0) ** 2)
        return aggregate_gradients([tape_1.gradient(loss_1, variables), tape_2.gradient(loss_2, variables)])

    def replica_step(x: Any) -> None:
        variables = [trunk, head_1, head_2]
        parts = [gradient / way.num_replicas for gradient in gradients(variables, x)]
        optimizer.apply_gradients(zip(parts, variables, strict=True))

    step = way.compile(lambda x: way.strategy.run(replica_step, args=(x,)))
    batches = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    for x in way.strategy.experimental_distribute_dataset(list(batches)):
        step(x)
    for x in batches:
        plain.apply_gradients(zip(gradients(alone, jnp.asarray(x)), alone, strict=True))
    actual, expected = [[v.numpy() for v in vs] for vs in ([trunk, head_1, head_2], alone)]
    np.testing.assert_allclose(actual, expected, rtol=2e-6)


@pytest.mark.ways(replicas=(1, 2))
def test_build_makes_the_slots_before_the_first_step(way):
    with way.strategy.scope():
        variables = [mr.Variable(jnp.ones(2), name="a"), mr.Variable(jnp.ones(3), name="b")]
        optimizer = Adam(0.1)
        optimizer.build(variables)
    assert len(optimizer.variables) == 2 + 1 + 4
    optimizer.build(variables)
    assert len(optimizer.variables) == 2 + 1 + 4
    assert [made.strategy for made in optimizer.variables] == [way.strategy] * 7


def minimize(optimizer: Any, gradients: Any, variables: Any) -> None:
    def loss() -> Any:
        return 0.0 * variables["w_out"][0] + 0.0 * variables["bias"]

    optimizer.minimize(loss, lambda: variables)


FIRST_CALLS = {
    "build": lambda optimizer, gradients, variables: optimizer.build(variables),
    "apply": lambda optimizer, gradients, variables: optimizer.apply(gradients, variables),
    "pairs": lambda optimizer, gradients, variables: optimizer.apply_gradients(iter([(gradients, variables)])),
    "minimize": minimize,
}


@pytest.mark.first(6)
@pytest.mark.ways(replicas=(1, 2))
@pytest.mark.parametrize("first", FIRST_CALLS)
def test_apply_takes_gradients_in_the_order_of_the_keys_that_the_first_call_got_and_slots_keep_their_places(way, first):
    with way.strategy.scope():
        variables = {"w_out": [mr.Variable(0.0)], "bias": mr.Variable(0.0)}
        optimizer = SGD(1.0, momentum=0.5)
    step_of(way, lambda: FIRST_CALLS[first](optimizer, {"w_out": [0.0], "bias": 0.0}, variables))()
    optimizer.apply([1.0, 10.0])
    assert (float(variables["w_out"][0]), float(variables["bias"])) == (-1.0, -10.0)
    assert [float(slot) for slot in optimizer.variables[2:]] == [10.0, 1.0]  # sorted: a program may save the list


def test_apply_takes_gradients_in_the_order_of_the_keys_that_an_accumulator_got():
    variables = {"w_out": mr.Variable(0.0), "bias": mr.Variable(0.0)}
    optimizer, accumulator = SGD(1.0), GradientAccumulator(variables)
    accumulator.add([1.0, 10.0], count=1)
    accumulator.apply(optimizer)
    optimizer.apply([1.0, 10.0])
    assert (float(variables["w_out"]), float(variables["bias"])) == (-2.0, -20.0)


def test_build_calls_init_once_for_the_shapes_and_once_for_the_values():
    kinds = []

    def init(params):
        kinds.append(isinstance(params["w"], jax.core.Tracer))
        return optax.TraceState(jax.tree.map(jnp.zeros_like, params))

    optimizer = Optimizer(optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state)))
    optimizer.build([mr.Variable(jnp.ones(2), name="w")])
    assert kinds[0]  # the shapes
    assert len(kinds) == 2


def test_names_stay_apart():
    variables = [mr.Variable(1.0, name="w"), mr.Variable(1.0, name="w")]
    optimizer = Adam(0.1)
    optimizer.build(variables)
    names = [variable.name for variable in optimizer.variables]
    assert len(set(names)) == len(names)
    assert optimizer.slots(variables[1])["mu"].name == "adam/w_1/mu"
    assert optimizer.slots(mr.Variable(1.0)) == {}


@pytest.mark.ways(replicas=(1, 2))
def test_state_that_starts_at_the_parameters(way):
    """A transform whose first state depends on the parameters (weight averaging) starts from their values."""
    keep = optax.GradientTransformation(
        lambda params: {"start": params}, lambda updates, state, params=None: (updates, state)
    )
    with way.strategy.scope():
        variable = mr.Variable([2.0, 3.0])
        optimizer = Optimizer(optax.chain(keep, optax.sgd(1.0)))
    step = step_of(way, lambda: optimizer.apply_gradients([(jnp.array([1.0, 1.0]), variable)]))
    step()
    step()
    np.testing.assert_array_equal(optimizer.slots(variable)["start"].numpy(), [2.0, 3.0])
    np.testing.assert_allclose(variable.numpy(), np.array([2.0, 3.0]) - 2.0 * way.num_replicas)


def test_a_state_over_the_whole_list_refuses_to_grow():
    optimizer = Optimizer(optax.flatten(optax.adam(0.1)))
    first = mr.Variable(jnp.ones(2), name="first")
    optimizer.apply_gradients([(jnp.ones(2), first)])
    optimizer.apply_gradients([(jnp.ones(2), first)])
    np.testing.assert_allclose(first.numpy(), [0.8, 0.8], rtol=1e-5)
    with pytest.raises(ArgumentError, match="second are new variables for a transform"):
        optimizer.apply_gradients([(jnp.ones(2), first), (jnp.ones(3), mr.Variable(jnp.ones(3), name="second"))])
    np.testing.assert_allclose(first.numpy(), [0.8, 0.8], rtol=1e-5)


@pytest.mark.ways(replicas=(2,))
@pytest.mark.first(2)
def test_random_keys_are_kept_as_slots(way):
    with way.strategy.scope():
        variable = mr.Variable(jnp.zeros(3))
        optimizer = Optimizer(optax.chain(optax.add_noise(1.0, 0.0, key=jax.random.key(0)), optax.sgd(1.0)))
    step = step_of(way, lambda: optimizer.apply_gradients([(jnp.zeros(3), variable)]))
    step()
    first = variable.numpy()
    step()
    assert np.abs(first).max() > 0
    assert not np.allclose(variable.numpy() - first, first)


@pytest.mark.long
def test_slots_made_inside_a_trace_compile_nothing_more_than_those_made_outside():
    """Each compiled program is kept in JAX's caches: 3 MB for each function that made its slots while it was traced."""
    compiled = []

    def compilations(build):
        w = mr.Variable(jnp.ones((3, 2)))
        optimizer = mr.optimizers.Adam(0.1)
        if build:
            optimizer.build([w])
        step = mr.function(lambda: optimizer.apply_gradients([(jnp.ones((3, 2)), w)]))
        compiled.clear()
        step()
        return len(compiled)

    def listen(event, *_, **__):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        compilations(build=False)
        inside, outside = compilations(build=False), compilations(build=True)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert inside == outside > 0


@pytest.mark.parametrize("in_replicas", [False, True], ids=["before run", "in replicas"])
@pytest.mark.parametrize("rule", ["schedule_free", "adam"])
@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.first(4)
def test_the_first_step_assigns_the_variable_before_the_update(way, rule, in_replicas):
    """The initial state of `optax.contrib.schedule_free` holds the parameters; in compiled steps, it held old ones."""
    transform = optax.contrib.schedule_free_sgd(0.1) if rule == "schedule_free" else optax.adam(0.1)
    with way.strategy.scope():
        variable = mr.Variable([1.0, 2.0], name="v")
        optimizer = Optimizer(transform)

    def double() -> None:
        variable.assign(variable * 2.0)

    def replica_step(gradient: Any) -> None:
        if in_replicas:
            double()
        optimizer.apply_gradients([(gradient, variable)], skip_gradients_aggregation=True)

    def step(gradient: Any) -> None:
        if not in_replicas:
            double()
        way.strategy.run(replica_step, args=(gradient,))

    gradients = np.float32([[1.0, -1.0], [0.5, 2.0], [-1.0, 0.25]])
    compiled = way.compile(step)
    if rule == "schedule_free" and not way.is_eager:
        with pytest.raises(ContextError, match="'v' was assigned earlier") as caught:
            compiled(jnp.asarray(gradients[0]))
        assert "optimizer.build(variables)" in str(caught.value)
        np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0])
        variable.assign(variable * 2.0)
        optimizer.build([variable])
        variable.assign(variable / 2.0)
    value = np.float32([2.0, 4.0])
    state = transform.init(value)
    for k, gradient in enumerate(gradients):
        compiled(jnp.asarray(gradient))
        value = value * 2.0 if k else value
        updates, state = transform.update(jnp.asarray(gradient), state, value)
        value = np.asarray(value + updates)
    np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5)
