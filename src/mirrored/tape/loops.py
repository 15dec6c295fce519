"""`lax.while_loop` under an eager tape, which unrolls the loop.

JAX does not support reverse-mode differentiation of `lax.while_loop`, because a compiled program cannot store residuals
for an unknown number of iterations. An eager tape runs the iterations one by one and records each.
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
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    condition_consts, body_consts = (
        args[:num_cond],
        args[num_cond : num_cond + num_body],
    )
    state = list(args[num_cond + num_body :])
    condition = _of_jaxpr(params["cond_jaxpr"], "while condition")
    step = _of_jaxpr(params["body_jaxpr"], "while body")
    while trace.apply(condition, [*condition_consts, *state])[0]:
        state = trace.apply(step, [*body_consts, *state])
    return state


def _of_jaxpr(jaxpr: Any, name: str) -> Operation:
    return catalogue.of_program((jaxpr, name), lambda: Operation(as_function(jaxpr), name, custom_calls({"": jaxpr})))


UNROLLED: dict[Any, Callable[[TapeTrace, Sequence[Any], dict[str, Any]], list[Any]]] = {while_p: _unrolled_while}
