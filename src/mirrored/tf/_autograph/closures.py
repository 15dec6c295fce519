"""The names that nested functions, lambdas, classes and generator expressions share with the function around them.

They are called closures here. A closure reads such a name when it is called, which may be after any later statement.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from mirrored.tf._autograph.state import Lost

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CLOSURES: Final = (*_FUNCTIONS, ast.ClassDef, ast.GeneratorExp)
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp)


class Closures:
    """The closures of one function, in the order of the source.

    Args:
        body: The statements of the function.
    """

    def __init__(self, body: Sequence[ast.AST]) -> None:
        self._nodes = list(_within(body))
        self._order = {one: number for number, one in enumerate(self._nodes)}
        self._names = {one: free_names(one) for one in self._nodes if isinstance(one, _CLOSURES)}
        self.assigned = frozenset(name for one in self._names for name in _declared_nonlocal(one))

    def created_by(self, node: ast.AST) -> set[str]:
        """Returns the names of the closures that one AST node creates."""
        return self._of(_within([node])) if self._names else set()

    def inside(self, node: ast.If | ast.While | ast.For) -> set[str]:
        """Returns the names of the closures that the branches of an `if`, or the body of a loop, create."""
        return self._of(_within([*node.body, *node.orelse])) if self._names else set()

    def around(self, node: ast.If | ast.While | ast.For, loop: ast.While | ast.For | None) -> set[str]:
        """Returns the names of the closures that may exist when the branches or the body of a statement run.

        Closures that the branches or the body create themselves do not count.

        Args:
            node: The statement.
            loop: The outermost loop around it; None outside of loops.
        """
        if not self._names:
            return set()
        own = set(_within([*node.body, *node.orelse]))
        repeated = set() if loop is None else set(_within([loop]))
        head = set(_within([node]))
        start = self._order.get(node, len(self._nodes))
        found = (one for one in self._names if self._order[one] < start or one in repeated or one in head)
        return self._of(one for one in found if one not in own)

    def _of(self, nodes: Iterable[ast.AST]) -> set[str]:
        return {name for one in nodes if one in self._names for name in self._names[one]}


def isolated(body: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Returns a branch or a loop body with variables of its own for names that only closures in it read.

    It is traced once for all executions, so the closures that the trace creates keep the values that it gives to the
    names. Closures that an execution by Python has created before do not know these values: the names are lost for
    them.

    Args:
        body: The function of converted code that runs the branch or the body.
        names: The names.
    """
    if not names or not isinstance(body, types.FunctionType):
        return body
    closure = list(body.__closure__ or ())
    for index, name in enumerate(body.__code__.co_freevars):
        if name in names:
            closure[index].cell_contents = Lost(name)
            closure[index] = types.CellType(Lost(name))
    made = types.FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__, tuple(closure))
    made.__kwdefaults__ = body.__kwdefaults__
    return made


def free_names(node: ast.AST) -> set[str]:
    """Returns the names in a closure that belong to the code around it."""
    scope = _Scope()
    if isinstance(node, _FUNCTIONS):
        scope.add(node.body if isinstance(node.body, list) else [node.body])
        scope.bound.update(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg))
        return ((scope.read | scope.inner) - scope.bound - scope.global_) | scope.nonlocal_
    if isinstance(node, ast.ClassDef):  # functions in a class do not see its attributes
        scope.add(node.body)
        return (scope.read | scope.inner | scope.nonlocal_) - scope.global_
    assert isinstance(node, ast.GeneratorExp)
    first, *others = node.generators
    scope.add([first.target, *first.ifs, *others, node.elt])
    return (scope.read | scope.inner) - scope.bound


class _Scope:
    """The names of one scope: of a function, a class, or a comprehension."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.bound: set[str] = set()
        self.nonlocal_: set[str] = set()
        self.global_: set[str] = set()
        self.inner: set[str] = set()  # that closures in the scope read

    def add(self, nodes: Iterable[ast.AST]) -> None:
        """Adds the names in AST nodes."""
        for one in nodes:
            if isinstance(one, ast.Name):
                (self.read if isinstance(one.ctx, ast.Load) else self.bound).add(one.id)
            elif isinstance(one, ast.Nonlocal):
                self.nonlocal_.update(one.names)
            elif isinstance(one, ast.Global):
                self.global_.update(one.names)
            elif isinstance(one, ast.alias):
                self.bound.add(one.asname or one.name.partition(".")[0])
            elif isinstance(one, _COMPREHENSIONS):
                part = _Scope()
                part.add(ast.iter_child_nodes(one))
                self.read |= part.read - part.bound
                self.inner |= part.inner - part.bound
                self.bound.update(each.target.id for each in ast.walk(one) if isinstance(each, ast.NamedExpr))
            else:
                self._add_other(one)

    def _add_other(self, node: ast.AST) -> None:
        if isinstance(node, _CLOSURES):
            self.inner |= free_names(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.bound.add(node.name)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            self.bound.add(node.name)
        self.add(_evaluated(node))


def _evaluated(node: ast.AST) -> Iterable[ast.AST]:
    """Returns the parts of an AST node that Python evaluates in its scope; of a closure, those at its creation."""
    if isinstance(node, ast.GeneratorExp):
        return [node.generators[0].iter]
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    return ast.iter_child_nodes(node)


def _within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yields AST nodes and the nodes in them, in order, without the bodies of closures."""
    for one in nodes:
        yield one
        yield from _within(_evaluated(one))


def _declared_nonlocal(node: ast.AST) -> set[str]:
    return {name for one in ast.walk(node) if isinstance(one, ast.Nonlocal) for name in one.names}
