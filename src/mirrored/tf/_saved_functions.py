"""The functions of an object that `tf.saved_model.save` saves, and what each is saved for."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax

from mirrored.compilation import Function
from mirrored.compilation.concrete import ConcreteFunction
from mirrored.errors import ArgumentError
from mirrored.tf._open_sizes import opened
from mirrored.tf._shapes import TensorSpec

SAVED: Final = "tf.saved_model.save"


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function for certain arguments.

    Attributes:
        function: Takes them by position.
        names: Of its parameters.
        inputs: The arguments, with `Open` for arrays.
        seen: Arguments of earlier calls.
        is_declared: Whether the arguments were said, by an ``input_signature``, and not merely seen.
    """

    function: Callable[..., Any]
    names: list[str]
    inputs: tuple[Any, ...]
    seen: tuple[Any, ...] = ()
    is_declared: bool = True

    def with_named_outputs(self) -> Signature:
        """As an entry of ``signatures``: the results are a dict."""
        return dataclasses.replace(self, function=_named_outputs(self.function))


def _named_outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def named(*args: Any) -> Any:
        result = function(*args)
        if isinstance(result, Mapping):
            return result
        return {f"output_{number}": one for number, one in enumerate(jax.tree.leaves(result))}

    return named


def functions_of(obj: Any) -> dict[str, Function]:
    """The compiled functions among an object's methods and attributes; a Keras model's inference."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(obj, keras.Model):
        return _keras_functions(keras, obj)
    names = [name for kind in reversed(type(obj).__mro__) for name in vars(kind)] + list(getattr(obj, "__dict__", {}))
    found: dict[str, Function] = {}
    for name in dict.fromkeys(names):
        if isinstance(inspect.getattr_static(obj, name), Function):
            found[name] = getattr(obj, name)
    return found


def _keras_functions(keras: Any, model: Any) -> dict[str, Function]:
    """A Keras model's inference; nothing for one that does not know yet what it takes."""
    try:
        wanted = keras.src.export.export_utils.get_input_signature(model)
    except ValueError:  # it was never called
        return {}
    specs = jax.tree.map(_spec, list(wanted), is_leaf=lambda one: hasattr(one, "shape"))

    def inference(*inputs: Any) -> Any:
        return model(*inputs, training=False)

    return {"__call__": Function(inference, input_signature=specs, name=model.name)}


def _spec(one: Any) -> TensorSpec:
    return TensorSpec(one.shape, one.dtype or "float32", getattr(one, "name", None))


def signatures_of(name: str, function: Any) -> list[Signature]:
    """What a function is saved for: its ``input_signature``, or all that it has been traced for.

    Raises:
        ArgumentError: It is no compiled function, or was called in a way that cannot be repeated.
    """
    if isinstance(function, ConcreteFunction):
        return [_concrete(function)]
    if not isinstance(function, Function):
        raise ArgumentError(
            SAVED,
            found=f"the signature {name!r} is {function!r}"[:200],
            rule="signatures are tf.functions",
            remedy="decorate it with @tf.function(input_signature=[...])",
        )
    python, names = function.traced_function, _argument_names(function.python_function)
    seen = [opened(_positional(names, *traced)) for traced in function.traced_inputs()]
    if function.input_signature is not None:
        given = list(function.input_signature)
        return [Signature(python, _spec_names(names, given), tuple(opened(given)), tuple(seen))]
    return [Signature(python, names, inputs, is_declared=False) for inputs in seen]


def _concrete(concrete: ConcreteFunction) -> Signature:
    """A concrete function takes the arrays alone."""
    function = concrete.function.traced_function

    def call(*arrays: Any) -> Any:
        args, kwargs = concrete.filled(arrays)
        return function(*args, **kwargs)

    return Signature(call, concrete.array_names, tuple(opened(concrete.arrays)))


def _positional(names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Keyword arguments in their places; one after a default that was left out stays as it is written."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if list(given) != names[: len(given)] and set(given) != set(names[: len(given)]):
        raise ArgumentError(
            SAVED,
            found=f"a call with the keyword arguments {', '.join(kwargs)}, and defaults before them",
            rule="what is saved is called by position",
            remedy="call the function once with all arguments up to the last one that is given",
        )
    return tuple(given[name] for name in names[: len(given)]) if kwargs else args


def _argument_names(function: Callable[..., Any]) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    if hasattr(function, "__wrapped__") and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds]


def _spec_names(names: list[str], specs: Sequence[Any]) -> list[str]:
    """The names of parameters; where there are none (a Keras model), those of the specs."""
    return names or [getattr(one, "name", None) or f"args_{place}" for place, one in enumerate(specs)]
