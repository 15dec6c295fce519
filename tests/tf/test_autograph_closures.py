"""Nested functions, lambdas, classes and generator expressions that read names which branches and loops assign."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import mirrored.tf as tf

# How a closure that uses the name N is created, and how it is used later. `r` becomes a name of its own.
KINDS = {
    "a lambda": ("r = lambda: N * 3", "r()"),
    "a lambda in a lambda": ("r = lambda: (lambda: N * 3)()", "r()"),
    "a lambda in a comprehension": ("r = [lambda q=q: N * q for q in (1, 2)]", "r[1]()"),
    "a lambda in a default": ("def r(f=lambda: N * 2):\n    return f()", "r()"),
    "a lambda in a keyword's default": ("r = lambda *, f=lambda: N * 2: f()", "r()"),
    "a lambda in a decorator": ("@added(lambda: N)\ndef r():\n    return 1", "r()"),
    "a container": ("r = {'a': [functools.partial(lambda a: N + a, 2)]}", "r['a'][0]()"),
    "a function": ("def r():\n    return N * 3", "r()"),
    "a nonlocal name": ("def r():\n    nonlocal N\n    return N * 3", "r()"),
    "an assigned nonlocal name": ("def r():\n    nonlocal N\n    N += 1\n    return N", "r() + r() + N"),
    "a nested nonlocal name": (
        "def r():\n    def s():\n        nonlocal N\n        N = N + 2\n        return N\n    return s()",
        "r() + N",
    ),
    "a closure's branch": (
        "def r():\n    nonlocal N\n    if N > 4:\n        N = N - 30\n    else:\n        N = N + 5\n    return N",
        "r() + N",
    ),
    "a method": ("class K:\n    N = 0\n    def m(self):\n        return N\nr = K()", "r.m()"),
    "a property": ("class K:\n    @property\n    def m(self):\n        return N\nr = K()", "r.m"),
    "a callable object": (
        "class K:\n    def __call__(self):\n        nonlocal N\n        N = N + 1\n        return N\nr = K()",
        "r() + N",
    ),
    "a class attribute": ("class K:\n    fs = [lambda: N for _ in range(2)]\nr = K", "r.fs[0]()"),
    "a generator expression": ("r = (N * q for q in [1, 2])", "sum(r)"),
    "a generator expression of lambdas": ("r = (f() for f in [lambda: N, lambda: N + 1])", "sum(r)"),
}

# Statements that change N. `{}` is replaced by the assignments to the names of all closures.
STATEMENTS = {
    "if": "if x > 0:\n    {N = N + 10}",
    "while": "w = tf.constant(0)\nwhile w < 3:\n    w += 1\n    {N = N + w}",
    "return": "if x > 100:\n    return [0 * x] * COUNT\n{N = N + 10}",
    "if without reading": "if x > 0:\n    {N = x}\nelse:\n    {N = x - 7}",
    "known if": "if x.ndim == 0:\n    {N = N + 10}",
    "for": "for i in tf.range(3):\n    {N = N + i + x}",
    "break": "for i in tf.range(5):\n    {N = N + 1}\n    if i == x: break",
    "continue": "for i in range(5):\n    if i == x: continue\n    {N = N + i}",
    "try": "try:\n    if x > 0:\n        {N = N + 10}\nfinally:\n    pass",
    "with": "with contextlib.nullcontext(x):\n    if x > 0:\n        {N = N + 10}",
}

HEAD = """
import contextlib
import functools

import mirrored.tf as tf


def added(value):
    return lambda f: lambda *a: f(*a) + value()


def program(x):
"""


def lines(template: str, number: int) -> str:
    return template.replace("N", f"n{number}").replace("r = ", f"r{number} = ").replace("def r(", f"def r{number}(")


def program(statement: str, tmp_path: Any) -> Callable[[Any], Any]:
    """Returns a function with a closure of each kind before a statement; each has a name that no other code reads."""
    numbers = range(len(KINDS))
    body = [lines("N = x * 2", number) for number in numbers]
    body += [lines(create, number) for number, (create, _) in enumerate(KINDS.values())]
    for line in statement.replace("COUNT", str(len(KINDS))).split("\n"):
        before, brace, change = line.partition("{")
        body += [before + lines(change.rstrip("}"), number) for number in numbers] if brace else [line]
    used = [lines(use, n).replace("r(", f"r{n}(").replace("r.", f"r{n}.") for n, (_, use) in enumerate(KINDS.values())]
    used = [use.replace("r[", f"r{n}[").replace("sum(r)", f"sum(r{n})") for n, use in enumerate(used)]
    body.append(f"return [{', '.join(used)}]")
    path = tmp_path / "closures_program.py"
    path.write_text(HEAD + textwrap.indent("\n".join(body), "    ") + "\n")
    spec = importlib.util.spec_from_file_location("closures_program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[Any], Any] = module.program
    return found


@pytest.mark.first(3)
@pytest.mark.parametrize("statement", list(STATEMENTS))
def test_a_closure_reads_what_a_later_statement_assigns(statement, tmp_path):
    function = program(STATEMENTS[statement], tmp_path)
    compiled = tf.function(function)
    for value in (3, -2):
        x = tf.constant(value)
        expected, found = (dict(zip(KINDS, map(int, f(x)), strict=True)) for f in (function, compiled))
        assert found == expected


def created_after_the_branch(x):
    n = x * 2
    if x > 0:
        n = n + 10

    class K:
        def m(self):
            return n

    return K().m()


def created_in_a_known_branch(x):
    n, r = x * 2, None
    if x.ndim == 0:
        n = x
        r = lambda: n * 3  # noqa: E731
    if x > 0:
        n = x + 10
    return r()


def assigned_after_a_known_branch(x):
    r = None
    if x.ndim == 0:
        n = x

        def r():
            nonlocal n
            n = n + 1
            return n

    n = x + 50
    return r() + n


def created_in_a_loop(x):
    functions = []
    for i in range(3):
        n = x * i
        functions.append(lambda: n)  # noqa: B023
    last = functions[0]()
    n = x - 100
    return last + functions[1]()


def created_in_a_condition(x):
    n = x
    if (r := lambda: n)() > 0:
        n = n + 5
    return r()


def used_in_a_traced_loop(x):
    y = x
    for i in tf.range(3):
        n = x + i

        class K:
            def m(self):
                return n  # noqa: B023

        y = y + K().m() + tf.reduce_sum(tf.map_fn(lambda e: e * n, tf.range(2)))  # noqa: B023
    return y


def first_assigned_by_a_closure(x):
    def r():
        nonlocal n
        n = x

    r()
    if x > 0:
        n = x * 7
    return n


def called_after_a_jump(x):
    n = m = x

    def r():
        nonlocal m
        m = m + 1
        return n * m

    for i in range(3):
        if x > i:
            continue
        n = n + r()
    try:
        if m > 2 * x:
            return n + m
        n = r()
    finally:
        n = m
    return n + m + r()


def with_getters_and_setters(x):
    def make():
        n = x

        def put(value):
            nonlocal n
            n = value

        return (lambda: n), put

    get, put = make()
    y = x
    if x > 0:
        y = y + 3
    put(y)
    return get()


def a_context_manager(x):
    n = x

    class C:
        def __enter__(self):
            return n

        def __exit__(self, *_):
            pass

    c = C()
    if x > 0:
        n = n + 4
    with c as value:
        return value


PROGRAMS: list[Callable[[Any], Any]] = [
    created_after_the_branch,
    created_in_a_known_branch,
    assigned_after_a_known_branch,
    created_in_a_loop,
    created_in_a_condition,
    used_in_a_traced_loop,
    first_assigned_by_a_closure,
    called_after_a_jump,
    with_getters_and_setters,
    a_context_manager,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_closure_shares_its_names_with_the_function(program):
    compiled = tf.function(program)
    for value in (3, -2):
        assert int(compiled(tf.constant(value))) == int(program(tf.constant(value)))


def test_a_value_that_the_branches_do_not_agree_on_is_refused_when_a_method_reads_it():
    def program(x, read):
        n = x

        class K:
            def m(self):
                return n

        k = K()
        if x > 0:
            n = tf.zeros([2])
        return k.m() if read else x

    compiled = tf.function(program)
    assert int(compiled(tf.constant(1), False)) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="nested function or class"):
        compiled(tf.constant(1), True)


def test_a_branch_does_not_carry_the_names_of_its_own_closures():
    traces = []

    @tf.function
    def f(x):
        for i in tf.range(3):
            traces.append(1)
            n = {"a": x + i}
            x = x + (lambda: n["a"])()
        return x

    assert int(f(tf.constant(1))) == 12
    assert len(traces) == 1


def left_early(x):
    n = 0

    def s():
        nonlocal n
        n += 1

    for _ in range(3):
        if x > 5:
            return x
        s()
        x = x + n
    return x


def broken(x):
    n = 0

    def s():
        nonlocal n
        n += 1

    for _ in range(3):
        for _ in range(2):
            if x > 5:
                break
            s()
            x = x + n
    return x + n


def counted_in_a_while(x):
    n, i = 0, 0

    def s():
        nonlocal n
        n += 1
        return n

    while i < 3:
        if x > 5:
            return x
        x = x + s()
        i += 1
    return x


def counted_in_a_range(x):
    n = 0

    def s():
        nonlocal n
        n += 1
        return n

    for _ in tf.range(3):
        if x > 5:
            break
        x = x + s()
    return x + n


@pytest.mark.parametrize("program", [left_early, broken, counted_in_a_while, counted_in_a_range])
def test_a_jump_in_a_loop_comes_before_a_closure_that_assigns(program):
    compiled = tf.function(program)
    for value in (3, 6, -2, 5):
        assert int(compiled(tf.constant(value))) == int(program(tf.constant(value)))
