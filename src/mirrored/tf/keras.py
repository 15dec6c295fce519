"""`tf.keras`: Keras 3 on JAX under TensorFlow's names, some of which are older than Keras 3.

Importing this module connects Keras to strategies and replaces the module with Keras itself.
"""

from __future__ import annotations

import importlib
import sys

import mirrored.integrations.keras as _connected
import mirrored.tf as _tf
from mirrored.patches import replace as _replace

_keras = importlib.import_module("keras._tf_keras.keras")
# TensorFlow 2 has these functions in `tf.keras`, too; Keras 3 has them only in `keras`.
for _name in ("losses", "metrics"):
    for _function, _value in vars(getattr(_connected.keras, _name)).items():
        vars(getattr(_keras, _name)).setdefault(_function, _value)
# This module of Keras builds datasets with `tf.data`; without TensorFlow, it uses `mirrored.tf.data`.
_replace("tf.keras", _connected.keras.src.utils.timeseries_dataset_utils, "tf", _tf)
sys.modules[__name__] = _keras
