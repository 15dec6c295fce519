"""A variable where a compiled function needs a Python number: one error that states the rule and the remedy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
from mirrored.errors import TransformError

X = jnp.ones((2, 3))
USES = {
    "axis of a sum": lambda v: jnp.sum(X, axis=v),
    "axis of cumsum": lambda v: jnp.cumsum(X, axis=v),
    "axis of softmax": lambda v: jax.nn.softmax(X, axis=v),
    "repeats": lambda v: jnp.repeat(X, v),
    "tile": lambda v: jnp.tile(X, v),
    "reshape": lambda v: X.reshape(v, -1),
    "shape": lambda v: jnp.zeros((v, 2)),
    "expand_dims": lambda v: jnp.expand_dims(X, v),
    "number of keys": lambda v: jax.random.split(jax.random.key(0), v),
    "iteration": lambda v: list(v),
}
# JAX's own errors, with a note that states the rule and the remedy.
CONVERSIONS = {
    "range": lambda v: list(range(v)),
    "int": int,
    "index": lambda v: [1, 2, 3][v],
    "condition": lambda v: 1 if v > 0 else 2,
    "slice": lambda v: X[:v],
    "arange": lambda v: jnp.arange(v),
    "axis of concatenate": lambda v: jnp.concatenate([X, X], axis=v),
    "axis of a read value": lambda v: jnp.sum(X, axis=v.read_value()),
    "computed repeats": lambda v: jnp.repeat(X, v + 1),
}
JAX_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerArrayConversionError,
)


@pytest.fixture(scope="module")
def strategy():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def variable(strategy):
    with strategy.scope():
        return mr.Variable(1, name="count")


@pytest.mark.parametrize("in_run", [False, True], ids=["function", "run"])
@pytest.mark.parametrize("use", USES)
def test_a_variable_as_a_number_is_refused_with_the_rule(strategy, variable, use, in_run):
    def step():
        return strategy.run(lambda: USES[use](variable)) if in_run else USES[use](variable)

    with pytest.raises(TransformError) as caught:
        mr.function(step)()
    message = str(caught.value)
    assert "<Variable 'count'" in message
    assert "a variable's value is not known while a function is traced" in message
    assert "Python int" in message


@pytest.mark.parametrize("use", CONVERSIONS)
def test_a_conversion_has_a_note_with_the_rule(variable, use):
    with pytest.raises(JAX_ERRORS) as caught:
        mr.function(lambda: CONVERSIONS[use](variable))()
    assert "a variable" in caught.value.__notes__[0]
    assert "Python ints for axes and sizes" in caught.value.__notes__[0]


@pytest.mark.parametrize("use", sorted({*USES, *CONVERSIONS} - {"iteration", "axis of cumsum"}))
def test_eager_code_uses_the_value(variable, use):
    {**USES, **CONVERSIONS}[use](variable)


def test_errors_of_user_code_that_print_a_variable_stay_as_they_are(variable):
    def step():
        raise ValueError(f"wrong: {variable!r}")

    with pytest.raises(ValueError, match="^wrong: <Variable 'count'"):
        mr.function(step)()
