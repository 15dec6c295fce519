"""Converts JAX's error about arrays on different devices, which eager runs can raise, to errors with a remedy.

A compiled program has no such error: it places its arrays itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirrored._blocks import contextmanager
from mirrored.errors import DeviceError, MirroredError


@contextmanager
def devices_of_merge(called: str) -> Iterator[None]:
    """Context manager that explains JAX's error about arrays on different devices in a function of `merge_call`.

    Without a tape, reduced values are on all devices of an eager run; with one, on the first replica's device.
    """
    try:
        yield
    except ValueError as error:
        if not _is_about_devices(error):
            raise
        raise DeviceError(
            called,
            found=f"the function combines arrays on different devices: {str(error).splitlines()[0]}",
            rule="in an eager run, reduced values are on all devices of the strategy, or under a tape on "
            "the device of the first replica; components of per-replica values are on those of their replicas",
            remedy="convert an array from outside of the run to a NumPy array: np.asarray(x); reduce or gather "
            "per-replica values (strategy.reduce, strategy.gather); or compile the step with mirrored.function",
        ) from error


def devices_of_replicas(error: Exception) -> DeviceError | None:
    """Returns an error that explains JAX's error about arrays on different devices in an eager replica function.

    Args:
        error: An error that a replica function has raised.

    Returns:
        The error to raise instead; None if `error` is another one.
    """
    if not _is_about_devices(error):
        return None
    return DeviceError(
        "Strategy.run",
        found=f"the function, called eagerly, combines arrays on different devices: {str(error).splitlines()[0]}",
        rule="a replica of an eager run computes on its own device. A value of cross-replica context that the "
        "function closes over, such as a variable's value or the result of reduce, is on all devices",
        remedy="pass the value as an argument: strategy.run(fn, args=(value,)); read the variable in the "
        "function; or compile the step with mirrored.function",
    )


def _is_about_devices(error: Exception) -> bool:
    return (
        isinstance(error, ValueError) and not isinstance(error, MirroredError) and "incompatible devices" in str(error)
    )
