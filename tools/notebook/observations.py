"""Observes the numeric results of a cell, in a form that can be compared between two frameworks."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

Observation = dict[str, Any]
"""Shape and numbers of one array; plain data that can be written as JSON."""

_MOST_LEAVES: Final = 64
_MOST_NUMBERS: Final = 24
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")
_NOISE: Final = re.compile(
    r"shape=\([\d, ]*\)|dtype=<?[\w': ]+>?|\b0x[0-9a-f]+|\bnumpy=|/job:\S+|<[^<>]*(?:device|at 0x)[^<>]*>"
)
# The text of a caught exception, such as "ValueError: ...": its words, and so its numbers, are each framework's own.
_MESSAGE: Final = re.compile(r"\w*(?:Error|Exception)\b")

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""Tolerances for float32 results of other kernels after some training steps."""


class Recorder:
    """Observes the values that a cell assigns, shows and prints.

    Example:
        recorder = Recorder()
        namespace["print"] = recorder.print
        ...  # run a cell
        recorder.take(namespace, {"x"})
    """

    def __init__(self) -> None:
        self._seen: dict[str, Observation] = {}
        self._printed = 0

    def print(self, *values: Any, **options: Any) -> None:
        """Prints like the built-in `print`, and observes its arguments."""
        for value in values:
            self._observe(f"printed {self._printed}", value)
            self._printed += 1
        builtins.print(*values, **options)

    def show(self, value: Any) -> None:
        """Observes the value of a cell's last expression."""
        self._observe("shown", value)

    def take(self, namespace: Mapping[str, Any], names: set[str]) -> dict[str, Observation]:
        """Returns the observations of the last cell and clears them.

        Args:
            namespace: The namespace of the notebook.
            names: The names that the cell assigns.
        """
        for name in sorted(names):
            if name in namespace and not name.startswith("_"):
                self._observe(f"name {name}", namespace[name])
        seen, self._seen, self._printed = self._seen, {}, 0
        return seen

    def _observe(self, label: str, value: Any) -> None:
        for path, array in _arrays(value):
            if len(self._seen) >= _MOST_LEAVES:
                return
            observed = _observation(array)
            if observed is not None:
                self._seen[f"{label}{path}"] = observed


def agree(ours: Observation, theirs: Observation) -> bool:
    """Returns whether two observations have the same shape and, within the tolerances, the same numbers."""
    if ours["shape"] != theirs["shape"]:
        return False
    return bool(np.allclose(_floats(ours), _floats(theirs), rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True))


def _floats(observed: Observation) -> np.ndarray:
    return np.array([math.nan if one is None else float(one) for one in observed["numbers"]])


def _arrays(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yields the numeric arrays in tensors, numbers, strings with numbers, and plain structures of these."""
    if isinstance(value, (bool, int, float, np.ndarray, np.generic)):
        yield path, np.asarray(value)
    elif isinstance(value, str):
        numbers = [] if _MESSAGE.match(value) else [float(one) for one in _NUMBER.findall(_NOISE.sub(" ", value))]
        if numbers:
            yield path, np.asarray(numbers)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value[:_MOST_LEAVES]):
            yield from _arrays(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key in list(value)[:_MOST_LEAVES]:
            yield from _arrays(value[key], f"{path}[{key!r}]")
    else:
        array = _tensor(value)
        if array is not None:
            yield path, array


def _tensor(value: Any) -> np.ndarray | None:
    """Returns the array of an eager tensor or variable of either framework; None for anything else."""
    read: Callable[[], Any] | None = getattr(value, "numpy", None)
    if read is None or isinstance(value, type):
        return None
    try:
        return np.asarray(read())
    except Exception:  # symbolic tensors, variables on other devices: the errors differ by framework
        return None


def _observation(array: np.ndarray) -> Observation | None:
    if array.dtype.kind not in "biufc" and str(array.dtype) != "bfloat16":
        return None
    flat = np.abs(array).ravel() if array.dtype.kind == "c" else array.astype(np.float64).ravel()
    spread = np.linspace(0, flat.size - 1, min(flat.size, _MOST_NUMBERS)).astype(int) if flat.size else []
    numbers = [*(float(flat[i]) for i in spread)]
    if flat.size > _MOST_NUMBERS:
        numbers.append(float(np.mean(flat)))
    return {"shape": list(array.shape), "numbers": [one if math.isfinite(one) else None for one in numbers]}
