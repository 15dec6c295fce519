"""The concrete functions of `tf.function`: compiled functions that describe their signature as TensorFlow does."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax

from mirrored._jax.trees import tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.compilation import concrete
from mirrored.compilation.concrete import as_pure, is_array, parameters_of
from mirrored.data import PerReplicaSpec
from mirrored.errors import ArgumentError, ContextError
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import MissingNameError
from mirrored.tf._ops.open_sizes import NotOpenError, Open, opened, traced_for
from mirrored.tf._shapes import TensorShape, TensorSpec
from mirrored.values import structures
from mirrored.values.distributed_values import DistributedValues

_KEYS: Final = {
    jax.tree_util.DictKey: "key",
    jax.tree_util.SequenceKey: "idx",
    jax.tree_util.GetAttrKey: "name",
    jax.tree_util.FlattenedIndexKey: "key",
}
_GRAPHS: Final = ("graph", "function_def", "captured_inputs", "add_to_graph", "set_external_captures")


class FunctionType(inspect.Signature):
    """The signature of a concrete function: its parameters with their traced types, and the type of its result.

    Attributes:
        parameters: `inspect.Parameter` objects by name. The annotation (`type_constraint`) is a type: a
            `tf.TensorSpec`, ``Literal[3]`` for a Python value, or a structure of them.
        output: The type of the result.

    TensorFlow: `ConcreteFunction.function_type`. The variables that the function uses are not among its captures, but
    are `ConcreteFunction.variables`.
    """

    __slots__ = ()

    @property
    def output(self) -> Any:
        """The type of the result."""
        return self.return_annotation

    @property
    def captures(self) -> dict[Any, Any]:
        """An empty dict: a compiled function has no captured tensors."""
        return {}

    def __repr__(self) -> str:
        """Lists the parameters, their kinds and their types, as TensorFlow does."""
        lines = [f"  {one.name} ({one.kind.name}): {one.annotation!r}" for one in self.parameters.values()]
        return "\n".join(["Input Parameters:", *lines, "Output Type:", f"  {self.output!r}", "Captures:", "  None"])


class _Parameter(inspect.Parameter):
    __slots__ = ()

    @property
    def type_constraint(self) -> Any:
        """The type of this parameter for which the function was traced."""
        return self.annotation

    optional = False
    """False: a concrete function has no defaults."""


class ConcreteFunction(concrete.ConcreteFunction):
    """A compiled function for arrays of fixed shapes and dtypes (`tf.types.experimental.ConcreteFunction`).

    `tf.function(f).get_concrete_function(...)` returns it.

    Example:
        >>> import mirrored.tf as tf
        >>> double = tf.function(lambda x: {"doubled": 2 * x}).get_concrete_function(tf.TensorSpec([2]))
        >>> double.structured_input_signature
        ((TensorSpec(shape=(2,), dtype=tf.float32, name='x'),), {})
        >>> double.output_shapes
        {'doubled': TensorShape([2])}

    TensorFlow: there are no graphs. `inputs`, `outputs` and `structured_outputs` are specs, not symbolic tensors, and
    `inputs` does not contain the variables that the function uses.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        python_function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
    ) -> None:
        super().__init__(call, python_function, args, kwargs, name)
        self._arguments = _bound(inspect.Signature(parameters_of(python_function)), args, kwargs)

    @property
    def name(self) -> str:
        """The name of the Python function."""
        return self._name

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The traced arguments as ``(args, kwargs)``, with a `tf.TensorSpec` in place of each array.

        `kwargs` contains keyword-only arguments. Arguments that were omitted are there with their default values.
        """
        positional = [one for one in self._arguments if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        by_name = [one for one in self._arguments if one.kind is inspect.Parameter.KEYWORD_ONLY]
        return tuple(one.described for one in positional), {one.name: one.described for one in by_name}

    @property
    def inputs(self) -> list[TensorSpec]:
        """The `tf.TensorSpec` of each array in the arguments, in order, with a unique name."""
        given = [(one.name, spec) for one in self._arguments for spec in _specs(one.as_given)]
        taken: dict[str, int] = {}
        found = []
        for parameter, spec in given:
            name = spec.name or parameter
            taken[name] = taken.get(name, -1) + 1
            found.append(_renamed(spec, f"{name}_{taken[name]}:0" if taken[name] else f"{name}:0"))
        return found

    @functools.cached_property
    def structured_outputs(self) -> Any:
        """The result, with a `tf.TensorSpec` in place of each tensor.

        A size that depends on an unknown size of an argument is None.

        Raises:
            ArgumentError: An argument has a shape with unknown sizes, and the function cannot be traced for them.
        """
        described = self._traced_for_open_sizes() if self.program is None else self.program.described()
        names = _names_of_results()
        return structures.map_leaves(lambda leaf: _output(leaf, names), described)

    def _traced_for_open_sizes(self) -> Any:
        def result(inputs: tuple[Any, ...]) -> Any:
            def call(*arrays: Leaf) -> Any:
                args, kwargs = self.filled(arrays)
                return self.function.traced_function(*args, **kwargs)

            return as_pure(call, inputs, f"{self._name}.structured_outputs").output

        try:
            programs = traced_for(tuple(opened(self.arrays)), (), result)
        except (ArgumentError, ContextError):
            raise
        except Exception as error:
            reason = error.reason if isinstance(error, NotOpenError) else error
            raise ArgumentError(
                f"{self._name}.structured_outputs",
                found=f"{super().__repr__()} cannot be traced for unknown sizes ({type(reason).__name__})",
                rule="the result for arguments of unknown sizes is known only if the function can be traced for them",
                remedy="pass shapes without None to get_concrete_function",
            ) from reason
        first, *others = (one.program for one in programs)
        return tree_map(_common, first, *others)  # one program for each number of dimensions, if it is unknown

    @property
    def outputs(self) -> list[TensorSpec]:
        """The `tf.TensorSpec` of each tensor in the result, in order."""
        return _specs(self.structured_outputs)

    @property
    def output_shapes(self) -> Any:
        """The shapes of the tensors in the result, nested like the result."""
        shapes = _map_specs(lambda one: one.shape, self.structured_outputs)
        return structures.map_leaves(lambda one: TensorShape(None) if one is None else one, shapes)

    @property
    def output_dtypes(self) -> Any:
        """The dtypes of the tensors in the result, nested like the result."""
        return _map_specs(lambda one: one.dtype, self.structured_outputs)

    @property
    def function_type(self) -> FunctionType:
        """The signature of this function: its parameters with their traced types, and the type of its result."""
        parameters = [_Parameter(one.name, one.kind, annotation=_typed(one.as_given)) for one in self._arguments]
        result = _map_specs(lambda one: _renamed(one, None), self.structured_outputs)
        return FunctionType(parameters, return_annotation=_typed(result))

    def pretty_printed_signature(self, verbose: bool = True) -> str:
        """Returns the types of the parameters and the result as text; on a single line with ``verbose=False``."""
        return repr(self.function_type) if verbose else str(self.function_type)

    def __repr__(self) -> str:
        """Returns the signature on one line, without the type of the result if the function has not been traced."""
        if self.program is None:
            return super().__repr__()
        return f"<ConcreteFunction {self.pretty_printed_signature(verbose=False)} at 0x{id(self):X}>"

    def __str__(self) -> str:
        """Returns the signature on several lines, or ``repr(self)`` if the function has not been traced."""
        return repr(self) if self.program is None else f"ConcreteFunction {self.pretty_printed_signature()}"

    def __getattr__(self, name: str) -> Any:
        """Raises an error for a missing attribute; for attributes such as `graph`, the error names an alternative."""
        if name not in _GRAPHS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise MissingNameError(
            f"ConcreteFunction.{name}",
            found="a concrete function of mirrored has no graph",
            rule="functions are traced to programs of JAX",
            remedy="use `variables` for what the function uses, `function.lower(...).as_text()` for its operations, "
            "or `structured_input_signature` and `structured_outputs` for its arguments and results",
        )


@dataclasses.dataclass(frozen=True)
class _Argument:
    """A parameter of a concrete function, with the argument for which the function was traced.

    Attributes:
        name: Its name.
        kind: A kind of `inspect.Parameter`.
        described: Its argument with specs in place of arrays, named by the parameter and their places in it.
        as_given: The same, but a spec has a name only if it was passed with one.
    """

    name: str
    kind: Any
    described: Any
    as_given: Any


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[_Argument]:
    """Binds arguments to parameters; each element of ``*args`` and ``**kwargs`` gets a parameter, as in TensorFlow."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    kinds = inspect.Parameter
    has_more = any(one.kind is kinds.VAR_POSITIONAL for one in signature.parameters.values())
    found: list[tuple[str, Any, Any]] = []
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is kinds.VAR_POSITIONAL:
            found += [(f"{name}_{place}", kinds.POSITIONAL_ONLY, one) for place, one in enumerate(value)]
        elif kind is kinds.VAR_KEYWORD:
            found += [(one, kinds.KEYWORD_ONLY, value[one]) for one in sorted(value)]
        else:
            is_first = has_more and kind is kinds.POSITIONAL_OR_KEYWORD
            found.append((name, kinds.POSITIONAL_ONLY if is_first else kind, value))
    return [_Argument(name, kind, _described(value, name), _described(value)) for name, kind, value in found]


def _described(argument: PyTree, name: str | None = None) -> Any:
    """Replaces each array in an argument by a `tf.TensorSpec`, named after the parameter and the array's path."""

    def spec(path: Sequence[Any], leaf: Leaf) -> Any:
        if not is_array(leaf):
            return leaf
        given = getattr(leaf, "name", None) if isinstance(leaf, TensorSpec) else None
        if given is None and name is not None:
            places = [name, *(str(getattr(one, _KEYS[type(one)])) for one in path)]
            given = re.sub(r"\W", "_", "_".join(places).lower())
        return _spec(leaf, given)

    return jax.tree_util.tree_map_with_path(
        spec, argument, is_leaf=lambda one: structures.is_leaf(one) or is_array(one)
    )


def _spec(array: Any, name: str | None) -> Any:
    if isinstance(array, DistributedValues):
        return PerReplicaSpec(tuple(_spec(one, name) for one in array.values))
    return TensorSpec(array.shape, array_dtype(array.dtype), name)


def _names_of_results() -> Iterator[str]:
    """Yields the names that TensorFlow gives the tensors in a result."""
    yield "Identity:0"
    yield from (f"Identity_{number}:0" for number in itertools.count(1))


def _output(leaf: Leaf, names: Iterator[str]) -> Any:
    """Converts a traced tensor in a function's result to a `tf.TensorSpec`; returns other objects unchanged."""
    if isinstance(leaf, DistributedValues):
        return PerReplicaSpec(tuple(_output(one, names) for one in leaf.values))
    if not isinstance(leaf, (jax.ShapeDtypeStruct, Open)):
        return leaf
    sizes = None if leaf.shape is None else [size if isinstance(size, int) else None for size in leaf.shape]
    return TensorSpec(sizes, leaf.dtype, next(names))


def _common(first: Leaf, *others: Leaf) -> Any:
    """Merges a result's abstract values from several traces; the shape becomes unknown if the ranks differ."""
    if not isinstance(first, jax.ShapeDtypeStruct):
        return first
    same = all(len(one.shape) == len(first.shape) for one in others)
    return first if same else Open(None, first.dtype)


def _is_spec(leaf: object) -> bool:
    return isinstance(leaf, (TensorSpec, PerReplicaSpec))


def _map_specs(function: Callable[[TensorSpec], Any], structure: PyTree) -> Any:
    """Applies a function to each `tf.TensorSpec` in a structure, including each replica's spec in per-replica specs."""

    def mapped(leaf: Leaf) -> Any:
        if isinstance(leaf, PerReplicaSpec):
            return PerReplicaSpec(tuple(function(one) for one in leaf.components))  # type: ignore[arg-type]
        return function(leaf) if isinstance(leaf, TensorSpec) else leaf

    return tree_map(mapped, structure, is_leaf=_is_spec)


def _specs(structure: PyTree) -> list[TensorSpec]:
    """Returns a list of all `tf.TensorSpec` objects in a structure; a per-replica spec contains one per replica."""
    found: list[TensorSpec] = []
    _map_specs(found.append, structure)
    return found


def _renamed(spec: TensorSpec, name: str | None) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype, name)


class _Type:
    """The type of an argument or result that is not a tensor, printed as in TensorFlow."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Type) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return self._text


def _typed(value: PyTree) -> Any:
    """Returns the type of an argument or result: a spec unchanged, or an object that prints like TensorFlow's type."""
    if _is_spec(value):
        return value
    if isinstance(value, Mapping):
        return _Type(f"Dict[{_pairs(value)}]")
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _Type(f"{type(value).__name__}[{_pairs(value._asdict())}]")
    if isinstance(value, (tuple, list)):
        return _Type(
            f"{'List' if isinstance(value, list) else 'Tuple'}[{', '.join(repr(_typed(one)) for one in value)}]"
        )
    return _Type(f"Literal[{value!r}]")


def _pairs(named: Mapping[Any, Any]) -> str:
    return ", ".join(f"[{name!r}, {_typed(one)!r}]" for name, one in named.items())
