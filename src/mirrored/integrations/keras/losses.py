"""Warns of a Keras loss that averages over one replica's batch while gradients are summed over replicas."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrored._jax.source_lines import user_stacklevel
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.steps import in_step
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.strategies import get_replica_context

if TYPE_CHECKING:
    from keras import Loss

keras = load()
_MEANS = ("mean", "mean_with_sample_weight", "sum_over_batch_size")


class LossReductionWarning(UserWarning):
    """Warning that a Keras loss averages over one replica's batch, which makes the optimizer's step too large."""


def connect_losses() -> None:
    """Patches `keras.losses.Loss.__call__` to warn of a loss reduction that is wrong for several replicas."""
    replace("keras", keras.losses.Loss, "__call__", _checked(keras.losses.Loss.__call__))


def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def checked(self: Loss, *args: Any, **kwargs: Any) -> Any:
        if not in_step():  # there Keras divides the mean by the number of replicas
            _check_reduction(self)
        return call(self, *args, **kwargs)

    return checked


def _check_reduction(loss: Loss) -> None:
    """Under a gradient tape, warns once per Keras loss object whose reduction averages over one replica's batch."""
    context = get_replica_context()
    replicas = 1 if context is None else context.num_replicas_in_sync
    recorded = any(hasattr(listener, "gradient") for listener in ambient().listeners)
    if replicas == 1 or not recorded or loss.reduction not in _MEANS or vars(loss).get("_mirrored_warned"):
        return
    loss._mirrored_warned = True
    kind = type(loss).__name__
    warnings.warn(
        f"{kind}(reduction={loss.reduction!r}) under a tape in strategy.run: it averages over the examples of one "
        f"replica, and the optimizer sums the gradients of all {replicas}, so the step is {replicas} times too large "
        "(on TensorFlow, Keras divides such a loss by the number of replicas)\n"
        "  rule:   a replica's loss must be its part of the mean over the global batch\n"
        f"  remedy: add the argument reduction=None: loss_fn = keras.losses.{kind}(..., reduction=None); and write in "
        "the step loss = mirrored.losses.average_loss(loss_fn(y, prediction)), or tf.nn.compute_average_loss with "
        "global_batch_size",
        LossReductionWarning,
        stacklevel=user_stacklevel(),
    )
