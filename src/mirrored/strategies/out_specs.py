"""`out_specs` of `Strategy.run`: declares which results are replicated. Warns if a step feeds its results back."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from mirrored._jax.frames import user_stacklevel
from mirrored.errors import ArgumentError, DivergingStateWarning, ReplicaDivergenceError, StructureError
from mirrored.topology.device_assignment import AXIS
from mirrored.values import structures
from mirrored.values.distributed_values import Makers, PerReplica

_REMEDY: Final = (
    "average the gradients over replicas before they are used (get_replica_context().all_reduce(ReduceOp.MEAN, "
    "gradients)), or declare the result per replica (PartitionSpec('replica'))"
)


class OutSpecs:
    """The caller's declaration of which results of `run` are replicated.

    Args:
        specs: A tree prefix of the result, with ``PartitionSpec()`` for replicated results and
            ``PartitionSpec("replica")`` for per-replica ones. None: all results are per replica.

    Raises:
        ArgumentError: `specs` contains another leaf.
    """

    def __init__(self, specs: Any = None) -> None:
        self.is_given = specs is not None
        self._specs, self._treedef = jax.tree.flatten(specs, is_leaf=_is_spec)
        for spec in self._specs if self.is_given else ():
            if spec not in (PartitionSpec(), PartitionSpec(AXIS)) or not _is_spec(spec):
                raise ArgumentError(
                    "Strategy.run",
                    found=f"{spec!r} in out_specs",
                    rule="a result is either equal on all replicas, PartitionSpec(), or per replica, "
                    f"PartitionSpec({AXIS!r})",
                    remedy="write out_specs=(PartitionSpec(), PartitionSpec('replica')) for a pair of a state and "
                    "per-replica metrics, for instance",
                )

    @property
    def key(self) -> Hashable:
        """A cache key. Equal declarations have equal keys."""
        return (self._treedef, tuple(self._specs)) if self.is_given else None

    def replicated(self, result: Any) -> list[bool]:
        """Returns, for each leaf of a result in the order of `structures.flatten`, whether it is declared replicated.

        Raises:
            StructureError: The declaration is not a tree prefix of the result.
        """
        if not self.is_given:
            return [False] * len(structures.flatten(result)[0])
        treedef: Any = self._treedef
        try:
            parts = treedef.flatten_up_to(result)
        except ValueError as error:
            raise StructureError(
                "Strategy.run",
                found=f"out_specs of structure {self._treedef} for a result of structure "
                f"{structures.flatten(result)[1]}: {error}",
                rule="out_specs is a tree prefix of what the replica function returns",
                remedy="pass one PartitionSpec for each element of the returned tuple",
            ) from None
        return [
            spec == PartitionSpec()
            for spec, part in zip(self._specs, parts, strict=True)
            for _ in structures.flatten(part)[0]
        ]

    def as_arrays(self, result: Any) -> Any:
        """Converts the declared leaves of the only replica's result to arrays."""
        leaves, treedef = structures.flatten(result)
        declared = zip(leaves, self.replicated(result), strict=True)
        return structures.unflatten(treedef, [as_array(leaf) if equal else leaf for leaf, equal in declared])


def label_of(treedef: Any, place: int) -> str:
    """Returns the name of a leaf of a result for messages: ``result[0]['w']``."""
    numbered = structures.unflatten(treedef, range(treedef.num_leaves))
    paths = jax.tree_util.tree_flatten_with_path(numbered, is_leaf=structures.is_leaf)[0]
    return f"result{jax.tree_util.keystr(paths[place][0])}"


def not_replicated(label: str, found: str) -> ReplicaDivergenceError:
    """Returns the error for a result that is declared replicated but is not."""
    return ReplicaDivergenceError(
        "Strategy.run",
        found=f"{label}, declared equal on all replicas by out_specs, would differ between them. {found}",
        rule="PartitionSpec() declares a result that is replicated: computed from replicated and reduced values only",
        remedy=_REMEDY,
    )


def warn_if_fed_back(fn: Callable[..., Any], arguments: Any) -> Makers:
    """Warns if `fn` receives its own per-replica results, computed from values that were replicated.

    Such a value is model state that has begun to diverge. A value that was per replica from the start is intended.

    Returns:
        The functions that have turned replicated values into per-replica ones, for these arguments and in `fn`.
    """
    made_by: frozenset[Any] = frozenset()
    had_replicated = False
    for leaf in structures.flatten(arguments)[0]:
        if not isinstance(leaf, PerReplica):
            had_replicated = had_replicated or _is_floating(leaf)
        elif leaf.made_by.functions and _is_floating(leaf.first()):
            made_by |= leaf.made_by.functions
    code = _code_of(fn)
    if code in made_by:
        name = getattr(fn, "__name__", type(fn).__name__)
        warnings.warn(
            f"Strategy.run({name}) got per-replica results of an earlier Strategy.run({name}) as arguments. If they "
            "are the state of a model, every replica trains a separate model, on its per-replica batch only. Declare "
            f"which results are equal on all replicas, which is then checked: run({name}, args=..., "
            "out_specs=(PartitionSpec(), PartitionSpec('replica'))) for a state and per-replica metrics. Average the "
            "gradients with get_replica_context().all_reduce(ReduceOp.MEAN, gradients) before the update. If each "
            "replica should keep a separate state, declare out_specs=PartitionSpec('replica').",
            DivergingStateWarning,
            stacklevel=user_stacklevel(),
        )
    return Makers(made_by | {code}) if had_replicated else Makers(made_by)


def as_array(value: Any) -> Any:
    """Converts a number to an array, so that a step that receives it back is not traced for its value."""
    return jnp.asarray(value) if isinstance(value, (bool, int, float, complex)) else value


def mark_made_by(result: Any, functions: Makers) -> None:
    """Records, on the per-replica values of a result, the functions that have computed them."""
    for leaf in structures.flatten(result)[0]:
        if isinstance(leaf, PerReplica):
            leaf.made_by = functions


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)


def _is_floating(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def _code_of(fn: Any) -> Any:
    """Returns the code object of a function, which is the same for closures and lambdas re-created at each call."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = inspect.unwrap(fn)
        else:
            break
    fn = getattr(fn, "__func__", fn)
    return getattr(fn, "__code__", None) or type(fn)


def checked_components(components: Sequence[Any], bits: Callable[[Any], bytes], label: str) -> None:
    """Checks that the replicas' values of a declared result are bit-identical.

    Raises:
        ReplicaDivergenceError: Two values differ.
    """
    found = [bits(component) for component in components]
    for replica, one in enumerate(found):
        if one != found[0]:
            raise not_replicated(label, f"Replicas 0 and {replica} returned different bits.")
