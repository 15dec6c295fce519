"""Deferred restoration: which checkpoints wait for state that is created after the restore.

A new variable is restored when its value is first used, at the latest when somebody asks what became of the restore:
when it is made nothing leads to it yet. An object that can tell of a new attribute (`tf.Module`, Keras' layers, NNX
modules) tells at once. The value is put into storage, whatever is being traced or run meanwhile: the variable is new,
so that no step has seen another value.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from mirrored._jax.traces import eager
from mirrored.errors import CheckpointError
from mirrored.runtime.ambient import within
from mirrored.variables import Variable
from mirrored.variables.awaiting import Settle, set_watch
from mirrored.variables.state_lock import lock, turn

KEPT: Final = "_mirrored_waiting_checkpoints"


class Waiting(Protocol):
    """A checkpoint that waits for state."""

    def state_came(self, value: Any) -> None:
        """Restores what is below `value`: an object's new attribute, or a list of new variables."""
        ...

    def held_among(self, variables: Sequence[Variable]) -> list[Variable]:
        """Those that the checkpoint's objects hold."""
        ...


_waiting: dict[int, tuple[weakref.ref[Waiting], int]] = {}
"""Each checkpoint, by identity, with the number of the last variable that was made before it began to wait."""


class _Fresh:
    """The variables made since a checkpoint began to wait, but for those that were found; by identity, held weakly.

    With each goes a weak reference to its first value (one that has been assigned since is not restored) and its
    number: a checkpoint restores those made after it began to wait, whoever else has been waiting for longer.
    """

    def __init__(self) -> None:
        self.variables: dict[int, tuple[weakref.ref[Variable], weakref.ref[Any], int]] = {}
        self.is_settling = False
        self.count = 0

    def add(self, variable: Variable) -> None:
        key = id(variable)
        own = weakref.ref(variable, lambda _: self.variables.pop(key, None))
        self.count += 1
        self.variables[key] = own, weakref.ref(variable.initial()), self.count

    def drop(self, variables: Iterable[Variable]) -> None:
        for variable in variables:
            self.variables.pop(id(variable), None)

    def untouched(self) -> list[tuple[Variable, int]]:
        """Those that still have their first value, each with its number."""
        entries = [(own(), first(), number) for own, first, number in list(self.variables.values())]
        return [
            (one, number)
            for one, first, number in entries
            if one is not None and first is not None and one.initial() is first
        ]


_fresh = _Fresh()


def expect(checkpoint: Waiting, keepers: Iterable[Any]) -> None:
    """Tells `checkpoint` of what comes from now on.

    Args:
        checkpoint: Who waits.
        keepers: Objects that keep the checkpoint alive as long as they live.
    """
    key = id(checkpoint)
    _waiting.pop(key, None)
    # The newest comes last, so that its values stay.
    _waiting[key] = weakref.ref(checkpoint, lambda _: _forget(key)), _fresh.count
    for keeper in keepers:
        vars(keeper).setdefault(KEPT, {})[key] = checkpoint
    set_watch(_made)


def stop(checkpoint: Waiting, keepers: Iterable[Any]) -> None:
    """Tells `checkpoint` of nothing any more."""
    for keeper in keepers:
        vars(keeper).get(KEPT, {}).pop(id(checkpoint), None)
    _forget(id(checkpoint))


def _forget(key: int) -> None:
    _waiting.pop(key, None)
    if not _waiting:
        set_watch(None)
        _fresh.variables.clear()


def state_came(value: Any) -> None:
    """Tells those that wait of an object's new attribute. Objects that can notice one call it.

    Context: any. It is cheap if nobody waits.
    """
    for checkpoint, _ in _all_waiting():
        checkpoint.state_came(value)


def drop(variables: Iterable[Variable]) -> None:
    """Lets new variables keep their first values."""
    _fresh.drop(variables)


def is_expected() -> bool:
    """Whether any checkpoint waits for state."""
    return bool(_waiting)


def settle(asking: Variable | None = None, checkpoint: Waiting | None = None) -> None:
    """Has the checkpoints that wait look for the new variables, and restore those that they find.

    Args:
        asking: The variable whose value is about to be used.
        checkpoint: Who asks what became of a restore. Errors of others are for those who use their variables.

    Raises:
        CheckpointMismatchError: One has another shape or dtype in the checkpoint.
        DamagedCheckpointError: The checkpoint is not as it was written.
    """
    with turn(), lock:
        if _fresh.is_settling:
            return
        _fresh.is_settling = True
        try:
            # What `fit` carries along still has its first value in storage, but is in use: its value is with `fit`.
            new = [(one, number) for one, number in _fresh.untouched() if not one.is_withheld_from(settle)]
            for variable, _ in new:
                variable.release()
            with _outside_of_everything():
                for one, since in _all_waiting():
                    later = [variable for variable, number in new if number > since]
                    if later:
                        _offer(one, later, asking, is_asking=one is checkpoint)
        finally:
            _fresh.is_settling = False


def _offer(checkpoint: Waiting, new: list[Variable], asking: Variable | None, *, is_asking: bool) -> None:
    try:
        checkpoint.state_came(new)
    except CheckpointError as error:
        # Those of the checkpoint must not be used with other values. Others have nothing to do with it.
        refused = checkpoint.held_among(new)
        for variable in refused:
            variable.withhold(functools.partial(_refuse, error))
        if is_asking or any(variable is asking for variable in refused):
            raise
    finally:
        _fresh.drop(checkpoint.held_among(new))


def _refuse(error: CheckpointError, variable: Variable) -> None:
    variable.withhold(functools.partial(_refuse, error))
    raise error.with_traceback(None)


def _all_waiting() -> list[tuple[Waiting, int]]:
    return [(one, since) for reference, since in list(_waiting.values()) if (one := reference()) is not None]


@contextmanager
def _outside_of_everything() -> Iterator[None]:
    with within(strategies=(), listeners=(), creators=(), store=None, replica=None, runner=None, driver=None), eager():
        yield


def _made(variable: Variable) -> Settle:
    _fresh.add(variable)
    return settle
