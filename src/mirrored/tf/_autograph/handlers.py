"""Rewrites `try` and `with` statements, so that their exceptions and jumps have the meaning of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from mirrored.tf._autograph.state import is_flag
from mirrored.tf._autograph.syntax import jumps, like


class TryElseTransformer(ast.NodeTransformer):
    """Replaces the `else` of a `try` from whose body a `return`, `break` or `continue` jumps, by an `if` statement.

    AutoGraph's passes would run the `else` after the jump. The `if` tests a variable that the end of the body sets.

    Args:
        namer: Creates names of variables that the function does not have.
    """

    def __init__(self, namer: Any) -> None:
        self._namer = namer

    def visit_Try(self, node: ast.Try) -> Any:
        self.generic_visit(node)
        if not node.orelse or not any(jumps(node.body)):
            return node
        name = self._namer.new_symbol("has_ended", ())
        first, last = (_parsed(f"{name} = {value}", node.body[0]) for value in (False, True))
        if not isinstance(node.body[-1], (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            node.body = [*node.body, last]
        after = like(ast.If(ast.Name(name, ast.Load()), node.orelse, []), node.orelse[0])
        final, node.orelse, node.finalbody = node.finalbody, [], []
        inner = [node, after] if node.handlers else [*node.body, after]
        return [first, like(ast.Try(inner, [], [], final), node) if final else node, *([] if final else [after])]


class HandlerTransformer(ast.NodeTransformer):
    """Lets converted `except` clauses and `with` statements refuse exceptions of branches that a tensor controls.

    An exception that a `finally` clause or a context manager raises after a `return`, `break` or `continue` replaces
    the jump. So code that catches it clears the variables by which AutoGraph's passes express the jump. The transformer
    runs after the passes.
    """

    def visit_Try(self, node: ast.Try) -> ast.Try:
        self.generic_visit(node)
        flags = _flags(node.body)
        for one in node.handlers:
            if not _is_generated(one):
                handling = ast.parse("with ag__.Handling(): pass").body[0]
                assert isinstance(handling, ast.With)
                handling.body = [*(_cleared(flag, one.body[0]) for flag in flags), *one.body]
                one.body = [like(handling, one.body[0])]
        return node

    def visit_With(self, node: ast.With) -> ast.With:
        if len(node.items) > 1:  # the first manager may suppress what the exit of the second one raises
            node.items, others = node.items[:1], node.items[1:]
            node.body = [like(ast.With(others, node.body), node)]
        self.generic_visit(node)
        if ast.unparse(node.items[0]).startswith("ag__.FunctionScope("):
            return node
        for item in node.items:
            function = ast.parse("ag__.managed", mode="eval").body
            item.context_expr = ast.Call(function, [item.context_expr], [])
        flags = _flags(node.body)
        if flags:
            again = like(ast.Raise(), node.body[-1])
            handler = ast.ExceptHandler(None, None, [*(_cleared(flag, again) for flag in flags), again])
            node.body = [like(ast.Try(node.body, [handler], [], []), node.body[0])]
        return node


def _flags(statements: Iterable[ast.AST]) -> list[str]:
    """Returns the variables that express jumps from a list of statements."""
    found: dict[str, None] = {}
    for whole in statements:
        for one in ast.walk(whole):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and is_flag(one.id):
                found[one.id] = None
    return list(found)


def _is_generated(handler: ast.ExceptHandler) -> bool:
    """Returns whether AutoGraph's passes have made an `except` clause, which raises its exception again."""
    first, last = handler.body[0], handler.body[-1]
    return isinstance(first, ast.Assign) and _flags([first]) != [] and isinstance(last, ast.Raise)


def _cleared(flag: str, place: ast.stmt) -> ast.stmt:
    return _parsed(f"{flag} = False", place)


def _parsed(text: str, place: ast.stmt) -> ast.stmt:
    """Returns a statement from its source text, with the source location of another statement."""
    return like(ast.parse(text).body[0], place)
