"""Keeps what a layer's `call` adds to a metric in Keras' own step on JAX.

In `fit` and `evaluate`, Keras passes the values of metrics to the computation of the loss, but not to the call of the
model: there, `self.metric.update_state(x)` fails or has no effect. On TensorFlow it counts. So the `StatelessScope` of
the model's call gets the values of the metrics, and that of the loss begins with what the call has assigned.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mirrored._blocks import contextmanager, setting
from mirrored.integrations.keras.backend import load
from mirrored.patches import replace

if TYPE_CHECKING:
    from keras import Model, StatelessScope

keras = load()
# The values of the model's metrics in the current step, by the `id` of the variable; None in its scopes and elsewhere.
_values: contextvars.ContextVar[dict[int, Any] | None] = contextvars.ContextVar("_values", default=None)


def connect_call_metrics() -> None:
    """Patches `keras.Model` so that its own step passes the values of metrics to the call of the model."""
    compute = keras.Model.compute_loss_and_updates
    replace("keras", keras.Model, "compute_loss_and_updates", _passing_metrics(compute))


def _passing_metrics(compute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(compute)
    def passing_metrics(
        self: Model,
        trainable_variables: Sequence[Any],
        non_trainable_variables: Sequence[Any],
        metrics_variables: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        pairs = zip(self.metrics_variables, metrics_variables, strict=True)
        with setting(_values, {id(variable): value for variable, value in pairs}):
            return compute(self, trainable_variables, non_trainable_variables, metrics_variables, *args, **kwargs)

    return passing_metrics


@contextmanager
def holding_metrics(scope: StatelessScope) -> Iterator[None]:
    """Gives an entered scope of the current step the values of the metrics, and keeps those that it has at its end.

    The scopes in it, in which Keras infers shapes, get none.
    """
    values = _values.get()
    if values is None:
        yield
        return
    scope.state_mapping.update(values)
    with setting(_values, None):
        yield
    values.update((key, scope.state_mapping[key]) for key in values)
