"""Arguments of functions with an `input_signature`, and of concrete functions."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr

X = jnp.float32(2.0)
SPEC = jax.ShapeDtypeStruct((), jnp.float32)
PAIR = jax.ShapeDtypeStruct((2,), jnp.float32)


@pytest.mark.parametrize(
    "python_function",
    [
        lambda x, scale=1.0: x * scale,
        lambda x, *, scale=1.0: x * scale,
        lambda x, **options: x * options.get("scale", 1.0),
        lambda x, *, other=None, scale=1.0: x * scale,
    ],
)
def test_parameters_that_it_does_not_describe_keep_their_defaults(python_function):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    scaled = mr.function(python_function, input_signature=[SPEC])
    assert [float(scaled(X)), float(scaled(x=X))] == [2.0, 2.0]
    with pytest.raises(mr.errors.SignatureError, match="keeps its default"):
        scaled(X, scale=3.0)
    with pytest.raises(mr.errors.SignatureError, match="keeps its default"):
        strategy.run(scaled, args=(X,), kwargs={"scale": 3.0})
    assert scaled.trace_count == 1


def test_arguments_equal_to_the_defaults_are_taken():
    step = mr.function(lambda x, training=False, *, mode="a": x * 1.0, input_signature=[SPEC])
    assert float(step(X, False)) == float(step(X, training=False)) == float(step(x=X, mode="a")) == 2.0
    added = mr.function(lambda x, y=1.0: x + y, input_signature=[SPEC, SPEC])
    assert float(added(X)) == float(added(x=X)) == 3.0
    assert float(added(y=X, x=X)) == 4.0
    with pytest.raises(mr.errors.SignatureError, match="unexpected keyword"):
        added(X, z=X)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1.5, jnp.int32, ()),
        ([1.5], jnp.int32, (1,)),
        ([jnp.float32(1.5)], jnp.int32, (1,)),
        (300, jnp.uint8, ()),
        (-1, jnp.uint8, ()),
        (3_000_000_000, jnp.int32, ()),
        (2**70, jnp.int32, ()),
        (2, jnp.bool_, ()),
        (None, jnp.float32, ()),
        ("2.5", jnp.float32, ()),
        ("2", jnp.int32, ()),
        (1 + 2j, jnp.float32, ()),
        ([[1.0], [1.0, 2.0]], jnp.float32, (2, 1)),
        (70000.0, jnp.float16, ()),
        (70000, jnp.float16, ()),
        (1e39, jnp.float32, ()),
        (1e39j, jnp.complex64, ()),
        ([1.0, float("nan"), 7e4], jnp.float16, (3,)),
        ([jnp.float32(7e4), 1.0], jnp.float16, (2,)),
    ],
)
def test_python_values_that_a_cast_would_change_are_refused(value, dtype, shape):
    spec = jax.ShapeDtypeStruct(shape, dtype)
    step = mr.function(lambda x: x, input_signature=[spec])
    for call in (step, mr.function(lambda x: x).get_concrete_function(spec) if shape == () else step):
        with pytest.raises(TypeError, match=re.escape(repr(value)) if shape == () else "is "):
            call(value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1, "float32"), (1.5, "bfloat16"), (True, "int32"), (255, "uint8"), (1, "complex64"), (False, "bool")],
)
def test_python_values_of_the_same_or_a_narrower_kind_are_cast(value, dtype):
    spec = jax.ShapeDtypeStruct((), jnp.dtype(dtype))
    step = mr.function(lambda x: x, input_signature=[spec])
    for call in (step, step.get_concrete_function()):
        assert (call(value).dtype.name, call(value)) == (dtype, value)


def test_lists_of_numbers_and_arrays():
    step = mr.function(lambda x: x, input_signature=[mr.data.ArraySpec((None,), np.dtype("float32"))])
    assert step([1, 2.5]).tolist() == step([jnp.float32(1), np.float64(2.5)]).tolist() == [1.0, 2.5]
    assert step([]).tolist() == []


def test_infinities_and_small_numbers_are_cast():
    step = mr.function(lambda x: x, input_signature=[mr.data.ArraySpec((None,), np.dtype("float16"))])
    assert np.array_equal(step([float("inf"), float("-inf"), float("nan"), 1e-9]), [np.inf, -np.inf, np.nan, 0.0], True)
    assert mr.function(lambda x: step([x, 5.0]))(jnp.float32(2)).tolist() == [2.0, 5.0]


BYTES = jax.ShapeDtypeStruct((2,), jnp.uint8)


def test_arrays_in_lists_are_checked_as_numbers_are():
    step = mr.function(lambda x: x, input_signature=[BYTES])
    assert step([jnp.int32(200), 5]).tolist() == step([jnp.uint8(200), 5]).tolist() == [200, 5]
    for value in ([jnp.int32(300), 5], [jnp.int32(-1), 5]):
        with pytest.raises(mr.errors.SignatureError, match="requires uint8"):
            step(value)
        with pytest.raises(TypeError, match="was passed"):
            step.get_concrete_function()(value)
    assert mr.function(lambda x: step([x, 5]))(jnp.uint8(200)).tolist() == [200, 5]
    with pytest.raises(mr.errors.SignatureError, match="requires uint8"):
        mr.function(lambda x: step([x, 5]))(jnp.int32(200))


def test_a_signature_has_one_program_for_numbers_and_weakly_typed_arrays():
    product = mr.function(lambda x: x * jnp.ones((), jnp.bfloat16), input_signature=[SPEC])
    assert {product(x).dtype.name for x in (2.0, jnp.asarray(2.0), np.float32(2.0))} == {"float32"}
    assert product.trace_count == 1
    several = mr.function(lambda x: x * 2, input_signature=[SPEC], steps_per_call=2)
    assert several([1.0, jnp.asarray(2.0)]).tolist() == [2.0, 4.0]


def test_a_weakly_typed_array_that_a_tape_watches_has_its_gradient():
    x = jnp.asarray(3.0)
    square = mr.function(lambda x: x * x, input_signature=[SPEC])
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
    assert float(tape.gradient(y, x)) == 6.0


@pytest.mark.parametrize("shape", [(), (2,), (None,)])
def test_random_keys_have_a_signature(shape):
    key = jax.random.key(1) if shape == () else jax.random.split(jax.random.key(1), 2)
    spec = mr.data.ArraySpec(shape, key.dtype) if None in shape else jax.ShapeDtypeStruct(shape, key.dtype)
    draw = mr.function(lambda key: jax.random.key_data(key) + jnp.uint32(1), input_signature=[spec])
    expected = (jax.random.key_data(key) + jnp.uint32(1)).tolist()
    assert draw(key).tolist() == draw.get_concrete_function()(key).tolist() == expected
    assert draw.get_concrete_function(key)(key).tolist() == expected
    with pytest.raises(mr.errors.SignatureError, match=re.escape(f"requires {key.dtype}")):
        draw(jax.random.key_data(key)[..., 0])
    with pytest.raises(mr.errors.SignatureError, match=re.escape(f"requires {key.dtype}")):
        draw(3)


def called_by_function(step):
    return mr.function(step)


def called_by_replica(step):
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    def call(x):
        outer = mr.function(lambda: strategy.run(lambda: step(x)))
        return strategy.reduce("MEAN", outer(), axis=None)

    return call


def called_eagerly(step):
    def call(x):
        mr.run_functions_eagerly(True)
        try:
            return step(x)
        finally:
            mr.run_functions_eagerly(False)

    return call


def called_again(step):
    return step


@pytest.mark.parametrize("called", [called_by_function, called_by_replica, called_eagerly, called_again])
def test_every_call_converts_and_checks_its_arguments(called):
    call = called(
        mr.function(lambda x: (x / 2, jnp.full((), x.dtype == jnp.float32, jnp.float32)), input_signature=[SPEC])
    )
    assert [float(value) for value in call(3)] == [1.5, 1.0]
    with pytest.raises(mr.errors.SignatureError, match="argument 0"):
        call(jnp.int32(3))


@pytest.mark.parametrize("called", [called_by_function, called_eagerly, called_again])
def test_every_step_of_a_call_converts_and_checks_its_arguments(called):
    call = called(mr.function(lambda x: (x / 2, x.dtype.itemsize), input_signature=[SPEC], steps_per_call=2))
    for batches in ([1, 3], [1.0, jnp.float32(3)]):
        assert call(batches)[0].tolist() == [0.5, 1.5]
    with pytest.raises(mr.errors.SignatureError, match="argument 0"):
        call([1, jnp.int32(3)])


def test_a_function_that_iterates_converts_the_arguments_of_all_calls():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    iterator = iter(strategy.distribute_dataset([np.ones(2, np.float32)] * 3))
    dtypes = []

    def step(scale):
        dtypes.append(scale.dtype)
        return strategy.reduce("SUM", strategy.run(lambda x: x.sum() * scale, args=(next(iterator),)), axis=None)

    step = mr.function(step, input_signature=[SPEC])
    assert [float(step(1)), float(step(2))] == [2.0, 4.0]
    with pytest.raises(mr.errors.SignatureError, match="argument 0"):
        step(jnp.int32(3))
    assert {*map(str, dtypes)} == {"float32"}


@pytest.mark.parametrize("steps", [None, 2])
def test_inspected_programs_are_those_of_the_calls(steps):
    step = mr.function(lambda x: x * 2, input_signature=[SPEC], steps_per_call=steps)
    args = (1,) if steps is None else ([1, 2.0],)
    assert "f32" in step.lower(*args).as_text()
    concrete = step.get_concrete_function()
    assert jnp.shape(step(*args)) == (() if steps is None else (2,))
    assert concrete.program is not None
    assert step.trace_count == 1
    for inspect in (step.lower, step.get_concrete_function):
        with pytest.raises(mr.errors.SignatureError, match="argument 0"):
            inspect(*((jnp.int32(1),) if steps is None else ([jnp.int32(1)] * 2,)))


@pytest.mark.parametrize("wrapped", [lambda array: array, lambda array: mr.Mirrored(array, 2)])
def test_arrays_of_numpy_with_dtypes_that_jax_does_not_know(wrapped):
    twice = mr.function(lambda x: jnp.multiply(getattr(x, "value", x), 2), input_signature=[PAIR])
    assert twice(wrapped(np.ones(2, ">f4"))).tolist() == [2, 2]
    with pytest.raises(mr.errors.ArgumentError, match="MaskedArray"):
        twice(wrapped(np.ma.array([1.0, 2.0], mask=[False, True])))
    with pytest.raises(mr.errors.SignatureError, match="U1"):
        twice(wrapped(np.array(["a", "b"])))


# Accepted by TensorFlow 2.21, too.
@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (np.array([1, 2]), "float32", [1.0, 2.0]),
        (np.array([1, 2], np.int32), "bfloat16", [1.0, 2.0]),
        (np.array([1.5, 2.0]), "float16", [1.5, 2.0]),
        (np.array([1.0, 2.0]), "int32", [1, 2]),
        (np.array([True, False]), "float32", [1.0, 0.0]),
        (np.array([200, 5]), "uint8", [200, 5]),
        (np.array([1, 0]), "bool", [True, False]),
        (np.array([1, 2]), "complex64", [1 + 0j, 2 + 0j]),
        (np.array([1, 2], ">i4"), "float32", [1.0, 2.0]),
    ],
)
def test_arrays_of_numpy_get_the_declared_dtype(value, dtype, expected):
    spec = jax.ShapeDtypeStruct((2,), jnp.dtype(dtype))
    step = mr.function(lambda x: x, input_signature=[spec])
    for call in (step, step.get_concrete_function()):
        found = call(value)
        assert (found.dtype, found.tolist()) == (jnp.dtype(dtype), expected)
    in_dict = mr.function(lambda d: d["x"], input_signature=[{"x": spec}])
    assert in_dict({"x": value}).tolist() == expected
    assert step.trace_count == 1


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([1.5, 2.0]), "int32"),
        (np.array([300, 5]), "uint8"),
        (np.array([-1, 5]), "uint8"),
        (np.array([2, 0]), "bool"),
        (np.array([1 + 2j, 0]), "float32"),
        (np.array([1e6, 0.0]), "float16"),
        (np.array(["1", "2"]), "float32"),
        (jnp.array([1, 2]), "float32"),
    ],
)
def test_arrays_whose_numbers_would_change_are_refused(value, dtype):
    spec = jax.ShapeDtypeStruct((2,), jnp.dtype(dtype))
    with pytest.raises(mr.errors.SignatureError, match=f"requires {dtype}"):
        mr.function(lambda x: x, input_signature=[spec])(value)


def test_numpy_scalars_get_the_declared_dtype():
    step = mr.function(lambda x: x * 2, input_signature=[SPEC])
    assert [float(step(x)) for x in (np.int64(3), np.float64(1.5), np.bool_(True), np.array(3))] == [6.0, 3.0, 2.0, 6.0]
    assert step.trace_count == 1
