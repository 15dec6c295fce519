"""In-place operators never change a tensor that another name holds, whatever kind of array the tensor is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.tf._rebinding import IN_PLACE, Rebinding

SOURCES: dict[str, Callable[[Any], Any]] = {
    "element": lambda x: x,
    "computed": lambda x: x + 1,
    "shape": tf.shape,
    "size": tf.size,
    "rank": tf.rank,
    "constant": lambda x: tf.constant([4, 5]),
    "part of a shape": lambda x: tf.shape(x)[:1],
}
UPDATES: dict[str, Callable[[Any], Any]] = {
    "+=": lambda s: operator.iadd(s, 1),
    "*=": lambda s: operator.imul(s, 2),
    "-=": lambda s: operator.isub(s, 1),
    "//=": lambda s: operator.ifloordiv(s, 2),
    "**=": lambda s: operator.ipow(s, 2),
}


def eager(function: Callable[[Any], Any]) -> Any:
    return function(tf.constant([[3, 1], [4, 2]]))


def compiled(function: Callable[[Any], Any]) -> Any:
    return tf.function(function)(tf.constant([[3, 1], [4, 2]]))


def mapped(function: Callable[[Any], Any]) -> Any:
    return next(iter(tf.data.Dataset.from_tensors(np.array([[3, 1], [4, 2]], np.int32)).map(function)))


@pytest.mark.parametrize("ran", [eager, compiled, mapped])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.first(53)
def test_another_name_keeps_its_value(ran: Callable[..., Any], source: str, update: str) -> None:
    make, change = SOURCES[source], UPDATES[update]

    def both(x: Any) -> tuple[Any, Any]:
        kept = make(x)
        return change(kept), kept + 0

    changed, kept = (np.asarray(one) for one in ran(both))
    expected = np.asarray(eager(lambda x: make(x) + 0))
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(changed, change(np.array(expected)))


def test_an_element_becomes_a_float() -> None:
    def halved(x: Any) -> Any:
        x *= 0.5
        return x

    data = tf.data.Dataset.from_tensors(np.array([1.0, 2.0], np.float32)).map(halved)
    np.testing.assert_array_equal(next(iter(data)), [0.5, 1.0])


def test_every_array_that_is_a_tensor_rebinds() -> None:
    tensors = [one for one in _subclasses(np.ndarray) if one.__module__.startswith("mirrored.tf")]
    assert len(tensors) >= 2
    assert [one for one in tensors if not issubclass(one, Rebinding)] == []
    numpy_has = {name for name in vars(np.ndarray) if name.startswith("__i") and name[3:-2] in _BINARY}
    assert numpy_has == set(IN_PLACE)


_BINARY = {"add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "xor", "or"}


def _subclasses(kind: type) -> list[type]:
    return [found for one in kind.__subclasses__() for found in (one, *_subclasses(one))]
