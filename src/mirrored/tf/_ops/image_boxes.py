"""`tf.image`: functions for bounding boxes, given as [top, left, bottom, right]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.traces import Tracer
from mirrored._typing import Operand
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.indexing import require_indices
from mirrored.tf._table import Int, Ints, op
from mirrored.tf._tensors import as_tensor
from mirrored.values.sparse_rows import without_wrapping

_COLOURS = (
    (1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1),
    (0.5, 0.5, 0, 1), (0.5, 0, 0, 1), (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1),
)  # fmt: skip
_Chosen: TypeAlias = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@op("image.crop_and_resize")
def crop_and_resize(
    image: jax.Array,
    boxes: jax.Array,
    box_indices: jax.Array,
    crop_size: Ints,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> jax.Array:
    """Crops boxes from images, and resizes all crops to the given size.

    The result is f32[boxes, crop height, crop width, channels]. In compiled code and on GPUs, the box of an image that
    does not exist contains zeros.

    Args:
        image: [batch, height, width, channels].
        boxes: f32[boxes, 4]; 0 is the first row or column, 1 the last. A box may be partly outside, or flipped.
        box_indices: i32[boxes]: the image of each box.
        crop_size: (height, width).
        method: "bilinear" or "nearest".
        extrapolation_value: The value outside the image.

    Raises:
        InvalidArgumentError: The method is not supported, or an image does not exist, in eager code on a CPU.
    """
    if method not in ("bilinear", "nearest"):
        raise InvalidArgumentError.of(
            "tf.image.crop_and_resize",
            found=f"`method` is {method!r}",
            rule='`method` must be "bilinear" or "nearest"',
            remedy="pass one of them",
        )
    require_indices("tf.image.crop_and_resize", box_indices, image.shape[0], "box_indices")
    value, (height, width) = image.astype(jnp.float32), crop_size

    def one(which: jax.Array, box: jax.Array) -> jax.Array:
        rows = _places(box[0], box[2], value.shape[1], height)
        columns = _places(box[1], box[3], value.shape[2], width)
        inside = _within(rows, value.shape[1])[:, None] & _within(columns, value.shape[2])[None]
        source = value.at[without_wrapping(which, value.shape[0])].get(mode="fill", fill_value=0)
        found = _at(source, rows, columns, method)
        return jnp.where(inside[..., None], found, jnp.float32(extrapolation_value))

    return jax.vmap(one)(box_indices, boxes.astype(jnp.float32))


def _places(start: jax.Array, end: jax.Array, size: int, count: int) -> jax.Array:
    if count == 1:
        return jnp.full(1, 0.5 * (start + end) * (size - 1))
    return start * (size - 1) + jnp.arange(count) * ((end - start) * (size - 1) / (count - 1))


def _within(places: jax.Array, size: int) -> jax.Array:
    return (places >= 0) & (places <= size - 1)


def _at(image: jax.Array, rows: jax.Array, columns: jax.Array, method: str) -> jax.Array:
    def pixels(down: jax.Array, across: jax.Array) -> jax.Array:
        down = jnp.clip(down.astype(jnp.int32), 0, image.shape[0] - 1)
        across = jnp.clip(across.astype(jnp.int32), 0, image.shape[1] - 1)
        return image[down[:, None], across[None]]

    if method == "nearest":
        return pixels(_rounded(rows), _rounded(columns))
    top, left = jnp.floor(rows), jnp.floor(columns)
    below, beside = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = pixels(top, left) * (1 - beside) + pixels(top, jnp.ceil(columns)) * beside
    lower = pixels(jnp.ceil(rows), left) * (1 - beside) + pixels(jnp.ceil(rows), jnp.ceil(columns)) * beside
    return upper * (1 - below) + lower * below


def _rounded(places: jax.Array) -> jax.Array:
    """Rounds to the nearest integer, and halves away from zero, like C's `roundf`."""
    return jnp.sign(places) * jnp.floor(jnp.abs(places) + 0.5)


@op("image.draw_bounding_boxes")
def draw_bounding_boxes(images: jax.Array, boxes: jax.Array, colors: jax.Array | None = None) -> jax.Array:
    """Draws the outlines of bounding boxes on images.

    Args:
        images: Floats [batch, height, width, depth] in [0, 1].
        boxes: f32[batch, boxes, 4], from 0 to 1 along height and width.
        colors: f32[colors, depth], used in turn; None for ten of TensorFlow's colors.
    """
    drawn = images
    height, width, depth = drawn.shape[1:]
    palette = jnp.asarray(_COLOURS if colors is None else colors, drawn.dtype)
    palette = palette.at[:, 0].set(1) if depth == 1 else palette
    scale = np.array([height - 1, width - 1, height - 1, width - 1], np.float32)
    places = (boxes * scale).astype(jnp.int32)
    for index in range(places.shape[1]):
        edge = jax.vmap(lambda box: _edge(box, height, width))(places[:, index])
        drawn = jnp.where(edge[..., None], palette[index % palette.shape[0], :depth], drawn)
    return drawn


def _edge(box: jax.Array, height: int, width: int) -> jax.Array:
    """Returns a mask of a box's edge pixels, bool[height, width]; all False if the box is inverted."""
    top, left, bottom, right = box
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)[None]
    inside = (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
    on = (rows == top) | (rows == bottom) | (columns == left) | (columns == right)
    return inside & on & (top <= bottom) & (left <= right)  # type: ignore[no-any-return]


@op("image.non_max_suppression_overlaps")
def non_max_suppression_overlaps(
    overlaps: jax.Array,
    scores: jax.Array,
    max_output_size: Int,
    overlap_threshold: Operand = 0.5,
    score_threshold: Operand = -np.inf,
) -> jax.Array:
    """Returns the indices that `non_max_suppression` would return, given a matrix [boxes, boxes] of overlaps."""
    chosen, _, count = _suppressed(
        lambda index: overlaps[:, index], scores, max_output_size, overlap_threshold, score_threshold
    )
    return chosen[: _known(count, "non_max_suppression_overlaps")]


@op("image.non_max_suppression")
def non_max_suppression(
    boxes: jax.Array,
    scores: jax.Array,
    max_output_size: Int,
    iou_threshold: Operand = 0.5,
    score_threshold: Operand = -np.inf,
) -> jax.Array:
    """Returns the indices of the best-scored boxes, without boxes that overlap too much with a better-scored box.

    Args:
        boxes: f32[boxes, 4].
        scores: f32[boxes].
        max_output_size: Maximum number of boxes.
        iou_threshold: Omits boxes whose intersection over union with a better box exceeds this.
        score_threshold: Omits boxes whose score is at most this.

    Returns:
        i32[selected].

    Raises:
        InvalidArgumentError: It is called inside a compiled function, where the number of boxes must be known.

    TensorFlow: in `tf.function` the result has an unknown size; use `non_max_suppression_padded` there.
    """
    return non_max_suppression_with_scores(boxes, scores, max_output_size, iou_threshold, score_threshold)[0]


@op("image.non_max_suppression_with_scores")
def non_max_suppression_with_scores(
    boxes: jax.Array,
    scores: jax.Array,
    max_output_size: Int,
    iou_threshold: Operand = 0.5,
    score_threshold: Operand = -np.inf,
    soft_nms_sigma: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Returns the indices and scores of boxes chosen by `non_max_suppression`, or by its soft variant.

    With `soft_nms_sigma`, overlapping boxes get lower scores instead of being dropped.

    Source: N. Bodla and others, Soft-NMS: improving object detection with one line of code, ICCV 2017.
    """
    chosen, best, count = _suppressed(
        _overlaps(boxes), scores, max_output_size, iou_threshold, score_threshold, float(soft_nms_sigma)
    )
    known = _known(count, "non_max_suppression")
    return chosen[:known], best[:known]


@op("image.non_max_suppression_padded")
def non_max_suppression_padded(
    boxes: jax.Array,
    scores: jax.Array,
    max_output_size: Int,
    iou_threshold: Operand = 0.5,
    score_threshold: Operand = -np.inf,
    pad_to_max_output_size: bool = False,
    name: str | None = None,
    sorted_input: bool = False,
    canonicalized_coordinates: bool = False,
    tile_size: int = 512,
) -> tuple[jax.Array, jax.Array]:
    """Returns the indices of boxes chosen by `non_max_suppression`, padded with zeros, and the number of chosen boxes.

    Accepts any leading axes.

    Args:
        boxes: f32[..., boxes, 4].
        scores: f32[..., boxes].
        max_output_size: Maximum number of boxes.
        iou_threshold: As for `non_max_suppression`.
        score_threshold: As for `non_max_suppression`.
        pad_to_max_output_size: Whether to return `max_output_size` indices; required in compiled functions.
        name: Ignored.
        sorted_input: Ignored: sorted and unsorted boxes are handled alike.
        canonicalized_coordinates: Ignored.
        tile_size: Ignored.

    Returns:
        i32[..., indices], i32[...].
    """

    def one(boxes: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
        chosen, _, count = _suppressed(_overlaps(boxes), scores, max_output_size, iou_threshold, score_threshold)
        return chosen, count

    leading, limit = scores.shape[:-1], max_output_size
    chosen, count = jax.vmap(one)(boxes.reshape((-1, *boxes.shape[-2:])), scores.reshape((-1, scores.shape[-1])))
    chosen = jnp.pad(chosen, [(0, 0), (0, limit - chosen.shape[-1])])
    chosen, count = chosen.reshape((*leading, limit)), count.reshape(leading)
    if not pad_to_max_output_size:
        chosen = chosen[..., : _known(jnp.max(count), "non_max_suppression_padded")]
    return chosen, count


def _known(count: jax.Array, name: str) -> int:
    if isinstance(count, Tracer):
        raise InvalidArgumentError.of(
            f"tf.image.{name}",
            found="it was called inside a compiled function, where the number of selected boxes is unknown",
            rule="shapes in compiled code must be known while tracing",
            remedy="use tf.image.non_max_suppression_padded(..., pad_to_max_output_size=True)",
        )
    return int(count)


def _overlaps(boxes: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Returns a function from the index of a box to the intersection over union (IoU) of that box with every box.

    The IoU of boxes without area is 0. A matrix of all pairs would need memory of the square of the number of boxes.
    """
    low, high = jnp.minimum(boxes[:, :2], boxes[:, 2:]), jnp.maximum(boxes[:, :2], boxes[:, 2:])
    area = jnp.prod(high - low, axis=-1)

    def of(index: jax.Array) -> jax.Array:
        sides = jnp.minimum(high, high[index]) - jnp.maximum(low, low[index])
        shared = jnp.prod(jnp.maximum(sides, 0), axis=-1)
        proper = (area > 0) & (area[index] > 0)
        return jnp.where(proper, shared / jnp.where(proper, area + area[index] - shared, 1), 0)

    return of


def _suppressed(
    overlaps: Callable[[jax.Array], jax.Array],
    scores: jax.Array,
    limit: int,
    threshold: Operand,
    least: Operand,
    sigma: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Performs non-maximum suppression; returns the selected indices and scores, zero-padded, and their number."""
    limit = min(limit, scores.shape[0])
    out = jnp.asarray(-jnp.inf, scores.dtype)

    def choose(place: jax.Array, state: _Chosen) -> _Chosen:
        left, chosen, best, count = state
        index = jnp.argmax(left)
        score = left[index]
        good = (score > as_tensor(least).astype(scores.dtype)) & (score > out)
        shared = overlaps(index)
        weight = jnp.exp(-0.5 / sigma * shared**2) if sigma > 0 else shared <= threshold
        left = jnp.where(left > out, jnp.where(weight > 0, left * weight, out), out).at[index].set(out)
        chosen = chosen.at[place].set(jnp.where(good, index.astype(jnp.int32), 0))
        return left, chosen, best.at[place].set(jnp.where(good, score, 0)), count + good

    start = (scores, jnp.zeros(limit, jnp.int32), jnp.zeros(limit, scores.dtype), jnp.int32(0))
    _, chosen, best, count = jax.lax.fori_loop(0, limit, choose, start)
    return chosen, best, count
