"""Functions that return the current strategy and replica context."""

from __future__ import annotations

from typing import Any

from mirrored.collectives.cross_device_ops import AllReduce
from mirrored.errors import ContextError
from mirrored.runtime import hooks
from mirrored.runtime.ambient import ambient, replace_current
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.strategy import Strategy

_default = Strategy(None, AllReduce())
_default_context = ReplicaContext(_default, 0, 0)


def get_strategy() -> Strategy:
    """Returns the strategy of the enclosing scope or run; outside both, the default strategy with one replica.

    Context: any. TensorFlow: `tf.distribute.get_strategy`.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> with strategy.scope():
        ...     print(mr.get_strategy() is strategy)
        True
        >>> mr.get_strategy().num_replicas_in_sync
        1
    """
    strategies = ambient().strategies
    return strategies[-1] if strategies else _default


def has_strategy() -> bool:
    """Returns whether a strategy other than the default one-replica strategy is current.

    Context: any. TensorFlow: `tf.distribute.has_strategy`.

    Example:
        >>> import mirrored as mr
        >>> mr.has_strategy()
        False
        >>> with mr.MirroredStrategy(["CPU:0"]).scope():
        ...     print(mr.has_strategy())
        True
    """
    return get_strategy() is not _default


def get_replica_context() -> ReplicaContext | None:
    """Returns the replica context inside `Strategy.run` and outside any strategy; None in cross-replica context.

    Context: any. TensorFlow: `tf.distribute.get_replica_context`.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group).values
        (0, 1)
        >>> with strategy.scope():
        ...     print(mr.get_replica_context())
        None
    """
    here = ambient()
    if here.replica is not None:
        return here.replica  # type: ignore[no-any-return]
    return _default_context if here.is_in_replica_context else None


def in_cross_replica_context() -> bool:
    """Returns whether the caller is in a strategy's `scope()` or in `merge_call`, not in a replica.

    Context: any. TensorFlow: `tf.distribute.in_cross_replica_context`.

    Example:
        >>> import mirrored as mr
        >>> strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
        >>> with strategy.scope():
        ...     mr.in_cross_replica_context(), strategy.run(mr.in_cross_replica_context)
        (True, False)
    """
    return get_replica_context() is None


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Makes `strategy` the current strategy of all code outside a scope; None restores the default strategy.

    Raises:
        ContextError: The call is inside a scope or run.

    Example:
        >>> import mirrored as mr
        >>> mr.experimental_set_strategy(mr.MirroredStrategy(["CPU:0"], num_replicas=2))
        >>> mr.get_strategy().num_replicas_in_sync
        2
        >>> mr.experimental_set_strategy(None)
        >>> mr.get_strategy().num_replicas_in_sync
        1

    TensorFlow: `tf.distribute.experimental_set_strategy`.
    """
    here = ambient()
    if here.replica is not None or len(here.strategies) > 1 or (here.strategies and not _set_globally.strategies):
        raise ContextError(
            "experimental_set_strategy",
            found=f"it was called in the scope of {here.strategies[-1]!r}",
            rule="it sets the strategy for code outside any scope, so it must be called there",
            remedy="leave the scope first",
        )
    hooks.end_watching(_set_globally.finder)
    _set_globally.finder = None
    _set_globally.strategies = () if strategy is None else (strategy,)
    replace_current(here.fork(strategies=_set_globally.strategies))
    if strategy is not None:
        hooks.connect()
        _set_globally.finder = hooks.watch_imports()


class _SetGlobally:
    """State of `experimental_set_strategy`: the strategy, and the hook that integrates frameworks on import."""

    strategies: tuple[Any, ...] = ()
    finder: hooks.Finder | None = None


_set_globally = _SetGlobally()
