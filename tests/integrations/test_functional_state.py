"""Functional state: arrays that a step takes and returns, declared equal on all replicas by `out_specs`.

Plain optax, Linen's `TrainState`, NNX by `nnx.value_and_grad`, and Equinox, each beside single-device training.
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.errors import ArgumentError, DivergingStateWarning, ReplicaDivergenceError, StructureError

BATCH, STEPS, REPLICAS = 8, 3, 4
DEVICES = pytest.mark.parametrize("devices", [2, 4], ids=["2x2", "4x1"])
COMPILED = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
TRANSFORM = optax.adam(0.05)
STATE_AND_LOSS = (P(), P("replica"))


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, BATCH, 3)).astype("float32")
    return list(zip(x, np.tanh(x.sum(2, keepdims=True)), strict=True))


def averaged(gradients: Any) -> Any:
    return mr.get_replica_context().all_reduce("MEAN", gradients)


# Each library: the first state, and a step whose `average` makes gradients those of the global batch.
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def optax_step(
    average: Callable[[Any], Any],
    gradients_of: Callable[..., tuple[Any, Any]],
    apply: Callable[..., Any] = optax.apply_updates,
) -> Step:
    """Returns a step whose state is parameters and optax's state; `gradients_of` gives the loss and the gradients."""

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        params, opt_state = state
        loss, gradients = gradients_of(params, x, y)
        updates, opt_state = TRANSFORM.update(average(gradients), opt_state, params)
        return (apply(params, updates), opt_state), loss

    return step


def plain_optax(average: Callable[[Any], Any]) -> tuple[Any, Step]:
    params = {"w": jnp.full((3, 1), 0.3), "b": jnp.zeros((1,))}

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    return (params, TRANSFORM.init(params)), optax_step(average, jax.value_and_grad(loss_of))


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(1)(jnp.tanh(linen.Dense(5)(x)))


def linen_train_state(average: Callable[[Any], Any]) -> tuple[Any, Step]:
    model = Linen()
    params = model.init(jax.random.key(0), jnp.ones((1, 3)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=TRANSFORM)

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        def loss_of(params: Any) -> Any:
            return jnp.mean((state.apply_fn({"params": params}, x) - y) ** 2)

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=average(gradients)), loss

    return state, step


def nnx_split(average: Callable[[Any], Any]) -> tuple[Any, Step]:
    graph, params = nnx.split(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Param)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((nnx.merge(graph, params)(x) - y) ** 2)

    return (params, TRANSFORM.init(params)), optax_step(average, jax.value_and_grad(loss_of))


def nnx_value_and_grad(average: Callable[[Any], Any]) -> tuple[Any, Step]:
    graph, params = nnx.split(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Param)

    def gradients_of(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
        return nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(nnx.merge(graph, params))  # type: ignore[no-any-return]

    return (params, TRANSFORM.init(params)), optax_step(average, gradients_of)


def equinox(average: Callable[[Any], Any]) -> tuple[Any, Step]:
    params, static = eqx.partition(eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0)), eqx.is_array)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    return (params, TRANSFORM.init(params)), optax_step(average, jax.value_and_grad(loss_of), eqx.apply_updates)


LIBRARIES = {make.__name__: make for make in (plain_optax, linen_train_state, nnx_split, nnx_value_and_grad, equinox)}


def strategy_of(devices: int) -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS)


def on_one_device(name: str) -> tuple[list[Any], list[float]]:
    state, step = LIBRARIES[name](lambda gradients: gradients)
    losses = []
    for x, y in batches():
        state, loss = jax.jit(step)(state, x, y)
        losses.append(float(loss))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)], losses


@COMPILED
@DEVICES
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.sampled(11)
@pytest.mark.first(1)
def test_declared_state_trains_as_on_one_device(name, devices, compiled):
    strategy = strategy_of(devices)
    state, step = LIBRARIES[name](averaged)

    def train(state: Any, x: Any, y: Any) -> Any:
        state, loss = strategy.run(step, args=(state, x, y), out_specs=STATE_AND_LOSS)
        return state, strategy.reduce("MEAN", loss, axis=None)

    train = mr.function(train) if compiled else train
    losses = []
    for x, y in strategy.experimental_distribute_dataset(batches()):
        state, loss = train(state, x, y)
        losses.append(float(loss))
    if compiled:
        assert train.trace_count <= 2
    expected, expected_losses = on_one_device(name)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for found, wanted in zip(jax.tree.leaves(state), expected, strict=True):
        assert isinstance(found, jax.Array)
        assert found.is_fully_replicated
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@COMPILED
@DEVICES
@pytest.mark.long
def test_state_on_variables_that_is_updated_functionally(devices, compiled):
    strategy = strategy_of(devices)
    first, step = linen_train_state(averaged)
    with strategy.scope():
        state = mr.mirror(first.replace(step=jnp.zeros((), jnp.int32)))

    def replica(x: Any, y: Any) -> Any:
        after, loss = step(mr.unmirror(state), x, y)
        mr.assign(state, after)
        return loss

    def train(x: Any, y: Any) -> Any:
        return strategy.run(replica, args=(x, y))

    train = mr.function(train) if compiled else train
    for x, y in strategy.experimental_distribute_dataset(batches()):
        train(x, y)
    expected, _ = on_one_device("linen_train_state")
    for found, wanted in zip(jax.tree.leaves(mr.unmirror(state)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


@COMPILED
@DEVICES
@pytest.mark.parametrize("name", ["plain_optax", "linen_train_state"])
@pytest.mark.sampled(3)
def test_a_declaration_that_does_not_hold_is_refused(name, devices, compiled):
    strategy = strategy_of(devices)
    state, step = LIBRARIES[name](lambda gradients: gradients)

    def train(x: Any, y: Any) -> Any:
        return strategy.run(step, args=(state, x, y), out_specs=STATE_AND_LOSS)

    train = mr.function(train) if compiled else train
    x, y = next(iter(strategy.experimental_distribute_dataset(batches())))
    with pytest.raises(ReplicaDivergenceError, match=r"result\[0\].*declared equal on all replicas by out_specs"):
        train(x, y)


def test_a_step_counter_that_is_no_array_is_not_lost_silently():
    first, _ = linen_train_state(averaged)
    state = mr.mirror(first)
    mr.assign(state, first)
    with pytest.raises(StructureError, match="the number 0"):
        mr.assign(state, first.replace(step=first.step + 1))
    with pytest.raises(StructureError, match="the number 0"):
        mr.assign(state, first.replace(step=jnp.ones((), jnp.int32)))


@COMPILED
@DEVICES
@pytest.mark.long
def test_undeclared_results_that_are_fed_back_are_warned_of(devices, compiled):
    strategy = strategy_of(devices)
    with strategy.scope():
        state = mr.mirror(LIBRARIES["plain_optax"](averaged)[0])
    _, step = LIBRARIES["plain_optax"](lambda gradients: gradients)
    step = jax.jit(lambda state, x, y, step=step: step(mr.unmirror(state), x, y)) if not compiled else step

    def train(state: Any, x: Any, y: Any) -> Any:
        return strategy.run(step, args=(mr.unmirror(state), x, y))

    train = mr.function(train) if compiled else train
    data = iter(strategy.experimental_distribute_dataset(batches()))
    state, _ = train(state, *next(data))
    with pytest.warns(DivergingStateWarning, match=r"out_specs=\(PartitionSpec\(\), PartitionSpec\('replica'\)\)"):
        train(state, *next(data))


@COMPILED
def test_state_that_goes_through_several_functions_is_warned_of(compiled):
    strategy = strategy_of(2)
    wrap = mr.function if compiled else lambda f: f
    first = wrap(lambda v: strategy.run(lambda x: x + 1.0, args=(v,)))
    second = wrap(lambda v: strategy.run(lambda x: x * 2.0, args=(v,)))
    value = second(first(jnp.zeros(())))
    with pytest.warns(DivergingStateWarning):
        first(value)


@COMPILED
def test_no_warning_of_what_is_declared_or_is_no_state(compiled):
    strategy = strategy_of(2)
    wrap = mr.function if compiled else lambda f: f

    def grow(x: Any) -> Any:
        return x + 1.0

    declared = wrap(lambda v: strategy.run(grow, args=(v,), out_specs=P("replica")))
    predict = wrap(lambda v: strategy.run(lambda x: x * 2.0, args=(v,)))
    measure = wrap(lambda v: strategy.run(lambda x: x - 1.0, args=(v,)))
    walk = wrap(lambda v: strategy.run(lambda x: x + 1.0, args=(v,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        declared(declared(jnp.zeros(())))
        walk(walk(strategy.distribute_values_from_function(lambda c: jnp.float32(c.replica_id_in_sync_group))))
        for _ in range(2):
            measure(predict(jnp.zeros(())))


@COMPILED
@DEVICES
def test_out_specs_is_a_prefix_of_the_result(devices, compiled):
    strategy = strategy_of(devices)

    def run(specs: Any) -> Any:
        def call() -> Any:
            return strategy.run(lambda: ({"a": jnp.ones(2), "b": None}, jnp.zeros(())), out_specs=specs)

        return (mr.function(call) if compiled else call)()

    result, last = run((P(), P("replica")))
    assert isinstance(result["a"], jax.Array)
    assert result["b"] is None
    assert isinstance(last, mr.PerReplica)
    with pytest.raises(StructureError, match="tree prefix"):
        run((P(), P(), P()))
    with pytest.raises(ArgumentError, match="PartitionSpec"):
        run((P("data"), P()))
    with pytest.raises(ArgumentError, match="PartitionSpec"):
        run(True)


def test_one_replica_checks_the_structure_too():
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    assert float(strategy.run(lambda: jnp.ones(()), out_specs=P())) == 1.0
    with pytest.raises(StructureError, match="tree prefix"):
        strategy.run(lambda: jnp.ones(()), out_specs=(P(), P()))


@DEVICES
def test_a_function_given_to_run_takes_out_specs(devices):
    strategy = strategy_of(devices)
    average = mr.function(lambda x: mr.get_replica_context().all_reduce("MEAN", x))
    x = strategy.distribute_values_from_function(lambda c: jnp.float32(c.replica_id_in_sync_group))
    assert isinstance(strategy.run(average, args=(x,)), mr.PerReplica)
    assert float(strategy.run(average, args=(x,), out_specs=P())) == 1.5
    with pytest.raises(ReplicaDivergenceError):
        strategy.run(mr.function(lambda x: x * 2), args=(x,), out_specs=P())


def test_the_program_on_the_page_runs():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    scope: dict[str, Any] = {}
    exec(compile(program, "frameworks.md", "exec"), scope)
    assert float(scope["loss"]) < 1.0


@COMPILED
@pytest.mark.long
def test_restored_before_the_first_step(compiled: bool, tmp_path: pathlib.Path) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    state, replica_step = plain_optax(averaged)

    def step(state: Any, x: Any, y: Any) -> Any:
        return strategy.run(replica_step, args=(state, x, y), out_specs=STATE_AND_LOSS)[0]

    taken = mr.function(step) if compiled else step
    data = list(strategy.experimental_distribute_dataset(batches()))
    path = Checkpoint(state=taken(state, *data[0])).write(tmp_path / "c")
    checkpoint = Checkpoint(state=plain_optax(averaged)[0])
    checkpoint.restore(path).assert_consumed()
    expected = taken(taken(state, *data[0]), *data[1])
    jax.tree.map(np.testing.assert_array_equal, taken(checkpoint.state, *data[1]), expected)
