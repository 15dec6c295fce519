"""Judges a program's result: equal, refused, or a finding."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final, Literal

from soak.compare import difference
from soak.kinds import KINDS
from soak.program import Program

_OWN: Final = "mirrored."
_NUMBERS: Final = re.compile(r"-?\d[\d.e+-]*|0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a program.

    Attributes:
        status: ``equal``; ``refused``: an error or warning that the kind allows; ``different``: other numbers or
            examples without an error; ``failed``: an unexpected error; ``lost``: a crash or a deadlock.
        text: The difference, the error or the traceback.
        signature: Equal for findings that probably have the same cause.
        expected: The expected result, for the script; empty if there was no record.
    """

    status: Literal["equal", "refused", "different", "failed", "lost"]
    text: str = ""
    signature: str = ""
    expected: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_finding(self) -> bool:
        """Whether the verdict needs investigation."""
        return self.status in ("different", "failed", "lost")


def judge(program: Program, result: dict[str, Any]) -> Verdict:
    """Returns the verdict on a program's result."""
    kind = KINDS[program.kind]
    allowed = kind.refusals(program)
    expected = (
        kind.expected(program, result.get("record", {})) if "record" in result or not _reads_record(program) else {}
    )
    if "lost" in result:
        return Verdict("lost", f"{result['traceback']}\n{result['lost']}", f"lost {result['lost']}", expected)
    if "error" in result:
        error = result["error"]
        text = f"{error['traceback']}"
        if _is_allowed(error, allowed):
            return Verdict("refused", error["message"], f"{error['class']}")
        first = (error["message"].splitlines() or [""])[0]
        return Verdict("failed", text, f"{error['class']}: {_NUMBERS.sub('#', first)[:90]}", expected)
    problem = difference(result["record"], expected)
    if problem is None:
        return Verdict("equal")
    if allowed and result["warnings"]:
        return Verdict("refused", result["warnings"][0], "warning")
    return Verdict("different", problem, _signature(program, problem), expected)


def _signature(program: Program, problem: str) -> str:
    """Returns what differs, and the decisions that are the most frequent causes."""
    where, _, values = problem.partition(":")
    reasons = [program.source] if program.source.startswith(("reused", "argument", "shuffled")) else []
    reasons += [program.model] if program.model in ("custom_vjp", "custom_jvp", "two") else []
    reasons += [program.event] if program.event != "none" else []
    reasons += ["nan"] if "nan" in values.split("expected")[0] else []
    return " ".join(part for part in (program.kind, program.variant, where, *reasons) if part)


def _reads_record(program: Program) -> bool:
    """Returns whether the expected result depends on the order in which examples were drawn."""
    return program.source == "shuffled" and program.kind == "training"


def _is_allowed(error: dict[str, Any], allowed: tuple[str, ...]) -> bool:
    """Returns whether an error is allowed: a class of mirrored or JAX (never RuntimeError) with an allowed text."""
    refuses = error["module"].startswith((_OWN, "jax", "mirrored")) or error["class"] in ("TypeError", "ValueError")
    return refuses and any(part in error["message"] for part in allowed)
