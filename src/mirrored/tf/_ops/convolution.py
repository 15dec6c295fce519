"""`tf.nn`: convolutions and pooling in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsInt, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mirrored._typing import Array, HostArray, Operand, StaticInts
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import static_ints
from mirrored.tf._table import op, reported, tensors
from mirrored.tf._tensors import as_tensor

_SPATIAL = "DHW"
_Padding: TypeAlias = str | Sequence[Sequence[SupportsInt]] | Array | HostArray


def _layout(rank: int, data_format: str | None) -> str:
    """Returns the axis letters of the operand: "NHWC" or "NCHW", for `rank` spatial dimensions."""
    spatial = _SPATIAL[-rank:]
    last = data_format is None or not data_format.startswith("NC")
    return f"N{spatial}C" if last else f"NC{spatial}"


def _per_dimension(value: StaticInts | None, rank: int, layout: str, *, called: str, argument: str) -> tuple[int, ...]:
    """Returns strides, window sizes or dilations per spatial dimension from 1, `rank` or `rank + 2` numbers."""
    numbers = static_ints(1 if value is None else value, called=called, argument=argument)
    if len(numbers) == rank + 2:
        numbers = tuple(one for one, letter in zip(numbers, layout, strict=True) if letter in _SPATIAL)
    if len(numbers) == 1:
        numbers = numbers * rank
    if len(numbers) != rank:
        raise InvalidArgumentError.of(
            called,
            found=f"`{argument}` is {value!r}",
            rule=f"`{argument}` must be one number, {rank} numbers, or {rank + 2} (one per dimension of the input)",
            remedy=f"pass {rank} numbers, one per spatial dimension",
        )
    return numbers


def _padding(padding: _Padding, layout: str) -> str | list[tuple[int, int]]:
    """Returns SAME, VALID, or padding pairs per spatial dimension (TensorFlow passes pairs for every dimension)."""
    if isinstance(padding, str):
        return padding.upper()
    return [(int(one[0]), int(one[1])) for one, letter in zip(padding, layout, strict=True) if letter in _SPATIAL]


def _same_or_given(
    padding: str | list[tuple[int, int]], sizes: Sequence[int], windows: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    if not isinstance(padding, str):
        return padding
    return list(lax.padtype_to_pads(sizes, windows, strides, padding))


def _convolve(
    called: str,
    rank: int,
    input: Operand,
    filters: Operand,
    strides: StaticInts | None,
    padding: _Padding,
    data_format: str | None,
    dilations: StaticInts | None,
) -> jax.Array:
    value, kernel = tensors(input, filters)
    layout = _layout(rank, data_format)
    steps = _per_dimension(strides, rank, layout, called=called, argument="strides")
    holes = _per_dimension(dilations, rank, layout, called=called, argument="dilations")
    channels = value.shape[layout.index("C")] if value.ndim == rank + 2 else 0
    groups = max(channels // max(kernel.shape[-2], 1), 1)
    batch = value.shape[: value.ndim - rank - 1]
    with reported(called, [value, kernel]):
        out = lax.conv_general_dilated(
            value.reshape(-1, *value.shape[len(batch) :]) if len(batch) > 1 else value,
            kernel,
            steps,
            _padding(padding, layout),
            rhs_dilation=holes,
            dimension_numbers=(layout, f"{_SPATIAL[-rank:]}IO", layout),
            feature_group_count=groups,
        )
    return out.reshape(*batch, *out.shape[1:]) if len(batch) > 1 else out


@op("nn.conv1d")
def conv1d(
    input: Operand,
    filters: Operand,
    stride: StaticInts,
    padding: _Padding,
    data_format: str = "NWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 1-D convolution with filters of shape [width, input channels, output channels]."""
    return _convolve("tf.nn.conv1d", 1, input, filters, stride, padding, data_format, dilations)


@op("nn.conv2d")
def conv2d(
    input: Operand,
    filters: Operand,
    strides: StaticInts,
    padding: _Padding,
    data_format: str = "NHWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 2-D convolution with filters of shape [height, width, input channels, output channels]."""
    return _convolve("tf.nn.conv2d", 2, input, filters, strides, padding, data_format, dilations)


@op("nn.conv3d")
def conv3d(
    input: Operand,
    filters: Operand,
    strides: StaticInts,
    padding: _Padding,
    data_format: str = "NDHWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 3-D convolution with filters [depth, height, width, input channels, output channels]."""
    return _convolve("tf.nn.conv3d", 3, input, filters, strides, padding, data_format, dilations)


@op("nn.convolution")
def convolution(
    input: Operand,
    filters: Operand,
    strides: StaticInts | None = None,
    padding: _Padding = "VALID",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 1-D, 2-D or 3-D convolution, depending on the rank of the filters."""
    return _convolve(
        "tf.nn.convolution", as_tensor(filters).ndim - 2, input, filters, strides, padding, data_format, dilations
    )


@op("nn.atrous_conv2d")
def atrous_conv2d(value: Operand, filters: Operand, rate: int, padding: _Padding) -> jax.Array:
    """Computes a dilated 2-D convolution, whose filter elements are applied `rate` pixels apart."""
    return _convolve("tf.nn.atrous_conv2d", 2, value, filters, 1, padding, None, rate)


@op("nn.depthwise_conv2d")
def depthwise_conv2d(
    input: Operand,
    filter: Operand,
    strides: StaticInts,
    padding: _Padding,
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a depthwise 2-D convolution, which convolves each channel with its own filters.

    Filters are [height, width, in, multiplier].
    """
    kernel = as_tensor(filter)
    height, width, channels, multiplier = kernel.shape
    grouped = kernel.reshape(height, width, 1, channels * multiplier)
    return _convolve("tf.nn.depthwise_conv2d", 2, input, grouped, strides, padding, data_format, dilations)


@op("nn.separable_conv2d")
def separable_conv2d(
    input: Operand,
    depthwise_filter: Operand,
    pointwise_filter: Operand,
    strides: StaticInts,
    padding: _Padding,
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a depthwise 2-D convolution followed by a pointwise one."""
    deep = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return _convolve("tf.nn.separable_conv2d", 2, deep, pointwise_filter, 1, "VALID", data_format, None)


def _transposed(
    called: str,
    rank: int,
    input: Operand,
    filters: Operand,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: _Padding,
    data_format: str | None,
    dilations: StaticInts | None,
) -> jax.Array:
    """Computes a convolution's input gradient: dilates the input by the strides, convolves with the flipped filter."""
    value, kernel = tensors(input, filters)
    layout = _layout(rank, data_format)
    steps = _per_dimension(strides, rank, layout, called=called, argument="strides")
    holes = _per_dimension(dilations, rank, layout, called=called, argument="dilations")
    shape = static_ints(output_shape, called=called, argument="output_shape")
    where = [layout.index(letter) for letter in _SPATIAL[-rank:]]
    sizes = [shape[i] for i in where] if len(shape) == rank + 2 else list(shape)
    windows = [(kernel.shape[i] - 1) * holes[i] + 1 for i in range(rank)]
    forward = _same_or_given(_padding(padding, layout), sizes, windows, steps)
    pads = []
    for i in range(rank):
        low = windows[i] - 1 - forward[i][0]
        spread = (value.shape[where[i]] - 1) * steps[i] + 1
        pads.append((low, sizes[i] - spread - low + windows[i] - 1))
    with reported(called, [value, kernel]):
        return lax.conv_general_dilated(
            value,
            jnp.flip(kernel, tuple(range(rank))),
            (1,) * rank,
            pads,
            lhs_dilation=steps,
            rhs_dilation=holes,
            dimension_numbers=(layout, f"{_SPATIAL[-rank:]}OI", layout),
        )


@op("nn.conv1d_transpose")
def conv1d_transpose(
    input: Operand,
    filters: Operand,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: _Padding = "SAME",
    data_format: str = "NWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes the transpose of a 1-D convolution with filters [width, output channels, input channels]."""
    called = "tf.nn.conv1d_transpose"
    return _transposed(called, 1, input, filters, output_shape, strides, padding, data_format, dilations)


@op("nn.conv2d_transpose")
def conv2d_transpose(
    input: Operand,
    filters: Operand,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: _Padding = "SAME",
    data_format: str = "NHWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes the transpose of a 2-D convolution with filters [height, width, output channels, input channels]."""
    called = "tf.nn.conv2d_transpose"
    return _transposed(called, 2, input, filters, output_shape, strides, padding, data_format, dilations)


@op("nn.conv3d_transpose")
def conv3d_transpose(
    input: Operand,
    filters: Operand,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: _Padding = "SAME",
    data_format: str = "NDHWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes the transpose of a 3-D convolution.

    Filters are [depth, height, width, out, in].
    """
    called = "tf.nn.conv3d_transpose"
    return _transposed(called, 3, input, filters, output_shape, strides, padding, data_format, dilations)


@op("nn.conv_transpose")
def conv_transpose(
    input: Operand,
    filters: Operand,
    output_shape: StaticInts,
    strides: StaticInts,
    padding: _Padding = "SAME",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes the transpose of a 1-D, 2-D or 3-D convolution, depending on the rank of the filters."""
    rank = as_tensor(filters).ndim - 2
    called = "tf.nn.conv_transpose"
    return _transposed(called, rank, input, filters, output_shape, strides, padding, data_format, dilations)


def _pool(
    called: str,
    rank: int,
    kind: str,
    input: Operand,
    ksize: StaticInts,
    strides: StaticInts | None,
    padding: _Padding,
    data_format: str | None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    value = as_tensor(input)
    layout = _layout(rank, data_format)
    window = _expand(_per_dimension(ksize, rank, layout, called=called, argument="ksize"), layout)
    steps = _expand(_per_dimension(strides, rank, layout, called=called, argument="strides"), layout)
    holes = _expand(_per_dimension(dilations, rank, layout, called=called, argument="dilations"), layout)
    reach = [(size - 1) * hole + 1 for size, hole in zip(window, holes, strict=True)]
    pads = _padding(padding, layout)
    if isinstance(pads, str):
        pads = list(lax.padtype_to_pads(value.shape, reach, steps, pads))
    else:
        spatial = iter(pads)
        pads = [next(spatial) if letter in _SPATIAL else (0, 0) for letter in layout]
    with reported(called, [value]):
        if kind == "MAX":
            low = -np.inf if jnp.issubdtype(value.dtype, jnp.floating) else int(jnp.iinfo(value.dtype).min)  # type: ignore[no-untyped-call]
            lowest = np.asarray(low, value.dtype)[()]
            return lax.reduce_window(value, lowest, lax.max, window, steps, pads, window_dilation=holes)  # type: ignore[no-any-return]
        zero = np.asarray(0, value.dtype)[()]
        total = lax.reduce_window(value, zero, lax.add, window, steps, pads, window_dilation=holes)
        if all(pair == (0, 0) for pair in pads):
            return total / np.prod(window).astype(value.dtype)  # type: ignore[no-any-return]
        ones = np.ones(
            [1 if letter not in _SPATIAL else value.shape[i] for i, letter in enumerate(layout)], value.dtype
        )
        return total / lax.reduce_window(ones, zero, lax.add, window, steps, pads, window_dilation=holes)  # type: ignore[no-any-return]


def _expand(spatial: tuple[int, ...], layout: str) -> tuple[int, ...]:
    numbers = iter(spatial)
    return tuple(next(numbers) if letter in _SPATIAL else 1 for letter in layout)


def _pooling(name: str, rank: int, kind: str, default_format: str) -> None:
    called = f"tf.nn.{name}"

    def pool(
        input: Operand, ksize: StaticInts, strides: StaticInts, padding: _Padding, data_format: str = default_format
    ) -> jax.Array:
        return _pool(called, rank, kind, input, ksize, strides, padding, data_format)

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"Performs {kind} pooling over {rank} dimension(s); averages exclude padding."
    op(f"nn.{name}")(pool)


for _rank, _format in {1: "NWC", 2: "NHWC", 3: "NDHWC"}.items():
    _pooling(f"max_pool{_rank}d", _rank, "MAX", _format)
    _pooling(f"avg_pool{_rank}d", _rank, "AVG", _format)


@op("nn.max_pool")
def max_pool(
    input: Operand, ksize: StaticInts, strides: StaticInts, padding: _Padding, data_format: str | None = None
) -> jax.Array:
    """Computes the maximum of each window over the spatial dimensions (max pooling)."""
    rank = as_tensor(input).ndim - 2
    return _pool("tf.nn.max_pool", rank, "MAX", input, ksize, strides, padding, data_format)


@op("nn.avg_pool")
def avg_pool(
    input: Operand, ksize: StaticInts, strides: StaticInts, padding: _Padding, data_format: str | None = None
) -> jax.Array:
    """Computes the average of each window over the spatial dimensions, excluding padding (average pooling)."""
    rank = as_tensor(input).ndim - 2
    return _pool("tf.nn.avg_pool", rank, "AVG", input, ksize, strides, padding, data_format)


@op("nn.pool")
def pool(
    input: Operand,
    window_shape: StaticInts,
    pooling_type: str,
    strides: StaticInts | None = None,
    padding: _Padding = "VALID",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes the maximum or average of each window, which may be dilated, over the spatial dimensions."""
    if pooling_type not in ("MAX", "AVG"):
        raise ValueError(f"Value for argument `pooling_type` is {pooling_type!r}; it should be 'MAX' or 'AVG'")
    rank = as_tensor(input).ndim - 2
    return _pool("tf.nn.pool", rank, pooling_type, input, window_shape, strides, padding, data_format, dilations)
