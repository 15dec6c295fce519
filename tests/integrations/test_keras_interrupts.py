"""After Ctrl-C in a Keras loop, all variables have their values from before or after the same step."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.integrations.keras import keras, newest, plain, private
from mirrored.testing import count_work

BATCH = 4
X, Y = np.ones((16, 2), np.float32), np.zeros((16, 1), np.float32)
LAYOUTS = {"1/1": (1, 1), "2/2": (2, 2), "4/2": (2, 4)}


class Counting(keras.layers.Layer):  # type: ignore[misc]
    """A weight whose gradient is 1 in every step, and a statistic that counts the steps."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(2, 1), initializer="zeros", name="kernel")
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1.0)
        return x @ self.kernel


def model_of(
    devices: int, replicas: int, deterministic: bool = False, model_class: Any = keras.Sequential, **options: Any
) -> Any:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        model = model_class([keras.Input((2,)), Counting()])
        model.compile(keras.optimizers.SGD(1.0, momentum=0.5), lambda y, predicted: predicted - y, **options)
    return model


def check(model: Any) -> int:
    """How many steps the model has seen; asserts that all of it has seen as many."""
    steps = int(model.optimizer.iterations.value)
    layer = model.layers[0]
    momentum = next(one for one in model.optimizer.variables if "momentum" in one.path)
    velocity = kernel = 0.0
    for _ in range(steps):
        velocity = 0.5 * velocity - 1.0
        kernel += velocity
    np.testing.assert_allclose(layer.kernel.numpy(), np.full((2, 1), kernel), rtol=1e-5)
    np.testing.assert_allclose(momentum.numpy(), np.full((2, 1), velocity), rtol=1e-5)
    assert float(layer.steps.value) == steps
    return steps


class Interrupts:
    """Raises KeyboardInterrupt at a moment after the dispatch or before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def after(self, owner: Any, name: str, times: int) -> None:
        """After so many calls of a function, in place of its result."""
        original, left = getattr(owner, name), [times]

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return result

        self.monkeypatch.setattr(owner, name, interrupted)


LOOPS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "fit": (lambda model: model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0), 1),
    "train_on_batch": (lambda model: model.train_on_batch(X[:BATCH], Y[:BATCH]), 1),
    "evaluate": (lambda model: model.evaluate(X, Y, batch_size=BATCH, verbose=0), 0),
    "predict": (lambda model: model.predict(X, batch_size=BATCH, verbose=0), 0),
    "predict_on_batch": (lambda model: model.predict_on_batch(X[:BATCH]), 0),
    "test_on_batch": (lambda model: model.test_on_batch(X[:BATCH], Y[:BATCH]), 0),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("loop", "step"), [*((loop, 1) for loop in LOOPS), ("fit", 2), ("evaluate", 2)])
@pytest.mark.first(3)
def test_an_interrupt_between_a_step_and_the_assignment_of_its_results(monkeypatch, loop, layout, step):
    """The state that the step was given is deleted, and only the step's own call has what it gave."""
    run, trains = LOOPS[loop]
    model = model_of(*layout)
    model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0)
    before = check(model)
    with monkeypatch.context() as patched:
        Interrupts(patched).after(newest, "consume", step)
        with pytest.raises(KeyboardInterrupt):
            run(model)
    assert check(model) == before + trains * step
    run(model)
    check(model)


@pytest.mark.parametrize("name", ["_get_jax_state", "_purge_model_variables", "jax_state_sync"])
@pytest.mark.parametrize("loop", ["fit", "train_on_batch", "predict"])
@pytest.mark.first(5)
def test_an_interrupt_while_the_state_is_taken_or_given_back(monkeypatch, loop, name):
    run, _ = LOOPS[loop]
    model = model_of(2, 2)
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    run(model)
    before = check(model)
    with monkeypatch.context() as patched:
        Interrupts(patched).after(keras.Model, name, 1)
        try:
            run(model)
        except KeyboardInterrupt:
            pass
        else:
            assert (loop, name) == ("train_on_batch", "_purge_model_variables")
    assert check(model) >= before
    after = check(model)
    run(model)
    assert check(model) >= after


@pytest.mark.parametrize(
    "options",
    [{}, {"deterministic": True}, {"steps_per_execution": 2}, {"run_eagerly": True}],
    ids=["plain", "deterministic", "steps_per_execution", "eager"],
)
@pytest.mark.chaos
# Where Keras checks inputs it catches any exception, and warns; in callbacks of the garbage collector Python
# reports exceptions, and goes on.
@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_many_moments(options):
    model = model_of(2, 2, **options)

    def run() -> None:
        model.fit(X, Y, batch_size=BATCH, epochs=3, verbose=0)
        model.evaluate(X, Y, batch_size=BATCH, verbose=0)
        model.train_on_batch(X[:BATCH], Y[:BATCH])

    run()
    seen = [check(model)]
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(25):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002 * (number + 1))
                run()
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            seen.append(check(model))
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


# Where Keras enters and leaves its blocks.
SCOPE_FILES = {
    inspect.getfile(one)
    for one in (
        keras.StatelessScope,
        keras.src.backend.common.symbolic_scope,
        keras.src.backend.common.name_scope,
        keras.src.backend.common.global_state,
        plain,
    )
}


def _interrupted(place: int, call: Callable[[], object]) -> KeyboardInterrupt | None:
    """Makes a call with an interrupt where CPython may deliver one in `SCOPE_FILES`; None after the last place."""
    left = [place]

    def profile(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_filename in SCOPE_FILES and event in ("call", "c_return"):
            left[0] -= 1
            if left[0] < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt(f"{frame.f_code.co_qualname}:{frame.f_lineno} {event}")

    gc.disable()  # Python ignores exceptions in `__del__`
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.setprofile(None)
        gc.enable()
    return None


def _scopes_of_keras() -> list[Any]:
    state = vars(private._global_state.GLOBAL_STATE_TRACKER)
    return [value[:] if isinstance(value := state.get(name), list) else value for name in private._SCOPES]


# The steps are primes, because the places repeat.
@pytest.mark.parametrize(
    ("kind", "every"), [("eager", 37), ("compiled", 7), ("trace", 5), ("shapes", 1), ("optimizer", 5)]
)
@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
def test_an_interrupt_leaves_no_block_of_keras_open(kind, every):
    strategy = mr.MirroredStrategy(jax.devices()[:1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=kind == "eager")
    x, weights = X[:BATCH], model.trainable_variables
    model.optimizer.build(weights)

    def stateless(x):
        return model.stateless_call([one.value for one in weights], [], x)[0]

    calls = {
        "eager": lambda: model.train_on_batch(x, Y[:BATCH]),
        "compiled": lambda: model.predict(x, verbose=0),
        "trace": lambda: mr.function(lambda: strategy.run(stateless, args=(x,)))(),
        "shapes": lambda: keras.src.backend.compute_output_spec(stateless, keras.KerasTensor((None, 2))),
        "optimizer": lambda: model.optimizer.apply([one.value for one in weights], weights),
    }
    calls[kind]()
    before = _scopes_of_keras()
    for place in itertools.count(0, every):
        came = _interrupted(place, calls[kind])
        assert _scopes_of_keras() == before, came
        if came is None:
            break
    assert place > 20


class _Stop(keras.callbacks.Callback):  # type: ignore[misc]
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        raise RuntimeError("stop")

    on_predict_batch_end = on_test_batch_end


@pytest.mark.parametrize("next_loop", ["evaluate", "predict", "fit", "predict_on_batch"])
@pytest.mark.parametrize("loop", ["evaluate", "predict"])
@pytest.mark.first(2)
def test_a_loop_after_one_that_an_exception_has_ended(loop, next_loop):
    model = model_of(2, 2)
    model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0)
    before = check(model)
    arguments = (X, Y) if loop == "evaluate" else (X,)
    with pytest.raises(RuntimeError, match="stop"):
        getattr(model, loop)(*arguments, batch_size=BATCH, verbose=0, callbacks=[_Stop()])
    LOOPS[next_loop][0](model)
    assert check(model) == before + 8 * (next_loop == "fit")


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["compiled", "eager"])
@pytest.mark.parametrize("inner", ["predict_on_batch", "predict", "test_on_batch", "evaluate"])
@pytest.mark.first(2)
def test_a_callback_runs_another_loop_on_the_newest_weights(inner, options):
    """It refers to the model as a global: `self.model` would sync the state."""
    model = model_of(2, 2, **options)
    kernels = []

    class Inner(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            LOOPS[inner][0](model)
            kernels.append(model.get_weights()[0][0, 0])

    model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[Inner()])
    np.testing.assert_allclose(kernels, [-1.0, -2.5, -4.25, -6.125])
    assert check(model) == 4


@pytest.mark.parametrize("assigning", ["learning_rate", "keras", "plain", "run", "function", "tape"])
@pytest.mark.first(3)
def test_an_assignment_in_a_batch_callback_holds(assigning):
    model = model_of(2, 2)
    optimizer, strategy = model.optimizer, model.layers[0].kernel.mirrored.strategy
    rate = optimizer._learning_rate

    def under_tape() -> None:
        with mr.GradientTape():  # the function does not read the variable
            mr.function(lambda: rate.mirrored.assign(0.0, read_value=False))()

    ways = {
        "learning_rate": lambda: setattr(optimizer, "learning_rate", 0.0),
        "keras": lambda: rate.assign(0.0),
        "plain": lambda: rate.mirrored.assign(0.0),
        "run": lambda: strategy.run(lambda: rate.mirrored.assign(0.0)),
        "function": lambda: mr.function(lambda: rate.mirrored.assign(0.0))(),
        "tape": under_tape,
    }
    end = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None if batch else ways[assigning]())
    model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[end])
    assert float(rate.value) == 0.0
    assert float(model.layers[0].steps.value) == int(optimizer.iterations.value) == 4
    # SGD has moved the kernel by -1, and from then on the velocity halves.
    np.testing.assert_allclose(model.layers[0].kernel.numpy(), np.full((2, 1), -1.0 - 0.5 - 0.25 - 0.125))


class Norm(keras.Sequential):  # type: ignore[misc]
    """A model whose step reads its weights, which are not among the values that Keras passes to the metrics."""

    def compute_metrics(self, *batch: Any, **named: Any) -> Any:
        norm = sum(keras.ops.sum(variable) for variable in (*self.weights, *self.optimizer.variables) if variable.shape)
        return {**super().compute_metrics(*batch, **named), "norm": norm}


@pytest.mark.parametrize(
    "options",
    [{}, {"run_eagerly": True, "jit_compile": False}, {"steps_per_execution": 2}],
    ids=["compiled", "eager", "two steps"],
)
@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.first(2)
def test_a_step_that_reads_variables_leaves_the_newest_values_to_the_callbacks(assigned, options):
    model = model_of(2, 2, model_class=Norm, **options)
    kernel, sizes, seen = model.layers[0].kernel, (4, 4, 2, 2, 4, 4), []

    def end(batch: int, logs: Any) -> None:
        if assigned and batch == 1:
            kernel.assign(np.full((2, 1), 100.0))
        elif assigned or batch > 3:
            seen.append(float(kernel.numpy()[0, 0]))

    batches = ((X[:size], Y[:size]) for size in sizes)
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=end)]
    model.fit(batches, steps_per_epoch=len(sizes), shuffle=False, verbose=0, callbacks=callbacks)
    if assigned:
        assert int(model.optimizer.iterations.value) == float(model.layers[0].steps.value) == 6
        assert 85 < float(kernel.numpy()[0, 0]) == seen[-1] < 100
    else:
        assert check(model) == 6
        assert seen[-1] == kernel.numpy()[0, 0]


@pytest.mark.parametrize(
    "options",
    [{}, {"steps_per_execution": 2}, {"steps_per_execution": 2, "run_eagerly": True, "jit_compile": False}],
    ids=["one step", "two steps", "eager"],
)
@pytest.mark.parametrize("loop", ["fit", "evaluate"])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_data_generator_reads_variables_before_each_step(interrupted, loop, options, monkeypatch):
    """A compiled step donates the arrays that the generator has read."""
    model, seen = model_of(2, 2, **options), []

    def batches():
        for _ in range(4):
            seen.append(float(model.layers[0].kernel.numpy()[0, 0]))
            yield X[:BATCH], Y[:BATCH]

    def run() -> None:
        if loop == "fit":
            model.fit(batches(), steps_per_epoch=4, shuffle=False, verbose=0)
        else:
            model.evaluate(batches(), steps=4, verbose=0)

    if interrupted:
        owner = newest.EagerStep if "run_eagerly" in options else newest._Step
        Interrupts(monkeypatch).after(owner, "__call__", 3)
        with pytest.raises(KeyboardInterrupt):
            run()
    else:
        run()
    assert len(seen) == (3 if interrupted else 4)
    assert check(model) in ([0] if loop == "evaluate" else [2, 3] if interrupted else [4])


@pytest.mark.parametrize(
    "options",
    [{}, {"deterministic": True}, {"steps_per_execution": 2}, {"run_eagerly": True, "jit_compile": False}],
    ids=["one step", "deterministic", "two steps", "eager"],
)
@pytest.mark.parametrize("inner", ["predict", "predict_on_batch", "evaluate", "test_on_batch"])
@pytest.mark.first(3)
def test_a_data_generator_runs_another_loop_of_the_model(inner, options):
    """As for targets that depend on predictions. The other loop donates the arrays that the step was given."""
    model, seen = model_of(2, 2, **options), []

    def batches():
        for _ in range(4):
            LOOPS[inner][0](model)
            seen.append(float(model.layers[0].kernel.numpy()[0, 0]))
            yield X[:BATCH], Y[:BATCH]

    read = []
    end = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: read.append(check(model)))
    model.fit(batches(), steps_per_epoch=4, shuffle=False, verbose=0, callbacks=[end])
    assert check(model) == 4
    if "steps_per_execution" not in options:
        assert seen == [0.0, 0.0, -2.5, -4.25]  # Keras reads two batches before the first step, to know their shapes
        assert read == [1, 2, 3, 4]


@pytest.mark.first(8)
@pytest.mark.parametrize(
    ("loop", "inner"),
    [("fit", "train_on_batch"), ("fit", "fit"), ("evaluate", "train_on_batch"), ("predict", "train_on_batch")],
)
@pytest.mark.parametrize("steps", [1, 2], ids=["one step", "two steps"])
@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_a_data_generator_trains_the_model(eager, steps, loop, inner):
    """An eager step that continued from the weights before the inner step would undo it."""
    options = {"run_eagerly": True, "jit_compile": False} if eager else {}
    model, seen = model_of(2, 2, steps_per_execution=steps, **options), []
    calls = {
        "train_on_batch": lambda: model.train_on_batch(X[:BATCH], Y[:BATCH]),
        "fit": lambda: model.fit(X[:BATCH], Y[:BATCH], batch_size=BATCH, verbose=0),
    }

    def batches():
        for _ in range(4):
            calls[inner]()
            seen.append(check(model))
            yield X[:BATCH], Y[:BATCH]

    if loop == "fit":
        model.fit(batches(), steps_per_epoch=4, shuffle=False, verbose=0)
    else:
        getattr(model, loop)(batches(), steps=4, verbose=0)
    # Keras reads two batches before the first step, to know their shapes.
    assert seen == ([1, 2, 5, 7] if loop == "fit" else [1, 2, 3, 4])
    assert check(model) == (8 if loop == "fit" else 4)


@pytest.mark.parametrize("shared", [0, 1], ids=["first", "last"])
def test_a_data_generator_runs_a_loop_of_a_model_that_shares_a_layer(shared):
    """It donates the arrays of that layer only."""

    def losses(has_inner):
        keras.utils.set_random_seed(0)
        with mr.MirroredStrategy(jax.devices()[:2]).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3), keras.layers.Dense(3)])
            model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
            other = keras.Sequential([keras.Input((3,)), model.layers[shared]])

        def batches():
            for _ in range(4):
                if has_inner:
                    other.predict(np.ones((2, 3), np.float32), verbose=0)
                yield np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)

        return model.fit(batches(), steps_per_epoch=2, epochs=2, shuffle=False, verbose=0).history["loss"]

    assert losses(True) == losses(False)


def test_weights_that_were_set_are_not_undone_by_a_batch_that_fails():
    model = model_of(2, 2)
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    model.layers[0].kernel.assign(np.full((2, 1), 7.0))
    with pytest.raises(Exception, match="shape|dot"):
        model.train_on_batch(np.ones((BATCH, 3), np.float32), Y[:BATCH])
    assert model.layers[0].kernel.numpy().tolist() == [[7.0], [7.0]]
    model.train_on_batch(X[:BATCH], Y[:BATCH])
    assert int(model.optimizer.iterations.value) == 2


def test_a_step_is_traced_and_compiled_once():
    model = model_of(2, 2)
    traces = []
    train_step = model.train_step
    model.train_step = lambda state, batch: traces.append(1) or train_step(state, batch)
    model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0)
    assert len(traces) == 1
    with count_work() as counted:
        model.fit(X, Y, batch_size=BATCH, epochs=1, verbose=0)
    assert (counted.traces, counted.compilations) == (0, 0)


def test_a_model_without_a_strategy_has_keras_own_step():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    assert "_mirrored_newest" not in vars(model)


@pytest.mark.parametrize("loop", ["predict", "evaluate"])
def test_layers_keep_their_weights_if_one_is_frozen_after_an_interrupted_loop(loop):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        layers = [keras.layers.Dense(2, use_bias=False) for _ in range(2)]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile("sgd", "mse")
    kernels = [np.eye(2, dtype=np.float32) * 2, np.eye(2, dtype=np.float32) * 3]
    model.set_weights(kernels)

    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise KeyError("stop")

        on_test_batch_end = on_predict_batch_end

    x = np.ones((4, 2), np.float32)
    with pytest.raises(KeyError, match="stop"):
        getattr(model, loop)(*([x] if loop == "predict" else [x, x]), batch_size=4, verbose=0, callbacks=[Stop()])
    layers[0].trainable = False
    for layer, kernel in zip(layers[::-1], kernels[::-1], strict=True):
        np.testing.assert_array_equal(np.asarray(layer.kernel), kernel)
