"""HTML of variables for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mirrored._jax.arrays import is_key_dtype, key_data
from mirrored.runtime.ambient import ambient
from mirrored.topology.device_assignment import name_device
from mirrored.values import html

if TYPE_CHECKING:
    from mirrored.variables.variable import Variable


def html_of(variable: Variable) -> str:
    """Returns an HTML table of a variable's values, the devices that store them, and the replicas that use each copy.

    A mirrored variable has equal copies, so its value is shown once. While JAX traces, and for a variable that has lost
    its value, the result is the `repr`.
    """
    if ambient().store is not None or variable.is_lost:
        return html.text(repr(variable))
    title = f"Variable {variable.name!r}: {variable.dtype}[{','.join(map(str, variable.component_shape))}]"
    assigned = variable.device_assignment
    if variable.per_replica:
        replicas = range(1) if assigned is None else assigned.addressable_replicas
        rows = [
            (replica, _device(variable, number), _short(variable.stored_component(number)))
            for number, replica in enumerate(replicas)
        ]
        note = f"aggregation: {variable.aggregation}"
        return html.table(f"{title}, one component per replica", ("replica", "device", "component"), rows, note)
    value = f"value: {_short(variable.stored() if is_key_dtype(variable.dtype) else variable.on_host())}"
    if assigned is None:
        return html.table(title, ("device",), [(_device(variable, 0),)], value)
    placed = [(name_device(device), " ".join(map(str, assigned.replicas_on(device)))) for device in assigned.devices]
    title = f"{title}, mirrored on {html.counted(assigned.num_devices, 'device')}"
    return html.table(title, ("device with a copy", "replicas that read it"), placed, value)


def _device(variable: Variable, number: int) -> str:
    return variable.device_of(number).rpartition("device:")[2]


def _short(value: Any) -> str:
    return html.short(np.array(key_data(value)) if is_key_dtype(value.dtype) else value)
