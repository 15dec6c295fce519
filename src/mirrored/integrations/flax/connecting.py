"""Applies and removes the patches to Flax NNX, and converts NNX objects for `mirror` and `unmirror`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from mirrored._jax.traces import current_trace, trace_below_tapes
from mirrored._typing import PyTree
from mirrored.checkpoint.deferred import is_expected, restore_created
from mirrored.extras import load
from mirrored.integrations.flax.holding import (
    DELETED,
    adopt,
    adopt_made_in_scope,
    below_tapes,
    held,
    is_ours,
    name_by_path,
    plain,
    refuse_change,
    renew,
    strategy_of_scope,
    variables_in_state,
    variables_of,
)
from mirrored.integrations.flax.optimizers import connect_optimizer
from mirrored.integrations.flax.private import REPLACING, RESTORING, graphs, random_state, results, tracers
from mirrored.integrations.flax.random_state import (
    ReplicaKey,
    borrowed,
    in_replicas,
    key_assignment_error,
    key_data,
    replacing,
    restoring,
)
from mirrored.integrations.flax.statistics import connect_statistics
from mirrored.integrations.flax.variables import connect_variables
from mirrored.patches import is_applied, replace, undo
from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable

if TYPE_CHECKING:
    from flax.nnx import Pytree
    from flax.nnx import Variable as NNXVariable

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")


def connect() -> None:
    """Applies all patches to Flax NNX; a second call has no effect.

    `mirrored/patches.py` lists the patches.
    """
    if is_applied("flax"):
        return
    connect_variables()
    connect_optimizer()
    connect_statistics()
    replace("flax", tracers, "current_jax_trace", below_tapes(tracers.current_jax_trace))
    for names, wrap in ((REPLACING, replacing), (RESTORING, restoring)):
        for name in names:
            replace("flax", random_state, name, wrap(getattr(random_state, name)))
    replace("flax", results, "from_tree", _adopting_modules(results.from_tree))
    replace("flax", graphs, "unflatten", _keeping_whole(graphs.unflatten))
    pytree = nnx.Pytree
    replace("flax", pytree, "_setattr", _adopting_attributes(pytree._setattr, pytree._check_valid_context))
    replace("flax", pytree, "__delattr__", _keeping_attributes(pytree.__delattr__, pytree._check_valid_context))
    replace("flax", pytree, "_check_valid_context", _allowing_own_trace(pytree._check_valid_context))


def disconnect() -> None:
    """Removes all patches from Flax NNX.

    Existing modules of a strategy must not be used afterwards.
    """
    undo("flax")


def _allowing_own_trace(check: Callable[..., None]) -> Callable[..., None]:
    """Wraps NNX's check of trace levels to permit changes to modules in the trace of a compiled function.

    There the variables stage their assignments, so changes under that trace are safe.
    """

    @functools.wraps(check)
    def allowing(self: Pytree, message: Callable[[], str]) -> None:
        store = ambient().store
        if store is None or not store.captures or trace_below_tapes(current_trace()) is not store.base_trace:
            renew(self)
            check(self, message)

    return allowing


def _adopting_attributes(set_attribute: Callable[..., None], check: Callable[..., None]) -> Callable[..., None]:
    """Wraps NNX's `__setattr__` to create `mirrored` variables for the NNX variables in a new attribute of a module.

    Raises an error in a trace: the attribute would be set only once, when the function is traced.
    """

    @functools.wraps(set_attribute)
    def adopting(self: Pytree, name: str, value: object) -> None:
        renew(self)
        check(self, lambda: f"Cannot mutate '{type(self).__name__}' from different trace level")
        refuse_change(self, name, value)
        set_attribute(self, name, value)
        if ambient().strategies:
            adopt_made_in_scope(value)
            name_by_path(name, value)
        if is_expected():
            restore_created(value)

    return adopting


def _keeping_attributes(delete: Callable[..., None], check: Callable[..., None]) -> Callable[..., None]:
    """Wraps NNX's `__delattr__` to refuse what a replica or the trace of a compiled function cannot delete.

    In a compiled function the attribute would be deleted only once, when the function is traced.
    """

    @functools.wraps(delete)
    def keeping(self: Pytree, name: str) -> None:
        store = ambient().store
        if store is not None and store.captures:
            check(self, lambda: f"Cannot delete {name!r} of '{type(self).__name__}' from different trace level")
        refuse_change(self, name, DELETED)
        delete(self, name)

    return keeping


def _adopting_modules(from_tree: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps NNX's `from_tree` so that modules created by a transform belong to the current strategy."""

    @functools.wraps(from_tree)
    def adopting(*args: Any, **kwargs: Any) -> Any:
        made = from_tree(*args, **kwargs)
        if strategy_of_scope() is not None:
            for node in jax.tree.leaves(made, is_leaf=lambda one: isinstance(one, nnx.Pytree)):
                if isinstance(node, nnx.Pytree):
                    adopt_made_in_scope(node)
        return made

    return adopting


def _keeping_whole(unflatten: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps NNX's `unflatten` so that an error in a run or compiled function leaves modules with their attributes.

    At the end of `nnx.jit` and `nnx.remat`, NNX removes all attributes of the modules that were passed, and sets them
    anew one by one. The variables that cannot be assigned in replicas raise an error in between.
    """

    @functools.wraps(unflatten)
    def keeping(*args: Any, outer_index_outer_ref: Mapping[int, Any] | None = None, **kwargs: Any) -> Any:
        if not outer_index_outer_ref or ambient().store is None:
            return unflatten(*args, outer_index_outer_ref=outer_index_outer_ref, **kwargs)
        modules = [node for node in outer_index_outer_ref.values() if isinstance(node, nnx.Pytree)]
        before = [dict(vars(module)) for module in modules]
        try:
            return unflatten(*args, outer_index_outer_ref=outer_index_outer_ref, **kwargs)
        except BaseException:
            for module, attributes in zip(modules, before, strict=True):
                vars(module).clear()
                vars(module).update(attributes)
            raise

    return keeping


class NNXBridge:
    """The adapter by which `mirror` and `unmirror` convert Flax NNX modules, optimizers and states."""

    def converts(self, value: object) -> bool:
        """Returns whether `value` is a Flax NNX module or variable, or a state that holds NNX variables.

        Other states, such as `nnx.pure` returns, are pytrees of arrays.
        """
        if isinstance(value, nnx.State):
            return bool(variables_in_state(value))
        return isinstance(value, (nnx.Pytree, nnx.Variable))

    def mirror(self, value: PyTree, path: str) -> Any:
        """Stores the value of each NNX variable of an object in a new `mirrored` variable; returns the same object."""
        found = variables_in_state(value) if isinstance(value, nnx.State) else variables_of(value)
        for where, variable in found:
            adopt(variable, "/".join(map(str, ([path] if path else []) + list(where))))
        return value

    def unmirror(self, values: list[Any]) -> list[Any]:
        """Returns independent copies of NNX objects, whose NNX variables hold plain arrays.

        What the objects share, such as the model of an optimizer, the copies share, too.
        """
        graph, state = nnx.split(values)
        # `merge` reuses the variables of the state without copying them, so the state gets new ones first.
        state = jax.tree.map(plain, state, is_leaf=lambda one: isinstance(one, nnx.Variable))
        return list(nnx.merge(graph, state))

    def assignment_target(self, value: object) -> tuple[Variable, Callable[[Any], Any]] | None:
        """Returns the `mirrored.Variable` that stores NNX random keys, and the function that converts new keys.

        The function returns the raw data of the keys. In replicas, which derive keys from the stored ones, it checks
        that the keys are those that the replica reads. The result is None for other values, and for keys set by
        `split_rngs`.
        """
        content = held(value) if isinstance(value, nnx.Variable) else None
        if not isinstance(content, ReplicaKey) or borrowed(content) is not None:
            return None
        if not in_replicas():
            return content.variable, key_data
        refuse = functools.partial(key_assignment_error, "mirrored.assign", isinstance(value, nnx.RngState))

        def checked(key: Any) -> Variable:
            key_data(key)
            content.assign(key, refuse)
            return content.variable  # `assign` does not assign a variable to itself.

        return content.variable, checked


def is_mirrored(variable: NNXVariable[Any]) -> bool:
    """Returns whether the value of an NNX variable is stored in a `mirrored` variable."""
    return is_ours(held(variable))


BRIDGE = NNXBridge()
