"""Primitives that tapes handle specially.

Supports JAX 0.10 to 0.12: `jax.extend.core.primitives`, and `ad_util.stop_gradient_p`, which it does not export.
"""

from __future__ import annotations

from jax._src import ad_util as _ad_util
from jax.extend.core import primitives

while_p = primitives.while_p
# Inside a compiled program, it transfers nothing.
device_put_p = primitives.device_put_p
stop_gradient_p = _ad_util.stop_gradient_p
