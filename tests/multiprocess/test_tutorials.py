"""TensorFlow's tutorials for several workers, as programs of our own, under `mirrored run`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.jobs import Ran, environment
from mirrored.launcher import Job

__all__ = ["environment"]  # a fixture for every test here
pytestmark = [pytest.mark.multiprocess, pytest.mark.slow, pytest.mark.timeout(150)]
PROGRAMS = Path(__file__).parent / "programs"


def lines(ran: Ran, worker: int) -> list[str]:
    name = f"[worker {worker}] "
    return [one.removeprefix(name) for one in ran.out.splitlines() if one.startswith(name) and "[Gloo]" not in one]


def test_a_custom_training_loop(tmp_path):
    program = str(PROGRAMS / "tutorial_custom_loop.py")
    ran = Ran(Job(program=program, arguments=(str(tmp_path), "2"), workers=2))
    assert ran.code == 0, ran.errors
    told = [
        re.findall(r"accuracy: ([\d.]+), train_loss: ([\d.]+)\.", line)[0] for line in lines(ran, 0) if "Epoch" in line
    ]
    assert len(told) == 2
    assert float(told[1][1]) < float(told[0][1])
    assert [line for line in lines(ran, 1) if "Epoch" in line] == [line for line in lines(ran, 0) if "Epoch" in line]
    assert [one.name for one in (tmp_path / "ckpt").iterdir() if "workertemp" in one.name] == []
    again = Ran(Job(program=program, arguments=(str(tmp_path), "3"), workers=2))
    assert again.code == 0, again.errors
    assert lines(again, 0)[0] == lines(again, 1)[0] == "restored 2"
    assert [line for line in lines(again, 0) if "Epoch" in line][0].startswith("Epoch: 2, accuracy: ")


def test_fit(tmp_path):
    ran = Ran(Job(program=str(PROGRAMS / "tutorial_keras.py"), arguments=(str(tmp_path),), workers=2))
    assert ran.code == 0, ran.errors
    own = [
        [line for line in lines(ran, worker) if line.startswith(("losses", "accuracy", "restored"))]
        for worker in (0, 1)
    ]
    assert own[0] == own[1]
    first, last = map(float, re.findall(r"[\d.]+", own[0][0]))
    assert last < first
    assert own[0][2] == "restored True"
    assert (tmp_path / "model.keras").exists()
