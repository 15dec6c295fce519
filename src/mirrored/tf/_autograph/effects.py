"""Refuses changes of lists, dicts and objects that are not part of the state of a traced branch or loop body.

AutoGraph's passes make an item or attribute part of that state if constants and names identify it (`a[0]`, `a[i]`,
`a.b`). Any other change would take effect while the branch is traced, whether it is taken or not.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax
import numpy as np

from mirrored.tf._errors import InvalidArgumentError

_MOST_OBJECTS = 10_000  # objects that are remembered for one branch at most
_PLAIN: Final = (jax.Array, np.ndarray, np.generic, str, bytes, int, float, complex, type, types.ModuleType)


class _Threads(threading.local):
    def __init__(self) -> None:
        self.depth = 0  # converted functions that are running
        self.bodies: list[tuple[int, dict[int, object]]] = []  # of each traced branch: the depth, the objects before it


_threads: Final = _Threads()


def enter() -> None:
    """Marks the start of a converted function, to tell what a branch changes itself from what its callees change."""
    _threads.depth += 1


def leave() -> None:
    """Marks the end of a converted function."""
    _threads.depth -= 1


@contextlib.contextmanager
def tracing(body: Callable[..., object], known: dict[int, object] | None = None) -> Iterator[None]:
    """Refuses changes of objects that exist before a ``with`` block, in which a branch or a loop body is traced."""
    _threads.bodies.append((_threads.depth, existing(body) if known is None else known))
    try:
        yield
    finally:
        _threads.bodies.pop()


def existing(body: Callable[..., object]) -> dict[int, object]:
    """Returns the objects that a function of converted code can change; none if it changes none itself."""
    found: dict[int, object] = {}
    body = body.func if isinstance(body, functools.partial) else body
    code = getattr(body, "__code__", None)
    may_change = code is not None and ("ag__" not in code.co_freevars or _changes(code))
    todo = deque(_contents(body) if may_change else ())
    while todo and len(found) < _MOST_OBJECTS:
        one = todo.popleft()
        if id(one) not in found and not isinstance(one, _PLAIN):
            found[id(one)] = one
            todo.extend(_contents(one))
    return found


def _changes(code: types.CodeType) -> bool:
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return "changing" in code.co_names or any(map(_changes, nested))


def _contents(one: Any) -> list[Any]:
    if isinstance(one, types.FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
    attributes = getattr(one, "__dict__", None)  # malt's marker of an undefined name has each attribute
    own = list(attributes.values()) if isinstance(attributes, dict) else []
    return own + (list(one.values()) if isinstance(one, dict) else list(one) if isinstance(one, (list, tuple)) else [])


def changing(owner: Any, text: str) -> Any:
    """Returns an object of which converted code is about to assign or delete an item or attribute.

    Raises:
        InvalidArgumentError: It exists outside of the traced branch or loop body that assigns it.
    """
    if not _threads.bodies:
        return owner
    depth, known = _threads.bodies[-1]
    if depth != _threads.depth or id(owner) not in known:
        return owner
    frame = sys._getframe(1)
    raise InvalidArgumentError.of(
        "tf.function",
        found=f"`{text}` is assigned or deleted at {frame.f_code.co_filename}:{frame.f_lineno}, in a branch or a loop "
        "body that is traced because a tensor decides whether it runs",
        rule="there, a target is a name, or an item or attribute that names and constants identify: a[0], a[k], a.b",
        remedy="assign the index to a name before the statement (k = i + 1, then a[k] = x), or assign a new value to a "
        "name of the function; for many items use tf.where or a tf.TensorArray",
    )
