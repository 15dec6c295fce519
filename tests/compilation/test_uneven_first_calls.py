"""A compiled function whose first batch is uneven runs eagerly, and is then traced to check its loss scale only."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint
from mirrored.compilation.ragged import check_scale
from mirrored.errors import LossScaleWarning
from mirrored.runtime import ambient as contexts

STRATEGY = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
LAYOUTS = pytest.mark.parametrize("devices", [1, 2], ids=["2x1", "1x2"])


def batches(rows, strategy=STRATEGY):
    return strategy.distribute_dataset([np.ones((rows, 4), np.float32)] * 3)


class Store:
    """Variables in a dict."""

    def __init__(self):
        self.params = {}

    def get(self, name, shape):
        if name not in self.params:
            self.params[name] = mr.Variable(jnp.ones(shape), name=name)
        return self.params[name]

    def __call__(self, x):
        return jnp.sum(x @ self.get("w", (x.shape[-1], 2)) + self.get("b", (2,)), axis=1)

    @property
    def variables(self):
        return list(self.params.values())


class Flagged:
    """A flag, and attributes that `build` sets."""

    def __init__(self):
        self.built, self.scale = False, 1.0

    def build(self, size):
        self.w = mr.Variable(jnp.ones((size,)), name="w")
        self.scale, self.offset = size**-0.5, 0.25
        self.built = True

    def __call__(self, x):
        if not self.built:
            self.build(x.shape[-1])
        return x @ self.w.read_value() * self.scale + self.offset

    @property
    def variables(self):
        return [self.w]


class Blocks:
    """A list to which the first call appends."""

    def __init__(self):
        self.blocks, self.built = [], False

    def __call__(self, x):
        if not self.built:
            self.blocks.extend(mr.Variable(0.1 * jnp.eye(4), name=f"block{i}") for i in range(2))
            self.built = True
        for w in self.blocks:
            x = x + x @ w.read_value()
        return jnp.sum(x, axis=1)

    @property
    def variables(self):
        return self.blocks


class Random:
    """Initial values of NumPy's global generator."""

    def __init__(self):
        self.w = None

    def __call__(self, x):
        if self.w is None:
            self.w = mr.Variable(np.random.normal(size=4).astype(np.float32), name="w")
        return x @ self.w.read_value()

    @property
    def variables(self):
        return [self.w]


def trained(strategy, kind, rows, compiled, accumulates=False):
    np.random.seed(0)
    model, optimizer, accumulators = kind(), mr.optimizers.SGD(0.05, momentum=0.9), []

    def replica(x):
        with mr.GradientTape() as tape:
            squares = model(x) ** 2
            loss = jnp.sum(squares) / max(len(x), 1) if accumulates else mr.losses.average_loss(squares)
        gradients = tape.gradient(loss, model.variables)
        if not accumulates:
            optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
            return loss
        if not accumulators:
            accumulators.append(mr.GradientAccumulator(model.variables))
        accumulators[0].add(gradients, count=len(x))
        accumulators[0].apply(optimizer)
        return loss

    def step(x):
        return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    call = mr.function(step) if compiled else step
    losses = [float(call(x)) for x in batches(rows, strategy)]
    return (
        losses,
        [v.numpy() for v in model.variables],
        sorted(one.name for one in optimizer.variables),
        np.random.rand(),
    )


@pytest.mark.first(1)
@LAYOUTS
@pytest.mark.parametrize("accumulates", [False, True], ids=["optimizer", "accumulator"])
@pytest.mark.parametrize("kind", [Store, Flagged, Blocks, Random])
def test_what_the_first_call_creates_is_what_is_trained(devices, kind, accumulates):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=2)
    expected = trained(strategy, kind, 3, False, accumulates)
    losses, values, names, drawn = trained(strategy, kind, 3, True, accumulates)
    np.testing.assert_allclose(losses, expected[0], rtol=1e-6)
    for value, other in zip(values, expected[1], strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6)
    assert (names, drawn) == (expected[2], expected[3])


def test_a_deferred_restore_reaches_the_variable_that_is_trained(tmp_path):
    saved = Store()
    saved.get("w", (4, 2)).assign(np.full((4, 2), 5.0))
    saved.get("b", (2,))
    path = Checkpoint(model=saved).save(tmp_path / "saved")
    model = Store()
    Checkpoint(model=model).restore(path)
    step = mr.function(lambda x: STRATEGY.run(model, args=(x,)))
    step(next(iter(batches(3))))
    np.testing.assert_array_equal(model.params["w"].numpy(), np.full((4, 2), 5.0))


def test_what_a_later_call_creates_is_created_then():
    model, made = Store(), []

    class Trainer:
        calls, built, mean = 0, False, None

        @mr.function
        def step(self, x):
            self.calls += 1
            if self.calls > 1 and not self.built:
                made.append(self.calls)
                self.mean = mr.Variable(jnp.zeros(()), name="mean")
                self.built = True
            return STRATEGY.run(lambda x: model(x), args=(x,))

    trainer, seen = Trainer(), []
    for x in batches(3):
        trainer.step(x)
        seen.append((trainer.calls, trainer.built, trainer.mean is not None))
    assert seen == [(1, False, False), (2, True, True), (3, True, True)]
    assert made == [2]


def wrong_step(w, optimizer, fails=()):
    fails = list(fails)

    def replica(x):
        with mr.GradientTape() as tape:
            loss = jnp.mean(x @ w)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    def step(x):
        STRATEGY.run(replica, args=(x,))
        if fails:
            raise fails.pop()

    return mr.function(step)


def test_a_warning_that_is_an_error_undoes_the_step():
    with STRATEGY.scope():
        w, optimizer = mr.Variable(jnp.ones(4)), mr.optimizers.SGD(0.1)
    step, x = wrong_step(w, optimizer), next(iter(batches(3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        for _ in range(2):
            with pytest.raises(LossScaleWarning):
                step(x)
    np.testing.assert_array_equal(w.numpy(), np.ones(4))


def test_the_first_call_that_succeeds_is_checked():
    with STRATEGY.scope():
        w, optimizer = mr.Variable(jnp.ones(4)), mr.optimizers.SGD(0.1)
    step, x = wrong_step(w, optimizer, [KeyError("first")]), next(iter(batches(3)))
    with pytest.raises(KeyError):
        step(x)
    with pytest.warns(LossScaleWarning):
        step(x)


class Rows(queue.Queue):
    """A queue of the user's own class."""


@pytest.mark.parametrize("make", [queue.Queue, queue.SimpleQueue, Rows, multiprocessing.SimpleQueue])
def test_elements_of_a_queue_are_taken_once(make):
    rows = make()
    rows.put(1.0)
    step = mr.function(lambda x: STRATEGY.run(lambda x, row: x.sum() + row, args=(x, jnp.asarray(rows.get()))))
    caller = threading.Thread(target=lambda: step(next(iter(batches(3)))), daemon=True)
    caller.start()
    caller.join(30)
    assert not caller.is_alive()
    assert rows.empty()


def test_records_that_another_thread_appends_during_the_check_stay():
    class Log:
        def __init__(self):
            self.scale, self.records, self.begins, self.ends = 1.0, [], threading.Event(), threading.Event()

        def write(self):
            for _ in range(2):  # in the call and in the check
                assert self.begins.wait(60)
                self.begins.clear()
                self.records.append(1)
                self.ends.set()

    class Trainer:
        def __init__(self):
            self.log = Log()

        @mr.function
        def step(self, x):
            self.log.begins.set()
            assert self.log.ends.wait(60)
            self.log.ends.clear()
            return STRATEGY.run(lambda x: x.sum() * self.log.scale, args=(x,))

    trainer = Trainer()
    writing = threading.Thread(target=trainer.log.write)
    writing.start()
    trainer.step(next(iter(batches(3))))
    writing.join()
    assert trainer.log.records == [1, 1]


def test_elements_that_another_thread_puts_during_the_check_stay():
    class Trainer:
        def __init__(self):
            self.rows = queue.Queue()

        @mr.function
        def step(self, x):
            putting = threading.Thread(target=self.rows.put, args=(1,))
            putting.start()
            putting.join()
            return STRATEGY.run(lambda x: x.sum(), args=(x,))

    trainer = Trainer()
    trainer.step(next(iter(batches(3))))
    assert trainer.rows.qsize() == 1


def test_an_exception_in_the_check_leaves_the_context_as_it_was():
    before = contexts.ambient()

    def trace():  # what a signal handler raises where a `with` block ends may skip the rest of its exit
        contexts.replace_current(before.fork(creators=(print,)))
        raise RuntimeError("too slow")

    check_scale(lambda: None, "step", [], trace)
    assert contexts.ambient() is before
