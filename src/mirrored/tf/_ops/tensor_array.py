"""`tf.TensorArray`: a sequence of tensors that are written one at a time, in eager code and in compiled loops."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final, SupportsIndex

import jax
import jax.numpy as jnp

from mirrored._jax.source_lines import user_line
from mirrored._jax.traces import NotConstant, current_trace, is_eval, trace_below_tapes
from mirrored._typing import DTypeLike, Leaf, Operand
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError, OutOfRangeError
from mirrored.tf._ops.loops import MOST_UNROLLED
from mirrored.tf._static import known, static_int, static_ints
from mirrored.tf._tensors import as_tensor
from mirrored.values.index_checks import outside
from mirrored.values.sparse_rows import without_wrapping


class GrowingArrayError(InvalidArgumentError):
    """Error for a write at a traced index to a `tf.TensorArray` whose size may grow.

    A loop that knows its number of iterations catches it, and is unrolled, so that the index is known.
    """


_FIXED_SIZE: Final = (
    "replace dynamic_size=True by size=N, where N is the largest number of rows that may be written (such as "
    "tf.shape(x)[0]); the other rows are zeros. Or run the loop outside tf.function"
)


@dataclasses.dataclass(frozen=True)
class _Options:
    dtype: Any
    size: int
    dynamic_size: bool
    element_shape: tuple[int, ...] | None


def _is_traced() -> bool:
    """Returns whether the current code is traced for compilation; False if only a gradient tape records."""
    return not is_eval(trace_below_tapes(current_trace()))


@jax.tree_util.register_pytree_node_class
class TensorArray:
    """A sequence of tensors that `write` and similar methods change in place in eager code, and copy in compiled code.

    Code that assigns their result (``array = array.write(i, row)``) does the same in both. Compiled code that drops it
    loses the row, as in TensorFlow, and a `UserWarning` names the line.

    Context: any. Rows at indices that are known while tracing are stored separately, and may differ in shape. From the
    first row at a traced index on, all rows are stored in one tensor. A traced index that is out of range at run time
    reads zeros, and a row written there is dropped.

    Args:
        dtype: The dtype of the rows.
        size: Number of rows.
        dynamic_size: Whether rows may be written after the last one. Loops that write such an array are unrolled, so
            that indices are known; with more than 1,000 iterations, `size` alone compiles much faster.
        clear_after_read: Accepted and ignored, like the other options: nothing is cleared.
        element_shape: The shape of a row; by default that of the first row written.

    TensorFlow: `tf.TensorArray`. Rows that were never written are zeros if another row was written, as in TensorFlow.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: SupportsIndex = 0,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: object = None,
        flow: object = None,
        infer_shape: bool = True,
        element_shape: Iterable[Any] | None = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        del clear_after_read, tensor_array_name, handle, flow, infer_shape, colocate_with_first_write_call, name
        shape = None if element_shape is None else tuple(element_shape)
        number = static_int(size, called="tf.TensorArray", argument="size")
        fixed = shape if shape is not None and all(isinstance(one, int) for one in shape) else None
        self._options = _Options(array_dtype(dtype), number, bool(dynamic_size), fixed)
        self._rows: dict[int, Any] = {}
        self._buffer: Any = None

    _unused: tuple[str, str, Any] | None = None  # the method and line of a write in the trace, until the result is used

    def __del__(self) -> None:
        unused = self._unused
        # An exception that ends the trace deletes arrays after it.
        if unused is None or unused[2] is not current_trace():
            return
        warnings.warn(
            f"TensorArray.{unused[0]}: the result of the call in {unused[1]} was never used, so its rows are lost\n"
            "  rule:   in compiled code the method returns a changed copy, and leaves the array as it was; only eager "
            f"code changes the array\n  remedy: assign the result: array = array.{unused[0]}(...)",
            UserWarning,
            stacklevel=2,
        )

    def _changed(self, method: str, new: TensorArray) -> TensorArray:
        """Returns `new` in compiled code; in eager code, makes this array equal to `new`, and returns this array."""
        self._unused = None
        if _is_traced():
            new._unused = method, user_line(), current_trace()
            return new
        self._options, self._rows, self._buffer = new._options, new._rows, new._buffer
        return self

    # Methods of pytree nodes. The rows are children, so that loops carry them.

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Returns the tensors of the sequence and its static data, as JAX requires of a pytree node."""
        self._unused = None
        return (tuple(self._rows.values()), self._buffer), (self._options, tuple(self._rows))

    @classmethod
    def tree_unflatten(cls, kept: tuple[Any, tuple[int, ...]], children: tuple[Sequence[Leaf], Leaf]) -> TensorArray:
        """Creates a `TensorArray` from what `tree_flatten` returned."""
        options, places = kept
        return cls._made(options, dict(zip(places, children[0], strict=True)), children[1])

    @classmethod
    def _made(cls, options: _Options, rows: dict[int, Any], buffer: Leaf) -> TensorArray:
        array = cls.__new__(cls)
        array._options, array._rows, array._buffer = options, rows, buffer
        return array

    def __grown__(self, after: TensorArray) -> TensorArray | None:
        """Returns a copy with all tensors stacked in one if `after` is stacked and this array is not; else None."""
        if after._buffer is None or self._buffer is not None:
            return None
        return self._stored(after._buffer.shape[1:])

    def __uniform__(self) -> TensorArray:
        """Returns a copy with all tensors stacked in one, or the array itself unless all shapes are known and equal."""
        shape = self.element_shape
        if self._buffer is not None or shape is None or not self._options.size:
            return self
        return self._stored(shape) if all(row.shape == shape for row in self._rows.values()) else self

    # Properties

    @property
    def dtype(self) -> Any:
        """The dtype of the tensors in the sequence."""
        return self._options.dtype

    @property
    def dynamic_size(self) -> bool:
        """Whether the sequence grows when a tensor is written past the end."""
        return self._options.dynamic_size

    @property
    def element_shape(self) -> tuple[int, ...] | None:
        """The shape of each tensor in the sequence; None if it is not known yet."""
        if self._buffer is not None:
            return tuple(self._buffer.shape[1:])
        return tuple(next(iter(self._rows.values())).shape) if self._rows else self._options.element_shape

    def size(self, name: str | None = None) -> jax.Array:
        """Returns the number of tensors in the sequence."""
        self._unused = None
        return jnp.asarray(self._options.size, jnp.int32)

    def __len__(self) -> int:
        return self._options.size

    # Writing

    def write(self, index: Operand, value: Operand, name: str | None = None) -> TensorArray:
        """Makes `value` the tensor at `index`, and returns the sequence; in compiled code, changes and returns a copy.

        Raises:
            InvalidArgumentError: The row has another dtype, or, with traced indices, another shape than the other rows.
                The index is traced, and the array has ``dynamic_size=True``.
            OutOfRangeError: The index is out of range.
        """
        return self._changed("write", self._with(index, self._row(value)))

    def _with(self, index: Operand, row: jax.Array) -> TensorArray:
        try:
            place = static_int(known(index), called="TensorArray.write", argument="index")
        except (NotConstant, InvalidArgumentError):
            return self._written(index, row)
        self._check_place(place)
        options = dataclasses.replace(self._options, size=max(self._options.size, place + 1))
        if self._buffer is not None:
            _require_shape(row, self._buffer.shape[1:])
            return self._made(options, {}, self._padded(options.size).at[place].set(row))
        rows = dict(self._rows) if _is_traced() else self._rows
        rows[place] = row
        return self._made(options, rows, None)

    def _row(self, value: Operand) -> jax.Array:
        row = as_tensor(value, self._options.dtype)
        if row.dtype == self._options.dtype:
            return row
        raise InvalidArgumentError.of(
            "TensorArray.write",
            found=f"the row has dtype {row.dtype}, the TensorArray {self._options.dtype}",
            rule="a row must have the dtype of the array",
            remedy=f"write tf.cast(value, tf.{self._options.dtype})",
        )

    def _check_place(self, place: int) -> None:
        if 0 <= place and (place < self._options.size or self._options.dynamic_size):
            return
        larger = "create the array with a larger size, or with dynamic_size=True"
        raise OutOfRangeError.of(
            "TensorArray.write",
            found=f"row {place} was written in a TensorArray of size {self._options.size}",
            rule="row indices must be 0 or more" + ("" if self._options.dynamic_size else ", and less than the size"),
            remedy="pass an index that counts from 0" if place < 0 else larger,
        )

    def _written(self, index: Operand, row: jax.Array) -> TensorArray:
        """Returns a copy of the array with `row` at a traced index; raises an error if the array may grow."""
        if self._options.dynamic_size:
            raise GrowingArrayError.of(
                "TensorArray.write",
                found="a row was written at a traced index in a TensorArray with dynamic_size=True",
                rule="tensors of compiled code have fixed sizes: a loop can write such an array only if the index and "
                f"the number of iterations (in while loops at most {MOST_UNROLLED:,}) are known while tracing",
                remedy=_FIXED_SIZE,
            )
        stored = self._stored(row.shape)
        if not self._options.size:
            raise InvalidArgumentError.of(
                "TensorArray.write",
                found="a row was written at a traced index in a TensorArray of size 0",
                rule="the number of rows must be known before a row is written at a traced index",
                remedy="pass `size` to tf.TensorArray, such as tf.shape(x)[0]",
            )
        _require_shape(row, stored._buffer.shape[1:])
        place = without_wrapping(as_tensor(index), self._options.size)
        return self._made(self._options, {}, stored._buffer.at[place].set(row, mode="drop"))

    def _stored(self, shape: tuple[int, ...]) -> TensorArray:
        """Returns the array with all its tensors stacked in one tensor."""
        self._unused = None
        if self._buffer is not None:
            return self
        buffer = jnp.zeros((self._options.size, *shape), self._options.dtype)
        for place, row in self._rows.items():
            _require_shape(row, shape)
            buffer = buffer.at[place].set(row)
        return self._made(self._options, {}, buffer)

    def _padded(self, size: int) -> Any:
        missing = size - self._buffer.shape[0]
        return jnp.pad(self._buffer, [(0, missing)] + [(0, 0)] * (self._buffer.ndim - 1)) if missing else self._buffer

    # Reading

    def read(self, index: Operand, name: str | None = None) -> jax.Array:
        """Returns the tensor at `index`.

        Raises:
            OutOfRangeError: The index is out of range.
            InvalidArgumentError: The row was never written, and no other row determines its shape.
        """
        self._unused = None
        try:
            place = static_int(known(index), called="TensorArray.read", argument="index")
        except (NotConstant, InvalidArgumentError):
            return self._picked(as_tensor(index))
        if not 0 <= place < self._options.size:
            raise _out_of_range_error(
                "TensorArray.read", f"row {place} was read from a TensorArray of size {len(self)}"
            )
        if self._buffer is not None:
            return self._buffer[place]  # type: ignore[no-any-return]
        return self._rows[place] if place in self._rows else jnp.zeros(self._shape_or_refuse(), self._options.dtype)

    def _shape_or_refuse(self) -> tuple[int, ...]:
        shape = self.element_shape
        if shape is not None:
            return shape
        raise InvalidArgumentError.of(
            "TensorArray",
            found="no row was ever written, so that the shape of the rows is unknown",
            rule="a written row or `element_shape` must determine the shape of the rows",
            remedy="write a row first, or pass `element_shape`",
        )

    def stack(self, name: str | None = None) -> jax.Array:
        """Returns all tensors of the sequence, stacked along a new first axis."""
        self._unused = None
        if self._buffer is not None:
            return self._buffer  # type: ignore[no-any-return]
        shape = self._shape_or_refuse()
        if not self._options.size:
            return jnp.zeros((0, *shape), self._options.dtype)
        empty = jnp.zeros(shape, self._options.dtype)
        return jnp.stack([self._rows.get(place, empty) for place in range(self._options.size)])

    def concat(self, name: str | None = None) -> jax.Array:
        """Returns all tensors of the sequence, concatenated along their first axis."""
        self._unused = None
        if self._buffer is not None:
            return self._buffer.reshape((-1, *self._buffer.shape[2:]))  # type: ignore[no-any-return]
        return jnp.concatenate([self.read(place) for place in range(self._options.size)])

    def gather(self, indices: Operand, name: str | None = None) -> jax.Array:
        """Returns the tensors at `indices`, stacked along a new first axis.

        Raises the same errors as `read`.
        """
        self._unused = None
        places = as_tensor(indices)
        found = outside(places, self._options.size)
        if found is not None:
            raise _out_of_range_error("TensorArray.gather", found)
        return self._picked(places)

    def _picked(self, index: jax.Array) -> jax.Array:
        """Returns the rows at traced indices; for an index out of range, a row of zeros."""
        rows = self.stack()
        return rows.at[without_wrapping(index, rows.shape[0])].get(mode="fill", fill_value=0)

    # Reading and writing many rows

    def unstack(self, value: Operand, name: str | None = None) -> TensorArray:
        """Replaces all tensors by the slices of `value` along its first axis; returns the sequence as `write` does."""
        rows = self._row(value)
        options = dataclasses.replace(self._options, size=rows.shape[0])
        return self._changed("unstack", self._made(options, {}, rows))

    def scatter(self, indices: Operand, value: Operand, name: str | None = None) -> TensorArray:
        """Makes ``value[i]`` the tensor at ``indices[i]``, and returns the sequence, as `write` does.

        Raises:
            InvalidArgumentError: There are not as many indices as rows.
        """
        rows, places, array = self._row(value), as_tensor(indices), self
        if places.shape != rows.shape[:1]:
            raise InvalidArgumentError.of(
                "TensorArray.scatter",
                found=f"`indices` has the shape {places.shape}, `value` {rows.shape}",
                rule="`indices` must be a vector with one index for each row of `value`",
                remedy="pass as many indices as rows",
            )
        for number in range(rows.shape[0]):
            array = array._with(places[number], rows[number])
        return self._changed("scatter", array)

    def split(self, value: Operand, lengths: Operand, name: str | None = None) -> TensorArray:
        """Splits `value` into tensors of the given lengths, writes them, and returns the sequence, as `write` does.

        Raises:
            InvalidArgumentError: The lengths do not add up to the rows of `value`, or are traced.
        """
        array, start, whole = self, 0, self._row(value)
        sizes = static_ints(lengths, called="TensorArray.split", argument="lengths")
        if sum(sizes) != whole.shape[0] or min(sizes, default=0) < 0:
            raise InvalidArgumentError.of(
                "TensorArray.split",
                found=f"`lengths` is {list(sizes)} for a value of shape {whole.shape}",
                rule="the lengths must be 0 or more, and add up to the number of rows of the value",
                remedy="correct the lengths",
            )
        for number, length in enumerate(sizes):
            array, start = array._with(number, whole[start : start + length]), start + length
        return self._changed("split", array)

    def identity(self) -> TensorArray:
        """Returns this `TensorArray` itself."""
        self._unused = None
        return self

    def close(self, name: str | None = None) -> None:
        """Does nothing: a `TensorArray` holds nothing that must be released."""

    def mark_used(self) -> None:
        """Suppresses the warning that compiled code does not use an array that `write` returned."""
        self._unused = None

    def __repr__(self) -> str:
        return f"TensorArray(dtype={self._options.dtype}, size={self._options.size}, rows of {self.element_shape})"


def _require_shape(row: jax.Array, shape: tuple[int, ...]) -> None:
    """Raises an error unless a row has the shape of the array's other rows, which are stacked in one tensor.

    JAX would broadcast the row.
    """
    if row.shape == tuple(shape):
        return
    raise InvalidArgumentError.of(
        "TensorArray.write",
        found=f"a row of shape {row.shape} was written among rows of shape {tuple(shape)}",
        rule="after `unstack`, and if a row is written at a traced index, all rows must have one shape",
        remedy="write rows of one shape",
    )


def _out_of_range_error(called: str, found: str) -> OutOfRangeError:
    return OutOfRangeError.of(
        called,
        found=found,
        rule="row indices must be 0 or more, and less than the size",
        remedy="pass the index of an existing row, or create the array with a larger size",
    )


def refuse_growth(first: object, second: object) -> None:
    """Raises an error if a `tf.TensorArray` has different numbers of rows after two branches of a conditional.

    Raises:
        InvalidArgumentError: The numbers differ.
    """
    if not (isinstance(first, TensorArray) and isinstance(second, TensorArray)) or len(first) == len(second):
        return
    raise InvalidArgumentError.of(
        "TensorArray.write",
        found=f"a TensorArray has {len(first)} rows on one path and {len(second)} on the other, and the path is chosen "
        "at run time",
        rule="tensors of compiled code have fixed sizes, so a TensorArray cannot grow on one path only (as after a "
        "`break`, `continue` or `return` that depends on a tensor)",
        remedy=_FIXED_SIZE,
    )
