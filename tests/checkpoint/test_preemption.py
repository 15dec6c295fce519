"""The SIGTERM handler: signals in quick succession."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mirrored.checkpoint.preemption import Preemption


@pytest.fixture
def preemption() -> Iterator[Preemption]:
    before = signal.getsignal(signal.SIGTERM)
    yield Preemption()
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("at", range(12))
def test_a_second_signal_within_the_handler_of_the_first(preemption: Preemption, at: int) -> None:
    """At every line and return of the handler, also in the standard library. A deadlock here ends the process."""
    left = at

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event in ("line", "return"):
            left -= 1
            if left < 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGTERM)
        return trace

    assert not preemption.poll()
    faulthandler.dump_traceback_later(30.0, exit=True)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        preemption._on_signal(signal.SIGTERM, None)
    finally:
        sys.settrace(before)
        faulthandler.cancel_dump_traceback_later()
    assert preemption.poll()
