"""Ordered callbacks in compiled functions: each program is accepted or refused alike in every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import mirrored as mr
from mirrored.errors import ContextError

LAYOUTS = [(1, 2), (2, 2), (2, 3)]
PRINTS: dict[str, Callable[[Any], Any]] = {
    "debug.print": lambda x: jax.debug.print("{}", x, ordered=True),
    "debug.callback": lambda x: jax.debug.callback(lambda _: None, x, ordered=True),
    "in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, a: (jax.debug.print("{}", i, ordered=True), a)[1], x),
}


def strategy_of(devices: int, replicas: int) -> mr.MirroredStrategy:
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", PRINTS)
def test_ordered_printing_is_refused_in_every_layout(layout: tuple[int, int], name: str) -> None:
    strategy = strategy_of(*layout)
    with strategy.scope():
        w = mr.Variable(1.0)

    def replica() -> Any:
        PRINTS[name](w.read_value())
        return w.assign_add(1.0)

    def outside() -> Any:
        PRINTS[name](w.read_value())
        return w.assign_add(1.0)

    for function in (lambda: strategy.run(replica), outside):
        with pytest.raises(ContextError, match=r"ordered=True[\s\S]*io_callback"):
            mr.function(function)()
    assert float(w) == 1.0


def test_ordered_printing_on_one_replica(capfd: pytest.CaptureFixture[str]) -> None:
    strategy = strategy_of(1, 1)
    mr.function(lambda: strategy.run(lambda: PRINTS["debug.print"](jnp.float32(2.5))))()
    jax.effects_barrier()
    assert "2.5" in capfd.readouterr().out


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ordered_io_callbacks_keep_the_order_of_each_replica(layout: tuple[int, int]) -> None:
    strategy, seen = strategy_of(*layout), list[tuple[str, int]]()

    def replica() -> Any:
        own = mr.get_replica_context().replica_id_in_sync_group + 0
        for name in "ab":
            io_callback(lambda i, name=name: seen.append((name, int(i))), None, own, ordered=True)
        return own

    step = mr.function(lambda: strategy.run(replica))
    for _ in range(2):
        seen.clear()
        jax.block_until_ready(jax.tree.leaves(step()))
        jax.effects_barrier()
        for i in range(layout[1]):
            assert [name for name, one in seen if one == i] == ["a", "b"]


@pytest.mark.parametrize("layout", [*LAYOUTS, (1, 3)], ids=str)
@pytest.mark.parametrize("first", ["waits for the loop", "is read by the loop"])
def test_ordered_io_callbacks_keep_their_order_around_a_collective_in_a_loop(
    layout: tuple[int, int], first: str
) -> None:
    """The replicas of a device share the loop, which waits for all; what does not depend on it could run first."""
    strategy, seen = strategy_of(*layout), list[tuple[int, str]]()

    def note(text: str, own: Any, value: Any = 0.0, result: Any = None) -> Any:
        def called(own: Any, value: Any) -> Any:
            seen.append((int(own), text))
            return None if result is None else value

        return io_callback(called, result, own, value, ordered=True)

    def replica() -> Any:
        context = mr.get_replica_context()
        own = context.replica_id_in_sync_group + 0
        start = (
            own * 1.0
            if first == "waits for the loop"
            else note("0", own, own * 1.0, jax.ShapeDtypeStruct((), "float32"))
        )
        total, _ = jax.lax.scan(lambda sum_, _: (context.all_reduce("SUM", sum_) / 2, None), start, length=2)
        note("1", own, total)
        note("2", own)
        return total

    step = mr.function(lambda: strategy.run(replica))
    jax.block_until_ready(jax.tree.leaves(step()))
    jax.effects_barrier()
    expected = ["1", "2"] if first == "waits for the loop" else ["0", "1", "2"]
    for i in range(layout[1]):
        assert [text for one, text in seen if one == i] == expected
