"""Assertions that compare pytrees of arrays: bit for bit, or by the norm of the difference."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator

import jax
import numpy as np

from mirrored._typing import PyTree
from mirrored.errors import ArgumentError
from mirrored.values.distributed_values import DistributedValues
from mirrored.variables import Variable, VariableSynchronization


def assert_same_bits(actual: PyTree, expected: PyTree) -> None:
    """Asserts that two pytrees of arrays are bit-identical.

    NaN equals NaN with the same bits; 0.0 differs from -0.0.

    Args:
        actual: A tree of arrays, numbers or variables.
        expected: A tree of the same structure.

    Raises:
        AssertionError: A leaf differs. The message names the first such leaf, the number of elements and the values.

    Example:
        >>> import numpy as np
        >>> assert_same_bits({"w": np.float32([1, 2])}, {"w": np.float32([1, 2])})
        >>> assert_same_bits({"w": np.float32([1, 2])}, {"w": np.float32([1, 3])})
        Traceback (most recent call last):
        AssertionError: leaf['w']: 1 of 2 elements differ in their bits, first at (1,): ...
    """
    for path, left, right in _pairs(actual, expected):
        assert left.dtype == right.dtype, f"{path}: dtype {left.dtype}, expected {right.dtype}"
        assert left.shape == right.shape, f"{path}: shape {left.shape}, expected {right.shape}"
        if left.tobytes() != right.tobytes():
            raise AssertionError(f"{path}: {_difference(left, right)}")


def assert_close_by_norm(actual: PyTree, expected: PyTree, tolerance: float = 1e-6) -> None:
    """Asserts for each leaf that the norm of ``actual - expected`` is at most ``tolerance * norm(expected)``.

    An elementwise comparison is sensitive to the order of summation. By norm, a tensor that was summed in another
    order compares as equal.

    Args:
        actual: A tree of arrays, numbers or variables.
        expected: A tree of the same structure.
        tolerance: The relative tolerance. The default fits float32 over some tens of steps.

    Raises:
        AssertionError: A leaf exceeds the tolerance. The message names the first such leaf.

    Example:
        >>> import numpy as np
        >>> assert_close_by_norm(np.float32([1, 2]), np.float32([1, 2.000001]))
        >>> assert_close_by_norm(np.float32([1, 2]), np.float32([1, 2.1]))
        Traceback (most recent call last):
        AssertionError: leaf: differs by 0.1, 0.043 of the norm 2.33
    """
    for path, left, right in _pairs(actual, expected):
        assert left.shape == right.shape, f"{path}: shape {left.shape}, expected {right.shape}"
        wide = np.complex128 if np.iscomplexobj(left) or np.iscomplexobj(right) else np.float64
        distance = float(np.linalg.norm((left.astype(wide) - right.astype(wide)).ravel()))
        size = float(np.linalg.norm(right.astype(wide).ravel()))
        # Written so that a NaN on either side fails.
        if not distance <= tolerance * size:
            relative = distance / (size or 1.0)
            raise AssertionError(f"{path}: differs by {distance:.3g}, {relative:.3g} of the norm {size:.3g}")


def assert_copies_equal(tree: PyTree) -> None:
    """Asserts that each mirrored variable has bit-identical copies on all its devices.

    Args:
        tree: A tree of variables, of variables of Keras and Flax NNX, and of objects that list theirs as `variables`,
            such as Keras models. Arrays, numbers, strings and functions in it, and variables with one component per
            replica (`VariableSynchronization.ON_READ`), are skipped.

    Raises:
        AssertionError: Copies differ. The message names the variable, the devices and the number of elements.
        ArgumentError: `tree` has an object of another kind, whose variables are unknown.

    Example:
        >>> import mirrored as mr
        >>> with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        ...     w = mr.Variable([1.0, 2.0])
        >>> assert_copies_equal({"w": w})
    """
    for variable in _variables_in(tree):
        if variable.synchronization is VariableSynchronization.ON_READ:
            continue
        array = variable.read_value()
        copies = [(shard.device, np.asarray(shard.data)) for shard in array.addressable_shards]
        for device, copy in copies[1:]:
            if copy.tobytes() != copies[0][1].tobytes():
                where = f"variable {variable.name!r} on {device} and on {copies[0][0]}"
                raise AssertionError(f"{where}: {_difference(copy, copies[0][1])}")


_SKIPPED = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, str, bytes, np.dtype, DistributedValues, type)


def _variables_in(tree: PyTree) -> Iterator[Variable]:
    for leaf in jax.tree.leaves(tree, is_leaf=lambda one: isinstance(one, (Variable, DistributedValues))):
        if isinstance(leaf, Variable):
            yield leaf
            continue
        # A Keras variable that was created in a strategy's scope has this attribute.
        behind, listed = getattr(leaf, "mirrored", None), getattr(leaf, "variables", None)
        if isinstance(behind, Variable):
            yield behind
        elif isinstance(listed, (list, tuple)):
            yield from _variables_in(listed)
        elif not (isinstance(leaf, _SKIPPED) or _is_function(leaf) or isinstance(_value_of(leaf), jax.Array)):
            raise ArgumentError(
                "assert_copies_equal",
                found=f"the tree has a leaf of type {type(leaf).__name__}",
                rule="the variables are known of pytrees, of variables, and of objects with a list `variables`",
                remedy="pass a list of the variables",
            )


def _is_function(leaf: object) -> bool:
    # Functions of JAX, such as `jax.nn.relu`, are objects that wrap functions.
    return inspect.isroutine(leaf) or isinstance(leaf, functools.partial) or hasattr(leaf, "__wrapped__")


def _value_of(leaf: object) -> object:
    """Returns the array of a variable that was created outside of any strategy; None for other leaves."""
    return getattr(leaf, "value", None)


def _pairs(actual: PyTree, expected: PyTree) -> list[tuple[str, np.ndarray, np.ndarray]]:
    left, structure = jax.tree_util.tree_flatten_with_path(actual)
    right, wanted = jax.tree_util.tree_flatten_with_path(expected)
    assert str(structure) == str(wanted), f"structure {structure}, expected {wanted}"
    return [
        (f"leaf{jax.tree_util.keystr(path)}", np.asarray(value), np.asarray(other))
        for (path, value), (_, other) in zip(left, right, strict=True)
    ]


def _difference(left: np.ndarray, right: np.ndarray) -> str:
    bits = np.dtype(f"V{left.dtype.itemsize}")
    unequal = np.ascontiguousarray(left).reshape(-1).view(bits) != np.ascontiguousarray(right).reshape(-1).view(bits)
    first = int(np.argmax(unequal))
    where = np.unravel_index(first, left.shape) if left.shape else ()
    index = tuple(int(i) for i in where)
    return (
        f"{int(unequal.sum())} of {left.size} elements differ in their bits, first at {index}: "
        f"{left.reshape(-1)[first]!r}, expected {right.reshape(-1)[first]!r}"
    )
