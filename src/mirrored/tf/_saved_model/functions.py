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
from mirrored.tf._ops.open_sizes import Open, opened
from mirrored.tf._saved_model.loading import LoadedFunction, LoadedModel, LoadedProgram
from mirrored.tf._saved_model.parameters import Bound, Parameters, same_static
from mirrored.tf._shapes import Described, TensorSpec

SAVED: Final = "tf.saved_model.save"


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function to export, with the shapes and dtypes of its arguments.

    Attributes:
        function: The function; takes the arguments by position.
        names: The names of the parameters that `inputs` are the arguments of, followed by other ones with a default.
        inputs: The arguments, with `Open` for arrays.
        keywords: The names of the parameters that the caller of the loaded function passes by keyword.
        defaults: The defaults of parameters, by name.
        seen: Arguments of earlier calls.
        is_declared: Whether an ``input_signature`` declares the arguments; False if they come from earlier calls.
    """

    function: Callable[..., Any]
    names: list[str]
    inputs: tuple[Any, ...]
    keywords: Sequence[str] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seen: tuple[Any, ...] = ()
    is_declared: bool = True

    def as_entry(self) -> Signature:
        """Returns a copy whose function returns a dict, as TensorFlow requires, and has no trailing defaults."""
        count = len(self.inputs)
        while count and self._is_default(count - 1):
            count -= 1
        fixed, function = self.inputs[count:], _named_outputs(self.function)
        return dataclasses.replace(
            self,
            function=lambda *inputs: function(*inputs, *fixed),
            inputs=self.inputs[:count],
            seen=tuple(one[:count] for one in self.seen),
        )

    def _is_default(self, place: int) -> bool:
        name = self.names[place]
        return name in self.defaults and same_static(self.inputs[place], self.defaults[name])


def _named_outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def named(*args: Any) -> Any:
        result = function(*args)
        if isinstance(result, Mapping):
            return result
        return {f"output_{number}": one for number, one in enumerate(jax.tree.leaves(result))}

    return named


def functions_of(obj: object) -> dict[str, Function | LoadedFunction]:
    """Returns a dict from names to those functions of an object that are exported; for a Keras model, its forward pass.

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
    """Returns a Keras model's inference function as ``{"__call__": function}``; {} if the input shapes are unknown."""
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
        ArgumentError: It is not a compiled function.
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
    parameters = Parameters(function.python_function)
    traced = [parameters.bind(*opened(call)) for call in function.traced_inputs()]
    if function.input_signature is None:
        return _without_repetitions([_bound(function, parameters, one) for one in traced])
    declared = parameters.bind(opened(list(function.input_signature)), {})
    names = _spec_names(declared.names, function.input_signature)
    seen = tuple(one.inputs for one in traced)
    return [dataclasses.replace(_bound(function, parameters, declared), names=names, seen=seen, is_declared=True)]


def _bound(function: Function, parameters: Parameters, call: Bound) -> Signature:
    called = call.by_position(function.traced_function)
    return Signature(called, call.names, call.inputs, call.keywords, parameters.defaults, is_declared=False)


def _without_repetitions(signatures: Sequence[Signature]) -> list[Signature]:
    """Removes signatures that have the same arguments as an earlier signature in the list."""
    found: list[Signature] = []
    for one in signatures:
        if not any(one.names == other.names and _are_same(one.inputs, other.inputs) for other in found):
            found.append(one)
    return found


def _are_same(inputs: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    (ones, structure), (twos, other) = (jax.tree.flatten(each, is_leaf=_is_leaf) for each in (inputs, others))
    return bool(structure == other) and all(  # type: ignore[operator]
        one == two if isinstance(one, Open) else same_static(one, two) for one, two in zip(ones, twos, strict=True)
    )


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, Open)


def _concrete(concrete: ConcreteFunction) -> Signature:
    """Converts a `ConcreteFunction` to a signature whose only arguments are the function's array arguments."""
    function = concrete.function.traced_function

    def call(*arrays: jax.Array) -> Any:
        args, kwargs = concrete.filled(arrays)
        return function(*args, **kwargs)

    return Signature(call, concrete.array_names, tuple(opened(concrete.arrays)))


def _spec_names(names: list[str], specs: Sequence[Any]) -> list[str]:
    """Replaces the names of ``*args`` parameters, such as ``args_1``, by the names of the corresponding specs."""
    own = [getattr(one, "name", None) or f"args_{place}" for place, one in enumerate(specs)]
    return [own[place] if name == f"args_{place}" else name for place, name in enumerate(names)]
