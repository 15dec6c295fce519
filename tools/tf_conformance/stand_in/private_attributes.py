"""Private attributes of TensorFlow's objects that have a public equivalent: tests reach public behaviour by them."""

from __future__ import annotations

from typing import Any

import jax

import mirrored.tf as tf
from mirrored._jax.boxes import Array
from mirrored.data.distribution import PerReplicaSpec
from mirrored.data.specs import ArraySpec
from mirrored.topology.device_assignment import full_name
from mirrored.values.distributed_values import DistributedValues
from tf_conformance.stand_in import datasets


def add() -> None:
    """Adds the attributes to the facade's classes."""
    extended, context = tf.distribute.StrategyExtended, tf.distribute.ReplicaContext
    _set(extended, "_replica_ctx_all_reduce", _all_reduce)
    _set(extended, "_get_local_replica_id", lambda self, index: index)
    _set(extended, "_use_merge_call", lambda self: True)
    _set(extended, "_make_dataset_iterator", _make_dataset_iterator)
    _set(extended, "_make_input_context", lambda self: None)
    _set(extended, "_global_batch_size", True)
    _set(extended, "_has_devices", property(lambda self: self._strategy.device_assignment is not None))
    _set(extended, "_num_devices_per_worker", property(lambda self: len(self.worker_devices)))
    _set(extended, "_container_strategy", lambda self: tf.distribute.get_strategy())
    _set(context, "_update", _update)
    _set(tf.distribute.Strategy, "_collective_key_base", 0)
    for values in (tf.Variable, DistributedValues):
        _set(values, "_values", property(lambda self: self.values))
    _set(tf.Variable, "_get", lambda self: self.read_value())
    _set(tf.Variable, "_policy", None)
    _set(tf.Variable, "_devices", property(lambda self: [value.device for value in self.values]))
    _set(ArraySpec, "_component_specs", property(lambda self: tf.TensorSpec(self.shape, self.dtype)))
    for name in ("_value_specs", "_component_specs"):
        _set(PerReplicaSpec, name, property(_tensor_specs))
    _set(Array, "backing_device", property(lambda self: full_name(self.device)))
    extended.worker_devices = property(_named_devices(extended.worker_devices.fget))
    for iterated in (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator):
        _set(iterated, "_type_spec", property(datasets.IteratorSpec))
        _set(iterated, "_input_workers", "the strategy's")
        _set(iterated, "_iterators", ())


def _set(owner: type, name: str, value: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, value)


class DeviceName(str):
    """A device name that equals its device: `device` of a tensor is a `jax.Device`, where TensorFlow has a name."""

    def __eq__(self, other: object) -> bool:
        return str(self) == (full_name(other) if isinstance(other, jax.Device) else other)

    __hash__ = str.__hash__


def _tensor_specs(spec: Any) -> tuple[Any, ...]:
    return tuple(tf.TensorSpec(one.shape, one.dtype) for one in spec.components)


def _named_devices(devices: Any) -> Any:
    return lambda self: tuple(DeviceName(name) for name in devices(self))


def _all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
    return tf.distribute.get_replica_context().all_reduce(reduce_op, value, options)


def _make_dataset_iterator(self: Any, dataset: Any) -> Any:
    return iter(tf.distribute.get_strategy().experimental_distribute_dataset(dataset))


def _update(self: Any, variable: Any, function: Any, args: Any = (), kwargs: Any = None, group: bool = True) -> Any:
    def merged(strategy: Any, target: Any, *values: Any) -> Any:
        return strategy.extended.update(target, function, args=values, kwargs=kwargs, group=group)

    return self.merge_call(merged, args=(variable, *args))
