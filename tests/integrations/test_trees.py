"""`mirror`, `unmirror`, `assign` on plain pytrees, with optax; and how frameworks are found."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.errors import StructureError, VariableError


def params() -> dict[str, Any]:
    return {"inner": {"w": jnp.ones((3, 2)), "b": np.zeros(2, np.float32)}, "steps": jnp.zeros((), jnp.int32), "n": 3}


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    return x, x.sum(1)


def loss_of(params: Any, x: Any, y: Any) -> Any:
    return ((jnp.tanh(x @ params["inner"]["w"] + params["inner"]["b"]).sum(1) - y) ** 2).sum() / 8


def by_optax(steps: int) -> Any:
    """Training by optax alone, on one device."""
    arrays = jax.tree.map(jnp.asarray, params()["inner"])
    transform = optax.adam(0.1)
    state = transform.init(arrays)
    for _ in range(steps):
        gradients = jax.grad(lambda arrays: loss_of({"inner": arrays}, *data()))(arrays)
        updates, state = transform.update(gradients, state)
        arrays = optax.apply_updates(arrays, updates)
    return arrays


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("how", ["optimizer", "optax"])
@pytest.mark.long
def test_training_equals_optax_on_one_device(how: str, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    transform = optax.adam(0.1)
    with strategy.scope():
        tree = mr.mirror(params())
        state = mr.mirror(transform.init(mr.unmirror(tree["inner"])))
        optimizer = mr.optimizers.Optimizer(transform)

    def replica_step(x: Any, y: Any) -> None:
        with mr.GradientTape() as tape:
            loss = loss_of(tree, x, y)
        gradients = tape.gradient(loss, tree["inner"])
        if how == "optimizer":
            optimizer.apply(gradients, tree["inner"])
            return
        total = mr.get_replica_context().all_reduce("SUM", gradients)
        before = mr.unmirror(tree["inner"])
        updates, new_state = transform.update(total, mr.unmirror(state), before)
        mr.assign(tree["inner"], optax.apply_updates(before, updates))
        mr.assign(state, new_state)

    def step(x: Any, y: Any) -> None:
        strategy.run(replica_step, args=(x, y))

    step = mr.function(step) if compiled else step
    for x, y in strategy.distribute_dataset([data()] * 3):
        step(x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), mr.unmirror(tree["inner"]), by_optax(3))


def test_leaves_become_variables_of_their_names() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    tree = mr.mirror(params(), strategy)
    assert tree["inner"]["w"].name == "inner/w"
    assert tree["inner"]["w"].strategy is strategy
    assert tree["inner"]["b"].trainable
    assert not tree["steps"].trainable
    assert tree["n"] == 3


def test_without_a_strategy_variables_are_plain() -> None:
    assert mr.mirror({"w": jnp.ones(2)})["w"].device_assignment is None


def test_mirroring_again_moves_to_the_strategy_in_force() -> None:
    first, second = (mr.MirroredStrategy(jax.devices()[:count]) for count in (2, 4))
    with first.scope():
        tree = mr.mirror({"w": jnp.arange(2.0)})
        assert mr.mirror(tree)["w"] is tree["w"]
    with second.scope():
        moved = mr.mirror(tree)
    assert len(moved["w"].values) == 4
    np.testing.assert_array_equal(moved["w"].numpy(), [0.0, 1.0])


def positive(value: Any) -> Any:
    return jnp.maximum(value, 0.0)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (0, 2), (4, 1)])
@pytest.mark.parametrize(
    "options",
    [
        {"trainable": False},
        {"constraint": positive},
        {"aggregation": mr.VariableAggregation.SUM},
        {"shape": [None]},
        {"synchronization": mr.VariableSynchronization.ON_READ, "aggregation": mr.VariableAggregation.SUM},
        {
            "synchronization": mr.VariableSynchronization.ON_READ,
            "aggregation": mr.VariableAggregation.MEAN,
            "trainable": True,
        },
    ],
    ids=lambda options: "-".join(options),
)
def test_variables_move_with_their_options_and_ties(before: int, after: int, options: dict[str, Any]) -> None:
    with mr.MirroredStrategy(jax.devices()[:before]).scope() if before else contextlib.nullcontext():
        v = mr.Variable([1.0, 2.0], name="v", **options)
        total = v.numpy()
    moved = mr.mirror({"a": v, "b": [v], "c": v.numpy()}, mr.MirroredStrategy(jax.devices()[:after]))
    a = moved["a"]
    assert a is not v
    assert moved["b"][0] is a
    assert moved["c"] is not a
    assert a.num_replicas == after
    assert a.numpy().tolist() == total.tolist()
    for name in ("name", "trainable", "constraint", "aggregation", "synchronization", "shape", "dtype"):
        assert getattr(a, name) == getattr(v, name), name


@pytest.mark.parametrize("tree", [{"rate": 0.1}, [], "model", {"key": None}])
def test_a_tree_without_arrays_is_refused(tree: Any) -> None:
    with pytest.raises(mr.errors.ArgumentTypeError, match="without arrays"):
        mr.mirror(tree)


def test_values_of_another_structure_are_refused() -> None:
    tree = mr.mirror({"w": jnp.ones(2)})
    with pytest.raises(mr.errors.StructureError, match="one value for each leaf"):
        mr.assign(tree, [jnp.ones(2), jnp.ones(2)])


def test_gradients_of_another_structure_are_refused() -> None:
    tree = mr.mirror({"w": jnp.ones(2)})
    with pytest.raises(mr.errors.StructureError, match="a tree of 2 gradients was passed for a tree of 1 variables"):
        mr.optimizers.SGD(0.1).apply([jnp.ones(2), jnp.ones(2)], tree)


class Pair(NamedTuple):
    w: Any
    b: Any


OTHER_PLACES = [
    (lambda w, b: [w, b], lambda w, b: {"w": w, "b": b}),
    (lambda w, b: {"w": w, "b": b}, lambda w, b: [w, b]),
    (lambda w, b: {"scale": w, "offset": b}, lambda w, b: {"a": w, "z": b}),
    (lambda w, b: OrderedDict([(2, w), (1, b)]), lambda w, b: OrderedDict([(1, b), (2, w)])),
    (lambda w, b: [[w], [b, b]], lambda w, b: [[w, b], [mr.Variable(0.0)]]),
]
SAME_PLACES = [
    (lambda w, b: (w, b), lambda w, b: [w, b]),
    (lambda w, b: (w, b), lambda w, b: Pair(w, b)),
    (lambda w, b: {"0": w, "1": b}, lambda w, b: [w, b]),
]


@pytest.mark.parametrize(("values", "tree"), OTHER_PLACES)
def test_leaves_are_not_matched_by_position_alone(values: Any, tree: Any) -> None:
    w, b = mr.Variable(0.0), mr.Variable(0.0)
    two, ten = jnp.float32(2.0), jnp.float32(10.0)
    with pytest.raises((StructureError, mr.errors.ArgumentError)):
        mr.optimizers.SGD(1.0).apply(values(two, ten), tree(w, b))
    with pytest.raises(StructureError, match=r"the gradient at .* was passed for the variable at"):
        mr.optimizers.SGD(1.0).apply_gradients([(values(two, ten), tree(w, b))])
    with pytest.raises(StructureError, match="one value for each leaf"):
        mr.assign(tree(w, b), values(two, ten))
    assert (float(w), float(b)) == (0.0, 0.0)


@pytest.mark.parametrize(("values", "tree"), SAME_PLACES)
def test_containers_of_other_types_match_in_the_same_places(values: Any, tree: Any) -> None:
    w, b = mr.Variable(0.0), mr.Variable(0.0)
    mr.optimizers.SGD(1.0).apply_gradients([(values(jnp.float32(2.0), jnp.float32(10.0)), tree(w, b))])
    assert (float(w), float(b)) == (-2.0, -10.0)
    mr.assign(tree(w, b), values(jnp.float32(1.0), jnp.float32(2.0)))
    assert (float(w), float(b)) == (1.0, 2.0)


@pytest.mark.parametrize("array", [jnp.ones(2), np.ones(2), np.float32(1.0)])
def test_a_gradient_of_an_array_next_to_variables_is_refused(array: Any) -> None:
    tree = {"w": mr.Variable(1.0), "b": array}
    with pytest.raises(StructureError, match="a gradient for an array of shape"):
        mr.optimizers.SGD(0.5).apply_gradients([({"w": jnp.float32(1.0), "b": jnp.asarray(array)}, tree)])
    mr.optimizers.SGD(0.5).apply_gradients([({"w": jnp.float32(1.0), "b": None}, tree)])
    assert float(tree["w"]) == 0.5


@pytest.mark.parametrize("number", [0.5, np.float32(0.5), np.int32(1), np.bool_(True)])
def test_a_new_value_for_a_number_is_refused(number: Any) -> None:
    tree = mr.mirror({"w": jnp.ones(2), "rate": number})
    mr.assign(tree, {"w": jnp.zeros(2), "rate": type(number)(number)})
    with pytest.raises(StructureError, match="is not a variable"):
        mr.assign(tree, {"w": jnp.zeros(2), "rate": type(number)(0)})


def test_optimizers_take_trees() -> None:
    tree = mr.mirror({"w": jnp.ones(2), "steps": jnp.zeros((), jnp.int32)})
    optimizer = mr.optimizers.Adam(0.1)
    optimizer.build(tree)
    assert set(optimizer.slots(tree["w"])) == {"mu", "nu"}
    mr.optimizers.SGD(1.0).minimize(lambda: jnp.sum(tree["w"] * 2.0), tree)
    np.testing.assert_array_equal(tree["w"].numpy(), [-1.0, -1.0])


@pytest.mark.parametrize("devices", [[], ["CPU:0", "CPU:1"]], ids=["plain", "2 replicas"])
def test_random_keys_are_on_variables(devices: list[str]) -> None:
    strategy = mr.MirroredStrategy(devices) if devices else None
    assert isinstance(mr.mirror({"k": jax.random.key(1)}, strategy)["k"], mr.Variable)
    tree = mr.mirror({"w": jnp.ones(2), "k": jax.random.key(1)}, strategy)
    assert not tree["k"].trainable
    assert repr(tree["k"])
    mr.assign(tree, {"w": jnp.zeros(2), "k": jax.random.key(5)})
    moved = mr.mirror(tree, mr.MirroredStrategy(["CPU:2", "CPU:3"]))
    for one in (tree, moved):
        values = mr.unmirror(one)
        np.testing.assert_array_equal(jax.random.key_data(values["k"]), jax.random.key_data(jax.random.key(5)))
    with mr.GradientTape() as tape:
        loss = jnp.sum(tree["w"] * jax.random.normal(tree["k"].read_value(), (2,)))
    gradients = tape.gradient(loss, tree)
    assert gradients["k"] is None
    mr.optimizers.SGD(1.0).apply_gradients([(gradients, tree)])
    np.testing.assert_allclose(tree["w"].numpy(), -jax.random.normal(jax.random.key(5), (2,)))
    with pytest.raises(VariableError, match="assign random keys of the same implementation"):
        tree["k"].assign(1.0)


def test_values_for_none_are_refused_instead_of_lost() -> None:
    model = mr.mirror(eqx.nn.Linear(2, 2, key=jax.random.key(0)))
    arrays = eqx.filter(mr.unmirror(model), eqx.is_array)
    before = model.weight.numpy()
    with pytest.raises(StructureError, match=r"None where values has ArrayImpl") as caught:
        mr.assign(eqx.filter(model, eqx.is_array), arrays)
    assert "assign(model, values)" in str(caught.value)
    mr.assign(model, jax.tree.map(lambda a: a + 1, arrays))  # the remedy: functions and None are left alone
    np.testing.assert_array_equal(model.weight.numpy(), before + 1)


def test_assign_is_atomic_and_compares_the_structure():
    params = mr.mirror({"a": jnp.zeros(2), "b": jnp.ones(2)})

    def now():
        return [params[name].numpy().tolist() for name in ("a", "b")]

    with pytest.raises(VariableError, match="shape"):
        mr.assign(params, {"a": jnp.full(2, 5.0), "b": jnp.zeros(3)})
    assert now() == [[0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(StructureError, match="one value for each leaf"):
        mr.assign(params, {"b": jnp.full(2, 7.0), "c": jnp.full(2, 8.0)})
    assert now() == [[0.0, 0.0], [1.0, 1.0]]
    mr.assign(params, {"a": params["b"], "b": params["a"]})
    assert now() == [[1.0, 1.0], [0.0, 0.0]]


def test_assign_refuses_trees_without_variables() -> None:
    tree = {"a": jnp.zeros(2), "f": jnp.sum}
    for values in ({"a": jnp.ones(2), "f": jnp.sum}, {"a": np.ones(2), "f": jnp.mean}):
        with pytest.raises(
            mr.errors.ArgumentTypeError, match=r"the tree has no variable(.|\n)*mirrored.mirror\(params\)"
        ):
            mr.assign(tree, values)
    mr.assign(tree, tree)
    mr.assign((), ())
    mr.assign({"f": jnp.sum}, {"f": jnp.mean})


class Attributes(dict[str, Any]):
    """The common idiom whose `hasattr` raises a `KeyError`."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("others", [{}, {"w": mr.Variable(0.0)}], ids=["alone", "with a variable"])
def test_assign_refuses_leaves_that_are_dicts(others: dict[str, Any]) -> None:
    with pytest.raises(StructureError, match="an object of type Attributes, which JAX takes as one leaf"):
        mr.assign({"a": Attributes(k=jnp.zeros(2)), **others}, {"a": Attributes(k=jnp.ones(2)), **others})
