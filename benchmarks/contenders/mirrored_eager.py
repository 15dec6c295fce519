"""mirrored without `function`: every operation of every replica at once."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from contenders import mirrored_training

train = functools.partial(mirrored_training.train, compiled=False)
eager_tape = functools.partial(mirrored_training.eager_tape, sin=jnp.sin, tanh=jnp.tanh)
