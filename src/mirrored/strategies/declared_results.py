"""`OutSpecs`: which results of `Strategy.run` are declared equal on all replicas (`out_specs`), and their checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from mirrored._jax.traces import Tracer
from mirrored._typing import PyTree
from mirrored.errors import ArgumentError, ReplicaDivergenceError, StructureError, TransformError
from mirrored.topology.device_assignment import DECLARED_AXIS
from mirrored.values import structures

_REMEDY: Final = (
    "reduce the gradients over replicas before they are used (get_replica_context().all_reduce(op, gradients); op is "
    "ReduceOp.SUM if the loss is an average_loss, ReduceOp.MEAN if it is a mean over the per-replica batch), "
    "or declare the result per replica (PartitionSpec('replica'))"
)


class OutSpecs:
    """The `out_specs` argument of `Strategy.run`: declares each result as replicated or per replica.

    Args:
        specs: A tree prefix of the result, with ``PartitionSpec()`` for replicated results and
            ``PartitionSpec("replica")`` for per-replica ones. None: all results are per replica.

    Raises:
        ArgumentError: `specs` contains another leaf.
    """

    def __init__(self, specs: PyTree = None) -> None:
        self.is_given = specs is not None
        self._specs, self._treedef = jax.tree.flatten(specs, is_leaf=lambda one: _is_spec(one) or one is None)
        for spec in self._specs if self.is_given else ():
            if spec not in (PartitionSpec(), PartitionSpec(DECLARED_AXIS)) or not _is_spec(spec):
                raise ArgumentError(
                    "Strategy.run",
                    found=f"out_specs contains {spec!r}",
                    rule="a result is either equal on all replicas, PartitionSpec(), or per replica, "
                    f"PartitionSpec({DECLARED_AXIS!r})",
                    remedy="write out_specs=(PartitionSpec(), PartitionSpec('replica')) for a pair of a state and "
                    "per-replica metrics, for instance",
                )

    @property
    def key(self) -> Hashable:
        """A hashable cache key for this `out_specs` argument."""
        return (self._treedef, tuple(self._specs)) if self.is_given else None

    def replicated(self, result: PyTree) -> list[bool]:
        """Returns, for each leaf of a result in flattening order, whether `out_specs` declares it replicated.

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
                found=f"out_specs has the structure {self._treedef}, the result has the structure "
                f"{structures.flatten(result)[1]}: {error}",
                rule="out_specs must be a tree prefix of what the replica function returns",
                remedy="pass one PartitionSpec for each element of the returned tuple",
            ) from None
        return [
            spec == PartitionSpec()
            for spec, part in zip(self._specs, parts, strict=True)
            for _ in structures.flatten(part)[0]
        ]

    def as_arrays(self, result: PyTree) -> Any:
        """Converts Python numbers in one replica's result to arrays where `out_specs` declares them replicated."""
        leaves, treedef = structures.flatten(result)
        declared = zip(leaves, self.replicated(result), strict=True)
        return treedef.unflatten([as_array(leaf) if equal else leaf for leaf, equal in declared])


def not_replicated_error(label: str, found: str) -> ReplicaDivergenceError:
    """Returns the error for a result that `out_specs` declares replicated but that may differ between replicas."""
    return ReplicaDivergenceError(
        "Strategy.run",
        found=f"{label}, declared equal on all replicas by out_specs, would differ between them. {found}",
        rule="a result declared by PartitionSpec() must be computed from replicated and reduced values only",
        remedy=_REMEDY,
    )


def checked_components(components: Sequence[Any], bits: Callable[[Any], bytes], label: str) -> None:
    """Raises an error if a result that `out_specs` declares replicated is not bit-identical on all replicas.

    Raises:
        ReplicaDivergenceError: Two values differ.
        TransformError: The values are traced.
    """
    if any(isinstance(component, Tracer) for component in components):
        raise TransformError(
            "Strategy.run",
            found=f"an eager run with out_specs was called under jax.jit, vmap, scan or another transform ({label})",
            rule="an eager run compares the bits of results that are declared equal, and traced values have none yet",
            remedy="compile with mirrored.function, which checks the declaration in the trace; or omit out_specs, and "
            "reduce the per-replica results or take one of strategy.experimental_local_results(result)",
        )
    found = [bits(component) for component in components]
    for replica, one in enumerate(found):
        if one != found[0]:
            raise not_replicated_error(label, f"Replicas 0 and {replica} returned different bits.")


def as_array(value: object) -> Any:
    """Converts a Python number to a JAX array, so that compiled functions do not treat it as a constant."""
    return jnp.asarray(value) if isinstance(value, (bool, int, float, complex)) else value


def _is_spec(value: object) -> bool:
    return isinstance(value, PartitionSpec)
