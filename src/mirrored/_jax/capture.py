"""Capture tracers: stand-ins for values that a trace closes over.

Serves JAX 0.10 to 0.12. A tracer that belongs to no running trace is a constant to every trace that meets it: JAX
hoists it through nested `jit`, `scan`, `cond` and `checkpoint` and hands it back among the constants of the outermost
jaxpr, where it is found by identity and becomes an argument.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import core as _core

from mirrored._jax.boxes import connected, connected_at, contents_of_stand_in

ShapedArray = jax.core.ShapedArray


class _CaptureTrace(jax.core.Trace):  # type: ignore[misc,unused-ignore]
    """Owns capture tracers and runs nothing: primitives go to the trace that is current."""

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        raise AssertionError("the capture trace is never current")


_capture_trace = _CaptureTrace()  # type: ignore[no-untyped-call,unused-ignore]


class CaptureTracer(jax.core.Tracer):  # type: ignore[misc,type-arg,unused-ignore]
    """Stands for `source`'s value inside a trace.

    Attributes:
        source: What the captured value is, to be turned into an argument later.
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
