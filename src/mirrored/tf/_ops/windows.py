"""`tf.nn`: max pooling with indices, morphological dilation and erosion, and space-to-batch operations."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, Operand, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.convolution import conv2d_transpose, lowest, stacked_windows
from mirrored.tf._ops.indexing import require_indices
from mirrored.tf._static import static_ints
from mirrored.tf._table import Common, Ints, op, register, rows
from mirrored.tf._tensors import as_tensor


def _expanded_to_nhwc(value: StaticInts, called: str, argument: str) -> tuple[int, int, int, int]:
    """Expands 1, 2 or 4 window sizes, strides or dilations to ``(1, height, width, 1)``."""
    numbers = static_ints(value, called=called, argument=argument)
    if len(numbers) == 4 and (numbers[0], numbers[3]) != (1, 1):
        raise InvalidArgumentError.of(
            called,
            found=f"`{argument}` is {list(numbers)}",
            rule="the first and the last number, those of batch and channels, must be 1",
            remedy="pass 1 there",
        )
    height, width = numbers[1:3] if len(numbers) == 4 else numbers * (2 // len(numbers))
    return 1, height, width, 1


def _check_format(called: str, data_format: str) -> None:
    if data_format != "NHWC":
        raise InvalidArgumentError.of(
            called,
            found=f"data_format={data_format!r} was passed",
            rule='data_format must be "NHWC": channels come last',
            remedy="transpose the images to NHWC, and pass data_format='NHWC'",
        )


@op("nn.max_pool_with_argmax")
def max_pool_with_argmax(
    input: jax.Array,
    ksize: StaticInts,
    strides: StaticInts,
    padding: str,
    data_format: str = "NHWC",
    output_dtype: DTypeLike = "int64",
    include_batch_in_index: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Performs max pooling; returns the maxima and their indices in the flattened image.

    Of several equal maxima, the index is that of the first one.

    Args:
        input: [batch, height, width, channels].
        ksize: The window size: one number, two, or four.
        strides: The strides, in the same form.
        padding: "SAME" or "VALID".
        data_format: "NHWC".
        output_dtype: The dtype of the indices, as far as JAX has it (int32 without x64).
        include_batch_in_index: Whether the index includes the batch dimension.

    Raises:
        InvalidArgumentError: `data_format` is not "NHWC".
    """
    called = "tf.nn.max_pool_with_argmax"
    _check_format(called, data_format)
    window, steps = _expanded_to_nhwc(ksize, called, "ksize"), _expanded_to_nhwc(strides, called, "strides")
    pads = jax.lax.padtype_to_pads(input.shape, window, steps, padding.upper())
    places = np.arange(np.prod(input.shape[1:])).reshape((1, *input.shape[1:]))
    if include_batch_in_index:
        places = places + np.arange(input.shape[0]).reshape((-1, 1, 1, 1)) * places.size
    padded = jnp.pad(input, pads, constant_values=lowest(input.dtype))
    numbered = jnp.asarray(np.pad(places, pads), array_dtype(output_dtype))
    values, indices = (stacked_windows(one, window, steps, (1, 1, 1, 1)) for one in (padded, numbered))
    is_best = values
    if jnp.issubdtype(values.dtype, jnp.integer):  # the padding can be equal to a pixel, and precede it
        inside = stacked_windows(jnp.pad(jnp.ones(input.shape, jnp.int32), pads), window, steps, (1, 1, 1, 1))
        is_best = (values == jnp.max(values, axis=0)) & (inside > 0)
    best = jnp.argmax(is_best, axis=0)[None]
    chosen = jnp.take_along_axis(jnp.broadcast_to(indices, values.shape), best, axis=0)[0]
    return jnp.take_along_axis(values, best, axis=0)[0], chosen


@op("nn.dilation2d")
def dilation2d(
    input: Common, filters: Common, strides: StaticInts, padding: str, data_format: str, dilations: StaticInts
) -> jax.Array:
    """Computes the grayscale dilation of images: the maximum of pixel plus filter value in each window.

    Args:
        input: [batch, height, width, depth].
        filters: [height, width, depth].
        strides: Four numbers.
        padding: "SAME" or "VALID".
        data_format: "NHWC".
        dilations: Four numbers.

    Raises:
        InvalidArgumentError: `data_format` is not "NHWC".
    """
    called = "tf.nn.dilation2d"
    _check_format(called, data_format)
    steps, holes = _expanded_to_nhwc(strides, called, "strides"), _expanded_to_nhwc(dilations, called, "dilations")
    window = (1, filters.shape[0], filters.shape[1], 1)
    reach = [(size - 1) * hole + 1 for size, hole in zip(window, holes, strict=True)]
    pads = jax.lax.padtype_to_pads(input.shape, reach, steps, padding.upper())
    weights = filters.reshape((-1, 1, 1, 1, filters.shape[2]))
    if jnp.issubdtype(input.dtype, jnp.integer):  # a sum with the lowest integer could wrap around
        inside = stacked_windows(jnp.pad(jnp.ones(input.shape, jnp.int32), pads), window, steps, holes)
        sums = stacked_windows(jnp.pad(input, pads), window, steps, holes) + weights
        sums = jnp.where(inside > 0, sums, lowest(sums.dtype))
    else:
        sums = stacked_windows(jnp.pad(input, pads, constant_values=-jnp.inf), window, steps, holes) + weights
    best = jnp.argmax(sums, axis=0)[None]  # the gradient goes to the first of equal maxima
    return jnp.take_along_axis(sums, best, axis=0)[0]


@op("nn.erosion2d")
def erosion2d(
    value: Common, filters: Common, strides: StaticInts, padding: str, data_format: str, dilations: StaticInts
) -> jax.Array:
    """Computes the grayscale erosion of images: the minimum of pixel minus filter value in each window.

    Arguments and errors are those of `dilation2d`.
    """
    return -dilation2d(-value, filters[::-1, ::-1], strides, padding, data_format, dilations)


@op("nn.atrous_conv2d_transpose")
def atrous_conv2d_transpose(
    value: jax.Array, filters: jax.Array, output_shape: Ints, rate: StaticInts, padding: str
) -> jax.Array:
    """Computes the transpose of the dilated convolution `atrous_conv2d`.

    Filters are [height, width, out, in].
    """
    return conv2d_transpose(value, filters, output_shape, 1, padding, dilations=rate)


@op("space_to_batch_nd")
def space_to_batch_nd(input: jax.Array, block_shape: Ints, paddings: Operand) -> jax.Array:
    """Divides the spatial dimensions into blocks, and moves the positions within a block to the batch dimension.

    Args:
        input: [batch, ...].
        block_shape: A block size for each of the first dimensions after the batch.
        paddings: Pairs of zeros before and after each of them, which make it a multiple of its block size.
    """
    count = len(block_shape)
    pairs = np.asarray(paddings).tolist()
    padded = jnp.pad(input, [(0, 0), *pairs, *[(0, 0)] * (input.ndim - 1 - count)])
    batch, spatial, others = padded.shape[0], padded.shape[1 : 1 + count], padded.shape[1 + count :]
    counts = [size // block for size, block in zip(spatial, block_shape, strict=True)]
    split = padded.reshape((batch, *itertools.chain(*zip(counts, block_shape, strict=True)), *others))
    moved = jnp.moveaxis(split, range(2, 2 + 2 * count, 2), range(count))
    return moved.reshape((-1, *counts, *others))


register(["space_to_batch", "nn.space_to_batch"], space_to_batch_nd)


@op("batch_to_space")
def batch_to_space(input: jax.Array, block_shape: Ints, crops: Operand) -> jax.Array:
    """Inverts `space_to_batch`, then crops both ends of each spatial dimension by the numbers in `crops`."""
    count = len(block_shape)
    spatial, others = input.shape[1 : 1 + count], input.shape[1 + count :]
    split = input.reshape((*block_shape, -1, *spatial, *others))
    sizes = [size * block for size, block in zip(spatial, block_shape, strict=True)]
    whole = jnp.moveaxis(split, range(count), range(2, 2 + 2 * count, 2)).reshape((-1, *sizes, *others))
    pairs = np.asarray(crops).tolist()
    return whole[(slice(None), *(slice(low, size - high) for size, (low, high) in zip(sizes, pairs, strict=True)))]


@op("required_space_to_batch_paddings")
def required_space_to_batch_paddings(
    input_shape: Ints, block_shape: Ints, base_paddings: Operand | None = None
) -> tuple[jax.Array, jax.Array]:
    """Computes the paddings that make each size a multiple of its block size, and the crops that undo them.

    Paddings and crops are i32[dimensions, 2]. The crops do not undo `base_paddings`.
    """
    sizes, blocks = np.array(input_shape), np.array(block_shape)
    base = np.zeros((len(sizes), 2), int) if base_paddings is None else np.asarray(base_paddings)
    extra = -(sizes + base.sum(axis=1)) % blocks
    paddings = np.stack([base[:, 0], base[:, 1] + extra], axis=1)
    return as_tensor(paddings.astype(np.int32)), as_tensor(np.stack([0 * extra, extra], axis=1).astype(np.int32))


@op("unravel_index")
def unravel_index(indices: jax.Array, dims: Ints) -> jax.Array:
    """Converts flat indices to one index per dimension of a tensor.

    The result is [dimensions, ...].

    Raises:
        InvalidArgumentError: An index is out of range, in eager code on a CPU.
    """
    require_indices("tf.unravel_index", indices, int(np.prod(dims)))
    return jnp.stack(jnp.unravel_index(indices, dims))


_APPROXIMATE = (
    "operand k:Int reduction_dimension=-1 recall_target=0.95 reduction_input_size_override=-1 aggregate_to_topk=True"
)
rows(
    {
        "math.approx_max_k nn.approx_max_k": (_APPROXIMATE, jax.lax.approx_max_k),
        "math.approx_min_k nn.approx_min_k": (_APPROXIMATE, jax.lax.approx_min_k),
    }
)
