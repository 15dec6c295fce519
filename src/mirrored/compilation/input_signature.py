"""Checks the arguments of a compiled function against its `input_signature`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from mirrored._typing import Leaf
from mirrored.errors import SignatureError
from mirrored.values import structures
from mirrored.values.distributed_values import PerReplica


def check_signature(
    function: Callable[..., Any], signature: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Converts the arguments of a call to positional arrays that match the `input_signature`.

    Raises:
        SignatureError: The number of arguments, a structure, a shape or a dtype does not match.
    """
    name = getattr(function, "__name__", "function")
    if kwargs:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        args = bound.args
    if len(args) != len(signature):
        raise _misfit(name, f"{len(args)} arguments were passed", f"{len(signature)} arguments")
    return tuple(_fit(name, i, spec, arg) for i, (spec, arg) in enumerate(zip(signature, args, strict=True))), {}


def _fit(name: str, place: int, spec: object, arg: object) -> Any:
    if _is_spec(spec) and isinstance(arg, (list, tuple)):
        arg = np.asarray(arg, _dtype_of(spec))
    specs, spec_tree = jax.tree_util.tree_flatten(spec, is_leaf=_is_spec)
    leaves, treedef = structures.flatten(arg)
    if treedef != spec_tree:
        raise _misfit(name, f"argument {place} has the structure {treedef}", str(spec_tree))
    return treedef.unflatten([_fit_leaf(name, place, one, leaf) for one, leaf in zip(specs, leaves, strict=True)])


def _fit_leaf(name: str, place: int, spec: Any, leaf: Leaf) -> Any:
    if isinstance(leaf, PerReplica):
        return leaf
    dtype = _dtype_of(spec)
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf).astype(dtype)
    shape, wanted = tuple(array.shape), _sizes(spec)
    fits = wanted is None or (
        len(shape) == len(wanted) and all(w is None or w == s for s, w in zip(shape, wanted, strict=True))
    )
    if not fits or jax.dtypes.canonicalize_dtype(array.dtype) != dtype:
        raise _misfit(name, f"argument {place} is {array.dtype}{list(shape)}", f"{dtype}[{_dims(wanted)}]")
    return array


def _dtype_of(spec: Any) -> Any:
    """Returns the dtype that arrays of a spec have: JAX has 64-bit dtypes only if they are enabled."""
    return jax.dtypes.canonicalize_dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))


def _sizes(spec: Any) -> tuple[int | None, ...] | None:
    """Returns the sizes that a spec requires; None for an unknown rank, also that of a TensorFlow shape."""
    unknown = spec.shape is None or getattr(spec.shape, "rank", 0) is None
    return None if unknown else tuple(spec.shape)


def _dims(shape: Sequence[int | None] | None) -> str:
    return "..." if shape is None else ",".join("any" if size is None else str(size) for size in shape)


def _is_spec(value: object) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _misfit(name: str, found: str, wanted: str) -> SignatureError:
    return SignatureError(
        name,
        found=found,
        rule=f"its input_signature requires {wanted}",
        remedy="cast or reshape the argument, or omit input_signature (a new shape then causes a new trace)",
    )
