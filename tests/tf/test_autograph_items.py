"""Items and attributes that a branch or a loop body of `tf.function` assigns."""

from __future__ import annotations

import contextlib
import logging
import types
from typing import ClassVar

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.errors import ContextError
from mirrored.tf._errors import InvalidArgumentError


def with_a_negative_index(x):
    a = [x, 2.0]
    alias = a
    if x > 0:
        a[-1] = x * 2
    else:
        a[-2] = 5.0
    return [*a, *alias]


def with_negative_indices_of_a_row(x):
    """The docstring stays first."""
    a = {"row": [x, 2.0, 3.0]}
    if x > 0:
        a["row"][-1], a["row"][-3] = a["row"][-3], a["row"][-1]
    a["row"][-2] += 1.0
    return a["row"]


def with_a_negative_index_in_a_nested_function(x):
    a = [x, 2.0]

    def change():
        if x > 0:
            a[-1] = x

    change()
    a[-2] = 3.0
    return a


def with_a_negative_index_in_a_loop(x):
    a = [0.0, 1.0]
    while a[-1] < x:
        a[-1] *= 2.0
    for row in tf.stack([x, x + 1.0]):
        a[-2] += row
    return a


def with_a_list_of_the_branch(x):
    y = 0.0
    if x > 0:
        a = {"k0": 0.0}
        b = [0.0, x]
        for i in range(2):
            a[f"k{i}"] = x * i
            b[i - 1] += a[f"k{i}"]
        del a["k0"]
        y = b[0] + a["k1"]
    return [y]


def with_an_unrolled_loop(x):
    a = [0.0, 0.0, 0.0]
    for i, row in enumerate([x, x + 1.0]):
        a[i + 1] = row
    for k, row in enumerate(tf.unstack(tf.stack([x, x]))):
        a[k + 1] -= row
    return a


def with_a_loop_over_the_rows_of_a_tensor(x):
    a, i = [0.0, 1.0], 0
    for row in tf.stack([x, x + 1.0]):
        a[i + 1] += row
    return a


def with_a_name_for_the_index(x):
    a = [0.0, 0.0]
    i = 0
    k = i + 1
    if x > 0:
        a[k] = x
    return a


def with_a_name_that_gets_its_value_in_the_branch(x):
    if x > 0:
        a = {"k1": x}
        a[f"k{1}"] += 1.0
        y = a["k1"]
    else:
        y = 0.0
    return [y]


RIGHT = [
    with_a_name_that_gets_its_value_in_the_branch,
    with_a_negative_index,
    with_negative_indices_of_a_row,
    with_a_negative_index_in_a_nested_function,
    with_a_negative_index_in_a_loop,
    with_a_list_of_the_branch,
    with_an_unrolled_loop,
    with_a_loop_over_the_rows_of_a_tensor,
    with_a_name_for_the_index,
]


@pytest.mark.parametrize("function", RIGHT, ids=lambda one: one.__name__)
def test_items_have_the_values_that_python_gives_them(function):
    compiled = tf.function(function)
    for x in (-1.0, 0.5, 5.0):
        assert [float(one) for one in compiled(tf.constant(x))] == [float(one) for one in function(tf.constant(x))]


def by_an_expression(x, a, i):
    if x > 0:
        a[i + 1] = x


def by_an_exchange(x, a, i):
    if x > 0:
        a[i], a[i + 1] = a[i + 1], a[i]


def by_a_key(x, a, i):
    d = {"k0": 0.0}
    if x > 0:
        d[f"k{i}"] += 1.0
    a[0] = d["k0"]


def by_a_slice(x, a, i):
    if x > 0:
        a[1:] = [x]


def by_a_row(x, a, i):
    rows = [a, a]
    if x > 0:
        rows[i][i + 1] = x


def by_del(x, a, i):
    if x > 0:
        del a[0]
    else:
        del a[1]


def by_an_attribute_of_a_result(x, a, i):
    one = types.SimpleNamespace(v=0.0)
    get = lambda: one  # noqa: E731
    if x > 0:
        get().v = x
    a[0] = one.v


def by_a_loop(x, a, i):
    while x > 0:
        a[i + 1] += 1.0
        x = x - 1.0


def by_an_inner_branch_and_by_the_outer(x, a, i):
    if x > 0:
        if x > 1:
            a[1] = x
        a[1] = a[1] + 1.0


def by_nested_loops(x, a, i):
    for _ in tf.range(tf.cast(x, tf.int32)):
        for _ in tf.range(tf.cast(x, tf.int32)):
            a[1] += x
        a[0] += a[1]


def by_a_loop_over_a_range(x, a, i):
    for _ in tf.range(tf.cast(x, tf.int32)):
        a[i + 1] += 1.0


def by_an_inner_branch(x, a, i):
    if x > 0:
        if x > 1:
            x = x + 1.0
        else:
            a[i + 1] = x
    return x


def by_a_branch_after_a_break(x, a, i):
    for k in range(2):
        if x > k:
            break
        a[k - 1] = 1.0


def by_an_iteration_after_a_break(x, a, i):
    for k in range(3):
        a[k - 1] = 1.0
        if x > k:
            break


def by_an_index_that_the_branch_changes(x, a, i):
    if x > 0:
        a[i] = 1.0
        i = i + 1
        a[i] = 2.0


def by_an_alias_of_the_branch(x, a, i):
    if x > 0:
        b = a
        if x > 1:
            b[-1] = x
        else:
            b[-2] = x


CHANGED = [
    by_an_expression,
    by_an_exchange,
    by_a_key,
    by_a_slice,
    by_a_row,
    by_del,
    by_an_attribute_of_a_result,
    by_a_loop,
    by_an_inner_branch_and_by_the_outer,
    by_nested_loops,
    by_a_loop_over_a_range,
    by_an_inner_branch,
    by_a_branch_after_a_break,
    by_an_iteration_after_a_break,
    by_an_index_that_the_branch_changes,
    by_an_alias_of_the_branch,
]


@pytest.mark.first(6)
@pytest.mark.parametrize("function", CHANGED, ids=lambda one: one.__name__)
def test_a_list_of_the_function_is_changed_in_place_as_by_python(function):
    def f(x):
        a = [0.0, 5.0]
        alias = a
        function(x, a, 0)
        return alias

    for x in (0.0, 1.0, 2.0):
        assert [float(one) for one in tf.function(f)(tf.constant(x))] == [float(one) for one in f(tf.constant(x))]


def test_a_list_whose_length_depends_on_a_tensor_is_refused():
    def f(x):
        a = [0.0, 1.0]
        if x > 0:
            del a[0]
        return a

    with pytest.raises(InvalidArgumentError, match=r"`a at test_autograph_items.py:\d+` is list \[1.0\] in one branch"):
        tf.function(f)(tf.constant(1.0))


def with_a_list_made_in_the_branch(x):
    y = 0.0
    if x > 0:
        a = []
        a.append(x * 2)
        y = a.pop()
    return y


def with_rows_of_a_tensor(x):
    a = []
    for row in tf.stack([x, x * 2]):
        a.append(row)
    return a[0] + a[1] * len(a)


@pytest.mark.parametrize("function", [with_a_list_made_in_the_branch, with_rows_of_a_tensor])
def test_methods_that_change_lists(function, caplog):
    for x in (-1.0, 2.0):
        assert float(tf.function(function)(tf.constant(x))) == float(function(tf.constant(x)))
    assert not caplog.records


def test_a_list_that_gets_a_tensor_of_a_branch_is_refused():
    def f(x):
        a = []
        if x > 0:
            a.append(x * 2)
        return len(a)

    with pytest.raises(InvalidArgumentError, match=r"`append` changes a list at .*test_autograph_items.py:\d+, in a"):
        tf.function(f)(tf.constant(1.0))


def test_a_list_that_a_branch_changes_is_reported_once(caplog):
    calls = []

    def f(x):
        if x > 0:
            calls.append("positive")
        return x

    with caplog.at_level(logging.WARNING, "mirrored"):
        for _ in range(2):
            tf.function(f)(tf.constant(1.0))
    (record,) = caplog.records
    assert "`append` changes a list" in record.getMessage()
    assert calls == ["positive"] * 2


class Slots:
    __slots__ = ("held",)
    shared: ClassVar = [0.0, 5.0]

    def __init__(self):
        self.held = [*range(30_000)], [[0.0, 5.0]], [*range(30_000)]


SETTINGS = types.ModuleType("settings")
SETTINGS.items = [0.0, 5.0]


def in_slots(x, one):
    if x > 0:
        one.held[1][0][1] = x
    return one.held[1][0]


def in_a_class(x, one):
    if x > 0:
        one.shared[1] = x
    return Slots.shared


def in_a_module(x, one):
    if x > 0:
        SETTINGS.items[1] = x
    return SETTINGS.items


@pytest.mark.parametrize("function", [in_slots, in_a_class, in_a_module])
def test_changed_objects_are_found_wherever_they_are(function):
    def f(x):
        Slots.shared[1] = SETTINGS.items[1] = 5.0
        y = function(x, Slots())[1] * 1.0
        Slots.shared[1] = SETTINGS.items[1] = 5.0
        return y

    for x in (-1.0, 2.0):
        assert float(tf.function(f)(tf.constant(x))) == (5.0 if x < 0 else x)


def test_items_that_stay_as_they_are_are_not_shown():
    class Key:
        def __repr__(self):
            raise AssertionError

    def f(x):
        a = dict.fromkeys([Key(), Key(), "changed"], 0.0)
        if x > 0:
            a["changed"] = x
        return a["changed"]

    assert float(tf.function(f)(tf.constant(2.0))) == 2.0


class WriteOnly:
    def __setitem__(self, key, value):
        assert key == 1


class ReadLater:
    def __getitem__(self, key):
        raise RuntimeError("not yet")

    __setitem__ = WriteOnly.__setitem__


@pytest.mark.parametrize("owner", [WriteOnly(), ReadLater()], ids=["write only", "read later"])
def test_items_of_an_object_that_does_not_show_them(owner):
    def f(x):
        if x > 0:
            owner[1] = 3.0
            x = x * 2.0
        return x

    assert [float(tf.function(f)(tf.constant(x))) for x in (-1.0, 2.0)] == [-1.0, 4.0]


@pytest.mark.parametrize("kind", [np.float32, object])
def test_items_of_numpy_arrays_that_become_what_they_were(kind):
    def f(x):
        a = np.array([np.nan, 5.0], kind)
        if x > 0:
            a[0] = np.nan
            x = x * 2.0
        return x

    assert [float(tf.function(f)(tf.constant(x))) for x in (-1.0, 2.0)] == [-1.0, 4.0]


def test_tensors_in_a_numpy_array_of_objects():
    def f(x):
        a = np.array([0.0, 5.0], object)
        if x > 0:
            a[1] = x
        return a[1]

    assert [float(tf.function(f)(tf.constant(x))) for x in (-1.0, 2.0)] == [5.0, 2.0]


def test_a_tensor_array_that_is_an_item():
    def f(x):
        a = {"rows": tf.TensorArray(tf.float32, 2)}
        for i in tf.range(2):
            a["rows"] = a["rows"].write(i, x)
        b = {"rows": tf.TensorArray(tf.float32, 2).write(0, x).write(1, x)}
        if x > 0:
            b["rows"] = b["rows"].write(1, x * 2.0)
        return tf.concat([a["rows"].stack(), b["rows"].stack()], 0)

    assert tf.function(f)(tf.constant(2.0)).numpy().tolist() == [2.0, 2.0, 2.0, 4.0]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_loop_that_sets_other_items_in_each_trace(is_known):
    def f(x):
        a, numbers = {}, iter(range(1000))
        for _ in tf.range(2 if is_known else tf.cast(x, tf.int32)):
            a[next(numbers)] = x
        return x

    refused = pytest.raises(InvalidArgumentError, match="an item or attribute that only one of several traces")
    with contextlib.nullcontext() if is_known else refused:  # a loop of known length is unrolled
        assert float(tf.function(f)(tf.constant(2.0))) == 2.0


class Keeping:
    """A method that keeps a tensor, and a list that keeps one."""

    def __init__(self) -> None:
        self.last = tf.constant(0.0)
        self.all: list[tf.Tensor] = []

    def keep(self, x):
        self.last = x * 2.0

    def collect(self, x):
        self.all.append(x)


@pytest.mark.parametrize("used", ["returned", "computed with"])
@pytest.mark.parametrize("how", ["attribute", "list"])
@pytest.mark.parametrize("statement", ["for", "while", "if"])
def test_a_tensor_that_a_called_method_keeps_in_a_traced_body_is_refused_where_it_is_used(statement, how, used):
    """JAX's error named neither the rule nor the remedy."""
    keeping = Keeping()
    method = keeping.keep if how == "attribute" else keeping.collect

    @tf.function
    def total(n):
        if statement == "for":
            for i in tf.range(n):
                method(tf.cast(i, tf.float32))
        elif statement == "while":
            i = n
            while i > 0:
                method(tf.cast(i, tf.float32))
                i -= 1
        elif n > 3:
            method(tf.cast(n, tf.float32))
        kept = keeping.last if how == "attribute" else keeping.all[0]
        return kept if used == "returned" else kept + tf.cast(n, tf.float32)

    for under_tape in (False, True, False):
        with pytest.raises(ContextError, match=r"total: [\s\S]*rule: [\s\S]*remedy: return the value"):
            with tf.GradientTape() if under_tape else contextlib.nullcontext():
                total(tf.constant(5))


@pytest.mark.parametrize(
    "use",
    [len, lambda r: r[1], lambda r: r + 1, lambda r: 2 * r, lambda r: r < 2, lambda r: -r, lambda r: tf.reduce_sum(r)],
    ids=["len", "item", "add", "rmul", "less", "neg", "function"],
)
def test_a_range_with_a_traced_bound_that_is_used_as_a_tensor_is_refused(use):
    """Operators raised Python's TypeError about the type TracedRange."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tf.range: a bound is a traced value[\s\S]*remedy"):
        tf.function(lambda n: use(tf.range(n)))(tf.constant(3))
