"""`Copies`: which arrays of an eager run's replicas are copies of one original."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrored._jax.traces import Tracer

if TYPE_CHECKING:
    import jax


class Copies:
    """Maps the copies of arrays that an eager run has made for its replicas to the originals.

    It keeps arrays alive, so that the id of a copy is not reused. It does not keep tracers, which occur in a merge that
    a tape differentiates: `jax.checking_leaks` would report that something refers to them after their trace.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Callable[[], Any], Callable[[], Any]]] = {}

    def note(self, copy: jax.Array, original: jax.Array) -> None:
        """Records that `copy` is a copy of `original` on the device of a replica."""
        refer = weakref.ref if isinstance(copy, Tracer) else _strongly
        self._by_id[id(copy)] = refer(copy), refer(original)

    def original(self, value: object) -> Any:
        """Returns the array of which `value` is a copy; None if it is not such a copy."""
        found = self._by_id.get(id(value))
        return found[1]() if found is not None and found[0]() is value else None


def _strongly(value: object) -> Callable[[], Any]:
    return lambda: value
