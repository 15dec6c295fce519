"""The phases of a change of the workers, and the launcher's log of events."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored._jax.durations import durations
from mirrored.elastic.phases import PHASES, Phases
from mirrored.launcher.events import FILE, EventLog

PAGE = Path(__file__).parents[2] / "docs" / "design" / "elastic.md"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_each_phase_ends_when_the_next_one_begins():
    phases = Phases(Clock())
    for name in ("waiting", "connecting", "creating"):
        phases.begin(name)
    assert phases.end()[0] == [("waiting", 1.0, 1.0), ("connecting", 2.0, 1.0), ("creating", 3.0, 1.0)]
    assert phases.end()[0] == []


def test_a_change_that_is_interrupted_by_another_one_is_forgotten():
    phases = Phases(Clock())
    for name in ("interrupting", "waiting", "meeting", "interrupting", "clearing"):
        phases.begin(name)
    assert [name for name, _, _ in phases.end()[0]] == ["interrupting", "clearing"]


def test_tracing_lowering_and_compiling_are_measured():
    phases = Phases()
    phases.begin("first step")

    @mr.function
    def step(x):
        return jnp.sin(x) + jax.jit(lambda y: y * 3)(x)

    step(jnp.ones(3))
    _, programs = phases.end()
    assert set(programs) == {"tracing", "lowering", "compiling", "loading"}
    assert all(programs[kind] > 0 for kind in ("tracing", "lowering", "compiling"))
    before = durations()
    step(jnp.ones(3))
    assert durations() == before


def test_every_phase_and_event_is_documented():
    text = PAGE.read_text()
    assert [name for name in PHASES if f"| {name} |" not in text] == []
    source = (Path(mr.__file__).parent / "launcher" / "elastic.py").read_text()
    written = {part.split('"')[1] for part in source.split("self._events.write(")[1:]}
    assert len(written) >= 8
    assert [event for event in sorted(written) if f"| `{event}` |" not in text] == []


def test_events_are_lines_of_json(tmp_path):
    log = EventLog(tmp_path, pytest.fail, Clock())
    log.write("lost", worker=1, how="was killed by SIGKILL")
    log.close()
    log.write("lost", worker=2)
    lines = (tmp_path / FILE).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"at": 1.0, "event": "lost", "worker": 1, "how": "was killed by SIGKILL"}
    ]


def test_a_log_that_cannot_be_written_is_reported_once(tmp_path):
    said: list[str] = []
    log = EventLog(tmp_path / "missing", said.append)
    log.write("lost", worker=1)
    log.close()
    assert len(said) == 1
    assert "cannot be written" in said[0]


def test_without_a_folder_there_is_no_log():
    EventLog(None, pytest.fail).write("lost")
