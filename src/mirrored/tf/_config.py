"""`tf.config`: lists and hides devices, splits the CPU into logical devices, and sets runtime options."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax

from mirrored import config as settings
from mirrored._jax.distributed import has_devices
from mirrored.errors import ContextError, DeviceError
from mirrored.topology.device_assignment import (
    devices_of_kind,
    limit_default_devices,
    most_default_devices,
    resolve_device,
)

_KINDS = ("CPU", "GPU", "TPU")


class PhysicalDevice(NamedTuple):
    """A processor of the machine: the CPU, or one of the accelerators."""

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device on which tensors can be placed: an accelerator, the CPU, or a simulated part of the CPU."""

    name: str
    device_type: str


@dataclasses.dataclass(frozen=True)
class LogicalDeviceConfiguration:
    """The settings of one logical device; accepted, but ignored.

    Attributes:
        memory_limit: Memory limit of a GPU in megabytes; accepted and not enforced.
        experimental_priority: Accepted and ignored.
        experimental_device_ordinal: Accepted and ignored.
    """

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


@dataclasses.dataclass
class _State:
    logical: dict[PhysicalDevice, list[LogicalDeviceConfiguration]] = dataclasses.field(default_factory=dict)
    visible: dict[str, list[PhysicalDevice]] = dataclasses.field(default_factory=dict)
    growth: dict[PhysicalDevice, bool] = dataclasses.field(default_factory=dict)
    log_placement: bool = False
    soft_placement: bool = True
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    optimizer_options: dict[str, Any] = dataclasses.field(default_factory=dict)


_state = _State()


def _has_accelerator_plugin() -> bool:
    """Returns whether a JAX plugin for accelerators is installed and not disabled; does not start JAX."""
    platforms = os.environ.get("JAX_PLATFORMS") or getattr(jax.config, "jax_platforms", None) or ""
    if platforms and set(platforms.split(",")) <= {"cpu"}:
        return False
    plugins = (
        "jax_cuda12_plugin",
        "jax_cuda13_plugin",
        "jax_rocm7_plugin",
        "jax_rocm60_plugin",
        "libtpu",
        "jax_plugins",
    )
    return any(importlib.util.find_spec(one) is not None for one in plugins)


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Returns the processors of the machine: one CPU, and all accelerators.

    Context: any, also before JAX has started. On a machine without accelerators this does not start JAX.

    Args:
        device_type: Returns only devices of this type: ``"CPU"``, ``"GPU"`` or ``"TPU"``.
    """
    found = [PhysicalDevice("/physical_device:CPU:0", "CPU")]
    for kind in ("GPU", "TPU"):
        stands_in = settings.virtual_kind() == kind
        count = len(devices_of_kind(kind)) if stands_in or _has_accelerator_plugin() else 0
        found += [PhysicalDevice(f"/physical_device:{kind}:{i}", kind) for i in range(count)]
    return [one for one in found if device_type in (None, one.device_type)]


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Returns the physical devices that `set_visible_devices` has not hidden."""
    found = []
    for one in list_physical_devices():
        visible = _state.visible.get(one.device_type)
        if visible is None or one in visible:
            found.append(one)
    return [one for one in found if device_type in (None, one.device_type)]


def set_visible_devices(
    devices: PhysicalDevice | list[PhysicalDevice] | tuple[PhysicalDevice, ...], device_type: str | None = None
) -> None:
    """Hides all physical devices from this process, except the given ones.

    `device_type` limits this to devices of one type.

    Context: any. All GPUs can be hidden before JAX has started (`list_physical_devices` starts it). Later, the first n
    devices of a kind can stay visible: strategies use only these, unless their devices are named.

    Raises:
        ValueError: The machine lacks one of the devices.
        ContextError: JAX has started, and other devices than the first ones were to stay visible.
    """
    chosen = (
        list(devices) if isinstance(devices, (list, tuple)) and not isinstance(devices, PhysicalDevice) else [devices]
    )
    kinds = [device_type] if device_type else sorted({one.device_type for one in chosen} | set(_KINDS))
    for kind in kinds:
        mine = [one for one in chosen if one.device_type == kind]
        if not mine and _hide_all(kind):
            _state.visible[kind] = mine
            continue
        existing = list_physical_devices(kind)
        unknown = [one for one in mine if one not in existing]
        if unknown:
            raise ValueError(f"Unrecognized device: {unknown[0]!r}; this machine has {existing}")
        if kind != "CPU" and existing:
            _limit_default_devices(kind, mine, existing)
        _state.visible[kind] = mine


def _hide_all(kind: str) -> bool:
    """Hides all GPUs from JAX; does nothing and returns False if `kind` is not "GPU" or JAX has already started."""
    if kind != "GPU" or has_devices():
        return False
    if settings.virtual_kind() == kind:
        settings.set_virtual_devices(1)
    elif _has_accelerator_plugin():
        jax.config.update("jax_platforms", "cpu")
    return True


def _limit_default_devices(kind: str, kept: list[PhysicalDevice], existing: list[PhysicalDevice]) -> None:
    """Limits strategies' default devices to the first `len(kept)` accelerators; a running JAX cannot hide devices."""
    if not kept or kept != existing[: len(kept)]:
        raise ContextError(
            "tf.config.set_visible_devices",
            found=f"JAX has started with {len(existing)} {kind}s (list_physical_devices starts it), and "
            + (f"{', '.join(one.name for one in kept)} were to stay visible" if kept else "none was to stay visible"),
            rule=f"visible devices cannot be modified after JAX has initialized them, except to the first n {kind}s",
            remedy="start the program with CUDA_VISIBLE_DEVICES or JAX_PLATFORMS=cpu, or pass devices to "
            f"MirroredStrategy, such as ['{kind}:1'] or ['CPU:0']",
        )
    limit_default_devices(kind, len(kept))


def set_logical_device_configuration(
    device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Splits the CPU into several logical devices, one per given configuration.

    Context: before JAX has started; later only with the current number of devices.

    Args:
        device: The CPU; or, on a machine without GPUs, ``PhysicalDevice("/physical_device:GPU:0", "GPU")``: the virtual
            devices then stand for GPUs and have their names.
        logical_devices: One `LogicalDeviceConfiguration` per logical device.

    Raises:
        ContextError: JAX has started with another number of devices.
        DeviceError: The device is a real accelerator, which JAX does not split.
    """
    count = len(logical_devices)
    kind = device.device_type.upper()
    if kind != "CPU" and settings.virtual_kind() != kind and _has_accelerator_plugin() and devices_of_kind(kind):
        if count > 1:
            raise DeviceError(
                "tf.config.set_logical_device_configuration",
                found=f"{count} logical devices were requested for {device.name}",
                rule="only a CPU can be split into logical devices",
                remedy=f"place several replicas on it: MirroredStrategy(['{kind}:0'], num_replicas={count})",
            )
    else:
        settings.set_virtual_devices(count, kind=kind)
    _state.logical[device] = list(logical_devices)


def get_logical_device_configuration(device: PhysicalDevice) -> list[LogicalDeviceConfiguration] | None:
    """Returns the configurations passed to `set_logical_device_configuration` for a device, or None."""
    return _state.logical.get(device)


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """Returns all devices on which tensors can be placed; starts JAX if necessary."""
    found = []
    for kind in _KINDS:
        if device_type in (None, kind):
            visible = min(len(devices_of_kind(kind)), most_default_devices(kind))
            found += [LogicalDevice(f"/device:{kind}:{i}", kind) for i in range(visible)]
    return found


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Makes JAX allocate GPU memory on demand instead of most of it at startup.

    Context: before JAX has started; later it has no effect.
    """
    _state.growth[device] = bool(enable)
    if device.device_type == "GPU":
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false" if enable else "true"


def get_memory_growth(device: PhysicalDevice) -> bool | None:
    """Returns the last value passed to `set_memory_growth` for a device, or None."""
    return _state.growth.get(device)


def get_memory_info(device: str) -> dict[str, int]:
    """Returns the current and peak memory use of a device in bytes, ``{"current": ..., "peak": ...}``.

    Raises:
        ValueError: The device (a CPU) has no memory statistics.
    """
    found = resolve_device(device, called="tf.config.experimental.get_memory_info").memory_stats()
    if not found:
        raise ValueError(f"Cannot get memory info: the device {device!r} has no memory statistics")
    return {"current": int(found["bytes_in_use"]), "peak": int(found["peak_bytes_in_use"])}


def get_device_details(device: PhysicalDevice) -> dict[str, Any]:
    """Returns the model name of an accelerator as ``{"device_name": ...}``; an empty dict for the CPU."""
    if device.device_type == "CPU":
        return {}
    index = int(device.name.rpartition(":")[2])
    return {"device_name": devices_of_kind(device.device_type)[index].device_kind}


def set_soft_device_placement(enabled: bool) -> None:
    """Sets whether `tf.device` ignores a device that does not exist (the default) or raises an error."""
    _state.soft_placement = bool(enabled)


def get_soft_device_placement() -> bool:
    """Returns whether `tf.device` ignores a device that does not exist."""
    return _state.soft_placement


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Accepts and ignores a number of threads per operation, because XLA chooses the number."""
    _state.intra_op_threads = int(num_threads)


def get_intra_op_parallelism_threads() -> int:
    """Returns the number passed to `set_intra_op_parallelism_threads`, by default 0."""
    return _state.intra_op_threads


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Accepts and ignores a number of threads for independent operations, because XLA chooses the number."""
    _state.inter_op_threads = int(num_threads)


def get_inter_op_parallelism_threads() -> int:
    """Returns the number passed to `set_inter_op_parallelism_threads`, by default 0."""
    return _state.inter_op_threads


def set_jit(enabled: object) -> None:
    """Does nothing (`tf.config.optimizer.set_jit`): `tf.function` always compiles with XLA."""
    del enabled


def get_optimizer_jit() -> str:
    """Returns ``"autoclustering"``, TensorFlow's name for compilation with XLA, which is always on."""
    return "autoclustering"


_OPTIMIZER_OPTIONS: Final = (
    "layout_optimizer", "constant_folding", "shape_optimization", "remapping", "arithmetic_optimization",
    "dependency_optimization", "loop_optimization", "function_optimization", "debug_stripper",
    "disable_model_pruning", "scoped_allocator_optimization", "pin_to_host_optimization", "implementation_selector",
    "auto_mixed_precision", "disable_meta_optimizer", "min_graph_nodes",
)  # fmt: skip


def set_experimental_options(options: Mapping[str, Any]) -> None:
    """Accepts and ignores options of TensorFlow's graph optimizer, because XLA optimizes compiled code.

    Raises:
        ValueError: TensorFlow has no option of this name.

    TensorFlow: `tf.config.optimizer.set_experimental_options`, which configures its graphs.
    """
    unknown = sorted(set(options) - set(_OPTIMIZER_OPTIONS))
    if unknown:
        raise ValueError(f"Unknown options {unknown}: TensorFlow has {', '.join(_OPTIMIZER_OPTIONS)}")
    _state.optimizer_options.update(options)


def get_experimental_options() -> dict[str, Any]:
    """Returns the optimizer options passed to `set_experimental_options`."""
    return dict(_state.optimizer_options)


def enable_op_determinism() -> None:
    """Makes XLA use deterministic GPU kernels; must be called before JAX starts.

    The kernels of CPUs and TPUs are always deterministic.

    Raises:
        ContextError: JAX has already started on GPUs, and reads no flags any more.
    """
    flag = "--xla_gpu_deterministic_ops=true"
    present = os.environ.get("XLA_FLAGS", "")
    if flag in present:
        return
    if not has_devices():  # listing the GPUs would start JAX, which then reads no flag any more
        if _has_accelerator_plugin():
            os.environ["XLA_FLAGS"] = f"{present} {flag}".strip()
    elif jax.default_backend() == "gpu":
        raise ContextError(
            "tf.config.experimental.enable_op_determinism",
            found="JAX has already started on GPUs, as list_physical_devices, tensors and strategies start it",
            rule="XLA reads its flags when JAX starts",
            remedy=f"call it at the beginning of the program, before these, or set XLA_FLAGS={flag}",
        )


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: object = None) -> bool:
    """Returns whether a GPU is available."""
    del cuda_only, min_cuda_compute_capability
    return bool(list_physical_devices("GPU"))


def gpu_device_name() -> str:
    """Returns ``"/device:GPU:0"`` if a GPU is available, else ""."""
    return "/device:GPU:0" if list_physical_devices("GPU") else ""


def set_log_device_placement(enabled: bool) -> None:
    """Accepts the option to log each operation's device, for compatibility; nothing is logged.

    ``x.devices()`` returns the devices of an array.
    """
    _state.log_placement = bool(enabled)


def get_log_device_placement() -> bool:
    """Returns the setting passed to `set_log_device_placement`, by default False."""
    return _state.log_placement


NAMES: dict[str, Any] = {
    "config.PhysicalDevice": PhysicalDevice,
    "config.LogicalDevice": LogicalDevice,
    "config.LogicalDeviceConfiguration": LogicalDeviceConfiguration,
    "config.list_physical_devices": list_physical_devices,
    "config.list_logical_devices": list_logical_devices,
    "config.get_visible_devices": get_visible_devices,
    "config.set_visible_devices": set_visible_devices,
    "config.set_logical_device_configuration": set_logical_device_configuration,
    "config.get_logical_device_configuration": get_logical_device_configuration,
    "config.set_soft_device_placement": set_soft_device_placement,
    "config.get_soft_device_placement": get_soft_device_placement,
    "config.threading.set_intra_op_parallelism_threads": set_intra_op_parallelism_threads,
    "config.threading.get_intra_op_parallelism_threads": get_intra_op_parallelism_threads,
    "config.threading.set_inter_op_parallelism_threads": set_inter_op_parallelism_threads,
    "config.threading.get_inter_op_parallelism_threads": get_inter_op_parallelism_threads,
    "config.optimizer.set_jit": set_jit,
    "config.optimizer.get_jit": get_optimizer_jit,
    "config.optimizer.get_experimental_options": get_experimental_options,
    "config.optimizer.set_experimental_options": set_experimental_options,
    "config.experimental.enable_op_determinism": enable_op_determinism,
    "config.experimental.get_device_details": get_device_details,
    "config.experimental.get_memory_growth": get_memory_growth,
    "config.experimental.get_memory_info": get_memory_info,
    "config.experimental.set_memory_growth": set_memory_growth,
    "config.experimental.list_physical_devices": list_physical_devices,
    "config.experimental.list_logical_devices": list_logical_devices,
    "config.experimental.set_visible_devices": set_visible_devices,
    "config.experimental.get_visible_devices": get_visible_devices,
    "config.experimental.set_virtual_device_configuration": set_logical_device_configuration,
    "config.experimental.get_virtual_device_configuration": get_logical_device_configuration,
    "config.experimental.VirtualDeviceConfiguration": LogicalDeviceConfiguration,
    "debugging.get_log_device_placement": get_log_device_placement,
    "debugging.set_log_device_placement": set_log_device_placement,
    "test.is_gpu_available": is_gpu_available,
    "test.is_built_with_cuda": is_gpu_available,
    "test.gpu_device_name": gpu_device_name,
}
