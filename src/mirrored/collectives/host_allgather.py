"""Exchanges JSON values between worker processes through JAX's coordination service.

JAX says *process* where this library says *worker*. All workers must issue the same host all-gathers in the same order.
If a worker issues another one, or none in time, the error names that worker. A host all-gather takes about a
millisecond. It does not wait for devices, so it also works during tracing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax import distributed
from mirrored._jax.arrays import key_data
from mirrored._jax.source_lines import user_lines
from mirrored._typing import Operand
from mirrored.errors import AbsentWorkerError, DisagreementError
from mirrored.settings import AGREEMENT_SECONDS
from mirrored.watchdog.collective_log import collective_log

_ROOT: Final = "mirrored/host_allgather"


class _Allgathers:
    count = 0
    trusted = 0


@distributed.on_leave
def _reset() -> None:
    _Allgathers.count = _Allgathers.trusted = 0


def host_allgather(
    called: str, question: str, value: object = None, *, timeout_seconds: float | None = None
) -> list[Any]:
    """Exchanges a JSON value between all worker processes, and returns the values in worker order.

    Context: the main thread of every worker of a job, in the same order on all workers.

    Args:
        called: The function that the user called, for error messages.
        question: A label of the exchange, equal on all workers. It detects workers that are at different exchanges.
        value: JSON-serializable data.
        timeout_seconds: How long to wait for the other workers. The default is ``MIRRORED_AGREEMENT_SECONDS``, or ten
            minutes if that is not set.

    Returns:
        One value per worker, in the order of the workers.

    Raises:
        DisagreementError: Another worker issued a host all-gather with another label.
        AbsentWorkerError: Another worker did not issue it in time.
    """
    line = user_lines()
    with collective_log.at(f"{called}: {question}"[:200], line):
        return _allgather(called, question, value, timeout_seconds, line)


def _allgather(called: str, question: str, value: object, timeout_seconds: float | None, line: str) -> list[Any]:
    _Allgathers.count += 1
    key, here, count = f"{_ROOT}/{_Allgathers.count}", distributed.this_process(), distributed.num_processes()
    distributed.put(f"{key}/{here}", json.dumps([question, value, line]))
    limit = AGREEMENT_SECONDS.read() if timeout_seconds is None else timeout_seconds
    gathered = _wait_for_values(key, count, limit, called, f"{question} (at {line})")
    if _Allgathers.count > 1:
        # A worker that has put its value for this exchange has read all values of the previous one, so this worker's
        # previous value can be deleted.
        distributed.forget(f"{_ROOT}/{_Allgathers.count - 1}/{here}")
    for worker, (other, _, place) in enumerate(gathered):
        if other != question:
            raise _mismatched_exchange_error(called, here, f"{question} (at {line})", worker, f"{other} (at {place})")
    return [gathered_value for _, gathered_value, _ in gathered]


def _wait_for_values(key: str, count: int, limit: float, called: str, question: str) -> list[Any]:
    start = time.monotonic()
    found: dict[str, str] = {}
    while len(found) < count:
        found = distributed.get_all_below(key)
        missing = [str(worker) for worker in range(count) if str(worker) not in found]
        if missing:
            try:
                distributed.get(f"{key}/{missing[0]}", limit - (time.monotonic() - start))
            except distributed.NoAnswer:
                present = distributed.get_all_below(key)
                raise _absent_worker_error(called, question, [w for w in missing if w not in present], limit) from None
    return [json.loads(found[str(worker)]) for worker in range(count)]


def host_barrier(called: str, question: str) -> None:
    """Waits until all worker processes have called this function with the same `question` (a label)."""
    host_allgather(called, question)


def check_equal(called: str, values: Mapping[str, Any], *, rule: str, remedy: str) -> None:
    """Raises an error unless arrays or plain values are bit-identical on all worker processes.

    Workers exchange digests, not the values.

    Args:
        called: The function that the user called, for the error message.
        values: The values to compare, by name.
        rule: The rule in the error message.
        remedy: The remedy in the error message.

    Raises:
        DisagreementError: Some values differ. The message names these values and the workers.
    """
    if _Allgathers.trusted or not values:
        return
    own_digests = {name: digest(value) for name, value in values.items()}
    # Sorted, because workers may assign the same variables in other orders.
    all_digests = host_allgather(called, f"{called}: compare {', '.join(sorted(values)[:3])}", own_digests)
    different = {
        name: [worker for worker, theirs in enumerate(all_digests) if theirs.get(name) != all_digests[0].get(name)]
        for name in dict.fromkeys(name for digests in all_digests for name in digests)
    }
    unequal = {name: workers for name, workers in different.items() if workers}
    if unequal:
        differing = "; ".join(f"{name} on {_workers(workers)}" for name, workers in list(unequal.items())[:5])
        shown = ", ".join(
            f"{name} = {_short(values[name])}" if name in values else f"{name} is missing" for name in list(unequal)[:3]
        )
        here = distributed.this_process()
        raise DisagreementError(
            called,
            found=f"values differ from those of worker 0: {differing} (on this worker, {here}: {shown})",
            rule=rule,
            remedy=remedy,
        )


@contextmanager
def skipping_comparisons() -> Iterator[None]:
    """Disables `check_equal` during a ``with`` block, for values known to be equal on all workers."""
    _Allgathers.trusted += 1
    try:
        yield
    finally:
        _Allgathers.trusted -= 1


def digest(value: Operand) -> str:
    """Returns a hash of the bits, shape and dtype of a value."""
    array = np.asarray(key_data(value))
    hasher = hashlib.blake2b(digest_size=16)
    hasher.update(f"{array.dtype}{array.shape}".encode())
    # The text of a list has every element; that of a long array has only the first and last ones.
    hasher.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def _short(value: Operand) -> str:
    return np.array2string(np.asarray(key_data(value)), threshold=4)[:80]


def _workers(workers: Sequence[int | str]) -> str:
    return f"worker{'s' * (len(workers) > 1)} {', '.join(map(str, workers))}"


def _mismatched_exchange_error(called: str, here: int, question: str, worker: int, other: str) -> DisagreementError:
    return DisagreementError(
        called,
        found=f"worker {here} is at: {question}; worker {worker} is at: {other}",
        rule="all workers must run the same program: create the same variables, and make the same runs, reductions and "
        "checkpoints, in the same order",
        remedy="move the call out of the Python branch that only some workers enter; code that runs on one worker may "
        "print, plot, or read values (except of sync-on-read variables, which are aggregated over all workers)",
    )


def _absent_worker_error(called: str, question: str, missing: Sequence[str], seconds: float) -> AbsentWorkerError:
    return AbsentWorkerError(
        called,
        found=f"{_workers(missing)} did not arrive within {seconds:.0f} s at: {question}",
        rule="all workers must run the same program, in the same order",
        remedy="check whether only some workers make this call (a Python branch on the task), and read the output of "
        f"the missing workers; {AGREEMENT_SECONDS.name} sets the timeout",
    )
