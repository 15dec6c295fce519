"""What a tape remembers: one record per operation that touched a watched value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from mirrored._jax.programs import is_inexact, zero_tangent
from mirrored.errors import TapeError
from mirrored.tape._operation import Flat, Operation, Rule, linearize

Key = int
Pulled = Sequence[tuple[int, Any]]
Runner = Callable[[Operation, Sequence[Any]], Sequence[Any]]

_keys = itertools.count(1)
new_key: Callable[[], Key] = _keys.__next__


class Record:
    """One operation: `in_keys` (the watched inputs) went in, `out_keys` (the results, None where untracked) came out.

    Attributes:
        step: How cotangents go back.
        inputs: All inputs as they came in, boxed; kept by persistent tapes, for derivatives of gradients.
    """

    __slots__ = ("in_keys", "inputs", "out_keys", "step")

    def __init__(self, step: Step, in_keys: Sequence[Key], out_keys: Sequence[Key | None], inputs: Any) -> None:
        self.step = step
        self.in_keys = in_keys
        self.out_keys = out_keys
        self.inputs = inputs


class Step:
    """How one record's cotangents go back.

    Attributes:
        watched: Positions of the tracked inputs among all inputs.
        meets: Whether it has to be taken by every replica, whether or not a cotangent has arrived at this one.
    """

    __slots__ = ()

    watched: tuple[int, ...] = ()
    meets = False

    def pull(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        """Pairs of a position in `record.in_keys` and its cotangent, for those that one reaches.

        Args:
            record: The record.
            cotangents: One per result, None where there is none.
            run: Applies operations in the context of the gradient.
        """
        raise NotImplementedError

    def pull_recorded(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        """The same as ordinary code of the record's inputs, so that the tape records it in turn."""
        return self.pull(record, cotangents, run)


def _pull_again(function: Flat, watched: Sequence[int], inputs: Sequence[Any], cotangents: list[Any]) -> Pulled:
    results, pullback = linearize(function, inputs, watched)
    full = [
        cotangent if cotangent is not None else no_cotangent(result)
        for cotangent, result in zip(cotangents, results, strict=True)
    ]
    return list(enumerate(pullback(full)))


def no_cotangent(value: Any) -> Any:
    """A zero cotangent for a result like `value` (an array or an abstract value)."""
    return jnp.zeros(value.shape, value.dtype) if is_inexact(value) else zero_tangent(value)


class RuleStep(Step):
    """By the rule of an operation and the residuals of this application."""

    __slots__ = ("operation", "residuals", "rule", "watched")

    def __init__(self, rule: Rule, residuals: list[Any], operation: Operation, watched: tuple[int, ...]) -> None:
        self.rule = rule
        self.residuals = residuals
        self.operation = operation
        self.watched = watched

    def pull(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        if len(cotangents) == 1:
            backward = self.rule.backward((True,))
            given = cotangents
        else:
            backward = self.rule.backward(tuple([cotangent is not None for cotangent in cotangents]))
            given = [cotangent for cotangent in cotangents if cotangent is not None]
        if not backward.reached:
            return ()
        return list(zip(backward.reached, run(backward.operation, [*self.residuals, *given]), strict=True))

    def pull_recorded(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        reached = self.rule.backward(tuple([cotangent is not None for cotangent in cotangents])).reached
        if not reached:
            return ()
        pulled = _pull_again(self.operation.function, self.watched, record.inputs, cotangents)
        return [pair for pair in pulled if pair[0] in reached]


class PullbackStep(Step):
    """By the pullback of `jax.vjp`, called as it is."""

    __slots__ = ("function", "out_avals", "pullback", "watched")

    def __init__(
        self,
        pullback: Callable[[list[Any]], Sequence[Any]],
        out_avals: list[Any],
        function: Flat,
        watched: tuple[int, ...],
    ) -> None:
        self.pullback = pullback
        self.out_avals = out_avals
        self.function = function
        self.watched = watched

    def pull(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        full = [
            cotangent if cotangent is not None else no_cotangent(aval)
            for cotangent, aval in zip(cotangents, self.out_avals, strict=True)
        ]
        return [pair for pair in enumerate(self.pullback(full)) if is_inexact(pair[1])]

    def pull_recorded(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        return _pull_again(self.function, self.watched, record.inputs, cotangents)


class AliasStep(Step):
    """The result is the input under another key."""

    __slots__ = ()

    def pull(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        return ((0, cotangents[0]),)


class FailedStep(Step):
    """There is no way back: said when a gradient gets here, not before."""

    __slots__ = ("failure", "name")

    def __init__(self, name: str, failure: Exception) -> None:
        self.name = name
        self.failure = failure

    def pull(self, record: Record, cotangents: list[Any], run: Runner) -> Pulled:
        raise TapeError(
            "GradientTape.gradient",
            found=f"the gradient comes back through {self.name!r}, which JAX cannot differentiate: {self.failure}",
            rule="a target may depend on a source only through operations that have a derivative",
            remedy="use lax.scan or lax.fori_loop with a fixed number of steps in place of lax.while_loop in compiled code, "
            "give the function a gradient with custom_gradient, or cut it off with stop_gradient",
        ) from self.failure
