"""`keras.Model.fit` in elastic jobs: it continues at its step, with the bits and the history of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import deque
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf
from elastic.test_recovery import start as start  # a fixture
from integrations.test_keras_resuming import EPOCHS, PER_EPOCH, fit, replicas
from mirrored._jax import distributed
from mirrored.checkpoint.json_state import decode, encode
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.data import Dataset, global_seed
from mirrored.integrations.keras import keras
from mirrored.integrations.keras.elastic_fit import FitCallback, _decoded, _encoded
from mirrored.tf._ops import generator

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

PROGRAM = """
import hashlib
import pathlib
import keras

FOLDER = pathlib.Path(__file__).parent
(FOLDER / f"started-{os.getpid()}").touch()

class Slow(keras.callbacks.Callback):
    def __init__(self, session):
        super().__init__()
        self.session, self.seen = session, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        print("step", self.seen, self.session.epoch, self.session.num_workers, flush=True)
        if LAST > 1 and self.session.epoch == 2:  # until the replacement of the killed worker has started, too
            end = time.monotonic() + 90
            while len(list(FOLDER.glob("started-*"))) < 3 and time.monotonic() < end:
                time.sleep(0.05)
        time.sleep({1: 0.15, 2: 1.5}.get(self.session.epoch, 0) if LAST > 1 else 0)

@elastic.run(snapshot_every=2)
def train(session):
    keras.utils.set_random_seed(session.num_workers)  # what is random comes from the snapshot
    strategy = mr.MultiWorkerMirroredStrategy(num_replicas=6, deterministic=DETERMINISTIC)
    random = np.random.default_rng(0)
    x = random.normal(size=(48, 8)).astype(np.float32)
    y = x[:, :1] * x[:, 1:2]
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), DROPOUT, keras.layers.Dense(1)])
        model.set_weights([np.linspace(-1, 1, one.size, dtype=np.float32).reshape(one.shape)
                           for one in model.get_weights()])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    slow, stop = Slow(session), keras.callbacks.EarlyStopping(patience=1, min_delta=10.0, start_from_epoch=2)
    dataset = mr.data.Dataset.from_tensor_slices((x, y)).shuffle(48, seed=1).batch(12)
    history = model.fit(dataset, epochs=9, verbose=0, validation_data=(x[:12], y[:12]),
                        callbacks=[slow, stop, session.fit_callback()])
    values = {name: [float(one).hex() for one in values] for name, values in history.history.items()}
    weights = [np.asarray(one).tolist() for one in model.get_weights()]
    print("result", json.dumps([weights, values, history.epoch, slow.seen, stop.stopped_epoch]), flush=True)

train()
"""
EPOCHS_BEFORE_STOP = 4


def program(*, deterministic: bool, last: int) -> str:
    head = f"DETERMINISTIC, LAST = {deterministic}, {last}\nimport keras\n"
    dropout = "keras.layers.Dropout(0.5, seed=3)" if deterministic else "keras.layers.Identity()"
    return head + PROGRAM.replace("DROPOUT", dropout)


@pytest.mark.multiprocess
@pytest.mark.timeout(300)
@pytest.mark.parametrize("deterministic", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.long
def test_fit_continues_in_the_middle_of_an_epoch(start, deterministic):
    undisturbed = start(program(deterministic=deterministic, last=0), workers=1)
    job = start(program(deterministic=deterministic, last=3), workers=2)
    # The third epoch of fit, of four steps, after the first epoch for EarlyStopping.
    job.read_until(r"\[worker 1\] step 11 1 2")
    survivor = job.pid(1)
    os.kill(job.pid(0), signal.SIGKILL)
    job.read_until(r"worker 0 was killed by SIGKILL: worker 1 continues after step")
    job.read_until(r"worker 0 joins: workers 1, 0 continue after step")  # Keras names the layers of both alike
    assert job.end() == 0
    assert undisturbed.end() == 0
    assert survivor
    (expected,), found = ([json.loads(one) for one in run.results()] for run in (undisturbed, job))
    assert expected[2:] == [list(range(EPOCHS_BEFORE_STOP)), 4 * EPOCHS_BEFORE_STOP, EPOCHS_BEFORE_STOP - 1]
    for one in found:
        assert one[2:] == expected[2:]
        if deterministic:
            assert one == expected
        else:
            jax.tree.map(lambda mine, theirs: np.testing.assert_allclose(mine, theirs, 1e-4, 1e-6), one[0], expected[0])


# In one process: a session that takes a snapshot at one commit, and an interrupt in place of a failure.


class Memory:
    """A session whose commit number `at` takes a snapshot (0: `resume`), and number `interrupt` raises."""

    def __init__(self, at: int = -1, interrupt: int = 0) -> None:
        self.at, self.interrupt, self.commits = at, interrupt, 0
        self.manifest: Any = None

    def resume(self, checkpoint: mr.checkpoint.Checkpoint, otherwise: Any = None) -> None:
        self.checkpoint, self.commits = checkpoint, 0
        if self.manifest is not None:
            restore_snapshot(checkpoint, self.manifest)
        elif self.at == 0:
            self.manifest = begin_snapshot(checkpoint).finish()

    def commit(self) -> None:
        self.commits += 1
        if self.commits == self.at and self.manifest is None:
            self.manifest = begin_snapshot(self.checkpoint).finish()
        if self.commits == self.interrupt:
            self.interrupt = 0
            raise KeyboardInterrupt


ORDERED = ("generator", "seeded", "distributed")  # the program itself determines the order


@pytest.mark.sampled(8)
@pytest.mark.parametrize("at", [0, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 2])
@pytest.mark.parametrize("kind", ["arrays", "arrays in short epochs", "PyDataset", *ORDERED, "repeated"])
def test_a_continued_fit_trains_on_the_examples_of_an_undisturbed_one(kind: str, at: int) -> None:
    strategy = replicas(2, deterministic=True)
    expected, steps = fit(kind, strategy, FitCallback(Memory()))
    memory = Memory(at, at + 3)
    with pytest.raises(KeyboardInterrupt):
        fit(kind, strategy, FitCallback(memory))
    found, iterations = fit(kind, strategy, FitCallback(memory), seed=1 if at else 0)
    assert iterations == steps == EPOCHS * PER_EPOCH
    np.testing.assert_array_equal(found, expected)


class Best(keras.callbacks.Callback):  # type: ignore[misc]
    """State as callbacks have it, and one that is no data."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.weights: Any = None
        self.of_device: Any = None
        self.lock = threading.Lock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, float(logs["loss"])))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.weights = self.model.get_weights()


def trained(memory: Memory, *, epochs: int = 4, callbacks: Any = ()) -> Any:
    """The history, the callbacks' state and the weights after a `fit` with dropout, validation and early stopping."""
    keras.utils.set_random_seed(memory.commits)
    strategy = replicas(2, deterministic=True)
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.3, seed=1), keras.layers.Dense(1)])
        model.set_weights([np.ones((3, 1), np.float32), np.zeros(1, np.float32)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
    best, stop = Best(), keras.callbacks.EarlyStopping(patience=1, min_delta=9.0, start_from_epoch=1)
    history = model.fit(
        Dataset.from_tensor_slices((x, x[:, :1])).batch(4),
        epochs=epochs,
        validation_data=(x[:4], x[:4, :1]),
        verbose=0,
        callbacks=[*callbacks, best, stop, FitCallback(memory)],
    )
    return history.epoch, history.history, best.seen, best.weights, stop.stopped_epoch, model.get_weights()


def noisy(memory: Memory, *, shares: bool) -> Any:
    """The history and weights after a `fit` whose functions of datasets draw numbers that only an operation seeds."""
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)

    def made() -> Any:
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(16, seed=1)
        return data.map(lambda a, b: (a + tf.random.normal(a.shape, seed=3), b)).batch(4)

    data = made()
    validation = (data if shares else made()).take(2)
    with replicas(2, deterministic=True).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
    callback = FitCallback(memory)
    history = model.fit(data, epochs=4, validation_data=validation, verbose=0, callbacks=[callback])
    return history.history, model.get_weights()[0].tolist()


@pytest.mark.parametrize(("at", "interrupt"), [(6, 10), (0, 2), (4, 5), (8, 14)])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.first(1)
def test_numbers_of_an_operation_seed_continue_in_training_and_validation(
    monkeypatch: pytest.MonkeyPatch, shares: bool, at: int, interrupt: int
) -> None:
    monkeypatch.setattr(generator._global, "seed", None)
    monkeypatch.setattr(global_seed.GlobalSeed, "seed", None)
    expected = noisy(Memory(), shares=shares)
    memory = Memory(at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        noisy(memory, shares=shares)
    assert noisy(memory, shares=shares) == expected


STEPS = 6
LAST = 3 * STEPS  # early stopping ends the third epoch


@pytest.mark.parametrize(("at", "interrupt"), [(0, 9), (STEPS, 8), (STEPS + 4, LAST), (2 * STEPS, LAST - 1)])
@pytest.mark.first(1)
@pytest.mark.long
def test_metrics_history_and_callbacks_continue(at: int, interrupt: int) -> None:
    expected = trained(Memory())
    assert expected[0] == [0, 1, 2]
    memory = Memory(at, interrupt)
    with pytest.raises(KeyboardInterrupt):
        trained(memory)
    found = trained(memory)
    assert found[:3] == expected[:3]
    assert found[4] == expected[4] == 2
    for mine, theirs in zip([*found[3], *found[5]], [*expected[3], *expected[5]], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.long
def test_a_fit_that_has_stopped_does_not_begin_anew() -> None:
    memory = Memory(at=LAST)
    expected = trained(memory)
    assert memory.commits == LAST
    found = trained(memory)
    assert memory.commits == 0, "no step is executed again"
    assert found[:3] == expected[:3]
    np.testing.assert_array_equal(found[5][0], expected[5][0])


@pytest.mark.long
def test_a_snapshot_in_memory_has_precedence_over_a_backup_on_disk(tmp_path: Path) -> None:
    expected = trained(Memory())
    memory = Memory(0, 8)
    backup = lambda: keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        trained(memory, callbacks=[backup()])
    found = trained(memory, callbacks=[backup()])
    assert memory.commits == LAST, "the snapshot is that of the beginning, and the backup that of step 8"
    assert found[:3] == expected[:3]
    np.testing.assert_array_equal(found[5][0], expected[5][0])


@pytest.mark.long
def test_a_backup_on_disk_serves_if_no_worker_has_a_snapshot(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(Memory(0, 8), callbacks=[keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)])
    memory = Memory(1, 3)
    with pytest.raises(KeyboardInterrupt):
        trained(memory, callbacks=[keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)])
    trained(memory, callbacks=[keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)])
    assert memory.commits == LAST - 8 - 1


def test_a_model_without_a_strategy_is_refused() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(mr.errors.ContextError, match="belongs to no strategy"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[FitCallback(Memory())])


def test_another_callback_after_it_is_refused() -> None:
    with pytest.raises(mr.errors.ContextError, match="a Best follows"):
        fit("seeded", replicas(1), FitCallback(Memory()), Best())


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.1,
        float("inf"),
        "a",
        (1, [2.5]),
        {"a": {"b": 1}},
        json.dumps,
        np.float32(0.1),
        np.arange(6).reshape(2, 3),
        1 + 2j,
        b"a",
        np.zeros((0, 2)),
        np.array(["a", "bc"]),
        np.array([1.5, 2.5], jnp.bfloat16),
        [np.array([[1.5]], jnp.float8_e4m3fn)],
        np.array(["2020-01-01"], "M8[D]"),
        {0: 0.5, (1, "a"): [None]},
        {1, 2},
        frozenset("ab"),
        deque([1, 2.5], maxlen=3),
        jnp.arange(3),
        jnp.ones((), jnp.bfloat16),
    ],
)
def test_plain_data_is_kept(value: Any) -> None:
    found = _decoded(decode(json.loads(json.dumps(encode(_encoded(value), "a callback")))))
    assert type(found) is type(value)
    assert getattr(found, "dtype", None) == getattr(value, "dtype", None)
    assert getattr(found, "maxlen", None) == getattr(value, "maxlen", None)
    np.testing.assert_equal(*(np.asarray(one) if isinstance(one, jax.Array) else one for one in (found, value)))


def test_random_keys_are_kept() -> None:
    value = jax.random.split(jax.random.key(3))
    found = _decoded(_encoded(value))
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(value))


@pytest.mark.parametrize("value", [object(), np.array([None]), np.zeros(2, "i4,f4"), [lambda: 0], {0: object()}])
def test_other_data_is_not_kept(value: Any) -> None:
    with pytest.raises(TypeError):
        _encoded(value)


class Repeated(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes the model and itself in methods that Keras calls again when `fit` continues."""

    def __init__(self) -> None:
        super().__init__()
        self.called = [0, 0, 0]
        self.rates: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.called[0] += 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.called[1] += 1
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 0.5)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not batch:
            self.rates.append(float(self.model.optimizer.learning_rate))

    def on_train_end(self, logs: Any = None) -> None:
        self.called[2] += 1
        bias = self.model.layers[-1].bias
        bias.assign(bias + 1)


@pytest.mark.parametrize("at", [STEPS + 2, 0, STEPS, LAST])
@pytest.mark.first(1)
def test_what_other_callbacks_do_counts_once(at: int) -> None:
    memory = Memory(at)
    undisturbed, callback = Repeated(), Repeated()
    scheduled = lambda: keras.callbacks.LearningRateScheduler(lambda _, rate: rate * 0.5)  # noqa: E731
    expected = trained(memory, callbacks=[undisturbed, scheduled()])
    assert undisturbed.called == [1, 3, 1]
    found = trained(memory, callbacks=[callback, scheduled()])
    assert memory.commits == LAST - at
    assert callback.called == undisturbed.called
    assert callback.rates == undisturbed.rates
    assert found[:3] == expected[:3]
    for mine, theirs in zip(found[5], expected[5], strict=True):
        np.testing.assert_array_equal(mine, theirs)


class StopsOnce(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops the training after the third step of the second epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2 and self.model.optimizer.iterations.numpy() > STEPS:
            self.model.stop_training = True


@pytest.mark.parametrize("at", [STEPS + 3, STEPS + 2])
@pytest.mark.first(1)
def test_training_that_a_step_has_stopped_stays_stopped(at: int) -> None:
    memory = Memory(at)
    expected = trained(memory, callbacks=[StopsOnce()])
    assert len(expected[2]) == STEPS + 3
    found = trained(memory, callbacks=[StopsOnce()])
    assert found[2] == expected[2]
    np.testing.assert_array_equal(found[5][0], expected[5][0])


@pytest.mark.long
def test_a_deterministic_model_takes_the_same_steps_on_any_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_elastic", lambda: True)
    (one, _), (two, _) = (fit("seeded", replicas(count, num_replicas=2, deterministic=True)) for count in (1, 2))
    np.testing.assert_array_equal(one, two)
