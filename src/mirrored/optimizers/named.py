"""The optimizers by name: Keras' argument names and defaults over optax's rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from mirrored.errors import ArgumentError
from mirrored.optimizers import rules
from mirrored.optimizers.clipping import Clipping
from mirrored.optimizers.learning_rate import LearningRateLike
from mirrored.optimizers.optimizer import Optimizer
from mirrored.optimizers.rules import Decay
from mirrored.optimizers.update import TransformFactory, UpdateRule


class OptimizerOptions(TypedDict, total=False):
    """What every optimizer takes besides its own arguments.

    Attributes:
        name: The first part of its variables' names. Default: the class's name in small letters.
        weight_decay_mask: Which variables decay: a function from a dict by variable name to a dict of bools.
        clipnorm: The largest norm of each variable's gradient.
        global_clipnorm: The largest norm of all gradients of a call together.
        clipvalue: The largest absolute value of an element of a gradient.
    """

    name: str | None
    weight_decay_mask: Any
    clipnorm: float | None
    global_clipnorm: float | None
    clipvalue: float | None


class _Named(Optimizer):
    """An optimizer whose rule is known by name."""

    def __init__(
        self,
        factory: TransformFactory,
        learning_rate: LearningRateLike,
        settings: Mapping[str, Any],
        options: OptimizerOptions,
    ) -> None:
        _check_settings(type(self).__name__, settings)
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
            remedy=f"leave {key} out for its default",
        )


class SGD(_Named):
    """Gradient descent, with momentum if asked for.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        momentum: 0 for none.
        nesterov: Whether momentum is Nesterov's.
        weight_decay: Decoupled; None for none.
        **options: See `OptimizerOptions`.

    Example:
        >>> import mirrored as mr
        >>> v = mr.Variable([1.0, 2.0])
        >>> _ = SGD(learning_rate=0.5).apply_gradients([(v * 1.0, v)])
        >>> v.numpy().tolist()
        [0.5, 1.0]

    TensorFlow: `tf.keras.optimizers.SGD`. Momentum is kept before the learning rate is multiplied in, as in optax and
    PyTorch: the same while the rate is constant.
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
    """Gradient descent with momentum.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        momentum: How much of the last step is kept.
        nesterov: Whether momentum is Nesterov's.
        weight_decay: Decoupled; None for none.
        **options: See `OptimizerOptions`.

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
    """Adam (Kingma and Ba 2014).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        beta_1: Decay of the mean of gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of the corrected mean of squares.
        amsgrad: Whether the mean of squares never falls (Reddi et al. 2018).
        weight_decay: Decoupled; None for none.
        **options: See `OptimizerOptions`.

    TensorFlow: `tf.keras.optimizers.Adam`, which adds epsilon before the bias is corrected ("epsilon hat").
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
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        weight_decay: How much of a parameter, times the learning rate, is taken off per step.
        beta_1: Decay of the mean of gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of the corrected mean of squares.
        amsgrad: Whether the mean of squares never falls.
        **options: See `OptimizerOptions`.

    TensorFlow: `tf.keras.optimizers.AdamW`; the variables left out of the decay are named by `weight_decay_mask`.
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
    """Adagrad (Duchi et al. 2011).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        initial_accumulator_value: Where the sums of squares start.
        epsilon: Added under the root.
        weight_decay: Decoupled; None for none.
        **options: See `OptimizerOptions`.

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
    """RMSprop (Tieleman and Hinton 2012).

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        rho: Decay of the mean of squared gradients.
        momentum: Of the scaled updates; 0 for none.
        epsilon: Added under the root.
        centered: Whether the variance is taken instead of the mean square (Graves 2013).
        weight_decay: Decoupled; None for none.
        **options: See `OptimizerOptions`.

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
    """Lion (Chen et al. 2023): the sign of a momentum.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step; a third to a tenth of Adam's.
        beta_1: How much momentum is in a step.
        beta_2: How much momentum is kept.
        weight_decay: Decoupled; None for none.
        **options: See `OptimizerOptions`.

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
    """LAMB (You et al. 2020): Adam's step, scaled per variable to the norm of the parameters.

    Args:
        learning_rate: A number, a `Variable`, or a function of the step.
        beta_1: Decay of the mean of gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of the corrected mean of squares.
        weight_decay: Decoupled, and part of the trust ratio; None for none.
        **options: See `OptimizerOptions`.

    TensorFlow: `tf.keras.optimizers.Lamb`, which leaves the decay out of the trust ratio.
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
