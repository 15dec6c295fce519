"""Candidate samplers: how often classes come, and what is said about it; losses over samples."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored.tf as tf

TIMES, CLASSES, DRAWN = 400, 12, 5
TRUE = np.arange(CLASSES, dtype=np.int32)[:, None]


def inclusion(sampler, unique, **options):
    """Per class: how often it came on average, and how often it was expected."""
    tf.random.set_seed(3)
    came, expected = np.zeros(CLASSES), np.zeros(CLASSES)

    @tf.function
    def draw():
        return sampler(TRUE, 1, DRAWN, unique, range_max=CLASSES, **options)

    for _ in range(TIMES):
        sampled, of_true, of_sampled = draw()
        np.add.at(came, np.asarray(sampled), 1 / TIMES)
        expected += np.asarray(of_true)[:, 0] / TIMES
        np.testing.assert_allclose(of_sampled, np.asarray(of_true)[np.asarray(sampled), 0], rtol=1e-6)
    return came, expected


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("name", ["uniform", "log_uniform"])
@pytest.mark.first(1)
def test_classes_come_as_often_as_is_said(name, unique):
    came, expected = inclusion(getattr(tf.random, f"{name}_candidate_sampler"), unique)
    assert came.sum() == pytest.approx(DRAWN)
    np.testing.assert_allclose(came, expected, atol=0.12)
    if name == "log_uniform":
        assert came[0] > came[3] > came[11]


@pytest.mark.long
def test_counts_decide_how_often():
    counts = [0.0] + [1.0, 3.0] * 5 + [9.0]
    came, _ = inclusion(tf.random.fixed_unigram_candidate_sampler, False, unigrams=counts)
    assert came[0] == 0
    assert came[11] / came[1:11:2].mean() == pytest.approx(9, rel=0.35)


@pytest.mark.long
def test_counts_are_read_from_a_file(tmp_path):
    vocabulary = tmp_path / "words.csv"
    vocabulary.write_text("the,3\nof,1\n")
    sampled, true, _ = tf.nn.fixed_unigram_candidate_sampler(
        np.array([[0], [1]]), 1, 100, False, 2, vocab_file=str(vocabulary)
    )
    assert set(np.asarray(sampled).tolist()) <= {0, 1}
    np.testing.assert_allclose(true, [[75], [25]], rtol=1e-5)


def test_more_classes_than_there_are():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"num_sampled=9 was passed for 4 classes\n.*\n.*unique=False"
    ):
        tf.random.log_uniform_candidate_sampler([[1]], 1, 9, True, 4)


@pytest.mark.long
def test_a_sample_of_all_classes_is_the_whole_softmax():
    """With every class drawn and expected once, the true one among them left out, nothing is missing."""
    rng = np.random.default_rng(1)
    weights, biases = rng.normal(size=(CLASSES, 3)).astype("f4"), rng.normal(size=CLASSES).astype("f4")
    inputs, labels = rng.normal(size=(4, 3)).astype("f4"), np.array([[1], [0], [7], [11]])
    everything = tf.random.all_candidate_sampler(labels, 1, CLASSES, True)
    sampled = tf.nn.sampled_softmax_loss(weights, biases, labels, inputs, CLASSES, CLASSES, sampled_values=everything)
    logits = inputs @ weights.T + biases
    whole = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[:, 0], logits)
    np.testing.assert_allclose(sampled, whole, rtol=1e-5)


@pytest.mark.parametrize("wrong", [-1, 4])
@pytest.mark.parametrize("name", ["sampled_softmax_loss", "nce_loss"])
def test_a_label_out_of_range_is_no_class(name: str, wrong: int) -> None:
    labels = np.array([[1], [wrong]])
    candidates = (np.array([0, 2], np.int64), np.ones((2, 1), np.float32), np.ones(2, np.float32))

    def loss(weights: Any) -> Any:
        return getattr(tf.nn, name)(weights, tf.zeros([4]), labels, tf.ones([2, 3]), 2, 4, sampled_values=candidates)

    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"tf.nn.{name}: labels\[1,0\] = {wrong} is not in"):
        loss(tf.ones([4, 3]))
    gradient = jax.jit(jax.grad(lambda weights: loss(weights)[1]))(jnp.ones([4, 3]))
    assert np.abs(gradient).sum(axis=1)[[1, 3]].tolist() == [0, 0]


@pytest.mark.long
def test_word_vectors_are_trained_by_sampling():
    """A skip-gram of pairs (n, n + 1): the loss falls, on the tape, over `tf.nn.nce_loss` with its own sampler."""
    tf.random.set_seed(0)
    vectors, weights = tf.Variable(tf.random.normal([8, 4])), tf.Variable(tf.zeros([8, 4]))
    biases = tf.Variable(tf.zeros([8]))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            features = tf.nn.embedding_lookup(vectors, tf.range(7))
            loss = tf.reduce_mean(tf.nn.nce_loss(weights, biases, tf.range(1, 8)[:, None], features, 4, 8))
        trained = (vectors, weights, biases)
        for variable, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            variable.assign_sub(0.5 * gradient)
        return loss

    losses = [float(step()) for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])


def test_counts_that_do_not_fit_and_shards():
    sampler = tf.nn.fixed_unigram_candidate_sampler
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="there are 2 counts for 4 classes, of which 1 are reserved"
    ):
        sampler([[1]], 1, 1, True, 4, num_reserved_ids=1, unigrams=[1.0, 2.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_shards must be 1"):
        sampler([[1]], 1, 1, True, 2, num_shards=2, unigrams=[1.0, 2.0])


@pytest.mark.long
def test_dtypes_are_those_of_tensorflow_in_the_64_bit_mode():
    with jax.enable_x64(True):
        weights, biases, inputs = tf.ones([4, 3]), tf.zeros([4]), tf.ones([1, 3])
        found = [
            tf.nn.nce_loss(weights, biases, [[1]], inputs, 2, 4),
            tf.nn.sampled_softmax_loss(weights, biases, [[1]], inputs, 2, 4),
            *tf.random.log_uniform_candidate_sampler([[1]], 1, 2, True, 4)[1:],
            *tf.nn.all_candidate_sampler([[1]], 1, 2, True)[1:],
        ]
        assert [one.dtype for one in found] == [tf.float32] * len(found)
        drawn = tf.random.uniform_candidate_sampler([[1]], 1, 2, False, 4).sampled_candidates
        assert [drawn.dtype, tf.math.bincount([1]).dtype] == [tf.int64, tf.int32]


@pytest.mark.first(1)
@pytest.mark.parametrize("wrong", [-1, 5])
@pytest.mark.parametrize(
    "sample",
    [
        lambda true: tf.random.log_uniform_candidate_sampler(true, 1, 2, True, 5),
        lambda true: tf.random.uniform_candidate_sampler(true, 1, 2, False, 5),
        lambda true: tf.random.fixed_unigram_candidate_sampler(true, 1, 2, True, 5, unigrams=[1, 2, 3, 4, 5]),
        lambda true: tf.random.all_candidate_sampler(true, 1, 5, True),
    ],
)
def test_true_classes_out_of_range_are_refused(sample, wrong):
    sample([[0], [4]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"true_classes\[1,0\] = {wrong} is not in"):
        sample([[0], [wrong]])


@pytest.mark.parametrize("loss", [tf.nn.sampled_softmax_loss, tf.nn.nce_loss])
@pytest.mark.parametrize(("classes", "biases", "sampled"), [(50, 4, None), (4, 3, None), (4, 4, [3, 4])])
def test_classes_without_a_row_of_weights_are_refused(loss, classes, biases, sampled):
    values = None if sampled is None else (tf.constant(sampled), tf.ones([1, 1]), tf.ones([2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"`num_classes` is|sampled_values\[1\] = 4"):
        loss(
            tf.ones([4, 2]), tf.zeros([biases]), tf.constant([[1]]), tf.ones([1, 2]), num_sampled=2,
            num_classes=classes, sampled_values=values,
        )  # fmt: skip
