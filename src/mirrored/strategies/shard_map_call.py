"""Adds the traced body of a compiled run to the enclosing function's trace, as one `shard_map` call.

The operands of the program are, in this order:

1. what the body captures: one operand per variable and per outer value, however many constants of the body read it;
2. the inputs: the stacked per-replica arguments and, for bit-identical results, the replica ids.

Its outputs are, in this order:

1. the arrays that the replicas return;
2. the new values of the variables that they assign.

`Form` lists how an operand or an output passes the boundary of `shard_map`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from mirrored._jax.placement import unplaced
from mirrored._jax.traces import CaptureTracer
from mirrored._typing import Operand
from mirrored.collectives.equal_rows import first_row, one_row_each
from mirrored.collectives.summation import stack_isolated, unstack_isolated
from mirrored.runtime.ambient import ambient, announce_read
from mirrored.runtime.component_reads import announced_components
from mirrored.runtime.staged_values import Captured
from mirrored.runtime.variable_store import is_under_tape
from mirrored.strategies import fixed_order_runs
from mirrored.topology.device_assignment import AXIS

if TYPE_CHECKING:
    from mirrored._jax.inlining import Staged
    from mirrored.runtime.variable_store import VariableStore
    from mirrored.strategies.body_outputs import BodyOutputs
    from mirrored.strategies.tracing_runner import TracingRunner


class Form(enum.Enum):
    """Enum of the forms in which `shard_map` takes an operand or returns an output.

    D is the number of devices, and K the number of replica slots on each device (`Slots`).

    Members:
        REPLICATED: One array, equal on all devices.
        STACKED: A per-replica value ``[D * K, ...]``; each device has the K components of its slots.
        EQUAL_ROWS: A replicated value as ``[D, ...]``, one equal row per device, so that `fixed_order_runs` determines
            how cotangents are summed over devices.
    """

    REPLICATED = enum.auto()
    STACKED = enum.auto()
    EQUAL_ROWS = enum.auto()

    @property
    def spec(self) -> PartitionSpec:
        """The `PartitionSpec` of a `shard_map` operand or output of this form."""
        return PartitionSpec() if self is Form.REPLICATED else PartitionSpec(AXIS)


class _Capture(NamedTuple):
    """Identifies the operand that supplies the value of a constant in a traced body.

    Attributes:
        operand: The index of the operand.
        local: The index of the local replica whose value it is in a stacked operand; None for the whole operand.
    """

    operand: int
    local: int | None

    def value_in(self, operands: Sequence[Any]) -> Any:
        """Returns the constant's value on a device.

        Args:
            operands: The operands on the device; a stacked one is a list of its local replicas' values.
        """
        value = operands[self.operand]
        return value if self.local is None else value[self.local]


class Binding:
    """Adds a compiled run to the enclosing function's trace, as a `shard_map` call.

    Args:
        runner: The runner that traced the body.
        outer_store: The variable store of the function around the run.
        fixed_order: Whether a tape around the run must sum gradients of variables in a fixed order
            (`fixed_order_runs`).
    """

    def __init__(self, runner: TracingRunner, outer_store: VariableStore, *, fixed_order: bool) -> None:
        self._runner = runner
        self._outer_store = outer_store
        self._fixed_order = fixed_order
        self._bit_identical = runner.bit_identical
        self._mesh = runner.device_assignment.mesh

    def bind(
        self, body: Staged, inputs: Sequence[Any], outputs: BodyOutputs, are_per_replica: Sequence[bool]
    ) -> list[Any]:
        """Calls the body in `shard_map`; returns each output as one replicated array or all replicas' stacked values.

        Args:
            body: The body.
            inputs: The stacked inputs of the program.
            outputs: The sections of the body's outputs.
            are_per_replica: Whether an output is a per-replica value, for each of the results and assigned variables.
        """
        operands, in_forms, captures = self._captured(body)
        num_captured = len(operands)
        operands += inputs
        in_forms += [Form.STACKED] * len(inputs)
        atoms = outputs.split(body.jaxpr.outvars)
        columns = [*atoms.results, *atoms.assigned]
        in_order = [self._bit_identical] * len(atoms.results) + [self._fixed_order] * len(atoms.assigned)
        out_forms = [
            self._form(column[0].aval, per_replica=per_replica, in_order=is_in_order)
            for column, per_replica, is_in_order in zip(columns, are_per_replica, in_order, strict=True)
        ]

        def on_device(*parts: Any) -> list[Any]:
            values = self._received(parts, in_forms)
            constants = [capture.value_in(values) for capture in captures]
            components = [component for column in values[num_captured:] for component in column]
            outs = outputs.split(body(constants, components))
            return self._returned([*outs.results, *outs.assigned], out_forms)

        # JAX checks nothing: the replication check has proven what `out_specs` claims (`compiled`, step 3).
        bound = jax.shard_map(
            on_device,
            mesh=self._mesh,
            in_specs=tuple(form.spec for form in in_forms),
            out_specs=[form.spec for form in out_forms],
            check_vma=False,
        )
        values = bound(*map(self._passed, operands, in_forms))
        return [self._value_of(value, form) for value, form in zip(values, out_forms, strict=True)]

    def _captured(self, body: Staged) -> tuple[list[Any], list[Form], list[_Capture]]:
        """Returns the captured operands of a traced body and how `shard_map` takes each operand.

        The results are the operands, a `Form` per operand, and a `_Capture` per constant of the body. A per-replica
        variable can have several constants in the body, one per local replica, but is one operand.
        """
        operands: list[Any] = []
        captures: list[_Capture] = []
        places: dict[int, int] = {}
        read: dict[int, Any] = {}
        for constant in body.constants:
            source = constant.source if isinstance(constant, CaptureTracer) else None
            variable, local = (source.variable, source.local) if isinstance(source, Captured) else (None, None)
            key = id(constant if variable is None else variable)
            if key not in places:
                places[key] = len(operands)
                operands.append(constant)
                if variable is not None:
                    read[places[key]] = variable
            captures.append(_Capture(places[key], local))
        wholes = [self._outer_store.whole(variable) for variable in read.values()]
        for (place, variable), whole in zip(read.items(), wholes, strict=True):
            operands[place] = self._announced(variable, whole)
        forms = [
            self._form(
                operand,
                per_replica=place in read and read[place].per_replica,
                in_order=self._fixed_order
                or (self._bit_identical and place not in read and self._runner.is_from_outside(operand)),
            )
            for place, operand in enumerate(operands)
        ]
        return operands, forms, captures

    def _announced(self, variable: Any, whole: Operand) -> Any:
        if variable.per_replica and is_under_tape(ambient()):
            return (fixed_order_runs.announced_components if self._fixed_order else announced_components)(
                variable, whole
            )
        return announce_read(variable, whole)

    def _form(self, value: Operand, *, per_replica: bool, in_order: bool) -> Form:
        """Returns the form of an operand or output; `in_order` says whether to sum its cotangents in a fixed order."""
        if per_replica:
            return Form.STACKED
        return Form.EQUAL_ROWS if in_order and fixed_order_runs.has_gradient(value) else Form.REPLICATED

    # Outside of `shard_map`: a value of the function around the run, and the operand or output that stands for it.

    def _passed(self, value: Any, form: Form) -> Any:
        value = unplaced(value)
        return one_row_each(self._mesh, value) if form is Form.EQUAL_ROWS else value

    def _value_of(self, output: Any, form: Form) -> Any:
        return unplaced(first_row(self._mesh, output) if form is Form.EQUAL_ROWS else output)

    # Inside of `shard_map`: the part of a device, and the value of it or, if stacked, the column of its components.
    #
    # If results must be bit-identical, the components are behind a fusion boundary where the body receives and returns
    # them. Otherwise XLA would fuse slices and stacks with the computations of the components, and their bits would
    # depend on the number of local replicas.

    def _received(self, parts: Sequence[Any], forms: Sequence[Form]) -> list[Any]:
        columns = iter(self._unstack([part for part, form in zip(parts, forms, strict=True) if form is Form.STACKED]))
        return [
            next(columns) if form is Form.STACKED else part[0] if form is Form.EQUAL_ROWS else part
            for part, form in zip(parts, forms, strict=True)
        ]

    def _returned(self, columns: Sequence[Sequence[Any]], forms: Sequence[Form]) -> list[Any]:
        stacks = iter(
            self._stack([column for column, form in zip(columns, forms, strict=True) if form is Form.STACKED])
        )
        return [
            next(stacks) if form is Form.STACKED else column[0][None] if form is Form.EQUAL_ROWS else column[0]
            for column, form in zip(columns, forms, strict=True)
        ]

    def _unstack(self, arrays: Sequence[jax.Array]) -> list[list[Any]]:
        """Splits arrays ``[local, ...]`` into one value per replica slot; an empty slot repeats the previous slot."""
        group = self._runner.group_info
        if group.padded:
            arrays = [group.slots.repeated(array, group.is_real()) for array in arrays]
        if self._fixed_order:
            return fixed_order_runs.unstack_unfused(arrays)
        if self._bit_identical:
            return unstack_isolated(arrays)
        return [[array[k] for k in range(group.local)] for array in arrays]

    def _stack(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Stacks, for each output, the local replicas' arrays into one array ``[local, ...]``."""
        if self._bit_identical:
            return stack_isolated(columns)
        return [jnp.stack(components) for components in columns]
