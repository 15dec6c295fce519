"""`Makers` and `Batch`: records of where a per-replica value came from, for use in warnings.

`strategies.eager_runner` has another kind of provenance: object identity, which decides whether a result is one value.
"""

from __future__ import annotations

from typing import Any


class _Provenance:
    """Base class of records of where a per-replica value came from, for use in warnings.

    In a pytree they are part of the structure (the auxiliary data), so that they survive flatten and unflatten. All
    instances are equal and hash alike, so provenance never makes two structures unequal or causes a retrace. The price:
    a structure that JAX has cached keeps the provenance of its first value. A value that `jax.jit` returns may have
    that of another value, so a warning may be missing or unfounded.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Provenance)

    def __hash__(self) -> int:
        return 0


class Makers(_Provenance):
    """Records which functions turned replicated values into a per-replica value.

    They are the code objects of functions passed to `Strategy.run`. If one of them gets the value as an argument, a
    model's state has probably diverged (`checks.warn_if_fed_back`).
    """

    __slots__ = ("functions",)

    def __init__(self, functions: frozenset[Any] = frozenset()) -> None:
        self.functions = functions


class Batch(_Provenance):
    """Records whether the replicas of a `run` had different numbers of examples.

    It belongs to a per-replica value of that run. If the numbers differ, `Strategy.reduce(MEAN, ...)` warns: a mean of
    such per-replica means weighs the examples unequally.
    """

    __slots__ = ("is_uneven",)

    def __init__(self, is_uneven: bool) -> None:
        self.is_uneven = is_uneven
