"""`tf.train.ExponentialMovingAverage`: exponential moving averages of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from mirrored._typing import Operand
from mirrored.variables import Variable, VariableAggregation


class ExponentialMovingAverage:
    """Maintains exponential moving averages of variables; each call of `apply` updates the averages.

    An update is ``average = decay * average + (1 - decay) * variable``.

    Context: any. In replica context each `apply` counts once; values that vary over replicas are averaged first.

    Args:
        decay: The weight of the old average, in [0, 1].
        num_updates: A number, or a variable with the step count: limits the decay to
            ``(1 + num_updates) / (10 + num_updates)``, so that early averages move faster.
        zero_debias: Starts averages at zero and corrects the bias: the first average is the value itself.
        name: The last part of the names of the averages: ``w/ExponentialMovingAverage``.

    Example:
        >>> import mirrored.tf as tf
        >>> average, w = tf.train.ExponentialMovingAverage(0.75), tf.Variable(1.0)
        >>> average.apply([w])
        >>> _ = w.assign(5.0)
        >>> average.apply([w])
        >>> float(average.average(w))
        2.0

    TensorFlow: `tf.train.ExponentialMovingAverage`. `zero_debias` corrects all averages, not only those of tensors.
    """

    def __init__(
        self,
        decay: float,
        num_updates: Operand | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay, self._num_updates, self._zero_debias = decay, num_updates, zero_debias
        self._name = name
        self._averages: dict[int, tuple[Variable, Variable, Variable | None]] = {}

    @property
    def name(self) -> str:
        """The last part of the average variables' names, by default ``"ExponentialMovingAverage"``."""
        return self._name

    def apply(self, var_list: Sequence[Variable] | None = None) -> None:
        """Updates the moving average of each variable with the variable's current value.

        Args:
            var_list: Variables of floating dtype; None uses those of the last call.

        Raises:
            TypeError: A variable does not have a floating dtype.
        """
        for variable in [kept[0] for kept in self._averages.values()] if var_list is None else var_list:
            if not jnp.issubdtype(variable.dtype, jnp.floating):
                raise TypeError(f"The variables must be floating point, not {variable.dtype}: {variable.name}")
            self._move(variable)

    def _move(self, variable: Variable) -> None:
        _, average, weight = self._averages.get(id(variable)) or self._started(variable)
        keep = self._kept()
        average.assign(average * keep + variable.read_value() * (1 - keep))
        if weight is not None:
            weight.assign(weight * keep + (1 - keep))

    def _started(self, variable: Variable) -> tuple[Variable, Variable, Variable | None]:
        name = f"{variable.name.partition(':')[0]}/{self._name}"
        start = jnp.zeros(variable.shape, variable.dtype) if self._zero_debias else variable.read_value()
        # A sync-on-read variable varies over replicas: the average moves towards its mean over replicas.
        mean = VariableAggregation.MEAN
        average = Variable(start, trainable=False, name=name, aggregation=mean)
        weight = Variable(0.0, trainable=False, name=f"{name}/weight", aggregation=mean) if self._zero_debias else None
        self._averages[id(variable)] = (variable, average, weight)
        return self._averages[id(variable)]

    def _kept(self) -> Any:
        if self._num_updates is None:
            return self._decay
        steps = jnp.asarray(self._num_updates, jnp.float32)
        return jnp.minimum(self._decay, (1 + steps) / (10 + steps))

    def average(self, var: Variable) -> Any:
        """Returns the moving average of a variable; None if `apply` was never called for the variable.

        It is a variable, or a tensor with `zero_debias`.
        """
        kept = self._averages.get(id(var))
        if kept is None:
            return None
        _, average, weight = kept
        return average if weight is None else average.read_value() / weight.read_value()

    def average_name(self, var: Variable) -> str:
        """Returns the name of the variable that holds the moving average of `var`."""
        kept = self._averages.get(id(var))
        return f"{var.name.partition(':')[0]}/{self._name}" if kept is None else kept[1].name
