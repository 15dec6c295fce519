"""Type stub of `tf.math.special`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf import Tensor
from mirrored.tf.math import bessel_i0 as bessel_i0
from mirrored.tf.math import bessel_i0e as bessel_i0e
from mirrored.tf.math import bessel_i1 as bessel_i1
from mirrored.tf.math import bessel_i1e as bessel_i1e

def expint(x: Any, name: str | None = None) -> Tensor: ...
def spence(x: Any, name: str | None = None) -> Tensor: ...
