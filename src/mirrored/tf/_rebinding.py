"""Makes ``x += y`` create a new array if x is a NumPy array that acts as a tensor, as for a `jax.Array`."""

from __future__ import annotations

from typing import Any, Final

IN_PLACE: Final = (
    *("__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"),
    *("__ilshift__", "__irshift__", "__iand__", "__ixor__", "__ior__"),
)


class Rebinding:
    """Base class of NumPy arrays that act as tensors: ``x += y`` creates a new array, as ``x = x + y`` does.

    NumPy would write to the memory, so every other name of the tensor would change with it; it also refuses read-only
    arrays and results of another dtype.
    """

    __slots__ = ()


def _not_in_place(self: object, other: object) -> Any:
    """Returns NotImplemented, so that Python uses the operator that creates a new array."""
    del self, other
    return NotImplemented


for _name in IN_PLACE:
    setattr(Rebinding, _name, _not_in_place)
