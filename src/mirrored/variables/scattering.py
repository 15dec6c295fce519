"""Updates of some rows of a variable, under TensorFlow's names."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from mirrored.errors import NotSupportedError
from mirrored.variables.rules import VariableAggregation


class Scattering:
    """`scatter_add` and its kin, over `assign` and `assign_add`.

    Each takes an object with `indices` (``int[rows]``) and `values` (``dtype[rows, ...]``), as `tf.IndexedSlices` is.
    Additions follow the variable's aggregation; the others need NONE or ONLY_FIRST_REPLICA.
    """

    __slots__ = ()

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Adds rows; rows with the same index add up."""
        return self._add("scatter_add", sparse_delta, 1)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtracts rows; rows with the same index add up."""
        return self._add("scatter_sub", sparse_delta, -1)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces rows."""
        return self._replace("scatter_update", sparse_delta, "set")

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Takes the larger of old and given rows."""
        return self._replace("scatter_max", sparse_delta, "max")

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Takes the smaller of old and given rows."""
        return self._replace("scatter_min", sparse_delta, "min")

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Multiplies rows."""
        return self._replace("scatter_mul", sparse_delta, "multiply")

    def scatter_div(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Divides rows."""
        return self._replace("scatter_div", sparse_delta, "divide")

    def _add(self: Any, method: str, rows: Any, sign: int) -> Any:
        self._check_scatter(method, sums=True)
        dense = jnp.zeros(self.shape, self.dtype).at[jnp.asarray(rows.indices)].add(sign * jnp.asarray(rows.values))
        return self.assign_add(dense)

    def _replace(self: Any, method: str, rows: Any, how: str) -> Any:
        self._check_scatter(method, sums=False)
        target = self.read_value().at[jnp.asarray(rows.indices)]
        return self.assign(getattr(target, how)(jnp.asarray(rows.values)))

    def _check_scatter(self: Any, method: str, *, sums: bool) -> None:
        plain = (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA)
        if not self.per_replica and (sums or self.aggregation in plain):
            return
        kind = "sync-on-read" if self.per_replica else "mirrored"
        raise NotSupportedError(
            f"{self.name}.{method}",
            found=f"a {kind} variable with aggregation {self.aggregation}",
            rule="rows of mirrored variables are updated; those that add nothing need NONE or ONLY_FIRST_REPLICA",
            remedy="compute the whole new value (variable.read_value().at[indices].max(values)) and assign it",
        )
