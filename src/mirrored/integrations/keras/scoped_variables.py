"""Lets branches, loops and recomputed functions in a Keras `StatelessScope` assign Keras variables.

In a scope, as in Keras' own training step, Keras keeps the values of variables in the scope. JAX traces the body of a
branch or loop, and the function of `tf.recompute_grad`. A value that such a *block* assigns is a tracer of the block,
which is invalid outside of it. So the variable store of the block takes the assignment, as it does for a `mirrored`
variable: the value leaves the block as a result, and is then assigned in the scope (`ScopeStore`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from mirrored._blocks import contextmanager
from mirrored._jax.source_lines import user_line
from mirrored._jax.traces import belongs_to
from mirrored._typing import Operand
from mirrored.errors import TransformError
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.private import in_symbolic_scope
from mirrored.integrations.keras.scope_store import ScopedVariable, ScopeStore
from mirrored.integrations.keras.untracked import note_assigned, value_in_step
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient
from mirrored.runtime.staged_values import VariableLike
from mirrored.runtime.variable_store import FunctionStore, VariableStore

if TYPE_CHECKING:
    from keras import StatelessScope
    from keras import Variable as KerasVariable

keras = load()
_StatelessScope: Any = keras.StatelessScope
# Attributes of an open scope: the variable store around the blocks in it, and its `ScopedVariable`s by variable `id`.
_STORE: Final = "_mirrored_store"
_SCOPED: Final = "_mirrored_scoped"


@contextmanager
def noting_blocks(scope: StatelessScope) -> Iterator[None]:
    """Notes the variable store of the code of a scope, so that blocks in the scope are known by their own stores."""
    attributes = vars(scope)
    attributes[_STORE], attributes[_SCOPED] = ambient().store, {}
    try:
        yield
    finally:
        del attributes[_STORE], attributes[_SCOPED]


def connect_scoped_variables() -> None:
    """Patches Keras so that blocks in a `StatelessScope` read and assign Keras variables by their variable stores."""
    replace("keras", _StatelessScope, "get_current_value", _reading(_StatelessScope.get_current_value))
    replace("keras", _StatelessScope, "add_update", _assigning(_StatelessScope.add_update))
    replace("keras", _StatelessScope, "add_loss", _adding(_StatelessScope.add_loss))


def _blocks_in(scope: StatelessScope) -> list[VariableStore]:
    """Returns the variable stores of the blocks in which the caller is, in the given scope; the innermost is first."""
    around, store = vars(scope).get(_STORE, scope), ambient().store
    blocks = []
    while store is not None and store is not around:
        blocks.append(store)
        store = store.outer
    return blocks if store is around else []


def _is_connected(scope: StatelessScope) -> bool:
    """Returns whether the store around the blocks of a scope takes the values of the scope's Keras variables.

    Where Keras infers shapes, that store returns values of the right shape, and drops assignments.
    """
    around = vars(scope)[_STORE]
    return isinstance(around, ScopeStore) or (in_symbolic_scope() and isinstance(around, FunctionStore))


def _scoped(scope: StatelessScope, variable: KerasVariable) -> Any:
    mirrored = getattr(variable, "mirrored", None)
    if mirrored is not None and id(mirrored) in scope._mirrored_views:
        return mirrored  # so that reads of it, too, return what the block has assigned
    scoped = vars(scope)[_SCOPED]
    return scoped.setdefault(id(variable), ScopedVariable(scope, variable))


def _has_value(variable: KerasVariable) -> bool:
    return getattr(variable, "mirrored", variable) is not None


def _reading(get: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get)
    def get_current_value(self: StatelessScope, variable: KerasVariable) -> Any:
        blocks = _blocks_in(self)
        if not blocks or not _is_connected(self) or not _has_value(variable):
            value = get(self, variable)
            return value_in_step(variable) if value is None else value
        scoped = _scoped(self, variable)
        return blocks[0].on_read(scoped, blocks[0].whole(scoped))

    return get_current_value


def _assigning(add: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add)
    def add_update(self: StatelessScope, update: tuple[KerasVariable, Any]) -> None:
        variable, value = update
        note_assigned(variable, self)
        blocks = _blocks_in(self)
        if not blocks or not _has_value(variable) or (in_symbolic_scope() and not _is_connected(self)):
            add(self, update)
            return
        if not _is_connected(self):
            raise TransformError(
                f"assigning {variable.path}",
                found="a branch, a loop or a recomputed function assigned the Keras variable in a keras.StatelessScope "
                "(as of stateless_call) that is inside of a tf.function, a run or another block",
                rule="the scope cannot take values that JAX traces in the block",
                remedy="call the layer itself, which assigns its variables, or assign them outside of the block",
            )
        scoped = _scoped(self, variable)
        blocks[0].on_write((scoped,))
        blocks[0].set_whole(cast(VariableLike, scoped), value, user_line())

    return add_update


def _adding(add: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add)
    def add_loss(self: StatelessScope, loss: Operand) -> None:
        if any(belongs_to(loss, block.base_trace) for block in _blocks_in(self)):
            raise TransformError(
                "Layer.add_loss",
                found="the loss was computed in a branch, a loop, or a function of tf.recompute_grad",
                rule="JAX traces that code separately, and its values leave it only as results",
                remedy="return the loss from the branch, loop or function, and call add_loss outside of it",
            )
        add(self, loss)

    return add_loss
