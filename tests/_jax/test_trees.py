"""Pytrees are rebuilt with their dicts' keys in the order of insertion; all else is as in JAX."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrored._jax.trees import Structure, in_order_of, transformed, tree_flatten, tree_map, with_new_containers


class Pair(NamedTuple):
    first: Any
    second: Any


def keys_of(value: Any) -> Any:
    """Returns the keys of all dicts of a pytree, in order."""
    if isinstance(value, dict):
        return [(key, keys_of(part)) for key, part in value.items()]
    return [keys_of(part) for part in value] if isinstance(value, (tuple, list)) else None


TREES = st.recursive(
    st.one_of(st.none(), st.integers()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.lists(st.tuples(st.text("abcz", max_size=2), inner), max_size=4).map(dict),
    ),
    max_leaves=12,
)


@given(TREES)
def test_leaves_and_classes_are_those_of_jax_and_keys_keep_their_order(tree: Any) -> None:
    leaves, structure = tree_flatten(tree)
    expected, treedef = jax.tree.flatten(tree)
    assert leaves == expected
    assert structure == treedef
    assert hash(structure) == hash(treedef)
    assert repr(structure) == repr(treedef)
    rebuilt = structure.unflatten(leaves)
    assert rebuilt == tree
    assert jax.tree.structure(rebuilt) == treedef
    assert keys_of(rebuilt) == keys_of(tree)
    assert keys_of(tree_map(lambda leaf: leaf, tree)) == keys_of(tree)
    assert keys_of(in_order_of(tree, jax.tree.map(lambda leaf: leaf, tree))) == keys_of(tree)


def test_structures_that_differ_only_in_the_order_are_equal() -> None:
    one, other = ({"z": 1, "a": 2}, {"a": 2, "z": 1})
    assert tree_flatten(one)[1] == tree_flatten(other)[1]
    assert tree_flatten(one)[1] != tree_flatten([1, 2])[1]
    assert tree_flatten(one)[1].num_leaves == 2


def test_the_order_comes_from_the_first_tree_of_a_map() -> None:
    added = tree_map(jnp.add, {"z": 1, "a": 2}, {"a": 20, "z": 10})
    assert [(key, int(value)) for key, value in added.items()] == [("z", 11), ("a", 22)]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (OrderedDict(z=1, a={"y": 2, "b": 3}), ["z", "a"]),
        (defaultdict(list, z=1, a=2), ["z", "a"]),
    ],
)
def test_other_classes_of_dicts_stay_what_they_are(tree: Any, expected: list[str]) -> None:
    rebuilt = tree_map(lambda leaf: leaf, tree)
    assert type(rebuilt) is type(tree)
    assert list(rebuilt) == expected
    assert getattr(rebuilt, "default_factory", None) is getattr(tree, "default_factory", None)
    assert keys_of(tree_flatten(tree)[1].unflatten(jax.tree.leaves(tree))) == keys_of(rebuilt) == keys_of(tree)


def test_a_leaf_in_place_of_a_dict_is_returned() -> None:
    def is_leaf(value: object) -> bool:
        return isinstance(value, dict) and "z" in value

    assert tree_map(lambda _: 1, [{"z": 1, "a": 2}], is_leaf=is_leaf) == [1]
    replaced = tree_map(lambda _: {"q": 1, "b": 2}, [{"z": 1, "a": 2}], is_leaf=is_leaf)
    assert replaced == [{"q": 1, "b": 2}]


def test_a_structure_keeps_no_reference_to_the_leaves() -> None:
    class Leaf:
        alive = 0

        def __init__(self) -> None:
            Leaf.alive += 1

        def __del__(self) -> None:
            Leaf.alive -= 1

    structure: Structure = tree_flatten({"z": Leaf(), "a": [Leaf()]})[1]
    assert Leaf.alive == 0
    assert structure.num_leaves == 2


def test_containers_in_leaves_are_not_looked_into() -> None:
    class Watched(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("a leaf was read")

    leaf = {1: 1, "a": 2}
    assert tree_map(lambda _: 0, {"z": leaf, "a": [leaf]}, is_leaf=lambda part: part is leaf) == {"z": 0, "a": [0]}
    assert tree_map(lambda _: 0, [Watched()], is_leaf=lambda part: isinstance(part, Watched)) == [0]
    assert tree_flatten([leaf], is_leaf=lambda part: part is leaf)[1].unflatten([3]) == [3]


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.checkpoint])
def test_a_transformed_function_gets_and_returns_keys_in_order(transform: Any) -> None:
    def swapped(row: dict[str, Any], *, later: Any, earlier: Any) -> dict[str, Any]:
        assert list(row) == ["z", "a"]
        return {"z": row["a"] + later, "a": row["z"] + earlier}

    row = {"z": jnp.ones(2), "a": jnp.zeros(2)}
    result = transformed(transform, swapped)(row, later=jnp.full(2, 5.0), earlier=jnp.full(2, 7.0))
    assert [(key, value.tolist()) for key, value in result.items()] == [("z", [5, 5]), ("a", [8, 8])]


def test_new_containers_hold_the_same_leaves() -> None:
    leaf = jnp.zeros(2)
    value = {"b": [leaf, {"c": leaf}], "a": Pair(leaf, [])}
    made = with_new_containers(value)
    made["b"][1]["c"] = made["a"].second.append(1)
    assert list(value) == list(made) == ["b", "a"]
    assert value["b"][1]["c"] is made["b"][0] is leaf
    assert value["a"].second == []
    assert with_new_containers(b"text") == b"text"
