"""Process-wide settings: virtual CPU devices, the deadlock watchdog, and eager execution of functions.

Virtual devices let one CPU simulate several devices, so that a multi-device program runs, is tested and is debugged
anywhere::

    MIRRORED_VIRTUAL_DEVICES=4 python train.py
    MIRRORED_VIRTUAL_DEVICES=4 MIRRORED_VIRTUAL_KIND=GPU python train.py    # "GPU:0" ... "GPU:3" resolve to them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax

from mirrored import settings
from mirrored.errors import ArgumentError, ContextError


@dataclasses.dataclass
class _Settings:
    virtual_kind: str = "CPU"
    eager_functions: bool = False
    watchdog_seconds: float | None = None


_settings = _Settings()


def set_virtual_devices(n: int, *, kind: str = "CPU") -> None:
    """Sets the number of virtual CPU devices of this process to `n`, for testing several replicas on one machine.

    The devices share the machine's cores: they serve to write, test and debug multi-device programs, not to speed them
    up. Real accelerators are not affected.

    Context: before the first JAX operation of the process (creating an array and calling `jax.devices()` are
    operations), or later if there are exactly `n` CPU devices already.

    Args:
        n: The number of devices, at least 1.
        kind: The kind of device that they simulate. With ``"GPU"`` (or ``"TPU"``) the names ``"GPU:0"`` ... resolve to
            them, and a strategy created without a device list uses them, so that a program that names its GPUs runs
            without a GPU.

    Raises:
        ArgumentError: `n` is not a positive int, or `kind` is not one of CPU, GPU, TPU.
        ContextError: JAX has already initialized another number of CPU devices.

    Example:
        >>> import mirrored as mr
        >>> mr.config.set_virtual_devices(8)

    TensorFlow: ``tf.config.set_logical_device_configuration(cpu, [LogicalDeviceConfiguration()] * n)``.
    """
    _apply(n, kind, called=f"mirrored.config.set_virtual_devices({n!r})")


def virtual_kind() -> str:
    """Returns the kind of device that virtual CPU devices simulate: ``"CPU"``, ``"GPU"`` or ``"TPU"``.

    Example:
        >>> import mirrored as mr
        >>> mr.config.virtual_kind()
        'CPU'
    """
    return _settings.virtual_kind


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Sets whether functions decorated with `mirrored.function` run uncompiled, as plain Python, for debugging.

    Context: any.

    Example:
        >>> import mirrored as mr
        >>> mr.config.run_functions_eagerly(True)
        >>> mr.config.functions_run_eagerly()
        True
        >>> mr.config.run_functions_eagerly(False)

    TensorFlow: `tf.config.run_functions_eagerly`.
    """
    _settings.eager_functions = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Returns whether functions decorated with `mirrored.function` run uncompiled, as plain Python, for debugging.

    Example:
        >>> import mirrored as mr
        >>> mr.functions_run_eagerly()
        False

    TensorFlow: `tf.config.functions_run_eagerly`.
    """
    return _settings.eager_functions


def set_watchdog_seconds(seconds: float) -> None:
    """Sets how long all workers may make no progress before the job counts as deadlocked and ends.

    Context: anywhere, at any time; each worker has its own setting.

    Args:
        seconds: More than 0, at most 2,000,000. The default, ten minutes or ``MIRRORED_WATCHDOG_SECONDS``, leaves one
            worker time to evaluate or save while the others wait.

    Raises:
        ArgumentError: `seconds` is not such a number.

    Example:
        >>> import mirrored as mr
        >>> mr.config.set_watchdog_seconds(3600)
    """
    try:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise ValueError(seconds)
        _settings.watchdog_seconds = float(settings.positive_seconds(seconds))
    except ValueError:
        raise ArgumentError(
            f"mirrored.config.set_watchdog_seconds({seconds!r})",
            found=f"the time is {seconds!r} ({type(seconds).__name__})",
            rule=f"the time without progress must be {settings.SECONDS_RULE}",
            remedy="pass, for example, 600",
        ) from None


def watchdog_seconds() -> float:
    """Returns how long all workers may make no progress before the job counts as deadlocked.

    Example:
        >>> import mirrored as mr
        >>> mr.config.set_watchdog_seconds(1200)
        >>> mr.config.watchdog_seconds()
        1200.0
        >>> mr.config.set_watchdog_seconds(600)
    """
    if _settings.watchdog_seconds is None:
        _settings.watchdog_seconds = settings.WATCHDOG_SECONDS.read()
    return _settings.watchdog_seconds


def set_from_environment(environment: Mapping[str, str] | None = None) -> None:
    """Applies the environment variables ``MIRRORED_VIRTUAL_DEVICES`` and ``MIRRORED_VIRTUAL_KIND``.

    Args:
        environment: Read instead of `os.environ`.

    Raises:
        ArgumentError: A value is outside the rule of its variable.
        ContextError: As for `set_virtual_devices`.

    Example:
        >>> import jax
        >>> import mirrored as mr
        >>> present = len(jax.devices("cpu"))
        >>> mr.config.set_from_environment({"MIRRORED_VIRTUAL_DEVICES": str(present)})
        >>> len(jax.devices("cpu")) == present
        True
    """
    kind = settings.VIRTUAL_KIND.read(environment)
    count = settings.VIRTUAL_DEVICES.read(environment)
    if count is not None:
        _apply(count, kind, called=f"{settings.VIRTUAL_DEVICES.name}={count}")
    elif kind != "CPU":
        _settings.virtual_kind = kind


def _apply(n: int, kind: str, *, called: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise _device_count_error(called, n)
    kind = _checked_kind(kind, called=called)
    _set_cpu_devices(n, called=called)
    _settings.virtual_kind = kind


def _set_cpu_devices(n: int, *, called: str) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError:  # JAX raises it once its backends are initialized
        existing = len(jax.local_devices(backend="cpu"))
        if existing != n:
            raise ContextError(
                called,
                found=f"JAX has started already, with {existing} CPU device{'s' * (existing != 1)}",
                rule="the number of virtual devices is fixed at JAX's first operation in the process",
                remedy=f"call it right after the imports, before any array is created, or start the program with "
                f"{settings.VIRTUAL_DEVICES.name}={n} in its environment",
            ) from None


def _checked_kind(kind: str, *, called: str) -> str:
    if not isinstance(kind, str) or kind.upper() not in settings.KINDS:
        raise ArgumentError(
            called,
            found=f"the kind is {kind!r}",
            rule=f"virtual devices can simulate only {', '.join(settings.KINDS)}",
            remedy="omit the kind for CPU devices, or pass GPU to run a program that names its GPUs",
        )
    return kind.upper()


def _device_count_error(called: str, found: object) -> ArgumentError:
    return ArgumentError(
        called,
        found=f"the number is {found!r} ({type(found).__name__})",
        rule="the number of virtual devices must be an int, 1 or more",
        remedy="pass the number of devices to simulate, for example 4",
    )
