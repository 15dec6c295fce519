"""`tf.keras`: Keras 3 on JAX, under the names that TensorFlow gives it (some older than Keras' own).

Importing it connects Keras to strategies; this module is then Keras' own.
"""

from __future__ import annotations

import importlib
import sys

import mirrored.integrations.keras as _connected
import mirrored.tf as _tf
from mirrored.patches import replace as _replace

_keras = importlib.import_module("keras._tf_keras.keras")
# Names that Keras has in its own namespace only: TensorFlow 2 has them under both.
for _name in ("losses", "metrics"):
    for _function, _value in vars(getattr(_connected.keras, _name)).items():
        vars(getattr(_keras, _name)).setdefault(_function, _value)
# What Keras makes datasets with, where TensorFlow is not installed: the datasets are this package's.
_replace("tf.keras", _connected.keras.src.utils.timeseries_dataset_utils, "tf", _tf)
sys.modules[__name__] = _keras
