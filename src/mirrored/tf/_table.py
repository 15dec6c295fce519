"""The table of operations: maps each TensorFlow name, such as ``"math.add"``, to a function.

Two kinds of entries:

- *rows* (`rows`): TensorFlow's name and parameters, and the JAX function that does the same. Parameters without a
  default are tensors; ``axis=None`` is an option with its default; ``shape:`` an option without one; ``*`` before a
  name a list of tensors. ``old>new=default`` is called `old` by TensorFlow and `new` by JAX.
- *functions* (`op`): hand-written, where TensorFlow's meaning is not one JAX call.

Every entry takes ``name=`` and ignores it. `tests/tf/` has at least one case per entry, and a test checks this.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

import jax
import jax.numpy as jnp

from mirrored._jax.traces import is_eager
from mirrored._typing import Operand
from mirrored.errors import MirroredError
from mirrored.tape import direct
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import static_axis, static_tensor
from mirrored.tf._tensors import as_tensor, has_static, is_host, operands

_F = TypeVar("_F", bound=Callable[..., Any])
_REQUIRED: Final = object()
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


def op(places: str) -> Callable[[_F], _F]:
    """Decorates a function to add it to the table of operations: ``@op("nn.conv2d")``.

    Several names are separated by spaces.
    """

    def enter(function: _F) -> _F:
        register(places.split(), function)
        return function

    return enter


@dataclasses.dataclass(frozen=True)
class _Parameter:
    name: str
    target: str
    kind: str  # "tensor", "tensors" or "option"
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
    name, _, target = head.rstrip(":").lstrip("*").partition(">")
    kind = "tensors" if head.startswith("*") else "option" if equals or head.endswith(":") else "tensor"
    return _Parameter(name, target or name, kind, ast.literal_eval(default) if equals else _REQUIRED)


def _row(called: str, parameters: tuple[_Parameter, ...], target: Callable[..., Any]) -> Callable[..., Any]:
    tensors = [index for index, one in enumerate(parameters) if one.kind == "tensor"]
    lists = [index for index, one in enumerate(parameters) if one.kind == "tensors"]
    options = [(index, one.target) for index, one in enumerate(parameters) if one.kind == "option"]

    def run(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        values = args if len(args) == len(parameters) and not kwargs else bind(called, parameters, args, kwargs)
        keywords = {target_name: _option(called, values[index]) for index, target_name in options}
        positional = operands([values[index] for index in tensors])
        positional += [operands(list(values[index])) for index in lists]
        try:
            return target(*positional, **keywords)
        except (TypeError, ValueError) as error:  # inlines `reported`, because a context manager costs 1 us per call
            replaced = _replacement(called, positional, error)
            if replaced is None:
                raise
            raise replaced from error

    run.__name__ = run.__qualname__ = called.rpartition(".")[2]
    run.__doc__ = f"`{called}({', '.join(one.name for one in parameters)})`: {_first_line(target)}"
    return hosted(run)


def _first_line(target: Callable[..., Any]) -> str:
    return (target.__doc__ or "").strip().partition("\n")[0]


def _option(called: str, value: object) -> Any:
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain else static_axis(value, called=called)


def bind(called: str, parameters: tuple[_Parameter, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Binds the arguments of a call to parameters, and returns their values in the order of the parameters.

    Raises:
        TypeError: There are too many, unknown or missing arguments.
    """
    if len(args) > len(parameters):
        raise TypeError(f"{called}() takes {len(parameters)} positional arguments but {len(args)} were given")
    values = list(args)
    for parameter in parameters[len(args) :]:
        value = kwargs.pop(parameter.name, parameter.default)
        if value is _REQUIRED:
            raise TypeError(f"{called}() missing a required argument: '{parameter.name}'")
        values.append(value)
    if kwargs:
        raise unexpected(called, next(iter(kwargs)), [one.name for one in parameters])
    return values


def unexpected(called: str, name: str, known: list[str]) -> TypeError:
    """Creates the TypeError for a keyword argument that is unknown, or that is given twice."""
    if name in known:
        return TypeError(f"{called}() got multiple values for argument '{name}'")
    hint = f": use TensorFlow 2's `{_DEPRECATED[name]}` instead" if name in _DEPRECATED else ""
    taken = ", ".join([*known, "name"])
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
        """Replaces a TypeError or ValueError raised by JAX."""
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
        if not is_host(args):
            return function(*args, **kwargs)
        # All operands are known while tracing. Evaluates now, because a traced result could not become a shape.
        with jax.ensure_compile_time_eval():
            result = function(*args, **kwargs)
        return jax.tree.map(lambda one: static_tensor(one) if one.dtype.kind in "iub" else one, result)

    return call


def tensors(*values: Operand) -> list[jax.Array]:
    """Converts values to tensors; Python numbers get the dtype of the tensors among the values."""
    found = operands(values)
    arrays = [one for one in found if isinstance(one, jax.Array)]
    common = jnp.result_type(*found) if arrays else None
    return [one if isinstance(one, jax.Array) else as_tensor(one, common) for one in found]
