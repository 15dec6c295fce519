"""Lets this process leave a job of several processes and join another one without a restart.

Supports JAX 0.10 to 0.12. `jax.distributed.initialize` can be called once per process, and its client ends the process
if the coordination service ends. Here the launcher hosts the service (`serve`), one per epoch, and a process makes only
clients, whose end affects no other process. After the failure of another process, the collectives of this one wait for
their timeout, unless the sockets of the collectives are shut down (`CollectiveSockets`).

Relied upon: `jax._src.distributed.global_state` is what JAX's backends read when they are made; Gloo's device opens one
listening socket when the CPU backend is made, and all its connections use this port or that of another process;
processes exchange their topology under ``cpu:local_topology/cpu/<process>`` and ``cpu:global_topology/cpu``.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mirrored._jax.private import distributed as _distributed
from mirrored._jax.private import jaxlib as _jaxlib
from mirrored._jax.private import xla_bridge as _xla_bridge
from mirrored._threads import start
from mirrored.errors import ContextError

_SHUTDOWN_SECONDS: Final = 2
# JAX ends a process whose connection to the service fails, also in a thread that was abandoned because another process
# was lost. The limit is therefore that of the caller, who waits for the thread.
_NEVER_SECONDS: Final = 7 * 24 * 3600
_POLL_SECONDS: Final = 0.002
_BACKEND_ATTEMPTS: Final = 3
# With these, XLA aborts NCCL's communicators when a process is lost (JAX's guide to fault tolerance).
_ABORT_FLAGS: Final = (
    "--xla_gpu_nccl_terminate_on_error=false",
    "--xla_gpu_nccl_async_execution=true",
    "--xla_gpu_nccl_blocking_communicators=false",
)
_ABORT_VARIABLES: Final = ("XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE", "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT")
_log: Final = logging.getLogger("mirrored.elastic")
# The caches of these packages contain arrays, meshes and programs of the devices; those of other packages do not.
_CACHES: Final = ("mirrored.collectives", "mirrored.strategies", "mirrored.variables", "mirrored._jax.arrays")


def serve(address: str, num_processes: int, heartbeat_seconds: int) -> Any:
    """Starts a coordination service of JAX in this process, even if the process is not a member of the job.

    It must outlive its clients: JAX ends a process whose service is gone.

    Args:
        address: ``host:port`` at which it listens.
        num_processes: The number of processes of the job.
        heartbeat_seconds: The time without a heartbeat after which it considers a process dead.
    """
    return _jaxlib.get_distributed_runtime_service(
        address,
        num_processes,
        heartbeat_timeout=heartbeat_seconds,
        cluster_register_timeout=_NEVER_SECONDS,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        recoverable=True,
    )


def end_service(service: Any) -> None:
    """Shuts down a coordination service that no client uses any more; does not wait for the end of the shutdown."""
    start(threading.Thread(target=service.shutdown, name="mirrored-ending-service", daemon=True))


def why_processes_must_restart() -> str | None:
    """Returns why the processes of this job must restart after a failure; None if they can join a new job instead.

    Gloo's collectives fail when their sockets are shut down. NCCL's can only be aborted, which XLA does with the flags
    of JAX's guide "Fault Tolerant Distributed JAX".

    Context: after the backend was made.
    """
    if not hasattr(jax.config, "jax_enable_recoverability"):
        return f"JAX {jax.__version__} has no recoverability"
    platform = jax.default_backend()
    if platform == "cpu":
        return None
    if platform != "gpu":
        return f"collectives of {platform} devices cannot be aborted"
    flags = os.environ.get("XLA_FLAGS", "").split()
    missing = [flag for flag in _ABORT_FLAGS if flag not in flags]
    missing += [name for name in _ABORT_VARIABLES if os.environ.get(name) != "1"]
    return f"NCCL cannot abort a collective without {missing[0]}" if missing else None


def connect(address: str, index: int, heartbeat_seconds: int) -> Any:
    """Connects to a job's coordination service in another process; blocks until all processes are connected.

    Context: a thread that may block forever if another process is lost before it connects. Nothing is changed in this
    process before `adopt`.

    Returns:
        The client.
    """
    jax.config.update("jax_enable_recoverability", True)
    options: dict[str, Any] = {
        "init_timeout": _NEVER_SECONDS,
        "heartbeat_timeout": heartbeat_seconds,
        "shutdown_timeout": _SHUTDOWN_SECONDS,
        "shutdown_on_destruction": False,
        "use_compression": True,
    }
    try:
        client = _jaxlib.get_distributed_runtime_client(address, index, recoverable=True, **options)
    except TypeError:  # JAX 0.12: only the service is told
        client = _jaxlib.get_distributed_runtime_client(address, index, **options)
    client.connect()
    return client


def adopt(client: Any, address: str, num_processes: int, index: int) -> None:
    """Makes this process, which must not belong to a job yet, a member of the job to which `client` is connected."""
    state = _distributed.global_state
    state.client, state.process_id, state.num_processes = client, index, num_processes
    state.coordinator_address = address


def make_backend() -> list[jax.Device]:
    """Creates the backends of this process; blocks until all processes of the job have exchanged their topologies.

    A backend that another thread has made before `adopt` has only the devices of this process, and the other processes
    would wait for this one forever. Such a backend is removed, and the next one belongs to the job.

    Returns:
        The devices of all processes, in the order of processes.

    Raises:
        ContextError: There is still a backend that does not belong to the job.
    """
    state = _distributed.global_state
    wanted = (int(state.num_processes or 1), int(state.process_id or 0))
    for _ in range(_BACKEND_ATTEMPTS):
        devices = jax.devices()
        found = (jax.process_count(), jax.process_index())
        if found == wanted:
            return sorted(devices, key=lambda device: (device.process_index, device.id))
        _log.warning("another thread used JAX while the workers changed: the devices that it made are removed")
        _remove_backends()
    raise ContextError(
        "elastic.run",
        found=f"while this process joined a job as process {wanted[1]} of {wanted[0]}, another thread used JAX, which "
        f"made devices for process {found[1]} of {found[0]}",
        rule="while the workers of an elastic job change, no thread may use JAX except that of the training function",
        remedy="keep NumPy arrays in that thread, or let the training function stop it before session.commit()",
    )


def sum_of_all(value: np.ndarray[Any, Any], devices: Sequence[jax.Device], index: int) -> np.ndarray[Any, Any]:
    """Returns the elementwise sum of the arrays of all processes of the job; blocks until the sum is computed.

    Args:
        value: An array of the same shape and dtype on each process.
        devices: All devices, in the order of processes. Each process adds its array on its first one.
        index: The index of this process.
    """
    mesh = Mesh(np.array(devices), ("all",), axis_types=(AxisType.Auto,))
    own = [device for device in devices if device.process_index == index]
    parts = [jax.device_put((value if at == 0 else np.zeros_like(value))[None], one) for at, one in enumerate(own)]
    sharding, replicated = NamedSharding(mesh, PartitionSpec("all")), NamedSharding(mesh, PartitionSpec())
    stacked = jax.make_array_from_single_device_arrays((len(devices), *value.shape), sharding, parts)
    total = jax.jit(lambda array: jnp.sum(array, 0, dtype=array.dtype), out_shardings=replicated)(stacked)
    return np.array(total.addressable_data(0))


def release_waiters(index: int, num_processes: int) -> None:
    """Unblocks a thread that waits for the device topology of a lost process; the wait ends with an error.

    Context: another thread than the one that waits.
    """
    client = _distributed.global_state.client
    if client is None:
        return
    keys = [f"cpu:local_topology/cpu/{other}" for other in range(num_processes) if other != index]
    for key in [*keys, "cpu:global_topology/cpu"]:
        with contextlib.suppress(Exception):  # the other process has already set the key
            client.key_value_set_bytes(key, b"lost")


def live_arrays() -> list[jax.Array]:
    """Returns all JAX arrays that are alive in this process."""
    return jax.live_arrays() if _xla_bridge.backends_are_initialized() else []


def leave(held: Callable[[object], object] | None = None) -> Any:
    """Leaves the job without its shutdown barrier, and removes the backends, programs and traces of this process.

    Args:
        held: Receives the backends instead of their destruction. A backend that waits for a lost process can be
            destroyed only after its timeout.

    Returns:
        The client of the job, to be disconnected; None without one.
    """
    state = _distributed.global_state
    client = state.client
    if held is not None:
        held([dict(_xla_bridge._backends), client])
    state.client = state.service = state.preemption_sync_manager = None
    state.num_processes, state.process_id, state.coordinator_address = 1, 0, None
    _remove_backends()
    return client


def disconnect(client: Any) -> bool:
    """Disconnects a client from its coordination service, without waiting for other processes.

    Without it, the end of the service would end this process, if something still refers to the client: an array that
    the program holds refers to its backend, and this to the client.

    Returns:
        Whether the service may end.
    """
    try:
        if client is not None:
            client.shutdown()
    except Exception:  # no answer within the timeout: the client stays connected
        return False
    return True


def _remove_backends() -> None:
    """Removes the backends, programs and traces of this process."""
    for module in [one for name, one in list(sys.modules.items()) if name.startswith(_CACHES)]:
        for value in list(vars(module).values()):
            if callable(getattr(value, "cache_clear", None)):
                value.cache_clear()
    if _xla_bridge.backends_are_initialized():
        with contextlib.suppress(RuntimeError):  # an effect of a program that has failed
            jax.effects_barrier()
        jax.extend.backend.clear_backends()


def collect_garbage() -> None:
    """Frees objects of earlier jobs that are in reference cycles; slow, so called only after a job's first step.

    It also returns freed memory to the operating system. The programs and traces of an epoch are many small blocks,
    which glibc keeps in its free lists: without this, a worker grows by some megabytes in each epoch.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


# The sockets that Gloo opens.


@dataclasses.dataclass
class CollectiveSockets:
    """Finds the TCP connections of Gloo in this process, and shuts them down.

    Gloo's own listening port is the one that appears while the CPU backend is made. Its connections were accepted at
    this port, or lead to the port of another process. No other connection of the process is touched.

    Attributes:
        own: The port at which Gloo listens; None without collectives.
        others: The ports of the other processes.
    """

    own: int | None = None
    others: Collection[int] = ()

    @contextlib.contextmanager
    def observe(self) -> Iterator[None]:
        """Records the TCP port that Gloo opens during a ``with`` block.

        Gloo opens it when JAX's CPU backend is created. The record is None if not exactly one port was opened.
        """
        before = {port for _, port in _listening()}
        yield
        new = [port for _, port in _listening() if port not in before]
        self.own = new[0] if len(new) == 1 else None

    def shut_down(self) -> int:
        """Shuts down Gloo's connections, so that collectives fail on both ends; returns the number of connections."""
        count = 0
        for one in _sockets():
            with contextlib.suppress(OSError):
                if self._is_ours(one.getsockname(), one.getpeername()):
                    one.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count

    def _is_ours(self, here: tuple[Any, ...], there: tuple[Any, ...]) -> bool:
        return here[1] == self.own or there[1] in self.others


def _listening() -> list[tuple[str, int]]:
    found = []
    for one in _sockets():
        with contextlib.suppress(OSError):
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(one.getsockname()[:2])
    return found


def _sockets() -> Iterator[socket.socket]:
    """Yields duplicates of the process's TCP sockets, each closed after its use."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with contextlib.closing(socket.socket(fileno=os.dup(int(name)))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    yield one


class Abandonable:
    """Blocking work in a background thread; the caller can wait for the end of the work or abandon the work.

    Args:
        work: Called with this object. It calls `enter` before each stage.
    """

    def __init__(self, work: Callable[[Abandonable], object]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._is_abandoned = self._must_finish = False
        self._kept: list[object] = []
        self._at_end: list[Callable[[], object]] = []
        start(threading.Thread(target=self._run, name="mirrored-joining", daemon=True))

    def _run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:
            self.error = error.with_traceback(None)
        with self._lock:
            self._must_finish = False
            self._done.set()
            self._kept.clear()
            at_end, self._at_end = self._at_end, []
        for action in at_end:
            action()

    def enter(self, change: Callable[[], object] = lambda: None, *, must_finish: bool = False) -> None:
        """Marks the beginning of the work's next stage; raises an error if the caller has abandoned the work.

        Args:
            change: Called first. It changes what the caller sees.
            must_finish: Whether `abandon` waits for the end of the stage, because the stage itself also changes what
                the caller sees.

        Raises:
            InterruptedError: The work is abandoned.
        """
        with self._lock:
            if self._is_abandoned:
                raise InterruptedError
            change()
            self._must_finish = must_finish

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for the end of the work, and returns whether the work is done."""
        return self._done.wait(seconds)

    def abandon(self) -> None:
        """Makes the work stop before its next stage; waits for the end of a stage entered with `must_finish`."""
        with self._lock:
            self._is_abandoned = True
        while self._must_finish:
            time.sleep(_POLL_SECONDS)

    def then(self, action: Callable[[], object]) -> None:
        """Calls a function when the work is done, in the work's thread, or at once if the work is already done.

        Objects that `keep` has kept are released before.
        """
        with self._lock:
            if not self._done.is_set():
                self._at_end.append(action)
                return
        action()

    def keep(self, value: object) -> None:
        """Keeps an object alive until the work is done."""
        with self._lock:
            if not self._done.is_set():
                self._kept.append(value)
