"""`tf.keras`: Keras 3 on JAX, under the names that TensorFlow gives it (some older than Keras' own).

Importing it connects Keras to strategies; this module is then Keras' own.
"""

from __future__ import annotations

import importlib
import sys

import mirrored.integrations.keras as _connected

_keras = importlib.import_module("keras._tf_keras.keras")
# Names that Keras has in its own namespace only: TensorFlow 2 has them under both.
for _name in ("losses", "metrics"):
    for _function, _value in vars(getattr(_connected.keras, _name)).items():
        vars(getattr(_keras, _name)).setdefault(_function, _value)
sys.modules[__name__] = _keras
