"""The variables of Python that a branch or a loop changes: which of their parts are tensors, which stay as they are."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from malt.operators.variables import Undefined, UndefinedReturnValue

from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import StaticTensor
from mirrored.tf._tensors import as_tensor

RETURN_VALUE: Final = "retval_"

GetState = Callable[[], tuple[Any, ...]]
SetState = Callable[[tuple[Any, ...]], None]


def is_undefined(value: Any) -> bool:
    """Whether a name has no value yet."""
    return isinstance(value, (Undefined, UndefinedReturnValue))


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number."""
    return type(leaf) in (bool, int, float, complex)


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf may be carried by a compiled program."""
    if isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, StaticTensor):
        return leaf.dtype.kind in "biufcV"
    return isinstance(leaf, (jax.Array, StaticTensor)) or is_number(leaf)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A value taken apart.

    Attributes:
        leaves: Its tensors, and everything else that is no container.
        treedef: Its containers.
    """

    leaves: list[Any]
    treedef: Any

    @classmethod
    def of(cls, value: Any) -> Parts:
        """Takes a value apart."""
        return cls(*jax.tree.flatten(value))

    @property
    def places(self) -> list[int]:
        """Which leaves are tensors."""
        return [i for i, leaf in enumerate(self.leaves) if is_tensor(leaf)]

    @property
    def tensors(self) -> list[jax.Array]:
        """The leaves that are tensors, as tensors."""
        return [as_tensor(self.leaves[i]) for i in self.places]

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The value with other tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return jax.tree.unflatten(self.treedef, leaves)


def zeros_like(value: Any) -> Any:
    """A value of the same structure: zeros for tensors, everything else as it is."""
    parts = Parts.of(value)
    return parts.filled([jnp.zeros(one.shape, one.dtype) for one in parts.tensors])


def is_same(first: Any, second: Any) -> bool:
    """Whether two leaves are one and the same to a program: the same object, or equal plain values."""
    if first is second:
        return True
    plain = (bool, int, float, complex, str, bytes, type(None))
    return type(first) is type(second) and isinstance(first, plain) and first == second


class _Inferring(threading.local):
    depth = 0


_inferring = _Inferring()


@contextmanager
def inferring() -> Iterator[None]:
    """Within a first look at a loop body: names without a value take that of the other branch, as zeros."""
    _inferring.depth += 1
    try:
        yield
    finally:
        _inferring.depth -= 1


def is_inferring() -> bool:
    """Whether this is a first look at a loop body."""
    return _inferring.depth > 0


def unlike(statement: str, name: str, found: str) -> InvalidArgumentError:
    """The error for a name whose values don't fit one program."""
    shown = "the returned value" if name == RETURN_VALUE else f"`{name}`"
    return InvalidArgumentError.of(
        statement,
        found=f"{shown} {found}",
        rule="where the choice is made when the program runs, a name has the same structure, shape and dtype whichever "
        "way it goes",
        remedy="give it a value of that shape and dtype before (tf.zeros, tf.cast), on every path, "
        "or decide with a Python value",
    )
