"""Assignments that a function makes while it is being differentiated: kept apart until that is over.

In the meantime a new value belongs to the differentiation, as a tracer. Afterwards the values are known, and go to the
frame below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax.traces import current_trace
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.variable_store import VariableStore


class OverlayStore(VariableStore):
    """A frame over another.

    Args:
        below: Where variables are read that have not been assigned here; None is their storage.
        session: Of the surrounding run, whose frame `below` is.
    """

    captures = True

    # The methods of a frame are documented there.
    # ruff: noqa: D102

    def __init__(self, below: VariableStore | None, runner: Any) -> None:
        self._below, self._runner = below, runner
        self._staged: dict[tuple[int, int | None], tuple[Any, Any, str]] = {}
        self.num_local = 1 if runner is None else runner.num_local

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes it the frame of the code in the block, and of runs inside it."""
        self.base_trace = current_trace()
        if self._runner is not None:
            self._runner.store = self
        try:
            with within(store=self):
                yield
        finally:
            if self._runner is not None:
                self._runner.store = self._below

    def values(self) -> list[Any]:
        """What has been assigned, in order."""
        return [jnp.asarray(value) for _, value, _ in self._staged.values()]

    def settle(self, values: Sequence[Any]) -> None:
        """Assigns for good: `values` are those of `values`, as they are outside the differentiation."""
        for ((_, replica), (variable, _, where)), value in zip(self._staged.items(), values, strict=True):
            if self._below is None or (variable.device_assignment is None and not self._below.captures):
                variable.store(value)
            elif replica is None:
                self._below.set_whole(variable, self._spread(variable, value), where)
            else:
                self._below.set_local(variable, replica, self._moved(value, replica), where)

    # An eager run has each replica on its own device; what concerns all of them happens on the first.

    def _is_eager(self) -> bool:
        return self._runner is not None and self._below is not None and not self._below.captures

    def _moved(self, value: Any, replica: int) -> Any:
        return jax.device_put(value, self._runner.device_assignment.device_of(replica)) if self._is_eager() else value

    def _spread(self, variable: Any, value: Any) -> Any:
        if not self._is_eager():
            return value
        device_assignment = self._runner.device_assignment
        return jax.device_put(
            value, device_assignment.sharded if variable.per_replica else device_assignment.replicated
        )

    def whole(self, variable: Any) -> Any:
        if (id(variable), None) in self._staged:
            return self._staged[id(variable), None][1]
        if not any(key[0] == id(variable) for key in self._staged):
            return self._moved(variable.stored() if self._below is None else self._below.whole(variable), 0)
        locals_ = [self._moved(self.local(variable, replica), 0) for replica in range(self.num_local)]
        return jnp.stack(locals_) if variable.per_replica else locals_[0]

    def set_whole(self, variable: Any, value: Any, where: str) -> None:
        self._forget(variable)
        self._staged[id(variable), None] = (variable, value, where)

    def local(self, variable: Any, replica: int) -> Any:
        if (id(variable), replica) in self._staged:
            return self._staged[id(variable), replica][1]
        if (id(variable), None) in self._staged:
            whole = self._staged[id(variable), None][1]
            return whole[replica] if variable.per_replica else whole
        return variable.stored_component(replica) if self._below is None else self._below.local(variable, replica)

    def set_local(self, variable: Any, replica: int, value: Any, where: str) -> None:
        whole = self._staged.pop((id(variable), None), None)
        if whole is not None:
            for other in range(self.num_local):
                part = whole[1][other] if variable.per_replica else whole[1]
                self._staged[id(variable), other] = (variable, part, whole[2])
        self._staged[id(variable), replica] = (variable, value, where)

    def created(self, variable: Any) -> None:
        if self._below is not None:
            self._below.created(variable)

    def _forget(self, variable: Any) -> None:
        for key in [key for key in self._staged if key[0] == id(variable)]:
            del self._staged[key]


def assignments_apart(function: Callable[..., Any]) -> tuple[OverlayStore, Callable[..., Any]]:
    """`function` with its assignments kept in an overlay of the frame that is current now."""
    here = ambient()
    overlay = OverlayStore(here.store, here.runner)

    def apart(*args: Any) -> Any:
        with overlay.current():
            return function(*args)

    return overlay, apart
