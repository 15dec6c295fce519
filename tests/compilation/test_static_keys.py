"""Keys of static arguments: a program depends on what they are when it is called."""

from __future__ import annotations

import argparse
import array
import collections
import copy
import dataclasses
import datetime
import decimal
import functools
import gc
import math
import types

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.compilation.static_keys import static_key, unchanging


@dataclasses.dataclass
class Config:
    scale: float
    layers: list[int]


class Comparable:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


class Uncopied(Comparable):
    def __deepcopy__(self, memo):
        raise TypeError("not to be copied")


class Undecided(Comparable):
    def __eq__(self, other):
        raise ValueError("neither equal nor different")

    __hash__ = None


class Named(Comparable):
    def __hash__(self):
        return hash("Named")


class Slotted(Comparable):
    __slots__ = ("value",)

    def __hash__(self):
        return hash("Slotted")


class Mapped(dict):
    pass


class Listed(list):
    pass


Pair = collections.namedtuple("Pair", ["first", "second"])


def _mutate_set(value):
    value.add(7)


def _mutate_config(value):
    value.layers.append(7)


def _mutate_array(value):
    value.layers[0] = 7


def _mutate_attribute(value):
    value.value = 7


@pytest.mark.parametrize(
    ("make", "mutate"),
    [
        (lambda: {1, 2}, _mutate_set),
        (lambda: bytearray(b"ab"), lambda value: value.append(7)),
        (lambda: Config(1.0, [1]), _mutate_config),
        (lambda: Config(1.0, {"a": 1}), lambda value: value.layers.update(b=2)),
        (lambda: Config(1.0, np.zeros(2)), _mutate_array),
        (lambda: Comparable(1), _mutate_attribute),
        (lambda: Config(Comparable(1), [{1}]), lambda value: value.layers[0].add(7)),
        (lambda: Named(1), _mutate_attribute),
        (lambda: Slotted(1), _mutate_attribute),
        (lambda: types.SimpleNamespace(value=1), _mutate_attribute),
        (lambda: Mapped(a=1), lambda value: setattr(value, "scale", 2)),
    ],
)
def test_what_has_been_mutated_is_another_argument(make, mutate):
    seen = []
    step = mr.function(lambda x, static: seen.append(1) or x)
    value = make()
    step(jnp.ones(2), value)
    step(jnp.ones(2), value)
    step(jnp.ones(2), make())
    assert len(seen) == 1
    mutate(value)
    step(jnp.ones(2), value)
    assert len(seen) == step.trace_count == 2
    assert static_key(value) != static_key(make())


def test_numbers_are_compared_by_their_bits():
    step = mr.function(lambda x, number: x * math.copysign(1.0, number.real if isinstance(number, complex) else number))
    assert [float(step(jnp.float32(1.0), one)) for one in (0.0, -0.0, 0.0, -0.0)] == [1.0, -1.0, 1.0, -1.0]
    assert [float(step(jnp.float32(1.0), one)) for one in (0j, complex(-0.0, 0.0))] == [1.0, -1.0]
    before = step.trace_count
    for _ in range(3):
        step(jnp.float32(1.0), float("nan"))
        step(jnp.float32(1.0), float("-nan"))
    assert step.trace_count == before + 1
    assert static_key(Config(0.0, [])) != static_key(Config(-0.0, []))
    assert static_key(Config(math.nan, [])) == static_key(Config(float("nan"), []))
    assert static_key(1.0) != static_key(1)
    assert repr(static_key(0.5)[1]) == "0.5"


def test_what_cannot_be_copied_or_compared():
    uncopied, undecided = Uncopied(1), Undecided(1)
    assert static_key(uncopied) == static_key(uncopied) != static_key(Uncopied(1))
    assert static_key(undecided) != static_key(undecided)
    assert "Uncopied" in repr(static_key(uncopied)[1])
    assert "Undecided" in repr(static_key(undecided)[1])
    assert static_key(Comparable) == static_key(Comparable) != static_key(Uncopied)


def test_variables_and_arrays_inside_are_themselves():
    v, x = mr.Variable(1.0), jnp.ones(2)
    assert static_key(Config(v, [x])) == static_key(Config(v, [x]))
    assert static_key(Config(v, [x])) != static_key(Config(mr.Variable(1.0), [x]))
    assert static_key(Config(v, [x])) != static_key(Config(v, [jnp.ones(2)]))


@pytest.mark.parametrize(
    "kind",
    [
        collections.deque,
        lambda one: collections.OrderedDict(a=one[0]),
        lambda one: Mapped(a=one[0]),
        Listed,
        lambda one: Config(Pair(one[0], 1), []),
        lambda one: types.SimpleNamespace(a=one[0]),
        lambda one: argparse.Namespace(a=one[0]),
        lambda one: types.MappingProxyType({"a": one[0]}),
        lambda one: collections.UserDict(a=one[0]),
        lambda one: Comparable(one[0]),
        lambda one: Named(one[0]),
        lambda one: Slotted(one[0]),
        lambda one: np.array([one[0], None]),
    ],
)
def test_contents_are_compared_by_the_type_and_the_bits_of_their_elements(kind):
    keys = [static_key(kind([number])) for number in (2, 2.0, True, 0.0, -0.0)]
    assert len(set(keys)) == len(keys)
    assert static_key(kind([2.0])) == static_key(kind([2.0]))


@pytest.mark.parametrize(
    "different",
    [
        [range(0, 3, 2), range(0, 4, 2)],
        [range(0), range(1, 1)],
        [slice(0, 3), slice(0, 3.0), slice(0, 3, 1)],
        [collections.deque([1], maxlen) for maxlen in (None, 1, 2)],
        [collections.defaultdict(kind, a=1) for kind in (None, int, float)],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_values_that_are_equal_in_python_and_that_a_program_can_tell_apart(different):
    for within in (lambda one: one, lambda one: [one], Comparable):
        keys = [static_key(within(one)) for one in different]
        assert len(set(keys)) == len(keys)
        assert keys == [static_key(within(copy.copy(one))) for one in different]


def test_an_end_of_a_range_and_the_length_of_a_deque_are_constants_of_a_program():
    stop = mr.function(lambda x, steps: x * steps.stop)
    assert [float(stop(jnp.float32(1.0), range(0, end, 2))) for end in (3, 4, 3)] == [3.0, 4.0, 3.0]
    longest = mr.function(lambda x, window: x * window.maxlen)
    assert [float(longest(jnp.float32(1.0), collections.deque([1], end))) for end in (3, 4, 3)] == [3.0, 4.0, 3.0]
    assert stop.trace_count == longest.trace_count == 2


def test_a_default_factory_is_identified_by_its_code_or_by_what_it_closes_over():
    keys = [static_key(Comparable(collections.defaultdict(lambda: 0, a=1))) for _ in range(2)]
    assert keys[0] == keys[1] != static_key(Comparable(collections.defaultdict(lambda: 0.0, a=1)))
    closing = [static_key(collections.defaultdict(lambda: number)) for number in ([0], [1])]  # noqa: B023
    assert closing[0] != closing[1]


@pytest.mark.parametrize(
    "value",
    [
        collections.deque([[1]], 2),
        collections.OrderedDict(a=[1]),
        collections.defaultdict(list, a=[1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_kept_argument_does_not_change_with_its_container(value):
    key = static_key(value)
    kept = unchanging([value])[0]
    (value[0] if isinstance(value, collections.deque) else value["a"]).append(2)
    assert static_key(kept) == key != static_key(value)


def test_the_numbers_of_numpy_inside_are_compared_by_their_bits():
    keys = [static_key([number]) for number in (np.float32(0.0), np.float32(-0.0), np.float64(0.0), np.int32(0))]
    assert len(set(keys)) == len(keys)


def test_an_object_that_contains_itself():
    lists = [[1], [1], [2]]
    for one in lists:
        one.append(one)
    one, same, other = map(static_key, lists)
    assert one == same != other


def test_variables_whose_shape_may_change_are_not_mistaken_for_each_other():
    first = mr.Variable(jnp.zeros(2), shape=(None,))
    v = mr.Variable(jnp.asarray([1.0, 2.0, 3.0]), shape=(None,))
    size = mr.function(lambda: v.read_value().shape[0])
    assert size() == 3
    del first
    gc.collect()
    v.assign(jnp.zeros(2))
    last = mr.Variable(jnp.zeros(3), shape=(None,))
    assert (size(), last.shape.rank) == (2, 1)


class Scaled(Config):
    """A class that is no dataclass itself: its `==` and its fields are those of `Config`."""

    def __init__(self, scale):
        super().__init__(scale, [])


class WithSlot(Config):
    __slots__ = ("other",)


@dataclasses.dataclass
class Elements(dict):
    units: int = 1

    @property
    def other(self):
        return self["other"]

    @other.setter
    def other(self, value):
        self["other"] = value


@dataclasses.dataclass
class Late:
    units: int
    note: str = dataclasses.field(default="", compare=False)

    def __post_init__(self):
        self.other = 2.0

    @functools.cached_property
    def double(self):
        return 2 * self.units


@pytest.mark.parametrize(
    "make",
    [lambda: Scaled(1.0), lambda: WithSlot(1.0, []), Elements, lambda: Late(1)],
    ids=["subclass", "slots", "elements", "no field"],
)
def test_a_dataclass_is_compared_by_all_its_attributes_and_elements(make):
    first, second = make(), make()
    for one in (first, second):
        one.scale, one.layers, one.other = 1.0, [], 2.0
    assert static_key(first) == static_key(second)
    second.other = 3.0
    assert static_key(first) != static_key(second)


def test_fields_that_are_not_compared_are_not_in_the_key():
    assert static_key(Late(1, "one")) == static_key(Late(1, "two"))


def test_a_cached_property_causes_no_other_trace():
    config = Late(1)
    key = static_key(config)
    assert config.double == 2
    assert static_key(config) == key


NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
EASTERN = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (array.array("d", [0.0]), array.array("d", [-0.0])),
        lambda: (array.array("i", [2]), array.array("f", [2.0])),
        lambda: (NOON, NOON.astimezone(EASTERN)),
        lambda: (datetime.time(12, tzinfo=datetime.UTC), datetime.time(13, tzinfo=EASTERN)),
        lambda: (datetime.datetime(2024, 10, 27, 2), datetime.datetime(2024, 10, 27, 2, fold=1)),
        lambda: (datetime.UTC, datetime.timezone(datetime.timedelta(0), "here")),
        lambda: (decimal.Decimal("0"), decimal.Decimal("-0")),
        lambda: (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
        lambda: (memoryview(array.array("d", [0.0])), memoryview(array.array("d", [-0.0]))),
        lambda: (memoryview(bytearray(b"a")), memoryview(bytearray(b"b"))),
    ],
    ids=["zeros", "types", "time zones", "times", "fold", "names", "signs", "digits", "views", "writable views"],
)
def test_what_a_program_can_tell_apart_is_not_equal(make):
    (one, other), (again, _) = make(), make()
    assert static_key(one) == static_key(again) != static_key(other)
    assert hash(static_key(one)) == hash(static_key(again))
    assert static_key({"at": [one]}) == static_key({"at": [again]}) != static_key({"at": [other]})


@pytest.mark.parametrize(
    "make",
    [lambda: array.array("d", [math.nan, 1.0]), lambda: decimal.Decimal("NaN"), lambda: decimal.Decimal("sNaN")],
    ids=["array", "Decimal", "signaling"],
)
def test_an_array_or_decimal_with_nan_is_equal_to_itself(make):
    step = mr.function(lambda x, data: x)
    value = make()
    for one in (value, value, make()):
        step(jnp.ones(2), one)
    assert step.trace_count == 1
    assert static_key([value]) == static_key([make()])


def test_an_array_of_python_that_changes_is_another_argument():
    values = array.array("d", [0.0])
    inverse = mr.function(lambda data: 1.0 / jnp.asarray(data[0]))
    found = [float(inverse(values))]
    values[0] = -0.0
    assert [*found, float(inverse(values)), inverse.trace_count] == [math.inf, -math.inf, 2]
    assert [float(inverse(array.array("d", [-0.0]))), inverse.trace_count] == [-math.inf, 2]
