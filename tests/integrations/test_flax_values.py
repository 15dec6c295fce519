"""Values of NNX objects that were moved, cast or left out: metrics, empty batches, arrays beside variables."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr

nnx = pytest.importorskip("flax.nnx")


def test_a_metric_keeps_its_state_when_it_is_mirrored() -> None:
    metric = nnx.metrics.Average()
    metric.update(values=jnp.array([1.0, 2.0, 3.0, 4.0]))
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        metric = mr.mirror(metric)
    assert float(metric.compute()) == 2.5
    strategy.run(lambda: metric.update(values=jnp.array([15.0])))
    assert float(metric.compute()) == pytest.approx((10 + 30) / 6)


def test_a_replica_without_examples_leaves_the_statistics_of_a_normalization() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=4)
    with strategy.scope():
        norm = nnx.BatchNorm(3, momentum=0.5, rngs=nnx.Rngs(0))
    (batch,) = strategy.distribute_dataset([np.random.default_rng(0).normal(2, 3, size=(5, 3)).astype(np.float32)])
    strategy.run(lambda x: norm(x, use_running_average=False), args=(batch,))
    strategy.run(lambda x: norm(x, False), args=(batch,))
    assert np.isfinite(np.asarray(norm.mean[...])).all()
    assert np.isfinite(np.asarray(norm.var[...])).all()


def test_a_value_that_a_cast_would_cut_off_is_refused() -> None:
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        total, wave = nnx.Variable(jnp.array(0)), nnx.Param(jnp.ones(2))
    with pytest.raises(mr.errors.MirroredError, match=r"float32(.|\n)*int32"):
        total.set_value(total.get_value() + 0.5)
    with pytest.raises(mr.errors.MirroredError, match="complex64"):
        wave.set_value(jnp.full(2, 1 + 2j))
    wave.set_value(jnp.full(2, 3, jnp.int32))
    assert wave[...].tolist() == [3, 3]


class Table(nnx.Module):  # type: ignore[misc]
    def __init__(self, rngs: Any) -> None:
        self.positions = nnx.data(jnp.arange(3.0))
        self.linear = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.linear(x + self.positions)


class Outer(nnx.Module):  # type: ignore[misc]
    def __init__(self, rngs: Any) -> None:
        self.table = Table(rngs)


def test_modules_may_hold_arrays_beside_variables() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        model = Outer(nnx.Rngs(0))
    assert isinstance(model.table.linear.kernel._raw_value, mr.Variable)
    assert model.table(jnp.ones((2, 3))).shape == (2, 1)
    moved = mr.mirror(Table(nnx.Rngs(0)), strategy)
    assert isinstance(moved.linear.kernel._raw_value, mr.Variable)
    tree = mr.mirror({"w": nnx.Param(jnp.ones(2))}, strategy)
    assert isinstance(tree["w"]._raw_value, mr.Variable)


@pytest.mark.parametrize("part", [lambda model: model, nnx.state, lambda model: {"model": model}])
@pytest.mark.parametrize("compiled", [False, True])
def test_assign_takes_the_keys_with_the_counts(part: Any, compiled: bool) -> None:
    models = []
    for seed in (0, 7):
        with mr.MirroredStrategy(jax.devices()[:2]).scope():
            models.append(nnx.Dropout(0.5, rngs=nnx.Rngs(seed)))
    first, second = models
    second(jnp.ones(3), deterministic=False)
    tree, values = part(first), part(mr.unmirror(second))
    (mr.function(lambda: mr.assign(tree, values)) if compiled else lambda: mr.assign(tree, values))()
    draws = [model(jnp.ones(64), deterministic=False).tolist() for model in models]
    assert draws[0] == draws[1]


class Noise(nnx.Module):  # type: ignore[misc]
    """Has the keys of an `nnx.Rngs`, and a key of its own."""

    def __init__(self, seed: int) -> None:
        self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.rngs = nnx.Rngs(seed)
        self.key = nnx.Variable(jax.random.key(seed))

    def __call__(self, x: Any) -> Any:
        return self.linear(x) + jax.random.normal(self.rngs(), x.shape) + jax.random.normal(self.key[...], x.shape)

    def keys(self) -> list[Any]:
        return [jax.random.key_data(key[...]).tolist() for key in (self.rngs.default.key, self.key)]


def _in_a_transform(change: Any) -> Any:
    """Makes a change in a function of `nnx.jit`, which writes the keys back."""
    return lambda model, other: nnx.jit(lambda model: change(model, other))(model)


def _by_state(model: Any, other: Any) -> None:
    nnx.update(model, nnx.state(other))


def _by_pure_dict(model: Any, other: Any) -> None:
    nnx.update(model, nnx.to_pure_dict(nnx.state(other)))


def _by_raw_value(model: Any, other: Any) -> None:
    model.rngs.default.key.set_raw_value(other.rngs.default.key.get_raw_value())


NEW_KEYS: dict[str, Any] = {
    "update": _by_state,
    "update by a pure dict": _by_pure_dict,
    "copy_from": lambda model, other: model.key.copy_from(other.key),
    "set_raw_value": _by_raw_value,
    "set_value": lambda model, other: model.key.set_value(other.key.get_value()),
    "set_value of an nnx.RngKey in a transform": _in_a_transform(
        lambda model, other: model.rngs.default.key.set_value(other.key.get_value())
    ),
    "update in a transform": _in_a_transform(_by_pure_dict),
    "assign of a model": lambda model, other: mr.assign(model, other),
    "assign of a state": lambda model, other: mr.assign(nnx.state(model), nnx.state(other)),
    "assign of a variable": lambda model, other: mr.assign(model.key, other.key.get_value()),
}


@pytest.mark.parametrize("how", NEW_KEYS)
@pytest.mark.ways(modes=("compiled", "eager", "folded"), replicas=(2,))
@pytest.mark.sampled(3)
def test_new_keys_are_refused_in_replicas_however_they_are_assigned(how: str, way: Any) -> None:
    """The keys are stored once, and each replica folds them: the assignments were without effect, silently."""
    with way.strategy.scope():
        model = Noise(0)
    before = model.keys()
    with pytest.raises(mr.errors.ContextError, match=r"a replica assigned random keys[\s\S]*outside strategy\.run"):
        way.compile(lambda: way.strategy.run(lambda: NEW_KEYS[how](model, Noise(1))))()
    assert model.keys() == before
    if "transform" not in how:
        NEW_KEYS[how](model, Noise(1))
        assert model.keys() != before


def _by_functions_of_jax(model: Any, x: Any) -> None:
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    def loss(parameters: Any, rest: Any) -> Any:
        merged = nnx.merge(graph, parameters, rest)
        return merged(x).sum(), nnx.as_pure(nnx.state(merged, nnx.Not(nnx.Param)))

    _, rest = jax.jit(jax.grad(jax.checkpoint(loss), has_aux=True))(nnx.as_pure(parameters), nnx.as_pure(rest))
    nnx.update(model, rest)


def _by_a_loop(model: Any, x: Any) -> None:
    nnx.fori_loop(0, 2, lambda _, carry: (carry[0], carry[0](carry[1])), (model, x))


def _by_a_branch(model: Any, x: Any) -> None:
    nnx.cond(x.sum() > 0, lambda model: model(x), lambda model: x, model)


OLD_KEYS: dict[str, Any] = {
    "update": lambda model, x: nnx.update(model, nnx.state(model)),
    "update by a clone": lambda model, x: nnx.update(model, nnx.state(nnx.clone(model))),
    "assign": lambda model, x: mr.assign(model, mr.unmirror(model)),
    "functions of JAX": _by_functions_of_jax,
    "grad of remat": lambda model, x: nnx.grad(nnx.remat(lambda model: model(x).sum()))(model),
    "loop": _by_a_loop,
    "branch": _by_a_branch,
}


@pytest.mark.parametrize("how", OLD_KEYS)
@pytest.mark.ways(modes=("compiled", "eager", "folded"), replicas=(2,))
@pytest.mark.sampled(3)
def test_replicas_may_assign_the_keys_that_they_have_read(how: str, way: Any) -> None:
    with way.strategy.scope():
        model = Noise(0)
    before = model.keys()
    way.compile(lambda: way.strategy.run(lambda: OLD_KEYS[how](model, jnp.ones((2, 3)))))()
    assert model.keys() == before


def test_assign_refuses_other_values_for_keys_in_replicas() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    values = nnx.state(mr.unmirror(model))
    values["rngs"]["key"] = jnp.zeros(2, jnp.uint32)
    for run in (lambda change: change(), strategy.run):
        with pytest.raises(mr.errors.ArgumentTypeError, match="random keys of a mirrored module were assigned"):
            run(lambda: mr.assign(nnx.state(model), values))


@pytest.mark.parametrize(
    ("initial", "value"),
    [
        (jnp.uint8(250), 300),
        (jnp.uint8(250), np.array(300)),
        (jnp.uint32(0), -1),
        (jnp.int32(0), np.int64(2**40)),
        (jnp.asarray(False), 2),
    ],
    ids=["uint8", "array", "negative", "int64", "bool"],
)
def test_integers_out_of_range_are_refused(initial: Any, value: Any) -> None:
    with mr.MirroredStrategy(["CPU:0"]).scope():
        variable = nnx.Variable(initial)
    with pytest.raises(mr.errors.MirroredError, match="uint8|uint32|int32|bool"):
        variable.set_value(value)
    assert variable.get_value() == initial


def _by_update(target: Any, source: Any) -> None:
    nnx.update(target, nnx.state(source))


def _by_copy_from(target: Any, source: Any) -> None:
    target.kernel.copy_from(source.kernel)


def _by_the_state_of_a_variable(target: Any, source: Any) -> None:
    target.kernel.update_from_state(nnx.state(source)["kernel"])


@pytest.mark.parametrize("copied", [_by_update, _by_copy_from, _by_the_state_of_a_variable])
@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_model_updated_from_a_mirrored_one_has_values_of_its_own(copied: Any, is_mirrored: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        source = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    with strategy.scope() if is_mirrored else contextlib.nullcontext():
        target = nnx.Linear(2, 2, rngs=nnx.Rngs(1))
    before = source.kernel[...].tolist()
    copied(target, source)
    assert target.kernel[...].tolist() == before
    source.kernel[...] += 1
    assert target.kernel[...].tolist() == before
    target.kernel[...] = jnp.zeros((2, 2))
    assert source.kernel[...].tolist() == (jnp.array(before) + 1).tolist()
    merged = nnx.merge(*nnx.split(source))
    assert merged.kernel._raw_value is source.kernel._raw_value


@pytest.mark.parametrize("is_mirrored", [True, False], ids=["mirrored", "plain"])
def test_a_copy_of_a_variable_has_a_value_of_its_own(is_mirrored: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope() if is_mirrored else contextlib.nullcontext():
        variables = nnx.Param(jnp.ones(2), name="w"), nnx.RngKey(jax.random.key(0), tag="t"), nnx.Variable(jnp.ones(2))
    for variable in variables:
        before = variable[...]
        copied = copy.copy(variable)
        assert type(copied) is type(variable)
        assert copied.get_metadata() == variable.get_metadata()
        assert jnp.array_equal(copied[...], before)
        copied[...] = jax.random.key(1) if isinstance(copied, nnx.RngKey) else jnp.zeros(2)
        assert jnp.array_equal(variable[...], before)
        assert not jnp.array_equal(copied[...], before)
        assert strategy.run(lambda variable=variable: copy.copy(variable).get_metadata()) == variable.get_metadata()


def test_an_update_of_random_states_copies_the_counts() -> None:
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        source = nnx.Rngs(0)
    target = nnx.Rngs(5)
    nnx.update(target, nnx.state(source))
    first = source.params()
    assert target.params() == first
    assert target.params() == source.params()


@pytest.mark.parametrize("place", [lambda s: s, lambda s: {"p": s}, lambda s: [s], lambda s: (s, jnp.zeros(3))])
@pytest.mark.parametrize("is_pure", [False, True])
def test_states_are_mirrored_wherever_they_stand(place: Any, is_pure: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    state = nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    tree = place(nnx.as_pure(state) if is_pure else state)
    values = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    with strategy.scope():
        mirrored = mr.mirror(tree)
    leaves = jax.tree.leaves(mirrored)
    assert len(leaves) == len(values)
    assert all(isinstance(leaf, mr.Variable) and leaf.strategy is strategy for leaf in leaves)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(mr.unmirror(mirrored)), values)
    mr.assign(mirrored, jax.tree.map(jnp.ones_like, mr.unmirror(mirrored)))
    assert all((leaf.numpy() == 1).all() for leaf in leaves)


@pytest.mark.first(2)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_optimizer_whose_state_has_random_keys_adds_the_same_noise_on_all_replicas(
    replicas: int, compiled: bool
) -> None:
    transform = optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(3)), optax.sgd(0.1))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
    alone = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer_alone = nnx.Optimizer(alone, transform, wrt=nnx.Param)

    def replica(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(model(x)[:, 0] ** 2)
        optimizer.update(model, tape.gradient(loss, nnx.state(model, nnx.Param)))

    step = lambda x: strategy.run(replica, args=(x,))  # noqa: E731
    step = mr.function(step) if compiled else step
    for batch in strategy.experimental_distribute_dataset([x] * 2):
        step(batch)
        optimizer_alone.update(alone, nnx.grad(lambda model: jnp.mean(model(x)[:, 0] ** 2))(alone))
    np.testing.assert_allclose(model.kernel[...], alone.kernel[...], rtol=1e-5)
    keys, keys_alone = [
        [
            jax.random.key_data(one)
            for one in jax.tree.leaves(mr.unmirror(state))
            if jnp.issubdtype(one.dtype, jax.dtypes.prng_key)
        ]
        for state in (nnx.as_pure(nnx.state(mr.unmirror(optimizer))), nnx.as_pure(nnx.state(optimizer_alone)))
    ]
    assert len(keys) == 1
    np.testing.assert_array_equal(keys, keys_alone)


class Encoder(nnx.Module):  # type: ignore[misc]
    def __init__(self, embedding: Any) -> None:
        self.embedding = embedding


def test_unmirror_of_a_tree_keeps_what_its_models_share() -> None:
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        embedding = nnx.Embed(3, 2, rngs=nnx.Rngs(0))
        first, second = Encoder(embedding), Encoder(embedding)
        optimizer = nnx.ModelAndOptimizer(first, optax.adam(0.1), wrt=nnx.Param)
        scale = mr.Variable(2.0)
    tree = {"second": second, "scale": scale, "both": (first, optimizer), "state": nnx.state(first), "none": None}
    plain = mr.unmirror(tree)
    assert list(plain) == list(tree)
    assert plain["both"][1].model is plain["both"][0]
    assert plain["both"][0].embedding is plain["second"].embedding
    assert plain["second"].embedding is not embedding
    assert isinstance(plain["second"].embedding.embedding.get_raw_value(), jax.Array)
    assert isinstance(plain["state"], nnx.State)
    np.testing.assert_array_equal(plain["state"]["embedding"]["embedding"][...], embedding.embedding[...])
    assert (float(plain["scale"]), plain["none"]) == (2.0, None)
    twice = mr.unmirror([embedding, embedding, embedding.embedding])
    assert twice[0] is twice[1]
    assert twice[0].embedding is twice[2]
