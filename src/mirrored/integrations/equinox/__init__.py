"""Adapter for Equinox: `mirrored.mirror` converts the arrays of `equinox.nn.State` to variables.

Equinox modules need no adapter, because they are pytrees.
"""

from mirrored.integrations.equinox.states import BRIDGE as BRIDGE

__all__ = ["BRIDGE"]
