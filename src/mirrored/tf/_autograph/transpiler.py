"""Converts Python functions for AutoGraph: replaces `if`, `while` and `for` statements by function calls.

Source: diastatic-malt's `malt.impl.api.PyToPy`. The differences are the operators, the pass for these statements
(`liveness`), other passes before and after malt's, and that the converted code keeps the file name and line numbers of
the original, so that errors point to the user's source.
"""

from __future__ import annotations
import __future__

import ast
import functools
import logging
import traceback
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Final

from malt import operators as defaults
from malt.converters import (
    break_statements,
    call_trees,
    conditional_expressions,
    continue_statements,
    functions,
    logical_expressions,
    return_statements,
    variables,
)
from malt.converters import directives as directive_calls
from malt.core import converter, unsupported_features_checker
from malt.impl import api
from malt.lang import directives, special_functions
from malt.pyct import inspect_utils, origin_info, parser, transpiler

from mirrored.tf._autograph import assertions, branches, calls, changes, exceptions, liveness, loops, scope, truth
from mirrored.tf._autograph.calls import converted as converted
from mirrored.tf._autograph.calls import converted_call as converted_call
from mirrored.tf._autograph.calls import do_not_convert as do_not_convert
from mirrored.tf._autograph.handlers import HandlerTransformer, TryElseTransformer
from mirrored.tf._autograph.syntax import (
    ChangeTransformer,
    ExceptionNames,
    NestedConditionalTransformer,
    OuterNameTransformer,
    PythonConditionTransformer,
    ReturnAnnotations,
    StatementTransformer,
    check,
    like,
)
from mirrored.tf._loop_options import set_loop_options

_log = logging.getLogger("mirrored")
_OPTIONS: Final = converter.ConversionOptions(recursive=True, user_requested=True, optional_features=())
_OPERATORS: Final[Mapping[str, Any]] = {
    "and_": branches.and_,
    "asserted": assertions.asserted,
    "changing": changes.changing,
    "converted_call": calls.converted_call,
    "eq": truth.eq,
    "for_stmt": loops.for_stmt,
    "if_exp": branches.if_exp,
    "if_stmt": branches.if_stmt,
    "Handling": exceptions.Handling,
    "is_in": truth.is_in,
    "known_truth": truth.known_truth,
    "managed": exceptions.managed,
    "not_": truth.not_,
    "not_eq": truth.not_eq,
    "or_": branches.or_,
    "while_stmt": loops.while_stmt,
    "with_function_scope": scope.with_function_scope,
}


def transpile(function: types.FunctionType) -> Any:
    """Converts a Python function for AutoGraph; returns the function itself if the conversion fails.

    Conversion fails, for example, if the source is not available.
    """
    try:
        factory = _factory(function)
    except Exception as error:  # the parser and the passes raise many kinds of errors
        _log.info("AutoGraph does not convert %s: %s", function.__qualname__, error)
        _reasons[function.__code__] = f"{function.__qualname__}: {str(error) or type(error).__name__}"
        return function
    return factory(function)


_reasons: Final[weakref.WeakKeyDictionary[types.CodeType, str]] = weakref.WeakKeyDictionary()


def explain(error: BaseException) -> None:
    """Adds a note to a JAX error about a traced condition, to say why AutoGraph could not convert the function."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    for reason in dict.fromkeys(_reasons[code] for code in codes if code in _reasons):
        note = (
            f"AutoGraph has not converted {reason}. Such a function runs as Python, where no `if`, `while` or `for` "
            "can depend on a tensor: move these statements to another function, or rewrite what is not supported"
        )
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


class _Factory:
    """Creates functions that share one converted code object, each with its own closure and defaults.

    Args:
        make: A function from the operators to the converted function, with the closure of the original.
        freevars: The names in that closure.
        falls_through: Functions in the code that can end without a `return`.
    """

    def __init__(self, make: types.FunctionType, freevars: tuple[str, ...], falls_through: frozenset[str]) -> None:
        self._make = make
        self._freevars = freevars
        self._operators = _operators(falls_through)

    def __call__(self, function: types.FunctionType) -> Any:
        """Returns the converted version of a function, with the same globals, closure and defaults."""
        cells = dict(zip(self._freevars, function.__closure__ or (), strict=True))
        code = self._make.__code__
        closure = tuple(cells[name] for name in code.co_freevars)
        made = types.FunctionType(code, function.__globals__, self._make.__name__, (), closure)(self._operators)
        made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        old = function.__code__
        made.__code__ = made.__code__.replace(co_name=old.co_name, co_qualname=old.co_qualname)  # shown in tracebacks
        functools.update_wrapper(made, function)
        del made.__wrapped__  # AutoGraph would call `__wrapped__`, the original, in place of the converted function
        return made


_factories: Final[dict[tuple[types.CodeType, str], _Factory]] = {}


def _factory(function: types.FunctionType) -> _Factory:
    # The file is part of the key: code objects of two files may be equal, but their tracebacks differ.
    key = (function.__code__, function.__code__.co_filename)
    if key not in _factories:
        _factories[key] = _converted_code(function)
    return _factories[key]


def _converted_code(given: types.FunctionType) -> _Factory:
    # A wrapper of a lambda has the name of the lambda by `functools.wraps`, and would be parsed as one.
    function = types.FunctionType(given.__code__, given.__globals__, None, given.__defaults__, given.__closure__)
    function.__kwdefaults__ = given.__kwdefaults__
    node, _ = parser.parse_entity(function, future_features=inspect_utils.getfutureimports(function))
    falls_through = _falls_through(node)
    nodes, context = _Transpiler().transform_function(function, converter.ProgramContext(options=_OPTIONS))
    name = context.info.name
    if isinstance(nodes, ast.Lambda):
        nodes = ast.Assign(targets=[ast.Name(name, ctx=ast.Store())], value=nodes)
    else:
        nodes.name = name
        _remove_annotations(nodes)
    freevars = function.__code__.co_freevars
    inner = context.namer.new_symbol("inner_factory", ())
    outer = context.namer.new_symbol("outer_factory", ())
    future = context.info.future_features
    wrapped = transpiler._wrap_into_factory(nodes, name, inner, outer, freevars, ["ag__"], future)
    namespace: dict[str, Any] = {}
    exec(_located(wrapped, function), namespace)
    return _Factory(namespace[outer](), freevars, falls_through)


def _remove_annotations(node: ast.FunctionDef) -> None:
    """Removes the annotations of parameters and result from the AST of a converted function.

    They may use names of the code around the function that are not in its closure.
    """
    node.returns = None
    for one in ast.walk(node.args):
        if isinstance(one, ast.arg):
            one.annotation = None


def _located(nodes: ast.AST | list[ast.AST] | tuple[ast.AST, ...], function: types.FunctionType) -> types.CodeType:
    """Compiles converted AST nodes with the file name and line numbers of the original function."""
    nodes = list(nodes) if isinstance(nodes, (list, tuple)) else [nodes]
    source = parser.unparse(nodes, indentation="  ")
    origins = origin_info.create_source_map(nodes, source, "converted")
    lines = {place.lineno: origin.loc.lineno for place, origin in origins.items()}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr, ast.arg, ast.keyword, ast.alias, ast.excepthandler)):
            before = [line for line in lines if line <= node.lineno]
            line = lines[max(before)] if before else function.__code__.co_firstlineno
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    # Annotations are texts if they are texts in the user's file, not because of this file's import.
    flags = function.__code__.co_flags & __future__.annotations.compiler_flag
    code: types.CodeType = compile(tree, function.__code__.co_filename, "exec", flags, dont_inherit=True)
    return code


class _Transpiler(transpiler.GenericTranspiler):  # type: ignore[misc]
    """Applies AutoGraph's conversion passes, from the package `malt`, to the AST of one function."""

    def get_transformed_name(self, node: ast.AST) -> str:
        return f"converted_{super().get_transformed_name(node)}"

    def transform_ast(self, node: ast.AST, ctx: Any) -> Any:
        check(node)
        hidden = (ReturnAnnotations(ctx.namer), ExceptionNames(ctx.namer))
        for one in hidden:
            one.hide(node)
        node = TryElseTransformer(ctx.namer).visit(node)
        node = ChangeTransformer().visit(StatementTransformer().visit(node))
        node = OuterNameTransformer().visit(_LoopElse(ctx.namer).visit(_Directives(ctx.info.namespace).visit(node)))
        node = NestedConditionalTransformer().visit(_passes(node, ctx))
        node = PythonConditionTransformer().visit(node)
        for one in hidden:
            one.restore(node)
        return HandlerTransformer().visit(node)


def _passes(node: ast.AST, context: Any) -> Any:
    """Applies malt's passes for the language, in the order of `PyToPy.transform_ast`."""
    unsupported_features_checker.verify(node)
    node = api._TRANSPILER.initial_analysis(node, context)
    for one in (functions, directive_calls, break_statements, continue_statements, return_statements, call_trees):
        node = one.transform(node, context)
    for one in (liveness, conditional_expressions, logical_expressions, variables):
        node = one.transform(node, context)
    return node


class _Directives(ast.NodeTransformer):
    """Replaces calls of `set_loop_options` by calls of the equivalent function that AutoGraph's passes recognize.

    Args:
        namespace: The names that the function sees. Receives malt's directive.
    """

    _NAME: Final = "ag__set_loop_options"

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if isinstance(node.value, ast.Call) and self._value(node.value.func) is set_loop_options:
            self._namespace[self._NAME] = directives.set_loop_options
            node.value.func = ast.copy_location(ast.Name(self._NAME, ctx=ast.Load()), node.value.func)
        return node

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._namespace.get(node.id)
        return getattr(self._value(node.value), node.attr, None) if isinstance(node, ast.Attribute) else None


class _LoopElse(ast.NodeTransformer):
    """Replaces the `else` clause of loops, which AutoGraph's passes reject, by an `if` statement after the loop.

    The `if` tests a variable that a `break` of the loop sets. A loop without a `break` needs no variable: only a
    `return`, or an exception, leaves out what follows it.

    Args:
        namer: Creates names of variables that the function does not have.
    """

    def __init__(self, namer: Any) -> None:
        self._namer = namer

    def visit_For(self, node: ast.For) -> Any:
        return self._without_else(node)

    def visit_While(self, node: ast.While) -> Any:
        return self._without_else(node)

    def _without_else(self, node: ast.For | ast.While) -> Any:
        self.generic_visit(node)
        after, node.orelse = node.orelse, []
        if not after:
            return node
        flag = self._namer.new_symbol("has_broken", ())
        breaks = _Breaks(flag)
        node.body = breaks.within(node.body)
        if not breaks.found:
            return [node, *after]
        test = ast.UnaryOp(ast.Not(), ast.Name(flag, ast.Load()))
        return [_assigned(flag, False, node), node, like(ast.If(test, after, []), after[0])]


class _Breaks(ast.NodeTransformer):
    """Inserts an assignment to a flag before each `break` of a loop, but not in nested loops and functions."""

    def __init__(self, flag: str) -> None:
        self._flag = flag
        self.found = False

    def within(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements of a loop body with the flag assignment inserted before each `break`."""
        return [part for one in statements for part in _as_list(self.visit(one))]

    def visit_Break(self, node: ast.Break) -> Any:
        self.found = True
        return [_assigned(self._flag, True, node), node]

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_For = visit_While = visit_FunctionDef = visit_ClassDef = visit_Lambda = _leave


def _as_list(nodes: Any) -> list[Any]:
    return nodes if isinstance(nodes, list) else [nodes]


def _assigned(name: str, value: bool, place: ast.stmt) -> ast.stmt:
    """Creates the statement ``name = value`` with the source location of the existing statement `place`."""
    return like(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), place)


def _operators(falls_through: frozenset[str]) -> types.ModuleType:
    """Creates the module of operators that converted code refers to as ``ag__``."""
    module = types.ModuleType("ag__", "Operators of converted code.")
    scope_class = type("FunctionScope", (scope.FunctionScope,), {"falls_through": falls_through})
    names = {**vars(special_functions), **vars(defaults), **_OPERATORS, "FunctionScope": scope_class, "STD": _OPTIONS}
    names["ConversionOptions"], names["Feature"] = converter.ConversionOptions, converter.Feature
    names["autograph_artifact"] = calls.mark_converted
    module.__dict__.update({name: value for name, value in names.items() if not name.startswith("__")})
    return module


def _falls_through(node: ast.AST) -> frozenset[str]:
    """Returns the names of the functions in an AST that can end without a `return`."""
    definitions = [one for one in ast.walk(node) if isinstance(one, ast.FunctionDef)]
    return frozenset(one.name for one in definitions if not _returns(one.body))


def _returns(statements: list[ast.stmt]) -> bool:
    """Returns whether a block of statements always returns or raises."""
    last = statements[-1] if statements else None
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    if isinstance(last, ast.With):
        return _returns(last.body)
    if isinstance(last, ast.Try):
        tried = _returns(last.body) or _returns(last.orelse)
        return _returns(last.finalbody) or (tried and all(_returns(handler.body) for handler in last.handlers))
    if isinstance(last, (ast.For, ast.While)) and _returns(last.orelse) and not _has_break(last.body):
        return True
    if isinstance(last, ast.While):
        return isinstance(last.test, ast.Constant) and bool(last.test.value) and not _has_break(last.body)
    return isinstance(last, (ast.Return, ast.Raise))


def _has_break(nodes: Iterable[ast.AST]) -> bool:
    """Returns whether a loop body contains a `break` that ends this loop rather than a nested loop."""
    for one in nodes:
        if isinstance(one, (ast.For, ast.While)):
            parts: Iterable[ast.AST] = one.orelse
        else:
            parts = () if isinstance(one, (ast.FunctionDef, ast.ClassDef)) else ast.iter_child_nodes(one)
        if isinstance(one, ast.Break) or _has_break(parts):
            return True
    return False


calls.transpile_with(transpile)
