from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import mirrored.tf as tf


def test_elements_are_tensors() -> None:
    element = next(iter(tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0]}).map(lambda e: e["x"] * 2.0)))
    assert isinstance(element, jax.Array)
    assert element.numpy() == 2.0


def test_numpy_iterator_and_cardinality() -> None:
    dataset = tf.data.Dataset.range(5).batch(2)
    assert all(isinstance(element, np.ndarray) for element in dataset.as_numpy_iterator())
    assert dataset.cardinality().numpy() == len(dataset) == 3
    assert dataset.repeat().cardinality() == tf.data.INFINITE_CARDINALITY


def test_functions_take_operations_of_the_facade() -> None:
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32) / 2.0).batch(2)
    assert [element.numpy().tolist() for element in dataset] == [[0.0, 0.5], [1.0, 1.5]]
    assert float(dataset.unbatch().reduce(tf.constant(0.0), lambda total, x: total + x)) == 3.0


def test_strings_are_bytes() -> None:
    assert list(tf.data.Dataset.from_tensor_slices(["a", "b"])) == [b"a", b"b"]


@pytest.mark.parametrize("texts", [np.array(["a", "bc"]), np.array([b"a", b"bc"])], ids=["U", "S"])
def test_arrays_of_strings_are_bytes(texts: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices((texts, [0, 1]))
    assert [text for text, _ in dataset] == [b"a", b"bc"]
    assert [text.numpy() for text, _ in dataset] == [b"a", b"bc"]
    assert [text for text, _ in dataset.as_numpy_iterator()] == [b"a", b"bc"]
    for batches in (dataset.batch(2), dataset.batch(2).as_numpy_iterator()):
        (batch, _) = next(iter(batches))
        assert batch.dtype == object
        assert batch.tolist() == [b"a", b"bc"]
    seen: list[Any] = []
    names = dataset.map(lambda text, _: seen.append(text.numpy()) or tf.strings.join([text, ".png"]))
    assert list(names) == [b"a.png", b"bc.png"]
    joined = dataset.batch(2).map(lambda text, _: seen.append(text.numpy().tolist()) or tf.strings.join([text, "x"]))
    assert next(iter(joined)).tolist() == [b"ax", b"bcx"]
    assert seen == [b"a", b"bc", [b"a", b"bc"]]


@pytest.mark.parametrize("dtype", [">i2", ">u4", ">f4", ">i8", ">c8"])
def test_arrays_of_the_other_byte_order_are_tensors(dtype: str) -> None:
    """As in IDX and FITS files; only elements with a dim were refused, with an error of JAX."""
    rows = np.arange(4).astype(dtype).reshape(2, 2)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    for made in (dataset, dataset.map(lambda row: row), tf.data.Dataset.range(2).map(lambda n: rows[int(n)])):
        assert [row.numpy().tolist() for row in made] == rows.tolist()
        assert all(row.dtype == tf.as_dtype(jax.dtypes.canonicalize_dtype(dtype[1:])) for row in made)
        assert [batch.numpy().tolist() for batch in made.padded_batch(2)] == [rows.tolist()]
    seen: list[Any] = []
    batches = dataset.batch(2)
    list(batches.map(lambda batch: seen.append(batch.dtype == tf.as_dtype(dtype[1:])) or batch))
    assert seen == [True]
    assert dataset.element_spec.dtype == batches.element_spec.dtype == np.dtype(dtype[1:])
    assert tf.data.Dataset.from_tensors(rows).get_single_element().numpy().tolist() == rows.tolist()
    assert dataset.reduce(rows[0], lambda total, row: total + row).numpy().tolist() == [2, 5]
    assert next(iter(dataset.batch(2))).numpy().tolist() == rows.tolist()


def test_a_mapped_file_of_the_other_byte_order_is_read_in_the_native_one(tmp_path: Path) -> None:
    """Functions saw its dtype, which is equal to none of TensorFlow's."""
    path = tmp_path / "rows"
    np.arange(6, dtype=">i2").tofile(path)
    rows = np.memmap(path, ">i2", "r", shape=(3, 2))
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    for made in (dataset, dataset.batch(2), dataset.shuffle(3, seed=1).batch(2), dataset.batch(2).shuffle(2)):
        seen: list[Any] = []
        read = list(made.map(lambda row, seen=seen: seen.append(row.dtype == tf.int16) or row))
        assert seen == [True] * len(read)
        assert sorted(np.concatenate([row.numpy().ravel() for row in read]).tolist()) == list(range(6))
        assert made.element_spec.dtype == np.int16


def test_functions_and_generators_may_return_arrays_of_strings() -> None:
    assert list(tf.data.Dataset.range(2).map(lambda x: np.str_("a"))) == [b"a", b"a"]
    (batch,) = tf.data.Dataset.from_generator(lambda: iter([np.array(["a", "b"])]))
    assert batch.tolist() == [b"a", b"b"]


def test_the_end_of_a_distributed_dataset_is_out_of_range() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    reading = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(2).batch(2)))
    reading.get_next()
    with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
        reading.get_next()


ENDED: dict[str, tuple[Callable[[Any], Any], type[BaseException]]] = {
    "next": (next, StopIteration),
    "get_next": (lambda it: it.get_next(), tf.errors.OutOfRangeError),
    "next in a function": (tf.function(lambda it: next(it)), tf.errors.OutOfRangeError),
    "get_next in a function": (tf.function(lambda it: it.get_next()), tf.errors.OutOfRangeError),
    "optional": (lambda it: it.get_next_as_optional().get_value(), tf.errors.InvalidArgumentError),
    "optional of a function": (
        lambda it: tf.function(lambda: it.get_next_as_optional())().get_value(),
        tf.errors.InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("take", ENDED)
@pytest.mark.parametrize("how", ["plain", "distributed", "from a function"])
def test_what_is_raised_at_the_end_is_as_recorded_on_tensorflow(how: str, take: str) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.Dataset.range(2).batch(2)
    reading = iter(
        {
            "plain": lambda: dataset,
            "distributed": lambda: strategy.experimental_distribute_dataset(dataset),
            "from a function": lambda: strategy.distribute_datasets_from_function(lambda context: dataset.repeat(2)),
        }[how]()
    )
    next(reading)
    call, error = ENDED[take]
    with pytest.raises(error):
        call(reading)


def test_options_have_the_names_of_tensorflow() -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.range(3).with_options(options)
    assert dataset.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA


@pytest.mark.parametrize("dtype", [tf.int32, tf.float32, "uint8", np.float64])
def test_a_range_has_the_requested_dtype(dtype: Any) -> None:
    numbers = tf.data.Dataset.range(1, 9, 3, output_type=dtype)
    assert numbers.element_spec.dtype == tf.as_dtype(dtype)
    for found in (numbers, numbers.batch(3).unbatch(), numbers.shuffle(1)):
        values = list(found.as_numpy_iterator())
        assert ([*map(int, values)], {one.dtype.name for one in values}) == ([1, 4, 7], {tf.as_dtype(dtype).name})


class Picture(NamedTuple):
    pixels: Any
    label: Any


ELEMENTS = {
    "an array": (lambda: tf.data.Dataset.from_tensor_slices([[1.0, 2.0]]), lambda x: [x]),
    "a number": (lambda: tf.data.Dataset.range(1), lambda x: [x]),
    "a text": (lambda: tf.data.Dataset.from_tensor_slices(["a"]), lambda x: [x]),
    "texts": (lambda: tf.data.Dataset.from_tensor_slices([["a", "b"]]), lambda x: [x]),
    "a tuple": (lambda: tf.data.Dataset.from_tensor_slices(([1.0], [2])), lambda x, y: [x, y]),
    "a named tuple": (lambda: tf.data.Dataset.from_tensor_slices({"p": Picture([1.0], [2])}), lambda d: list(d["p"])),
    "nested": (
        lambda: tf.data.Dataset.from_tensor_slices({"x": ([1.0], {"y": [2]})}),
        lambda d: [d["x"][0], d["x"][1]["y"]],
    ),
    "of a stream": (lambda: tf.data.Dataset.from_tensor_slices([1.0]).filter(lambda _: True), lambda x: [x]),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_functions_receive_what_has_the_methods_of_a_tensor(name: str) -> None:
    make, parts_of = ELEMENTS[name]
    seen = []

    def look(*element: Any) -> Any:
        for part in parts_of(*element):
            assert part.get_shape() == part.shape
            part.set_shape([None] * part.shape.rank)
            with pytest.raises(ValueError, match="not compatible"):
                part.set_shape([7, 7, 7])
            seen.append((type(part.numpy()), part.shape.as_list()))
        return element[0] if len(element) == 1 else element

    dataset = make()
    (whole,), (mapped,) = list(dataset.as_numpy_iterator()), list(dataset.map(look).as_numpy_iterator())
    for one, other in zip(jax.tree.leaves(mapped), jax.tree.leaves(whole), strict=True):
        assert isinstance(one, bytes) or type(one) in (np.ndarray, np.float32, np.int32, np.int64)
        assert np.all(one == other)
    assert {kind for kind, _ in seen} <= {bytes, np.ndarray, np.float32, np.int32, np.int64}
    assert seen


def test_all_functions_receive_tensors() -> None:
    numbers = tf.data.Dataset.range(6)
    assert [*map(int, numbers.filter(lambda x: x.numpy() % 2 == 1))] == [1, 3, 5]
    assert [*map(int, numbers.take_while(lambda x: x.numpy() < 2))] == [0, 1]
    assert int(numbers.reduce(np.int64(0), lambda total, x: total.numpy() + x.numpy())) == 15
    assert [*map(int, numbers.scan(np.int64(0), lambda s, x: (s + x.numpy(), s + x.numpy())))] == [0, 1, 3, 6, 10, 15]
    assert [*map(int, numbers.take(3).flat_map(lambda x: tf.data.Dataset.range(x.numpy())))] == [0, 0, 1]
    grouped = numbers.group_by_window(lambda x: x.numpy() % 2, lambda _, window: window.batch(3), 3)
    assert [batch.numpy().tolist() for batch in grouped] == [[0, 2, 4], [1, 3, 5]]
    drawn = numbers.random_map(lambda x, rng: x.numpy() + rng.integers(1))
    assert [*map(int, drawn)] == list(range(6))


def test_an_array_that_a_function_returns_unchanged_is_not_copied() -> None:
    given = tf.data.Dataset.from_tensor_slices(np.zeros((2, 100_000), np.float32))
    for one, other in zip(given.as_numpy_iterator(), given.map(lambda x: x).as_numpy_iterator(), strict=True):
        assert type(other) is np.ndarray
        assert np.shares_memory(one, other)


BIG = np.array([2**31 + 5, 2**40, -(2**35)], np.int64)
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {  # recorded with TensorFlow 2.21
    "add": (lambda x: tf.add(x, 1), [2147483654, 1099511627777, -34359738367]),
    "cast": (lambda x: tf.cast(x, tf.int64) * 2, [4294967306, 2199023255552, -68719476736]),
    "floormod": (lambda x: tf.math.floormod(x, 7), [0, 2, 3]),
    "where": (lambda x: tf.where(x > 0, x, 0), [2147483653, 1099511627776, 0]),
    "float32": (lambda x: tf.cast(x, tf.float32), BIG.astype(np.float32).tolist()),
    "float64": (lambda x: tf.cast(x, tf.float64) + 0.5, [2147483653.5, 1099511627776.5, -34359738367.5]),
    "constant": (lambda x: tf.constant(2**40, tf.int64) + x, (BIG + 2**40).tolist()),
    "identity": (lambda x: tf.identity(x), BIG.tolist()),
}


@pytest.mark.parametrize(("function", "expected"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_compute_in_64_bits(function: Callable[[Any], Any], expected: list[Any]) -> None:
    mapped = tf.data.Dataset.from_tensor_slices(BIG).map(function)
    assert [one.item() for one in mapped.as_numpy_iterator()] == expected


SHAPES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: tf.shape(x, out_type=tf.int64),
    "shape_n": lambda x: tf.shape_n([x], out_type=tf.int64)[0],
    "size": lambda x: tf.size(x, out_type=tf.int64),
    "compat.v1.shape": lambda x: tf.compat.v1.shape(x, out_type=tf.int64),
    "part": lambda x: tf.shape(x, out_type=tf.int64)[0] * 2,
    "broadcast_dynamic_shape": lambda x: tf.broadcast_dynamic_shape(tf.shape(x, out_type=tf.int64), [1]),
}


@pytest.mark.parametrize("shape_of", SHAPES.values(), ids=SHAPES)
def test_shapes_in_functions_have_the_dtype_that_is_asked_for(shape_of: Callable[[Any], Any]) -> None:
    assert tf.data.Dataset.from_tensors(BIG).map(shape_of).element_spec.dtype == tf.int64


PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: tf.shape([0, 0])[0] * x,
    "int64": lambda x: tf.shape([0, 0], out_type=tf.int64)[0] * x,
    "size": lambda x: tf.size([0, 0]) * x,
    "rank": lambda x: (tf.rank(x) + 2) * x,
    "python": lambda x: x * 0 + tf.size([0], out_type=tf.int64) * 2**40,
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_arithmetic_of_shapes_in_functions_keeps_64_bits(product: Callable[[Any], Any]) -> None:
    mapped = tf.data.Dataset.from_tensors(np.int64(2**39)).map(product)
    assert next(mapped.as_numpy_iterator()) == 2**40


def test_other_functions_compute_in_64_bits() -> None:
    numbers = tf.data.Dataset.from_tensor_slices(BIG)
    assert [int(x) for x in numbers.filter(lambda x: tf.greater(x, 0)).as_numpy_iterator()] == BIG[:2].tolist()
    assert int(next(numbers.batch(3).map(tf.reduce_max).as_numpy_iterator())) == 2**40
    scanned = numbers.scan(np.int64(0), lambda state, x: (tf.add(state, x), tf.add(state, x)))
    assert [int(x) for x in scanned.as_numpy_iterator()] == np.cumsum(BIG).tolist()


def test_integers_that_do_not_fit_into_a_tensor_stay_on_the_host() -> None:
    elements = list(tf.data.Dataset.from_tensor_slices(BIG))
    assert [int(x.numpy()) for x in elements] == BIG.tolist()
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit into int32"):
        tf.identity(elements[0])
    small = next(iter(tf.data.Dataset.from_tensor_slices(np.array([7]))))
    assert isinstance(small, jax.Array)


@pytest.mark.long
def test_random_changes_of_images_stay_in_float32() -> None:
    image = np.ones((4, 4, 3), np.float32)
    for change in (
        lambda x: tf.image.random_brightness(x, 0.2),
        lambda x: tf.image.random_contrast(x, 0.2, 0.5),
        lambda x: tf.image.random_hue(x, 0.2),
        lambda x: tf.image.random_flip_left_right(x),
        lambda x: tf.image.random_crop(x, [2, 2, 3]),
        lambda x: tf.image.per_image_standardization(x),
        lambda x: tf.image.psnr(x, x * 0.5, 1.0),
        lambda x: x + tf.random.uniform([]),
    ):
        found = next(tf.data.Dataset.from_tensors(image).map(change).as_numpy_iterator())
        assert found.dtype == np.float32


def test_options_of_the_runtime_are_accepted():
    options = tf.data.Options()
    options.threading.private_threadpool_size = 4
    options.autotune.enabled = True
    options.experimental_optimization.map_parallelization = True
    options.experimental_slack = True
    options.experimental_deterministic = False
    options.experimental_threading = tf.data.ThreadingOptions(max_intra_op_parallelism=1)
    assert options.deterministic is False
    assert options.threading.max_intra_op_parallelism == 1
    dataset = tf.data.Dataset.range(4).with_options(options)
    assert dataset.options().experimental_slack is True
    assert [int(one) for one in dataset] == [0, 1, 2, 3]
    algorithm = tf.data.experimental.AutotuneAlgorithm.HILL_CLIMB
    assert tf.data.experimental.AutotuneOptions(autotune_algorithm=algorithm).enabled is None
    assert tf.data.experimental.OptimizationOptions().map_fusion is None


@pytest.mark.parametrize("part", ["", "threading", "autotune", "experimental_optimization", "experimental_distribute"])
def test_options_that_do_not_exist_are_refused(part):
    options = tf.data.Options()
    with pytest.raises(AttributeError, match="shuffel"):
        (getattr(options, part) if part else options).shuffel = 1


@pytest.mark.parametrize("options", [{"num_parallel_reads": tf.data.AUTOTUNE}, {"num_parallel_reads": 2}])
def test_datasets_of_files_take_the_parameters_of_tensorflow(options: dict[str, int], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n")
    lines = tf.data.TextLineDataset([str(tmp_path / name) for name in "ab"], buffer_size=1 << 20, **options)
    assert list(lines) == [b"a", b"b"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize(
    "divide",
    [
        lambda x: x / 255,
        lambda x: x / 255.0,
        lambda x: x / x,
        lambda x: 2 / x,
        lambda x: x / np.float32(2),
        lambda x: x / tf.ones_like(x),
        lambda x: x / np.full(x.shape, 2, x.dtype),
    ],
)
def test_quotients_of_short_integers_are_float32(
    dtype: str, shape: tuple[int, ...], divide: Callable[[Any], Any]
) -> None:
    seen: list[Any] = []
    dataset = tf.data.Dataset.from_tensors(np.full(shape, 4, dtype)).map(divide)
    (quotient,) = dataset.map(lambda x: seen.append((x.dtype, x.shape)) or x)
    assert seen == [(np.float32, shape)]
    assert dataset.element_spec.dtype == np.float32
    assert np.array_equal(quotient, np.full(shape, np.float32(divide(np.full(shape, 4, np.float32)))))


@pytest.mark.long
def test_other_quotients_have_the_dtypes_of_tensorflow() -> None:
    def of(values: Any, divide: Callable[[Any], Any]) -> Any:
        return tf.data.Dataset.from_tensors(values).map(divide).element_spec.dtype

    assert of(np.ones(2, np.uint8), lambda x: x / [2, 3]) == np.float32
    assert of(np.ones(2, np.uint8), lambda x: [2, 3] / x) == np.float32
    assert of(np.ones(2, np.uint8), lambda x: x / np.ones(2)) == np.float64
    for dtype, expected in (("int32", "float64"), ("int64", "float64"), ("float16", "float16"), ("float64", "float64")):
        assert of(np.ones(2, dtype), lambda x: x / 2) == expected
