"""Mistakes of programs that come from Flax NNX: each error names the rule and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.errors import TraceContextError

import mirrored as mr
from mirrored import integrations
from mirrored.errors import ArgumentError, ArgumentTypeError, ContextError, StructureError, TransformError

ROWS = 8
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
COMPILED = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.0, rngs=rngs)
        self.outer = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.outer(self.dropout(jnp.tanh(self.inner(x))))[:, 0]


def two() -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:2])


def sgd(model: Any) -> Any:
    return nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def update(model: Any, optimizer: Any, x: Any) -> None:
    with mr.GradientTape() as tape:
        loss = mr.losses.average_loss(model(x)[:, 0] ** 2)
    optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))


@COMPILED
@pytest.mark.parametrize("how", ["no scope", "optimizer in the scope"])
def test_a_model_made_outside_the_scope_is_refused_with_the_remedy(how: str, compiled: bool) -> None:
    integrations.disconnect("flax")
    strategy, model = two(), nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    if how == "no scope":
        optimizer = sgd(model)
    else:
        with strategy.scope():
            optimizer = sgd(model)
    step: Callable[[Any], Any] = lambda x: strategy.run(lambda x: update(model, optimizer, x), args=(x,))  # noqa: E731
    with pytest.raises(ContextError, match=r"outside strategy\.scope\(\)[\s\S]*mirrored\.mirror\(model\)"):
        (mr.function(step) if compiled else step)(X)


def test_nnx_jit_around_run_is_refused_with_the_remedy() -> None:
    strategy = two()
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = sgd(model)
    step = nnx.jit(lambda model, optimizer, x: strategy.run(update, args=(model, optimizer, x)))
    with pytest.raises(ContextError, match=r"use mirrored\.function instead of nnx\.jit"):
        step(model, optimizer, X)


def update_by_nnx(model: Any, optimizer: Any, x: Any) -> Any:
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x)[:, 0] ** 2))(model)
    optimizer.update(model, gradients)
    return loss


def jit_partial(function: Callable[..., Any], *partial: Any, graph: bool = False) -> Callable[..., Any]:
    return nnx.jit_partial(function, *partial, graph=graph, graph_updates=False)  # type: ignore[no-any-return]


JITTED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "jit around run": lambda strategy, model, optimizer: nnx.jit(
        lambda model, optimizer, x: strategy.run(update_by_nnx, args=(model, optimizer, x))
    )(model, optimizer, X),
    "jit_partial around run": lambda strategy, model, optimizer: jit_partial(
        lambda model, optimizer, x: strategy.run(update_by_nnx, args=(model, optimizer, x)), model, optimizer
    )(X),
    "jit_partial around run, tape": lambda strategy, model, optimizer: jit_partial(
        lambda model, optimizer, x: strategy.run(update, args=(model, optimizer, x)), model, optimizer, graph=True
    )(X),
    "jit in run": lambda strategy, model, optimizer: strategy.run(
        lambda x: nnx.jit(update_by_nnx)(model, optimizer, x), args=(X,)
    ),
    "jit_partial in run": lambda strategy, model, optimizer: strategy.run(
        lambda x: jit_partial(update_by_nnx, model, optimizer)(x), args=(X,)
    ),
    "jit_partial of a graph in run": lambda strategy, model, optimizer: strategy.run(
        lambda x: jit_partial(update_by_nnx, model, optimizer, graph=True)(x), args=(X,)
    ),
}


@COMPILED
@pytest.mark.parametrize("how", JITTED)
def test_updates_of_the_copies_of_a_transform_are_refused_with_the_remedy(how: str, compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = sgd(model)
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model))]
    step: Callable[[], Any] = lambda: JITTED[how](strategy, model, optimizer)  # noqa: E731
    with pytest.raises(ContextError, match=r"use mirrored\.function instead of nnx\.jit or nnx\.jit_partial"):
        (mr.function(step) if compiled else step)()
    for leaf, value in zip(jax.tree.leaves(nnx.state(model)), before, strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), value)


@COMPILED
def test_updates_of_the_copies_of_an_argument_are_refused_with_the_remedy(compiled: bool) -> None:
    integrations.disconnect("flax")
    strategy, model = two(), nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = sgd(model)
    with strategy.scope():  # connects
        mr.Variable(0.0)
    step: Callable[[], Any] = lambda: strategy.run(update_by_nnx, args=(model, optimizer, X))  # noqa: E731
    with pytest.raises(ContextError, match=r"outside strategy\.scope\(\)[\s\S]*mirrored\.mirror\(model\)"):
        (mr.function(step) if compiled else step)()


@COMPILED
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.first(2)
def test_jit_partial_computes_with_the_current_values(graph: bool, compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = sgd(model)
    forward = jit_partial(lambda model, x: model(x)[:, 0] ** 2, model, graph=graph)

    def replica(x: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(forward(x))
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))
        return loss

    step: Callable[[], Any] = lambda: strategy.run(replica, args=(X,))  # noqa: E731
    step = mr.function(step) if compiled else step
    for _ in range(2):
        expected = float(jnp.mean(model(jnp.asarray(X))[:, 0] ** 2))
        parts = strategy.experimental_local_results(step())
        np.testing.assert_allclose(sum(map(float, parts)), expected, rtol=1e-6)
        np.testing.assert_allclose(forward(X), model(jnp.asarray(X))[:, 0] ** 2, rtol=1e-6)


def test_jit_around_the_replica_function_names_the_compiled_function() -> None:
    strategy = two()
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = sgd(model)
    step = mr.function(lambda x: strategy.run(jax.jit(lambda x: update(model, optimizer, x)), args=(x,)))
    with pytest.raises(TransformError, match=r"use mirrored\.function instead of jax\.jit"):
        step(X)


SOURCES: dict[str, Callable[[Any], Any]] = {
    "state": lambda model: nnx.state(model, nnx.Param),
    "model": lambda model: model,
    "leaves": lambda model: jax.tree.leaves(
        nnx.state(model, nnx.Param), is_leaf=lambda leaf: isinstance(leaf, mr.Variable)
    ),
    "dict": lambda model: {"inner": nnx.state(model.inner), "outer": nnx.state(model.outer)},
}


@COMPILED
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.sampled(2)
@pytest.mark.first(1)
@pytest.mark.long
def test_gradients_of_nnx_models_are_accumulated(name: str, compiled: bool) -> None:
    strategy = two()
    with strategy.scope():
        model = Model(nnx.Rngs(0))
        sources = SOURCES[name](model)
        accumulator, optimizer = mr.GradientAccumulator(sources), mr.optimizers.SGD(0.1)

    def replica_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = jnp.mean(model(x) ** 2)
        accumulator.add(tape.gradient(loss, sources), count=len(x))

    def step(x: Any) -> None:
        strategy.run(replica_step, args=(x,))

    step = mr.function(step) if compiled else step
    for x in strategy.experimental_distribute_dataset([X[:4], X[4:]]):
        step(x)
    strategy.run(lambda: accumulator.apply(optimizer))
    plain = Model(nnx.Rngs(0))
    sgd(plain).update(plain, nnx.grad(lambda model: jnp.mean(model(X) ** 2))(plain))
    found, expected = (nnx.as_pure(nnx.state(one, nnx.Param)) for one in (mr.unmirror(model), plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, expected)


@pytest.mark.parametrize("what", ["plain model", "plain state", "arrays", "nothing", "text", "mixed"])
def test_an_accumulator_refuses_what_is_not_variables(what: str) -> None:
    plain = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    with two().scope():
        mixed = {"mine": mr.Variable(1.0), "theirs": plain}
    given = {
        "plain model": plain,
        "plain state": nnx.state(plain),
        "arrays": [jnp.ones(2)],
        "nothing": {},
        "text": "weights",
        "mixed": mixed,
    }
    with pytest.raises(ArgumentTypeError, match=r"GradientAccumulator: [\s\S]*optax\.MultiSteps"):
        mr.GradientAccumulator(given[what])


def test_an_accumulator_refuses_other_gradients_and_optimizers() -> None:
    with two().scope():
        model = Model(nnx.Rngs(0))
        accumulator, optimizer = mr.GradientAccumulator(nnx.state(model, nnx.Param)), sgd(model)
    with pytest.raises(StructureError, match="the structure given to GradientAccumulator"):
        accumulator.add(nnx.state(model.inner, nnx.Param), count=1)
    with pytest.raises(ArgumentTypeError, match=r"Optimizer\n[\s\S]*optax\.MultiSteps"):
        accumulator.apply(optimizer)


@COMPILED
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.first(1)
def test_a_parameter_that_the_loss_does_not_use_keeps_its_value(replicas: int, compiled: bool) -> None:
    """Its gradient is None, for which `nnx.grad` has zeros."""
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    before = np.asarray(model.inner.kernel[...])
    unused = np.asarray(model.norm.scale[...])

    def replica(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(model(x) ** 2)
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))

    step: Callable[[Any], Any] = lambda x: strategy.run(replica, args=(x,))  # noqa: E731
    [x] = strategy.experimental_distribute_dataset([X])
    (mr.function(step) if compiled else step)(x)
    np.testing.assert_array_equal(model.norm.scale[...], unused)
    assert np.abs(np.asarray(model.inner.kernel[...]) - before).max() > 0.05


def test_an_argument_of_other_optimizers_is_refused() -> None:
    """optax ignores arguments that it does not know, so the gradients would be summed twice."""
    strategy = two()
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = sgd(model)
    grads = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
    with pytest.raises(ArgumentError, match=r"skip_gradients_aggregation[\s\S]*mirrored\.optimizers"):
        strategy.run(lambda: optimizer.update(model, grads, skip_gradients_aggregation=True))


class Noisy(nnx.Module):
    """Splits a key and stores it: draws in `nnx` with one device, and in `strategy.run` with one replica."""

    def __init__(self, kind: type[nnx.Variable[Any]]) -> None:
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        self.key = kind(jax.random.key(0))

    def __call__(self, x: Any) -> Any:
        self.key[...], key = jax.random.split(self.key[...])
        return self.linear(x * jax.random.bernoulli(key, 0.5, x.shape))


@COMPILED
@pytest.mark.parametrize("differentiated", [True, False], ids=["in nnx.grad", "alone"])
@pytest.mark.parametrize("kind", [nnx.Variable, nnx.BatchStat])
def test_replicas_cannot_assign_keys_of_other_variables(
    kind: type[nnx.Variable[Any]], differentiated: bool, compiled: bool
) -> None:
    """The assignment would be lost: each step would draw the same numbers."""
    strategy = two()
    with strategy.scope():
        model = Noisy(kind)
    before = jax.random.key_data(model.key[...]).tolist()

    def replica(x: Any) -> Any:
        loss = lambda model: model(x).sum()  # noqa: E731
        return nnx.value_and_grad(loss)(model)[0] if differentiated else loss(model)

    step: Callable[[Any], Any] = lambda x: strategy.run(replica, args=(x,))  # noqa: E731
    with pytest.raises(ContextError, match=rf"nnx\.{kind.__name__}\.set_value[\s\S]*nnx\.Rngs"):
        (mr.function(step) if compiled else step)(X)
    assert jax.random.key_data(model.key[...]).tolist() == before
    model(X)
    plain = mr.unmirror(model)
    assert jax.random.key_data(model.key[...]).tolist() != before
    strategy.run(lambda: nnx.clone(plain)(X).sum())


@COMPILED
def test_a_single_replica_assigns_keys_of_other_variables(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    with strategy.scope():
        model = Noisy(nnx.Variable)
    alone = Noisy(nnx.Variable)
    step: Callable[[], Any] = lambda: strategy.run(lambda: model(X))  # noqa: E731
    step = mr.function(step) if compiled else step
    for _ in range(2):
        np.testing.assert_allclose(step(), alone(X), rtol=1e-6)


class WithPlainParameter(nnx.Module):
    """Its `extra` is no variable of a strategy: it holds a pytree, or is created outside of the scope."""

    def __init__(self, extra: Any) -> None:
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        if extra is not None:
            self.extra = nnx.Param(extra)

    def __call__(self, x: Any) -> Any:
        return self.linear(x) + sum(jax.tree.leaves(self.extra.get_value()))


@COMPILED
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("kind", ["pytree", "array set outside the scope"])
def test_a_gradient_of_a_parameter_that_is_no_variable_is_refused(kind: str, replicas: int, compiled: bool) -> None:
    """The tape does not record the parameter, which would never be trained."""
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model = WithPlainParameter({"w": jnp.ones(1)} if kind == "pytree" else None)
    if kind != "pytree":
        model.extra = nnx.Param(jnp.ones(1))
    with strategy.scope():
        optimizer = sgd(model)
    step: Callable[[Any], Any] = lambda x: strategy.run(lambda x: update(model, optimizer, x), args=(x,))  # noqa: E731
    with pytest.raises(ContextError, match=r"nnx\.Optimizer\.update: [\s\S]*extra[\s\S]*mirrored\.mirror\(model\)"):
        (mr.function(step) if compiled else step)(X)


def test_a_parameter_with_a_pytree_is_not_said_to_be_made_outside_the_scope() -> None:
    strategy = two()
    with strategy.scope():
        parameter = nnx.Param({"w": jnp.ones(1)})
    with pytest.raises(ContextError, match=r"nnx\.Param that holds a dict[\s\S]*one array"):
        strategy.run(lambda: parameter.set_value({"w": jnp.zeros(1)}))


class WithNone(nnx.Module):
    """Its `extra` is a parameter that some configurations of a model leave out."""

    def __init__(self) -> None:
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        self.extra = nnx.Param(None)

    def __call__(self, x: Any) -> Any:
        return self.linear(x)


@pytest.mark.first(4)
@COMPILED
@pytest.mark.parametrize("differentiate", [update, update_by_nnx], ids=["tape", "nnx.grad"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_parameter_of_none_has_no_gradient(replicas: int, differentiate: Callable[..., Any], compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model = WithNone()
        optimizer = sgd(model)
    before = np.asarray(model.linear.kernel[...])
    step: Callable[[], Any] = lambda: strategy.run(lambda: differentiate(model, optimizer, X))  # noqa: E731
    (mr.function(step) if compiled else step)()
    assert model.extra.get_value() is None
    assert np.abs(np.asarray(model.linear.kernel[...]) - before).max() > 0


def test_a_parameter_of_none_takes_no_traced_value() -> None:
    strategy = two()
    with strategy.scope():
        model = WithNone()
    for assign in (model.extra.set_raw_value, lambda value: nnx.update(model.extra, value)):
        with pytest.raises(TraceContextError, match="Cannot mutate Param"):
            mr.function(lambda assign=assign: strategy.run(lambda: assign(jnp.sum(X))))()
        assert model.extra.get_value() is None


@COMPILED
def test_the_gradient_of_a_parameter_with_a_pytree_is_refused_before_the_model_is_taken_apart(compiled: bool) -> None:
    """An error where `nnx.grad` assigns the values that it returns would leave the model without attributes."""
    strategy = two()
    with strategy.scope():
        model = WithPlainParameter({"w": jnp.ones(1)})
    step: Callable[[], Any] = lambda: strategy.run(lambda: nnx.grad(lambda model: model(X).sum())(model))  # noqa: E731
    with pytest.raises(ContextError, match=r"nnx\.Param that holds a dict[\s\S]*one array"):
        (mr.function(step) if compiled else step)()
    assert model(X).shape == (ROWS, 1)


class WithTwo(nnx.Module):
    """Its own parameter may hold a pytree; the parameters of its linear layer are arrays."""

    def __init__(self, value: Any) -> None:
        self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        self.extra = nnx.Param(value)

    def __call__(self, x: Any) -> Any:
        return self.linear(x) + sum(jax.tree.leaves(self.extra.get_value()))


@COMPILED
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat])
def test_a_refused_transform_of_a_parameter_with_a_pytree_leaves_the_model_whole(
    transform: Callable[..., Any], replicas: int, compiled: bool
) -> None:
    """`nnx.jit` sets the attributes of the model anew; an error in between left it without some of them."""
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model = WithTwo({"w": jnp.ones(1)})
    step: Callable[[], Any] = lambda: strategy.run(lambda: transform(lambda model, x: model(x))(model, X))  # noqa: E731
    if replicas == 1 and not compiled:  # the only replica may assign it
        step()
    else:
        with pytest.raises(ContextError, match=r"nnx\.Param that holds a dict[\s\S]*one array"):
            (mr.function(step) if compiled else step)()
    assert {"linear", "extra"} <= vars(model).keys()
    assert {"kernel", "bias"} <= vars(model.linear).keys()
    assert model(X).shape == (ROWS, 1)
    strategy.run(lambda: model(X))


@COMPILED
def test_a_refused_transform_of_a_model_made_outside_the_scope_leaves_it_whole(compiled: bool) -> None:
    strategy, model = two(), WithTwo(jnp.ones(1))
    step: Callable[[], Any] = lambda: strategy.run(lambda: nnx.jit(lambda model, x: model(x))(model, X))  # noqa: E731
    with pytest.raises((ContextError, TraceContextError)):
        (mr.function(step) if compiled else step)()
    assert model(X).shape == (ROWS, 1)


def replaced_variable(model: Model, number: Any) -> None:
    model.outer.bias = nnx.Param(jnp.ones(1) * number)


def replaced_array(model: Model, number: Any) -> None:
    model.outer.bias = jnp.ones(1) * number


def replaced_layer(model: Model, number: Any) -> None:
    model.outer = nnx.Linear(4, 1, rngs=nnx.Rngs(1))


@pytest.mark.parametrize("replace", [replaced_variable, replaced_array, replaced_layer])
@pytest.mark.parametrize("in_scope", [True, False])
def test_replicas_of_an_eager_run_must_not_replace_variables_of_their_model(replace: Any, in_scope: bool) -> None:
    strategy = two()
    if in_scope:
        with strategy.scope():
            model = Model(nnx.Rngs(0))
    else:
        model = Model(nnx.Rngs(0))
    before = dict(vars(model)), dict(vars(model.outer))
    numbers = strategy.experimental_distribute_values_from_function(lambda c: float(c.replica_id_in_sync_group))
    with pytest.raises(ContextError, match="a replica in strategy.run replaces the (Param|Linear) in the attribute"):
        strategy.run(lambda number: replace(model, number), args=(numbers,))
    after = vars(model), vars(model.outer)
    assert all(all(new[name] is old[name] for name in old) for new, old in zip(after, before, strict=True))


def sown(model: Any, x: Any) -> None:
    model.sow(nnx.Intermediate, "hidden", x)


def perturbed(model: Any, x: Any) -> None:
    model.perturb("hidden", x)


def added_variable(model: Any, x: Any) -> None:
    if not hasattr(model, "hidden"):
        model.hidden = nnx.Variable(x)


def added_to_a_list(model: Any, x: Any) -> None:
    model.layers.append(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))


def added_to_a_dict(model: Any, x: Any) -> None:
    if "b" not in model.named:
        model.named["b"] = nnx.Variable(x)


def deleted_variable(model: Any, x: Any) -> None:
    if hasattr(model.layers[0], "bias"):
        del model.layers[0].bias


def deleted_layer(model: Any, x: Any) -> None:
    if hasattr(model, "named"):
        del model.named


def deleted_from_a_list(model: Any, x: Any) -> None:
    if len(model.layers):
        del model.layers[-1]


def deleted_from_a_dict(model: Any, x: Any) -> None:
    model.named.pop("a", None)


def deleted_random_state(model: Any, x: Any) -> None:
    if hasattr(model.dropout, "rngs"):
        del model.dropout.rngs


def popped(model: Any, x: Any) -> None:
    nnx.pop(model, nnx.Param)


def replaced_tuple(model: Any, x: Any) -> None:
    model.pair = nnx.data((nnx.Variable(x), nnx.Variable(x)))


ADDING = [sown, perturbed, added_variable, added_to_a_list, added_to_a_dict]
DELETING = [
    deleted_variable, deleted_layer, deleted_from_a_list, deleted_from_a_dict, deleted_random_state, popped,
]  # fmt: skip


class Containers(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs)])
        self.named = nnx.Dict(a=nnx.Param(jnp.ones(1)))
        self.pair = nnx.data((nnx.Variable(jnp.ones(1)), nnx.Variable(jnp.ones(1))))
        self.norm = nnx.BatchNorm(3, axis_name="batch", rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.layers[0](x)
        self.sow(nnx.Intermediate, "hidden", x)
        return x


def objects_in(model: Any) -> dict[Any, int]:
    """The identities of the variables and modules of a model, by their paths."""
    return {path: id(one) for path, one in nnx.iter_graph(model) if isinstance(one, (nnx.Variable, nnx.Pytree))}


@pytest.mark.first(12)
@COMPILED
@pytest.mark.parametrize("change", [*ADDING, *DELETING, replaced_tuple])
@pytest.mark.filterwarnings(r"ignore:\s*Using 'Module:DeprecationWarning")
def test_replicas_must_not_add_replace_or_delete_variables_of_their_model(change: Any, compiled: bool) -> None:
    """The others would find the change: each would append to the values that those before it have sown."""
    strategy = two()
    with strategy.scope():
        model = Containers()
    before = objects_in(model)
    step: Callable[[], Any] = lambda: strategy.run(lambda x: change(model, x), args=(X,))  # noqa: E731
    if compiled:
        with pytest.raises(TraceContextError, match="from different trace level"):
            mr.function(step)()
    else:
        verb = "adds" if change in ADDING else "deletes" if change in DELETING else "replaces"
        with pytest.raises(ContextError, match=rf"a replica in strategy\.run {verb} the \w+ in the attribute"):
            step()
    assert objects_in(model) == before


@pytest.mark.parametrize("change", [*ADDING, *DELETING, replaced_tuple])
@pytest.mark.filterwarnings(r"ignore:\s*Using 'Module:DeprecationWarning")
def test_the_only_replica_of_an_eager_run_changes_its_model(change: Any) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    with strategy.scope():
        model = Containers()
    before = objects_in(model)
    strategy.run(lambda x: change(model, x), args=(X,))
    assert objects_in(model) != before


@pytest.mark.filterwarnings(r"ignore:\s*Using 'Module:DeprecationWarning")
def test_replicas_of_an_eager_run_must_not_append_to_values_that_were_sown_before() -> None:
    strategy = two()
    with strategy.scope():
        model = Containers()
    sown(model, X)
    with pytest.raises(
        ContextError, match=r"an nnx\.Intermediate that holds a tuple[\s\S]*instead of calling Module\.sow"
    ):
        strategy.run(lambda x: sown(model, x), args=(X,))
    assert len(model.hidden.get_value()) == 1


def test_each_replica_of_an_eager_run_captures_its_own_values() -> None:
    strategy = two()
    with strategy.scope():
        model = Containers()

    def replica(x: Any) -> Any:
        _, state = nnx.capture(model, nnx.Intermediate)(x)
        (value,) = jax.tree.leaves(nnx.as_pure(state))
        return value

    batch = next(iter(strategy.experimental_distribute_dataset([X])))
    for _ in range(2):
        found = strategy.gather(strategy.run(replica, args=(batch,)), axis=0)
        np.testing.assert_allclose(found, model.layers[0](jnp.asarray(X)), rtol=1e-6)


def test_replicas_of_an_eager_run_must_not_wait_for_each_other_while_they_capture() -> None:
    """The second replica would replace the values of the first one, which waits."""
    strategy = two()
    with strategy.scope():
        model = Containers()
    waiting = nnx.capture(lambda model, x: model.norm(model(x)), nnx.Intermediate)
    for _ in range(2):  # What an error leaves in the model does not count.
        with pytest.raises(
            ContextError, match=r"replaces the Intermediate[\s\S]*instead of Module\.sow or nnx\.capture"
        ):
            strategy.run(lambda x: waiting(model, x), args=(X,))
    strategy.run(lambda x: nnx.capture(model, nnx.Intermediate)(x), args=(X,))


@pytest.mark.parametrize(
    "change",
    [lambda made: made.bias.set_value(jnp.ones(1)), lambda made: setattr(made, "bias", nnx.Param(jnp.ones(1)))],
    ids=["assign", "replace"],
)
def test_replicas_of_an_eager_run_must_not_change_what_another_replica_has_made(change: Any) -> None:
    strategy, made = two(), []

    def replica() -> None:
        if not made:
            made.append(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
        change(made[0])

    with pytest.raises(ContextError, match=r"strategy\.run (assigns|replaces)"):
        strategy.run(replica)


def test_replicas_of_an_eager_run_change_models_of_their_own_and_plain_attributes() -> None:
    strategy = two()
    with strategy.scope():
        model = Model(nnx.Rngs(0))

    def replica(number: Any) -> Any:
        own = Model(nnx.Rngs(0))
        replaced_variable(own, number)
        replaced_layer(own, number)
        own.outer.bias[...] = jnp.ones(1) * number
        model.eval()
        model.note = "a plain value"
        return own.outer.bias[...]

    numbers = strategy.experimental_distribute_values_from_function(lambda c: float(c.replica_id_in_sync_group))
    results = strategy.experimental_local_results(strategy.run(replica, args=(numbers,)))
    assert [result.tolist() for result in results] == [[0.0], [1.0]]
    assert model.note == "a plain value"
    assert model.dropout.deterministic


class Attributes(dict[str, Any]):
    """The common idiom whose `hasattr` raises a `KeyError`."""

    __getattr__ = dict.__getitem__


def test_an_object_with_raising_attributes_is_no_value_of_a_variable() -> None:
    with mr.MirroredStrategy(["CPU:0"]).scope():
        variable = nnx.Param(jnp.ones(2))
    with pytest.raises(ArgumentTypeError, match="a Attributes was assigned to mirrored variable"):
        variable.set_value(Attributes(k=1))
