"""Type stub of `tf.compat.v1.losses`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf import Tensor
from mirrored.tf._losses_v1 import Reduction as Reduction

def absolute_difference(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = None,
    reduction: str = "weighted_sum_by_nonzero_weights",
) -> Tensor: ...
def hinge_loss(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def huber_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    delta: float = 1.0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def log_loss(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    epsilon: float = 1e-07,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def mean_squared_error(
    labels: Any,
    predictions: Any,
    weights: Any = 1.0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def sigmoid_cross_entropy(
    multi_class_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def softmax_cross_entropy(
    onehot_labels: Any,
    logits: Any,
    weights: Any = 1.0,
    label_smoothing: float = 0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
def sparse_softmax_cross_entropy(
    labels: Any,
    logits: Any,
    weights: Any = 1.0,
    scope: Any = None,
    loss_collection: Any = None,
    reduction: Any = "weighted_sum_by_nonzero_weights",
) -> Any: ...
