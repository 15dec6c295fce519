"""Type stub of `tf.autograph.experimental`, written by tools/tf_stubs.py."""

from collections.abc import Callable
from typing import Any, overload

@overload
def do_not_convert(func: None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
@overload
def do_not_convert(func: Callable[..., Any]) -> Callable[..., Any]: ...
def set_loop_options(
    parallel_iterations: object = None,
    swap_memory: object = None,
    maximum_iterations: object = None,
    shape_invariants: object = None,
) -> None: ...
