"""Typed PRNG keys in datasets: each example keeps its key, through a pipeline and onto the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.data import Dataset, InputOptions
from mirrored.errors import StructureError

X = np.arange(8, dtype=np.float32)


def keys(impl: str = "threefry2x32") -> jax.Array:
    return jax.random.split(jax.random.key(7, impl=impl), 8)


def examples(impl: str = "threefry2x32") -> Any:
    return Dataset.from_tensor_slices((X, keys(impl)))


def generated(impl: str = "threefry2x32") -> Any:
    return Dataset.from_generator(lambda: zip(X, keys(impl), strict=True))


def made_in_map(impl: str = "threefry2x32") -> Any:
    numbers = Dataset.from_tensor_slices((X, np.arange(8)))
    return numbers.map(lambda x, number: (x, keys(impl)[number]))


def is_same(found: Any, wanted: jax.Array) -> bool:
    same = jnp.array_equal(jax.random.key_data(found), jax.random.key_data(wanted))
    return bool(same) and found.dtype == wanted.dtype and found.shape == wanted.shape


def column(elements: Iterable[Any]) -> jax.Array:
    """Returns the keys of all elements, in the order of the examples' numbers."""
    pairs = [(np.atleast_1d(x), jnp.atleast_1d(key)) for x, key in elements]
    order = np.argsort(np.concatenate([x for x, _ in pairs]))
    return jnp.concatenate([key for _, key in pairs])[order]


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda given: given,
    "batch": lambda given: given.batch(3),
    "padded_batch": lambda given: given.padded_batch(3),
    "unbatch": lambda given: given.batch(3).unbatch(),
    "rebatch": lambda given: given.batch(3).rebatch(4),
    "shuffle": lambda given: given.shuffle(8, seed=1),
    "take and skip": lambda given: given.take(3).concatenate(given.skip(3)),
    "cache and prefetch": lambda given: given.cache().prefetch(2),
    "filter": lambda given: given.filter(lambda x, key: key.shape == ()),
    "window": lambda given: given.window(2).flat_map(lambda x, key: Dataset.zip((x, key))),
    "a map of batches": lambda given: given.batch(4).map(lambda x, key: (x[::-1], key[::-1])),
    "dicts": lambda given: given.map(lambda x, key: {"x": x, "k": key}).batch(2).map(lambda one: (one["x"], one["k"])),
}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("source", [examples, generated, made_in_map])
@pytest.mark.first(3)
def test_a_dataset_returns_typed_keys(source, impl):
    assert is_same(column(source(impl)), keys(impl))
    assert is_same(column(source(impl).batch(3)), keys(impl))


@pytest.mark.parametrize("name", PIPELINES)
def test_operations_keep_each_examples_key(name):
    assert is_same(column(PIPELINES[name](examples())), keys())


def test_functions_receive_and_return_typed_keys():
    folded = examples().map(lambda x, key: (x, jax.random.fold_in(key, 1)))
    assert is_same(column(folded.batch(4)), jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys()))
    state = Dataset.range(3).reduce(jax.random.key(0), lambda key, number: jax.random.fold_in(key, number))
    expected = jax.random.key(0)
    for number in range(3):
        expected = jax.random.fold_in(expected, number)
    assert is_same(state, expected)
    drawn = list(Dataset.range(2).scan(jax.random.key(0), lambda key, _: tuple(jax.random.split(key))))
    first, second = jax.random.split(jax.random.key(0))
    assert is_same(drawn[0], second)
    assert is_same(drawn[1], jax.random.split(first)[1])


def test_one_element_of_keys():
    assert is_same(next(iter(Dataset.from_tensors(keys()))), keys())
    assert is_same(next(iter(Dataset.from_tensors({"k": keys()}).unbatch()))["k"], keys()[0])


def test_datasets_with_tensorflows_names_return_them_too():
    given = tf.data.Dataset.from_tensor_slices((X, keys())).map(lambda x, key: (x, jax.random.fold_in(key, 1)))
    assert is_same(column(given.batch(4)), jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys()))
    state = tf.data.Dataset.range(1).reduce(jax.random.key(0), lambda key, number: jax.random.fold_in(key, number))
    assert is_same(state, jax.random.fold_in(jax.random.key(0), 0))


def test_the_element_spec_shows_the_implementation():
    assert repr(examples("rbg").batch(4).element_spec) == "(ArraySpec(float32[None]), ArraySpec(key<rbg>[None]))"


def test_a_declared_dtype_of_keys():
    signature = (jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), keys().dtype))
    declared = Dataset.from_generator(lambda: zip(X, keys(), strict=True), output_signature=signature)
    assert is_same(column(declared.batch(8)), keys())
    assert declared.element_spec == examples().element_spec


@pytest.mark.parametrize(("dtype", "found"), [(np.uint32, r"key<threefry2x32>\[\]"), (None, r"float32\[\]")])
def test_another_declared_dtype_is_refused(dtype, found):
    signature = jax.ShapeDtypeStruct((), dtype or keys().dtype)
    elements = keys() if dtype else X
    declared = Dataset.from_generator(lambda: elements, output_signature=signature)
    with pytest.raises(StructureError, match=f"(?s)is {found}.*keys are not converted.*wrap_key_data"):
        list(declared)


def test_keys_of_two_implementations_are_not_stacked():
    both = [jax.random.key(0), jax.random.key(0, impl="rbg")]
    with pytest.raises(StructureError, match=r"key<threefry2x32>\[\] in element 0.*key<rbg>\[\] in element 1"):
        list(Dataset.from_generator(lambda: both).batch(2))


def test_a_list_of_keys_is_refused():
    with pytest.raises(StructureError, match=r"(?s)a list contains typed PRNG keys.*jax.numpy.stack"):
        Dataset.from_tensors([jax.random.key(0), jax.random.key(1)])


def test_keys_are_not_stored_in_files(tmp_path):
    with pytest.raises(StructureError, match=r"(?s)key<threefry2x32>.*without typed PRNG keys.*key_data"):
        examples().save(tmp_path / "saved")


# Distribution over the replicas.


BATCHED: dict[str, Callable[[int], Any]] = {
    "a list": lambda count: [(X[:count], keys()[:count])],
    "a dataset": lambda count: examples().take(count).batch(8),
    "a generator of batches": lambda count: Dataset.from_generator(lambda: [(X[:count], keys()[:count])]),
}


def drawn(x: jax.Array, key: jax.Array) -> jax.Array:
    return jax.vmap(lambda one, own: jax.random.normal(own) + one)(x, key)


def joined(strategy: Any, value: Any) -> np.ndarray:
    return np.concatenate([np.asarray(one) for one in strategy.experimental_local_results(value)])


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("source", BATCHED)
@pytest.mark.parametrize(("last_batch", "count"), [("split", 8), ("split", 5), ("pad", 5), ("drop", 8)])
@pytest.mark.first(2)
def test_replicas_get_the_keys_of_their_examples(last_batch, count, source, devices):
    strategy = mr.MirroredStrategy(jax.devices("cpu")[:devices], num_replicas=4)
    wanted = np.asarray(drawn(X[:count], keys()[:count]))
    batches = list(
        strategy.experimental_distribute_dataset(BATCHED[source](count), InputOptions(last_batch=last_batch))
    )
    assert len(batches) == 1
    batch = batches[0][0] if last_batch == "pad" else batches[0]
    parts = strategy.experimental_local_results(batch[1])
    assert is_same(jnp.concatenate([jax.device_put(one, parts[0].device) for one in parts])[:count], keys()[:count])
    np.testing.assert_array_equal(joined(strategy, strategy.run(drawn, args=batch))[:count], wanted)
    np.testing.assert_array_equal(joined(strategy, mr.function(strategy.run)(drawn, batch))[:count], wanted)
    np.testing.assert_array_equal(joined(strategy, strategy.run(mr.function(drawn), args=batch))[:count], wanted)


@pytest.mark.parametrize("replicas", [1, 4])
def test_keys_of_a_dataset_function(replicas):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=replicas)
    distributed = strategy.distribute_datasets_from_function(lambda context: examples().batch(8 // replicas))
    for batch in distributed:
        np.testing.assert_array_equal(joined(strategy, strategy.run(drawn, args=batch)), np.asarray(drawn(X, keys())))


def test_one_key_per_replica():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    single = strategy.distribute_datasets_from_function(lambda context: Dataset.from_tensor_slices(keys()))
    found = [one for element in single for one in strategy.experimental_local_results(element)]
    assert all(is_same(*pair) for pair in zip(found, keys(), strict=True))


def test_arrays_with_a_batch_size_and_without_a_device():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    for options in (InputOptions(batch_size=8), InputOptions(batch_size=8, experimental_fetch_to_device=False)):
        for _, found in strategy.experimental_distribute_dataset((X, keys()), options):
            assert is_same(jnp.concatenate(strategy.experimental_local_results(found)), keys())


def test_a_position_is_saved_and_restored():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    distributed = strategy.experimental_distribute_dataset(examples().shuffle(8, seed=3).batch(2))
    iterator = iter(distributed)
    next(iterator)
    state = iterator.get_state()
    rest = [jax.random.key_data(part) for _, key in iterator for part in strategy.experimental_local_results(key)]
    again = iter(distributed)
    again.set_state(state)
    found = [jax.random.key_data(part) for _, key in again for part in strategy.experimental_local_results(key)]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(rest))
