"""Finds which functions of an object `tf.saved_model.save` exports, and the shapes of their arguments."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax

from mirrored.compilation import Function
from mirrored.compilation.concrete import ConcreteFunction
from mirrored.errors import ArgumentError
from mirrored.tf._ops.open_sizes import opened
from mirrored.tf._saved_model.loading import LoadedFunction, LoadedModel, LoadedProgram
from mirrored.tf._shapes import Described, TensorSpec

SAVED: Final = "tf.saved_model.save"


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function to export, with the shapes and dtypes of its arguments.

    Attributes:
        function: The function; takes the arguments by position.
        names: The names of its parameters.
        inputs: The arguments, with `Open` for arrays.
        seen: Arguments of earlier calls.
        is_declared: Whether an ``input_signature`` declares the arguments; False if they come from earlier calls.
    """

    function: Callable[..., Any]
    names: list[str]
    inputs: tuple[Any, ...]
    seen: tuple[Any, ...] = ()
    is_declared: bool = True

    def with_named_outputs(self) -> Signature:
        """Returns a copy of this signature whose function returns its results as a dict.

        The entries of ``signatures`` do that.
        """
        return dataclasses.replace(self, function=_named_outputs(self.function))


def _named_outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def named(*args: Any) -> Any:
        result = function(*args)
        if isinstance(result, Mapping):
            return result
        return {f"output_{number}": one for number, one in enumerate(jax.tree.leaves(result))}

    return named


def functions_of(obj: object) -> dict[str, Function | LoadedFunction]:
    """Returns the functions of an object that are saved; for a Keras model, its forward pass.

    These are its `tf.function` methods and attributes, and those of loaded models.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(obj, keras.Model):
        return dict(_keras_functions(obj))
    names = [name for kind in reversed(type(obj).__mro__) for name in vars(kind)] + list(getattr(obj, "__dict__", {}))
    found: dict[str, Function | LoadedFunction] = {}
    if isinstance(obj, LoadedModel):
        found.update(obj.named_call())
        names.remove("_call")
    for name in dict.fromkeys(names):
        if isinstance(inspect.getattr_static(obj, name), (Function, LoadedFunction)):
            found[name] = getattr(obj, name)
    return found


def _keras_functions(model: Any) -> dict[str, Function]:
    """Returns a Keras model's inference function; nothing if its inputs are not known yet."""
    # Loaded late: Keras is optional. The import connects Keras, as a scope does.
    keras_private: Any = importlib.import_module("mirrored.integrations.keras.private")
    try:
        wanted = keras_private.input_signature_of(model)
    except ValueError:  # the model was never called
        return {}
    specs = jax.tree.map(spec_of, list(wanted), is_leaf=lambda one: hasattr(one, "shape"))

    def inference(*inputs: Any) -> Any:
        return model(*inputs, training=False)

    return {"__call__": Function(inference, input_signature=specs, name=model.name)}


def spec_of(one: Described) -> TensorSpec:
    """Converts a Keras model's description of one input to a `TensorSpec`; an unknown dtype becomes float32."""
    return TensorSpec(one.shape, one.dtype or "float32", getattr(one, "name", None))


def signatures_of(name: str, function: object) -> list[Signature] | list[LoadedProgram]:
    """Returns the signatures (names, shapes and dtypes of arguments) for which a `tf.function` is exported.

    These are its ``input_signature``, or all arguments for which it has been traced.

    Raises:
        ArgumentError: It is not a compiled function, or a call of it cannot be expressed by position.
    """
    if isinstance(function, ConcreteFunction):
        return [_concrete(function)]
    if isinstance(function, LoadedFunction):
        return function.programs
    if not isinstance(function, Function):
        raise ArgumentError(
            SAVED,
            found=f"the signature {name!r} is {function!r}"[:200],
            rule="signatures must be tf.functions",
            remedy="decorate the function with @tf.function(input_signature=[...])",
        )
    python, names = function.traced_function, _argument_names(function.python_function)
    seen = [opened(_positional(names, *traced)) for traced in function.traced_inputs()]
    if function.input_signature is not None:
        given = list(function.input_signature)
        return [Signature(python, _spec_names(names, given), tuple(opened(given)), tuple(seen))]
    return [Signature(python, names, inputs, is_declared=False) for inputs in seen]


def _concrete(concrete: ConcreteFunction) -> Signature:
    """Returns the signature of a concrete function, which takes only the arrays."""
    function = concrete.function.traced_function

    def call(*arrays: jax.Array) -> Any:
        args, kwargs = concrete.filled(arrays)
        return function(*args, **kwargs)

    return Signature(call, concrete.array_names, tuple(opened(concrete.arrays)))


def _positional(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Converts keyword arguments to positional ones; raises an error if an earlier argument is omitted."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if list(given) != names[: len(given)] and set(given) != set(names[: len(given)]):
        raise ArgumentError(
            SAVED,
            found=f"{', '.join(kwargs)} was passed by keyword while an earlier argument was left at its default",
            rule="saved functions can only be called by position, without gaps",
            remedy="call the function before saving with that earlier argument, too",
        )
    return tuple(given[name] for name in names[: len(given)]) if kwargs else args


def _argument_names(function: Callable[..., Any]) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    if hasattr(function, "__wrapped__") and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds]


def _spec_names(names: list[str], specs: Sequence[Any]) -> list[str]:
    """Returns the names of the parameters; if there are none (a Keras model), those of the specs."""
    return names or [getattr(one, "name", None) or f"args_{place}" for place, one in enumerate(specs)]
