"""Type stub of `tf.autograph`, written by tools/tf_stubs.py."""

from collections.abc import Callable
from typing import Any

from mirrored.tf.autograph import experimental as experimental
from mirrored.tf.autograph.experimental import set_loop_options

def to_graph(entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None) -> Any: ...

set_verbosity = set_loop_options
trace = print
