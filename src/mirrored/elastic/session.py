"""`run`: calls a training function again, in the same process, whenever a worker is lost or joins."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

from mirrored._jax import distributed, recovery
from mirrored.checkpoint.checkpoint import Checkpoint
from mirrored.checkpoint.memory import begin_snapshot, refuse_late_state, restore_snapshot
from mirrored.cluster.elastic_job import declare_elastic
from mirrored.cluster.tasks import training_tasks
from mirrored.cluster.tf_config import TFConfigClusterResolver
from mirrored.collectives.host_allgather import host_allgather
from mirrored.elastic.link import Link, Place, is_elastic_worker
from mirrored.elastic.pace import Pace
from mirrored.elastic.snapshots import Snapshots
from mirrored.elastic.worker import Worker
from mirrored.errors import ArgumentError, ContextError
from mirrored.settings import HEARTBEAT_SECONDS
from mirrored.watchdog.fail_fast_exit import LauncherChannel, launcher_channel

T = TypeVar("T")


class Session:
    """The object that `run` passes to a training function, to restore and snapshot the function's state.

    Attributes:
        epoch: How many times the workers have changed, plus 1.

    Example:
        >>> from mirrored.checkpoint import Checkpoint
        >>> @run
        ... def train(session):
        ...     checkpoint = Checkpoint(step=0)
        ...     session.resume(checkpoint)
        ...     while checkpoint.step < 3:
        ...         checkpoint.step += 1
        ...         session.commit()
        ...     return session.epoch, session.num_workers
        >>> train()
        (1, 1)

    TensorFlow: no equivalent. Horovod: `hvd.elastic.State`.
    """

    def __init__(self, place: Place | None, snapshots: Snapshots | None, link: Link | None, every: int | None) -> None:
        self.epoch = 1 if place is None else place.epoch
        self._place, self._snapshots, self._link, self._every = place, snapshots, link, every
        self._checkpoint: Checkpoint | None = None
        self._steps = 0
        self._has_stepped = False
        self._pace = Pace(every, 0, _proposals)

    @property
    def num_workers(self) -> int:
        """The current number of workers; before the job is formed, the number of workers in TF_CONFIG.

        Before the strategy of a job is created, TF_CONFIG tells it, which `mirrored run` sets.
        """
        if self._place is not None:
            return self._place.num_workers
        if distributed.is_connected():
            return distributed.num_processes()
        return max(1, len(training_tasks(TFConfigClusterResolver().cluster_spec())))

    def resume(self, checkpoint: Checkpoint, otherwise: Callable[[], T] | None = None) -> T | None:
        """Restores the newest snapshot that any worker has; calls `otherwise` if no worker has a snapshot.

        Create the state before: of what is created later, variables, slots and iterators of `mirrored.data` are
        restored, but no random generators, iterators of other libraries, numbers and arrays (`Checkpoint.restore`).

        Context: once per call of the training function, on all workers, before the first step.

        Args:
            checkpoint: All state of the training: variables, optimizers, the data iterator, the step.
            otherwise: Called if no worker has a snapshot, as at the start of the job. For example
                `CheckpointManager.restore_latest`.

        Returns:
            What `otherwise` returns; None if it is not called.

        Raises:
            ContextError: It was called before in this call of the training function.
            CheckpointMismatchError: The training function has created other state than in its previous call.
        """
        if self._checkpoint is not None:
            raise _resumed_twice_error()
        self._checkpoint = checkpoint
        self._begin_phase("restoring")
        result = None
        if self._place is None or self._place.step is None or self._snapshots is None:
            result = None if otherwise is None else otherwise()
            self._snapshot()
        else:
            restore_snapshot(checkpoint, self._snapshots[self._place.step])
            self._steps = self._place.step
            self._pace = Pace(self._every, self._steps, _proposals)
            if self._link is not None:
                self._link.report_snapshot(self._steps)
        self._begin_phase("first step")
        return result

    def _begin_phase(self, name: str) -> None:
        if self._link is not None:
            self._link.phases.begin(name)

    def commit(self) -> None:
        """Ends a training step, and takes a snapshot of the state if one is due.

        When the workers change, training continues from the newest snapshot, and repeats the steps after it.

        Context: the main thread of all workers, after each step, when the checkpoint's state (also its step counter and
        its data iterator) is that after the step.

        Raises:
            ContextError: `resume` has not been called.
            CheckpointMismatchError: A random generator, or an iterator of another library, was created after `resume`,
                which could not restore it.
            WorkersChanged: A worker was lost or joins. Do not catch it; it is not an `Exception`.
        """
        if self._checkpoint is None:
            raise _not_resumed_error()
        self._steps += 1
        if self._link is None:
            return
        self._link.check()
        if not self._has_stepped:
            self._has_stepped = True
            self._link.report_first_step()
            refuse_late_state(self._checkpoint)
            recovery.collect_garbage()
        if self._pace.is_due(self._steps):
            self._pace.taken(self._steps, self._snapshot())

    def fit_callback(self) -> Any:
        """Returns a callback with which `keras.Model.fit` restores and snapshots its state.

        Context: once per call of the training function, instead of `resume` and `commit`. The model is created and
        compiled in the scope of the strategy, and this callback is the last in the list. After a change of the workers
        `fit` continues in the middle of its epoch. For the other callbacks, such as `EarlyStopping` and the history,
        the numbers, texts and arrays in their attributes are restored, also in lists, tuples, dicts, sets and deques.

        Returns:
            A `keras.callbacks.Callback`.

        Raises:
            MissingExtraError: Keras is not installed.

        Example:
            >>> import keras, numpy as np
            >>> import mirrored as mr
            >>> @run
            ... def train(session):
            ...     with mr.MirroredStrategy(["CPU:0"]).scope():
            ...         model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            ...         model.compile("sgd", "mse")
            ...     x = np.ones((8, 2), np.float32)
            ...     model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[session.fit_callback()])
            ...     return int(model.optimizer.iterations.numpy())
            >>> train()
            2

        TensorFlow: no equivalent. `keras.callbacks.BackupAndRestore` restores from disk after a restart.
        """
        return importlib.import_module("mirrored.integrations.keras.elastic_fit").FitCallback(self)

    def _snapshot(self) -> float:
        """Starts a snapshot of the state, and returns an estimate of how many seconds a snapshot delays training."""
        if self._snapshots is None or self._checkpoint is None:
            return 0.0
        began = time.perf_counter()
        self._snapshots.add(self._steps, begin_snapshot(self._checkpoint))
        self._checkpoint.note_saved("Session.commit")
        return time.perf_counter() - began + self._snapshots.seconds


def _proposals(own: int) -> list[int]:
    return host_allgather("commit", "the steps between snapshots", own) if distributed.is_connected() else [own]


@overload
def run(train: Callable[..., T], /) -> Callable[..., T]: ...


@overload
def run(*, snapshot_every: int | None = None) -> Callable[[Callable[..., T]], Callable[..., T]]: ...


def run(train: Callable[..., T] | None = None, /, *, snapshot_every: int | None = None) -> Any:
    """Decorates a training function so that it continues in the surviving processes when workers are lost or join.

    Under ``mirrored run --elastic`` the function is called with a `Session` as its first argument, and called again
    whenever the workers change. It creates the strategy, the variables, the dataset and the `Checkpoint`, calls
    `Session.resume`, and calls `Session.commit` after each step. When the workers change, the JAX arrays of a
    call are deleted. Without ``--elastic`` it is called once.

    The state and the examples of each step count exactly once (`mirrored.elastic` explains why). Python side effects
    (prints, logs) of the steps after the newest snapshot happen again.

    Context: the main thread of every worker, before JAX's first operation, once per process.

    Args:
        train: The training function.
        snapshot_every: The number of steps between two snapshots, which each worker keeps in host memory. Default: a
            number from 10 to 1000 with which snapshots take about 1 % of the time.

    Returns:
        The function, which returns what the training function returns.

    Raises:
        ArgumentError: `snapshot_every` is less than 1.
        ContextError: At the call: JAX has started already, or another such function runs or has returned.

    Example:
        >>> import mirrored as mr
        >>> @run
        ... def train(session, steps):
        ...     strategy = mr.MirroredStrategy(["CPU:0"])
        ...     with strategy.scope():
        ...         total = mr.Variable(0.0)
        ...     checkpoint = mr.checkpoint.Checkpoint(total=total, step=0)
        ...     session.resume(checkpoint)
        ...     while checkpoint.step < steps:
        ...         _ = total.assign_add(1.0)
        ...         checkpoint.step += 1
        ...         session.commit()
        ...     return float(total.numpy())
        >>> train(3)
        3.0

    TensorFlow: no equivalent. Horovod: `hvd.elastic.run`, whose global batch changes with the number of workers.
    """
    is_count = isinstance(snapshot_every, int) and not isinstance(snapshot_every, bool) and snapshot_every > 0
    if snapshot_every is not None and not is_count:
        raise ArgumentError(
            "elastic.run",
            found=f"snapshot_every={snapshot_every!r}",
            rule="the number of steps between two snapshots must be an int, 1 or more, or None",
            remedy="pass snapshot_every=10",
        )
    decorate: Callable[..., Any] = _decorator(snapshot_every)
    return decorate if train is None else decorate(train)


def _decorator(every: int | None) -> Callable[[Callable[..., T]], Callable[..., T]]:
    def decorate(train: Callable[..., T]) -> Callable[..., T]:
        declare_elastic()

        @functools.wraps(train)
        def call(*args: Any, **kwargs: Any) -> T:
            channel = launcher_channel() if is_elastic_worker() else None
            if channel is None:
                return train(Session(None, None, None, every), *args, **kwargs)
            _begin()
            try:
                link = _link_of(channel)
                return Worker(link).run(
                    lambda place, snapshots: train(Session(place, snapshots, link, every), *args, **kwargs)
                )
            finally:
                _Running.is_running, _Running.has_run = False, True

        return call

    return decorate


class _Running:
    is_running = has_run = False
    link: Link | None = None


def _link_of(channel: LauncherChannel) -> Link:
    """Returns this process's `Link` to the launcher, which is created in the first call."""
    if _Running.link is None:
        _Running.link = Link(channel, HEARTBEAT_SECONDS.read())
    return _Running.link


def _begin() -> None:
    if _Running.is_running:
        raise ContextError(
            "elastic.run",
            found="another elastic training function runs",
            rule="one elastic training function can run at a time",
            remedy="put all phases of the training into one function",
        )
    if _Running.has_run:
        raise ContextError(
            "elastic.run",
            found="an elastic training function has returned in this process",
            rule="a process calls an elastic training function once: a replacement of a lost worker would repeat the "
            "first call while the others are in the second one",
            remedy="put all phases of the training into one function, with the phase in its Checkpoint",
        )
    if distributed.has_devices():
        raise ContextError(
            "elastic.run",
            found="JAX has initialized its devices already",
            rule="in an elastic job, all of JAX's work must be inside the training function: the devices change with "
            "the workers",
            remedy="create strategies, variables and arrays in the training function; keep other data in NumPy arrays",
        )
    _Running.is_running = True


def _resumed_twice_error() -> ContextError:
    return ContextError(
        "Session.resume",
        found="it was called before in this call of the training function",
        rule="the state of the training must be one checkpoint, restored once",
        remedy="put all state into one Checkpoint",
    )


def _not_resumed_error() -> ContextError:
    return ContextError(
        "Session.commit",
        found="Session.resume was not called before",
        rule="the session must know the state that a step has changed",
        remedy="call session.resume(checkpoint) before the first step",
    )
