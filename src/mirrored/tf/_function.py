"""`tf.function` and `tf.autograph`: compiled functions with Python control flow over tensors."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import jax
import numpy as np

from mirrored._typing import Leaf, PyTree
from mirrored.compilation import function as compiled
from mirrored.compilation.binding import Conversion
from mirrored.tf._concrete import ConcreteFunction
from mirrored.tf._errors import MissingNameError
from mirrored.tf._loop_options import set_loop_options
from mirrored.tf._shapes import TensorShape
from mirrored.tf._static import StaticTensor
from mirrored.tf._tensors import constant
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues
from mirrored.variables import Variable

_WITHOUT: Final = (
    "tf.function: Python `if`, `while` and `for` over tensors need the package that converts them: "
    "pip install 'mirrored[autograph]'"
)


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    **options: Any,
) -> Any:
    """Compiles a Python function with JAX; AutoGraph converts its control flow on tensors (`tf.function`).

    It is `mirrored.function` with TensorFlow's argument order and AutoGraph.

    With ``autograph=True`` (and the extra ``mirrored[autograph]`` installed), `if`, `while`, `for`, `break`,
    `continue`, `return`, `and`, `or` and `not` over tensors become part of the compiled program, in the function
    and in the functions that it calls. A condition that is known while tracing stays plain Python.

    As in TensorFlow, the function returns tensors: of Python numbers and NumPy arrays, and the values that variables
    have at its end. Other objects, such as strings, are returned as they are.

    Raises:
        InvalidArgumentError: While tracing: depending on a tensor, a name is assigned values of different structure,
            shape or dtype.

    TensorFlow: `tf.function`. A loop has gradients if its number of iterations is known while tracing, as over the
    rows of a tensor. Other `while` loops have no gradients: JAX would have to store an unknown number of states.
    """
    options = {**options, "autograph": autograph, "jit_compile": jit_compile, "reduce_retracing": reduce_retracing}
    options["conversion"] = Conversion(convert if autograph else None, as_tensors, ConcreteFunction)
    made: Any = compiled
    return made(func, input_signature=input_signature, **options)


def as_tensors(result: PyTree) -> Any:
    """Converts a function's result as TensorFlow does: numbers to tensors, and variables to their values."""
    leaves, treedef = structures.flatten(result)
    converted = [_as_tensor(leaf) for leaf in leaves]
    if all(new is leaf for new, leaf in zip(converted, leaves, strict=True)):
        return result
    return treedef.unflatten(converted)


def _as_tensor(leaf: Leaf) -> Any:
    if isinstance(leaf, Variable):
        return leaf.read_value()
    if isinstance(leaf, (bool, int, float, complex)):
        return constant(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biufc":
        return constant(leaf)
    if isinstance(leaf, TensorShape) and leaf.is_fully_defined():
        return constant(leaf.as_list(), "int32")
    if hasattr(type(leaf), "__jax_array__") and not isinstance(leaf, (jax.Array, StaticTensor, DistributedValues)):
        return leaf.__jax_array__()
    return leaf


def _autograph() -> Any:
    """Returns the module that implements AutoGraph; None if the optional package `malt` is not installed."""
    if importlib.util.find_spec("malt") is None:
        return None
    return importlib.import_module("mirrored.tf._autograph.transpiler")  # needs malt, an optional package


def convert(python_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that AutoGraph converts its control flow on tensors when the function is called.

    Args:
        python_function: A function, bound method or other callable. Callables that are not user Python code are called
            unchanged.
    """
    autograph = _autograph()
    if autograph is None:
        return _explaining(python_function)

    @functools.wraps(python_function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _layers_converted_by(autograph.converted):
            try:
                return autograph.converted_call(python_function, args, kwargs)
            except jax.errors.ConcretizationTypeError as error:
                autograph.explain(error)
                raise

    return call


def _layers_converted_by(convert: Callable[..., Any]) -> AbstractContextManager[None]:
    """Returns a context manager that applies `convert` to the `call` methods of Keras layers."""
    conversion: Any = sys.modules.get("mirrored.integrations.keras.conversion")
    return nullcontext() if conversion is None else conversion.converted_by(convert)  # type: ignore[no-any-return]


def _explaining(python_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that JAX errors about traced conditions say how to install AutoGraph."""

    @functools.wraps(python_function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return python_function(*args, **kwargs)
        except jax.errors.ConcretizationTypeError as error:
            error.add_note(_WITHOUT)
            raise

    return call


def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
    """Decorates a function that AutoGraph must not convert, even if converted code calls the function.

    TensorFlow: `tf.autograph.experimental.do_not_convert`.
    """
    autograph = _autograph()
    if autograph is None:
        return func if func is not None else lambda decorated: decorated
    return autograph.do_not_convert(func)


def to_graph(entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: object = None) -> Any:
    """Wraps a function so that AutoGraph converts the control flow; call the returned function inside `tf.function`.

    Raises:
        MissingNameError: The package that converts functions is not installed.
    """
    del recursive, experimental_optional_features
    if _autograph() is None:
        raise MissingNameError(
            "tf.autograph.to_graph",
            found="the package that converts functions is not installed",
            rule="to_graph requires AutoGraph, which is an optional part of mirrored",
            remedy="run pip install 'mirrored[autograph]'",
        )
    return convert(entity)


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Does nothing (`tf.autograph.set_verbosity`): AutoGraph logs to the logger "mirrored"."""


NAMES: dict[str, Any] = {
    "autograph.experimental.do_not_convert": do_not_convert,
    "autograph.experimental.set_loop_options": set_loop_options,
    "autograph.set_verbosity": set_verbosity,
    "autograph.to_graph": to_graph,
    "autograph.trace": print,
    "function": function,
}
