"""Calls the derivative rules that an eager replica has recorded in the context of that replica.

A tape around the run calls them after the run, where the current replica context is another one: a replica index would
be 0, and a collective would be that of the default strategy, which has one replica.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mirrored._jax.traces import current_trace, is_eval, trace_below_tapes
from mirrored.runtime.ambient import ambient, within

P = ParamSpec("P")
T = TypeVar("T")


def in_context_of_replica(rule: Callable[P, T]) -> Callable[P, T]:
    """Returns `rule`, to be called in the context of the eager replica that runs now, also after its run.

    The rule then has the replica's index, and reads the replica's copies of variables. A collective in it raises
    `ContextError` after the run. Outside of an eager replica, `rule` itself is returned.
    """
    here = ambient()
    if here.replica is None or here.runner is None or not is_eval(trace_below_tapes(current_trace())):
        return rule

    @functools.wraps(rule)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if ambient().replica is here.replica:  # a tape inside the replica function
            return rule(*args, **kwargs)
        with within(strategies=here.strategies, replica=here.replica, runner=None):
            return rule(*args, **kwargs)

    return called
