"""Equinox: modules are pytrees, so `mirrored.mirror` needs a bridge for `equinox.nn.State` only."""

from mirrored.integrations.equinox.states import BRIDGE as BRIDGE

__all__ = ["BRIDGE"]
