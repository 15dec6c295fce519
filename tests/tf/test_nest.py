from __future__ import annotations

import collections
from collections import deque
from typing import Any

import pytest

import mirrored as mr
import mirrored.tf as tf

Pair = collections.namedtuple("Pair", ["a", "b"])


@pytest.mark.parametrize(
    ("structure", "leaves"),
    [
        (1, [1]),
        (None, [None]),
        ("text", ["text"]),
        ([], []),
        ({"b": 1, "a": [2, None]}, [2, None, 1]),
        (Pair(1, (2, 3)), [1, 2, 3]),
        (collections.OrderedDict([("z", 1), ("y", 2)]), [2, 1]),
    ],
)
def test_flatten_and_pack(structure: Any, leaves: list[Any]) -> None:
    assert tf.nest.flatten(structure) == leaves
    packed = tf.nest.pack_sequence_as(structure, leaves)
    assert packed == structure
    assert type(packed) is type(structure)


def test_packing_keeps_the_order_and_type_of_mappings() -> None:
    packed = tf.nest.pack_sequence_as(collections.defaultdict(int, {"b": 0, "a": 0}), [1, 2])
    assert list(packed.items()) == [("b", 2), ("a", 1)]
    assert packed["new"] == 0


def test_tensors_are_leaves() -> None:
    x = tf.ones([2])
    assert tf.nest.flatten([x])[0] is x
    assert not tf.nest.is_nested(x)


def test_map_structure_over_several() -> None:
    assert tf.nest.map_structure(lambda x, y: x * y, {"a": [2]}, {"a": [5]}) == {"a": [10]}
    assert tf.nest.map_structure(lambda x: x, Pair(1, 2)) == Pair(1, 2)
    assert tf.nest.map_structure(lambda x, y: x + y, [1], (2,), check_types=False) == [3]


def test_distributed_values_are_leaves_unless_expanded() -> None:
    value = mr.PerReplica((1, 2))
    assert tf.nest.flatten([value]) == [value]
    assert tf.nest.flatten([value], expand_composites=True) == [1, 2]
    assert tf.nest.map_structure(lambda x: x + 10, value, expand_composites=True).values == (11, 12)


@pytest.mark.parametrize(
    ("one", "other", "error", "message"),
    [
        ([1], 1, ValueError, "same nested structure"),
        ([1], [1, 2], ValueError, "same number of elements"),
        ({"a": 1}, {"b": 1}, ValueError, "same set of keys"),
        ([1], (1,), TypeError, "same sequence type"),
        ([[1]], [(1,)], TypeError, "same sequence type"),
    ],
)
def test_structures_that_differ(one: Any, other: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tf.nest.assert_same_structure(one, other)
    with pytest.raises(error, match=message):
        tf.nest.map_structure(lambda x, y: x, one, other)


def test_named_tuples_of_one_shape_are_the_same() -> None:
    tf.nest.assert_same_structure(Pair(1, 2), collections.namedtuple("Pair", ["a", "b"])(3, 4))


def test_misuse() -> None:
    with pytest.raises(ValueError, match="had 2 atoms"):
        tf.nest.pack_sequence_as([1, 2], [1])
    with pytest.raises(TypeError, match="sortable keys"):
        tf.nest.flatten({1: 0, "a": 0})
    with pytest.raises(TypeError, match="callable"):
        tf.nest.map_structure(3, [1])
    with pytest.raises(ValueError, match="at least one structure"):
        tf.nest.map_structure(abs)
    with pytest.raises(ValueError, match="Only valid keyword"):
        tf.nest.map_structure(abs, [1], wrong=True)


def test_references_are_keys() -> None:
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    given = {second.ref(): 2, first.ref(): 1}
    assert tf.nest.flatten(given) == [1, 2]
    assert tf.nest.map_structure(lambda one: one + 1, given) == {second.ref(): 3, first.ref(): 2}
    compiled = tf.function(lambda by_variable: {key: value * 2 for key, value in by_variable.items()})
    assert compiled({key: tf.constant(value) for key, value in given.items()})[first.ref()] == 2


def test_views_deques_and_shapes():
    named = {"b": 2, "a": 1}
    assert tf.nest.flatten([named.values(), named.keys()]) == [2, 1, "b", "a"]
    assert tf.nest.flatten(named.items()) == ["b", 2, "a", 1]
    assert tf.nest.map_structure(lambda one: 2 * one, named.values()) == [4, 2]
    assert tf.nest.map_structure(lambda one: 2 * one, deque([1, 2])) == deque([2, 4])
    shapes = {"a": tf.TensorShape([2, 3]), "b": tf.TensorShape(None)}
    assert tf.nest.flatten(shapes) == [tf.TensorShape([2, 3]), tf.TensorShape(None)]
    assert tf.nest.map_structure(lambda shape: shape.rank, shapes) == {"a": 2, "b": None}
