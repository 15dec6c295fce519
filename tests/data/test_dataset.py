from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf
from data.readings import assert_resumes_everywhere, plain, read
from mirrored.data import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, ArraySpec, Dataset, Options
from mirrored.data.options import AutoShardPolicy
from mirrored.errors import ArgumentError, StructureError

D = Dataset
Pair = collections.namedtuple("Pair", ["first", "second"])


def stream(n: int) -> Dataset:
    """Returns the numbers 0..n-1 as a stream, which is not indexed."""
    return D.from_generator(lambda: iter(np.arange(n)))


SOURCES: list[Callable[[int], Dataset]] = [D.range, stream]
both = pytest.mark.parametrize("numbers", SOURCES, ids=["indexed", "stream"])


# What tf.data gives for these programs (recorded with TensorFlow 2.21, or from its documentation).
@both
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda of: of(4).map(lambda x: x * x), [0, 1, 4, 9]),
        (lambda of: of(6).filter(lambda x: x > 3), [4, 5]),
        (lambda of: of(6).take(2), [0, 1]),
        (lambda of: of(6).take(0), []),
        (lambda of: of(3).take(-1), [0, 1, 2]),
        (lambda of: of(6).skip(4), [4, 5]),
        (lambda of: of(6).skip(9), []),
        (lambda of: of(6).skip(-1), []),
        (lambda of: of(7).shard(3, 1), [1, 4]),
        (lambda of: of(2).concatenate(of(3)), [0, 1, 0, 1, 2]),
        (lambda of: of(3).repeat(2), [0, 1, 2, 0, 1, 2]),
        (lambda of: of(3).repeat(0), []),
        (lambda of: of(3).repeat().take(7), [0, 1, 2, 0, 1, 2, 0]),
        (lambda of: D.zip((of(2), of(5).skip(3))), [(0, 3), (1, 4)]),
        (lambda of: D.zip(of(2), of(9)), [(0, 0), (1, 1)]),
        (lambda of: D.zip({"a": of(2), "b": of(9)}), [{"a": 0, "b": 0}, {"a": 1, "b": 1}]),
        (lambda of: of(2).enumerate(start=5), [(5, 0), (6, 1)]),
        (lambda of: of(5).batch(2), [[0, 1], [2, 3], [4]]),
        (lambda of: of(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
        (lambda of: of(4).batch(2).batch(2), [[[0, 1], [2, 3]]]),
        (lambda of: of(4).batch(3).repeat(2), [[0, 1, 2], [3], [0, 1, 2], [3]]),
        (lambda of: of(4).repeat(2).batch(3), [[0, 1, 2], [3, 0, 1], [2, 3]]),
        (lambda of: of(4).batch(3).unbatch(), [0, 1, 2, 3]),
        (lambda of: of(5).batch(3).rebatch(2), [[0, 1], [2, 3], [4]]),
        (lambda of: of(5).batch(3).rebatch(2, drop_remainder=True), [[0, 1], [2, 3]]),
        (lambda of: of(3).flat_map(lambda x: D.range(x)), [0, 0, 1]),
        (lambda of: of(7).window(3).flat_map(lambda w: w.batch(3)), [[0, 1, 2], [3, 4, 5], [6]]),
        (lambda of: of(7).window(3, 2, 1, True).flat_map(lambda w: w.batch(3)), [[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
        (lambda of: of(7).window(3, 1, 2, True).flat_map(lambda w: w.batch(3)), [[0, 2, 4], [1, 3, 5], [2, 4, 6]]),
        (lambda of: of(4).map(lambda x: (x, -x)).map(lambda x, y: x + y), [0, 0, 0, 0]),
        (lambda of: of(3).cache().repeat(2), [0, 1, 2, 0, 1, 2]),
        (lambda of: of(3).prefetch(AUTOTUNE), [0, 1, 2]),
        (lambda of: of(3).prefetch(0), [0, 1, 2]),
        (lambda of: of(3).map(lambda x: x + 1, num_parallel_calls=AUTOTUNE), [1, 2, 3]),
        (lambda of: of(5).apply(lambda ds: ds.take(1)), [0]),
        (lambda of: of(3).map(lambda x: x + 1, deterministic=False, synchronous=True, name="plus"), [1, 2, 3]),
        (lambda of: of(3).batch(2, num_parallel_calls=2, deterministic=False, name="pairs"), [[0, 1], [2]]),
        (lambda of: of(3).interleave(D.from_tensors, 1, num_parallel_calls=2, deterministic=True, name="i"), [0, 1, 2]),
        (lambda of: of(3).prefetch(1, name="ahead"), [0, 1, 2]),
    ],
)
def test_elements_and_order_are_those_of_tf_data(
    numbers: Callable[[int], Dataset], build: Callable[[Any], Dataset], expected: list[Any]
) -> None:
    dataset = build(numbers)
    assert read(dataset) == expected
    assert read(dataset) == expected
    known = dataset.cardinality()
    assert known in (len(expected), UNKNOWN_CARDINALITY)
    assert_resumes_everywhere(dataset)


@pytest.mark.parametrize(
    "build",
    [
        lambda: D.range(3).map(lambda x: x, num_paralel_calls=2),
        lambda: D.range(3).batch(2, drop_reminder=True),
        lambda: D.range(3).interleave(D.from_tensors, cycle_lenght=2),
        lambda: D.range(3).prefetch(bufer_size=2),
    ],
    ids=["map", "batch", "interleave", "prefetch"],
)
def test_a_misspelled_argument_is_an_error(build: Callable[[], Dataset]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        build()


def test_interleave_has_the_order_of_the_documentation_of_tf_data() -> None:
    dataset = D.range(1, 6).interleave(lambda x: D.from_tensors(x).repeat(6), cycle_length=2, block_length=4)
    ones_and_twos = [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2]
    threes_and_fours = [3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4]
    assert read(dataset) == [*ones_and_twos, *threes_and_fours, 5, 5, 5, 5, 5, 5]
    assert_resumes_everywhere(dataset)


def test_sources() -> None:
    assert read(D.range(2, 8, 3)) == [2, 5]
    assert read(D.from_tensor_slices([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert read(D.from_tensors([1.0, 2.0]).repeat(2)) == [[1.0, 2.0], [1.0, 2.0]]
    assert read(D.from_tensor_slices(({"a": [1, 2]}, [[5.0], [6.0]]))) == [({"a": 1}, [5.0]), ({"a": 2}, [6.0])]


def test_numbers_get_the_dtypes_of_tensorflow() -> None:
    kinds = [next(iter(D.from_tensor_slices(values))).dtype for values in ([1], [1.5], [True], np.ones(1), [2**40])]
    assert kinds == [np.int32, np.float32, np.bool_, np.float64, np.int64]
    assert next(iter(D.range(1))).dtype == np.int64


@pytest.mark.parametrize(
    "made",
    [
        D.from_tensor_slices,
        lambda texts: D.from_tensor_slices({"a": texts}).map(lambda element: element["a"]),
        lambda texts: D.from_tensor_slices([texts, texts]).take(1).unbatch(),
        lambda texts: D.from_tensors(texts).unbatch(),
        lambda texts: D.from_generator(lambda: [(texts, 1)]).map(lambda texts, _: texts).unbatch(),
        lambda texts: D.from_generator(lambda: [texts], output_types="string").unbatch(),
        lambda texts: D.range(1).map(lambda _: (texts, 1)).map(lambda texts, _: texts).unbatch(),
        lambda texts: D.range(1).scan(0, lambda state, _: (state, texts)).unbatch(),
    ],
)
@pytest.mark.parametrize("texts", [[b"\x01\x00", b"\x02\x03"], ["a\0", "bc"], [b"\x00", b""]], ids=repr)
def test_lists_of_texts_keep_null_characters(made: Callable[[Any], D], texts: list[Any]) -> None:
    expected = [text.encode() if isinstance(text, str) else text for text in texts]
    assert [bytes(text) for text in made(texts)] == expected


def test_strings_become_bytes() -> None:
    assert read(D.from_tensor_slices(["ab", "c"]).batch(2)) == [[b"ab", b"c"]]


def test_a_source_array_is_copied_so_that_later_writes_do_not_reach_the_dataset() -> None:
    values = np.arange(3)
    dataset = D.from_tensor_slices(values)
    values[:] = 7
    assert read(dataset) == [0, 1, 2]


def test_batches_begin_at_aligned_addresses() -> None:
    dataset = D.from_tensor_slices(np.zeros((64, 16), np.float32))
    for batches in (dataset.batch(8), dataset.shuffle(64).batch(8), dataset.map(lambda x: x + 1).batch(8)):
        assert all(batch.ctypes.data % 64 == 0 for batch in batches)


def test_unshuffled_batches_are_views_of_the_source() -> None:
    batches = list(D.from_tensor_slices(np.arange(8)).batch(4))
    assert np.shares_memory(batches[0], batches[1].base)


def test_functions_may_use_jax() -> None:
    assert read(D.range(3).map(lambda x: jnp.sum(jnp.full((2,), x)))) == [0, 2, 4]


class TestShuffle:
    @both
    @pytest.mark.parametrize("buffer_size", [1, 3, 20, 100])
    def test_it_keeps_every_element_once(self, numbers: Callable[[int], Dataset], buffer_size: int) -> None:
        assert sorted(read(numbers(20).shuffle(buffer_size))) == list(range(20))

    def test_an_element_does_not_come_earlier_than_the_buffer_allows(self) -> None:
        order = read(D.range(100).shuffle(5, seed=1))
        assert all(number < place + 5 for place, number in enumerate(order))
        assert order != list(range(100))

    def test_a_full_buffer_permutes_uniformly(self) -> None:
        counts = collections.Counter(tuple(read(D.range(3).shuffle(3, seed=seed))) for seed in range(600))
        assert len(counts) == 6
        assert all(60 < count < 140 for count in counts.values())

    @both
    def test_a_seed_fixes_the_orders_of_all_epochs(self, numbers: Callable[[int], Dataset]) -> None:
        first, second = (numbers(20).shuffle(20, seed=5) for _ in range(2))
        epochs = [read(first), read(first)]
        assert epochs == [read(second), read(second)]
        assert epochs[0] != epochs[1]

    @both
    def test_epochs_of_repeat_differ(self, numbers: Callable[[int], Dataset]) -> None:
        order = read(numbers(20).shuffle(20, seed=5).repeat(2))
        assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
        assert order[:20] != order[20:]

    @both
    def test_without_reshuffling_epochs_are_alike(self, numbers: Callable[[int], Dataset]) -> None:
        dataset = numbers(20).shuffle(20, reshuffle_each_iteration=False)
        assert read(dataset) == read(dataset)
        assert read(dataset.repeat(2)) == read(dataset) * 2

    @both
    def test_cached_order_repeats(self, numbers: Callable[[int], Dataset]) -> None:
        dataset = numbers(64).shuffle(64).cache().batch(8)
        assert read(dataset) == read(dataset)

    @both
    def test_a_position_holds_the_seed_that_was_drawn(self, numbers: Callable[[int], Dataset]) -> None:
        def build() -> Dataset:
            return numbers(20).shuffle(20).repeat(2).batch(3)

        reading = iter(build())
        for _ in range(5):
            next(reading)
        elsewhere = iter(build())
        elsewhere.set_state(reading.get_state())
        assert read(elsewhere) == read(reading)

    @pytest.mark.parametrize("buffer_size", [1, 4, 50])
    def test_endless_datasets_are_shuffled_as_streams(self, buffer_size: int) -> None:
        found = read(D.range(4).repeat().shuffle(buffer_size, seed=1).take(8))
        # What leaves the buffer k-th is one of the first k + buffer_size to arrive: each number at most so often.
        assert len(found) == 8
        assert all(found[:place].count(n) <= -(-(place + buffer_size) // 4) for place in range(9) for n in range(4))
        assert buffer_size > 1 or found == [0, 1, 2, 3] * 2

    @both
    def test_resumes(self, numbers: Callable[[int], Dataset]) -> None:
        assert_resumes_everywhere(numbers(11).shuffle(4).repeat(2).batch(3))

    @both
    def test_without_a_size_the_buffer_holds_all_elements(self, numbers: Callable[[int], Dataset]) -> None:
        firsts = collections.Counter(read(numbers(3).shuffle(None, seed=seed))[0] for seed in range(90))
        assert sorted(firsts) == [0, 1, 2]
        assert min(firsts.values()) > 15
        order = read(numbers(50).shuffle(None, seed=1))
        assert sorted(order) == list(range(50)) != order
        assert_resumes_everywhere(numbers(7).shuffle(None).repeat(2).batch(3))

    @both
    def test_without_a_size_an_infinite_dataset_is_refused(self, numbers: Callable[[int], Dataset]) -> None:
        with pytest.raises(ArgumentError, match="an infinite dataset"):
            numbers(3).repeat().shuffle(None)


class TestRandomMap:
    @both
    def test_numbers_differ_per_element_and_epoch_and_come_again_with_the_seed(
        self, numbers: Callable[[int], Dataset]
    ) -> None:
        def build() -> Dataset:
            return numbers(5).random_map(lambda x, rng: x + rng.random(), seed=3).repeat(2)

        values = read(build())
        assert len({round(value % 1, 9) for value in values}) == 10
        assert read(build()) == values
        assert_resumes_everywhere(build())


class TestSpecs:
    def test_of_sources_and_batches(self) -> None:
        dataset = D.from_tensor_slices({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4, np.int32)})
        assert dataset.element_spec == {"x": ArraySpec((3,), np.dtype("f4")), "y": ArraySpec((), np.dtype("i4"))}
        assert dataset.batch(2).element_spec["x"].shape == (None, 3)
        assert dataset.batch(2, drop_remainder=True).element_spec["x"].shape == (2, 3)

    def test_a_dim_that_varies_still_varies_after_map(self) -> None:
        spec = D.range(5).batch(2).map(lambda x: (x * 1.5, np.zeros((3, 4)))).element_spec
        assert spec == (ArraySpec((None,), np.dtype("f8")), ArraySpec((3, 4), np.dtype("f8")))

    def test_of_generators(self) -> None:
        signature = ArraySpec((None,), np.dtype("float32"))
        dataset = D.from_generator(lambda: iter([[1, 2], [3]]), output_signature=signature)
        assert dataset.element_spec == signature
        assert [element.dtype for element in dataset] == [np.float32, np.float32]

    def test_of_output_types_and_shapes(self) -> None:
        dataset = D.from_generator(lambda: iter([(1, [2.0])]), (np.int64, np.float32), ((), (None,)))
        assert dataset.element_spec == (ArraySpec((), np.dtype("i8")), ArraySpec((None,), np.dtype("f4")))

    def test_output_types_alone_cast_elements_of_any_shape(self) -> None:
        dataset = D.from_generator(lambda: [(1, []), (2, [1])], (np.uint8, np.float32))
        assert [tuple(part.dtype.name for part in element) for element in dataset] == [("uint8", "float32")] * 2
        assert read(D.from_generator(lambda: [1, 2], np.uint8).map(lambda x: x - np.uint8(3))) == [254, 255]
        for types, elements in [(np.int32, [2.7]), ((np.int32, np.int32), [1])]:
            with pytest.raises(StructureError, match="output_types"):
                read(D.from_generator(lambda elements=elements: elements, types))

    def test_output_types_and_shapes_of_texts_and_of_any_rank(self) -> None:
        rows = [("a", [1, 2], 0.5), ("bc", [3], 1.5)]
        found = D.from_generator(lambda: rows, ("string", np.int64, np.float32), ((), (None,), ()))
        assert found.element_spec[0] == ArraySpec((), np.dtype(object))
        assert read(found) == [(b"a", [1, 2], 0.5), (b"bc", [3], 1.5)]
        for options in (
            {"output_types": (str, np.int64, np.float32), "output_shapes": ((), None, ())},
            {"output_types": (np.dtype("U5"), np.int64, np.float32), "output_shapes": ((), None, ())},
            {"output_types": ("string", np.int64, np.float32), "output_shapes": [(), None, ()]},
            {"output_signature": tuple(map(tf.TensorSpec, ((), None, ()), (tf.string, tf.int64, tf.float32)))},
        ):
            dataset = D.from_generator(lambda: rows, **options)
            assert [(name, n.dtype, n.tolist(), x.dtype) for name, n, x in dataset] == [
                (b"a", np.int64, [1, 2], np.float32),
                (b"bc", np.int64, [3], np.float32),
            ]
        with pytest.raises(StructureError, match=r"output_shapes requires \(\)"):
            read(D.from_generator(lambda: [(1, [2])], (np.int64, np.int64), (None, ())))

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            ({"output_types": tf.TensorSpec((), tf.int32)}, "output_types contains TensorSpec"),
            ({"output_types": (tf.TensorSpec((), tf.int32),), "output_shapes": ((),)}, "output_types contains"),
            ({"output_types": ArraySpec((), np.dtype("int32"))}, "output_types contains ArraySpec"),
            ({"output_types": (3,)}, "output_types contains 3"),
            ({"output_types": (np.arange(3),)}, r"output_types contains array\(\[0, 1, 2\]\)"),
            ({"output_signature": np.float32}, "output_signature contains <class 'numpy.float32'>"),
            ({"output_signature": {"a": tf.float32}}, "output_signature contains tf.float32"),
            ({"output_types": (np.int32, np.int32), "output_shapes": ((),)}, r"output_shapes=\(\(\),\)"),
            ({"output_types": np.int32, "output_shapes": "x"}, "output_shapes='x'"),
            ({"output_shapes": ()}, "output_shapes without output_types"),
            ({"output_types": np.int32, "output_signature": ArraySpec((), np.dtype("int32"))}, "output_signature and"),
        ],
        ids=str,
    )
    def test_output_types_that_are_no_dtypes_are_refused(self, options: Any, found: str) -> None:
        """A spec in their place gave elements of float64, silently."""
        with pytest.raises(ArgumentError, match=rf"{found}(?s:.*)output_types and output_shapes, as in TensorFlow"):
            D.from_generator(lambda: iter([1]), **options)

    def test_of_padded_batches(self) -> None:
        ragged = D.range(1, 4).map(lambda n: np.full(n, n))
        assert ragged.padded_batch(2).element_spec.shape == (None, None)
        assert ragged.padded_batch(3, [5], drop_remainder=True).element_spec.shape == (3, 5)

    def test_the_spec_of_padded_structures_has_the_fixed_dims(self):
        pairs = Dataset.from_tensor_slices({"a": np.zeros((4, 2)), "b": np.zeros(4)})
        spec = pairs.padded_batch(2, {"a": [3], "b": []}).element_spec
        assert (spec["a"].shape, spec["b"].shape) == ((None, 3), (None,))
        spec = pairs.padded_batch(2, {"a": [None], "b": []}, drop_remainder=True).element_spec
        assert (spec["a"].shape, spec["b"].shape) == ((2, None), (2,))

    def test_of_an_empty_dataset_are_refused_where_a_function_decides(self) -> None:
        with pytest.raises(StructureError, match="no element"):
            _ = D.range(0).map(lambda x: x).element_spec


class TestPaddedBatch:
    def test_pads_to_the_longest_of_each_batch(self) -> None:
        ragged = D.range(1, 4).map(lambda n: np.full(n, n))
        assert read(ragged.padded_batch(2)) == [[[1, 0], [2, 2]], [[3, 3, 3]]]

    def test_pads_to_given_shapes_with_given_values(self) -> None:
        ragged = stream(3).map(lambda n: {"a": np.full(n, n), "b": n})
        batch = plain(next(iter(ragged.padded_batch(3, {"a": [3], "b": []}, {"a": np.int64(-1), "b": np.int64(0)}))))
        assert batch == {"a": [[-1, -1, -1], [1, -1, -1], [2, 2, -1]], "b": [0, 1, 2]}

    def test_refuses_what_does_not_fit(self) -> None:
        with pytest.raises(StructureError, match=r"element 1 of the batch is int64\[2\], the padded shape is \[1\]"):
            read(D.range(1, 4).map(lambda n: np.full(n, n)).padded_batch(3, [1]))

    @pytest.mark.parametrize(
        ("elements", "found"),
        [
            ([[1, 2], [1.5, 2.5, 3.5]], r"the leaf element is int32\[2\] in element 0 .* float32\[3\] in element 1"),
            ([[1, 2], [2**40, 3]], r"int32\[2\] in element 0 .* int64\[2\] in element 1"),
            ([[1, 2], [[1], [2]]], r"int32\[2\] in element 0 .* int32\[2, 1\] in element 1"),
            ([[1, 2], b"ab"], r"int32\[2\] in element 0 .* bytes in element 1"),
            ([{"a": [1], "b": [2]}, {"b": [3], "c": [4]}], r"element 0 of the batch is .*'a'.*, element 1 is .*'c'"),
            ([([1], [2]), ([3],)], r"element 0 of the batch is .*, element 1 is"),
        ],
    )
    @pytest.mark.parametrize("buckets", [False, True], ids=["padded_batch", "bucket_by_sequence_length"])
    def test_refuses_elements_that_differ_in_more_than_their_sizes(
        self, elements: list[Any], found: str, buckets: bool
    ) -> None:
        dataset = D.from_generator(lambda: iter(elements))
        with pytest.raises(StructureError, match=found):
            read(dataset.bucket_by_sequence_length(lambda *x: 1, [], [2]) if buckets else dataset.padded_batch(2))

    @pytest.mark.parametrize(
        ("leaf", "value"),
        [
            (1, 0.5),
            (np.int32(1), 2**40),
            (np.uint8(1), -1),
            (True, 2),
            (np.float32(1), 1e300),
            (1.0, 1j),
            (1.0, "x"),
            (b"a", 0),
        ],
        ids=str,
    )
    def test_refuses_a_padding_value_that_the_dtype_cannot_represent(self, leaf: Any, value: Any) -> None:
        rows = D.from_tensor_slices(np.array([leaf] * 3, object if isinstance(leaf, bytes) else np.asarray(leaf).dtype))
        with pytest.raises(ArgumentError, match="the padding value .*, and a leaf of dtype"):
            read(rows.batch(2).padded_batch(2, padding_values=value))

    @pytest.mark.parametrize(
        ("leaf", "value"), [(1, 2.0), (1, np.int64(7)), (1.5, 0.1), (1.5, np.nan), (b"a", "b"), (True, 1), (1j, 2)]
    )
    def test_pads_with_values_of_other_dtypes_that_fit(self, leaf: Any, value: Any) -> None:
        dtype = object if isinstance(leaf, bytes) else np.asarray(leaf).dtype
        rows = D.from_tensor_slices(np.array([leaf] * 3, dtype))
        batch = next(iter(rows.batch(2).padded_batch(2, padding_values=value)))
        assert batch.dtype == dtype
        wanted = value.encode() if isinstance(value, str) else np.asarray(value).astype(dtype)
        np.testing.assert_equal(batch[1, 1], wanted)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (-1, {"x": -1, "y": -1}),
            ({"y": -2, "x": -1}, {"x": -1, "y": -2}),
            (collections.OrderedDict(y=-2, x=None), {"x": 0, "y": -2}),
            ({"x": -1}, None),
            ({"x": -1, "z": -2}, None),
            ((-1, -2), None),
            ([-1], None),
        ],
    )
    def test_values_belong_to_the_leaves_in_the_same_places(self, values: Any, expected: Any) -> None:
        rows = D.range(1, 3).map(lambda n: {"y": np.full(n, 5), "x": np.full(n, 7)})
        dataset = rows.padded_batch(2, padding_values=values)
        if expected is None:
            with pytest.raises(StructureError, match=r"padding_values must have the structure of an element"):
                read(dataset)
        else:
            assert {key: int(part[0, 1]) for key, part in next(iter(dataset)).items()} == expected

    @pytest.mark.parametrize("values", [(-1, -2), [-1, -2], Pair(-1, -2), ((-1,), -2), ({"a": -1}, -2)])
    @pytest.mark.parametrize("make", [lambda a, b: (a, b), Pair])
    def test_values_of_tuples(self, make: Any, values: Any) -> None:
        """Lists and named tuples stand for tuples; a value stands for all leaves below its place."""
        nested = isinstance(values[0], dict | tuple)
        rows = D.range(1, 3).map(lambda n: make({"a": np.full(n, 5)} if nested else np.full(n, 5), np.full(n, 7)))
        dataset = rows.padded_batch(2, padding_values=values)
        if isinstance(values[0], tuple):
            with pytest.raises(StructureError, match="padding_values"):
                read(dataset)
            return
        first, second = next(iter(dataset))
        assert [int((first["a"] if nested else first)[0, 1]), int(second[0, 1])] == [-1, -2]

    @pytest.mark.parametrize("shapes", [{"x": [4]}, ([4], [4]), {"x": [4], "z": [4]}])
    def test_shapes_belong_to_the_leaves_in_the_same_places(self, shapes: Any) -> None:
        dataset = D.range(1, 3).map(lambda n: {"x": np.full(n, 7), "y": np.full(n, 5)}).padded_batch(2, shapes)
        with pytest.raises(StructureError, match="padded_shapes must have the structure of an element"):
            read(dataset)
        with pytest.raises(StructureError, match="padded_shapes must have the structure of an element"):
            _ = dataset.element_spec

    @pytest.mark.parametrize("argument", [(-1,), [-1], {"x": -1}])
    def test_the_value_of_a_single_leaf_may_be_nested(self, argument: Any) -> None:
        rows = D.range(1, 3).map(lambda n: np.full(n, 7))
        assert read(rows.padded_batch(2, padding_values=argument)) == [[[7, -1], [7, 7]]]

    def test_keeps_strings_of_several_lengths(self) -> None:
        assert read(D.from_tensor_slices([b"a", b"abc"]).padded_batch(2)) == [[b"a", b"abc"]]


class TestCardinality:
    def test_known_infinite_unknown(self) -> None:
        assert D.range(5).batch(2).cardinality() == 3
        assert D.range(5).repeat().batch(2).cardinality() == INFINITE_CARDINALITY
        assert D.range(5).filter(lambda x: True).cardinality() == UNKNOWN_CARDINALITY
        assert D.range(5).repeat().take(3).cardinality() == 3
        assert len(D.range(7).shard(3, 0)) == 3

    @both
    def test_of_steps_after_an_infinite_dataset(self, numbers: Callable[[int], Dataset]) -> None:
        endless = numbers(3).repeat()
        kept: list[Callable[[Dataset], Dataset]] = [
            lambda d: d.enumerate(),
            lambda d: d.shuffle(2).enumerate().batch(2),
            lambda d: d.skip(1).shard(2, 0).cache().prefetch(1),
            lambda d: d.concatenate(numbers(2)),
        ]
        assert [step(endless).cardinality() for step in kept] == [INFINITE_CARDINALITY] * len(kept)
        assert D.random(seed=0).shuffle(3).enumerate().cardinality() == INFINITE_CARDINALITY
        assert numbers(3).repeat(0).cardinality() == 0

    def test_len_refuses_what_has_none(self) -> None:
        with pytest.raises(TypeError, match="length is infinite"):
            len(D.range(5).repeat())
        with pytest.raises(TypeError, match="length is unknown"):
            len(D.range(5).filter(lambda x: True))


def test_reduce() -> None:
    assert D.from_tensor_slices([1.0, 2.0, 3.0]).reduce(0.0, lambda total, x: total * 2.0 + x) == 11.0
    pairs = D.from_tensor_slices(([1, 2], [3, 4]))
    assert pairs.reduce((0, 0), lambda state, pair: (state[0] + pair[0], state[1] + pair[1])) == (3, 7)


@pytest.mark.parametrize("operation", ["reduce", "scan"])
def test_a_state_function_gets_tuples_of_one_array_as_they_are(operation: str) -> None:
    rows = D.from_tensor_slices((np.array([[1.0, 10.0], [2.0, 20.0]]),))
    if operation == "reduce":
        assert rows.reduce(np.float64(0), lambda state, element: state + element[0].sum()) == 33.0
    else:
        assert read(rows.scan(np.float64(0), lambda state, element: (state, element[0].sum()))) == [11.0, 22.0]


def test_options_travel_with_the_dataset() -> None:
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    dataset = D.range(3).with_options(options).batch(2)
    assert dataset.options().experimental_distribute.auto_shard_policy == AutoShardPolicy.DATA


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: D.range(3).batch(0), "batch_size=0"),
        (lambda: D.range(3).shuffle(0), "buffer_size=0"),
        (lambda: D.range(3).shard(2, 2), "index=2 is not one of 2 shards"),
        (lambda: D.range(3).window(0), "size=0"),
        (lambda: D.zip([1, 2]), "the arguments of zip must be datasets"),
        (lambda: D.list_files("/nowhere/*.none"), "no file matches"),
        (lambda: D.from_text_lines(3), "a file name must be a str"),
        (lambda: D.from_text_lines("a", "LZ4"), "compression_type='LZ4'"),
    ],
)
def test_wrong_arguments_are_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()


def test_a_position_of_another_pipeline_is_refused() -> None:
    state = iter(D.range(3).shuffle(3)).get_state()
    with pytest.raises(ArgumentError, match="of the pipeline Shuffled < RangeSource"):
        iter(D.range(3)).set_state(state)


def test_slices_of_ragged_leaves_are_refused() -> None:
    with pytest.raises(StructureError, match="has 3 examples, the leaves before it 2"):
        D.from_tensor_slices(([1, 2], [1, 2, 3]))
