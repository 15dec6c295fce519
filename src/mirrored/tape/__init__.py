"""Reverse-mode differentiation by recording operations: `GradientTape`, custom gradients.

Recording, then differentiation:

- `recording`: the block of a tape; `trace`: the JAX trace that receives every primitive in it.
- `operation`, `catalogue`: forward and VJP rules of operations, derived by `jax.vjp` once per signature.
- `record`: what the tape keeps of one operation; `no_derivative`: why an operation has no derivative.
- `gradient_tape`, `backward`: gradients and Jacobians from the records; `unrecorded`, which suspends all tapes.
- `forward_accumulator`: directional derivatives.
- `calls`, `custom_gradient`, `merging`: custom derivative rules, `lax.while_loop`, and merges of virtual replicas.
"""

from mirrored.tape.backward import UnconnectedGradients as UnconnectedGradients
from mirrored.tape.custom_gradient import custom_gradient as custom_gradient
from mirrored.tape.custom_gradient import stop_gradient as stop_gradient
from mirrored.tape.gradient_tape import GradientTape as GradientTape
from mirrored.tape.gradient_tape import unrecorded as unrecorded
from mirrored.tape.operation import direct as direct

for _public in (GradientTape, UnconnectedGradients, custom_gradient, direct, stop_gradient, unrecorded):
    _public.__module__ = __name__
del _public
