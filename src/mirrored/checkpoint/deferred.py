"""Deferred restoration: restores variables that the program creates only after `Checkpoint.restore` was called.

A new variable is restored when its value is first used, or when the restore status is inspected. Restoring it at its
creation is not possible: no object refers to it yet, so it has no name. Objects that can report new attributes
(`tf.Module`, Keras layers, NNX modules) do so immediately. The restored value is written directly to the variable's
storage, even during a trace or a step: the variable is new, so no step has read another value.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import UserDict, UserList
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, SupportsIndex

import jax

from mirrored.checkpoint.list_entries import is_entry
from mirrored.data.feed import INPUT_THREAD_NAME
from mirrored.errors import CheckpointError
from mirrored.runtime import hooks
from mirrored.runtime.entry_point import outside_of_everything
from mirrored.variables import Variable
from mirrored.variables.creation import Supplier, set_restore_hook
from mirrored.variables.state_lock import assignment_lock, lock, stored_immediately

# Views of a checkpoint's lists and dicts that report new items, while a restore waits for state.
#
# A new item is added to the underlying list or dict, which was passed to the checkpoint.


class NoticingList(UserList[Any]):
    """A list wrapper that, after `Checkpoint.restore`, restores the state of items that are added later.

    Entries, such as the losses of an epoch, are new values and keep them.
    """

    def __init__(self, given: list[Any]) -> None:
        super().__init__()
        self.data = given

    def append(self, item: object) -> None:
        """Appends an item, and restores the item's state at once if a restored checkpoint contains this state."""
        self.data.append(item)
        _restore_item(item)

    def insert(self, i: int, item: object) -> None:
        """Inserts an item, and restores the item's state at once if a restored checkpoint contains this state."""
        self.data.insert(i, item)
        _restore_item(item)

    def extend(self, other: Iterable[Any]) -> None:
        """Appends items, and restores their state at once if a restored checkpoint contains this state."""
        for item in list(other):  # a copy, because `other` may be this list
            self.append(item)

    def copy(self) -> NoticingList:
        """Returns a copy that is not part of the checkpoint: items that are added to the copy are not saved."""
        return NoticingList(self.data.copy())

    def __iadd__(self, other: Iterable[Any]) -> NoticingList:
        self.extend(other)
        return self

    def __setitem__(self, i: SupportsIndex | slice, item: Any) -> None:
        self.data[i] = item
        _restore_item(item)


def _restore_item(item: object) -> None:
    """Restores the saved state of an item that the program adds to a list.

    Numbers and containers of numbers (`is_entry`) keep their values.
    """
    if not is_entry(item):
        restore_created(item)


class NoticingDict(UserDict[Any, Any]):
    """A dict wrapper that, after `Checkpoint.restore`, restores the state of items that are added later."""

    def __init__(self, given: dict[Any, Any]) -> None:
        super().__init__()
        self.data = given

    def __setitem__(self, key: object, item: object) -> None:
        self.data[key] = item
        restore_created(item)


class _Keys:
    """The ordered keys of a dict, compared and hashed without regard to their order."""

    def __init__(self, keys: Iterable[Any]) -> None:
        self.order = tuple(keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keys) and set(self.order) == set(other.order)

    def __hash__(self) -> int:
        return hash(frozenset(self.order))

    def __repr__(self) -> str:
        return repr(list(self.order))


def _keyed_items(view: NoticingDict) -> tuple[list[tuple[Any, Any]], _Keys]:
    return [(jax.tree_util.DictKey(key), view[key]) for key in sorted(view)], _Keys(view)


def _dict_of(keys: _Keys, items: Iterable[Any]) -> NoticingDict:
    found = dict(zip(sorted(keys.order), items, strict=True))
    return NoticingDict({key: found[key] for key in keys.order})


def _keyed_elements(view: NoticingList) -> tuple[list[tuple[Any, Any]], None]:
    return [(jax.tree_util.SequenceKey(index), one) for index, one in enumerate(view)], None


# The views are pytrees with the leaves and paths of the lists and dicts behind them, for which programs use them.
jax.tree_util.register_pytree_with_keys(NoticingDict, _keyed_items, _dict_of)
jax.tree_util.register_pytree_with_keys(NoticingList, _keyed_elements, lambda _, elements: NoticingList(list(elements)))


def noticing(value: object) -> Any:
    """Wraps a list or dict so that items added after a restore are restored, too; returns other values unchanged."""
    if type(value) is list:
        return NoticingList(value)
    return NoticingDict(value) if type(value) is dict else value


def without_wrapper(value: Any, before: object) -> tuple[Any, bool]:
    """Returns a value without its list or dict wrapper, and whether to skip restoring the value.

    The value is assigned to an attribute of a checkpoint. The restore is skipped for the same list, as in
    ``checkpoint.losses += [...]``, and for a list of numbers or records that replaces another list, as in
    ``checkpoint.losses = [*checkpoint.losses, loss]``.

    Args:
        value: The assigned value, which may be a `NoticingList` or `NoticingDict`.
        before: The previous value of the attribute, or None.

    Returns:
        The value without a `NoticingList` or `NoticingDict` around it, and whether to skip restoring it.
    """
    given = value.data if isinstance(value, (NoticingList, NoticingDict)) else value
    if not isinstance(given, list) or not isinstance(before, list):
        return given, False
    return given, (given is before and value is not given) or (bool(given) and all(map(is_entry, given)))


KEPT: Final = "_mirrored_waiting_checkpoints"


class _Kept:
    """Holds the restored checkpoints that an object keeps alive; a copy of the object gets an empty `_Kept`.

    It is no container and has no `__dict__`: the checkpoints refer to the object, so functions of the program that
    collect variables from the attributes of an object would otherwise not end.
    """

    __slots__ = ("checkpoints",)

    def __init__(self) -> None:
        self.checkpoints: dict[int, Waiting] = {}

    def __reduce__(self) -> Any:
        return _Kept, ()


class Waiting(Protocol):
    """Protocol of a restored checkpoint that still has saved values for variables that do not exist yet."""

    def restore_created(self, value: object) -> None:
        """Restores state that the program has just created: a new attribute or item, or a list of new variables."""
        ...

    def held_among(self, variables: Sequence[Variable]) -> list[Variable]:
        """Returns which of the given variables belong to objects that the `Checkpoint` tracks."""
        ...


_waiting: dict[int, tuple[weakref.ref[Waiting], int]] = {}
"""Each waiting checkpoint, by identity, with the number of the last variable created before it started to wait."""


class _Fresh:
    """The variables created after a restore, to which a restored checkpoint may still assign saved values.

    Each entry holds weak references to the variable and to its initial value, and the variable's number. A variable
    that has been assigned since its creation no longer has its initial value and is not restored. A checkpoint restores
    only variables created after it started to wait, even if another checkpoint has waited for longer.
    """

    def __init__(self) -> None:
        self.variables: dict[int, tuple[weakref.ref[Variable], weakref.ref[Any], int]] = {}
        self.is_restoring = False
        self.count = 0

    def add(self, variable: Variable) -> None:
        key = id(variable)
        own = weakref.ref(variable, lambda _: self.variables.pop(key, None))
        self.count += 1
        self.variables[key] = own, weakref.ref(variable.stored_value()), self.count

    def drop(self, variables: Iterable[Variable]) -> None:
        for variable in variables:
            self.variables.pop(id(variable), None)

    def is_untouched(self, variable: Variable, since: int) -> bool:
        """Returns whether a variable was created after a given moment and still has its initial value.

        `since` is the serial number of the last variable that was created before that moment.
        """
        own, first, number = self.variables.get(id(variable), (None, None, 0))
        return own is not None and number > since and first is not None and first() is variable.stored_value()

    def untouched(self) -> list[tuple[Variable, int]]:
        """Returns the variables that still have their initial value, each with its serial number."""
        entries = [(own(), first(), number) for own, first, number in list(self.variables.values())]
        return [
            (one, number)
            for one, first, number in entries
            if one is not None and first is not None and one.stored_value() is first
        ]


_fresh = _Fresh()


def expect(checkpoint: Waiting, keepers: Iterable[Any]) -> None:
    """Registers a restored checkpoint, which is then notified of new variables and restores their saved values.

    Args:
        checkpoint: The checkpoint that waits.
        keepers: Objects that keep the checkpoint alive as long as they live.
    """
    key = id(checkpoint)
    # A checkpoint that still waits after an earlier restore goes on waiting for the variables created since that one.
    _, since = _waiting.pop(key, (None, _fresh.count))
    # The newest restore comes last in the dict, so that its values overwrite those of earlier restores.
    _waiting[key] = weakref.ref(checkpoint, lambda _: _forget(key)), since
    # Only these objects hold the checkpoint strongly, so deferred restoration ends when they are garbage-collected.
    for keeper in keepers:
        _attributes(keeper).setdefault(KEPT, _Kept()).checkpoints[key] = checkpoint
    set_restore_hook(_made)
    hooks.set_unread_hook(_restore_iterator)


def stop(checkpoint: Waiting, keepers: Iterable[Any]) -> None:
    """Unregisters a checkpoint that `expect` has registered, so that the checkpoint restores no further variables."""
    for keeper in keepers:
        kept = _attributes(keeper).get(KEPT, _Kept())
        kept.checkpoints.pop(id(checkpoint), None)
        # The program may use the variables while it iterates over a module's attributes, as `copy.deepcopy` does.
        is_iterated = _fresh.is_restoring and any(
            one.__module__.startswith("mirrored.") for one in type(keeper).__mro__
        )
        if not kept.checkpoints and not is_iterated:
            _attributes(keeper).pop(KEPT, None)
    _forget(id(checkpoint))


def _attributes(keeper: object) -> dict[str, Any]:
    """Returns the ``__dict__`` of an object itself, even if the object is a proxy that forwards attribute access."""
    attributes: dict[str, Any] = object.__getattribute__(keeper, "__dict__")
    return attributes


def _forget(key: int) -> None:
    _waiting.pop(key, None)
    if not _waiting:
        set_restore_hook(None)
        hooks.set_unread_hook(None)
        _fresh.variables.clear()


def restore_created(value: object) -> None:
    """Reports a new attribute or item to all restored checkpoints, so that its saved value is restored.

    Context: any. It is cheap if no checkpoint waits.
    """
    for checkpoint, _ in _all_waiting():
        checkpoint.restore_created(value)


def drop(variables: Iterable[Variable]) -> None:
    """Excludes new variables from deferred restoration, so that the variables keep their initial values."""
    _fresh.drop(variables)


def is_expected() -> bool:
    """Returns whether any restored checkpoint still has values for variables that do not exist yet."""
    return bool(_waiting)


class _RestoreAtFirstUse:
    """Callback that restores all newly created variables when the program first uses any of the variables.

    The first use is a read or a write. A write restores the variables, too, so that `assert_consumed` finds
    them restored. The callback keeps the checkpoints alive, because the program may drop the object before it uses the
    variable.
    """

    def __init__(self) -> None:
        self.checkpoints: list[Waiting] = []

    def __call__(self, variable: Variable) -> None:
        restore_new_variables(variable)

    def before_write(self, variable: Variable) -> None:
        restore_new_variables(variable)


def restores_when_used(variable: Variable, checkpoint: Waiting) -> bool:
    """Tries to defer the restore of a new variable to its first use; returns whether the restore is deferred.

    At the first use of one of them, `restore_new_variables` reads the values of all new variables together, which takes
    less time than reading them one by one. Only an unused variable is deferred. A variable that becomes an attribute
    for the second time is restored now, because it may lose its first name.
    """
    _, since = _waiting.get(id(checkpoint), (None, _fresh.count))
    if _fresh.is_restoring or _is_withheld(variable) or not _fresh.is_untouched(variable, since):
        return False
    use = variable.awaited()
    if not isinstance(use, _RestoreAtFirstUse):
        use = _RestoreAtFirstUse()
        variable.withhold(use)
    elif any(one is checkpoint for one in use.checkpoints):
        return False
    use.checkpoints.append(checkpoint)
    return True


def _is_withheld(variable: Variable) -> bool:
    """Returns whether code other than a restore supplies a variable's value, such as the training loop of Keras."""
    return variable.awaits_other_than(restore_new_variables) and not isinstance(variable.awaited(), _RestoreAtFirstUse)


def restore_new_variables(asking: Variable | None = None, checkpoint: Waiting | None = None) -> None:
    """Restores the variables that were created after `Checkpoint.restore`; called before a variable is read.

    Args:
        asking: The variable whose value is about to be used.
        checkpoint: The checkpoint whose restore status is being inspected. Errors of other checkpoints are raised when
            their variables are used.

    Raises:
        CheckpointMismatchError: A variable has a different shape or dtype in the checkpoint.
        DamagedCheckpointError: The checkpoint was changed or damaged after it was written.
    """
    with assignment_lock(), lock, stored_immediately():
        if _fresh.is_restoring:
            return
        _fresh.is_restoring = True
        try:
            # Excludes the variables that Keras' `fit` carries as loop state: their storage still contains the initial
            # value, but their current value is in the loop.
            new = [(one, number) for one, number in _fresh.untouched() if not _is_withheld(one)]
            for variable, _ in new:
                variable.release()

            def offered(one: Waiting, since: int) -> list[CheckpointError]:
                later = [variable for variable, number in new if number > since]
                try:
                    if later:
                        _offer(one, later, asking, is_asking=one is checkpoint)
                except CheckpointError as error:  # the other checkpoints restore theirs before it is raised
                    return [error]
                return []

            with outside_of_everything():
                errors = [error for one, since in _all_waiting() for error in offered(one, since)]
            if errors:
                raise errors[0]
        finally:
            _fresh.is_restoring = False


_restoring_iterators = threading.RLock()


def _restore_iterator(iterator: object) -> None:
    """Restores the position of a new iterator whose first element is about to be read.

    An iterator that an input thread reads is an inner one of an iterator of the program, and has no name.
    """
    if threading.current_thread().name != INPUT_THREAD_NAME:
        with _restoring_iterators:  # of several threads, one moves it, and the others read after that
            restore_created(iterator)


def restore_new_state(checkpoint: Waiting) -> None:
    """Restores the variables, and the positions of iterators, that were created after `Checkpoint.restore`.

    Called before the state is saved or reported; see `restore_new_variables`, which has the same errors.
    """
    restore_new_variables(checkpoint=checkpoint)
    for iterator in hooks.unread_iterators():
        with _restoring_iterators:
            checkpoint.restore_created(iterator)


def _offer(checkpoint: Waiting, new: list[Variable], asking: Variable | None, *, is_asking: bool) -> None:
    try:
        checkpoint.restore_created(new)
    except CheckpointError as error:
        # The checkpoint's variables must not be used with unrestored values: each use of one raises the error.
        # Variables that the checkpoint does not hold are not affected.
        refused = checkpoint.held_among(new)
        for variable in refused:
            variable.withhold(functools.partial(_refuse, error))
        if is_asking or any(variable is asking for variable in refused):
            raise
    finally:
        _fresh.drop(checkpoint.held_among(new))


def _refuse(error: CheckpointError, variable: Variable) -> None:
    # A callback is removed before it is called. Registering it again makes every later use raise the error too.
    variable.withhold(functools.partial(_refuse, error))
    raise error.with_traceback(None)


def _all_waiting() -> list[tuple[Waiting, int]]:
    return [(one, since) for reference, since in list(_waiting.values()) if (one := reference()) is not None]


def _made(variable: Variable) -> Supplier:
    _fresh.add(variable)
    return restore_new_variables
