"""Type stub of `tf.compat.v1.math.special`, written by tools/tf_stubs.py."""

from mirrored.tf.math import bessel_i0 as bessel_i0
from mirrored.tf.math import bessel_i0e as bessel_i0e
from mirrored.tf.math import bessel_i1 as bessel_i1
from mirrored.tf.math import bessel_i1e as bessel_i1e
from mirrored.tf.math.special import expint as expint
from mirrored.tf.math.special import spence as spence
