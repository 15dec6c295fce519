from __future__ import annotations

import json

import jax.numpy as jnp
import pytest

from mirrored.watchdog import hang_detection
from mirrored.watchdog.collective_log import CollectiveLog
from mirrored.watchdog.worker_progress import WorkerProgress


def standing(*labels: str, inside: bool = False, ended: bool = False, name: str = "host, process 1") -> WorkerProgress:
    """Returns the progress of a worker that has reached these operations; ``step@7`` is one called at line 7."""
    roll = CollectiveLog()
    for label in labels:
        operation, _, line = label.partition("@")
        roll.arrive(operation, line and f"train.py:{line} in main")
    roll.inside = inside
    made = roll.progress(beat=1, has_ended=ended, name=name)
    assert WorkerProgress.from_json(json.loads(json.dumps(made.to_json()))) == made
    return made


def test_the_roll_counts_every_operation_and_every_call_of_one():
    roll = CollectiveLog()
    assert roll.progress(beat=1, has_ended=False, name="n") == WorkerProgress(beat=1, name="n")
    with roll.at("call step", "train.py:3 in main"):
        assert roll.progress(beat=2, has_ended=False, name="n").inside
    roll.arrive("reduce")
    roll.depart()
    with pytest.raises(ValueError, match="inside"), roll.at("call step", "train.py:3 in main"):
        raise ValueError("inside")
    told = roll.progress(beat=3, has_ended=True, name="n")
    assert [told.called(number) for number in range(5)] == [
        None, "call step (time 1)", "reduce (time 1)", "call step (time 2)", None,
    ]  # fmt: skip
    assert (told.count, told.inside, told.newest) == (3, False, "call step (time 2) at train.py:3 in main")
    assert [(one.label, one.first, one.times) for one in told.places] == [("reduce", 2, 1), ("call step", 1, 2)]


@pytest.mark.parametrize("before", [0, 1, 5, 63, 64, 2000])
@pytest.mark.parametrize("label", ["call step", "other"])
def test_a_cancelled_operation_leaves_no_trace(before, label):
    roll, expected = CollectiveLog(), CollectiveLog()
    for _ in range(before):
        roll.arrive("call step", "train.py:3 in main")
        expected.arrive("call step", "train.py:3 in main")
    roll.arrive(label, "train.py:3 in main")
    roll.cancel()
    for log in (roll, expected):
        log.arrive("compare")
        log.depart()
        for _ in range(70):
            log.arrive(label, "train.py:3 in main")
    assert roll.progress(beat=1, has_ended=False, name="n") == expected.progress(beat=1, has_ended=False, name="n")


def test_the_roll_remembers_many_calls_of_few_operations_and_forgets_the_oldest_of_many():
    assert standing(*["step"] * 1000).called(1) == "step (time 1)"
    told = standing(*["step", "other"] * 1000)
    assert (told.oldest, told.called(1968), told.called(1969)) == (1969, None, "step (time 985)")
    assert told.described(7) == "an operation that is forgotten"
    assert len(told.to_json()["places"]) == 2
    many = CollectiveLog()
    for number in range(5000):
        many.arrive(f"step {number}")
    assert len(many._places) == len(many._times) == 1000, "the memory does not grow for ever"
    assert many.progress(beat=1, has_ended=False, name="").has_more_places


@pytest.mark.parametrize("others", [997, 998, 999, 1000])
def test_workers_that_call_an_operation_at_different_numbers_of_lines_forget_the_same_of_it(others):
    """Worker 0 has one line more, that of a branch, and forgets its oldest line one operation earlier."""
    between = [f"create variable {number}@5" for number in range(others)]
    zero = standing("reduce@10", "reduce@20", *between, "reduce@20", "create variable 0@5", "reduce@10")
    one = standing("reduce@10", "reduce@10", *between, "reduce@10", "create variable 0@5", "reduce@10")
    assert hang_detection.mismatched_calls({0: zero, 1: one}) is None


def test_what_the_devices_have_not_computed_is_not_over():
    class Token:
        ready = False

        def is_deleted(self) -> bool:
            return False

        def is_ready(self) -> bool:
            return self.ready

    roll, token = CollectiveLog(), Token()
    roll.arrive("step")
    roll.depart(token)
    assert roll.progress(beat=1, has_ended=False, name="").inside
    token.ready = True
    assert not roll.progress(beat=1, has_ended=False, name="").inside
    gone = jnp.ones(3)
    gone.delete()
    roll.depart(gone)
    assert not roll.progress(beat=1, has_ended=False, name="").inside


def test_workers_at_different_operations_are_named():
    told = hang_detection.mismatched_calls({0: standing("step", "reduce loss"), 1: standing("step", "step 2@12")})
    assert told is not None
    assert told.startswith(
        "operation 2 of worker 0 is: reduce loss (time 1); that of worker 1 is: step 2 (time 1) at train.py:12 in main."
    )
    assert hang_detection.mismatched_calls({0: standing("step", "reduce"), 1: standing("step")}) is None
    assert hang_detection.mismatched_calls({}) is None


def test_an_extra_call_is_named_where_it_was_made_however_late_the_difference_shows():
    regular = ["step@5"] * 100
    chief, other = standing(*regular, "step@9", *regular, "save@7"), standing(*regular, *regular, "save@7")
    told = hang_detection.mismatched_calls({0: chief, 1: other})
    assert told is not None
    assert told.startswith(
        "operation 201 of worker 0 is: step (time 201) at train.py:5 in main; that of worker 1 is: save (time 1) at "
        "train.py:7 in main. Worker 0 (host, process 1) has executed step at train.py:9 in main (once; the first is "
        "its operation 101), and worker 1 has not. All workers must make"
    )


def test_fast_workers_whose_memories_do_not_overlap_are_told_apart():
    regular = ["draw@3", "step@5"] * 1000
    chief, other = standing(*regular[:20], "step@9", *regular[:900]), standing(*regular)
    assert chief.count < other.oldest
    told = hang_detection.mismatched_calls({0: chief, 1: other})
    assert told is not None
    assert told.startswith("workers 0 and 1 have not made the same calls up to operation 64; now worker 0 is at: step ")
    assert "Worker 0 (host, process 1) has executed step at train.py:9 in main (once; the first is" in told
    assert hang_detection.mismatched_calls({0: standing(*regular[:900]), 1: other}) is None


def test_a_line_that_only_one_has_passed_is_noticed_while_the_calls_still_pair():
    board = {0: standing("step@5", "step@9", "step@5"), 1: standing("step@5", "step@5", "step@5")}
    assert hang_detection.mismatched_calls(board) is None
    assert hang_detection.unmatched_calls(board) == {
        (0, "step", "train.py:9 in main"): "worker 0 (host, process 1) has executed step at train.py:9 in main (once; "
        "the first is its operation 2), and worker 1 has not"
    }


def test_the_two_branches_of_an_if_are_no_calls_of_one_alone():
    assert hang_detection.unmatched_calls({0: standing("step@5", "step@9"), 1: standing("step@5", "step@11")}) == {}
    assert hang_detection.unmatched_calls({0: standing("step@5", "step@9"), 1: standing("step@5")}) == {}, (
        "it may still come"
    )
    assert hang_detection.unmatched_calls({0: standing("step@5", "step@9"), 1: standing("step@5", ended=True)}) != {}


def test_a_worker_that_has_ended_before_the_others_is_named():
    board = {0: standing("a", "b", inside=True), 1: standing("a", ended=True, name="host1, process 7")}
    told = hang_detection.ended_early(board)
    assert told is not None
    assert told.startswith(
        "worker 1 (host1, process 7) has ended after operation 1 (a (time 1)), and worker 0 has reached operation 2: b "
    )
    assert hang_detection.ended_early({0: standing("a", ended=True), 1: standing("a", inside=True)}) is None
    assert hang_detection.ended_early({0: standing("a"), 1: standing("a", "b", ended=True)}) is None


def test_who_has_arrived_and_who_has_not():
    board = {0: standing("a", "b", inside=True), 1: standing("a"), 2: standing("a", "b")}
    told = hang_detection.deadlock(board, 12.0, 10.0)
    assert told is not None
    assert told.splitlines() == [
        "no worker has made progress for 12 s",
        "  worker 0 (host, process 1) has arrived at operation 2, b (time 1), and is inside it",
        "  worker 1 (host, process 1) has NOT arrived at operation 2: its newest is 1, a (time 1)",
        "  worker 2 (host, process 1) has arrived at operation 2, b (time 1), and has returned from it",
    ]


def test_patience():
    apart = {0: standing("a", "b"), 1: standing("a")}
    assert hang_detection.deadlock(apart, 9.0, 10.0) is None
    together = {0: standing("a"), 1: standing("a")}
    assert hang_detection.deadlock(together, 1e9, 10.0) is None, "all compute independently: no worker waits"
    inside = {0: standing("a", inside=True), 1: standing("a", inside=True)}
    assert hang_detection.deadlock(inside, 11.0, 10.0) is not None


def test_silence():
    assert hang_detection.without_heartbeat({0: 1.0, 1: 5.0, 2: 3.5}, 3.0) == [1, 2]
