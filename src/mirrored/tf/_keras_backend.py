"""Reimplements functions of `tf.keras.backend` for which Keras uses TensorFlow features that `mirrored.tf` lacks.

The other functions of that module are Keras' own, which call operations of `mirrored.tf` instead of TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax.numpy as jnp
import numpy as np

import mirrored.tf as _tf
from mirrored._jax.traces import current_trace, is_eval
from mirrored._typing import Operand, StaticInts
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import backend, legacy_backend
from mirrored.runtime.ambient import ambient
from mirrored.tf._ops import samplers
from mirrored.tf._ops.generator import next_key
from mirrored.tf._tensors import as_tensor

keras = load()
_ops: Any = keras.ops
_PADDED: Final = {"channels_last": 1, "channels_first": 2}


def _format(data_format: str | None) -> str:
    found = keras.backend.image_data_format() if data_format is None else data_format
    if found not in _PADDED:
        raise ValueError(f"Unknown data_format: {data_format}")
    return found  # type: ignore[no-any-return]


# Types, shapes and values.


def dtype(x: Any) -> str:
    """Returns the dtype of a tensor or variable as a string."""
    return str(np.dtype(x.dtype)) if not isinstance(x.dtype, str) else x.dtype


def ndim(x: Any) -> int:
    """Returns the number of dimensions of a tensor."""
    return len(x.shape)


def count_params(x: Any) -> int:
    """Returns the number of elements of a variable or tensor."""
    return int(np.prod(x.shape))


def is_sparse(tensor: object) -> bool:
    """Returns False: tensors are dense."""
    return False


def to_dense(tensor: Any) -> Any:
    """Returns a tensor unchanged: tensors are dense."""
    return tensor


def eval(x: Any) -> Any:
    """Returns the value of a tensor or variable as a NumPy array."""
    return np.asarray(x)


def cast_to_floatx(x: Any) -> Any:
    """Casts a tensor, or converts a list or NumPy array, to the default float dtype."""
    return _ops.cast(x, keras.backend.floatx()) if _ops.is_tensor(x) else np.asarray(x, keras.backend.floatx())


# Variables.


def _created(value: Any, dtype: Any, name: str | None) -> Any:
    """Creates a variable; in a traced function, which cannot create variables, returns the value as a tensor."""
    if is_eval(current_trace()) and ambient().store is None:
        return legacy_backend.variable(value, dtype, name)
    return as_tensor(value)


def zeros(shape: StaticInts, dtype: Any = None, name: str | None = None) -> Any:
    """Returns a new variable of zeros; in a compiled function, returns a tensor of zeros."""
    how = dtype or keras.backend.floatx()
    return _created(np.zeros(shape, how), how, name)


def ones(shape: StaticInts, dtype: Any = None, name: str | None = None) -> Any:
    """Returns a new variable of ones; in a compiled function, returns a tensor of ones."""
    how = dtype or keras.backend.floatx()
    return _created(np.ones(shape, how), how, name)


def random_normal_variable(
    shape: StaticInts, mean: float, scale: float, dtype: Any = None, name: str | None = None, seed: int | None = None
) -> Any:
    """Creates a variable with values from a normal distribution."""
    how = dtype or keras.backend.floatx()
    return legacy_backend.variable(samplers.normal(next_key(seed), shape, mean, scale, how), how, name)


def random_uniform_variable(
    shape: StaticInts, low: float, high: float, dtype: Any = None, name: str | None = None, seed: int | None = None
) -> Any:
    """Creates a variable with values from a uniform distribution."""
    how = dtype or keras.backend.floatx()
    return legacy_backend.variable(samplers.uniform(next_key(seed), shape, low, high, how), how, name)


def update(x: Any, new_x: Operand) -> Any:
    """Assigns a new value to a variable."""
    return x.assign(new_x)


def update_add(x: Any, increment: Operand) -> Any:
    """Adds a value to a variable."""
    return x.assign_add(increment)


def update_sub(x: Any, decrement: Operand) -> Any:
    """Subtracts a value from a variable."""
    return x.assign_sub(decrement)


# Arithmetic and arrays.


def _number(x: Any) -> Any:
    x = as_tensor(x)
    return x.astype(keras.backend.floatx()) if x.dtype == jnp.bool_ else x


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Returns the mean over axes; booleans are cast to floats first."""
    return _tf.reduce_mean(_number(x), axis, keepdims)


def std(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Returns the standard deviation over axes; booleans are cast to floats first."""
    return _tf.math.reduce_std(_number(x), axis, keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Returns the variance over axes; booleans are cast to floats first."""
    return _tf.math.reduce_variance(_number(x), axis, keepdims)


def dot(x: Any, y: Any) -> Any:
    """Computes the dot product over the last axis of `x` and the second-to-last axis of `y`."""
    return jnp.dot(as_tensor(x), as_tensor(y))


def concatenate(tensors: Sequence[Any], axis: int = -1) -> Any:
    """Concatenates tensors along an axis."""
    return _tf.concat(tensors, axis)


def repeat(x: Any, n: int) -> Any:
    """Repeats a matrix of shape ``[a, b]`` `n` times along a new axis; the result has the shape ``[a, n, b]``."""
    assert ndim(x) == 2
    return jnp.repeat(as_tensor(x)[:, None], n, axis=1)


def repeat_elements(x: Any, rep: int, axis: int) -> Any:
    """Repeats each element of a tensor `rep` times along an axis."""
    return jnp.repeat(as_tensor(x), rep, axis=axis)


def gather(reference: Any, indices: Any) -> Any:
    """Returns the slices of a tensor at indices along its first axis."""
    return _tf.gather(reference, indices)


def softmax(x: Any, axis: Any = -1) -> Any:
    """Returns the softmax of a tensor over one or more axes."""
    if ndim(x) <= 1:
        raise ValueError(f"Cannot apply softmax to a tensor that is 1D. Received input: {x}")
    return _tf.nn.softmax(x, axis=axis)


def in_top_k(predictions: Any, targets: Any, k: int) -> Any:
    """Returns for each example whether the target class is among the `k` largest predictions."""
    return _tf.math.in_top_k(targets, predictions, k)


def map_fn(fn: Callable[..., Any], elems: Any, name: str | None = None, dtype: Any = None) -> Any:
    """Maps a function over the first axis of a tensor."""
    return _tf.map_fn(fn, elems, dtype=dtype)


def foldl(fn: Callable[..., Any], elems: Any, initializer: Any = None, name: str | None = None) -> Any:
    """Reduces a tensor along its first axis with a function, from the first element to the last."""
    return _tf.foldl(fn, elems, initializer)


def foldr(fn: Callable[..., Any], elems: Any, initializer: Any = None, name: str | None = None) -> Any:
    """Reduces a tensor along its first axis with a function, from the last element to the first."""
    return _tf.foldr(fn, elems, initializer)


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """Selects between two values, or the results of functions: elementwise unless the condition is a scalar."""
    condition = as_tensor(condition).astype(jnp.bool_)
    then, other = (one if callable(one) else lambda one=one: one for one in (then_expression, else_expression))
    if not condition.ndim:
        return _tf.cond(condition, then, other)
    chosen, rest = as_tensor(then()), as_tensor(other())
    if condition.ndim > chosen.ndim:
        raise ValueError(f"Rank {condition.ndim} of `condition` exceeds the rank of `then_expression`, {chosen.ndim}")
    return jnp.where(condition.reshape(condition.shape + (1,) * (chosen.ndim - condition.ndim)), chosen, rest)


# Losses, layers and images.


def categorical_crossentropy(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Any:
    """Returns the cross-entropy between one-hot targets and probabilities or logits."""
    return _ops.categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)


def sparse_categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1, ignore_class: int | None = None
) -> Any:
    """Returns the cross-entropy between class indices and probabilities or logits."""
    return keras.losses.sparse_categorical_crossentropy(target, output, from_logits, ignore_class, axis)


def categorical_focal_crossentropy(
    target: Any, output: Any, alpha: float = 0.25, gamma: float = 2.0, from_logits: bool = False, axis: int = -1
) -> Any:
    """Returns the focal cross-entropy between one-hot targets and probabilities or logits."""
    return keras.losses.categorical_focal_crossentropy(target, output, alpha, gamma, from_logits, axis=axis)


def _pad(x: Any, padding: Sequence[Any], data_format: str) -> Any:
    widths = [(0, 0)] * ndim(x)
    start = _PADDED[data_format]
    widths[start : start + len(padding)] = [tuple(one) for one in padding]
    return jnp.pad(as_tensor(x), widths)


def temporal_padding(x: Any, padding: tuple[int, int] = (1, 1)) -> Any:
    """Pads the middle axis of ``[batch, time, channels]`` with zeros."""
    return _pad(x, [padding], "channels_last")


def spatial_2d_padding(x: Any, padding: Any = ((1, 1), (1, 1)), data_format: str | None = None) -> Any:
    """Pads the height and width of images with zeros."""
    return _pad(x, padding, _format(data_format))


def spatial_3d_padding(x: Any, padding: Any = ((1, 1), (1, 1), (1, 1)), data_format: str | None = None) -> Any:
    """Pads the three spatial axes of volumes with zeros."""
    return _pad(x, padding, _format(data_format))


def _conv(x: Any, kernel: Any, strides: Any, padding: str, data_format: str | None, dilation_rate: Any) -> Any:
    return _ops.conv(x, kernel, strides, padding, _format(data_format), dilation_rate)


def conv1d(
    x: Any,
    kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Returns a 1-D convolution; the padding may be ``"causal"``."""
    data_format = _format(data_format)
    if padding == "causal":
        x, padding = _pad(x, [(dilation_rate * (kernel.shape[0] - 1), 0)], data_format), "valid"
    return _conv(x, kernel, strides, padding, data_format, dilation_rate)


def conv2d(
    x: Any,
    kernel: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Any:
    """Returns a 2-D convolution."""
    return _conv(x, kernel, strides, padding, data_format, dilation_rate)


def conv3d(
    x: Any,
    kernel: Any,
    strides: Any = (1, 1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1, 1),
) -> Any:
    """Returns a 3-D convolution."""
    return _conv(x, kernel, strides, padding, data_format, dilation_rate)


def conv2d_transpose(
    x: Any,
    kernel: Any,
    output_shape: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Any:
    """Returns the transpose (gradient) of a 2-D convolution, as a tensor of the shape `output_shape`."""
    first = _format(data_format) == "channels_first"
    if first:
        x, output_shape = jnp.moveaxis(as_tensor(x), 1, -1), [output_shape[axis] for axis in (0, 2, 3, 1)]
    result = _tf.nn.conv2d_transpose(x, kernel, output_shape, strides, padding.upper(), dilations=dilation_rate)
    return jnp.moveaxis(result, -1, 1) if first else result


def pool2d(
    x: Any,
    pool_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Any:
    """Returns the maximum over each window of images; with ``pool_mode="avg"``, the mean."""
    if pool_mode not in {"max", "avg"}:
        raise ValueError(f"Invalid pooling mode: {pool_mode}")
    pool = _ops.max_pool if pool_mode == "max" else _ops.average_pool
    return pool(x, pool_size, strides, padding, _format(data_format))


def pool3d(
    x: Any,
    pool_size: Any,
    strides: Any = (1, 1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Any:
    """Returns the maximum over each window of volumes; with ``pool_mode="avg"``, the mean."""
    return pool2d(x, pool_size, strides, padding, data_format, pool_mode)


def resize_images(
    x: Any, height_factor: int, width_factor: int, data_format: str, interpolation: str = "nearest"
) -> Any:
    """Enlarges images by the integer factors `height_factor` and `width_factor`."""
    start = _PADDED[_format(data_format)]
    size = (x.shape[start] * height_factor, x.shape[start + 1] * width_factor)
    return _ops.image.resize(x, size, interpolation=interpolation, data_format=data_format)


REPLACED: Final[dict[str, Callable[..., Any]]] = {
    function.__name__: function
    for function in (
        cast_to_floatx,
        categorical_crossentropy,
        categorical_focal_crossentropy,
        concatenate,
        conv1d,
        conv2d,
        conv2d_transpose,
        conv3d,
        count_params,
        dot,
        dtype,
        eval,
        foldl,
        foldr,
        gather,
        in_top_k,
        is_sparse,
        map_fn,
        mean,
        ndim,
        ones,
        pool2d,
        pool3d,
        random_normal_variable,
        random_uniform_variable,
        repeat,
        repeat_elements,
        resize_images,
        softmax,
        sparse_categorical_crossentropy,
        spatial_2d_padding,
        spatial_3d_padding,
        std,
        switch,
        temporal_padding,
        to_dense,
        update,
        update_add,
        update_sub,
        var,
        zeros,
    )
} | {"rnn": backend.rnn}
