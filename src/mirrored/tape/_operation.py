"""Operations and their rules: how to run something so that it can be taken back.

An `Operation` is a flat function of arrays. Its `Rule` for given input types and given watched inputs says what to
compute forward (the results and whatever the way back needs), and how to pull cotangents back. Both are derived once
from `jax.vjp`: the pullback is a pytree whose leaves are the residuals, so tracing it gives two programs, which are
operations again, so that their own derivatives come from the same machinery. Residuals that are inputs, results or
constants are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mirrored._jax import jit_key
from mirrored._jax.programs import Program, context_key, is_inexact, program_of, zero_tangent

Flat = Callable[..., Sequence[Any]]
Watched = tuple[int, ...]


class Operation:
    """A flat function of arrays that tapes can record.

    Args:
        function: Takes arrays, gives a list of arrays, is traceable.
        name: For messages and profiles.

    Attributes:
        jitted: `function` under `jax.jit`, made when it is first asked for: inside a compiled program it never is, and
            making it takes longer there than all that is done with the operation.
    """

    __slots__ = ("_rules", "function", "jitted", "name")

    jitted: Callable[..., list[Any]]

    def __init__(self, function: Flat, name: str) -> None:
        self.function = function
        self.name = name
        self._rules: dict[Any, Rule] = {}

    def __getattr__(self, attribute: str) -> Any:
        # Python comes here for a slot that is empty, and no more once it is filled.
        if attribute != "jitted":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {attribute!r}")
        self.jitted = jax.jit(self.function)
        return self.jitted

    def rule(self, avals: tuple[Any, ...], watched: Watched) -> Rule:
        """The rule for inputs of these types, of which those at `watched` are tracked.

        It closes over nothing, so it is the same for every trace of a compiled function, whatever `jit_key` says.
        """
        with jit_key.using(None):
            key = (avals, watched, context_key())
            rule = self._rules.get(key)
            if rule is None:
                rule = self._rules[key] = Rule(self, avals, watched)
        return rule


class Residual:
    """Where one residual is found when a record is made."""

    INPUT, RESULT, CONSTANT = range(3)


class Rule:
    """How one operation runs forward and back, for one choice of types and watched inputs.

    Attributes:
        forward: Computes the results, followed by residuals that are none of inputs, results and constants.
        num_results: How many results come first.
        tracked: For each result, whether a gradient can come back through it.
        is_plain: Whether there is one result, and a way back from it.
        passes: Whether the one result's cotangent is that of the one watched input as it stands (`x + 1.0`).
        out_avals: The results' types.
        failure: Why there is no way back (no derivative is defined for it, say), if so.
    """

    __slots__ = (
        "_avals",
        "_backward",
        "_leaf_avals",
        "_operation",
        "_tree",
        "_watched",
        "any_tracked",
        "failure",
        "forward",
        "is_plain",
        "num_results",
        "out_avals",
        "passes",
        "plan",
        "tracked",
    )

    def __init__(self, operation: Operation, avals: tuple[Any, ...], watched: Watched) -> None:
        self._operation = operation
        self._avals, self._watched = avals, watched
        self._backward: dict[tuple[bool, ...], Backward] = {}
        self.failure: Exception | None = None
        self.is_plain = self.passes = False
        try:
            self._derive(avals, watched)
        except Exception as failure:
            self._give_up(failure, avals)

    def backward(self, present: tuple[bool, ...]) -> Backward:
        """The way back when these results have a cotangent."""
        found = self._backward.get(present)
        if found is None:
            found = self._backward[present] = self._pull_program(present)
        return found

    def residuals(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """What the way back needs, after `forward` has given `results`."""
        sources = (inputs, results)
        return [where if kind == Residual.CONSTANT else sources[kind][where] for kind, where in self.plan]

    def _derive(self, avals: tuple[Any, ...], watched: Watched) -> None:
        aux: dict[str, Any] = {}

        def forward(*args: Any) -> list[Any]:
            results, pullback = linearize(self._operation.function, args, watched)
            leaves, aux["tree"] = jax.tree.flatten(pullback)
            aux["count"] = len(results)
            return [*results, *leaves]

        program = program_of(forward, avals)
        self._tree, self.num_results = aux["tree"], aux["count"]
        self.out_avals = program.out_avals[: self.num_results]
        self._leaf_avals = program.out_avals[self.num_results :]
        self._cut(program)
        self.tracked = [is_inexact(aval) for aval in self.out_avals]
        self.any_tracked = any(self.tracked) and bool(self.backward(tuple(self.tracked)).reached)
        self.is_plain = self.any_tracked and self.num_results == 1
        self.passes = len(watched) == 1 and self.tracked == [True] and self.backward((True,)).passes

    def _cut(self, program: Program) -> None:
        """Plans where each residual comes from and keeps the rest of the program's results."""
        kept = list(range(self.num_results))
        seen = {id(program.jaxpr.outvars[i]): i for i in reversed(kept)}
        self.plan: list[tuple[int, Any]] = []
        for position in range(self.num_results, len(program.jaxpr.outvars)):
            atom = program.jaxpr.outvars[position]
            source = program.source_of(atom)
            if source is not None:
                self.plan.append((Residual.INPUT if source[0] == "input" else Residual.CONSTANT, source[1]))
                continue
            if id(atom) not in seen:
                seen[id(atom)] = len(kept)
                kept.append(position)
            self.plan.append((Residual.RESULT, seen[id(atom)]))
        cut = program.keeping(kept)
        self.forward = Operation(cut, self._operation.name)

    def _pull_program(self, present: tuple[bool, ...]) -> Backward:
        num_leaves = len(self._leaf_avals)

        def pull(*args: Any) -> Sequence[Any]:
            given = iter(args[num_leaves:])
            cotangents = [
                next(given) if here else _no_cotangent(aval) for aval, here in zip(self.out_avals, present, strict=True)
            ]
            pullback = jax.tree.unflatten(self._tree, args[:num_leaves])
            return tuple(pullback(cotangents))

        given_avals = [aval for aval, here in zip(self.out_avals, present, strict=True) if here]
        program = program_of(pull, [*self._leaf_avals, *given_avals])
        linked = program.depends(range(num_leaves, num_leaves + len(given_avals)))
        if any(aval.size == 0 for aval in given_avals):
            linked = [one or other for one, other in zip(linked, self._linked_forward(present), strict=True)]
        when = program.computed_at()
        reached = [i for i, is_linked in enumerate(linked) if is_linked and is_inexact(program.out_avals[i])]
        reached.sort(key=lambda i: when[i])
        passes = reached == [0] and program.jaxpr.outvars[0] is program.jaxpr.invars[num_leaves]
        return Backward(Operation(program.keeping(reached), f"gradient of {self._operation.name}"), reached, passes)

    def _linked_forward(self, present: tuple[bool, ...]) -> list[bool]:
        """Whether these results depend on each watched input, by the way forward.

        The way back does not tell of results without elements: JAX's rule for convolutions gives up there, so that
        the replica with an empty share would have no gradient where the others have one.
        """
        count = len(self._avals)

        def tangents(*args: Any) -> list[Any]:
            def of_watched(*chosen: Any) -> list[Any]:
                full = list(args[:count])
                for position, value in zip(self._watched, chosen, strict=True):
                    full[position] = value
                return [one for one, here in zip(self._operation.function(*full), present, strict=True) if here]

            dots = [
                dot if is_inexact(self._avals[position]) else zero_tangent(self._avals[position])
                for position, dot in zip(self._watched, args[count:], strict=True)
            ]
            chosen = [args[position] for position in self._watched]
            return list(jax.jvp(of_watched, chosen, dots)[1])

        try:
            program = program_of(tangents, [*self._avals, *(self._avals[position] for position in self._watched)])
        except TypeError:  # a function with a gradient of its own has no way forward
            return [False] * len(self._watched)
        return [any(program.depends([count + i])) for i in range(len(self._watched))]

    def _give_up(self, failure: Exception, avals: tuple[Any, ...]) -> None:
        self.failure = failure
        self.forward, self.plan = self._operation, []
        self.out_avals = program_of(self._operation.function, avals).out_avals
        self.num_results = len(self.out_avals)
        self.tracked = [is_inexact(aval) for aval in self.out_avals]
        self.any_tracked = any(self.tracked)


class Backward:
    """The way back for one choice of results that have a cotangent.

    Attributes:
        operation: From the residuals and those cotangents to the cotangents of the inputs at `reached`.
        reached: Positions among the watched inputs that a cotangent can reach, in the order in which JAX computes the
            cotangents: that is the order in which it adds them to what has arrived by other ways.
        passes: Whether the operation gives a cotangent back as it came.
    """

    __slots__ = ("operation", "passes", "reached")

    def __init__(self, operation: Operation, reached: list[int], passes: bool) -> None:
        self.operation = operation
        self.reached = reached
        self.passes = passes


def linearize(function: Flat, args: Sequence[Any], watched: Sequence[int]) -> tuple[list[Any], Any]:
    """`function`'s results, and its pullback to the arguments at `watched`."""
    results, pullback, _ = linearize_with(function, args, watched, list)
    return results, pullback


def linearize_with(
    function: Flat, args: Sequence[Any], watched: Sequence[int], beside: Callable[[], list[Any]]
) -> tuple[list[Any], Any, list[Any]]:
    """As `linearize`, and what `beside()` gives once `function` has run, without a gradient."""

    def of_watched(*chosen: Any) -> tuple[list[Any], list[Any]]:
        full = list(args)
        for position, value in zip(watched, chosen, strict=True):
            full[position] = value
        results = list(function(*full))
        return results, beside()

    return jax.vjp(of_watched, *[args[position] for position in watched], has_aux=True)  # type: ignore[return-value]


def _no_cotangent(aval: Any) -> Any:
    return jnp.zeros(aval.shape, aval.dtype) if is_inexact(aval) else zero_tangent(aval)
