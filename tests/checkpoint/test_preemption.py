"""The SIGTERM handler: signals in quick succession."""

from __future__ import annotations

import faulthandler
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import mirrored as mr
from interrupts import acted_at
from mirrored._jax import distributed
from mirrored.checkpoint import Checkpoint, CheckpointManager
from mirrored.checkpoint import preemption as handlers
from mirrored.checkpoint.preemption import Preemption


@pytest.fixture(autouse=True)
def handler_of_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_second_signal_within_the_handler_of_the_first() -> None:
    """At every line and return of the handler, also in the standard library. A deadlock here ends the process."""
    for event_number in itertools.count():
        preemption = Preemption()
        assert not preemption.poll()
        faulthandler.dump_traceback_later(30.0, exit=True)
        try:
            came, _ = acted_at(
                event_number,
                lambda: signal.raise_signal(signal.SIGTERM),
                lambda preemption=preemption: preemption._on_signal(signal.SIGTERM, None),  # type: ignore[misc]
            )
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert preemption.poll()
        if not came:
            break
    assert event_number >= 3


class Changed(BaseException):
    """As `elastic.WorkersChanged`."""


@pytest.mark.parametrize("ends_by", [Changed(), AttributeError("no client"), RuntimeError("UNAVAILABLE")])
def test_the_thread_ends_silently_when_the_workers_of_an_elastic_job_change(
    monkeypatch: pytest.MonkeyPatch, ends_by: BaseException
) -> None:
    def get(key: str, seconds: float) -> str:
        raise ends_by

    monkeypatch.setattr(distributed, "put", lambda *_: None)
    monkeypatch.setattr(distributed, "get_if_set", lambda _: "SIGTERM")
    monkeypatch.setattr(distributed, "get", get)
    monkeypatch.setattr(distributed, "is_elastic", lambda: True)
    preemption = Preemption()
    preemption._watch()
    assert not preemption.poll()


def test_workers_that_do_not_answer_are_waited_for_as_everywhere_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def get(key: str, seconds: float) -> str:
        assert seconds == 7
        raise distributed.NoAnswer(key)

    monkeypatch.setenv("MIRRORED_AGREEMENT_SECONDS", "7")
    monkeypatch.setattr(distributed, "put", lambda *_: None)
    monkeypatch.setattr(distributed, "get_if_set", lambda _: "SIGTERM")
    monkeypatch.setattr(distributed, "get", get)
    preemption = Preemption()
    preemption._watch()
    assert not preemption.poll()
    said = capsys.readouterr().err
    assert "worker 0 has not told its step within 7 s (MIRRORED_AGREEMENT_SECONDS)" in said


def test_a_handler_of_before_the_job_agrees_with_the_other_workers_once_the_job_is_formed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a manager that the program creates before its strategy."""
    store = {"mirrored/preemption/steps/1": "6"}
    preemption = Preemption()
    assert not preemption.poll()  # a step without a job counts on no worker
    monkeypatch.setattr(distributed, "is_connected", lambda: True)
    monkeypatch.setattr(distributed, "num_processes", lambda: 2)
    monkeypatch.setattr(distributed, "put", store.setdefault)
    monkeypatch.setattr(distributed, "get_if_set", store.get)
    monkeypatch.setattr(distributed, "get", lambda key, _: store[key])
    assert not any(preemption.poll() for _ in range(2))
    signal.raise_signal(signal.SIGTERM)
    assert preemption._thread is not None
    preemption._thread.join(10)
    assert store["mirrored/preemption/steps/0"] == "2"
    assert [preemption.poll() for _ in range(5)] == [False, False, False, False, True], "after the 7th step"
    preemption.leave()


def test_a_forked_child_does_not_watch_as_if_it_were_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    preemption = Preemption()
    preemption._reset()  # as in a child; its copy of the library believes that it is connected
    monkeypatch.setattr(distributed, "is_connected", lambda: True)
    monkeypatch.setattr(distributed, "get_if_set", lambda key: None)
    try:
        assert not preemption.poll()
        assert preemption._thread is None
    finally:
        preemption.leave()


@pytest.mark.parametrize("resumes", ["recent", "archive"])
def test_of_several_managers_the_one_that_the_program_resumes_from_saves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, resumes: str
) -> None:
    monkeypatch.setattr(handlers, "_made", [])
    checkpoint = Checkpoint(v=mr.Variable(0.0))
    managers = {
        name: CheckpointManager(checkpoint, tmp_path / name, save_interval_steps=interval, save_on_preemption=True)
        for name, interval in (("archive", 1000), ("recent", 10))
    }
    managers[resumes].restore_latest()
    assert managers["recent"].latest_checkpoint is None  # the first one that was asked counts

    def train(steps: range) -> None:
        for step in steps:
            managers["archive"].save(step)
            managers["recent"].save(step)

    train(range(15, 17))
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        train(range(17, 20))
    assert [path.name for path in tmp_path.glob("*/ckpt-*")] == ["ckpt-17"]
    assert (tmp_path / resumes / "ckpt-17").is_dir()


@pytest.mark.parametrize("has_saved", [False, True])
def test_a_manager_that_no_step_saves_with_does_not_keep_another_one_from_saving(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_saved: bool
) -> None:
    """The first manager is one of pretrained weights, or of a training that has ended."""
    monkeypatch.setattr(handlers, "_made", [])
    checkpoint = Checkpoint(v=mr.Variable(0.0))
    first, second = (CheckpointManager(checkpoint, tmp_path / name, 3, 10, save_on_preemption=True) for name in "ab")
    first.restore_latest()
    if has_saved:
        first.save(1)
    signal.raise_signal(signal.SIGTERM)
    if has_saved:
        assert second.save(1) is None
    with pytest.raises(SystemExit):
        second.save(2)
    assert (tmp_path / "b" / "ckpt-2").is_dir()
