"""Infers output shapes of Keras layers that compute with unknown sizes, as in ``tf.zeros([tf.shape(x)[0], 3])``.

Keras traces a layer with a symbolic size for every unknown one. A layer that needs a size as a number cannot be traced
so. Then it is traced for two numbers, and the sizes that differ between the results are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mirrored._jax.boxes import InconclusiveDimensionOperation
from mirrored.integrations.keras.backend import load

keras = load()
_SIZES: Final = (24, 48)  # multiples of the usual factors
_UNDECIDED: Final = (TypeError, ValueError, NotImplementedError, InconclusiveDimensionOperation)


def inferred(compute: Callable[..., Any], function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Returns the shapes and dtypes of a function's results, as Keras tensors.

    Args:
        compute: Keras' shape inference, `compute_output_spec`.
        function: The function, such as a layer's `call`.
        args: Its positional arguments, among them Keras tensors.
        kwargs: Its keyword arguments.

    Raises:
        Exception: What Keras' inference has raised, if the function cannot be traced for numbers, either.
    """
    try:
        return compute(function, *args, **kwargs)
    except _UNDECIDED:
        if not any(_is_open(leaf) for leaf in keras.tree.flatten((args, kwargs))):
            raise
        try:
            first, second = (_for_size(compute, function, args, kwargs, size) for size in _SIZES)
            return keras.tree.map_structure(_common, first, second)
        except _UNDECIDED:
            pass
        raise


def _is_open(leaf: Any) -> bool:
    return isinstance(leaf, keras.KerasTensor) and None in leaf.shape


def _for_size(compute: Callable[..., Any], function: Callable[..., Any], args: Any, kwargs: Any, size: int) -> Any:
    def filled(leaf: Any) -> Any:
        if not _is_open(leaf):
            return leaf
        shape = tuple(size if one is None else one for one in leaf.shape)
        return keras.KerasTensor(shape, dtype=leaf.dtype, sparse=leaf.sparse)

    sized_args, sized_kwargs = keras.tree.map_structure(filled, (args, kwargs))
    return compute(function, *sized_args, **sized_kwargs)


def _common(first: Any, second: Any) -> Any:
    if not isinstance(first, keras.KerasTensor):
        return first
    if len(first.shape) != len(second.shape):
        raise ValueError(f"the number of dimensions depends on a size: {first.shape} and {second.shape}")
    shape = tuple(one if one == other else None for one, other in zip(first.shape, second.shape, strict=True))
    return keras.KerasTensor(shape, dtype=first.dtype, sparse=first.sparse)
