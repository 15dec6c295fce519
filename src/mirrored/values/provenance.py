"""`Makers` and `Batch`: where a per-replica value comes from, for messages."""

from __future__ import annotations

from typing import Any


class _Provenance:
    """Base class of records of where a per-replica value came from, for use in error messages.

    In a pytree they are part of the structure (the auxiliary data), so that they survive flatten and unflatten. All
    instances are equal and hash alike, so provenance never makes two structures unequal or causes a retrace.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Provenance)

    def __hash__(self) -> int:
        return 0


class Makers(_Provenance):
    """The functions passed to `Strategy.run` that produced a value, to warn if one of the functions gets the value."""

    __slots__ = ("functions",)

    def __init__(self, functions: frozenset[Any] = frozenset()) -> None:
        self.functions = functions


class Batch(_Provenance):
    """Records whether a per-replica value came from a `run` whose replicas had different numbers of examples."""

    __slots__ = ("is_uneven",)

    def __init__(self, is_uneven: bool) -> None:
        self.is_uneven = is_uneven
