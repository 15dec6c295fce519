"""`tf.nn`: losses over a sample of many classes, samplers of classes, and moments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored._typing import Operand
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.generator import next_key
from mirrored.tf._ops.indexing import gather, require_indices
from mirrored.tf._table import Common, Int, Ints, op
from mirrored.tf._tensors import as_tensor


class Candidates(NamedTuple):
    """The result of a candidate sampler: the sampled classes, and how often each class is expected in a sample.

    Attributes:
        sampled_candidates: i64[num_sampled] (i32 without x64): the sampled classes.
        true_expected_count: f32[batch, num_true]: the expected count of each true class among them.
        sampled_expected_count: f32[num_sampled]: the expected count of each sampled class.
    """

    sampled_candidates: jax.Array
    true_expected_count: jax.Array
    sampled_expected_count: jax.Array


def _drawn(
    called: str, logits: np.ndarray[Any, Any], true_classes: jax.Array, count: int, unique: bool, seed: int | None
) -> Candidates:
    """Samples `count` classes by their log-probabilities, and computes their expected counts.

    Without replacement, it uses the Gumbel top-k trick: ordering log-probabilities plus Gumbel noise is equivalent to
    drawing until enough distinct classes are found. As in TensorFlow, the expected counts depend on the number of draws
    that this takes; it is sampled afterwards. Source: W. Kool and others, Stochastic beams and where to find them, ICML
    2019.
    """
    if unique and count > len(logits):
        raise InvalidArgumentError.of(
            called,
            found=f"num_sampled={count} was passed for {len(logits)} classes",
            rule="with unique=True, num_sampled must be at most the number of classes",
            remedy="sample fewer classes, or pass unique=False",
        )
    require_indices(called, true_classes, len(logits), "true_classes")
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

    return Candidates(sampled.astype(array_dtype("int64")), expected(true_classes), expected(sampled))


def _tries(key: jax.Array, p: jax.Array) -> jax.Array:
    """Samples how many draws with replacement it takes to find the given distinct classes, in the given order."""
    before = jnp.concatenate([jnp.zeros(1, p.dtype), jnp.cumsum(p)[:-1]])
    fresh = jnp.clip(1 - before, 1e-7, 1.0)
    failures = jnp.log1p(-jax.random.uniform(key, p.shape, p.dtype)) / jnp.log1p(-fresh)
    waits = jnp.where(fresh >= 1, 1.0, jnp.ceil(failures))
    return jnp.sum(jnp.maximum(waits, 1.0))


@op("random.log_uniform_candidate_sampler")
def log_uniform_candidate_sampler(
    true_classes: jax.Array, num_true: int, num_sampled: Int, unique: bool, range_max: Int, seed: int | None = None
) -> Candidates:
    """Samples classes from the log-uniform (Zipfian) distribution, in which low indices are frequent.

    The probability is ``(log(class + 2) - log(class + 1)) / log(range_max + 1)``.

    Args:
        true_classes: i32[batch, num_true].
        num_true: Number of true classes per example.
        num_sampled: Number of classes to sample.
        unique: Whether all sampled classes are distinct.
        range_max: Number of classes, sorted by decreasing frequency.
        seed: The operation's own seed.

    Raises:
        InvalidArgumentError: `num_sampled` distinct classes exceed the number of classes; or a true class is out of
            range, in eager code on a CPU.
    """
    called = "tf.random.log_uniform_candidate_sampler"
    classes = np.arange(range_max)
    logits = np.log(np.log1p(1 / (classes + 1)) / np.log(len(classes) + 1))
    return _drawn(called, logits, true_classes, num_sampled, unique, seed)


@op("random.uniform_candidate_sampler")
def uniform_candidate_sampler(
    true_classes: jax.Array, num_true: int, num_sampled: Int, unique: bool, range_max: Int, seed: int | None = None
) -> Candidates:
    """Samples classes from the uniform distribution, for sampled losses.

    The arguments are those of `log_uniform_candidate_sampler`.
    """
    called, logits = "tf.random.uniform_candidate_sampler", np.full(range_max, -np.log(range_max))
    return _drawn(called, logits, true_classes, num_sampled, unique, seed)


@op("random.fixed_unigram_candidate_sampler nn.fixed_unigram_candidate_sampler")
def fixed_unigram_candidate_sampler(
    true_classes: jax.Array,
    num_true: int,
    num_sampled: Int,
    unique: bool,
    range_max: Int,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: Sequence[float] = (),
    seed: int | None = None,
) -> Candidates:
    """Samples classes with probabilities proportional to given counts, for sampled losses.

    Args:
        true_classes: i32[batch, num_true].
        num_true: Number of true classes per example.
        num_sampled: Number of classes to sample.
        unique: Whether all sampled classes are distinct.
        range_max: Number of classes.
        vocab_file: A file with one class per line; the last comma-separated field is its count.
        distortion: The power to which counts are raised.
        num_reserved_ids: Number of first classes that are never sampled.
        num_shards: Must be 1.
        shard: Must be 0.
        unigrams: The counts, instead of a file.
        seed: The operation's own seed.

    Raises:
        InvalidArgumentError: The number of counts does not match the number of classes, shards are requested, or a true
            class is out of range, in eager code on a CPU.
    """
    called = "tf.random.fixed_unigram_candidate_sampler"
    counts = list(unigrams) or _counts(vocab_file)
    if (num_shards, shard) != (1, 0):
        raise InvalidArgumentError.of(
            called,
            found=f"num_shards={num_shards} and shard={shard} were passed",
            rule="num_shards must be 1, and shard must be 0",
            remedy="omit both arguments",
        )
    if len(counts) + num_reserved_ids != range_max:
        raise InvalidArgumentError.of(
            called,
            found=f"there are {len(counts)} counts for {range_max} classes, of which {num_reserved_ids} are reserved",
            rule="each class that is not reserved must have one count",
            remedy="pass unigrams (or a vocab_file) for range_max - num_reserved_ids classes",
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
    true_classes: jax.Array, num_true: int, num_sampled: Int, unique: bool, seed: int | None = None
) -> Candidates:
    """Returns all classes in place of a sample; each has an expected count of one."""
    require_indices("tf.random.all_candidate_sampler", true_classes, int(num_sampled), "true_classes")
    ones = jnp.ones(num_sampled, jnp.float32)
    return Candidates(
        jnp.arange(num_sampled, dtype=array_dtype("int64")), jnp.ones(true_classes.shape, jnp.float32), ones
    )


@op("nn.sampled_softmax_loss")
def sampled_softmax_loss(
    weights: Operand,
    biases: jax.Array,
    labels: jax.Array,
    inputs: jax.Array,
    num_sampled: Int,
    num_classes: Int,
    num_true: int = 1,
    sampled_values: Iterable[Operand] | None = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
) -> jax.Array:
    """Computes the softmax cross entropy over the true classes and a random sample of other classes.

    The result is f32[batch]. In compiled code and on GPUs, a label out of range has weights of zero.

    Args:
        weights: [classes, width], or a list of parts of it.
        biases: [classes].
        labels: i32[batch, num_true].
        inputs: [batch, width].
        num_sampled: Number of classes sampled for the whole batch.
        num_classes: Number of classes.
        num_true: Number of true classes per example.
        sampled_values: The result of a sampler; None uses `log_uniform_candidate_sampler`.
        remove_accidental_hits: Whether to ignore sampled classes that are true classes.
        seed: The seed of the sampler.

    Raises:
        InvalidArgumentError: A label is out of range, in eager code on a CPU.

    Source: S. Jean and others, On using very large target vocabulary for neural machine translation, ACL 2015.
    """
    logits, truth = _sampled_logits(
        "tf.nn.sampled_softmax_loss", weights, biases, labels, inputs, num_sampled, num_classes, num_true,
        sampled_values, remove_accidental_hits, seed,
    )  # fmt: skip
    return optax.softmax_cross_entropy(logits, jax.lax.stop_gradient(truth))  # type: ignore[no-any-return]


@op("nn.nce_loss")
def nce_loss(
    weights: Operand,
    biases: jax.Array,
    labels: jax.Array,
    inputs: jax.Array,
    num_sampled: Int,
    num_classes: Int,
    num_true: int = 1,
    sampled_values: Iterable[Operand] | None = None,
    remove_accidental_hits: bool = False,
) -> jax.Array:
    """Computes the noise-contrastive estimation loss for each example.

    The result is f32[batch]; the arguments are those of `sampled_softmax_loss`.

    Source: M. Gutmann, A. Hyvärinen, Noise-contrastive estimation, AISTATS 2010.
    """
    logits, truth = _sampled_logits(
        "tf.nn.nce_loss", weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
        remove_accidental_hits, None,
    )  # fmt: skip
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, truth), axis=-1)


def _sampled_logits(
    called: str, weights: Operand, bias: jax.Array, labels: jax.Array, features: jax.Array, num_sampled: Int,
    num_classes: Int, num_true: int, sampled_values: Iterable[Operand] | None, remove_accidental_hits: bool,
    seed: int | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Returns logits minus log expected counts, and label probabilities, both [batch, num_true + num_sampled]."""
    parts = [as_tensor(one) for one in weights] if isinstance(weights, (list, tuple)) else [as_tensor(weights)]
    table, true = jnp.concatenate(parts), labels.reshape((-1, num_true))
    require_indices(called, true, table.shape[0], "labels")
    if sampled_values is None:
        _require_rows(called, num_classes, table, bias)
        sampled_values = log_uniform_candidate_sampler(true, num_true, num_sampled, True, num_classes, seed)
    sampled, of_true, of_sampled = (jax.lax.stop_gradient(as_tensor(one)) for one in sampled_values)
    require_indices(called, sampled, min(table.shape[0], bias.shape[0]), "sampled_values")
    true_logits = jnp.einsum("bd,btd->bt", features, gather(table, true)) + gather(bias, true) - jnp.log(of_true)
    sampled_logits = features @ table[sampled].T + bias[sampled]
    if remove_accidental_hits:
        hit = jnp.any(true[:, :, None] == sampled, axis=1)
        sampled_logits = jnp.where(hit, sampled_logits + float(np.finfo(np.float32).min), sampled_logits)
    logits = jnp.concatenate([true_logits, sampled_logits - jnp.log(of_sampled)], axis=1)
    truth = jnp.concatenate([jnp.full(true.shape, 1 / num_true), jnp.zeros(sampled_logits.shape)], axis=1)
    return logits, truth.astype(logits.dtype)


def _require_rows(called: str, num_classes: int, table: jax.Array, bias: jax.Array) -> None:
    """Raises an error unless the table of weights and the bias have a row for each class that may be sampled.

    For a larger index, JAX would take the row of the last class.
    """
    if num_classes <= min(table.shape[0], bias.shape[0]):
        return
    raise InvalidArgumentError.of(
        called,
        found=f"`num_classes` is {num_classes}, `weights` have the shape {table.shape}, `biases` {bias.shape}",
        rule="`weights` and `biases` must have a row for each of the `num_classes` classes",
        remedy="pass the number of rows as num_classes",
    )


@op("nn.sufficient_statistics")
def sufficient_statistics(
    x: jax.Array, axes: Ints | None, shift: Operand | None = None, keepdims: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Returns the sums from which `normalize_moments` computes mean and variance.

    These are the count, the sum and the sum of squares of ``x - shift``, and the shift.
    """
    over, by = axes or (), None if shift is None else as_tensor(shift, x.dtype)
    count = jnp.asarray(np.prod([x.shape[one] for one in over]), x.dtype)
    moved = x if by is None else x - by
    return count, jnp.sum(moved, over, keepdims=keepdims), jnp.sum(moved**2, over, keepdims=keepdims), by


@op("nn.normalize_moments")
def normalize_moments(
    counts: Common, mean_ss: Common, variance_ss: Common, shift: Operand | None
) -> tuple[jax.Array, jax.Array]:
    """Computes mean and variance from the sums that `sufficient_statistics` returned.

    The results of several calls may be added first.
    """
    moved = mean_ss / counts
    mean = moved if shift is None else moved + as_tensor(shift, moved.dtype)
    return mean, variance_ss / counts - moved**2
