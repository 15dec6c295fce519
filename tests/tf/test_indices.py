"""Indices that are negative or too large: an error in eager code; compiled, gathers give 0, scatters ignore them."""

from __future__ import annotations

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError, StructureError

X = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
BAD = pytest.mark.parametrize("bad", [-1, 3, -4])
UPDATES = ["add", "sub", "update", "mul", "div", "max", "min"]
ND_UPDATES = ["add", "sub", "update", "max", "min"]


def refused(bad):
    return pytest.raises(tf.errors.InvalidArgumentError, match=rf"\[1(,0)?\] = \[?{bad}\]? (is not in|does not index)")


GATHERS = {
    "gather": lambda bad: tf.gather(X, [0, bad]),
    "gather in columns": lambda bad: tf.transpose(tf.gather(tf.transpose(X), [0, bad], axis=1)),
    "gather in batches": lambda bad: tf.gather(tf.stack([X, X]), [[0], [bad]], batch_dims=1)[:, 0],
    "gather_nd": lambda bad: tf.gather_nd(X, [[0], [bad]]),
    "crop_and_resize": lambda bad: tf.image.crop_and_resize(
        X[:, None, :, None], [[0.0, 0.0, 1.0, 1.0]] * 2, [0, bad], [1, 2]
    )[:, 0, :, 0],
    "embedding_lookup": lambda bad: tf.nn.embedding_lookup(X, [0, bad]),
}


@BAD
@pytest.mark.parametrize("gather", GATHERS.values(), ids=GATHERS)
@pytest.mark.first(8)
def test_gathers(gather, bad):
    with refused(bad):
        gather(bad)
    with refused(bad), tf.GradientTape():
        gather(bad)
    np.testing.assert_array_equal(tf.function(lambda: gather(bad))(), [[1, 2], [0, 0]])


def test_empty_indices_are_in_range():
    assert tf.gather(X, np.zeros(0, np.int32)).shape == (0, 2)
    assert tf.gather(X[:0], np.zeros(0, np.int32)).shape == (0, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 0 is not in \[0, 0\)"):
        tf.gather(X[:0], [0])


@BAD
def test_the_gradient_of_a_gather_in_compiled_code_ignores_them(bad):
    v = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def gradient(indices):
        with tf.GradientTape() as tape:
            y = tf.gather(v, indices) * 2
        return tape.gradient(y, v)

    np.testing.assert_array_equal(tf.convert_to_tensor(gradient(tf.constant([0, bad]))), [2, 0, 0])


@BAD
def test_scatters(bad):
    def dense(indices):
        return tf.scatter_nd(indices, [4.0, 5.0], [3])

    with refused(bad):
        dense([[0], [bad]])
    np.testing.assert_array_equal(tf.function(dense)(tf.constant([[0], [bad]])), [4, 0, 0])


@BAD
@pytest.mark.parametrize("how", ND_UPDATES)
@pytest.mark.first(8)
def test_scatters_into_tensors(how, bad):
    scatter = getattr(tf, f"tensor_scatter_nd_{how}")
    rows = X[:2]
    with refused(bad):
        scatter(X, [[0], [bad]], rows)
    np.testing.assert_array_equal(tf.function(scatter)(X, tf.constant([[bad]]), rows[:1]), X)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("updates", [1.0, [1.0, 2.0], [[1.0, 2.0]], [[1.0], [2.0]]])
def test_updates_are_not_broadcast(updates, compiled):
    wrap = tf.function if compiled else lambda function: function
    calls = [
        wrap(lambda: tf.scatter_nd([[0], [1]], updates, [3, 2])),
        wrap(lambda: tf.tensor_scatter_nd_update(X, [[0], [1]], updates)),
        wrap(lambda: tf.tensor_scatter_nd_add(X, [[0], [1]], updates)),
    ]
    for run in calls:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"here the shape \(2, 2\)"):
            run()


@pytest.mark.parametrize("method", [f"scatter_nd_{how}" for how in ND_UPDATES])
def test_updates_of_variables_are_not_broadcast(method):
    v = tf.Variable(X)
    for updates in (1.0, [1.0, 2.0], [[1.0, 2.0]]):
        with pytest.raises(StructureError, match=r"here the shape \(2, 2\)"):
            getattr(v, method)([[0], [1]], updates)
    with pytest.raises(StructureError, match=r"here the shape \(2, 2\)"):
        v.scatter_update(tf.IndexedSlices(tf.constant([1.0, 2.0]), tf.constant([0, 1])))
    np.testing.assert_array_equal(v, X)


@BAD
@pytest.mark.parametrize("method", UPDATES)
@pytest.mark.first(11)
def test_variables(bad, method):
    v = tf.Variable([1.0, 2.0, 3.0])

    def update(index):
        getattr(v, f"scatter_{method}")(tf.IndexedSlices(tf.constant([9.0]), index))

    with pytest.raises(ArgumentError, match=rf"indices\[0\] = {bad} is not in \[0, 3\)"):
        update(tf.constant([bad]))
    tf.function(update)(tf.constant([bad]))
    np.testing.assert_array_equal(v, [1, 2, 3])


@BAD
@pytest.mark.parametrize("method", ND_UPDATES)
def test_variables_at_index_vectors(bad, method):
    v = tf.Variable([1.0, 2.0, 3.0])

    def update(indices):
        getattr(v, f"scatter_nd_{method}")(indices, tf.constant([9.0]))

    with pytest.raises(ArgumentError, match=rf"indices\[0\] = \[{bad}\] does not index into the shape \(3,\)"):
        update(tf.constant([[bad]]))
    tf.function(update)(tf.constant([[bad]]))
    np.testing.assert_array_equal(v, [1, 2, 3])


@BAD
def test_reads_of_variables(bad):
    v = tf.Variable([1.0, 2.0, 3.0])
    with pytest.raises(ArgumentError, match=rf"indices\[1\] = \[{bad}\]"):
        v.sparse_read([0, bad])
    with pytest.raises(ArgumentError, match=rf"indices\[1\] = \[{bad}\]"):
        v.gather_nd([[0], [bad]])
    np.testing.assert_array_equal(tf.function(lambda i: v.sparse_read(i))(tf.constant([0, bad])), [1, 0])


@BAD
def test_indexed_slices(bad):
    def dense(index):
        return tf.convert_to_tensor(tf.IndexedSlices(tf.constant([9.0, 5.0]), tf.stack([index, 1]), dense_shape=(3,)))

    with pytest.raises(ArgumentError, match=rf"indices\[0\] = {bad}"):
        dense(bad)
    np.testing.assert_array_equal(tf.function(dense)(tf.constant(bad)), [0, 5, 0])


SEGMENTS = ("sum", "prod", "mean", "max", "min")


@pytest.mark.parametrize("how", SEGMENTS)
def test_segments_must_be_in_order(how):
    reduce = getattr(tf.math, f"segment_{how}")
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in ascending order"):
        reduce([1.0, 2.0, 3.0], [0, 2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"segment_ids\[0\] = -1"):
        reduce([1.0, 2.0, 3.0], [-1, 0, 1])


@pytest.mark.parametrize("how", [*SEGMENTS, "sqrt_n"])
def test_unsorted_segments_must_exist_or_be_negative(how):
    reduce = getattr(tf.math, f"unsorted_segment_{how}")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"segment_ids\[1\] = 2 is not in \[0, 2\)"):
        reduce([1.0, 2.0, 3.0], [0, 2, 1], 2)
    np.testing.assert_array_equal(reduce([1.0, 2.0, 3.0], [0, -1, 1], 2), [1, 3])


@pytest.mark.parametrize("name", ["segment_prod", "unsorted_segment_prod"])
@pytest.mark.parametrize(
    ("values", "expected"),  # recorded with TensorFlow 2.21
    [([2.0, 3.0, 4.0], [3, 2, 1]), ([2.0, 0.0, 4.0], [0, 2, 1]), ([0.0, 0.0, 4.0], [0, 0, 1])],
)
def test_the_gradient_of_a_product_of_segments(name, values, expected):
    v = tf.Variable(values)
    more = {"num_segments": 3} if name.startswith("un") else {}
    with tf.GradientTape() as tape:
        y = getattr(tf.math, name)(v, [0, 0, 1], **more)
    np.testing.assert_array_equal(tape.gradient(y, v), expected)


def test_the_gradient_of_a_product_ignores_rows_without_a_segment():
    v = tf.Variable([3.0, 0.0, 4.0])
    with tf.GradientTape() as tape:
        y = tf.math.unsorted_segment_prod(v, [0, -1, 0], 1)
    np.testing.assert_array_equal(tape.gradient(y, v), [4, 0, 3])


WRONG = {
    "boolean_mask": lambda: tf.boolean_mask([[1, 2], [3, 4]], [True, False, True]),
    "boolean_mask of one": lambda: tf.boolean_mask([[1, 2], [3, 4]], True),
    "bincount": lambda: tf.math.bincount([1, -1, 3]),
    "confusion_matrix": lambda: tf.math.confusion_matrix([0, 1], [0, 5], num_classes=3),
    "confusion_matrix of labels": lambda: tf.math.confusion_matrix([0, -1], [0, 1], num_classes=3),
    "dynamic_partition": lambda: tf.dynamic_partition([1, 2, 3], [0, 2, 0], 2),
    "dynamic_stitch": lambda: tf.dynamic_stitch([[0, 2], [-1]], [[1, 2], [3]]),
    "invert_permutation": lambda: tf.math.invert_permutation([2, 0, 0]),
    "pad": lambda: tf.pad([[1]], [[1, 1]]),
    "pad with a negative number": lambda: tf.pad(tf.constant([1], tf.uint8), [[1, 1]], constant_values=-1),
    "pad with a fraction": lambda: tf.pad([1], [[1, 1]], constant_values=0.5),
    "bincount of columns": lambda: tf.math.bincount([[1, 2]], axis=1),
    "crop_and_resize": lambda: tf.image.crop_and_resize(tf.ones([2, 2, 2, 1]), [[0.0, 0.0, 1.0, 1.0]], [-1], [1, 1]),
    "pad by reflection": lambda: tf.pad([1, 2], [[2, 2]], mode="REFLECT"),
    "pad symmetrically": lambda: tf.pad([1, 2], [[3, 0]], mode="SYMMETRIC"),
    "reverse_sequence": lambda: tf.reverse_sequence([[1, 2, 3]], [5], seq_axis=1),
    "slice": lambda: tf.slice([1, 2, 3], [2], [2]),
    "slice from the end": lambda: tf.slice([1, 2, 3], [-1], [1]),
    "slice of too many axes": lambda: tf.slice([1, 2, 3], [0, 0], [1, 1]),
    "strided_slice": lambda: tf.strided_slice([1, 2, 3], [5], [6], shrink_axis_mask=1),
    "unique": lambda: tf.unique([[1, 2], [1, 2]]),
    "unravel_index": lambda: tf.unravel_index([7], [2, 3]),
    "dynamic_partition of more rows": lambda: tf.dynamic_partition([1, 2, 3], [0, 1], 2),
    "dynamic_stitch of more rows": lambda: tf.dynamic_stitch([[0], [1]], [[1, 2], [3]]),
    "segment_sum of one row": lambda: tf.math.segment_sum([1.0], [0, 0, 1]),
    "segment_sum of transposed ids": lambda: tf.math.unsorted_segment_sum(X, tf.zeros([2, 3], tf.int32), 1),
    "reverse_sequence of one length": lambda: tf.reverse_sequence([[1, 2], [3, 4]], [2], seq_axis=1),
    "in_top_k of one target": lambda: tf.math.in_top_k([1], X, 1),
    "confusion_matrix of one label": lambda: tf.math.confusion_matrix([1], [0, 1, 1]),
    "confusion_matrix of one weight": lambda: tf.math.confusion_matrix([1, 0, 1], [0, 1, 1], weights=[2]),
    "bincount of one weight": lambda: tf.math.bincount([1, 0, 1], weights=[2.0]),
    "scatter of fractions": lambda: tf.tensor_scatter_nd_update([1, 2], [[0]], [0.7]),
    "scatter of an array of fractions": lambda: tf.tensor_scatter_nd_add([1, 2], [[0]], tf.constant([0.7])),
    "scatter of large numbers": lambda: tf.tensor_scatter_nd_update(tf.zeros(2, tf.uint8), [[0]], [300]),
    "uniform between equal integers": lambda: tf.random.uniform([2], 5, 5, tf.int32),
    "stateless_uniform between swapped integers": lambda: tf.random.stateless_uniform([2], [1, 2], 5, 2, tf.int32),
    "pow of a negative integer": lambda: tf.pow([2, 3], [-1, 2]),
    "repeat a negative number of times": lambda: tf.repeat([1, 2], [-1, 2]),
    "fill of a vector": lambda: tf.fill([2, 3], [1, 2, 3]),
    "clip_by_value of columns": lambda: tf.clip_by_value(X[:, 0], X[:, :1], 9.0),
    "clip_by_norm of columns": lambda: tf.clip_by_norm(X[:, 0], X[:, :1]),
    "bias_add of one bias": lambda: tf.nn.bias_add(X, [1.0]),
    "bias_add of rows": lambda: tf.nn.bias_add(X, X),
    "map_fn of fewer rows": lambda: tf.map_fn(lambda row: row[0] + row[1], (X[:, 0], X[:2, 0]), tf.float32),
    "foldl of fewer rows": lambda: tf.foldl(lambda sum, row: sum + row[0] * row[1], (X[:2, 0], X[:, 0]), 0.0),
    "scan of fewer rows": lambda: tf.scan(lambda sum, row: sum + row[0] * row[1], (X[:, 0], X[:2, 0]), 0.0),
    "add_n": lambda: tf.add_n([[1, 2], [3]]),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_what_tensorflow_refuses(call):
    """Each of these gave a wrong result."""
    with pytest.raises(tf.errors.InvalidArgumentError):
        call()


def test_a_bound_beyond_the_range_of_integers_limits_nothing():
    largest = np.iinfo(np.int32).max
    assert tf.clip_by_value(tf.constant([largest, -largest]), -1e12, 1e12).tolist() == [largest, -largest]


def test_a_slice_under_a_tape_does_not_wait_for_another_device_than_a_cpu(monkeypatch):
    def no_host_read(array):
        raise AssertionError("the host waits")

    x, begin = tf.constant([1.0, 2.0, 3.0]), tf.constant([1])
    monkeypatch.setattr("mirrored.tf._ops.indexing.values_now", lambda array: None)  # as on a GPU
    for method in ("__array__", "__int__", "__index__"):
        monkeypatch.setattr(type(begin), method, no_host_read)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.slice(x, begin, [2])
        for known in ([2], np.asarray([2])):
            with pytest.raises(tf.errors.InvalidArgumentError, match="begin. is .2. and"):
                tf.slice(x, known, [2])
    gradient = tape.gradient(y, x)
    monkeypatch.undo()
    assert y.tolist() == [2.0, 3.0]
    assert gradient.tolist() == [0.0, 1.0, 1.0]


@pytest.mark.long
def test_edges_of_what_is_allowed():
    """Recorded with TensorFlow 2.21."""
    assert tf.slice([1, 2, 3], [3], [0]).shape == (0,)
    assert tf.slice([1, 2, 3], tf.constant([1]), [-1]).tolist() == [2, 3]
    assert tf.strided_slice([1, 2, 3], [-1], [0], shrink_axis_mask=1).tolist() == 3
    assert tf.pad([1, 2], [[1, 1]], mode="REFLECT").tolist() == [2, 1, 2, 1]
    assert tf.pad([1, 2], [[2, 2]], mode="SYMMETRIC").tolist() == [2, 1, 1, 2, 2, 1]
    assert tf.dynamic_stitch([[0, 3]], [[1, 2]]).tolist() == [1, 0, 0, 2]
    assert tf.dynamic_stitch([np.zeros(0, np.int32)], [np.zeros((0, 2), np.float32)]).shape == (0, 2)
    assert tf.clip_by_value([1.0, 5.0], 3.0, 2.0).tolist() == [3, 3]
    y, idx = tf.unique([3.0, np.nan, np.nan])
    assert (y.shape, idx.tolist()) == ((3,), [0, 1, 2])
    reverse = tf.function(lambda lengths: tf.reverse_sequence([[1, 2, 3]], lengths, seq_axis=1))
    assert reverse(tf.constant([5])).tolist() == [[3, 2, 1]]
