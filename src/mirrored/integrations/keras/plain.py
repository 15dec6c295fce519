"""Plain variables of ours (`tf.Variable`) among the attributes of Keras layers.

Keras knows its own variables only: it would neither train nor save `self.w = tf.Variable(...)`. So a layer that is
given one keeps a view of it among its weights, and where Keras calls a model as a function of values for its weights
(as `fit` does), a read of the variable gives the value for its view, and an assignment is an update of it.
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
    """Wraps what keeps a layer's weights, and the scope in which Keras puts values in their places."""
    replace("keras", _Tracker, "track", _seeing_plain(_Tracker.track))
    replace("keras", _StatelessScope, "__init__", _noting_views(_StatelessScope.__init__))
    replace("keras", _StatelessScope, "__enter__", _entering(_StatelessScope.__enter__))
    replace("keras", _StatelessScope, "__exit__", _leaving(_StatelessScope.__exit__))


def _seeing_plain(track: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(track)
    def seeing_plain(self: Any, attr: Any) -> Any:
        # A layer that is built takes no more weights; a variable that it makes later is not Keras' then.
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
        self._frames = contextlib.ExitStack()
        if self._views and ambient().store is None and ambient().replica is None:
            self._frames.enter_context(within(store=_store(self, self._views)))
        return scope

    return entering


def _store(scope: Any, views: Mapping[int, Any]) -> ScopeStore:
    return ScopeStore(scope, views, recording_parent(current_trace()))


def _leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def leaving(self: Any, *error: Any, **kwargs: Any) -> Any:
        self._frames.close()
        return leave(self, *error, **kwargs)

    return leaving
