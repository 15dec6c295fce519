"""Keeps the lowered programs of earlier epochs of an elastic job: an equal program is not lowered again.

After a change of the workers, the training function is traced again, on new devices. With as many workers as in an
earlier epoch the trace is nearly always that of the earlier one, and lowering it to StableHLO takes about as long as
tracing it. `description` digests everything of a program on which its lowering depends: two programs with one digest
have the same operations, parameters, types, constants and shardings, over devices with the same ids. If it meets
anything that it does not know, the program is lowered as usual.

Supports JAX 0.10 to 0.12: `pxla._cached_lowering_to_hlo` returns a tuple of the module, two lists that are empty
without callbacks, and values that depend on the program alone. Modules do not depend on device objects.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive  # type: ignore[attr-defined]
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxlib.xla_client import Client as _Client

from mirrored._jax.private import config as _config
from mirrored._jax.private import core as _core
from mirrored._jax.private import pxla as _pxla
from mirrored._jax.private import sharding_impls as _sharding_impls

_MOST: Final = 16
# Smaller programs are lowered again sooner than they are described.
_WORTH_SECONDS: Final = 0.02
_RESULTS: Final = 7
# Parameters that hold functions for derivatives, which are traced anew in each trace and do not affect the lowering.
_FOR_DERIVATIVES: Final = {
    "custom_jvp_call": {"jvp_jaxpr_fun", "jvp_jaxpr_thunk"},
    "custom_vjp_call": {"fwd", "fwd_jaxpr_thunk", "bwd", "out_trees"},
    "custom_vjp_call_jaxpr": {"fwd_jaxpr_thunk", "bwd", "out_trees"},
}
_NO_SETTINGS: Final = ("__weakref__", "configs")
_FLAT_TREES: Final = "jax._src.flattree"
_FLAT_TREE_PARTS: Final = ("elts", "keys", "vals", "xs", "_tree", "val")
_JAXPRS: Final = (Jaxpr, ClosedJaxpr)
_UnspecifiedValue: Any = type(_sharding_impls.UNSPECIFIED)  # type: ignore[attr-defined]


class Unknown(Exception):
    """Error raised for a program that has a part which `description` does not know."""


class _Lowered:
    """The results of the newest lowerings by digest. It has no references to devices, which would keep backends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[Any, ...]] = {}

    def get(self, digest: str) -> tuple[Any, ...] | None:
        with self._lock:
            found = self._kept.pop(digest, None)
            if found is not None:
                self._kept[digest] = found  # the newest
            return found

    def put(self, digest: str, result: tuple[Any, ...]) -> None:
        with self._lock:
            self._kept[digest] = result
            while len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]


class _Installed:
    lowered: _Lowered | None = None
    hits = 0


def hits() -> int:
    """Returns how many lowerings of this process were taken from earlier ones."""
    return _Installed.hits


def keep_lowerings() -> bool:
    """Makes JAX keep lowered programs across epochs in this process; returns whether this version of JAX supports it.

    Context: a worker of an elastic job, before its first program.
    """
    original = getattr(_pxla, "_cached_lowering_to_hlo", None)
    if original is None or _Installed.lowered is not None:
        return original is not None
    lowered = _Installed.lowered = _Lowered()

    def lower(*args: Any, **kwargs: Any) -> Any:
        return _lower(original, lowered, args, kwargs)

    vars(_pxla)["_cached_lowering_to_hlo"] = lower
    return True


def _lower(original: Callable[..., Any], lowered: _Lowered, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if not args or not isinstance(args[0], _JAXPRS) or len(getattr(args[0], "eqns", ())) == 0:
        return original(*args, **kwargs)
    digest: str | None = None
    try:
        digest = description((args, dict(kwargs)))
    except Unknown:
        pass
    found = None if digest is None else lowered.get(digest)
    if found is not None:
        _Installed.hits += 1
        return found
    began = time.perf_counter()
    result = original(*args, **kwargs)
    is_plain = isinstance(result, tuple) and len(result) == _RESULTS and not result[1] and not result[2]
    if digest is not None and is_plain and time.perf_counter() - began >= _WORTH_SECONDS:
        lowered.put(digest, result)
    return result


def description(value: Any) -> str:
    """Returns a digest of a value on which a lowering depends, and of JAX's settings.

    Raises:
        Unknown: The value, or a part of it, is of a type that this function does not know.
    """
    writer = _Writer()
    writer.write(value)
    writer.write(_config.trace_context())
    writer.write(bool(_config.use_shardy_partitioner.value))
    return writer.digest()


_stable: dict[int, object] = {}


class _Writer:
    """Writes values such that different values are written differently; types and jaxprs that recur are written once.

    Args:
        written: What was written of the objects that recur, by id, with the objects, so that their ids stay their own.
    """

    def __init__(self, written: dict[int, tuple[object, bytes]] | None = None) -> None:
        self._parts: list[bytes] = []
        self._written: dict[int, tuple[object, bytes]] = {} if written is None else written

    def digest(self) -> str:
        return hashlib.sha256(b"".join(self._parts)).hexdigest()

    def _put(self, *words: object) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            self._parts.append(b"%d:%b" % (len(data), data))

    def _once(self, value: object, rule: Callable[[_Writer, Any], None]) -> bool:
        """Writes an object; returns whether it had been written before."""
        found = self._written.get(id(value))
        is_known = found is not None
        if found is None:
            inner = _Writer(self._written)
            rule(inner, value)
            found = self._written[id(value)] = (value, hashlib.sha256(b"".join(inner._parts)).digest())
        self._put(found[1])
        return is_known

    def write(self, value: Any) -> None:
        """Writes a value with its type.

        Raises:
            Unknown: It is of an unknown type.
        """
        kind = type(value)
        rule = _RULES.get(kind)
        if rule is not None:
            rule(self, value)
            return
        for base, inherited in _INHERITED:
            if isinstance(value, base):
                inherited(self, value)
                return
        if kind.__module__ == _FLAT_TREES:
            self.flat_tree(value)
        elif dataclasses.is_dataclass(value) and kind.__module__.startswith("jax"):
            self._put("dataclass", kind.__module__, kind.__qualname__)
            for field in dataclasses.fields(value):
                self.write(getattr(value, field.name))
        else:
            raise Unknown(kind)

    def flat_tree(self, value: Any) -> None:
        """Writes the structure of operands or results, from JAX 0.12 on a parameter of loops."""
        names = [name for name in _FLAT_TREE_PARTS if name in vars(value)]
        if not names:
            raise Unknown(type(value))
        self._put("flat tree", type(value).__qualname__)
        for name in names:
            self._put(name)
            self.write(vars(value)[name])

    def plain(self, value: object) -> None:
        self._put(type(value).__name__, repr(value))

    def number(self, value: complex) -> None:
        self._put("number", type(value).__name__, struct.pack("<dd", complex(value).real, complex(value).imag))

    def typed_number(self, value: Any) -> None:
        """Writes a literal of JAX, which is a number with a dtype."""
        self._put("typed", type(value).__name__, value.dtype, repr(value))

    def array(self, value: Any) -> None:
        if value.dtype.hasobject:
            raise Unknown(value.dtype)
        self._put("array", type(value).__name__, value.dtype.str, value.dtype.name, value.shape)
        self._put(getattr(value, "weak_type", False), np.asarray(value).tobytes())

    def dtype(self, value: np.dtype[Any]) -> None:
        self._put("dtype", value.str, value.name)

    def items(self, value: Any) -> None:
        self._put("items", type(value).__module__, type(value).__qualname__, len(value))
        for one in value:
            self.write(one)

    def mapping(self, value: Mapping[Any, Any]) -> None:
        self._put("mapping", len(value))
        for name in sorted(value, key=str):
            self.write(name)
            self.write(value[name])

    def set_of(self, value: Any) -> None:
        self._put("set", len(value))
        parts = []
        for one in value:
            part = _Writer(self._written)
            part.write(one)
            parts.append(part.digest())
        self._put(*sorted(parts))

    def member(self, value: enum.Enum) -> None:
        self._put("member", type(value).__module__, type(value).__qualname__, value.name)

    def unique(self, value: object) -> None:
        """Writes an object that exists once in the process: it is kept, so that its id stays its own."""
        _stable[id(value)] = value
        self._put("unique", id(value))

    def function(self, value: types.FunctionType) -> None:
        if value.__closure__ is not None or "<locals>" in value.__qualname__:
            raise Unknown(value)
        self.unique(value)

    def tree(self, value: object) -> None:
        self._put("tree", repr(value))

    def client(self, value: Any) -> None:
        self._put("client", value.platform, value.platform_version)

    def device(self, value: Any) -> None:
        self._put("device", value.platform, value.id)

    def mesh(self, value: Mesh) -> None:
        self._put("mesh", value.axis_names, value.devices.shape, value.axis_types)
        self._put([getattr(device, "id", None) for device in value.devices.flat])  # an empty mesh has None

    def abstract_mesh(self, value: AbstractMesh) -> None:
        self._put("abstract mesh", value.axis_names, value.axis_sizes, value.axis_types)
        self._put(getattr(value, "abstract_device", None))

    def spec(self, value: PartitionSpec) -> None:
        self._put("spec", repr(value))

    def named_sharding(self, value: NamedSharding) -> None:
        self._put("named sharding", value.memory_kind, getattr(value, "_logical_device_ids", None))
        self.write(value.mesh)
        self.write(value.spec)

    def other_sharding(self, value: Any) -> None:
        hlo = getattr(value, "_hlo_sharding", None)
        self._put("sharding", type(value).__name__, repr(hlo), value.memory_kind)
        self._put([device.id for device in value._device_assignment])

    def shardings(self, value: Any) -> None:
        self._put("shardings")
        self.write(tuple(value.shardings))
        self.write(tuple(value.avals))

    def aval(self, value: Any) -> None:
        self._once(value, _Writer.new_aval)

    def new_aval(self, value: Any) -> None:
        self._put("aval", value.shape, bool(value.weak_type), getattr(value, "memory_space", None))
        self._put(getattr(value, "vma", None), getattr(value, "layout", None))
        if isinstance(value.dtype, np.dtype):
            self.dtype(value.dtype)
        else:
            self._put("extended dtype", value.dtype)
        self.write(value.sharding)

    def token(self, value: object) -> None:
        self._put("token", type(value).__name__)

    def axes(self, value: Any) -> None:
        self._put("axes", sorted(map(str, value.spmd_axis_names)))
        self._put(sorted(map(str, getattr(value, "explicit_mesh_axis_names", ()))))
        self.write(dict(value.axis_sizes))

    def context(self, value: Any) -> None:
        """Writes the settings under which an equation was traced."""
        names = [name for name in getattr(type(value), "__slots__", ()) if name not in _NO_SETTINGS]
        if not names:
            raise Unknown(type(value))
        for name in names:
            self._put(name)
            self.write(getattr(value, name))

    def jaxpr(self, value: Any) -> None:
        # JAX lowers a jaxpr that is called twice to one function, and two equal jaxprs to two: the modules differ.
        self._put("called again" if self._once(value, _Writer.new_jaxpr) else "called")

    def new_jaxpr(self, value: Any) -> None:
        """Writes equations with numbers for variables; ignores names, sources and positions in the code."""
        closed, value = value, getattr(value, "jaxpr", value)
        self._put("jaxpr", len(value.eqns), bool(getattr(value, "is_high", False)))
        self.write(tuple(getattr(closed, "consts", ())))
        numbers: dict[Any, int] = {}

        def atoms(those: Any) -> None:
            for one in those:
                if isinstance(one, Literal):
                    self._put("literal")
                    self.write(one.val)
                    self.write(one.aval)
                else:
                    known = one in numbers
                    self._put("variable", numbers.setdefault(one, len(numbers)))
                    if not known:
                        self.write(one.aval)

        atoms((*value.constvars, *value.invars))
        for equation in value.eqns:
            self.unique(equation.primitive)
            atoms(equation.invars)
            skipped = _FOR_DERIVATIVES.get(equation.primitive.name, ())
            for name in sorted(equation.params):
                if name not in skipped:
                    self._put(name)
                    self.write(equation.params[name])
            self._once(equation.ctx, _Writer.context)
            atoms(equation.outvars)
        atoms(value.outvars)


_RULES: Final[dict[type, Callable[[_Writer, Any], None]]] = {
    **dict.fromkeys((bool, int, str, bytes, type(None), slice), _Writer.plain),
    **dict.fromkeys((float, complex), _Writer.number),
    **dict.fromkeys((tuple, list), _Writer.items),
    **dict.fromkeys((dict, types.MappingProxyType), _Writer.mapping),
    **dict.fromkeys((set, frozenset), _Writer.set_of),
    np.ndarray: _Writer.array,
    Mesh: _Writer.mesh,
    AbstractMesh: _Writer.abstract_mesh,
    PartitionSpec: _Writer.spec,
    NamedSharding: _Writer.named_sharding,
    SingleDeviceSharding: _Writer.other_sharding,
    _sharding_impls.GSPMDSharding: _Writer.other_sharding,
    _pxla.SemanticallyEqualShardings: _Writer.shardings,
    _core.ShapedArray: _Writer.aval,
    _core.AxisEnv: _Writer.axes,
    type(_core.abstract_token): _Writer.token,
    types.FunctionType: _Writer.function,
    type(jax.tree.structure(0)): _Writer.tree,
}
_INHERITED: Final[tuple[tuple[type | tuple[type, ...], Callable[[_Writer, Any], None]], ...]] = (
    (_JAXPRS, _Writer.jaxpr),
    (enum.Enum, _Writer.member),
    ((np.generic, np.ndarray), _Writer.array),
    ((int, float, complex), _Writer.typed_number),
    (np.dtype, _Writer.dtype),
    (tuple, _Writer.items),
    ((type, Primitive, _UnspecifiedValue), _Writer.unique),
    (_Client, _Writer.client),
    (jax.Device, _Writer.device),
)
