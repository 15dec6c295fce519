"""`TensorShape`: a tuple of dims, of which some, or their number, may be unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

import numpy as np


class TensorShape(tuple[Any, ...]):
    """A shape in which dimensions, or their number, may be unknown. It is a tuple of ints and None.

    Context: any.

    Args:
        dims: Dimensions (int or None each), another shape, one int, or None for a shape of unknown rank.

    Example:
        >>> from mirrored import tf
        >>> shape = tf.TensorShape([None, 3])
        >>> shape, shape.rank, shape.is_compatible_with((2, 3)), shape.concatenate([4])
        (TensorShape([None, 3]), 2, True, TensorShape([None, 3, 4]))

    TensorFlow: `tf.TensorShape`. The shapes of variables and specs are such; those of tensors are plain tuples, which
    compare equal.
    """

    _is_known: bool

    def __new__(cls, dims: Any = None) -> TensorShape:
        """From dims."""
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
        """How many dimensions, or None."""
        return tuple.__len__(self) if self._is_known else None

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

    def most_specific_compatible_shape(self, other: Any) -> TensorShape:
        """The most specific shape that both fit."""
        mine, theirs = self._dims, TensorShape(other)._dims
        if mine is None or theirs is None or len(mine) != len(theirs):
            return TensorShape(None)
        return TensorShape([a if a == b else None for a, b in zip(mine, theirs, strict=True)])

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape.

        Raises:
            ValueError: It has fewer dimensions.
        """
        if self.rank is not None and self.rank < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def assert_has_rank(self, rank: int) -> None:
        """Raises ValueError unless the rank may be `rank`."""
        if self.rank not in (None, rank):
            raise ValueError(f"Shape {self} must have rank {rank}")

    def assert_same_rank(self, other: Any) -> None:
        """Raises ValueError unless the ranks may be the same."""
        theirs = TensorShape(other)
        if self.rank is not None and theirs.rank is not None and self.rank != theirs.rank:
            raise ValueError(f"Shapes {self} and {theirs} must have the same rank")

    def assert_is_fully_defined(self) -> None:
        """Raises ValueError if a dimension is unknown."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def _known(self, what: str) -> tuple[int | None, ...]:
        if self._dims is None:
            raise ValueError(f"{what}() is not defined on an unknown TensorShape.")
        return self._dims

    def __len__(self) -> int:
        """The rank."""
        if not self._is_known:
            raise ValueError("len() is not defined on an unknown TensorShape.")
        return tuple.__len__(self)

    def __iter__(self) -> Iterator[int | None]:
        """Over the dimensions."""
        return iter(self._known("iter"))

    def __bool__(self) -> bool:
        """Whether there are dimensions, as of any tuple (TensorFlow: whether their number is known)."""
        return self.rank not in (None, 0)

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """A dimension, or a shape for a slice."""
        found = self._known("__getitem__")[key]
        return TensorShape(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> TensorShape:  # type: ignore[override]  # takes lists, too
        """As `concatenate`."""
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        """Another shape, then this one."""
        return TensorShape(other).concatenate(self)

    def __ne__(self, other: object) -> bool:
        """Not equal."""
        return not self == other

    def __eq__(self, other: object) -> bool:
        """Equal to a shape, tuple or list with the same dimensions."""
        if isinstance(other, tuple) and not isinstance(other, TensorShape):
            return self._is_known and self._dims == other
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
