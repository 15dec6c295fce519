"""`tf.nn`: losses over a sample of many classes, and the samplers; the loss of CTC; moments in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._generator import next_key
from mirrored.tf._static import static_axis, static_int
from mirrored.tf._table import op, tensors
from mirrored.tf._tensors import as_tensor


class Candidates(NamedTuple):
    """What a sampler of classes gives.

    Attributes:
        sampled_candidates: i32[num_sampled]: the classes that were drawn.
        true_expected_count: f32[batch, num_true]: how often each true class is expected among them.
        sampled_expected_count: f32[num_sampled]: likewise for those that were drawn.
    """

    sampled_candidates: jax.Array
    true_expected_count: jax.Array
    sampled_expected_count: jax.Array


def _drawn(
    called: str, logits: np.ndarray[Any, Any], true_classes: Any, num_sampled: Any, unique: bool, seed: Any
) -> Candidates:
    """Draws classes by their log-probabilities.

    Without replacement: the order of log-probabilities plus Gumbel noise is that of drawing until enough different ones
    are found. How many draws that would take decides the expected counts, as in TensorFlow; it is drawn afterwards.
    Source: W. Kool and others, Stochastic beams and where to find them, ICML 2019.
    """
    count = static_int(num_sampled, called=called, argument="num_sampled")
    if unique and count > len(logits):
        raise InvalidArgumentError.of(
            called,
            found=f"num_sampled={count} of {len(logits)} classes",
            rule="different classes are drawn",
            remedy="draw fewer, or give unique=False",
        )
    log_p = jnp.asarray(logits, jnp.float32)
    key, for_tries = jax.random.split(next_key(seed))
    if unique:
        _, sampled = jax.lax.top_k(log_p + jax.random.gumbel(key, log_p.shape), count)
        tries = _tries(for_tries, jnp.exp(log_p)[sampled])
    else:
        sampled, tries = jax.random.categorical(key, log_p, shape=(count,)), jnp.float32(count)

    def expected(classes: jax.Array) -> jax.Array:
        p = jnp.exp(log_p)[classes]
        return -jnp.expm1(tries * jnp.log1p(-p)) if unique else p * tries

    return Candidates(sampled, expected(as_tensor(true_classes)), expected(sampled))


def _tries(key: jax.Array, p: jax.Array) -> jax.Array:
    """How many draws it took until the last of some different classes came, in this order."""
    before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(p)[:-1]])
    fresh = jnp.clip(1 - before, 1e-7, 1.0)
    waits = jnp.where(fresh >= 1, 1.0, jnp.ceil(jnp.log1p(-jax.random.uniform(key, p.shape)) / jnp.log1p(-fresh)))
    return jnp.sum(jnp.maximum(waits, 1.0))


@op("random.log_uniform_candidate_sampler")
def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: Any,
    unique: bool,
    range_max: Any,
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """Classes drawn with probability (log(class + 2) - log(class + 1)) / log(range_max + 1).

    Args:
        true_classes: i32[batch, num_true].
        num_true: Of each example.
        num_sampled: How many are drawn.
        unique: Whether they are different.
        range_max: How many classes there are, sorted by falling frequency.
        seed: The operation's own.
        name: Ignored.

    Raises:
        InvalidArgumentError: More different classes are wanted than there are.
    """
    del name, num_true
    called = "tf.random.log_uniform_candidate_sampler"
    classes = np.arange(static_int(range_max, called=called, argument="range_max"))
    logits = np.log(np.log1p(1 / (classes + 1)) / np.log(len(classes) + 1))
    return _drawn(called, logits, true_classes, num_sampled, unique, seed)


@op("random.uniform_candidate_sampler")
def uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: Any,
    unique: bool,
    range_max: Any,
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """Classes drawn with equal probabilities; arguments as for `log_uniform_candidate_sampler`."""
    del name, num_true
    called = "tf.random.uniform_candidate_sampler"
    size = static_int(range_max, called=called, argument="range_max")
    return _drawn(called, np.full(size, -np.log(size)), true_classes, num_sampled, unique, seed)


@op("random.fixed_unigram_candidate_sampler nn.fixed_unigram_candidate_sampler")
def fixed_unigram_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: Any,
    unique: bool,
    range_max: Any,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: Sequence[float] = (),
    seed: Any = None,
    name: str | None = None,
) -> Candidates:
    """Classes drawn in proportion to given counts.

    Args:
        true_classes: i32[batch, num_true].
        num_true: Of each example.
        num_sampled: How many are drawn.
        unique: Whether they are different.
        range_max: How many classes there are.
        vocab_file: A file with a class in each line, whose last field, after a comma, is its count.
        distortion: Counts are raised to this power.
        num_reserved_ids: So many first classes are never drawn.
        num_shards: Must be 1.
        shard: Must be 0.
        unigrams: The counts, instead of a file.
        seed: The operation's own.
        name: Ignored.

    Raises:
        InvalidArgumentError: As many counts as classes are not given, or shards.
    """
    del name, num_true
    called = "tf.random.fixed_unigram_candidate_sampler"
    size = static_int(range_max, called=called, argument="range_max")
    counts = list(unigrams) or _counts(vocab_file)
    if len(counts) + num_reserved_ids != size or (num_shards, shard) != (1, 0):
        raise InvalidArgumentError.of(
            called,
            found=f"{len(counts)} counts, {num_reserved_ids} reserved, {size} classes, {num_shards} shards",
            rule="there is one count for each class that is not reserved, and one shard",
            remedy="give unigrams (or vocab_file) for range_max - num_reserved_ids classes",
        )
    weights = np.asarray([0.0] * num_reserved_ids + counts, np.float64) ** distortion
    weights[:num_reserved_ids] = 0
    with np.errstate(divide="ignore"):
        logits = np.log(weights / weights.sum())
    return _drawn(called, logits, true_classes, num_sampled, unique, seed)


def _counts(path: str) -> list[float]:
    if not path:
        return []
    with open(path, encoding="utf-8") as lines:
        return [float(line.rpartition(",")[2]) for line in lines if line.strip()]


@op("random.all_candidate_sampler nn.all_candidate_sampler")
def all_candidate_sampler(
    true_classes: Any, num_true: int, num_sampled: Any, unique: bool, seed: Any = None, name: str | None = None
) -> Candidates:
    """All classes, each expected once."""
    del name, num_true, unique, seed
    count = static_int(num_sampled, called="tf.random.all_candidate_sampler", argument="num_sampled")
    true = as_tensor(true_classes)
    return Candidates(jnp.arange(count), jnp.ones(true.shape, jnp.float32), jnp.ones(count, jnp.float32))


@op("nn.sampled_softmax_loss")
def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: Any,
    num_classes: Any,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    seed: Any = None,
    name: str | None = None,
) -> jax.Array:
    """The softmax cross entropy over the true classes and a sample of the others: f32[batch].

    Args:
        weights: [classes, width], or a list of parts of it.
        biases: [classes].
        labels: i32[batch, num_true].
        inputs: [batch, width].
        num_sampled: Classes drawn for the whole batch.
        num_classes: All.
        num_true: True classes of each example.
        sampled_values: What a sampler gave; None for `log_uniform_candidate_sampler`.
        remove_accidental_hits: Whether true classes that were drawn are left out.
        seed: Of the sampler.
        name: Ignored.

    Source: S. Jean and others, On using very large target vocabulary for neural machine translation, ACL 2015.
    """
    del name
    logits, truth = _sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        remove_accidental_hits,
        seed,
    )
    return optax.softmax_cross_entropy(logits, jax.lax.stop_gradient(truth))  # type: ignore[no-any-return]


@op("nn.nce_loss")
def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: Any,
    num_classes: Any,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    name: str | None = None,
) -> jax.Array:
    """Noise-contrastive estimation: f32[batch]. Arguments as for `sampled_softmax_loss`.

    Source: M. Gutmann, A. Hyvärinen, Noise-contrastive estimation, AISTATS 2010.
    """
    del name
    logits, truth = _sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        remove_accidental_hits,
        None,
    )
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, truth), axis=-1)


def _sampled_logits(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: Any, num_classes: Any, num_true: int,
    sampled_values: Any, remove_accidental_hits: bool, seed: Any,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Logits [batch, num_true + num_sampled], less the logarithms of expected counts, and what is true of them."""
    parts = [as_tensor(one) for one in weights] if isinstance(weights, (list, tuple)) else [as_tensor(weights)]
    table, bias = jnp.concatenate(parts), as_tensor(biases)
    true, features = as_tensor(labels).reshape((-1, num_true)), as_tensor(inputs)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(true, num_true, num_sampled, True, num_classes, seed)
    sampled, of_true, of_sampled = (jax.lax.stop_gradient(as_tensor(one)) for one in sampled_values)
    true_logits = jnp.einsum("bd,btd->bt", features, table[true]) + bias[true] - jnp.log(of_true)
    sampled_logits = features @ table[sampled].T + bias[sampled]
    if remove_accidental_hits:
        hit = jnp.any(true[:, :, None] == sampled, axis=1)
        sampled_logits = jnp.where(hit, sampled_logits + float(np.finfo(np.float32).min), sampled_logits)
    logits = jnp.concatenate([true_logits, sampled_logits - jnp.log(of_sampled)], axis=1)
    truth = jnp.concatenate([jnp.full(true.shape, 1 / num_true), jnp.zeros(sampled_logits.shape)], axis=1)
    return logits, truth.astype(logits.dtype)


@op("nn.ctc_loss")
def ctc_loss(
    labels: Any,
    logits: Any,
    label_length: Any,
    logit_length: Any,
    logits_time_major: bool = True,
    unique: Any = None,
    blank_index: int | None = None,
    name: str | None = None,
) -> jax.Array:
    """The loss of connectionist temporal classification: f32[batch].

    Args:
        labels: i32[batch, longest label].
        logits: f32[frames, batch, classes], or [batch, frames, classes].
        label_length: i32[batch].
        logit_length: i32[batch].
        logits_time_major: Whether frames come first.
        unique: Ignored: it only saves time in TensorFlow.
        blank_index: The class that stands for no label; negative ones count from the end. Default 0.
        name: Ignored.

    Raises:
        TypeError: Sparse labels, which are not here.

    Source: A. Graves and others, Connectionist temporal classification, ICML 2006, in optax.
    """
    del name, unique
    scores, true = as_tensor(logits), as_tensor(labels)
    scores = jnp.swapaxes(scores, 0, 1) if logits_time_major else scores
    blank = (0 if blank_index is None else blank_index) % scores.shape[-1]
    return optax.ctc_loss(  # type: ignore[no-any-return]
        scores,
        _beyond(logit_length, scores.shape[1]),
        true,
        _beyond(label_length, true.shape[1]),
        blank_id=blank,
    )


def _beyond(length: Any, size: int) -> jax.Array:
    return (jnp.arange(size) >= as_tensor(length)[:, None]).astype(jnp.float32)


@op("nn.sufficient_statistics")
def sufficient_statistics(
    x: Any, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """How many, their sum, the sum of their squares (both less the shift), and the shift, for `normalize_moments`."""
    del name
    value = as_tensor(x)
    axis = static_axis(axes, called="tf.nn.sufficient_statistics", argument="axes")
    over = (axis,) if isinstance(axis, int) else tuple(axis or ())
    count = jnp.asarray(np.prod([value.shape[one] for one in over]), value.dtype)
    moved = value if shift is None else value - as_tensor(shift, value.dtype)
    sums = jnp.sum(moved, axis=over, keepdims=keepdims)
    squares = jnp.sum(moved**2, axis=over, keepdims=keepdims)
    return count, sums, squares, None if shift is None else as_tensor(shift, value.dtype)


@op("nn.normalize_moments")
def normalize_moments(
    counts: Any, mean_ss: Any, variance_ss: Any, shift: Any, name: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance from what `sufficient_statistics` gave, or sums of it."""
    del name
    count, sums, squares = tensors(counts, mean_ss, variance_ss)
    moved = sums / count
    mean = moved if shift is None else moved + as_tensor(shift, moved.dtype)
    return mean, squares / count - moved**2
