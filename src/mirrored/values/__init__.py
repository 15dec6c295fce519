"""Distributed values: `PerReplica`, `Mirrored`, and pytrees of them."""
