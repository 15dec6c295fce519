"""Records of a tape, one per recorded operation, and `Recorder`, which holds them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mirrored._jax.boxes import STAND_INS, Box, another_object
from mirrored._jax.inlining import JaxprProgram, program_of
from mirrored._jax.jaxprs import aval_of, is_inexact, zero_tangent
from mirrored._jax.traces import ShapedArray, Tracer, another_tracer
from mirrored.analysis.dataflow import reached_results
from mirrored.runtime.ambient import ambient, is_tracked
from mirrored.tape.no_derivative import Key, NoDerivative, closed_over, not_derived
from mirrored.tape.operation import Flat, Operation, Rule, linearize

if TYPE_CHECKING:
    import jax

    from mirrored._typing import Operand
    from mirrored.runtime.ambient import ReadableVariable
    from mirrored.tape.trace import TapeTrace

Pulled = Iterable[tuple[int, Any]]
_ONLY: tuple[bool, ...] = (True,)
Runner = Callable[[Operation, Sequence[Any]], Sequence[Any]]

_keys = itertools.count(1)
new_key: Callable[[], Key] = _keys.__next__


class Record:
    """Base class of tape records: one recorded operation with its pullback (VJP function).

    Attributes:
        in_keys: The keys of the watched inputs.
        out_keys: The keys of the results. None for a result that is not tracked.
        inputs: All inputs, with watched ones in boxes. Only persistent tapes keep them, for derivatives of gradients.
        watched: The positions of the watched inputs among all inputs.
        needs_all_replicas: Whether every replica must execute this pullback, even if no cotangent has reached it.
        no_derivative: Values on which the operation depends without a derivative, or None.
    """

    __slots__ = ("in_keys", "inputs", "out_keys", "watched")

    needs_all_replicas = False
    no_derivative: NoDerivative | None = None

    def __init__(self, in_keys: Sequence[Key], watched: tuple[int, ...] = ()) -> None:
        self.in_keys = in_keys
        self.watched = watched
        self.out_keys: Sequence[Key | None] = ()
        self.inputs: Sequence[Any] | None = None

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        """Computes the cotangents of this operation's watched inputs from the cotangents of its results.

        Args:
            cotangents: One cotangent per result, or None.
            run: Applies operations in the context of the backward pass.

        Returns:
            Pairs of a position in `in_keys` and its cotangent, for the inputs that a cotangent reaches.
        """
        raise NotImplementedError

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        """Computes the cotangents of the watched inputs while the tape records the computation.

        So the gradient can be differentiated again.
        """
        return self.pull(cotangents, run)

    def reached(self, present: tuple[bool, ...]) -> Iterable[int]:
        """Returns the indices of the watched inputs that receive a cotangent."""
        return range(len(self.in_keys))


class RuleRecord(Record):
    """The tape record of an operation with a cached VJP rule; the record holds the saved values (residuals)."""

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
        if len(cotangents) == 1:  # The common case. `Walk` skips the record if the only cotangent is None.
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
        pulled = dict(_pull_from_inputs(self, self.operation.function, cotangents))
        return [(position, pulled[position]) for position in reached]

    def reached(self, present: tuple[bool, ...]) -> Iterable[int]:
        avals = zip(present, self.rule.out_avals, strict=True)
        return self.rule.backward(tuple([here and is_inexact(aval) for here, aval in avals])).reached


class PartialRuleRecord(RuleRecord):
    """A `RuleRecord` of an operation that has no derivative for some of its watched inputs."""

    __slots__ = ("no_derivative",)

    def __init__(
        self,
        in_keys: Sequence[Key],
        watched: tuple[int, ...],
        operation: Operation,
        rule: Rule,
        residuals: list[Any],
        no_derivative: NoDerivative,
    ) -> None:
        super().__init__(in_keys, watched, operation, rule, residuals)
        self.no_derivative = no_derivative


class PullbackRecord(Record):
    """The tape record of an operation that was differentiated by `jax.vjp` when it ran."""

    __slots__ = ("no_derivative", "function", "out_avals", "pullback")

    def __init__(
        self,
        in_keys: Sequence[Key],
        watched: tuple[int, ...],
        function: Flat,
        pullback: Callable[[list[Any]], Sequence[Any]],
        out_avals: list[Any],
        no_derivative: NoDerivative | None = None,
    ) -> None:
        super().__init__(in_keys, watched)
        self.no_derivative = no_derivative
        self.function = function
        self.pullback = pullback
        self.out_avals = out_avals

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        full = completed(cotangents, self.out_avals)
        return [pair for pair in enumerate(self.pullback(full)) if is_inexact(pair[1])]

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        return _pull_from_inputs(self, self.function, cotangents)


class LinearPullbackRecord(PullbackRecord):
    """Tape record of an operation whose pullback calls no user-defined derivative rule.

    The pullback can therefore be traced. A `jax.custom_jvp` rule has already run: the pullback is the transpose of its
    linear program, which shows the inputs that a cotangent reaches. A `jax.custom_vjp` rule runs in the pullback, may
    need concrete values, and gives a cotangent for every input.
    """

    __slots__ = ()

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        program, reached = self._traced(cotangents)
        return list(zip(reached, program(*[one for one in cotangents if one is not None]), strict=True))

    def pull_recorded(self, cotangents: list[Any], run: Runner) -> Pulled:
        _, reached = self._traced(cotangents)
        return [pair for pair in super().pull_recorded(cotangents, run) if pair[0] in reached]

    def _traced(self, cotangents: list[Any]) -> tuple[JaxprProgram, list[int]]:
        """Returns the traced pullback of the cotangents that are not None, and the indices of the inputs they reach."""

        def pull(*given: Any) -> Sequence[Any]:
            remaining = iter(given)
            full = [None if cotangent is None else next(remaining) for cotangent in cotangents]
            return self.pullback(completed(full, self.out_avals))

        avals = [aval_of(cotangent) for cotangent in cotangents if cotangent is not None]
        program = program_of(pull, avals)
        linked = reached_results(program.jaxpr, range(len(avals)))
        reached = [i for i, aval in enumerate(program.out_avals) if linked[i] and is_inexact(aval)]
        return program.keeping(reached), reached


class AliasRecord(Record):
    """The tape record of an operation that passes cotangents on unchanged, such as a variable read or `x + 1.0`."""

    __slots__ = ()

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        return ((0, cotangents[0]),)


class PartialAliasRecord(Record):
    """The tape record of an operation that passes cotangents unchanged to some inputs, and none to the others.

    Attributes:
        passed: For each watched input, the position of the result that is the input itself.
    """

    __slots__ = ("no_derivative", "passed")

    def __init__(self, in_keys: Sequence[Key], passed: Sequence[int], no_derivative: NoDerivative) -> None:
        super().__init__(in_keys)
        self.passed = passed
        self.no_derivative = no_derivative

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        given = enumerate(cotangents[result] for result in self.passed)
        return [(position, cotangent) for position, cotangent in given if cotangent is not None]


class FailedRecord(Record):
    """The tape record of an operation without a derivative: a gradient through the operation raises an error.

    The backward pass raises an error only if a requested gradient depends on the operation.
    """

    __slots__ = ("no_derivative",)

    def __init__(self, no_derivative: NoDerivative) -> None:
        super().__init__(())
        self.no_derivative = no_derivative

    def pull(self, cotangents: list[Any], run: Runner) -> Pulled:
        return ()


def partial_record(
    operation: Operation, rule: Rule, keys: dict[int, Key], values: list[Any], results: list[Any]
) -> Record:
    """Creates the tape record of an operation that has no derivative for some of its watched inputs."""
    lost = [keys[position] for position in rule.lost]
    name = operation.name
    no_derivative = closed_over(lost, name) if rule.failure is None else not_derived(lost, name, rule.failure)
    if not rule.watched:
        return FailedRecord(no_derivative)
    kept = [keys[position] for position in rule.watched]
    return PartialRuleRecord(kept, rule.watched, operation, rule, rule.residuals(values, results), no_derivative)


def _pull_from_inputs(record: Record, function: Flat, cotangents: list[Any]) -> Pulled:
    assert record.inputs is not None
    results, pullback = linearize(function, record.inputs, record.watched)
    return list(enumerate(pullback(completed(cotangents, results))))


def completed(cotangents: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Returns the cotangents of all results of an operation, with zeros in place of None."""
    return [
        no_cotangent(result) if cotangent is None else cotangent
        for cotangent, result in zip(cotangents, like, strict=True)
    ]


def no_cotangent(value: jax.Array | ShapedArray) -> Any:
    """Returns the zero cotangent for a result with the shape and dtype of `value`."""
    return jnp.zeros(value.shape, value.dtype) if is_inexact(value) else zero_tangent(value)


# `Recorder`, which holds the records and watched values of one tape.


class Read(NamedTuple):
    """A recorded read of a variable in a nested traced function."""

    variable: ReadableVariable
    value: Any  # the tracer that the read has returned
    stored: Any  # the tracer that the variable's store gave


class Recorder:
    """The contents of a tape since its creation or reset: operations, tracked arrays and watched variables.

    Attributes:
        records: The records of operations, in order.
        known: Tracked objects that are not boxes of this tape, by `id`: arrays of the user, tracers of the outer trace,
            and boxes of an outer tape. Each entry holds the key and the object, so that its id is not reused.
        variables: The variables that were read or watched, by `id`, with their keys.
        reads: The reads of variables in nested functions, by the `id` of the tracer that the variable's store gave.
        reassigned: Variables that a framework which differentiates assignments has assigned a tracked value, by `id`,
            with the key of the value by local replica. The replica is None for an assignment outside of replicas, and
            the key is None for a later assignment in one replica that has no derivative.
        explicit: The ids of variables that were passed to `watch`.
        since: Boxes of the tape with keys up to this one are older than the last `reset`, and not tracked.
        watch_accessed_variables: Whether reading a trainable variable watches it.
        persistent: Whether records keep their inputs, which are needed to differentiate gradients that are computed
            inside the tape's own block.
    """

    __slots__ = (
        "explicit",
        "known",
        "persistent",
        "reads",
        "reassigned",
        "records",
        "since",
        "variables",
        "watch_accessed_variables",
    )

    def __init__(self, persistent: bool, watch_accessed_variables: bool) -> None:
        self.persistent = persistent
        self.watch_accessed_variables = watch_accessed_variables
        self.records: list[Record] = []
        self.known: dict[int, tuple[Key, Any]] = {}
        self.variables: dict[int, tuple[Key, Any]] = {}
        self.reads: dict[int, Read] = {}
        self.reassigned: dict[int, tuple[Any, dict[int | None, Key | None]]] = {}
        self.explicit: set[int] = set()
        self.since = new_key()

    def forget(self) -> None:
        """Drops the recorded operations and tracked arrays, but keeps the set of watched variables."""
        self.records.clear()
        self.known.clear()
        self.reads.clear()
        self.reassigned.clear()

    def key_of(self, value: object, owner: TapeTrace) -> Key | None:
        """Returns the key by which the tape identifies a tracked array; None if the array is not tracked."""
        if type(value) is Box and value.owner is owner and value.key > self.since:
            return value.key
        entry = self.known.get(id(value))
        return None if entry is None else entry[0]

    def watch(self, value: jax.Array, owner: TapeTrace) -> None:
        """Starts tracking an array, so that later operations on the array are recorded."""
        if self.key_of(value, owner) is not None:
            return
        key = new_key()
        self.known[id(value)] = (key, value)
        if type(value) is Box:
            # An outer tape that does not track the value passes on the payload of the box.
            self.known.setdefault(id(value.payload), (key, value.payload))

    def watch_variable(self, variable: ReadableVariable) -> None:
        """Starts watching a variable, so that operations on its value are recorded after each later read."""
        self.explicit.add(id(variable))
        self.variable_key(variable)

    def watches(self, variable: ReadableVariable) -> bool:
        """Returns whether the tape watches `variable`, so that its reads are recorded."""
        return (self.watch_accessed_variables and variable.trainable) or id(variable) in self.explicit

    def reassign(self, variable: ReadableVariable, value: object, owner: TapeTrace) -> None:
        """Records an assignment; if `value` is tracked, gradients of later reads of the variable flow to `value`."""
        key = self.key_of(value, owner)
        replica = _local_replica()
        if replica is None:
            self.reassigned.pop(id(variable), None)
        if key is not None or id(variable) in self.reassigned:
            self.reassigned.setdefault(id(variable), (variable, {}))[1][replica] = key

    def read_key(self, variable: ReadableVariable) -> Key:
        """Returns the key of the value or variable that receives the gradient of a read."""
        if id(variable) not in self.reassigned:
            return self.variable_key(variable)
        _, keys = self.reassigned[id(variable)]
        replica = _local_replica()
        assigned = keys.get(0 if replica is None and None not in keys else replica, keys.get(None))
        return self.variable_key(variable) if assigned is None else assigned

    def variable_key(self, variable: ReadableVariable) -> Key:
        """Returns the key of `variable` on the tape, under which the cotangents of all its reads are summed."""
        entry = self.variables.get(id(variable))
        if entry is None:
            entry = self.variables[id(variable)] = (new_key(), variable)
        return entry[0]

    def read(self, variable: ReadableVariable, value: jax.Array, owner: TapeTrace, *, is_nested: bool = False) -> Any:
        """Records a read of `variable`, and returns the value as an array that the tape tracks.

        Each read returns another array, with a gradient of its own. Only reads in functions that are traced inside the
        block (`is_nested`), such as the body of a loop, share one array, which is one constant of the function.
        """
        if not is_inexact(aval_of(value)):
            return value
        earlier = self.reads.get(id(value)) if is_nested else None
        if earlier is not None and earlier.variable is variable:
            return earlier.value
        key = new_key()
        if isinstance(value, Tracer):
            # The program may use this tracer outside of the tape, too, where it is a constant. So the read returns
            # another object: a copy if an outer tape records operations on the value.
            is_of_outer = type(owner.parent) is type(owner) or type(value) in STAND_INS or is_tracked(value)
            if is_of_outer or (own := another_tracer(value)) is None:
                own = owner.copied(value)
            if is_nested:
                self.reads[id(value)] = Read(variable, own, value)
            value = own
        else:
            value = self.untracked(value, owner)
        if owner.is_concrete(value):
            value = Box(owner, value, key)
        else:
            self.known[id(value)] = (key, value)
        record = AliasRecord((self.read_key(variable),))
        record.out_keys = (key,)
        self.records.append(record)
        return value

    def untracked(self, value: jax.Array, owner: TapeTrace) -> Any:
        """Returns `value` as an array that this tape does not track; creates a new object if necessary.

        An assigned value may be tracked as the result of an operation. Reading the variable gives an independent value.
        """
        if type(value) is Box and value.owner is owner:
            return value.payload
        if self.key_of(value, owner) is None:
            return value
        # The array that a variable stores may itself be watched, if it was read as a constant.
        distinct_object = another_object(value)
        return distinct_object if distinct_object is not value else owner.copied(value)


def _local_replica() -> int | None:
    replica = ambient().replica
    return None if replica is None else replica.local_index


def owned_operand(operand: Operand) -> Any:
    """Copies an operand if it is a NumPy array, whose memory the caller may overwrite later.

    A record keeps its operands as residuals until the backward pass, and JAX may alias NumPy memory. The caller may
    refill the array in between, for instance with the next batch. TensorFlow copies as well.
    """
    return operand.copy() if isinstance(operand, np.ndarray) else operand
