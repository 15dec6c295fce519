"""Makes `mirrored run --elastic` restart all workers after a failure if the program does not use `elastic.run`."""

from __future__ import annotations

import json

from mirrored import settings
from mirrored._jax import distributed
from mirrored.errors import ContextError
from mirrored.watchdog.fail_fast_exit import launcher_channel


class _Program:
    is_elastic = False
    has_asked = False


def declare_elastic() -> None:
    """Records that the program has a training function that is decorated with `mirrored.elastic.run`."""
    _Program.is_elastic = True


def join_as_restartable(called: str) -> None:
    """Asks the launcher of an elastic job to restart all workers after a failure, as if the job were not elastic.

    Does nothing outside of `mirrored run --elastic`, or when called in an elastic training function.

    Context: before a strategy is created.

    Args:
        called: What the user called, for messages.

    Raises:
        ContextError: The program has an elastic training function, outside of which it would not be elastic.
    """
    if not settings.ELASTIC.is_set() or distributed.is_elastic():
        return
    if _Program.is_elastic:
        raise ContextError(
            called,
            found="it was called in a job of mirrored run --elastic, outside of the elastic training function of the "
            "program",
            rule="in an elastic job only the training function knows the workers, which change",
            remedy="create the strategy in the function that mirrored.elastic.run decorates; or run without --elastic, "
            "which restarts all workers after a failure (--max-restarts)",
        )
    channel = launcher_channel()
    if channel is not None and not _Program.has_asked:
        _Program.has_asked = True
        channel.send(f"elastic {json.dumps({'kind': 'restartable', 'epoch': 0})}")
