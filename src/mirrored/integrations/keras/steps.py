"""Runs a model's overridden ``train_step(self, data)``, as written for TensorFlow, in `fit` on several replicas.

Keras' own step on JAX is a pure function of (state, data). A TensorFlow-style step takes only the data, records the
loss with a tape, and assigns variables. Here such a step is a replica function: `fit` passes it to `strategy.run`, as
Keras does on TensorFlow, in one compiled function that reads and assigns the variables themselves. The step can
therefore use any variables: those of several optimizers, of metrics, and plain `mirrored` variables.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._blocks import setting
from mirrored._jax import distributed
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.trees import tree_map
from mirrored._typing import PyTree
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.compilation import function as compiled
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.batches import as_dense
from mirrored.integrations.keras.belonging import strategy_of
from mirrored.integrations.keras.conversion import conversion_of_calls
from mirrored.integrations.keras.logs import noted_results
from mirrored.integrations.keras.loops import placement_for, step_builds
from mirrored.integrations.keras.newest import GROUPS
from mirrored.integrations.keras.private import (
    assigns_weights,
    compute_total_loss,
    has_training_argument,
    loss_tracker_of,
    losses_module,
)
from mirrored.integrations.keras.untracked import within_step_of_keras
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.strategies import get_replica_context, get_strategy
from mirrored.strategies.context import total_count
from mirrored.tape import GradientTape
from mirrored.values.distributed_values import DistributedValues

if TYPE_CHECKING:
    from keras import Layer, Model

    from mirrored.strategies import Strategy

keras = load()
_MEAN: Final = "sum_over_batch_size"
# An attribute of a model: whether its current loop reads a dataset whose elements are not tuples.
BARE_ELEMENTS: Final = "_mirrored_bare_elements"
KINDS: Final = ("train", "test", "predict")
_share: contextvars.ContextVar[_Share | None] = contextvars.ContextVar("_share", default=None)


class _Share(NamedTuple):
    """The number of examples in one replica's batch, and in the batches of all replicas, in a step."""

    local: int
    total: float

    @property
    def is_whole(self) -> bool:
        return self.local == self.total


def takes_data_alone(model: Model, kind: str) -> bool:
    """Returns whether a model's step takes only the batch, instead of (state, batch) as in Keras on JAX.

    That is the case if the user has overridden the step with TensorFlow's signature, and in two cases that replace
    Keras' own step. In a deterministic elastic job, the number of devices changes, on which the bits of Keras' step
    depend. If the model has a `SpectralNormalization`, which assigns trainable weights, Keras' step would drop them.

    Args:
        model: The model.
        kind: ``"train"``, ``"test"`` or ``"predict"``.
    """
    name = f"{kind}_step"
    if getattr(type(model), name) is getattr(keras.Model, name):
        if kind == "train" and assigns_weights(model):
            return True
        return distributed.is_elastic() and getattr(strategy_of(model), "deterministic", False)
    try:
        inspect.signature(getattr(model, name)).bind(None, None)
    except TypeError:
        return True
    return False


def kind_of_state(which: dict[str, bool]) -> str:
    """Returns the kind of the Keras loop that requests the given state: ``"train"``, ``"test"`` or ``"predict"``."""
    if which.get("optimizer_variables"):
        return "train"
    return "test" if which.get("metrics_variables") else "predict"


def stateless(get_state: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._get_jax_state` to return no values if the model's step takes only the batch.

    Such a step, as in TensorFlow's ``train_step(self, data)``, reads and assigns the variables itself. The returned
    lists are empty.
    """

    @functools.wraps(get_state)
    def getting(self: Model, **which: bool) -> Any:
        if takes_data_alone(self, kind_of_state(which)):
            return tuple([] for group in GROUPS if which.get(group))
        return get_state(self, **which)

    return getting


def building_with_call(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `Trainer._symbolic_build` to skip a model with ``train_step(self, data)`` but without a `call` method.

    The step of such a model calls the layers itself.

    Keras on TensorFlow builds such layers when it traces the step.
    """

    @functools.wraps(build)
    def building(self: Model, *args: Any, **kwargs: Any) -> Any:
        return None if step_builds(self, takes_data_alone(self, "train")) else build(self, *args, **kwargs)

    return building


def make_step_function(model: Model, kind: str) -> Callable[..., Any]:
    """Returns a function that runs the next steps of a Keras model with batches from an iterator.

    The signature is ``(state, batch iterator) -> (outputs, state)``. One call runs `model.steps_per_execution` steps,
    or fewer at the end of the data.

    Args:
        model: A model with a TensorFlow-style step.
        kind: The kind of step.
    """
    strategy = strategy_of(model) or get_strategy()
    step = _step_of(model, kind, strategy)
    place = placement_for(strategy.device_assignment)

    def steps(state: PyTree, iterator: Iterator[Any]) -> Any:
        outputs = [step(place(_data_of(model, next(iterator))))]
        for _ in range(model.steps_per_execution - 1):
            batch = next(iterator, None)
            if batch is None:
                break
            outputs.append(step(place(_data_of(model, batch))))
        # The step has assigned the variables. If a callback has frozen a layer, Keras passes the state before the step,
        # which must not be assigned.
        state = tuple([] for _ in state)
        if kind != "predict":
            return outputs[-1], state
        return tree_map(lambda *parts: np.concatenate(parts), *outputs), state

    steps.takes_data_alone = True  # type: ignore[attr-defined]
    return steps


def _data_of(model: Model, batch: PyTree) -> PyTree:
    """Returns a batch as TensorFlow passes it to a step: dense, and without Keras' tuple around a single element."""
    if isinstance(batch, tuple) and len(batch) == 1 and vars(model).get(BARE_ELEMENTS):
        batch = batch[0]
    # Not JAX's trees, for which a sparse array is a structure of its parts.
    return keras.tree.map_structure(lambda leaf: None if leaf is None else as_dense(leaf), batch)


def _step_of(model: Model, kind: str, strategy: Strategy) -> Callable[..., Any]:
    method = getattr(model, f"{kind}_step")
    convert = conversion_of_calls()
    called = method if convert is None else convert(method)

    def replica_step(batch: PyTree) -> Any:
        with setting(_share, _share_of(batch)):
            return called(batch)

    def run(batch: PyTree) -> Any:
        with noted_results(model) as noted:
            return noted.aggregated(strategy.run(noted.watching(replica_step), args=(batch,)))

    step = run if model.run_eagerly else compiled(run)
    combine = functools.partial(_concatenated if kind == "predict" else _mean, strategy)
    return lambda batch: tree_map(combine, step(batch), is_leaf=_is_per_replica)


def _is_per_replica(value: object) -> bool:
    return isinstance(value, DistributedValues)


def _mean(strategy: Strategy, value: Any) -> Any:
    return strategy.reduce(ReduceOp.MEAN, value, axis=None) if _is_per_replica(value) else value


def _concatenated(strategy: Strategy, value: Any) -> Any:
    return np.asarray(strategy.gather(value, axis=0) if _is_per_replica(value) else value)


# Scales the losses of one replica. On TensorFlow, Keras divides the means of losses by the number of replicas, because
# the optimizer sums their gradients. Here it multiplies them by the replica's share of the examples, which is the same
# for even batches; for uneven ones the sum is the mean over the global batch, as on one device.


def in_step() -> bool:
    """Returns whether an overridden ``train_step(self, data)`` is running.

    Keras then scales the loss of each replica; the scaled losses of all replicas sum to the mean over the global batch.
    """
    return _share.get() is not None


def _share_of(batch: PyTree) -> _Share:
    context = get_replica_context()
    assert context is not None
    sizes = (leaf.shape[0] for leaf in jax.tree.leaves(batch) if getattr(leaf, "shape", ()))
    local = next(sizes, 1)
    return _Share(
        local, float(total_count("Model.train_step", local, context)) if context.num_replicas_in_sync > 1 else local
    )


def _scale(value: Any) -> Any:
    share = _share.get()
    if share is None or share.is_whole:
        return value
    # Without examples, the mean of a layer's `add_loss` is NaN. `where` gives 0 with a gradient of 0. The optimizer of
    # this replica would refuse to update without gradients.
    return value * (share.local / share.total) if share.local else jnp.where(False, value, jnp.zeros_like(value))


def _unscale(value: Any) -> Any:
    share = _share.get()
    return value if share is None or share.is_whole else value * (share.total / max(share.local, 1))


def _by_weights(reduce_weighted_values: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' weighted loss reduction so that a weighted mean divides by the weights of all replicas.

    Keras divides by the sum of the replica's own weights or mask, and `_scale` multiplies by its share of the examples.
    """

    @functools.wraps(reduce_weighted_values)
    def by_weights(
        values: Any, sample_weight: Any = None, mask: Any = None, reduction: str = _MEAN, dtype: Any = None
    ) -> Any:
        loss = reduce_weighted_values(values, sample_weight, mask, reduction, dtype)
        share = _share.get()
        weighted = reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None)
        if share is None or not (weighted or (mask is not None and reduction in (_MEAN, "mean"))):
            return loss
        context = get_replica_context()
        assert context is not None
        if context.num_replicas_in_sync == 1:  # not `share.is_whole`: replicas without examples take part, too
            return loss
        weights = losses_module.apply_mask(sample_weight, mask, "float32", reduction) if weighted else mask
        own = jax.lax.stop_gradient(jnp.sum(jnp.asarray(weights, "float32")))
        factor = own * share.total / jnp.maximum(total_count("Loss.__call__", own, context) * share.local, 1e-12)
        return loss * factor.astype(loss.dtype)

    return by_weights


def _reducing(reduce_values: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' reduction of losses, so that the loss of a replica without examples is a scalar 0.

    Keras takes a dimension of size 0 for one that is not known yet, and returns the losses as they are. In TensorFlow
    the number of examples is known only when the step runs, so the loss of an empty replica is 0 there.
    """

    @functools.wraps(reduce_values)
    def reducing(values: Any, sample_weight: Any = None, reduction: str | None = "sum_over_batch_size") -> Any:
        if ambient().replica is None or reduction in (None, "none") or tuple(values.shape) not in ((), (0,)):
            return reduce_values(values, sample_weight, reduction)
        if tuple(values.shape) == (0,):
            return keras.ops.sum(values)
        loss = reduce_values(values, sample_weight, reduction)
        # Keras returns a loss function's scalar as it is, and so does not scale it.
        return loss if reduction == "sum" else _scale(loss)

    return reducing


def _losses_of(layer: Layer) -> list[Any]:
    """Returns the list of losses that a layer has added (`Layer.add_loss`) in its last call by the calling replica.

    Keras has one list per layer, and clears it at each call of the model. The replicas of a run take turns at merges,
    so a replica would read the losses of another one.
    """
    context = get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return vars(layer).setdefault("_losses", [])  # type: ignore[no-any-return]
    return vars(layer).setdefault("_mirrored_losses", {}).setdefault(context.local_index, [])  # type: ignore[no-any-return]


def _set_losses(layer: Layer, losses: list[Any]) -> None:
    vars(layer)["_losses"] = losses


def connect_steps(model_class: type[Model]) -> None:
    """Patches Keras so that an overridden `train_step` scales its loss for several replicas and can call `super()`.

    The scale is the replica's share of the global batch.

    Does the same for `test_step` and `predict_step`.
    """
    replace("keras", losses_module, "reduce_weighted_values", _by_weights(losses_module.reduce_weighted_values))
    replace("keras", losses_module, "reduce_values", _reducing(losses_module.reduce_values))
    replace("keras", losses_module, "scale_loss_for_distribution", _scale)
    replace("keras", losses_module, "unscale_loss_for_distribution", _unscale)
    replace("keras", keras.Layer, "_losses", property(_losses_of, _set_losses))
    additional = model_class._aggregate_additional_loss
    replace("keras", model_class, "_aggregate_additional_loss", lambda self, loss: _scale(additional(self, loss)))
    for name, ours in (("train_step", _train_step), ("test_step", _test_step), ("predict_step", _predict_step)):
        replace("keras", model_class, name, _inherited(getattr(model_class, name), ours))


def _inherited(step: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def inherited(self: Model, *args: Any, **kwargs: Any) -> Any:
        alone = len(args) + len(kwargs) == 1
        if alone and in_step():
            return ours(self, *args, **kwargs)
        with within_step_of_keras():
            return step(self, *args, **kwargs)

    return inherited


def _forward(model: Model, data: PyTree, *, training: bool) -> tuple[Any, ...]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    prediction = model(x, training=training) if has_training_argument(model) else model(x)
    loss = compute_total_loss(model, x, y, prediction, sample_weight, training=training)
    size = next(leaf for leaf in jax.tree.leaves(x) if leaf is not None).shape[0]
    loss_tracker_of(model).update_state(_unscale(loss), sample_weight=size)
    return x, y, prediction, sample_weight, loss


def _train_step(model: Model, data: PyTree) -> Any:
    with GradientTape() as tape:
        x, y, prediction, sample_weight, loss = _forward(model, data, training=True)
        loss = model.optimizer.scale_loss(loss)
    weights = model.trainable_weights
    if weights:
        model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    else:  # as Keras on TensorFlow
        warnings.warn(
            "keras.Model.train_step: The model does not have any trainable weights.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
    return model.compute_metrics(x, y, prediction, sample_weight)


def _test_step(model: Model, data: PyTree) -> Any:
    x, y, prediction, sample_weight, _ = _forward(model, data, training=False)
    return model.compute_metrics(x, y, prediction, sample_weight)


def _predict_step(model: Model, data: PyTree) -> Any:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return model(x, training=False) if has_training_argument(model) else model(x)
