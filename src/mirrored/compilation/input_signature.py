"""Checks the arguments of a compiled function against its `input_signature`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array
from mirrored._jax.traces import canonical_dtype
from mirrored._typing import Leaf
from mirrored.compilation.static_keys import static_key
from mirrored.errors import SignatureError
from mirrored.values import structures
from mirrored.values.attributes import has_attribute
from mirrored.values.distributed_values import Mirrored, PerReplica

_KINDS: Final[tuple[Any, ...]] = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def check_signature(
    function: Callable[..., Any], signature: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Converts the arguments of a call to positional arrays that match the `input_signature`.

    Parameters that the signature does not describe keep their defaults, as in TensorFlow.

    Raises:
        SignatureError: The number of arguments, a structure, a shape, a dtype or a number does not match.
    """
    name = getattr(function, "__name__", "function")
    if kwargs or len(args) != len(signature):
        args = _covered(name, function, len(signature), args, kwargs)
    return tuple(_fit(name, i, spec, arg) for i, (spec, arg) in enumerate(zip(signature, args, strict=True))), {}


def _covered(
    name: str, function: Callable[..., Any], count: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Binds arguments to parameters, and returns the first `count` values, which the `input_signature` describes.

    Raises:
        SignatureError: There are fewer values, or another parameter gets a value that is not its default.
    """
    found = f"{len(args) + len(kwargs)} arguments were passed"
    parameters = inspect.signature(function)
    try:
        bound = parameters.bind(*args, **kwargs)
    except TypeError as error:
        raise _mismatch_error(name, f"{found}, {error}", f"{count} arguments") from None
    bound.apply_defaults()
    if len(bound.args) < count:
        raise _mismatch_error(name, found, f"{count} arguments")
    default = parameters.bind_partial(*bound.args[:count])
    default.apply_defaults()
    if static_key((bound.args[count:], bound.kwargs)) != static_key((default.args[count:], default.kwargs)):
        raise SignatureError(
            name,
            found=f"{found}, of which its input_signature describes {count}",
            rule="a parameter that the input_signature does not describe keeps its default",
            remedy="omit the argument, or fix its value with functools.partial before the function is compiled; or "
            "omit input_signature",
        )
    return bound.args[:count]


def _fit(name: str, place: int, spec: object, arg: object) -> Any:
    if _is_spec(spec) and isinstance(arg, (list, tuple)):
        arg = _converted(name, place, spec, arg)
    specs, spec_tree = jax.tree_util.tree_flatten(spec, is_leaf=_is_spec)
    leaves, treedef = structures.flatten(arg)
    if treedef != spec_tree:
        raise _mismatch_error(name, f"argument {place} has the structure {treedef}", str(spec_tree))
    return treedef.unflatten([_fit_leaf(name, place, one, leaf) for one, leaf in zip(specs, leaves, strict=True)])


def _converted(name: str, place: int, spec: Any, value: object) -> Any:
    dtype = dtype_of(spec)
    array = from_python(value, dtype)
    if array is None:
        raise _mismatch_error(name, f"argument {place} is {value!r}", f"{dtype}[{_dims(_sizes(spec))}]")
    return array


def from_python(value: object, dtype: Any) -> Any:
    """Converts a Python number, or a list of numbers and arrays, to an array of a declared dtype.

    Returns:
        The array; None if `value` is something else, or if the cast would lose fractions, imaginary parts or magnitude,
        also where a number would become infinite. An integer that is traced must have a dtype whose numbers all fit.
    """
    try:
        on_device = any(isinstance(leaf, jax.Array) for leaf in structures.flatten(value)[0])
        array: Any = jnp.asarray(value) if on_device else np.asarray(value)
    except (TypeError, ValueError, OverflowError):  # rows of several lengths, or not only numbers
        return None
    if _rank(array.dtype) is None or _rank(dtype) is None:
        return None
    if array.size and _rank(array.dtype) > _rank(dtype):
        return None
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    # Only a narrower dtype can lose numbers of arrays on the device, so that others need no wait for their values.
    if jnp.issubdtype(dtype, jnp.bool_) or (on_device and np.can_cast(array.dtype, dtype)):
        return cast
    try:
        return cast if _keeps_numbers(array, cast) else None
    except jax.errors.TracerArrayConversionError:
        return cast if jnp.issubdtype(dtype, jnp.inexact) else None


def from_numpy(value: Any, dtype: Any) -> Any:
    """Converts an array or scalar of NumPy to a declared dtype, as TensorFlow does; returns any other value unchanged.

    Masked arrays, arrays that do not hold numbers, and arrays of which a number would change by more than rounding are
    returned unchanged, too.
    """
    if not isinstance(value, np.ndarray | np.generic) or canonical_dtype(value.dtype) == dtype:
        return value
    if isinstance(value, np.ma.MaskedArray) or _rank(value.dtype) is None or _rank(dtype) is None:
        return value
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        return value
    with np.errstate(all="ignore"):
        cast = value.astype(dtype)
        return cast if _keeps_numbers(value, cast) else value


def _keeps_numbers(value: np.ndarray | np.generic, cast: np.ndarray | np.generic) -> bool:
    """Returns whether a cast has kept all numbers: exactly in an integer dtype, without overflow in a float dtype."""
    if jnp.issubdtype(cast.dtype, jnp.inexact):
        return bool(np.all(np.isfinite(cast) | ~np.isfinite(value)))
    return bool(np.all(np.equal(cast, value)))


def _rank(dtype: Any) -> Any:
    """Returns the rank of a dtype's kind (bool, integer, float, complex); casts to a lower rank are refused."""
    return next((rank for rank, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind)), None)


def _fit_leaf(name: str, place: int, spec: Any, leaf: Leaf) -> Any:
    if isinstance(leaf, PerReplica):
        return leaf
    dtype = dtype_of(spec)
    if _is_numpy_mirrored(leaf) or has_attribute(leaf, "dtype"):
        array = from_numpy(leaf, dtype)
    else:
        array = _converted(name, place, spec, leaf)
    # JAX knows no dtype for some arrays of NumPy: those of the other byte order, masked ones and strings.
    described: Any = array.value if _is_numpy_mirrored(array) else array
    shape, wanted = tuple(described.shape), _sizes(spec)
    fits = wanted is None or (
        len(shape) == len(wanted) and all(w is None or w == s for s, w in zip(shape, wanted, strict=True))
    )
    if not fits or canonical_dtype(described.dtype) != dtype:
        raise _mismatch_error(name, f"argument {place} is {described.dtype}{list(shape)}", f"{dtype}[{_dims(wanted)}]")
    # A weak type would cause another trace, whose results may have other dtypes.
    return as_array(array, dtype) if isinstance(array, jax.Array) and getattr(array, "weak_type", False) else array


def _is_numpy_mirrored(leaf: object) -> bool:
    return isinstance(leaf, Mirrored) and isinstance(leaf.value, np.ndarray)


def dtype_of(value: Any) -> Any:
    """Returns the dtype that an array, or an array described by a spec, has on a device."""
    return canonical_dtype(getattr(value.dtype, "as_numpy_dtype", value.dtype))


def _sizes(spec: Any) -> tuple[int | None, ...] | None:
    """Returns a spec's dimension sizes, with None for each unknown size; returns None if the rank is unknown."""
    unknown = spec.shape is None or getattr(spec.shape, "rank", 0) is None
    return None if unknown else tuple(spec.shape)


def _dims(shape: Sequence[int | None] | None) -> str:
    return "..." if shape is None else ",".join("any" if size is None else str(size) for size in shape)


def _is_spec(value: object) -> bool:
    return has_attribute(value, "shape") and has_attribute(value, "dtype")


def _mismatch_error(name: str, found: str, wanted: str) -> SignatureError:
    return SignatureError(
        name,
        found=found,
        rule=f"its input_signature requires {wanted}",
        remedy="cast or reshape the argument, or omit input_signature (a new shape then causes a new trace)",
    )
