"""Makes `mirrored` variables (`tf.Variable`) that are attributes of Keras layers part of the layer's weights.

Keras tracks only its own variables: it would neither train nor save `self.w = tf.Variable(...)`. So a layer tracks a
Keras view of such a variable among its weights. In stateless calls (as in `fit`), where Keras passes the values of the
weights as arguments, reading the variable returns the value of its view, and assigning it updates the view.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from mirrored._jax.traces import current_trace, recording_parent
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.scope_store import ScopeStore
from mirrored.integrations.keras.variables import View, as_keras
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient, within
from mirrored.variables import Variable

keras = load()
_Tracker: Any = keras.src.utils.tracking.Tracker
_StatelessScope: Any = keras.StatelessScope


def connect_plain() -> None:
    """Wraps Keras' attribute tracker and `StatelessScope`, in which Keras substitutes values for variables."""
    replace("keras", _Tracker, "track", _seeing_plain(_Tracker.track))
    replace("keras", _StatelessScope, "__init__", _noting_views(_StatelessScope.__init__))
    replace("keras", _StatelessScope, "__enter__", _entering(_StatelessScope.__enter__))
    replace("keras", _StatelessScope, "__exit__", _leaving(_StatelessScope.__exit__))


def _seeing_plain(track: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(track)
    def seeing_plain(self: Any, attr: Any) -> Any:
        # Keras locks the tracker of a built layer. A variable that the layer creates later is not one of its weights.
        if isinstance(attr, Variable) and "trainable_variables" in self.config and not self.locked:
            track(self, as_keras(attr))
            return attr
        return track(self, attr)

    return seeing_plain


def _noting_views(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def noting_views(self: Any, state_mapping: Any = None, *args: Any, **kwargs: Any) -> None:
        pairs = None if state_mapping is None else list(state_mapping)
        views = [variable for variable, _ in pairs or () if isinstance(variable, View)]
        self._views = {id(view.mirrored): view for view in views if view.mirrored is not None}
        make(self, pairs, *args, **kwargs)

    return noting_views


def _entering(enter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(enter)
    def entering(self: Any) -> Any:
        scope = enter(self)
        self._contexts = contextlib.ExitStack()
        if self._views and ambient().store is None and ambient().replica is None:
            self._contexts.enter_context(within(store=_store(self, self._views)))
        return scope

    return entering


def _store(scope: Any, views: Mapping[int, Any]) -> ScopeStore:
    return ScopeStore(scope, views, recording_parent(current_trace()))


def _leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def leaving(self: Any, *error: Any, **kwargs: Any) -> Any:
        self._contexts.close()
        return leave(self, *error, **kwargs)

    return leaving
