"""What a function returns: tensors of numbers and values of variables, as recorded on TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf


class Setting:
    """A strategy with two replicas, and variables that a function may return."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        self.v = tf.Variable(1.0)
        with self.strategy.scope():
            self.mirrored = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
            self.counted = tf.Variable(
                1.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )


@pytest.fixture
def setting() -> Setting:
    return Setting()


def described(value: Any) -> Any:
    """Returns a value with a pair of dtype and value for each tensor."""
    if isinstance(value, (list, tuple)):
        return type(value)(described(one) for one in value)
    if isinstance(value, dict):
        return {key: described(one) for key, one in value.items()}
    if isinstance(value, tf.Variable):
        return "a variable"
    if isinstance(value, tf.distribute.DistributedValues):
        return {"per replica": [described(one) for one in value.values]}
    return (tf.as_dtype(value.dtype).name, value.numpy().tolist()) if tf.is_tensor(value) else value


ONE = ("float32", 1.0)
CASES: dict[str, tuple[Callable[[Setting], Any], Any]] = {
    "float": (lambda s: tf.function(lambda: 1.0)(), ONE),
    "int": (lambda s: tf.function(lambda: 1)(), ("int32", 1)),
    "bool": (lambda s: tf.function(lambda: True)(), ("bool", True)),
    "None": (lambda s: tf.function(lambda: None)(), None),
    "array": (lambda s: tf.function(lambda: np.arange(2, dtype=np.int32))(), ("int32", [0, 1])),
    "shape": (lambda s: tf.function(lambda: tf.TensorShape([1, 2]))(), ("int32", [1, 2])),
    "tuple": (lambda s: tf.function(lambda: (1, 2.0, None))(), (("int32", 1), ("float32", 2.0), None)),
    "list": (lambda s: tf.function(lambda: [1, [2]])(), [("int32", 1), [("int32", 2)]]),
    "dictionary": (lambda s: tf.function(lambda: {"a": 1, "b": s.v})(), {"a": ("int32", 1), "b": ONE}),
    "variable": (lambda s: tf.function(lambda: s.v)(), ONE),
    "mirrored variable": (lambda s: tf.function(lambda: s.mirrored)(), ONE),
    "sync-on-read variable": (lambda s: tf.function(lambda: s.counted)(), ("float32", 2.0)),
    "components": (lambda s: tf.function(lambda: s.mirrored.values)(), (ONE, ONE)),
    "an argument": (lambda s: tf.function(lambda x: x)(3), ("int32", 3)),
    "a variable as argument": (lambda s: tf.function(lambda x: x)(s.v), ONE),
    "a variable that it assigns": (
        lambda s: tf.function(lambda: (s.v, s.v.assign(3.0), s.v))(),
        (("float32", 3.0),) * 3,
    ),
    "concrete function": (
        lambda s: tf.function(lambda x: (x, 1)).get_concrete_function(tf.TensorSpec([]))(tf.constant(1.0)),
        (ONE, ("int32", 1)),
    ),
    "in scope": (lambda s: _in_scope(s, tf.function(lambda: (1.0, s.counted))), (ONE, ("float32", 2.0))),
    "run of a function": (lambda s: s.strategy.run(tf.function(lambda: (1.0, None))), (ONE, None)),
    "run of a function with a variable": (lambda s: s.strategy.run(tf.function(lambda: s.mirrored)), ONE),
    "run of a function with a sync-on-read variable": (
        lambda s: s.strategy.run(tf.function(lambda: s.counted)),
        ("float32", 2.0),
    ),
    "run in a function": (lambda s: tf.function(lambda: s.strategy.run(lambda: 1.0))(), ONE),
    "run in a function with a variable": (
        lambda s: tf.function(lambda: s.strategy.run(lambda: s.counted))(),
        ("float32", 2.0),
    ),
    "eager run": (lambda s: s.strategy.run(lambda: (1.0, s.mirrored)), (1.0, "a variable")),
    "function in an eager run": (
        lambda s: s.strategy.run(lambda: tf.function(lambda: 1.0)()),
        {"per replica": [ONE, ONE]},
    ),
    "function with a variable in an eager run": (
        lambda s: s.strategy.run(lambda: tf.function(lambda: s.mirrored)()),
        {"per replica": [ONE, ONE]},
    ),
}


def _in_scope(s: Setting, function: Callable[[], Any]) -> Any:
    with s.strategy.scope():
        return function()


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_tensorflow(setting: Setting, case: str) -> None:
    call, expected = CASES[case]
    assert described(call(setting)) == expected


def test_a_returned_variable_is_a_snapshot(setting: Setting) -> None:
    v = setting.v
    get = tf.function(lambda: v)
    before = get()
    v.assign(5.0)
    assert (float(before), float(get())) == (1.0, 5.0)

    @tf.function
    def assigns() -> Any:
        first = get()
        v.assign(7.0)
        return first, get()

    assert described(assigns()) == (("float32", 5.0), ("float32", 7.0))


def test_a_returned_variable_has_a_gradient(setting: Setting) -> None:
    with tf.GradientTape() as tape:
        y = 3.0 * tf.function(lambda: setting.v)()
    assert float(tape.gradient(y, setting.v)) == 3.0


def test_objects_that_are_no_tensors_are_returned_unchanged() -> None:
    objects = (object(), "text", tf.float32)
    assert all(one is two for one, two in zip(tf.function(lambda: objects)(), objects, strict=True))


@pytest.fixture
def eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("eagerly")
def test_a_function_that_runs_eagerly_returns_what_the_python_function_returns(setting: Setting) -> None:
    assert tf.function(lambda: 1.0)() == 1.0
    assert tf.function(lambda: setting.v)() is setting.v


def test_a_function_that_reads_a_dataset_returns_tensors() -> None:
    reading = iter(tf.data.Dataset.range(3))
    assert described(tf.function(lambda: (next(reading), 1))()) == (("int32", 0), ("int32", 1))
