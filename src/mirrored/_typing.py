"""Type aliases for parameter annotations, shared by all packages.

An alias of `Any` stands for values that Python's type system cannot describe. Its docstring states the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeAlias

import jax
import numpy as np
from jax.typing import DTypeLike as DTypeLike

Array: TypeAlias = jax.Array
"""An array on devices, or a tracer."""

HostArray: TypeAlias = np.ndarray[Any, Any]
"""An array in host memory, of any shape and dtype."""

Number: TypeAlias = bool | int | float | complex | np.generic
"""A scalar."""

ShapeLike: TypeAlias = int | Sequence[int | None]
"""A shape, or a single size."""

StaticInts: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""A shape, axes or sizes for an operation: integers that are known while tracing.

`ShapeLike` is too narrow: TensorFlow also takes integer tensors, variables and NumPy arrays, as a whole or as elements.
All of them convert to an index.
"""

PyTree: TypeAlias = Any
"""A structure of tuples, lists, dicts and registered nodes. Any object is a structure of one leaf."""

Leaf: TypeAlias = Any
"""A leaf of a structure. JAX leaves its type to the user: arrays, numbers, strings, per-replica values, variables."""

Operand: TypeAlias = Any
"""A value that JAX accepts in an expression. Classes join by `__jax_array__` or registration, without a base class."""
