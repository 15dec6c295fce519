"""The decisions of the launcher about the members of an elastic job, one by one."""

from __future__ import annotations

import pytest

from mirrored.elastic.membership import Begin, End, Epoch, Fail, Leave, Membership

A, B, C, NEW = (0, 0), (1, 0), (2, 0), (0, 1)


def running(*workers, step=None, minimum=1, limit=5):
    """A job whose first epoch runs; with `step`, every member has a snapshot of it."""
    membership = Membership(len(workers), minimum, limit)
    for worker in workers:
        commands = membership.arrived(worker)
    assert [one.worker for one in commands] == list(workers)
    if step is not None:
        for worker in workers:
            membership.snapshot_completed(worker, 1, step)
    return membership


def test_the_first_epoch_waits_for_all_workers():
    membership = Membership(2)
    assert membership.arrived(B) == []
    assert membership.arrived(A) == [Begin(A, Epoch(1, (A, B))), Begin(B, Epoch(1, (A, B)))]


def test_after_a_loss_the_others_continue_from_the_newest_snapshot_that_any_of_them_has():
    membership = running(A, B, C, step=10)
    assert membership.lost(A) == [Leave(B), Leave(C)]
    assert membership.arrived(C, [10, 20]) == []
    epoch = Epoch(2, (B, C), step=20, source=1, receivers=(0,))
    assert membership.arrived(B, [0, 10]) == [Begin(B, epoch), Begin(C, epoch)]


def test_a_worker_that_is_lost_while_the_others_leave_is_not_waited_for():
    membership = running(A, B, C)
    membership.lost(A)
    membership.arrived(B, [0])
    assert membership.leaving == {C}
    assert [one.worker for one in membership.lost(C)] == [B]


def test_a_new_worker_joins_when_a_step_is_committed_and_members_keep_their_ranks():
    membership = running(A, B, step=10)
    membership.lost(A)
    membership.arrived(B, [10])
    assert membership.arrived(NEW) == []
    assert membership.joining == [NEW]
    assert membership.snapshot_completed(B, 2, 20) == [Leave(B)]
    epoch = Epoch(3, (B, NEW), step=20, source=0, receivers=(1,))
    assert membership.arrived(B, [10, 20]) == [Begin(B, epoch), Begin(NEW, epoch)]


def test_fewer_workers_than_the_minimum_wait_for_others():
    membership = running(A, B, step=10, minimum=2)
    membership.lost(A)
    assert membership.arrived(B, [10]) == []
    assert membership.missing == 1
    assert [one.worker for one in membership.arrived(NEW)] == [B, NEW]


def test_a_step_is_committed_when_all_members_have_a_snapshot_of_it():
    membership = running(A, B)
    membership.snapshot_completed(A, 1, 20)
    assert membership.committed is None
    membership.snapshot_completed(B, 1, 10)
    assert membership.committed == 10


def test_messages_of_an_earlier_epoch_have_no_effect():
    membership = running(A, B, step=10)
    membership.lost(A)
    membership.arrived(B, [10])
    assert membership.suspected(B, 1) == []
    assert membership.done(B, 1) == []
    membership.snapshot_completed(B, 1, 30)
    assert membership.committed == 10


def test_a_collective_that_fails_without_a_loss_begins_another_epoch_with_the_same_workers():
    membership = running(A, B, step=10)
    assert membership.suspected(B, 1) == [Leave(A), Leave(B)]
    assert membership.suspected(A, 1) == []


def test_the_job_ends_when_the_function_has_returned_on_all_members():
    membership = running(A, B)
    assert membership.done(A, 1) == []
    assert membership.done(B, 1) == [End(A), End(B)]
    assert membership.has_ended
    assert membership.arrived(C) == membership.lost(A) == []


def test_a_worker_that_has_finished_trains_again_if_another_one_is_lost():
    membership = running(A, B)
    membership.done(A, 1)
    assert membership.lost(B) == [Leave(A)]
    membership.arrived(A, [10])
    assert membership.done(A, 2) == [End(A)]


def test_failures_without_progress_end_the_job():
    membership = running(A, B, limit=2)
    for epoch in (1, 2):
        assert membership.suspected(A, epoch)
        membership.arrived(A)
        membership.arrived(B)
    (failure,) = membership.suspected(A, 3)
    assert isinstance(failure, Fail)
    assert "3 failures in a row without progress" in failure.reason


@pytest.mark.parametrize("events", ["SL", "LS", "SLL", "LLS", "LL", "S"])
def test_all_events_of_one_failure_count_once(events):
    """The collectives of the others fail before or after the launcher notices the ends of processes."""
    membership = running(A, B, C, limit=2)
    for epoch in (1, 2):
        first, *others = membership.epoch.members
        for event in events:
            if event == "S":
                membership.suspected(first, epoch)
            else:
                membership.lost(others.pop())
        assert not membership.has_ended
        for worker in (*((9, 10 * epoch + number) for number in range(2 - len(others))), first, *others):
            membership.arrived(worker)
    assert not membership.has_ended
    assert [type(one) for one in membership.suspected(A, 3)] == [Fail]


def test_a_loss_while_the_members_leave_for_a_new_worker_is_a_failure():
    membership = running(A, B, step=10, limit=0)
    membership.arrived(NEW)
    membership.snapshot_completed(A, 1, 20)
    assert membership.snapshot_completed(B, 1, 20) == [Leave(A), Leave(B)]
    assert [type(one) for one in membership.lost(A)] == [Fail]


def test_progress_resets_the_count_of_failures():
    membership = running(A, limit=1)
    for epoch in range(1, 5):
        membership.snapshot_completed(A, epoch, 10 * epoch)
        assert membership.suspected(A, epoch) == [Leave(A)]
        membership.arrived(A, [10 * epoch])


def test_without_any_snapshot_left_the_job_begins_anew():
    membership = running(A, step=10)
    membership.lost(A)
    (begin,) = membership.arrived(NEW)
    assert begin.epoch == Epoch(2, (NEW,), step=None)
    assert membership.committed is None
