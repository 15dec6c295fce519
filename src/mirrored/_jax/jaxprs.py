"""Classifies the equations of jaxprs.

Supports JAX 0.10 to 0.12. Names of primitives and of their parameters differ between versions: `scan` has `num_consts`
and `num_carry` up to 0.11, and `ft_in` from 0.12; `ClosedJaxpr` and `Jaxpr` are one class from 0.12. All code that
walks jaxprs therefore uses this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax.extend.core as _extend
from jax._src.core import NamedAxisEffect as _NamedAxisEffect
from jax._src.debugging import DebugEffect as _DebugEffect
from jax._src.state.types import AbstractRef as _AbstractRef

from mirrored._jax.equal import NAME as EQUAL

ClosedJaxpr = _extend.ClosedJaxpr  # type: ignore[attr-defined]  # from 0.12 an alias that is not re-exported
Jaxpr = _extend.Jaxpr
JaxprEqn = _extend.JaxprEqn
Literal = _extend.Literal
Var = _extend.Var

_JAXPRS: Final = (Jaxpr, ClosedJaxpr)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of `jaxpr` with the equation's operands: `jit`, `remat`, `custom_jvp_call`, ..."""

    jaxpr: Any


@dataclasses.dataclass(frozen=True)
class Scan:
    """A `scan`: operands are constants, carries, then scanned arrays; outputs are carries, then stacked ones."""

    jaxpr: Any
    num_consts: int
    num_carries: int


@dataclasses.dataclass(frozen=True)
class While:
    """A `while`: operands are constants of the condition, constants of the body, then carries."""

    cond: Any
    num_cond_consts: int
    body: Any
    num_body_consts: int


@dataclasses.dataclass(frozen=True)
class Branch:
    """A `cond` or `switch`: the first operand selects the branch that receives the others."""

    branches: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Equalising:
    """A collective whose result is equal on every device of the axis."""


@dataclasses.dataclass(frozen=True)
class ValueSource:
    """An equation whose result differs between devices, whatever its operands are.

    Attributes:
        label: Its name in messages.
        repeatable: Whether equal operands always give the same result on the same device.
    """

    label: str
    repeatable: bool


@dataclasses.dataclass(frozen=True)
class Plain:
    """Any other equation: every output may depend on every operand.

    Attributes:
        jaxprs: The jaxprs among its parameters, whose use is unknown.
    """

    jaxprs: tuple[Any, ...] = ()


Kind = Call | Scan | While | Branch | Equalising | ValueSource | Plain

_CALLS: Final = {
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "shard_map": "jaxpr",
}
_EQUALISING: Final = frozenset({"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant", EQUAL})
_HOST: Final = frozenset({"pure_callback", "io_callback", "python_callback", "infeed", "recv", "precv", "rng_uniform"})
_IDENTITY: Final = frozenset({"pvary"})
_PLAIN: Final = Plain()


def kind_of(eqn: Any, axis: str | None) -> Kind:
    """Returns the kind of `eqn` with respect to the mesh axis `axis` (None: without an axis)."""
    name = eqn.primitive.name
    if name in _CALLS:
        inner = eqn.params.get(_CALLS[name]) or eqn.params.get("call_jaxpr")
        return _PLAIN if inner is None else Call(inner)
    if name == "scan":
        return _scan(eqn.params)
    if name == "while":
        return _while(eqn.params)
    if name == "cond":
        return Branch(tuple(eqn.params["branches"]))
    return _collective(eqn, axis) or _host(eqn) or _plain(eqn)


def jaxprs_in(value: Any) -> Iterator[Any]:
    """Yields the jaxprs in a parameter of an equation, at any depth of tuples, lists and dicts."""
    if isinstance(value, _JAXPRS):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from jaxprs_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from jaxprs_in(item)


def constants_of(jaxpr: Any) -> Sequence[Any]:
    """Returns the values of `jaxpr.constvars`, if `jaxpr` has them (an open jaxpr of 0.10 does not)."""
    return tuple(getattr(jaxpr, "consts", ()))


def _scan(params: dict[str, Any]) -> Scan:
    if "ft_in" in params:  # from JAX 0.12
        consts, carries, _ = params["ft_in"].unpack()
        return Scan(params["jaxpr"], len(consts), len(carries))
    return Scan(params["jaxpr"], params["num_consts"], params["num_carry"])


def _while(params: dict[str, Any]) -> While:
    return While(params["cond_jaxpr"], params["cond_nconsts"], params["body_jaxpr"], params["body_nconsts"])


def _collective(eqn: Any, axis: str | None) -> Kind | None:
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


def is_collective(eqn: Any, axis: str | None) -> bool:
    """Returns whether this equation is a collective at which the devices of `axis` wait for each other."""
    name = eqn.primitive.name
    silent = name in _IDENTITY or name in ("axis_index", EQUAL)
    return axis is not None and not silent and _mentions(eqn.params, axis)


def _mentions(params: dict[str, Any], axis: str) -> bool:
    for name in ("axes", "axis_name", "axis_names"):
        axes = params.get(name)
        if axes == axis or (isinstance(axes, (tuple, list, set, frozenset)) and axis in axes):
            return True
    return False


def _host(eqn: Any) -> ValueSource | None:
    name = eqn.primitive.name
    if name in _HOST:
        return ValueSource(f"{name}, whose result is unknown", repeatable=False)
    if any(not isinstance(effect, (_NamedAxisEffect, _DebugEffect)) for effect in eqn.effects):
        return ValueSource(f"{name} with a side effect", repeatable=False)
    if any(isinstance(operand.aval, _AbstractRef) for operand in (*eqn.invars, *eqn.outvars)):
        return ValueSource(f"{name} of a mutable reference", repeatable=False)
    return None


def _plain(eqn: Any) -> Plain:
    inner = tuple(found for value in eqn.params.values() for found in jaxprs_in(value))
    return Plain(inner) if inner else _PLAIN
