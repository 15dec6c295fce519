"""`mirrored plan`: from a training script to a table, reasons and a picture."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from mirrored.cli import main, plan

SCRIPT = """
import sys
import jax.numpy as jnp
import numpy as np
import mirrored as mr

strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = mr.Variable(np.ones((8, 8), np.float32))

@mr.function
def step(x):
    def replica(x):
        with mr.GradientTape() as tape:
            loss = jnp.square(x @ w).mean()
        w.assign_sub(0.1 * mr.get_replica_context().all_reduce("mean", tape.gradient(loss, w)))
    strategy.run(replica, args=(x,))

if __name__ == "__main__":
    share = int(sys.argv[1])
    x = strategy.distribute_values_from_function(lambda c: np.ones((share, 8), np.float32))
    while True:
        step(x)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "step.py"
    path.write_text(SCRIPT)
    return str(path)


def invoke(*arguments):
    return CliRunner().invoke(main, ["plan", *arguments])


@pytest.mark.long
def test_a_table_reasons_and_a_picture(script, tmp_path):
    picture = tmp_path / "plan.png"
    result = invoke(script, "--replicas", "8,4096", "--bandwidth", "1kB/s", "--latency", "5us", "--steps", "2",
                    "--plot", str(picture), "--", "6")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Predicted time of a step" in result.output
    assert "Bottlenecks:" in result.output
    assert re.search(
        r"4096 replicas, communication-bound: compute \d+%, exchange \d+%.*; summing gradients", result.output
    )
    assert "1 all-reduces in the program, executed as 1; network 1e-06 GB/s, 5 us" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_figures_for_programs(script):
    result = invoke(
        script, "--replicas", "2,4", "--keep", "global-batch", "--json", "--steps", "1", "--shared", "--", "8"
    )
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert [(one["replicas"], one["examples_per_replica"]) for one in figures] == [(2, 8), (4, 4)]
    assert all(0 < one["efficiency"] and one["step_seconds"] > 0 for one in figures)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--replicas", "8;64", "--replicas must be numbers separated by commas"),
        ("--bandwidth", "fast", "--bandwidth must be a number of bytes per second"),
        ("--bandwidth", "100Gb/s", "--bandwidth must be a number of bytes per second (B/s) or of bits"),
        ("--bandwidth", "1.2.3GB/s", "--bandwidth must be a number of bytes per second"),
        ("--bandwidth", "1e999", "--bandwidth must be a number of bytes per second"),
        ("--latency", "5 parsecs", "--latency must be a number of seconds"),
        ("--latency", ".us", "--latency must be a number of seconds"),
        ("--replicas", "0", "--replicas must be numbers separated by commas, each at least 1"),
        ("--speed", "nan", "--speed must be a positive number"),
    ],
)
def test_unreadable_numbers_are_refused_before_anything_runs(script, option, value, told):
    result = invoke(script, option, value, "--", "6")
    assert result.exit_code == 1
    assert told in result.output


@pytest.mark.long
def test_goodput_with_given_and_measured_times(script):
    options = ("--failure-every", "10m", "--restart-time", "60s", "--checkpoint-every", "2m", "--steps", "2")
    result = invoke(script, "--replicas", "8", *options, "--json", "--", "6")
    assert result.exit_code == 0, result.output
    failures = json.loads(result.output)[0]["failures"]
    assert failures["failure_every_seconds"] == 600.0
    assert failures["costs"]["restart_seconds"] == 60.0
    assert 0.5 < failures["costs"]["recovery_seconds"] < 60.0, "measured"
    disk, memory, elastic = failures["ways"]
    assert disk["interval_seconds"] == pytest.approx(120.0, rel=0.01)
    assert disk["goodput"] < memory["goodput"] < elastic["goodput"] < 1
    shown = invoke(script, "--replicas", "8", *options, "--", "6").output
    assert "Predicted goodput with a failure every 10 min" in shown
    assert "a restart 60 s (given)" in shown


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--failure-every", "often"], "--failure-every must be a time, more than 0, with its unit"),
        (["--failure-every", "0h"], "--failure-every must be a time"),
        (["--failure-every", "4h", "--restart-time", "1.2.3s"], "--restart-time must be a time"),
        (["--restart-time", "1m"], "--restart-time was given without --failure-every"),
    ],
)
def test_unreadable_options_about_failures_are_refused(script, options, told):
    result = invoke(script, *options, "--", "6")
    assert result.exit_code == 1
    assert told in result.output


def test_a_script_without_a_step_is_refused(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("print('nothing to do')\n")
    result = invoke(str(path))
    assert result.exit_code == 1
    assert "the program called no compiled function" in result.output


@pytest.mark.parametrize(
    ("text", "rate"),
    [("25e9", 25e9), ("25GB/s", 25e9), ("100Gbit/s", 12.5e9), ("100gbit/s", 12.5e9), ("1.5 TB", 1.5e12), ("300k", 3e5)],
)
def test_bandwidths_are_read(text, rate):
    from mirrored.cli.plan import _bandwidth

    assert _bandwidth(text) == pytest.approx(rate)


@pytest.mark.long
def test_what_the_program_prints_is_not_in_the_json(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "make_plan", lambda *_, **__: print("traced"))
    monkeypatch.setattr(plan, "as_data", lambda *_: [])
    path = tmp_path / "train.py"
    path.write_text("import mirrored as mr\nstep = mr.function(lambda x: x + 1)\n"
                    "print('training begins')\nwhile True:\n    step(1.0)\n")  # fmt: skip
    done = invoke(str(path), "--json", "--steps", "1")
    assert json.loads(done.stdout) == []
    assert done.stderr.split("\n")[:2] == ["training begins", "traced"]
    assert "training begins" in invoke(str(tmp_path / "train.py"), "--steps", "1").stdout


@pytest.mark.first(1)
@pytest.mark.parametrize("options", [{"as_json": True}, {"as_json": False}], ids=["json", "table"])
def test_a_program_may_wrap_its_standard_output(tmp_path, options):
    """The wrapper closes the common buffer when it is collected, in which nothing could be printed any more."""
    path = tmp_path / "train.py"
    path.write_text("import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)\n"
                    "print('hello')\n")  # fmt: skip
    code = f"""
import gc
from pathlib import Path
from mirrored.cli import plan
plan.detect_step = lambda run, **_: run()
plan.make_plan = lambda *_, **__: gc.collect()
plan._print = lambda _: print("table")
plan.as_data = lambda *_: []
plan.show_plan(Path({str(path)!r}), [], replicas="2", bandwidth=None, latency=None, keeps="replica-batch", speed=1.0,
               shared=False, steps=1, plot=None, **{options})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["[]"] if options["as_json"] else ["hello", "table"])


@pytest.mark.long
def test_what_child_processes_and_exit_handlers_print_is_not_in_the_json(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import atexit, os, sys\natexit.register(print, 'at exit')\nsys.__stdout__.write('buffered\\n')\n"
                    "os.system('echo child')\n")  # fmt: skip
    code = f"""
from pathlib import Path
from mirrored.cli import plan
plan.detect_step = lambda run, **_: run()
plan.make_plan = lambda *_, **__: None
plan.as_data = lambda *_: []
plan.show_plan(Path({str(path)!r}), [], replicas="2", bandwidth=None, latency=None, keeps="replica-batch", speed=1.0,
               shared=False, steps=1, plot=None, as_json=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert json.loads(done.stdout) == []
    assert {"at exit", "buffered", "child"} <= set(done.stderr.split("\n"))


@pytest.mark.long
def test_a_program_may_end_by_exiting(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("while True:", "for _ in range(12):") + "    sys.exit(0)\n")
    done = CliRunner().invoke(main, ["plan", "--replicas", "4", str(path), "16"])
    assert done.exit_code == 0, done.output
    assert "replicas" in done.output


def test_the_status_of_a_program_that_fails_is_kept(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import sys\nsys.exit(3)\n")
    assert CliRunner().invoke(main, ["plan", "--replicas", "4", str(path)]).exit_code == 3
