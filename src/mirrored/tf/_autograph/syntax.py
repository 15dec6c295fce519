"""Rewrites code that AutoGraph's passes mishandle, and rejects statements whose meaning the passes would change."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from malt.pyct import anno, errors

_Target = TypeVar("_Target", ast.Subscript, ast.Attribute)

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def check(node: ast.AST) -> None:
    """Raises an error if a function contains a statement whose meaning AutoGraph's passes would change.

    The function is then not converted, and runs as Python.

    Raises:
        UnsupportedLanguageElementError: The function has such a statement.
    """
    for one in ast.walk(node):
        if isinstance(one, (ast.TryStar, ast.Match)):
            keyword = "match" if isinstance(one, ast.Match) else "except*"
            raise errors.UnsupportedLanguageElementError(f"`{keyword}` is not supported")
        if isinstance(one, ast.Try) and any(jumps(one.finalbody)):
            # It drops an exception, which the passes would not.
            raise errors.UnsupportedLanguageElementError(
                "`return`, `break` and `continue` in `finally` are not supported"
            )
        if any(isinstance(part, ast.NamedExpr) for moved in _moved(one) for part in ast.walk(moved)):
            # The passes move the expression to a function of its own, in which `:=` assigns a local variable.
            raise errors.UnsupportedLanguageElementError(
                "`:=` is not supported in the condition of `while`, in `and`, `or` and `a if b else c`"
            )


def _moved(node: ast.AST) -> list[ast.expr]:
    """Returns the subexpressions of an AST node that AutoGraph's passes move into a separate function."""
    if isinstance(node, ast.While):
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return node.values
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else []


def within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yields all AST nodes in a list of statements, except those of nested functions and classes."""
    for one in nodes:
        if not isinstance(one, _FUNCTIONS):
            yield one
            yield from within(ast.iter_child_nodes(one))


def jumps(nodes: Iterable[ast.AST], in_loop: bool = False) -> Iterator[ast.AST]:
    """Yields the `return` statements, and each `break` and `continue` of an outer loop, in a list of statements."""
    for one in nodes:
        if isinstance(one, ast.Return) or (isinstance(one, (ast.Break, ast.Continue)) and not in_loop):
            yield one
        elif isinstance(one, (ast.For, ast.While)):
            yield from jumps(one.body, True)
            yield from jumps(one.orelse, in_loop)
        elif not isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            yield from jumps(ast.iter_child_nodes(one), in_loop)


class OuterNameTransformer(ast.NodeTransformer):
    """Adds an unused lambda with a function's nonlocal and global names, so that AutoGraph keeps assignments to them.

    Otherwise the passes take such a name for a local variable that is not read after the last `if`, and drop what its
    branches assign. The expression, a lambda that is not called, reads nothing.
    """

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        declared = [one for one in within(node.body) if isinstance(one, (ast.Nonlocal, ast.Global))]
        names = dict.fromkeys(name for one in declared for name in one.names)
        if names:
            start = 1 if ast.get_docstring(node, clean=False) is not None else 0
            (mention,) = ast.parse(f"lambda: ({', '.join(names)},)").body
            last = like(mention, node.body[-1])
            whole = ast.Try(body=node.body[start:], handlers=[], orelse=[], finalbody=[last])
            node.body[start:] = [like(whole, node.body[start])]
        return node


class ReturnAnnotations:
    """Hides return annotations that contain calls, because AutoGraph's passes would convert these calls.

    The passes call in the scope of the function, which does not exist where Python evaluates the annotation.

    Args:
        namer: Creates names that the function does not have.
    """

    def __init__(self, namer: Any) -> None:
        self._namer = namer
        self._hidden: dict[str, ast.expr] = {}

    def hide(self, node: ast.AST) -> None:
        """Replaces each return annotation that contains a call by a generated name."""
        for one in ast.walk(node):
            if not isinstance(one, ast.FunctionDef) or one.returns is None:
                continue
            if any(isinstance(part, ast.Call) for part in ast.walk(one.returns)):
                name = self._namer.new_symbol("returns", ())
                self._hidden[name] = one.returns
                one.returns = ast.copy_location(ast.Name(name, ctx=ast.Load()), one.returns)

    def restore(self, node: ast.AST) -> None:
        """Restores the original return annotations in the converted AST."""
        for one in ast.walk(node):
            if isinstance(one, ast.FunctionDef) and isinstance(one.returns, ast.Name):
                one.returns = self._hidden.get(one.returns.id, one.returns)


class ExceptionNames:
    """Hides the names in `except ... as name` from AutoGraph's passes, which do not support these names.

    The passes see an assignment of the exception. After them its name is cleared at the end of the block, where Python
    deletes it: set to malt's value of an unbound variable, because a later `if` may read the name.

    Args:
        namer: Creates names that the function does not have.
    """

    def __init__(self, namer: Any) -> None:
        self._namer = namer
        self._caught: dict[str, str] = {}  # the created name -> the user's

    def hide(self, node: ast.AST) -> None:
        """Replaces each `except ... as name` by an `except` without a name whose block assigns `name`."""
        for one in ast.walk(node):
            if isinstance(one, ast.ExceptHandler) and one.name is not None:
                caught = self._namer.new_symbol("caught", ())
                self._caught[caught] = one.name
                given = ast.Assign([ast.Name(one.name, ast.Store())], ast.Name(caught, ast.Load()))
                one.body, one.name = [like(given, one.body[0]), *one.body], None

    def restore(self, node: ast.AST) -> None:
        """Restores `as` in converted `except` clauses, and makes the user's name unbound at the end of each clause."""
        for one in ast.walk(node):
            if not isinstance(one, ast.ExceptHandler) or not isinstance(one.body[0], ast.Assign):
                continue
            read = [part.id for part in ast.walk(one.body[0].value) if isinstance(part, ast.Name)]
            one.name = next((name for name in read if name in self._caught), None)
            if one.name is not None:
                (clear,) = ast.parse(f"{self._caught[one.name]} = ag__.Undefined({self._caught[one.name]!r})").body
                whole = ast.Try(body=one.body[1:], handlers=[], orelse=[], finalbody=[like(clear, one.body[-1])])
                one.body[1:] = [like(whole, one.body[1])]


class StatementTransformer(ast.NodeTransformer):
    """Rewrites ``try ... else`` and annotated assignments to equivalents that AutoGraph's passes can process.

    The passes take the first statement of the `else` of a `try` for the `else` itself. An annotation of a local
    variable, which Python does not evaluate, becomes a syntax error where a branch is a function in which the name is
    nonlocal.
    """

    def visit_Try(self, node: ast.Try) -> ast.Try:
        self.generic_visit(node)
        if node.orelse:
            node.orelse = [like(ast.Pass(), node.orelse[0]), *node.orelse]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        return like(ast.Pass() if node.value is None else ast.Assign([node.target], node.value), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Rewrites the statements of a class body, except annotated assignments, which can define dataclass fields."""
        node.body = [one if isinstance(one, ast.AnnAssign) else self.visit(one) for one in node.body]
        return node


class ChangeTransformer(ast.NodeTransformer):
    """Announces the object of each assignment to an item or attribute: ``ag__.changing(a)[i]``.

    AutoGraph's passes make an item or attribute part of the state of a branch if constants and names identify it
    (`a[0]`, `a.b`). Two such expressions, or one of them before and after the name is assigned, can denote different
    values than the passes assume. Of an announced object the value itself is known.
    """

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        return self._announced(node, None)

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        return self._announced(node, node.attr)

    def _announced(self, node: _Target, attribute: str | None) -> _Target:
        text = ast.unparse(node if attribute else node.value)
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            function = ast.parse("ag__.changing", mode="eval").body
            node.value = ast.Call(function, [node.value, ast.Constant(attribute), ast.Constant(text)], [])
        return node


class NestedConditionalTransformer(ast.NodeTransformer):
    """Converts conditional expressions within conditional expressions, into which AutoGraph's pass does not descend.

    It runs after the passes, which have replaced the outermost expressions by calls of `ag__.if_exp`.
    """

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        text = re.sub(r"ag__\.ld\((\w+)\)", r"\1", ast.unparse(node.test))
        self.generic_visit(node)
        function = ast.parse("ag__.if_exp", mode="eval").body
        branches = [_lambda(node.body), _lambda(node.orelse)]
        return ast.Call(function, [node.test, *branches, ast.Constant(text)], [])


class PythonConditionTransformer(ast.NodeTransformer):
    """Makes the conditions that AutoGraph's passes leave as they are accept traced tensors.

    They are the conditions of ``assert``, the ``if`` of comprehensions, ``in`` and ``not in``. In ``assert`` the value
    of a tensor may be known only at run time; the others stay Python and need a known value.
    """

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        """Wraps the condition in ``ag__.asserted``, which checks a tensor at run time if its value is not known before.

        The statement stays an ``assert``: its error has the line of the user, and ``python -O`` removes it.
        """
        self.generic_visit(node)
        message = ast.Constant(None) if node.msg is None else copy.deepcopy(node.msg)
        node.test = _call("asserted", node.test, _lambda(message))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.ifs = [_call("known_truth", test) for test in node.ifs]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Replaces ``x in y``; the passes have split chained comparisons."""
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return node
        found = _call("is_in", node.left, node.comparators[0])
        return found if isinstance(node.ops[0], ast.In) else ast.UnaryOp(ast.Not(), found)


def _call(operator: str, *operands: ast.expr) -> ast.Call:
    return ast.Call(ast.parse(f"ag__.{operator}", mode="eval").body, list(operands), [])


def _lambda(value: ast.expr) -> ast.Lambda:
    """Creates a lambda expression without parameters."""
    return ast.Lambda(ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]), value)


def like(made: ast.stmt, place: ast.stmt) -> ast.stmt:
    """Returns a newly created AST statement with the source location copied from an existing statement."""
    for part in ast.walk(made):
        if not anno.hasanno(part, anno.Basic.ORIGIN) and anno.hasanno(place, anno.Basic.ORIGIN):
            anno.copyanno(place, part, anno.Basic.ORIGIN)
        if isinstance(part, (ast.stmt, ast.expr)) and not hasattr(part, "lineno"):
            ast.copy_location(part, place)
    return made
