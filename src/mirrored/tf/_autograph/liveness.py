"""AutoGraph's pass for `if`, `while` and `for`, with names that are read after exceptions, and by closures.

The pass makes a name part of the state of a branch or a loop if later code reads the name. Malt's analysis assumes
that no statement raises an exception: in a `try`, a name that a later statement assigns again would not be part of the
state, and an `except` clause would read its value from before the branch. It also assumes that a lambda function is
called, and a generator expression is consumed, only where it is created, and it knows neither the names that a nested
function declares nonlocal nor those that the methods of a class read. Source: malt's `converters.control_flow`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from malt.converters import control_flow
from malt.pyct import anno, cfg, qual_names, templates
from malt.pyct.static_analysis import activity, liveness, reaching_definitions, reaching_fndefs

from mirrored.tf._autograph.closures import Closures
from mirrored.tf._autograph.state import is_flag
from mirrored.tf._autograph.syntax import within

# The names that are read if no statement raises an exception.
_OUT: Final = "names read after it"
_IN: Final = "names read in it or after it"
_PLAIN: Final = {anno.Static.LIVE_VARS_OUT: _OUT, anno.Static.LIVE_VARS_IN: _IN}
_OWN: Final = "names that closures in it read"
_JUMPS: Final = "whether a jump leaves out statements in it"
_ASSIGNED: Final = "names that closures of the function assign"


def transform(node: ast.AST, context: Any) -> Any:
    """Replaces `if`, `while` and `for` in the AST of a function by calls of AutoGraph's operators."""
    graphs = cfg.build(node)
    for one in ast.walk(node):
        for decorator in one.decorator_list if isinstance(one, ast.FunctionDef) else ():
            graphs.update(cfg.build(decorator))  # of lambda functions in decorators, which malt leaves out
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = reaching_fndefs.resolve(reaching_definitions.resolve(node, context, graphs), context, graphs)
    node = liveness.resolve(node, context, graphs)
    anno.dup(node, _PLAIN)
    node = _Annotator(context, graphs, True).visit(node)
    return _Transformer(context).visit(node)


class _Transformer(control_flow.ControlFlowTransformer):  # type: ignore[misc]
    """Replaces statements; gives each operator the names that are read only after an exception, or by a closure.

    Names that only closures in the statement read are no part of its state. Its branches or its body assign the
    variable of the function, which the closures read after the statement, too. Traced ones get a variable of their own.
    """

    _rescued: Sequence[str] = ()
    _own: Sequence[Any] = ()
    _unbound: dict[Any, None]  # names that closures may assign before the function does

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        outer, self._unbound = getattr(self, "_unbound", {}), {}
        super().visit_FunctionDef(node)
        for name in self._unbound:
            text = ast.Constant(str(name))
            node.body[-1:] = [*templates.replace("var = ag__.Undefined(text)", var=name, text=text), node.body[-1]]
        self._unbound = outer
        return node

    def visit_If(self, node: ast.If) -> Any:
        return self._with_names(super().visit_If(node))

    def visit_While(self, node: ast.While) -> Any:
        return self._with_names(super().visit_While(node))

    def visit_For(self, node: ast.For) -> Any:
        return self._with_names(super().visit_For(node))

    def _with_names(self, nodes: list[Any]) -> list[Any]:
        for argument, names in (("rescued", self._rescued), ("own", self._own)):
            if names:
                given = ast.Tuple([ast.Constant(str(name)) for name in names], ast.Load())
                nodes[-1].value.keywords.append(ast.keyword(argument, given))
        return nodes

    def _create_nonlocal_declarations(self, vars_: Iterable[Any]) -> list[Any]:
        declarations: list[Any] = super()._create_nonlocal_declarations([*vars_, *self._own])
        return declarations

    def _get_block_vars(self, node: ast.stmt, modified: Any) -> Any:
        assigned = anno.getanno(node, _ASSIGNED)
        if anno.getanno(node, _JUMPS):
            modified = modified | assigned & anno.getanno(node, anno.Static.DEFINED_VARS_IN)
        whole = {key: anno.getanno(node, key) for key in _PLAIN}
        for key, plain in _PLAIN.items():
            anno.setanno(node, key, anno.getanno(node, plain))
        names, _, count = super()._get_block_vars(node, modified)
        for key, value in whole.items():
            anno.setanno(node, key, value)
        all_names, undefined, all_count = super()._get_block_vars(node, modified)
        is_if = isinstance(node, ast.If)  # of which other names are inputs only
        before, after = (names[:count], all_names[:all_count]) if is_if else (names, all_names)
        self._rescued = [str(name) for name in after if name not in before]
        self._own = sorted(modified & anno.getanno(node, _OWN) - set(all_names))
        self._unbound.update((name, None) for name in undefined if name in assigned)
        return all_names, tuple(name for name in undefined if name not in assigned), all_count


def _follows_jump(node: ast.stmt) -> bool:
    """Returns whether a statement may contain others that a `return`, `break` or `continue` leaves out.

    What closures assign that these statements call becomes part of its state: the user has written no branch for them.
    """
    return any(isinstance(one, ast.Name) and is_flag(one.id) for one in within([node]))


class _Exits:
    """Where the exceptions of each statement of a function may be caught.

    Args:
        function: The AST of the function.
        graph: Its control-flow graph.
    """

    def __init__(self, function: Any, graph: Any) -> None:
        self._index = graph.index
        self.targets: dict[Any, set[Any]] = {}  # by node: the first nodes of the code that follows
        self.read: dict[Any, set[Any]] = {}  # by node: the names that `finally` clauses read
        if isinstance(function.body, list):
            self._walk(function.body, [])

    def _walk(self, statements: Sequence[Any], after: list[Any]) -> None:
        for number, one in enumerate(statements):
            following = self._entry(statements[number + 1 :]) or after
            if isinstance(one, ast.If):
                self._walk(one.body, following)
                self._walk(one.orelse, following)
            elif isinstance(one, (ast.For, ast.While)):
                self._walk(one.body, self._entry([one]))
            elif isinstance(one, ast.With):
                self._lead(one.body, following)  # the context manager may suppress the exception
                self._walk(one.body, following)
            elif isinstance(one, ast.Try):
                self._walk_try(one, following)

    def _walk_try(self, node: ast.Try, after: list[Any]) -> None:
        following = self._entry(node.finalbody) or after
        self._lead(node.body, [first for one in node.handlers for first in self._entry(one.body)])
        guarded = [*node.body, *node.orelse, *(part for one in node.handlers for part in one.body)]
        scopes = [anno.getanno(one.ast_node, anno.Static.SCOPE, None) for one in self._nodes(node.finalbody)]
        read = {name for scope in scopes if scope is not None for name in scope.read}
        for one in self._nodes(guarded):
            self.read.setdefault(one, set()).update(read)
        self._walk(node.body, self._entry(node.orelse) or following)
        for block in (node.orelse, *(one.body for one in node.handlers)):
            self._walk(block, following)
        self._walk(node.finalbody, after)

    def _lead(self, statements: Sequence[Any], targets: Iterable[Any]) -> None:
        """Records that exceptions of statements, also of nested ones, lead to the given nodes."""
        for one in self._nodes(statements):
            self.targets.setdefault(one, set()).update(targets)

    def _nodes(self, statements: Sequence[ast.AST]) -> list[Any]:
        return [self._index[one] for whole in statements for one in ast.walk(whole) if one in self._index]

    def _entry(self, statements: Sequence[Any]) -> list[Any]:
        """Returns the first node of a block of statements in a list; an empty list if it has none."""
        for one in statements:
            if isinstance(one, ast.Try):
                return self._entry([*one.body, *one.orelse, *one.finalbody])
            if _first(one) in self._index:
                return [self._index[_first(one)]]
        return []


def _first(node: Any) -> Any:
    """Returns the part of a statement that the control-flow graph contains first."""
    if isinstance(node, (ast.If, ast.While)):
        return node.test
    if isinstance(node, ast.For):
        return node.iter
    return node.items[0] if isinstance(node, ast.With) else node


class _Analyzer(liveness.Analyzer):  # type: ignore[misc]
    """Determines which names are read later, also after exceptions, and by closures that are created later."""

    def __init__(self, graph: Any, exits: _Exits, closures: Closures) -> None:
        super().__init__(graph, True)
        self._exits = exits
        self._closures = closures
        for node, targets in exits.targets.items():
            for target in targets:
                target.prev.add(node)  # the node is visited again when more names are found for the target

    def visit_node(self, node: Any) -> bool:
        before = self.in_[node]
        super().visit_node(node)
        scope = anno.getanno(node.ast_node, anno.Static.SCOPE, None)
        assigned = set() if scope is None else scope.modified | scope.deleted
        self.in_[node] |= _qualified(self._closures.created_by(node.ast_node)) - assigned
        self.in_[node] |= self.rescued(node)
        self.out[node] |= self.rescued(node)
        return bool(before != self.in_[node])

    def rescued(self, node: Any) -> set[Any]:
        """Returns the names that are read where an exception of a statement may be caught."""
        targets = self._exits.targets.get(node, ())
        return self._exits.read.get(node, set()).union(*(self.in_[one] for one in targets))


class _Annotator(liveness.TreeAnnotator):  # type: ignore[misc]
    """Annotates statements with the names that are read later, also after exceptions, and by closures."""

    current_analyzer: Any
    _closures: Closures = Closures([])
    _loop: ast.While | ast.For | None = None  # the outermost one around the statement that is visited

    def _analyze_function(self, node: Any, is_lambda: bool) -> Any:
        outer = self.current_analyzer, self._closures, self._loop
        self._closures, self._loop = Closures([node.body] if is_lambda else node.body), None
        graph = self.graphs[node]
        self.current_analyzer = _Analyzer(graph, _Exits(node, graph), self._closures)
        self.current_analyzer.visit_reverse()
        node = self.generic_visit(node)
        self.current_analyzer, self._closures, self._loop = outer
        return node

    def visit_For(self, node: ast.For) -> Any:
        return self._in_loop(node, super().visit_For)

    def visit_While(self, node: ast.While) -> Any:
        return self._in_loop(node, super().visit_While)

    def _in_loop(self, node: ast.For | ast.While, visit: Callable[[Any], Any]) -> Any:
        outer = self._loop
        self._loop = outer or node
        visited = visit(node)
        self._loop = outer
        return visited

    def _block_statement_live_out(self, node: Any) -> Any:
        node = super()._block_statement_live_out(node)
        first = self.current_analyzer.graph.index.get(_first(node))
        if first is not None:
            out = anno.getanno(node, anno.Static.LIVE_VARS_OUT) | self.current_analyzer.rescued(first)
            if isinstance(node, (ast.If, ast.While, ast.For)):
                loop = None if self._loop is node else self._loop
                out |= _qualified(self._closures.around(node, loop))
                anno.setanno(node, _OWN, _qualified(self._closures.inside(node)))
                anno.setanno(node, _JUMPS, _follows_jump(node))
                anno.setanno(node, _ASSIGNED, _qualified(self._closures.assigned))
            anno.setanno(node, anno.Static.LIVE_VARS_OUT, frozenset(out))
        return node


def _qualified(names: Iterable[str]) -> set[Any]:
    """Returns names in the form that malt's annotations contain."""
    return {qual_names.QN(name) for name in names}
