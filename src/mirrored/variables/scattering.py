"""Scatter updates: assign selected rows of a variable, with TensorFlow's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

from mirrored._jax.arrays import as_array
from mirrored._jax.source_lines import user_line
from mirrored._typing import Operand
from mirrored.errors import ArgumentError, NotSupportedError, StructureError
from mirrored.runtime.ambient import ambient, announce_write
from mirrored.runtime.variable_store import refuse_64_bits
from mirrored.values.index_checks import outside
from mirrored.values.sparse_rows import updates_shape, without_wrapping
from mirrored.variables.access import check_writable, store_of
from mirrored.variables.rules import VariableAggregation, check_kind
from mirrored.variables.state_lock import assignment_lock

_PLAIN: Final = (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA)


class Scattering:
    """Mixin of variables with `scatter_add` and similar updates of selected rows.

    Each method takes an object with `indices` (``int[rows]``) and `values` (``dtype[rows, ...]``), such as
    `tf.IndexedSlices`. In replica context additions, factors and divisors follow the variable's aggregation: with SUM
    those of all replicas apply; with MEAN each one is divided by the number of replicas first. A function as the
    aggregation has no meaning for factors and divisors, which raise an error. The other methods require aggregation
    NONE or ONLY_FIRST_REPLICA. The methods ``scatter_nd_...`` take index vectors
    ``int[..., depth]`` and values, as `tf.tensor_scatter_nd_update` does.

    A negative or too large index raises `ArgumentError` in eager code on CPUs. In compiled code and on GPUs, where its
    value is not known on the host, updates at it are ignored, and reads give zeros. Values of a wrong shape raise
    `StructureError`.
    """

    __slots__ = ()

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Adds values to the variable's rows at the given indices; repeated indices accumulate."""
        return self._add("scatter_add", sparse_delta, 1)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtracts values from the variable's rows at the given indices; repeated indices accumulate."""
        return self._add("scatter_sub", sparse_delta, -1)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces the variable's rows at the given indices."""
        return self._replace("scatter_update", sparse_delta, "set")

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Sets the variable's rows at the given indices to the elementwise maximum of the old and the given rows."""
        return self._replace("scatter_max", sparse_delta, "max")

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Sets the variable's rows at the given indices to the elementwise minimum of the old and the given rows."""
        return self._replace("scatter_min", sparse_delta, "min")

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Multiplies the variable's rows at the given indices by the given rows."""
        return self._scale("scatter_mul", sparse_delta, _multiplied)

    def scatter_div(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Divides the variable's rows at the given indices by the given rows."""
        return self._scale("scatter_div", sparse_delta, _divided)

    def batch_scatter_update(self: Any, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces rows of every entry of a batch: ``variable[i, indices[i, j]] = values[i, j]``."""
        indices = as_array(sparse_delta.indices)
        if indices.dtype.itemsize < 4:
            indices = indices.astype(jnp.int32)  # the positions in the batch may exceed the dtype
        batch = jnp.indices(indices.shape, indices.dtype)[:-1]
        return self.scatter_nd_update(jnp.stack([*batch, indices], -1), sparse_delta.values)

    def scatter_nd_add(self, indices: Operand, updates: Operand, name: str | None = None) -> Any:
        """Adds values to the variable's elements or slices at index vectors; repeated indices accumulate."""
        return self._add_nd("scatter_nd_add", indices, updates, 1)

    def scatter_nd_sub(self, indices: Operand, updates: Operand, name: str | None = None) -> Any:
        """Subtracts values from the variable's elements or slices at index vectors; repeated indices accumulate."""
        return self._add_nd("scatter_nd_sub", indices, updates, -1)

    def scatter_nd_update(self, indices: Operand, updates: Operand, name: str | None = None) -> Any:
        """Replaces the variable's elements or slices at index vectors, ``int[..., depth]``."""
        return self._replace_nd("scatter_nd_update", indices, updates, "set")

    def scatter_nd_max(self, indices: Operand, updates: Operand, name: str | None = None) -> Any:
        """Sets the variable's elements or slices at index vectors to the maximum of the old and the given values."""
        return self._replace_nd("scatter_nd_max", indices, updates, "max")

    def scatter_nd_min(self, indices: Operand, updates: Operand, name: str | None = None) -> Any:
        """Sets the variable's elements or slices at index vectors to the minimum of the old and the given values."""
        return self._replace_nd("scatter_nd_min", indices, updates, "min")

    def gather_nd(self: Any, indices: Operand, name: str | None = None) -> jax.Array:
        """Returns the variable's elements or slices at index vectors."""
        picked: jax.Array = (
            self.read_value().at[self._index_vectors("gather_nd", indices)].get(mode="fill", fill_value=0)
        )
        return picked

    def sparse_read(self: Any, indices: Operand, name: str | None = None) -> jax.Array:
        """Returns the variable's rows at the given indices."""
        rows: jax.Array = self.gather_nd(as_array(indices)[..., None])
        return rows

    def _index_vectors(self: Any, method: str, indices: Operand) -> tuple[jax.Array, ...]:
        vectors = as_array(indices)
        self._check_depth(method, vectors.shape)
        self._check_range(method, vectors, self.component_shape)
        by_dimension = jnp.moveaxis(vectors, -1, 0)
        return tuple(without_wrapping(one, size) for one, size in zip(by_dimension, self.component_shape, strict=False))

    def _check_depth(self: Any, method: str, shape: tuple[int, ...]) -> None:
        if shape and shape[-1] <= len(self.component_shape):
            return
        raise ArgumentError(
            f"{self.name}.{method}",
            found=f"indices of shape {shape} for a variable of shape {self.component_shape}",
            rule="the last axis of the indices contains index vectors, with at most one entry per axis of the variable",
            remedy="pass one index for each axis to be indexed: int[..., depth]",
        )

    def _check_range(self: Any, method: str, indices: jax.Array, limits: int | tuple[int, ...]) -> None:
        found = outside(indices, limits)
        if found is None:
            return
        raise ArgumentError(
            f"{self.name}.{method}",
            found=found,
            rule="an index must be 0 or more, and less than the size of the axis",
            remedy="correct the indices; negative ones do not count from the end",
        )

    def _new_values(self: Any, method: str, updates: Operand, wanted: tuple[int, ...]) -> jax.Array:
        """Returns updates as an array, after checking their shape, because JAX silently broadcasts other shapes."""
        check_kind(updates, self.dtype, f"{self.name}.{method}", self.name)
        values = as_array(updates, self.dtype)
        if values.shape == wanted:
            return values
        raise StructureError(
            f"{self.name}.{method}",
            found=f"the values have the shape {values.shape}; the variable has the shape {self.component_shape}",
            rule=f"there must be one slice of the variable for each index: here the shape {wanted}",
            remedy="broadcast the values with jnp.broadcast_to, or correct the indices",
        )

    def _slices(self: Any, method: str, indices: Operand, updates: Operand) -> jax.Array:
        self._check_depth(method, as_array(indices).shape)
        return self._new_values(method, updates, updates_shape(as_array(indices).shape, self.component_shape))  # type: ignore[no-any-return]

    def _add_nd(self: Any, method: str, indices: Operand, updates: Operand, sign: int) -> Any:
        self._check_scatter(method, sums=True)
        zeros = jnp.zeros(self.component_shape, self.dtype)
        values = sign * self._slices(method, indices, updates)
        return self.assign_add(zeros.at[self._index_vectors(method, indices)].add(values, mode="drop"))

    def _replace_nd(self: Any, method: str, indices: Operand, updates: Operand, how: str) -> Any:
        self._check_scatter(method, sums=False)
        values, places = self._slices(method, indices, updates), self._index_vectors(method, indices)
        with assignment_lock():
            return self.assign(getattr(self.read_value().at[places], how)(values, mode="drop"))

    def _rows(self: Any, method: str, rows: Any) -> Any:
        return self._new_values(method, rows.values, (*as_array(rows.indices).shape, *self.component_shape[1:]))

    def _places(self: Any, method: str, rows: Any) -> jax.Array:
        indices = as_array(rows.indices)
        self._check_range(method, indices, self.component_shape[0])
        return without_wrapping(indices, self.component_shape[0])

    def _add(self: Any, method: str, rows: Any, sign: int) -> Any:
        self._check_scatter(method, sums=True)
        zeros = jnp.zeros(self.component_shape, self.dtype)
        dense = zeros.at[self._places(method, rows)].add(sign * self._rows(method, rows), mode="drop")
        return self.assign_add(dense)

    def _replace(self: Any, method: str, rows: Any, how: str) -> Any:
        self._check_scatter(method, sums=False)
        with assignment_lock():
            target = self.read_value().at[self._places(method, rows)]
            return self.assign(getattr(target, how)(self._rows(method, rows), mode="drop"))

    def _scale(self: Any, method: str, rows: Any, how: Callable[..., jax.Array]) -> Any:
        is_replica = ambient().replica is not None
        self._check_scatter(method, sums=not is_replica or isinstance(self.aggregation, VariableAggregation))
        values, indices, here = self._rows(method, rows), self._places(method, rows), ambient()
        store = store_of(self, here)
        # In the function of `StrategyExtended.update` each replica assigns the value that its own copy is to have.
        together = here.replica is not None and store is not None and not (here.updates or self.aggregation in _PLAIN)
        if together:
            values, indices = here.replica.all_gather([values, indices], 0)
        if together and self.aggregation is VariableAggregation.MEAN:
            values = values / self.num_replicas
        with assignment_lock():
            old = self.read_value()
            new = how(old, indices, values.astype(old.dtype))
            if not together or store is None:
                return self.assign(new)
        # All replicas have computed the same value from the gathered rows, so each stages it without aggregation.
        check_writable(self, store, f"{self.name}.{method}")
        announce_write((self,))
        store.set_local(self, here.replica.local_index, new, user_line())
        return self.read_value()

    def _check_scatter(self: Any, method: str, *, sums: bool) -> None:
        refuse_64_bits(self, f"{self.name}.{method}")
        if not self.per_replica and (sums or self.aggregation in _PLAIN):
            return
        kind = "sync-on-read" if self.per_replica else "mirrored"
        raise NotSupportedError(
            f"{self.name}.{method}",
            found=f"{self.name!r} is a {kind} variable with aggregation {self.aggregation}",
            rule="scatter updates can be applied only to mirrored variables; scatter_update, scatter_max and "
            "scatter_min only with aggregation NONE or ONLY_FIRST_REPLICA; scatter_mul and scatter_div not with a "
            "function as the aggregation",
            remedy="compute the whole new value (variable.read_value().at[indices].max(values)) and assign it",
        )


# Factors and divisors of one row apply one after another, as in TensorFlow: their product may overflow.


def _multiplied(old: jax.Array, indices: jax.Array, factors: jax.Array) -> jax.Array:
    return old.at[indices].multiply(factors, mode="drop")


def _divided(old: jax.Array, indices: jax.Array, divisors: jax.Array) -> jax.Array:
    if indices.size == 1:
        return _divide_row(old, (indices.reshape(()), divisors.reshape(old.shape[1:])))[0]
    return lax.scan(_divide_row, old, (indices.reshape(-1), divisors.reshape(-1, *old.shape[1:])))[0]


def _divide_row(array: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    index, divisor = row
    return array.at[index].set(lax.div(array.at[index].get(mode="fill", fill_value=1), divisor), mode="drop"), None
