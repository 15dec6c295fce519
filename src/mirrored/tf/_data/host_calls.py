"""`tf.py_function` and `tf.numpy_function`: calls of Python functions on the host, even from compiled code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import NotConstant, Tracer, eager
from mirrored._typing import Array, DTypeLike, HostArray
from mirrored.compilation.frozen_state import PythonState
from mirrored.tf._asking import inside_function
from mirrored.tf._data.host_gradients import differentiable_call
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._shapes import TensorSpec
from mirrored.tf._static import known
from mirrored.tf._tensors import as_tensor

_log = logging.getLogger("mirrored")
_Kind: TypeAlias = DTypeLike | TensorSpec
_CALLED: Final = "tf.py_function, tf.numpy_function"
_REMEDY: Final = "state the shapes: Tout=tf.TensorSpec([], tf.float32), or a list of one spec for each result"
_warned: Final[set[str]] = set()  # names and places of functions


def py_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: _Kind | Sequence[_Kind] | None = None,
    name: str | None = None,
) -> Any:
    """Calls a Python function on the host with tensors; compiled code calls the function at each execution.

    Args:
        func: The function. Omit it to use a decorator: ``@tf.py_function(Tout=tf.float32)``.
        inp: Its arguments.
        Tout: The dtype of the result or its `tf.TensorSpec`, or a list of these; None or an empty list for no result.
        name: Accepted and ignored.

    Returns:
        A tensor, a list of tensors, or None.

    TensorFlow: `tf.py_function`. A compiled caller must know the shapes of the results. Specs in `Tout` state them:
    ``tf.py_function(f, [x], tf.TensorSpec([3], tf.float32))``. For dtypes alone, the function is called once more while
    tracing, with zeros for arguments that are not known yet, and a warning is logged. As in TensorFlow, a gradient uses
    the operations of the same call of the function; second derivatives are refused in compiled code.

    Raises:
        InvalidArgumentError: The function returned another number of results, another dtype, or another shape.
    """
    del name
    if func is None:
        return lambda decorated: lambda *args: py_function(decorated, args, Tout)
    return _called(func, [as_tensor(one) for one in inp or ()], Tout, func, has_gradient=True)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] | None = None,
    Tout: _Kind | Sequence[_Kind] | None = None,
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Calls a Python function on the host with NumPy arrays; compiled code calls the function at each execution.

    A compiled caller must know the shapes of the results; specs in `Tout` state them, as for `tf.py_function`:
    ``tf.numpy_function(env_step, [action], [tf.TensorSpec([4], tf.float32), tf.TensorSpec([], tf.float32)])``. For
    dtypes alone, the function is called once more while tracing. As in TensorFlow, it has no gradient: gradients of its
    results are None.
    """
    del stateful, name
    if func is None:
        return lambda decorated: lambda *args: numpy_function(decorated, args, Tout)
    given = func
    return _called(
        lambda *tensors: given(*(np.asarray(one) for one in tensors)),
        [as_tensor(x) for x in inp or ()],
        Tout,
        given,
    )


def _name_of(func: Callable[..., Any]) -> str:
    name, code = getattr(func, "__name__", type(func).__name__), getattr(func, "__code__", None)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _called(
    func: Callable[..., Any],
    tensors: list[jax.Array],
    Tout: _Kind | Sequence[_Kind] | None,
    given: Callable[..., Any],
    *,
    has_gradient: bool = False,
) -> Any:
    kinds: Sequence[Any] = Tout if isinstance(Tout, (list, tuple)) else [] if Tout is None else [Tout]
    specs = [one if isinstance(one, TensorSpec) else TensorSpec(None, array_dtype(one)) for one in kinds]

    def run(*arrays: Array | HostArray) -> list[Any]:
        result = func(*(jnp.asarray(one) for one in arrays))
        results = [] if not specs else list(result) if isinstance(result, (list, tuple)) else [result]
        if len(results) != len(specs):
            raise InvalidArgumentError.of(
                _CALLED,
                found=f"the function returned a {type(result).__name__} of {len(results)}; Tout has {len(specs)}"
                if isinstance(result, (list, tuple))
                else f"the function returned one value; Tout has {len(specs)}",
                rule="the function must return one value for each dtype in Tout; a list or tuple is several values",
                remedy="return as many values, or change Tout; for one tensor return an array, as in np.array(rows)",
            )
        return [_of_spec(one, spec) for one, spec in zip(results, specs, strict=True)]

    # In a program, a call of constants may still return another value each time, or have a side effect.
    if inside_function() or any(isinstance(payload_of(one), Tracer) for one in tensors):
        outs = _from_program(run, tensors, specs, given, has_gradient)
    else:
        outs = run(*tensors)
    if isinstance(Tout, (list, tuple)):
        return outs
    return outs[0] if outs else None


def _of_spec(result: Any, spec: TensorSpec) -> jax.Array:
    """Converts a result of the Python function to the dtype in `Tout`; compares its shape with the one stated there.

    Raises:
        InvalidArgumentError: It has another shape, or would lose fractions, imaginary parts or high bits.
    """
    tensor = _of_dtype(result, np.dtype(array_dtype(spec.dtype)))
    if not spec.shape.is_compatible_with(tensor.shape):
        raise InvalidArgumentError.of(
            _CALLED,
            found=f"the function returned an array of shape {tensor.shape}; Tout is {spec}",
            rule="a result must have the shape of its spec in Tout",
            remedy="change the spec, or return an array of its shape",
        )
    return tensor


# What each kind of numbers can hold; signed and unsigned integers differ in their values only, which are compared.
_KINDS: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _of_dtype(result: Any, dtype: np.dtype[Any]) -> jax.Array:
    """Converts a result of the Python function to the dtype that the caller declared.

    Raises:
        InvalidArgumentError: The result would lose fractions, imaginary parts or high bits.
    """
    tensor = as_tensor(result)
    host = None if isinstance(tensor, Tracer) else np.asarray(result if hasattr(result, "dtype") else tensor)
    if host is not None and host.dtype != dtype and host.dtype.kind in "biufc" and dtype.kind in "biufc":
        loses_kind = _KINDS[host.dtype.kind] > _KINDS[dtype.kind]
        with np.errstate(all="ignore"):
            if dtype.kind in "biu" and (loses_kind or bool(np.any(host.astype(dtype) != host))):
                _refuse(host, dtype)
        if loses_kind:
            _refuse(host, dtype)
    return jnp.asarray(tensor, dtype)


def _refuse(result: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    raise InvalidArgumentError.of(
        _CALLED,
        found=f"the function returned {np.array2string(result, threshold=5)} of dtype {result.dtype}; Tout is {dtype}",
        rule="a result must have the dtype in Tout, or one that can be converted to it without losing digits",
        remedy="convert the result in the function, or change Tout",
    )


def _from_program(
    run: Callable[..., list[Any]],
    tensors: list[jax.Array],
    specs: list[TensorSpec],
    given: Callable[..., Any],
    has_gradient: bool,
) -> list[Any]:
    name = _name_of(given)
    if all(one.shape.is_fully_defined() for one in specs):
        shapes = [jax.ShapeDtypeStruct(tuple(one.shape), array_dtype(one.dtype)) for one in specs]
    else:
        shapes = _shapes_of_a_call(run, tensors, given, name)

    def checked(*arrays: Array | HostArray) -> list[Any]:
        results = run(*arrays)
        if [one.shape for one in results] != [one.shape for one in shapes]:
            raise InvalidArgumentError.of(
                _CALLED,
                found=f"{name} returned shapes {[one.shape for one in results]}, and {[one.shape for one in shapes]} "
                "when it was called while tracing",
                rule="compiled code has one shape for each result",
                remedy=f"{_REMEDY}; pad results whose shape changes",
            )
        return results

    if not shapes:  # JAX omits an `io_callback` whose results are not used in a loop through which a gradient is taken
        call: Callable[..., Any] = checked
        jax.debug.callback(call, *tensors)
        return []
    if has_gradient:
        operands = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in tensors]
        return differentiable_call(checked, operands, shapes, name)(*tensors)

    def host(*arrays: Array | HostArray) -> list[Any]:
        return [np.asarray(one) for one in checked(*arrays)]

    return list(io_callback(host, shapes, *map(jax.lax.stop_gradient, tensors)))


def _shapes_of_a_call(
    run: Callable[..., list[Any]], tensors: list[jax.Array], given: Callable[..., Any], name: str
) -> list[jax.ShapeDtypeStruct]:
    """Calls the Python function while tracing, to learn the shapes of its results, and logs that, once per function.

    Zeros replace arguments that are known only at run time. Afterwards, the containers and random generators that the
    function can reach are as they were before.
    """
    how = f"{name} is called once more while tracing, because Tout does not state the shapes"
    if name not in _warned:
        _warned.add(name)
        _log.warning(
            "%s: %s, with zeros for arguments that are not known yet. The side effects of that call, as on an "
            "environment, remain, except for those on lists, dicts and random generators; %s",
            _CALLED,
            how,
            _REMEDY,
        )
    state = PythonState(given, (), name)
    try:
        with eager():
            return [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in run(*map(_known_or_zeros, tensors))]
    except Exception as error:
        error.add_note(f"{how}, with zeros for arguments that are not known yet; {_REMEDY}")
        raise
    finally:
        if state.can_rewind:
            state.rewind()


def _known_or_zeros(tensor: jax.Array) -> Any:
    try:
        return known(payload_of(tensor))
    except NotConstant:
        return jnp.zeros(tensor.shape, tensor.dtype)


NAMES: dict[str, Any] = {"numpy_function": numpy_function, "py_function": py_function}
