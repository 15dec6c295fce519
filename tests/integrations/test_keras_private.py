"""Probes of what Keras keeps private and the bridge relies on; a message says what breaks without it."""

from __future__ import annotations

import inspect
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np
import pytest

from mirrored import integrations
from mirrored.integrations.keras import keras, private

# Keras' own `numpy()` calls NumPy in a way that NumPy 2 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

X, Y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)


@pytest.fixture(autouse=True)
def bare() -> Iterator[None]:
    """Keras without the patches."""
    integrations.disconnect("keras")
    yield
    integrations.connect("keras")


def built(*layers: Any) -> Any:
    """A model, with the default layer, that has its weights."""
    return keras.Sequential([keras.Input((2,)), *(layers or [keras.layers.Dense(1)])])


# Modules


def test_training_loops_look_up_what_distributes_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def noting(batch: Any, layout: Any, batch_dim_name: str) -> Any:
        shapes.append(batch.shape)
        return batch

    monkeypatch.setattr(private.backend_distribution, "distribute_data_input", noting)
    model = built()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    try:
        model.predict(X, batch_size=4, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
    assert shapes == [(4, 2), (4, 2)], "batches of fit are not split over the strategy's devices"


def test_symbolic_calls_go_through_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    compute, computed = private.backend.compute_output_spec, []

    def noting(function: Any, *args: Any, **kwargs: Any) -> Any:
        computed.append(function)
        return compute(function, *args, **kwargs)

    class Own(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * 2.0

    monkeypatch.setattr(private.backend, "compute_output_spec", noting)
    built(Own())
    assert computed, "layers cannot read mirrored variables in symbolic calls"


def test_keras_has_a_second_namespace_and_modules_that_refer_to_tensorflow() -> None:
    assert private.tensorflow_names().layers.Dense is keras.layers.Dense, "tf.keras is not Keras"
    assert all(hasattr(module, "tf") for module in private.datasets.values()), "tf.keras.utils builds no datasets"
    layers = private.preprocessing.normalization, private.preprocessing.discretization
    assert all(hasattr(module, "tf") for module in layers), "adapt reads no datasets"


# Scopes


def test_the_state_of_a_thread_is_applied_to_another() -> None:
    def scopes() -> list[str]:
        return [scope.name for scope in private._global_state.get_global_attribute("name_scope_stack") or []]

    found: list[list[str]] = []
    with keras.name_scope("outer"):
        adopt = private.keras_state()
        thread = threading.Thread(target=lambda: (found.append(scopes()), adopt(), found.append(scopes())))
        thread.start()
        thread.join()
        assert scopes() == ["outer"]
    assert found == [[], ["outer"]], "replicas name their variables as if they had no scope"


def test_threads_do_not_share_lists_of_the_state() -> None:
    def stack() -> Any:
        return vars(private._global_state.GLOBAL_STATE_TRACKER)["name_scope_stack"]

    found: list[Any] = []
    with keras.name_scope("outer"):
        adopt = private.keras_state()
        for _ in range(2):
            thread = threading.Thread(target=lambda: (adopt(), found.append(stack())))
            thread.start()
            thread.join()
        found.append(stack())
    assert len({id(one) for one in found}) == 3, "a replica ends the name scopes of another one"


def test_the_maker_of_a_variable_is_the_caller_of_its_name_scope() -> None:
    makers = []

    class Noting(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            makers.append(private.maker())

        def call(self, inputs: Any) -> Any:
            return inputs

    layer = Noting()
    layer(X)
    assert makers == [layer], "statistics of layers, and slots of optimizers, get the wrong kind of variable"
    assert private.maker() is None


def test_stateless_scopes_are_seen() -> None:
    assert not private.in_stateless_scope()
    with keras.StatelessScope():
        assert private.in_stateless_scope(), "stateless calls assign variables"
        found: list[bool] = []
        private.call_outside_of_stateless_scopes(lambda: found.append(private.in_stateless_scope()))
        assert found == [False], "values of a loop become updates of a stateless call"
        assert private.in_stateless_scope()


def test_layers_and_optimizers_track_variables() -> None:
    layer = keras.layers.Dense(1)
    assert isinstance(layer._tracker, private.Tracker), "variables of mirrored are no weights of a layer"
    assert "trainable_variables" in layer._tracker.config
    assert not layer._tracker.locked
    layer.build((None, 2))
    assert layer._tracker.locked, "a variable that a built layer creates becomes one of its weights"


# Variables


def test_the_stored_dtype_is_not_that_of_the_autocast_scope() -> None:
    variable = keras.Variable(np.ones(2, np.float32))
    with keras.src.backend.AutocastScope("float16"):
        assert str(private.stored_dtype(variable)) == "float32", "backing variables get the dtype of the computation"
        assert str(variable.dtype) == "float16"


def test_a_deferred_variable_is_initialized_at_the_end_of_the_scope() -> None:
    class Dropping(keras.Variable):
        def _deferred_initialize(self) -> None:
            assert self._initializer is not None
            private.drop_initializer(self)

    with keras.StatelessScope():
        variable = Dropping(keras.initializers.Ones(), shape=(2,), dtype="float32")
        assert variable._initializer is not None
    assert variable._initializer is None, "a view of a mirrored variable would be initialized again"


def test_a_variable_is_initialized_by_methods_that_views_replace() -> None:
    for name in ("_initialize_with_initializer", "_deferred_initialize"):
        assert callable(getattr(keras.Variable, name)), "a view of a mirrored variable would get a value of its own"
    variable = keras.Variable(np.ones(2, np.float32))
    assert "_value" in vars(variable), "the array of a variable is not in the attribute that the bridge replaces"


# Optimizers


def test_an_optimizer_knows_its_variables() -> None:
    known, unknown = (keras.Variable(np.ones(2, np.float32)) for _ in range(2))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    assert private.variables_of_optimizer(optimizer) == []
    optimizer.build([known])
    (found,) = private.variables_of_optimizer(optimizer)
    assert found is known
    assert private.is_optimized(optimizer, known)
    assert not private.is_optimized(optimizer, unknown), "a step on an unknown variable is not refused"
    assert private.index_of(optimizer, known) == 0
    assert private.own_variables(optimizer) == optimizer.variables, "slots of a build that failed are kept"


def test_missing_gradients_are_reported() -> None:
    variables = [keras.Variable(np.ones(2, np.float32)) for _ in range(2)]
    optimizer = keras.optimizers.SGD()
    optimizer.build(variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        private.check_gradients(optimizer, [np.ones(2), None], variables)
    with pytest.raises(ValueError, match="No gradients"):
        private.check_gradients(optimizer, [None, None], variables)


def test_stateless_apply_takes_a_gradient_for_each_variable_and_skips_none() -> None:
    variables = [keras.Variable(np.ones(2, np.float32)) for _ in range(2)]
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(variables)
    slots = [one.value for one in optimizer.variables]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        values, _ = optimizer.stateless_apply(slots, [np.ones(2, np.float32), None], [one.value for one in variables])
    assert [value.tolist() for value in values] == [[0.5, 0.5], [1.0, 1.0]], "updates of some of the variables fail"


# Layers and models


def test_compile_is_defined_by_the_trainer() -> None:
    assert "compile" in vars(private.Trainer)
    assert keras.Model.compile is private.Trainer.compile, "Keras takes every model for one with its own compile"


def test_a_built_layer_knows_its_reduction_axes() -> None:
    layer = keras.layers.BatchNormalization()
    layer.build((None, 4, 3))
    assert private.reduction_axes_of(layer) == (0, 1), "statistics over replicas reduce over the wrong axes"


def test_the_inputs_of_a_model_are_known() -> None:
    (spec,) = private.input_signature_of(built())
    assert tuple(spec.shape) == (None, 2), "a model is saved without its inference function"


def test_fit_begins_with_the_initial_epoch() -> None:
    model = built()
    model.compile("sgd", "mse")
    epochs: list[int] = []

    class Noting(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            private.set_initial_epoch(self.model, 2)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append(epoch)

    model.fit(X, Y, epochs=4, verbose=0, callbacks=[Noting()])
    assert epochs == [2, 3], "a restored fit begins with the first epoch"


def test_the_state_of_a_loop_is_assigned_by_a_sync() -> None:
    model = built()
    model.compile("sgd", "mse")
    state = {"trainable_variables": [np.full((2, 1), 7.0, np.float32), np.ones(1, np.float32)]}
    private.set_loop_state(model, state)
    model.jax_state_sync()
    assert model.get_weights()[0].tolist() == [[7.0], [7.0]], "an interrupted fit loses its steps"
    private.set_loop_state(model, {"trainable_variables": [np.zeros((2, 1), np.float32), np.zeros(1, np.float32)]})
    private.set_loop_state(model, None)
    model.jax_state_sync()
    assert model.get_weights()[0].tolist() == [[7.0], [7.0]]


def test_values_that_a_loop_carries_are_released() -> None:
    model = built()
    private.purge_variables(model, trainable_variables=True)
    assert all(variable._value is None for variable in model.trainable_variables), "fit holds the weights twice"


METHODS = {
    "_get_jax_state": {"trainable_variables", "purge_model_variables"},
    "_purge_model_variables": {"trainable_variables", "optimizer_variables"},
    "_make_function": {"step_function"},
    "_get_state_sharding_spec": set(),
    "jax_state_sync": set(),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_training_loops_have_the_methods_that_are_replaced(name: str) -> None:
    parameters = set(inspect.signature(getattr(keras.Model, name)).parameters)
    assert METHODS[name] <= parameters, "training loops of Keras would not use the state of the strategy"


def test_a_distribution_is_a_class_to_inherit_from() -> None:
    parameters = set(inspect.signature(private.Distribution.__init__).parameters)
    assert {"device_mesh", "batch_dim_name"} <= parameters
    for name in ("get_data_layout", "get_variable_layout", "get_tensor_layout", "distribute_dataset"):
        assert callable(getattr(private.Distribution, name)), "fit places batches by itself"


def test_the_global_stream_of_seeds_begins_anew_when_a_process_leaves_its_job() -> None:
    keras.random.normal(())
    kept = private._global_state.get_global_attribute("global_seed_generator")
    assert kept is not None, "Keras keeps the stream elsewhere, whose arrays an elastic job deletes"
    private._forget_global_seeds()
    keras.random.normal(())
    assert private._global_state.get_global_attribute("global_seed_generator") is not kept


# `BackupAndRestore`


def test_a_backup_is_written_to_the_paths_of_the_callback(tmp_path: Path) -> None:
    callback = keras.callbacks.BackupAndRestore(str(tmp_path / "given"))
    assert [path.parent.name for path in private.backup_paths(callback)] == ["given", "given"]
    weights, metadata = tmp_path / "new.weights.h5", tmp_path / "new.json"
    private.set_backup_paths(callback, weights, metadata)
    assert private.backup_paths(callback) == (weights, metadata)
    private.set_current_epoch(callback, 3)
    private.set_last_batch(callback, 5)
    callback.set_model(built())
    callback._save_model()
    assert weights.is_file(), "a kill while a backup is written leaves an incomplete one"
    about = json.loads(metadata.read_text())
    assert about["epoch"] == 3, "a resumed fit begins with the wrong epoch"
    assert about["batch"] == 5


def test_the_previous_backup_has_paths_if_it_is_kept(tmp_path: Path) -> None:
    assert private.previous_backup_paths(keras.callbacks.BackupAndRestore(str(tmp_path))) == ()
    if "double_checkpoint" in inspect.signature(keras.callbacks.BackupAndRestore).parameters:
        kept = keras.callbacks.BackupAndRestore(str(tmp_path), double_checkpoint=True)
        assert len({*private.previous_backup_paths(kept), *private.backup_paths(kept)}) == 4


def test_an_epoch_enumerates_its_batches_as_begin_end_and_iterator() -> None:
    epochs = private.EpochIterator(X, Y, batch_size=4)
    found = [(begin, end) for begin, end, _ in epochs._enumerate_iterator()]
    assert found == [(0, 0), (1, 1)], "a resumed fit cannot skip the batches before the backup"


def test_a_loop_begins_a_pass_by_the_method_that_is_replaced() -> None:
    epochs = private.JAXEpochIterator(X, Y, batch_size=4)
    assert len(list(epochs._get_iterator())) == 2
    assert len(list(epochs.data_adapter.get_jax_iterator())) == 2


def test_the_open_blocks_of_keras_are_attributes_of_its_state() -> None:
    seen = []

    class Seeing(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            state = vars(private._global_state.GLOBAL_STATE_TRACKER)
            seen.append({name for name in private._SCOPES if state.get(name) not in (None, [])})
            return x

    layer = Seeing(dtype="mixed_float16")
    with keras.StatelessScope(), keras.SymbolicScope(), keras.RematScope():
        layer(X)
    assert seen == [{*private._SCOPES}], "after an interrupt, a stateless call or the call of a layer stays open"
    restore = private.noted_scopes()
    keras.name_scope("open").__enter__()
    restore()
    assert keras.src.backend.common.name_scope.current_path() == ""


def test_the_layer_that_has_a_variable_is_the_innermost_one() -> None:
    inner = keras.layers.Dense(1)
    model = built(keras.Sequential([keras.Input((2,)), inner]))
    assert private.layer_with(model, inner.kernel) is inner, "messages name another layer than the variable's"
    assert private.layer_with(model, keras.Variable(0.0)) is None


def test_each_call_of_an_elastic_training_function_names_layers_alike() -> None:
    keras.layers.Dense(1)
    private._note_name_counts()
    try:
        first = keras.Sequential([keras.layers.Dense(1), keras.layers.Dense(1)])
        private._restore_name_counts()
        second = keras.Sequential([keras.layers.Dense(1), keras.layers.Dense(1)])
    finally:
        private._names_before.clear()
    assert [first.name, *(one.name for one in first.layers)] == [second.name, *(one.name for one in second.layers)]
    assert first.layers[0].name != "dense"


def test_masks_of_tracers_are_found_by_id() -> None:
    def traced(array: jax.Array) -> jax.Array:
        mask = array > 0
        private.backend.set_keras_mask(array, mask)
        assert private.masks_of_tracers()[id(array)] is mask, "del tensor._keras_mask does not find the mask"
        return array

    jax.jit(traced)(np.ones(2))
