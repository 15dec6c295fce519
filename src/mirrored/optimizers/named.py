"""Optimizers by name (`SGD`, `Adam`, ...), with Keras' argument names and optax's update rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from mirrored.errors import ArgumentError
from mirrored.optimizers import rules
from mirrored.optimizers.optimizer import Optimizer
from mirrored.optimizers.rules import Clipping, Decay, LearningRateLike, TransformFactory
from mirrored.optimizers.slots import UpdateRule


class OptimizerOptions(TypedDict, total=False):
    """Keyword options that every named optimizer (`SGD`, `Adam`, ...) accepts, such as clipping.

    Attributes:
        name: The first part of the names of the optimizer's variables. Default: the class name in lower case.
        weight_decay_mask: Which variables decay: a function from a dict keyed by variable name to a dict of bools.
        clipnorm: Upper bound on the norm of each variable's gradient.
        global_clipnorm: Upper bound on the global norm of all gradients of a call.
        clipvalue: Upper bound on the absolute value of each element of a gradient.
    """

    name: str | None
    weight_decay_mask: Any
    clipnorm: float | None
    global_clipnorm: float | None
    clipvalue: float | None


class _Named(Optimizer):
    """Base class of the optimizers with a built-in update rule, such as `SGD` and `Adam`."""

    def __init__(
        self,
        factory: TransformFactory,
        learning_rate: LearningRateLike,
        settings: Mapping[str, Any],
        options: OptimizerOptions,
    ) -> None:
        _check_settings(type(self).__name__, settings)
        if learning_rate is None:
            raise ArgumentError(
                type(self).__name__,
                found="learning_rate=None",
                rule="a learning rate must be a finite, nonnegative number or a function of the step",
                remedy="omit learning_rate to use its default",
            )
        bounds: dict[str, Any] = {key: options.get(key) for key in ("clipnorm", "global_clipnorm", "clipvalue")}
        unknown = set(options) - set(OptimizerOptions.__annotations__)
        if unknown:
            raise TypeError(f"{type(self).__name__}() got unexpected keyword arguments: {', '.join(sorted(unknown))}")
        shown = {key: value for key, value in {**settings, **bounds}.items() if value not in (None, False)}
        name = options.get("name") or type(self).__name__.lower()
        self._set_up(UpdateRule(factory, Clipping(**bounds)), learning_rate, name, shown)


def _check_settings(called: str, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        below_one = key in ("beta_1", "beta_2", "rho", "momentum")
        if value is None or isinstance(value, bool) or (value >= 0 and (value < 1 or not below_one)):
            continue
        raise ArgumentError(
            called,
            found=f"{key}={value!r}",
            rule=f"{key} is at least 0" + (" and below 1" if below_one else ""),
            remedy=f"omit {key} to use its default",
        )


class SGD(_Named):
    """The optimizer for stochastic gradient descent, with optional momentum.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        momentum: Momentum coefficient; 0 disables momentum.
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Decoupled weight decay; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = SGD(learning_rate=0.5).apply_gradients([(v * 1.0, v)])
        >>> v.numpy().tolist()
        [0.5, 1.0]

    TensorFlow: `tf.keras.optimizers.SGD`. The momentum buffer accumulates gradients before they are scaled by the
    learning rate, as in optax and PyTorch. The results are the same while the learning rate is constant.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        factory = rules.sgd(momentum, nesterov, Decay(weight_decay, options.get("weight_decay_mask")))
        super().__init__(factory, learning_rate, settings, options)


class Momentum(_Named):
    """The optimizer for stochastic gradient descent with momentum.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        momentum: Momentum coefficient: the fraction of the last step that is kept.
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Decoupled weight decay; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = Momentum(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [0. 0.]

    TensorFlow: `tf.compat.v1.train.MomentumOptimizer`, or `tf.keras.optimizers.SGD` with momentum.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.01,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        factory = rules.sgd(momentum, nesterov, Decay(weight_decay, options.get("weight_decay_mask")))
        super().__init__(factory, learning_rate, settings, options)


class Adam(_Named):
    """The Adam optimizer (Kingma and Ba 2014).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        beta_1: Decay rate of the first moment (the mean of gradients).
        beta_2: Decay rate of the second moment (the mean of squared gradients).
        epsilon: Added to the square root of the bias-corrected second moment.
        amsgrad: Whether to use AMSGrad, in which the second moment never decreases (Reddi et al. 2018).
        weight_decay: Decoupled weight decay; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = Adam(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [0.5 1.5]

    TensorFlow: `tf.keras.optimizers.Adam`, which adds epsilon before the bias correction ("epsilon hat").
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "amsgrad": amsgrad}
        decay = Decay(weight_decay, options.get("weight_decay_mask"))
        factory = rules.adam(beta_1, beta_2, epsilon, amsgrad, decay)
        super().__init__(factory, learning_rate, {**settings, "weight_decay": weight_decay}, options)


class AdamW(_Named):
    """The AdamW optimizer: Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        weight_decay: Decoupled weight decay: each step subtracts this fraction of a parameter times the learning rate.
        beta_1: Decay rate of the first moment (the mean of gradients).
        beta_2: Decay rate of the second moment (the mean of squared gradients).
        epsilon: Added to the square root of the bias-corrected second moment.
        amsgrad: Whether to use AMSGrad, in which the second moment never decreases.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = AdamW(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [0.498 1.496]

    TensorFlow: `tf.keras.optimizers.AdamW`; here `weight_decay_mask` selects the variables that decay.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"weight_decay": weight_decay, "beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon}
        decay = Decay(weight_decay, options.get("weight_decay_mask"))
        factory = rules.adam(beta_1, beta_2, epsilon, amsgrad, decay)
        super().__init__(factory, learning_rate, {**settings, "amsgrad": amsgrad}, options)


class Adagrad(_Named):
    """The Adagrad optimizer (Duchi et al. 2011).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        initial_accumulator_value: Initial value of the sums of squared gradients.
        epsilon: Added under the square root.
        weight_decay: Decoupled weight decay; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = Adagrad(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [0.506 1.502]

    TensorFlow: `tf.keras.optimizers.Adagrad`.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"initial_accumulator_value": initial_accumulator_value, "epsilon": epsilon}
        decay = Decay(weight_decay, options.get("weight_decay_mask"))
        factory = rules.adagrad(initial_accumulator_value, epsilon, decay)
        super().__init__(factory, learning_rate, {**settings, "weight_decay": weight_decay}, options)


class RMSprop(_Named):
    """The RMSprop optimizer (Tieleman and Hinton 2012).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        rho: Decay rate of the mean of squared gradients.
        momentum: Momentum coefficient of the scaled updates; 0 disables momentum.
        epsilon: Added under the square root.
        centered: Whether to divide by the variance instead of the mean square (Graves 2013).
        weight_decay: Decoupled weight decay; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = RMSprop(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [-0.581  0.419]

    TensorFlow: `tf.keras.optimizers.RMSprop`.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"rho": rho, "momentum": momentum, "epsilon": epsilon, "centered": centered}
        decay = Decay(weight_decay, options.get("weight_decay_mask"))
        factory = rules.rmsprop(rho, momentum, epsilon, centered, decay)
        super().__init__(factory, learning_rate, {**settings, "weight_decay": weight_decay}, options)


class Lion(_Named):
    """The Lion optimizer (Chen et al. 2023), which steps by the sign of a momentum.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step. Typically a third to a tenth of Adam's.
        beta_1: Weight of the momentum in a step.
        beta_2: Decay rate of the momentum.
        weight_decay: Decoupled weight decay; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = Lion(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [0.5 1.5]

    TensorFlow: `tf.keras.optimizers.Lion`.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"beta_1": beta_1, "beta_2": beta_2, "weight_decay": weight_decay}
        factory = rules.lion(beta_1, beta_2, Decay(weight_decay, options.get("weight_decay_mask")))
        super().__init__(factory, learning_rate, settings, options)


class Lamb(_Named):
    """The LAMB optimizer (You et al. 2020): Adam's step, scaled per variable by a trust ratio.

    The trust ratio is the norm of the parameter over the norm of the update.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        beta_1: Decay rate of the first moment (the mean of gradients).
        beta_2: Decay rate of the second moment (the mean of squared gradients).
        epsilon: Added to the square root of the bias-corrected second moment.
        weight_decay: Decoupled weight decay, included in the trust ratio; None disables it.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = Lamb(learning_rate=0.5).apply_gradients([(2 * v, v)])
        >>> print(v.numpy().round(3))
        [0.209 1.209]

    TensorFlow: `tf.keras.optimizers.Lamb`, which excludes the decay from the trust ratio.
    """

    def __init__(
        self,
        learning_rate: LearningRateLike = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        settings = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "weight_decay": weight_decay}
        factory = rules.lamb(beta_1, beta_2, epsilon, Decay(weight_decay, options.get("weight_decay_mask")))
        super().__init__(factory, learning_rate, settings, options)
