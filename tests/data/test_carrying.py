"""Functions of datasets have the JAX settings and context variables of the thread that reads, in whichever thread."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import Dataset
from mirrored.data.carrying import Settings

_flag = contextvars.ContextVar("_flag", default=False)


def found(x: Any) -> tuple[Any, ...]:
    third = jnp.asarray(x) / 3
    precision = jax.config.jax_default_matmul_precision
    return third, np.asarray(_flag.get()), np.asarray(precision == "highest")


def numbers() -> Dataset:
    return Dataset.from_tensor_slices(np.arange(20.0))


PIPELINES: dict[str, Callable[[], Dataset]] = {
    "map": lambda: numbers().map(found),
    "map, threads": lambda: numbers().map(found, num_parallel_calls=2),
    "prefetch": lambda: numbers().map(found).prefetch(2),
    "prefetch of a stream": lambda: numbers().filter(lambda x: True).map(found).prefetch(2),
    "two prefetches": lambda: numbers().filter(lambda x: True).prefetch(2).map(found).prefetch(2),
    "threads, prefetch": lambda: numbers().map(found, num_parallel_calls=2).prefetch(1),
    "ignore_errors": lambda: numbers().map(found, num_parallel_calls=2).ignore_errors(),
}


def check(element: tuple[Any, ...]) -> None:
    third, flag, is_highest = element
    assert (third.dtype, bool(flag), bool(is_highest)) == (np.float64, True, True)


@pytest.fixture
def settings() -> Any:
    token = _flag.set(True)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield
    _flag.reset(token)


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.usefixtures("settings")
def test_threads_of_pipelines_have_the_settings_of_the_reader(make: Callable[[], Dataset]) -> None:
    for element in make():
        check(element)
    reading = iter(make())
    for _ in range(5):
        next(reading)
    again = iter(make())
    again.set_state(reading.get_state())
    rest = list(again)
    assert len(rest) == 15
    for element in rest:
        check(element)


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_the_thread_that_reads_keeps_its_settings(make: Callable[[], Dataset]) -> None:
    reading = iter(make())
    with jax.enable_x64(True):
        next(reading)
    dtypes = []

    def read() -> None:
        next(reading)
        dtypes.append(jnp.arange(2.0).dtype)

    read()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert dtypes == [np.float32] * 2


@pytest.mark.usefixtures("settings")
def test_the_input_thread_has_the_settings_of_the_training_loop() -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.01)
        return found(x)

    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = strategy.experimental_distribute_dataset(numbers().map(slow).batch(2))
    for batch in dataset:
        for part in strategy.experimental_local_results(batch):
            check(part)
            assert part[0].dtype == jnp.float64
    assert dataset.stats().uses_worker


def test_settings_are_adopted_by_other_threads_alone() -> None:
    with jax.enable_x64(True):
        settings = Settings()
    settings.adopt()
    dtypes = [jnp.arange(2.0).dtype]

    def work() -> None:
        settings.adopt()
        dtypes.append(jnp.arange(2.0).dtype)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert dtypes == [np.float32, np.float64]


@pytest.mark.parametrize("make", [PIPELINES["map, threads"], PIPELINES["prefetch"]])
def test_threads_compute_outside_of_the_trace_in_which_they_start(make: Callable[[], Dataset]) -> None:
    reading = iter(make())
    assert jax.jit(lambda x: x + next(reading)[0])(1.0) == 1
    assert np.allclose([next(reading)[0] for _ in range(19)], np.arange(1, 20) / 3)


def test_the_input_thread_computes_outside_of_the_trace_in_which_it_starts() -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.01)
        return found(x)

    dataset = mr.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(numbers().map(slow).batch(1))
    reading = iter(dataset)
    while not dataset.stats().uses_worker:
        jax.eval_shape(lambda: next(reading)[0])
    left = 20 - dataset.stats().batches
    assert np.allclose([next(reading)[0][0] for _ in range(left)], np.arange(20 - left, 20) / 3)
