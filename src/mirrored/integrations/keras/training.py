"""Patches `fit`, `evaluate` and `predict` of Keras models to run on all devices of the model's strategy."""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax.arrays import owned
from mirrored._jax.source_lines import user_stacklevel
from mirrored._jax.traces import Tracer
from mirrored._jax.trees import tree_map
from mirrored._typing import Array, HostArray, Leaf, PyTree
from mirrored.compilation.dispatch import launched
from mirrored.data import DistributedDataset
from mirrored.data.sources import is_dataset
from mirrored.data.worker_steps import agreed_cardinality
from mirrored.integrations.keras.backend import load
from mirrored.integrations.keras.batches import (
    across_workers,
    device_for,
    everywhere,
    is_divisible,
    on_host,
    on_one_device,
    one_sharding,
    put_on,
)
from mirrored.integrations.keras.belonging import check_belonging, strategy_of
from mirrored.integrations.keras.conversion import converting_calls
from mirrored.integrations.keras.first_batch import building_from_first, connect_first_batch
from mirrored.integrations.keras.loop_device import computing_on
from mirrored.integrations.keras.loops import Loop, Parts, called_method, connect_loops, within_loop
from mirrored.integrations.keras.masks import connect_masks
from mirrored.integrations.keras.newest import (
    GROUPS_OF_STEP,
    kept_by_fit,
    kept_steps,
    newest_first,
    note_end_of_loop,
    variables_of,
    with_newest_reads,
)
from mirrored.integrations.keras.own_data import own_or_same
from mirrored.integrations.keras.private import Distribution, backend_distribution, is_built
from mirrored.integrations.keras.steps import (
    BARE_ELEMENTS,
    building_with_call,
    connect_steps,
    make_step_function,
    stateless,
    takes_data_alone,
)
from mirrored.integrations.keras.variables import from_fit
from mirrored.patches import replace
from mirrored.runtime.entry_point import restoring, with_noted_state
from mirrored.values.distributed_values import DistributedValues

if TYPE_CHECKING:
    from keras import Model
    from keras.distribution import TensorLayout

    from mirrored.data import Dataset
    from mirrored.strategies import Strategy

keras = load()
_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_KIND_OF = {"fit": "train", "train": "train", "evaluate": "test", "test": "test", "predict": "predict"}
# The arguments of loops that may be datasets, each with those that give the number of its steps.
_STEPS_OF = {"x": ("steps_per_epoch", "steps"), "validation_data": ("validation_steps",)}
# An attribute of a model: by the kind of step, the variables for which its function was made, by identity.
_GROUPS_OF_STEPS = "_mirrored_groups_of_steps"
# The method that a message names if the function of a kind of step is made outside of a loop.
_CALLED_FOR = {"train": "fit", "test": "evaluate", "predict": "predict"}
_PyDataset: Any = keras.utils.PyDataset


class Distributing(Distribution):  # type: ignore[misc]
    """A Keras distribution that splits batches over the devices of a strategy, during one call such as `fit`.

    With `deterministic=True`, it places them on one device.

    Args:
        sharding: The sharding of the batches.
        distribute_data_input: Keras' function, which the call replaces.
    """

    def __init__(self, sharding: jax.sharding.Sharding, distribute_data_input: Callable[..., Any]) -> None:
        super().__init__(device_mesh=None, batch_dim_name="replica", auto_shard_dataset=False)
        self._sharding = sharding
        self.distribute_data_input = distribute_data_input

    @property
    def num_model_replicas(self) -> int:
        """The number of devices over which each batch is split."""
        return len(self._sharding.device_set)

    def get_variable_layout(self, variable: object) -> None:
        """Returns None, so that Keras does not shard variables; `mirrored.Variable` places their values."""

    def get_tensor_layout(self, path: str) -> None:
        """Returns None, so that the compiler chooses the sharding of intermediate tensors."""

    def get_data_layout(self, data_shape: object) -> Any:
        """Returns the layout that shards a batch over the devices, along its first dimension."""
        return _Layout(self._sharding)

    def distribute_dataset(self, dataset: object) -> Any:
        """Returns the dataset unchanged, because each batch is split over devices when a training step receives it."""
        return dataset


class _Layout:
    """The interface that Keras requires of a layout: the sharding of an array."""

    def __init__(self, sharding: jax.sharding.Sharding) -> None:
        self.backend_layout = sharding


class EndOfData(Exception):
    """Raised instead of StopIteration, which Python turns into RuntimeError inside Keras' batch generators."""


class KerasBatches(_PyDataset):  # type: ignore[misc]
    """A `keras.utils.PyDataset` that yields the batches of a `mirrored` dataset, starting over in each pass.

    Args:
        dataset: The dataset.
        has_steps: Whether the loop knows how many steps to run. Then it needs no length, and an unknown one stays so.
    """

    def __init__(self, dataset: Dataset | DistributedDataset, has_steps: bool) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        cardinality = _cardinality(dataset)
        # If the loop needs an unknown length, one pass over the data determines it. A later, shorter pass ends with its
        # data, and a longer one is cut, without a check: to read one more batch may fail or wait for a timeout.
        is_endless = cardinality == -1 or (cardinality < 0 and has_steps)
        self._count = cardinality if cardinality >= 0 else None if is_endless else sum(1 for _ in dataset)
        self.dataset = dataset
        self.has_bare_elements = _has_bare_elements(dataset)
        self.has_parts = isinstance(dataset, DistributedDataset)
        self.parts: Parts | None = None  # of the last batch
        self._iterator: Any = None
        self._next = 0

    @property
    def num_batches(self) -> int | None:
        """The number of batches per pass over the data; None if infinite or unknown.

        The number stays unknown only in a loop with a step count; for other loops, the constructor counts the batches.
        """
        return self._count

    def __getitem__(self, index: int) -> Any:
        try:
            if self._iterator is None or index != self._next:
                self._iterator, self._next = iter(self.dataset), 0
                for _ in range(index):
                    next(self._iterator)
                    self._next += 1
            self._next += 1
            batch = next(self._iterator)
        except StopIteration:
            raise EndOfData from None
        if self.has_parts:
            self.parts = _parts_of(batch)
        return tree_map(_whole, batch, is_leaf=_is_split)

    def get_state(self) -> Any:
        """Returns the position in the dataset after the last batch that was read; None before the first batch."""
        return None if self._iterator is None else self._iterator.get_state()

    def begin_anew(self) -> None:
        """Restarts the pass over the dataset: the next batch is the first one."""
        self._iterator, self._next = None, 0

    def set_state(self, state: dict[str, Any], is_new_pass: bool) -> None:
        """Moves to a read position that `get_state` returned, from which the next batch is read.

        The first batch that Keras then reads has the index 0 again.

        Args:
            state: A result of `get_state`.
            is_new_pass: Whether the iteration of the position has ended, so that the next batch begins a new iteration.

        Raises:
            ArgumentError: The position belongs to another pipeline.
        """
        iterator: Any = iter(self.dataset)
        iterator.set_state(state)
        if is_new_pass:
            iterator.close()
        self._iterator, self._next = None if is_new_pass else iterator, 0


def _cardinality(dataset: Dataset | DistributedDataset) -> int:
    if isinstance(dataset, DistributedDataset):
        return agreed_cardinality(dataset, "keras.Model")
    return int(dataset.cardinality() if callable(dataset.cardinality) else dataset.cardinality)


def _is_split(value: object) -> bool:
    return isinstance(value, DistributedValues)


def _whole(value: Leaf) -> Any:
    """Returns an array of a batch; concatenates per-replica batches into one array."""
    if not _is_split(value):
        return np.asarray(value)
    return np.concatenate([np.asarray(component) for component in value.values])


def _parts_of(batch: PyTree) -> Parts | None:
    """Returns how the rows of a per-replica batch are divided among the replicas; None for other batches."""
    values = [leaf for leaf in jax.tree.leaves(batch, is_leaf=_is_split) if _is_split(leaf)]
    if not values:
        return None
    sizes = tuple(int(np.shape(component)[0]) for component in values[0].values)
    return Parts(sizes, is_ragged=any(value.component_shape is None for value in values))


def wrap_model(model_class: type[Model]) -> None:
    """Patches `fit`, `evaluate` and `predict` of `keras.Model` to use all devices of the model's strategy."""
    get_state = on_one_device(model_class._get_jax_state)
    replace("keras", model_class, "_get_jax_state", stateless(with_newest_reads(get_state)))
    build = building_from_first(building_with_call(model_class._symbolic_build), KerasBatches)
    replace("keras", model_class, "_symbolic_build", build)
    replace("keras", model_class, "_make_function", kept_steps(model_class._make_function))
    replace("keras", model_class, "_purge_model_variables", kept_by_fit(model_class._purge_model_variables))
    shardings = one_sharding(model_class._get_state_sharding_spec)
    replace("keras", model_class, "_get_state_sharding_spec", shardings)
    for name in _METHODS:
        replace("keras", model_class, name, restoring(with_noted_state(_spread(getattr(model_class, name)))))
    for kind in ("train", "test", "predict"):
        name = f"make_{kind}_function"
        replace("keras", model_class, name, _bounding(getattr(model_class, name), kind))
    connect_first_batch(KerasBatches)
    connect_loops()
    connect_masks(model_class)
    connect_steps(model_class)
    replace("keras", model_class, "jax_state_sync", from_fit(newest_first(model_class.jax_state_sync)))


def _spread(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def spread(self: Model, *args: Any, **kwargs: Any) -> Any:
        strategy = strategy_of(self)
        call = signature.bind(self, *args, **kwargs)
        given = call.arguments
        if "shuffle" in signature.parameters:
            _keep_order(given)
        has_bare_elements = _has_bare_elements(given.get("x"))
        for name, steps in _STEPS_OF.items():
            if name in given:
                has_steps = any(given.get(one) for one in steps) or bool(keras.config.max_steps_per_epoch())
                given[name] = _fed(given[name], strategy, f"keras.Model.{method.__name__}", has_steps)
        x = given.get("x")
        alone = takes_data_alone(self, _KIND_OF[method.__name__.partition("_on_")[0]])
        builds = method.__name__ == "predict" and not is_built(self)
        loop = Loop(method.__name__, alone, x if isinstance(x, KerasBatches) else None, builds)
        before = vars(self).get(BARE_ELEMENTS)
        vars(self)[BARE_ELEMENTS] = has_bare_elements
        try:
            with (
                within_loop(loop),
                _distribution_for(None if alone else strategy, loop),
                _scope_of(strategy),
                converting_calls(),
            ):
                return method(*call.args, **call.kwargs)
        finally:
            vars(self)[BARE_ELEMENTS] = before  # a callback or the validation of `fit` calls another loop
            note_end_of_loop(self)

    return spread


def _keep_order(given: dict[str, Any]) -> None:
    """Changes the arguments of a call of `fit` to ``shuffle=False`` if `x` is a dataset.

    `fit` shuffles by default. As for a `tf.data.Dataset`, the order of a dataset is its own: Keras would otherwise take
    the batches in random order by their indices, and a dataset that shuffles has other examples at an index in each
    iteration.
    """
    if _is_dataset(given.get("x")):
        if given.get("shuffle"):
            warnings.warn(
                "keras.Model.fit: shuffle=True has no effect on a dataset, which has an order of its own\n"
                "  remedy: call dataset.shuffle(buffer_size) before .batch(...)",
                UserWarning,
                stacklevel=user_stacklevel(),
            )
        given["shuffle"] = False


def _bounding(make: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Wraps the function that creates Keras' training step, to limit how many steps are in flight on the devices.

    Keras dispatches a whole epoch without waiting for the devices.
    """
    made = f"{kind}_function"

    @functools.wraps(make)
    def bounding(self: Model, force: bool = False) -> Any:
        # Here Keras has created all variables.
        check_belonging(self, f"keras.Model.{called_method(_CALLED_FOR[kind])}")
        step, known = getattr(self, made), vars(self).setdefault(_GROUPS_OF_STEPS, {})
        if takes_data_alone(self, kind):  # which changes with the `trainable` of a `SpectralNormalization`
            if force or step is None or known.pop(kind, None) is not None:
                setattr(self, made, make_step_function(self, kind))
            return getattr(self, made)
        # The function fixes the numbers of trainable and other weights, which change with `layer.trainable`.
        groups = [list(map(id, variables_of(self, group))) for group in GROUPS_OF_STEP[kind]]
        fixed = hasattr(step, "bounded") and known.get(kind) != groups
        result = make(self, force or fixed or hasattr(step, "takes_data_alone"))
        known[kind] = groups
        step = getattr(self, made)
        if callable(step) and not hasattr(step, "bounded") and strategy_of(self) is not None:
            setattr(self, made, _bounded(step))
        return result

    return bounding


def _bounded(step: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any) -> Any:
        results = step(*args)
        for output in jax.tree.leaves(results[0])[:1]:
            if isinstance(output, jax.Array) and not isinstance(output, Tracer):
                launched(output)
        # Keras fetches predictions to the host, but each worker holds only the rows of its own replicas.
        return (tree_map(everywhere, results[0]), *results[1:])

    bounded.bounded = True  # type: ignore[attr-defined]
    return bounded


def _scope_of(strategy: Strategy | None) -> Any:
    """Returns the scope of a model's strategy, so that slot variables created by `fit` are mirrored."""
    return nullcontext() if strategy is None else strategy.scope()


def _fed(argument: object, strategy: Strategy | None, called: str, has_steps: bool) -> Any:
    if _is_dataset(argument):
        dataset = cast("Dataset | DistributedDataset", argument)
        return KerasBatches(own_or_same(dataset, strategy, called), has_steps)
    if isinstance(argument, types.GeneratorType) and strategy is not None:
        # Copied: Keras prefetches the first batches, and the generator may reuse their buffers.
        return (tree_map(owned, batch) for batch in argument)
    return argument


def _has_bare_elements(x: object) -> bool:
    """Returns whether `x` is a dataset whose elements are not tuples.

    Keras packs such elements into tuples.
    """
    if isinstance(x, KerasBatches):  # the validation of `fit` gets the dataset that `fit` was given
        return x.has_bare_elements
    return _is_dataset(x) and not isinstance(getattr(x, "element_spec", None), tuple)


def _is_dataset(argument: object) -> bool:
    return isinstance(argument, DistributedDataset) or is_dataset(argument)


@contextmanager
def _without_distribution(outer: Distributing) -> Iterator[None]:
    """Suspends the Keras distribution of a loop while a nested loop runs, such as validation in `fit`."""
    ours = backend_distribution.distribute_data_input
    try:
        keras.distribution.set_distribution(None)
        backend_distribution.distribute_data_input = outer.distribute_data_input
        yield
    finally:
        backend_distribution.distribute_data_input = ours
        try:
            keras.distribution.set_distribution(outer)
        except BaseException:  # an interrupt where the function begins
            keras.distribution.set_distribution(outer)
            raise


@contextmanager
def _distribution_for(strategy: Strategy | None, loop: Loop) -> Iterator[None]:
    """Sets the Keras distribution that splits the loop's batches over the strategy's devices.

    It replaces the distribution of an outer loop: a callback or the validation of `fit` may read another kind of data,
    or run a model of another strategy. A loop without a strategy, or with a TensorFlow-style step, runs without a
    distribution. A distribution that the user has set is left in place.
    """
    outer = keras.distribution.distribution()
    if isinstance(outer, Distributing):
        with _without_distribution(outer), _distribution_for(strategy, loop):
            yield
        return
    if strategy is None or outer is not None:
        with computing_on(None):
            yield
        return
    device = device_for(strategy, f"keras.Model.{loop.called}")
    device_assignment = strategy.device_assignment
    assert device_assignment is not None  # `strategy_of` returns no other strategies
    sharding = device_assignment.sharded if device is None else jax.sharding.SingleDeviceSharding(device)
    whole = backend_distribution.distribute_data_input
    spans = device_assignment.spans_processes
    spread = across_workers(loop.called, loop.source, device_assignment) if spans else _divisible(whole)
    distributing = Distributing(sharding, whole)
    try:  # before the first change, because a KeyboardInterrupt may be raised between two
        keras.distribution.set_distribution(distributing)
        backend_distribution.distribute_data_input = spread if device is None else put_on(device)
        with computing_on(device):
            yield
    finally:
        backend_distribution.distribute_data_input = whole
        try:
            keras.distribution.set_distribution(outer)
        except BaseException:  # an interrupt where the function begins
            keras.distribution.set_distribution(outer)
            raise


def _divisible(distribute: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' placement of batches to replicate a batch whose size is not divisible by the number of devices.

    Every device then computes the whole batch, which gives the same values but is slower. Scalars are replicated, too.
    """

    def distribute_data_input(
        batch: Array | HostArray | None, layout: TensorLayout | jax.sharding.NamedSharding, batch_dim_name: object
    ) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        if batch is None:
            return None
        host = on_host(batch)
        if isinstance(sharding, jax.sharding.NamedSharding) and not is_divisible(host, sharding):
            sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
        return distribute(host, sharding, batch_dim_name)

    return distribute_data_input
