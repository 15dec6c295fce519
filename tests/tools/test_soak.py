"""The soak test itself: what it draws, that a clean program passes, that a defect is found and made small."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from soak import compare, models, reference
from soak.cli import Soak
from soak.draw import programs
from soak.judge import judge
from soak.kinds import KINDS, functional, functions
from soak.pool import Runner
from soak.program import Program, problem
from soak.script import body_of, standalone
from soak.shrink import shrink, simplifications

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def test_the_same_seed_draws_the_same_programs() -> None:
    first, second, third = (list(itertools.islice(programs(seed), 50)) for seed in (1, 1, 2))
    assert first == second
    assert first != third
    assert [Program.from_json(one.as_json()) for one in first] == first


@pytest.mark.long
def test_everything_is_drawn_and_is_a_program() -> None:
    drawn = list(itertools.islice(programs(0), 1200))
    assert {one.kind for one in drawn} == set(KINDS)
    for name in ("model", "update", "optimizer", "weighting", "source", "way", "event", "last_batch"):
        assert len({getattr(one, name) for one in drawn if one.kind == "training"}) >= 3, name
    for one in drawn:
        assert problem(one) is None
        compile(body_of(one), "<program>", "exec")


def test_each_variant_is_drawn_soon() -> None:
    # One deck of kinds has 18 programs, two of them `functions` and one `functional`.
    for seed in range(5):
        drawn = {(one.kind, one.variant) for one in itertools.islice(programs(seed), 18 * len(functional.VARIANTS))}
        for kind, variants in (("functional", functional.VARIANTS), ("functions", functions.VARIANTS)):
            assert {variant for which, variant in drawn if which == kind} == set(variants)


def test_averaged_results_that_are_declared_replicated_must_not_be_refused() -> None:
    averaged, alone = (Program(kind="functional", variant=one, replicas=2) for one in ("averaged_declared", "declared"))
    assert "out_specs=" in body_of(averaged)
    assert "out_specs=" in body_of(alone)
    for variant in ("averaged", "linen_averaged", "averaged_declared"):
        assert KINDS["functional"].refusals(Program(kind="functional", variant=variant, replicas=2)) == ()
    assert KINDS["functional"].refusals(alone)
    assert problem(alone) is None
    assert problem(alone.replace(examples=4, batch=4)) == "only state that is fed back shows that replicas train alone"


@pytest.mark.parametrize("variant", ["plain_iterator_argument", "plain_iterator_captured"])
def test_functions_take_iterators_of_plain_python_too(variant: str) -> None:
    bodies = {body_of(Program(kind="functions", variant=variant, seed=seed)) for seed in range(40)}
    for iterator in functions._PLAIN_ITERATORS:
        assert any(f"    iterator = {iterator}\n" in body for body in bodies), iterator
    assert "iterator" in functions.refusals(Program(kind="functions", variant=variant))


@pytest.mark.parametrize(("last_batch", "replicas"), [("split", [0, 1]), ("pad", [0, 0])])
def test_the_reference_knows_which_replica_has_which_row_of_a_last_batch(last_batch, replicas) -> None:
    program = Program(seed=1, batch=4, examples=10, replicas=2, last_batch=last_batch)
    assert reference._replica_of(program, 2).tolist() == replicas


def test_the_reference_is_gradient_descent() -> None:
    program = Program(examples=4, batch=4, epochs=1, seed=5)
    x, y, _, _ = models.data(5, 4)
    start = models.start(5, models.SHAPES["linear"])
    error = x @ start["w"] + start["b"] - y
    trained = reference.train(program, reference.orders_of(program))
    np.testing.assert_allclose(trained["losses"], [float((error**2).mean())], rtol=1e-5)
    np.testing.assert_allclose(trained["weights"]["w"], start["w"] - 0.05 * 2 * x.T @ error / 4, rtol=1e-5)


@pytest.mark.parametrize(
    ("found", "wanted", "told"),
    [
        ({"losses": [1.0, 2.0]}, {"losses": [1.0, 2.0]}, None),
        ({"losses": [1.0, 2.001]}, {"losses": [1.0, 2.0]}, "/losses"),
        ({"losses": [1.0, float("nan")]}, {"losses": [1.0, 2.0]}, "/losses"),
        ({"losses": [1.0, None]}, {"losses": [1.0, 2.0]}, None),
        ({"losses": [1.0]}, {"losses": [1.0, 2.0]}, "/losses"),
        ({"weights": {"w": [[1.0]]}}, {"weights": {"w": np.ones((1, 1))}}, None),
        ({"weights": {}}, {"weights": {"w": np.ones((2, 2))}}, "/weights/w"),
        ({"seen": [[0, 1], None]}, {"seen": [[0, 1], [2]]}, None),
        ({"seen": [[1, 0]]}, {"seen": [[0, 1]]}, "step 0"),
        ({"bits": ["a", "b"]}, {"bits": "equal"}, "/bits"),
        ({"results": [1.0, None]}, {"results": [1.0, None]}, None),
        ({"results": [1.0, 1.0]}, {"results": [1.0, None]}, "/results"),
    ],
)
def test_differences(found: object, wanted: object, told: str | None) -> None:
    problem = compare.difference(found, wanted)
    assert problem is None if told is None else told in str(problem)


def test_shrinking_keeps_what_the_failure_needs() -> None:
    drawn = next(
        one for one in programs(3) if one.kind == "training" and one.event == "restore" and one.source == "shuffled"
    )

    def fails(program: Program) -> bool:
        return program.source == "shuffled" and program.replicas > 1

    small = shrink(drawn.replace(replicas=max(drawn.replicas, 2) // drawn.devices * drawn.devices or 2), fails, 500)
    assert set(small.changes()) <= {"source", "replicas", "seed", "examples", "batch"}
    assert small.replicas == 2
    assert all(problem(one) is None for one in simplifications(small))


@pytest.fixture
def runner() -> Iterator[Runner]:
    made = Runner(SOURCE, seconds=60)
    yield made
    made.close()


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
@pytest.mark.long
def test_clean_programs_pass_and_lost_processes_are_found(runner: Runner) -> None:
    program = Program(model="mlp", optimizer="adam", weighting="weights", replicas=2, way="compiled", epochs=2)
    assert judge(program, runner.run(body_of(program))).status == "equal"
    failed = judge(program, runner.run("def program():\n    raise KeyError('the key')"))
    assert (failed.status, failed.signature) == ("failed", "KeyError: 'the key'")
    crashed = judge(program, runner.run("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"))
    assert (crashed.status, crashed.signature) == ("lost", "lost crashes: SIGSEGV")
    assert "Fatal Python error" in crashed.text
    runner._seconds = 1.0
    hung = judge(program, runner.run("import time\ntime.sleep(60)"))
    assert hung.signature == "lost hangs: no result after 1 s"
    assert 'File "<program>", line 2' in hung.text
    # Another process takes over.
    assert runner.run("def program():\n    return 1")["record"] == 1


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(600)
def test_an_injected_defect_is_found_and_shrunk_to_a_script_that_stands_alone(tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    losses = tmp_path / "src" / "mirrored" / "losses.py"
    right = 'count = total_count("average_loss", count, context)'
    assert right in losses.read_text()
    # What TensorFlow does: wrong as soon as replicas hold different numbers of examples.
    losses.write_text(losses.read_text().replace(right, "count = count * context.num_replicas_in_sync"))
    soak = Soak(Runner(tmp_path / "src"), tmp_path / "found", Console(quiet=True))
    try:
        drawn = (one for one in programs(11) if one.kind == "training" and one.replicas > 1 and one.way != "inner")
        wanted = (one for one in drawn if (one.weighting, one.model) in (("weights", "mlp"), ("mask", "linear")))
        for number, program in enumerate(wanted):
            soak.look(number, program)
            if any("/losses" in signature for signature in soak.report.findings):
                break
    finally:
        soak.close()
    finding = next(one for signature, one in soak.report.findings.items() if "/losses" in signature)
    assert len(finding.program.changes()) < len(program.changes())
    assert finding.script is not None
    assert ran(finding.script, tmp_path / "src") == (1, "DIFFERENT: /losses")
    assert ran(finding.script, SOURCE) == (0, "equal")


def ran(script: Path, source: Path) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    ended = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=200)
    assert ended.stdout, ended.stderr[-2000:]
    return ended.returncode, ended.stdout.strip().split(": [")[0]


def test_a_script_contains_all_that_it_needs() -> None:
    program = Program(kind="keras_fit", variant="fit")
    text = standalone(program, {"weights": {"w": np.ones(2)}}, "different")
    compile(text, "script.py", "exec")
    assert "soak" not in text.replace("tools/soak.py", "").replace("soak_", "")
