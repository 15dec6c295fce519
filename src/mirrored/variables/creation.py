"""Variable creation: the replicas of a run that execute one constructor call share one variable."""

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
    """Metaclass of variables: the first replica of a run creates a variable, and the others receive the same object.

    It also applies the creators of `variable_creator_scope`.
    """

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of the constructor, for `inspect.signature` and `help`."""
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
    """Returns the variable that all replicas share, identified by the line of user code and the number of executions.

    The n-th execution of a line on one replica creates the same variable as the n-th execution on every other replica.
    """
    line = user_line()
    count = runner.creations[replica, line] = runner.creations.get((replica, line), 0) + 1
    # Replicas run in index order: replica 0 has already created every variable that another replica may create here.
    if replica == 0:
        runner.created[line, count] = made = make()
        return made
    if (line, count) not in runner.created:
        raise MergeError(
            "Variable",
            found=f"replica {replica} creates variable {name!r} at {line}, and replica 0 does not",
            rule="all replicas of a run create the same variables",
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
        rule="all replicas of a run give a variable the same name (a final number may differ)",
        remedy="give it the same name on every replica",
    )


def _stem(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


@contextmanager
def variable_creator_scope(creator: Callable[..., Any]) -> Iterator[None]:
    """Calls ``creator(next_creator, **kwargs)`` for every variable that is created in the block.

    Context: any; it also applies to variables that replicas create in a run inside the block.

    Args:
        creator: Receives the next creator and all of `Variable`'s arguments by keyword. Returns the result of
            ``next_creator(**kwargs)`` or a replacement. In nested scopes the creator of the innermost scope is called
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
