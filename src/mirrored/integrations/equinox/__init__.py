"""The Equinox bridge. Modules are pytrees, so `mirrored.mirror` needs it only for `equinox.nn.State`."""

from mirrored.integrations.equinox.states import BRIDGE as BRIDGE

__all__ = ["BRIDGE"]
