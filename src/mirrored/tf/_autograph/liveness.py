"""AutoGraph's pass for `if`, `while` and `for`, with names read after exceptions, in lambdas and generator expressions.

The pass makes a name part of the state of a branch or a loop if later code reads the name. Malt's analysis assumes
that no statement raises an exception: in a `try`, a name that a later statement assigns again would not be part of the
state, and an `except` clause would read its value from before the branch. It also assumes that a lambda function is
called, and a generator expression is consumed, only where it is created. Source: malt's `converters.control_flow`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any, Final

from malt.converters import control_flow
from malt.pyct import anno, cfg, qual_names
from malt.pyct.static_analysis import activity, annos, liveness, reaching_definitions, reaching_fndefs

from mirrored.tf._autograph.syntax import within

# The names that are read if no statement raises an exception.
_OUT: Final = "names read after it"
_IN: Final = "names read in it or after it"
_PLAIN: Final = {anno.Static.LIVE_VARS_OUT: _OUT, anno.Static.LIVE_VARS_IN: _IN}


def transform(node: ast.AST, context: Any) -> Any:
    """Replaces `if`, `while` and `for` in the AST of a function by calls of AutoGraph's operators."""
    graphs = cfg.build(node)
    node = activity.resolve(qual_names.resolve(node), context, None)
    node = reaching_fndefs.resolve(reaching_definitions.resolve(node, context, graphs), context, graphs)
    node = liveness.resolve(node, context, graphs)
    anno.dup(node, _PLAIN)
    node = _Annotator(context, graphs, True).visit(node)
    return _Transformer(context).visit(node)


class _Transformer(control_flow.ControlFlowTransformer):  # type: ignore[misc]
    """Replaces statements; gives each operator the names that are read only after an exception, or by a lambda.

    Generator expressions count as lambdas.
    """

    _rescued: Sequence[str] = ()

    def visit_If(self, node: ast.If) -> Any:
        return self._with_rescued(super().visit_If(node))

    def visit_While(self, node: ast.While) -> Any:
        return self._with_rescued(super().visit_While(node))

    def visit_For(self, node: ast.For) -> Any:
        return self._with_rescued(super().visit_For(node))

    def _with_rescued(self, nodes: list[Any]) -> list[Any]:
        if self._rescued:
            names = ast.Tuple([ast.Constant(name) for name in self._rescued], ast.Load())
            nodes[-1].value.keywords.append(ast.keyword("rescued", names))
        return nodes

    def _get_block_vars(self, node: ast.stmt, modified: Any) -> Any:
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
        return all_names, undefined, all_count


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
    """Determines which names are read later, also after exceptions."""

    def __init__(self, graph: Any, exits: _Exits) -> None:
        super().__init__(graph, True)
        self._exits = exits
        for node, targets in exits.targets.items():
            for target in targets:
                target.prev.add(node)  # the node is visited again when more names are found for the target

    def visit_node(self, node: Any) -> bool:
        before = self.in_[node]
        super().visit_node(node)
        self.in_[node] |= self.rescued(node)
        self.out[node] |= self.rescued(node)
        return bool(before != self.in_[node])

    def rescued(self, node: Any) -> set[Any]:
        """Returns the names that are read where an exception of a statement may be caught."""
        targets = self._exits.targets.get(node, ())
        return self._exits.read.get(node, set()).union(*(self.in_[one] for one in targets))


class _Annotator(liveness.TreeAnnotator):  # type: ignore[misc]
    """Annotates statements with the names that are read later, also after exceptions, in lambdas and in generators."""

    current_analyzer: Any
    _generators: Sequence[ast.GeneratorExp] = ()  # those of the function that is visited

    def _analyze_function(self, node: Any, is_lambda: bool) -> Any:
        outer, generators, graph = self.current_analyzer, self._generators, self.graphs[node]
        self.current_analyzer = _Analyzer(graph, _Exits(node, graph))
        self._generators = [] if is_lambda else [one for one in within(node.body) if isinstance(one, ast.GeneratorExp)]
        self.current_analyzer.visit_reverse()
        node = self.generic_visit(node)
        self.current_analyzer, self._generators = outer, generators
        return node

    def _block_statement_live_out(self, node: Any) -> Any:
        node = super()._block_statement_live_out(node)
        first = self.current_analyzer.graph.index.get(_first(node))
        if first is not None:
            out = anno.getanno(node, anno.Static.LIVE_VARS_OUT) | self.current_analyzer.rescued(first)
            own = set(ast.walk(node))
            out |= _read_by_lambdas(node, own).union(*(_read_by(one) for one in self._generators if one not in own))
            anno.setanno(node, anno.Static.LIVE_VARS_OUT, frozenset(out))
        return node


def _read_by_lambdas(node: ast.AST, own: set[ast.AST]) -> set[Any]:
    """Returns the names that lambda functions read which exist before a statement, and may be called after it.

    Args:
        node: The statement.
        own: The nodes in it.
    """
    found: set[Any] = set()
    for one in anno.getanno(_first(node), anno.Static.DEFINED_FNS_IN, ()):
        if isinstance(one, ast.Lambda) and one not in own:
            scope = anno.getanno(one, annos.NodeAnno.ARGS_AND_BODY_SCOPE)
            found |= scope.read - scope.bound
    return found


def _read_by(generator: ast.GeneratorExp) -> set[Any]:
    """Returns the names that a generator expression reads when it is consumed, that is, all but its first iterable's.

    A generator expression that is created after a statement also counts, which makes no difference: the names that it
    reads are read after the statement, unless they are assigned in between.
    """
    first, *others = generator.generators
    parts = [generator.elt, *first.ifs, *others]
    nodes = [one for part in parts for one in ast.walk(part)]
    bound = {one.id for each in generator.generators for one in ast.walk(each.target) if isinstance(one, ast.Name)}
    names = (anno.getanno(one, anno.Basic.QN, None) for one in nodes if not isinstance(one, ast.Constant))
    return {name for name in names if name is not None and str(name) not in bound}
