"""The GPU benchmarks' dry run: every piece at tiny sizes on the CPU, so that the script does not become stale."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from gpu import bits, profiling, recording, suite, summary
from gpu.flops import operations_per_token, tokens_and_mfu
from gpu.pieces import DEADLINE_SECONDS, PIECES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = BENCHMARKS / "gpu" / "run.sh"
QUICK = "input"
"""The piece that the tests of the driver run."""


def dry_run(out: Path, only: str, *more: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the results."""
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(out), **variables}
    environment.pop("XLA_FLAGS", None)
    command = ["bash", str(RUN), "--dry-run", "--only", only, *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert (out / "report.md").exists(), done.stdout + done.stderr
    return done.returncode, json.loads((out / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(300)
@pytest.mark.parametrize("piece", [piece.name for piece in PIECES])
def test_every_piece_leaves_its_result(piece, tmp_path):
    code, results = dry_run(tmp_path, piece)
    told = results["pieces"][piece]
    assert told["status"] == "done"
    failed = [one["traceback"] for one in told["records"] if one["status"] == "failed"]
    assert not failed, failed[0]
    assert code == 0
    assert any(one["status"] == "ok" for one in told["records"])
    assert all("PyTorch" in one["reason"] for one in told["records"] if one["status"] == "left out")
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.long
def test_a_run_keeps_what_it_found_and_what_dry_runs_found_before(tmp_path):
    for name, piece, dry in (("results.json", "eager", True), ("real.json", "steps", False)):
        before = {"dry_run": dry, "pieces": {piece: {"status": "done", "seconds": 1, "records": []}}}
        (tmp_path / name).write_text(json.dumps(before))
    previous = [f"--previous={tmp_path / name}" for name in ("results.json", "real.json")]
    code, results = dry_run(tmp_path, QUICK, *previous)
    assert code == 0
    assert set(results["pieces"]) == {"eager", QUICK}
    assert results["machine"]["platform"] == "cpu"
    assert results["pieces"][QUICK]["records"][0]["figures"]["step_share"] > 0
    report = (tmp_path / "report.md").read_text()
    assert "| input: steps alone / steps over a dataset" in report
    assert "Dry run on a CPU" in report


@pytest.mark.long
def test_a_piece_that_would_end_too_late_is_left_out(tmp_path):
    code, results = dry_run(tmp_path, QUICK, "--seconds", "1")
    assert code == 0
    assert results["pieces"] == {QUICK: {"status": "no time left", "seconds": 0, "records": []}}


def test_an_unknown_piece_is_refused(tmp_path):
    command = [sys.executable, str(RUN.with_name("run.py")), "--only", "w6", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "no such piece: w6" in done.stderr


def test_a_variant_that_fails_leaves_its_traceback_and_the_next_goes_on(tmp_path):
    recorder = recording.Recorder(tmp_path / "records")
    with recorder.variant("first") as figures:
        figures["half"] = 1
        raise ValueError("of this variant")
    with recorder.variant("second") as figures:
        figures["seconds"] = [1.0]
    with open(tmp_path / "records", "a") as file:
        file.write('{"variant": "cut o')
    first, second = recording.read_records(tmp_path / "records")
    assert (first["status"], first["figures"]) == ("failed", {"half": 1})
    assert first["traceback"].strip().endswith("ValueError: of this variant")
    assert (second["status"], second["figures"]) == ("ok", {"seconds": [1.0]})


def test_a_test_that_ends_the_process_is_recorded_and_others_are_started_again(tmp_path):
    recorder, done = recording.Recorder(tmp_path / "records"), {}
    entries = [
        {"test": "a", "what": "started"},
        {"test": "a", "what": "passed", "seconds": 0.5, "text": ""},
        {"test": "b", "what": "started"},
    ]
    assert suite.record_all(recorder, entries, done, "Fatal Python error")
    assert list(done) == ["a", "b"]
    last = [{"test": "c", "what": "started"}, {"test": "c", "what": "failed", "seconds": 1.0, "text": "E"}]
    assert not suite.record_all(recorder, last, done, "")
    told = {
        one["variant"]: (one["status"], one.get("traceback")) for one in recording.read_records(tmp_path / "records")
    }
    assert told == {
        "a": ("ok", None),
        "b": ("failed", "the process ended in this test\nFatal Python error"),
        "c": ("failed", "E"),
    }


def test_all_pieces_are_expected_to_end_in_time():
    together = [piece for piece in PIECES if piece.together]
    alone = [piece for piece in PIECES if not piece.together]
    assert max(piece.expected for piece in together) + sum(piece.expected for piece in alone) <= DEADLINE_SECONDS
    assert all(piece.expected < piece.limit for piece in PIECES)


def test_the_budgets_of_the_readme_are_those_of_the_pieces():
    text = (BENCHMARKS / "gpu" / "README.md").read_text()
    for piece in PIECES:
        assert f"| `{piece.name}` | {piece.expected} | {piece.limit} |" in text


def test_model_flops_utilisation():
    # 12 * 12 * 768^2 + 768 * 50257 = 123.5 M multiplied parameters, 6 operations each, and attention's.
    assert operations_per_token("W5") == 6 * (12 * 12 * 768**2 + 768 * 50257) + 12 * 12 * 512 * 768
    tokens, mfu = tokens_and_mfu("W5", 16, 0.01, "NVIDIA H200")
    assert tokens == pytest.approx(819_200)
    assert mfu == pytest.approx(819_200 * operations_per_token("W5") / 989e12)
    assert tokens_and_mfu("W5", 16, 0.01, "cpu")[1] is None


def test_a_trace_is_taken_apart_into_kernels_copies_and_gaps(tmp_path):
    names = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "Stream #13(Compute)"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "Stream #14(MemcpyH2D)"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 3, "args": {"name": "XLA Ops"}},
        {"ph": "M", "name": "process_name", "pid": 2, "args": {"name": "/host:CPU"}},
    ]
    ran = [
        (1, "fusion_3", 0, 3000),
        (1, "fusion_7", 3000, 3000),
        (2, "MemcpyH2D", 5000, 3000),
        (1, "gemm", 12000, 3000),
    ]
    ran += [(3, "whole", 0, 15000)]
    events = [{"ph": "X", "pid": 1, "tid": t, "name": n, "ts": ts, "dur": dur} for t, n, ts, dur in ran]
    events.append({"ph": "X", "pid": 2, "tid": 1, "name": "Python", "ts": 0, "dur": 90000})
    with gzip.open(tmp_path / "a.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [*names, *events]}, file)
    told = profiling.summary(profiling.events_of(tmp_path / "a.trace.json.gz"))
    per_step = profiling.STEPS
    assert told["span_ms"] == pytest.approx(15 / per_step)
    assert told["kernels_ms"] == pytest.approx(9 / per_step)
    assert told["copies_ms"] == pytest.approx(3 / per_step)
    assert told["gaps_ms"] == pytest.approx(4 / per_step)
    assert told["longest"] == {"fusion": 0.6667, "gemm": 0.3333}


def test_one_bit_is_a_difference():
    one = {"a": np.ones(3, np.float32), "b": np.array([1.0, -0.0], np.float32)}
    other = {"a": one["a"].copy(), "b": np.array([1.0, 0.0], np.float32)}
    assert bits.difference(one, one) == "identical"
    assert bits.difference(one, other).startswith("different: 1 of 5 elements, b")
    assert bits.digest(one) != bits.digest(other)


def record(variant: str, **figures: Any) -> dict[str, Any]:
    return {"variant": variant, "status": "ok", "seconds": 1.0, "figures": figures}


def test_targets_are_judged_by_rounds(tmp_path):
    rounds = {"mirrored": 1.01, "hand-written JAX": 1.0, "torch.compile": 0.9}
    records = [record(f"W5, {name}", stream=[x] * 9, first_seconds=1.0, first_loss=10.8) for name, x in rounds.items()]
    w5 = {"status": "done", "seconds": 90, "records": records}
    failed = {
        "variant": "tests/gpu/test_a.py::test_b",
        "status": "failed",
        "seconds": 1,
        "figures": {},
        "traceback": "E",
    }
    suite = {"status": "done", "seconds": 9, "records": [failed]}
    results = {"machine": {"device": "NVIDIA H200"}, "pieces": {"w5": w5, "suite": suite}}
    text = summary.write_summary(results, tmp_path / "report.md").read_text()
    assert "| W5: mirrored / hand-written JAX | at most 1.02 | 1.010 (1.010 to 1.010) | yes |" in text
    assert "| W5: tokens/s of mirrored / torch.compile | at least 0.95 | 0.891 (0.891 to 0.891) | no |" in text
    assert "| W1: mirrored / hand-written JAX | at most 1.05 | not measured |  |" in text
    assert "| tests marked gpu | none fails | 1 failed of 1 | no |" in text
