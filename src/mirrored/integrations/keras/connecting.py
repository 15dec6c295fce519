"""Applies and removes the patches to Keras' variables, optimizers and training loops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored.integrations.keras.adapting import connect_adapting
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.belonging import connect_belonging, connect_noticing
from mirrored.integrations.keras.call_metrics import connect_call_metrics
from mirrored.integrations.keras.callbacks import connect_resuming, connect_saving, connect_tensorboard
from mirrored.integrations.keras.calls import connect_calls
from mirrored.integrations.keras.control_flow import connect_control_flow
from mirrored.integrations.keras.losses import connect_losses
from mirrored.integrations.keras.made_before import connect_made_before
from mirrored.integrations.keras.normalization import connect_normalization
from mirrored.integrations.keras.optimizers import (
    wrapped,
    wrapped_build,
    wrapped_dispatch,
    wrapped_reference,
    wrapped_scale_build,
    wrapped_scale_loss,
)
from mirrored.integrations.keras.plain import connect_plain, wrapped_compute_output_spec
from mirrored.integrations.keras.private import backend, keras_state, noted_scopes
from mirrored.integrations.keras.recurrent import connect_recurrent
from mirrored.integrations.keras.scoped_variables import connect_scoped_variables
from mirrored.integrations.keras.tracer_errors import connect_tracer_errors, with_messages
from mirrored.integrations.keras.training import wrap_model
from mirrored.integrations.keras.variables import KerasVariable, adopt
from mirrored.patches import is_applied, replace, undo
from mirrored.runtime.entry_point import restore_too
from mirrored.runtime.lockstep import carry

keras = load()


def connect() -> None:
    """Applies all patches to Keras; a second call has no effect.

    `mirrored/patches.py` lists the patches.
    """
    if is_applied("keras"):
        return
    _carry_state()
    replace("keras", KerasVariable, "__init__", _adopting(KerasVariable.__init__))
    base, scaling = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer
    dispatching = keras.optimizers.MultiOptimizer
    for optimizer in (base, scaling):
        replace("keras", optimizer, "apply", wrapped(optimizer.apply))
    replace("keras", dispatching, "apply", wrapped_dispatch(dispatching.apply))
    for optimizer in (base, dispatching):
        replace("keras", optimizer, "build", wrapped_build(optimizer.build))
    replace("keras", scaling, "build", wrapped_scale_build(scaling.build))
    replace("keras", scaling, "scale_loss", wrapped_scale_loss(scaling.scale_loss))
    replace("keras", base, "add_variable_from_reference", wrapped_reference(base.add_variable_from_reference))
    wrap_model(keras.Model)
    infer = with_messages(wrapped_compute_output_spec(backend.compute_output_spec))
    replace("keras", backend, "compute_output_spec", infer)
    connect_adapting()
    connect_belonging()
    connect_call_metrics()
    connect_calls()
    connect_control_flow()
    connect_losses()
    connect_made_before()
    connect_normalization()
    connect_noticing()
    connect_plain()
    connect_recurrent()
    connect_resuming()
    connect_saving()
    connect_scoped_variables()
    connect_tensorboard()
    connect_tracer_errors()


def disconnect() -> None:
    """Removes all patches from Keras.

    Existing models of a strategy must not be trained afterwards.
    """
    undo("keras")


def _adopting(make: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of Keras variables to convert them to `StrategyVariable` in a strategy's scope.

    A Keras distribution could do the same, but `clear_session` would reset it.
    """

    @functools.wraps(make)
    def adopting(self: KerasVariable, *args: Any, **kwargs: Any) -> None:
        adopt(self)
        make(self, *args, **kwargs)

    return adopting


@functools.cache
def _carry_state() -> None:
    """Makes replica threads start with a copy of Keras' thread-local state, and traces and loops end with that."""
    carry(keras_state)
    restore_too(noted_scopes)
