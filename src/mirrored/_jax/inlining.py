"""Traces functions into jaxprs, applies jaxprs inside another trace, and computes hashes of jaxprs."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var  # type: ignore[attr-defined]

from mirrored._jax.durations import tracing_measured
from mirrored._jax.invalid_values import InternalFloatingPointError, named_error
from mirrored._jax.jaxprs import jaxprs_in
from mirrored._jax.own_arrays import with_own_arrays
from mirrored._jax.private import config as _config
from mirrored._jax.private import core as _core
from mirrored._jax.private import debugging as _debugging
from mirrored._jax.private import dtypes as _dtypes
from mirrored._jax.private import effects as _effects
from mirrored._jax.private import linear_util as _linear_util
from mirrored._jax.private import partial_eval as _partial_eval
from mirrored._jax.private import source_info_util as _source_info
from mirrored._jax.traces import Tracer, belongs_to, current_trace, is_staging
from mirrored._typing import Operand

# Applies a jaxpr under the current trace. Under a staging trace, copies its equations instead of binding them again.
#
# `jax.core.eval_jaxpr` binds each equation again: it recomputes abstract values, rules and inner jaxprs (and traces
# each `shard_map` again), which takes a third of the tracing time of a training step *(measured: W4 of the
# benchmarks)*. Copied equations give the same program.
#
# Supports JAX 0.10 to 0.12. `jit(inline=True)` does the same with `partial_eval.inline_jaxpr_into_trace`, but gives all
# equations one source line; here each equation keeps its own. If this JAX version lacks the API, `eval_jaxpr` is used.

_CAN: Final = hasattr(_partial_eval.DynamicJaxprTrace, "emit_eqn") and hasattr(_partial_eval, "try_constant_folding")


def apply_jaxpr(jaxpr: Jaxpr, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Applies an open jaxpr to constants and arguments under the current trace, and returns the results.

    Context: any. JAX's settings (x64, matmul precision, ...) must be those under which the jaxpr was traced.

    Args:
        jaxpr: An open jaxpr, whose constvars are the values over which it closes.
        constants: The value of each constvar.
        args: The value of each input.
    """
    trace = current_trace()
    if _CAN and is_staging(trace) and not _config.enable_checks.value and _is_plain(jaxpr):
        return _copied(trace, jaxpr, (*constants, *args))
    try:
        return list(jax.core.eval_jaxpr(jaxpr, constants, *args))
    except InternalFloatingPointError as error:  # under `jax_debug_nans`
        raise named_error(error, jaxpr, constants, args) from None


def _is_plain(jaxpr: Jaxpr) -> bool:
    """Returns whether a jaxpr has no high-level types or effects on operands, so that its equations can be copied."""
    if jaxpr.is_high:
        return False
    return not any(hasattr(e, "input") or hasattr(e, "input_index") for eqn in jaxpr.eqns for e in eqn.effects)


def _copied(trace: _partial_eval.DynamicJaxprTrace, jaxpr: Jaxpr, values: Sequence[Any]) -> list[Any]:
    here = _source_info.current()
    given: dict[Var | Literal, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
    known: dict[Var | Literal, Any] = {variable: value for variable, value in given.items() if belongs_to(value, trace)}

    def tracer_of(atom: Var | Literal) -> Any:
        tracer = None if isinstance(atom, Literal) else known.get(atom)
        if tracer is None and isinstance(atom, Literal):
            tracer = _partial_eval.DynamicJaxprTracer(trace, atom.aval, atom, here)
        elif tracer is None:
            tracer = known[atom] = trace.to_jaxpr_tracer(_as_bound(given[atom]), here)
        return tracer

    for eqn in jaxpr.eqns:
        operands = [tracer_of(atom) for atom in eqn.invars]
        known.update(zip(eqn.outvars, _added(trace, eqn, operands, here.name_stack), strict=True))
    return [_result(atom, given, known) for atom in jaxpr.outvars]


def _as_bound(value: Operand) -> Any:
    """Canonicalizes `value` as `Primitive.bind` would."""
    return value if isinstance(value, Tracer) else _dtypes.canonicalize_value(value)


def _added(
    trace: _partial_eval.DynamicJaxprTrace, eqn: JaxprEqn, operands: Sequence[Any], name_stack: _source_info.NameStack
) -> Sequence[Any]:
    """Adds an equation to the jaxpr that `trace` builds; returns the results, as constants if JAX can fold them."""
    source = eqn.source_info.replace(name_stack=name_stack + eqn.source_info.name_stack)
    avals = [variable.aval for variable in eqn.outvars]
    folded = _partial_eval.try_constant_folding(eqn.primitive, operands, eqn.params, avals)
    if folded is not None:
        return [trace.new_const(value, source, aval) for value, aval in zip(folded, avals, strict=True)]
    added: Sequence[Any] = trace.emit_eqn(operands, avals, eqn.primitive, eqn.params, eqn.effects, source, eqn.ctx)
    return added


def _result(atom: Var | Literal, given: dict[Any, Any], known: dict[Any, Any]) -> Any:
    """Returns the value of a jaxpr's output: a literal's value, the given input object itself, or a computed value."""
    if isinstance(atom, Literal):
        return atom.val
    return given[atom] if atom in given else known[atom]


# Traces a function once into a jaxpr, and applies it inside another trace.
#
# Supports JAX 0.10 to 0.12 (`jax.make_jaxpr`).


@dataclasses.dataclass(frozen=True)
class Staged:
    """A function traced to an open jaxpr, with the values of the constants that the function closed over."""

    jaxpr: Jaxpr
    constants: tuple[Any, ...]

    @property
    def num_inputs(self) -> int:
        """The number of inputs of the traced function, not counting the jaxpr's constants."""
        return len(self.jaxpr.invars)

    @property
    def results(self) -> list[tuple[tuple[Any, ...], Any]]:
        """The shape and dtype of each result."""
        types: list[Any] = [one.aval for one in self.jaxpr.outvars]
        return [(one.shape, one.dtype) for one in types]

    @property
    def closed(self) -> ClosedJaxpr:
        """The traced function as a closed jaxpr, which contains the constants."""
        return ClosedJaxpr(self.jaxpr, list(self.constants))

    def giving(self, positions: Sequence[int]) -> Staged:
        """Returns a copy of this traced function that computes only the results at `positions`, in this order."""
        outvars = [self.jaxpr.outvars[position] for position in positions]
        return dataclasses.replace(self, jaxpr=self.jaxpr.replace(outvars=outvars))

    def with_own_constants(self) -> Staged:
        """Returns a copy of this traced function with copies of the NumPy arrays among its constants, at any depth.

        JAX keeps a view of a captured array, and each lowering reads it: a program that is lowered again would take the
        numbers to which the array has been refilled.
        """
        return Staged(*with_own_arrays(self.jaxpr, self.constants))

    def __call__(self, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Evaluates the traced function for the given constants and inputs, under the current JAX trace."""
        return apply_jaxpr(self.jaxpr, constants, inputs)


def stage(
    flat_function: Callable[..., Sequence[Any]],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *,
    axes: Sequence[tuple[str, int]] = (),
) -> Staged:
    """Traces a function of arrays for given shapes and dtypes, and returns the trace as a `Staged`.

    Args:
        flat_function: A function from arrays to a flat list of arrays.
        shapes: The shapes and dtypes of its inputs.
        axes: The names and sizes of mesh axes over which it may reduce.
    """
    with tracing_measured():
        closed: ClosedJaxpr = jax.make_jaxpr(flat_function, axis_env=list(axes))(*shapes)
    return Staged(closed.jaxpr, tuple(closed.consts))


# Flat functions of arrays as jaxprs, which can be inspected, pruned and run.
#
# Supports JAX 0.10 to 0.12: `jax.make_jaxpr`, `jax.core.eval_jaxpr`, and the attributes of jaxprs.

_trace: Any = getattr(_partial_eval, "trace_to_jaxpr_dynamic", None)
_WHAT = _core.DebugInfo("mirrored", "an operation's rule", None, None)


class JaxprProgram:
    """A traced function: an open jaxpr with the values of its constants.

    Attributes:
        out_avals: The abstract values (shapes and dtypes) of the program's results.
    """

    __slots__ = ("__name__", "__weakref__", "constants", "jaxpr", "out_avals")

    def __init__(self, jaxpr: Jaxpr, constants: Sequence[Any], name: str = "program") -> None:
        self.jaxpr = jaxpr
        self.constants = list(constants)
        self.out_avals: list[Any] = [atom.aval for atom in jaxpr.outvars]
        self.__name__ = name

    def __call__(self, *args: Any) -> list[Any]:
        """Evaluates the program for the given inputs, under the current JAX trace."""
        return apply_jaxpr(self.jaxpr, self.constants, args)

    def of_constants(self, *args: Any) -> list[Any]:
        """Evaluates the program with other constants; `args` are the constants, followed by the inputs."""
        count = len(self.constants)
        return apply_jaxpr(self.jaxpr, args[:count], args[count:])

    def keeping(self, positions: Sequence[int]) -> JaxprProgram:
        """Returns a copy of this program that computes only the results at `positions`."""
        outvars = [self.jaxpr.outvars[i] for i in positions]
        return JaxprProgram(_used_part(self.jaxpr, outvars), self.constants, self.__name__)

    def source_of(self, atom: Var | Literal) -> tuple[str, Any] | None:
        """Returns the input position or the constant that a result copies; None if an equation computes the result."""
        if isinstance(atom, Literal):
            return "constant", atom.val
        for position, variable in enumerate(self.jaxpr.invars):
            if variable is atom:
                return "input", position
        for variable, constant in zip(self.jaxpr.constvars, self.constants, strict=True):
            if variable is atom:
                return "constant", constant
        return None

    def computed_at(self) -> list[int]:
        """Returns, for each result, the index of the equation that computes it; -1 if no equation does."""
        found = {variable: number for number, equation in enumerate(self.jaxpr.eqns) for variable in equation.outvars}
        return [-1 if isinstance(atom, Literal) else found.get(atom, -1) for atom in self.jaxpr.outvars]

    @property
    def captured(self) -> bool:
        """Whether a constant of the program is a tracer or tape-tracked array, so that the program cannot be reused."""
        return any(isinstance(constant, _core.Tracer) or hasattr(constant, "payload") for constant in self.constants)


def _used_part(jaxpr: Jaxpr, outvars: Sequence[Any]) -> Any:
    """Returns `jaxpr` with the results `outvars`, and only the equations that have effects or that the results need."""
    needed = {atom for atom in outvars if not isinstance(atom, Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(variable in needed for variable in equation.outvars):
            equations.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return jaxpr.replace(outvars=list(outvars), eqns=equations[::-1])


def program_of(function: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> JaxprProgram:
    """Traces a function of arrays for given shapes and dtypes, and returns the trace as a `JaxprProgram`.

    Like `jax.make_jaxpr`, without its handling of argument structures and signatures, which dominates for a function of
    a few equations *(measured: 185 us and 20 us)*. It is called twice for each new operation on a tape.
    """

    def flat(*args: Any) -> list[Any]:
        return list(function(*args))

    if _trace is None:
        closed: ClosedJaxpr = jax.make_jaxpr(flat)(*avals)
        return JaxprProgram(closed.jaxpr, closed.consts)
    jaxpr, _, constants = _trace(_linear_util.wrap_init(flat, debug_info=_WHAT), list(avals))
    if hasattr(jaxpr, "with_consts"):  # from JAX 0.12 on a jaxpr holds its constants itself
        jaxpr = jaxpr.with_consts(constants)
    return JaxprProgram(jaxpr, constants)


def as_function(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Returns a Python function that evaluates a closed jaxpr."""
    return lambda *args: apply_jaxpr(closed.jaxpr, closed.consts, args)


# Calls of Python in programs.


def calls_python(eqn: JaxprEqn) -> bool:
    """Returns whether an equation calls a Python function while the program runs, `jax.debug.print` included."""
    if "callback" in eqn.primitive.name or eqn.primitive.name == "debug_print":
        return True
    return any(calls_python(one) for inner in jaxprs_in(eqn.params) for one in inner.eqns)


def has_callbacks(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Returns whether a program calls back into Python while running, and may thus fail midway."""
    for equation in jaxpr.eqns:
        if "callback" in equation.primitive.name:
            return True
        if any(has_callbacks(inner) for inner in jaxprs_in(equation.params)):
            return True
    return False


def is_ordered(eqn: JaxprEqn) -> bool:
    """Returns whether an equation calls a Python function with ``ordered=True``, at any depth."""
    return any(_effects.ordered_effects.contains(effect) for effect in eqn.effects)


def has_ordered_printing(jaxpr: Jaxpr) -> bool:
    """Returns whether a program contains `jax.debug.print` or `jax.debug.callback` with ``ordered=True``.

    JAX 0.10 to 0.12 compiles them for one device only.
    """
    return any(isinstance(effect, _debugging.OrderedDebugEffect) for effect in jaxpr.effects)


# Digests of traced programs, equal in all processes that have traced the same program.
#
# Supports JAX 0.10 to 0.12. Printed jaxprs contain addresses and are slow to create (50 us per equation); a digest
# takes about 10 us per equation.

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.dtype, np.generic)
_LARGEST_BYTES = 1 << 20


def digest_of(jaxpr: Jaxpr | ClosedJaxpr, constants: Sequence[Any] = ()) -> str:
    """Returns a short hash of a jaxpr; jaxprs with different computations have different hashes.

    Args:
        jaxpr: The program. The digest covers operations, types, parameters of plain types, literals and dataflow.
        constants: The captured values. The digest covers their shapes and dtypes, and the bits of small NumPy arrays.
    """
    made = hashlib.blake2b(digest_size=12)
    _add(made, jaxpr, constants)
    return made.hexdigest()


def captured_arrays(jaxpr: Jaxpr | ClosedJaxpr, constants: Sequence[Any] = ()) -> list[Any]:
    """Returns a program's captured arrays that `digest_of` hashes only by shape and dtype, not by contents.

    Args:
        jaxpr: The program. Inner programs (`jax.jit`, `jax.lax.scan`) have their own constants.
        constants: The constants of the outermost program.
    """
    found = [one for one in constants if not _is_small(one) and _is_own_array(one)]
    for equation in jaxpr.eqns:
        for _, value in sorted(equation.params.items()):
            for inner in _programs_in(value):
                found += captured_arrays(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()))
    return found


def _is_small(constant: object) -> bool:
    return isinstance(constant, (np.ndarray, np.generic)) and constant.nbytes <= _LARGEST_BYTES


def _is_own_array(constant: object) -> bool:
    if isinstance(constant, jax.Array):
        return not isinstance(constant, jax.core.Tracer) and constant.is_fully_addressable
    return isinstance(constant, np.ndarray)


def _programs_in(value: object) -> list[Any]:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return [value]
    if isinstance(value, (tuple, list)):
        return [inner for one in value for inner in _programs_in(one)]
    return []


def _add(made: hashlib.blake2b, jaxpr: Jaxpr | ClosedJaxpr, constants: Sequence[Any] = ()) -> None:
    constants = constants or getattr(jaxpr, "consts", ())
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # a closed one
    for constant in constants:
        made.update(repr((np.shape(constant), str(getattr(constant, "dtype", "")))).encode())
        if _is_small(constant):
            made.update(np.ascontiguousarray(constant).tobytes())
    numbers: dict[Any, int] = {}
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        made.update(f"{_atom(variable, numbers)}:{variable.aval};".encode())
    for equation in jaxpr.eqns:
        made.update(f"{equation.primitive.name}({','.join(_atom(atom, numbers) for atom in equation.invars)})".encode())
        for name, value in sorted(equation.params.items()):
            made.update(f"{name}=".encode())
            _add_parameter(made, value)
        made.update(";".join(f"{_atom(atom, numbers)}:{atom.aval}" for atom in equation.outvars).encode())
    made.update(",".join(_atom(atom, numbers) for atom in jaxpr.outvars).encode())


def _atom(atom: Var | Literal, numbers: dict[Any, int]) -> str:
    if isinstance(atom, Literal):
        return f"{atom.val!r}:{atom.aval}"
    return str(numbers.setdefault(atom, len(numbers)))


def _add_parameter(made: hashlib.blake2b, value: Any) -> None:
    """Adds an equation's parameter to a digest: plain values and inner programs by content, others by type only."""
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        _add(made, value)
    elif isinstance(value, (tuple, list)):
        made.update(b"(")
        for one in value:
            _add_parameter(made, one)
        made.update(b")")
    elif isinstance(value, Mapping):
        _add_parameter(made, [item for pair in value.items() for item in pair])
    elif isinstance(value, _PLAIN) or isinstance(value, enum.Enum):
        made.update(repr(value).encode())
    else:
        made.update(type(value).__name__.encode())
