"""`fit` in scope gives the results of one device: callbacks, weights, steps per execution, saving."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from integrations.keras_models import build, compiled_model, data, scope
from mirrored.integrations.keras import keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def histories(fit: Any) -> list[dict[str, list[float]]]:
    """What `fit(model)` records on one device and on two replicas."""
    return [fit(compiled_model("dense", replicas)).history for replicas in (None, 2)]


def assert_same(one: dict[str, list[float]], two: dict[str, list[float]]) -> None:
    assert list(one) == list(two)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"sample_weight": np.linspace(0.1, 2.0, 20)},
        {"batch_size": 3},
        {"validation_split": 0.25},
    ],
    ids=["sample_weight", "uneven", "validation"],
)
@pytest.mark.first(1)
@pytest.mark.long
def test_options_of_fit(options: dict[str, Any]) -> None:
    def fit(model: Any) -> Any:
        return model.fit(*data(20), **{"batch_size": 8, **options}, epochs=2, shuffle=False, verbose=0)

    assert_same(*histories(fit))


def test_class_weight() -> None:
    x, y = data(16)
    labels = (y[:, 0] > 0).astype("int32")
    results = []
    for replicas in (None, 2):
        with scope(replicas):
            model = keras.Sequential(
                [keras.Input((6, 4)), keras.layers.Flatten(), keras.layers.Dense(2, kernel_initializer="ones")]
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("sgd", loss, metrics=["accuracy"])
        fitted = model.fit(x, labels, batch_size=8, epochs=2, class_weight={0: 1.0, 1: 5.0}, shuffle=False, verbose=0)
        results.append(fitted.history)
    assert_same(*results)


def test_several_steps_per_call() -> None:
    results = []
    for replicas in (None, 2):
        model = compiled_model("dense", replicas, steps_per_execution=2)
        results.append(model.fit(*data(24), batch_size=8, epochs=2, shuffle=False, verbose=0).history)
    assert_same(*results)


def test_callbacks_act_as_on_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates: dict[Any, list[float]] = {None: [], 2: []}

    class Rates(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, into: list[float]) -> None:
            super().__init__()
            self.into = into

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.into.append(float(self.model.optimizer.learning_rate))

    results = []
    for replicas in (None, 2):
        model = compiled_model("dense", replicas)
        here = tmp_path / str(replicas)
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.ModelCheckpoint(here / "{epoch}.weights.h5", save_weights_only=True),
            keras.callbacks.ModelCheckpoint(here / "best.keras", monitor="loss", save_best_only=True),
            keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1, restore_best_weights=True),
            Rates(rates[replicas]),
        ]
        fitted = model.fit(*data(16), batch_size=8, epochs=5, shuffle=False, verbose=2, callbacks=callbacks)
        results.append(fitted.history)
        assert {path.name for path in here.iterdir()} == {"1.weights.h5", "2.weights.h5", "best.keras"}
    assert len(results[1]["loss"]) == 2
    assert_same(*results)
    np.testing.assert_allclose(rates[2], [0.005, 0.0025])
    np.testing.assert_allclose(rates[2], rates[None])
    assert capsys.readouterr().out.count("Epoch 2/5") == 2


def test_backup_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    class Interrupt(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    def fit(model: Any, *callbacks: Any) -> Any:
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return model.fit(
            *data(16), batch_size=8, epochs=4, shuffle=False, verbose=0, callbacks=[backup, *callbacks]
        ).history["loss"]

    whole = compiled_model("dense", None).fit(*data(16), batch_size=8, epochs=4, shuffle=False, verbose=0)
    with pytest.raises(KeyboardInterrupt):
        fit(compiled_model("dense", 2), Interrupt())
    np.testing.assert_allclose(fit(compiled_model("dense", 4)), whole.history["loss"][-2:], rtol=1e-5)


@pytest.mark.parametrize(
    ("save_freq", "interrupted", "options"),
    [
        pytest.param(2, 6, {}, id="within-the-epoch"),
        pytest.param(2, 7, {}, id="last-batch"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(1, 0, {}), (3, 7, {}), (4, 8, {}), (2, 5, {"steps_per_execution": 2})]
        ),
    ],
)
@pytest.mark.first(1)
@pytest.mark.long
def test_backup_goes_on_within_the_epoch(
    save_freq: int, interrupted: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """Four batches an epoch; interrupted after a batch counted from the start of training."""

    class Interrupt(keras.callbacks.Callback):  # type: ignore[misc]
        seen = -1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen = self.params["steps"] * self.epoch + batch
            if self.seen >= interrupted:
                raise KeyboardInterrupt

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

    def fit(replicas: int | None, *callbacks: Any) -> Any:
        model = compiled_model("dense", replicas, **options)
        model.fit(*data(30), batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[*callbacks])
        return model.get_weights()

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=save_freq)

    with pytest.raises(KeyboardInterrupt):
        fit(2, backup(), Interrupt())
    for mine, whole in zip(fit(4, backup()), fit(2), strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("save_freq", [1, "epoch"])
@pytest.mark.first(1)
def test_a_backup_of_training_that_began_at_a_later_epoch_goes_on_there(save_freq: Any, tmp_path: Path) -> None:
    """Also if it was interrupted within the first epoch that it trained."""

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, interrupted: bool) -> None:
            super().__init__()
            self.interrupted = interrupted
            self.begun: list[int] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begun.append(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.interrupted and len(self.begun) == (1 if save_freq == 1 else 2):
                raise KeyboardInterrupt

    def fit(interrupted: bool, **options: Any) -> list[int]:
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=save_freq)
        epochs = Epochs(interrupted)
        model = compiled_model("dense", 2)
        model.fit(*data(16), batch_size=8, epochs=6, verbose=0, callbacks=[backup, epochs], **options)
        return epochs.begun

    with pytest.raises(KeyboardInterrupt):
        fit(True, initial_epoch=3)
    assert fit(False) == ([3, 4, 5] if save_freq == 1 else [4, 5])


def _killed_in_text(self: Path, text: str, **options: Any) -> int:
    with self.open("w") as file:
        file.write(text[:5])
    raise KeyboardInterrupt


def _killed_in_weights(self: Any, filepath: str, overwrite: bool) -> None:
    Path(filepath).write_bytes(b"half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("cut", ["weights", "note", "first rename", "second rename"])
@pytest.mark.first(2)
def test_a_backup_cut_off_leaves_a_whole_one(cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(tmp_path, save_freq=1, delete_checkpoint=False)

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    model, callback = compiled_model("dense", 2), backup()
    model.fit(*data(30), batch_size=8, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
    assert json.loads((tmp_path / "training_metadata.json").read_text())["steps"] == 4
    before = contents()
    model.set_weights([weights + 1 for weights in model.get_weights()])
    callback._current_epoch, renames = 7, []

    def replace(source: Any, target: Any, replace: Any = os.replace) -> None:
        if Path(target).parent == tmp_path and Path(source).name.startswith("new."):
            renames.append(target)
            if len(renames) == (1 if cut == "first rename" else 2):
                raise KeyboardInterrupt
        replace(source, target)

    if cut == "note":
        monkeypatch.setattr(Path, "write_text", _killed_in_text)
    elif cut == "weights":
        monkeypatch.setattr(keras.Model, "save_weights", _killed_in_weights)
    else:
        monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        callback._save_model()
    monkeypatch.undo()
    if cut != "second rename":
        assert contents() == before
        return
    assert contents().keys() == before.keys()
    other, restored = compiled_model("dense", 2), backup()
    restored.set_model(other)
    restored.set_params({"steps": 4})
    restored.on_train_begin()
    assert other._initial_epoch == 7
    for mine, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_model_that_is_saved_is_whole_or_as_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = compiled_model("dense", 2), tmp_path / name
    save = model.save_weights if "weights" in name else model.save
    save(path)
    before = path.read_bytes()
    other = compiled_model("dense", 2)
    other.load_weights(path)
    for mine, theirs in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [name]


def test_tensorboard_gets_its_events(tmp_path: Path) -> None:
    board = keras.callbacks.TensorBoard(tmp_path, histogram_freq=1, update_freq=1)
    compiled_model("dense", 2).fit(
        *data(16), batch_size=8, epochs=2, verbose=0, callbacks=[board], validation_data=data()
    )
    for part in ("train", "validation"):
        written = b"".join(path.read_bytes() for path in (tmp_path / part).glob("events*"))
        assert b"epoch_loss" in written


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    compiled_model("dense", 2).fit(*data(16), batch_size=8, verbose=1)
    assert "2/2" in capsys.readouterr().out


@pytest.mark.parametrize(("before", "after"), [(2, 4), (2, None), (None, 2)], ids=["2-4", "2-none", "none-2"])
@pytest.mark.first(2)
def test_training_goes_on_from_a_saved_model(before: int | None, after: int | None, tmp_path: Path) -> None:
    x, y = data()
    whole = compiled_model("dense", None)
    expected = [float(whole.train_on_batch(x, y)) for _ in range(4)]
    model = compiled_model("dense", before)
    losses = [float(model.train_on_batch(x, y)) for _ in range(2)]
    model.save(tmp_path / "model.keras")
    with scope(after):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    losses += [float(loaded.train_on_batch(x, y)) for _ in range(2)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    weights = loaded.get_weights()
    loaded.save_weights(tmp_path / "w.weights.h5")
    with scope(after):
        fresh = build("dense")
    fresh.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(fresh.get_weights()[0], weights[0])


def test_distributed_datasets_are_fed() -> None:
    model = compiled_model("dense", 2)
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = mr.data.Dataset.from_tensor_slices(data(16)).batch(8)
    assert len(model.fit(strategy.distribute_dataset(dataset), epochs=1, verbose=0).history["loss"]) == 1


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """An array that CPU devices alias."""
    raw = np.empty(4 * int(np.prod(shape)) + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.first(1)
def test_a_generator_that_refills_its_arrays(replicas: int) -> None:
    x, y = data(64)

    def refilled(fresh: bool) -> Any:
        arrays = aligned((8, *x.shape[1:])), aligned((8, *y.shape[1:]))
        while True:
            for first in range(0, 64, 8):
                arrays[0][...], arrays[1][...] = x[first : first + 8], y[first : first + 8]
                yield tuple(array.copy() for array in arrays) if fresh else arrays

    found = [
        compiled_model("dense", replicas)
        .fit(refilled(fresh), steps_per_epoch=8, epochs=2, shuffle=False, verbose=0)
        .history
        for fresh in (True, False)
    ]
    assert found[0] == found[1]


def made(array: np.ndarray) -> Any:
    return keras.Variable(array)


def assigned(array: np.ndarray) -> Any:
    variable = keras.Variable(np.zeros_like(array))
    variable.assign(array)
    return variable


def set_as_weights(array: np.ndarray) -> Any:
    layer = keras.layers.Dense(len(array), use_bias=False)
    layer.build((None, len(array)))
    layer.set_weights([array])
    return layer.kernel


def applied_as_gradient(array: np.ndarray) -> Any:
    variable, optimizer = keras.Variable(np.zeros_like(array)), keras.optimizers.SGD(-1.0)
    mr.get_strategy().run(lambda: optimizer.apply_gradients([(array, variable)]))
    return variable / mr.get_strategy().num_replicas_in_sync


@pytest.mark.first(4)
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("operation", [made, assigned, set_as_weights, applied_as_gradient])
def test_an_array_that_is_written_to_after_the_call(operation: Any, replicas: int) -> None:
    # JAX aliases aligned memory of NumPy, and copies large arrays from it after the call has returned.
    array, found = aligned((384, 384)), []
    with scope(replicas):
        for value in range(20):
            array[...] = value
            variable = operation(array)
            array[...] = -1
            found.append(np.unique(np.asarray(variable)).tolist())
    assert found == [[value] for value in range(20)]


# Without an argument `shuffle`, as users call it: Keras' default is True.

EXAMPLES = 12


class Sum(keras.losses.Loss):
    """Minus the sum of the predictions."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -y_pred[:, 0]


def linear_model(replicas: int | None, rate: float, **options: Any) -> Any:
    """Each use of example i adds `rate` to weight i, which starts at i."""
    with scope(replicas):
        model = keras.Sequential([keras.Input((EXAMPLES,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(rate), Sum(), **options)
    model.set_weights([np.arange(EXAMPLES, dtype="float32")[:, None]])
    return model


def examples() -> Any:
    rows = np.eye(EXAMPLES, dtype="float32")
    return mr.data.Dataset.from_tensor_slices((rows, rows[:, :1]))


KINDS = {
    "indexed": lambda: examples().batch(2),
    "repeated": lambda: examples().batch(2).repeat(1),
    "stream": lambda: examples().filter(lambda x, y: True).batch(2),
    "generator": lambda: mr.data.Dataset.from_generator(
        lambda: ((row, row[:1]) for row in np.eye(EXAMPLES, dtype="float32")), output_signature=None
    ).batch(2),
}


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.first(8)
def test_fit_takes_the_batches_of_a_dataset_in_its_order(kind: str, replicas: int | None, distributed: bool) -> None:
    model = linear_model(replicas, 0.0)
    seen: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
    dataset = KINDS[kind]()
    if distributed:
        dataset = mr.MirroredStrategy(["CPU:0", "CPU:1"]).experimental_distribute_dataset(dataset)
    model.fit(dataset, callbacks=[note], verbose=0)
    sums = np.diff(np.array(seen) * np.arange(1, len(seen) + 1), prepend=0)  # Keras logs running means
    np.testing.assert_allclose(-sums, [2 * i + 2 * i + 1 for i in range(EXAMPLES // 2)], rtol=1e-4)


@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.parametrize("seed", [None, 3])
def test_fit_uses_each_example_of_a_shuffled_dataset_once_per_epoch(seed: int | None, replicas: int | None) -> None:
    model = linear_model(replicas, 1.0)
    model.fit(examples().shuffle(EXAMPLES, seed=seed).batch(2), epochs=3, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0][:, 0] - np.arange(EXAMPLES), 3)


@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.parametrize("replicas", [None, 2])
@pytest.mark.first(2)
def test_an_epoch_ends_with_the_data_if_a_pass_is_shorter_than_the_first(
    replicas: int | None, steps_per_execution: int
) -> None:
    length = 4  # in the pass that counts the batches

    def batches() -> Any:
        for _ in range(length):
            yield np.eye(EXAMPLES, dtype="float32"), np.ones((EXAMPLES, 1), np.float32)

    def begin(epoch: int, logs: object) -> None:
        nonlocal length
        length = 4 if epoch else 2

    model = linear_model(replicas, 0.0, steps_per_execution=steps_per_execution)
    dataset = mr.data.Dataset.from_generator(batches, output_signature=None)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(dataset, epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=begin)])
    assert int(model.optimizer.iterations.value) == 2 + 4


def test_fit_warns_that_it_does_not_shuffle_a_dataset() -> None:
    model = linear_model(2, 0.0)
    with pytest.warns(UserWarning, match="shuffle=True has no effect on a dataset"):
        model.fit(examples().batch(2), shuffle=True, verbose=0)


@pytest.mark.parametrize("loop", ["predict", "evaluate", "predict_on_batch"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("change", ["freeze", "lora"])
@pytest.mark.first(3)
def test_a_loop_after_the_trainable_weights_have_changed(change: str, replicas: int, loop: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((4, 4), np.float32), np.ones((4, 1), np.float32)

    def run() -> Any:
        return model.evaluate(x, y, verbose=0) if loop == "evaluate" else getattr(model, loop)(x)

    before = run()
    if change == "freeze":
        model.layers[0].trainable = False
    else:
        with strategy.scope():
            model.layers[0].enable_lora(1)
    np.testing.assert_allclose(run(), before, rtol=1e-6)


RECOMPILED = {
    "loss": lambda model: {"loss": "mae"},
    "loss_weights": lambda model: {"loss": "mse", "loss_weights": [0.25]},
    "clipnorm": lambda model: {"optimizer": keras.optimizers.SGD(0.1, clipnorm=0.01)},
    "weight_decay": lambda model: {"optimizer": keras.optimizers.SGD(0.1, weight_decay=0.5)},
    "metrics": lambda model: {"metrics": ["mse"]},
    "activation": lambda model: setattr(model.layers[-1], "activation", keras.activations.tanh) or {},
}


@pytest.mark.parametrize("kept", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("change", list(RECOMPILED))
@pytest.mark.sampled(3)
@pytest.mark.first(1)
@pytest.mark.long
def test_compiling_a_model_again_replaces_its_programs(change: str, replicas: int, kept: bool) -> None:
    """Also while a function of the former compile is alive, whose `train_step` equals the new one."""
    options = {"loss": "mse", "metrics": ["mae"]}
    results, alive = [], []
    for count in (None, replicas):
        with scope(count):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile(keras.optimizers.SGD(0.1), **options)
        x, y = np.linspace(-1, 1, 32, dtype="f4").reshape(8, 4), np.ones((8, 1), "f4")
        model.fit(x, y, batch_size=8, verbose=0)
        model.evaluate(x, y, batch_size=8, verbose=0)
        if kept and count is not None:
            alive += [model.train_function, model.test_function]
        model.compile(**{"optimizer": keras.optimizers.SGD(0.1), **options, **RECOMPILED[change](model)})
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
        evaluated = model.evaluate(x, y, batch_size=8, verbose=0)
        results.append([*history.values(), evaluated, model.layers[-1].kernel.numpy().ravel()])
    for ours, theirs in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.first(1)
@pytest.mark.parametrize("batch_size", [4, 6], ids=["even", "uneven"])
def test_sparse_matrices(batch_size: int) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x = np.maximum(np.random.default_rng(0).normal(size=(12, 5)), 0).astype("float32")
    y = x.sum(1, keepdims=True)
    found = []
    for rows in (x, sparse.csr_matrix(x)):
        with scope(4):
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse")
        losses = model.fit(rows, y, batch_size=batch_size, shuffle=False, verbose=0).history["loss"]
        evaluated = model.evaluate(rows, y, batch_size=batch_size, verbose=0)
        found.append([*losses, evaluated, *model.predict(rows, batch_size=batch_size, verbose=0)[:, 0]])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_scalar_beside_the_arrays_of_a_batch() -> None:
    x = np.ones((4, 3), np.float32)
    with scope(2):
        rows, factor = keras.Input((3,)), keras.Input(batch_shape=())
        model = keras.Model([rows, factor], keras.layers.Dense(1, kernel_initializer="ones")(rows * factor))
    np.testing.assert_allclose(model.predict_on_batch([x, np.float32(2)]), np.full((4, 1), 6.0))


@pytest.mark.first(2)
@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("steps", [None, 1], ids=["whole", "stopped"])
def test_the_threads_that_read_a_dataset_end_with_the_loop(loop: str, steps: int | None) -> None:
    """They copy the context variables of the reader; one with the loop kept its iterator, and so the threads, alive."""
    x, y = np.ones((12, 2), np.float32), np.ones((12, 1), np.float32)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    pairs = (
        mr.data.Dataset.from_tensor_slices((x, y))
        .map(lambda a, b: (a * 2, b), num_parallel_calls=2)
        .batch(2)
        .prefetch(2)
    )
    before = set(threading.enumerate())
    options = {"steps_per_epoch" if loop == "fit" else "steps": steps}
    getattr(model, loop)(pairs if loop != "predict" else pairs.map(lambda a, b: a), verbose=0, **options)

    def are_left() -> set[threading.Thread]:
        gc.collect()
        return set(threading.enumerate()) - before

    end = time.monotonic() + 10
    while are_left() and time.monotonic() < end:
        time.sleep(0.01)
    assert not are_left()


def batches_of(count: int, is_known: bool) -> mr.data.Dataset:
    batches = mr.data.Dataset.from_tensor_slices(data(8 * count)).batch(8)
    return batches if is_known else batches.filter(lambda x, y: True)


@pytest.mark.parametrize("loop", ["fit", "validation", "evaluate", "predict"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_an_endless_generator_is_read_as_far_as_the_steps(loop: str, replicas: int | None) -> None:
    def endless() -> Any:
        for _ in range(20):
            yield data(8)
        raise AssertionError("the loop reads on")

    pairs, model = mr.data.Dataset.from_generator(endless), compiled_model("dense", replicas)
    if loop == "fit":
        model.fit(pairs, steps_per_epoch=2, epochs=2, verbose=0)
    elif loop == "validation":
        model.fit(*data(8), validation_data=pairs, validation_steps=2, epochs=2, verbose=0)
    elif loop == "evaluate":
        model.evaluate(pairs, steps=2, verbose=0)
    else:
        assert len(model.predict(pairs.map(lambda x, y: x), steps=2, verbose=0)) == 16


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize("batches", [2, 4, 6, 8])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.first(1)
def test_epochs_of_a_number_of_steps_divide_passes_of_unknown_length_as_those_of_known(
    batches: int, steps_per_execution: int
) -> None:
    def fit(is_known: bool) -> Any:
        model = compiled_model("dense", 2, steps_per_execution=steps_per_execution)
        return model.fit(batches_of(batches, is_known), steps_per_epoch=4, epochs=5, verbose=0)

    assert_same(fit(True).history, fit(False).history)
