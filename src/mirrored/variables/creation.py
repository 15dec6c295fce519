"""Creating variables: one for all replicas, wherever the call stands."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from collections.abc import Iterator
from typing import Any

from mirrored.errors import MergeError
from mirrored.replicas.ambient import ambient
from mirrored.replicas.merging import Merge

Creator = Callable[..., Any]
_creators: list[Callable[..., Any]] = []


class VariableMeta(abc.ABCMeta):
    """Lets all replicas of a run that create a variable get one and the same."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make: Creator = super().__call__
        for creator in _creators:
            make = _nested(creator, make)
        session = ambient().runner
        if session is None or session.in_place or ambient().replica is None:
            return make(*args, **kwargs)
        names = "Variable"

        def run(payloads: Sequence[Any]) -> Sequence[Any]:
            _check_names([payload[1].get("name") for payload in payloads])
            first_args, first_kwargs = payloads[0]
            made = make(*first_args, **first_kwargs)
            return [made] * len(payloads)

        return session.meet(Merge(names, run), (args, kwargs))


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
    """Passes every creation of a variable in the block through ``creator(next_creator, *args, **kwargs)``.

    TensorFlow: `tf.variable_creator_scope`.
    """
    _creators.insert(0, creator)
    try:
        yield
    finally:
        _creators.remove(creator)
