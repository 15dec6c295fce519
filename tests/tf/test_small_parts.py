from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf


@pytest.mark.parametrize(
    ("name", "builtin", "code"),
    [
        ("InvalidArgumentError", ValueError, 3),
        ("NotFoundError", FileNotFoundError, 5),
        ("OutOfRangeError", IndexError, 11),
        ("UnimplementedError", NotImplementedError, 12),
        ("FailedPreconditionError", RuntimeError, 9),
        ("ResourceExhaustedError", MemoryError, 8),
        ("PermissionDeniedError", PermissionError, 7),
        ("DeadlineExceededError", TimeoutError, 4),
    ],
)
def test_errors_are_those_of_python_too(name: str, builtin: type[Exception], code: int) -> None:
    kind = getattr(tf.errors, name)
    with pytest.raises(builtin, match="the words"):
        raise kind(None, None, "the words")
    error = kind(None, None, "the words")
    assert (error.message, error.error_code, error.node_def, error.op) == ("the words", code, None, None)
    assert isinstance(error, tf.errors.OpError)
    assert isinstance(error, mr.errors.MirroredError)
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (kind, "the words")


def test_error_codes() -> None:
    assert (tf.errors.INVALID_ARGUMENT, tf.errors.OUT_OF_RANGE, tf.errors.NOT_FOUND) == (3, 11, 5)


def test_files(tmp_path: Path) -> None:
    gfile = tf.io.gfile
    folder = gfile.join(str(tmp_path), "a", "b")
    gfile.makedirs(folder)
    gfile.mkdir(gfile.join(folder, "c"))
    with gfile.GFile(gfile.join(folder, "file"), "w") as file:
        file.write("text")
    assert gfile.exists(folder)
    assert gfile.isdir(folder)
    assert sorted(gfile.listdir(folder)) == ["c", "file"]
    assert gfile.glob(gfile.join(folder, "f*")) == gfile.glob([gfile.join(folder, "f*")]) == [f"{folder}/file"]
    assert gfile.stat(gfile.join(folder, "file")).st_size == 4
    gfile.copy(f"{folder}/file", f"{folder}/other")
    with pytest.raises(tf.errors.AlreadyExistsError, match="overwrite=True"):
        gfile.copy(f"{folder}/file", f"{folder}/other")
    gfile.rename(f"{folder}/file", f"{folder}/other", overwrite=True)
    assert [files for _, _, files in gfile.walk(folder)][0] == ["other"]
    gfile.remove(f"{folder}/other")
    with pytest.raises(FileNotFoundError, match="No such file"):
        gfile.GFile(f"{folder}/other")
    gfile.rmtree(folder)
    assert not gfile.exists(folder)


def test_compat() -> None:
    assert tf.compat.as_bytes("a") == b"a"
    assert tf.compat.as_text(b"a") == tf.compat.as_str("a") == tf.compat.as_str_any(b"a") == "a"
    assert tf.compat.as_str_any(1.5) == "1.5"
    tf.compat.v1.enable_eager_execution()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    tf.compat.v1.logging.set_verbosity("INFO")
    tf.compat.v1.set_random_seed(1)
    with pytest.raises(NotImplementedError, match="no graphs and sessions"):
        tf.compat.v1.disable_eager_execution()


def test_blocks_on_a_device() -> None:
    with tf.device("CPU:1"):
        assert tf.ones([1]).devices() == {jax.devices()[1]}
        with tf.device(None):
            assert tf.constant(1.0).devices() == {jax.devices()[1]}
    with tf.device("/cpu"):
        assert (tf.constant([1.0]) + 1).devices() == {jax.devices()[0]}
    with tf.device(jax.devices()[2]):
        assert tf.zeros([1]).devices() == {jax.devices()[2]}


def test_a_device_that_is_not_there_changes_nothing_unless_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with tf.device("CPU:99"):
            assert tf.constant(1.0).devices() == {jax.devices()[0]}
    assert [record.message for record in caplog.records if "CPU:99" in record.message] == [
        "'CPU:99' is not on this machine, so tf.device has no effect (soft placement)"
    ]
    tf.config.set_soft_device_placement(False)
    try:
        with pytest.raises(ValueError, match="not on this machine"), tf.device("CPU:99"):
            pass
    finally:
        tf.config.set_soft_device_placement(True)
    for name in ("nonsense", 5):
        with pytest.raises(ValueError, match=r"is not a device name|a device must be a string"), tf.device(name):
            pass


def test_code_that_runs_at_once_while_tracing() -> None:
    v = tf.Variable([1.0, 1.0])

    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        assert not tf.executing_eagerly()
        with tf.init_scope():
            assert tf.executing_eagerly()
            made = (v + tf.ones([2])).numpy()
        return x + made

    assert run(tf.ones([2])).tolist() == [3, 3]
    with tf.GradientTape():
        assert tf.executing_eagerly()


@pytest.mark.long
def test_initializers_can_be_made_again_from_their_configuration() -> None:
    first = tf.initializers.GlorotUniform(seed=3)
    again = tf.initializers.GlorotUniform.from_config(first.get_config())
    np.testing.assert_array_equal(first([2, 2]), again([2, 2]))
    assert tf.zeros_initializer()([2], tf.int32).dtype == tf.int32
    assert tf.initializers.VarianceScaling()([5]).shape == (5,)
    assert tf.constant_initializer([1, 2, 3, 4])([2, 2]).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="2D matrices"):
        tf.initializers.Identity()([2])
    with pytest.raises(TypeError, match="partition_shpe"):
        tf.initializers.Ones()([2], partition_shpe=[1])


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["RandomNormal", "RandomUniform", "TruncatedNormal", "HeNormal", "Orthogonal"])
def test_an_initializer_with_a_seed_is_stateless(name: str) -> None:
    """As in TensorFlow (`stateless_random_normal`) and Keras 3: the same values, and the global state stays."""
    make = getattr(tf.initializers, name)
    tf.random.set_seed(1)
    expected = tf.random.normal([3])
    tf.random.set_seed(1)
    seeded = make(seed=5)
    first, second = seeded([4, 4]), seeded([4, 4])
    np.testing.assert_array_equal(tf.random.normal([3]), expected)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(make(seed=5)([4, 4]), first)
    assert not np.array_equal(make(seed=6)([4, 4]), first)
    unseeded = make()
    assert not np.array_equal(unseeded([4, 4]), unseeded([4, 4]))


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["Zeros", "Ones", "RandomNormal", "GlorotUniform", "Orthogonal", "Identity"])
def test_an_initializer_makes_a_part_of_the_tensor(name: str) -> None:
    options = {"seed": 3} if name not in ("Zeros", "Ones", "Identity") else {}
    make = getattr(tf.initializers, name)(**options)
    whole = make([4, 6])
    part = make([4, 6], partition_shape=[2, 6], partition_offset=[2, 0])
    np.testing.assert_array_equal(part, whole[2:])
    assert make([4, 6], partition_shape=(4, 3)).shape == (4, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition_shape": [5, 6]},
        {"partition_shape": [4]},
        {"partition_shape": [2, 6], "partition_offset": [3, 0]},
        {"partition_offset": [1, 0]},
    ],
)
def test_a_part_outside_of_the_tensor_is_refused(wrong: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="a part must lie inside the tensor"):
        tf.initializers.Ones()([4, 6], **wrong)


@pytest.mark.parametrize("clip", [tf.clip_by_norm, lambda t, norm: tf.clip_by_global_norm([t], norm)[0][0]])
def test_clipping_to_the_norm_zero(clip: Any) -> None:
    t = tf.constant([3.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(t)
        clipped = clip(t, 0.0)
    assert clipped.tolist() == [0, 0]
    assert tape.gradient(clipped, t).tolist() == [0, 0]


def test_clipping_zeros_by_norm_passes_the_gradient() -> None:
    t = tf.constant([0.0, 0.0])
    with tf.GradientTape() as tape:
        tape.watch(t)
        clipped = tf.clip_by_norm(t, 1.0)
    assert clipped.tolist() == [0, 0]
    assert tape.gradient(clipped, t).tolist() == [1, 1]


@pytest.mark.parametrize("value", [3 + 4j, 0.3 + 0.4j, 0j])
def test_clipping_complex_tensors_by_norm_has_the_derivative_of_the_parts(value: complex) -> None:
    def clipped(parts: Any) -> Any:
        return tf.math.real(tf.clip_by_norm(tf.complex(parts[:1], parts[1:]), 1.0) * (2 - 1j))[0]

    def of_parts(parts: Any) -> Any:
        found = tf.clip_by_norm(parts, 1.0)
        return 2 * found[0] + found[1]

    parts = tf.constant([value.real, value.imag])
    np.testing.assert_allclose(jax.grad(clipped)(parts), jax.grad(of_parts)(parts), rtol=1e-5, atol=1e-6)


def test_autograph_is_left_out() -> None:
    assert tf.autograph.experimental.do_not_convert(abs) is abs
    tf.autograph.set_verbosity(1)


@pytest.mark.parametrize(
    ("bounds", "count", "last"),
    [((-2.0, 1.0, 3 / 800), 800, 0.9962499), ((1.0, 0.0, -0.1), 10, 0.099999964), ((0.0, 0.7, 0.1), 7, 0.6)],
)
def test_a_range_of_floats_is_computed_in_its_dtype(bounds: tuple[float, ...], count: int, last: float) -> None:
    for given in (bounds, (*bounds[:2], tf.constant(bounds[2]))):
        found = tf.range(*given).numpy()
        assert (len(found), found[-1]) == (count, np.float32(last))  # recorded on TensorFlow


def test_truncatediv_of_floats_truncates():
    np.testing.assert_array_equal(tf.truncatediv(tf.constant([5.0, -7.0]), tf.constant([3.0, 2.0])), [1.0, -3.0])


@pytest.mark.parametrize("fast", [True, False])
def test_lstsq_with_fewer_rows_than_columns_has_the_smallest_norm(fast):
    matrix, rhs = tf.constant([[1.0, 2.0, 3.0], [0.0, 1.0, 1.0]]), tf.constant([[1.0], [2.0]])
    result = tf.linalg.lstsq(matrix, rhs, fast=fast)
    np.testing.assert_allclose(result[:, 0], [-8 / 3, 7 / 3, -1 / 3], rtol=1e-4)


@pytest.mark.long
def test_the_gradient_of_a_dilated_maximum():
    """Recorded with TensorFlow 2.21."""
    x = tf.Variable([[[1.0], [5.0], [3.0], [5.0], [3.0], [4.0]]])
    with tf.GradientTape() as tape:
        y = tf.nn.pool(x, [2], "MAX", padding="VALID", dilations=[2])
    np.testing.assert_array_equal(tape.gradient(y, x)[0, :, 0], [0, 1, 2, 1, 0, 0])


def test_a_dilated_maximum_with_strides():
    rows = np.arange(9, dtype=np.float32).reshape(1, 9, 1) % 5
    found = tf.nn.pool(rows, [2], "MAX", strides=[3], padding="VALID", dilations=[3])
    np.testing.assert_array_equal(found[0, :, 0], [3, 3])
    assert tf.nn.pool(rows[:, :3], [2], "MAX", padding="VALID", dilations=[3]).shape == (1, 0, 1)


@pytest.mark.parametrize("kind", ["MAX", "AVG"])
def test_dilated_windows_with_same_padding_are_refused(kind):
    with pytest.raises(tf.errors.InvalidArgumentError, match="padding 'VALID'"):
        tf.nn.pool(np.ones((1, 5, 1), np.float32), [2], kind, padding="SAME", dilations=[2])


@pytest.mark.long
def test_the_gradient_of_a_matrix_square_root():
    """Recorded with TensorFlow 2.21."""
    matrix = tf.Variable([[[2.0, 1.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 4.0]]])
    with tf.GradientTape() as tape:
        root = tf.linalg.sqrtm(matrix)
    first, second = tape.gradient(root, matrix)
    np.testing.assert_allclose(first, [[0.300098, 0.267606], [0.267606, 0.242784]], rtol=1e-5)
    np.testing.assert_allclose(second, [[1 / 2, 1 / 3], [1 / 3, 1 / 4]], rtol=1e-5)


@pytest.mark.parametrize("options", [{"k": (1, 0)}, {"k": 5}, {"align": "LEFT"}, {"k": (0, 1, 2)}])
def test_diagonals_that_do_not_exist_are_refused(options):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rule:.*diagonal|rule:.*RIGHT_LEFT"):
        tf.linalg.diag_part(np.ones((2, 3), np.float32), **options)


def test_diagonals_of_a_wrong_shape_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"have the shape \(2,\)"):
        tf.linalg.set_diag(np.ones((2, 3), np.float32), [1.0, 2.0, 3.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2 x 2 matrices"):
        tf.linalg.diag([1.0, 2.0, 3.0], num_rows=2, num_cols=2)


def test_the_gradients_of_xlogy_are_zero_where_x_is_zero():
    """Recorded with TensorFlow 2.21."""
    x, y = tf.Variable([0.0, 2.0]), tf.Variable([3.0, 4.0])
    with tf.GradientTape(persistent=True) as tape:
        found, shifted = tf.math.xlogy(x, y), tf.math.xlog1py(x, y)
    np.testing.assert_allclose(tape.gradient(found, [x, y]), [[0, np.log(4)], [0, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(shifted, [x, y]), [[0, np.log(5)], [0, 0.4]], rtol=1e-6)


def test_multiples_for_each_axis_and_integer_indices():
    with pytest.raises(tf.errors.InvalidArgumentError, match="one number for each axis"):
        tf.tile([[1, 2]], [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be integers"):
        tf.one_hot([1.0], 3)


def test_files_keep_their_line_ends(tmp_path):
    path = str(tmp_path / "text")
    with tf.io.gfile.GFile(path, "w") as file:
        file.write("a\r\nü\n")
    with tf.io.gfile.GFile(path) as file:
        assert list(file) == ["a\r\n", "ü\n"]


@pytest.mark.parametrize("name", ["listdir", "remove", "rmtree", "stat", "GFile"])
def test_missing_files_raise_the_error_of_tensorflow(tmp_path, name):
    with pytest.raises(tf.errors.NotFoundError, match="none; No such file"):
        getattr(tf.io.gfile, name)(str(tmp_path / "none"))


def test_existing_folders_raise_the_error_of_tensorflow(tmp_path):
    with pytest.raises(tf.errors.AlreadyExistsError, match="file already exists"):
        tf.io.gfile.mkdir(tmp_path)
    with pytest.raises(tf.errors.NotFoundError, match="No such file"):
        tf.io.gfile.copy(tmp_path / "none", tmp_path / "other")
