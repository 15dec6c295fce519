"""TensorFlow's named strategies (`distribute.strategy_combinations`), on simulated devices."""

from __future__ import annotations

import functools
import importlib
import unittest
from collections.abc import Callable, Sequence
from typing import Any, Final

import mirrored.tf as tf
from tf_conformance.results import NOT_HERE
from tf_conformance.stand_in.devices import simulated

_TPU: Final = (
    "tpu_strategy tpu_strategy_packed_var tpu_strategy_spmd tpu_strategy_one_step tpu_strategy_one_core "
    "tpu_strategy_one_step_one_core cloud_tpu_strategy"
).split()
_PARAMETER_SERVERS: Final = (
    "parameter_server_strategy_3worker_2ps_cpu parameter_server_strategy_1worker_2ps_cpu "
    "parameter_server_strategy_3worker_2ps_1gpu parameter_server_strategy_1worker_2ps_1gpu"
).split()
_MULTI_WORKER: Final = {  # workers and GPUs per worker
    "2x1_cpu": (2, 0), "2x1_gpu": (2, 1), "2x1_gpu_noshare": (2, 1), "2x2_gpu": (2, 2), "2x2_gpu_no_merge_call": (2, 2),
    "4x1_cpu": (4, 0),
}  # fmt: skip


class NamedDistribution:
    """A strategy with a name for the ids of tests.

    Args:
        name: The name.
        distribution_fn: Creates the strategy.
        required_gpus: Number of GPUs of a worker.
        required_physical_gpus: Number of GPUs of a worker that may not be simulated ones.
        required_tpu: Whether it needs TPUs.
        use_cloud_tpu: Whether it needs TPUs of a cloud.
        has_chief: Whether one worker is the chief.
        num_workers: Number of other workers.
        num_ps: Number of parameter servers.
        not_here: Why the strategy cannot run; None if it can.
        **ignored: TensorFlow's further options.
    """

    def __init__(
        self,
        name: str,
        distribution_fn: Callable[[], Any],
        required_gpus: int | None = None,
        required_physical_gpus: int = 0,
        required_tpu: bool = False,
        use_cloud_tpu: bool = False,
        has_chief: bool = False,
        num_workers: int = 1,
        num_ps: int = 0,
        not_here: str | None = None,
        **ignored: object,
    ) -> None:
        self._name = name
        self._make = distribution_fn
        self.gpus = max(required_gpus or 0, required_physical_gpus)
        self.workers = num_workers + has_chief
        if required_tpu or use_cloud_tpu:
            not_here = "TPUs"
        self.not_here = "parameter servers" if num_ps else not_here

    @property
    def strategy(self) -> Any:
        """A new strategy."""
        return self._make()

    def __repr__(self) -> str:
        return self._name


class _AnyMirrored(type(tf.distribute.MirroredStrategy)):  # type: ignore[misc]
    """Every MirroredStrategy of the facade is an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tf.distribute.MirroredStrategy)


class MirroredStrategy(tf.distribute.MirroredStrategy, metaclass=_AnyMirrored):
    """The facade's strategy, on simulated devices.

    Args:
        devices: TensorFlow's device names.
        cross_device_ops: How values are reduced.
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        super().__init__(simulated(devices), cross_device_ops=cross_device_ops)


class MirroredStrategyV1(tf.compat.v1.distribute.MirroredStrategy):
    """Version 1's strategy, on simulated devices.

    Args:
        devices: TensorFlow's device names.
        cross_device_ops: How values are reduced.
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        super().__init__(simulated(devices), cross_device_ops=cross_device_ops)


class CollectiveAllReduceStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's private name of MultiWorkerMirroredStrategy."""

    @staticmethod
    def _from_local_devices(devices: Sequence[str], *args: object, **kwargs: object) -> Any:
        """A strategy over devices of this process: a MirroredStrategy does the same."""
        return MirroredStrategy(devices)


class _AbsentStrategy:
    """A strategy that is not here; skips the test that creates one."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise unittest.SkipTest(f"{NOT_HERE}{type(self).__name__}")


def absent(name: str) -> type:
    """The class of a strategy that is not here.

    Args:
        name: Its name.
    """
    return type(name, (_AbsentStrategy,), {})


@functools.cache
def _multi_worker() -> Any:
    """The one strategy of several workers of this process."""
    resolvers = tf.distribute.cluster_resolver
    found = resolvers.TFConfigClusterResolver()
    resolver = resolvers.SimpleClusterResolver(
        found.cluster_spec(), task_type=found.task_type, task_id=found.task_id, num_accelerators={"GPU": 0},
        rpc_layer="grpc",
    )  # fmt: skip
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def _mirrored(devices: str) -> Callable[[], Any]:
    return lambda: MirroredStrategy(devices.split())


def _single() -> dict[str, NamedDistribution]:
    """Strategies of one worker."""
    named = NamedDistribution
    remote = functools.partial(named, distribution_fn=lambda: None, not_here="devices of another worker")
    central = functools.partial(named, distribution_fn=lambda: None, not_here="CentralStorageStrategy")
    no_merge = named("Mirrored2GPUsNoMergeCall", lambda: None, not_here="TensorFlow's switch for merge_call")
    return {
        "default_strategy": named("Default", tf.distribute.get_strategy),
        "one_device_strategy": named("OneDeviceCPU", lambda: tf.distribute.OneDeviceStrategy("/cpu:0")),
        "one_device_strategy_gpu": named("OneDeviceGPU", lambda: tf.distribute.OneDeviceStrategy("/gpu:0"), 1),
        "one_device_strategy_on_worker_1": remote("OneDeviceOnWorker1CPU"),
        "one_device_strategy_gpu_on_worker_1": remote("OneDeviceOnWorker1GPU"),
        "mirrored_strategy_with_one_cpu": named("Mirrored1CPU", _mirrored("/cpu:0")),
        "mirrored_strategy_with_one_gpu": named("Mirrored1GPU", _mirrored("/gpu:0"), 1),
        "mirrored_strategy_with_gpu_and_cpu": named("MirroredCPUAndGPU", _mirrored("/gpu:0 /cpu:0"), 1),
        "mirrored_strategy_with_two_cpus": named("Mirrored2CPUs", _mirrored("/cpu:0 /cpu:1")),
        "mirrored_strategy_with_two_gpus": named("Mirrored2GPUs", _mirrored("/gpu:0 /gpu:1"), 2),
        "mirrored_strategy_with_two_gpus_no_merge_call": no_merge,
        "mirrored_strategy_with_cpu_1_and_2": named("Mirrored2CPU", _mirrored("/cpu:1 /cpu:2")),
        "central_storage_strategy_with_two_gpus": central("CentralStorage2GPUs"),
        "central_storage_strategy_with_gpu_and_cpu": central("CentralStorageCPUAndGPU"),
    }


def _named() -> dict[str, Any]:
    found: dict[str, Any] = _single()
    for name in _TPU:
        title = "".join(part.title() for part in name.split("_")).replace("Tpu", "TPU")
        found[name] = NamedDistribution(title, lambda: None, required_tpu=True)
    for name, (workers, gpus) in _MULTI_WORKER.items():
        title = "MultiWorkerMirrored" + "".join(part.title() for part in name.split("_"))
        title = title.replace("Cpu", "CPU").replace("Gpu", "GPU").replace("X", "x")
        found[f"multi_worker_mirrored_{name}"] = NamedDistribution(
            title, _multi_worker, gpus, has_chief=True, num_workers=workers - 1
        )
    for name in _PARAMETER_SERVERS:
        title = "ParameterServer" + name.removeprefix("parameter_server_strategy_")
        found[name] = NamedDistribution(title, lambda: None, num_ps=2)
    found["parameter_server_strategy_fn"] = lambda name, **kwargs: NamedDistribution(
        f"ParameterServer{name}", lambda: None, num_ps=2
    )
    return found


def strategy_combinations() -> dict[str, Any]:
    """The names of `tensorflow.python.distribute.strategy_combinations`."""
    found = _named()

    def pick(names: str) -> list[Any]:
        return [found[name] for name in names.split()]

    def combined(name: str, modes: list[str]) -> Callable[[], Any]:
        def combine() -> Any:
            combinations = importlib.import_module("tensorflow.python.distribute.combinations")
            return combinations.combine(distribution=found[name], mode=modes)

        return combine

    both = "mirrored_strategy_with_gpu_and_cpu mirrored_strategy_with_two_gpus"
    ones = "one_device_strategy one_device_strategy_gpu"
    tpus = "tpu_strategy tpu_strategy_one_step"
    workers = "multi_worker_mirrored_2x1_cpu multi_worker_mirrored_2x1_gpu"
    central = "central_storage_strategy_with_gpu_and_cpu"
    found["strategies_minus_tpu"] = pick(
        f"default_strategy {ones} {both} central_storage_strategy_with_two_gpus {central}"
    )
    found["strategies_minus_default_and_tpu"] = pick(f"{ones} {both}")
    found["tpu_strategies"] = pick(f"{tpus} tpu_strategy_packed_var cloud_tpu_strategy")
    found["all_strategies_minus_default"] = found["strategies_minus_default_and_tpu"] + found["tpu_strategies"]
    found["all_strategies"] = found["strategies_minus_tpu"] + found["tpu_strategies"]
    found["two_replica_strategies"] = pick(f"{both} {workers} {tpus} {central}")
    found["four_replica_strategies"] = pick("multi_worker_mirrored_2x2_gpu multi_worker_mirrored_4x1_cpu")
    found["multidevice_strategies"] = pick(f"{both} {tpus}")
    found["multiworker_strategies"] = pick(f"{workers} multi_worker_mirrored_2x2_gpu")
    found["graph_and_eager_modes"] = ["graph", "eager"]
    found["set_virtual_cpus_to_at_least"] = lambda count: None
    found["strategy_minus_tpu_combinations"] = combined("strategies_minus_tpu", ["graph", "eager"])
    found["tpu_strategy_combinations"] = combined("tpu_strategies", ["graph"])
    found["all_strategy_minus_default_and_tpu_combinations"] = combined(
        "strategies_minus_default_and_tpu", ["graph", "eager"]
    )
    found["all_strategy_combinations"] = lambda: (
        found["strategy_minus_tpu_combinations"]() + found["tpu_strategy_combinations"]()
    )
    found["all_strategy_combinations_minus_default"] = lambda: (
        found["all_strategy_minus_default_and_tpu_combinations"]() + found["tpu_strategy_combinations"]()
    )
    return found
