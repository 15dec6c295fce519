"""Log messages about compiled functions that are traced again: why, and how often.

A `Function` keeps the programs of each cache key. A call whose key is new traces the function again, and compiles. The
key has two parts:

1. The arguments (`signature.Arguments.key`): the structure of the pytree; for each array the shape, the dtype, whether
   the type is weak, and the layout of a per-replica value; every other leaf by its value (`static_keys`).
2. The rest (`signature.Surroundings`): the strategies in scope, whether the call is in a replica, and the settings of
   JAX that change a trace.

There is one program per key, except for functions that use variables whose shape may change: a call traces them again
if none of the programs is for the current shapes of the variables that it uses (`variables.open_shapes`).

Variables are operands of a program, so a new value never traces again. Python globals and closures are constants of the
trace and not part of the key: a later change has no effect, and `frozen_state` finds the changes that it can detect.

Three other traces have reasons of their own:

- A trace that creates variables is repeated, because later calls must not create them again (`Function._traced`).
- A function that iterates over a dataset runs as Python. Each function that it passes to `Strategy.run` is compiled,
  with its code and closure as an additional key (`runtime.hooks.RunInterceptor`).
- A `jax.jit` function that a step calls is traced by JAX, whose cache keys contain a token for the tape and the replica
  (`_jax.caches`).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

import jax

from mirrored.values.distributed_values import DistributedValues

if TYPE_CHECKING:
    from mirrored.compilation.signature import Arguments, Surroundings
    from mirrored.variables.open_shapes import OpenShapes

_MANY_RETRACES: Final = 5
_MANY = (
    " (retrace {}: each one compiles the function again. Pass values that change as arrays of one shape and dtype: a "
    "number as jnp.asarray(x), batches with last_batch='pad'. Create objects and strategies once, outside the loop)"
)
_log = logging.getLogger("mirrored")


def log_retrace(reason: str, retraces: int) -> None:
    """Logs why a function is traced again: as information at first, as a warning from the fifth retrace on."""
    level = logging.WARNING if retraces >= _MANY_RETRACES else logging.INFO
    _log.log(level, "%s%s", reason, _MANY.format(retraces) if level > logging.INFO else "")


def difference(
    old: Arguments, around_old: Surroundings, shapes: OpenShapes, new: Arguments, around_new: Surroundings
) -> str:
    """Describes in one line how the arguments or the context of a retraced call differ from an earlier call.

    Args:
        old: The arguments of the earlier call.
        around_old: Its context.
        shapes: The shapes for which the program of the earlier call is valid.
        new: The arguments of the retraced call.
        around_new: Its context.
    """
    if old.treedef != new.treedef:
        return f"the structure of the arguments changed from {old.treedef} to {new.treedef}"
    numbered = jax.tree_util.tree_unflatten(new.treedef, range(len(new.leaves)))
    paths = jax.tree_util.tree_flatten_with_path(numbered)[0]
    for place, ((path, _), before, after) in enumerate(zip(paths, old.leaf_keys, new.leaf_keys, strict=True)):
        if before != after:
            leaf = new.leaves[place]
            name = "argument " + "".join(str(key) for key in path[1:])
            is_number = isinstance(leaf, (bool, int, float, complex))
            hint = f"; a Python number is part of the program: pass jnp.asarray({leaf!r})" if is_number else ""
            old_key, new_key = _described_key(before, old.leaves[place]), _described_key(after, leaf)
            if old_key == new_key:
                return f"{name}, {new_key}, holds the values of other replicas"
            return f"{name} changed from {old_key} to {new_key}{hint}"
    if old.order != new.order:
        return "the keys of a dict, or the keyword arguments, are in another order or of another type"
    return _difference_around(around_old, around_new, shapes)


def _difference_around(old: Surroundings, new: Surroundings, shapes: OpenShapes) -> str:
    found = []
    if old.strategies != new.strategies:
        found.append("the surrounding strategy changed")
    if old.is_cross_replica != new.is_cross_replica:
        found.append(f"the call moved {'out of' if new.is_cross_replica else 'into'} a replica")
    if old.settings != new.settings:
        found.append("a JAX setting changed (precision, 64-bit mode, mesh, ...)")
    changed = shapes.changed()
    if changed is not None:
        found.append(f"the shape of a variable changed from {changed[0]} to {changed[1]}")
    return " and ".join(found)


def _described_key(key: Hashable, leaf: object) -> str:
    if isinstance(key, tuple) and len(key) == 4:
        weakly = "weakly typed " if key[3] is True else ""
        return f"{weakly}{key[2]}{list(key[1])}{' per replica' if hasattr(key[0], 'num_replicas') else ''}"
    if isinstance(leaf, DistributedValues):  # its key describes the values' types, too
        return repr(leaf)
    return repr(key[1]) if isinstance(key, tuple) and len(key) == 2 else repr(key)
