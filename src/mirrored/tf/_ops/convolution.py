"""`tf.nn`: convolutions and pooling in one, two and three dimensions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, SupportsInt, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mirrored._typing import Array, HostArray, StaticInts
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import static_ints
from mirrored.tf._table import Common, Ints, op

_SPATIAL = "DHW"
_Padding: TypeAlias = str | Sequence[Sequence[SupportsInt]] | Array | HostArray


def _layout(called: str, rank: int, data_format: str | None) -> str:
    """Returns the dimension letters of a convolution's input with `rank` spatial dimensions, such as "NHWC"."""
    spatial = _SPATIAL[-rank:]
    return f"NC{spatial}" if channels_first(called, data_format) else f"N{spatial}C"


def channels_first(called: str, data_format: str | None) -> bool:
    """Returns whether a data format has its channels before the spatial dimensions, as "NCHW"; False for None.

    Raises:
        InvalidArgumentError: It neither begins with "NC" nor has the form "N...C".
    """
    if data_format is None or data_format.startswith("NC"):
        return data_format is not None
    if data_format.startswith("N") and data_format.endswith("C"):
        return False
    raise InvalidArgumentError.of(
        called,
        found=f"data_format={data_format!r} was passed",
        rule='data_format must be "N...C" (channels last), or "NC..." (channels first), with D, H and W as needed',
        remedy='pass "NHWC" or "NCHW" for images; Keras\' names are channels_last and channels_first',
    )


def _per_dimension(value: StaticInts | None, rank: int, layout: str, *, called: str, argument: str) -> tuple[int, ...]:
    """Expands 1, `rank` or `rank + 2` numbers (strides, window sizes or dilations) to one per spatial dimension."""
    numbers = static_ints(1 if value is None else value, called=called, argument=argument)
    if len(numbers) == rank + 2:
        _check_ones(numbers, layout, "NC", called=called, argument=argument)
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


def _check_ones(numbers: Sequence[int], layout: str, letters: str, *, called: str, argument: str) -> None:
    """Raises an error unless strides, window sizes or dilations are 1 in the dimensions `letters`, such as "N"."""
    if all(one == 1 for one, letter in zip(numbers, layout, strict=True) if letter in letters):
        return
    dimensions = " and ".join({"N": "batch", "C": "channels"}[one] for one in letters)
    raise InvalidArgumentError.of(
        called,
        found=f"`{argument}` is {list(numbers)} for the dimensions {', '.join(layout)}",
        rule=f"the numbers of these dimensions must be 1: {dimensions}",
        remedy="pass 1 there; tf.nn.max_pool alone also takes windows of several channels",
    )


def _padding(padding: _Padding, layout: str) -> str | list[tuple[int, int]]:
    """Returns "SAME", "VALID", or one pair of paddings per spatial dimension (without batch and channels)."""
    if isinstance(padding, str):
        return padding.upper()
    return [(int(one[0]), int(one[1])) for one, letter in zip(padding, layout, strict=True) if letter in _SPATIAL]


def _convolve(
    called: str,
    rank: int,
    value: jax.Array,
    kernel: jax.Array,
    strides: StaticInts | None,
    padding: _Padding,
    data_format: str | None,
    dilations: StaticInts | None,
) -> jax.Array:
    layout = _layout(called, rank, data_format)
    channels = value.shape[layout.index("C")] if value.ndim == rank + 2 else 0
    batch = value.shape[: value.ndim - rank - 1]
    out = lax.conv_general_dilated(
        value.reshape(-1, *value.shape[len(batch) :]) if len(batch) > 1 else value,
        kernel,
        _per_dimension(strides, rank, layout, called=called, argument="strides"),
        _padding(padding, layout),
        rhs_dilation=_per_dimension(dilations, rank, layout, called=called, argument="dilations"),
        dimension_numbers=(layout, f"{_SPATIAL[-rank:]}IO", layout),
        feature_group_count=max(channels // max(kernel.shape[-2], 1), 1),
    )
    return out.reshape(*batch, *out.shape[1:]) if len(batch) > 1 else out


def _transposed(
    called: str,
    value: jax.Array,
    kernel: jax.Array,
    output_shape: tuple[int, ...],
    strides: StaticInts,
    padding: _Padding,
    data_format: str | None,
    dilations: StaticInts | None,
) -> jax.Array:
    rank = kernel.ndim - 2
    layout = _layout(called, rank, data_format)
    start = layout.index(_SPATIAL[-rank])
    spatial = iter(output_shape if len(output_shape) == rank else output_shape[start : start + rank])
    others = {"N": value.shape[0], "C": kernel.shape[-2]}
    shape = tuple(others[letter] if letter in others else next(spatial) for letter in layout)
    if len(output_shape) == rank + 2 and tuple(output_shape) != shape:
        raise InvalidArgumentError.of(
            called,
            found=f"`output_shape` is {tuple(output_shape)}; with the images and filters given it is {shape}",
            rule="its batch size must be that of the input, its channels the output channels of the filters",
            remedy=f"pass output_shape={shape}, or other filters",
        )
    pads = padding if isinstance(padding, str) else tuple((int(low), int(high)) for low, high in padding)
    steps = _per_dimension(strides, rank, layout, called=called, argument="strides")
    holes = _per_dimension(dilations, rank, layout, called=called, argument="dilations")
    return _transpose(called, rank, value, kernel, shape, (steps, pads, data_format, holes))  # type: ignore[no-any-return]


@functools.partial(jax.jit, static_argnums=(0, 1, 4, 5))
def _transpose(
    called: str, rank: int, value: jax.Array, kernel: jax.Array, shape: tuple[int, ...], options: tuple[Any, ...]
) -> jax.Array:
    def forward(one: jax.Array) -> jax.Array:
        return _convolve(called, rank, one, kernel, *options)

    (found,) = jax.linear_transpose(forward, jax.ShapeDtypeStruct(shape, value.dtype))(value)
    return found  # type: ignore[no-any-return]


@op("nn.conv1d")
def conv1d(
    input: Common,
    filters: Common,
    stride: StaticInts,
    padding: _Padding,
    data_format: str = "NWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 1-D convolution with filters of shape [width, input channels, output channels]."""
    return _convolve("tf.nn.conv1d", 1, input, filters, stride, padding, data_format, dilations)


@op("nn.conv2d")
def conv2d(
    input: Common,
    filters: Common,
    strides: StaticInts,
    padding: _Padding,
    data_format: str = "NHWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 2-D convolution with filters of shape [height, width, input channels, output channels]."""
    return _convolve("tf.nn.conv2d", 2, input, filters, strides, padding, data_format, dilations)


@op("nn.conv3d")
def conv3d(
    input: Common,
    filters: Common,
    strides: StaticInts,
    padding: _Padding,
    data_format: str = "NDHWC",
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 3-D convolution with filters of shape [depth, height, width, input channels, output channels]."""
    return _convolve("tf.nn.conv3d", 3, input, filters, strides, padding, data_format, dilations)


@op("nn.convolution")
def convolution(
    input: Common,
    filters: Common,
    strides: StaticInts | None = None,
    padding: _Padding = "VALID",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a 1-D, 2-D or 3-D convolution, depending on the rank of the filters."""
    return _convolve("tf.nn.convolution", filters.ndim - 2, input, filters, strides, padding, data_format, dilations)


@op("nn.atrous_conv2d")
def atrous_conv2d(value: Common, filters: Common, rate: int, padding: _Padding) -> jax.Array:
    """Computes a dilated 2-D convolution, whose filter elements are applied `rate` pixels apart."""
    return _convolve("tf.nn.atrous_conv2d", 2, value, filters, 1, padding, None, rate)


@op("nn.depthwise_conv2d")
def depthwise_conv2d(
    input: Common,
    filter: Common,
    strides: StaticInts,
    padding: _Padding,
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a depthwise 2-D convolution, which convolves each channel with its own filters.

    Filters are [height, width, in, multiplier].
    """
    called = "tf.nn.depthwise_conv2d"
    channels = input.shape[_layout(called, 2, data_format).index("C") - 4]
    if filter.ndim != 4 or filter.shape[2] != channels:
        raise InvalidArgumentError.of(
            called,
            found=f"`input` has {channels} channels, and `filter` the shape {filter.shape}",
            rule="`filter` must have the shape [height, width, channels of the input, multiplier]",
            remedy="pass filters for all channels of the input",
        )
    grouped = filter.reshape(*filter.shape[:2], 1, -1)
    return _convolve(called, 2, input, grouped, strides, padding, data_format, dilations)


@op("nn.separable_conv2d")
def separable_conv2d(
    input: Common,
    depthwise_filter: Common,
    pointwise_filter: Common,
    strides: StaticInts,
    padding: _Padding,
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes a depthwise 2-D convolution followed by a pointwise convolution."""
    deep = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return _convolve("tf.nn.separable_conv2d", 2, deep, pointwise_filter, 1, "VALID", data_format, None)


def _transposing(name: str, rank: int | None, default_format: str | None) -> Callable[..., jax.Array]:
    """Defines a transposed convolution with the given name for `rank` spatial dimensions; None means 1, 2 or 3."""
    called = f"tf.nn.{name}"

    def transpose(
        input: Common,
        filters: Common,
        output_shape: Ints,
        strides: StaticInts,
        padding: _Padding = "SAME",
        data_format: str | None = default_format,
        dilations: StaticInts | None = None,
    ) -> jax.Array:
        _check_rank(called, "filters", filters, rank)
        return _transposed(called, input, filters, output_shape, strides, padding, data_format, dilations)

    transpose.__name__ = transpose.__qualname__ = name
    dimensions = f"{rank}-D" if rank else "1-D, 2-D or 3-D"
    transpose.__doc__ = f"Computes the transpose of a {dimensions} convolution; filters are [..., out, in]."
    return op(f"nn.{name}")(transpose)


def _check_rank(called: str, argument: str, value: jax.Array, rank: int | None) -> None:
    if rank is not None and value.ndim != rank + 2:
        raise InvalidArgumentError.of(
            called,
            found=f"`{argument}` has the shape {value.shape}",
            rule=f"`{argument}` must have {rank + 2} dimensions, of which {rank} are spatial",
            remedy="reshape it with tf.reshape",
        )


conv1d_transpose = _transposing("conv1d_transpose", 1, "NWC")
conv2d_transpose = _transposing("conv2d_transpose", 2, "NHWC")
conv3d_transpose = _transposing("conv3d_transpose", 3, "NDHWC")
conv_transpose = _transposing("conv_transpose", None, None)


def _pool(
    called: str,
    kind: str,
    value: jax.Array,
    ksize: StaticInts,
    strides: StaticInts | None,
    padding: _Padding,
    data_format: str | None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    layout = _layout(called, value.ndim - 2, data_format)

    def per_axis(numbers: StaticInts | None, argument: str) -> tuple[int, ...]:
        given = static_ints(1 if numbers is None else numbers, called=called, argument=argument)
        if kind == "MAX" and len(given) == value.ndim:  # windows may span channels, too
            _check_ones(given, layout, "N", called=called, argument=argument)
            return given
        spatial = iter(_per_dimension(numbers, value.ndim - 2, layout, called=called, argument=argument))
        return tuple(next(spatial) if letter in _SPATIAL else 1 for letter in layout)

    windows = per_axis(ksize, "ksize"), per_axis(strides, "strides")
    pads: Any = _padding(padding, layout)
    if not isinstance(pads, str):
        spatial = iter(pads)
        pads = [next(spatial) if letter in _SPATIAL else (0, 0) for letter in layout]
    holes = per_axis(dilations, "dilations")
    if isinstance(pads, str) and pads != "VALID" and max(holes) > 1:
        raise InvalidArgumentError.of(
            called,
            found=f"padding={padding!r} was passed with dilations={dilations!r}",
            rule="windows with dilations can only be pooled with padding 'VALID', or with explicit paddings",
            remedy="pad the input with tf.pad, and pass padding='VALID'",
        )
    if kind == "MAX" and max(holes) > 1:
        return _dilated_max(value, windows, [(0, 0)] * value.ndim if pads == "VALID" else pads, holes)
    if kind == "MAX":
        return lax.reduce_window(value, lowest(value.dtype), lax.max, *windows, pads, window_dilation=holes)  # type: ignore[no-any-return]

    def total(summed: Any) -> jax.Array:
        zero = np.zeros((), value.dtype)[()]
        return lax.reduce_window(summed, zero, lax.add, *windows, pads, window_dilation=holes)  # type: ignore[no-any-return]

    if pads == "VALID":
        return total(value) / np.prod(windows[0]).astype(value.dtype)  # type: ignore[no-any-return]
    sizes = [size if letter in _SPATIAL else 1 for letter, size in zip(layout, value.shape, strict=True)]
    return total(value) / total(np.ones(sizes, value.dtype))


def _dilated_max(
    value: jax.Array, windows: tuple[tuple[int, ...], ...], pads: Sequence[tuple[int, int]], holes: tuple[int, ...]
) -> jax.Array:
    """Computes max pooling with dilated windows, for which JAX's `reduce_window` has no gradient."""
    padded = lax.pad(value, lowest(value.dtype), [(*pair, 0) for pair in pads])
    stacked = stacked_windows(padded, windows[0], windows[1], holes)
    best = jnp.argmax(stacked, axis=0)[None]  # the gradient goes to the first of equal maxima
    return jnp.take_along_axis(stacked, best, axis=0)[0]


def stacked_windows(padded: jax.Array, sizes: Sequence[int], steps: Sequence[int], holes: Sequence[int]) -> jax.Array:
    """Extracts sliding windows: entry i along a new first axis contains the i-th element of every window."""
    reach = [(size - 1) * hole + 1 for size, hole in zip(sizes, holes, strict=True)]
    counts = [max(0, (n - far) // step + 1) for n, far, step in zip(padded.shape, reach, steps, strict=True)]
    slices = [
        padded[tuple(slice(p * h, p * h + (c - 1) * s + 1, s) if c else slice(0) for p, h, c, s in axes)]
        for places in itertools.product(*map(range, sizes))
        for axes in [list(zip(places, holes, counts, steps, strict=True))]
    ]
    return jnp.stack(slices)


def lowest(dtype: Any) -> Any:
    """Returns the lowest value of a dtype, as a scalar of that dtype."""
    low = -np.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min  # type: ignore[no-untyped-call]
    return np.asarray(low, dtype)[()]


def _pooling(name: str, kind: str, rank: int | None, default_format: str | None) -> Callable[..., jax.Array]:
    """Defines a pooling operation with the given name for `rank` spatial dimensions; None means 1, 2 or 3."""
    called = f"tf.nn.{name}"

    def pool(
        input: jax.Array,
        ksize: StaticInts,
        strides: StaticInts,
        padding: _Padding,
        data_format: str | None = default_format,
    ) -> jax.Array:
        _check_rank(called, "input", input, rank)
        return _pool(called, kind, input, ksize, strides, padding, data_format)

    pool.__name__ = pool.__qualname__ = name
    what = {"MAX": "maximum", "AVG": "average, excluding padding,"}[kind]
    pool.__doc__ = f"Computes the {what} of each window over the spatial dimensions ({kind} pooling)."
    return op(f"nn.{name}")(pool)


for _rank, _format in {1: "NWC", 2: "NHWC", 3: "NDHWC"}.items():
    _pooling(f"max_pool{_rank}d", "MAX", _rank, _format)
    _pooling(f"avg_pool{_rank}d", "AVG", _rank, _format)
max_pool = _pooling("max_pool", "MAX", None, None)
avg_pool = _pooling("avg_pool", "AVG", None, None)


@op("nn.pool")
def pool(
    input: jax.Array,
    window_shape: StaticInts,
    pooling_type: str,
    strides: StaticInts | None = None,
    padding: _Padding = "VALID",
    data_format: str | None = None,
    dilations: StaticInts | None = None,
) -> jax.Array:
    """Computes the maximum or average over sliding windows in the spatial dimensions; the windows may be dilated."""
    if pooling_type not in ("MAX", "AVG"):
        raise InvalidArgumentError.of(
            "tf.nn.pool",
            found=f"`pooling_type` is {pooling_type!r}",
            rule="`pooling_type` must be 'MAX' or 'AVG'",
            remedy="pass one of them",
        )
    return _pool("tf.nn.pool", pooling_type, input, window_shape, strides, padding, data_format, dilations)
