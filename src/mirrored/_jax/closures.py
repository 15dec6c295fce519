"""Finds arrays that are embedded in a jaxpr: in closures of custom-derivative functions or in parameters."""

from __future__ import annotations

import enum
import functools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, Primitive, Var, primitives

from mirrored._jax.boxes import stop_gradient_p
from mirrored._jax.custom_derivatives import bind_primitive
from mirrored._jax.inlining import JaxprProgram
from mirrored._jax.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, is_inexact
from mirrored._jax.private import array as _array
from mirrored._jax.private import shard_map as _shard_map
from mirrored._jax.rule_closures import closed_over_p
from mirrored.errors import TapeError

# Finds the values over which functions with custom derivatives (`jax.custom_jvp`, `jax.custom_vjp`) close in programs.
#
# In a traced program, the closed-over values are leading operands of the call, and the derivative rule does not cover
# them. JAX refuses to differentiate a `custom_vjp` call with respect to them; for `custom_jvp` it drops their tangents.
# What only the rules close over passes through `closed_over_p` (`rule_closures`). Other rules are traced later, by a
# program that is derived from this one, and embed what they close over there.
#
# Supports JAX 0.10 to 0.12 (`num_consts` of the two primitives).

_CUSTOM = (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
_SAME_OPERANDS = (
    *(primitives.jit_p, primitives.remat_p, primitives.scan_p, primitives.cond_p, _shard_map.shard_map_p),
    *_CUSTOM,
)


class CustomCalls(enum.IntEnum):
    """Enum: whether a program calls functions with custom derivatives, and whether these close over values."""

    NONE = 0
    PLAIN = 1
    CLOSING_OVER = 2


_custom_calls: weakref.WeakKeyDictionary[Any, CustomCalls] = weakref.WeakKeyDictionary()


def custom_calls(params: Mapping[str, Any]) -> CustomCalls:
    """Returns a `CustomCalls` value that tells whether a primitive's inner jaxprs call custom-derivative functions."""
    return max((_custom_calls_in(jaxpr) for jaxpr in _jaxprs_in(params)), default=CustomCalls.NONE)


def _custom_calls_in(jaxpr: Jaxpr | ClosedJaxpr) -> CustomCalls:
    found = _custom_calls.get(jaxpr)
    if found is None:
        found = _custom_calls[jaxpr] = max(map(_custom_calls_of, _opened(jaxpr).eqns), default=CustomCalls.NONE)
    return found


def _custom_calls_of(equation: JaxprEqn) -> CustomCalls:
    inside = custom_calls(equation.params)
    if equation.primitive is closed_over_p:
        return CustomCalls.CLOSING_OVER
    if equation.primitive not in _CUSTOM:
        return inside
    return max(inside, CustomCalls.CLOSING_OVER if equation.params["num_consts"] else CustomCalls.PLAIN)


def closed_over_inputs(program: JaxprProgram) -> list[int]:
    """Returns the positions of a program's inputs that its custom-derivative functions close over."""
    jaxpr = program.jaxpr
    _, lost = _flow(jaxpr, [1 << position for position in range(len(jaxpr.invars))])
    return [position for position in range(len(jaxpr.invars)) if lost >> position & 1]


def used_constants(program: JaxprProgram) -> list[Any]:
    """Returns the constants of a program that can receive gradients from the program's results."""
    jaxpr = program.jaxpr
    bits = [1 << position for position in range(len(jaxpr.constvars))]
    results, lost = _flow(jaxpr, [0] * len(jaxpr.invars), bits)
    used = functools.reduce(operator.or_, results, lost)
    return [constant for position, constant in enumerate(program.constants) if used >> position & 1]


def embedded_tracers(program: JaxprProgram) -> list[Any]:
    """Returns the tracers that are constants of inner jaxprs of `program`, at any nesting depth."""
    return list(_tracers_in(program.jaxpr.eqns))


def _tracers_in(equations: Iterable[Any]) -> Iterator[Any]:
    for equation in equations:
        for jaxpr in _jaxprs_in(equation.params):
            yield from (one for one in getattr(jaxpr, "consts", ()) if isinstance(one, jax.core.Tracer))
            yield from _tracers_in(_opened(jaxpr).eqns)


def _jaxprs_in(params: Mapping[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(one, "eqns"):
                yield one


def _opened(jaxpr: Jaxpr | ClosedJaxpr) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _flow(jaxpr: Jaxpr | ClosedJaxpr, masks: Sequence[int], of_constants: Sequence[int] = ()) -> tuple[list[int], int]:
    """Returns which program inputs each output of a jaxpr depends on, as bit masks.

    The second result is the mask of the program inputs that functions with custom derivatives close over.

    Args:
        jaxpr: An open or closed jaxpr.
        masks: For each input of `jaxpr`, the mask of the program inputs on which it depends.
        of_constants: The same for its constants. Default: no dependency.
    """
    jaxpr = _opened(jaxpr)
    known: dict[Any, int] = dict(zip(jaxpr.invars, masks, strict=True))
    known.update(zip(jaxpr.constvars, of_constants, strict=False))
    lost = 0

    def mask_of(atom: Var | Literal) -> int:
        return 0 if isinstance(atom, Literal) else known.get(atom, 0)

    for equation in jaxpr.eqns:
        results, lost_here = _flow_of_equation(equation, [mask_of(atom) for atom in equation.invars])
        lost |= lost_here
        for variable, mask in zip(equation.outvars, results, strict=True):
            known[variable] = mask if is_inexact(variable.aval) else 0
    return [mask_of(atom) for atom in jaxpr.outvars], lost


def _flow_of_equation(equation: JaxprEqn, masks: Sequence[int]) -> tuple[list[int], int]:
    """Returns which program inputs each result of an equation depends on, as bit masks.

    The second result is the mask of the program inputs that its functions with custom derivatives close over.
    """
    everything = functools.reduce(operator.or_, masks, 0)
    if equation.primitive is closed_over_p:
        return [0], everything
    results = [0 if equation.primitive is stop_gradient_p else everything] * len(equation.outvars)
    lost = 0
    if equation.primitive in _CUSTOM:
        lost = functools.reduce(operator.or_, masks[: equation.params["num_consts"]], 0)
    for jaxpr in _jaxprs_in(equation.params):
        if _custom_calls_in(jaxpr) is CustomCalls.CLOSING_OVER:
            lost |= _captured_inside(equation, jaxpr, masks, everything)
    return results, lost


def _captured_inside(equation: JaxprEqn, jaxpr: Jaxpr | ClosedJaxpr, masks: Sequence[int], everything: int) -> int:
    operands = masks[1:] if equation.primitive is primitives.cond_p else masks
    if equation.primitive not in _SAME_OPERANDS or len(_opened(jaxpr).invars) != len(operands):
        return _flow(jaxpr, [everything] * len(_opened(jaxpr).invars))[1]
    if equation.primitive is primitives.scan_p:
        return _captured_in_scan(equation.params, jaxpr, operands)
    return _flow(jaxpr, operands)[1]


def _captured_in_scan(params: Mapping[str, Any], jaxpr: Jaxpr | ClosedJaxpr, masks: Sequence[int]) -> int:
    """Returns the bit mask of the program inputs that custom-derivative functions inside a `scan` capture.

    Repeats the dataflow analysis of the loop body until the bit masks of the carries no longer change.
    """
    start, count = scan_split(params)
    before: list[int] = []
    after = list(masks)
    while after != before:
        before = after
        results, lost = _flow(jaxpr, before)
        carried = [one | other for one, other in zip(before[start : start + count], results, strict=False)]
        after = [*before[:start], *carried, *before[start + count :]]
    return lost


# Finds arrays embedded in a primitive's parameters, and applies the primitive with other arrays in their place.
#
# A function passed to `jit` (or `scan`, `cond`, ...) may close over an array that a tape watches. The traced jaxpr
# contains the array object: among the constants of a closed jaxpr or, if it is a scalar, as a literal. To differentiate
# with respect to it, the array has to become an input.
#
# Supports JAX 0.10 to 0.12.

_embedded_arrays: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def embedded_arrays(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the concrete arrays inside the jaxprs of a primitive's parameters, at any nesting depth."""
    arrays: tuple[Any, ...] = ()
    for value in params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(one, "eqns"):
                arrays += _arrays_of(one)
    return arrays


def opaque_arrays(params: Mapping[str, Any]) -> list[Any]:
    """Returns the concrete arrays that custom-derivative functions in a primitive's inner jaxprs close over."""
    found: list[Any] = []
    for value in params.values():
        for one in value if isinstance(value, (tuple, list)) else (value,):
            for equation in getattr(one, "eqns", ()):
                inside = embedded_arrays if equation.primitive in _OPAQUE else opaque_arrays
                found += inside(equation.params)
    return found


def depends_on_opaque(primitive: Primitive, params: Mapping[str, Any], arrays: Sequence[Any], count: int) -> list[bool]:
    """Flags each result of a primitive that may depend on a custom-derivative function capturing any of `arrays`.

    Args:
        primitive: The primitive. The results of `jit` and `checkpoint` are distinct objects; others need not be.
        params: Its parameters.
        arrays: The arrays over which custom-derivative functions in `params` close (`opaque_arrays`).
        count: The number of results.
    """
    if primitive not in (primitives.jit_p, primitives.remat_p) or _opened(params["jaxpr"]).effects:
        return [True] * count
    ids = frozenset(map(id, arrays))
    return _behind_opaque(params["jaxpr"], [False] * len(_opened(params["jaxpr"]).invars), ids)


def _behind_opaque(jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence[bool], ids: frozenset[int]) -> list[bool]:
    jaxpr = _opened(jaxpr)
    behind = {variable for variable, is_behind in zip(jaxpr.invars, inputs, strict=True) if is_behind}
    for equation in jaxpr.eqns:
        primitive, params = equation.primitive, equation.params
        operands = [not isinstance(atom, Literal) and atom in behind for atom in equation.invars]
        inside = (embedded_arrays if primitive in _OPAQUE else opaque_arrays)(params)
        closes_over = any(id(array) in ids for array in inside)
        results = [(any(operands) or closes_over) and primitive is not stop_gradient_p] * len(equation.outvars)
        if closes_over and primitive in (primitives.jit_p, primitives.remat_p):
            results = _behind_opaque(params["jaxpr"], operands, ids)
        pairs = zip(equation.outvars, results, strict=True)
        behind.update(variable for variable, is_behind in pairs if is_behind and is_inexact(variable.aval))
    return [not isinstance(atom, Literal) and atom in behind for atom in jaxpr.outvars]


def _arrays_of(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[Any, ...]:
    """Returns the concrete arrays inside an open or closed jaxpr, cached per jaxpr."""
    arrays = _embedded_arrays.get(jaxpr)
    if arrays is None:
        arrays = tuple({id(array): array for array in _search(jaxpr)}.values())
        _embedded_arrays[jaxpr] = arrays
    return arrays


def _search(jaxpr: Jaxpr | ClosedJaxpr) -> list[Any]:
    found = [one for one in getattr(jaxpr, "consts", ()) if isinstance(one, _array.ArrayImpl)]
    open_jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in open_jaxpr.eqns:
        found += _literals(equation.invars)
        if equation.primitive not in _OPAQUE:
            found += embedded_arrays(equation.params)
    return found + _literals(open_jaxpr.outvars)


def _literals(atoms: Sequence[Any]) -> list[Any]:
    return [atom.val for atom in atoms if isinstance(atom, Literal) and isinstance(atom.val, _array.ArrayImpl)]


class Lifted:
    """A callable for a JAX primitive that takes the arrays embedded in the primitive's parameters as extra arguments.

    Args:
        primitive: The primitive.
        params: The primitive's parameters.
        arrays: The embedded arrays to replace.
    """

    def __init__(self, primitive: Primitive, params: Mapping[str, Any], arrays: Sequence[Any]) -> None:
        self._primitive = primitive
        self._params = dict(params)
        self._ids = [id(array) for array in arrays]
        self._arrays = tuple(arrays)

    def __call__(self, *args: Any) -> list[Any]:
        """Applies the primitive; the arguments are replacements for the embedded arrays, followed by the operands."""
        count = len(self._ids)
        return _bind(self._primitive, self._params, args[count:], dict(zip(self._ids, args[:count], strict=True)))


def _bind(primitive: Primitive, params: dict[str, Any], args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    """Applies a primitive after replacing embedded arrays: `instead` maps the id of an array to its replacement."""
    if primitive in _OPAQUE or not any(id(array) in instead for array in embedded_arrays(params)):
        return bind_primitive(primitive, params, args)
    rebuild = REBUILT.get(primitive)
    if rebuild is None:
        raise TapeError(
            "GradientTape",
            found=f"a function passed to {primitive} closes over a watched array",
            rule="a watched array can be closed over only in jit, scan, cond, while_loop and checkpoint",
            remedy="pass it as an argument, or close over its value: float(array) or numpy.asarray(array)",
        )
    return list(rebuild(params, args, instead))


def _evaluate(jaxpr: Jaxpr | ClosedJaxpr, args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    """Evaluates a jaxpr after replacing embedded arrays: `instead` maps the id of an array to its replacement."""
    open_jaxpr, constants = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
    environment: dict[Any, Any] = dict(zip(open_jaxpr.invars, args, strict=True))
    for variable, constant in zip(open_jaxpr.constvars, constants, strict=True):
        environment[variable] = instead.get(id(constant), constant)

    def value_of(atom: Var | Literal) -> Any:
        return instead.get(id(atom.val), atom.val) if isinstance(atom, Literal) else environment[atom]

    for equation in open_jaxpr.eqns:
        inputs = [value_of(atom) for atom in equation.invars]
        results = _bind(equation.primitive, equation.params, inputs, instead)
        environment.update(zip(equation.outvars, results, strict=True))
    return [value_of(atom) for atom in open_jaxpr.outvars]


def _jit(params: dict[str, Any], args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    return _evaluate(params["jaxpr"], args, instead)


def scan_split(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many operands of a `lax.scan` equation are constants, and how many are carries."""
    if "ft_in" in params:  # from JAX 0.12
        of_constants, of_carry, _ = params["ft_in"].unpack()
        return len(of_constants), len(of_carry)
    return params["num_consts"], params["num_carry"]


def _scan(params: dict[str, Any], args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    split = scan_split(params)
    constants, carry, xs = args[: split[0]], args[split[0] : sum(split)], args[sum(split) :]

    def body(carry: Sequence[Any], x: Sequence[Any]) -> Any:
        results = _evaluate(params["jaxpr"], [*constants, *carry, *x], instead)
        return results[: split[1]], results[split[1] :]

    last, ys = jax.lax.scan(
        body, list(carry), list(xs), length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *ys]


def _cond(params: dict[str, Any], args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    def branch(jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *operands: _evaluate(jaxpr, operands, instead)

    return list(jax.lax.switch(args[0], [branch(jaxpr) for jaxpr in params["branches"]], *args[1:]))


def _while(params: dict[str, Any], args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    in_cond, in_body = params["cond_nconsts"], params["body_nconsts"]
    for_cond, for_body, carry = args[:in_cond], args[in_cond : in_cond + in_body], args[in_cond + in_body :]
    return list(
        jax.lax.while_loop(
            lambda state: _evaluate(params["cond_jaxpr"], [*for_cond, *state], instead)[0],
            lambda state: _evaluate(params["body_jaxpr"], [*for_body, *state], instead),
            list(carry),
        )
    )


def _checkpoint(params: dict[str, Any], args: Sequence[Any], instead: dict[int, Any]) -> list[Any]:
    wrapped = jax.checkpoint(
        lambda *inputs: _evaluate(params["jaxpr"], inputs, instead),
        prevent_cse=params["prevent_cse"],
        policy=params["policy"],
    )
    return list(wrapped(*args))


REBUILT = {
    primitives.jit_p: _jit,
    primitives.scan_p: _scan,
    primitives.cond_p: _cond,
    primitives.while_p: _while,
    primitives.remat_p: _checkpoint,
}
"""The primitives that `Lifted` can apply with other arrays in place of those in their jaxprs, and how."""
# As in JAX, values over which functions with custom derivatives close have no derivative.
_OPAQUE = (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)


def is_opaque(primitive: Primitive) -> bool:
    """Returns whether a primitive calls a function with custom derivatives, whose closure has no derivative."""
    return primitive in _OPAQUE
