"""`tf.TensorSpec`: the shape and dtype of a tensor, for function signatures and datasets."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mirrored._typing import DTypeLike, ShapeLike
from mirrored.data.specs import ArraySpec
from mirrored.tf._dtypes import DType, as_dtype
from mirrored.values.tensor_shape import TensorShape as TensorShape


class Described(Protocol):
    """The interface of objects that have a shape and a dtype, such as tensors and variables."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


class _SpecMeta(type):
    """Metaclass that makes `ArraySpec` objects, the specs of datasets, instances of `TensorSpec`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (cls is TensorSpec and type(instance) is ArraySpec)


class TensorSpec(metaclass=_SpecMeta):
    """The shape and dtype that a tensor must have, for `tf.function(input_signature=...)` and datasets.

    Context: any.

    Args:
        shape: The shape; None stands for an unknown dimension.
        dtype: float32 by default.
        name: A name; stored only.

    TensorFlow: `tf.TensorSpec`.
    """

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, shape: ShapeLike | None = None, dtype: DTypeLike = "float32", name: str | None = None) -> None:
        self.shape = TensorShape(shape)
        self.dtype: DType = as_dtype(dtype)
        self.name = name

    @classmethod
    def from_tensor(cls, tensor: Described, name: str | None = None) -> TensorSpec:
        """Returns a `TensorSpec` with the shape and dtype of a tensor."""
        return cls(np.shape(tensor), tensor.dtype, name)

    @classmethod
    def from_spec(cls, spec: Described, name: str | None = None) -> TensorSpec:
        """Returns a copy of a `TensorSpec`, with another name if one is given."""
        return cls(spec.shape, spec.dtype, name or getattr(spec, "name", None))

    def is_compatible_with(self, tensor: Described) -> bool:
        """Returns whether a tensor has this spec's dtype and a shape that matches this spec's shape."""
        return self.shape.is_compatible_with(tensor.shape) and self.dtype == tensor.dtype

    def most_specific_compatible_shape(self, other: TensorSpec) -> TensorShape:
        """Returns the most specific `TensorShape` with which the shapes of both specs are compatible."""
        if self.shape.rank is None or self.shape.rank != other.shape.rank:
            return TensorShape(None)
        return TensorShape([a if a == b else None for a, b in zip(self.shape, other.shape, strict=True)])

    def __eq__(self, other: object) -> bool:
        """Compares shape, dtype and name."""
        return isinstance(other, TensorSpec) and (self.shape, self.dtype, self.name) == (
            other.shape,
            other.dtype,
            getattr(other, "name", None),
        )

    def __hash__(self) -> int:
        """Hashes shape and dtype."""
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        """Formats the spec like TensorFlow."""
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype!r}, name={self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the spec as its shape, dtype and name."""
        return TensorSpec, (self.shape, self.dtype, self.name)
