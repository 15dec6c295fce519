"""`TensorShape`: TensorFlow's class of shapes whose dimensions or rank can be unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, TypeAlias, cast

import numpy as np

from mirrored.errors import ArgumentTypeError

Dims: TypeAlias = Iterable[SupportsIndex | None] | SupportsIndex | None
"""What `TensorShape` accepts: dimensions, another shape, a single size, or None for unknown rank."""


class TensorShape(tuple[Any, ...]):
    """A shape whose dimensions or rank can be unknown, as a tuple of ints and None.

    Context: any.

    Args:
        dims: An iterable of dimensions (int or None), another shape, one int, or None for unknown rank.

    Example:
        >>> from mirrored import tf
        >>> shape = tf.TensorShape([None, 3])
        >>> shape, shape.rank, shape.is_compatible_with((2, 3)), shape.concatenate([4])
        (TensorShape([None, 3]), 2, True, TensorShape([None, 3, 4]))

    TensorFlow: `tf.TensorShape`. Shapes of variables and specs have this type. Shapes of tensors are plain tuples,
    which compare equal to it.
    """

    _is_known: bool

    def __new__(cls, dims: Dims = None) -> TensorShape:
        """Creates a shape; returns `dims` itself if it is a `TensorShape`."""
        if isinstance(dims, TensorShape):
            return dims
        values: Iterable[Any] = () if dims is None else dims if isinstance(dims, Iterable) else (dims,)
        made = super().__new__(cls, (_dimension(one) for one in values))
        made._is_known = dims is not None
        return made

    @property
    def _dims(self) -> tuple[int | None, ...] | None:
        return tuple(tuple.__iter__(self)) if self._is_known else None

    @property
    def rank(self) -> int | None:
        """The number of dimensions; None if unknown."""
        return tuple.__len__(self) if self._is_known else None

    @property
    def ndims(self) -> int | None:
        """The number of dimensions (the same as `rank`); None if unknown."""
        return self.rank

    @property
    def dims(self) -> list[int | None] | None:
        """The dimensions as a list; None if the rank is unknown."""
        return None if self._dims is None else list(self._dims)

    def as_list(self) -> list[Any]:
        """Returns the dimensions as a list of ints and None.

        Raises:
            ValueError: The rank is unknown.
        """
        return list(self._known("as_list"))

    def num_elements(self) -> int | None:
        """Returns the number of elements of an array of this shape; None if the number is unknown."""
        if not self.is_fully_defined():
            return None
        return int(np.prod(self.as_list(), dtype=np.int64))

    def is_fully_defined(self) -> bool:
        """Returns whether every dimension is known."""
        return self._dims is not None and None not in self._dims

    def is_compatible_with(self, other: Dims) -> bool:
        """Returns whether two shapes agree in rank and dimensions, wherever both are known."""
        own, theirs = self._dims, TensorShape(other)._dims
        if own is None or theirs is None:
            return True
        return len(own) == len(theirs) and all(
            a is None or b is None or a == b for a, b in zip(own, theirs, strict=True)
        )

    def assert_is_compatible_with(self, other: Dims) -> None:
        """Raises ValueError unless two shapes agree in rank and dimensions, wherever both are known."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {TensorShape(other)} are incompatible")

    def merge_with(self, other: Dims) -> TensorShape:
        """Returns this shape with its unknown dimensions filled in from another, compatible shape.

        Raises:
            ValueError: The shapes are not compatible.
        """
        self.assert_is_compatible_with(other)
        own, theirs = self._dims, TensorShape(other)._dims
        if own is None or theirs is None:
            return TensorShape(theirs if own is None else own)
        return TensorShape([b if a is None else a for a, b in zip(own, theirs, strict=True)])

    def concatenate(self, other: Dims) -> TensorShape:
        """Returns the dimensions of this shape followed by the dimensions of another shape."""
        theirs = TensorShape(other)._dims
        return TensorShape(None if self._dims is None or theirs is None else self._dims + theirs)

    def with_rank(self, rank: int) -> TensorShape:
        """Returns this shape with `rank` dimensions, after checking that its rank is `rank` or unknown.

        Raises:
            ValueError: The shape has another rank.
        """
        return self.merge_with([None] * rank)

    def most_specific_compatible_shape(self, other: Dims) -> TensorShape:
        """Returns a shape with the dimensions on which this and another shape agree; all other dimensions are unknown.

        If the ranks differ, the rank is unknown.
        """
        own, theirs = self._dims, TensorShape(other)._dims
        if own is None or theirs is None or len(own) != len(theirs):
            return TensorShape(None)
        return TensorShape([a if a == b else None for a, b in zip(own, theirs, strict=True)])

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """Returns this shape, after checking that its rank is at least `rank` or unknown.

        Raises:
            ValueError: The shape has fewer than `rank` dimensions.
        """
        if self.rank is not None and self.rank < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def assert_has_rank(self, rank: int) -> None:
        """Raises ValueError unless this shape's rank is `rank` or unknown."""
        if self.rank not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")

    def assert_same_rank(self, other: Dims) -> None:
        """Raises ValueError unless this shape and another have equal ranks, or one rank is unknown."""
        theirs = TensorShape(other)
        if self.rank is not None and theirs.rank is not None and self.rank != theirs.rank:
            raise ValueError(f"Shapes {self} and {theirs} must have the same rank")

    def assert_is_fully_defined(self) -> None:
        """Raises ValueError if a dimension of this shape is unknown."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def _known(self, what: str) -> tuple[int | None, ...]:
        if self._dims is None:
            raise ValueError(f"{what}() is not defined on an unknown TensorShape.")
        return self._dims

    def __len__(self) -> int:
        """Returns the rank."""
        if not self._is_known:
            raise ValueError("len() is not defined on an unknown TensorShape.")
        return tuple.__len__(self)

    def __iter__(self) -> Iterator[int | None]:
        """Iterates over the dimensions."""
        return iter(self._known("iter"))

    def __bool__(self) -> bool:
        """Returns whether the shape has dimensions, like a tuple; TensorFlow returns whether the rank is known."""
        return self.rank not in (None, 0)

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """Returns a dimension, or a shape for a slice."""
        found = self._known("__getitem__")[key]
        return TensorShape(found) if isinstance(key, slice) else found

    def __add__(self, other: Dims) -> TensorShape:  # type: ignore[override]  # takes lists, too
        """Same as `concatenate`."""
        return self.concatenate(other)

    def __radd__(self, other: Dims) -> TensorShape:
        """Returns another shape followed by this one."""
        return TensorShape(other).concatenate(self)

    def __ne__(self, other: object) -> bool:
        """Returns the negation of `==`."""
        return not self == other

    def __eq__(self, other: object) -> bool:
        """Returns whether `other` is a shape, tuple or list with the same dimensions."""
        if isinstance(other, tuple) and not isinstance(other, TensorShape):
            return self._is_known and self._dims == other
        try:
            return self._dims == TensorShape(cast(Any, other))._dims
        except (TypeError, ValueError):
            return NotImplemented

    def __hash__(self) -> int:
        """Returns the hash of a tuple of the same dimensions."""
        return hash(self._dims)

    def __repr__(self) -> str:
        """Returns the same text as TensorFlow: ``TensorShape([None, 3])``."""
        return "TensorShape(None)" if self._dims is None else f"TensorShape({list(self._dims)})"

    def __str__(self) -> str:
        """Returns the same text as TensorFlow: ``(None, 3)``."""
        return "<unknown>" if self._dims is None else str(self._dims)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the dimensions."""
        return TensorShape, (self.dims,)


def _dimension(value: SupportsIndex | None) -> int | None:
    if value is None:
        return None
    size = int(value)
    if isinstance(value, (float, np.floating)) and size != value:
        raise ArgumentTypeError(
            "TensorShape",
            found=f"the dimension {value!r} is of type {type(value).__name__}",
            rule="a dimension value must be an integer or None",
            remedy="round it first: int(value), or math.ceil(value)",
        )
    if size < -1:
        raise ValueError(f"Dimension {size} must be >= 0")
    return None if size == -1 else size
