"""The parameters of a function that `tf.saved_model.save` exports: their order, names and defaults."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirrored.compilation.concrete import parameters_of

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The arguments of a call of a function, in the order of its parameters, with defaults for those omitted.

    Attributes:
        names: The names of the parameters with a value: first those passed by position, then those by keyword.
        inputs: Their values.
        keywords: The names of those passed by keyword.
    """

    names: list[str]
    inputs: tuple[Any, ...]
    keywords: list[str]

    def by_position(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function to take all `inputs` by position; passes those named in `keywords` by keyword."""
        if not self.keywords:
            return function
        count, keywords = len(self.inputs) - len(self.keywords), self.keywords

        @functools.wraps(function)
        def call(*inputs: Any) -> Any:
            return function(*inputs[:count], **dict(zip(keywords, inputs[count:], strict=True)))

        return call


class Parameters:
    """The parameters of a Python function, without `self` of a bound method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = parameters_of(function)
        self._positional = [one.name for one in parameters if one.kind in _POSITIONAL]
        self._keyword_only = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
        self.defaults = {
            one.name: one.default
            for one in parameters
            if one.default is not inspect.Parameter.empty and _is_storable(one.default)
        }
        """The defaults that a file can contain, by name."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Binds the arguments of a call to parameters; omits parameters with neither argument nor savable default."""
        names = [*self._positional, *(f"args_{place}" for place in range(len(self._positional), len(args)))]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        ordered = dict.fromkeys([*names, *self._keyword_only, *kwargs])
        values = {name: given.get(name, self.defaults.get(name)) for name in ordered if self._has(name, given)}
        # After a parameter without a value, the others can be passed by keyword only.
        count = next((place for place, name in enumerate(names) if name not in values), len(names))
        return Bound(list(values), tuple(values.values()), list(values)[count:])

    def _has(self, name: str, given: Mapping[str, Any]) -> bool:
        return name in given or name in self.defaults


def same_static(one: object, other: object) -> bool:
    """Returns whether two values are equal and, unlike ``True == 1 == 1.0``, have equal types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_static, one, other))
    return _is_storable(one) and bool(one == other)


def _is_storable(value: object) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_storable, value))  # type: ignore[call-overload]
    return value is None or type(value) in (bool, int, float, str)
