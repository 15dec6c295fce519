"""What a tape remembers: one record per operation that touched a watched value."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from mirrored._jax.programs import is_inexact, zero_tangent
from mirrored.errors import TapeError
from mirrored.tape.operation import Flat, Operation, Rule, linearize

Key = int
Pulled = Iterable[tuple[int, Any]]
_ONLY: tuple[bool, ...] = (True,)
Runner = Callable[[Operation, Sequence[Any]], Sequence[Any]]

_keys = itertools.count(1)
new_key: Callable[[], Key] = _keys.__next__


@dataclasses.dataclass(frozen=True)
class Loss:
    """Values on which an operation depends without a derivative.

    A gradient that comes back to the operation is refused if one of its sources lies behind such a value.

    Attributes:
        keys: The values.
        name: The operation.
        failure: Why there is no derivative.
        remedy: What to do about it.
    """

    keys: Sequence[Key]
    name: str
    failure: Exception | str
    remedy: str = (
        "in compiled code use lax.scan, or lax.fori_loop with a fixed number of steps, in place of lax.while_loop; "
        "give the function a gradient with custom_gradient; or cut it off with stop_gradient"
    )

    def error(self) -> TapeError:
        """What the gradient raises."""
        error = TapeError(
            "GradientTape.gradient",
            found=f"the gradient comes back through {self.name!r}, which JAX cannot differentiate: {self.failure}",
            rule="a target may depend on a source only through operations that have a derivative",
            remedy=self.remedy,
        )
        error.__cause__ = self.failure if isinstance(self.failure, Exception) else None
        return error


def closed_over(keys: Sequence[Key], name: str) -> Loss:
    """The loss of what a function with a derivative of its own closes over."""
    return Loss(
        keys,
        name,
        "the function closes over a watched value or reads a watched variable, and its own derivative rule says "
        "nothing about that value",
        "pass the value as an argument of the function, for instance f(x, w.read_value()), and return its cotangent "
        "from the rule; or, if no gradient is to reach it, close over stop_gradient(value)",
    )


class Record:
    """One operation: the values of `in_keys` went in, those of `out_keys` came out.

    Attributes:
        in_keys: Keys of the watched inputs.
        out_keys: Keys of the results, None where a result is not tracked.
        inputs: All inputs as they came in, boxed; kept by persistent tapes, for derivatives of gradients.
        watched: Positions of the watched inputs among all inputs.
        meets: Whether every replica has to take this step, whether or not a cotangent has arrived at it.
        loss: What it depends on besides, without a derivative.
    """

    __slots__ = ("in_keys", "inputs", "out_keys", "watched")

    meets = False
    loss: Loss | None = None

    def __init__(self, in_keys: Sequence[Key], watched: tuple[int, ...] = ()) -> None:
        self.in_keys = in_keys
        self.watched = watched
        self.out_keys: Sequence[Key | None] = ()
        self.inputs: Sequence[Any] | None = None

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        """Pairs of a position in `in_keys` and its cotangent, for those that one reaches.

        Args:
            cotangents: One per result, None where there is none.
            run: Applies operations in the context of the gradient.
        """
        raise NotImplementedError

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        """The same as ordinary code of the inputs, so that the tape records it in turn."""
        return self.pull(cotangents, run)

    def reached(self, present: tuple[bool, ...]) -> Iterable[int]:
        """Positions in `in_keys` on which these results depend."""
        return range(len(self.in_keys))


class RuleRecord(Record):
    """Goes back by the rule of an operation and the residuals of this application."""

    __slots__ = ("operation", "residuals", "rule")

    def __init__(
        self,
        in_keys: Sequence[Key],
        watched: tuple[int, ...],
        operation: Operation,
        rule: Rule,
        residuals: list[Any],
    ) -> None:
        self.in_keys = in_keys
        self.watched = watched
        self.out_keys = ()
        self.inputs = None
        self.operation = operation
        self.rule = rule
        self.residuals = residuals

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        if len(cotangents) == 1:  # nearly all; a record whose only result has no cotangent is passed over
            present, given = _ONLY, cotangents
        else:
            present = tuple([cotangent is not None for cotangent in cotangents])
            given = [cotangent for cotangent in cotangents if cotangent is not None]
        backward = self.rule.backward(present)
        if not backward.reached:
            return ()
        return zip(backward.reached, run(backward.operation, [*self.residuals, *given]), strict=True)

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        reached = self.rule.backward(tuple([cotangent is not None for cotangent in cotangents])).reached
        if not reached:
            return ()
        pulled = dict(_pull_again(self, self.operation.function, cotangents))
        return [(position, pulled[position]) for position in reached]

    def reached(self, present: tuple[bool, ...]) -> Iterable[int]:
        tracked = tuple([here and is_inexact(aval) for here, aval in zip(present, self.rule.out_avals, strict=True)])
        return self.rule.backward(tracked).reached


class PartialRuleRecord(RuleRecord):
    """A rule that says how to go back to some of the watched inputs."""

    __slots__ = ("loss",)

    def __init__(
        self,
        in_keys: Sequence[Key],
        watched: tuple[int, ...],
        operation: Operation,
        rule: Rule,
        residuals: list[Any],
        loss: Loss,
    ) -> None:
        super().__init__(in_keys, watched, operation, rule, residuals)
        self.loss = loss


class PullbackRecord(Record):
    """Goes back by the pullback of `jax.vjp`, called as it is."""

    __slots__ = ("loss", "function", "out_avals", "pullback")

    def __init__(
        self,
        in_keys: Sequence[Key],
        watched: tuple[int, ...],
        function: Flat,
        pullback: Callable[[list[Any]], Sequence[Any]],
        out_avals: list[Any],
        loss: Loss | None = None,
    ) -> None:
        super().__init__(in_keys, watched)
        self.loss = loss
        self.function = function
        self.pullback = pullback
        self.out_avals = out_avals

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        full = completed(cotangents, self.out_avals)
        return [pair for pair in enumerate(self.pullback(full)) if is_inexact(pair[1])]

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        return _pull_again(self, self.function, cotangents)


class AliasRecord(Record):
    """The result's cotangent is the input's: a read of a variable, `x + 1.0`."""

    __slots__ = ()

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        return ((0, cotangents[0]),)


class LossyRecord(Record):
    """The cotangents of the results are those of the inputs, and something else on which they depend is lost."""

    __slots__ = ("loss",)

    def __init__(self, in_keys: Sequence[Key], loss: Loss) -> None:
        super().__init__(in_keys)
        self.loss = loss

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        return [(position, cotangent) for position, cotangent in enumerate(cotangents) if cotangent is not None]


class FailedRecord(Record):
    """An operation without a pullback: raises when a gradient reaches it on the way to a source, not before."""

    __slots__ = ("loss",)

    def __init__(self, loss: Loss) -> None:
        super().__init__(())
        self.loss = loss

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        return ()


def partial_record(
    operation: Operation, rule: Rule, keys: dict[int, Key], values: list[Any], results: list[Any]
) -> Record:
    """The record of an operation that has no derivative with respect to some of its watched inputs."""
    lost = [keys[position] for position in rule.lost]
    loss = closed_over(lost, operation.name) if rule.failure is None else Loss(lost, operation.name, rule.failure)
    if not rule.watched:
        return FailedRecord(loss)
    kept = [keys[position] for position in rule.watched]
    return PartialRuleRecord(kept, rule.watched, operation, rule, rule.residuals(values, results), loss)


def _pull_again(record: Record, function: Flat, cotangents: list[Any]) -> Pulled:
    assert record.inputs is not None
    results, pullback = linearize(function, record.inputs, record.watched)
    return list(enumerate(pullback(completed(cotangents, results))))


def completed(cotangents: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """`cotangents` with zeros for None; `like` gives the results' shapes and dtypes."""
    return [
        no_cotangent(result) if cotangent is None else cotangent
        for cotangent, result in zip(cotangents, like, strict=True)
    ]


def no_cotangent(value: Any) -> Any:
    """A zero cotangent for a result like `value` (an array or an abstract value)."""
    return jnp.zeros(value.shape, value.dtype) if is_inexact(value) else zero_tangent(value)
