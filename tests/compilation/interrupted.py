"""Trains, and is interrupted at random moments. Prints how many interrupts it survived with its state whole.

python interrupted.py LAYOUT KIND STEPS_PER_CALL INTERRUPTS
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr


class Interrupt(BaseException):
    """What the interrupts raise."""


def raise_interrupt(*_):
    raise Interrupt


def arm(kind: str, delay: float) -> threading.Thread | None:
    """Interrupts the main thread after a while: by a signal handler that raises, or by an injected exception."""
    if kind == "signal":
        signal.setitimer(signal.ITIMER_REAL, delay)
        return None
    main = ctypes.c_ulong(threading.main_thread().ident)

    def inject() -> None:
        time.sleep(delay)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(Interrupt))

    thread = threading.Thread(target=inject)
    thread.start()
    return thread


def is_interrupt(error: BaseException) -> bool:
    """JAX makes other errors of exceptions that are raised while it compares the keys of its caches."""
    return isinstance(error, Interrupt) or "Interrupt" in str(error)


def interrupted_once(kind: str, delay: float, step: Callable[[], object]) -> None:
    """Makes steps until an interrupt comes; Python ignores one that is raised in a finalizer."""
    end = time.monotonic() + delay + 0.2
    injector = None
    try:
        injector = arm(kind, delay)
        while time.monotonic() < end:
            step()
    except BaseException as error:
        if not is_interrupt(error):
            raise
    if injector is not None:
        injector.join()


def main(devices: int, replicas: int, way: str, kind: str, steps: int, interrupts: int) -> None:
    mr.config.set_virtual_devices(devices)
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=way == "deterministic")
    with strategy.scope():
        weights = [mr.Variable(jnp.zeros(16)) for _ in range(5)]
        counts = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")

    def replica(x):
        for weight in weights:
            weight.assign_add(jnp.ones(16))
        counts.assign_add(1.0)
        return mr.get_replica_context().all_reduce("sum", x.sum())

    def step(x):
        return strategy.run(replica, args=(x,))

    x = jnp.ones(4)
    argument = x if steps == 1 else [(x,)] * steps
    if way != "eager":
        step = mr.function(step, **({} if steps == 1 else {"steps_per_call": steps}))
    signal.signal(signal.SIGALRM, raise_interrupt)
    draw = random.Random(0)
    before, longest = 0, 0.5  # the first interrupts hit tracing and compilation
    for done in range(interrupts):
        with contextlib.suppress(Interrupt):  # one that comes as the loop ends
            interrupted_once(kind, draw.uniform(1e-5, longest), lambda: step(argument))
        values = {float(np.unique(weight.numpy()).item()) for weight in weights} | {float(counts.numpy()) / replicas}
        assert len(values) == 1, f"interrupt {done}: half a step, {values}"
        (now,) = values
        assert now >= before, f"interrupt {done}: steps are lost"
        assert (now - before) % steps == 0, f"interrupt {done}: part of a call"
        before = now
        if done == 8:
            step(argument)
            before, longest = before + steps, 0.01
    step(argument)
    assert float(weights[0].numpy()[0]) == before + steps
    print(f"whole after {interrupts} interrupts, {int(before)} steps")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
