"""Which of TensorFlow's tests are in scope: by the ids of tests, never by the text of an error."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

DEFAULT: Final = Path(__file__).parent / "scope.json"


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Tests that are out of scope.

    Attributes:
        reason: Why they are.
        ids: Patterns of `FILE::CLASS.METHOD`, in which `*` matches any text.
    """

    reason: str
    ids: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Scope:
    """The test files that are the goal, and the tests of them that are out of scope.

    Attributes:
        files: Patterns of paths below `tensorflow/python`.
        exclusions: What was out of scope before any result was seen.
        reclassified: What results moved out of scope, listed apart.
    """

    files: tuple[str, ...]
    exclusions: tuple[Exclusion, ...]
    reclassified: tuple[Exclusion, ...] = ()

    @classmethod
    def load(cls, path: Path = DEFAULT) -> Self:
        """Reads a scope from a JSON file.

        Args:
            path: The file.

        Raises:
            ValueError: An exclusion has no reason or no ids.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        first, later = (
            tuple(Exclusion(one["reason"], tuple(one["ids"])) for one in content.get(key, ()))
            for key in ("out", "reclassified")
        )
        for one in first + later:
            if not one.reason or not one.ids:
                raise ValueError(f"{path}: an exclusion needs a reason and ids, got {one}")
        return cls(tuple(content["files"]), first, later)

    def reason_out(self, file: str, test: str) -> str | None:
        """The reason why a test is out of scope; None if it is in scope.

        Args:
            file: The path below `tensorflow/python`.
            test: `CLASS.METHOD`, with the suffix of its parameters.
        """
        name = f"{file}::{test}"
        for exclusion in self.exclusions + self.reclassified:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in exclusion.ids):
                return exclusion.reason
        return None

    def unused(self, names: Sequence[str]) -> list[str]:
        """The patterns that match none of the tests: misspelt, or of tests that TensorFlow no longer has.

        Args:
            names: All tests, as `FILE::CLASS.METHOD`.
        """
        patterns = [pattern for exclusion in self.exclusions + self.reclassified for pattern in exclusion.ids]
        return [one for one in patterns if not any(fnmatch.fnmatchcase(name, one) for name in names)]
