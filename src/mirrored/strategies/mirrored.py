"""The strategies of one process."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from mirrored.collectives.cross_device_ops import AllReduce, CrossDeviceOps, OrderedTree
from mirrored.errors import ArgumentError
from mirrored.strategies.strategy import Strategy
from mirrored.topology.device_assignment import make_device_assignment
from mirrored.topology.independent_processes import warn_if_independent


class MirroredStrategy(Strategy):
    """Synchronous training on several replicas of one process, one or more on each device.

    Context: made anywhere.

    Args:
        devices: Names as TensorFlow writes them (``"GPU:0"``, ``"/cpu:1"``) or `jax.Device` objects. Default: all
            accelerators, or all CPU devices where there are none.
        cross_device_ops: How values of several replicas become one. Default: an all-reduce.
        num_replicas: How many replicas; a multiple of the number of devices. Default: one per device.
        deterministic: Sum in one fixed order, so that results have the same bits on any number of devices. Keras'
            `fit` then computes each batch whole, on the first device.

    Raises:
        DeviceError: A device that is unknown, named twice or of another kind; a `num_replicas` that does not fit.
        ArgumentError: `cross_device_ops` is none, or given together with `deterministic`.

    Warns:
        IndependentProcessesWarning: The environment says that this process is one of several.

    Example:
        >>> import mirrored as mr
        >>> mr.MirroredStrategy(["CPU:0"], num_replicas=2).num_replicas_in_sync
        2

    TensorFlow: `tf.distribute.MirroredStrategy`, whose replicas are its devices: several replicas on one device, and
    `deterministic`, are ours; unknown devices are refused here.
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
                rule="cross_device_ops is a mirrored.collectives.CrossDeviceOps",
                remedy="leave it away, or give ReductionToOneDevice(), HierarchicalCopyAllReduce() or NcclAllReduce()",
            )
        if deterministic and cross_device_ops is not None:
            raise ArgumentError(
                "MirroredStrategy",
                found=f"deterministic=True and cross_device_ops={cross_device_ops!r}",
                rule="deterministic fixes the order of sums, which is the cross-device operation's business",
                remedy="give one of them",
            )
        self._deterministic = deterministic
        device_assignment = make_device_assignment(devices, num_replicas)
        if not device_assignment.spans_processes:
            warn_if_independent(type(self).__name__)
        super().__init__(device_assignment, OrderedTree() if deterministic else cross_device_ops or AllReduce())

    @property
    def deterministic(self) -> bool:
        """Whether results have the same bits on any number of devices."""
        return self._deterministic


class OneDeviceStrategy(Strategy):
    """One replica on one device: a program for several replicas runs as it stands.

    Args:
        device: A name as TensorFlow writes it, or a `jax.Device`.

    Raises:
        DeviceError: There is no such device.

    TensorFlow: `tf.distribute.OneDeviceStrategy`.
    """

    def __init__(self, device: str | jax.Device) -> None:
        super().__init__(make_device_assignment([device], called="OneDeviceStrategy"), AllReduce())
        warn_if_independent(type(self).__name__)

    def __repr__(self) -> str:
        return f"OneDeviceStrategy({self.device_assignment!r})"
