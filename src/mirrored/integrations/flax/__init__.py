"""Flax NNX: its variables live on ours, under tapes and in compiled functions too; its optimizer all-reduces.

Importing this module connects NNX, which the first `strategy.scope()` of a program that has imported `flax.nnx` does:
`nnx.Variable` gets a place for a variable of ours. Variables without one stay what they were. No Flax code is copied.
"""

from mirrored.integrations.flax.connecting import BRIDGE as BRIDGE
from mirrored.integrations.flax.connecting import connect as connect
from mirrored.integrations.flax.connecting import disconnect as disconnect

connect()

__all__ = ["BRIDGE", "connect", "disconnect"]
