"""Capture tracers: stand for values that a traced function closes over, and later become its arguments.

Supports JAX 0.10 to 0.12. A tracer that belongs to no running trace is a constant for every trace. JAX hoists it
through nested `jit`, `scan`, `cond` and `checkpoint`, and returns it among the constants of the outermost jaxpr. There
it is found by identity and replaced by an argument.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import core as _core

from mirrored._jax.boxes import connected, connected_at, contents_of_stand_in

ShapedArray = jax.core.ShapedArray


class _CaptureTrace(jax.core.Trace):  # type: ignore[misc,unused-ignore]
    """The trace to which capture tracers belong. It never executes a primitive: the current trace does."""

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        raise AssertionError("the capture trace is never current")


_capture_trace = _CaptureTrace()  # type: ignore[no-untyped-call,unused-ignore]


class CaptureTracer(jax.core.Tracer):  # type: ignore[misc,type-arg,unused-ignore]
    """Stands for the value of `source` inside a trace.

    Attributes:
        source: The origin of the captured value, such as a variable. It determines the argument that replaces the
            tracer.
    """

    __slots__ = ("source",)

    def __init__(self, shape: tuple[int, ...], dtype: Any, source: Any, *, weak_type: bool = False) -> None:
        super().__init__(_capture_trace, ShapedArray(shape, dtype, weak_type=weak_type))
        self.source = source

    at = connected_at

    def __getitem__(self, index: Any) -> Any:
        return connected(super().__getitem__(index), self)

    def _contents(self) -> Any:
        return contents_of_stand_in(self)

    def full_lower(self) -> CaptureTracer:
        return self

    def _short_repr(self) -> str:
        return f"Captured({self.aval.str_short()} of {self.source})"


_core.pytype_aval_mappings[CaptureTracer] = lambda tracer: tracer.aval
