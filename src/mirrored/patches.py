"""What mirrored changes in other packages: one list, and the only place that changes them.

A framework's objects make their variables themselves, so that its classes have to be told of strategies. `replace` does
that and refuses what is not listed here; `undo` puts back what was there before. For objects that belong to no strategy
a changed method does what it did before. `tests/test_patches.py` compares the list with what really differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

LISTED: Final[Mapping[str, frozenset[str]]] = {
    "keras": frozenset(
        {
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
            "EpochIterator._enumerate_iterator",
            "Layer.__call__",
            "Layer.__setattr__",
            "Loss.__call__",
            "LossScaleOptimizer.apply",
            "LossScaleOptimizer.build",
            "LossScaleOptimizer.scale_loss",
            "Model.__deepcopy__",
            "Model.__init__",
            "Model._get_jax_state",
            "Model._get_state_sharding_spec",
            "Model._make_function",
            "Model._purge_model_variables",
            "Model.evaluate",
            "Model.fit",
            "Model.jax_state_sync",
            "Model.make_predict_function",
            "Model.make_test_function",
            "Model.make_train_function",
            "Model.predict",
            "Model.predict_on_batch",
            "Model.save",
            "Model.save_weights",
            "Model.test_on_batch",
            "Model.train_on_batch",
            "StatelessScope.__enter__",
            "StatelessScope.__exit__",
            "StatelessScope.__init__",
            "TensorBoard._write_keras_model_summary",
            "TensorBoard.summary",
            "Tracker.track",
            "Trainer.compile",
            "Variable.__init__",
            "keras.layers.experimental",
            "keras._tf_keras.keras.layers.experimental",
            "keras.src.backend.compute_output_spec",
        }
    ),
    "flax": frozenset(
        {
            "Optimizer.update",
            "Pytree._check_valid_context",
            "Pytree._setattr",
            "Variable.__getattr__",
            "Variable.__init__",
            "Variable._can_update",
            "Variable._check_can_update",
            "Variable._new",
            "Variable._raw_value",
            "Variable.get_raw_value",
            "Variable.get_value",
            "Variable.set_value",
            "flax.nnx.tracers.current_jax_trace",
        }
    ),
    # By `import mirrored.tf`.
    "jax": frozenset(
        {
            "Array.get_shape",
            "Array.numpy",
            "Array.set_shape",
            "Tracer.get_shape",
            "Tracer.numpy",
            "Tracer.set_shape",
        }
    ),
    # By `import mirrored.tf.keras`: names that TensorFlow has in these namespaces.
    "tf.keras": frozenset({"keras.src.utils.timeseries_dataset_utils.tf"}),
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


def path_of(owner: Any, name: str) -> str:
    """How an attribute is listed: by its class's name, or its module's."""
    # Of the classes of its C extension, JAX 0.10 has the module in the qualified name.
    return f"{getattr(owner, '__qualname__', owner.__name__).removeprefix('jaxlib._jax.')}.{name}"


def replace(package: str, owner: Any, name: str, value: Any) -> None:
    """Replaces an attribute of a class or module of another package.

    Args:
        package: Under which `LISTED` has it.
        owner: The class or module.
        name: The attribute.
        value: What it becomes.
    """
    assert path_of(owner, name) in LISTED[package], f"{path_of(owner, name)} is not listed in mirrored/patches.py"
    _applied.append(_Applied(package, owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def undo(package: str) -> None:
    """Puts back all that was replaced in a package."""
    for one in [one for one in reversed(_applied) if one.package == package]:
        if one.before is _ABSENT:
            delattr(one.owner, one.name)
        else:
            setattr(one.owner, one.name, one.before)
        _applied.remove(one)


def is_applied(package: str) -> bool:
    """Whether anything is replaced in a package now."""
    return any(one.package == package for one in _applied)


def applied(package: str) -> frozenset[str]:
    """What is replaced in a package now."""
    return frozenset(one.path for one in _applied if one.package == package)
