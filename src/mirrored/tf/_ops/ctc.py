"""`tf.nn.ctc_loss`: the CTC (connectionist temporal classification) loss."""

from __future__ import annotations

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored.tf._table import Int, op
from mirrored.values.index_checks import values_now

_NEVER: Final = -1e30  # the log-probability of what cannot happen; finite, because -inf has derivatives that are NaN
_UNLIKELY: Final = float(np.log(1e-307))  # TensorFlow's log-probability of a wrong first or last state


class _States(NamedTuple):
    """Log-probabilities of the CTC states: each label, and the blank after each label.

    Attributes:
        label: [batch, 1 + longest label]: after k labels, in the frames of the last of them.
        blank: [batch, 1 + longest label]: after k labels, in the blank frames that follow them.
    """

    label: jax.Array
    blank: jax.Array


@op("nn.ctc_loss")
def ctc_loss(
    labels: jax.Array,
    logits: jax.Array,
    label_length: jax.Array,
    logit_length: jax.Array,
    logits_time_major: bool = True,
    unique: object = None,
    blank_index: Int | None = None,
) -> jax.Array:
    """Computes the CTC (connectionist temporal classification) loss for each example.

    The result is [batch], with the dtype of the logits. A label that needs more frames than there are has a loss of
    about 707 to 760, as in TensorFlow, where a wrong last state has the probability 1e-307.

    Args:
        labels: i32[batch, longest label].
        logits: f32[frames, batch, classes], or [batch, frames, classes].
        label_length: i32[batch].
        logit_length: i32[batch].
        logits_time_major: Whether frames come first.
        unique: Ignored: it only saves time in TensorFlow.
        blank_index: The blank class; negative indices count from the end. Default 0.

    Raises:
        TypeError: The labels are sparse, which is not supported here.

    Source: A. Graves and others, Connectionist temporal classification, ICML 2006, in optax.
    """
    scores = logits if logits_time_major else jnp.swapaxes(logits, 0, 1)
    dtype = jnp.float32 if scores.dtype.kind in "iu" else scores.dtype
    scores = scores.astype(jnp.promote_types(dtype, jnp.float32))
    blank = (blank_index or 0) % scores.shape[-1]
    if blank:
        scores = jnp.concatenate([scores[..., blank : blank + 1], jnp.delete(scores, blank, axis=-1)], axis=-1)
        labels = jnp.where(labels < blank, labels + 1, labels)
    given = (scores, labels, label_length, logit_length)
    fits = jnp.all(_fits(labels, label_length, logit_length))
    known = values_now(fits)
    if known is None:
        return jax.lax.cond(fits, _losses_by_optax, _losses_as_in_tensorflow, *given).astype(dtype)  # type: ignore[no-any-return]
    return (_losses_by_optax if known else _losses_as_in_tensorflow)(*given).astype(dtype)


def _fits(labels: jax.Array, label_length: jax.Array, logit_length: jax.Array) -> jax.Array:
    """Returns whether each example has enough frames for its labels and for a blank between equal adjacent labels."""
    longest = labels.shape[1]
    repeats = (labels[:, 1:] == labels[:, :-1]) & (jnp.arange(1, longest) < label_length[:, None])
    return (label_length + jnp.sum(repeats, axis=1) <= logit_length) & (label_length <= longest)


def _losses_by_optax(
    scores: jax.Array, labels: jax.Array, label_length: jax.Array, logit_length: jax.Array
) -> jax.Array:
    """Computes CTC losses with optax; they differ from TensorFlow's for examples with too few frames.

    They are faster; for such an example, optax returns about 100,000.
    """
    beyond = [
        (jnp.arange(size) >= length[:, None]).astype(jnp.float32)
        for size, length in ((scores.shape[0], logit_length), (labels.shape[1], label_length))
    ]
    return optax.ctc_loss(jnp.swapaxes(scores, 0, 1), beyond[0], labels, beyond[1])  # type: ignore[no-any-return]


def _losses_as_in_tensorflow(
    scores: jax.Array, labels: jax.Array, label_length: jax.Array, logit_length: jax.Array
) -> jax.Array:
    """Computes CTC losses as TensorFlow does, including those of examples with too few frames for their labels.

    The value sums paths that begin in the first state; the gradient also knows paths that begin in another one. Labels
    that are blank, as padding is, have no gradient.
    """
    is_frame = jnp.arange(scores.shape[0])[:, None] < logit_length
    norms = jax.nn.logsumexp(scores, axis=-1)
    observed = _observed(scores - jax.lax.stop_gradient(norms)[..., None], labels)
    fixed = jax.lax.stop_gradient(observed)
    repeats = labels[:, 1:] == labels[:, :-1]

    def step(carry: tuple[_States, ...], frame: tuple[jax.Array, _States, _States]) -> tuple[tuple[_States, ...], None]:
        mask, *seen = frame
        return tuple(_next(old, new, repeats, mask) for old, new in zip(carry, seen, strict=True)), None

    start = tuple(_start(labels.shape, scores.dtype, other) for other in (_NEVER, _UNLIKELY))
    (exact, wide), _ = jax.lax.scan(step, start, (is_frame, fixed, observed))
    slopes = _total(wide, label_length) - jnp.sum(jnp.where(is_frame, norms, 0), axis=0)
    return -_total(exact, label_length) - (slopes - jax.lax.stop_gradient(slopes))


def _observed(log_p: jax.Array, labels: jax.Array) -> _States:
    """Returns for each frame the log-probabilities of the labels and the blank, [frames, batch, 1 + longest label]."""
    classes = log_p.shape[-1]
    found = jnp.take_along_axis(log_p, jnp.clip(labels, 0, classes - 1)[None], axis=-1)
    found = jnp.where(labels == 0, jax.lax.stop_gradient(found), found)
    found = jnp.where((labels >= 0) & (labels < classes), found, 0)
    label = jnp.pad(found, [(0, 0), (0, 0), (1, 0)], constant_values=_NEVER)
    return _States(label, jnp.broadcast_to(log_p[..., :1], label.shape))


def _start(shape: tuple[int, ...], dtype: jax.typing.DTypeLike, other: float) -> _States:
    """Returns the initial log-probabilities of the CTC states: 0 for the blank before the labels, else `other`."""
    blank = jnp.full((shape[0], shape[1] + 1), other, dtype)
    return _States(blank.at[:, 0].set(0), blank)


def _next(old: _States, seen: _States, repeats: jax.Array, mask: jax.Array) -> _States:
    """Advances the log-probabilities of the CTC states by one frame, except for examples without further frames."""
    # A label follows the one before it only after a blank if both are equal.
    direct = jnp.concatenate([old.label[:, :1], jnp.where(repeats, _NEVER, old.label[:, 1:-1])], axis=1)
    before = jnp.pad(jnp.logaddexp(direct, old.blank[:, :-1]), [(0, 0), (1, 0)], constant_values=_NEVER)
    label = jnp.logaddexp(old.label, before) + seen.label
    blank = jnp.logaddexp(old.blank, old.label) + seen.blank
    return _States(*(jnp.where(mask[:, None], new, one) for new, one in zip((label, blank), old, strict=True)))


def _total(last: _States, label_length: jax.Array) -> jax.Array:
    """Returns each example's log-probability over all CTC alignments; penalizes those that end at a wrong label."""
    both = jnp.logaddexp(last.label, last.blank)
    wrong = jnp.arange(both.shape[1]) != label_length[:, None]
    return jax.nn.logsumexp(jnp.where(wrong, both + _UNLIKELY, both), axis=1)
