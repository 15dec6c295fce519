"""The table of operations: maps each TensorFlow name, such as ``"math.add"``, to a function.

Two kinds of entries:

- *rows* (`rows`): TensorFlow's name and parameters, and the JAX function that does the same. Parameters without a
  default are tensors; ``axis=None`` is an option with its default; ``shape:`` an option without one; ``*`` before a
  name a list of tensors. ``old>new=default`` is called `old` by TensorFlow and `new` by JAX; ``old>=default`` is
  ignored. ``shape:Ints`` states the kind of an option, which is one of those below.
- *functions* (`op`): hand-written, where TensorFlow's meaning is not one JAX call.

The annotation of a function's parameter states to what an argument is converted before the call:

- ``jax.Array``: a tensor; ``Common``: a tensor, where Python numbers get the dtype of the other ``Common`` ones.
- ``Int``, ``Ints``, ``Axes``: integers that are known while tracing, from integers, tensors and sequences of them.

Each but ``Common`` may be followed by ``| None``; an argument None is then not converted. Other annotations convert
nothing.

An entry takes ``name=`` where TensorFlow's operation does, and ignores it. `tests/tf/` has at least one case per entry,
and a test checks this.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, MappingProxyType, TracebackType
from typing import Any, Final, NamedTuple, SupportsIndex, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from mirrored._jax.traces import is_eager
from mirrored._typing import Operand, StaticInts
from mirrored.errors import MirroredError
from mirrored.tape import direct
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import static_axis, static_int, static_ints, static_tensor
from mirrored.tf._tensors import as_tensor, has_static, is_host, operands

Common: TypeAlias = jax.Array
Int: TypeAlias = int
Ints: TypeAlias = tuple[int, ...]
Axes: TypeAlias = int | tuple[int, ...] | None

_F = TypeVar("_F", bound=Callable[..., Any])
_REQUIRED: Final = object()
_POSITIONAL: Final = ("tensor", "tensors")
_TENSORS: Final = ("jax.Array", "Common")
# What a caller passes for a parameter that is converted.
ACCEPTED: Final[dict[str, Any]] = {
    "jax.Array": Operand,
    "Common": Operand,
    "Int": SupportsIndex,
    "Ints": StaticInts,
    "Axes": StaticInts | None,
}
_DEPRECATED: Final = {
    "keep_dims": "keepdims",
    "reduction_indices": "axis",
    "dimension": "axis",
    "dim": "axis",
    "concat_dim": "axis",
    "axes": "axis",
    "keep_prob": "rate (= 1 - keep_prob)",
    "validate_indices": "nothing: indices are not checked",
    "_sentinel": "nothing",
}


@dataclasses.dataclass(frozen=True)
class Op:
    """An entry of the table of operations: a function of `mirrored.tf` and its public names.

    Attributes:
        name: Its first public name below ``tf``, for example ``"math.reduce_sum"``.
        places: Every public name.
        function: The implementation.
    """

    name: str
    places: tuple[str, ...]
    function: Callable[..., Any]


OPS: dict[str, Op] = {}


def register(places: Iterable[str], function: Callable[..., Any]) -> None:
    """Adds a function to the table of operations of `mirrored.tf`, under its public names."""
    names = tuple(places)
    if names[0] in OPS:
        raise ValueError(f"the operation {names[0]} is registered twice")
    OPS[names[0]] = Op(names[0], names, function)


def op(places: str, *, named: bool = True, on_host: bool = False) -> Callable[[_F], _F]:
    """Decorates a function to add it to the table of operations: ``@op("nn.conv2d")``.

    The operation takes ``name=``, which the function need not have, converts its arguments as the annotations of the
    function say, and converts JAX's shape and dtype errors to `InvalidArgumentError`. Classes and functions of any
    number of arguments are added as they are.

    Args:
        places: The public names, separated by spaces.
        named: Whether the operation takes ``name=``, as nearly all of TensorFlow's do; it is ignored.
        on_host: Whether to run on the host if the values of all operands are known while tracing.
    """

    def enter(function: _F) -> _F:
        names = places.split()
        done: Any = function
        if isinstance(function, FunctionType) and not _is_open(function):
            done = _converting(f"tf.{names[0]}", function, named)
        done = hosted(done) if on_host else done
        register(names, done)
        return done  # type: ignore[no-any-return]

    return enter


def _is_open(function: FunctionType) -> bool:
    code = function.__code__
    return bool(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount)


class _Parameter(NamedTuple):
    name: str
    target: str  # "" for a parameter that is ignored
    kind: str  # "tensor", "tensors", "option", or an annotation
    default: Any = _REQUIRED


def rows(table: Mapping[str, tuple[str, Callable[..., Any]]], *, elementwise: bool = False) -> None:
    """Adds several JAX functions to the table of operations: ``{"math.add add": ("x y", jnp.add)}``.

    Args:
        table: Names, parameters and functions.
        elementwise: Whether every operation of one tensor returns one tensor of the same shape. An eager tape then
            records it directly.
    """
    for places, (signature, target) in table.items():
        names = places.split()
        parameters = tuple(_parameter(token) for token in signature.split())
        function = _row(f"tf.{names[0]}", parameters, target)
        of_one = elementwise and [one.kind for one in parameters] == ["tensor"]
        register(names, direct(target, otherwise=function) if of_one else function)


def _parameter(token: str) -> _Parameter:
    head, equals, default = token.partition("=")
    head, colon, kind = head.lstrip("*").partition(":")
    name, renamed, target = head.partition(">")
    kind = kind or ("tensors" if token.startswith("*") else "option" if equals or colon else "tensor")
    return _Parameter(name, target if renamed else name, kind, ast.literal_eval(default) if equals else _REQUIRED)


def _row(called: str, parameters: tuple[_Parameter, ...], target: Callable[..., Any]) -> Callable[..., Any]:
    tensors = [index for index, one in enumerate(parameters) if one.kind == "tensor"]
    lists = [index for index, one in enumerate(parameters) if one.kind == "tensors"]
    options = [
        (index, one.target) for index, one in enumerate(parameters) if one.target and one.kind not in _POSITIONAL
    ]
    conversions = _conversions(parameters)
    defaults = [one.default for one in parameters]
    required = sum(one is _REQUIRED for one in defaults)

    def run(*args: Any, **kwargs: Any) -> Any:
        fits = required <= len(args) <= len(parameters) and not kwargs
        values = [*args, *defaults[len(args) :]] if fits else bind(called, parameters, args, kwargs)
        for index, argument, convert, optional in conversions:
            if values[index] is not None or not optional:
                values[index] = convert(values[index], called, argument)
        keywords = {into: values[index] for index, into in options}
        positional = operands([values[index] for index in tensors])
        positional += [operands(list(values[index])) for index in lists]
        try:
            return target(*positional, **keywords)
        except (TypeError, ValueError) as error:  # inlines `reported`, because a context manager costs 1 us per call
            replaced = _unknown_value_error(called, values, error) or _replacement(called, positional, error)
            if replaced is None:
                raise
            raise replaced from error

    run.__name__ = run.__qualname__ = called.rpartition(".")[2]
    run.__doc__ = f"`{called}({', '.join(one.name for one in parameters)})`: {_first_line(target)}"
    return hosted(run)


def _converting(called: str, function: FunctionType, named: bool) -> Callable[..., Any]:
    """Wraps a function to accept the argument ``name``, and to convert other arguments as their annotations require."""
    code, given = function.__code__, function.__defaults__ or ()
    required = code.co_argcount - len(given)
    defaults = [_REQUIRED] * required + list(given)
    parameters = tuple(
        _Parameter(name, name, function.__annotations__.get(name, ""), default)
        for name, default in zip(code.co_varnames, defaults, strict=False)
    )
    arrays = [place for place, one in enumerate(parameters) if one.kind.removesuffix(" | None") in _TENSORS]
    common = [place for place in arrays if parameters[place].kind == "Common"]
    conversions = _conversions(parameters)
    adds_name = named and all(one.name != "name" for one in parameters)
    if not (adds_name or arrays or conversions):
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        fits = required <= len(args) <= len(parameters) and not kwargs
        values = [*args, *defaults[len(args) :]] if fits else bind(called, parameters, args, kwargs, adds_name)
        for place, argument, convert, optional in conversions:
            if values[place] is not None or not optional:
                values[place] = convert(values[place], called, argument)
        if common:
            for place, one in zip(common, tensors(*[values[place] for place in common]), strict=True):
                values[place] = one
        try:
            return function(*values)
        except (TypeError, ValueError) as error:
            replaced = _unknown_value_error(called, values, error)
            if arrays and replaced is None:
                replaced = _replacement(called, [values[place] for place in arrays], error)
            if replaced is None:
                raise
            raise replaced from error

    functools.update_wrapper(run, function)
    run.__signature__ = _Signature(  # type: ignore[attr-defined]
        return_annotation=function.__annotations__.get("return", inspect.Signature.empty),
        make=functools.partial(_shown, parameters, adds_name),
    )
    return run


class _Signature(inspect.Signature):
    """A signature whose parameters are created only when they are read, so that importing is fast."""

    __slots__ = ("_make",)

    def __init__(
        self,
        parameters: Sequence[inspect.Parameter] | None = None,
        *,
        return_annotation: Any = inspect.Signature.empty,
        make: Callable[[], list[inspect.Parameter]] | None = None,
    ) -> None:
        super().__init__(parameters, return_annotation=return_annotation)
        self._make = make

    @property
    def parameters(self) -> MappingProxyType[str, inspect.Parameter]:
        """The operation's parameters, as a mapping from names to `inspect.Parameter` objects."""
        return super().parameters if self._make is None else inspect.Signature(self._make()).parameters


def _shown(parameters: Iterable[_Parameter], adds_name: bool) -> list[inspect.Parameter]:
    """Returns the parameters of the operation's public signature, with ``name`` added if `adds_name` is true."""
    named = [("name", None, str | None)] if adds_name else []
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if default is _REQUIRED else default,
            annotation=annotation,
        )
        for name, default, annotation in [*((one.name, one.default, accepted(one.kind)) for one in parameters), *named]
    ]


def accepted(kind: str) -> Any:
    """Returns the annotation of a parameter in the public signature: the types that callers may pass."""
    known = ACCEPTED.get(kind.removesuffix(" | None"), kind)
    return known if isinstance(known, str) or not kind.endswith(" | None") else known | None


_CONVERT: Final[dict[str, Callable[[Any, str, str], Any]]] = {
    "jax.Array": lambda value, called, argument: as_tensor(value),
    "Int": lambda value, called, argument: static_int(value, called=called, argument=argument),
    "Ints": lambda value, called, argument: static_ints(value, called=called, argument=argument),
    "Axes": lambda value, called, argument: static_axis(value, called=called, argument=argument),
    "option": lambda value, called, argument: (
        value if isinstance(value, (bool, int, float, str)) else static_axis(value, called=called, argument=argument)
    ),
}


def _conversions(parameters: Sequence[_Parameter]) -> list[tuple[int, str, Callable[[Any, str, str], Any], bool]]:
    """Returns a tuple for each parameter that is converted: (index, name, conversion, whether None stays None)."""
    return [
        (place, one.name, _CONVERT[kind], kind != one.kind or kind in ("Axes", "option"))
        for place, one in enumerate(parameters)
        for kind in [one.kind.removesuffix(" | None")]
        if kind in _CONVERT
    ]


def _first_line(target: Callable[..., Any]) -> str:
    return (target.__doc__ or "").strip().partition("\n")[0]


def bind(
    called: str, parameters: Sequence[_Parameter], args: tuple[Any, ...], kwargs: dict[str, Any], named: bool = True
) -> list[Any]:
    """Binds the arguments of a call to parameters, and returns their values in the order of the parameters.

    If `named`, there may be a last argument ``name``, which is dropped.

    Raises:
        TypeError: There are too many, unknown or missing arguments.
    """
    if named and len(args) == len(parameters) + 1 and (args[-1] is None or isinstance(args[-1], str)):
        args = args[:-1]  # `name`, which is the last parameter
    if len(args) > len(parameters):
        raise TypeError(f"{called}() takes {len(parameters)} positional arguments but {len(args)} were given")
    values = list(args)
    for parameter in parameters[len(args) :]:
        value = kwargs.pop(parameter.name, parameter.default)
        if value is _REQUIRED:
            raise TypeError(f"{called}() missing a required argument: '{parameter.name}'")
        values.append(value)
    if named:
        kwargs.pop("name", None)
    if kwargs:
        raise unexpected_keyword_error(
            called, next(iter(kwargs)), [*(one.name for one in parameters), *["name"] * named]
        )
    return values


def unexpected_keyword_error(called: str, name: str, known: list[str]) -> TypeError:
    """Creates the TypeError for a keyword argument that is unknown, or that is given twice."""
    if name in known:
        return TypeError(f"{called}() got multiple values for argument '{name}'")
    hint = f": use TensorFlow 2's `{_DEPRECATED[name]}` instead" if name in _DEPRECATED else ""
    taken = ", ".join(known) or "none"
    return TypeError(f"{called}() got an unexpected keyword argument '{name}'{hint} (it takes {taken})")


class reported:
    """A context manager that converts JAX's shape and dtype errors to `InvalidArgumentError`.

    The errors name the operation.
    """

    def __init__(self, called: str, values: Iterable[Any]) -> None:
        self._called = called
        self._values = values

    def __enter__(self) -> None:
        """Does nothing on entry."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises an `InvalidArgumentError` in place of a shape or dtype error from JAX."""
        replaced = _replacement(self._called, self._values, error)
        if replaced is not None:
            raise replaced from error


def _replacement(called: str, values: Iterable[Any], error: BaseException | None) -> InvalidArgumentError | None:
    """Returns the error to raise in place of a JAX error about shapes or dtypes; None for any other error."""
    if not isinstance(error, (TypeError, ValueError)) or isinstance(error, (MirroredError, jax.errors.JAXTypeError)):
        return None
    return InvalidArgumentError.of(
        called,
        found=f"the operands {', '.join(_described(one) for one in values)} do not fit: {error}",
        rule="the shapes, dtypes and axes of an operation must be compatible",
        remedy="change a shape with tf.reshape or tf.transpose, or a dtype with tf.cast",
    )


_UNKNOWN: Final = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def _unknown_value_error(called: str, values: Sequence[Any], error: BaseException) -> InvalidArgumentError | None:
    """Returns the error to raise in place of JAX's error that an operation needs a value while tracing; else None.

    The error of a function that the operation calls remains as it is.
    """
    if not isinstance(error, _UNKNOWN) or any(map(_contains_function, values)):
        return None
    return InvalidArgumentError.of(
        called,
        found="an argument that must be known while tracing depends on a traced value",
        rule="in compiled code the arguments that determine the shape of a result, or select a computation, must be "
        "known while tracing",
        remedy="compute the argument from x.shape or tf.shape(x), or pass it as a Python number",
    )


def _contains_function(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_contains_function, value))
    if isinstance(value, dict):
        return any(map(_contains_function, value.values()))
    return callable(value) and not isinstance(value, type)


def _described(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_described(one) for one in value) + "]"
    if isinstance(value, jax.Array):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return repr(value)


def hosted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an operation to run on the host if the values of all operands are known while tracing."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_eager() or not (has_static(args) or (kwargs and has_static(tuple(kwargs.values())))):
            return function(*args, **kwargs)
        if not is_host(args) or _has_arrays(tuple(kwargs.values())):
            return function(*args, **kwargs)
        # All operands are known while tracing. Evaluates now, because a traced result could not become a shape.
        with jax.ensure_compile_time_eval():
            result = function(*args, **kwargs)
        return jax.tree.map(lambda one: static_tensor(one) if one.dtype.kind in "iub" else one, result)

    return call


def _has_arrays(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_arrays(one) for one in value)
    return isinstance(value, jax.Array) or hasattr(type(value), "__jax_array__")


def tensors(*values: Operand) -> list[jax.Array]:
    """Converts values to tensors; Python numbers get the dtype of the tensors among the values."""
    found = operands(values)
    arrays = [one for one in found if isinstance(one, jax.Array)]
    common = jnp.result_type(*found) if arrays else None
    return [one if isinstance(one, jax.Array) else as_tensor(one, common) for one in found]
