"""Gradient clipping. In replica context it acts on the all-reduced gradient, not on each replica's own."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax

from mirrored.errors import ArgumentError

Gradients = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Clipping:
    """At most one kind of gradient clipping. With no bound set, gradients are unchanged.

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
                    rule="a clipping bound is a finite number greater than 0",
                    remedy=f"omit {name}= to disable clipping",
                )
        if len(given) > 1:
            raise ArgumentError(
                "Optimizer",
                found=" and ".join(f"{name}={value!r}" for name, value in given.items()),
                rule="an optimizer applies at most one kind of clipping",
                remedy="pass one of clipnorm, global_clipnorm, clipvalue; chain optax's transforms to combine them",
            )

    def apply(self, gradients: Gradients) -> Gradients:
        """Returns the clipped gradients, with unchanged shapes and dtypes."""
        if self.clipvalue is not None:
            return _transformed(optax.clip(self.clipvalue), gradients)
        if self.global_clipnorm is not None:
            return _transformed(optax.clip_by_global_norm(self.global_clipnorm), gradients)
        if self.clipnorm is not None:
            return {name: _clip_norm(gradient, self.clipnorm) for name, gradient in gradients.items()}
        return gradients


def _transformed(transform: optax.GradientTransformation, gradients: Gradients) -> Gradients:
    clipped = transform.update(gradients, transform.init(gradients))[0]
    return {name: clipped[name].astype(gradient.dtype) for name, gradient in gradients.items()}


def _clip_norm(gradient: jax.Array, bound: float) -> jax.Array:
    norm = optax.global_norm(gradient)
    return jnp.where(norm <= bound, gradient, gradient / norm.astype(gradient.dtype) * bound)
