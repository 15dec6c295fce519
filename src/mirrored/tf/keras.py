"""`tf.keras`: Keras 3 on JAX under TensorFlow's names, including names older than Keras 3.

Importing this module connects Keras to strategies and replaces the module with Keras itself.
"""

from __future__ import annotations

import sys
from types import ModuleType as _ModuleType

import mirrored.integrations.keras as _connected
import mirrored.tf as _tf
from mirrored.integrations.keras.private import datasets as _datasets
from mirrored.integrations.keras.private import legacy_backend as _legacy_backend
from mirrored.integrations.keras.private import preprocessing as _preprocessing
from mirrored.integrations.keras.private import seed_module as _seeds
from mirrored.integrations.keras.private import sizes_of_parts as _sizes_of_parts
from mirrored.integrations.keras.private import tensorflow_names as _tensorflow_names
from mirrored.patches import replace as _replace
from mirrored.tf._data.splitting import splitting as _splitting
from mirrored.tf._keras_backend import REPLACED as _backend_functions
from mirrored.tf._keras_preprocessing import absent as _absent
from mirrored.tf._ops.seeding import drawing as _drawing
from mirrored.tf._ops.seeding import drawing_for_elements as _for_elements
from mirrored.tf._ops.seeding import seeding as _seeding
from mirrored.tf._saved_model.exporting import exporting as _exporting

_keras = _tensorflow_names()
# TensorFlow has all of Keras' modules; Keras does not import some of them, such as `saving`, under TensorFlow's names.
for _name, _value in vars(_connected.keras).items():
    if isinstance(_value, _ModuleType) and _name not in ("src", "_tf_keras"):
        vars(_keras).setdefault(_name, _value)
# TensorFlow 2 has these names in both namespaces; Keras has them only in its own.
for _name in ("losses", "metrics"):
    for _function, _value in vars(getattr(_connected.keras, _name)).items():
        vars(getattr(_keras, _name)).setdefault(_function, _value)
# Keras builds datasets with `tf.data`; without TensorFlow, the datasets of this package take its place.
_replace("tf.keras", _datasets["timeseries"], "tf", _tf)
_replace("tf.keras", _legacy_backend, "tf", _tf)
for _module, _placeholder in _absent(_preprocessing, _datasets):
    _replace("tf.keras", _module, "tf", _placeholder)
for _name, _value in _backend_functions.items():
    for _module in (_legacy_backend, _keras.backend):
        _replace("tf.keras", _module, _name, _value)
for _utils in (_connected.keras.utils, _keras.utils):
    _replace("tf.keras", _utils, "split_dataset", _splitting(_utils.split_dataset, _sizes_of_parts))
# On TensorFlow, Keras draws unseeded random numbers and seeds from the state that is TensorFlow's.
for _utils in (_connected.keras.utils, _keras.utils):
    _replace("tf.keras", _utils, "set_random_seed", _seeding(_utils.set_random_seed))
_replace("tf.keras", _seeds, "global_seed_generator", _drawing(_seeds.global_seed_generator))
_replace("tf.keras", _seeds.SeedGenerator, "next", _for_elements(_seeds.SeedGenerator.next))
_replace("tf.keras", _connected.keras.Model, "export", _exporting(_connected.keras.Model.export))
sys.modules[__name__] = _keras
