"""`tf.compat.v1.train`: the optimizers and learning rate schedules of TensorFlow 1, in eager form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import jax
import jax.numpy as jnp
import optax

from mirrored._typing import Operand, PyTree
from mirrored.checkpoint.objects import Part
from mirrored.checkpoint.places import Attribute, Place
from mirrored.optimizers import Optimizer
from mirrored.optimizers.gradient_merge import once
from mirrored.tape import GradientTape
from mirrored.variables import Variable, VariableAggregation

Rate = Operand | Callable[[], Any]
AnyVariable: TypeAlias = Any  # a `Variable`; the stubs of `mirrored.tf` declare a subclass, also for arguments
_steps: Final[list[Variable]] = []


class OptimizerV1:
    """Base class of TensorFlow 1 optimizers, with TensorFlow's constructor arguments and update rules.

    Args:
        factory: A function from a learning rate to an optax transformation.
        learning_rate: A number, a variable, or a function without arguments.
        name: The first part of the names of the optimizer's variables.

    TensorFlow: `tf.compat.v1.train.Optimizer`. Gradients are summed over replicas.
    """

    slot_names: ClassVar[dict[str, str]] = {}
    """The names of slots in optax, by those in TensorFlow."""

    def __init__(self, factory: Callable[..., optax.GradientTransformation], learning_rate: Rate, name: str) -> None:
        rate: Any = (lambda _: learning_rate()) if callable(learning_rate) else learning_rate
        self._optimizer = Optimizer(factory, name, learning_rate=rate)

    def checkpoint_parts(self, place: Place) -> Iterator[Part]:
        """Yields the optimizer that this object wraps, for checkpoints."""
        yield Part("optimizer", self._optimizer, Attribute(place, "_optimizer"))

    def get_name(self) -> str:
        """Returns the optimizer's name."""
        return self._optimizer.name

    def get_slot_names(self) -> list[str]:
        """Returns TensorFlow's names of the optimizer's slot variables, such as ``"momentum"``."""
        return sorted(self.slot_names)

    def get_slot(self, var: AnyVariable, name: str) -> AnyVariable | None:
        """Returns the slot variable of `var` that TensorFlow calls `name`, or None if there is no such slot."""
        return self._optimizer.slots(var).get(self.slot_names.get(name, ""))

    def variables(self) -> list[Variable]:
        """Returns the optimizer's state variables, such as the number of updates so far and all slot variables."""
        return self._optimizer.variables

    def compute_gradients(
        self, loss: Callable[[], Any], var_list: Sequence[AnyVariable] | None = None, grad_loss: Operand | None = None
    ) -> list[tuple[Any, AnyVariable]]:
        """Computes the gradients of a loss, and returns a list of pairs (gradient, variable).

        Args:
            loss: A function that returns the loss.
            var_list: The variables; by default the trainable ones that `loss` reads.
            grad_loss: The gradient of the loss; 1 by default.

        Raises:
            RuntimeError: The loss is not a function.
        """
        if not callable(loss):
            raise RuntimeError(
                "`loss` passed to Optimizer.compute_gradients should be a function when eager execution is enabled."
            )
        with GradientTape() as tape:
            value = loss()
        variables = list(tape.watched_variables() if var_list is None else var_list)
        return list(zip(tape.gradient(value, variables, output_gradients=grad_loss), variables, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> None:
        """Sums the gradients of all replicas, updates the variables with the sums, and increments the global step.

        Raises:
            ValueError: There is no gradient at all.
        """
        self._optimizer.apply_gradients(grads_and_vars, name)
        if global_step is not None:
            # Once for all replicas: each would add 1 to a variable that was made outside the scope.
            once(lambda: global_step.assign_add(1, read_value=False))

    def minimize(
        self,
        loss: Callable[[], Any],
        global_step: Variable | None = None,
        var_list: Sequence[AnyVariable] | None = None,
        gate_gradients: object = None,
        aggregation_method: object = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Operand | None = None,
    ) -> None:
        """Computes the gradients of a loss, and updates the variables; see `compute_gradients`."""
        del gate_gradients, aggregation_method, colocate_gradients_with_ops
        self.apply_gradients(self.compute_gradients(loss, var_list, grad_loss), global_step, name)


class GradientDescentOptimizer(OptimizerV1):
    """Gradient descent (`tf.compat.v1.train.GradientDescentOptimizer`).

    Args:
        learning_rate: A number, a variable, or a function without arguments.
        use_locking: Accepted and ignored.
        name: The first part of the names of the optimizer's variables.
    """

    def __init__(self, learning_rate: Rate, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(optax.sgd, learning_rate, name)


class MomentumOptimizer(OptimizerV1):
    """Gradient descent with momentum (`tf.compat.v1.train.MomentumOptimizer`).

    Args:
        learning_rate: A number, a variable, or a function without arguments.
        momentum: The fraction of the last step that is kept.
        use_locking: Accepted and ignored.
        name: The first part of the names of the optimizer's variables.
        use_nesterov: Whether to use Nesterov momentum.
    """

    slot_names = {"momentum": "trace"}

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(lambda learning_rate: optax.sgd(learning_rate, momentum, use_nesterov), learning_rate, name)


class AdamOptimizer(OptimizerV1):
    """Adam (`tf.compat.v1.train.AdamOptimizer`), which adds epsilon before the bias correction.

    Args:
        learning_rate: A number, a variable, or a function without arguments.
        beta1: Decay rate of the mean of gradients.
        beta2: Decay rate of the mean of squared gradients.
        epsilon: Added to the square root of the mean of squared gradients.
        use_locking: Accepted and ignored.
        name: The first part of the names of the optimizer's variables.
    """

    slot_names = {"m": "mu", "v": "nu"}

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(
            lambda learning_rate: optax.chain(
                _scale_by_adam(beta1, beta2, epsilon), optax.scale_by_learning_rate(learning_rate)
            ),
            learning_rate,
            name,
        )


class AdagradOptimizer(OptimizerV1):
    """Adagrad (`tf.compat.v1.train.AdagradOptimizer`).

    Args:
        learning_rate: A number, a variable, or a function without arguments.
        initial_accumulator_value: The initial sums of squared gradients.
        use_locking: Accepted and ignored.
        name: The first part of the names of the optimizer's variables.
    """

    slot_names = {"accumulator": "sum_of_squares"}

    def __init__(
        self,
        learning_rate: Rate,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        super().__init__(
            lambda learning_rate: optax.adagrad(learning_rate, initial_accumulator_value, eps=0.0), learning_rate, name
        )


class RMSPropOptimizer(OptimizerV1):
    """RMSProp (`tf.compat.v1.train.RMSPropOptimizer`), whose mean of squared gradients starts at one.

    Args:
        learning_rate: A number, a variable, or a function without arguments.
        decay: Decay rate of the mean of squared gradients.
        momentum: The fraction of the last step that is kept.
        epsilon: Added under the square root.
        use_locking: Accepted and ignored.
        centered: Whether to divide by the variance instead of the mean square.
        name: The first part of the names of the optimizer's variables.
    """

    slot_names = {"mg": "mu", "momentum": "trace", "rms": "nu"}

    def __init__(
        self,
        learning_rate: Rate,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(
            lambda learning_rate: optax.rmsprop(
                learning_rate, decay, epsilon, initial_scale=1.0, centered=centered, momentum=momentum or None
            ),
            learning_rate,
            name,
        )


class AdadeltaOptimizer(OptimizerV1):
    """Adadelta (`tf.compat.v1.train.AdadeltaOptimizer`).

    Args:
        learning_rate: A number, a variable, or a function without arguments.
        rho: Decay rate of the means of squared gradients and updates.
        epsilon: Added under the square roots.
        use_locking: Accepted and ignored.
        name: The first part of the names of the optimizer's variables.
    """

    slot_names = {"accum": "e_g", "accum_update": "e_x"}

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(lambda learning_rate: optax.adadelta(learning_rate, rho, epsilon), learning_rate, name)


def _scale_by_adam(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Returns `optax.scale_by_adam`, but with epsilon added before the bias correction, as in TensorFlow 1."""
    base = optax.scale_by_adam(beta1, beta2)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        _, new = base.update(updates, state, params)
        count = new.count.astype(jnp.float32)
        rate = jnp.sqrt(1 - beta2**count) / (1 - beta1**count)
        return jax.tree.map(lambda mu, nu: rate * mu / (jnp.sqrt(nu) + epsilon), new.mu, new.nu), new

    return optax.GradientTransformation(base.init, update)


# The global step, and learning rates that follow it.


def get_or_create_global_step(graph: object = None) -> Variable:
    """Returns the program's global step, a variable that counts training steps; creates it in the first call.

    TensorFlow: `tf.compat.v1.train.get_or_create_global_step`.
    """
    del graph
    if not _steps:
        _steps.append(
            Variable(0, trainable=False, name="global_step", aggregation=VariableAggregation.ONLY_FIRST_REPLICA)
        )
    return _steps[0]


def get_global_step(graph: object = None) -> Variable | None:
    """Returns the variable that counts training steps; None if `get_or_create_global_step` was not called."""
    del graph
    return _steps[0] if _steps else None


def _following(schedule: Callable[[Any], Any], step: Operand) -> Callable[[], jax.Array]:
    return lambda: jnp.asarray(schedule(jnp.asarray(step)), jnp.float32)


def exponential_decay(
    learning_rate: float,
    global_step: Operand,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    name: str | None = None,
) -> Callable[[], jax.Array]:
    """Returns a function that computes the exponentially decayed learning rate at the current global step."""
    del name
    return _following(optax.exponential_decay(learning_rate, decay_steps, decay_rate, staircase=staircase), global_step)


def cosine_decay(
    learning_rate: float, global_step: Operand, decay_steps: int, alpha: float = 0.0, name: str | None = None
) -> Callable[[], jax.Array]:
    """Returns a function that computes the learning rate with cosine decay at the current global step."""
    del name
    return _following(optax.cosine_decay_schedule(learning_rate, decay_steps, alpha), global_step)


def piecewise_constant(
    x: Operand, boundaries: Sequence[float], values: Sequence[float], name: str | None = None
) -> Callable[[], jax.Array]:
    """Returns a function that computes the piecewise constant learning rate at the current global step.

    Raises:
        ValueError: There is not one more value than boundaries.
    """
    del name
    if len(values) != len(boundaries) + 1:
        raise ValueError("The length of boundaries should be 1 less than the length of values")
    rates = jnp.asarray(values, jnp.float32)
    return _following(lambda step: rates[jnp.sum(step > jnp.asarray(boundaries))], x)


def polynomial_decay(
    learning_rate: float,
    global_step: Operand,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Callable[[], jax.Array]:
    """Returns a function that computes the learning rate with polynomial decay at the current global step.

    With ``cycle=True``, the number of steps grows by `decay_steps` each time that the step exceeds it.
    """
    del name

    def rate(step: jax.Array) -> jax.Array:
        steps = jnp.asarray(decay_steps, jnp.float32)
        if cycle:
            steps = steps * jnp.maximum(1.0, jnp.ceil(step / steps))
        part = jnp.minimum(step, steps) / steps
        return (learning_rate - end_learning_rate) * (1 - part) ** power + end_learning_rate

    return _following(rate, global_step)


def natural_exp_decay(
    learning_rate: float,
    global_step: Operand,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    name: str | None = None,
) -> Callable[[], jax.Array]:
    """Returns a function that computes ``learning_rate * exp(-decay_rate * step / decay_steps)``."""
    del name

    def rate(step: jax.Array) -> jax.Array:
        part = step / decay_steps
        return learning_rate * jnp.exp(-decay_rate * (jnp.floor(part) if staircase else part))

    return _following(rate, global_step)


def inverse_time_decay(
    learning_rate: float,
    global_step: Operand,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    name: str | None = None,
) -> Callable[[], jax.Array]:
    """Returns a function that computes ``learning_rate / (1 + decay_rate * step / decay_steps)``."""
    del name

    def rate(step: jax.Array) -> jax.Array:
        part = step / decay_steps
        return learning_rate / (1 + decay_rate * (jnp.floor(part) if staircase else part))

    return _following(rate, global_step)


NAMES: Final[dict[str, Any]] = {
    "compat.v1.train.Optimizer": OptimizerV1,
    "compat.v1.train.piecewise_constant_decay": piecewise_constant,
    **{
        f"compat.v1.train.{one.__name__}": one
        for one in (
            AdadeltaOptimizer, AdagradOptimizer, AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer,
            RMSPropOptimizer, cosine_decay, exponential_decay, get_global_step, get_or_create_global_step,
            inverse_time_decay, natural_exp_decay, piecewise_constant, polynomial_decay,
        )
    },
}  # fmt: skip
