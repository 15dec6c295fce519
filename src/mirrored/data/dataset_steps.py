"""The base class of the parts of `Dataset`: holds a pipeline of nodes and adds steps to it."""

from __future__ import annotations

from typing import Self

from mirrored.data.iterators import Epochs
from mirrored.data.options import Options
from mirrored.data.pipeline import Node
from mirrored.errors import ArgumentError


class Steps:
    """The fields of a dataset: its pipeline, options and iteration counter."""

    def __init__(self, node: Node, options: Options | None = None) -> None:
        self._node = node
        self._options = options if options is not None else Options()
        self._epochs = Epochs()

    @classmethod
    def _of(cls, node: Node) -> Self:
        return cls(node)

    def _then(self, node: Node) -> Self:
        return type(self)(node, self._options)

    def _with(self, dataset: Self) -> Self:
        return type(self)(dataset._node, self._options)

    @property
    def node(self) -> Node:
        """The last node of the pipeline, for the code that distributes it."""
        return self._node


def at_least(least: int, value: int, called: str, name: str) -> int:
    """Returns `value` after checking its lower bound.

    Raises:
        ArgumentError: `value` is less than `least`.
    """
    if value < least:
        raise ArgumentError(
            called, found=f"{name}={value}", rule=f"{name} is at least {least}", remedy=f"pass a larger {name}"
        )
    return value
