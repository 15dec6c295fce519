"""Functions whose syntax AutoGraph's passes would give another meaning: they run as Python, or the meaning is kept."""

from __future__ import annotations

import linecache
import runpy

import jax
import pytest

import mirrored.tf as tf
from mirrored.tf._errors import InvalidArgumentError

log: list[str] = []


def by_walrus_in_and(x, items=(1, 2, 3, 4)):
    n = 0
    if items is not None and (n := len(items)) > 3:
        x = x * n
    return x


def by_walrus_in_an_expression(x, k=5):
    n = 100
    y = (n := k) * 2 if k > 3 else 0
    return x + y + n


def by_walrus_in_while(x, parts=(1, 2, 3)):
    left, n = list(parts), 0
    while n := len(left):
        x = x + n
        left.pop()
    return x


def by_match_that_returns(x, kind="a", ends=True):
    match kind:
        case "a":
            if ends:
                return x
            log.append("after the return")
    return x + 100


def by_match_that_assigns(x, pair=(1.0, 2.0), adds=True):
    match pair:
        case (a, b):
            x = x + a
    if adds:
        a = a + b
    return x + a


def by_groups_of_exceptions(x, ends=True):
    try:
        if ends:
            return x
        log.append("after the return")
    except* ValueError:
        pass
    return x + 100


PYTHON = [
    by_walrus_in_and,
    by_walrus_in_an_expression,
    by_walrus_in_while,
    by_match_that_returns,
    by_match_that_assigns,
    by_groups_of_exceptions,
]


@pytest.mark.parametrize("function", PYTHON, ids=lambda one: one.__name__)
def test_conditions_of_python_have_the_meaning_of_python(function):
    log.clear()
    assert float(tf.function(function)(tf.constant(3.0))) == float(function(tf.constant(3.0)))
    assert log == []


def test_an_error_names_what_was_not_converted_and_why():
    def f(x):
        n = 0
        if x is not None and (n := 2) > 1:
            pass
        if x > 0:
            x = x * n
        return x

    with pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        tf.function(lambda x: tf.function(f)(x))(tf.constant(3.0))  # each level adds the note, if it is missing
    (note,) = [one for one in caught.value.__notes__ if "AutoGraph" in one]
    assert "f: `:=` is not supported in the condition of `while`, in `and`" in note
    assert "move these statements to another function" in note


@pytest.mark.parametrize(("x", "expected"), [(1.0, 3.0), (-1.0, -1.0)])
def test_branches_assign_nonlocal_names(x, expected):
    def f(x):
        n = x

        def step():
            nonlocal n
            if x > 0:
                n = n + 1

        step()
        step()
        return n

    assert float(f(x)) == float(tf.function(f)(tf.constant(x))) == expected


def test_nonlocal_names_of_a_function_that_returns_in_a_branch():
    def f(x):
        n, found = x, x * 0

        def step():
            nonlocal n, found
            if x > 0:
                n = n + 1
                return n
            found = found + 5
            return n

        step()
        return n, found

    for x in (1.0, -1.0):
        assert [float(one) for one in tf.function(f)(tf.constant(x))] == [float(one) for one in f(x)]


@pytest.mark.parametrize("name", ["break_even", "continue_from", "do_return_it", "retval_of"])
def test_names_like_those_of_autograph_need_a_value_in_both_branches(name):
    code = f"def f(x):\n    if x > 0:\n        {name} = x * 2\n    return {name}\n"
    function = defined(code)
    with pytest.raises(InvalidArgumentError, match=f"`{name}` gets a value in the first branch only"):
        tf.function(function)(tf.constant(-3.0))


def defined(code):
    """A function from source that `inspect` finds."""
    import linecache

    file = f"/generated/{abs(hash(code))}.py"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    names: dict[str, object] = {}
    exec(compile(code, file, "exec"), names)
    return names["f"]


def test_an_endless_loop_that_is_left_by_a_break_can_end_without_a_return():
    @tf.function
    def f(x):
        while True:
            x = x + 1
            if x > 10:
                break
            if x == 5:
                return x

    with pytest.raises(InvalidArgumentError, match="a path that ends without a `return`"):
        f(tf.constant(4.0))


def test_a_try_statement_whose_parts_return():
    @tf.function
    def f(x):
        try:
            for row in x:
                if row > 2:
                    return row
            return x[0]
        finally:
            pass

    assert [float(f(tf.constant(one))) for one in ([1.0, 3.0], [1.0, 2.0])] == [3.0, 1.0]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0, 20_000_001, 1_000_000), 21),
        ((5, 2, 1), 0),
        ((7, 2, -1), 5),
        ((7, 2, -2), 3),
        ((2, 7, -1), 0),
        ((0, 3, 0), 0),
    ],
)
def test_the_number_of_iterations_of_a_range_of_traced_integers(bounds, expected):
    assert int(iterations(*map(tf.constant, bounds))) == expected


@pytest.mark.parametrize(
    ("dtype", "bounds", "expected"), [("uint8", (5, 2), 0), ("uint8", (2, 250), 248), ("int8", (-100, 100), 200)]
)
def test_ranges_of_short_integers(dtype, bounds, expected):
    assert int(iterations(*(tf.constant(one, dtype) for one in (*bounds, 1)))) == expected


@tf.function
def iterations(start, limit, delta):
    count = 0
    for _ in tf.range(start, limit, delta):
        count += 1
    return count


def test_numbers_of_python_have_the_dtypes_of_constants_in_64_bit_mode():
    @tf.function
    def f(x):
        if x > 0:
            y, n = 1.5, 1
        else:
            y, n = 2.5, True
        return y, n, (0.5 if x > 0 else n), tf.cast(x, "int32") if x > 0 else 0.5

    with jax.enable_x64(True):
        assert [one.dtype for one in f(tf.constant(1.0))] == ["float32", "int32", "float32", "float32"]


def test_partial_functions_that_a_run_gets_are_converted():
    import functools

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def step(factor, x):
        if x > 0:
            return x * factor
        return x

    run = tf.function(lambda x: strategy.run(functools.partial(step, 3.0), args=(x,)))
    assert float(run(tf.constant(2.0))) == 6.0


ANNOTATED = """
def outer():
    class Local: pass

    def f(x: Local, *rest: Local, flag: Local = True, **options: Local) -> Local:
        def inner(a: int, b: Local) -> Local: return b
        log.append(inner.__annotations__)
        return x + 1 if flag else x

    return f, Local
"""


@pytest.mark.parametrize("are_texts", [False, True])
def test_annotations_are_those_of_the_users_file(are_texts, tmp_path):
    path = tmp_path / f"annotated_{are_texts}.py"
    # The second name is that of the import, which a program may assign.
    path.write_text("from __future__ import annotations\nannotations = []\n" * are_texts + "log = []" + ANNOTATED)
    module = runpy.run_path(str(path), run_name=path.stem)
    linecache.checkcache(str(path))
    function, local = module["outer"]()
    assert float(tf.function(function)(tf.constant(1.0))) == 2.0
    expected = ("int", "Local", "Local") if are_texts else (int, local, local)
    assert tuple(module["log"][0].values()) == expected


@pytest.mark.parametrize("are_texts", [False, True])
def test_annotations_with_calls_are_evaluated_where_the_function_is_defined(are_texts, tmp_path):
    path = tmp_path / f"annotated_by_calls_{are_texts}.py"
    source = """
def f(x) -> meta(0):
    def inner(a: meta(1)) -> (meta(2), [float]):
        def innermost() -> meta(3): return a
        log.append(innermost.__annotations__)
        if a > 0:
            return a + 1
        return a
    log.append(inner.__annotations__)
    return inner(x)
"""
    future = "from __future__ import annotations\n" * are_texts
    path.write_text(future + "log, meta = [], lambda number: number" + source)
    module = runpy.run_path(str(path), run_name=path.stem)
    linecache.checkcache(str(path))
    assert float(tf.function(module["f"])(tf.constant(1.0))) == 2.0
    one, two, three = ("meta(1)", "(meta(2), [float])", "meta(3)") if are_texts else (1, (2, [float]), 3)
    assert module["log"] == [{"a": one, "return": two}, {"return": three}]


def nested_in_else(x):
    return 1.0 if x < 0 else 2.0 if x < 2 else 3.0


def nested_in_the_value(x):
    return (1.0 if x < 2 else x * 2) if x > 0 else 3.0


def nested_in_the_condition(x):
    return 1.0 if (x < 2 if x > 0 else x < -1) else 3.0


def nested_in_arguments_and_lambdas(x):
    scale = lambda y: y * (1.0 if y < 0 else abs(y) if y < 2 and y != 1 else 3.0)  # noqa: E731
    return scale(x) if x > -2 else scale(x - (2.0 if x < -3 else 1.0))


def nested_in_a_comprehension(x):
    return sum([k * 1.0 if x > k else 2.0 if x > -k else 3.0 for k in range(3)])


NESTED = [
    nested_in_else,
    nested_in_the_value,
    nested_in_the_condition,
    nested_in_arguments_and_lambdas,
    nested_in_a_comprehension,
]


@pytest.mark.parametrize("function", NESTED, ids=lambda one: one.__name__)
def test_conditional_expressions_within_conditional_expressions(function):
    compiled = tf.function(function)
    for x in (-4.0, -2.5, -1.0, 0.0, 1.0, 1.5, 4.0):
        assert float(compiled(tf.constant(x))) == float(function(tf.constant(x)))


def test_an_error_shows_the_condition_of_a_nested_conditional_expression():
    with pytest.raises(InvalidArgumentError, match="`x < 2` is float32"):
        tf.function(lambda x: 1.0 if x < 0 else x if x < 2 else [x])(tf.constant(1.0))
