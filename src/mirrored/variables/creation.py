"""Creating variables: one for all replicas, wherever the call stands."""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mirrored._jax.frames import user_line
from mirrored.errors import MergeError
from mirrored.runtime.ambient import ambient, within
from mirrored.runtime.merging import ReplicaRunner

Creator = Callable[..., Any]


class VariableMeta(abc.ABCMeta):
    """Lets all replicas of a run that create a variable get the same one: the first makes it, the others find it."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, for `inspect.signature` and `help`."""
        first, *rest = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return inspect.Signature(rest)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make: Creator = super().__call__
        here = ambient()
        if here.creators:
            bound = inspect.signature(cls).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = (), dict(bound.arguments)
        for creator in here.creators:
            make = _nested(creator, make)
        runner = here.runner
        if runner is None or runner.in_place or here.replica is None:
            return make(*args, **kwargs)
        name = inspect.signature(cls).bind(*args, **kwargs).arguments.get("name")
        return _shared(runner, here.replica.local_index, name, lambda: make(*args, **kwargs))


def _nested(creator: Callable[..., Any], make: Creator) -> Creator:
    return lambda *args, **kwargs: creator(make, *args, **kwargs)


def _shared(runner: ReplicaRunner, replica: int, name: str | None, make: Callable[[], Any]) -> Any:
    """The variable that the replicas create at this line of user code, as often as this one has come here."""
    line = user_line()
    count = runner.creations[replica, line] = runner.creations.get((replica, line), 0) + 1
    # Replicas run in order, so whatever another one creates, the first has created before.
    if replica == 0:
        runner.created[line, count] = made = make()
        return made
    if (line, count) not in runner.created:
        raise MergeError(
            "Variable",
            found=f"replica {replica} creates variable {name!r} at {line}, and replica 0 does not",
            rule="the replicas of a run create a variable together",
            remedy="create it on every replica, at the same line, or outside run",
        )
    made = runner.created[line, count]
    _check_names(made.name, name)
    return made


def _check_names(first: str, name: str | None) -> None:
    if name is None or _stem(name) == _stem(first):
        return
    raise MergeError(
        "Variable",
        found=f"replicas create one variable under the names {first!r}, {name!r}",
        rule="the replicas of a run create a variable together, so its name is one (or differs by a final number)",
        remedy="give it the same name on every replica",
    )


def _stem(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


@contextmanager
def variable_creator_scope(creator: Callable[..., Any]) -> Iterator[None]:
    """Passes every creation of a variable in the block through ``creator(next_creator, **kwargs)``.

    Context: any; also for variables that replicas create in a run inside the block.

    Args:
        creator: Gets the next creator and all of `Variable`'s arguments by keyword; returns what
            ``next_creator(**kwargs)`` makes, or something else. Of nested scopes the innermost one's creator is called
            first.

    Example:
        >>> import mirrored as mr
        >>> def frozen(next_creator, **kwargs):
        ...     return next_creator(**{**kwargs, "trainable": False})
        >>> with mr.variable_creator_scope(frozen):
        ...     print(mr.Variable(1.0).trainable)
        False

    TensorFlow: `tf.variable_creator_scope`. The creator is called once per variable, not once per copy.
    """
    with within(creators=(*ambient().creators, creator)):
        yield
