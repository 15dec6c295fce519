"""Type stub of `tf.compat.v1.train`, written by tools/tf_stubs.py."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mirrored.tf import GradientTape, Tensor, Variable
from mirrored.tf._optimizers_v1 import AdadeltaOptimizer as _AdadeltaOptimizer
from mirrored.tf._optimizers_v1 import AdagradOptimizer as _AdagradOptimizer
from mirrored.tf._optimizers_v1 import AdamOptimizer as _AdamOptimizer
from mirrored.tf._optimizers_v1 import GradientDescentOptimizer as _GradientDescentOptimizer
from mirrored.tf._optimizers_v1 import MomentumOptimizer as _MomentumOptimizer
from mirrored.tf._optimizers_v1 import OptimizerV1 as _OptimizerV1
from mirrored.tf._optimizers_v1 import RMSPropOptimizer as _RMSPropOptimizer
from mirrored.tf.train import Checkpoint as Checkpoint
from mirrored.tf.train import CheckpointManager as CheckpointManager
from mirrored.tf.train import CheckpointOptions as CheckpointOptions
from mirrored.tf.train import checkpoints_iterator as checkpoints_iterator
from mirrored.tf.train import get_checkpoint_state as get_checkpoint_state
from mirrored.tf.train import latest_checkpoint as latest_checkpoint
from mirrored.tf.train import list_variables as list_variables
from mirrored.tf.train import load_checkpoint as load_checkpoint
from mirrored.tf.train import load_variable as load_variable

class AdadeltaOptimizer(_AdadeltaOptimizer):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def minimize(
        self,
        loss: Callable[[], Any] | Any,
        var_list: Callable[[], Any] | Any,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable: ...

class AdagradOptimizer(_AdagradOptimizer):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def minimize(
        self,
        loss: Callable[[], Any] | Any,
        var_list: Callable[[], Any] | Any,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable: ...

class AdamOptimizer(_AdamOptimizer):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def minimize(
        self,
        loss: Callable[[], Any] | Any,
        var_list: Callable[[], Any] | Any,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable: ...

class GradientDescentOptimizer(_GradientDescentOptimizer):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def minimize(
        self,
        loss: Callable[[], Any] | Any,
        var_list: Callable[[], Any] | Any,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable: ...

class MomentumOptimizer(_MomentumOptimizer):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def minimize(
        self,
        loss: Callable[[], Any] | Any,
        var_list: Callable[[], Any] | Any,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable: ...

class Optimizer(_OptimizerV1):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def get_slot(self, var: Variable, name: str) -> Variable | None: ...
    def compute_gradients(
        self, loss: Callable[[], Any], var_list: Sequence[Variable] | None = None, grad_loss: Any | None = None
    ) -> list[tuple[Any, Variable]]: ...  # type: ignore[override]

class RMSPropOptimizer(_RMSPropOptimizer):
    @property
    def iterations(self) -> Variable: ...
    @property
    def variables(self) -> list[Variable]: ...  # type: ignore[override]
    def slots(self, variable: Variable) -> dict[str, Variable]: ...
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        name: str | None = None,
        *,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
        extra_args: Mapping[str, Any] | None = None,
    ) -> Variable: ...
    def apply(self, grads: Any, trainable_variables: Any | None = None, **options: Any) -> Variable: ...
    def minimize(
        self,
        loss: Callable[[], Any] | Any,
        var_list: Callable[[], Any] | Any,
        tape: GradientTape | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Variable: ...

def cosine_decay(
    learning_rate: float, global_step: Any, decay_steps: int, alpha: float = 0.0, name: str | None = None
) -> Callable[[], Tensor]: ...
def exponential_decay(
    learning_rate: float,
    global_step: Any,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    name: str | None = None,
) -> Callable[[], Tensor]: ...
def get_global_step(graph: object = None) -> Variable | None: ...
def get_or_create_global_step(graph: object = None) -> Variable: ...
def piecewise_constant(
    x: Any, boundaries: Sequence[float], values: Sequence[float], name: str | None = None
) -> Callable[[], Tensor]: ...

piecewise_constant_decay = piecewise_constant
