"""`Variable`: a variable that is mirrored across replicas or has one component per replica."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax import distributed
from mirrored._jax.array_likes import register_array_like
from mirrored._jax.arrays import is_key_dtype, key_data
from mirrored._jax.placement import movable
from mirrored._jax.source_lines import user_line
from mirrored._jax.traces import ShapedArray, is_eager
from mirrored._typing import DTypeLike, Operand
from mirrored.errors import ArgumentError, LostStateError
from mirrored.runtime.ambient import ambient, announce_read, announce_write
from mirrored.values.distributed_values import DistributedValues
from mirrored.values.reprs import distributed_repr
from mirrored.values.tensor_shape import TensorShape
from mirrored.variables import access, copying
from mirrored.variables.assignment import Assignment
from mirrored.variables.component import VariableComponent, write_component
from mirrored.variables.copying import Reference
from mirrored.variables.creation import VariableMeta, broadcast_initial, evaluate_initial, number_in_job
from mirrored.variables.display import html_of
from mirrored.variables.open_shapes import ShapeOfValue
from mirrored.variables.operators import VariableOperators
from mirrored.variables.rules import (
    VariableAggregation,
    VariableSynchronization,
    as_aggregation,
    as_synchronization,
    check_aggregation,
)
from mirrored.variables.scattering import Scattering
from mirrored.variables.slicing import note_slice
from mirrored.variables.storage import VariableStorage, placed

if TYPE_CHECKING:
    from mirrored.variables.rules import Aggregation


class _Unnamed:
    """Counts the variables without a name that this process has created in its job."""

    numbers = itertools.count()


@distributed.on_leave
def _count_anew() -> None:
    _Unnamed.numbers = itertools.count()


class Variable(VariableStorage, VariableOperators, Scattering, metaclass=VariableMeta):
    """A variable that compiled functions can update, mirrored over all replicas if created in a strategy's scope.

    A mirrored variable has a copy on every replica, and all copies are always equal.

    Context: any. A variable created in a strategy's scope belongs to that strategy. Inside `run` all replicas create
    one variable together. Elsewhere it is a plain variable. Inside `function` it can be created on the first call.

    Args:
        initial_value: An array, a number, a list, or a callable that returns one of these.
        trainable: Whether tapes watch it automatically. Default: True, but False for ON_READ.
        name: The name in messages and checkpoints. Default: ``Variable``.
        dtype: The dtype. Default: that of the initial value.
        synchronization: A `VariableSynchronization`. AUTO and ON_WRITE make the variable mirrored. ON_READ gives every
            replica its own component; a read in cross-replica context aggregates the components.
        aggregation: A `VariableAggregation`, a `ReduceOp`, or a callable from stacked components ``[replicas, ...]`` to
            one value. It reduces the values that replicas assign (mirrored) or the components (ON_READ).
        shape: The shape of all values. Default: that of the initial value. With unknown dimensions (None) or an unknown
            rank (``TensorShape(None)``), eager assignments may change the shape of the value; compiled functions that
            use the variable are then traced again.
        constraint: A function from a value to the value that replaces it after each update by an optimizer, such as a
            projection.

    Raises:
        ArgumentError: The initial value is missing or traced, or an option is invalid for its shape or dtype.

    Example:
        >>> v = Variable([1.0, 2.0], name="v")
        >>> v.assign_add([1.0, 1.0])
        Array([2., 3.], dtype=float32)
        >>> v * 2
        Array([4., 6.], dtype=float32)

    TensorFlow: `tf.Variable`. With aggregation NONE, assigning a value that varies over replicas raises an error;
    TensorFlow lets the copies diverge. `assign` returns the new value.
    """

    internal = False
    """Whether the library creates it on first use for its own purposes, such as the slots of an optimizer."""

    counts_replicas = False
    """Whether one update in a compiled run has the effect of one per replica, because it depends on their number."""

    words_of_step: Callable[[], Any] | None = None
    """Returns a new key and counter, ``uint32[3]``, for one training step of Keras; None unless it is a random stream.
    """

    share_of: Callable[[Any, Any], Any] | None = None
    """Returns a replica's component for one value that is assigned to all replicas, from the value and the replica's
    number. None: the rule of `aggregation`. Variables whose components must differ, such as seeds, set it."""

    backs: Callable[[], Any] | None = None
    """A weak reference to the variable of a framework, such as Keras, whose value it stores."""

    strategy: Any
    """The strategy that it belongs to; None for a plain variable."""

    component_shape = ShapeOfValue()  # type: ignore[assignment]
    """The shape of one copy or component of the value."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        """Creates a `DistributedVariable` if a strategy is current, otherwise a plain `Variable`."""
        strategies = ambient().strategies
        distributed = bool(strategies) and strategies[-1].device_assignment is not None
        return super().__new__(DistributedVariable if distributed and cls is Variable else cls)

    @property
    def announced(self) -> Any:
        """The object by which gradient tapes identify the variable: that of a framework, if it stores its value."""
        backed = None if self.backs is None else self.backs()
        return self if backed is None else backed

    def __init__(
        self,
        initial_value: Operand = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        synchronization: VariableSynchronization | str = VariableSynchronization.AUTO,
        aggregation: Aggregation = VariableAggregation.NONE,
        shape: TensorShape | Sequence[int | None] | None = None,
        constraint: Callable[[Any], Any] | None = None,
    ) -> None:
        self._synchronization = as_synchronization(synchronization, name)
        self._aggregation = as_aggregation(aggregation, name)
        here = ambient()
        self.strategy = here.strategies[-1] if here.strategies else None
        self.device_assignment = getattr(self.strategy, "device_assignment", None)
        self.per_replica = (
            self.device_assignment is not None and self._synchronization is VariableSynchronization.ON_READ
        )
        self.num_replicas = 1 if self.device_assignment is None else int(self.device_assignment.num_replicas)
        value = evaluate_initial(initial_value, dtype, name)
        if self.device_assignment is not None and self.device_assignment.spans_processes:
            value = broadcast_initial(value, name, self.device_assignment)
            self.number_of_name = number_in_job(name or "Variable")
        declared = TensorShape(value.shape if shape is None else shape)
        _check_options(name, value.shape, declared, constraint)
        self._constraint = constraint
        check_aggregation(self._aggregation, value.shape, value.dtype, name, self.num_replicas)
        self.numbered = not name
        self.name = name or f"Variable{'' if (number := next(_Unnamed.numbers)) == 0 else f'_{number}'}"
        self.dtype = value.dtype
        self._public_shape = declared
        on_read = self._synchronization is VariableSynchronization.ON_READ
        self._trainable = not on_read if trainable is None else bool(trainable)
        self.hold(placed(value, self.device_assignment, self.per_replica))
        if declared.is_fully_defined():
            self.component_shape = tuple(value.shape)
        self.await_value()
        if here.store is not None:
            here.store.created(self)

    # Properties

    @property
    def shape(self) -> TensorShape:
        """The shape of one copy of the value, as a tuple with TensorFlow's `as_list`, `rank` and so on.

        Dimensions that assignments may change (argument `shape` of the constructor) are None.
        """
        return self._public_shape

    def get_shape(self) -> TensorShape:
        """Returns the variable's `shape`, under TensorFlow's older name."""
        return self._public_shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of one copy of the value."""
        return len(self.component_shape)

    @property
    def size(self) -> int:
        """The number of elements in one copy of the value."""
        return int(np.prod(self.component_shape, dtype=np.int64))

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch the variable automatically."""
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When copies are synchronized: ON_WRITE (mirrored) or ON_READ (one component per replica)."""
        return self._synchronization

    @property
    def aggregation(self) -> Any:
        """How values of several replicas are reduced to one when the variable is assigned or read."""
        return self._aggregation

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """The function that optimizers apply to the value after each update, such as a projection, or None."""
        return self._constraint

    @property
    def initializer(self) -> None:
        """Always None: the variable is initialized when it is created, without TensorFlow 1's initializer operation."""
        return None

    def is_initialized(self, name: str | None = None) -> jax.Array:
        """Returns an array that is always True, because a variable has a value as soon as it is created."""
        return jnp.asarray(True)

    @property
    def is_sum_of_components(self) -> bool:
        """Whether the variable's value is the sum of its per-replica components (ON_READ with SUM)."""
        return self._synchronization is VariableSynchronization.ON_READ and self._aggregation is VariableAggregation.SUM

    @property
    def distribute_strategy(self) -> Any:
        """The strategy to which the variable belongs (TensorFlow's name for `strategy`)."""
        return self.strategy

    @property
    def device(self) -> str:
        """The name of the device that holds the first copy, in TensorFlow's format."""
        return self.device_of(0)

    def device_of(self, replica: int) -> str:
        """Returns the name of the device that holds one replica's copy, in TensorFlow's format."""
        if self.device_assignment is not None:
            return str(self.device_assignment.name_of(self.device_assignment.addressable_replicas[replica]))
        device = next(iter(self.stored().devices()))
        return f"/job:localhost/replica:0/task:0/device:{device.platform.upper()}:{device.id}"

    # Reading

    def read_value(self) -> jax.Array:
        """Returns the value: the mirrored array, this replica's value, or the aggregate of all replicas' values.

        Context: any; inside `function` and tapes also under nested `jit`, `scan`, `cond`, `checkpoint`, `vmap`.

        Returns:
            ``dtype[shape]``. It stays valid after later assignments and steps.

        Raises:
            TransformError: The read is under a bare `jax.jit`, `grad`, `vmap`, ..., where the value would become a
                constant of the program.
            LostStateError: The value is lost: a step that owned its buffer failed.
        """
        return announce_read(self, self.detached(access.read(self)))

    def value(self) -> jax.Array:
        """Returns the variable's current value, like `read_value`."""
        return self.read_value()

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns the variable's value as a new NumPy array; not available during tracing."""
        here = ambient()
        if here.store is None and not here.listeners and not self.per_replica and is_eager():
            return self.on_host()
        return self.converted(np.array)  # type: ignore[no-any-return]

    def converted(self, convert: Callable[[Any], Any]) -> Any:
        """Returns the result of `convert`, such as `numpy.asarray`, for the array that `read_value()` returns.

        Raises:
            LostStateError: The value is lost: a step that owned its buffer failed.
        """
        try:
            return convert(self.read_value())
        except RuntimeError:
            self.stored()  # the conversion has waited for the step that computes the value
            raise

    # Writing

    def assign(self, value: object, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Replaces the variable's value, according to its `synchronization` and `aggregation`.

        Context: any, but not under a nested transform.

        Args:
            value: ``dtype[shape]``: an array, a number, another variable, or a per-replica value. It is cast to the
                variable's dtype. Integers of a NumPy array, list or number must be in the range of an integer dtype.
                Those of a JAX array are not checked, because that would need a transfer from the device: they wrap
                around as in `astype` (and as in TensorFlow's `tf.cast`).
            use_locking: Ignored; accepted for compatibility with TensorFlow. Writes never race.
            name: Ignored; accepted for compatibility with TensorFlow.
            read_value: Whether to return the new value.

        Returns:
            The new value, or None. In replica context it is this replica's value. For a sync-on-read variable in an
            eager run it is the `VariableComponent`, whose value changes with later assignments.

        Raises:
            VariableError: The shape, dtype or range does not fit, or the variable's rules refuse the assignment.
            ReplicaDivergenceError: A mirrored variable with aggregation NONE would differ between replicas.
            TransformError: The assignment is under a nested transform.
        """
        return self._update("assign", value, read_value)

    def assign_add(
        self, delta: Operand, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds `delta` to the value, after reducing `delta` over replicas by the variable's aggregation, if any.

        Otherwise like `assign`: the same context, arguments, result and errors.
        """
        return self._update("assign_add", delta, read_value)

    def assign_sub(
        self, delta: Operand, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts `delta` from the value, after reducing `delta` over replicas by the aggregation, if any.

        Otherwise like `assign`: the same context, arguments, result and errors.
        """
        return self._update("assign_sub", delta, read_value)

    def _update(self, method: str, value: object, read_value: bool) -> Any:
        announce_write((self,))
        assignment = Assignment(self, method, user_line(), f"{self.name}.{method}", read_value)
        new = access.write(assignment, access.operand_of(value))
        if not read_value:
            return None
        replica = access.eager_replica(self)
        # Returning the new value is a read: a tape then treats results computed from it as computed from the variable.
        return announce_read(self, new) if replica is None else VariableComponent(self, replica)

    def update_component(self, replica: int, method: str, value: object, read_value: bool) -> Any:
        """Assigns the value of one replica; `method` is ``"assign"``, ``"assign_add"`` or ``"assign_sub"``."""
        announce_write((self,))
        assignment = Assignment(self, method, user_line(), f"{VariableComponent(self, replica).name}.{method}")
        new = write_component(assignment, replica, access.operand_of(value))
        return new if read_value else None

    def component_value(self, replica: int) -> Any:
        """Returns one replica's value of the variable, and notifies tapes of the read."""
        value = access.component(self, replica)
        return announce_read(self, value if ambient().runner is not None else movable(value))

    def checked_value(self) -> Any:
        """Returns the variable's value without notifying tapes, after checking that the context allows the read."""
        return access.read(self)

    def check_writable_here(self, called: str) -> None:
        """Raises an error if the caller is under a JAX transform, because the transform cannot record an assignment."""
        access.check_writable_here(self, called)

    # Python protocols

    def __getitem__(self, index: Any) -> Any:
        """Returns ``value[index]`` for the variable's current value.

        With `mirrored.tf` in use, ``variable[index].assign(x)`` assigns `x` to this part of the variable.
        """
        return note_slice(self.read_value()[index], self, index)

    def ref(self) -> Reference:
        """Returns a hashable reference to the variable (`ref().deref()`), for use as a dictionary key."""
        return Reference(self)

    def __copy__(self) -> Variable:
        return self  # as in TensorFlow, a shallow copy shares the state

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        made: Variable = copying.deep_copy(self, memo)
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return copying.reduced(self)

    def __repr__(self) -> str:
        if ambient().store is not None or self.is_lost:
            condition = "lost" if self.is_lost else "being traced"
            return f"<Variable {self.name!r} shape={self.component_shape} dtype={self.dtype} ({condition})>"
        try:
            value = np.array(key_data(self.stored())) if is_key_dtype(self.dtype) else self.on_host()
        except LostStateError:
            return repr(self)
        return f"<Variable {self.name!r} shape={self.component_shape} dtype={self.dtype} value={value}>"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks: where the variable's copies or components are, and their values."""
        return html_of(self)


class DistributedVariable(Variable, DistributedValues):
    """A `Variable` that belongs to a strategy, with one copy or component per replica.

    TensorFlow: its `repr` shows `MirroredVariable` or `SyncOnReadVariable`, which are separate classes in TensorFlow.
    """

    @property
    def values(self) -> tuple[VariableComponent, ...]:
        """The copies of the variable, one `VariableComponent` per replica of this process."""
        num_local = (
            self.num_replicas if self.device_assignment is None else len(self.device_assignment.addressable_replicas)
        )
        return tuple(VariableComponent(self, replica) for replica in range(num_local))

    def __repr__(self) -> str:
        if ambient().store is not None or self.is_lost:
            return Variable.__repr__(self)
        return distributed_repr("SyncOnReadVariable" if self.per_replica else "MirroredVariable", self.values)

    _repr_html_ = Variable._repr_html_


def _check_options(name: str | None, shape: tuple[int, ...], declared: TensorShape, constraint: object) -> None:
    if not declared.is_compatible_with(shape):
        raise ArgumentError(
            "Variable",
            found=f"shape={declared} was passed for an initial value of shape {shape} ({name!r})",
            rule="the initial value must have the variable's shape",
            remedy="omit shape, or pass an initial value of that shape",
        )
    if constraint is not None and not callable(constraint):
        raise ArgumentError(
            "Variable",
            found=f"constraint={constraint!r} was passed for variable {name!r}",
            rule="a constraint must be a function from a value to a value, or None",
            remedy="pass a function such as lambda value: jnp.clip(value, 0.0, 1.0)",
        )


def _abstract(variable: Variable) -> ShapedArray:
    return ShapedArray(variable.component_shape, variable.dtype)


register_array_like(Variable, read=Variable.read_value, shape_of=_abstract)
register_array_like(DistributedVariable, read=Variable.read_value, shape_of=_abstract)
# `isinstance(component, Variable)` holds, as in TensorFlow.
Variable.register(VariableComponent)
