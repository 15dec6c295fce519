"""The launcher of an elastic job, with workers that are played: what it decides when they end or do not come."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mirrored._jax import recovery
from mirrored.launcher import elastic
from mirrored.launcher.coordination import SingleMachine
from mirrored.launcher.job import Job
from mirrored.launcher.output import Output


class Worker:
    """A worker process that does what the test says."""

    def __init__(self, job: Job, rank: int, environment: Any, descriptors: Any = ()) -> None:
        self.rank = self.group = rank
        self.code: int | None = None
        self.failing = self.note = None
        self.messages: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.descriptors: list[int] = []
        self.process = SimpleNamespace(pid=rank, wait=lambda: None)

    def says(self, kind: str, epoch: int, **more: Any) -> None:
        self.messages.append(json.dumps({"kind": kind, "epoch": epoch, **more}))

    def arrives(self, epoch: int = 0) -> None:
        self.says("arrived", epoch, snapshots=[], holds=[])

    def tell(self, message: str) -> None:
        self.told.append(json.loads(message))

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL and self.code is None:
            self.code = -number

    def end(self, output: Output) -> None:
        self.signal(signal.SIGKILL)

    def listen(self) -> bool:
        return False

    def pump(self, output: Output, **_: Any) -> None:
        pass


Scene = Iterator[None]
Play = Callable[[Callable[[list[Worker]], Scene]], tuple[int, str]]


@pytest.fixture
def job_options() -> dict[str, Any]:
    """The options of the job that `play` runs; a test may change them."""
    return {"workers": 2, "elastic": True}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, job_options: dict[str, Any]) -> Play:
    """Runs a job of two workers; each step of the scene is followed by one round of the launcher."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(recovery, "serve", lambda *_: None)
    monkeypatch.setattr(recovery, "end_service", lambda _: None)

    def run(scene: Callable[[list[Worker]], Scene]) -> tuple[int, str]:
        started: list[Worker] = []

        def start(*arguments: Any) -> Worker:
            started.append(Worker(*arguments))
            return started[-1]

        monkeypatch.setattr(elastic, "Worker", start)
        errors = io.BytesIO()
        output = Output(None, errors)
        supervisor = elastic.ElasticSupervisor(Job(program="train.py", **job_options), output, SingleMachine(2))
        acts = scene(started)
        monkeypatch.setattr(supervisor, "_wait_for_news", lambda: next(acts))
        code = supervisor._run(SimpleNamespace(add=lambda _: None, remove=lambda _: None))  # type: ignore[arg-type]
        output.close(1)
        return code, errors.getvalue().decode()

    return run


def test_a_job_whose_last_worker_is_killed_has_failed_also_after_another_one_has_left_early(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "_EARLY_SECONDS", 0.0)

    def scene(workers: list[Worker]) -> Scene:
        for one in workers:
            one.arrives()
        yield
        workers[1].code = 0
        yield
        yield
        workers[0].arrives(1)
        yield
        assert workers[0].told[-1]["kind"] == "begin"
        workers[0].code = -signal.SIGKILL
        yield

    code, said = play(scene)
    assert code == 1
    assert "worker 0 was killed by SIGKILL; no worker is left" in said


@pytest.mark.parametrize("killed", [0, 1])
def test_a_job_has_failed_if_one_worker_is_killed_and_the_other_leaves_early(play: Play, killed: int) -> None:
    def scene(workers: list[Worker]) -> Scene:
        for one in workers:
            one.arrives()
        yield
        workers[killed].code, workers[1 - killed].code = -signal.SIGKILL, 0
        yield
        yield

    code, said = play(scene)
    assert code in (1, 137)
    assert f"worker {killed} was killed by SIGKILL" in said


def test_a_job_whose_workers_all_leave_early_has_succeeded(play: Play) -> None:
    """As after SIGTERM, when all workers have saved the same step."""

    def scene(workers: list[Worker]) -> Scene:
        for one in workers:
            one.arrives()
        yield
        for one in workers:
            one.code = 0
        yield
        yield

    assert play(scene)[0] == 0


def test_a_worker_that_does_not_reach_the_training_function_is_named_and_ends_the_job(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("MIRRORED_RENDEZVOUS_SECONDS", "40")

    def scene(workers: list[Worker]) -> Scene:
        now[0] += 100  # nobody waits
        yield
        workers[0].arrives()
        yield
        for _ in range(3):
            assert all(one.code is None for one in workers if one is workers[0] or one is workers[-1])
            for _ in range(2):
                now[0] += 21
                workers[0].says("beat", 0, probes={})
                yield

    code, said = play(scene)
    assert code == 137
    assert "[mirrored] worker 1 did not reach the function with mirrored.elastic.run yet" in said
    how = "worker 1 did not reach the function with mirrored.elastic.run for 40 s (MIRRORED_RENDEZVOUS_SECONDS)"
    assert f"{how} and was killed 3 times before it could join" in said


def one_is_killed(workers: list[Worker]) -> Scene:
    """Worker 1 is killed in the first epoch, and worker 0 arrives for the next one, in which it has not stepped yet."""
    for one in workers:
        one.arrives()
    yield
    workers[1].code = -signal.SIGKILL
    yield
    workers[0].arrives(1)
    yield
    assert workers[0].told[-1]["kind"] == "begin"


def test_a_replacement_starts_after_the_next_step_of_the_others(play: Play) -> None:
    def scene(workers: list[Worker]) -> Scene:
        yield from one_is_killed(workers)
        yield
        assert len(workers) == 2
        workers[0].says("stepped", 2, phases={}, programs={})
        yield
        assert len(workers) == 3
        workers[0].says("done", 2)
        yield
        workers[0].code = 0
        yield

    assert play(scene)[0] == 0


def test_a_replacement_starts_at_once_where_the_others_are_too_few(play: Play, job_options: dict[str, Any]) -> None:
    job_options["min_workers"] = 2

    def scene(workers: list[Worker]) -> Scene:
        for one in workers:
            one.arrives()
        yield
        workers[1].code = -signal.SIGKILL
        yield
        assert len(workers) == 3
        workers[0].arrives(1)
        workers[2].arrives()
        yield
        for one in (workers[0], workers[2]):
            one.says("done", 2)
        yield
        workers[0].code = workers[2].code = 0
        yield

    assert play(scene)[0] == 0


def test_a_replacement_that_starts_slowly_while_the_others_train_is_left_alone(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setenv("MIRRORED_RENDEZVOUS_SECONDS", "40")

    def scene(workers: list[Worker]) -> Scene:
        yield from one_is_killed(workers)
        for _ in range(4):
            now[0] += 21
            workers[0].says("beat", 2, probes={})
            yield
        assert len(workers) == 3
        assert workers[2].code is None
        workers[0].says("done", 2)
        yield
        workers[0].code = 0
        yield

    code, said = play(scene)
    assert code == 0
    assert "did not reach" not in said


def test_replacements_that_die_before_they_arrive_do_not_make_the_job_fail(play: Play) -> None:
    def scene(workers: list[Worker]) -> Scene:
        yield from one_is_killed(workers)
        workers[0].says("stepped", 2, phases={}, programs={})
        yield
        for number in range(3):
            assert len(workers) == 3 + number
            workers[-1].code = -signal.SIGKILL
            yield
        assert len(workers) == 5
        workers[0].code = 0
        yield

    code, said = play(scene)
    assert code == 0
    assert "3 times before it could join; it is not replaced again" in said


@pytest.mark.parametrize("code", [-signal.SIGKILL, 3])
def test_a_replacement_that_dies_after_the_training_does_not_make_the_job_fail(play: Play, code: int) -> None:
    """The member still runs the code after its training function, such as the last save."""

    def scene(workers: list[Worker]) -> Scene:
        yield from one_is_killed(workers)
        workers[0].says("stepped", 2, phases={}, programs={})
        yield
        assert len(workers) == 3
        workers[0].says("done", 2)
        yield
        assert workers[0].told[-1]["kind"] == "end"
        workers[2].code = code
        yield
        workers[0].code = 0
        yield

    status, said = play(scene)
    assert status == 0, said


def test_a_job_that_restarts_processes_says_once_that_no_worker_joins(play: Play, job_options: dict[str, Any]) -> None:
    job_options["max_workers"] = 3

    def scene(workers: list[Worker]) -> Scene:
        yield
        for worker in workers:
            worker.arrives()
            worker.says("restarts", 0, reason="NCCL cannot abort")
        yield
        for worker in workers:
            worker.says("done", 1)
        yield
        for worker in workers:
            worker.code = 0
        yield

    _, said = play(scene)
    assert said.count("--max-workers has no effect: no worker can join, because NCCL cannot abort") == 1
