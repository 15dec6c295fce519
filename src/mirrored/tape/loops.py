"""Loops whose length is known only by running them, under a tape that runs at once.

JAX refuses reverse-mode derivatives of `lax.while_loop`, since a compiled program cannot store an unknown number of
steps. A tape that runs at once simply takes the steps one by one and records each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mirrored._jax.closures import custom_calls
from mirrored._jax.programs import as_function
from mirrored._jax.structured import while_p
from mirrored.tape import catalogue
from mirrored.tape.operation import Operation

if TYPE_CHECKING:
    from mirrored.tape.trace import TapeTrace


def _unrolled_while(trace: TapeTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    in_condition, in_body = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = args[:in_condition], args[in_condition : in_condition + in_body]
    state = list(args[in_condition + in_body :])
    goes_on = _of_jaxpr(params["cond_jaxpr"], "while condition")
    step = _of_jaxpr(params["body_jaxpr"], "while body")
    while trace.apply(goes_on, [*for_condition, *state])[0]:
        state = trace.apply(step, [*for_body, *state])
    return state


def _of_jaxpr(jaxpr: Any, name: str) -> Operation:
    return catalogue.of_program((jaxpr, name), lambda: Operation(as_function(jaxpr), name, custom_calls({"": jaxpr})))


UNROLLED: dict[Any, Callable[[TapeTrace, Sequence[Any], dict[str, Any]], list[Any]]] = {while_p: _unrolled_while}
