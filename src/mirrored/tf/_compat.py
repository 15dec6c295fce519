"""`tf.compat`: functions that programs for TensorFlow 1 and 2 call for compatibility."""

from __future__ import annotations

import logging
import types
from typing import Any

from mirrored.tf._errors import UnimplementedError
from mirrored.tf._ops.generator import set_seed


def as_bytes(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> bytes:
    """Encodes a str as bytes; returns bytes unchanged."""
    return bytes_or_text.encode(encoding) if isinstance(bytes_or_text, str) else bytes(bytes_or_text)


def as_text(bytes_or_text: str | bytes | bytearray, encoding: str = "utf-8") -> str:
    """Decodes bytes to a str; returns a str unchanged."""
    return bytes_or_text if isinstance(bytes_or_text, str) else bytes(bytes_or_text).decode(encoding)


def as_str_any(value: object, encoding: str = "utf-8") -> str:
    """Converts a value to a str; decodes bytes."""
    return as_text(value, encoding) if isinstance(value, bytes | bytearray) else str(value)


def enable_v2() -> None:
    """Does nothing (`tf.compat.v1.enable_v2_behavior`): TensorFlow 2 behavior is always enabled."""


def disable_v2() -> None:
    """Raises an error, because the graphs and sessions of TensorFlow 1 do not exist here.

    Raises:
        UnimplementedError: Always.
    """
    raise UnimplementedError.of(
        "tf.compat.v1",
        found="the program switches to TensorFlow 1 behavior",
        rule="code can only run eagerly or be compiled by tf.function: there are no graphs and sessions",
        remedy="remove this call, and call functions where the program runs a session",
    )


def set_verbosity(level: int | str) -> None:
    """Sets the level of the logger "mirrored", by number or by a name such as ``"INFO"``."""
    names = {"DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
    logging.getLogger("mirrored").setLevel(names.get(level, level) if isinstance(level, str) else int(level))


class ConfigProto:
    """The configuration of a TensorFlow 1 session; accepted, but ignored: there are no sessions.

    Args:
        **options: Any options; each becomes an attribute.

    TensorFlow: `tf.compat.v1.ConfigProto`.
    """

    def __init__(self, **options: object) -> None:
        self.isolate_session_state = False
        self.allow_soft_placement = False
        self.device_filters: list[str] = []
        self.gpu_options = types.SimpleNamespace(allow_growth=False)
        self.experimental = types.SimpleNamespace(collective_group_leader="")
        vars(self).update(options)


def _logging(name: str) -> Any:
    """Returns a function that writes a message to the logger "mirrored" at the level `name`."""

    def write(msg: str, *args: object) -> None:
        getattr(logging.getLogger("mirrored"), name)(msg, *args, stacklevel=2)

    write.__name__ = write.__qualname__ = name
    write.__doc__ = f'Writes a message of the level {name} to the logger "mirrored".'
    return write


def log(level: int, msg: str, *args: object) -> None:
    """Writes a message to the logger "mirrored" at the given level."""
    logging.getLogger("mirrored").log(level, msg, *args, stacklevel=2)


_LEVELS = {"DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}

NAMES: dict[str, Any] = {
    "compat.as_bytes": as_bytes,
    "compat.as_text": as_text,
    "compat.as_str": as_text,
    "compat.as_str_any": as_str_any,
    "compat.v1.ConfigProto": ConfigProto,
    "compat.v1.enable_eager_execution": enable_v2,
    "compat.v1.enable_v2_behavior": enable_v2,
    "compat.v1.enable_resource_variables": enable_v2,
    "compat.v1.enable_v2_tensorshape": enable_v2,
    "compat.v1.disable_eager_execution": disable_v2,
    "compat.v1.disable_v2_behavior": disable_v2,
    "compat.v1.set_random_seed": set_seed,
    "compat.v1.logging.set_verbosity": set_verbosity,
    **{f"compat.v1.logging.{name}": level for name, level in _LEVELS.items()},
    **{f"compat.v1.logging.{name}": _logging(name) for name in ("debug", "error", "fatal", "info", "warning")},
    "compat.v1.logging.log": log,
    "compat.v1.logging.warn": _logging("warning"),
}
