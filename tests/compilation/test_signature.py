"""The keys that a compiled function finds its programs by."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirrored as mr
import mirrored.tf as tf
from mirrored.compilation.signature import flatten_arguments, quick_key
from mirrored.errors import ArgumentError

LEAVES = st.one_of(
    st.sampled_from([None, True, 1, 1.0, "a", np.float32(1), np.ones(2, "i4")]),
    st.builds(
        lambda shape, dtype: jnp.zeros(shape, dtype),
        st.sampled_from([(), (2,), (2, 1)]),
        st.sampled_from(["f4", "i4", "bool"]),
    ),
    st.just(jnp.asarray(1.0)),
    st.builds(lambda: jax.random.key(0)),
)
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["b", "a", "c"]), inner, max_size=3),
    ),
    max_leaves=5,
)


@given(one=STRUCTURES, other=STRUCTURES)
def test_equal_quick_keys_are_equal_keys_and_the_same_arrays(one: Any, other: Any) -> None:
    arrays: list[Any] = []
    quick = quick_key((one,), arrays)
    if quick is None:
        return
    full = flatten_arguments((one,), {}, None)
    assert [id(array) for array in arrays] == [id(array) for array in full.arrays]
    if quick == quick_key((other,), []):
        assert full.key == flatten_arguments((other,), {}, None).key


def test_what_is_not_plain_has_no_quick_key(strategy_of_two: mr.MirroredStrategy) -> None:
    unstacked = mr.PerReplica((1.0, 2.0))
    for value in (np.ones(2), 1.0, mr.Variable(1.0), unstacked, {1: jnp.ones(2)}, object()):
        assert quick_key((value,), []) is None
    stacked = strategy_of_two.distribute_values_from_function(lambda context: np.ones(3, "f4"))
    array = stacked.stacked(stacked.device_assignment)
    assert quick_key(([stacked],), []) not in (None, quick_key(([array],), []))


@pytest.fixture
def strategy_of_two() -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:2])


def test_a_program_is_found_again_for_equal_structures_only() -> None:
    @mr.function
    def total(batch: dict[str, Any], flag: bool) -> Any:
        return batch["x"] + batch["y"] if flag else batch["x"]

    x, y = jnp.float32(1.0), jnp.float32(2.0)
    assert [float(total({"x": x, "y": y}, flag)) for flag in (True, False, True)] == [3.0, 1.0, 3.0]
    assert total.trace_count == 2
    assert float(total({"x": jnp.int32(1), "y": y}, True)) == 3.0
    assert total.trace_count == 3


def _in_order(x: Any, operations: dict[str, Any]) -> Any:
    for name, value in operations.items():
        x = x * value if name == "multiply" else x + (value if name == "add" else 0.0)
    return x


def _deep(x: Any, layers: list[dict[str, Any]]) -> Any:
    return _in_order(x, layers[0])


@pytest.mark.parametrize("number", [float, jnp.float32, int], ids=["static", "arrays", "quick"])
def test_programs_are_found_by_the_order_of_the_keys(number: Any) -> None:
    x, one, other = (
        jnp.float32(3),
        {"multiply": number(2), "add": number(10)},
        {"add": number(10), "multiply": number(2)},
    )
    step, deep, keywords = mr.function(_in_order), mr.function(_deep), mr.function(lambda x, **all: _in_order(x, all))
    for _ in range(2):
        for operations, result in ((one, 16.0), (other, 26.0)):
            assert float(step(x, operations)) == result
            assert float(deep(x, [operations])) == result
            assert float(keywords(x, **operations)) == result
    assert [made.trace_count for made in (step, deep, keywords)] == [2, 2, 2]
    assert step.retrace_reason is not None
    assert "the keys of a dict, or the keyword arguments, are in another order" in step.retrace_reason


@pytest.mark.parametrize("decorate", [mr.function, tf.function])
def test_the_order_of_keyword_arguments_counts_only_where_a_function_can_see_it(decorate: Any) -> None:
    class Model:
        @decorate  # type: ignore[untyped-decorator]
        def difference(self, x: Any, y: Any) -> Any:
            return x - y

    def difference(x: Any, *, y: Any) -> Any:
        return x - y

    def through(**all: Any) -> Any:
        return difference(*list(all.values())[:1], y=list(all.values())[1])

    x, y = jnp.float32(3), jnp.float32(1)
    function, method = decorate(difference), Model()
    for call in (function, method.difference):
        assert [float(call(x=x, y=y)), float(call(y=y, x=x))] == [2.0, 2.0]
        assert call.trace_count == 1
    wrapped = decorate(functools.wraps(difference)(through))
    assert [float(wrapped(x=x, y=y)), float(wrapped(y=y, x=x))] == [2.0, -2.0]


class _Color(enum.StrEnum):
    RED = "red"


class _Level(enum.IntEnum):
    ONE = 1


# Keys that are equal by ``==``, with equal hashes, but that a program can tell apart.
EQUAL_KEYS: dict[str, list[Any]] = {
    "numbers": [True, 1, 1.0, 1 + 0j, np.int32(1), np.float32(1), _Level.ONE],
    "zeros": [0.0, -0.0, 0, False],
    "strings": ["red", _Color.RED],
    "tuples": [(1, "a"), (True, "a"), (1.0, "a")],
    "frozensets": [frozenset([1]), frozenset([True])],
}


@pytest.mark.first(14)
@pytest.mark.parametrize("around", [lambda one: one, lambda one: [0, one], lambda one: {"a": (one,)}, OrderedDict])
@pytest.mark.parametrize("name", EQUAL_KEYS)
@pytest.mark.parametrize("decorate", [mr.function, tf.function])
def test_equal_keys_of_different_types_are_told_apart(decorate: Any, name: str, around: Callable[[Any], Any]) -> None:
    """The second call ran the program of the first one, silently."""

    def keys_of(tree: Any) -> str:
        if not isinstance(tree, dict):
            return "".join(map(keys_of, tree)) if isinstance(tree, (list, tuple)) else ""
        return "".join(f"{type(key)} {key!r} {keys_of(part)}" for key, part in tree.items())

    seen = []

    @decorate  # type: ignore[untyped-decorator]
    def step(tree: Any, x: Any) -> Any:
        seen.append(keys_of(tree))
        return x

    trees = [around({key: jnp.ones(())}) for key in EQUAL_KEYS[name]]
    for _ in range(2):
        for tree in trees:
            step(tree, jnp.ones(()))
    assert seen == [keys_of(tree) for tree in trees]


def test_replica_functions_and_steps_tell_equal_keys_apart(strategy_of_two: mr.MirroredStrategy) -> None:
    def ten_or_twenty(batch: dict[Any, Any]) -> Any:
        [(key, x)] = batch.items()
        return x * (10 if key is True else 20)

    one, step = jnp.ones(()), mr.function(ten_or_twenty)
    for key, result in ((True, 10.0), (1, 20.0), (True, 10.0)):
        assert [float(each) for each in strategy_of_two.run(step, ({key: one},)).values] == [result] * 2
    with pytest.raises(ArgumentError, match="of different types"):
        mr.function(ten_or_twenty, steps_per_call=2)([{True: one}, {1: one}])


def test_the_order_of_keys_counts_where_the_values_are_empty() -> None:
    names = mr.function(lambda groups: list(groups))
    assert names({"b": [], "a": ()}) == ["b", "a"]
    assert names({"a": (), "b": []}) == ["a", "b"]
    assert names({"b": [], "a": ()}) == ["b", "a"]


def test_compiled_replica_functions_are_found_by_the_order_of_the_keys(strategy_of_two: mr.MirroredStrategy) -> None:
    step = mr.function(_in_order)
    for operations, result in (({"multiply": 2.0, "add": 10.0}, 16.0), ({"add": 10.0, "multiply": 2.0}, 26.0)):
        assert [float(one) for one in strategy_of_two.run(step, (jnp.float32(3), operations)).values] == [result] * 2


def test_the_steps_of_a_call_have_their_keys_in_one_order() -> None:
    step = mr.function(lambda batch: batch["x"] + batch["y"], steps_per_call=2)
    x, y = jnp.float32(1.0), jnp.float32(2.0)
    assert step([{"y": y, "x": x}] * 2).tolist() == [3.0, 3.0]
    with pytest.raises(ArgumentError, match="the dicts in the batches of one call have their keys in different"):
        step([{"y": y, "x": x}, {"x": x, "y": y}])


@pytest.mark.parametrize(("wide", "narrow"), [("int64", "int32"), ("float64", "float32")])
def test_a_signature_of_64_bits_takes_what_arrays_have_on_devices(wide: str, narrow: str) -> None:
    double = mr.function(lambda x: x * 2, input_signature=[mr.data.ArraySpec((None,), np.dtype(wide))])
    for values in (np.ones(2, wide), jnp.ones(2, narrow), [1, 1]):
        assert double(values).tolist() == [2, 2]
        assert double(values).dtype == narrow
    concrete = double.get_concrete_function(jax.ShapeDtypeStruct((2,), np.dtype(wide)))
    assert concrete(jnp.ones(2, narrow)).tolist() == [2, 2]
    assert double(np.ones(2, "uint8")).dtype == narrow  # a NumPy array is converted, an array of JAX is not
    with pytest.raises(mr.errors.SignatureError, match=f"requires {narrow}"):
        double(jnp.ones(2, "uint8"))


def test_the_spec_of_a_distributed_dataset_is_a_signature(strategy_of_two: mr.MirroredStrategy) -> None:
    dataset = mr.data.Dataset.from_tensor_slices((np.ones((4, 2)), np.arange(4))).batch(2)
    for strategy in (strategy_of_two, mr.MirroredStrategy(jax.devices()[:1]), mr.get_strategy()):
        batches = strategy.experimental_distribute_dataset(dataset)
        total = mr.function(lambda batch: batch, input_signature=[batches.element_spec])
        for batch in batches:
            pixels, labels = total(batch)
            assert {one.dtype.name for one in strategy.experimental_local_results(pixels)} == {"float32"}
            assert {one.dtype.name for one in strategy.experimental_local_results(labels)} == {"int32"}


@pytest.mark.parametrize("method", ["lower", "get_concrete_function"])
def test_uneven_batches_have_no_program(method: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    uneven = mr.PerReplica([jnp.ones(3), jnp.ones(2)], strategy.device_assignment)
    step = mr.function(lambda x: strategy.run(jnp.sum, (x,)))
    with pytest.raises(ArgumentError, match="batches of equal shape"):
        getattr(step, method)(uneven)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
@pytest.mark.parametrize("per_replica", [False, True])
def test_arrays_of_64_bits_are_refused_outside_of_64_bit_mode(
    per_replica: bool, dtype: str, strategy_of_two: mr.MirroredStrategy
) -> None:
    """XLA refused the program, with its own error or one about explicit axes."""
    with jax.enable_x64(True):
        array = jnp.ones(3, dtype)
        value = strategy_of_two.distribute_values_from_function(lambda _: array) if per_replica else array
    double = mr.function(lambda x: strategy_of_two.run(lambda one: 2 * one, args=(x,)))
    with pytest.raises(ArgumentError, match=rf"an argument is an array {dtype}\[.*created in 64-bit mode[\s\S]*numpy"):
        double(value)
    with jax.enable_x64(True):
        assert strategy_of_two.experimental_local_results(double(value))[1].dtype == dtype
    assert strategy_of_two.experimental_local_results(double(np.ones(3)))[1].dtype == np.float32
