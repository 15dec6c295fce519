"""Update rules of the named optimizers, as functions from a learning rate to an optax transform.

Each is optax's own alias with one change. The learning rate is a value of the step (a variable or a schedule), so it
can be an array. The product with the update is computed in float32 or wider and rounded to the update's dtype, as if
the learning rate were a Python number.
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
    """Decoupled weight decay (Loshchilov and Hutter 2019): a step scales parameters by ``1 - learning_rate * rate``.

    Attributes:
        rate: The weight decay; None disables it.
        mask: Which parameters decay: a function from a dict keyed by variable name to a dict of bools, or such a dict.
    """

    rate: float | None = None
    mask: Any = None

    def transforms(self, scale: Any = 1.0) -> list[optax.GradientTransformation]:
        """Returns the transform that adds `scale` times the decay to updates, or an empty list without decay."""
        return [] if self.rate is None else [optax.add_decayed_weights(self.rate * scale, self.mask)]


def scale_by_rate(learning_rate: Any) -> optax.GradientTransformation:
    """Multiplies updates by ``-learning_rate``."""

    def scale(update: jax.Array) -> jax.Array:
        wide = jnp.promote_types(update.dtype, jnp.float32)
        return (update.astype(wide) * -jnp.asarray(learning_rate).astype(wide)).astype(update.dtype)

    return optax.stateless(lambda updates, _: jax.tree.map(scale, updates))


def scaled(*parts: optax.GradientTransformation) -> TransformFactory:
    """Returns the factory that chains `parts` and then scales by the learning rate."""
    return lambda learning_rate: optax.chain(*parts, scale_by_rate(learning_rate))


def sgd(momentum: float, nesterov: bool, decay: Decay) -> TransformFactory:
    """Gradient descent, with optional classical or Nesterov momentum (Sutskever et al. 2013)."""
    trace = [optax.trace(momentum, nesterov)] if momentum else []
    return scaled(*trace, *decay.transforms())


def adam(beta_1: float, beta_2: float, epsilon: float, amsgrad: bool, decay: Decay) -> TransformFactory:
    """Adam (Kingma and Ba 2014); AdamW with weight decay; or AMSGrad (Reddi et al. 2018)."""
    make: Callable[..., optax.GradientTransformation] = optax.scale_by_amsgrad if amsgrad else optax.scale_by_adam
    return scaled(make(b1=beta_1, b2=beta_2, eps=epsilon), *decay.transforms())


def adagrad(initial_accumulator_value: float, epsilon: float, decay: Decay) -> TransformFactory:
    """Adagrad (Duchi et al. 2011)."""
    return scaled(optax.scale_by_rss(initial_accumulator_value, epsilon), *decay.transforms())


def rmsprop(rho: float, momentum: float, epsilon: float, centered: bool, decay: Decay) -> TransformFactory:
    """RMSprop (Tieleman and Hinton 2012).

    Epsilon is added under the square root. Momentum acts on the scaled updates, and weight decay is added after it.
    """
    make: Callable[..., optax.GradientTransformation] = optax.scale_by_stddev if centered else optax.scale_by_rms
    first = make(rho, epsilon, eps_in_sqrt=True)
    trace = [optax.trace(momentum)] if momentum else []
    return lambda rate: optax.chain(first, scale_by_rate(rate), *trace, *decay.transforms(-rate))


def lion(beta_1: float, beta_2: float, decay: Decay) -> TransformFactory:
    """Lion (Chen et al. 2023)."""
    return scaled(optax.scale_by_lion(b1=beta_1, b2=beta_2), *decay.transforms())


def lamb(beta_1: float, beta_2: float, epsilon: float, decay: Decay) -> TransformFactory:
    """LAMB (You et al. 2020); the trust ratio includes weight decay."""
    first = optax.scale_by_adam(b1=beta_1, b2=beta_2, eps=epsilon)
    return scaled(first, *decay.transforms(), optax.scale_by_trust_ratio())


def with_rate(factory: Callable[..., optax.GradientTransformation]) -> TransformFactory:
    """Returns a user's factory (`optax.adam`) that receives the learning rate in the widest dtype of the parameters.

    `optax.inject_hyperparams` passes the same dtype to a factory.
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
