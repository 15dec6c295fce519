"""The error that JAX raises for an operation that is undecidable for a symbolic dimension.

Supports JAX 0.10 to 0.12; `jax.errors` has the class since 0.10.1.
"""

from __future__ import annotations

from jax._src.core import InconclusiveDimensionOperation as InconclusiveDimensionOperation
