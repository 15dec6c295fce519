"""Adapter for Flax: stores the values of NNX variables in `mirrored` variables.

NNX optimizers all-reduce gradients over replicas. With `axis_name`, the batch normalizations of NNX and Linen use the
statistics of the batches of all replicas.

NNX variables that are stored in this way also work under tapes and in compiled functions. The first `strategy.scope()`
of a program that has imported `flax.nnx` or `flax.linen` imports this module, which connects Flax. It patches
`nnx.Variable` so that a `mirrored.Variable` can back it; NNX variables without one behave as before. No Flax code is
copied.
"""

from mirrored.integrations.flax.connecting import BRIDGE as BRIDGE
from mirrored.integrations.flax.connecting import connect as connect
from mirrored.integrations.flax.connecting import disconnect as disconnect

connect()

__all__ = ["BRIDGE", "connect", "disconnect"]
