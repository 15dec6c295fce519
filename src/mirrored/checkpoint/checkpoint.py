"""The class `Checkpoint`, which saves and restores variables, optimizers, models and data iterators."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mirrored.checkpoint import deferred
from mirrored.checkpoint.accepted_parts import check_free, checked_part, checked_root
from mirrored.checkpoint.deferred import noticing, without_wrapper
from mirrored.checkpoint.directory import as_path, following
from mirrored.checkpoint.extra import engine
from mirrored.checkpoint.graph import Graph, walk
from mirrored.checkpoint.immutable_parts import ArraysSaved, log_replaced, log_unassigned
from mirrored.checkpoint.keepers import keepers
from mirrored.checkpoint.late_state import report_late
from mirrored.checkpoint.leaves import Leaf, VariableLeaf
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import COUNTER, Match, RestoreStatus, match
from mirrored.checkpoint.objects import LEVEL, NEWEST, Part, root_parts
from mirrored.checkpoint.overlaps import manifest_of
from mirrored.checkpoint.places import Attribute, Place, Root, refuse_private
from mirrored.checkpoint.restoring import Restoration, outside_of_steps
from mirrored.checkpoint.series_lock import SeriesLock, claim, withdrawn_on_failure
from mirrored.checkpoint.sharing import on_all_workers, same_files, with_all_positions, writes_here
from mirrored.checkpoint.succession import Succession
from mirrored.checkpoint.writing import Writer, check_replaceable, wait_for_writers, write
from mirrored.errors import ArgumentError, CheckpointError
from mirrored.runtime import hooks
from mirrored.runtime.ambient import within
from mirrored.variables import Variable
from mirrored.variables.state_lock import assignment_lock, lock, refuse_callbacks, tracing

PathLike = str | os.PathLike[str]


class Checkpoint:
    """A set of objects whose state is saved and restored by attribute path, like `tf.train.Checkpoint`.

    A name is the path from the checkpoint to a piece of state: ``model/layers/0/w``. These are state:

    - variables and arrays in attributes, lists, tuples and dicts, and variables in arguments of `functools.partial`,
    - the slots of optimizers, under the names of their variables,
    - iterators and generators with `get_state` and `set_state`, `numpy.random.Generator` and `random.Random`,
    - plain numbers that are parts of the checkpoint itself or of its dicts, lists and tuples. Numbers in an object (its
      attributes, and their items) are state if it holds no variables and is not part of one that does; variables with
      names in another part do not count. A trainer's `history` is saved only if its model, or it, is a part, too.

    Texts, dates, enums of texts, sets and None beside such numbers are not state. A restore logs a warning if they
    differ from those at the time of the save.

    A mirrored variable is saved as one value, independent of the number of replicas. A sync-on-read variable is saved
    as its aggregate. On restore a SUM is divided among the replicas; any other aggregate is copied to each replica. So
    metrics and the statistics of batch normalization continue up to rounding. With ``deterministic=True`` a checkpoint
    contains the components, too, and the same number of replicas continue with the same bits. A sync-on-read variable
    without aggregation saves the component of every replica. Each replica that had a component is restored; additional
    replicas keep theirs.

    All workers of a job save and restore together, at the same step; a restore that fails on one worker changes nothing
    on any worker and raises an error on all. A checkpoint that they save under one path is written once, by worker 0.
    It stores the state of an iterator or random generator per worker if the states differ, but of other state (numbers,
    arrays, and variables made outside of the strategy's scope) only the values of worker 0, which a restore gives to
    all workers; the save then warns with a `WorkerStateWarning`.

    Args:
        root: An object whose parts become parts of the checkpoint, except for its plain numbers.
        **parts: The objects, by name. They become attributes of the checkpoint; you can set more attributes later.

    Raises:
        ArgumentError: A part cannot hold state (None, a string, a dataset), or has the name of a method, or of another
            part of the root, or one that begins with an underscore.

    Example:
        >>> import mirrored as mr, tempfile
        >>> v = mr.Variable(1.0)
        >>> checkpoint = Checkpoint(v=v, epoch=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = checkpoint.save(folder + "/c")
        ...     _ = v.assign(7.0)
        ...     checkpoint.epoch = 4
        ...     _ = checkpoint.restore(path).assert_consumed()
        >>> print(v.numpy(), checkpoint.epoch)
        1.0 3

    TensorFlow: `tf.train.Checkpoint`. Parts can be numbers, arrays and any Python object; TensorFlow requires trackable
    objects. A checkpoint is a folder. A restore is atomic: it either restores everything that matches, or raises an
    error and changes nothing.
    """

    _parts: dict[str, Any]
    _root: dict[str, Any]
    _counter: Variable | None
    _saving: Any  # a lock: one thread saves at a time
    _writer: Writer
    _series: SeriesLock | None  # lock on the series of checkpoints that `save` numbers
    _saved: dict[str, set[str]]  # by the method that saves: what it has saved and was not assigned since
    _arrays: dict[str, ArraysSaved]  # by the method that saves
    _told: set[str]  # the parts and sets for which a warning was logged
    _unequal: set[str]  # what differs between workers, for which a warning was issued
    _restoration: Succession | None  # the restores that wait for new state
    _keepers: list[Any]  # objects that keep this checkpoint alive until the restore is complete

    def __init__(self, root: object = None, /, **parts: object) -> None:
        vars(self).update(_parts={}, _root={}, _counter=None, _series=None, _restoration=None, _keepers=[])
        vars(self).update(_writer=Writer(), _saved={}, _arrays={}, _told=set(), _unequal=set())
        self._saving = threading.RLock()
        if root is not None:
            self._root["root"] = checked_root(root)
        for name, part in parts.items():
            refuse_private(name)
            check_free(name, part, self._root)
            setattr(self, name, part)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([*self._root, *self._parts])})"

    # Parts

    def __getattr__(self, name: str) -> Any:
        """Returns the object that was passed as the keyword argument `name`."""
        if hasattr(type(self), name):  # a property of a subclass has raised an AttributeError, which Python hides
            return object.__getattribute__(self, name)
        parts = vars(self).get("_parts", {})
        if name not in parts:
            raise AttributeError(f"this Checkpoint has no part {name!r} (it has: {', '.join(parts) or 'none'})")
        part, restoration = parts[name], self._restoration
        # Lists and dicts for whose items a restore has values are returned as views that report new items.
        return part if restoration is None or not restoration.has_pending_values_of(name) else noticing(part)

    def __setattr__(self, name: str, value: object) -> None:
        """Adds an object to the checkpoint under a name, replacing any previous object of that name."""
        if name.startswith("_"):
            vars(self)[name] = value
            return
        if hasattr(type(self), name):
            raise ArgumentError(
                "Checkpoint",
                found=f"{name!r} is the name of a method of Checkpoint",
                rule="the objects of a checkpoint become its attributes, so they cannot have the name of a method",
                remedy=f"pass the object under another name than {name!r}",
            )
        value, keeps_values = without_wrapper(value, self._parts.get(name))
        self._parts[name] = checked_part(name, value)
        for saved in self._saved.values():
            saved.discard(name)
        if self._restoration is not None and not keeps_values:
            self._proceed(value, lambda path, leaf: path.partition("/")[0] == name)
        if not keeps_values:
            deferred.restore_created(value)

    def checkpoint_parts(self, place: Place) -> Iterator[Part]:
        """Yields this checkpoint's objects with their names; called by another checkpoint that contains this one."""
        for name, value in self._parts.items():
            yield Part(name, value, Attribute(place, name))
        for name, value in self._root.items():  # as in TensorFlow
            yield Part(name, value, Root(self._root, name), since=NEWEST)

    def graph(self) -> Graph:
        """Returns all state that the checkpoint's objects have now, by name."""
        parts = [Part(name, value, Root(self._parts, name)) for name, value in self._parts.items()]
        if self._counter is not None:
            parts.append(Part(COUNTER, self._counter, Root({COUNTER: self._counter}, COUNTER)))
        place = Root(self._root, "root")
        inside = root_parts(place.get(), place) if self._root else ()
        return walk(parts, [part for part in inside if part.name not in self._parts])

    @property
    def save_counter(self) -> Variable:
        """The number of calls of `save` so far, an int32 scalar; the checkpoint also contains this number."""
        with self._saving:
            if self._counter is None:
                with within(strategies=()):
                    self._counter = Variable(0, trainable=False, name=COUNTER)
            return self._counter

    # Saving

    def save(self, file_prefix: PathLike, *, wait: bool = True) -> str:
        """Saves a checkpoint to the folder ``<file_prefix>-<number>``, where the number increases with every save.

        Context: cross-replica, outside of compiled functions.

        Args:
            file_prefix: The parent folder and the prefix of the name.
            wait: False returns after the state is copied to this host and writes in the background; see `wait`.

        Returns:
            The path of the checkpoint.

        Raises:
            CheckpointError: The checkpoint could not be written; or, with ``wait=False``, the previous one could not;
                or another process saves checkpoints of this name there; or something that is not a checkpoint is at the
                path.
            ContextError: Inside a step.
            LostStateError: The value of a variable was lost in a failed step.
            MissingExtraError: Orbax is not installed.
        """
        file_prefix = as_path(file_prefix, "Checkpoint.save", "file_prefix")
        with self._saving:
            self.save_counter.assign_add(1)
            try:
                path = f"{file_prefix}-{int(self.save_counter.numpy())}"
                self._series = self._write(path, Path(file_prefix).name, self, wait=wait)
                return path
            except BaseException:
                self.save_counter.assign_sub(1)
                raise

    def write(self, file_prefix: PathLike, *, wait: bool = True) -> str:
        """Saves a checkpoint to exactly the folder `file_prefix`, and replaces an existing checkpoint there.

        It is replaced after the new one is completely written. Anything else at the path is an error: a file, or a
        folder with something else in it.

        Context, arguments, result and errors: as `save`.
        """
        file_prefix = as_path(file_prefix, "Checkpoint.write", "file_prefix")
        with self._saving:
            self._write(file_prefix, Path(file_prefix).name, None, wait=wait)
        return file_prefix

    def _write(self, save_path: PathLike, series: str, writer: Checkpoint | None, *, wait: bool) -> SeriesLock | None:
        called, path = "Checkpoint.write", Path(save_path).absolute()
        writes, manifest = writes_here(called, path, is_numbered=writer is not None), self.snapshot()

        def make_ready() -> SeriesLock | None:
            self._writer.wait()
            if not writes:
                return None
            check_replaceable(path, called)
            return claim(path.parent, series, called, writer)

        def work(lock: SeriesLock | None) -> None:
            with withdrawn_on_failure(lock, writer):
                write(path, following(path, manifest))

        lock: SeriesLock | None = on_all_workers(called, "wait for the previous checkpoint", make_ready)
        if writes:
            # The partial holds a reference to the lock, which keeps it locked until the write is done.
            self._writer.start(functools.partial(work, lock))
        self.note_saved("Checkpoint.save")
        if wait:
            self.wait()
        return lock

    def note_saved(self, called: str) -> None:
        """Warns if a save contains the same immutable objects or arrays as the previous save.

        Args:
            called: The method that saves.
        """
        saved = self._saved.get(called, set())
        log_unassigned(called, self._parts, saved - self._told)
        self._told |= saved
        self._saved[called] = set(self._parts)
        self._arrays.setdefault(called, ArraysSaved()).log_same(called, self._parts, self.graph)

    def snapshot(self, step: int | None = None) -> Manifest:
        """Returns a copy of all state in host memory, so that training can continue while the copy is written to disk.

        Context: any thread. A training thread waits, so that all variables have their values after the same step. The
        saved position of an iterator follows the batch that it returned last. Another thread may not have executed the
        step of that batch yet, so save iterators in the thread that reads them, after the step.
        """
        engine()
        refuse_callbacks("Checkpoint.save")
        with outside_of_steps("Checkpoint.save"):
            if self._restoration is not None:
                deferred.restore_new_state(self)
            with assignment_lock(), tracing, lock:
                graph = self.graph_to_save("Checkpoint.save")
                leaves = {name: leaf.read() for name, leaf in graph.leaves.items()}
        manifest = manifest_of(graph, leaves, step)
        manifest = with_all_positions(manifest, graph.leaves, self._unequal, "Checkpoint.save")
        return self.with_pending_values(manifest, graph)

    def graph_to_save(self, called: str, *, refuses_late: bool = False) -> Graph:
        """Returns the state to save, keyed by name; raises an error or logs a warning about state that cannot be saved.

        Raises:
            ArgumentError: A container has an array that cannot be saved.
            CheckpointMismatchError: `refuses_late`, and an iterator or generator was created too late to be restored.
        """
        graph = self.graph()
        if self._restoration is not None:
            report_late(self._restoration.created_late(graph), called, self._told, refuses_positions=refuses_late)
        graph.refuse_unsaved(called)
        graph.log_left_out(called, self._told)
        graph.drop_rates()
        return graph

    def with_pending_values(self, manifest: Manifest, graph: Graph) -> Manifest:
        """Returns `manifest` plus values that `restore` could not restore yet, because their objects do not exist."""
        return (self._restoration or Succession()).carry_over(manifest, graph, self._may_be_created)

    def _may_be_created(self, name: str) -> bool:
        """Returns whether the program may still create state with the given name in one of the checkpoint's objects."""
        return bool(self._root) or name.partition("/")[0] in self._parts

    def wait(self) -> None:
        """Waits until the checkpoints saved with ``wait=False`` are on disk.

        Context: every worker of a job calls it, and all wait for the worker that writes.

        Raises:
            CheckpointError: A checkpoint could not be written.
        """
        on_all_workers("Checkpoint.wait", "wait until the checkpoint is on disk", self._writer.wait)

    def sync(self) -> None:
        """Waits until the checkpoints saved with ``wait=False`` are on disk, like `wait`."""
        self.wait()

    def _wait_for_all(self) -> None:
        """Waits until all checkpoint writes of this process have ended, because a restore may read any of them."""
        self._writer.wait()
        wait_for_writers()

    # Restoring

    def restore(self, save_path: PathLike | None) -> RestoreStatus:
        """Restores the objects' state from a checkpoint, matched by name; the result lists names that did not match.

        Slots that an optimizer has not made yet are made. Created later, these are restored: variables, such as those
        of a Keras model that is not built, and slots, at their first use; iterators of `mirrored.data`, at their first
        element; new parts, and items of lists and dicts that are parts, if they are set through the checkpoint:
        ``checkpoint.random = ...``. Other state (generators, iterators of other libraries, arrays and numbers in the
        program's objects, numbers in lists and dicts that are set later) must exist before; else the next save warns.

        This ends when everything is restored, or the objects are garbage-collected; the next restore takes over the
        names that it has. A checkpoint saved meanwhile also contains the values, of existing parts, that still wait.

        A list or deque of numbers, such as ``Checkpoint(history=[])``, gets the saved numbers that it lacks at once.
        So does a `Counter` or `defaultdict` with texts or ints as keys. Numbers of the program alone stay: empty it
        before you go back to an older checkpoint. Entries of a list that are dicts or scalar arrays are not continued.

        Variables, lists, dicts and objects with attributes are restored in place. Tuples, frozen dataclasses (such as a
        `TrainState` of arrays), JAX arrays and PRNG keys cannot be changed, so the checkpoint gets a new one, and a
        warning is logged: continue with ``state = checkpoint.state``.

        A dict, list or dataclass that the program has under several names, and the checkpoint separately, is copied, so
        that each name has its own values. A variable or module is not: one of the values is left out, with a warning.

        Waits for the checkpoints that this process is writing, also those of managers and other checkpoints.

        Context: cross-replica, outside of compiled functions.

        Args:
            save_path: A path that `save` or `latest_checkpoint` returned; None restores nothing.

        Raises:
            MissingCheckpointError: There is no checkpoint at the path.
            DamagedCheckpointError: The checkpoint was changed or damaged after it was written.
            CheckpointMismatchError: A name has a different kind, shape or dtype in the checkpoint, or no name matches.
                After any of these errors every variable keeps its value.
        """
        return self.restore_from(save_path, called="Checkpoint.restore")

    def read(self, save_path: PathLike) -> RestoreStatus:
        """Restores the objects' state like `restore`, from a path that `write` returned."""
        return self.restore_from(save_path, called="Checkpoint.read")

    def restore_from(self, save_path: PathLike | None, *, called: str, strict: bool = False) -> RestoreStatus:
        """Implements `restore` and `read`; `strict` requires the same names in checkpoint and program."""
        if save_path is None:
            return RestoreStatus(None, lambda: match(self.graph(), Manifest({}, {}, {}, level=LEVEL)))
        save_path = as_path(save_path, called, "save_path")
        on_all_workers(called, "wait for pending saves", self._wait_for_all)  # another worker may be writing it
        directory, manifest = same_files(called, Path(save_path).absolute())
        with outside_of_steps(called):
            if COUNTER in manifest.leaves:
                _ = self.save_counter
        restoration = Restoration(directory, manifest, self.graph)
        self.begin_restoration(restoration, called, strict=strict)

        def look() -> Match:
            deferred.restore_new_state(self)
            return restoration.match()

        return RestoreStatus(save_path, look)

    def begin_restoration(self, restoration: Restoration, called: str, *, strict: bool = False) -> None:
        """Restores state that exists now, and registers the rest to be restored when the program creates it."""
        before = dict(self._parts)
        # Nothing of the previous restore is restored meanwhile; if this one fails, the previous one goes on.
        waiting, self._restoration = self._restoration, None
        try:
            restoration.begin(called, strict=strict)
        except BaseException:
            self._restoration = waiting
            raise
        log_replaced(called, before, self._parts)
        succession = (waiting or Succession()).followed_by(restoration)
        if not succession.has_earlier:
            self._stop_waiting()
        if not succession.is_over():
            self._restoration = succession
            kept = [*self._keepers, *keepers(self.graph(), self._root.values(), succession)]
            self._keepers = list({id(one): one for one in kept}.values())
            deferred.expect(self, self._keepers)
            hooks.connect()  # so that the frameworks' objects report new attributes
            if succession.has_earlier:
                succession.make_slots(called)
                self._stop_if_over(succession)

    def held_among(self, variables: Sequence[Variable]) -> list[Variable]:
        """Returns which of the given variables belong to this checkpoint's objects."""
        held = {leaf.owner for leaf in self.graph().leaves.values()}
        return [one for one in variables if id(one) in held]

    def restore_created(self, value: object) -> None:
        """Restores a variable, attribute or list item that the program has created after `restore` was called."""
        if self._restoration is None:
            return
        if isinstance(value, Variable) and deferred.restores_when_used(value, self):
            return
        found = walk([Part("new", value, Root({"new": value}, "new"))])
        new = {*found.visited, *(leaf.owner for leaf in found.leaves.values())}
        if found.leaves:
            deferred.restore_new_variables(checkpoint=self)
            self._proceed(value, lambda _, leaf: leaf.owner in new)

    def _proceed(self, value: object, wanted: Callable[[str, Leaf], bool]) -> None:
        restoration = self._restoration
        if restoration is None:
            return
        try:
            restoration.proceed("Checkpoint.restore", wanted)
        except CheckpointError:
            # The caller that set the attribute gets the error; the new variables keep their initial values.
            # Those that it does not hold may be waited for by another checkpoint.
            leaves = walk([Part("new", value, Root({"new": value}, "new"))]).leaves.values()
            deferred.drop(self.held_among([leaf.variable for leaf in leaves if isinstance(leaf, VariableLeaf)]))
            raise
        self._stop_if_over(restoration)

    def _stop_if_over(self, restoration: Succession) -> None:
        # Reading a variable restores further ones, which may have ended the restore already.
        if self._restoration is restoration and restoration.is_over():
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        deferred.stop(self, self._keepers)
        self._restoration, self._keepers = None, []
