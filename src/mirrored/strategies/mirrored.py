"""Strategies of one process: `MirroredStrategy` and `OneDeviceStrategy`."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from mirrored.collectives.cross_device_ops import AllReduce, CrossDeviceOps, OrderedTree
from mirrored.errors import ArgumentError
from mirrored.strategies.strategy import Strategy
from mirrored.topology.device_assignment import make_device_assignment
from mirrored.topology.independent_processes import warn_if_independent


class MirroredStrategy(Strategy):
    """A strategy for synchronous training in one process, with one or more replicas per device.

    Context: can be created anywhere.

    Args:
        devices: Names in TensorFlow's format (``"GPU:0"``, ``"/cpu:1"``) or `jax.Device` objects. Default: all
            accelerators, or all CPU devices if there are none.
        cross_device_ops: The algorithm that reduces values over replicas. Default: an all-reduce.
        num_replicas: The number of replicas, at least the number of devices. Several replicas on one device are virtual
            replicas. Default: one per device. If it is not divisible by the number of devices, the first devices have
            one replica more than the others, and a compiled step takes as long as if every device had this many.
        deterministic: Whether sums have one fixed order, so that results are bit-identical on any number of devices of
            one kind. On GPUs, XLA then selects kernels without autotuning, which makes convolutions slower. Keras'
            `fit` then computes each batch whole, on the first device. The known limits are in docs/architecture.md,
            "Why results are bit-identical on any number of devices".

    Raises:
        DeviceError: A device is unknown, named twice or of another kind, or `num_replicas` is smaller than the number
            of devices.
        ArgumentError: `cross_device_ops` is not a `CrossDeviceOps`, or is given together with `deterministic`.

    Warns:
        IndependentProcessesWarning: According to the environment, this process is one of several.

    Example:
        >>> import mirrored as mr
        >>> mr.MirroredStrategy(["CPU:0"], num_replicas=2).num_replicas_in_sync
        2

    TensorFlow: `tf.distribute.MirroredStrategy`, which has one replica per device. Virtual replicas (several replicas
    per device), `deterministic` and the error for unknown devices are extensions.
    """

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        num_replicas: int | None = None,
        deterministic: bool = False,
    ) -> None:
        if cross_device_ops is not None and not isinstance(cross_device_ops, CrossDeviceOps):
            raise ArgumentError(
                "MirroredStrategy",
                found=f"cross_device_ops={cross_device_ops!r}",
                rule="cross_device_ops must be a mirrored.collectives.CrossDeviceOps",
                remedy="omit it, or pass ReductionToOneDevice(), HierarchicalCopyAllReduce() or NcclAllReduce()",
            )
        if deterministic and cross_device_ops is not None:
            raise ArgumentError(
                "MirroredStrategy",
                found=f"both deterministic=True and cross_device_ops={cross_device_ops!r} were passed",
                rule="each of them determines the order of sums, so they exclude each other",
                remedy="pass only one of them",
            )
        self._deterministic = deterministic
        device_assignment = make_device_assignment(devices, num_replicas)
        if not device_assignment.spans_processes:
            warn_if_independent(type(self).__name__)
        super().__init__(device_assignment, OrderedTree() if deterministic else cross_device_ops or AllReduce())

    @property
    def deterministic(self) -> bool:
        """Whether results are bit-identical for any number of devices."""
        return self._deterministic


class OneDeviceStrategy(Strategy):
    """A strategy with one replica on one device; programs that are written for several replicas run on it unchanged.

    Args:
        device: A name in TensorFlow's format, or a `jax.Device`.

    Raises:
        DeviceError: The device does not exist.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.OneDeviceStrategy("CPU:0")
        >>> strategy.run(lambda x: 2 * x, args=(3.0,)), strategy.num_replicas_in_sync
        (6.0, 1)

    TensorFlow: `tf.distribute.OneDeviceStrategy`.
    """

    def __init__(self, device: str | jax.Device) -> None:
        super().__init__(make_device_assignment([device], called="OneDeviceStrategy"), AllReduce())
        warn_if_independent(type(self).__name__)

    def __repr__(self) -> str:
        return f"OneDeviceStrategy({self.device_assignment!r})"
