"""Contexts of the default strategy, and results of several replicas as recorded on TensorFlow 2.21."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirrored.tf as tf

DEFAULT = tf.distribute.get_strategy()


def context() -> tuple[bool, bool, bool]:
    """Returns whether there is no replica context, and no strategy other than the default one."""
    assert (tf.distribute.get_replica_context() is None) is tf.distribute.in_cross_replica_context()
    return (
        tf.distribute.in_cross_replica_context(),
        tf.distribute.has_strategy(),
        tf.distribute.get_strategy() is DEFAULT,
    )


def merged(function: Callable[[Any], Any]) -> Any:
    replica: Any = tf.distribute.get_replica_context()
    return replica.merge_call(function)


def in_scope(strategy: Any, function: Callable[[], Any] = context) -> Any:
    with strategy.scope():
        return function()


REPLICA, CROSS, OTHER = (False, False, True), (True, False, True), (True, True, False)
CONTEXTS: dict[str, tuple[Callable[[], Any], tuple[bool, bool, bool]]] = {
    "outside": (context, REPLICA),
    "scope": (lambda: in_scope(DEFAULT), REPLICA),
    "run": (lambda: DEFAULT.run(context), REPLICA),
    "merge": (lambda: merged(lambda strategy: context()), CROSS),
    "merge in run": (lambda: DEFAULT.run(lambda: merged(lambda strategy: context())), CROSS),
    "merge in a function": (lambda: tuple(map(bool, tf.function(lambda: merged(lambda strategy: context()))())), CROSS),
    "scope in merge": (lambda: merged(in_scope), CROSS),
    "run in merge": (lambda: merged(lambda strategy: strategy.run(context)), REPLICA),
    "run in scope": (lambda: in_scope(DEFAULT, lambda: DEFAULT.run(context)), REPLICA),
    "another scope in merge": (
        lambda: merged(lambda strategy: in_scope(tf.distribute.OneDeviceStrategy("CPU:0"))),
        OTHER,
    ),
    "another scope in scope": (
        lambda: in_scope(DEFAULT, lambda: in_scope(tf.distribute.OneDeviceStrategy("CPU:0"))),
        OTHER,
    ),
}


@pytest.mark.parametrize("where", CONTEXTS)
def test_the_context_of_the_default_strategy(where: str) -> None:
    call, expected = CONTEXTS[where]
    assert call() == expected
    assert context() == REPLICA


def test_a_merge_of_the_default_strategy_passes_arguments_and_may_raise() -> None:
    replica: Any = tf.distribute.get_replica_context()
    assert replica.merge_call(lambda strategy, *args, **kwargs: (args, kwargs), (1,), {"a": 2}) == ((1,), {"a": 2})
    with pytest.raises(ZeroDivisionError):
        replica.merge_call(lambda strategy: 1 / 0)
    assert context() == REPLICA


def test_variables_in_a_merge_of_the_default_strategy() -> None:
    v = merged(lambda strategy: tf.Variable(1.0))
    assert float(merged(lambda strategy: v.assign_add(1.0))) == 2.0
    assert merged(lambda strategy: strategy.extended.update(v, lambda var: var.assign_add(1.0), group=False)) == (3.0,)


def test_the_default_strategy_has_no_list_of_devices() -> None:
    for name in ("worker_devices", "parameter_devices"):
        with pytest.raises(RuntimeError, match="this is the default strategy"):
            getattr(DEFAULT.extended, name)


@pytest.fixture
def two() -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def test_structures_have_one_local_result_for_each_replica(two: tf.distribute.MirroredStrategy) -> None:
    local = two.experimental_local_results
    assert local({"a": 1.0, "b": 2.0}) == ({"a": 1.0, "b": 2.0},) * 2
    assert local((1.0, 2.0)) == ((1.0, 2.0),) * 2
    assert local(two.run(lambda: {"a": 1.0})) == ({"a": 1.0},) * 2
    assert local(1.0) == (1.0,)
    assert local(None) == (None,)
    assert local(()) == ((), ())
    assert DEFAULT.experimental_local_results({"a": 1.0}) == ({"a": 1.0},)


def test_an_update_has_one_local_result_for_each_replica(two: tf.distribute.MirroredStrategy) -> None:
    with two.scope():
        v = tf.Variable(1.0)
    with two.scope():
        updated = two.extended.update(v, lambda var, x: var.assign_add(x), args=(1.0,))
        assert [float(one) for one in two.experimental_local_results(updated)] == [2.0, 2.0]
        assert two.experimental_local_results(two.extended.update(v, lambda var: 5.0)) == (5.0,)
        assert two.experimental_local_results(two.extended.update(v, lambda var: None)) == (None,)
        constants = two.experimental_local_results(two.extended.update(v, lambda var: tf.constant(5.0)))
        assert [float(one) for one in constants] == [5.0, 5.0]
        assert len(two.extended.update(v, lambda var: var.assign_add(1.0), group=False)) == 2
    assert float(updated) == 2.0


USES: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": tf.reduce_sum,
    "convert_to_tensor": tf.convert_to_tensor,
    "add": lambda x: tf.add(x, 1.0),
    "stack": lambda x: tf.stack([x, x]),
    "cast": lambda x: tf.cast(x, tf.int32),
    "matmul": lambda x: tf.matmul(x, x),
    "assign": lambda x: tf.Variable([0.0, 0.0]).assign(x),
}


@pytest.mark.parametrize("use", USES)
def test_a_per_replica_value_used_as_a_tensor_is_a_value_error(two: tf.distribute.MirroredStrategy, use: str) -> None:
    value = two.run(lambda: tf.constant([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"as if it were one array|per-replica"):
        USES[use](value)


def test_a_per_replica_value_in_an_expression_is_a_type_error(two: tf.distribute.MirroredStrategy) -> None:
    value = two.run(lambda: tf.constant([1.0, 2.0]))
    for use in (lambda: value + 1.0, lambda: float(value), lambda: list(value), lambda: value[0]):
        with pytest.raises(TypeError, match="as if it were one array"):
            use()
