"""`ReduceOp`: the reductions over replicas (`SUM`, `MEAN`, `Median` and custom ones)."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.arrays import is_key_dtype
from mirrored._jax.promotion import at_least_float32
from mirrored._typing import Operand
from mirrored.collectives.summation import floating, sum_along
from mirrored.errors import ArgumentError, StructureError

_RULE: Final = "a reduction must be ReduceOp.SUM, ReduceOp.MEAN, one of their names, or a callable"
_REMEDY: Final = "pass one of these, for instance ReduceOp.SUM"


_T = TypeVar("_T")
_NO_VALUE: Final = object()


class _Members(type):
    """Makes `ReduceOp` look like TensorFlow's enum: `ReduceOp("sum")`, `ReduceOp["SUM"]`, `list(ReduceOp)`."""

    def __call__(cls: type[_T], *args: Any, **kwargs: Any) -> _T:  # type: ignore[misc]  # mypy: not a metaclass
        if cls is ReduceOp:
            return as_reduce_op(*args, **kwargs)  # type: ignore[return-value]
        return type.__call__(cls, *args, **kwargs)  # type: ignore[no-any-return]

    def __getitem__(cls, name: str) -> ReduceOp:
        return _BY_NAME[name]

    def __iter__(cls) -> Iterator[ReduceOp]:
        return iter(_BY_NAME.values())

    def __len__(cls) -> int:
        return len(_BY_NAME)


class ReduceOp(metaclass=_Members):
    """A reduction of the replicas' values to one value: `SUM`, `MEAN`, or a custom subclass.

    A subclass defines `__call__`, which maps the stacked components ``[replicas, ...]``, in replica order, to one value
    ``[...]`` of the component's shape and dtype. It is traced, and every device calls it with the same values. A
    subclass needs equality and a hash, because it is part of the cache keys of compiled programs. A frozen dataclass
    has both.

    Attributes:
        SUM: The sum, in the dtype of the components, also along an axis. Integers wrap around if their sum overflows.
            16-bit floats are sent between devices as they are, and their sum may overflow where a float32 would not.
            Cast the components first to avoid this. Booleans and typed PRNG keys have no sum and no mean.
        MEAN: The sum divided by the number of replicas. 16-bit floats are accumulated in float32. The mean of integers
            is a float32, even for one replica.

    Example:
        >>> import jax.numpy as jnp
        >>> class Largest(ReduceOp):
        ...     def __call__(self, per_replica):
        ...         return jnp.max(per_replica, axis=0)
        >>> Largest()(jnp.asarray([[1, 5], [2, 3]])).tolist()
        [2, 5]
        >>> ReduceOp("mean")
        ReduceOp.MEAN

    TensorFlow: `tf.distribute.ReduceOp`, an enum with the same members. There the mean of 16-bit floats is infinite if
    their sum overflows. TensorFlow has no counterpart to subclasses.
    """

    SUM: ClassVar[ReduceOp]
    MEAN: ClassVar[ReduceOp]

    def __init__(self, value: object = _NO_VALUE, /) -> None:
        """Raises TypeError for any argument; the conversion `ReduceOp(value)` does not call this method."""
        # mypy ignores the `__call__` of a metaclass, and finds the argument of `ReduceOp("sum")` here.
        if value is not _NO_VALUE:
            raise TypeError(f"{type(self).__name__}() takes no arguments")

    def __call__(self, per_replica: jax.Array) -> Any:
        """Reduces the replicas' values, stacked as ``[replicas, ...]``, to one value. Subclasses override this."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(per_replica)")

    @property
    def name(self) -> str:
        """The name of the reduction: ``"SUM"``, ``"MEAN"``, or the name of the subclass."""
        return type(self).__name__

    @property
    def value(self) -> str:
        """The name of the reduction, equal to `name`, for compatibility with TensorFlow's enum `ReduceOp`."""
        return self.name

    @property
    def calls_user_code(self) -> bool:
        """Whether the reduction is a user function, whose results may depend on changing state."""
        return not type(self).__module__.startswith("mirrored.")

    def __repr__(self) -> str:
        return f"ReduceOp.{self.name}"

    @staticmethod
    def from_variable_aggregation(aggregation: enum.Enum) -> ReduceOp:
        """Converts a `VariableAggregation` of `SUM` or `MEAN` to the `ReduceOp` of that name."""
        return as_reduce_op(aggregation)


class _Member(ReduceOp):
    """`SUM` or `MEAN`. Pickling and copying return the same object."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, per_replica: jax.Array) -> Any:
        """Returns the sum or the mean of the replicas' stacked values over axis 0."""
        check_dtype(repr(self), self, per_replica.dtype)
        return jnp.mean(floating(per_replica), axis=0) if self is ReduceOp.MEAN else sum_along(per_replica, 0)

    @property
    def name(self) -> str:
        """The name, ``"SUM"`` or ``"MEAN"``."""
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        return as_reduce_op, (self._name,)


def log_label(op: ReduceOp) -> str:
    """Returns a reduction's name for collective logs, without memory addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(op))


_BY_NAME: Final[dict[str, ReduceOp]] = {name: _Member(name) for name in ("SUM", "MEAN")}
ReduceOp.SUM = _BY_NAME["SUM"]
ReduceOp.MEAN = _BY_NAME["MEAN"]


@dataclasses.dataclass(frozen=True)
class CallableReduction(ReduceOp):
    """A `ReduceOp` that calls a user's function on the stacked values of all replicas."""

    fn: Callable[[Any], Any]

    @property
    def calls_user_code(self) -> bool:
        """True, because the reduction is a user function, whose results may depend on changing state."""
        return True

    def __call__(self, per_replica: jax.Array) -> Any:
        """Calls the user's function with the stacked values of all replicas."""
        return self.fn(per_replica)

    @property
    def name(self) -> str:
        """The name of the function that computes the reduction."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)


def as_reduce_op(value: object) -> ReduceOp:
    """Converts the name of a reduction, a `ReduceOp` class or a callable to a `ReduceOp`.

    Args:
        value: A `ReduceOp`, a subclass of it that needs no arguments, a name in upper or lower case (``"sum"``,
            ``"ReduceOp.SUM"``), an object with such a `.name` (`VariableAggregation.SUM`), or a callable over stacked
            components.

    Raises:
        ArgumentError: `value` is not a valid reduction.
    """
    if isinstance(value, ReduceOp):
        return value
    if isinstance(value, type) and issubclass(value, ReduceOp) and value is not ReduceOp:
        return _instance(value)
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if isinstance(name, str) and (found := _BY_NAME.get(name.rpartition(".")[2].upper())):
        return found
    if callable(value) and not isinstance(value, type):
        return CallableReduction(value)
    raise ArgumentError("ReduceOp", found=f"the reduction is {value!r}", rule=_RULE, remedy=_REMEDY)


def _instance(subclass: type[ReduceOp]) -> ReduceOp:
    try:
        return subclass()
    except TypeError as error:
        raise ArgumentError(
            "ReduceOp",
            found=f"the class {subclass.__name__} cannot be constructed without arguments ({error})",
            rule=_RULE,
            remedy=f"pass an instance: {subclass.__name__}(...)",
        ) from error


def check_dtype(called: str, op: ReduceOp, dtype: Any) -> None:
    """Raises an error if a reduction does not support values of a dtype.

    A custom reduction may reduce any dtype.

    Raises:
        ArgumentError: `op` is a sum or mean, and the values are booleans or typed PRNG keys.
    """
    if not isinstance(op, _Member):
        return
    if dtype == jnp.bool_:
        raise ArgumentError(
            called,
            found="the components are booleans",
            rule="booleans have no sum and no mean",
            remedy="convert them first: value.astype(jnp.int32) for a count, value.astype(jnp.float32) for a rate",
        )
    if is_key_dtype(dtype):
        raise ArgumentError(
            called,
            found=f"{op!r} of typed PRNG keys, {dtype}",
            rule="keys have no sum and no mean",
            remedy="pass one key for all replicas to run as an argument, or gather jax.random.key_data(key)",
        )


def check_alike(called: str, components: Sequence[Any]) -> None:
    """Raises an error unless the arrays to be reduced over replicas have equal shapes and dtypes.

    Raises:
        StructureError: Shapes or dtypes differ.
    """
    check_types(called, [type_of(component) for component in components])


def type_of(component: Operand) -> tuple[str, tuple[int, ...]]:
    """Returns the dtype and the shape of an array or a number."""
    return str(jnp.result_type(component)), tuple(np.shape(component))


def check_types(called: str, types: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Raises an error unless all ``(dtype, shape)`` pairs in `types`, of the arrays to be reduced, are equal.

    Raises:
        StructureError: Shapes or dtypes differ.
    """
    _check_dtypes(called, [dtype for dtype, _ in types])
    shapes = [shape for _, shape in types]
    if len(set(shapes)) > 1:
        raise StructureError(
            called,
            found=f"the components have the shapes {', '.join(map(str, shapes))}",
            rule="values that are reduced over replicas must have the same shape on all replicas",
            remedy="reduce along the dimension that differs first (strategy.reduce(op, value, axis=0)), pad, or gather",
        )


def check_dtypes(called: str, components: Sequence[Any]) -> None:
    """Raises an error unless the arrays that a collective combines have equal dtypes.

    Raises:
        StructureError: Dtypes differ. Promotion would give replicas results of a dtype that none of them passed, and
            several devices cannot hold one array of several dtypes.
    """
    _check_dtypes(called, [str(jnp.result_type(component)) for component in components])


def _check_dtypes(called: str, dtypes: Sequence[str]) -> None:
    if len(set(dtypes)) > 1:
        raise StructureError(
            called,
            found=f"the components have the dtypes {', '.join(dtypes)}",
            rule="values that are combined over replicas must have the same dtype on all replicas",
            remedy="convert the value in the replica function: value.astype(jnp.float32)",
        )


def check_reduction(op: object, component: jax.Array | jax.ShapeDtypeStruct, num_replicas: int) -> None:
    """Raises an error if a custom reduction would change the shape or dtype of the replicas' values.

    Args:
        op: The reduction. `SUM` and `MEAN` always pass.
        component: An object with `shape` and `dtype`.
        num_replicas: The number of components that the reduction receives.

    Raises:
        ArgumentError: The reduction raises an exception for such values, or returns another shape or dtype.
    """
    op = as_reduce_op(op)
    if isinstance(op, _Member):
        return
    stacked = jax.ShapeDtypeStruct((num_replicas, *component.shape), component.dtype)
    expected = _describe(component)
    try:
        result = jax.eval_shape(op, stacked)
    except Exception as error:
        raise _unsuitable_result_error(op, stacked, f"raised {type(error).__name__}: {error}", expected) from error
    if not isinstance(result, jax.ShapeDtypeStruct):
        raise _unsuitable_result_error(op, stacked, f"returned a {type(result).__name__}", expected)
    if (result.shape, result.dtype) != (tuple(component.shape), component.dtype):
        raise _unsuitable_result_error(op, stacked, f"returned {_describe(result)}", expected)


def _unsuitable_result_error(op: ReduceOp, stacked: jax.ShapeDtypeStruct, what: str, expected: str) -> ArgumentError:
    return ArgumentError(
        op.name,
        found=f"called with the stacked components {_describe(stacked)}, it {what}",
        rule=f"a custom reduction must return one component: {expected}",
        remedy="reduce over axis 0 only, and keep the dtype (result.astype(per_replica.dtype))",
    )


def _describe(array: jax.Array | jax.ShapeDtypeStruct) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


# Custom reductions of the library: reductions that are robust against outliers, and Adasum.


@dataclasses.dataclass(frozen=True)
class Median(ReduceOp):
    """A reduction to the element-wise median over replicas.

    For an even number of replicas, it is the mean of the middle two values, rounded toward zero if they are integers.

    Source: coordinate-wise median, D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed
    learning: towards optimal statistical rates", ICML 2018.

    Example:
        >>> import jax.numpy as jnp
        >>> Median()(jnp.asarray([[1.0, 2.0], [3.0, 4.0], [100.0, -100.0]])).tolist()
        [3.0, 2.0]

    TensorFlow: no equivalent.
    """

    def __call__(self, per_replica: jax.Array) -> Any:
        """Reduces the stacked values over axis 0, and keeps their dtype."""
        if jnp.issubdtype(per_replica.dtype, jnp.integer):
            count = per_replica.shape[0]
            return _mean(jnp.sort(per_replica, axis=0)[(count - 1) // 2 : count // 2 + 1])
        if not jnp.issubdtype(per_replica.dtype, jnp.floating):
            return jnp.median(per_replica, axis=0).astype(per_replica.dtype)
        # As `jnp.median`, except where the sum of the middle two values overflows. (XLA would replace a sum of their
        # halves by half of their sum.)
        values = per_replica.astype(at_least_float32(per_replica.dtype))
        values = jnp.sort(jnp.where(jnp.any(jnp.isnan(values), axis=0, keepdims=True), jnp.nan, values), axis=0)
        low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
        total = low + high
        overflows = jnp.isinf(total) & jnp.isfinite(low) & jnp.isfinite(high)
        return jnp.where(overflows, low + (high - low) * 0.5, total * 0.5).astype(per_replica.dtype)


@dataclasses.dataclass(frozen=True)
class TrimmedMean(ReduceOp):
    """A reduction to the element-wise mean over replicas without the `k` smallest and the `k` largest values.

    Args:
        k: The number of values to omit on either side; less than half of the replicas.

    Raises:
        ArgumentError: `k` is negative, or, when the reduction runs, `k` omits all values.

    Source: coordinate-wise trimmed mean, D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-robust distributed
    learning: towards optimal statistical rates", ICML 2018.

    Example:
        >>> import jax.numpy as jnp
        >>> TrimmedMean(1)(jnp.asarray([1.0, 2.0, 4.0, 100.0])).tolist()
        3.0

    TensorFlow: no equivalent.
    """

    k: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0:
            raise ArgumentError(
                "TrimmedMean",
                found=f"k={self.k!r}",
                rule="k, the number of values to omit on either side, must be an integer of 0 or more",
                remedy="pass such an integer, for instance TrimmedMean(1)",
            )

    def __call__(self, per_replica: jax.Array) -> Any:
        """Reduces the stacked values over axis 0, and keeps their dtype."""
        count = per_replica.shape[0]
        if 2 * self.k >= count:
            raise ArgumentError(
                "TrimmedMean",
                found=f"k={self.k} for {count} replicas",
                rule="at least one value must remain after k values are omitted on either side",
                remedy=f"use a k of at most {(count - 1) // 2}, or more replicas",
            )
        kept = jnp.sort(per_replica, axis=0)[self.k : count - self.k]
        return _mean(kept)


def _mean(values: jax.Array) -> jax.Array:
    """Returns the mean over axis 0 in the dtype of the values; a mean of integers is rounded toward zero.

    `jnp.mean` of integers computes in float32, which has 24 bits. The sum of the quotients by the number of values does
    not overflow, and that of the remainders is small.
    """
    dtype, count = values.dtype, values.shape[0]
    if not jnp.issubdtype(dtype, jnp.integer):
        return jnp.mean(values, axis=0).astype(dtype)
    wide = values.astype(jnp.int32 if dtype.itemsize < 4 else dtype)
    rests = jnp.sum(wide % count, axis=0, dtype=wide.dtype)
    floor = jnp.sum(wide // count, axis=0, dtype=wide.dtype) + rests // count
    return jnp.where((floor < 0) & (rests % count != 0), floor + 1, floor).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Adasum(ReduceOp):
    """A reduction that adds the orthogonal parts of gradients and averages their parallel parts (Adasum).

    Two gradients a and b become ``(1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b``: their sum if they are orthogonal,
    their mean if they are equal. A balanced tree over replicas combines more than two. Each array is treated as a
    separate vector.

    Source: S. Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, section 3.

    Example:
        >>> import jax.numpy as jnp
        >>> Adasum()(jnp.asarray([[1.0, 0.0], [0.0, 1.0]])).tolist()
        [1.0, 1.0]
        >>> Adasum()(jnp.asarray([[1.0, 0.0], [1.0, 0.0]])).tolist()
        [1.0, 0.0]

    TensorFlow: no equivalent. Horovod: `hvd.Adasum`.
    """

    def __call__(self, per_replica: jax.Array) -> Any:
        """Reduces the stacked values over axis 0; dot products use at least float32."""
        values = list(per_replica.astype(at_least_float32(per_replica.dtype)))
        while len(values) > 1:
            paired = [_adasum(one, other) for one, other in zip(values[::2], values[1::2], strict=False)]
            values = paired + values[len(paired) * 2 :]
        return values[0].astype(per_replica.dtype)


def _adasum(one: jax.Array, other: jax.Array) -> Any:
    shared = jnp.real(jnp.vdot(one, other))
    return (1 - _subtracted_fraction(shared, one)) * one + (1 - _subtracted_fraction(shared, other)) * other


def _subtracted_fraction(shared: jax.Array, vector: jax.Array) -> Any:
    """Returns the fraction of `vector` that Adasum subtracts; `shared` is the dot product of the two vectors."""
    squared = jnp.real(jnp.vdot(vector, vector))
    return jnp.where(squared > 0, shared / (2 * jnp.where(squared > 0, squared, 1)), 0)
