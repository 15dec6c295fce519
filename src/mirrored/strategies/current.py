"""Where am I? The current strategy and context."""

from __future__ import annotations

from typing import Any

from mirrored.collectives.cross_device_ops import AllReduce
from mirrored.errors import ContextError
from mirrored.runtime import framework_bridges
from mirrored.runtime.ambient import ambient, replace_current
from mirrored.strategies.context import ReplicaContext
from mirrored.strategies.strategy import Strategy

_default = Strategy(None, AllReduce())
_default_context = ReplicaContext(_default, 0, 0)


def get_strategy() -> Strategy:
    """The strategy whose scope (or run) surrounds this call; outside of any, the default strategy with one replica.

    Context: any. TensorFlow: `tf.distribute.get_strategy`.
    """
    strategies = ambient().strategies
    return strategies[-1] if strategies else _default


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current.

    Context: any. TensorFlow: `tf.distribute.has_strategy`.
    """
    return get_strategy() is not _default


def get_replica_context() -> ReplicaContext | None:
    """The replica context inside `run` (and outside any strategy), None in cross-replica context.

    Context: any. TensorFlow: `tf.distribute.get_replica_context`.
    """
    here = ambient()
    if here.replica is not None:
        return here.replica  # type: ignore[no-any-return]
    return None if has_strategy() or here.runner is not None else _default_context


def in_cross_replica_context() -> bool:
    """Whether this code sees all replicas at once: in `scope()` but not in `run`, or in a merge.

    Context: any. TensorFlow: `tf.distribute.in_cross_replica_context`.
    """
    return get_replica_context() is None


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Makes `strategy` the current one until further notice; None ends that.

    Raises:
        ContextError: Inside a scope or run.

    TensorFlow: `tf.distribute.experimental_set_strategy`.
    """
    here = ambient()
    if here.replica is not None or len(here.strategies) > 1 or (here.strategies and not _set_globally.strategies):
        raise ContextError(
            "experimental_set_strategy",
            found=f"it was called in the scope of {here.strategies[-1]!r}",
            rule="it sets the strategy for code outside any scope",
            remedy="leave the scope first",
        )
    framework_bridges.end_watching(_set_globally.finder)
    _set_globally.finder = None
    _set_globally.strategies = () if strategy is None else (strategy,)
    replace_current(here.fork(strategies=_set_globally.strategies))
    if strategy is not None:
        framework_bridges.connect()
        _set_globally.finder = framework_bridges.watch_imports()


class _SetGlobally:
    """What `experimental_set_strategy` has set, and what connects the frameworks that are imported from then on."""

    strategies: tuple[Any, ...] = ()
    finder: framework_bridges.Finder | None = None


_set_globally = _SetGlobally()
