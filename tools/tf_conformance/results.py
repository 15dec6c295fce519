"""Results of test cases, and their verdicts."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable
from typing import Final

from tf_conformance.scope import Scope

NOT_HERE: Final = "not run here: "  # begins the reasons for which the stand-in, not TensorFlow, skips a case
OTHER_WORKERS: Final = NOT_HERE + "another number of workers"


class Outcome(enum.StrEnum):
    """What happened to a test case."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Verdict(enum.StrEnum):
    """How a test case counts."""

    PASSED = "passed"
    FAILED = "failed"
    OUT = "out of scope"
    SKIPPED = "skipped by TensorFlow"


@dataclasses.dataclass(frozen=True)
class Case:
    """The result of one test case.

    Attributes:
        file: The path below `tensorflow/python`.
        test: `CLASS.METHOD`, with the suffix of its parameters.
        outcome: What happened.
        message: The error, or the reason for which it was skipped; empty if it passed.
        workers: The number of workers of the run.
    """

    file: str
    test: str
    outcome: Outcome
    message: str = ""
    workers: int = 1

    @property
    def method(self) -> str:
        """`CLASS.METHOD` without the suffix of parameters."""
        return re.sub(r"(_test_.*|(?<=\D)\d+)$", "", self.test)


@dataclasses.dataclass(frozen=True)
class Judged:
    """A case with its verdict.

    Attributes:
        case: The case.
        verdict: How it counts.
        reason: Why it is out of scope; empty otherwise.
    """

    case: Case
    verdict: Verdict
    reason: str = ""


def judge(case: Case, scope: Scope) -> Judged:
    """The verdict on a case.

    The scope decides first, by the id alone. A case in scope that the stand-in skips has failed: only TensorFlow's own
    conditions may skip it.

    Args:
        case: The result.
        scope: What is out of scope.
    """
    reason = scope.reason_out(case.file, case.test)
    if reason is not None:
        return Judged(case, Verdict.OUT, reason)
    if case.outcome is Outcome.SKIPPED and NOT_HERE not in case.message:
        return Judged(case, Verdict.SKIPPED)
    return Judged(case, Verdict.PASSED if case.outcome is Outcome.PASSED else Verdict.FAILED)


@dataclasses.dataclass(frozen=True)
class Tally:
    """Counts of cases and test methods.

    Attributes:
        passed: Cases in scope that pass.
        failed: Cases in scope that fail.
        out: Cases out of scope.
        out_passed: Those of them that pass.
        skipped: Cases that TensorFlow's own conditions skip.
        methods_passed: Methods of which cases are in scope and none fails.
        methods_failed: Methods of which a case in scope fails.
    """

    passed: int = 0
    failed: int = 0
    out: int = 0
    out_passed: int = 0
    skipped: int = 0
    methods_passed: int = 0
    methods_failed: int = 0

    @property
    def in_scope(self) -> int:
        """Number of cases in scope."""
        return self.passed + self.failed

    @property
    def methods(self) -> int:
        """Number of methods with cases in scope."""
        return self.methods_passed + self.methods_failed

    @property
    def all(self) -> int:
        """Number of cases that TensorFlow's own conditions do not skip, in scope or not."""
        return self.in_scope + self.out


def tally(judged: Iterable[Judged]) -> Tally:
    """Counts verdicts.

    Args:
        judged: The cases.
    """
    found = list(judged)
    verdicts = [one.verdict for one in found]
    methods: dict[tuple[str, str], set[Verdict]] = {}
    for one in found:
        methods.setdefault((one.case.file, one.case.method), set()).add(one.verdict)
    return Tally(
        passed=verdicts.count(Verdict.PASSED),
        failed=verdicts.count(Verdict.FAILED),
        out=verdicts.count(Verdict.OUT),
        out_passed=sum(one.verdict is Verdict.OUT and one.case.outcome is Outcome.PASSED for one in found),
        skipped=verdicts.count(Verdict.SKIPPED),
        methods_passed=sum(Verdict.PASSED in kinds and Verdict.FAILED not in kinds for kinds in methods.values()),
        methods_failed=sum(Verdict.FAILED in kinds for kinds in methods.values()),
    )
