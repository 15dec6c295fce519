"""Type stub of `tf.autograph.experimental`, written by tools/tf_stubs.py."""

from collections.abc import Callable
from typing import Any

def do_not_convert(func: Callable[..., Any] | None = None) -> Any: ...
def set_loop_options(*args: Any, **kwargs: Any) -> None: ...
