"""Functions on jaxprs: classify the equations, find their types and dependencies, and evaluate selected outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.extend.core as _extend
import numpy as np
from jax.extend.core import ClosedJaxpr as ClosedJaxpr  # type: ignore[attr-defined]  # from 0.12 an alias
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir

from mirrored._jax.private import config as _config
from mirrored._jax.private import core as _core
from mirrored._jax.private import debugging as _debugging
from mirrored._jax.private import dtypes as _dtypes
from mirrored._jax.private import state_types as _state_types
from mirrored._jax.traces import NotConstant, evaluate
from mirrored._typing import Operand

# A primitive that asserts that a value is replicated: equal on every device of an axis, by construction.
#
# Supports JAX 0.10 to 0.12 (`jax.extend.core.Primitive`, `jax.interpreters`). The primitive is the identity. The
# replication check trusts it, so only collectives may use it whose algorithm, rather than a single operation,
# guarantees equal results.

NAME: Final = "equal_on_all_devices"

_primitive: Final = _extend.Primitive(NAME)


def equal_on_all_devices(array: Operand, axis: str) -> Any:
    """Returns `array` unchanged, marked in the jaxpr as equal on every device of a mesh axis."""
    return _primitive.bind(array, axis_name=axis)


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, axis_name: str) -> tuple[Any, Any]:
    return equal_on_all_devices(arrays[0], axis_name), dims[0]


_primitive.def_impl(lambda array, axis_name: array)
_primitive.def_abstract_eval(lambda array, axis_name: array)
_ad.deflinear2(_primitive, lambda cotangent, array, axis_name: [equal_on_all_devices(cotangent, axis_name)])
_batching.primitive_batchers[_primitive] = _batch
_mlir.register_lowering(_primitive, lambda context, array, axis_name: [array])


# Classifies the equations of jaxprs.
#
# Supports JAX 0.10 to 0.12. Names of primitives and of their parameters differ between versions: `scan` has
# `num_consts` and `num_carry` up to 0.11, and `ft_in` from 0.12; `ClosedJaxpr` and `Jaxpr` are one class from 0.12. All
# code that walks jaxprs therefore uses this module.

Jaxpr = _extend.Jaxpr
JaxprEqn = _extend.JaxprEqn
Literal = _extend.Literal
Primitive = _extend.Primitive
Var = _extend.Var

_JAXPRS: Final = (Jaxpr, ClosedJaxpr)
_HARMLESS_EFFECTS: Final = (_core.NamedAxisEffect, _debugging.DebugEffect)
_AbstractRef: Final = _state_types.AbstractRef


@dataclasses.dataclass(frozen=True)
class Call:
    """Class of equations that call an inner jaxpr: `jit`, `remat`, `custom_jvp_call`, `custom_linear_solve`, ..."""

    jaxpr: Any


@dataclasses.dataclass(frozen=True)
class Scan:
    """Class of `lax.scan` equations, whose operands are constants, followed by carries and scanned arrays."""

    jaxpr: Any
    num_consts: int
    num_carries: int


@dataclasses.dataclass(frozen=True)
class While:
    """Class of `lax.while_loop` equations, whose operands are constants of condition and body, followed by carries."""

    cond: Any
    num_cond_consts: int
    body: Any
    num_body_consts: int


@dataclasses.dataclass(frozen=True)
class Branch:
    """Class of `lax.cond` and `lax.switch` equations, whose first operand selects the branch."""

    branches: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Equalising:
    """Class of collective equations whose results are equal on all devices of the mesh axis, such as `psum`."""


@dataclasses.dataclass(frozen=True)
class ValueSource:
    """Class of equations whose results may differ between devices even if the operands are equal.

    Attributes:
        label: Its name in messages.
        repeatable: Whether equal operands always give the same result on the same device.
    """

    label: str
    repeatable: bool


@dataclasses.dataclass(frozen=True)
class Plain:
    """Class of equations other than calls, loops, branches and collectives; each output may depend on every operand.

    Attributes:
        jaxprs: The jaxprs among its parameters, whose use is unknown.
        is_separate: Whether output `i` depends on operand `i` only, as the outputs of `optimization_barrier` do.
    """

    jaxprs: tuple[Any, ...] = ()
    is_separate: bool = False


Kind = Call | Scan | While | Branch | Equalising | ValueSource | Plain

_CALLS: Final = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "jit": "jaxpr",
    "linear_call": "callee",
    "linear_with_transpose": "call_jaxpr",
    "pjit": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "shard_map": "jaxpr",
}
_EQUALISING: Final = frozenset({"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", NAME})
_HOST: Final = frozenset({"pure_callback", "io_callback", "python_callback", "infeed", "recv", "precv", "rng_uniform"})
_IDENTITY: Final = frozenset({"pvary"})
# Primitives that apply to each operand on its own.
_SEPARATE: Final = frozenset({"device_put", "optimization_barrier", "pvary", "psum", "psum_invariant", "pmax", "pmin"})
_PLAIN: Final = Plain()


def kind_of(eqn: JaxprEqn, axis: str | None) -> Kind:
    """Classifies a jaxpr equation as a call, loop, branch, collective over the mesh axis `axis`, or other operation."""
    name = eqn.primitive.name
    if name in _CALLS:
        inner = eqn.params.get(_CALLS[name]) or eqn.params.get("call_jaxpr")
        return _PLAIN if inner is None else Call(inner)
    if name == "custom_linear_solve":
        return _solve(eqn)
    if name == "call_hi_primitive" and (root := _root(eqn)) is not None:
        return root
    if name == "scan":
        return _scan(eqn.params)
    if name == "while":
        return _while(eqn.params)
    if name == "cond":
        return Branch(tuple(eqn.params["branches"]))
    return _collective(eqn, axis) or _host(eqn) or _plain(eqn)


def kinds_of(eqns: Sequence[Any], axis: str | None) -> list[Kind]:
    """Classifies jaxpr equations as calls, loops, branches, collectives over one mesh axis, or other operations."""
    return [kind_of(eqn, axis) for eqn in eqns]


def primitive_names(jaxpr: Jaxpr | ClosedJaxpr) -> set[str]:
    """Returns the names of all primitives in a jaxpr, at any nesting depth."""
    return {eqn.primitive.name for eqn, *_ in equations_in(jaxpr)}


def equations_in(jaxpr: Jaxpr | ClosedJaxpr, outer: Sequence[JaxprEqn] = ()) -> list[tuple[JaxprEqn, ...]]:
    """Returns, for each equation of a jaxpr at any depth, the equation and its enclosing equations, innermost first."""
    found = []
    for eqn in jaxpr.eqns:
        path = (eqn, *outer)
        found.append(path)
        for value in eqn.params.values():
            for inner in jaxprs_in(value):
                found += equations_in(inner, path)
    return found


def jaxprs_in(value: object) -> Iterator[Any]:
    """Yields the jaxprs in one parameter of an equation, including those nested in tuples, lists, dicts and primitives.

    From JAX 0.12 on, the equation `call_hi_primitive` (of `lax.custom_root`, for example) has one parameter: an object
    with the method `expand`, whose attribute `params` is a dict of its jaxprs and other parameters.
    """
    if isinstance(value, _JAXPRS):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from jaxprs_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from jaxprs_in(item)
    elif isinstance(value, jax.stages.Traced):
        yield value.jaxpr
    elif hasattr(value, "expand") and isinstance(params := getattr(value, "params", None), dict):
        yield from jaxprs_in(params)


def constants_of(jaxpr: Jaxpr | ClosedJaxpr) -> Sequence[Any]:
    """Returns the values of a jaxpr's constants; an empty tuple for an open jaxpr of JAX 0.10."""
    return tuple(getattr(jaxpr, "consts", None) or ())


def parameters_of(eqn: JaxprEqn) -> dict[str, Any]:
    """Returns an equation's parameters, except `computation` of `lax.reduce`, which repeats the parameter `jaxpr`.

    `lax.reduce` has a function of the user twice: as a jaxpr, which is compiled, and as the Python function itself.
    """
    if eqn.primitive.name == "reduce":
        return {name: value for name, value in eqn.params.items() if name != "computation"}
    return eqn.params


def _solve(eqn: JaxprEqn) -> Call:
    """Converts a `lax.custom_linear_solve` equation to a `Call` of the solver's jaxpr.

    Its operands are the constants of the four functions of the problem, and the right-hand side. Those that the solver
    does not take become inputs that nothing uses.
    """
    solver, counts = eqn.params["jaxprs"].solve, eqn.params["const_lengths"]
    opened = getattr(solver, "jaxpr", solver)
    first = counts.matvec + counts.vecmat
    last = len(eqn.invars) - (len(opened.invars) - counts.solve)
    others: list[Any] = [Var(atom.aval) for atom in eqn.invars]
    own = opened.invars[: counts.solve], opened.invars[counts.solve :]
    inputs = [*others[:first], *own[0], *others[first + counts.solve : last], *own[1]]
    return Call(_with_inputs(solver, inputs))


def _root(eqn: JaxprEqn) -> Call | None:
    """Converts a `lax.custom_root` equation of JAX 0.12 to a `Call` of the solver's jaxpr; None for other primitives.

    Its operands are the solver's constants and the first guess, then the constants of the other two functions, which
    become inputs that nothing uses.
    """
    primitive = eqn.params["_prim"]
    if type(primitive).__name__ != "CustomRoot":
        return None
    solver = primitive.solve_jaxpr
    opened = getattr(solver, "jaxpr", solver)
    if len(opened.constvars) != len(constants_of(solver)):
        return None  # their values are not known
    others: list[Any] = [Var(atom.aval) for atom in eqn.invars[len(opened.invars) :]]
    return Call(_with_inputs(solver, [*opened.invars, *others]))


def _with_inputs(closed: Jaxpr | ClosedJaxpr, inputs: Sequence[Var]) -> ClosedJaxpr:
    """Returns a closed copy of a jaxpr with `inputs` in place of its input variables."""
    opened = getattr(closed, "jaxpr", closed)
    changed = opened.replace(invars=list(inputs), debug_info=opened.debug_info.with_unknown_names())
    return ClosedJaxpr(changed, list(constants_of(closed)))


def _scan(params: dict[str, Any]) -> Scan:
    if "ft_in" in params:  # from JAX 0.12
        consts, carries, _ = params["ft_in"].unpack()
        return Scan(params["jaxpr"], len(consts), len(carries))
    return Scan(params["jaxpr"], params["num_consts"], params["num_carry"])


def _while(params: dict[str, Any]) -> While:
    return While(params["cond_jaxpr"], params["cond_nconsts"], params["body_jaxpr"], params["body_nconsts"])


def _collective(eqn: JaxprEqn, axis: str | None) -> Kind | None:
    name, params = eqn.primitive.name, eqn.params
    if axis is None or name in _IDENTITY or not _mentions(params, axis):
        return None
    if name in _EQUALISING:
        if params.get("axis_index_groups") is None:
            return Equalising()
        return ValueSource(f"{name} over axis_index_groups", repeatable=True)
    if name == "axis_index":
        return ValueSource("replica_id_in_sync_group", repeatable=True)
    return ValueSource(f"{name} gives every device its own part", repeatable=True)


def collectives_in(eqns: Sequence[Any], axis: str | None) -> list[Any]:
    """Returns the equations of a jaxpr that are collectives over the devices of a mesh axis."""
    if axis is None:
        return []
    silent = {*_IDENTITY, "axis_index", NAME}
    return [eqn for eqn in eqns if eqn.primitive.name not in silent and _mentions(eqn.params, axis)]


def _mentions(params: dict[str, Any], axis: str) -> bool:
    for name in ("axes", "axis_name", "axis_names"):
        axes = params.get(name)
        if axes == axis or (isinstance(axes, (tuple, list, set, frozenset)) and axis in axes):
            return True
    return False


def _host(eqn: JaxprEqn) -> ValueSource | None:
    name = eqn.primitive.name
    if name in _HOST:
        return ValueSource(f"{name}, whose result is unknown", repeatable=False)
    if any(not isinstance(effect, _HARMLESS_EFFECTS) for effect in eqn.effects):
        return ValueSource(f"{name} with a side effect", repeatable=False)
    if any(is_reference(operand.aval) for operand in (*eqn.invars, *eqn.outvars)):
        return ValueSource(f"{name} of a mutable reference", repeatable=False)
    return None


def calls_host(closed: ClosedJaxpr) -> bool:
    """Returns whether a program prints, checks values, calls the host or has another effect besides collectives."""
    return any(not isinstance(effect, _core.NamedAxisEffect) for effect in closed.effects)


def passes_first_operands(eqn: JaxprEqn) -> bool:
    """Returns whether a non-call equation, such as `composite`, gives its inner jaxpr the first operands as inputs.

    Those of `lax.custom_root` (a primitive of its own from JAX 0.12) are the solver's constants and the first guess.
    """
    is_root = type(eqn.params.get("_prim")).__name__ == "CustomRoot"
    return is_root or eqn.primitive.name == "composite"


def _plain(eqn: JaxprEqn) -> Plain:
    if eqn.primitive.name in _SEPARATE and len(eqn.invars) == len(eqn.outvars) > 1:
        return Plain(is_separate=True)
    inner = tuple(found for value in eqn.params.values() for found in jaxprs_in(value))
    return Plain(inner) if inner else _PLAIN


float0 = np.dtype(_dtypes.float0)
"""The dtype of gradients with respect to integers and booleans."""


def aval_of(value: Operand) -> Any:
    """Returns the abstract value (shape and dtype) of an array, a tracer or a Python number."""
    return _core.typeof(_dtypes.canonicalize_value(value) if isinstance(value, (np.ndarray, np.generic)) else value)


def is_reference(aval: object) -> bool:
    """Returns whether an array type is a mutable reference (`jax.Ref`), which equations read and write in place."""
    return isinstance(aval, _AbstractRef)


def is_inexact(aval: object) -> bool:
    """Returns whether an array type is float or complex, so that its values can have gradients."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and dtype != float0 and _dtypes.issubdtype(dtype, np.inexact)


def zero_tangent(aval: jax.core.ShapedArray | jax.Array) -> Any:
    """Returns the zero gradient that JAX uses for an integer or bool value: zeros of dtype float0."""
    return np.zeros(aval.shape, float0)


def context_key() -> Any:
    """Returns the JAX settings that affect tracing (x64, matmul precision, mesh, ...), as a cache key."""
    return _config.trace_context()


# Analyzes which inputs an output of a jaxpr depends on, and evaluates selected outputs.
#
# Supports JAX 0.10 to 0.12: `ClosedJaxpr` has `consts` in all of them; an equation is applied with `get_bind_params`.


def dependencies(closed: ClosedJaxpr) -> list[frozenset[int]]:
    """Returns, for each output of a closed jaxpr, the positions of the inputs on which the output depends.

    All outputs of an equation count as dependent on all of its inputs.
    """
    jaxpr = closed.jaxpr
    sources: dict[Any, frozenset[int]] = {one: frozenset([i]) for i, one in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        combined = frozenset[int]().union(*(_of(one, sources) for one in equation.invars))
        sources.update((one, combined) for one in equation.outvars)
    return [_of(one, sources) for one in jaxpr.outvars]


def _of(atom: Var | Literal, sources: Mapping[Any, frozenset[int]]) -> frozenset[int]:
    return frozenset() if isinstance(atom, Literal) else sources.get(atom, frozenset())


def evaluate_outputs(closed: ClosedJaxpr, inputs: Mapping[int, Any], wanted: Sequence[int]) -> list[Any]:
    """Evaluates only selected outputs of a closed jaxpr, given the inputs that these outputs depend on.

    Raises:
        NotConstant: An output depends on a closed-over value that is unknown during tracing, or on an equation with an
            effect, such as a host call.
    """
    jaxpr = closed.jaxpr
    needed = {jaxpr.outvars[i] for i in wanted if not isinstance(jaxpr.outvars[i], Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            equations.append(equation)
            needed.update(one for one in equation.invars if not isinstance(one, Literal))
    known = {jaxpr.invars[i]: value for i, value in inputs.items()}
    pairs = zip(jaxpr.constvars, closed.consts, strict=True)
    known.update((one, evaluate(value)) for one, value in pairs if one in needed)
    with _core.eval_context():
        for equation in reversed(equations):
            _apply(equation, known)
    return [_value(jaxpr.outvars[i], known) for i in wanted]


def _apply(equation: JaxprEqn, known: dict[Any, Any]) -> None:
    if equation.effects:  # the effect belongs to every run, not to the trace
        raise NotConstant
    params = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*(_value(one, known) for one in equation.invars), **params)
    outputs = outputs if equation.primitive.multiple_results else [outputs]
    known.update(zip(equation.outvars, outputs, strict=True))


def _value(atom: Var | Literal, known: Mapping[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]
