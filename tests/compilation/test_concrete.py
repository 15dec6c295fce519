"""Functions with their static arguments fixed."""

from __future__ import annotations

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError, ArgumentTypeError


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_static_arguments_are_fixed_and_the_trace_is_made_at_once():
    power = mr.function(lambda a, b: a**b)
    cube = power.get_concrete_function(spec(2), 3)
    assert power.trace_count == 1
    np.testing.assert_allclose(cube(jnp.asarray([1.0, 2.0])), [1.0, 8.0])
    assert power.trace_count == power.experimental_get_tracing_count() == 1


def test_arrays_may_be_passed_by_name():
    @mr.function
    def scaled(x, factor, bias):
        return x * factor + bias

    concrete = scaled.get_concrete_function(spec(2), 2.0, bias=spec())
    np.testing.assert_allclose(concrete(bias=jnp.asarray(1.0), x=jnp.ones(2)), [3.0, 3.0])
    assert "x: float32[2], bias: float32[]" in repr(concrete)


def test_arrays_that_were_described_by_name_are_passed_by_the_same_names():
    """The arrays of `a` and `b` were exchanged if the names were not in alphabetical order."""
    concrete = mr.function(lambda a, b: a - b).get_concrete_function(b=spec(), a=spec())
    assert float(concrete(a=jnp.asarray(3.0), b=jnp.asarray(1.0))) == 2.0


def test_the_name_of_variadic_parameters_is_no_name_of_an_array():
    concrete = mr.function(lambda *xs, **named: xs[0] - named["y"]).get_concrete_function(spec(), y=spec())
    assert float(concrete(jnp.asarray(3.0), y=jnp.asarray(1.0))) == 2.0
    with pytest.raises(ArgumentTypeError, match="the argument 'xs'"):
        concrete(xs=jnp.asarray(3.0), y=jnp.asarray(1.0))


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((jnp.ones(3),), {}, r"an array float32\[3\]"),
        ((jnp.ones(2, jnp.int32),), {}, r"an array int32\[2\]"),
        ((jnp.ones(2),), {"b": 3}, "the argument 'b'"),
        ((), {}, "0 arrays"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args, kwargs, found):
    concrete = mr.function(lambda a, b: a**b).get_concrete_function(spec(2), b=3)
    with pytest.raises(ArgumentTypeError, match=found):
        concrete(*args, **kwargs)


def test_objects_are_taken_as_they_were_traced():
    class Model:
        bias = 1.0

    model = Model()
    step = mr.function(lambda model, x: x + model.bias)
    concrete = step.get_concrete_function(model, spec())
    model.bias = 5.0
    assert float(concrete(jnp.asarray(2.0))) == 3.0


def test_static_arguments_keep_their_content_also_if_the_trace_is_made_at_the_call():
    v = mr.Variable(1.0)
    config = types.SimpleNamespace(bias=1.0, v=v)
    step = mr.function(lambda config, x: x + config.bias + config.v)
    concrete = step.get_concrete_function(config, types.SimpleNamespace(shape=(None,), dtype=jnp.float32))
    config.bias = 5.0
    v.assign(2.0)
    assert concrete(jnp.zeros(2)).tolist() == [3.0, 3.0]


def test_the_input_signature_is_the_default():
    doubled = mr.function(lambda x: 2 * x, input_signature=[spec(2)])
    np.testing.assert_allclose(doubled.get_concrete_function()(jnp.ones(2)), [2.0, 2.0])
    assert doubled.trace_count == 1


def test_a_misfit_of_the_input_signature_is_a_type_error_and_a_value_error():
    doubled = mr.function(lambda x: 2 * x, input_signature=[spec(2)])
    with pytest.raises(TypeError, match=r"float32\[3\]"):
        doubled(jnp.ones(3))
    with pytest.raises(ValueError, match=r"float32\[3\]"):
        doubled(jnp.ones(3))


def test_variables_are_read_when_it_is_called():
    v = mr.Variable(2.0)
    concrete = mr.function(lambda x: v * x).get_concrete_function(spec())
    v.assign(3.0)
    assert float(concrete(jnp.asarray(2.0))) == 6.0


def test_the_variables_of_a_concrete_function():
    unread, read, assigned = (mr.Variable(1.0, trainable=trainable) for trainable in (True, True, False))

    @mr.function
    def step(x):
        assigned.assign(x.sum())
        return read * x

    concrete = step.get_concrete_function(spec(2))
    assert [variable is read for variable in concrete.variables] == [True, False]
    assert [variable is assigned for variable in concrete.variables] == [False, True]
    assert [variable is read for variable in concrete.trainable_variables] == [True]
    assert unread.trainable
    with pytest.raises(ArgumentError, match="has not been traced"):
        _ = step.get_concrete_function(mr.data.ArraySpec((None,), np.float32)).variables


@pytest.mark.parametrize("how", ["method", "object"])
def test_static_arguments_keep_the_variables_of_their_objects(how):
    class Model:
        def __init__(self):
            self.w = mr.Variable(1.0)

        def train(self, x):
            return self.w.assign_add(x)

    @dataclasses.dataclass
    class Step:
        rate: float
        model: Model = dataclasses.field(compare=False)

        def __call__(self, x):
            return self.model.train(self.rate * x)

    model = Model()
    apply = mr.function(lambda called, x: called(x))
    called = model.train if how == "method" else Step(1.0, model)
    apply.get_concrete_function(called, jax.ShapeDtypeStruct((), jnp.float32))(jnp.float32(2.0))
    assert float(model.w) == 3.0


@pytest.mark.long
@pytest.mark.parametrize("replicas", [0, 2])
def test_a_variable_that_is_an_argument_can_be_assigned(replicas):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=replicas) if replicas else mr.get_strategy()
    with strategy.scope():
        v, other = mr.Variable(1.0), mr.Variable(7.0)
    step = mr.function(lambda variable: variable.assign_add(2.0))
    concrete = step.get_concrete_function(v)
    assert [one is v for one in concrete.variables] == [True]
    concrete(v)
    assert (float(v.read_value()), step.trace_count) == (3.0, 1)
    doubled = mr.function(lambda variable: variable * 2.0).get_concrete_function(v)
    assert [float(doubled(one)) for one in (v, other, jnp.float32(5.0))] == [6.0, 14.0, 10.0]
