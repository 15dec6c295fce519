"""What modules of TensorFlow have that the facade has under other names, or has not."""

from __future__ import annotations

import functools
import inspect
import json
import os
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorboardX.proto import event_pb2

import mirrored.tf as tf
from mirrored.values.distributed_values import Mirrored, PerReplica
from tf_conformance.stand_in import datasets, gradient_functions, private_attributes, test_case, variables
from tf_conformance.stand_in.combinations import combinations
from tf_conformance.stand_in.devices import canonicalize
from tf_conformance.stand_in.strategies import (
    CollectiveAllReduceStrategy,
    MirroredStrategy,
    MirroredStrategyV1,
    absent,
    strategy_combinations,
)
from tf_conformance.stand_in.test_case import TestCase, nothing, refuse_graphs, skip, without_effect

# Modules whose private names must not be taken for public ones.
NOT_FROM_FACADE: Final = {
    f"tensorflow.{name}"
    for name in (
        "core.protobuf.config_pb2", "python.distribute.tpu_values", "python.eager.record",
        "python.framework.composite_tensor", "python.framework.test_util", "python.ops.gen_state_ops",
        "python.pywrap_tfe", "python.tf2", "python.util.tf_inspect",
    )
}  # fmt: skip

Table = dict[str, Mapping[str, Any]]


class _Record:
    """An object that keeps its arguments, where tests need only `isinstance` or attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.__dict__.update(kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__dict__[name] = made = _Record()
        return made


def _class(name: str) -> type:
    """A class of which nothing here is an instance."""
    return type(name, (_Record,), {})


class _TensorLike(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tf.Tensor | tf.Variable)


def _is_distributed(variable: object) -> bool:
    default = isinstance(variable, tf.Variable) and not variable.distribute_strategy.extended._has_devices
    return isinstance(variable, tf.Variable) and not default


def _is_mirrored(value: object) -> bool:
    return isinstance(value, Mirrored) or (_is_distributed(value) and not _is_sync_on_read(value))


def _is_sync_on_read(value: object) -> bool:
    on_read = tf.VariableSynchronization.ON_READ
    return isinstance(value, tf.Variable) and _is_distributed(value) and value.synchronization is on_read


def _select_replica(index: int, structure: Any) -> Any:
    """The component of a replica."""

    def select(value: Any) -> Any:
        if isinstance(value, tf.Variable):
            return value.values[index] if _is_distributed(value) and len(value.values) > 1 else value
        return value.values[index] if isinstance(value, tf.distribute.DistributedValues) else value

    return tf.nest.map_structure(select, structure)


def _task(part: str) -> Any:
    return json.loads(os.environ["TF_CONFIG"])["task"][part]


def _records(path: str) -> list[bytes]:
    return [bytes(record) for record in tf.data.TFRecordDataset(path)]


class _Context:
    """TensorFlow's eager context, as far as it is public."""

    list_logical_devices = staticmethod(tf.config.list_logical_devices)
    list_physical_devices = staticmethod(tf.config.list_physical_devices)
    executing_eagerly = staticmethod(tf.executing_eagerly)

    def num_gpus(self) -> int:
        """The number of GPUs."""
        return len(tf.config.list_logical_devices("GPU"))

    def ensure_initialized(self) -> None:
        """Has no effect."""


class _NameScope:
    """Version 1's name scope."""

    def __new__(cls, name: str, default_name: str | None = None, *args: object, **kwargs: object) -> Any:
        """A scope of the public class."""
        return tf.name_scope(name or default_name)


@functools.cache
def tables() -> Table:
    """The names of modules, by their paths below `tensorflow.python` or `tensorflow`."""
    private_attributes.add()
    return {**_framework(), **_operations(), **_strategies(), **_cluster_resolvers(), **_others()}


def _framework() -> Table:
    """Tests, the eager context, tensors and graphs."""
    context = {
        "LogicalDevice": tf.config.LogicalDevice,
        "LogicalDeviceConfiguration": tf.config.LogicalDeviceConfiguration,
        "_reset_context": lambda: None,
        "context": _Context,
        "device": tf.device,
        "eager_mode": nothing,
        "executing_eagerly": tf.executing_eagerly,
        "graph_mode": refuse_graphs,
        "num_gpus": lambda: len(tf.config.list_logical_devices("GPU")),
        "set_global_seed": tf.random.set_seed,
    }
    ops = {
        "EagerTensor": tf.Tensor,
        "Graph": refuse_graphs,
        "Operation": _class("Operation"),
        "control_dependencies": nothing,
        "device_v2": tf.device,
        "executing_eagerly_outside_functions": lambda: True,
        "get_default_graph": refuse_graphs,
        "name_scope": _NameScope,
        "name_scope_v2": tf.name_scope,
    }
    return {
        "eager.backprop": {
            "GradientTape": tf.GradientTape,
            "gradients_function": gradient_functions.gradients_function,
            "implicit_grad": gradient_functions.implicit_grad,
            "implicit_val_and_grad": gradient_functions.implicit_val_and_grad,
            "make_vjp": gradient_functions.make_vjp,
            "val_and_grad_function": gradient_functions.val_and_grad_function,
        },
        "eager.context": context,
        "eager.def_function": {"function": tf.function, "run_functions_eagerly": tf.config.run_functions_eagerly},
        "eager.test": test_case.platform_test(),
        "framework.composite_tensor": {"CompositeTensor": _class("CompositeTensor")},
        "framework.config": {
            "list_physical_devices": tf.config.list_physical_devices,
            "set_logical_device_configuration": lambda *args: None,
        },
        "framework.device": {"DeviceSpec": tf.DeviceSpec},
        "framework.memory_checker": {"MemoryChecker": test_case.MemoryChecker},
        "framework.ops": ops,
        "framework.tensor": {"Tensor": tf.Tensor, "TensorSpec": tf.TensorSpec},
        "framework.tensor_util": {"constant_value": tf.get_static_value},
        "framework.test_util": test_case.test_util(),
        "platform.test": test_case.platform_test(),
        "tf2": {"enabled": lambda: True},
        "types.core": {name: _TensorLike(name, (), {}) for name in ("Tensor", "TensorLike")},
    }


def _operations() -> Table:
    """Modules of operations and variables."""
    version_1 = {
        "Variable": tf.Variable,
        "VariableAggregation": tf.VariableAggregation,
        "VariableSynchronization": tf.VariableSynchronization,
        "VariableV1": variables.VariableV1,
        "global_variables_initializer": lambda: None,
        "local_variables_initializer": lambda: None,
        "variables_initializer": lambda *args, **kwargs: None,
    }

    def cond(pred: Any, true_fn: Any = None, false_fn: Any = None, **kwargs: object) -> Any:
        return tf.cond(pred, true_fn, false_fn)

    def expand_dims(value: Any, axis: Any = None, name: object = None, dim: Any = None) -> Any:
        return tf.expand_dims(value, axis if axis is not None else dim)

    return {
        "ops.array_ops": {
            "diag": tf.linalg.diag,
            "expand_dims": expand_dims,
            "placeholder": refuse_graphs,
            "placeholder_with_default": lambda value, shape=None: tf.convert_to_tensor(value),
        },
        "ops.cond": {"cond": cond, "cond_v2": cond},
        "ops.control_flow_ops": {"group": lambda *args, **kwargs: None, "no_op": lambda *args, **kwargs: None},
        "ops.math_ops": {
            "add_v2": tf.add,
            "mat_mul": tf.matmul,
            "to_float": lambda value: tf.cast(value, tf.float32),
            "to_int32": lambda value: tf.cast(value, tf.int32),
            "to_int64": lambda value: tf.cast(value, tf.int64),
        },
        "ops.random_ops": {"random_normal": tf.random.normal, "random_uniform": tf.random.uniform},
        "ops.resource_variable_ops": {
            "BaseResourceVariable": tf.Variable,
            "ResourceVariable": variables.VariableV1,
            "is_resource_variable": lambda value: isinstance(value, tf.Variable),
        },
        "ops.state_ops": {
            name: functools.partial(lambda how, ref, value, *args, **kwargs: getattr(ref, how)(value), name)
            for name in ("assign", "assign_add", "assign_sub")
        },
        "ops.variable_scope": {
            **version_1,
            "get_variable": variables.get_variable,
            "variable": variables.variable,
            "variable_creator_scope": tf.variable_creator_scope,
            "variable_scope": variables.variable_scope,
        },
        "ops.variable_v1": {"VariableV1": variables.VariableV1},
        "ops.variables": version_1,
    }


def _strategies() -> Table:
    """Modules of `distribute`."""
    absent_classes: Table = {
        f"distribute.{module}": {name: absent(name) for name in names.split()}
        for module, names in {
            "central_storage_strategy": "CentralStorageStrategy CentralStorageStrategyV1",
            "parameter_server_strategy": "ParameterServerStrategy ParameterServerStrategyV1 "
            "ParameterServerStrategyExtended",
            "parameter_server_strategy_v2": "ParameterServerStrategyV2",
            "tpu_strategy": "TPUStrategy TPUStrategyV1 TPUStrategyV2 TPUExtended TPUExtendedV1",
        }.items()
    }
    experimental = tf.distribute.experimental
    distribute_lib = {
        "StrategyBase": tf.distribute.Strategy,
        "StrategyExtendedV1": tf.distribute.StrategyExtended,
        "StrategyExtendedV2": tf.distribute.StrategyExtended,
        "StrategyV1": _class("StrategyV1"),
        "_get_default_replica_context": tf.distribute.get_replica_context,
        "_get_default_strategy": tf.distribute.get_strategy,
        "get_cross_replica_context": lambda: (
            tf.distribute.get_strategy() if tf.distribute.in_cross_replica_context() else None
        ),
    }
    multi_worker_test_base = {
        "MultiWorkerTestBase": type("MultiWorkerTestBase", (TestCase,), {}),
        "SingleWorkerTestBaseEager": type("SingleWorkerTestBaseEager", (TestCase,), {}),
        "SingleWorkerTestBaseGraph": skip(test_case.GRAPH_MODE)(type("SingleWorkerTestBaseGraph", (TestCase,), {})),
        "get_task_index": lambda: _task("index"),
        "get_task_type": lambda: _task("type"),
    }
    return absent_classes | {
        "distribute.collective_all_reduce_strategy": {
            "CollectiveAllReduceExtended": _class("CollectiveAllReduceExtended"),
            "CollectiveAllReduceStrategy": CollectiveAllReduceStrategyType,
            "CollectiveAllReduceStrategyV1": CollectiveAllReduceStrategyType,
            "_CollectiveAllReduceStrategyExperimental": experimental.MultiWorkerMirroredStrategy,
        },
        "distribute.collective_util": {
            "CommunicationImplementation": experimental.CommunicationImplementation,
            "Hints": experimental.CollectiveHints,
            "Options": experimental.CommunicationOptions,
        },
        "distribute.combinations": _Combinations(),
        "distribute.device_util": {"canonicalize": canonicalize, "resolve": canonicalize},
        "distribute.distribute_lib": distribute_lib,
        "distribute.distribute_utils": {
            "is_distributed_variable": _is_distributed,
            "is_mirrored": _is_mirrored,
            "is_sync_on_read": _is_sync_on_read,
            "select_replica": _select_replica,
            "select_replica_mirrored": _select_replica,
        },
        "distribute.input_lib": {
            "DistributedDataset": datasets.distributed_dataset,
            "InputWorkers": datasets.InputWorkers,
        },
        "distribute.input_util": {"get_distributed_dataset": datasets.get_distributed_dataset},
        "distribute.mirrored_strategy": {
            "MirroredStrategy": MirroredStrategy,
            "MirroredStrategyV1": MirroredStrategyV1,
        },
        "distribute.multi_worker_test_base": multi_worker_test_base,
        "distribute.multi_worker_util": {
            "id_in_cluster": datasets.id_in_cluster,
            "worker_count": datasets.worker_count,
        },
        "distribute.one_device_strategy": {
            "OneDeviceStrategy": tf.distribute.OneDeviceStrategy,
            "OneDeviceStrategyV1": tf.compat.v1.distribute.OneDeviceStrategy,
        },
        "distribute.ps_values": {name: _class(name) for name in ("AggregatingVariable", "CachingVariable")},
        "distribute.sharded_variable": {
            name: _class(name) for name in ("FixedShardsPartitioner", "MinSizePartitioner", "ShardedVariable")
        },
        "distribute.strategy_combinations": strategy_combinations(),
        "distribute.test_util": {
            "create_per_replica": test_case.create_per_replica,
            "gather": test_case.gather,
            "main": lambda *args, **kwargs: None,
            "set_logical_devices_to_at_least": lambda *args: None,
        },
        "distribute.v1.input_lib": {"DistributedDatasetV1": _class("DistributedDatasetV1")},
        "distribute.values": {
            "DistributedValues": tf.distribute.DistributedValues,
            "DistributedVariable": tf.Variable,
            "Mirrored": Mirrored,
            "MirroredVariable": tf.Variable,
            "PerReplica": PerReplica,
            "SyncOnReadVariable": tf.Variable,
        },
    }


class _Combinations(Mapping[str, Any]):
    """The names of `distribute.combinations`, which need a module of TensorFlow's tests."""

    def __getitem__(self, name: str) -> Any:
        return combinations()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(combinations())

    def __len__(self) -> int:
        return len(combinations())


class _MultiWorkerType(type(tf.distribute.MultiWorkerMirroredStrategy)):  # type: ignore[misc]
    """Every MultiWorkerMirroredStrategy of the facade is an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, tf.distribute.MultiWorkerMirroredStrategy)


class CollectiveAllReduceStrategyType(CollectiveAllReduceStrategy, metaclass=_MultiWorkerType):
    """TensorFlow's private name of MultiWorkerMirroredStrategy."""


def _cluster_resolvers() -> Table:
    """Modules of `distribute.cluster_resolver`."""
    resolvers = tf.distribute.cluster_resolver
    package = "distribute.cluster_resolver"
    everything = {
        "ClusterResolver": resolvers.ClusterResolver,
        "KubernetesClusterResolver": resolvers.KubernetesClusterResolver,
        "SimpleClusterResolver": resolvers.SimpleClusterResolver,
        "SlurmClusterResolver": resolvers.SlurmClusterResolver,
        "TFConfigClusterResolver": resolvers.TFConfigClusterResolver,
        "UnionClusterResolver": resolvers.UnionResolver,
        "UnionResolver": resolvers.UnionResolver,
    }
    modules = ("cluster_resolver", "kubernetes_cluster_resolver", "slurm_cluster_resolver", "tfconfig_cluster_resolver")
    found: Table = {f"{package}.{module}": everything for module in modules}
    kubernetes = {**everything, "ExecutableLocation": resolvers.KubernetesExecutableLocation}
    return found | {package: everything, f"{package}.kubernetes_cluster_resolver": kubernetes}


def _others() -> Table:
    """Datasets, checkpoints, modules and helpers."""
    return {
        "checkpoint.checkpoint": {"Checkpoint": tf.train.Checkpoint},
        "client.session": {"BaseSession": _class("BaseSession"), "_DeviceAttributes": _Record},
        "core.protobuf.config_pb2": {"ConfigProto": _Record},
        "data.ops.dataset_ops": {
            "Dataset": tf.data.Dataset,
            "DatasetV1": tf.data.Dataset,
            "DatasetV2": tf.data.Dataset,
            "get_legacy_output_types": lambda data: tf.nest.map_structure(lambda spec: spec.dtype, data.element_spec),
            "make_initializable_iterator": iter,
            "make_one_shot_iterator": iter,
        },
        "data.ops.options": {"AutoShardPolicy": tf.data.experimental.AutoShardPolicy, "Options": tf.data.Options},
        "lib.io.tf_record": {"tf_record_iterator": _records},
        "module.module": {"Module": tf.Module},
        "platform.gfile": {
            "Exists": tf.io.gfile.exists,
            "GFile": tf.io.gfile.GFile,
            "Glob": tf.io.gfile.glob,
            "ListDirectory": tf.io.gfile.listdir,
        },
        "platform.flags": {"FLAGS": types.SimpleNamespace()},
        "core.util.event_pb2": {"Event": event_pb2.Event},
        "ops.string_ops": {"string_to_number": tf.strings.to_number},
        "ops.summary_ops_v2": {"always_record_summaries": lambda: tf.summary.record_if(True)},
        "framework.tensor_shape": {
            "_TENSORSHAPE_V2_OVERRIDE": None,
            "disable_v2_tensorshape": lambda: None,
            "enable_v2_tensorshape": lambda: None,
        },
        "training.optimizer": {"get_filtered_grad_fn": gradient_functions.without_missing},
        "saved_model.load": {"load": tf.saved_model.load},
        "saved_model.save": {"save": tf.saved_model.save},
        "training.moving_averages": {"ExponentialMovingAverage": tf.train.ExponentialMovingAverage},
        "training.server_lib": {"ClusterSpec": tf.train.ClusterSpec},
        "util.compat": {name: getattr(tf.compat, name) for name in ("as_bytes", "as_str", "as_text")},
        "util.nest": {
            name: getattr(tf.nest, name)
            for name in ("assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as")
        },
        "util.tf_decorator": {
            "make_decorator": lambda target, decorator, *args, **kwargs: functools.wraps(target)(decorator)
        },
        "util.tf_export": {"tf_export": without_effect},
        "util.tf_inspect": {name: getattr(inspect, name) for name in dir(inspect) if not name.startswith("_")},
    }
