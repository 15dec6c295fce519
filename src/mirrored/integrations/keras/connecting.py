"""Connecting Keras: one distribution that it asks about every variable, and wrappers around `apply` and `fit`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.optimizers import wrapped, wrapped_build, wrapped_reference
from mirrored.integrations.keras.training import wrap_model
from mirrored.integrations.keras.variables import adopt
from mirrored.replicas.lockstep import carry

keras = load()


class _Connected:
    done = False


class Adopting(keras.src.distribution.distribution_lib.Distribution):  # type: ignore[misc]
    """Places nothing by itself: it makes the variables that Keras creates ours, which know where they live."""

    def __init__(self) -> None:
        super().__init__(device_mesh=None, batch_dim_name=None, auto_shard_dataset=False)

    def get_variable_layout(self, variable: Any) -> None:
        """None: the variable of ours places its value."""
        adopt(variable)

    def get_tensor_layout(self, path: str) -> None:
        """None: values are where they were computed."""

    def get_data_layout(self, data_shape: Any) -> Any:
        """Where a batch goes that `fit` takes outside any strategy: one device."""
        return _Anywhere()

    def distribute_dataset(self, dataset: Any) -> Any:
        """The dataset itself."""
        return dataset


class _Anywhere:
    """A layout for data of a model that belongs to no strategy."""

    backend_layout = None


def _keras_state() -> Callable[[], None]:
    """Keras keeps its scopes in thread-local state: replica threads start with a copy of it."""
    tracker = keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER
    here = {name: copy.copy(value) if isinstance(value, list) else value for name, value in vars(tracker).items()}
    return lambda: vars(tracker).update(here)


def connect() -> None:
    """Connects Keras; more than once does nothing."""
    if _Connected.done:
        return
    _Connected.done = True
    carry(_keras_state)
    if keras.distribution.distribution() is None:
        keras.distribution.set_distribution(Adopting())
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.apply = wrapped(optimizer.apply)
        optimizer.build = wrapped_build(optimizer.build)
    base = keras.optimizers.Optimizer
    base.add_variable_from_reference = wrapped_reference(base.add_variable_from_reference)
    wrap_model(keras.Model)
