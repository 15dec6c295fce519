"""Makes device slots without a replica (empty slots) emit no gradients and call no Python functions.

If the number of devices does not divide the number of replicas, the program of every device has a slot that some
devices do not need (`topology.slots`). There it is *padded*: it computes the same as the slot before it, from the same
inputs and with the same replica id. So it computes no zeros or NaNs that no replica computes, and its loops end.
Nothing that it computes has an effect outside of it:

- Collectives and `merge_call` drop it (`collectives.summation.Group`).
- Its row of results and of per-replica variables is never read.
- No gradient flows from it to values from outside, in the program that `contain` returns. (Under an algorithm with
  `ignores_empty_slots`, the sums of gradients drop it, without operations that could change bits.) Tapes in the replica
  function differentiate before, while the program is traced: what a merge or the derivative of a collective returns to
  an empty slot passes no gradient back, under any algorithm.
- Calls of Python functions (`jax.debug.print`, `io_callback`, `pure_callback`) are made only where the slot has a
  replica. Elsewhere their results are those of the slot before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.inlining import Staged, calls_python, stage
from mirrored._jax.jaxprs import Literal
from mirrored._jax.local_collectives import bind_equation, local_replica_of
from mirrored._jax.source_lines import scopes_of
from mirrored.collectives.summation import Group, without_padding_gradient

if TYPE_CHECKING:
    from mirrored._jax.jaxprs import JaxprEqn
    from mirrored.strategies.tracing_runner import TracingRunner


_SLOT: Final = "mirrored_slot_"
MERGE: Final = "mirrored_merge"
"""The name of the `jax.named_scope` of a merge in a bit-identical program with one replica on each device."""


def scope_of(local: int) -> str:
    """Returns the name of the `jax.named_scope` in which the replica with index `local` on a device is traced."""
    return f"{_SLOT}{local}"


def slot_of(eqn: JaxprEqn) -> int | None:
    """Returns the replica slot for which an equation was traced; None if it was traced for no slot."""
    return next((int(name.removeprefix(_SLOT)) for name in scopes_of(eqn) if name.startswith(_SLOT)), None)


def reader_of(eqn: JaxprEqn, num_local: int) -> int | None:
    """Returns the replica slot for which an equation reads its operands; None for an equation of a merge."""
    if num_local > 1:
        return slot_of(eqn)
    return None if MERGE in scopes_of(eqn) else 0


class Calls:
    """Applies the equations of a program whose devices may have unequal numbers of replicas.

    Only the last slot of a device can be empty (`Slots`). It skips equations that call Python functions. For such an
    equation, it gets the results of the slot before, which is applied first.

    Args:
        group: The replicas.

    Context: creating it adds operations to the program. They must be outside of loops and branches, where GSPMD cannot
        compute the position of a device.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._is_real = group.is_real() if group.padded else None
        self._results: deque[list[Any]] = deque()

    def bind(self, local: int | None, eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """Applies an equation to operands and returns the results.

        `local` is the index of the slot for which the equation was traced, or None. An empty slot skips equations that
        call Python functions.
        """
        before, last = self._group.local - 2, self._group.local - 1
        if not self._group.padded or local not in (before, last) or not calls_python(eqn):
            return bind_equation(eqn, operands)
        if local == before:
            results = bind_equation(eqn, operands)
            if results:
                self._results.append(results)
            return results
        avals: list[Any] = [variable.aval for variable in eqn.outvars]
        if not avals and eqn.params.get("ordered") and "callback" in eqn.params:
            return self._callback_unless_empty(eqn, operands)
        others = self._results.popleft() if avals and self._results else []
        if [(other.shape, other.dtype) for other in others] != [(aval.shape, aval.dtype) for aval in avals]:
            others = [jnp.zeros(aval.shape, aval.dtype) for aval in avals]  # the slots were traced differently
        called = lax.cond(self._is_real, lambda: bind_equation(eqn, operands), lambda: others)
        return list(called)

    def _callback_unless_empty(self, eqn: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """Applies an ordered callback whose Python function is skipped on devices with fewer replicas.

        The last slot of these devices is empty. The host decides this, because XLA cannot. The callback has no results.
        """
        function = eqn.params["callback"]

        def where_real(is_real: Any, *args: Any) -> Any:
            return function(*args) if is_real else ()

        return list(eqn.primitive.bind(self._is_real, *operands, **{**eqn.params, "callback": where_real}))


def contain(
    body: Staged, runner: TracingRunner, shapes: Sequence[jax.ShapeDtypeStruct], axes: Sequence[tuple[str, int]]
) -> Staged:
    """Rewrites a run's program so that empty replica slots (`Slots`) pass on no gradients and call no Python functions.

    An equation that stands for one slot's part in a collective keeps its form, because `fuse` replaces it later. Only
    the gradients of its operands are cut off.

    Args:
        body: The body, whose equations are marked by `scope_of`.
        runner: The runner that traced it.
        shapes: The shapes and dtypes of its inputs.
        axes: The mesh axis and its size.
    """
    group = runner.group_info
    keeps_gradients = not runner.algorithm.ignores_empty_slots
    return stage(lambda *inputs: _Contained(group, keeps_gradients).run(body, inputs), shapes, axes=axes)


class _Contained:
    def __init__(self, group: Group, keeps_gradients: bool) -> None:
        self._group = group
        self._keeps_gradients = keeps_gradients
        self._known: dict[Any, Any] = {}
        self._without_gradient: dict[Any, Any] = {}
        self._own: set[Any] = set()

    def run(self, body: Staged, inputs: Sequence[Any]) -> list[Any]:
        self._is_real, self._calls = self._group.is_real(), Calls(self._group)
        variables = (*body.jaxpr.constvars, *body.jaxpr.invars)
        self._known.update(zip(variables, (*body.constants, *inputs), strict=True))
        for eqn in body.jaxpr.eqns:
            self._known.update(zip(eqn.outvars, self._applied(eqn), strict=True))
        return [self._read(atom) for atom in body.jaxpr.outvars]

    def _applied(self, eqn: JaxprEqn) -> list[Any]:
        local = slot_of(eqn)
        if local == self._group.local - 1:
            operands = [self._read_without_gradient(atom) for atom in eqn.invars]
            self._own.update(eqn.outvars)
        else:
            operands = [self._read(atom) for atom in eqn.invars]
        if local_replica_of(eqn) is not None:
            return bind_equation(eqn, operands)
        return self._calls.bind(local, eqn, operands)

    def _read(self, atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else self._known[atom]

    def _read_without_gradient(self, atom: Any) -> Any:
        """Returns an operand from which no gradient flows on devices with fewer replicas.

        It is the operand of an equation of the last slot, which is empty on these devices. Results of the slot's own
        equations are returned unchanged.
        """
        if not self._keeps_gradients or isinstance(atom, Literal) or atom in self._own:
            return self._read(atom)
        if atom not in self._without_gradient:
            self._without_gradient[atom] = without_padding_gradient(self._known[atom], self._is_real)
        return self._without_gradient[atom]
