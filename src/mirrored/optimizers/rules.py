"""Update rules of the named optimizers as optax transformations, learning rates, and gradient clipping."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from mirrored._jax.promotion import at_least_float32
from mirrored._jax.traces import Tracer
from mirrored._typing import Operand
from mirrored.collectives.summation import widen
from mirrored.errors import ArgumentError, ArgumentTypeError
from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable

if TYPE_CHECKING:
    from mirrored.optimizers.optimizer import Optimizer

# The learning rate: a number that can change at any time, or a schedule over steps.

Schedule = Callable[[Any], Any]
LearningRateLike = float | jax.Array | Variable | Schedule
TransformFactory = Callable[[Any], optax.GradientTransformation]
"""A function from a learning rate (None for a transformation that contains its own) to the optax transformation."""


class LearningRate:
    """The learning rate of an optimizer: a number, which can be changed, or a function of the step.

    A number is stored in a variable. A compiled step reads the variable as state, so a change takes effect without
    retracing. The variable is created together with the optimizer's other state, under the strategy that trains.

    Args:
        given: A number, a variable, or a function of the step (an optax schedule).
        name: The variable's name.

    Attributes:
        number: The learning rate before the variable is created.
        is_assigned: Whether the program or a restored checkpoint has changed `number`.
    """

    def __init__(self, given: LearningRateLike, name: str) -> None:
        self._name = name
        self.number = 0.0
        self.is_assigned = False
        self._variable: Variable | None = None
        self._schedule: Schedule | None = None
        if isinstance(given, Variable):
            self._variable = given
        elif callable(given):
            self._schedule = given
        else:
            self.number = _checked_number(given)

    @property
    def is_schedule(self) -> bool:
        """Whether the learning rate is a function of the step instead of a number."""
        return self._schedule is not None

    @property
    def schedule(self) -> Schedule | None:
        """The learning rate as a function of the step; None for a constant learning rate."""
        return self._schedule

    @property
    def is_unbuilt(self) -> bool:
        """Whether the learning rate is a number whose variable is not created yet."""
        return self._variable is None and self._schedule is None

    @property
    def variables(self) -> list[Variable]:
        """The variable of a constant learning rate, as a list; empty before its creation and for a schedule."""
        return [] if self._variable is None else [self._variable]

    def build(self) -> None:
        """Creates the variable that holds the learning rate, unless the learning rate is a schedule."""
        if self.is_unbuilt:
            self._variable = Variable(np.asarray(self.number, jnp.result_type(float)), trainable=False, name=self._name)
            self._variable.internal = True

    def at(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate at a step: the constant number, or the schedule's value."""
        rate = self._schedule(step) if self._schedule is not None else self._held()
        return jnp.asarray(rate).astype(jnp.result_type(float))

    def _held(self) -> Any:
        return self.number if self._variable is None else self._variable.read_value()

    def change(self, value: Operand) -> None:
        """Sets the learning rate to a new constant number.

        Raises:
            ArgumentError: The learning rate is a schedule, or `value` is not a number.
        """
        if self._schedule is not None:
            raise ArgumentError(
                "Optimizer.learning_rate",
                found="the optimizer was created with a schedule",
                rule="a schedule determines the learning rate at every step, so it cannot be assigned",
                remedy="create the optimizer with a number, which can be assigned, or let the schedule read a Variable",
            )
        if isinstance(value, Variable):
            value = value.read_value()
        if callable(value):
            raise ArgumentError(
                "Optimizer.learning_rate",
                found=f"the function {getattr(value, '__name__', type(value).__name__)} was assigned",
                rule="only a number can be assigned: an optimizer that was created with a number has no schedule",
                remedy="create the optimizer with the schedule, or assign schedule(step) before each step",
            )
        number = None if isinstance(value, Tracer) else _checked_number(value)
        store = ambient().store
        # In a trace, a number that is only kept in Python would change once, and not at every call of the program.
        if self._variable is None and (number is None or (store is not None and store.captures)):
            self.build()
        if self._variable is not None:
            self._variable.assign(value)
        else:
            assert number is not None
            self.number, self.is_assigned = number, True

    def __repr__(self) -> str:
        if self._schedule is not None:
            return getattr(self._schedule, "__name__", type(self._schedule).__name__)
        return repr(self.number) if self._variable is None else f"<{self._variable.name}>"


def _checked_number(value: Operand) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes)) or np.ndim(value) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ArgumentError(
            "Optimizer.learning_rate",
            found=f"learning_rate={value!r}",
            rule="a learning rate must be a finite, nonnegative number or a function of the step",
            remedy="write learning_rate=0.001, or an optax schedule such as optax.cosine_decay_schedule(0.1, 1000)",
        )
    return number


# Gradient clipping. In replica context it acts on the all-reduced gradient, not on each replica's own.

Gradients = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Clipping:
    """The gradient clipping of an optimizer: by norm, by global norm, by value, or none.

    Attributes:
        clipnorm: Upper bound on the norm of each variable's gradient.
        global_clipnorm: Upper bound on the global norm of all gradients of one `apply_gradients` call.
        clipvalue: Upper bound on the absolute value of each element.
    """

    clipnorm: float | None = None
    global_clipnorm: float | None = None
    clipvalue: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        for name, value in given.items():
            if not (math.isfinite(value) and value > 0):
                raise ArgumentError(
                    "Optimizer",
                    found=f"{name}={value!r}",
                    rule="a clipping bound must be a finite number greater than 0",
                    remedy=f"omit {name}= to disable clipping",
                )
        if len(given) > 1:
            raise ArgumentError(
                "Optimizer",
                found=" and ".join(f"{name}={value!r}" for name, value in given.items()),
                rule="an optimizer can apply at most one kind of clipping",
                remedy="pass one of clipnorm, global_clipnorm, clipvalue; chain optax's transforms to combine them",
            )

    def apply(self, gradients: Gradients) -> Gradients:
        """Returns the gradients, clipped as this object specifies, with unchanged shapes and dtypes."""
        if self.clipvalue is not None:
            _refuse_complex(gradients)
            return _transformed(optax.clip(self.clipvalue), gradients)
        if self.global_clipnorm is not None:
            return _transformed(optax.clip_by_global_norm(self.global_clipnorm), gradients)
        if self.clipnorm is not None:
            return {name: _clip_norm(gradient, self.clipnorm) for name, gradient in gradients.items()}
        return gradients


def _refuse_complex(gradients: Gradients) -> None:
    for name, gradient in gradients.items():
        if jnp.issubdtype(gradient.dtype, jnp.complexfloating):
            raise ArgumentError(
                "Optimizer.apply_gradients",
                found=f"clipvalue, and a gradient of dtype {gradient.dtype} for variable {name!r}",
                rule="complex numbers have no order, so they cannot be clipped by value",
                remedy="clip by norm: clipnorm= or global_clipnorm=",
            )


def _transformed(transform: optax.GradientTransformation, gradients: Gradients) -> Gradients:
    wide = {name: widen(gradient) for name, gradient in gradients.items()}
    clipped = transform.update(wide, transform.init(wide))[0]
    return {name: clipped[name].astype(gradient.dtype) for name, gradient in gradients.items()}


def _clip_norm(gradient: jax.Array, bound: float) -> jax.Array:
    wide = widen(gradient)  # The squares of float16 overflow from 256 on.
    norm = jnp.linalg.norm(jnp.ravel(wide))
    return jnp.where(norm <= bound, wide, wide / norm.astype(wide.dtype) * bound).astype(gradient.dtype)


# Update rules of the named optimizers, as functions from a learning rate to an optax transform.
#
# Each is optax's own alias with one change. The learning rate is a value of the step (a variable or a schedule), so it
# can be an array. The product with the update is computed in float32 or wider and rounded to the update's dtype, as if
# the learning rate were a Python number.


@dataclasses.dataclass(frozen=True)
class Decay:
    """Decoupled weight decay (Loshchilov and Hutter 2019), an option of optimizers such as AdamW.

    A step scales parameters by ``1 - learning_rate * rate``.

    Attributes:
        rate: The weight decay; None disables it.
        mask: Which parameters decay: a function from a dict keyed by variable name to a dict of bools, or such a dict.
    """

    rate: float | None = None
    mask: Any = None

    def transforms(self, scale: float | jax.Array = 1.0) -> list[optax.GradientTransformation]:
        """Returns ``[optax.add_decayed_weights(rate * scale, mask)]``, or an empty list if decay is disabled."""
        if self.rate is None:
            return []
        return [optax.add_decayed_weights(self.rate * scale, None if self.mask is None else self._mask_of)]

    def _mask_of(self, parameters: Mapping[str, Any]) -> Any:
        mask = self.mask(parameters) if callable(self.mask) else self.mask
        if not isinstance(mask, Mapping):
            return mask
        missing = [name for name in parameters if name not in mask]
        if missing:
            raise ArgumentError(
                "Optimizer.apply_gradients",
                found=f"weight_decay_mask has no entry for {', '.join(map(repr, missing))}",
                rule="the mask says of every variable whether it decays",
                remedy=f"add the entry, for instance {{{missing[0]!r}: False}}; or pass a function from the dict of "
                "parameters to a dict of bools",
            )
        return {name: mask[name] for name in parameters}


def scale_by_rate(learning_rate: float | jax.Array) -> optax.GradientTransformation:
    """Returns the optax transformation that multiplies updates by ``-learning_rate``."""

    def scale(update: jax.Array) -> jax.Array:
        wide = at_least_float32(update.dtype)
        return (update.astype(wide) * -jnp.asarray(learning_rate).astype(wide)).astype(update.dtype)

    return optax.stateless(lambda updates, _: jax.tree.map(scale, updates))


def scaled(*parts: optax.GradientTransformation) -> TransformFactory:
    """Returns a function that maps a learning rate to the optax chain of `parts`, scaled by ``-learning_rate``."""
    return lambda learning_rate: optax.chain(*parts, scale_by_rate(learning_rate))


def sgd(momentum: float, nesterov: bool, decay: Decay) -> TransformFactory:
    """Returns gradient descent with optional momentum (Sutskever et al. 2013), as a factory of optax transforms.

    The momentum is classical or Nesterov momentum.
    """
    trace = [optax.trace(momentum, nesterov)] if momentum else []
    return scaled(*trace, *decay.transforms())


def adam(beta_1: float, beta_2: float, epsilon: float, amsgrad: bool, decay: Decay) -> TransformFactory:
    """Returns Adam (Kingma and Ba 2014), AdamW or AMSGrad (Reddi et al. 2018), as a factory of optax transforms.

    AdamW is Adam with weight decay.
    """
    make: Callable[..., optax.GradientTransformation] = optax.scale_by_amsgrad if amsgrad else optax.scale_by_adam
    return scaled(make(b1=beta_1, b2=beta_2, eps=epsilon), *decay.transforms())


def adagrad(initial_accumulator_value: float, epsilon: float, decay: Decay) -> TransformFactory:
    """Returns Adagrad (Duchi et al. 2011) as a factory of optax transforms."""
    return scaled(optax.scale_by_rss(initial_accumulator_value, epsilon), *decay.transforms())


def rmsprop(rho: float, momentum: float, epsilon: float, centered: bool, decay: Decay) -> TransformFactory:
    """Returns RMSprop (Tieleman and Hinton 2012) as a factory of optax transforms.

    Epsilon is added under the square root. Momentum acts on the scaled updates, and weight decay is added after it.
    """
    make: Callable[..., optax.GradientTransformation] = optax.scale_by_stddev if centered else optax.scale_by_rms
    first = make(rho, epsilon, eps_in_sqrt=True)
    trace = [optax.trace(momentum)] if momentum else []
    return lambda rate: optax.chain(first, scale_by_rate(rate), *trace, *decay.transforms(-rate))


def lion(beta_1: float, beta_2: float, decay: Decay) -> TransformFactory:
    """Returns Lion (Chen et al. 2023) as a factory of optax transforms."""
    return scaled(optax.scale_by_lion(b1=beta_1, b2=beta_2), *decay.transforms())


def lamb(beta_1: float, beta_2: float, epsilon: float, decay: Decay) -> TransformFactory:
    """Returns LAMB (You et al. 2020) as a factory of optax transforms; the trust ratio includes weight decay."""
    first = optax.scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon)
    return scaled(first, *decay.transforms(), optax.scale_by_trust_ratio())


def with_rate(factory: Callable[..., optax.GradientTransformation]) -> TransformFactory:
    """Wraps an optax factory such as `optax.adam` so that it gets the learning rate in the parameters' widest dtype.

    `optax.inject_hyperparams` passes the same dtype to a factory.
    """

    def make(learning_rate: float | jax.Array) -> optax.GradientTransformationExtraArgs:
        def inner(tree: optax.Params) -> optax.GradientTransformationExtraArgs:
            dtype = jnp.zeros((), optax.tree_utils.tree_dtype(tree, "highest")).real.dtype
            return optax.with_extra_args_support(factory(jnp.asarray(learning_rate).astype(dtype)))

        def update(
            updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None, **extra: Any
        ) -> tuple[Any, Any]:
            updated: tuple[Any, Any] = inner(params).update(updates, state, params, **extra)
            return updated

        def init(params: optax.Params) -> optax.OptState:
            state = inner(params).init(params)
            _refuse_kept_rate(state)
            return state

        return optax.GradientTransformationExtraArgs(init, update)

    return make


def _refuse_kept_rate(state: optax.OptState) -> None:
    """Raises ArgumentError if an optax state stores a constant learning rate.

    The transformation would ignore all later changes of the optimizer's learning rate.
    """
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    is_scheduled = any(".hyperparams_states['learning_rate']" in path for path in paths)
    if not is_scheduled and any(path.endswith(".hyperparams['learning_rate']") for path in paths):
        raise ArgumentError(
            "Optimizer",
            found="a factory of optax.inject_hyperparams was passed with learning_rate=",
            rule="its transformation keeps the first learning rate in its state, and would ignore every later one",
            remedy="pass the factory itself: Optimizer(optax.adam, learning_rate=...), and inject only others",
        )


# Copies optimizers that have no state yet.
#
# Slots belong to variables, which a copy does not have. So an optimizer with state cannot be copied.

# Sharing `_compute`, the jitted functions of the rule, lets copies also share their compilation caches.
_SHARED: Final = ("_rule", "_compute")


def copied(optimizer: Optimizer, memo: dict[int, Any]) -> Optimizer:
    """Returns an independent copy of an optimizer that has no state yet, with the same settings.

    Raises:
        ArgumentTypeError: The optimizer already has state.
    """
    if optimizer.made().scalars or optimizer.made().groups:
        raise not_copyable_error("copy", optimizer)
    made = object.__new__(type(optimizer))
    memo[id(optimizer)] = made
    vars(made).update({name: copy.deepcopy(one, memo) for name, one in vars(optimizer).items() if name not in _SHARED})
    vars(made).update({name: vars(optimizer)[name] for name in _SHARED})
    return made


def not_copyable_error(called: str, optimizer: Optimizer) -> ArgumentTypeError:
    """Returns the error for copying or pickling an optimizer that already has state."""
    return ArgumentTypeError(
        f"{called} of an {type(optimizer).__name__} optimizer".replace("an Optimizer optimizer", "an Optimizer"),
        found=f"{optimizer!r} has state for its variables",
        rule="the state of an optimizer belongs to the variables that it trains, so it cannot be copied without them",
        remedy="create another optimizer with the same arguments; to transfer this one's state, save a "
        "mirrored.checkpoint.Checkpoint(model=..., optimizer=...) and restore it into the new objects",
    )
