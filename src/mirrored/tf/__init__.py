"""TensorFlow's API for training with `tf.distribute` and `tf.GradientTape`, implemented on JAX.

    import mirrored.tf as tf

A tensor is a `jax.Array`. Importing this module adds the methods `numpy()`, `get_shape()` and `set_shape()` to arrays,
and `assign()` to slices of variables (`variable[1:]`), and lets the operators of arrays take lists and tuples
(`array - [0.5, 0.25]`), which JAX refuses. If the program imports Keras, before or later, it connects Keras as
`tf.keras` does, so that `import mirrored.tf as tf, keras` has Keras models that take datasets. It changes nothing else
(`mirrored/patches.py` has the list; `mirrored.integrations.disconnect` takes it back). The names are built from tables
(`mirrored.tf._names`). An unknown name raises an error that suggests the closest one.
"""

from __future__ import annotations

from mirrored.runtime.hooks import connect_when_imported as _connect_when_imported
from mirrored.tf._missing import KNOWN as _KNOWN
from mirrored.tf._names import LAZY as _LAZY
from mirrored.tf._names import NAMES as _NAMES
from mirrored.tf._namespaces import build as _build
from mirrored.tf._namespaces import finder as _finder
from mirrored.tf._tensors import add_methods as _add_methods

_add_methods()
__getattr__ = _finder(_NAMES, _LAZY)
globals().update(_build(_NAMES, _LAZY, _KNOWN, __getattr__))
_connect_when_imported("keras", "mirrored.tf._keras_connecting")


def __dir__() -> list[str]:
    return sorted({*globals(), *(one for one in _LAZY if "." not in one)})
