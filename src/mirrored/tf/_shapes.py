"""`TensorShape` and `TensorSpec`: shapes with unknown dimensions, for signatures and specs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mirrored.tf._dtypes import DType, as_dtype


class TensorShape:
    """A shape in which dimensions, or their number, may be unknown.

    Context: any.

    Args:
        dims: Dimensions (int or None each), another shape, one int, or None for a shape of unknown rank.

    Example:
        >>> from mirrored import tf
        >>> shape = tf.TensorShape([None, 3])
        >>> shape, shape.rank, shape.is_compatible_with((2, 3)), shape.concatenate([4])
        (TensorShape([None, 3]), 2, True, TensorShape([None, 3, 4]))

    TensorFlow: `tf.TensorShape`. The shapes of tensors themselves are plain tuples, which compare equal to it.
    """

    __slots__ = ("_dims",)

    def __init__(self, dims: Any = None) -> None:
        if isinstance(dims, TensorShape):
            self._dims: tuple[int | None, ...] | None = dims._dims
        elif dims is None:
            self._dims = None
        else:
            values: Iterable[Any] = dims if isinstance(dims, Iterable) else (dims,)
            self._dims = tuple(_dimension(one) for one in values)

    @property
    def rank(self) -> int | None:
        """How many dimensions, or None."""
        return None if self._dims is None else len(self._dims)

    @property
    def ndims(self) -> int | None:
        """The same as `rank`."""
        return self.rank

    @property
    def dims(self) -> list[int | None] | None:
        """The dimensions, or None if even their number is unknown."""
        return None if self._dims is None else list(self._dims)

    def as_list(self) -> list[Any]:
        """The dimensions as a list.

        Raises:
            ValueError: The rank is unknown.
        """
        return list(self._known("as_list"))

    def num_elements(self) -> int | None:
        """The number of elements, or None if it is unknown."""
        if not self.is_fully_defined():
            return None
        return int(np.prod(self.as_list(), dtype=np.int64))

    def is_fully_defined(self) -> bool:
        """Whether every dimension is known."""
        return self._dims is not None and None not in self._dims

    def is_compatible_with(self, other: Any) -> bool:
        """Whether some array could have both shapes."""
        mine, theirs = self._dims, TensorShape(other)._dims
        if mine is None or theirs is None:
            return True
        return len(mine) == len(theirs) and all(
            a is None or b is None or a == b for a, b in zip(mine, theirs, strict=True)
        )

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raises ValueError unless some array could have both shapes."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are incompatible")

    def merge_with(self, other: Any) -> TensorShape:
        """The shape that knows what either knows.

        Raises:
            ValueError: They are not compatible.
        """
        self.assert_is_compatible_with(other)
        mine, theirs = self._dims, TensorShape(other)._dims
        if mine is None or theirs is None:
            return TensorShape(theirs if mine is None else mine)
        return TensorShape([b if a is None else a for a, b in zip(mine, theirs, strict=True)])

    def concatenate(self, other: Any) -> TensorShape:
        """This shape followed by another."""
        theirs = TensorShape(other)._dims
        return TensorShape(None if self._dims is None or theirs is None else self._dims + theirs)

    def with_rank(self, rank: int) -> TensorShape:
        """This shape, known to have `rank` dimensions.

        Raises:
            ValueError: It has another rank.
        """
        return self.merge_with([None] * rank)

    def _known(self, what: str) -> tuple[int | None, ...]:
        if self._dims is None:
            raise ValueError(f"{what}() is not defined on an unknown TensorShape.")
        return self._dims

    def __len__(self) -> int:
        """The rank."""
        return len(self._known("len"))

    def __iter__(self) -> Iterator[int | None]:
        """Over the dimensions."""
        return iter(self._known("iter"))

    def __bool__(self) -> bool:
        """Whether the rank is known."""
        return self._dims is not None

    def __getitem__(self, key: Any) -> Any:
        """A dimension, or a shape for a slice."""
        found = self._known("__getitem__")[key]
        return TensorShape(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> TensorShape:
        """As `concatenate`."""
        return self.concatenate(other)

    def __eq__(self, other: object) -> bool:
        """Equal to a shape, tuple or list with the same dimensions."""
        try:
            return self._dims == TensorShape(other)._dims
        except (TypeError, ValueError):
            return NotImplemented

    def __hash__(self) -> int:
        """The hash of the equal tuple."""
        return hash(self._dims)

    def __repr__(self) -> str:
        """As TensorFlow's."""
        return "TensorShape(None)" if self._dims is None else f"TensorShape({list(self._dims)})"

    def __str__(self) -> str:
        """As TensorFlow's: ``(None, 3)``."""
        return "<unknown>" if self._dims is None else str(self._dims)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by dimensions."""
        return TensorShape, (self.dims,)


def _dimension(value: Any) -> int | None:
    if value is None:
        return None
    size = int(value)
    if size < -1:
        raise ValueError(f"Dimension {size} must be >= 0")
    return None if size == -1 else size


class TensorSpec:
    """The shape and dtype that a tensor must have: for `tf.function(input_signature=...)` and datasets.

    Context: any.

    Args:
        shape: May have None for unknown dimensions.
        dtype: float32 by default.
        name: Kept.

    TensorFlow: `tf.TensorSpec`.
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, shape: Any = None, dtype: Any = "float32", name: str | None = None) -> None:
        self.shape = TensorShape(shape)
        self.dtype: DType = as_dtype(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> TensorSpec:
        """The spec that this tensor has."""
        return cls(np.shape(tensor), tensor.dtype, name)

    @classmethod
    def from_spec(cls, spec: Any, name: str | None = None) -> TensorSpec:
        """The same spec under another name."""
        return cls(spec.shape, spec.dtype, name or getattr(spec, "name", None))

    def is_compatible_with(self, tensor: Any) -> bool:
        """Whether a tensor (or spec) fits."""
        return self.shape.is_compatible_with(tensor.shape) and self.dtype == tensor.dtype

    def most_specific_compatible_shape(self, other: TensorSpec) -> TensorShape:
        """The most specific shape that both fit."""
        if self.shape.rank is None or self.shape.rank != other.shape.rank:
            return TensorShape(None)
        return TensorShape([a if a == b else None for a, b in zip(self.shape, other.shape, strict=True)])

    def __eq__(self, other: object) -> bool:
        """Equal if shape, dtype and name are."""
        return isinstance(other, TensorSpec) and (self.shape, self.dtype, self.name) == (
            other.shape,
            other.dtype,
            other.name,
        )

    def __hash__(self) -> int:
        """Of shape and dtype."""
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        """As TensorFlow's."""
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype!r}, name={self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by parts."""
        return TensorSpec, (self.shape, self.dtype, self.name)
