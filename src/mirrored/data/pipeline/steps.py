"""The base class of `Dataset` and its mixins, and a check of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

from mirrored.data.options import Options, merged_options
from mirrored.data.pipeline.nodes import Node
from mirrored.errors import ArgumentError


class Steps:
    """Base class of `Dataset` and its mixins: holds the operations and the options."""

    adapted: ClassVar[Callable[[Callable[..., Any]], Callable[..., Any]]] = staticmethod(lambda function: function)
    """Wraps every function that a user passes. A facade sets it, to convert what the function receives and returns."""

    def __init__(self, node: Node, options: Options | None = None) -> None:
        self._node = node
        self._options = options if options is not None else Options()

    @classmethod
    def _of(cls, node: Node) -> Self:
        return cls(node)

    @classmethod
    def _combined(cls, node: Node, datasets: Iterable[Steps]) -> Self:
        """Returns a dataset that combines several datasets, with the options of all of them."""
        return cls(node, merged_options(one._options for one in datasets))

    def _then(self, node: Node) -> Self:
        return type(self)(node, self._options)

    def _with(self, dataset: Self) -> Self:
        return type(self)(dataset._node, self._options)

    @property
    def node(self) -> Node:
        """The dataset's last operation, whose `parents` lead to the earlier operations."""
        return self._node


def at_least(least: int, value: int, called: str, name: str) -> int:
    """Returns `value`; raises ArgumentError if `value` is less than `least`.

    Raises:
        ArgumentError: `value` is less than `least`.
    """
    if value < least:
        raise ArgumentError(
            called, found=f"{name}={value}", rule=f"{name} must be at least {least}", remedy=f"pass a larger {name}"
        )
    return value
