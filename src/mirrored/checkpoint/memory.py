"""Snapshots of a checkpoint's state in host memory, from which an elastic job continues after a failure.

Unlike a checkpoint on disk, a snapshot has the component of every replica of every sync-on-read variable, so that a
training run that continues from it is bit-identical. It is taken without waiting for the devices: the variables' arrays
are marked as shared, so that the next step donates copies of them, and they are copied to this host in a thread.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import jax
import numpy as np

from mirrored._jax.arrays import implementation_of, is_key_dtype, is_ready, key_data
from mirrored.checkpoint import deferred
from mirrored.checkpoint.checkpoint import Checkpoint
from mirrored.checkpoint.json_state import decode, encode
from mirrored.checkpoint.leaves import Leaf, Undo, VariableLeaf, from_components, shape_of
from mirrored.checkpoint.manifest import Manifest
from mirrored.checkpoint.matching import COUNTER
from mirrored.checkpoint.overlaps import manifest_of
from mirrored.checkpoint.restoring import Restoration, outside_of_steps
from mirrored.checkpoint.saved import Saved
from mirrored.collectives.stacked import whole_stacked
from mirrored.data.global_seed import counts, restore_counts
from mirrored.variables import Variable
from mirrored.variables.state_lock import assignment_lock, lock, refuse_callbacks, tracing

_PLACE: Final = Path("the memory of this job")
_OF_PROCESS: Final = "state of the process/"


class ProcessState(Protocol):
    """Protocol of objects that describe and restore state of the process, such as global random streams.

    A program cannot put this state into its `Checkpoint`. Snapshots contain it, so that a worker that continues and one
    that has joined have the same.
    """

    def describe(self) -> Any:
        """Returns the state on this host, as JSON-serializable data."""
        ...

    def variables(self) -> list[Variable]:
        """Returns the variables that belong to the state."""
        ...

    def restore(self, described: Any, values: list[np.ndarray]) -> None:
        """Restores the state from a result of `describe` and the values of the variables."""
        ...


_process_states: Final[dict[str, ProcessState]] = {}


def keep_in_snapshots(name: str, state: ProcessState) -> None:
    """Registers a `ProcessState` under `name`, so that every later snapshot contains that state.

    Args:
        name: The name of the state in a snapshot.
        state: The state.
    """
    _process_states[name] = state


class _DatasetSeeds:
    """The global seed of datasets and the number of seeds drawn from it, which snapshots contain."""

    def describe(self) -> list[int | None]:
        return list(counts())

    def variables(self) -> list[Variable]:
        return []

    def restore(self, described: Any, values: list[np.ndarray]) -> None:
        seed, drawn, functions = described
        restore_counts((seed, drawn, functions))


keep_in_snapshots("data.global_seed", _DatasetSeeds())


@dataclasses.dataclass(frozen=True)
class AllComponents(Saved):
    """The saved state of a sync-on-read variable: one value per replica, not their aggregate."""


@dataclasses.dataclass(frozen=True)
class Pending:
    """A snapshot whose arrays are not copied to this host yet.

    Attributes:
        manifest: The snapshot, without the values in `arrays`.
        arrays: Arrays that this process can read as a whole, by name.
    """

    manifest: Manifest
    arrays: Mapping[str, Any]

    def wait(self) -> None:
        """Waits until the devices have computed the arrays.

        Context: any thread.

        Raises:
            RuntimeError: A step has failed before they were computed.
        """
        jax.block_until_ready(list(self.arrays.values()))

    def is_computed(self) -> bool:
        """Returns, without waiting, whether the arrays are computed; False if a step that computes them has failed.

        Context: any thread.
        """
        if not all(map(is_ready, self.arrays.values())):
            return False
        try:
            self.wait()  # raises the error of a failed step, whose results are ready, too
        except RuntimeError:
            return False
        return True

    def finish(self) -> Manifest:
        """Waits until the devices have computed the arrays, copies the arrays to this host, and returns the snapshot.

        Context: any thread.

        Raises:
            RuntimeError: A step has failed before they were computed.
        """
        leaves = dict(self.manifest.leaves)
        for name, array in self.arrays.items():
            leaves[name] = dataclasses.replace(leaves[name], value=np.array(array))
        return dataclasses.replace(self.manifest, leaves=leaves)


def begin_snapshot(checkpoint: Checkpoint) -> Pending:
    """Begins a snapshot of a checkpoint's state between two steps; returns a `Pending` that copies the arrays later.

    Like a checkpoint on disk, it also has the restored checkpoint's values of objects that do not exist yet.

    Context: the main thread of every worker, outside of compiled functions, at the same step.
    """
    refuse_callbacks("commit")
    arrays: dict[str, Any] = {}
    leaves: dict[str, Saved] = {}
    with outside_of_steps("commit"):
        deferred.restore_new_state(checkpoint)
        with assignment_lock(), tracing, lock:
            graph = checkpoint.graph_to_save("Session.commit", refuses_late=True)
            for name, leaf in graph.leaves.items():
                if isinstance(leaf, VariableLeaf):
                    leaves[name], arrays[name] = _reference(leaf.variable)
                else:
                    leaves[name] = leaf.read()
            for name, state in _process_states.items():
                leaves[_OF_PROCESS + name] = Saved("position", value=encode(state.describe(), name))
                for number, variable in enumerate(state.variables()):
                    of_variable = f"{_OF_PROCESS}{name}/{number}"
                    leaves[of_variable], arrays[of_variable] = _reference(variable)
    return Pending(checkpoint.with_pending_values(manifest_of(graph, leaves), graph), arrays)


def refuse_late_state(checkpoint: Checkpoint) -> None:
    """Raises an error about iterators and random generators that were created too late to be restored.

    Context: as `begin_snapshot`, after the first step that follows a restore.

    Raises:
        CheckpointMismatchError: There are such iterators or generators.
    """
    if deferred.is_expected():
        refuse_callbacks("commit")
        with outside_of_steps("commit"):
            deferred.restore_new_state(checkpoint)
            checkpoint.graph_to_save("Session.commit", refuses_late=True)


def _reference(variable: Variable) -> tuple[Saved, Any]:
    """Returns a description of a variable's state, and the variable's array, which later steps do not donate."""
    stored = variable.stored()
    shape, is_key = shape_of(variable), is_key_dtype(variable.dtype)
    dtype = implementation_of(variable.dtype) if is_key else str(np.dtype(variable.dtype))
    kind = "key" if is_key else "array"
    if variable.per_replica:
        kind = "key components" if is_key else "components"
        whole = key_data(whole_stacked(stored, variable.device_assignment))
        return AllComponents(kind, shape, dtype), _local(whole)
    return Saved(kind, shape, dtype), _local(key_data(stored))


def _local(array: Any) -> Any:
    """Returns this process's full copy of an array that is replicated over all processes."""
    return array if array.is_fully_addressable else array.addressable_data(0)


def restore_snapshot(checkpoint: Checkpoint, manifest: Manifest) -> None:
    """Restores the state in a snapshot; state that does not exist yet is restored when the program creates it.

    Context: cross-replica, on all workers.

    Raises:
        CheckpointMismatchError: The program has created other state than before.
    """
    own = {name: saved for name, saved in manifest.leaves.items() if not name.startswith(_OF_PROCESS)}
    with outside_of_steps("resume"):
        if COUNTER in own:
            _ = checkpoint.save_counter
    own_manifest = dataclasses.replace(manifest, leaves=own)
    checkpoint.begin_restoration(_FromMemory(own_manifest, checkpoint.graph), "resume")
    for name, state in _process_states.items():
        described = manifest.leaves.get(_OF_PROCESS + name)
        if described is not None:
            of_variables = (f"{_OF_PROCESS}{name}/{number}" for number in itertools.count())
            present = itertools.takewhile(manifest.leaves.__contains__, of_variables)
            state.restore(decode(described.value), [manifest.leaves[one].value for one in present])


class _FromMemory(Restoration):
    _on_all_workers = False  # workers that have lived through a failure do not restore
    _refuses_conflicts = True  # the state after it must be that of an undisturbed run

    def __init__(self, manifest: Manifest, look: Callable[[], Any]) -> None:
        super().__init__(_PLACE, manifest, look)

    def _verify(self) -> None:
        """Does nothing: a snapshot in memory has no files whose checksums could be verified."""

    def _hold(self, names: list[str]) -> bool:
        self._held.update({name: self._manifest.leaves[name] for name in names})
        return True

    def _values(self, names: list[str]) -> dict[str, Saved]:
        return self._manifest.leaves

    def _put_one(self, leaf: Leaf, saved: Saved) -> Undo:
        if isinstance(leaf, VariableLeaf) and isinstance(saved, AllComponents):
            return from_components(leaf.variable, saved)
        return leaf.put(saved)
