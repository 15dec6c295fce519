"""Connecting Keras: wrappers around what makes variables, applies gradients, and trains."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.calls import connect_calls
from mirrored.integrations.keras.losses import connect_losses
from mirrored.integrations.keras.normalization import connect_normalization
from mirrored.integrations.keras.optimizers import wrapped, wrapped_build, wrapped_reference
from mirrored.integrations.keras.plain import connect_plain
from mirrored.integrations.keras.resuming import connect_resuming
from mirrored.integrations.keras.symbolic import wrapped_compute_output_spec
from mirrored.integrations.keras.tensorboard import connect_tensorboard
from mirrored.integrations.keras.training import wrap_model
from mirrored.integrations.keras.variables import KerasVariable, adopt
from mirrored.replicas.lockstep import carry

keras = load()


class _Connected:
    done = False


def connect() -> None:
    """Connects Keras; more than once does nothing."""
    if _Connected.done:
        return
    _Connected.done = True
    carry(_keras_state)
    KerasVariable.__init__ = _adopting(KerasVariable.__init__)
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.apply = wrapped(optimizer.apply)
        optimizer.build = wrapped_build(optimizer.build)
    base = keras.optimizers.Optimizer
    base.add_variable_from_reference = wrapped_reference(base.add_variable_from_reference)
    wrap_model(keras.Model)
    keras.src.backend.compute_output_spec = wrapped_compute_output_spec(keras.src.backend.compute_output_spec)
    connect_calls()
    connect_losses()
    connect_normalization()
    connect_plain()
    connect_resuming()
    connect_tensorboard()


def _adopting(make: Callable[..., None]) -> Callable[..., None]:
    """A variable's constructor that makes it ours (a distribution would be forgotten by `clear_session`)."""

    @functools.wraps(make)
    def adopting(self: Any, *args: Any, **kwargs: Any) -> None:
        adopt(self)
        make(self, *args, **kwargs)

    return adopting


def _keras_state() -> Callable[[], None]:
    """Keras keeps its scopes in thread-local state: replica threads start with a copy of it."""
    tracker = keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER
    here = {name: copy.copy(value) if isinstance(value, list) else value for name, value in vars(tracker).items()}
    return lambda: vars(tracker).update(here)
