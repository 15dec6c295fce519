"""`VariableComponent`: one replica's copy of a variable, as an element of `variable.values`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mirrored._jax.array_likes import register_array_like
from mirrored._jax.arrays import key_data
from mirrored._jax.traces import ShapedArray
from mirrored._typing import Operand
from mirrored.errors import ContextError, VariableError
from mirrored.runtime.ambient import ambient
from mirrored.values.stacking import stack_components
from mirrored.variables.access import check_strategy, check_writable, store_of
from mirrored.variables.assignment import Assignment
from mirrored.variables.operators import VariableOperators
from mirrored.variables.state_lock import assignment_lock, lock
from mirrored.variables.storage import near
from mirrored.variables.sync_on_read import row_in, row_of

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable


class VariableComponent(VariableOperators):
    """One replica's copy of a variable, on that replica's device; an element of `variable.values`.

    Reading it does not aggregate. Assigning it does not change the other replicas' copies, so only sync-on-read
    variables allow it.

    Example:
        >>> import mirrored as mr
        >>> with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        ...     seen = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
        >>> _ = seen.values[1].assign(3.0)
        >>> [float(one) for one in seen.values], float(seen)
        ([0.0, 3.0], 3.0)

    TensorFlow: an element of `values` of a distributed variable, which is a `tf.Variable` there.
    """

    __slots__ = ("_replica", "_variable")

    def __init__(self, variable: Variable, replica: int) -> None:
        self._variable = variable
        self._replica = replica

    @property
    def container(self) -> Variable:
        """The variable of which this object is one replica's copy."""
        return self._variable

    @property
    def name(self) -> str:
        """The variable's name, with ``/replica_1`` and so on appended for every copy but the first."""
        base = self._variable.name
        if self._replica == 0:
            return base
        stem, colon, suffix = base.partition(":")
        return f"{stem}/replica_{self._replica}{colon}{suffix}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape of the variable, with None for dimensions that assignments may change."""
        return self._variable.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the variable."""
        return self._variable.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions of the variable's value."""
        return len(self.component_shape)

    @property
    def component_shape(self) -> tuple[int, ...]:
        """The current shape of this replica's copy, even if the declared `shape` has unknown dimensions (None)."""
        return self._variable.component_shape  # type: ignore[no-any-return]

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch the variable automatically."""
        return self._variable.trainable

    @property
    def synchronization(self) -> Any:
        """The variable's `VariableSynchronization`: ON_WRITE or ON_READ."""
        return self._variable.synchronization

    @property
    def aggregation(self) -> Any:
        """How values of several replicas are reduced when the variable is assigned or read."""
        return self._variable.aggregation

    @property
    def device(self) -> str:
        """The name of the device that holds this copy, in TensorFlow's format."""
        return self._variable.device_of(self._replica)

    def read_value(self) -> Any:
        """Returns this replica's copy of the variable as an array on its device.

        Context: any; in replica context only the current replica's copy.
        """
        return self._variable.component_value(self._replica)

    value = read_value

    def converted(self, convert: Callable[[Any], Any]) -> Any:
        """Returns the result of `convert`, such as `numpy.asarray`, for this replica's copy of the variable."""
        try:
            return convert(self.read_value())
        except RuntimeError:
            self._variable.stored()  # raises LostStateError if the step that computes the value has failed
            raise

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns this replica's copy of the variable as a new NumPy array."""
        return self.converted(np.array)  # type: ignore[no-any-return]

    def assign(self, value: object, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        """Replaces this replica's component of a sync-on-read variable, like `Variable.assign`.

        Context: cross-replica. `strategy.extended.update` calls its function in this context.

        Raises:
            VariableError: The variable is mirrored, so its copies must stay equal; or the value does not fit.
        """
        return self._variable.update_component(self._replica, "assign", value, read_value)

    def assign_add(
        self, delta: Operand, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds `delta` to this replica's component of a sync-on-read variable."""
        return self._variable.update_component(self._replica, "assign_add", delta, read_value)

    def assign_sub(
        self, delta: Operand, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts `delta` from this replica's component of a sync-on-read variable."""
        return self._variable.update_component(self._replica, "assign_sub", delta, read_value)

    def __repr__(self) -> str:
        return f"<Variable {self.name!r} shape={self.shape} dtype={self.dtype} device={self.device} {self._shown()}>"

    def _shown(self) -> str:
        """Returns the value as text for `repr`; a placeholder while tracing, or for another replica of the `run`."""
        variable, here = self._variable, ambient()
        if variable.is_lost:
            return "(lost)"
        store = store_of(variable, here)
        if store is None:
            return f"value={np.array(key_data(variable.stored_component(self._replica)))}"
        if store.captures:
            return "(being traced)"
        if here.replica is None or here.replica.local_index != self._replica:
            return "(in a run)"
        return f"value={self.numpy()}"


register_array_like(
    VariableComponent,
    read=VariableComponent.read_value,
    shape_of=lambda component: ShapedArray(component.component_shape, component.dtype),
)


def write_component(assignment: Assignment, replica: int, value: object) -> Any:
    """Assigns one replica's component of a sync-on-read variable, outside `Strategy.run`.

    Raises:
        VariableError: The variable is mirrored.
        ContextError: Inside `run`.
    """
    variable, here = assignment.variable, ambient()
    _check_has_components(assignment)
    store = store_of(variable, here)
    check_writable(variable, store, assignment.called)
    check_strategy(variable, here, assignment.called)
    if here.runner is not None:
        raise ContextError(
            assignment.called,
            found=f"replica {replica}'s component was assigned inside run",
            rule="inside run each replica can assign only its own component, through the variable",
            remedy=f"write {variable.name}.assign(value) in the replica function",
        )
    if store is None:
        with assignment_lock(), lock:
            return _store_component(assignment, replica, value)
    whole, row = store.whole(variable), row_of(variable, replica, here)
    new = assignment.combined(row_in(whole, variable, replica, here), value)
    store.set_whole(variable, whole.at[row].set(new), assignment.where)
    return new


def _store_component(assignment: Assignment, replica: int, value: object) -> Any:
    variable = assignment.variable
    if variable.device_assignment.spans_processes:
        parts = [variable.stored_component(k) for k in range(len(variable.device_assignment.addressable_replicas))]
        parts[replica] = new = assignment.combined(parts[replica], near(value, parts[replica]))
        variable.store(stack_components(parts, variable.device_assignment))
        return new
    whole, row = variable.stored(), variable.device_assignment.slots.of(replica)
    old = whole[row]
    new = assignment.combined(old, near(value, old))
    variable.store(jax.device_put(whole.at[row].set(new), variable.device_assignment.sharded))
    return new


def _check_has_components(assignment: Assignment) -> None:
    if assignment.variable.per_replica:
        return
    raise VariableError(
        assignment.called,
        found=f"one copy of mirrored variable {assignment.variable.name!r} was assigned",
        rule="the copies of a mirrored variable must be equal at all times, so no single copy can be assigned",
        remedy="assign the variable itself, or create it with synchronization=VariableSynchronization.ON_READ",
    )
