"""Joins this process to a multi-process job by `jax.distributed.initialize`, with helpful error messages."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import jax

from mirrored import settings
from mirrored._jax import distributed
from mirrored._threads import start
from mirrored.cluster.rendezvous import meet, wait_for_coordinator
from mirrored.cluster.tasks import Process
from mirrored.errors import ContextError, DisagreementError, RendezvousError
from mirrored.transport import interface_of
from mirrored.transport.interfaces import joined
from mirrored.watchdog.fail_fast_exit import fail_fast, in_forked_children

# Checks that all workers have the same versions, JAX settings and XLA flags before they train.

_PACKAGES: Final = ("mirrored", "jax", "jaxlib", "numpy", "optax", "ml_dtypes")
# Compared only between workers that have imported them.
_OPTIONAL: Final = ("flax", "keras", "equinox")
# JAX settings that change results or compiled programs.
_SETTINGS: Final = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_use_shardy_partitioner",
    "jax_random_seed_offset",
    "jax_legacy_prng_key",
    "jax_enable_custom_prng",
    "jax_threefry_gpu_kernel_lowering",
    "jax_high_dynamic_range_gumbel",
    "jax_allow_f16_reductions",
    "jax_accurate_erf_inv",
    "jax_use_hlo_logistic_lowering",
    "jax_softmax_custom_jvp",
    "jax_use_direct_linearize",
    "jax_optimization_level",
    "jax_explicit_x64_dtypes",
)
# Environment variables that change the results of compiled programs.
_VARIABLES: Final = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
# XLA flags that may differ between workers: the number of host devices, and the debug dumps.
_OWN_FLAGS: Final = re.compile(r"--xla_(force_host_platform_device_count|dump_|gpu_dump_)")


def fingerprint(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the versions and settings of this worker that must be equal on all workers."""
    environment = os.environ if environment is None else environment
    found = {f"the version of {name}": _version(name) for name in _PACKAGES}
    found |= {f"the version of {name}": _version(name) for name in _OPTIONAL if name in sys.modules}
    found["the version of Python"] = ".".join(platform.python_version_tuple()[:2])
    found |= {f"the setting {name}": str(getattr(jax.config, name, None)) for name in _SETTINGS}
    flags = [flag for flag in shlex.split(environment.get("XLA_FLAGS", "")) if not _OWN_FLAGS.match(flag)]
    found["XLA_FLAGS"] = " ".join(sorted(flags))
    found |= {f"the variable {name}": environment.get(name, "") for name in _VARIABLES}
    return found


def check_fingerprints(called: str, everyone: Sequence[Mapping[str, str]], names: Sequence[str]) -> None:
    """Raises an error if the versions or settings of two workers differ; the error names the difference.

    Args:
        called: What the user called, for messages.
        everyone: The fingerprints, by worker.
        names: The workers' addresses.

    Raises:
        DisagreementError: Two fingerprints differ. It names the first such worker and entry.
    """
    for worker, other in enumerate(everyone):
        what = difference(everyone[0], other)
        if what is not None:
            raise DisagreementError(
                called,
                found=f"{what} is {everyone[0][what]!r} on worker 0 ({names[0]}) and {other.get(what)!r} on worker "
                f"{worker} ({names[worker]})",
                rule="all workers must run the same program with the same versions and flags",
                remedy=f"give worker {worker} the same versions and flags; mirrored doctor shows those of each worker",
            )


def difference(expected: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Returns the name of the first entry in which two fingerprints differ; None if all entries are equal."""
    for what, value in expected.items():
        missing = what not in other and what.rpartition(" ")[2] in _OPTIONAL
        if not missing and other.get(what) != value:
            return what
    return None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "a source tree"


# How long a worker that has ended waits for the others: one of them may still be writing the last checkpoint.
_SHUTDOWN_SECONDS: Final = 3600
# JAX's own rendezvous begins only after ours, so that it needs little time.
_LEAST_SECONDS: Final = 10.0
_JAX_SECONDS: Final = 30


def join(process: Process, called: str) -> None:
    """Joins this process to its job by `jax.distributed.initialize`, unless it has already joined.

    Context: before JAX's first operation in this process.

    ``MIRRORED_RENDEZVOUS_SECONDS`` (300) is the timeout of the rendezvous. ``MIRRORED_HEARTBEAT_SECONDS`` (30) is the
    time without a heartbeat after which a process counts as dead.

    Args:
        process: This process's place in the job.
        called: What the user called, for messages.

    Raises:
        ContextError: JAX has started without its cluster, or as part of another job.
        RendezvousError: The coordinator cannot be reached, its port is taken, or a worker did not join in time.
    """
    settings.check()  # `os.environ` may have changed since the import, and threads read some settings later
    if distributed.is_connected():
        _check_same(process, called)
        return
    # SIGTERM ends a process, unless a `CheckpointManager` handles it to save a checkpoint first. JAX's own preemption
    # service would ignore it in every case.
    jax.config.update("jax_enable_preemption_service", False)
    if distributed.has_devices():
        raise _too_late_error(called)
    check_mtls(called)
    limit = rendezvous_seconds()
    started_at = time.monotonic()
    interface = _interface(process.coordinator)
    meet(process, interface, limit, called)
    left = max(_LEAST_SECONDS, limit - (time.monotonic() - started_at))
    if process.index != 0:
        wait_for_coordinator(process.coordinator, left)
    port = int(process.coordinator.rpartition(":")[2])
    try:
        with (joining := threading.Lock()):
            start(threading.Thread(target=_end_if_not_joined, args=(joining, process, left), daemon=True))
            jax.distributed.initialize(
                process.coordinator,
                process.num_processes,
                process.index,
                # Without it JAX would derive a limit to one accelerator from the environment of an outer scheduler.
                cluster_detection_method=process.detection or "deactivate",
                coordinator_bind_address=joined(interface, port) if interface else None,
                initialization_timeout=int(left) + _JAX_SECONDS,
                heartbeat_timeout_seconds=heartbeat_seconds(),
                shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            )
        in_forked_children(distributed.disconnect_child)
    except RuntimeError as error:
        raise _not_joined_error(
            process, time.monotonic() - started_at, str(error).strip().splitlines()[0][:200]
        ) from error


def _interface(coordinator: str) -> str:
    """Returns the address to listen on, from JAX_COORDINATOR_BIND_ADDRESS or else the coordinator's interface."""
    given = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", "").rpartition(":")[0].strip("[]")
    return given or interface_of(coordinator.rpartition(":")[0])


def _end_if_not_joined(joining: threading.Lock, process: Process, seconds: float) -> None:
    """Ends this process with an error if the lock `joining` is still held after `seconds`.

    The lock is held while this process joins its job. JAX would abort the process without a message if a worker is lost
    between the two rendezvous. A lock tells the end of the second one, because a ``with`` block releases its lock even
    if an exception interrupts it.
    """
    if not joining.acquire(timeout=seconds):
        error = _not_joined_error(process, seconds, "a worker was lost after all had joined")
        fail_fast("error", 1, f"ended by {error}", lambda: print(error, file=sys.stderr, flush=True))


def check_mtls(called: str) -> None:
    """Raises an error if mTLS certificates are configured but this version of JAX would ignore them.

    Args:
        called: What the user called, for messages.

    Raises:
        ContextError: JAX is older than 0.12, and variables of its later mTLS options are set.
    """
    given = sorted(name for name in os.environ if name.startswith("JAX_MTLS_") and os.environ[name])
    if given and not hasattr(jax.config, "jax_mtls_cert_file"):
        raise ContextError(
            called,
            found=f"{', '.join(given)} was set with JAX {jax.__version__}",
            rule="JAX secures its coordinator by mTLS from version 0.12 on; this one would start it without mTLS",
            remedy="install JAX 0.12, or unset the variables and keep the coordinator's port inside a trusted network",
        )


def rendezvous_seconds() -> int:
    """Returns how long to wait for the other processes of the job to join, in seconds."""
    return settings.RENDEZVOUS_SECONDS.read()


def heartbeat_seconds() -> int:
    """Returns the number of seconds without a heartbeat after which a process counts as dead."""
    return settings.HEARTBEAT_SECONDS.read()


def _check_same(process: Process, called: str) -> None:
    here = (distributed.this_process(), distributed.num_processes())
    if here == (process.index, process.num_processes):
        return
    raise ContextError(
        called,
        found=f"this process is worker {here[0]} of {here[1]} already, and is to become worker {process.index} of "
        f"{process.num_processes}",
        rule="a process can belong to only one job as long as it runs",
        remedy="create all strategies of a program from the same cluster",
    )


def _too_late_error(called: str) -> ContextError:
    return ContextError(
        called,
        found="JAX has initialized its devices already, without those of the other workers",
        rule="a process must join its job before its first JAX operation (creating an array and jax.devices() are "
        "operations)",
        remedy="create the strategy right after the imports, and load data and build models after it",
    )


def _not_joined_error(process: Process, seconds: float, reason: str) -> RendezvousError:
    others = [address for index, address in enumerate(process.addresses) if index != process.index]
    waiting = (
        f"not all of {', '.join(others)} have joined at {process.coordinator}"
        if process.index == 0
        else f"the coordinator at {process.coordinator} has not started the job"
    )
    return RendezvousError(
        "joining the cluster",
        found=f"{waiting} after {seconds:.0f} s ({reason})",
        rule=f"all {process.num_processes} tasks of the cluster must be started, with the same cluster in TF_CONFIG",
        remedy=f"check the output of the other tasks; {settings.RENDEZVOUS_SECONDS.name} sets the timeout",
    )
