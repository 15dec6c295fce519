"""The demo's convolutional network: two convolutions, a pool, two dense layers, dropout; 38,218 parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import mirrored as mr


class ConvNet:
    """A convolutional network for images of 8 x 8 pixels, whose weights are `mirrored` variables.

    Args:
        seed: The seed of the initial values.
    """

    def __init__(self, seed: int) -> None:
        keys = iter(jax.random.split(jax.random.key(seed), 4))
        self.filters_1, self.bias_1 = _layer("conv_1", next(keys), (3, 3, 1, 16))
        self.filters_2, self.bias_2 = _layer("conv_2", next(keys), (3, 3, 16, 32))
        self.weights_3, self.bias_3 = _layer("dense_3", next(keys), (4 * 4 * 32, 64))
        self.weights_4, self.bias_4 = _layer("dense_4", next(keys), (64, 10))

    @property
    def variables(self) -> list[mr.Variable]:
        """All variables of the network, each of which is trainable."""
        kernels = (self.filters_1, self.filters_2, self.weights_3, self.weights_4)
        biases = (self.bias_1, self.bias_2, self.bias_3, self.bias_4)
        return [variable for layer in zip(kernels, biases, strict=True) for variable in layer]

    def __call__(self, images: jax.Array, dropout_key: jax.Array | None = None) -> Any:
        """Computes the scores (logits) of the ten digits.

        Args:
            images: f32[batch, 8, 8, 1].
            dropout_key: The PRNG key of dropout; None for no dropout, in evaluation.

        Returns:
            f32[batch, 10].
        """
        x: Any = jax.nn.relu(_convolve(images, self.filters_1) + self.bias_1)
        x = jax.nn.relu(_convolve(x, self.filters_2) + self.bias_2)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(x.reshape(len(x), -1) @ self.weights_3 + self.bias_3)
        if dropout_key is not None:
            kept = jax.random.bernoulli(dropout_key, 0.8, x.shape)
            x = jnp.where(kept, x / 0.8, 0.0)
        return x @ self.weights_4 + self.bias_4


def _layer(name: str, key: jax.Array, shape: tuple[int, ...]) -> tuple[mr.Variable, mr.Variable]:
    """Creates a layer's kernel and bias by He initialization (He et al., Delving Deep into Rectifiers, 2015)."""
    kernel = jax.nn.initializers.he_normal()(key, shape, jnp.float32)
    return mr.Variable(kernel, name=f"{name}/kernel"), mr.Variable(jnp.zeros(shape[-1]), name=f"{name}/bias")


def _convolve(images: jax.Array, filters: mr.Variable) -> Any:
    return lax.conv_general_dilated(
        images, filters.read_value(), window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
