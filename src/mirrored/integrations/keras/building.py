"""Builds Keras optimizers inside `run` once for all replicas, even if `build` assigns variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mirrored._blocks import contextmanager
from mirrored._jax.traces import eager
from mirrored.errors import ContextError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import own_variables
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.variable_store import VariableStore

if TYPE_CHECKING:
    import jax
    from keras.optimizers import Optimizer

keras = load()


def with_wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """Returns a list of an optimizer and all optimizers that it wraps (`LossScaleOptimizer`, `MultiOptimizer`)."""
    parts = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    inner = [one for one in parts if isinstance(one, keras.optimizers.Optimizer)]
    return [optimizer, *(part for one in inner for part in with_wrapped(one))]


@contextmanager
def built_once(optimizer: Optimizer) -> Iterator[None]:
    """Context manager that leaves the `run` or compiled function in progress, to build an optimizer eagerly.

    Assignments in the run would be part of the compiled step, which repeats them, and would be those of one replica.
    So the block reads and assigns the storage. The run or function is told of the new variables afterwards.
    """
    here = ambient()
    if here.store is None:
        yield
        return
    reads = _BuildReads(f"{type(optimizer).__name__}.build", here.store)
    before = {id(variable) for variable in optimizer.variables}
    undo = _unbuilding(optimizer)
    try:
        with within(replica=None, runner=None, store=None, listeners=(reads,)), eager():
            yield
    except BaseException:
        undo()  # Keras marks an optimizer as built before `ScheduleFreeAdamW` has assigned its slots
        raise
    for variable in optimizer.variables:
        if id(variable) not in before and getattr(variable, "mirrored", None) is not None:
            here.store.created(variable.mirrored)


class _BuildReads:
    """A listener for variable reads; raises an error if `build` reads a variable that the same run has assigned."""

    def __init__(self, called: str, store: VariableStore) -> None:
        self._called = called
        self._store = store

    def on_read(self, variable: Any, value: jax.Array) -> jax.Array:
        """Returns `value`; raises ContextError if the current run or compiled function has assigned the variable."""
        stored = getattr(variable, "mirrored", variable)
        if stored is not None and self._store.is_assigned(stored):
            raise ContextError(
                self._called,
                found=f"it reads variable {variable.name!r}, which the run or compiled function has assigned before",
                rule="an optimizer that reads variables when it is built takes their values from before the run",
                remedy="build it before the first step: optimizer.build(model.trainable_variables)",
            )
        return value

    def on_write(self, variables: Sequence[Any]) -> None:
        """Does nothing, because `build` may assign variables."""

    def on_reassign(self, variable: Any, value: object) -> None:
        """Does nothing, because `build` may assign variables."""

    def tracks(self, value: object) -> bool:
        """Returns False, because this listener records no values."""
        return False


def _unbuilding(optimizer: Optimizer) -> Callable[[], None]:
    """Returns a function that undoes a failed `build`: removes new slots, and resets the optimizer's `built` flag."""
    before = {id(one): (one.built, len(own_variables(one))) for one in with_wrapped(optimizer)}

    def undo() -> None:
        for one in with_wrapped(optimizer):
            # `build` asks a function for the optimizers of a `MultiOptimizer`.
            one.built, count = before.get(id(one), (False, None))
            if count is not None:
                del own_variables(one)[count:]

    return undo
