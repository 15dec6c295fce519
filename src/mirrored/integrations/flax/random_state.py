"""Random state of NNX modules: keys stored once for all replicas, and temporary keys set by `nnx.split_rngs`.

`nnx.split_rngs` and `nnx.fork_rngs` write other keys and counts into the random state of a module, often arrays of
them, and `nnx.restore_rngs` writes the original ones back. A mirrored variable has one shape, and the replicas' new
keys differ. So until the original values are written back, the new ones are *borrowed*: they belong to one replica of
one run (or to the code outside of runs) and are not stored in variables. A run that ends drops its borrowed values.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.source_lines import user_line
from mirrored.errors import ArgumentTypeError, ContextError
from mirrored.runtime.ambient import ambient
from mirrored.variables import Variable

# No stream counts that far: the counts of NNX are `uint32` that begin with 0.
_REPLICAS: Final = np.uint32(0xFFFFFFFF)


class ReplicaKey:
    """JAX random keys that are stored once for all replicas; a read returns different keys on each replica.

    In replica context, reading returns `jax.random.fold_in` of each key, a tag and the replica number. So replicas
    draw different random numbers, independent of the device assignment. The first replica, and code outside `run`, gets
    the keys themselves. NNX folds the count of a draw into a key: without the tag, the first replica's draw 1 would be
    the key of replica 1.

    Args:
        key: The key, or an array of keys (of a ``key<...>`` dtype).
        name: The variable's name.
    """

    def __init__(self, key: jax.Array, name: str) -> None:
        self._implementation = jax.random.key_impl(key)
        self.shape = key.shape
        self.variable = Variable(jax.random.key_data(key), trainable=False, name=name)

    def read_value(self) -> Any:
        """Returns the keys of the current replica inside `strategy.run`, and the stored keys outside."""
        key = self._wrapped(self.variable.read_value())
        replica = ambient().replica
        if replica is None or replica.num_replicas_in_sync == 1:
            return key
        number = replica.replica_id_in_sync_group
        if isinstance(number, int):
            return key if number == 0 else _folded(key, number)
        folded = jax.random.key_data(_folded(key, number))
        return self._wrapped(jnp.where(number == 0, jax.random.key_data(key), folded))

    def assign(self, key: jax.Array, refuse: Callable[[str], Exception]) -> None:
        """Replaces the stored keys; in one of several replicas, checks that `key` is what the replica reads.

        NNX's transforms, and updates by a whole state, write back the keys that they have read. In a replica those are
        folded keys, which must not replace the stored ones.

        Args:
            key: The new keys.
            refuse: Makes the error for a replica that assigns other keys, given the line of the assignment.

        Raises:
            ContextError: A replica assigns other keys. The run raises it at its end.
        """
        data = jax.random.key_data(key)
        if not in_replicas():
            self.variable.assign(data, read_value=False)
            return
        runner = ambient().runner
        assert runner is not None
        runner.note_unchanged(data, jax.random.key_data(self.read_value()), refuse(user_line()))

    def _wrapped(self, data: jax.Array) -> Any:
        return jax.random.wrap_key_data(data, impl=self._implementation)


def key_data(value: object) -> jax.Array:
    """Returns the raw integer data of an array of typed JAX random keys.

    Raises:
        ArgumentTypeError: `value` is no array of typed keys.
    """
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data: jax.Array = jax.random.key_data(value)
        return data
    raise ArgumentTypeError(
        "mirrored.assign",
        found=f"random keys of a mirrored module were assigned {value!r}",
        rule="the value of random keys is an array of typed keys",
        remedy="pass jax.random.key(seed), or the keys of mirrored.unmirror(model)",
    )


def _folded(key: jax.Array, number: int | jax.Array) -> jax.Array:
    fold: Callable[..., jax.Array] = jax.random.fold_in
    for _ in range(key.ndim):
        fold = jax.vmap(fold, in_axes=(0, None))
    return fold(fold(key, _REPLICAS), number)


def in_replicas() -> bool:
    """Returns whether the caller is one of several replicas in `strategy.run`."""
    replica = ambient().replica
    return replica is not None and replica.num_replicas_in_sync > 1


# Borrowed values: by content (`ReplicaKey`, or the variable of a count), then by place.


class _Outside:
    """Type of the dictionary key for temporary random states outside `strategy.run` and compiled functions.

    Inside, the key is the variable store of the outermost run or function.
    """


_Stacks = weakref.WeakKeyDictionary[Any, dict["int | None", list[Any]]]
_OUTSIDE = _Outside()
_borrowed: dict[int, tuple[weakref.ref[Any], _Stacks]] = {}
_doing = threading.local()


def borrowed(content: Variable | ReplicaKey) -> Any:
    """Returns the temporary value that `nnx.split_rngs` has set for a random state; None if no such value is set.

    Each replica of a run, and the code outside of runs, has its own temporary values.

    Raises:
        ContextError: The value was set outside of the run or compiled function that reads it.
    """
    if id(content) not in _borrowed:
        return None
    stack = _stack(content)
    if stack:
        return stack[-1]
    if _place()[0] is not _OUTSIDE and any(_borrowed[id(content)][1].get(_OUTSIDE, {}).values()):
        raise ContextError(
            "nnx.split_rngs",
            found="the keys of a mirrored module were split outside strategy.run or mirrored.function, and read inside",
            rule="split keys are not stored in variables, so they exist only in the context that has split them",
            remedy="call nnx.split_rngs in the function that uses the keys",
        )
    return None


def assign_random_state(content: Variable | ReplicaKey, value: Any, by_user: bool) -> bool:
    """Sets or discards the temporary value of an NNX random state.

    The assignment is made by `nnx.split_rngs` (sets a value), `nnx.restore_rngs` (discards it) or the program.

    Args:
        content: The keys or the count.
        value: The new keys or counts.
        by_user: Whether the program assigns it (`set_value`), and not a transform of NNX that writes it back.

    Returns:
        Whether nothing is left to assign. False: the caller assigns the value to the variable.

    Raises:
        ContextError: The program assigns keys in a run of several replicas.
    """
    what, shape = getattr(_doing, "what", None), np.shape(value)
    own_key = isinstance(content, ReplicaKey) and in_replicas()
    stack = _stack(content)
    if what == "replacing" and (own_key or shape != content.shape):
        _borrow(content, value)
        return True
    if what == "restoring" and stack and (own_key or shape != np.shape(stack[-1])):
        _give_back(content)
        return own_key or shape != content.shape
    if stack:
        stack[-1] = value
        return True
    if own_key and by_user:
        raise key_assignment_error("nnx.RngKey.set_value", is_rng_state=True)
    return False


def key_assignment_error(called: str, is_rng_state: bool, where: str = "") -> ContextError:
    """Returns the error for a program that assigns random keys in a run of several replicas.

    Args:
        called: What the program has called.
        is_rng_state: Whether the keys are those of an `nnx.Rngs`.
        where: The line of the assignment, if it is not the one that raises the error.
    """
    if is_rng_state:
        instead = "use nnx.split_rngs or nnx.fork_rngs in it"
    else:
        instead = "draw from an nnx.Rngs of the module, whose counts advance in the run"
    return ContextError(
        called,
        found="a replica assigned random keys of a mirrored module in strategy.run" + (where and f", at {where}"),
        rule="the keys are stored once for all replicas, and each replica derives its own keys from them",
        remedy=f"assign keys outside strategy.run (nnx.reseed, nnx.update), or {instead}; a state that is assigned in "
        "it may hold the keys that the replica has read, or none: nnx.state(model, nnx.Not(nnx.RngKey))",
    )


def _borrow(content: Variable | ReplicaKey, value: Any) -> None:
    content_id = id(content)
    if content_id not in _borrowed:
        reference = weakref.ref(content, lambda _: _borrowed.pop(content_id, None))
        _borrowed[content_id] = (reference, weakref.WeakKeyDictionary())
    place, replica = _place()
    _borrowed[content_id][1].setdefault(place, {}).setdefault(replica, []).append(value)


def _give_back(content: Variable | ReplicaKey) -> None:
    _stack(content).pop()
    if not any(any(stacks.values()) for stacks in _borrowed[id(content)][1].values()):
        del _borrowed[id(content)]


def _stack(content: Variable | ReplicaKey) -> list[Any]:
    if id(content) not in _borrowed:
        return []
    place, replica = _place()
    return _borrowed[id(content)][1].get(place, {}).get(replica, [])


def _place() -> tuple[Any, int | None]:
    here = ambient()
    place = _OUTSIDE if here.store is None else here.store.outermost()
    return place, here.replica.local_index if in_replicas() else None


# NNX's functions that replace and restore random state.


def replacing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `nnx.split_rngs` or a similar function to change random states only temporarily.

    `nnx.restore_rngs` discards the temporary values. A value that has the variable's shape and is equal on all replicas
    is an ordinary assignment instead.
    """
    return _during("replacing", function)


def restoring(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `nnx.restore_rngs` to discard temporary random states.

    `nnx.split_rngs` has set them.
    """
    return _during("restoring", function)


def _during(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before, _doing.what = getattr(_doing, "what", None), what
        try:
            return function(*args, **kwargs)
        finally:
            _doing.what = before

    return wrapped
