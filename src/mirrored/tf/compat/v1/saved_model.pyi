"""Type stub of `tf.compat.v1.saved_model`, written by tools/tf_stubs.py."""

from mirrored.tf.saved_model import SaveOptions as SaveOptions
from mirrored.tf.saved_model import contains_saved_model as contains_saved_model
from mirrored.tf.saved_model import save as save

ASSETS_DIRECTORY: str
DEFAULT_SERVING_SIGNATURE_DEF_KEY: str
GPU: str
SERVING: str
TPU: str
TRAINING: str
