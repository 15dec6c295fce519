from __future__ import annotations

import jax
import pytest

from mirrored.watchdog.fail_fast_exit import is_lost_peer


@pytest.mark.parametrize(
    "message",
    [
        "UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:41133",
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)",
    ],
)
def test_jaxs_word_for_the_end_of_another_worker(message):
    assert is_lost_peer(jax.errors.JaxRuntimeError(message))


def test_errors_of_ones_own():
    assert not is_lost_peer(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert not is_lost_peer(ConnectionResetError("Connection closed by peer"))
