"""The training function without an elastic job, and what is refused."""

from __future__ import annotations

import json

import pytest

import mirrored as mr
from mirrored import elastic
from mirrored._jax import distributed
from mirrored.checkpoint import Checkpoint


def test_without_a_launcher_the_function_is_called_once_and_restores_what_it_says():
    calls = []

    @elastic.run(snapshot_every=2)
    def train(session, steps, *, start):
        calls.append((session.epoch, session.num_workers))
        checkpoint = Checkpoint(step=0)
        assert session.resume(checkpoint, lambda: start) == start
        while checkpoint.step < steps:
            checkpoint.step += 1
            session.commit()
        return checkpoint.step

    assert train(5, start=3) == 5
    assert calls == [(1, 1)]
    assert train.__name__ == "train"


def test_without_elastic_a_session_has_the_number_of_workers_of_the_job(monkeypatch):
    """`mirrored run --workers 2` without --elastic: the function is called once, on both workers."""
    cluster = {"chief": ["h0:1"], "worker": ["h1:1"], "evaluator": ["h2:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    assert elastic.run(lambda session: session.num_workers)() == 2
    monkeypatch.setattr(distributed, "is_connected", lambda: True)
    monkeypatch.setattr(distributed, "num_processes", lambda: 3)
    assert elastic.run(lambda session: session.num_workers)() == 3


def test_an_exception_of_the_function_is_raised():
    @elastic.run
    def train(session):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train()


@pytest.mark.parametrize("every", [0, -1, 2.0, True])
def test_the_number_of_steps_between_snapshots_is_checked(every):
    with pytest.raises(mr.errors.ArgumentError, match="snapshot_every"):
        elastic.run(snapshot_every=every)


def test_a_process_calls_an_elastic_function_once(monkeypatch):
    from mirrored.elastic import session

    monkeypatch.setattr(session._Running, "has_run", True)
    with pytest.raises(mr.errors.ContextError, match="put all phases of the training into one function"):
        session._begin()


def test_commit_needs_resume_and_resume_comes_once():
    @elastic.run
    def train(session):
        with pytest.raises(mr.errors.ContextError, match=r"resume was not called"):
            session.commit()
        session.resume(Checkpoint(step=0))
        with pytest.raises(mr.errors.ContextError, match="called before"):
            session.resume(Checkpoint(step=0))

    train()


def test_the_interrupt_passes_the_handlers_of_programs():
    assert not issubclass(elastic.WorkersChanged, Exception)


def test_input_of_single_workers_is_refused_in_an_elastic_job():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed.interrupt_waits_by(lambda: None)
    try:
        with pytest.raises(mr.errors.ArgumentError, match="--elastic"):
            strategy.distribute_datasets_from_function(lambda context: mr.data.Dataset.range(4).batch(2))
    finally:
        distributed.interrupt_waits_by(None)


def test_an_array_that_outlives_its_epoch_is_named():
    from mirrored.elastic.link import Place
    from mirrored.elastic.worker import _name_deleted

    error = RuntimeError("Array has been deleted with shape=float32[2].")
    _name_deleted(error, Place(2, 0, ("a:1",), "a:1", None, 0, ()))
    assert "before the workers changed" in error.__notes__[0]
