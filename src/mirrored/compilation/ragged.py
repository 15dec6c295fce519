"""Checks the loss scale of functions that run eagerly because per-replica batches are uneven, by one extra trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirrored.compilation.frozen_state import PythonState
from mirrored.errors import LossScaleWarning
from mirrored.values import structures
from mirrored.values.distributed_values import PerReplica


def evened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Replaces uneven per-replica batches in arguments by zeros, in the shape of the largest batch on each replica.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> (batch,), _ = evened([PerReplica([np.ones(3), np.ones(2)], strategy.device_assignment)], {})
        >>> [component.shape for component in batch.values]
        [(3,), (3,)]
    """
    args, kwargs = structures.map_leaves(_evened, (tuple(args), dict(kwargs)))
    return args, kwargs


def _evened(leaf: Any) -> Any:
    if not isinstance(leaf, PerReplica) or leaf.is_stacked or leaf.component_shape is not None:
        return leaf
    fullest = max(leaf.values, key=lambda component: int(np.size(component)))
    return PerReplica([np.zeros(np.shape(fullest), fullest.dtype)] * len(leaf.values), leaf.device_assignment)


def check_scale(function: Callable[..., Any], name: str, leaves: Sequence[Any], trace: Callable[[], object]) -> None:
    """Traces a function only to warn of a wrong loss scale; afterwards restores the Python objects that it changed.

    Eager steps compute no jaxpr in which the check could find the scale. If the trace fails, or if the function can
    reach iterators or random generators, which a trace would advance, nothing is checked.

    Args:
        function: The Python function.
        name: Its name, for messages.
        leaves: The leaves of its arguments.
        trace: Traces it.

    Warns:
        LossScaleWarning: As when the function is compiled.
    """
    python_state = PythonState(function, leaves, name)
    if not python_state.can_rewind:
        return
    try:
        trace()
    except LossScaleWarning:
        raise  # warnings are errors
    except Exception:  # the eager step works, or raises its own error
        pass
    finally:
        python_state.rewind()
