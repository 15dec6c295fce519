"""Makes `mirrored` variables (`tf.Variable`) that are attributes of Keras layers part of the layer's weights.

Keras tracks only its own variables: it would neither train nor save `self.w = tf.Variable(...)`. So a layer tracks a
Keras view of such a variable among its weights. In stateless calls (as in `fit`), where Keras passes the values of the
weights as arguments, reading the variable returns the value of its view, and assigning it updates the view.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mirrored._jax.traces import current_trace, trace_below_tapes
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.call_metrics import holding_metrics
from mirrored.integrations.keras.calls import convertible
from mirrored.integrations.keras.conversion import converting_calls
from mirrored.integrations.keras.open_shapes import inferred
from mirrored.integrations.keras.private import Tracker
from mirrored.integrations.keras.scope_store import ScopeStore
from mirrored.integrations.keras.scoped_variables import noting_blocks
from mirrored.integrations.keras.variables import View, as_keras
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.entry_point import with_noted_state
from mirrored.runtime.variable_store import FunctionStore
from mirrored.variables import Variable

if TYPE_CHECKING:
    from keras import StatelessScope
    from keras import Variable as KerasVariable

keras = load()
_StatelessScope: Any = keras.StatelessScope


def connect_plain() -> None:
    """Patches Keras so that a `mirrored` variable that is set as a layer's attribute becomes a weight of the layer."""
    replace("keras", Tracker, "track", _seeing_plain(Tracker.track))
    replace("keras", _StatelessScope, "__init__", _noting_views(_StatelessScope.__init__))
    replace("keras", _StatelessScope, "__enter__", _entering(_StatelessScope.__enter__))
    replace("keras", _StatelessScope, "__exit__", _leaving(_StatelessScope.__exit__))


def _seeing_plain(track: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(track)
    def seeing_plain(self: Tracker, attr: object) -> Any:
        # Keras locks the tracker of a built layer. A variable that the layer creates later is not one of its weights.
        if isinstance(attr, Variable) and "trainable_variables" in self.config and not self.locked:
            track(self, as_keras(attr))
            return attr
        return track(self, attr)

    return seeing_plain


def _noting_views(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def noting_views(
        self: StatelessScope,
        state_mapping: Iterable[tuple[KerasVariable, Any]] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        pairs = None if state_mapping is None else list(state_mapping)
        views = [variable for variable, _ in pairs or () if isinstance(variable, View)]
        self._mirrored_views = {id(view.mirrored): view for view in views if view.mirrored is not None}
        make(self, pairs, *args, **kwargs)

    return noting_views


def _entering(enter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(enter)
    def entering(self: StatelessScope) -> Any:
        self._mirrored_contexts = contextlib.ExitStack()
        scope = enter(self)
        try:
            if ambient().store is None and ambient().replica is None:
                self._mirrored_contexts.enter_context(within(store=_store(self, self._mirrored_views)))
            self._mirrored_contexts.enter_context(noting_blocks(self))
            self._mirrored_contexts.enter_context(holding_metrics(self))
        except BaseException:
            self.__exit__()
            raise
        return scope

    return entering


def _store(scope: StatelessScope, views: Mapping[int, Any]) -> ScopeStore:
    return ScopeStore(scope, views, trace_below_tapes(current_trace()))


def _leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(leave)
    def leaving(self: StatelessScope, *error: object, **kwargs: Any) -> Any:
        try:
            self._mirrored_contexts.close()
        finally:
            leave(self, *error, **kwargs)

    return leaving


# Lets layers read `mirrored` variables in Keras' symbolic calls, which infer shapes only.


def wrapped_compute_output_spec(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `compute_output_spec`, Keras' shape inference, so that it does not change `mirrored` variables.

    In that store, reads return tracers that carry the shape, and assignments are discarded.
    """

    @with_noted_state
    @functools.wraps(compute)
    def compute_output_spec(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if ambient().store is not None:
            with converting_calls():
                return inferred(compute, convertible(function), args, kwargs)
        store = FunctionStore()

        @functools.wraps(function)
        def with_store(*inner: Any, **named: Any) -> Any:
            store.base_trace = trace_below_tapes(current_trace())
            with within(store=store, listeners=(*ambient().listeners, store)), converting_calls():
                return convertible(function)(*inner, **named)

        return inferred(compute, with_store, args, kwargs)

    return compute_output_spec
