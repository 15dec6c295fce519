"""Each leaf of an optax state belongs to a variable or is shared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from mirrored.errors import StructureError
from mirrored.optimizers.slot_layout import lay_out


def _parameters(*names: str) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct((2, 3), jnp.float32) for name in names}


def _owners(transform: Any, *names: str) -> list[tuple[str, str | None]]:
    return [(leaf.label, leaf.variable) for leaf in lay_out(transform, _parameters(*names)).leaves]


def test_adam_has_a_shared_counter_and_two_slots_per_variable():
    assert _owners(optax.adam(0.1), "w", "b") == [("count", None), ("mu", "b"), ("mu", "w"), ("nu", "b"), ("nu", "w")]


def test_addresses_are_the_same_for_every_variable():
    leaves = lay_out(optax.trace(0.9), _parameters("w", "b")).leaves
    assert [leaf.address for leaf in leaves] == [".trace", ".trace"]


def test_hyperparameters_with_the_name_of_a_variable_stay_shared():
    transform = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    shared = [label for label, variable in _owners(transform, "b1", "w") if variable is None]
    assert {"b1", "learning_rate"} <= set(shared)
    assert [variable for label, variable in _owners(transform, "b1", "w") if label == "mu"] == ["b1", "w"]


def test_labels_of_a_partition_with_the_names_of_variables_stay_apart():
    transform = optax.partition(
        {"kernel": optax.adam(0.1), "bias": optax.trace(0.9)}, lambda tree: {name: name for name in tree}
    )
    owners = _owners(transform, "kernel", "bias")
    assert ("mu", "kernel") in owners
    assert ("trace", "bias") in owners
    assert ("mu", "bias") not in owners


@pytest.mark.parametrize("names", [("kernel", "bias"), ("kernel_1", "bias_1")], ids=["labels", "others"])
def test_counters_of_a_partition_are_shared_also_if_labels_are_names_of_variables(names: tuple[str, str]) -> None:
    transform = optax.partition(
        {"kernel": optax.adam(0.1), "bias": optax.adam(0.1)},
        lambda tree: {name: name.removesuffix("_1") for name in tree},
    )
    kernel, bias = names
    assert _owners(transform, *names) == [
        *(("count", None), ("mu", bias), ("nu", bias)),
        *(("count", None), ("mu", kernel), ("nu", kernel)),
    ]


def test_names_that_the_transform_has_copied_are_names() -> None:
    def init(parameters: Any) -> Any:
        return {str(name): jnp.zeros(2) for name in parameters}, {"step": 0}

    transform = optax.chain(optax.GradientTransformation(init, lambda u, s, p=None: (u, s)), optax.trace(0.9))
    owners = [variable for _, variable in _owners(transform, "w", "b")]
    assert owners == ["b", "w", None, "b", "w"]


def test_pack_and_unpack_are_inverse():
    transform = optax.chain(optax.add_noise(0.1, 0.5, key=jax.random.key(3)), optax.adam(0.1))
    layout = lay_out(transform, _parameters("w"))
    state = transform.init({"w": jnp.ones((2, 3))})
    again = layout.pack(layout.unpack(state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    assert jnp.array_equal(jax.random.key_data(again[0].rng_key), jax.random.key_data(jax.random.key(3)))


def test_a_random_key_is_stored_as_its_data():
    layout = lay_out(optax.add_noise(0.1, 0.5, key=jax.random.key(3, impl="rbg")), _parameters("w"))
    (key,) = [leaf for leaf in layout.leaves if leaf.random is not None]
    assert (key.random, key.shape, key.dtype) == ("rbg", (4,), jnp.uint32)


def test_a_state_of_another_shape_is_refused():
    layout = lay_out(optax.trace(0.9), _parameters("w"))
    with pytest.raises(StructureError, match="must preserve the structure and the shapes of the state"):
        layout.unpack(optax.TraceState({"w": jnp.ones(7)}))


def test_nothing_is_computed():
    def init(_: Any) -> Any:
        return {"big": jnp.zeros((1 << 20, 1 << 20))}

    layout = lay_out(optax.GradientTransformation(init, lambda u, s, p=None: (u, s)), _parameters("w"))
    assert layout.leaves[0].shape == (1 << 20, 1 << 20)


@pytest.mark.parametrize(
    "transform",
    [
        optax.partition({"x": optax.adam(0.1), "y": optax.sgd(0.1)}, {"a": {"w": "x", "b": "y"}, "c": "x"}),
        optax.adamw(0.1, mask={"a": {"w": True, "b": False}, "c": True}),
        optax.GradientTransformation(lambda params: params["a"]["w"], lambda u, s, p=None: (u, s)),
    ],
    ids=["labels", "mask", "own"],
)
def test_a_transform_that_expects_the_structure_of_the_model_is_refused(transform: Any) -> None:
    with pytest.raises(StructureError, match=r"one flat dict by name \({'a/w', 'a/b', 'c'}\)"):
        lay_out(transform, _parameters("a/w", "a/b", "c"))
