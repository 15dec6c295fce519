"""Walking a tape's records backwards."""

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
    """One way back through a tape's records.

    Args:
        owner: The tape's trace.
        recorder: Its memory.
        recorded: Whether the tape records the way back too, as it does inside its own block if it is persistent.
        forget: Whether each record is dropped once it has been used.
    """

    def __init__(self, owner: TapeTrace, recorder: Recorder, *, recorded: bool, forget: bool) -> None:
        self._owner = owner
        self._recorder = recorder
        self._recorded = recorded
        self._forget = forget
        self._trace = current_trace()
        # Values whose gradient would lack a part: it is an error if one of them is wanted.
        self._lost: dict[Key, Loss] = {}
        # Residuals of a tape without another one around it are plain arrays.
        self._direct = is_eval(self._trace) and owner.eager

    def again(self) -> Walk:
        """The same way back under the trace that is current now, keeping the records."""
        return Walk(self._owner, self._recorder, recorded=self._recorded, forget=False)

    def pull(self, seeds: dict[Key, Any], wanted: Iterable[Key]) -> dict[Key, Any]:
        """Cotangents of the wanted keys, of those that one reaches.

        Args:
            seeds: Cotangents of the targets.
            wanted: Keys of the sources.
        """
        cotangents, keep = dict(seeds), frozenset(wanted)
        self._lost = {}
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
            self._hand_on_losses(record)
        arrived = [None if key is None else _take(cotangents, key, keep) for key in record.out_keys]
        if not record.meets and all([cotangent is None for cotangent in arrived]):
            return
        loss = record.loss
        if loss is not None:
            self._lost.update((key, loss) for key in loss.keys if key not in self._lost)
        pull = record.pull_recorded if self._recorded else record.pull
        for position, cotangent in pull(arrived, self._run):
            key = record.in_keys[position]
            before = cotangents.get(key)
            cotangents[key] = cotangent if before is None else self._added(before, cotangent)

    def _hand_on_losses(self, record: Record) -> None:
        """What a lost value was computed from is lost in turn."""
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
            # A variable that several replicas have read under a tape around them: each cotangent is on another device.
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
        found="cotangents on different devices, of a variable that the replicas of an eager run have read",
        rule="jax.vmap, which computes all rows at once, adds up no cotangents of different devices",
        remedy="compile the whole step with mirrored.function, or pass experimental_use_pfor=False",
    )


def _take(cotangents: dict[Key, Any], key: Key, keep: frozenset[Key]) -> Any:
    return cotangents.get(key) if key in keep else cotangents.pop(key, None)
