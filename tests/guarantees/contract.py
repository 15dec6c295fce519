"""The contract: what every cell of the matrix must hold."""

from __future__ import annotations

import functools
import hashlib
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import mirrored as mr
from guarantees.cells import Cell, is_met
from guarantees.paths import PATHS, KerasFit, nothing
from guarantees.problem import BATCH, EXAMPLES, STEPS, data, initial, reference
from mirrored.testing import assert_copies_equal, assert_same_bits, count_work


class Failure(Exception):
    """What the hook of a failing step raises."""


class Run:
    """A path on the layout of a cell, run in its way.

    Args:
        cell: The cell.
        strategy: Default: a `MirroredStrategy` of the cell's layout.

    Attributes:
        order: The numbers of the batches that the state has seen.
    """

    def __init__(self, cell: Cell, strategy: Any = None) -> None:
        names = [f"CPU:{index}" for index in range(cell.devices)]
        self.strategy = strategy or mr.MirroredStrategy(names, num_replicas=cell.replicas, deterministic=True)
        self.path = PATHS[cell.path](self.strategy)
        self.order: list[int] = []
        self.many = 2 if cell.way == "steps_per_call" else 1
        if isinstance(self.path, KerasFit):
            self.path.compile(run_eagerly=cell.way == "eager", steps_per_execution=self.many)
            return
        options = mr.data.InputOptions(last_batch="pad")
        batches = mr.data.Dataset.from_tensor_slices(data()).batch(BATCH)
        self.dataset = self.strategy.experimental_distribute_dataset(batches, options)
        step = self.path.step
        if self.many == 2:
            step = mr.function(step, steps_per_call=2)
        elif cell.way != "eager":
            step = mr.function(step)
        self.step: Callable[..., Any] = step

    def epoch(self) -> list[float]:
        """The losses of an epoch; of `fit`, their mean."""
        before = self.count()
        try:
            if isinstance(self.path, KerasFit):
                return self.path.epoch()
            return [loss for call in self.calls() for loss in call()]
        finally:
            self.order += range(self.count() - before)

    def calls(self) -> Iterable[Callable[[], list[float]]]:
        """The calls of an epoch, each of one or two steps."""
        waiting = []
        for batch in self.dataset:
            waiting.append(batch)
            if len(waiting) == self.many:
                yield functools.partial(self._call, tuple(waiting))
                waiting = []

    def _call(self, batches: tuple[Any, ...]) -> list[float]:
        found = self.step(*batches[0]) if self.many == 1 else self.step(list(batches))
        return [float(loss) for loss in np.ravel(found)]

    def count(self) -> int:
        """How many steps the state has seen."""
        if isinstance(self.path, KerasFit):
            return int(self.path.optimizer.iterations.value)
        return int(self.path.count.numpy())

    def bits(self) -> str:
        """A hash of the weights."""
        joined = b"".join(value.tobytes() for _, value in sorted(self.path.weights().items()))
        return hashlib.sha256(joined).hexdigest()

    def assert_trained(self) -> None:
        """Asserts that the weights are those of one device after the same steps.

        The part `c` counts: it is right only if each step used each of its examples once.
        """
        weights = self.path.weights()
        if not self.order:
            return assert_same_bits(weights, initial())
        wanted = reference(tuple(self.order), self.path.momentum)[-1].weights
        told = f"after the batches {self.order}"
        np.testing.assert_allclose(weights["c"], wanted["c"], rtol=1e-5, atol=1e-6, err_msg=f"examples {told}")
        np.testing.assert_allclose(weights["v"], wanted["v"], rtol=1e-4, atol=1e-5, err_msg=f"weights {told}")

    def wanted_losses(self) -> list[float]:
        """The losses of the steps so far, on one device."""
        return [one.loss for one in reference(tuple(self.order), self.path.momentum)]

    def assert_losses(self, found: list[float]) -> None:
        """Asserts that these are the losses of the epoch that was trained last."""
        assert self.order[-STEPS:] == list(range(STEPS))
        wanted = self.wanted_losses()[-STEPS:]
        if isinstance(self.path, KerasFit):  # which reports the mean over the epoch's examples
            sizes = [BATCH] * (STEPS - 1) + [EXAMPLES - BATCH * (STEPS - 1)]
            wanted = [float(np.average(wanted, weights=sizes))]
        np.testing.assert_allclose(found, wanted, rtol=2e-4)


def check(cell: Cell) -> None:
    """Holds a cell to the contract."""
    # First, because its trace evicts traces of helpers that eager steps of the cell would have to repeat once.
    wanted = bits_on_one_device(cell.path, _family(cell.way), cell.replicas) if is_met(cell, "bits") else None
    run = Run(cell)
    run.assert_losses(run.epoch())
    run.assert_trained()
    run.assert_losses(run.epoch())
    run.assert_trained()
    if wanted is not None:
        assert run.bits() == wanted, "other bits"
    check_warm_epoch(run)
    assert_copies_equal(list(run.path.variables()))
    if is_met(cell, "failure"):
        check_failure(cell)


def check_warm_epoch(run: Run) -> None:
    """Traces nothing, compiles nothing, keeps nothing.

    The number of live arrays settles once the steps in flight of other runs have ended, and those of this run are as
    many as may be in flight; a leak grows in every epoch.
    """
    kept = []
    for _ in range(6):
        with count_work() as counted:
            run.epoch()
        assert (counted.traces, counted.compilations) == (0, 0), counted
        kept.append(counted.new_arrays)
        if kept[-1] <= 0:
            return
    raise AssertionError(f"arrays kept by each of six epochs of a warm loop: {kept}")


def check_failure(cell: Cell, strategy: Any = None) -> None:
    """A step that fails leaves the state of the step before; the next one trains."""
    run = Run(cell, strategy)
    if isinstance(run.path, KerasFit):
        run.path.settle()
    # An uneven step runs eagerly on each worker. If it failed on one only, the others would wait in its all-reduce.
    run.path.hook = _fail if strategy is None else _fail_everywhere
    try:
        run.epoch()
    except Failure:
        pass
    else:
        raise AssertionError("the hook was not called")
    assert run.order == []
    run.assert_trained()
    run.path.hook = nothing
    if isinstance(run.path, KerasFit):
        run.path.compile(run_eagerly=cell.way == "eager", steps_per_execution=run.many)
    run.assert_losses(run.epoch())
    run.assert_trained()


def _fail() -> None:
    context = mr.get_replica_context()
    last = context is None or context.num_replicas_in_sync - 1
    number = None if context is None else context.replica_id_in_sync_group
    # A compiled replica does not know its number, and fails on all.
    if not isinstance(number, int) or number == last:
        raise Failure


def _fail_everywhere() -> None:
    raise Failure


def check_interrupts(cell: Cell) -> None:
    """Ctrl-C, early, in the middle and late in an epoch."""
    run = Run(cell)
    run.epoch()
    began = time.perf_counter()
    run.epoch()
    seconds = time.perf_counter() - began
    for share in (0.05, 0.3, 0.55, 0.8):
        order, before = list(run.order), run.count()
        interrupted(run.epoch, seconds * share)
        run.order = order + list(range(run.count() - before))  # the interrupt may have come while it was noted
        run.assert_trained()


def interrupted(call: Callable[[], Any], seconds: float) -> bool:
    """Calls, with a KeyboardInterrupt after some seconds; whether it came in time."""
    came = False
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        came = True
    except SystemError as error:
        # The signal arrived in Python code that C code of NumPy calls; CPython chains the KeyboardInterrupt.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        came = True
    try:
        # A signal that has arrived while the timer was being stopped is handled at one of the next bytecodes. Outside
        # of this block, it would end the test session.
        time.sleep(0.001)
    except KeyboardInterrupt:
        came = True
    signal.signal(signal.SIGALRM, signal.SIG_IGN)  # the default would end the process
    return came


def _family(way: str) -> str:
    """Ways whose programs are the same: the compiler may choose other kernels for others."""
    return way if way in ("eager", "steps_per_call") else "compiled"


@functools.cache
def bits_on_one_device(path: str, way: str, replicas: int) -> str:
    """The bits after two epochs of the same replicas on one device."""
    run = Run(Cell(path, way, 1, replicas))
    run.epoch()
    run.epoch()
    return run.bits()
