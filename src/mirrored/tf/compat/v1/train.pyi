"""Type stub of `tf.compat.v1.train`, written by tools/tf_stubs.py."""

from collections.abc import Callable, Sequence
from typing import Any

from mirrored.tf import Tensor, Variable
from mirrored.tf._optimizers_v1 import AdadeltaOptimizer as AdadeltaOptimizer
from mirrored.tf._optimizers_v1 import AdagradOptimizer as AdagradOptimizer
from mirrored.tf._optimizers_v1 import AdamOptimizer as AdamOptimizer
from mirrored.tf._optimizers_v1 import GradientDescentOptimizer as GradientDescentOptimizer
from mirrored.tf._optimizers_v1 import MomentumOptimizer as MomentumOptimizer
from mirrored.tf._optimizers_v1 import OptimizerV1 as _OptimizerV1
from mirrored.tf._optimizers_v1 import RMSPropOptimizer as RMSPropOptimizer
from mirrored.tf.train import BytesList as BytesList
from mirrored.tf.train import Checkpoint as Checkpoint
from mirrored.tf.train import CheckpointManager as CheckpointManager
from mirrored.tf.train import CheckpointOptions as CheckpointOptions
from mirrored.tf.train import ClusterDef as ClusterDef
from mirrored.tf.train import ClusterSpec as ClusterSpec
from mirrored.tf.train import Example as Example
from mirrored.tf.train import ExponentialMovingAverage as ExponentialMovingAverage
from mirrored.tf.train import Feature as Feature
from mirrored.tf.train import FeatureList as FeatureList
from mirrored.tf.train import FeatureLists as FeatureLists
from mirrored.tf.train import Features as Features
from mirrored.tf.train import FloatList as FloatList
from mirrored.tf.train import Int64List as Int64List
from mirrored.tf.train import JobDef as JobDef
from mirrored.tf.train import SequenceExample as SequenceExample
from mirrored.tf.train import checkpoints_iterator as checkpoints_iterator
from mirrored.tf.train import get_checkpoint_state as get_checkpoint_state
from mirrored.tf.train import latest_checkpoint as latest_checkpoint
from mirrored.tf.train import list_variables as list_variables
from mirrored.tf.train import load_checkpoint as load_checkpoint
from mirrored.tf.train import load_variable as load_variable

class Optimizer(_OptimizerV1):
    def variables(self) -> list[Variable]: ...  # type: ignore[override]

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
def inverse_time_decay(
    learning_rate: float,
    global_step: Any,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    name: str | None = None,
) -> Callable[[], Tensor]: ...
def natural_exp_decay(
    learning_rate: float,
    global_step: Any,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    name: str | None = None,
) -> Callable[[], Tensor]: ...
def piecewise_constant(
    x: Any, boundaries: Sequence[float], values: Sequence[float], name: str | None = None
) -> Callable[[], Tensor]: ...
def polynomial_decay(
    learning_rate: float,
    global_step: Any,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Callable[[], Tensor]: ...

piecewise_constant_decay = piecewise_constant
