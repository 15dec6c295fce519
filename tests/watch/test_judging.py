from __future__ import annotations

import jax.numpy as jnp
import pytest

from mirrored.watch import judging
from mirrored.watch.roll import Roll, Standing


def standing(*labels: str, inside: bool = False, ended: bool = False, name: str = "host, process 1") -> Standing:
    return Standing(len(labels), inside, dict(enumerate(labels, 1)), ended, 1, name)


def test_the_roll_counts_every_operation_and_every_call_of_one():
    roll = Roll()
    assert roll.standing(beat=1, has_ended=False, name="n") == Standing(0, False, {}, False, 1, "n")
    with roll.at("call step"):
        assert roll.standing(beat=2, has_ended=False, name="n").inside
    roll.arrive("reduce")
    roll.depart()
    with pytest.raises(ValueError, match="inside"), roll.at("call step"):
        raise ValueError("inside")
    told = roll.standing(beat=3, has_ended=True, name="n")
    assert told.recent == {1: "call step (time 1)", 2: "reduce (time 1)", 3: "call step (time 2)"}
    assert (told.count, told.inside, told.newest) == (3, False, "call step (time 2)")
    assert Standing.from_json(told.to_json()) == told


def test_the_roll_forgets_the_oldest():
    roll = Roll()
    for _ in range(100):
        roll.arrive("step")
    recent = roll.standing(beat=1, has_ended=False, name="").recent
    assert max(recent) == 100
    assert len(recent) == 32


def test_what_the_devices_have_not_computed_is_not_over():
    class Token:
        ready = False

        def is_deleted(self) -> bool:
            return False

        def is_ready(self) -> bool:
            return self.ready

    roll, token = Roll(), Token()
    roll.arrive("step")
    roll.depart(token)
    assert roll.standing(beat=1, has_ended=False, name="").inside
    token.ready = True
    assert not roll.standing(beat=1, has_ended=False, name="").inside
    gone = jnp.ones(3)
    gone.delete()
    roll.depart(gone)
    assert not roll.standing(beat=1, has_ended=False, name="").inside


def test_workers_at_different_operations_are_named():
    told = judging.apart({0: standing("step", "reduce loss"), 1: standing("step", "step 2")})
    assert told is not None
    assert told.startswith("operation 2 of worker 0 is: reduce loss; that of worker 1 is: step 2")
    assert judging.apart({0: standing("step", "reduce"), 1: standing("step")}) is None
    assert judging.apart({}) is None


def test_a_worker_that_has_ended_before_the_others_is_named():
    board = {0: standing("a", "b", inside=True), 1: standing("a", ended=True, name="host1, process 7")}
    told = judging.left_behind(board)
    assert told is not None
    assert told.startswith(
        "worker 1 (host1, process 7) has ended after operation 1 (a), and worker 0 has come to operation 2: b"
    )
    assert judging.left_behind({0: standing("a", ended=True), 1: standing("a", inside=True)}) is None
    assert judging.left_behind({0: standing("a"), 1: standing("a", "b", ended=True)}) is None


def test_who_has_arrived_and_who_has_not():
    board = {0: standing("a", "b", inside=True), 1: standing("a"), 2: standing("a", "b")}
    told = judging.stuck(board, 12.0, 10.0)
    assert told is not None
    assert told.splitlines() == [
        "no worker has moved for 12 s",
        "  worker 0 (host, process 1) has arrived at operation 2, b, and is inside it",
        "  worker 1 (host, process 1) has NOT arrived at operation 2: its newest is 1, a",
        "  worker 2 (host, process 1) has arrived at operation 2, b, and has gone on",
    ]


def test_patience():
    apart = {0: standing("a", "b"), 1: standing("a")}
    assert judging.stuck(apart, 9.0, 10.0) is None
    together = {0: standing("a"), 1: standing("a")}
    assert judging.stuck(together, 1e9, 10.0) is None, "all compute for themselves: nobody waits"
    inside = {0: standing("a", inside=True), 1: standing("a", inside=True)}
    assert judging.stuck(inside, 11.0, 10.0) is not None


def test_silence():
    assert judging.silent({0: 1.0, 1: 5.0, 2: 3.5}, 3.0) == [1, 2]
