"""Transforms of Flax NNX that take or make mirrored modules: the results of NNX on a single device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import mirrored as mr
from mirrored.integrations.flax.holding import held, is_ours
from mirrored.integrations.flax.random_state import ReplicaKey

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
PER_ROW = nnx.StateAxes({nnx.RngState: 0, ...: None})


class Normed(nnx.Module):
    """A module whose call changes its statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.norm(self.inner(x)))


class Dropped(nnx.Module):
    """A module whose call draws random numbers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(3, 3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.dropout(self.inner(x)))


class Stacked(nnx.Module):
    """Layers that `nnx.vmap` makes and `nnx.scan` calls, as in the guide of Flax."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def layers(rngs: nnx.Rngs) -> Dropped:
            return Dropped(rngs)

        self.layers = layers(rngs)

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: Any, layer: Dropped) -> Any:
            return layer(x)

        return forward(x, self.layers)


def split_by_decorator(model: Any, x: Any) -> Any:
    @nnx.split_rngs(splits=4)
    @nnx.vmap(in_axes=(PER_ROW, 0))
    def forward(model: Any, x: Any) -> Any:
        return model(x)

    return forward(model, x) + model(x)


def split_by_context(model: Any, x: Any) -> Any:
    with nnx.split_rngs(model, splits=4):
        rows = nnx.vmap(lambda model, x: model(x), in_axes=(PER_ROW, 0))(model, x)
    return rows + model(x)


def split_in_fork(model: Any, x: Any) -> Any:
    with nnx.fork_rngs(model):
        with nnx.split_rngs(model, splits=4):
            rows = nnx.vmap(lambda model, x: model(x), in_axes=(PER_ROW, 0))(model, x)
        forked = model(x)
    with nnx.split_rngs(model, splits=1, squeeze=True):
        squeezed = model(x)
    return rows + forked + squeezed + model(x)


def conditional(model: Any, x: Any) -> Any:
    x = nnx.cond(x.sum() > -1e9, lambda model, x: model(x), lambda model, x: x, model, x)
    return nnx.switch(1, [lambda model, x: x, lambda model, x: model(x)], model, x)


def looping(model: Any, x: Any) -> Any:
    return nnx.fori_loop(0, 2, lambda _, carry: (carry[0], carry[0](carry[1])), (model, x))[1]


PROGRAMS: dict[str, tuple[type[nnx.Module], Callable[[Any, Any], Any]]] = {
    "cond and switch": (Normed, conditional),
    "cond with dropout": (Dropped, conditional),
    "fori_loop": (Normed, looping),
    "remat and jit": (
        Normed,
        lambda model, x: nnx.remat(lambda model, x: nnx.jit(lambda m, x: m(x))(model, x))(model, x),
    ),
    "split_rngs as decorator": (Dropped, split_by_decorator),
    "split_rngs as context": (Dropped, split_by_context),
    "split_rngs in fork_rngs": (Dropped, split_in_fork),
    "stacked layers": (Stacked, lambda model, x: model(x)),
}
LAYOUTS = {"two devices": (["CPU:0", "CPU:1"], 2), "two replicas on a device": (["CPU:0"], 2), "one": (["CPU:0"], 1)}


def state_of(model: Any) -> list[Any]:
    """Returns all state of a module as NumPy arrays, keys by their data."""
    leaves = jax.tree.leaves(nnx.as_pure(nnx.state(model)))
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [np.asarray(jax.random.key_data(leaf) if key else leaf) for leaf, key in zip(leaves, keys, strict=True)]


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[list[Any], list[Any]]]:
    """The results of two calls in plain NNX, and the state after them."""
    results = {}
    for name, (kind, program) in PROGRAMS.items():
        model = kind(nnx.Rngs(0))
        results[name] = [np.asarray(program(model, jnp.asarray(X))) for _ in range(2)], state_of(model)
    return results


@pytest.mark.sampled(4)
@pytest.mark.timeout(240)  # several eager transforms, each compiled alone
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.long
def test_replicas_compute_what_nnx_computes(name: str, layout: str, compiled: bool, expected: Any) -> None:
    """All replicas get the same rows: the first draws NNX's numbers, and the others draw their own."""
    devices, replicas = LAYOUTS[layout]
    strategy = mr.MirroredStrategy(devices, num_replicas=replicas)
    kind, program = PROGRAMS[name]
    with strategy.scope():
        model = kind(nnx.Rngs(0))
    step: Any = lambda x: strategy.run(lambda x: program(model, x), args=(x,))  # noqa: E731
    step = mr.function(step) if compiled else step
    draws = kind is not Normed
    for call in expected[name][0]:
        first, *others = [np.asarray(part) for part in strategy.local_results(step(jnp.asarray(X)))]
        np.testing.assert_allclose(first, call, rtol=1e-4, atol=1e-5)
        for other in others:
            assert np.allclose(other, call, rtol=1e-4, atol=1e-5) != draws
    for mine, theirs in zip(state_of(mr.unmirror(model)), expected[name][1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["cond and switch", "split_rngs in fork_rngs"])
@pytest.mark.long
def test_mirrored_modules_in_cross_replica_context(name: str, expected: Any) -> None:
    kind, program = PROGRAMS[name]
    for way in (lambda call: call, mr.function):
        with mr.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = kind(nnx.Rngs(0))
        out = way(lambda x: program(model, x))(jnp.asarray(X))  # noqa: B023
        np.testing.assert_allclose(out, expected[name][0][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["attribute", "result of vmap", "result of jit"])
@pytest.mark.first(2)
@pytest.mark.long
def test_modules_that_a_transform_makes_in_a_scope_are_mirrored(how: str) -> None:
    strategy, outside = mr.MirroredStrategy(["CPU:0", "CPU:1"]), nnx.Linear(3, 3, rngs=nnx.Rngs(1))
    with strategy.scope():
        if how == "attribute":
            model: Any = Stacked(nnx.Rngs(0))
        elif how == "result of vmap":
            model = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Dropped(rngs)))(nnx.Rngs(0))
        else:
            model = nnx.jit(lambda: Dropped(nnx.Rngs(0)))()
        abstract = nnx.eval_shape(lambda: Dropped(nnx.Rngs(0)))
        gradients = nnx.grad(lambda model: model(jnp.asarray(X)).sum())(outside)
        nnx.jit(lambda model: model(jnp.asarray(X)))(outside)

    def contents(value: Any) -> list[Any]:
        leaves = jax.tree.leaves(nnx.state(value), is_leaf=lambda one: isinstance(one, nnx.Variable))
        return [held(leaf) for leaf in leaves]

    def owner(content: Any) -> Any:
        return content.variable if isinstance(content, ReplicaKey) else content

    assert all(is_ours(held(variable)) for _, variable in nnx.iter_graph(model) if isinstance(variable, nnx.Variable))
    assert all(owner(held(v)).strategy is strategy for _, v in nnx.iter_graph(model) if isinstance(v, nnx.Variable))
    for other in (abstract, gradients, outside):
        assert not any(isinstance(content, (mr.Variable, ReplicaKey)) for content in contents(other))


@pytest.mark.long
def test_split_keys_belong_to_the_context_that_has_split_them() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Dropped(nnx.Rngs(0))

    def fails() -> None:
        nnx.split_rngs(model, splits=4)
        raise KeyError

    with pytest.raises(KeyError):
        strategy.run(fails)
    assert model.dropout.rngs.key.shape == ()
    assert strategy.local_results(strategy.run(lambda: jnp.ones(model.dropout.rngs.count.shape)))[1].shape == ()
    with nnx.split_rngs(model, splits=4):
        assert model.dropout.rngs.key.shape == model.dropout.rngs.count.shape == (4,)
        for step in (strategy.run, lambda call: mr.function(lambda: strategy.run(call))()):
            with pytest.raises(mr.errors.ContextError, match="split outside"):
                step(lambda: model(jnp.asarray(X)))
    strategy.run(lambda: model(jnp.asarray(X)))


@pytest.mark.parametrize("assign", ["reseed", "index"])
def test_keys_are_not_assigned_in_a_run_of_several_replicas(assign: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Dropped(nnx.Rngs(0))

    def replica() -> None:
        if assign == "reseed":
            nnx.reseed(model, default=3)
        else:
            model.dropout.rngs.key[...] = jax.random.key(3)

    before = jax.random.key_data(model.dropout.rngs.key[...]).tolist()
    for step in (strategy.run, lambda call: mr.function(lambda: strategy.run(call))()):
        with pytest.raises(mr.errors.ContextError, match="outside strategy.run"):
            step(replica)
    assert jax.random.key_data(model.dropout.rngs.key[...]).tolist() == before
    replica()
    assert jax.random.key_data(model.dropout.rngs.key[...]).tolist() != before


def test_a_count_has_one_shape() -> None:
    with mr.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Dropped(nnx.Rngs(0))
    with pytest.raises(mr.errors.VariableError, match="must have the variable's shape"):
        model.dropout.rngs.count.set_value(jnp.zeros(3, jnp.uint32))
