"""The backward pass: visits a tape's records in reverse order and accumulates cotangents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from mirrored._jax import jit_key
from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import current_trace, is_eval, is_tracer
from mirrored.errors import TapeError
from mirrored.tape import catalogue
from mirrored.tape.operation import Operation
from mirrored.tape.record import Key, Loss, Record
from mirrored.tape.recorder import Recorder
from mirrored.tape.trace import TapeTrace, run_under


class Walk:
    """A backward pass over the records of one tape.

    Args:
        owner: The trace of the tape.
        recorder: The records and watched values of the tape.
        recorded: Whether the tape records the backward pass, as a persistent tape does inside its own block.
        forget: Whether each record is dropped after its use, which frees its residuals early.
    """

    def __init__(self, owner: TapeTrace, recorder: Recorder, *, recorded: bool, forget: bool) -> None:
        self._owner = owner
        self._recorder = recorder
        self._recorded = recorded
        self._forget = forget
        self._trace = current_trace()
        # Values whose gradient would be incomplete. Requesting one of them is an error.
        self._lost: dict[Key, Loss] = {}
        # The residuals of an outermost eager tape are plain arrays, so no trace needs to see the operations on them.
        self._direct = is_eval(self._trace) and owner.eager

    def again(self) -> Walk:
        """Returns the same backward pass under the current trace. It keeps the records.

        Under `jax.vmap`, which computes the rows of a Jacobian, the current trace is another one.
        """
        return Walk(self._owner, self._recorder, recorded=self._recorded, forget=False)

    def pull(self, seeds: dict[Key, Any], wanted: Iterable[Key]) -> dict[Key, Any]:
        """Computes the cotangents of the wanted keys.

        Args:
            seeds: The cotangents of the targets.
            wanted: The keys of the sources.

        Returns:
            The cotangents by key, without the keys that no cotangent reaches.

        Raises:
            TapeError: A wanted cotangent depends on an operation without a derivative.
        """
        cotangents, keep = dict(seeds), frozenset(wanted)
        self._lost = {}
        # The backward pass is not part of the tape, so JAX's cached traces are shared with code outside of tapes.
        token = jit_key.swap(None) if is_eval(self._trace) else None
        try:
            for record in self._records():
                self._step(record, cotangents, keep)
        finally:
            if is_eval(self._trace):
                jit_key.put(token)
        for key in keep:
            if key in self._lost:
                raise self._lost[key].error()
        return {key: cotangents[key] for key in keep if key in cotangents}

    def _records(self) -> Iterable[Record]:
        records = self._recorder.records
        if not self._forget:
            yield from reversed(records[:])
            return
        while records:
            yield records.pop()

    def _step(self, record: Record, cotangents: dict[Key, Any], keep: frozenset[Key]) -> None:
        if self._lost:
            self._propagate_losses(record)
        present = [None if key is None else _take(cotangents, key, keep) for key in record.out_keys]
        if not record.needs_all_replicas and all([cotangent is None for cotangent in present]):
            return
        loss = record.loss
        if loss is not None:
            self._lost.update((key, loss) for key in loss.keys if key not in self._lost)
        pull = record.pull_recorded if self._recorded else record.pull
        for position, cotangent in pull(present, self._run):
            key = record.in_keys[position]
            earlier = cotangents.get(key)
            cotangents[key] = cotangent if earlier is None else self._added(earlier, cotangent)

    def _propagate_losses(self, record: Record) -> None:
        """Marks the inputs of an operation as lost if one of its results is lost."""
        losses = [None if key is None else self._lost.get(key) for key in record.out_keys]
        found = next((loss for loss in losses if loss is not None), None)
        if found is None:
            return
        reached = record.reached(tuple([loss is not None for loss in losses]))
        behind = [record.in_keys[position] for position in reached]
        if record.loss is not None:
            behind += record.loss.keys
        self._lost.update((key, found) for key in behind if key not in self._lost)

    def _added(self, first: Any, second: Any) -> Any:
        try:
            return self._run(catalogue.ADD, [first, second])[0]
        except ValueError:
            # Under a tape around an eager run, the cotangents of a variable are on the devices of the replicas that
            # read it. The sum is computed on the device of the first one.
            if is_tracer(payload_of(first)):
                raise _on_several_devices() from None
            return self._run(catalogue.ADD, [first, jax.device_put(second, payload_of(first).sharding)])[0]

    def _run(self, operation: Operation, values: Sequence[Any]) -> Sequence[Any]:
        if self._direct:
            return operation.jitted(*values)
        return run_under(self._trace, operation, values)


def _on_several_devices() -> TapeError:
    return TapeError(
        "GradientTape.jacobian",
        found="cotangents on different devices, of a variable that several replicas of an eager run read",
        rule="jax.vmap, which computes all rows at once, cannot add cotangents on different devices",
        remedy="compile the whole step with mirrored.function, or pass experimental_use_pfor=False",
    )


def _take(cotangents: dict[Key, Any], key: Key, keep: frozenset[Key]) -> Any:
    return cotangents.get(key) if key in keep else cotangents.pop(key, None)
