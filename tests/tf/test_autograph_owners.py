"""Attributes and items that a traced branch or loop body assigns by several paths, or by code of their class."""

from __future__ import annotations

import collections
import weakref
from typing import Any

import pytest

import mirrored.tf as tf
from mirrored.tf._errors import InvalidArgumentError


class Plain:
    def __init__(self, value: Any = None) -> None:
        self.s = value


class Doubling:
    """Its setter is no inverse of its getter."""

    def __init__(self, value: Any) -> None:
        self._x = value
        self.sets = 0

    @property
    def x(self) -> Any:
        return self._x

    @x.setter
    def x(self, value: Any) -> None:
        self._x = value * 2
        self.sets += 1


class Logging:
    """Its setter changes a list and a dict."""

    def __init__(self, value: Any) -> None:
        self.rows = [value, value]
        self.named = {"last": value}

    @property
    def x(self) -> Any:
        return self.rows[1] + self.named["last"]

    @x.setter
    def x(self, value: Any) -> None:
        self.rows[0] = self.rows[1]
        self.rows[1] = value + 1
        self.named["last"] = self.rows[0]


class Forwarding:
    """Its setter changes another object."""

    def __init__(self, value: Any) -> None:
        self._inner = Plain(value)

    @property
    def x(self) -> Any:
        return self._inner.s

    @x.setter
    def x(self, value: Any) -> None:
        self._inner.s = value


class Slotted:
    __slots__ = ("x",)

    def __init__(self, value: Any) -> None:
        self.x = value


class Counting(dict[str, Any]):
    sets = 0

    def __setitem__(self, key: str, value: Any) -> None:
        self.sets += 1
        super().__setitem__(key, value * 3)


class Store:
    def __init__(self, value: Any) -> None:
        self.data = {"x": value}
        self.sets = 0

    def __getitem__(self, key: str) -> Any:
        return self.data[key] + 1

    def __setitem__(self, key: str, value: Any) -> None:
        self.sets += 1
        self.data[key] = value * 5


class Shifted(list[Any]):
    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value + 7)


def by_a_name_then_an_item(a, b):
    o = Plain(a)
    q, r = o, {"o": o}
    if a > b:
        q.s = b * 10
        r["o"].s = q.s + 1
    return o.s


def by_an_item_then_a_name(a, b):
    o = Plain(a)
    q, r = o, {"o": o}
    if a > b:
        r["o"].s = b * 10
        q.s = r["o"].s + 1
    return o.s


def by_a_name_in_the_other_branch(a, b):
    o = Plain(a)
    q, r = o, {"o": o}
    if a > b:
        r["o"].s = b * 10
    else:
        q.s = b * 7
    return o.s


def by_two_names(a, b):
    o = Plain(a)
    p = q = o
    if a > b:
        p.s = b * 10
    elif a < b:
        q.s = p.s * 7
    return o.s


def by_a_name_that_is_bound_again(a, b):
    first, second = Plain(a), Plain(b)
    q = first
    if a > b:
        q.s = b * 10
        q = second
        q.s = a * 3
        q = first
    return first.s * 1000 + second.s * 10 + q.s


def by_a_name_that_the_branch_binds(a, b):
    first, second = Plain(a), Plain(b)
    q = second
    if a > b:
        q = first
        q.s = b * 10
        q = second
    return first.s * 1000 + second.s * 10 + q.s


def by_aliases_in_a_loop(a, b):
    o = Plain(a)
    q, r = o, {"o": o}
    for i in tf.range(b):
        if a > i:
            q.s = q.s + i
        r["o"].s = q.s * 2
    return o.s


def by_deeper_names(a, b):
    o = Plain(Plain(a))
    q = o.s
    while q.s < b * 9:
        o.s.s = q.s + b
        if a > b:
            q.s = o.s.s + 1
    return q.s + o.s.s


def by_a_new_attribute(a, b):
    o = Plain()
    q, r = o, [o]
    if a > b:
        q.new = a
    else:
        r[0].new = b
    return o.new


def by_a_setter(a, b):
    p = Doubling(a)
    if a > b:
        p.x = p.x + a
    return p.x + 1000 * p.sets


def by_a_setter_twice(a, b):
    p = Doubling(a)
    if a > b:
        p.x = p.x + a
        p.x += 1
    else:
        p.x = b
        p.x = p.x + 2
    return p.x + 1000 * p.sets


def by_a_setter_in_a_loop(a, b):
    p = Doubling(a)
    for i in tf.range(b):
        p.x = p.x + i
        if p.x > 100:
            p.x = i
    return p.x + 1000 * p.sets


def by_a_setter_and_the_attribute(a, b):
    p = Doubling(a)
    if a > b:
        p.x = a
        p._x = p._x + b
    else:
        p._x = b
    return p.x


def beside_a_setter(a, b):
    p = Doubling(a)
    if a > b:
        p.x = a
        c = b
    else:
        c = a
    return p.x + c


def by_a_setter_of_containers(a, b):
    p = Logging(a)
    if a > b:
        p.x = p.x + b
        p.x = p.x * 2
    return p.x * 100 + p.rows[0]


def by_a_setter_of_containers_in_a_loop(a, b):
    p = Logging(a)
    i = 0
    while i < b:
        p.x = p.x + i
        i += 1
    return p.x * 100 + p.named["last"]


def by_a_forwarding_setter(a, b):
    p = Forwarding(a)
    if a > b:
        p.x = p.x + b
    for i in tf.range(b):
        p.x = p.x + i
    return p.x


def by_slots(a, b):
    p = Slotted(a)
    if a > b:
        p.x = p.x + b
    return p.x


def by_items_of_a_dict_that_counts(a, b):
    d = Counting(x=a)
    if a > b:
        d["x"] = b
    for i in tf.range(b):
        d["x"] = d["x"] + i
    return d["x"] + 100_000 * d.sets


def by_items_of_a_list_that_shifts(a, b):
    d = Shifted([a, b])
    if a > b:
        d[0] = b
        d[1] = d[0]
    return d[0] * 100 + d[1]


def by_items_of_another_class(a, b):
    d = Store(a)
    if a > b:
        d["x"] = d["x"] + b
    else:
        d["x"] = 1
    return d["x"] + 100_000 * d.sets


def by_items_of_a_user_dict(a, b):
    d = collections.UserDict(x=a)
    if a > b:
        d["x"] = b
    for i in tf.range(b):
        d["x"] = d["x"] + i
    return d["x"]


def by_items_of_a_default_dict(a, b):
    d = collections.defaultdict(lambda: b, x=a)
    if a > b:
        d["y"] = a * 2
    else:
        d["y"] = 4
    return d["x"] * 100 + d["y"] + len(d)


def by_items_of_an_ordered_dict(a, b):
    d = collections.OrderedDict(x=a)
    if a > b:
        d["y"] = a * 2
    else:
        d["y"] = 4
    return sum(k * one for k, one in zip([1, 100], d.values(), strict=True))


class Marking:
    """Its setter changes the object, and another one."""

    mark: Any = None

    def __init__(self, value: Any) -> None:
        self._inner = Plain(value)
        self.sets = 0

    @property
    def x(self) -> Any:
        return self._inner.s

    @x.setter
    def x(self, value: Any) -> None:
        self.mark = value
        self.sets += 1
        self._inner.s = value


class Mirroring(dict[str, Any]):
    def __init__(self, value: Any) -> None:
        super().__init__(x=value)
        self.other = Plain(value)

    def __setitem__(self, key: str, value: Any) -> None:
        self.other.s = value
        super().__setitem__(key, value)


def by_an_attribute_and_an_item_of_its_list(a, b):
    o = Plain([a, b])
    if a > b:
        o.s = [b, a]
    else:
        o.s[1] = a
    return o.s[0] * 100 + o.s[1]


def by_a_list_that_an_attribute_gets(a, b):
    rows, o = [a, b], Plain([b, a])
    if a > b:
        o.s = rows
        rows[0] = b * 7
    else:
        rows[1] = a * 5
    return o.s[0] * 100 + o.s[1] + rows[0] * 10_000


def by_items_of_a_list_in_nested_branches(a, b):
    o = Plain({"x": [a, b]})
    if a > b:
        o.s["x"][0] += 1
        if a > b + 1:
            o.s["x"] = [b, a]
        else:
            o.s["x"][1] = b * 2
    else:
        o.s = {"x": [b, b]}
    return o.s["x"][0] * 100 + o.s["x"][1]


def by_a_list_of_an_attribute_in_a_loop(a, b):
    o = Plain([a, b])
    for i in tf.range(b):
        if a > i:
            o.s = [o.s[1], o.s[0]]
        else:
            o.s[1] = o.s[0] + i
    return o.s[0] * 100 + o.s[1]


def by_a_setter_of_two_objects(a, b):
    p = Marking(a)
    p.x = b
    if a > b:
        p.x = p.x + a
    return p.x * 100 + p.mark + 100_000 * p.sets


def by_a_setter_of_two_objects_with_python_values(a, b):
    p = Marking(1)
    if a > b:
        p.x = a
    else:
        p.x = 3
    return p.x * 100 + p.mark


def by_a_setter_of_two_objects_in_a_loop(a, b):
    p = Marking(a)
    p.x = b
    for i in tf.range(a):
        p.x = p.x + i
    return p.x * 100 + p.mark + 100_000 * p.sets


def by_items_of_a_dict_that_mirrors(a, b):
    d = Mirroring(a)
    if a > b:
        d["x"] = b
    return d["x"] * 100 + d.other.s


def by_a_weak_proxy(a, b):
    o = Plain(a)
    proxy = weakref.proxy(o)
    if a > b:
        proxy.s = b * 10
    else:
        o.s = b * 3
    return o.s


FUNCTIONS = [one for name, one in list(globals().items()) if name.startswith(("by_", "beside_"))]


@pytest.mark.first(16)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__name__)
def test_values_are_those_of_python(function: Any) -> None:
    compiled = tf.function(function)
    for a, b in [(5, 3), (3, 5), (4, 4)]:
        expected = int(function(tf.constant(a), tf.constant(b)))
        assert int(compiled(tf.constant(a), tf.constant(b))) == expected, (a, b)


@pytest.mark.parametrize("kind", [Plain, Doubling, Logging, Forwarding])
def test_an_object_outside_is_as_before_after_a_branch_that_raises(kind: Any) -> None:
    owner: Any = kind(1)
    name = "s" if kind is Plain else "x"

    def change(a: Any) -> Any:
        if a > 3:
            if name == "s":
                owner.s = a
            else:
                owner.x = a
            raise ValueError("in the branch")
        return a

    before = {key: list(one) if isinstance(one, list) else one for key, one in vars(owner).items()}
    with pytest.raises(ValueError, match="in the branch"):
        tf.function(change)(tf.constant(5))
    assert vars(owner) == before


def test_a_property_without_a_getter_is_refused_if_it_changes_another_object() -> None:
    class Hidden:
        def __init__(self, inner: Plain) -> None:
            self._inner = inner

        def _set(self, value: Any) -> None:
            self._inner.s = value

        x = property(None, _set)

    def change(a: Any) -> Any:
        inner = Plain(a)
        hidden = Hidden(inner)
        if a > 3:
            hidden.x = 2
        return inner.s

    with pytest.raises(InvalidArgumentError, match="sets a property that cannot be read"):
        tf.function(change)(tf.constant(5))


def test_the_number_of_traces_of_nested_loops_grows_with_their_depth() -> None:
    traced: list[int] = []

    def count() -> None:
        traced.append(1)

    def nested(x):
        o, p, q, r = Plain(x), Plain(x), Plain(x), Plain(x)
        for _ in tf.range(2):
            o.s = o.s + 1
            for _ in tf.range(2):
                p.s = p.s + o.s
                for _ in tf.range(2):
                    q.s = q.s + p.s
                    for _ in tf.range(2):
                        r.s = r.s + q.s
                        count()
        return r.s

    expected = int(nested(tf.constant(1)))
    traced.clear()
    assert int(tf.function(nested)(tf.constant(1))) == expected
    assert len(traced) <= 8  # two per level; 16 if each trace of a level traced the next one twice


def test_a_weak_proxy_whose_object_is_gone_does_not_matter_if_it_is_not_used() -> None:
    def change(a: Any, b: Any) -> Any:
        o = Plain(a)
        o.others = [weakref.proxy(Plain(b)), weakref.ref(Plain(b))]  # type: ignore[attr-defined]
        if a > b:
            made = Plain(b)
            made.s = a
            o.s = made.s * 2
        return o.s

    assert int(tf.function(change)(tf.constant(5), tf.constant(3))) == 10
    assert int(tf.function(change)(tf.constant(3), tf.constant(5))) == 3
