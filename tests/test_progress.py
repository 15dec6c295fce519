"""`mirrored.progress` counts steps and shows values without waiting for the devices."""

from __future__ import annotations

import io
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

import mirrored as mr
from mirrored import progress as progress_function
from mirrored.errors import ArgumentError


def console(*, terminal: bool) -> rich.console.Console:
    return rich.console.Console(file=io.StringIO(), force_terminal=terminal, width=160)


def shown(one: rich.console.Console) -> str:
    assert isinstance(one.file, io.StringIO)
    return one.file.getvalue()


def test_a_log_gets_one_line_with_the_last_values() -> None:
    out = console(terminal=False)
    bar = mr.progress([1, 2, 3], description="epoch 1", console=out)
    assert [x for x in bar if bar.show(loss=jnp.float32(x) / 2) is None] == [1, 2, 3]
    assert shown(out) == "epoch 1: 3 of 3 steps, loss 1.5\n"


def test_a_terminal_gets_a_bar() -> None:
    out = console(terminal=True)
    bar = mr.progress(range(5), description="epoch 2", console=out)
    for x in bar:
        bar.show(loss=float(x))
    assert "epoch 2" in shown(out)
    assert "5/5" in shown(out)
    assert "loss 4" in shown(out)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_total_of_a_distributed_dataset(replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    batches = [np.ones((4, 2), np.float32)] * 3
    with strategy.scope():
        count = mr.Variable(0.0)

    @mr.function
    def step(batch: jax.Array) -> jax.Array:
        losses = strategy.run(lambda x: x.sum(), args=(batch,))
        count.assign_add(1.0)
        return strategy.reduce(mr.ReduceOp.SUM, losses, axis=None)

    out = console(terminal=False)
    bar = mr.progress(strategy.experimental_distribute_dataset(batches), console=out)
    for batch in bar:
        bar.show(loss=step(batch), count=count)
    jax.block_until_ready(count.read_value())
    assert shown(out).startswith("3 of 3 steps")


def test_an_iterator_has_no_total() -> None:
    out = console(terminal=False)
    assert len(list(mr.progress(iter([1, 2]), console=out))) == 2
    assert shown(out) == "2 steps\n"
    assert len(list(mr.progress(iter([1, 2]), total=7, console=out))) == 2
    assert shown(out) == "2 steps\n2 of 7 steps\n"


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_loader_of_unknown_length_has_no_total(error: type[Exception]) -> None:
    class Loader:
        def __iter__(self) -> Any:
            return iter([1, 2])

        def __len__(self) -> int:
            raise error("the dataset has no length")

    out = console(terminal=False)
    for _ in mr.progress(Loader(), console=out):
        pass
    assert shown(out) == "2 steps\n"


@pytest.mark.long
def test_show_does_not_wait() -> None:
    @jax.jit
    def slow(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 2000, lambda _, y: jnp.tanh(y @ y), x).sum()

    matrix = jnp.full((256, 256), 0.01)
    jax.block_until_ready(slow(matrix))
    out = console(terminal=False)
    bar = mr.progress([matrix], console=out)
    started = time.perf_counter()
    for x in bar:
        value = slow(x)
        bar.show(loss=value)
    looped = time.perf_counter() - started
    jax.block_until_ready(value)
    assert looped < 0.5 * (time.perf_counter() - started), "the loop waited for the value"
    assert shown(out) == "1 of 1 steps\n", "a value that is not computed is not shown"


def test_a_donated_value_is_left_out() -> None:
    out = console(terminal=False)
    bar = mr.progress([0], console=out)
    for _ in bar:
        value = jnp.float32(3.0)
        bar.show(loss=value, step=1)
        value.delete()
    assert shown(out) == "1 of 1 steps, step 1\n"


def test_a_break_and_an_error_end_the_bar() -> None:
    out = console(terminal=False)
    for x in mr.progress(range(9), console=out):
        if x == 3:
            break
    assert shown(out) == "3 of 9 steps\n"
    iteration = iter(mr.progress(range(9), console=out))
    next(iteration)
    with pytest.raises(ZeroDivisionError):
        iteration.throw(ZeroDivisionError)
    assert shown(out) == "3 of 9 steps\n0 of 9 steps\n"


@pytest.mark.parametrize("value", [jnp.ones(2), "text", mr.PerReplica((1.0, 2.0))])
def test_what_is_no_number_is_refused(value: object) -> None:
    bar = mr.progress([1], console=console(terminal=False))
    with pytest.raises(ArgumentError, match=r"Progress\.show[\s\S]*strategy\.reduce"):
        bar.show(loss=value)


def test_the_public_name_is_the_function() -> None:
    assert callable(progress_function)
    assert mr.progress is progress_function
