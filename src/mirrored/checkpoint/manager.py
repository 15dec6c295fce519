"""The class `CheckpointManager`, which saves checkpoints regularly and keeps the newest checkpoints in a folder."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np

from mirrored._typing import Array, HostArray
from mirrored.checkpoint.checkpoint import Checkpoint, PathLike
from mirrored.checkpoint.directory import as_path, checkpoints_in, following, number_of, without_manifest
from mirrored.checkpoint.keeping import KeepingClock
from mirrored.checkpoint.manifest import Manifest, is_checkpoint, no_manifest_error, read_manifest
from mirrored.checkpoint.matching import RestoreStatus
from mirrored.checkpoint.preemption import preemption
from mirrored.checkpoint.series_lock import SeriesLock, claim, withdrawn_on_failure
from mirrored.checkpoint.sharing import on_all_workers, several_workers, writes_here
from mirrored.checkpoint.writing import (
    KEPT,
    Writer,
    actual,
    check_replaceable,
    remove,
    remove_leftovers,
    write,
)
from mirrored.collectives.host_allgather import host_allgather
from mirrored.errors import ArgumentError, ArgumentTypeError, DamagedCheckpointError, MissingCheckpointError
from mirrored.settings import RESTART
from mirrored.variables import Variable

_log: Final = logging.getLogger("mirrored.checkpoint")

_NANOSECONDS_PER_HOUR: Final = 3600 * 10**9


class CheckpointManager:
    """A manager that regularly saves a `Checkpoint` to a folder in the background, and keeps the newest checkpoints.

    A checkpoint is the folder ``<directory>/<checkpoint_name>-<step>``. It is renamed to this path after it is
    completely written. A program that is killed while saving, or a full disk, does not affect earlier checkpoints.

    Args:
        checkpoint: The checkpoint to save.
        directory: The folder; created when needed. One job at a time can save checkpoints of one name there. Its
            process holds the lock file ``.<checkpoint_name>.lock`` from the first `save` until the process ends or the
            manager is garbage-collected. Other programs can restore at any time.
        max_to_keep: Number of checkpoints to keep; None: all. The oldest is removed after a new one is written.
        save_interval_steps: `save` skips steps that are not a multiple of this number. Without `step`, it saves once
            per this many calls.
        checkpoint_name: Prefix of the checkpoint names.
        keep_every_n_hours: Keeps one checkpoint per this many hours permanently, in addition to the newest ones; the
            hours go on when the program starts again. `checkpoints` does not list it.
        save_on_preemption: Whether to save and exit on SIGTERM. After any worker receives the signal, `save` saves on
            all workers at the same step regardless of the interval, waits until the checkpoint is on disk, prints a
            message, and ends the program with exit status 0. Call `save` at every step for this to work. The next start
            resumes with `restore_latest`. Default: True if `mirrored run` started the program. `mirrored run` kills a
            program that does not end in time. Of several managers that are called at every step, the first one that
            the program has asked for its newest checkpoint saves: the next start resumes from there.

    Context: all workers of a job call each method together, at the same step.

    Raises:
        ArgumentError: `max_to_keep` or `save_interval_steps` is less than 1.
        ArgumentTypeError: An argument is of another kind.
        ContextError: `save_on_preemption` is used outside of the main thread.

    Example:
        >>> import mirrored as mr, tempfile
        >>> v = mr.Variable(0.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     manager = CheckpointManager(Checkpoint(v=v), folder, max_to_keep=2)
        ...     start = manager.restore_latest() or 0
        ...     for step in range(start + 1, 5):
        ...         _ = v.assign(float(step))
        ...         _ = manager.save(step)
        ...     _ = v.assign(-1.0)
        ...     print(manager.restore_latest(), v.numpy(), len(manager.checkpoints))
        4 4.0 2

    TensorFlow: `tf.train.CheckpointManager`, which writes before `save` returns and has no `restore_latest`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: PathLike,
        max_to_keep: int | None = 3,
        save_interval_steps: int = 1,
        *,
        checkpoint_name: str = "ckpt",
        keep_every_n_hours: float | None = None,
        save_on_preemption: bool | None = None,
    ) -> None:
        _check_kinds(checkpoint, max_to_keep, save_interval_steps, keep_every_n_hours, save_on_preemption)
        if (max_to_keep is not None and max_to_keep < 1) or save_interval_steps < 1:
            raise ArgumentError(
                "CheckpointManager",
                found=f"max_to_keep={max_to_keep}, save_interval_steps={save_interval_steps}",
                rule="both must be at least 1",
                remedy="pass numbers of at least 1, or max_to_keep=None to keep all checkpoints",
            )
        if (
            not isinstance(checkpoint_name, str)
            or not checkpoint_name
            or os.path.basename(checkpoint_name) != checkpoint_name
        ):
            raise ArgumentError(
                "CheckpointManager",
                found=f"checkpoint_name={checkpoint_name!r}",
                rule="it is the beginning of the checkpoints' names in the directory, and names no folder",
                remedy='pass the folder as part of directory, for instance directory="runs/a", checkpoint_name="b"',
            )
        self._checkpoint = checkpoint
        # Absolute, because the program may change its working directory between two saves.
        self._directory = os.path.abspath(as_path(directory, "CheckpointManager", "directory"))
        self._max_to_keep = max_to_keep
        self._interval = save_interval_steps
        self._name = checkpoint_name
        self._keep_every_n_hours = keep_every_n_hours
        self._clock = KeepingClock(self._directory, checkpoint_name)
        self._writer = Writer()
        self._saving = threading.RLock()  # one thread saves at a time
        self._calls_since_saved = 0
        self._series: SeriesLock | None = None
        wanted = _is_launched() if save_on_preemption is None else save_on_preemption
        self._preemption = preemption() if wanted else None
        self._restored: RestoreStatus | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        """The `Checkpoint` object that the manager saves and restores."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The absolute path of the folder in which the checkpoints are saved."""
        return self._directory

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the complete checkpoints, oldest first; waits for a checkpoint that is being written."""
        self._writer.wait()
        return self._managed()

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, or None; waits for a checkpoint that is being written."""
        found = self.checkpoints
        self._note_resumed()
        return found[-1] if found else None

    def _note_resumed(self) -> None:
        if self._preemption is not None:
            self._preemption.note_resumed(self)

    @property
    def restored(self) -> RestoreStatus | None:
        """The `RestoreStatus` of the last `restore_latest` that found a checkpoint; None before the first."""
        return self._restored

    def save(self, step: int | None = None, *, force: bool = False) -> str | None:
        """Saves a checkpoint if one is due after training step `step`; returns the path, or None if nothing was saved.

        `save` waits for a previous checkpoint that is still being written. It then copies the state to this host and
        returns; a background thread writes the checkpoint while training continues.

        Context: cross-replica, outside of compiled functions.

        Args:
            step: The number in the checkpoint's name, which `restore_latest` returns. Default: one more than the
                checkpoint's `save_counter`. An existing checkpoint of this number is replaced.
            force: Whether to save even if `save_interval_steps` makes `save` skip this step or call.

        Returns:
            The path; None if the step was skipped.

        Raises:
            ArgumentError: `step` is not a whole number of at least 0.
            CheckpointError: The checkpoint *before* this one could not be written; or another process saves checkpoints
                of this name to the folder; or something that is not a checkpoint is at the path.
            ContextError: Inside a step.
            LostStateError: The value of a variable was lost in a failed step.
            MissingExtraError: Orbax is not installed.
            SystemExit: With `save_on_preemption`, after a SIGTERM.
        """
        with self._saving:
            return self._save(step, force)

    def _save(self, step: int | None, force: bool) -> str | None:
        counter = self._checkpoint.save_counter
        number = int(counter.numpy()) + 1 if step is None else _step_number(step)
        ends = self._preemption is not None and self._preemption.poll(self)
        self._calls_since_saved += 1
        # The number that stands in for a missing step grows only with the saves, so it cannot tell whether one is due.
        is_due = self._calls_since_saved >= self._interval if step is None else number % self._interval == 0
        if not force and not ends and not is_due:
            return None
        path = os.path.join(self._directory, f"{self._name}-{number}")
        where = Path(path).absolute()
        writes = writes_here("CheckpointManager.save", where, is_numbered=True)
        on_all_workers(
            "CheckpointManager.save", "wait for the previous checkpoint", lambda: self._make_ready(where, writes)
        )
        counter.assign_add(1)
        try:
            with withdrawn_on_failure(self._series if writes else None, self._checkpoint):
                manifest = self._checkpoint.snapshot(number)
                if writes:
                    self._writer.start(lambda: self._write(where, manifest))
        except BaseException:
            counter.assign_sub(1)
            raise
        self._calls_since_saved = 0
        self._checkpoint.note_saved("CheckpointManager.save")
        if ends:
            self.wait()
            print(f"mirrored: received SIGTERM, saved step {number} to {path}, exiting", file=sys.stderr, flush=True)
            raise SystemExit(0)
        return path

    def _make_ready(self, where: Path, writes: bool) -> None:
        self._writer.wait()
        if writes:
            check_replaceable(where, "CheckpointManager.save")
            series = where.name.rpartition("-")[0]
            self._series = claim(where.parent, series, "CheckpointManager.save", self._checkpoint)

    def restore_latest(self, *, partial: bool = False) -> int | None:
        """Restores the newest undamaged checkpoint in the folder, if there is one.

        This includes the checkpoints that are kept permanently, which `checkpoints` does not list. A warning is logged
        if damaged checkpoints are skipped.

        Context: cross-replica, outside of compiled functions.

        Args:
            partial: Whether to allow names that are only in the program or only in the checkpoint. `restored` lists
                them.

        Returns:
            The step of the checkpoint; None if there is no checkpoint yet.

        Raises:
            CheckpointMismatchError: The checkpoint does not match the program. Without `partial`, every name must be
                on both sides.
            DamagedCheckpointError: All checkpoints are damaged. After either error every variable keeps its value.
        """
        path = self.restore_newest(partial=partial)
        return None if path is None else number_of(Path(path).name, self._name)

    def restore_newest(self, *, partial: bool = False, is_intended: bool = True) -> str | None:
        """Restores the newest undamaged checkpoint like `restore_latest`, but returns the checkpoint's path.

        Args:
            partial: As for `restore_latest`.
            is_intended: False logs a warning about a partial restore, when `restored` is garbage-collected.
        """
        called = "CheckpointManager.restore_latest"
        self._note_resumed()
        errors: list[DamagedCheckpointError] = []
        seen: set[str] = set()
        # Every round lists the folder again: the job that writes the checkpoints can add and remove some meanwhile.
        while paths := [path for path in self._found(called) if path not in seen]:
            path = paths[-1]
            seen.add(path)
            try:
                # An error of one worker is raised on all of them, so that all continue with the same checkpoint.
                status = self._checkpoint.restore_from(path, called=called, strict=not partial)
                self._restored = status.expect_partial() if is_intended else status
            except (DamagedCheckpointError, MissingCheckpointError) as error:
                if not _is_gone(path, called):
                    if isinstance(error, MissingCheckpointError):
                        raise
                    errors.append(error)
                continue
            newer = number_of(Path(path).name, self._name) or 0
            _warn_of_damage([*errors, *self._without_manifest(called, newer)], path)
            return str(path)
        errors += self._without_manifest(called, -1)
        if errors:
            raise errors[0]
        return None

    def _without_manifest(self, called: str, newer_than: int) -> list[DamagedCheckpointError]:
        paths = without_manifest(self._directory, self._name)
        if several_workers():
            paths = host_allgather(called, "look for checkpoints without a manifest", paths)[0]
        newest_first = [Path(path) for path in reversed(paths)]
        return [
            no_manifest_error(path) for path in newest_first if (number_of(path.name, self._name) or 0) > newer_than
        ]

    def _found(self, called: str) -> list[str]:
        """Returns the paths of the folder's checkpoints as listed by worker 0, the only worker that writes any."""
        paths: list[str] = on_all_workers(called, "wait for the newest checkpoint", self._with_kept)
        return host_allgather(called, "restore the newest checkpoint", paths)[0] if several_workers() else paths

    def _with_kept(self) -> list[str]:
        """Returns the paths of all complete checkpoints, including permanently kept ones, which `checkpoints` omits."""
        self._writer.wait()
        return checkpoints_in(self._directory, self._name)

    def wait(self) -> None:
        """Waits until every checkpoint for which `save` was called is on disk.

        Raises:
            CheckpointError: A checkpoint could not be written.
        """
        on_all_workers("CheckpointManager.wait", "wait until the checkpoint is on disk", self._writer.wait)

    def _write(self, path: Path, manifest: Manifest) -> None:
        with withdrawn_on_failure(self._series, self._checkpoint):
            write(path, following(path, manifest))
        self._tidy(str(path))

    def _tidy(self, written: str) -> None:
        """Removes checkpoints beyond `max_to_keep`, and unfinished checkpoints of killed programs.

        Args:
            written: The path of the checkpoint that has just been written; it stays.
        """
        if self._keep_every_n_hours is not None:
            self._clock.read()  # begins with the first checkpoint
        if self._max_to_keep is not None:
            others = [path for path in self._managed() if path != written]
            for path in others[: max(len(others) + 1 - self._max_to_keep, 0)]:
                self._retire(Path(path))
        remove_leftovers(Path(self._directory), lambda name: number_of(name, self._name) is not None)

    def _managed(self) -> list[str]:
        found = checkpoints_in(self._directory, self._name)
        return [path for path in found if not (Path(path) / KEPT).exists()]

    def _retire(self, path: Path) -> None:
        """Removes a checkpoint, unless `keep_every_n_hours` have passed since the last permanently kept checkpoint.

        A checkpoint whose manifest is damaged, so that it does not show when it was written, is kept.
        """
        hours = self._keep_every_n_hours
        if hours is not None:
            try:
                written = read_manifest(actual(path)).order
            except DamagedCheckpointError as error:
                _log.warning("CheckpointManager keeps %s, which is damaged: %s", path, error.found)
                (path / KEPT).touch()
                return
            except MissingCheckpointError:  # another process has removed it meanwhile
                return
            if written - self._clock.read() >= hours * _NANOSECONDS_PER_HOUR:
                (path / KEPT).touch()
                self._clock.set(written)
                return
        remove(path)


def _warn_of_damage(errors: list[DamagedCheckpointError], restored: str) -> None:
    if errors:
        warnings.warn(
            f"{restored} was restored because newer checkpoints are damaged:\n"
            + "\n".join(f"  {error.called}: {error.found}" for error in errors),
            stacklevel=4,
        )


def _is_gone(path: str, called: str) -> bool:
    """Returns whether a checkpoint that was listed before is now missing on every worker."""
    gone = not is_checkpoint(actual(Path(path)))
    return all(host_allgather(called, f"check whether {Path(path).name} is gone", gone)) if several_workers() else gone


def _is_launched() -> bool:
    """Returns whether `mirrored run` started this program and the current thread is its main thread."""
    return RESTART.is_set() and threading.current_thread() is threading.main_thread()


def _step_number(step: int | np.integer[Any] | HostArray | Array | Variable) -> int:
    """Converts a training step to an int; accepts ints, and scalar variables and arrays of an integer dtype.

    Raises:
        ArgumentError: `step` is anything else, or negative. Bools are rejected although they are ints in Python. Floats
            are rejected because a truncated number could replace the checkpoint of another step.
    """
    number = int(step) if _is_whole(step) else -1
    if number < 0:
        raise ArgumentError(
            "CheckpointManager.save",
            found=f"step={step!r}",
            rule="the step names the checkpoint: it must be an integer of at least 0",
            remedy="pass the number of completed steps: manager.save(int(step))",
        )
    return number


def _is_whole(value: object) -> bool:
    return np.ndim(value) == 0 and bool(np.issubdtype(getattr(value, "dtype", type(value)), np.integer))


def _check_kinds(checkpoint: object, kept: object, interval: object, hours: object, on_preemption: object) -> None:
    """Raises an error if an argument of `CheckpointManager` has a wrong type.

    Raises:
        ArgumentTypeError: An argument is of another kind.
    """
    is_span = (
        isinstance(hours, (int, float, np.integer, np.floating)) and not isinstance(hours, bool) and float(hours) >= 0
    )
    for name, value, fits, rule in (
        ("checkpoint", checkpoint, isinstance(checkpoint, Checkpoint), "a mirrored.checkpoint.Checkpoint"),
        ("max_to_keep", kept, kept is None or _is_whole(kept), "a whole number, or None"),
        ("save_interval_steps", interval, _is_whole(interval), "a whole number"),
        ("keep_every_n_hours", hours, hours is None or is_span, "a number of at least 0, or None"),
        (
            "save_on_preemption",
            on_preemption,
            on_preemption is None or isinstance(on_preemption, bool),
            "True, False or None",
        ),
    ):
        if not fits:
            raise ArgumentTypeError(
                "CheckpointManager",
                found=f"{name}={value!r}"[:200],
                rule=f"{name} must be {rule}",
                remedy='CheckpointManager(Checkpoint(model=model), "runs/a", max_to_keep=3)',
            )
