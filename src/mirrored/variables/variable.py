"""`Variable`: one logical variable, mirrored on every replica or with one component per replica."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._jax.array_protocol import register_array_like
from mirrored._jax.boxes import payload_of
from mirrored._jax.frames import user_line
from mirrored._jax.keys import is_key_dtype, key_data
from mirrored._jax.traces import ShapedArray, is_eager
from mirrored.errors import ArgumentError, LostStateError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.listeners import announce_read, announce_write
from mirrored.values.distributed_values import DistributedValues, distributed_repr
from mirrored.values.operators import ArrayOperators
from mirrored.values.tensor_shape import TensorShape
from mirrored.variables import copying, reading, writing
from mirrored.variables.assignment import Assignment
from mirrored.variables.awaiting import Awaiting
from mirrored.variables.broadcasting import broadcast_initial
from mirrored.variables.component import VariableComponent
from mirrored.variables.component_writing import write_component
from mirrored.variables.contexts import eager_replica
from mirrored.variables.creation import VariableMeta
from mirrored.variables.initial import evaluate_initial
from mirrored.variables.placement import components, placed
from mirrored.variables.reference import Reference
from mirrored.variables.rules import (
    VariableAggregation,
    VariableSynchronization,
    as_aggregation,
    as_synchronization,
    check_aggregation,
)
from mirrored.variables.scattering import Scattering
from mirrored.variables.state_lock import lock, note_former, settle, state, thread

_unnamed = itertools.count()


class Variable(Awaiting, ArrayOperators, Scattering, metaclass=VariableMeta):
    """A variable: mirrored on every replica of the strategy whose scope it is made in, equal on all at all times.

    Context: made anywhere. In a strategy's scope (or inside `run`, where all replicas make one together) it belongs to
    that strategy; elsewhere it is a plain variable. Inside `function` it may be made on the first call.

    Args:
        initial_value: An array, a number, a list, or a callable that gives one.
        trainable: Whether tapes watch it by themselves. Default: True, but False for ON_READ.
        name: For messages and checkpoints. Default: ``Variable``.
        dtype: Default: the initial value's.
        synchronization: `VariableSynchronization`: AUTO and ON_WRITE make it mirrored, ON_READ gives every replica a
            component of its own that is aggregated when read in cross-replica context.
        aggregation: `VariableAggregation`, a `ReduceOp`, or a callable from stacked components ``[replicas, ...]`` to
            one: how assignments of replicas (mirrored) or components (ON_READ) become one.

    Raises:
        ArgumentError: No initial value, or options that do not fit.

    Example:
        >>> v = Variable([1.0, 2.0], name="v")
        >>> v.assign_add([1.0, 1.0])
        Array([2., 3.], dtype=float32)
        >>> v * 2
        Array([4., 6.], dtype=float32)

    TensorFlow: `tf.Variable`. Assigning values that differ between replicas with aggregation NONE is refused where
    TensorFlow lets the copies drift; `assign` returns the new value.
    """

    internal = False
    """Whether the library has made it for its own use, on first use, as it does the slots of an optimizer."""

    share_of: Callable[[Any, Any], Any] | None = None
    """What a replica's component becomes where one value is assigned to all: called with the value and the replica's
    number. None: the rule of `aggregation`. Components that must differ need one (a seed per replica)."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        """A `DistributedVariable` where a strategy is current."""
        strategies = ambient().strategies
        distributed = bool(strategies) and strategies[-1].device_assignment is not None
        return super().__new__(DistributedVariable if distributed and cls is Variable else cls)

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        *,
        synchronization: Any = VariableSynchronization.AUTO,
        aggregation: Any = VariableAggregation.NONE,
        shape: Any = None,
    ) -> None:
        self._synchronization = as_synchronization(synchronization, name)
        self._aggregation = as_aggregation(aggregation, name)
        here = ambient()
        self._strategy = here.strategies[-1] if here.strategies else None
        self._device_assignment = getattr(self._strategy, "device_assignment", None)
        value = evaluate_initial(initial_value, dtype, name)
        if self._device_assignment is not None and self._device_assignment.spans_processes:
            value = broadcast_initial(value, name, self._device_assignment)
        if shape is not None and tuple(shape) != value.shape:
            raise ArgumentError(
                "Variable",
                found=f"shape={tuple(shape)} for an initial value of shape {value.shape} (variable {name!r})",
                rule="the initial value has the variable's shape",
                remedy="leave shape away, or give an initial value of that shape",
            )
        check_aggregation(self._aggregation, value.shape, value.dtype, name, self.num_replicas)
        self.name = name or f"Variable{'' if (number := next(_unnamed)) == 0 else f'_{number}'}"
        self._shape, self._dtype = value.shape, value.dtype
        self._public_shape = TensorShape(value.shape)
        on_read = self._synchronization is VariableSynchronization.ON_READ
        self._trainable = not on_read if trainable is None else bool(trainable)
        # The value itself is replaced by steps, in C (see `state_lock`). What else is known of a value is kept together
        # with the array that it is true of, and holds as long as that array is the value.
        self._array: Any = placed(value, self._device_assignment, self.per_replica)
        self._lost: tuple[Any, str] | None = None
        self._components: tuple[Any, tuple[Any, ...]] | None = None
        self._shared = False
        self.await_value()
        if here.store is not None:
            here.store.created(self)

    # What it is

    @property
    def shape(self) -> TensorShape:
        """The shape of one copy: a tuple, with TensorFlow's `as_list`, `rank` and so on."""
        return self._public_shape

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """How many elements one copy has."""
        return int(np.prod(self._shape, dtype=np.int64))

    @property
    def trainable(self) -> bool:
        """Whether tapes watch it by themselves."""
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """ON_WRITE (mirrored) or ON_READ."""
        return self._synchronization

    @property
    def aggregation(self) -> Any:
        """How values of several replicas become one."""
        return self._aggregation

    @property
    def per_replica(self) -> bool:
        """Whether every replica has a component of its own (ON_READ, in a strategy)."""
        return self._device_assignment is not None and self._synchronization is VariableSynchronization.ON_READ

    @property
    def is_sum_of_components(self) -> bool:
        """Whether its value is the sum of what the replicas have in components of their own."""
        return self._synchronization is VariableSynchronization.ON_READ and self._aggregation is VariableAggregation.SUM

    @property
    def device_assignment(self) -> Any:
        """Which replica lives on which device; None for a plain variable."""
        return self._device_assignment

    @property
    def strategy(self) -> Any:
        """The strategy that it belongs to, None for a plain variable."""
        return self._strategy

    @property
    def distribute_strategy(self) -> Any:
        """The same as `strategy`, under TensorFlow's name."""
        return self._strategy

    @property
    def num_replicas(self) -> int:
        """On how many replicas it is."""
        return 1 if self._device_assignment is None else int(self._device_assignment.num_replicas)

    @property
    def device(self) -> str:
        """Where the first copy lives."""
        return self.device_of(0)

    def device_of(self, replica: int) -> str:
        """Where one replica's copy lives, as TensorFlow writes it."""
        if self._device_assignment is not None:
            return str(self._device_assignment.name_of(self._device_assignment.addressable_replicas[replica]))
        device = next(iter(self.stored().devices()))
        return f"/job:localhost/replica:0/task:0/device:{device.platform.upper()}:{device.id}"

    # Reading

    def read_value(self) -> jax.Array:
        """The value: the mirrored one, this replica's component, or (ON_READ in cross-replica context) the aggregate.

        Context: any; inside `function` and tapes also under nested `jit`, `scan`, `cond`, `checkpoint`, `vmap`.

        Returns:
            ``dtype[shape]``. It stays valid after later assignments and steps.

        Raises:
            TransformError: Under a bare `jax.jit`, `grad`, `vmap`, ..., where the value would be baked in.
            LostStateError: The value went with a failed step.
        """
        return announce_read(self, reading.read(self))

    def value(self) -> jax.Array:
        """The same as `read_value`."""
        return self.read_value()

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value as a NumPy array of its own (not while tracing)."""
        here = ambient()
        if here.store is None and not here.listeners and not self.per_replica and is_eager():
            return self.on_host()
        return np.array(self.read_value())

    # Writing

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Replaces the value by `value`, by the rules of `synchronization` and `aggregation`.

        Context: any, but not under a nested transform.

        Args:
            value: ``dtype[shape]``: an array, a number, another variable, or a per-replica value.
            use_locking: Accepted for TensorFlow's sake; writes never race here.
            name: Accepted for TensorFlow's sake.
            read_value: Whether to return the new value.

        Returns:
            The new value (this replica's, in replica context; of a sync-on-read variable in an eager run the component
            itself, which later assignments show in), or None.

        Raises:
            VariableError: Shape or dtype do not fit, or the rules refuse.
            SynchronyError: A mirrored variable without aggregation would differ between replicas.
            TransformError: Under a nested transform.
        """
        return self._update("assign", value, read_value)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds `delta` (aggregated first, where the variable has an aggregation). See `assign`."""
        return self._update("assign_add", delta, read_value)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts `delta` (aggregated first, where the variable has an aggregation). See `assign`."""
        return self._update("assign_sub", delta, read_value)

    def _update(self, method: str, value: Any, read_value: bool) -> Any:
        announce_write(self)
        assignment = Assignment(self, method, user_line(), f"{self.name}.{method}", read_value)
        new = writing.write(assignment, payload_of(value))
        if not read_value:
            return None
        replica = eager_replica(self)
        # Handing the new value out is a read: a tape takes what is computed from it for computed from the variable.
        return announce_read(self, new) if replica is None else VariableComponent(self, replica)

    def update_component(self, replica: int, method: str, value: Any, read_value: bool) -> Any:
        """Assigns one component of a sync-on-read variable. `VariableComponent` calls it."""
        announce_write(self)
        called = f"{VariableComponent(self, replica).name}.{method}"
        new = write_component(Assignment(self, method, user_line(), called), replica, payload_of(value))
        return new if read_value else None

    # Storage: used by frames and compiled functions only

    def stored(self) -> Any:
        """The whole value in storage: mirrored, or stacked ``[replicas, ...]``. A step that donates it copies it first.

        Raises:
            LostStateError: The value went with a failed step.
        """
        if self._withheld is not None:
            self.settle()
        while True:
            self._shared = True  # first: a step that begins now finds the mark
            version = state.version
            if state.step is None:
                array = self._array
                # A step that began after the first look may have replaced the marked value by a copy of its own.
                if state.step is None and state.version == version:
                    self._check_kept()
                    return array
            settle()

    def borrowed(self) -> Any:
        """The whole value in storage, for the thread that holds the state lock, and while it does."""
        self._check_kept()
        return self._array

    def taken(self) -> Any:
        """The whole value in storage, as an unshared copy. Called with the state lock held, by a step."""
        self._check_kept()
        self._array = copied = jnp.array(self._array, copy=True)
        self._components, self._shared = None, False
        return copied

    def on_host(self) -> np.ndarray[Any, Any]:
        """The whole value in storage as a NumPy array of its own. Only a step dispatched meanwhile has to copy it."""
        if self._withheld is not None:
            self.settle()
        key = object()
        try:
            state.reading[key] = self
            while True:
                version = state.version
                if state.step is None:
                    array = self._array
                    if state.step is None and state.version == version:
                        self._check_kept()
                        return np.array(array)
                settle()
        finally:
            state.reading.pop(key, None)

    def _check_kept(self) -> None:
        if self.is_lost:
            assert self._lost is not None
            raise LostStateError(
                f"reading {self.name}",
                found=f"its value was donated to a step that failed: {self._lost[1]}",
                rule="a compiled step reuses its variables' memory, so an error while it runs takes the values along",
                remedy="restore a checkpoint (or assign a new value); function(donate=False) keeps the old values",
            )

    @property
    def is_lost(self) -> bool:
        """Whether the value went with a failed step."""
        return self._lost is not None and self._lost[0] is self._array

    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the whole value in storage."""
        return (self.num_replicas, *self._shape) if self.per_replica else self._shape

    def stored_component(self, replica: int) -> Any:
        """One replica's component in storage, on that replica's device."""
        whole = self.stored()
        if self._device_assignment is None:
            return whole
        found = self._components
        if found is None or found[0] is not whole:
            found = self._components = (whole, components(whole, self._device_assignment, self.per_replica))
        return found[1][replica]

    def component_value(self, replica: int) -> Any:
        """One replica's component, as the current context has it."""
        return announce_read(self, reading.component(self, replica))

    def store(self, value: Any, *, shared: bool = False) -> None:
        """Replaces the whole value in storage.

        Args:
            value: In the form in which it is stored.
            shared: Whether others hold its buffers, too.
        """
        self.release()
        if thread.kept_back is not None:
            thread.kept_back.append((self, value))
            return
        with lock:
            if state.step is not None:
                settle()
            if thread.before is not None:
                note_former((self,))
            state.version += 1
            self._array, self._components, self._shared = value, None, shared

    @property
    def is_shared(self) -> bool:
        """Whether others may hold this value's buffers."""
        return self._shared

    def checked_value(self) -> Any:
        """The value, after checking that it may be read here; not announced."""
        return reading.read(self)

    def check_assignable(self, called: str) -> None:
        """Refuses an assignment under a bare transform."""
        writing.check_assignable(self, called)

    def mark_shared(self) -> None:
        """Notes that others hold this value's buffers: a step that donates it must copy it first."""
        self._shared = True

    def lose(self, why: str) -> None:
        """Marks the value as lost with a failed step."""
        self._lost, self._components, self._shared = (self._array, why), None, True

    # The rest

    def ref(self) -> Reference:
        """A hashable reference, for use as a dictionary key; `deref()` gives the variable."""
        return Reference(self)

    def __copy__(self) -> Variable:
        return self  # as in TensorFlow, a shallow copy shares the state

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable:
        made: Variable = copying.deep_copy(self, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copying.reduced(self)

    def __repr__(self) -> str:
        if ambient().store is not None or self.is_lost:
            condition = "lost" if self.is_lost else "being traced"
            return f"<Variable {self.name!r} shape={self._shape} dtype={self._dtype} ({condition})>"
        value = np.array(key_data(self.stored())) if is_key_dtype(self._dtype) else self.on_host()
        return f"<Variable {self.name!r} shape={self._shape} dtype={self._dtype} value={value}>"


class DistributedVariable(Variable, DistributedValues):
    """A variable of a strategy: one copy or component per replica. `Variable` makes it in a strategy's scope.

    TensorFlow: prints as `MirroredVariable` or `SyncOnReadVariable`, which are separate classes there.
    """

    @property
    def values(self) -> tuple[VariableComponent, ...]:
        """The copies, one per replica of this process."""
        mine = (
            self.num_replicas if self._device_assignment is None else len(self._device_assignment.addressable_replicas)
        )
        return tuple(VariableComponent(self, replica) for replica in range(mine))

    def __repr__(self) -> str:
        if ambient().store is not None or self.is_lost:
            return Variable.__repr__(self)
        return distributed_repr("SyncOnReadVariable" if self.per_replica else "MirroredVariable", self.values)


def _abstract(variable: Variable) -> ShapedArray:
    return ShapedArray(variable.shape, variable.dtype)


register_array_like(Variable, read=Variable.read_value, shape_of=_abstract)
register_array_like(DistributedVariable, read=Variable.read_value, shape_of=_abstract)
# A copy can be looked at wherever a variable can.
Variable.register(VariableComponent)
