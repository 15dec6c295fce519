"""Type stub of `tf.compat.v1.losses`, written by tools/tf_stubs.py."""

from typing import Any

from mirrored.tf import Tensor
from mirrored.tf._losses_v1 import Reduction as Reduction

def compute_weighted_loss(
    losses: Any,
    weights: Any = 1.0,
    scope: str | None = None,
    loss_collection: str | None = None,
    reduction: str = "weighted_sum_by_nonzero_weights",
) -> Tensor: ...
