"""The SIGTERM handler: signals in quick succession."""

from __future__ import annotations

import faulthandler
import itertools
import signal
from collections.abc import Iterator

import pytest

from interrupts import acted_at
from mirrored.checkpoint.preemption import Preemption


@pytest.fixture(autouse=True)
def handler_of_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_second_signal_within_the_handler_of_the_first() -> None:
    """At every line and return of the handler, also in the standard library. A deadlock here ends the process."""
    for event_number in itertools.count():
        preemption = Preemption()
        assert not preemption.poll()
        faulthandler.dump_traceback_later(30.0, exit=True)
        try:
            came, _ = acted_at(
                event_number,
                lambda: signal.raise_signal(signal.SIGTERM),
                lambda preemption=preemption: preemption._on_signal(signal.SIGTERM, None),  # type: ignore[misc]
            )
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert preemption.poll()
        if not came:
            break
    assert event_number >= 3
