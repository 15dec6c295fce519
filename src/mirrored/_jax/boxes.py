"""The `jax.Array` subclass for arrays that a gradient tape tracks (boxes), and tracers that stand for boxes.

A box is a `jax.Array` with a payload (the concrete array) and the key under which its tape tracks it. It is not a
tracer, because code that rejects tracers or treats arrays specially must accept it (`device_put`, ahead-of-time
compiled calls, pickle, dlpack, `jax.device_get`, NumPy, ...). Not every tracked value is a box: arrays that the user
watches, tracers, and boxes of an outer tape stay as they are, and the tape tracks them by identity (`Recorder.known`).

When a primitive is applied to a box, JAX calls the function that is registered for the operand's type
(`dtypes.register_canonicalize_value_handler`; here `_value_for_jax`). It returns:

- the box itself, if the current trace is that of a tape. The box's own tape unwraps it and records the operation.
  Another tape records the operation only if it tracks the box by identity (`Recorder.known`). It passes the box on to
  its parent trace, or the payload if the parent is eager (`TapeTrace.split_operands`).
- a `BoxTracer`, if the current trace is another transform inside the tape's block. This tracer belongs to a trace that
  is never current. JAX hoists the tracer out of `jit`, `scan`, `cond` and `checkpoint` as an operand of the outer
  primitive. The tape's trace, which executes that primitive, replaces the tracer by the box (`resolved`). (JAX would
  embed a bare array in the jaxpr, and its gradient would be lost.)
- the payload in any other case: if the current trace is eager (the tape is suspended), or the box's tape does not
  record any more.

The C++ fast path of `jax.jit` does not know the type `Box`, so a call with a box always takes JAX's slower Python path,
which binds the primitive `jit`. A function that was compiled ahead of time binds no primitive; JAX passes the box to
`_shard_payloads`, which returns the payload.

A `ReadTracer` stands for the value of a variable at the time of execution. A read of a variable under an eager tape
returns a `ReadTracer` where JAX builds a jaxpr that it may cache (`jit`, `scan`, bodies of `shard_map` and
`custom_vjp`, derivative rules), so each call of the cached function reads the variable again. Under `grad` and `vmap`
alone the read returns a box, if the tape watches the variable.

Relies on private parts of JAX 0.10 to 0.12: `ArrayImpl`'s attributes and methods, value handlers, `dimension_as_value`.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import jax
import numpy as np
from jax.extend.core import primitives

from mirrored._jax import caches
from mirrored._jax.empty_slices import connected, connected_at
from mirrored._jax.private import ad as _ad
from mirrored._jax.private import ad_util as _ad_util
from mirrored._jax.private import array as _array
from mirrored._jax.private import array_methods as _array_methods
from mirrored._jax.private import core as _core
from mirrored._jax.private import dtypes as _dtypes
from mirrored._jax.private import pxla as _pxla
from mirrored._jax.sequences import OPERATORS
from mirrored._jax.source_lines import user_stacklevel
from mirrored._typing import Operand
from mirrored.patches import replace

# The error that JAX raises for an operation that is undecidable for a symbolic dimension.
#
# Supports JAX 0.10 to 0.12; `jax.errors` has the class since 0.10.1.

InconclusiveDimensionOperation = _core.InconclusiveDimensionOperation


# Primitives that tapes handle specially.
#
# Supports JAX 0.10 to 0.12: `jax.extend.core.primitives`, and `ad_util.stop_gradient_p`, which it does not export.

while_p = primitives.while_p
# Inside a compiled program, it transfers nothing.
device_put_p = primitives.device_put_p
stop_gradient_p = _ad_util.stop_gradient_p


Array = _array.ArrayImpl
_trace_now = _core.trace_ctx


class _StandInTrace(jax.core.Trace):  # type: ignore[misc]
    """Trace to which all `BoxTracer` and `ReadTracer` objects belong; it is never current and runs no primitive."""

    def process_primitive(self, primitive: object, tracers: object, params: object, /) -> Any:
        raise AssertionError("the stand-ins' trace is never current")


_stand_in_trace: Any = _StandInTrace()  # type: ignore[no-untyped-call]


class Owner(Protocol):
    """Protocol of a gradient tape's JAX trace, with the members that tape-tracked arrays (boxes) call."""

    @property
    def recorder(self) -> object:
        """The object in which the tape stores recorded operations; None while the tape is not recording."""
        ...

    def mark_stale(self, functions: list[Any]) -> None:
        """Registers functions to retrace, because their cached traces contain a tape-tracked array as a constant."""
        ...

    def operate(self, name: str, left: Box, right: Operand) -> Any:
        """Applies a binary operator such as ``+`` to an array that the tape tracks (a box) and another operand."""
        ...

    def negated(self, box: Box) -> Any:
        """Returns the negative of an array that the tape tracks (a box)."""
        ...


class Box(jax.Array):
    """An array that a tape tracks: a `jax.Array` that wraps the concrete array and the tape's key for it.

    Attributes:
        payload: The concrete array.
        owner: The tape's trace.
        key: The key under which the owner tracks it.
    """

    __slots__ = ("__weakref__", "_stand_in", "key", "owner", "payload")  # Keras keeps masks by weak references.
    __array_priority__ = 100

    payload: Any
    owner: Owner
    key: int
    _stand_in: BoxTracer

    def __init__(self, owner: Owner, payload: jax.Array, key: int) -> None:
        self.owner = owner
        self.payload = payload
        self.key = key

    # Attributes that JAX reads

    @property
    def aval(self) -> Any:
        return self.payload.aval

    @property
    def dimension_as_value(self) -> Callable[[], Any]:
        """Hook that JAX calls when a trace captures this array, to get the constant to embed in the trace."""
        # JAX has this hook for symbolic dimensions: `DynamicJaxprTrace.to_jaxpr_tracer` calls `x.dimension_as_value()`
        # for any captured object that has it, and embeds the result.
        return lambda: stand_in(self) if self.owner.recorder is not None else self.payload

    # Methods that do not go through JAX's table

    def block_until_ready(self) -> Box:
        self.payload.block_until_ready()
        return self

    def __reduce__(self) -> Any:
        return self.payload.__reduce__()

    def __repr__(self) -> str:
        return repr(self.payload)

    def __str__(self) -> str:
        return str(self.payload)

    def __format__(self, spec: str) -> str:
        return format(self.payload, spec)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.payload.__array__(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # While the tape records, the copy must be tracked. A box is immutable, so it is its own copy, as a tracer is.
        return self if self.owner.recorder is not None else self.payload.__deepcopy__(memo)

    def __iter__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, index: object) -> Any:
        return connected(_OF_JAX_METHODS["__getitem__"](self, index), self)

    def __reversed__(self) -> Any:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in reversed(range(self.shape[0])))

    def __contains__(self, item: object) -> bool:
        return item in self.payload


def contents_of_stand_in(tracer: jax.Array) -> list[tuple[str, Any]]:
    """Returns a list with a dummy `JVPTracer` that makes `jax.closure_convert` hoist a stand-in tracer.

    It implements the method `_contents` of stand-in tracers. The list is empty for dtypes other than float and complex.
    """
    # `closure_convert` hoists a captured constant only if the constant is, or contains (by its method `_contents`), a
    # `JVPTracer` with a nonzero tangent.
    if not _dtypes.issubdtype(tracer.aval.dtype, np.inexact):
        return []
    differentiated: Any = object.__new__(_ad.JVPTracer)
    differentiated.tangent = None
    return [("value", differentiated)]


# JAX calls `full_lower` on the operands that it executes eagerly. A stand-in gets there if no tape's trace has resolved
# it. It then gives the concrete value, and no tape records the operation.


class _StandIn(jax.core.Tracer):  # type: ignore[misc,type-arg]
    """Base class of tracers that represent a tape-tracked array or a variable in a traced function.

    JAX hoists such a tracer as a constant out of a function that closes over it.
    """

    __slots__ = ()

    at = connected_at

    def __getitem__(self, index: object) -> Any:
        return connected(super().__getitem__(index), self)

    def _contents(self) -> Any:
        return contents_of_stand_in(self)


class BoxTracer(_StandIn):
    """A tracer that stands for a tape-tracked array (a box) inside a JAX transform nested in the tape."""

    __slots__ = ("box",)

    def __init__(self, box: Box) -> None:
        super().__init__(_stand_in_trace, box.aval)
        self.box = box

    def resolved(self) -> Any:
        """Returns the tape-tracked array (the box) for which this tracer stands."""
        return self.box

    def full_lower(self) -> Any:
        return self.box.payload

    def to_concrete_value(self) -> Any:
        return self.box.payload

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.box.__array__(*args, **kwargs)


class Readable(Protocol):
    """Interface of a variable whose current value a `ReadTracer` can read."""

    def read_value(self) -> Any:
        """Returns the variable's current value, and notifies tapes and other listeners of the read."""
        ...


class ReadTracer(_StandIn):
    """A tracer that stands for a variable's current value: each call of the traced program reads the variable again."""

    __slots__ = ("variable",)

    def __init__(self, variable: Readable, aval: jax.core.ShapedArray) -> None:
        super().__init__(_stand_in_trace, aval)
        self.variable = variable

    def resolved(self) -> Any:
        """Returns the variable's current value, and notifies tapes and other listeners of the read."""
        return self.variable.read_value()

    def full_lower(self) -> Any:
        return self.resolved()

    def _short_repr(self) -> str:
        return f"Read({self.aval.str_short()} of {getattr(self.variable, 'name', 'a variable')})"


STAND_INS = frozenset({BoxTracer, ReadTracer})


def stand_in(box: Box) -> BoxTracer:
    """Returns the tracer that represents a tape-tracked array (a box) inside the current JAX transform.

    The box's tape records which functions JAX is tracing. Their cached traces hold this stand-in among their constants,
    which JAX passes as operands. A later call would use this step's box again, so the traces are evicted.
    """
    box.owner.mark_stale(caches.functions_being_traced())
    try:
        return box._stand_in
    except AttributeError:
        box._stand_in = BoxTracer(box)
        return box._stand_in


def _value_for_jax(box: Box) -> Any:
    """Returns the operand that JAX gets for a tape-tracked array: the array itself, its concrete value, or a tracer."""
    trace = _trace_now.trace
    if hasattr(trace, "process_merge"):  # the trace of a tape
        return box
    if box.owner.recorder is None or trace is None or trace is _core.eval_trace:
        return box.payload
    return stand_in(box)


def _shard_payloads(boxes: Sequence[Box], *args: Any, **kwargs: Any) -> Any:
    """Shards the payloads (concrete values) of tape-tracked arrays for a compiled program.

    Warns if the current tape tracks the arrays, because it cannot record the call. Under that tape, only a program
    compiled ahead of time, which binds no primitive, gets boxes.
    """
    if any(box.owner.recorder is not None and box.owner is _trace_now.trace for box in boxes):
        warnings.warn(
            "A function that was compiled ahead of time (jax.jit(f).lower(...).compile()) was called with an array "
            "that a GradientTape tracks.\n"
            "  rule:   an executable has no derivative, so the tape does not record it; the gradient lacks its part\n"
            "  remedy: call jax.jit(f), which is also compiled only once; or pass jax.lax.stop_gradient(x) if no "
            "gradient is needed",
            stacklevel=user_stacklevel(),
        )
    return _pxla.shard_arg_handlers[Array]([box.payload for box in boxes], *args, **kwargs)


# Attributes

_OF_JAX_METHODS: dict[str, Any] = {
    **{f"__{name}__": f for name, f in _array_methods._array_operators.items()},
    **_array_methods._array_methods,
    **_array_methods._impl_only_array_methods,
    **{name: property(f) for name, f in _array_methods._array_properties.items()},
}
Box.at = connected_at  # type: ignore[method-assign]
_OWN = {*vars(Box), "__deepcopy__", "__class__", "__dict__", "__doc__", "__weakref__", "__module__", "__slots__"}


def _from_payload(name: str) -> Any:
    return property(lambda box: getattr(box.payload, name), doc=f"`jax.Array.{name}`.")


def _special_from_payload(name: str) -> Any:
    def method(box: Box, *args: Any, **kwargs: Any) -> Any:
        return getattr(box.payload, name)(*args, **kwargs)

    method.__name__ = name
    return method


_SPECIAL: tuple[str, ...] = (
    *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__hex__", "__oct__", "__len__"),
    *("__dlpack__", "__dlpack_device__", "__buffer__", "__release_buffer__"),
)


def _fill_in() -> None:
    for name, attribute in _OF_JAX_METHODS.items():
        if name not in _OWN:
            setattr(Box, name, attribute)
    for name in _SPECIAL:
        if name not in _OWN and hasattr(Array, name):
            setattr(Box, name, _special_from_payload(name))
    Box.__cuda_array_interface__ = _from_payload("__cuda_array_interface__")  # type: ignore[attr-defined]
    Box.__array_module__ = Array.__array_module__  # type: ignore[attr-defined]
    for name in vars(Array):
        if not name.startswith("__") and name not in _OWN and name not in _OF_JAX_METHODS:
            setattr(Box, name, _from_payload(name))


_DIRECT = frozenset({Box, Array, float, int})
# Operators that call the tape directly: JAX's dispatch would dominate the cost.
_SHORT = frozenset(f"__{name}__" for one in ("add", "sub", "mul", "truediv", "matmul") for name in (one, f"r{one}"))


def _operator(name: str) -> Callable[[Box, Any], Any]:
    """Creates a binary operator method of `Box` that dispatches to the tape or to the operator of `jax.Array`.

    It looks the method up at each call, because `mirrored.tf` may replace it.
    """
    operation, direct = name.strip("_"), _DIRECT if name in _SHORT else frozenset[type]()

    def method(self: Box, other: Operand) -> Any:
        owner = self.owner
        if type(other) in direct and _trace_now.trace is owner:
            return owner.operate(operation, self, other)
        return getattr(Array, name)(self, other)

    return method


def _negative(box: Box) -> Any:
    owner = box.owner
    return owner.negated(box) if _trace_now.trace is owner else _OF_JAX_METHODS["__neg__"](box)


def _add_operators() -> None:
    Box.__neg__ = _negative  # type: ignore[assignment,method-assign]
    for name in OPERATORS:
        setattr(Box, name, _operator(name))


def has_payload(value: object) -> bool:
    """Returns whether `value` is an array that a tape tracks (a box), even if the tape has ended."""
    return type(value) is Box


def is_live_box(value: object) -> bool:
    """Returns whether `value` is an array tracked by a tape that is still recording."""
    return type(value) is Box and value.owner.recorder is not None


BOXES: Final = frozenset({Box, BoxTracer})
"""The types of the objects that `payload_of` replaces."""


def payload_of(value: object) -> Any:
    """Returns the concrete array inside a tape-tracked array (a box), and any other value unchanged."""
    if type(value) is Box:
        return value.payload
    if type(value) is BoxTracer:
        return value.box.payload
    return value


def another_object(array: object) -> Any:
    """Returns a new Python object for the buffer of a box or single-device array; returns other values unchanged.

    A tape can then tell the two objects apart.
    """
    if type(array) is Box:
        return Box(array.owner, array.payload, array.key)
    if type(array) is Array and len(array.sharding.device_set) == 1:
        return array.addressable_data(0)
    return array


def _is_symbolic_dim(v: Any) -> bool:
    """Returns whether a value is a symbolic dimension; unlike JAX's own test, it is False for a `Box`."""
    return type(v) is not Box and getattr(v, "dimension_as_value", None) is not None


_fill_in()
_add_operators()
replace("jax functions", _core, "is_symbolic_dim", _is_symbolic_dim)
_core.pytype_aval_mappings[Box] = operator.attrgetter("payload.aval")
_core.pytype_aval_mappings[BoxTracer] = operator.attrgetter("aval")
_core.pytype_aval_mappings[ReadTracer] = operator.attrgetter("aval")
if hasattr(_dtypes, "register_canonicalize_value_handler"):
    _dtypes.register_canonicalize_value_handler(Box, _value_for_jax)
else:  # JAX 0.10.0
    _dtypes.canonicalize_value_handlers[Box] = _value_for_jax
_pxla.shard_arg_handlers[Box] = _shard_payloads
