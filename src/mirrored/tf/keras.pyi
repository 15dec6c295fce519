"""Type stub of `tf.keras`, written by tools/tf_stubs.py: every name is Keras' own."""

from typing import Any

def __getattr__(name: str) -> Any: ...
