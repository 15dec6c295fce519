"""What JAX raises when a program asks of a size that is not known more than it can tell.

Serves JAX 0.10 to 0.12; `jax.errors` has the class since 0.10.1.
"""

from __future__ import annotations

from jax._src.core import InconclusiveDimensionOperation as InconclusiveDimensionOperation
