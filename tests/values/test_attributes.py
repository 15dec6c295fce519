"""Objects of users whose class defines `__getattr__` by a lookup, which raises a `KeyError` for an absent name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import StructureError
from mirrored.values.attributes import attribute, has_attribute


class Attributes(dict[str, Any]):
    __getattr__ = dict.__getitem__  # type: ignore[assignment]


class Scaler(Attributes):
    @mr.function
    def scaled(self, x):
        return x * 2.0

    def __call__(self, x):
        return x * self.k


SETTINGS = Attributes(k=2.0)


def test_absent_and_present_attributes_are_told_apart():
    assert attribute(SETTINGS, "k") == 2.0
    assert attribute(SETTINGS, "dtype") is None
    assert attribute(SETTINGS, "dtype", 1) == 1
    assert has_attribute(SETTINGS, "k")
    assert not has_attribute(SETTINGS, "dtype")


def test_the_errors_of_a_property_pass():
    class Failing:
        @property
        def dtype(self) -> str:
            raise RuntimeError("of the property")

    with pytest.raises(RuntimeError, match="of the property"):
        attribute(Failing(), "dtype")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.ways(replicas=(2,))
def test_a_run_takes_it_as_an_argument(way, compiled):
    def call(settings):
        return way.strategy.run(lambda settings, x: settings["k"] * x, args=(settings, jnp.ones(3)))

    result = (mr.function(call) if compiled else call)(Attributes(k=2.0))
    assert way.strategy.experimental_local_results(result)[0].tolist() == [2.0] * 3
    result = way.strategy.run(Scaler(k=2.0), args=(jnp.ones(3),))
    assert way.strategy.experimental_local_results(result)[0].tolist() == [2.0] * 3


def test_a_compiled_function_reads_it():
    scaler = Scaler(k=2.0)
    assert scaler.scaled(jnp.ones(3)).tolist() == [2.0] * 3
    assert mr.function(lambda x: x * SETTINGS.k)(jnp.ones(3)).tolist() == [2.0] * 3
    assert mr.function(lambda x: x * SETTINGS["k"])(jnp.ones(3)).tolist() == [2.0] * 3


def test_a_per_replica_value_holds_it():
    assert "'k': 2.0" in repr(mr.PerReplica([SETTINGS, SETTINGS]))


def test_a_dataset_names_the_rule():
    with pytest.raises(StructureError, match="a leaf is of type Attributes"):
        mr.data.Dataset.from_tensor_slices(Attributes(k=np.ones(4)))
    tuples = mr.data.Dataset.range(4).map(lambda i: Attributes(k=i))
    with pytest.raises(StructureError, match="a leaf is of type Attributes"):
        list(tuples.batch(2))


class Described:
    rate = 0.5

    @property
    def dtype(self) -> str:
        return "of an instance"


def test_a_class_has_no_properties_of_its_instances():
    assert attribute(Described, "rate") == 0.5
    assert not has_attribute(Described, "dtype")
    assert attribute(Described(), "dtype") == "of an instance"


@pytest.mark.parametrize("argument", [np.float32, jnp.float32, np.dtype("float32"), float, Described])
@pytest.mark.ways(replicas=(2,))
def test_a_run_takes_a_class_as_an_argument(way, argument):
    def step(given):
        assert given is argument
        return jnp.zeros(2, np.float32 if given is Described else given)

    for call in (way.strategy.run, mr.function(lambda step, args: way.strategy.run(step, args=args))):
        for component in way.strategy.experimental_local_results(call(step, args=(argument,))):
            assert component.tolist() == [0.0, 0.0]
