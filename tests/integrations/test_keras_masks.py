"""Metrics omit masked positions while a Keras model trains, as in `evaluate` and as on TensorFlow."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np
import pytest

import mirrored as mr
from integrations.keras_models import scope
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

IDS = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4], [4, 4, 0, 0]], np.int32)
LABELS = IDS % 3
# Recorded on TensorFlow 2.21: without the masks it is 0.4375.
ACCURACY = 7 / 9


class WithTensorFlowsStep(keras.Model):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class WithKerasStep(keras.Model):  # type: ignore[misc]
    """Takes the predictions of `compute_loss_and_updates` itself, as Keras' guide for JAX describes."""

    def compute_loss_and_updates(self, *args: Any, **kwargs: Any) -> Any:
        loss, (unscaled, prediction, *state) = super().compute_loss_and_updates(*args, **kwargs)
        return loss, (unscaled, prediction, *state)


def model_of(base: Any, *, outputs: int = 1) -> Any:
    inputs = keras.Input((4,))
    embedded = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    heads = [keras.layers.Dense(3, activation="softmax", name=f"head{place}")(embedded) for place in range(outputs)]
    model = base(inputs, heads if outputs > 1 else heads[0])
    draw = np.random.RandomState(1)
    model.set_weights([(draw.rand(*weight.shape) - 0.5).astype(weight.dtype) for weight in model.get_weights()])
    accuracy = [["accuracy"]] * outputs if outputs > 1 else ["accuracy"]
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", metrics=accuracy)
    return model


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("base", [keras.Model, WithTensorFlowsStep, WithKerasStep])
@pytest.mark.first(3)
@pytest.mark.long
def test_metrics_of_fit_omit_what_is_masked(base: Any, replicas: int | None) -> None:
    with scope(replicas):
        model = model_of(base)
    history = model.fit(IDS, LABELS, batch_size=4, shuffle=False, verbose=0).history
    assert history["accuracy"] == pytest.approx([ACCURACY])
    assert model.evaluate(IDS, LABELS, batch_size=4, verbose=0)[1] == pytest.approx(ACCURACY)
    if base is keras.Model:  # with a step of its own, it is the mean over replicas, as on TensorFlow
        assert model.train_on_batch(IDS, LABELS)[1] == pytest.approx(ACCURACY)


@pytest.mark.long
def test_each_output_has_its_mask() -> None:
    model = model_of(keras.Model, outputs=2)
    history = model.fit(IDS, [LABELS, LABELS], batch_size=4, shuffle=False, verbose=0, validation_split=0.0).history
    evaluated = model.evaluate(IDS, [LABELS, LABELS], batch_size=4, verbose=0, return_dict=True)
    for name in ("head0_accuracy", "head1_accuracy"):
        assert history[name] == pytest.approx([evaluated[name]])


def test_metrics_of_a_custom_loop_omit_what_is_masked() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = model_of(keras.Model)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    @mr.function
    def step(ids: Any, labels: Any) -> None:
        def replica(ids: Any, labels: Any) -> None:
            with mr.GradientTape():
                prediction = model(ids, training=True)
            accuracy.update_state(labels, prediction)

        strategy.run(replica, args=(ids, labels))

    step(IDS, LABELS)
    assert float(accuracy.result()) == pytest.approx(ACCURACY)


@pytest.mark.first(2)
@pytest.mark.parametrize("replicas", [None, 1, 2])
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_model_removes_the_mask_of_its_prediction(eagerly: bool, replicas: int | None) -> None:
    """As TensorFlow's tutorial on the Transformer does, so that its own metric can return one number."""

    class Predicting(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.Dense(3)

        def call(self, ids: Any) -> Any:
            logits = self.head(self.embedding(ids))
            assert logits._keras_mask is not None
            del logits._keras_mask
            assert not hasattr(logits, "_keras_mask")
            with pytest.raises(AttributeError, match="_keras_mask"):
                del logits._keras_mask
            return logits

    def share(labels: Any, logits: Any) -> Any:
        return keras.ops.mean(keras.ops.cast(keras.ops.equal(labels, 0), "float32"))

    with scope(replicas):
        model = Predicting()
        model.compile(
            "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[share], run_eagerly=eagerly
        )
    history = model.fit(IDS, LABELS, batch_size=4, verbose=0).history
    assert history["share"] == pytest.approx([np.mean(LABELS == 0)])
    assert model.evaluate(IDS, LABELS, batch_size=4, verbose=0)[1] == pytest.approx(np.mean(LABELS == 0))
