"""The update rules by name, as optax transforms of the learning rate.

Each is optax's own alias with one change: the learning rate is a value of the step (a variable or a schedule), so it
may be an array, and it is multiplied in at float32 or better and the product rounded to the update's dtype, as if it
were a number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mirrored.optimizers.update import TransformFactory


@dataclasses.dataclass(frozen=True)
class Decay:
    """Decoupled weight decay (Loshchilov and Hutter 2019): parameters shrink by ``learning_rate * rate`` of themselves.

    Attributes:
        rate: None is no decay.
        mask: Which parameters decay: a function from a dict by variable name to a dict of bools, or such a dict.
    """

    rate: float | None = None
    mask: Any = None

    def transforms(self, scale: Any = 1.0) -> list[optax.GradientTransformation]:
        """The transform that adds it to updates, times `scale`; nothing if there is none."""
        return [] if self.rate is None else [optax.add_decayed_weights(self.rate * scale, self.mask)]


def scale_by_rate(learning_rate: Any) -> optax.GradientTransformation:
    """Multiplies updates with ``-learning_rate``."""

    def scale(update: jax.Array) -> jax.Array:
        wide = jnp.promote_types(update.dtype, jnp.float32)
        return (update.astype(wide) * -jnp.asarray(learning_rate).astype(wide)).astype(update.dtype)

    return optax.stateless(lambda updates, _: jax.tree.map(scale, updates))


def scaled(*parts: optax.GradientTransformation) -> TransformFactory:
    """The factory of `parts` in a row, scaled by the learning rate at the end."""
    return lambda learning_rate: optax.chain(*parts, scale_by_rate(learning_rate))


def sgd(momentum: float, nesterov: bool, decay: Decay) -> TransformFactory:
    """Gradient descent; with momentum, the classical or Nesterov's (Sutskever et al. 2013)."""
    trace = [optax.trace(momentum, nesterov)] if momentum else []
    return scaled(*trace, *decay.transforms())


def adam(beta_1: float, beta_2: float, epsilon: float, amsgrad: bool, decay: Decay) -> TransformFactory:
    """Adam (Kingma and Ba 2014), with decay AdamW, or AMSGrad (Reddi et al. 2018)."""
    make: Callable[..., optax.GradientTransformation] = optax.scale_by_amsgrad if amsgrad else optax.scale_by_adam
    return scaled(make(b1=beta_1, b2=beta_2, eps=epsilon), *decay.transforms())


def adagrad(initial_accumulator_value: float, epsilon: float, decay: Decay) -> TransformFactory:
    """Adagrad (Duchi et al. 2011)."""
    return scaled(optax.scale_by_rss(initial_accumulator_value, epsilon), *decay.transforms())


def rmsprop(rho: float, momentum: float, epsilon: float, centered: bool, decay: Decay) -> TransformFactory:
    """RMSprop (Tieleman and Hinton 2012): epsilon under the root, momentum over scaled updates, decay beside it."""
    make: Callable[..., optax.GradientTransformation] = optax.scale_by_stddev if centered else optax.scale_by_rms
    first = make(rho, epsilon, eps_in_sqrt=True)
    trace = [optax.trace(momentum)] if momentum else []
    return lambda rate: optax.chain(first, scale_by_rate(rate), *trace, *decay.transforms(-rate))


def lion(beta_1: float, beta_2: float, decay: Decay) -> TransformFactory:
    """Lion (Chen et al. 2023)."""
    return scaled(optax.scale_by_lion(b1=beta_1, b2=beta_2), *decay.transforms())


def lamb(beta_1: float, beta_2: float, epsilon: float, decay: Decay) -> TransformFactory:
    """LAMB (You et al. 2020); decay counts in the trust ratio."""
    first = optax.scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon)
    return scaled(first, *decay.transforms(), optax.scale_by_trust_ratio())


def with_rate(factory: Callable[..., optax.GradientTransformation]) -> TransformFactory:
    """A user's factory (`optax.adam`), given the learning rate in the widest dtype of the parameters.

    That is what `optax.inject_hyperparams` hands to a factory.
    """

    def make(learning_rate: Any) -> optax.GradientTransformationExtraArgs:
        def inner(tree: Any) -> optax.GradientTransformationExtraArgs:
            dtype = jnp.zeros((), optax.tree_utils.tree_dtype(tree, "highest")).real.dtype
            return optax.with_extra_args_support(factory(jnp.asarray(learning_rate).astype(dtype)))

        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
            updated: tuple[Any, Any] = inner(params).update(updates, state, params, **extra)
            return updated

        return optax.GradientTransformationExtraArgs(lambda params: inner(params).init(params), update)

    return make
