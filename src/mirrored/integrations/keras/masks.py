"""Keeps the masks of predictions in Keras' own training step on JAX, so that metrics ignore masked entries.

Keras attaches the mask of a prediction to the tensor. Its training step computes predictions in `jax.value_and_grad`,
which returns new arrays without the masks: on JAX, the metrics of `fit` would count masked positions, in contrast to
those of `evaluate` and to those of `fit` on TensorFlow.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax

from mirrored._blocks import setting
from mirrored._jax.traces import Tracer
from mirrored._typing import PyTree
from mirrored.integrations.keras.private import backend, masks_of_tracers
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Model

_MASK: Final = "_keras_mask"  # the attribute of a tensor where Keras stores its mask
_in_train_step: contextvars.ContextVar[bool] = contextvars.ContextVar("_in_train_step", default=False)


class _Masked(NamedTuple):
    """A prediction and its masks as one pytree, so that `jax.value_and_grad` returns the masks, too."""

    prediction: PyTree
    masks: list[Any]


def connect_masks(model_class: type[Model]) -> None:
    """Patches `keras.Model` so that the metrics of `fit` ignore masked entries of predictions.

    This applies to Keras' own training step. A step of the user's own gets predictions as Keras returns them. Programs
    that remove a mask by ``del tensor._keras_mask``, as TensorFlow's tutorials do, can do so while JAX traces, too.
    """
    replace("keras", Tracer, _MASK, property(_mask, fdel=_delete_mask))
    replace("keras", model_class, "train_step", _noting(model_class.train_step))
    replace("keras", model_class, "compute_loss_and_updates", _attaching(model_class.compute_loss_and_updates))
    replace("keras", model_class, "_update_metrics_variables", _restoring(model_class._update_metrics_variables))


def _mask(tensor: Tracer[Any]) -> Any:
    mask = masks_of_tracers().get(id(tensor))
    if mask is None:
        raise AttributeError(_MASK)
    return mask


def _delete_mask(tensor: Tracer[Any]) -> None:
    if masks_of_tracers().pop(id(tensor), None) is None:
        raise AttributeError(_MASK)


def _noting(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def noting(self: Model, *args: Any, **kwargs: Any) -> Any:
        with setting(_in_train_step, True):
            return step(self, *args, **kwargs)

    return noting


def _attaching(compute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compute)
    def attaching(self: Model, *args: Any, **kwargs: Any) -> Any:
        loss, (unscaled, prediction, *state) = compute(self, *args, **kwargs)
        masks = [backend.get_keras_mask(leaf) for leaf in jax.tree.leaves(prediction)]
        # A step of the user's own takes the prediction as Keras returns it.
        if _in_train_step.get() and any(mask is not None for mask in masks):
            prediction = _Masked(prediction, masks)
        return loss, (unscaled, prediction, *state)

    return attaching


def _restoring(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def restoring(
        self: Model, metrics_variables: Any, unscaled_loss: Any, x: Any, y: Any, y_pred: PyTree, sample_weight: Any
    ) -> Any:
        if isinstance(y_pred, _Masked):
            y_pred, masks = y_pred
            for leaf, mask in zip(jax.tree.leaves(y_pred), masks, strict=True):
                if mask is not None:
                    backend.set_keras_mask(leaf, mask)
        return update(self, metrics_variables, unscaled_loss, x, y, y_pred, sample_weight)

    return restoring
