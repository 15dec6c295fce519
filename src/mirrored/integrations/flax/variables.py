"""Patches `nnx.Variable` so that its value can be stored in a `mirrored.Variable`.

NNX stores a variable's value in the slot `_raw_value`, which is also the variable's only child as a pytree. A backed
variable holds a `mirrored.Variable` in that slot. So `nnx.state(model, nnx.Param)` is a pytree of our variables, which
tapes accept as sources. `variable[...]`, `get_value` and NNX's own transforms read the backing variable, and their
assignments follow its rules. For backed variables, NNX's check against changes under another trace is disabled, because
a compiled function stages the assignments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import as_array
from mirrored._typing import Operand
from mirrored.errors import ArgumentTypeError
from mirrored.extras import load
from mirrored.integrations.flax.holding import (
    MIRRORED_KEY,
    UNSET,
    adopt,
    held,
    hold,
    is_nested,
    is_ours,
    not_one_array_error,
    plain,
    refuse_per_replica_assignment,
    strategy_of_scope,
    value_of,
)
from mirrored.integrations.flax.private import check_can_update, metadata_of
from mirrored.integrations.flax.random_state import (
    ReplicaKey,
    assign_random_state,
    borrowed,
    in_replicas,
    key_assignment_error,
)
from mirrored.integrations.trees import is_array
from mirrored.patches import replace
from mirrored.runtime.ambient import ambient, announce_reassignment
from mirrored.values.attributes import has_attribute
from mirrored.variables import Variable
from mirrored.variables.rules import check_kind

if TYPE_CHECKING:
    from flax.nnx import Variable as NNXVariable

nnx = load("flax.nnx", called="mirrored.integrations.flax", extra="flax")
_NO_INDEX = object()


def connect_variables() -> None:
    """Patches `nnx.Variable` so that `mirrored` variables can store its values."""
    cls = nnx.Variable
    replace("flax", cls, "_raw_value", property(_child, _write))
    for name, wrap in (
        ("__init__", _adopting),
        ("__getattr__", _forwarding),
        ("_check_can_update", _permitting),
        ("get_raw_value", _reading),
        ("get_value", _reading_by_index),
        ("set_value", _writing_by_index),
    ):
        replace("flax", cls, name, wrap(cls.__dict__[name]))
    replace("flax", cls, "__copy__", _copied)
    replace("flax", cls, "_new", classmethod(_copying(cls.__dict__["_new"].__func__)))
    replace("flax", cls, "_can_update", _updatable(cls.__dict__["_can_update"]))


def _child(variable: NNXVariable[Any]) -> Any:
    """Returns the pytree child of an NNX variable: the backing `mirrored.Variable` if there is one, else the value."""
    content = held(variable)
    if isinstance(content, ReplicaKey):
        return value_of(content)
    random_state = borrowed(content) if isinstance(content, Variable) else None
    return content if random_state is None else random_state


def _write(variable: NNXVariable[Any], value: object) -> None:
    """Implements assignment to an NNX variable: stores the value in the backing `mirrored.Variable`, if any."""
    content = held(variable)
    if not is_ours(content):
        # `nnx.update` and `copy_from` write what they find in the slot of the other model. Only a new variable, which
        # `nnx.merge` or the constructor makes, shares the `mirrored.Variable`.
        is_new = content is UNSET
        if value is not content and not is_new:
            refuse_per_replica_assignment(variable)
        if value is not None and _is_none_in_function(content):
            check_can_update(variable)
        hold(variable, value if is_new or not isinstance(value, Variable) else value_of(value))
    elif value is not content:
        _assign(variable, content, value)


def _is_none_in_function(content: object) -> bool:
    """Returns whether a variable holds None in a compiled function, where transforms assign None to it again."""
    store = ambient().store
    return content is None and store is not None and store.captures


def _assign(variable: NNXVariable[Any], content: Variable | ReplicaKey, value: Operand, by_user: bool = False) -> None:
    if isinstance(value, Variable):
        value = value.read_value()
    if not (has_attribute(value, "dtype") or isinstance(value, (bool, int, float, complex, np.generic))):
        raise ArgumentTypeError(
            f"{type(variable).__name__}.set_value",
            found=f"a {type(value).__name__} was assigned to mirrored variable {_name_of(content)!r} of a strategy",
            rule="the value of a strategy's variable must be an array with a fixed shape and dtype",
            remedy="store values of other types in an nnx.Variable that is created outside strategy.scope()",
        )
    if isinstance(variable, nnx.RngState) and assign_random_state(content, value, by_user):
        return
    if isinstance(content, ReplicaKey):
        called, is_rng_state = f"nnx.{type(variable).__name__}.set_value", isinstance(variable, nnx.RngState)
        content.assign(value, functools.partial(key_assignment_error, called, is_rng_state))
    else:
        array = as_array(value)
        if array.dtype != content.dtype:
            _check_kind(variable, content, array)
            array = array.astype(content.dtype)
        if not isinstance(value, jax.Array):  # `assign` could not see the value on the host
            check_kind(value, content.dtype, f"{type(variable).__name__}.set_value", _name_of(content))
        content.assign(array, read_value=False)
        if isinstance(variable, nnx.Param):
            announce_reassignment(content, array)


def _check_kind(variable: NNXVariable[Any], content: Variable, array: jax.Array) -> None:
    """Raises an error if casting a value to the variable's dtype would drop the value's fraction or imaginary part."""
    kinds = (jnp.inexact, jnp.complexfloating)
    if all(jnp.issubdtype(content.dtype, kind) or not jnp.issubdtype(array.dtype, kind) for kind in kinds):
        return
    raise ArgumentTypeError(
        f"{type(variable).__name__}.set_value",
        found=f"a value of dtype {array.dtype} was assigned to mirrored variable {_name_of(content)!r} of dtype "
        f"{content.dtype}",
        rule="the value of a strategy's variable must be an array with a fixed shape and dtype",
        remedy="create the variable with a value of the other dtype, for instance nnx.Variable(jnp.zeros(()))",
    )


def _name_of(content: Variable | ReplicaKey) -> str:
    return str(content.variable.name if isinstance(content, ReplicaKey) else content.name)


def _adopting(make: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of `nnx.Variable` to create a backing `mirrored.Variable` in a strategy's scope."""

    @functools.wraps(make)
    def adopting(self: NNXVariable[Any], *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if strategy_of_scope() is not None and not is_nested():
            adopt(self)

    return adopting


def _copying(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the NNX variable constructor `_new` so that variables in JAX transforms hold plain arrays.

    NNX calls the constructor to unflatten a variable. Inside a transform the new variable gets the plain array, so it
    is a copy. NNX propagates its changes to the original variable when the transform returns.
    """

    @functools.wraps(make)
    def copying(cls: type[NNXVariable[Any]], value: object, metadata: dict[str, Any]) -> Any:
        return make(cls, value_of(value) if isinstance(value, Variable) and is_nested() else value, metadata)

    return copying


def _copied(variable: NNXVariable[Any]) -> Any:
    """Implements `copy.copy`: returns a variable with a value of its own, as in NNX, and not the same backing variable.

    A variable that is not backed is copied as without this method.
    """
    if is_ours(held(variable)):
        return plain(variable)
    made: Any = object.__new__(type(variable))
    state: Callable[[], dict[str, Any]] = variable.__getstate__
    made.__setstate__(state())
    return made


def _forwarding(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `nnx.Variable.__getattr__` so that attributes other than metadata are looked up on the value."""

    @functools.wraps(forward)
    def forwarding(self: NNXVariable[Any], name: str) -> Any:
        content = held(self)
        if is_ours(content) and name not in metadata_of(self):
            return getattr(value_of(content), name)
        return forward(self, name)

    return forwarding


def _permitting(check: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(check)
    def permitting(self: NNXVariable[Any]) -> None:
        content = held(self)
        if is_ours(content) or _is_none_in_function(content):
            return
        try:
            check(self)
        except Exception as error:
            here = ambient()
            if here.replica is not None and content is not None and content is not UNSET and not is_array(content):
                raise not_one_array_error(self) from error
            if here.store is not None:
                error.add_note("mirrored: make the model inside `with strategy.scope():`, or mirrored.mirror(model)")
            raise

    return permitting


def _updatable(can_update: property) -> Any:
    """Wraps `_can_update`, NNX's test of whether a transform may update a variable, to allow `mirrored` variables.

    The check runs here because an error later in the transform would leave the module flattened.
    """

    def updatable(self: NNXVariable[Any]) -> Any:
        content = held(self)
        if is_ours(content) or content is None:  # A transform assigns None again.
            return True
        # The transform changes statistics and random counts, and makes new pytrees.
        if not isinstance(self, nnx.Param) or not is_array(content):
            refuse_per_replica_assignment(self)
        can = can_update.__get__(self)
        if not can and in_replicas() and not is_array(content):
            raise not_one_array_error(self)
        return can

    return property(updatable, doc=can_update.__doc__)


def _reading(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def reading(self: NNXVariable[Any]) -> Any:
        content = held(self)
        return value_of(content) if is_ours(content) else content

    return reading


def _reading_by_index(read: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def reading_by_index(self: NNXVariable[Any], *, index: object = _NO_INDEX) -> Any:
        content = held(self)
        if not is_ours(content):
            return read(self) if index is _NO_INDEX else read(self, index=index)
        value = value_of(content)
        if index is not _NO_INDEX and index is not ...:
            value = value[index]
        return _hooked(self, "on_get_value", value)

    return reading_by_index


def _writing_by_index(write: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(write)
    def writing_by_index(self: NNXVariable[Any], value: Operand, *, index: object = _NO_INDEX) -> None:
        content = held(self)
        if MIRRORED_KEY in metadata_of(self) and in_replicas():
            # Also on a copy that a transform of NNX has made: the transform would write the keys back, without effect.
            raise key_assignment_error(f"nnx.{type(self).__name__}.set_value", is_rng_state=False)
        if not is_ours(content):
            return write(self, value) if index is _NO_INDEX else write(self, value, index=index)
        value = _hooked(self, "on_set_value", value)
        if index is not _NO_INDEX and (index is not ... or np.shape(value) != np.shape(value_of(content))):
            value = value_of(content).at[index].set(value)
        return _assign(self, content, value, by_user=True)

    return writing_by_index


def _hooked(variable: NNXVariable[Any], which: str, value: Operand) -> Any:
    hooks = metadata_of(variable).get(which, ())
    for hook in hooks if isinstance(hooks, tuple) else (hooks,):
        value = hook(variable, value)
    return value
