"""What the workers of a job tell each other, host to host: every worker says a value and gets those of all.

All workers come to the same agreements in the same order; whoever comes with another question, or not at all, is named.
It goes by way of the coordinator (about a millisecond), does not wait for devices, and may be done while tracing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from mirrored._jax import coordination
from mirrored._jax.frames import user_lines
from mirrored._jax.keys import key_data
from mirrored.errors import AbsentWorkerError, DisagreementError
from mirrored.settings import AGREEMENT_SECONDS
from mirrored.watchdog.collective_log import collective_log

_ROOT: Final = "mirrored/agreement"


class _Allgathers:
    count = 0
    trusted = 0


def host_allgather(called: str, question: str, value: Any = None, *, timeout_seconds: float | None = None) -> list[Any]:
    """Tells the other workers a value, and gets that of each.

    Context: the main thread of every worker of a job, in the same order everywhere.

    Args:
        called: What the user called, for messages.
        question: What it is about; the same on all workers.
        value: JSON-like data.
        timeout_seconds: How long to wait for the others. Default: ``MIRRORED_AGREEMENT_SECONDS``, or ten minutes.

    Returns:
        One value per worker, in their order.

    Raises:
        DisagreementError: A worker has come with another question.
        AbsentWorkerError: A worker has not come in time.
    """
    line = user_lines()
    with collective_log.at(f"{called}: {question}"[:200], line):
        return _agreed(called, question, value, timeout_seconds, line)


def _agreed(called: str, question: str, value: Any, timeout_seconds: float | None, line: str) -> list[Any]:
    _Allgathers.count += 1
    key, here, count = f"{_ROOT}/{_Allgathers.count}", coordination.this_process(), coordination.num_processes()
    coordination.put(f"{key}/{here}", json.dumps([question, value, line]))
    limit = AGREEMENT_SECONDS.read() if timeout_seconds is None else timeout_seconds
    answers = _answers(key, count, limit, called, f"{question} (at {line})")
    if _Allgathers.count > 1:
        # Whoever has answered this question has read all answers to the one before.
        coordination.forget(f"{_ROOT}/{_Allgathers.count - 1}/{here}")
    for worker, (other, _, place) in enumerate(answers):
        if other != question:
            raise _apart(called, here, f"{question} (at {line})", worker, f"{other} (at {place})")
    return [answer for _, answer, _ in answers]


def _answers(key: str, count: int, limit: float, called: str, question: str) -> list[Any]:
    start = time.monotonic()
    found: dict[str, str] = {}
    while len(found) < count:
        found = coordination.below(key)
        missing = [str(worker) for worker in range(count) if str(worker) not in found]
        if missing:
            try:
                coordination.get(f"{key}/{missing[0]}", limit - (time.monotonic() - start))
            except coordination.NoAnswer:
                present = coordination.below(key)
                raise _absent(called, question, [w for w in missing if w not in present], limit) from None
    return [json.loads(found[str(worker)]) for worker in range(count)]


def host_barrier(called: str, question: str) -> None:
    """Waits until all workers have come here."""
    host_allgather(called, question)


def check_equal(called: str, values: Mapping[str, Any], *, rule: str, remedy: str) -> None:
    """Refuses arrays or plain values that are not the same on all workers, bit for bit.

    Args:
        called: What the user called.
        values: By name.
        rule: For the message.
        remedy: For the message.

    Raises:
        DisagreementError: Naming the values and the workers that differ.
    """
    if _Allgathers.trusted or not values:
        return
    mine = {name: digest(value) for name, value in values.items()}
    everyone = host_allgather(called, f"{called}: are {', '.join(list(values)[:3])} equal", mine)
    different = {
        name: [worker for worker, theirs in enumerate(everyone) if theirs.get(name) != everyone[0].get(name)]
        for name in mine
    }
    wrong = {name: workers for name, workers in different.items() if workers}
    if wrong:
        told = "; ".join(f"{name} on {_workers(workers)}" for name, workers in list(wrong.items())[:5])
        shown = ", ".join(f"{name} = {_short(values[name])}" for name in list(wrong)[:3])
        here = coordination.this_process()
        raise DisagreementError(
            called,
            found=f"not what it is on worker 0: {told} (here, on worker {here}: {shown})",
            rule=rule,
            remedy=remedy,
        )


@contextmanager
def skipping_comparisons() -> Iterator[None]:
    """In the block values need not be compared: they are known to come from one source."""
    _Allgathers.trusted += 1
    try:
        yield
    finally:
        _Allgathers.trusted -= 1


def digest(value: Any) -> str:
    """A short text that is the same for the same bits, shape and dtype."""
    array = np.asarray(key_data(value))
    made = hashlib.blake2b(digest_size=16)
    made.update(f"{array.dtype}{array.shape}".encode())
    made.update(repr(value).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def _short(value: Any) -> str:
    return np.array2string(np.asarray(key_data(value)), threshold=4)[:80]


def _workers(workers: Sequence[int | str]) -> str:
    return f"worker{'s' * (len(workers) > 1)} {', '.join(map(str, workers))}"


def _apart(called: str, here: int, question: str, worker: int, other: str) -> DisagreementError:
    return DisagreementError(
        called,
        found=f"worker {here} is at: {question}; worker {worker} at: {other}",
        rule="all workers run the same program: they create the same variables and make the same runs, reductions and "
        "checkpoints in the same order",
        remedy="take it out of the Python branch that only some workers enter; on one worker alone only print, plot, "
        "or look at values (not of sync-on-read variables, which are aggregated over all workers)",
    )


def _absent(called: str, question: str, missing: Sequence[str], seconds: float) -> AbsentWorkerError:
    return AbsentWorkerError(
        called,
        found=f"{_workers(missing)} did not come within {seconds:.0f} s to: {question}",
        rule="all workers run the same program, in the same order",
        remedy="look whether only some workers call it (a Python branch on the task), and at the output of the missing "
        f"ones; {AGREEMENT_SECONDS.name} says how long to wait",
    )
