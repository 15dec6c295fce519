"""Type stub of `tf.saved_model`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf._saved_model.loading import LoadOptions as LoadOptions
from mirrored.tf._saved_model.saving import SaveOptions as SaveOptions

ASSETS_DIRECTORY: str
DEFAULT_SERVING_SIGNATURE_DEF_KEY: str
GPU: str
SERVING: str
TPU: str
TRAINING: str

def contains_saved_model(export_dir: Any) -> bool: ...
def load(export_dir: Any, tags: Any = None, options: Any = None) -> Any: ...
def save(obj: Any, export_dir: Any, signatures: Any = None, options: Any = None) -> None: ...
