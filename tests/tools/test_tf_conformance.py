"""The runner of TensorFlow's unit tests, on tests made here."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner
from tf_conformance.cli import main
from tf_conformance.processes import run_file
from tf_conformance.results import NOT_HERE, Case, Outcome, Verdict, judge, tally
from tf_conformance.scope import Exclusion, Scope
from tf_conformance.stand_in.devices import canonicalize, simulated
from tf_conformance.stand_in.facade import look_up
from tf_conformance.stand_in.missing import MissingName, MissingNameError

import mirrored.tf as tf

TESTS = """
import time
from tensorflow.python.eager import backprop
from tensorflow.python.eager import context
from tensorflow.python.eager import test
from tensorflow.python.framework import constant_op
from tensorflow.python.framework import test_util
from tensorflow.python.ops import math_ops
from tensorflow.python.private import something


class TinyTest(test.TestCase):
  def testPasses(self):
    grad = backprop.gradients_function(math_ops.square)(constant_op.constant(3.0))
    self.assertAllEqual(grad[0], 6.0)
    self.assertEqual("v:0", "v")

  def testFails(self):
    self.assertAllEqual(constant_op.constant([1, 2]), [1, 3])

  def testSkipsItself(self):
    self.skipTest("needs a printer")

  @test_util.run_v1_only("graphs")
  def testOfGraphs(self):
    pass

  def testMeetsAGraph(self):
    with context.graph_mode():
      pass

  def testUsesAMissingName(self):
    something.wonderful()

  def testTakesTooLong(self):
    time.sleep(60)
"""
SCOPE = {"files": ["eager/*_test.py"], "out": [{"reason": "graphs", "ids": ["eager/tiny_test.py::*.testOfGraphs"]}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "eager").mkdir()
    (tmp_path / "eager" / "tiny_test.py").write_text(TESTS)
    return tmp_path


@pytest.mark.long
def test_a_file_runs_in_its_own_process_and_is_judged_by_ids(folder: Path) -> None:
    cases = run_file(folder, "eager/tiny_test.py", workers=1, seconds=2, limit=50)
    scope = Scope(("eager/*_test.py",), (Exclusion("graphs", ("eager/tiny_test.py::*.testOfGraphs",)),))
    judged = {one.case.test: one for one in (judge(case, scope) for case in cases)}
    assert {name.removeprefix("TinyTest.test"): one.verdict for name, one in judged.items()} == {
        "Passes": Verdict.PASSED,
        "Fails": Verdict.FAILED,
        "SkipsItself": Verdict.SKIPPED,
        "OfGraphs": Verdict.OUT,
        "MeetsAGraph": Verdict.FAILED,  # the stand-in skips it, and the scope does not exclude it
        "UsesAMissingName": Verdict.FAILED,
        "TakesTooLong": Verdict.FAILED,
    }
    messages = {name.removeprefix("TinyTest.test"): one.case.message for name, one in judged.items()}
    assert "at tiny_test.py:19 self.assertAllEqual" in messages["Fails"]
    assert "MissingNameError: tensorflow.python.private.something.wonderful" in messages["UsesAMissingName"]
    assert "more than 2 s" in messages["TakesTooLong"]


@pytest.mark.long
def test_the_command_reports_both_rates_and_judges_again(folder: Path, tmp_path: Path) -> None:
    scope, results, report = (tmp_path / name for name in ("scope.json", "results.json", "report.md"))
    scope.write_text(json.dumps(SCOPE))
    arguments = [str(folder), "--scope", str(scope), "--json", str(results), "--only", "*.test[PFO]*", "--workers", "1"]
    ran = CliRunner().invoke(main, [*arguments, "--verbose"], catch_exceptions=False)
    assert "in scope 1 / 2 (50.0 %)" in ran.output
    assert "all 1 / 3 (33.3 %)" in ran.output
    assert "TinyTest.testFails" in ran.output
    later = {**SCOPE, "reclassified": [{"reason": "a difference", "ids": ["*.testFails"]}]}
    scope.write_text(json.dumps(later))
    again = CliRunner().invoke(main, [*arguments, "--again", "--report", str(report)], catch_exceptions=False)
    assert "in scope 1 / 1 (100.0 %)" in again.output
    text = report.read_text()
    assert "| `eager/tiny_test.py` | 1 / 1 (100.0 %) | 1 / 1 (100.0 %) | 1 / 3 (33.3 %) | 0 |" in text
    assert "- `*.testFails`: a difference" in text
    assert "| graphs | 1 | 0 |" in text


@pytest.mark.long
def test_a_process_that_does_not_end_is_a_failure(folder: Path) -> None:
    (folder / "eager" / "tiny_test.py").write_text("import os\nos._exit(3)\n")
    [case] = run_file(folder, "eager/tiny_test.py", workers=1, seconds=2, limit=50)
    assert (case.test, case.outcome) == ("<process>", Outcome.FAILED)


def test_no_file_matches(folder: Path) -> None:
    ran = CliRunner().invoke(main, [str(folder), "--files", "other/*_test.py"])
    assert ran.exit_code == 2
    assert "no test file below" in ran.output


def test_the_scope_of_the_project_is_well_formed() -> None:
    scope = Scope.load()
    assert len(scope.files) == 18
    patterns = [pattern for one in scope.exclusions + scope.reclassified for pattern in one.ids]
    assert len(patterns) == len(set(patterns))
    assert all(pattern.startswith("*_") or pattern.startswith("*") or "::" in pattern for pattern in patterns)
    name = "distribute/strategy_gather_test.py"
    assert scope.reason_out(name, "GatherTest.testGather_test_mode_graph_pureeager_True") is not None
    assert scope.reason_out(name, "GatherTest.testGather_test_mode_eager_pureeager_True") is None
    assert scope.unused([f"{name}::GatherTest.testGather_test_mode_graph"])[0] != "*_mode_graph*"


@pytest.mark.parametrize("broken", [{"reason": "", "ids": ["*"]}, {"reason": "none", "ids": []}])
def test_an_exclusion_needs_a_reason_and_ids(tmp_path: Path, broken: dict[str, object]) -> None:
    path = tmp_path / "scope.json"
    path.write_text(json.dumps({"files": [], "out": [broken]}))
    with pytest.raises(ValueError, match="needs a reason and ids"):
        Scope.load(path)


def test_methods_are_counted_without_the_suffixes_of_parameters() -> None:
    scope = Scope((), ())
    cases = [
        Case("f", "T.testA_test_mode_eager_strategy_One", Outcome.PASSED),
        Case("f", "T.testA_test_mode_eager_strategy_Two", Outcome.FAILED),
        Case("f", "T.testB0", Outcome.PASSED),
        Case("f", "T.testB1", Outcome.PASSED),
        Case("f", "T.testC", Outcome.SKIPPED, "the test says so"),
        Case("f", "T.testD", Outcome.SKIPPED, NOT_HERE + "graph mode"),
    ]
    found = tally(judge(case, scope) for case in cases)
    assert (found.passed, found.failed, found.skipped) == (3, 2, 1)
    assert (found.methods_passed, found.methods_failed) == (1, 2)


def test_names_of_modules_are_found_in_the_facade() -> None:
    assert look_up("reduce_sum") is tf.reduce_sum
    assert look_up("assert_equal_v2") is tf.debugging.assert_equal
    with pytest.raises(AttributeError):
        look_up("no_such_name")


def test_missing_names_raise_when_they_are_used() -> None:
    missing = MissingName("a.b").c
    derived = types.new_class("Derived", (missing,))  # type: ignore[arg-type]
    for use in (missing, derived, lambda: missing[0], lambda: isinstance(1, missing)):
        with pytest.raises(MissingNameError, match=r"a\.b\.c"):
            use()


def test_devices_have_canonical_names_and_cpus_beside_gpus_are_simulated() -> None:
    full = "/job:localhost/replica:0/task:0/device:"
    assert canonicalize("/gpu:1") == canonicalize("GPU:1") == full + "GPU:1"
    assert canonicalize("/job:worker/task:1/device:CPU:0") == "/job:worker/replica:0/task:1/device:CPU:0"
    assert simulated(["/gpu:0", "/cpu:0"]) == [full + "GPU:0", full + "GPU:3"]
    assert simulated(["/cpu:0"]) == [full + "CPU:0"]
    assert "tensorflow" not in sys.modules
