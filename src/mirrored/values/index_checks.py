"""Finds out-of-range indices in eager code on CPUs, where the check does not wait for a device."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from mirrored._jax.boxes import payload_of
from mirrored._jax.traces import Tracer, current_trace, is_eval, trace_below_tapes
from mirrored._typing import HostArray


def values_now(indices: jax.Array) -> HostArray | None:
    """Returns an array's values as a NumPy array in eager code on a CPU; otherwise None.

    Code under an eager tape is eager code, too.

    On other devices it returns None, too: the host would have to wait for the device. TensorFlow's operations on GPUs
    do not check indices, either.
    """
    if not is_eval(trace_below_tapes(current_trace())):
        return None
    array = payload_of(indices)
    if isinstance(array, Tracer) or not isinstance(array, jax.Array) or not array.is_fully_addressable:
        return None
    device: Any = next(iter(array.sharding.device_set))
    return np.asarray(array) if device.platform == "cpu" else None


def outside(indices: jax.Array, limits: int | tuple[int, ...], called: str = "indices") -> str | None:
    """Describes the first out-of-range index, as in ``"indices[1] = 5 is not in [0, 3)"``; None if all are in range.

    Args:
        indices: An array of any shape. If there are several limits, its last axis contains index vectors, with at most
            one entry per limit.
        limits: The number of entries of the indexed axis, or of each indexed axis.
        called: How the message names the indices.

    Returns:
        None if all indices are within the limits, or if their values are not known (see `values_now`).
    """
    values = values_now(indices)
    if values is None or not values.size:
        return None
    bound: Any = limits if isinstance(limits, int) else np.array(limits[: values.shape[-1]])
    # Two reductions, in place of comparisons of all elements, decide the usual case.
    if isinstance(limits, int) and values.min() >= 0 and values.max() < limits:
        return None
    wrong = (values < 0) | (values >= bound)
    if not isinstance(limits, int):
        wrong = wrong.any(axis=-1)
    if not wrong.any():
        return None
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    where = f"{called}[{','.join(str(int(one)) for one in place)}]" if place else called
    if isinstance(limits, int):
        return f"{where} = {values[place]} is not in [0, {limits})"
    shape = tuple(limits)
    empty = " (which has no elements)" if math.prod(shape) == 0 else ""
    return f"{where} = {values[place].tolist()} does not index into the shape {shape}{empty}"
