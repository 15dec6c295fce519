"""Copies all of JAX's thread-local state to another thread.

Supports JAX 0.10 to 0.12. JAX keeps the current trace, the axis environment, the mesh, the default device, x64, matmul
precision and a hundred other settings in `config_ext.Config` objects with one value per thread; a few older ones are
plain `threading.local`s. A replica thread that lacked one of them would compute different values than other replicas.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from jax._src import config as _config
from jax._src import mesh as _mesh
from jax._src import source_info_util as _source_info

_ext = _config.config_ext


def _states_in(module: Any) -> Iterator[Any]:
    for value in list(vars(module).values()):
        if isinstance(value, _ext.Config):
            yield value
        elif isinstance(value, _config.UserConfig):
            yield value._obj


class _States:
    """All thread-local states. They are searched again whenever more modules have been imported."""

    def __init__(self) -> None:
        self._modules_seen = 0
        self._states: tuple[Any, ...] = ()

    def all(self) -> tuple[Any, ...]:
        if len(sys.modules) != self._modules_seen:
            found: dict[int, Any] = {}
            for name, module in list(sys.modules.items()):
                if module is not None and name.startswith(("jax", "mirrored")):
                    found.update((id(state), state) for state in _states_in(module))
            self._states = tuple(found.values())
            self._modules_seen = len(sys.modules)
        return self._states


_states = _States()


@dataclasses.dataclass(frozen=True)
class ThreadState:
    """A snapshot of one thread's JAX state."""

    values: tuple[tuple[Any, Any], ...]
    legacy_mesh: tuple[Any, Any]
    source_context: Any


def capture_thread_state() -> ThreadState:
    """Returns a snapshot of this thread's JAX state."""
    values = tuple((state, local) for state in _states.all() if (local := state.get_local()) is not _ext.unset)
    resources = _mesh.thread_resources
    return ThreadState(values, (list(resources.stack), resources.env), _source_info._source_info_context.context)


def adopt_thread_state(state: ThreadState) -> None:
    """Sets the JAX state of a new thread to that of the snapshot."""
    for holder, value in state.values:
        holder.set_local(value)
    resources = _mesh.thread_resources
    resources.stack[:], resources.env = state.legacy_mesh
    _source_info._source_info_context.context = state.source_context
