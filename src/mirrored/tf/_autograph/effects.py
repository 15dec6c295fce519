"""Reports calls that change lists, dicts and iterators in a traced branch or loop body.

Such changes do not become part of the state of the branch or loop.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import jax
import numpy as np

from mirrored._blocks import contextmanager
from mirrored._jax.traces import belongs_to, current_trace
from mirrored._jax.trees import tree_flatten
from mirrored.tf._errors import InvalidArgumentError

_log = logging.getLogger("mirrored")
_IN_BRANCH: Final = "in a branch or a loop body that is traced because a tensor decides whether it runs"
_warned: Final[set[str]] = set()  # the messages that have been logged
_MOST_OBJECTS = 10_000  # objects that are remembered for one branch at most
_METHODS: Final = frozenset(
    ("append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort", "update")
)
_PLAIN: Final = (jax.Array, np.ndarray, np.generic, str, bytes, int, float, complex, type, types.ModuleType)


class _Threads(threading.local):
    def __init__(self) -> None:
        self.depth = 0  # converted functions that are running
        self.bodies: list[tuple[int, dict[int, object]]] = []  # of each traced branch: the depth, the objects before it


_threads: Final = _Threads()


def depth() -> int:
    """Returns how many converted functions are running in this thread."""
    return _threads.depth


def enter() -> None:
    """Marks the start of a converted function, to tell what a branch changes itself from what its callees change."""
    _threads.depth += 1


def leave() -> None:
    """Marks the end of a converted function."""
    _threads.depth -= 1


@contextmanager
def tracing(body: Callable[..., object], known: dict[int, object] | None = None) -> Iterator[None]:
    """Reports changes of lists, dicts and iterators that exist before a ``with`` block that traces a branch or body."""
    bodies = _threads.bodies
    try:
        _threads.bodies = [*bodies, (_threads.depth, existing(body) if known is None else known)]
        yield
    finally:
        _threads.bodies = bodies


def existing(body: Callable[..., object]) -> dict[int, object]:
    """Returns the objects that a function of converted code can change; none if it changes none itself."""
    found: dict[int, object] = {}
    body = body.func if isinstance(body, functools.partial) else body
    code = getattr(body, "__code__", None)
    may_change = code is not None and ("ag__" not in code.co_freevars or _changes(code))
    todo = deque(one for one in _contents(body) if may_change or is_python_iterator(one))
    while todo and len(found) < _MOST_OBJECTS:
        one = todo.popleft()
        if id(one) not in found and not isinstance(one, _PLAIN):
            found[id(one)] = one
            todo.extend(_contents(one))
    return found


def _changes(code: types.CodeType) -> bool:
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return not _METHODS.isdisjoint(code.co_names) or any(map(_changes, nested))


def _contents(one: Any) -> list[Any]:
    if isinstance(one, types.FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
    attributes = getattr(one, "__dict__", None)  # malt's marker of an undefined name has each attribute
    own = list(attributes.values()) if isinstance(attributes, dict) else []
    return own + (list(one.values()) if isinstance(one, dict) else list(one) if isinstance(one, (list, tuple)) else [])


def is_python_iterator(value: object) -> bool:
    """Returns whether a value is a generator or one of Python's own iterators, whose position is no part of a state."""
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")


def reading(values: Iterable[object], called: str) -> None:
    """Reports that code advances an iterator which exists before the branch that is traced, with a warning per line.

    Args:
        values: Values of which each may be such an iterator.
        called: What advances it: ``next``, ``for``.
    """
    if not _threads.bodies:
        return
    for one in values:
        if is_python_iterator(one) and id(one) in _threads.bodies[-1][1]:
            _warn(f"`{called}` advances a {type(one).__name__} at {_line(sys._getframe(2))}, {_IN_BRANCH}")


def calling(method: Any, args: Sequence[object]) -> None:
    """Reports that code calls a method that changes a list or dict which exists before the branch that is traced.

    It logs a warning once for each line. As in TensorFlow, the method is called.

    Raises:
        InvalidArgumentError: The branch or loop body itself stores a tensor that it has computed.
    """
    if not _threads.bodies or method.__name__ not in _METHODS or id(method.__self__) not in _threads.bodies[-1][1]:
        return
    where = _line(sys._getframe(2))
    found = f"`{method.__name__}` changes a {type(method.__self__).__name__} at {where}, {_IN_BRANCH}"
    leaves = tree_flatten(list(args))[0]
    if _threads.bodies[-1][0] == _threads.depth and any(belongs_to(one, current_trace()) for one in leaves):
        raise InvalidArgumentError.of(
            "tf.function",
            found=found,
            rule="a tensor that such a branch or body computes reaches other code through names only; the call takes "
            "effect once, while tracing, in any case",
            remedy="write rows to a tf.TensorArray, or assign the tensor to a name on every path",
        )
    _warn(found)


def _line(frame: types.FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _warn(found: str) -> None:
    if found not in _warned:
        _warned.add(found)
        _log.warning("%s. It takes effect once, while tracing, in any case. Use names or a tf.TensorArray", found)
