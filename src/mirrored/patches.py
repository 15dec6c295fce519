"""Lists and applies all monkey patches: attributes of other packages that mirrored replaces.

A framework's objects create their own variables, so that mirrored must patch the framework's classes to support
strategies. `replace` patches an attribute and refuses one that is not listed here; `undo` restores the originals. For
objects that belong to no strategy, a patched method behaves as the original. `tests/test_patches.py` compares the list
with the attributes that really differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

_ARITHMETIC: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
_OPERATORS: Final = tuple(f"__{name}__" for name in (*_ARITHMETIC, *(f"r{one}" for one in _ARITHMETIC), *_COMPARISONS))

# Functions of `tf.keras.backend` that use parts of TensorFlow which `mirrored.tf` does not have.
_KERAS_BACKEND: Final = (
    "cast_to_floatx categorical_crossentropy categorical_focal_crossentropy concatenate conv1d conv2d conv2d_transpose "
    "conv3d count_params dot dtype eval foldl foldr gather in_top_k is_sparse map_fn mean ndim ones pool2d pool3d "
    "random_normal_variable random_uniform_variable repeat repeat_elements resize_images rnn softmax "
    "sparse_categorical_crossentropy spatial_2d_padding spatial_3d_padding std switch temporal_padding "
    "to_dense update update_add update_sub var zeros"
).split()

LISTED: Final[Mapping[str, frozenset[str]]] = {
    "keras": frozenset(
        {
            "ArrayDataAdapter._get_iterator",
            "BackupAndRestore._load_model",
            "BackupAndRestore._save_model",
            "BackupAndRestore.on_epoch_begin",
            "BackupAndRestore.on_epoch_end",
            "BackupAndRestore.on_train_batch_end",
            "BackupAndRestore.on_train_end",
            "Optimizer.add_variable_from_reference",
            "Optimizer.apply",
            "Optimizer.build",
            "BatchNormalization.__init__",
            "BatchNormalization._moments",
            "Discretization.adapt",
            "EpochIterator._enumerate_iterator",
            "EpochIterator.reset",
            "JAXEpochIterator._get_iterator",
            "Layer.__call__",
            "Layer._losses",
            "Layer.__setattr__",
            "Layer.add_weight",
            "Loss.__call__",
            "LossScaleOptimizer.apply",
            "LossScaleOptimizer.build",
            "LossScaleOptimizer.scale_loss",
            "Model.__deepcopy__",
            "Model.__init__",
            "Model._aggregate_additional_loss",
            "Model._get_jax_state",
            "Model._get_state_sharding_spec",
            "Model._make_function",
            "Model._purge_model_variables",
            "Model._symbolic_build",
            "Model._update_metrics_variables",
            "Model.compute_loss_and_updates",
            "Model.evaluate",
            "Model.fit",
            "Model.jax_state_sync",
            "Model.make_predict_function",
            "Model.make_test_function",
            "Model.make_train_function",
            "Model.predict",
            "Model.predict_on_batch",
            "Model.predict_step",
            "Model.save",
            "Model.save_weights",
            "Model.test_on_batch",
            "Model.test_step",
            "Model.train_on_batch",
            "Model.train_step",
            "MultiOptimizer.apply",
            "Normalization.adapt",
            "RNN.variables",
            "keras.src.layers.preprocessing.discretization.tf",
            "keras.src.layers.preprocessing.normalization.tf",
            "MultiOptimizer.build",
            "PyDatasetAdapter._finite_generator",
            "PyDatasetAdapter._infinite_generator",
            "StatelessScope.__enter__",
            "StatelessScope.__exit__",
            "StatelessScope.__init__",
            "StatelessScope.add_loss",
            "StatelessScope.add_update",
            "StatelessScope.get_current_value",
            "TensorBoard._write_keras_model_summary",
            "TensorBoard.summary",
            "Tracer._keras_mask",
            "Tracker.track",
            "Trainer.compile",
            "Variable.__init__",
            "Variable._value",
            "keras.layers.experimental",
            "keras._tf_keras.keras.layers.experimental",
            "keras.src.backend.compute_output_spec",
            "keras.src.backend.jax.core.cond",
            "keras.src.backend.jax.core.fori_loop",
            "keras.src.backend.jax.core.map",
            "keras.src.backend.jax.core.remat",
            "keras.src.backend.jax.core.scan",
            "keras.src.backend.jax.core.switch",
            "keras.src.backend.jax.core.vectorized_map",
            "keras.src.backend.jax.core.while_loop",
            "keras.src.losses.loss.reduce_values",
            "keras.src.losses.loss.reduce_weighted_values",
            "keras.src.losses.loss.scale_loss_for_distribution",
            "keras.src.losses.loss.unscale_loss_for_distribution",
            "keras.src.utils.traceback_utils.inject_argument_info_in_traceback",
        }
    ),
    "flax": frozenset(
        {
            "BatchNorm.__call__",
            "Optimizer.update",
            "Pytree.__delattr__",
            "Pytree._check_valid_context",
            "Pytree._setattr",
            "SpectralNorm.__init__",
            "Variable.__copy__",
            "Variable.__getattr__",
            "Variable.__init__",
            "Variable._can_update",
            "Variable._check_can_update",
            "Variable._new",
            "Variable._raw_value",
            "Variable.get_raw_value",
            "Variable.get_value",
            "Variable.set_value",
            "Welford.__init__",
            "Welford.update",
            "flax.linen.normalization._compute_stats",
            "flax.nnx.extract.from_tree",
            "flax.nnx.graphlib.unflatten",
            "flax.nnx.nn.normalization._compute_stats",
            "flax.nnx.rnglib._graph_updates_fork_rngs",
            "flax.nnx.rnglib._graph_updates_split_rngs",
            "flax.nnx.rnglib.restore_rngs",
            "flax.nnx.tracers.current_jax_trace",
        }
    ),
    # Replaced by `import mirrored.tf`.
    "jax": frozenset(
        {
            "Array.assign",
            "Array.get_shape",
            "Array.numpy",
            "Array.set_shape",
            "Tracer.assign",
            "Tracer.get_shape",
            "Tracer.numpy",
            "Tracer.set_shape",
            *(f"{kind}.{operator}" for kind in ("ArrayImpl", "Tracer") for operator in _OPERATORS),
        }
    ),
    # Replaced by `_jax/array_likes.py`, `_jax/boxes.py`, `_jax/fused_attention.py` and `_jax/rule_closures.py`, and
    # never restored: functions that decide which classes JAX accepts as arrays, and which as symbolic dimensions; the
    # configuration of cuDNN; how functions with custom derivatives are added to jaxprs.
    "jax functions": frozenset(
        {
            "DynamicJaxprTrace.process_custom_jvp_call",
            "DynamicJaxprTrace.process_custom_vjp_call",
            "jax._src.core.canonicalize_value_dtype",  # JAX 0.10.0 only
            "jax._src.core.is_symbolic_dim",
            "jax._src.cudnn.fused_attention_stablehlo.create_dot_product_attention_backend_config_base",
            "jax._src.lax.lax.asarray",
            "jax._src.numpy.indexing.eliminate_deprecated_list_indexing",
        }
    ),
    # Replaced by `import mirrored.tf.keras`: names that TensorFlow has in these namespaces.
    "tf.keras": frozenset(
        {
            "Model.export",
            "SeedGenerator.next",
            *(
                f"keras.src.layers.preprocessing.{name}.tf"
                for name in (
                    "feature_space",
                    "hashed_crossing",
                    "hashing",
                    "integer_lookup",
                    "string_lookup",
                    "text_vectorization",
                )
            ),
            *(f"keras.src.utils.{name}_dataset_utils.tf" for name in ("audio", "image", "text", "timeseries")),
            "keras._tf_keras.keras.utils.set_random_seed",
            "keras._tf_keras.keras.utils.split_dataset",
            "keras.src.legacy.backend.tf",
            *(
                f"{module}.{name}"
                for module in ("keras._tf_keras.keras.backend", "keras.src.legacy.backend")
                for name in _KERAS_BACKEND
            ),
            "keras.src.random.seed_generator.global_seed_generator",
            "keras.utils.set_random_seed",
            "keras.utils.split_dataset",
        }
    ),
}
_ABSENT: Final = object()


@dataclasses.dataclass(frozen=True)
class _Applied:
    package: str
    owner: Any
    name: str
    before: Any

    @property
    def path(self) -> str:
        return path_of(self.owner, self.name)


_applied: list[_Applied] = []


def path_of(owner: type | ModuleType, name: str) -> str:
    """Returns the name under which a patched attribute is listed, such as ``Class.attribute``."""
    # JAX 0.10 includes the module in the qualified names of the classes of its C extension.
    return f"{getattr(owner, '__qualname__', owner.__name__).removeprefix('jaxlib._jax.')}.{name}"


def replace(package: str, owner: type | ModuleType, name: str, value: object) -> None:
    """Replaces (monkey-patches) an attribute of a class or module of another package.

    Args:
        package: The key of the attribute in `LISTED`.
        owner: The class or module.
        name: The name of the attribute.
        value: The new value.
    """
    assert path_of(owner, name) in LISTED[package], f"{path_of(owner, name)} is not listed in mirrored/patches.py"
    _applied.append(_Applied(package, owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def undo(package: str) -> None:
    """Restores all attributes of a package that `mirrored` has monkey-patched."""
    for one in [one for one in reversed(_applied) if one.package == package]:
        if one.before is _ABSENT:
            delattr(one.owner, one.name)
        else:
            setattr(one.owner, one.name, one.before)
        _applied.remove(one)


def is_applied(package: str) -> bool:
    """Returns whether mirrored currently replaces (monkey-patches) any attribute of a package."""
    return package in {one.package for one in _applied}  # Python ignores an interrupt in a generator that it closes


def applied(package: str) -> frozenset[str]:
    """Returns the attributes of a package that mirrored currently replaces (monkey-patches)."""
    return frozenset(one.path for one in _applied if one.package == package)
