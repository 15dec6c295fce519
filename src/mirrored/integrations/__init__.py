"""Bridges: adapters that make models of Keras, Flax NNX and Equinox work with `mirrored` strategies.

They depend on the core; the core does not depend on them.

A bridge patches its framework when a strategy's scope opens in a program that uses the framework, regardless of the
import order. `mirrored/patches.py` lists every patch, and `disconnect` removes them.
"""

from mirrored.integrations.connecting import connect as connect
from mirrored.integrations.connecting import disconnect as disconnect

__all__ = ["connect", "disconnect"]
