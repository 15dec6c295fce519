"""Type stub of `tf.saved_model`, written by tools/tf_stubs.py."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from mirrored import Function
from mirrored.compilation.concrete import ConcreteFunction
from mirrored.tf._saved_model.loading import LoadOptions as LoadOptions
from mirrored.tf._saved_model.saving import SaveOptions as SaveOptions

ASSETS_DIRECTORY: str
DEFAULT_SERVING_SIGNATURE_DEF_KEY: str
GPU: str
SERVING: str
TPU: str
TRAINING: str

def contains_saved_model(export_dir: str | PathLike[str]) -> bool: ...
def load(export_dir: str | PathLike[str], tags: object = None, options: LoadOptions | None = None) -> Any: ...
def save(
    obj: object,
    export_dir: str | PathLike[str],
    signatures: Function | ConcreteFunction | Mapping[str, Function | ConcreteFunction] | None = None,
    options: SaveOptions | None = None,
) -> None: ...
