"""The `repr` of distributed values, and the short form of arrays in error messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrored.values.attributes import attribute


def traced_repr(name: str, replicas: int, outlines: Sequence[str]) -> str:
    """Returns the repr of a distributed value during tracing: ``<Name of 2 replicas: float32[3] (traced)>``."""
    distinct = ", ".join(dict.fromkeys(outlines))  # nearly always one shape and dtype
    return f"<{name} of {replicas} replica{'s' * (replicas != 1)}: {distinct} (traced)>"


def outline_of(value: object) -> str:
    """Formats a value briefly for messages: dtype and shape (``float32[3]``) of an array, else the `repr`."""
    dtype, shape = attribute(value, "dtype"), attribute(value, "shape")
    return repr(value) if dtype is None or shape is None else f"{dtype}[{','.join(map(str, shape))}]"


def distributed_repr(name: str, components: Sequence[Any]) -> str:
    """Returns the repr of a distributed value as TensorFlow prints it: ``Name:{``, one line per component, ``}``."""
    lines = ",\n".join(f"  {i}: {component!r}" for i, component in enumerate(components))
    return f"{name}:{{\n{lines}\n}}"
