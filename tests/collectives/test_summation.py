"""Fusion boundaries."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

from mirrored.collectives.summation import bounded, stack_isolated, unstack_isolated


def test_barriers_surround_every_boundary_because_xla_for_gpus_fuses_cheap_conditionals():
    def boundaries(x):
        [y] = bounded([x + 1.0])
        [stacked] = stack_isolated([[y, y * 2.0]])
        return unstack_isolated([stacked])

    text = jax.jit(boundaries).lower(jnp.ones(3)).as_text()
    found = re.findall(r"stablehlo\.(case|optimization_barrier)", text)
    assert found == ["optimization_barrier", "case", "optimization_barrier"] * 3
