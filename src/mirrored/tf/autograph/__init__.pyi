"""Type stub of `tf.autograph`, written by tools/tf_stubs.py."""

from collections.abc import Callable
from typing import Any

from mirrored.tf.autograph import experimental as experimental

def set_verbosity(level: int, alsologtostdout: bool = False) -> None: ...
def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: object = None
) -> Any: ...

trace = print
