"""The base classes of distributed values."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import jax
import numpy as np

from mirrored._jax.traces import Tracer
from mirrored.errors import ValuesError
from mirrored.values import html
from mirrored.values.operators import ArrayOperators
from mirrored.values.reprs import distributed_repr


class DistributedValues(abc.ABC):
    """Base class of values with one component per replica: `PerReplica`, `Mirrored`, distributed variables.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> square = lambda context: context.replica_id_in_sync_group**2
        >>> squares = strategy.experimental_distribute_values_from_function(square)
        >>> isinstance(squares, mr.DistributedValues), [int(one) for one in squares.values]
        (True, [0, 1])

    TensorFlow: `tf.distribute.DistributedValues`.
    """

    @property
    @abc.abstractmethod
    def values(self) -> tuple[Any, ...]:
        """The components of this value, one per replica, in replica order."""

    def __repr__(self) -> str:
        return distributed_repr(type(self).__name__, self.values)

    def _repr_html_(self) -> str:
        """Returns a table for notebooks: each replica's value, and the device that holds the value."""
        if self._is_traced:
            return html.text(repr(self))
        values = self.values
        return html.components(f"{type(self).__name__} of {html.counted(len(values), 'replica')}", values)

    @property
    def _is_traced(self) -> bool:
        """Whether any component is a tracer, so that operations on the value are recorded in a trace."""
        return any(isinstance(component, Tracer) for component in self.values)


def refuse(operation: str) -> Callable[..., NoReturn]:
    """Returns a method that raises the error for an array operation on a per-replica value."""

    def method(self: Any, *_args: object, **_kwargs: object) -> NoReturn:
        raise ValuesError(
            f"{type(self).__name__}.{operation}",
            found=f"a value with {len(self)} components was used as if it were one array",
            rule="a per-replica value is several arrays, so array operations cannot be applied to it",
            remedy="reduce it (strategy.reduce(op, value, axis=None); op is ReduceOp.SUM for results of average_loss, "
            "ReduceOp.MEAN for means over the per-replica batch), take its components "
            "(strategy.experimental_local_results(value) or value.values), or compute inside strategy.run",
        )

    return method


class NotAnArray(DistributedValues):
    """Base class of values that are not arrays: array operations on them raise an error that states the remedy."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    for _operation in (
        *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
        *("pow", "rpow", "matmul", "rmatmul", "neg", "pos", "abs", "lt", "le", "gt", "ge", "invert"),
        *("and", "rand", "or", "ror", "xor", "rxor", "float", "int", "bool", "complex", "index"),
        *("array", "iter", "getitem", "contains", "round"),
    ):
        locals()[f"__{_operation}__"] = refuse(f"__{_operation}__")
    del _operation

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float, complex, np.ndarray, np.generic, jax.Array, ArrayOperators)):
            refuse("__eq__")(self)
        return NotImplemented  # identity, as of other objects

    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # type checkers report names that the class does not have

        def __getattr__(self, name: str) -> Any:
            # JAX looks this method up on the instance. The class has none: code that asks the class whether its
            # instances are arrays gets the right answer.
            if name == "__jax_array__":
                return functools.partial(refuse("__jax_array__"), self)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: a per-replica value is several arrays; "
                "combine them by strategy.reduce(op, value, axis=None) or strategy.gather(value, axis=0), or take them "
                "by strategy.experimental_local_results(value)",
                name=name,
                obj=self,
            )

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else refuse(f"__format__ ({spec!r})")(self)

    def __copy__(self) -> Any:
        return self  # components are arrays, which are immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ValuesError(
            f"pickle of {type(self).__name__}",
            found=f"the value has {len(self)} components on devices of this process",
            rule="devices have no meaning in another process, so such a value cannot be pickled",
            remedy="send its components, [np.asarray(part) for part in value.values], or the result of "
            "strategy.reduce or strategy.gather",
        )
