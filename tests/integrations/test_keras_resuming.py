"""`BackupAndRestore`: a resumed `fit` uses the same examples in the same order as an uninterrupted one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

EXAMPLES, BATCH, EPOCHS = 24, 4, 3
PER_EPOCH = EXAMPLES // BATCH
X = np.eye(EXAMPLES, dtype=np.float32)
Y = np.arange(1, EXAMPLES + 1, dtype=np.float32)[:, None]
ROWS = Dataset.from_tensor_slices((X, Y))


class Rows(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches by index, whose order Keras shuffles."""

    def __len__(self) -> int:
        return PER_EPOCH

    def __getitem__(self, index: int) -> Any:
        part = slice(index * BATCH, (index + 1) * BATCH)
        return X[part], Y[part]


def generated() -> Iterator[Any]:
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(EXAMPLES)
        for begin in range(0, EXAMPLES, BATCH):
            part = order[begin : begin + BATCH]
            yield X[part], Y[part]


DATA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "arrays": lambda _: {"x": X, "y": Y, "batch_size": BATCH},
    "arrays in order": lambda _: {"x": X, "y": Y, "batch_size": BATCH, "shuffle": False},
    "arrays by batch": lambda _: {"x": X, "y": Y, "batch_size": BATCH, "shuffle": "batch"},
    "arrays in short epochs": lambda _: {"x": X, "y": Y, "batch_size": BATCH, "steps_per_epoch": PER_EPOCH // 2},
    "PyDataset": lambda _: {"x": Rows(workers=1), "shuffle": True},
    "generator": lambda _: {"x": generated(), "steps_per_epoch": PER_EPOCH, "shuffle": False},
    "seeded": lambda _: {"x": ROWS.shuffle(EXAMPLES, seed=5).batch(BATCH)},
    "stream": lambda _: {"x": ROWS.filter(lambda x, y: True).shuffle(9, seed=5).batch(BATCH)},
    "stream in short epochs": lambda _: {
        "x": ROWS.filter(lambda x, y: True).shuffle(9, seed=5).batch(BATCH),
        "steps_per_epoch": PER_EPOCH // 2,
    },
    "unseeded": lambda _: {"x": ROWS.shuffle(EXAMPLES).batch(BATCH)},
    "repeated": lambda _: {"x": ROWS.shuffle(9, seed=5).repeat().batch(BATCH), "steps_per_epoch": PER_EPOCH},
    "repeated, unseeded": lambda _: {"x": ROWS.shuffle(9).repeat().batch(BATCH), "steps_per_epoch": PER_EPOCH},
    "distributed": lambda strategy: {
        "x": strategy.experimental_distribute_dataset(ROWS.shuffle(EXAMPLES, seed=5).batch(BATCH))
    },
    "from a function": lambda strategy: {
        "x": strategy.distribute_datasets_from_function(
            lambda context: ROWS.shuffle(EXAMPLES, seed=5).batch(BATCH // context.num_replicas_in_sync)
        )
    },
}
UNSEEDED = ("unseeded", "repeated, unseeded")


class Interrupt(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Noise(keras.callbacks.Callback):  # type: ignore[misc]
    """Uses the global random states, as callbacks and augmentations do."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        np.random.random()


def fit(kind: str, strategy: Any, *callbacks: Any, seed: int = 0) -> Any:
    """Returns the weights, one per example, and the number of steps.

    The learning rate falls from step to step, so that the weights depend on the step in which each example was used.
    """
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((EXAMPLES,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
        model.compile(keras.optimizers.SGD(rate), "mse")
    data = DATA[kind](strategy)
    epochs = EPOCHS * PER_EPOCH // data.get("steps_per_epoch", PER_EPOCH)
    model.fit(**data, epochs=epochs, verbose=0, callbacks=[Noise(), *callbacks])
    return model.get_weights()[0].ravel(), int(model.optimizer.iterations.numpy())


class Uses(keras.callbacks.Callback):  # type: ignore[misc]
    """Records the examples of each batch: those whose weights it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, list[np.ndarray]] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current = self.epochs.setdefault(epoch, [])
        self.before = self.model.get_weights()[0].ravel()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        after = self.model.get_weights()[0].ravel()
        self.current.append(np.flatnonzero(after != self.before))
        self.before = after


def replicas(count: int, **options: Any) -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:count], **options)


def interrupted(kind: str, strategy: Any, folder: Path, after: int, save_freq: Any, *callbacks: Any) -> Any:
    """Returns the result of `fit` that was interrupted, and resumed with another seed and without a warning."""

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(folder / "backup", save_freq=save_freq)

    with pytest.raises(KeyboardInterrupt):
        fit(kind, strategy, *callbacks, backup(), Interrupt(after))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return fit(kind, strategy, *callbacks, backup(), seed=1)


POINTS = [(2, 1), (PER_EPOCH, 1), (PER_EPOCH + 4, 3), (2 * PER_EPOCH + 1, 1), (PER_EPOCH + 2, "epoch")]


def cases() -> list[Any]:
    """The kinds of data, and where training is interrupted: two kinds everywhere, the others in the second epoch."""
    return [
        pytest.param(
            kind, *point, marks=() if point == POINTS[2] or kind == "seeded" else pytest.mark.slow, id=f"{kind}-{point}"
        )
        for kind in DATA
        for point in POINTS
        if kind not in UNSEEDED
    ]


@pytest.mark.parametrize(("kind", "after", "save_freq"), cases())
@pytest.mark.first(2)
def test_resumed_training_has_the_same_order(kind: str, after: int, save_freq: Any, tmp_path: Path) -> None:
    strategy = replicas(2)
    weights, steps = fit(kind, strategy)
    found, resumed_steps = interrupted(kind, strategy, tmp_path, after, save_freq)
    assert resumed_steps == steps == EPOCHS * PER_EPOCH
    np.testing.assert_array_equal(found, weights)


class OwnStep(keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize("kind", ["seeded", "arrays", "repeated"])
@pytest.mark.long
def test_a_step_of_the_user_is_resumed_after_its_last_batch_on_accelerators(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras, "Sequential", OwnStep)
    weights, steps = fit(kind, replicas(2))
    # There, Keras reads one batch ahead.
    monkeypatch.setattr(keras.src.backend.jax.trainer, "jax", _OnAccelerator())
    found, resumed_steps = interrupted(kind, replicas(2), tmp_path, PER_EPOCH + 4, 3)
    assert resumed_steps == steps
    np.testing.assert_array_equal(found, weights)


class _OnAccelerator:
    """JAX, for Keras' training loops, on a machine with an accelerator."""

    def default_backend(self) -> str:
        return "gpu"

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)


@pytest.mark.parametrize("kind", ["arrays", "seeded"])
def test_deterministic_training(kind: str, tmp_path: Path) -> None:
    weights, _ = fit(kind, replicas(1, deterministic=True))
    found, _ = interrupted(kind, replicas(2, deterministic=True), tmp_path, PER_EPOCH + 4, 3)
    np.testing.assert_array_equal(found, weights)


@pytest.mark.parametrize("kind", UNSEEDED)
@pytest.mark.parametrize("after", [2, PER_EPOCH + 4])
@pytest.mark.first(2)
def test_unseeded_data_is_used_once_per_epoch(kind: str, after: int, tmp_path: Path) -> None:
    uses = Uses()
    interrupted(kind, replicas(2), tmp_path, after, 1, uses)
    # The first run ends with the batch whose backup is the last one.
    assert [len(batches) for batches in uses.epochs.values()] == [PER_EPOCH] * EPOCHS
    for batches in uses.epochs.values():
        assert sorted(np.concatenate(batches).tolist()) == list(range(EXAMPLES))


def test_a_backup_of_another_order_is_warned_of(tmp_path: Path) -> None:
    """The interrupted run had its data in order, and the resumed run shuffles it."""
    strategy = replicas(2)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.raises(KeyboardInterrupt):
        fit("arrays in order", strategy, backup, Interrupt(2))
    for kind in ("arrays", "seeded"):
        with (
            pytest.warns(UserWarning, match="the order of the data in the interrupted run cannot be restored"),
            pytest.raises(KeyboardInterrupt),
        ):
            fit(kind, strategy, keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1), Interrupt(1))
