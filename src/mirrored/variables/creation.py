"""Creating variables: one for all replicas, wherever the call stands."""

from __future__ import annotations

import abc
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mirrored.errors import MergeError
from mirrored.replicas.ambient import ambient, within
from mirrored.replicas.merging import Merge

Creator = Callable[..., Any]


class VariableMeta(abc.ABCMeta):
    """Lets all replicas of a run that create a variable get one and the same."""

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
        session = here.runner
        if session is None or session.in_place or here.replica is None:
            return make(*args, **kwargs)

        def run(payloads: Sequence[Any]) -> Sequence[Any]:
            _check_names([payload[1].get("name") for payload in payloads])
            first_args, first_kwargs = payloads[0]
            made = make(*first_args, **first_kwargs)
            return [made] * len(payloads)

        return session.meet(Merge("Variable", run), (args, kwargs))


def _nested(creator: Callable[..., Any], make: Creator) -> Creator:
    return lambda *args, **kwargs: creator(make, *args, **kwargs)


def _check_names(names: Sequence[str | None]) -> None:
    stems = {None if name is None else re.sub(r"_\d+$", "", name) for name in names}
    if len(stems) > 1:
        raise MergeError(
            "Variable",
            found=f"replicas create one variable under the names {', '.join(map(repr, names))}",
            rule="the replicas of a run create a variable together, so its name is one (or differs by a final number)",
            remedy="give it the same name on every replica",
        )


@contextmanager
def variable_creator_scope(creator: Callable[..., Any]) -> Iterator[None]:
    """Passes every creation of a variable in the block through ``creator(next_creator, **kwargs)``.

    Context: any; also for variables that replicas create in a run inside the block.

    Args:
        creator: Gets the next creator and all of `Variable`'s arguments by keyword; returns what ``next_creator(**kwargs)`` makes,
            or something else. Of nested scopes the innermost one's creator is called first.

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
