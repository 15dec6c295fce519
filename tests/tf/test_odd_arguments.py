"""Operations of `mirrored.tf` with arguments that were accepted, and gave other results than on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

X = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
IMAGE = np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 2, 3)
ONE_BY_ONE = [1, 1, 1, 1]


@pytest.mark.parametrize("name", ["segment_max", "segment_min"])
@pytest.mark.parametrize(("dtype", "rows"), [(np.uint8, 256), (np.int8, 128), (np.int16, 40_000)])
def test_segments_may_have_more_rows_than_their_dtype_can_count(name: str, dtype: type, rows: int) -> None:
    data = np.full([rows], 7, dtype)
    assert getattr(tf.math, name)(data, np.zeros(rows, np.int32)).numpy().tolist() == [7]


def test_means_of_long_segments_divide_by_the_number_of_rows() -> None:
    data = np.zeros(300, np.int8)
    data[:60] = 2
    assert tf.math.segment_mean(data, np.zeros(300, np.int32)).numpy().tolist() == [0]
    assert tf.math.segment_mean(data.astype(np.float16), np.zeros(300, np.int32)).dtype == tf.float16


def test_norms_and_variances_of_complex_tensors_are_those_of_their_moduli() -> None:
    normalized = tf.math.l2_normalize(tf.constant([3 + 4j], tf.complex64))
    np.testing.assert_allclose(normalized, [0.6 + 0.8j], atol=1e-6)
    mean, variance = tf.nn.moments(tf.constant([1 + 1j, -1 - 1j], tf.complex64), [0])
    assert (complex(mean), complex(variance)) == (0, 2)


Z = np.array([3 + 4j, -1 + 0.5j], np.complex64)
# TensorFlow has no kernels of these for complex numbers, which JAX orders by the real part, then the imaginary part.
OF_REALS: dict[str, Callable[[Any], Any]] = {
    "maximum": lambda z: tf.maximum(z, 1.0),
    "minimum": lambda z: tf.minimum(z, z),
    "greater": lambda z: tf.greater(z, z),
    "greater_equal": lambda z: tf.greater_equal(z, z),
    "less": lambda z: tf.less(z, z),
    "less_equal": lambda z: tf.less_equal(z, z),
    "clip_by_value": lambda z: tf.clip_by_value(z, 0.0, 1.0),
    "clip_by_norm": lambda z: tf.clip_by_norm(tf.math.real(z), z[0]),
    "clip_by_global_norm": lambda z: tf.clip_by_global_norm([tf.math.real(z)], 1.0, z[0]),
    "reduce_max": tf.reduce_max,
    "reduce_min": tf.reduce_min,
    "sort": tf.sort,
    "argsort": tf.argsort,
    "searchsorted": lambda z: tf.searchsorted(z, z),
    "segment_max": lambda z: tf.math.segment_max(z, [0, 0]),
    "segment_min": lambda z: tf.math.segment_min(z, [0, 0]),
    "unsorted_segment_max": lambda z: tf.math.unsorted_segment_max(z, [0, 0], 1),
    "unsorted_segment_min": lambda z: tf.math.unsorted_segment_min(z, [0, 0], 1),
    "tensor_scatter_nd_max": lambda z: tf.tensor_scatter_nd_max(z, [[0]], z[:1]),
    "tensor_scatter_nd_min": lambda z: tf.tensor_scatter_nd_min(z, [[0]], z[:1]),
    "crelu": tf.nn.crelu,
    "elu": tf.nn.elu,
    "leaky_relu": tf.nn.leaky_relu,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "selu": tf.nn.selu,
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "softplus": tf.nn.softplus,
    "softsign": tf.nn.softsign,
    "log_sigmoid": tf.math.log_sigmoid,
    "local_response_normalization": lambda z: tf.nn.local_response_normalization(z[None, None, None]),
    "softmax_cross_entropy_with_logits": lambda z: tf.nn.softmax_cross_entropy_with_logits(z, z),
    "sparse_softmax_cross_entropy_with_logits": lambda z: tf.nn.sparse_softmax_cross_entropy_with_logits(
        [0, 1], [z, z]
    ),
    "sigmoid_cross_entropy_with_logits": lambda z: tf.nn.sigmoid_cross_entropy_with_logits(z, z),
    "weighted_cross_entropy_with_logits": lambda z: tf.nn.weighted_cross_entropy_with_logits(z, z, 2.0),
    "reduce_logsumexp": tf.reduce_logsumexp,
    "cumulative_logsumexp": tf.math.cumulative_logsumexp,
    "is_non_decreasing": tf.math.is_non_decreasing,
    "is_strictly_increasing": tf.math.is_strictly_increasing,
    "rint": tf.math.rint,
    "round": tf.round,
}


@pytest.mark.first(42)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", OF_REALS)
def test_operations_on_real_numbers_refuse_complex_tensors(name: str, compiled: bool) -> None:
    called = tf.function(OF_REALS[name]) if compiled else OF_REALS[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{name}: .* it is defined for real numbers only"):
        called(tf.constant(Z))


@pytest.mark.parametrize("special", [np.inf, np.nan])
def test_a_weight_that_is_not_finite_counts_in_its_own_bin_only(special: float) -> None:
    counted = tf.math.bincount([0, 1, 1], weights=tf.constant([special, 1.0, 2.0]))
    np.testing.assert_array_equal(counted, [special, 3.0])


def test_a_mask_may_begin_at_a_negative_axis() -> None:
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2)
    mask = np.arange(12).reshape(3, 4) % 3 == 0
    np.testing.assert_array_equal(tf.boolean_mask(x, mask, axis=-3), tf.boolean_mask(x, mask, axis=1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="`axis` is"):
        tf.boolean_mask(x, mask, axis=-9)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "filters for other channels": (
        lambda: tf.nn.depthwise_conv2d(tf.ones([1, 4, 4, 4]), tf.ones([3, 3, 2, 2]), ONE_BY_ONE, "VALID"),
        "4 channels",
    ),
    "other channels of a transposed convolution": (
        lambda: tf.nn.conv2d_transpose(tf.ones([1, 2, 2, 1]), tf.ones([2, 2, 3, 1]), [1, 4, 4, 7], 2, "SAME"),
        "output_shape",
    ),
    "another batch size of a transposed convolution": (
        lambda: tf.nn.conv2d_transpose(tf.ones([1, 2, 2, 1]), tf.ones([2, 2, 3, 1]), [5, 4, 4, 3], 2, "SAME"),
        "output_shape",
    ),
    "gray image as RGB": (lambda: tf.image.rgb_to_grayscale(tf.ones([2, 2, 1])), "3 channels"),
    "RGB image as gray": (lambda: tf.image.grayscale_to_rgb(tf.ones([2, 2, 3])), "1 channel"),
    "four channels as HSV": (lambda: tf.image.hsv_to_rgb(tf.ones([2, 2, 4])), "3 channels"),
    "negative shift": (lambda: tf.image.random_brightness(IMAGE, -0.2), "must not be negative"),
    "exchanged bounds": (lambda: tf.image.random_contrast(IMAGE, 2.0, 0.5), "greater than `lower`"),
    "negative bound": (lambda: tf.image.random_saturation(IMAGE, -1.0, 0.5), "must not be negative"),
    "large shift of the hue": (lambda: tf.image.stateless_random_hue(IMAGE, 0.7, [1, 2]), "0.5"),
    "dropout of integers": (lambda: tf.nn.dropout([4, 4, 4], 0.5), "floats"),
    "fraction as an integer": (lambda: tf.py_function(lambda v: v * 2.7, [1.0], tf.int32), "Tout is int32"),
    "gather along a batch dimension": (lambda: tf.gather(IMAGE, [[0], [1]], axis=0, batch_dims=1), "batch_dims=1"),
    "gather before the last batch dimension": (
        lambda: tf.gather(IMAGE, [[0], [1]], axis=-3, batch_dims=-1),
        "axis=1 or greater",
    ),
    "negative gamma": (lambda: tf.image.adjust_gamma(IMAGE, -1.0), "must not be negative"),
    "negative gamma of NumPy": (lambda: tf.image.adjust_gamma(IMAGE, np.float32(-1)), "must not be negative"),
    "negative gamma in a function": (
        lambda: tf.function(lambda: tf.image.adjust_gamma(IMAGE, np.float32(-1)))(),
        "must not be negative",
    ),
    "negative gamma in a tensor": (lambda: tf.image.adjust_gamma(IMAGE, tf.constant(-1.0)), "must not be negative"),
    "band above the spectrum": (
        lambda: tf.signal.linear_to_mel_weight_matrix(20, 129, 8000, 125.0, 7600.0),
        "sample_rate / 2",
    ),
    "exchanged edges": (lambda: tf.signal.linear_to_mel_weight_matrix(20, 129, 8000, 3800.0, 125.0), "lower_edge"),
    "range of integers without a step": (lambda: tf.range(0, 5, 0), "delta=0"),
    "range of floats without a step": (lambda: tf.range(0.0, 1.0, 0.0), "delta=0"),
    "range from a greater integer": (lambda: tf.range(5, 3), "start=5, limit=3"),
    "range of a negative number": (lambda: tf.range(tf.constant(-1.0)), "start=0, limit=-1.0"),
    "range from a smaller number": (lambda: tf.range(0.0, 1.0, -0.5), "delta=-0.5"),
    "Keras' data format of a pooling": (
        lambda: tf.nn.max_pool2d(IMAGE[None], 2, 2, "VALID", data_format="channels_first"),
        "tf.nn.max_pool2d: data_format='channels_first'",
    ),
    "data format in small letters": (
        lambda: tf.nn.conv2d(IMAGE[None], np.ones([1, 1, 3, 3], np.float32), 1, "VALID", data_format="nchw"),
        "data_format='nchw'",
    ),
    "Keras' data format of blocks": (
        lambda: tf.nn.space_to_depth(IMAGE[None], 2, data_format="channels_first"),
        "tf.nn.space_to_depth: data_format",
    ),
    "Keras' data format of a bias": (
        lambda: tf.nn.bias_add(IMAGE[None], [1.0, 1.0, 1.0], data_format="channels_first"),
        "tf.nn.bias_add: data_format",
    ),
    "gather along an axis too high": (lambda: tf.gather(X, [0], axis=2), "axis 2 is out of bounds"),
    "gather along an axis too low": (lambda: tf.gather(X, [0], axis=-3), "axis -3 is out of bounds"),
    "gather from a scalar": (lambda: tf.gather(tf.constant(5.0), [0], axis=0), "axis 0 is out of bounds"),
    "negative batch dimensions": (lambda: tf.gather_nd(X, [[1]], batch_dims=-1), "batch_dims=-1"),
    "join along a missing axis": (lambda: tf.strings.reduce_join([["a", "b"]], axis=3), "axis=3"),
    "no parts": (lambda: tf.split(X, 0), "num_or_size_splits=0"),
    "parts along a missing axis": (lambda: tf.split(X, 2, axis=5), "axis 5 is out of bounds"),
    "unstacked along a missing axis": (lambda: tf.unstack(X, num=2, axis=5), "axis 5 is out of bounds"),
    "frames at one place": (lambda: tf.signal.frame(X, 2, 0), "`frame_step` is 0"),
    "weights of another rank": (lambda: tf.math.bincount([0, 1, 1], weights=tf.ones([3, 1])), "`weights` "),
    "weights of pairs": (lambda: tf.math.bincount([0, 1], weights=tf.ones([2, 2])), "`weights` "),
    "exchanged ends of a histogram": (lambda: tf.histogram_fixed_width([0.5], [5.0, 0.0]), "`value_range` is"),
    "histogram without a width": (lambda: tf.histogram_fixed_width([0.5], [1.0, 1.0]), "`value_range` is"),
    "list of batches of diagonals": (
        lambda: tf.linalg.tridiagonal_matmul([tf.ones([2, 4])] * 3, tf.ones([2, 4, 1])),
        "diagonals_format='sequence'",
    ),
    "flipped matrix": (lambda: tf.image.flip_left_right(X), "channels"),
    "matrix that may be flipped": (lambda: tf.image.random_flip_left_right(X), "channels"),
    "similarity of colors and gray": (lambda: tf.image.psnr(IMAGE, IMAGE[..., :1], 1.0), "same height"),
    "images smaller than the window": (lambda: tf.image.ssim(IMAGE, IMAGE, 1.0), "filter_size=11"),
    "small scale": (lambda: tf.image.ssim_multiscale(*[tf.ones([64, 64, 3])] * 2, 1.0), r"the sides \[4, 4\]"),
    "negative crop": (lambda: tf.image.crop_to_bounding_box(IMAGE, 0, 0, -1, 2), "within the image"),
    "one-hot floats as integers": (lambda: tf.one_hot([0], 3, 0.9, 0.1, dtype=tf.int32), "`on_value` has the dtype"),
    "padding of integers with a float": (lambda: tf.pad([1], [[1, 0]], constant_values=tf.constant(0.5)), "tf.cast"),
    "diagonal beside a float tensor": (lambda: tf.linalg.diag([1], padding_value=tf.constant(0.5)), "`padding_value`"),
    "integers in fractional steps": (lambda: tf.range(0, 10, 2.5, dtype=tf.int32), "2.5"),
    "random integers below a fraction": (lambda: tf.random.uniform([4], 0, 2.9, dtype=tf.int32), "`maxval` is 2.9"),
    "large number as a byte": (lambda: tf.numpy_function(lambda v: np.int32(300), [1.0], tf.uint8), "Tout is uint8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_do_not_fit_are_refused(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        call()


@pytest.mark.parametrize("rate", [1.5, np.float32(1.5), np.int64(1)])
def test_rates_of_dropout_beyond_their_range_are_refused(rate: Any) -> None:
    with pytest.raises(ValueError, match="rate"):
        tf.nn.dropout(IMAGE, rate)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "begin",
    [
        lambda x: np.array([1, 0]),
        lambda x: [np.int64(1), np.int64(0)],
        lambda x: [tf.shape(x)[0] - 1, 0],
        lambda x: tf.constant([1, 0]),
    ],
)
def test_a_slice_with_a_known_begin_must_lie_within_the_tensor(begin: Callable[[Any], Any], compiled: bool) -> None:
    def sliced(size: list[int]) -> Any:
        function = lambda x: tf.slice(x, begin(x), size)  # noqa: E731
        return (tf.function(function) if compiled else function)(X)

    assert sliced([1, 2]).numpy().tolist() == [[4.0, 5.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="`begin` is"):
        sliced([2, 2])


EDGES = np.pad(np.zeros((1, 1, 1), np.uint8), [(1, 1), (1, 1), (0, 0)], constant_values=100)


@pytest.mark.first(1)
@pytest.mark.parametrize(("filters", "expected"), [(np.full((3, 3, 1), -1, np.int32), 4), (EDGES, 5)])
def test_the_dilation_of_integers_ignores_places_outside_the_image(filters: Any, expected: int) -> None:
    image = np.full((1, 1, 1, 1), 5, filters.dtype)
    assert int(tf.nn.dilation2d(image, filters, ONE_BY_ONE, "SAME", "NHWC", ONE_BY_ONE)[0, 0, 0, 0]) == expected


@pytest.mark.long
def test_the_place_of_a_maximum_lies_inside_the_image() -> None:
    _, places = tf.nn.max_pool_with_argmax(tf.zeros([1, 3, 3, 1], tf.uint8), 3, 1, "SAME")
    assert places[0, :, :, 0].tolist() == [[0, 0, 1], [0, 0, 1], [3, 3, 4]]


@pytest.mark.parametrize("seed", [2**32, 5 * 2**32 + 1, -1])
def test_the_state_of_a_generator_depends_on_all_bits_of_the_seed(seed: int) -> None:
    state = tf.random.Generator.from_seed(seed).state.numpy()
    np.testing.assert_array_equal(tf.random.create_rng_state(seed), state)


def test_a_writer_without_a_step_leaves_the_step_of_the_program(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    tf.summary.experimental.set_step(0)
    with writer.as_default():
        tf.summary.experimental.set_step(5)
    assert tf.summary.experimental.get_step() == 5
    with writer.as_default(step=9):
        assert tf.summary.experimental.get_step() == 9
    assert tf.summary.experimental.get_step() == 5
    writer.close()
    tf.summary.experimental.set_step(None)


class _Double(tf.Module):
    @tf.function
    def double(self, x: Any) -> Any:
        return x * 2


@pytest.mark.long
def test_a_loaded_function_takes_fractions_by_its_program_of_floats(tmp_path: Path) -> None:
    module = _Double()
    for example in ([1, 2], [1.0, 2.0], 1, 1.0):
        module.double(tf.constant(example))
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.double([1.5, 2.5]).numpy().tolist() == [3.0, 5.0]
    assert loaded.double([1, 2]).numpy().tolist() == [2, 4]
    assert float(loaded.double(1.5)) == 3.0


def test_a_loaded_function_of_integers_refuses_fractions(tmp_path: Path) -> None:
    module = _Double()
    module.double(tf.constant([1, 2]))
    tf.saved_model.save(module, str(tmp_path))
    with pytest.raises(ValueError, match="double"):
        tf.saved_model.load(str(tmp_path)).double([1.5, 2.5])


def test_the_mean_of_unsigned_integers_divides_large_sums():
    rows = tf.constant(np.array([1_500_000_000] * 2, np.uint32))
    assert np.asarray(tf.math.segment_mean(rows, np.array([0, 0], np.int32))).tolist() == [1_500_000_000]
