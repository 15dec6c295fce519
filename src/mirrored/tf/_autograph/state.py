"""AutoGraph's helpers for the Python variables that an `if` statement or a loop assigns."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from malt.operators.variables import Undefined, UndefinedReturnValue

from mirrored._blocks import contextmanager
from mirrored._jax.trees import Structure, tree_flatten, tree_map
from mirrored._typing import Leaf, PyTree
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.blocks import stand_in
from mirrored.tf._static import StaticTensor
from mirrored.tf._tensors import as_tensor

RETURN_VALUE: Final = "retval_"

GetState = Callable[[], tuple[Any, ...]]
SetState = Callable[[tuple[Any, ...]], None]


_GENERATED: Final = re.compile(r"(retval_|do_return|break_|continue_)(_\d+)?")


def is_generated(name: str) -> bool:
    """Returns whether `name` is a variable name that AutoGraph generated for a `return`, `break` or `continue`."""
    return _GENERATED.fullmatch(name) is not None


def is_flag(name: str) -> bool:
    """Returns whether `name` is a variable that AutoGraph generated to express whether a jump has been executed."""
    return is_generated(name) and not name.startswith(RETURN_VALUE)


class Lost(Undefined):  # type: ignore[misc]
    """The value of a name after a branch or loop that cannot tell it, and which no later code is sure to read."""

    __slots__ = ()

    def read(self) -> Any:
        """Refuses to return a value.

        Raises:
            InvalidArgumentError: Always.
        """
        raise InvalidArgumentError.of(
            "tf.function",
            found=f"`{self.symbol_name}` is read after an exception, or by a nested function or class, but a branch or "
            "a loop that a tensor controls has left no value in it",
            rule="if the path is chosen at run time, a variable must have one structure, shape and dtype on all paths",
            remedy="assign a value of that shape and dtype before the statement (tf.zeros, tf.cast) or on every path, "
            "or use another name in the branch or loop",
        )


def is_undefined(value: object) -> bool:
    """Returns whether a value is AutoGraph's marker for a Python variable that is not assigned yet."""
    return isinstance(value, (Undefined, UndefinedReturnValue))


def is_number(leaf: object) -> bool:
    """Returns whether a pytree leaf is a Python bool, int, float or complex."""
    return type(leaf) in (bool, int, float, complex)


def common_dtype(one: Leaf, two: Leaf) -> Any:
    """Returns the common dtype of the values, tensors or Python numbers, that a variable has on two control-flow paths.

    A number takes the dtype of the tensor. Otherwise it is an int32 or float32, also in JAX's 64-bit mode.
    """
    promoted = jnp.result_type(*(leaf if is_number(leaf) else as_tensor(leaf) for leaf in (one, two)))
    if any(not is_number(leaf) and as_tensor(leaf).dtype == promoted for leaf in (one, two)):
        return promoted
    return jnp.result_type(as_tensor(one), as_tensor(two))


def is_tensor(leaf: object) -> bool:
    """Returns whether AutoGraph treats a pytree leaf as a tensor; numbers and numeric NumPy arrays are included."""
    if isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, StaticTensor):
        return leaf.dtype.kind in "biufcV"
    return isinstance(leaf, (jax.Array, StaticTensor)) or is_number(leaf)


@dataclasses.dataclass(frozen=True)
class Parts:
    """A flattened pytree: a list of its leaves, and its structure (`Structure`).

    Attributes:
        leaves: Its tensors and all other values that are not containers.
        treedef: The structure of its containers.
    """

    leaves: list[Any]
    treedef: Structure

    @classmethod
    def of(cls, value: PyTree) -> Parts:
        """Flattens a pytree into a `Parts` object."""
        return cls(*tree_flatten(value))

    @property
    def places(self) -> list[int]:
        """The indices of the leaves that are tensors, arrays or numbers."""
        return [i for i, leaf in enumerate(self.leaves) if is_tensor(leaf)]

    @property
    def tensors(self) -> list[jax.Array]:
        """The leaves of the pytree that are tensors, arrays or numbers, converted to tensors."""
        return [as_tensor(self.leaves[i]) for i in self.places]

    def filled(self, tensors: Sequence[Any]) -> Any:
        """Returns the pytree with its tensor leaves replaced by the tensors in `tensors`."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return self.treedef.unflatten(leaves)


def uniform(value: PyTree) -> Any:
    """Stacks the tensors of each `TensorArray` in a pytree into one array, which `lax.cond` can return."""

    def is_array(one: object) -> bool:
        return hasattr(type(one), "__uniform__")

    return tree_map(lambda one: one.__uniform__() if is_array(one) else one, value, is_leaf=is_array)


def with_stand_ins(value: PyTree) -> Any:
    """Returns a pytree with placeholders (`stand_in`) for the tensors of the block that is being traced."""
    parts = Parts.of(value)
    leaves = [stand_in(leaf) for leaf in parts.leaves]
    same = all(one is two for one, two in zip(leaves, parts.leaves, strict=True))
    return value if same else parts.treedef.unflatten(leaves)


def zeros_like(value: PyTree) -> Any:
    """Returns a pytree with its tensors replaced by zeros; other leaves stay unchanged."""
    parts = Parts.of(value)
    return parts.filled([jnp.zeros(one.shape, one.dtype) for one in parts.tensors])


def is_same(first: object, second: object) -> bool:
    """Returns whether two pytree leaves are the same object, equal numbers of one type, or equal strings."""
    if first is second:
        return True
    plain = (bool, int, float, complex, str, bytes, type(None))
    return type(first) is type(second) and isinstance(first, plain) and first == second


class _Inferring(threading.local):
    depth = 0


_inferring = _Inferring()


@contextmanager
def inferring() -> Iterator[None]:
    """A context manager in which a loop body is traced only to infer the types of the loop's variables.

    In such a trace, an `if` may set a variable in one branch alone.
    """
    _inferring.depth += 1
    try:
        yield
    finally:
        _inferring.depth -= 1


def is_inferring() -> bool:
    """Returns whether a loop body is being traced only to infer the types of the loop's variables."""
    return _inferring.depth > 0


def type_mismatch_error(statement: str, name: str, found: str) -> InvalidArgumentError:
    """Creates the error for a Python variable whose type differs between the paths of a traced `if` or loop."""
    shown = "the returned value" if name == RETURN_VALUE else f"`{name}`"
    return InvalidArgumentError.of(
        statement,
        found=f"{shown} {found}",
        rule="if the path is chosen at run time, a variable must have one structure, shape and dtype on all paths",
        remedy="assign a value of that shape and dtype before the statement (tf.zeros, tf.cast) or on every path, "
        "or use a condition that is a Python value",
    )
