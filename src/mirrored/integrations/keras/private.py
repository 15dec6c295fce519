"""The only module that uses private attributes of Keras.

Supports Keras 3.15. A section holds what one part of Keras keeps private, and helpers that read and set attributes of
its objects. `tests/integrations/test_keras_private.py` checks each on the installed version. Methods that mirrored
replaces are named where they are replaced; `mirrored/patches.py` lists them.
"""

from __future__ import annotations

import collections
import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirrored._jax import distributed
from mirrored.integrations.keras.backend import load

if TYPE_CHECKING:
    from keras import Layer, Model
    from keras import Variable as KerasVariable
    from keras.callbacks import BackupAndRestore
    from keras.layers import BatchNormalization
    from keras.optimizers import Optimizer
    from keras.src.backend.jax.trainer import JAXEpochIterator as JAXEpochIterator
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter as ArrayDataAdapter
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter as PyDatasetAdapter
    from keras.src.trainers.data_adapters.torch_data_loader_adapter import (
        TorchDataLoaderAdapter as TorchDataLoaderAdapter,
    )
    from keras.src.trainers.epoch_iterator import EpochIterator as EpochIterator
    from keras.src.utils.tracking import Tracker as Tracker

keras = load()
if not TYPE_CHECKING:
    EpochIterator = keras.src.trainers.epoch_iterator.EpochIterator
    JAXEpochIterator = keras.src.backend.jax.trainer.JAXEpochIterator
    ArrayDataAdapter = keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter
    PyDatasetAdapter = keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter
    TorchDataLoaderAdapter = keras.src.trainers.data_adapters.torch_data_loader_adapter.TorchDataLoaderAdapter
    Tracker = keras.src.utils.tracking.Tracker

# Modules, one of whose attributes is replaced, and Keras under TensorFlow's names.

backend: Any = keras.src.backend
# `keras.ops` looks up here the loops, conditionals and `remat` of the JAX backend.
jax_operations: Any = keras.src.backend.core
# Keras' training loops look up `distribute_data_input` here for each batch.
backend_distribution: Any = keras.src.backend.distribution_lib
# `Operation.__call__` looks up here what adds the arguments of a call to its errors.
tracebacks: Any = keras.src.utils.traceback_utils
# The modules of its layers refer to TensorFlow as `tf`, which Keras imports if it is installed.
preprocessing: Any = keras.src.layers.preprocessing
# The modules that build datasets, from files and from arrays, refer to TensorFlow as `tf`, too.
datasets: Mapping[str, Any] = {
    "audio": keras.src.utils.audio_dataset_utils,
    "image": keras.src.utils.image_dataset_utils,
    "text": keras.src.utils.text_dataset_utils,
    "timeseries": keras.src.utils.timeseries_dataset_utils,
}
# The functions of `keras.backend` that Keras 3 keeps only in `tf.keras.backend`; they call TensorFlow.
legacy_backend: Any = importlib.import_module("keras.src.legacy.backend")
# Its `global_seed_generator` is called for random numbers without a seed.
seed_module: Any = keras.src.random.seed_generator
# Maps two sizes (numbers or fractions) and the number of examples to the numbers of examples in the two parts.
sizes_of_parts: Callable[..., tuple[int, int]] = keras.src.utils.dataset_utils._rescale_dataset_split_sizes


def tensorflow_names() -> Any:
    """Returns the Keras module that provides the API of `tf.keras`."""
    return importlib.import_module("keras._tf_keras.keras")


# Scopes: Keras' thread-local state, the stack of name scopes, and stateless calls.

in_stateless_scope: Callable[[], bool] = keras.src.backend.common.stateless_scope.in_stateless_scope
in_symbolic_scope: Callable[[], bool] = keras.src.backend.common.symbolic_scope.in_symbolic_scope
_global_state: Any = keras.src.backend.common.global_state


def masks_of_tracers() -> dict[int, Any]:
    """Returns the masks that Keras keeps for JAX's tracers, by id, as these accept no attributes.

    A finalizer of the tracer removes its mask.
    """
    masks: dict[int, Any] | None = _global_state.get_global_attribute("_keras_mask_dict")
    return {} if masks is None else masks


def call_outside_of_stateless_scopes(function: Callable[[], None]) -> None:
    """Calls a function such that Keras assigns the variables themselves, not their values in a stateless scope."""
    scope = _global_state.get_global_attribute("stateless_scope")
    try:
        _global_state.set_global_attribute("stateless_scope", None)
        function()
    finally:  # no context manager, which a KeyboardInterrupt could close after the scope has ended
        _global_state.set_global_attribute("stateless_scope", scope)


def keras_state() -> Callable[[], None]:
    """Copies Keras' thread-local state, and returns a function that applies the copy to another thread.

    Every thread gets its own lists. One is of variables that were created in a stateless scope: the thread that leaves
    the scope initializes all variables in its list.
    """
    tracker = _global_state.GLOBAL_STATE_TRACKER
    here = _with_own_lists(vars(tracker))
    return lambda: vars(tracker).update(_with_own_lists(here))


# Whatever a block of Keras enters: stateless and symbolic calls, the call of a layer, names of variables, dtypes, ...
_SCOPES: Final = (
    "stateless_scope",
    "symbolic_scope",
    "autocast_scope",
    "current_call_ctx",
    "tracking_on",
    "name_scope_stack",
    "remat_scope_stack",
)


def noted_scopes() -> Callable[[], None]:
    """Returns a function that restores the scopes of Keras that are active in this thread now.

    An interrupt, such as Ctrl-C, at the entry or exit of a scope can leave the scope active.
    """
    tracker = _global_state.GLOBAL_STATE_TRACKER
    here = _with_own_lists({name: getattr(tracker, name, None) for name in _SCOPES})
    # Not the tracker of before: `keras.utils.clear_session` replaces it.
    return lambda: vars(_global_state.GLOBAL_STATE_TRACKER).update(here)


def _with_own_lists(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.copy(value) if isinstance(value, list) else value for name, value in state.items()}


@distributed.on_leave
def _forget_global_seeds() -> None:
    """Makes Keras create a new global seed generator, because the job no longer uses the devices of the old one."""
    _global_state.set_global_attribute("global_seed_generator", None)


# How many layers had each automatic name (``dense``) before the training function of an elastic job was called.
_names_before: Final[dict[str, int]] = {}


@distributed.before_first_job
def _note_name_counts() -> None:
    _names_before.clear()
    _names_before.update(_global_state.get_global_attribute("object_name_uids") or {})


@distributed.on_leave
def _restore_name_counts() -> None:
    """Resets the numbers in Keras' layer names, so that old and new workers of a job create layers with equal names."""
    _global_state.set_global_attribute("object_name_uids", collections.defaultdict(int, _names_before))


def maker() -> Any:
    """Returns the Keras layer, optimizer, metric or seed generator that is creating variables, or None."""
    stack = _global_state.get_global_attribute("name_scope_stack") or [None]
    return getattr(stack[-1], "caller", None)


# Variables.


def stored_dtype(variable: KerasVariable) -> Any:
    """Returns the dtype in which a Keras variable is stored; its public `dtype` depends on the autocast scope."""
    return variable._dtype


def autocast(variable: KerasVariable, value: Any) -> Any:
    """Casts a variable's value to the dtype of Keras' autocast scope, unless the variable has ``autocast=False``.

    Without an open scope, and for values that are not floating-point, the value is unchanged.
    """
    return variable._maybe_autocast(value)


def read_stored(variable: KerasVariable) -> Any:
    """Returns the value of a variable outside of Keras' scopes; None before Keras initializes the variable."""
    return variable._value


def value_stored_by(variable: KerasVariable) -> Any:
    """Returns the array in a plain Keras variable's attribute `_value`; None before Keras initializes the variable."""
    return vars(variable).get("_value")


class KerasValue:
    """A descriptor for `Variable._value` that calls a function before each read and assignment of a plain variable.

    Args:
        adopted: Returns whether it has made a variable one of another class, whose own `_value` is used then.
    """

    def __init__(self, adopted: Callable[[KerasVariable], bool]) -> None:
        self._adopted = adopted

    def __get__(self, variable: KerasVariable | None, owner: type) -> Any:
        """Returns the array of a variable, as Keras reads it."""
        if variable is None:
            return self
        if self._adopted(variable):
            return variable._value
        try:
            return vars(variable)["_value"]
        except KeyError:
            raise AttributeError(f"{owner.__name__!r} object has no attribute '_value'") from None

    def __set__(self, variable: KerasVariable, value: Any) -> None:
        """Stores the array of a variable, as Keras assigns it."""
        if self._adopted(variable):
            variable._value = value
        else:
            vars(variable)["_value"] = value


def number_path(variable: KerasVariable, number: int) -> None:
    """Appends a number to the path of a variable, if it does not end with it: Keras requires unequal paths."""
    if not variable._path.endswith(f"_{number}"):
        variable._path = f"{variable._path}_{number}"


def drop_initializer(variable: KerasVariable) -> None:
    """Removes a Keras variable's initializer, which marks the variable as initialized."""
    variable._initializer = None


def layer_with(model: Model, variable: KerasVariable) -> Layer | None:
    """Returns the innermost layer of a model to which a variable belongs; None if it belongs to no layer."""
    layers = model._flatten_layers(include_self=False, recursive=True)  # outer layers first
    having = [layer for layer in layers if any(one is variable for one in layer.variables)]
    return having[-1] if having else None


def assigns_weights(model: Model) -> bool:
    """Returns whether a layer of Keras assigns trainable weights in its call: `SpectralNormalization`."""
    layers = model._flatten_layers(include_self=False, recursive=True)
    return any(isinstance(layer, keras.layers.SpectralNormalization) and layer.trainable for layer in layers)


# Optimizers.


def variables_of_optimizer(optimizer: Optimizer) -> list[Any]:
    """Returns the variables for which a Keras optimizer was built, in the order of its slot variables."""
    return optimizer._trainable_variables  # type: ignore[no-any-return]


def is_optimized(optimizer: Optimizer, variable: KerasVariable) -> bool:
    """Returns whether a variable is among the variables that a Keras optimizer was built to update."""
    return optimizer._var_key(variable) in optimizer._trainable_variables_indices


def index_of(optimizer: Optimizer, variable: KerasVariable) -> int:
    """Returns the index of a variable among the variables that a Keras optimizer was built to update."""
    return int(optimizer._get_variable_index(variable))


def own_variables(optimizer: Optimizer) -> list[Any]:
    """Returns the list in which a Keras optimizer keeps its own slots, but not the slots of wrapped optimizers."""
    return optimizer._variables  # type: ignore[no-any-return]


def check_gradients(optimizer: Optimizer, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Warns if some gradients of an optimizer step are None, and raises ValueError if all gradients are None."""
    optimizer._filter_empty_gradients(list(grads), list(variables))


# Layers and models.

# It defines `compile`. Keras treats a class whose `compile` differs from this one as custom.
Trainer: Any = keras.src.trainers.trainer.Trainer
# Its functions that scale losses by the number of replicas are looked up here.
losses_module: Any = keras.src.losses.loss
input_signature_of: Callable[[Any], Any] = keras.src.export.export_utils.get_input_signature


def reduction_axes_of(layer: BatchNormalization) -> tuple[int, ...]:
    """Returns the axes over which a built `BatchNormalization` layer computes mean and variance."""
    return tuple(layer._reduction_axes)


def is_built(model: Model) -> bool:
    """Returns whether all layers of a model have created their weights."""
    return all(layer.built for layer in model._flatten_layers())


def has_training_argument(model: Model) -> bool:
    """Returns whether a model's `call` takes the argument `training`."""
    return bool(model._call_has_training_arg)


def loss_tracker_of(model: Model) -> Any:
    """Returns the metric in which a compiled model keeps the mean of its loss."""
    return model._loss_tracker


def compute_total_loss(model: Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> Any:
    """Computes the loss of a batch by the model's `compute_loss`, which the user may have overridden."""
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def set_initial_epoch(model: Model, epoch: int) -> None:
    """Sets the number of the first epoch of the current `fit` call."""
    model._initial_epoch = epoch


def initial_epoch(model: Model) -> int:
    """Returns the number of the first epoch of the current `fit` call if a callback has set it; 0 otherwise."""
    return int(model._initial_epoch or 0)


def purge_variables(model: Model, **groups: bool) -> None:
    """Removes the arrays of the selected variable groups from a Keras model.

    Keras' training loop holds the values meanwhile, and assigns them later.
    """
    model._purge_model_variables(**groups)


def set_loop_state(model: Model, state: dict[str, Any] | None) -> None:
    """Sets the values that `jax_state_sync` will assign to a model's variables; None cancels the assignment."""
    model._jax_state = state
    if state is not None:
        model._jax_state_synced = False


def map_pending_state(model: Model, regrouped: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Applies a function to the dict of values that Keras' `jax_state_sync` will assign to variables.

    Does nothing if the values are already assigned. The dict maps a category, such as ``"trainable_variables"``, to the
    values of its variables.
    """
    state = getattr(model, "_jax_state", None)
    if state and not model._jax_state_synced:
        model._jax_state = regrouped(state)


def has_loop_state(model: Model) -> bool:
    """Returns whether Keras has stored a training loop's values for `jax_state_sync`.

    The values may already be assigned to the variables.
    """
    return bool(getattr(model, "_jax_state", None))


def resume_sync(model: Model) -> None:
    """Makes the next `jax_state_sync` of Keras assign the values of the last training loop to the variables."""
    model._jax_state_synced = False


# The distribution that training loops consult: what a strategy's distribution inherits from.

Distribution: Any = keras.src.distribution.distribution_lib.Distribution


# The callback `BackupAndRestore`.


def set_current_epoch(callback: BackupAndRestore, epoch: int) -> None:
    """Sets the epoch number that `BackupAndRestore` records in its next backup."""
    callback._current_epoch = epoch


def set_last_batch(callback: BackupAndRestore, batch: int) -> None:
    """Sets the index of the last batch that `BackupAndRestore` has counted.

    The callback counts the batches until its next backup from there.
    """
    callback._last_batch_seen = batch


def backup_paths(callback: BackupAndRestore) -> tuple[Path, Path]:
    """Returns the paths of the two files of a `BackupAndRestore` backup: the weights and the metadata."""
    return Path(callback._weights_path), Path(callback._training_metadata_path)


def set_backup_paths(callback: BackupAndRestore, weights: Path, metadata: Path) -> None:
    """Sets the paths of the two files to which `BackupAndRestore` writes its next backup."""
    callback._weights_path, callback._training_metadata_path = str(weights), str(metadata)


def previous_backup_paths(callback: BackupAndRestore) -> tuple[Path, ...]:
    """Returns the paths of the previous `BackupAndRestore` backup; an empty tuple without a previous backup."""
    if not getattr(callback, "double_checkpoint", False):
        return ()
    return Path(callback._prev_weights_path), Path(callback._prev_training_metadata_path)


# The training data of `fit`: Keras' iterator over an epoch, and the adapters of the kinds of data.


def steps_seen(iterator: EpochIterator) -> int:
    """Returns how many batches Keras' data iterator has read in its current pass over the data; 0 before a pass."""
    return 0 if iterator._current_iterator is None else int(iterator._steps_seen)


def validation_iterator(model: Any) -> Any:
    """Returns the iterator with which `fit` validates a model after each epoch; None before the first validation."""
    return getattr(model, "_eval_epoch_iterator", None)


def num_batches_seen(iterator: EpochIterator) -> int | None:
    """Returns the number of batches in one pass over the data; None if it is not known yet."""
    return iterator._num_batches  # type: ignore[no-any-return]


def begin_pass(iterator: EpochIterator, steps: int) -> Any:
    """Makes Keras' data iterator begin a pass over the data in which `steps` batches count as already read.

    Returns an iterator over the batches.
    """
    iterator._current_iterator = iter(iterator._get_iterator())
    iterator._steps_seen = steps
    return iterator._current_iterator


def shuffles_arrays(adapter: ArrayDataAdapter) -> bool:
    """Returns whether Keras shuffles the arrays passed to `fit` in each epoch."""
    return bool(adapter._shuffle)


def sampler_of(adapter: TorchDataLoaderAdapter) -> Any:
    """Returns the sampler of a PyTorch `DataLoader` that Keras reads; None without a sampler."""
    return getattr(adapter._dataloader, "sampler", None)
