"""Computes the concrete value of a tracer that depends only on constants.

Supports JAX 0.10 to 0.12: a `DynamicJaxprTracer` knows the equation that made it (`parent`), which knows its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax._src import core as _core
from jax._src.interpreters import partial_eval as _partial_eval

from mirrored._jax.capture import CaptureTracer


class NotConstant(Exception):
    """The value depends on an argument of the trace, or on a captured value."""


def evaluate(value: Any, value_of_source: Callable[[Any], Any] | None = None) -> Any:
    """Computes `value` during tracing from the constants on which it depends; for the first replica if replicas differ.

    Args:
        value: Any value. A value that is not a tracer is returned unchanged.
        value_of_source: Returns the current value of the source of a capture tracer. Default: captured values are
            unknown.

    Raises:
        NotConstant: It depends on a value that is unknown during tracing.
    """
    if not isinstance(value, _core.Tracer):
        return value
    with _core.eval_context():
        return _Evaluation(value_of_source).value_of(value)


class _Evaluation:
    def __init__(self, value_of_source: Callable[[Any], Any] | None) -> None:
        self._known: dict[int, Any] = {}
        self._value_of_source = value_of_source

    def value_of(self, tracer: Any) -> Any:
        if not isinstance(tracer, _core.Tracer):
            return tracer
        if isinstance(tracer, CaptureTracer) and self._value_of_source is not None:
            return self._value_of_source(tracer.source)
        if not isinstance(tracer, _partial_eval.DynamicJaxprTracer):
            raise NotConstant
        if isinstance(tracer.val, _core.Literal):
            return tracer.val.val
        if id(tracer.val) in self._known:
            return self._known[id(tracer.val)]
        if tracer.parent is None:
            constant = tracer._trace.get_const(tracer)
            if constant is None:
                raise NotConstant
            return self.value_of(constant)
        self._apply(tracer.parent)
        return self._known[id(tracer.val)]

    def _apply(self, equation: Any) -> None:
        inputs = [self.value_of(tracer) for tracer in equation.in_tracers]
        if equation.primitive.name == "axis_index":
            if self._value_of_source is None:
                raise NotConstant
            outputs: Any = np.int32(0)
        else:
            outputs = equation.primitive.bind(*inputs, **equation.params)
        outputs = outputs if equation.primitive.multiple_results else [outputs]
        for variable, output in zip(equation.outvars, outputs, strict=True):
            self._known[id(variable)] = output
