"""Joining a job of several processes by `jax.distributed`; errors say who was waited for, where and how long."""

from __future__ import annotations

import os
import socket
import time
from typing import Final

import jax

from mirrored._jax import coordination
from mirrored.cluster.reaching import wait_for_coordinator
from mirrored.cluster.tasks import Process
from mirrored.errors import ContextError, RendezvousError

HEARTBEAT_VARIABLE: Final = "MIRRORED_HEARTBEAT_SECONDS"
RENDEZVOUS_VARIABLE: Final = "MIRRORED_RENDEZVOUS_SECONDS"
_HEARTBEAT_SECONDS: Final = 30
_RENDEZVOUS_SECONDS: Final = 300
# A worker that has ended waits for the others, one of which may still be writing the last checkpoint.
_SHUTDOWN_SECONDS: Final = 3600


def join(process: Process, called: str) -> None:
    """Makes this process one of its job. Does nothing if it is one already.

    Context: before JAX's first operation in this process.

    ``MIRRORED_RENDEZVOUS_SECONDS`` (300) says how long to wait for the others, ``MIRRORED_HEARTBEAT_SECONDS`` (30)
    after how long without a sign of life a process counts as dead.

    Raises:
        ContextError: JAX has started without its cluster, or as part of another job.
        RendezvousError: The coordinator cannot be reached, its port is taken, or a worker has not come.
    """
    if coordination.is_connected():
        _check_same(process, called)
        return
    # SIGTERM ends a process, unless it has asked to save a checkpoint before (`CheckpointManager`). JAX's own service
    # would swallow it in any case.
    jax.config.update("jax_enable_preemption_service", False)
    limit = int(os.environ.get(RENDEZVOUS_VARIABLE, "") or _RENDEZVOUS_SECONDS)
    start = time.monotonic()
    if process.index == 0:
        _check_port(process.coordinator, called)
    else:
        wait_for_coordinator(process.coordinator, limit)
    try:
        jax.distributed.initialize(
            process.coordinator,
            process.num_processes,
            process.index,
            initialization_timeout=max(1, int(limit - (time.monotonic() - start))),
            heartbeat_timeout_seconds=heartbeat_seconds(),
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except RuntimeError as error:
        if "must be called before" in str(error):
            raise _too_late(called) from None
        raise _failed(process, time.monotonic() - start, error) from error


def heartbeat_seconds() -> int:
    """After how long without a sign of life a process counts as dead."""
    return int(os.environ.get(HEARTBEAT_VARIABLE, "") or _HEARTBEAT_SECONDS)


def _check_same(process: Process, called: str) -> None:
    here = (coordination.this_process(), coordination.num_processes())
    if here == (process.index, process.num_processes):
        return
    raise ContextError(
        called,
        found=f"this process is worker {here[0]} of {here[1]} already, and is to be {process.index} of "
        f"{process.num_processes}",
        rule="a process is part of one job, as long as it runs",
        remedy="make all strategies of a program from the same cluster",
    )


def _check_port(address: str, called: str) -> None:
    port = int(address.rpartition(":")[2])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise RendezvousError(
                called,
                found=f"port {port} of this machine is taken ({error.strerror}), so that the coordinator cannot listen "
                f"at {address}",
                rule="the first task of the cluster listens at its address, where the others meet",
                remedy="look for a program of an earlier run that is still there, or give the first task another port",
            ) from None


def _too_late(called: str) -> ContextError:
    return ContextError(
        called,
        found="JAX has made its devices already, without those of the other workers",
        rule="a process joins its job before its first JAX operation (creating an array or asking for the devices is "
        "one)",
        remedy="make the strategy right after the imports, and load data and build models after it",
    )


def _failed(process: Process, seconds: float, error: RuntimeError) -> RendezvousError:
    others = [address for index, address in enumerate(process.addresses) if index != process.index]
    waiting = (
        f"not all of {', '.join(others)} have come to {process.coordinator}"
        if process.index == 0
        else f"the coordinator at {process.coordinator} has not started the job"
    )
    return RendezvousError(
        "joining the cluster",
        found=f"{waiting} after {seconds:.0f} s ({str(error).strip().splitlines()[0][:200]})",
        rule=f"all {process.num_processes} tasks of the cluster are started, with the same cluster in TF_CONFIG",
        remedy=f"look at the output of the others; {RENDEZVOUS_VARIABLE} says how long to wait",
    )
