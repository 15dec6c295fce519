"""`tf.Module`, a container that lists the variables in its attributes, and `tf.name_scope`."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

import jax

from mirrored._blocks import contextmanager
from mirrored.checkpoint.deferred import restore_created
from mirrored.runtime.ambient import thread
from mirrored.tf._nest import is_nested, with_paths
from mirrored.variables.creation import variable_creator_scope
from mirrored.variables.variable import Variable


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()


_scopes = _Scopes()


class name_scope:
    """A context manager that adds a prefix to the names of new variables, and of operations in profiles.

    Context: any. A scope is reentrant.

    Args:
        name: One or more parts separated by slashes; "" closes all open scopes in the block.
        default_name: Accepted for compatibility and ignored.

    Example:
        >>> import mirrored.tf as tf
        >>> with tf.name_scope("layer"):
        ...     v = tf.Variable(1.0, name="w")
        >>> v.name
        'layer/w'

    TensorFlow: `tf.name_scope`.
    """

    def __init__(self, name: str = "", default_name: str | None = None, values: object = None) -> None:
        del values
        self._name = name or default_name or ""
        # By thread, because replica threads can share a scope.
        self._open: dict[int, tuple[AbstractContextManager[str], ...]] = {}

    @property
    def name(self) -> str:
        """The name of the scope, as passed to the constructor."""
        return self._name

    def __enter__(self) -> str:
        """Opens the scope and returns its full name with a trailing slash."""
        here, opened, full = threading.get_ident(), _opened(self._name), None
        outer = self._open.get(here, ())
        try:
            full = opened.__enter__()
            self._open[here] = (*outer, opened)
            return full
        except BaseException:  # an interrupt, such as Ctrl-C: the block does not run, so that nothing would end it
            if full is not None:
                opened.__exit__(None, None, None)
            self._keep(here, outer)
            raise

    def __exit__(self, *error: object) -> None:
        """Closes the scope."""
        blocks = None
        try:
            blocks = self._open[threading.get_ident()]
            self._close(blocks)
        except BaseException:  # an interrupt, such as Ctrl-C
            self._close(blocks or self._open[threading.get_ident()])
            raise

    def _close(self, blocks: tuple[AbstractContextManager[str], ...]) -> None:
        blocks[-1].__exit__(None, None, None)  # no effect after the first call
        self._keep(threading.get_ident(), blocks[:-1])

    def _keep(self, thread: int, blocks: tuple[AbstractContextManager[str], ...]) -> None:
        if blocks:
            self._open[thread] = blocks
        else:
            self._open.pop(thread, None)


@contextmanager
def _opened(name: str) -> Iterator[str]:
    before, context = _scopes.names, thread.current
    mine = (*before, name.strip("/")) if name else ()
    try:
        _scopes.names = mine
        if mine:
            with jax.named_scope(mine[-1]), variable_creator_scope(functools.partial(_prefixed, mine)):
                yield "/".join(mine) + "/"
        else:
            yield ""
    finally:
        _scopes.names = before
        if mine:  # an interrupt where the `__exit__` of the creator's scope begins would keep the creator
            thread.current = context


def current_name_scope() -> str:
    """Returns the names of the open name scopes as a path, such as ``"outer/inner"``; "" outside any scope.

    TensorFlow: `tf.get_current_name_scope`.
    """
    return "/".join(_scopes.names)


def _prefixed(scope: tuple[str, ...], make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if _scopes.names is scope:  # the innermost scope holds the complete path
        kwargs["name"] = "/".join([*scope, kwargs.get("name") or "Variable"])
    return make(*args, **kwargs)


class Module:
    """A container that lists the variables and modules in its attributes (`tf.Module`).

    Context: any. Variables are found in attributes, lists, tuples and dictionaries, at any depth.

    Args:
        name: A Python identifier; by default the class name in snake case.

    Example:
        >>> import mirrored.tf as tf
        >>> class Dense(tf.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.w = tf.Variable(tf.ones([2, 2]), name="w")
        >>> Dense().name, len(Dense().trainable_variables)
        ('dense', 1)

    TensorFlow: `tf.Module`.
    """

    def __init__(self, name: str | None = None) -> None:
        chosen = name or _snake_case(type(self).__name__)
        if not chosen.isidentifier():
            raise ValueError(f"{chosen!r} is not a valid module name. Module names must be valid Python identifiers.")
        self._name = chosen
        self._name_scope = name_scope(chosen)

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute, and completes a deferred checkpoint restore of the variables in the assigned value."""
        super().__setattr__(name, value)
        restore_created(value)

    @property
    def name(self) -> str:
        """The name of the module, by default the class name in snake case."""
        return self._name

    @property
    def name_scope(self) -> name_scope:
        """The name scope in which methods decorated by `with_name_scope` run."""
        return self._name_scope

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and its submodules, in the order of attribute names."""
        return tuple(self._flatten(predicate=_is_variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables of this module and its submodules that gradient tapes watch automatically."""
        return tuple(one for one in self.variables if one.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The variables of this module and its submodules that gradient tapes do not watch automatically."""
        return tuple(one for one in self.variables if not one.trainable)

    @property
    def submodules(self) -> tuple[Module, ...]:
        """All modules in the attributes of this module, at any depth."""
        return tuple(self._flatten(predicate=_is_module))

    def _flatten(
        self,
        recursive: bool = True,
        predicate: Callable[[Any], bool] | None = None,
        attribute_traversal_key: Callable[[str], Any] | None = None,
        with_path: bool = False,
        expand_composites: bool = False,
    ) -> Iterator[Any]:
        """Yields the distinct objects in attributes of this module and its submodules for which `predicate` is true."""
        del expand_composites
        walk = _walk(self, (), {id(self)}, recursive, predicate or (lambda _: True), attribute_traversal_key)
        return walk if with_path else (part for _, part in walk)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a method so that variables created in it have the module's name as a prefix."""

        @functools.wraps(method)
        def run(self: Self, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return run


_HIDDEN = ("_name", "_name_scope", "_self_unconditional_checkpoint_dependencies")


def _walk(
    module: object,
    path: tuple[Any, ...],
    seen: set[int],
    recursive: bool,
    predicate: Callable[[Any], bool],
    key: Callable[[str], Any] | None,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    attributes = {name: value for name, value in vars(module).items() if name not in _HIDDEN}
    inner: list[tuple[tuple[Any, ...], Any]] = []
    for name in sorted(attributes, key=key):
        value = attributes[name]
        for place, leaf in with_paths(value) if is_nested(value) else [((), value)]:
            if id(leaf) in seen:
                continue
            if predicate(leaf):
                seen.add(id(leaf))
                yield (*path, name, *place), leaf
            if recursive and _is_module(leaf):
                inner.append(((*path, name, *place), leaf))
    for place, leaf in inner:
        seen.add(id(leaf))
        yield from _walk(leaf, place, seen, recursive, predicate, key)


def _is_variable(value: object) -> bool:
    return isinstance(value, Variable)


def _is_module(value: object) -> bool:
    return isinstance(value, Module)


def _snake_case(name: str) -> str:
    return re.sub(r"((?<=[a-z0-9])[A-Z]|(?!^)(?<!_)[A-Z](?=[a-z]))", r"_\1", name).lower()
