"""`tf.DeviceSpec`: the parts of a device name."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, Self

import jax

from mirrored.errors import DeviceError
from mirrored.topology.device_assignment import full_name


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """The parts of a device name such as ``"/job:worker/replica:0/task:1/device:GPU:0"``; None for missing parts.

    Attributes:
        job: The name of a job of the cluster.
        replica: The index of a replica, always 0 in TensorFlow 2.
        task: The index of a task of the job.
        device_type: ``"CPU"``, ``"GPU"`` or ``"TPU"``.
        device_index: The index among the devices of that type.

    Example:
        >>> import mirrored.tf as tf
        >>> spec = tf.DeviceSpec.from_string("/job:worker/cpu:1")
        >>> spec.replace(job="chief").to_string()
        '/job:chief/device:CPU:1'

    TensorFlow: `tf.DeviceSpec`.
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        for name in ("replica", "task", "device_index"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else int(value))
        kind = self.device_type
        object.__setattr__(self, "job", None if self.job is None else str(self.job))
        object.__setattr__(self, "device_type", None if kind is None else str(kind).upper())

    @classmethod
    def from_string(cls, spec: str | jax.Device) -> Self:
        """Creates a spec from a device name, which may lack parts; ``*`` stands for any index.

        Args:
            spec: The name, or a device: the `device` of a tensor is a `jax.Device`, whose name TensorFlow has there.

        Raises:
            DeviceError: The name has an unknown part, two device types, or an index that is not a number.
        """
        if isinstance(spec, jax.Device):
            spec = full_name(spec)
        parts: dict[str, Any] = {}
        for part in (one for one in spec.split("/") if one):
            name, value = _part(part, spec)
            if name == "device" and "device_type" in parts:
                raise _parse_error(spec, f"Multiple device types are not allowed: {spec!r}")
            parts.update(value if name == "device" else {name: value})
        return cls(**parts)

    def parse_from_string(self, spec: str) -> DeviceSpec:
        """Returns the spec of a device name; TensorFlow's older name of `from_string`."""
        return type(self).from_string(spec)

    def make_merged_spec(self, dev: DeviceSpec) -> DeviceSpec:
        """Returns a copy of this spec, overridden by the parts that `dev` specifies."""
        theirs = {name: value for name, value in dataclasses.asdict(dev).items() if value is not None}
        return dataclasses.replace(self, **theirs)

    def replace(self, **kwargs: Any) -> DeviceSpec:
        """Returns a copy of this spec with the given parts replaced."""
        return dataclasses.replace(self, **kwargs)

    def to_string(self) -> str:
        """Returns the device name, with ``*`` as the device index if the spec has a device type without an index."""
        names = {"job": self.job, "replica": self.replica, "task": self.task}
        text = "".join(f"/{name}:{value}" for name, value in names.items() if value is not None)
        if self.device_type is None:
            return text
        return f"{text}/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}"

    def __repr__(self) -> str:
        """Formats the spec like TensorFlow."""
        return f"<DeviceSpec({', '.join(f'{name}={value}' for name, value in dataclasses.asdict(self).items())})>"


_KINDS: Final = ("CPU", "GPU", "TPU")


def _part(part: str, whole: str) -> tuple[str, Any]:
    """Parses one part of a device name; returns (field, value), or ("device", dict of device type and index)."""
    name, *values = part.split(":")
    if name in ("job", "replica", "task") and len(values) == 1:
        return name, values[0] if name == "job" else _index(values[0], whole)
    if name.upper() in _KINDS and len(values) <= 1:
        return "device", {"device_type": name, "device_index": _index(values[0], whole) if values else None}
    if name == "device" and len(values) == 2:
        return "device", {"device_type": values[0], "device_index": _index(values[1], whole)}
    raise _parse_error(whole, f"Unknown attribute {name!r} is encountered while parsing the device spec: {whole!r}")


def _index(text: str, whole: str) -> int | None:
    if text == "*":
        return None
    if not text.isdecimal():
        raise _parse_error(whole, f"the index {text!r} in {whole!r} is not a number")
    return int(text)


def _parse_error(spec: str, found: str) -> DeviceError:
    return DeviceError(
        f"tf.DeviceSpec.from_string({spec!r})",
        found=found,
        rule='a device is named like "/job:worker/replica:0/task:1/device:GPU:0", where any part may be missing',
        remedy="correct the name",
    )
