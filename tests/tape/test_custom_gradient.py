"""Functions with a custom gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr
from mirrored import MirroredStrategy, function, get_replica_context
from mirrored.errors import ArgumentError, TapeError
from mirrored.tape import GradientTape, custom_gradient
from mirrored.values.sparse_rows import SparseRows


@custom_gradient
def hundredfold(z):
    return z * z, lambda upstream: upstream * 100.0


def slope(function, *xs):
    with GradientTape() as tape:
        tape.watch(list(xs))
        y = function(*xs)
    return tape.gradient(y, list(xs))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_gradient_is_replaced(wrap):
    x = jnp.array([3.0, 4.0])
    (gradient,) = wrap(lambda x: slope(lambda x: hundredfold(x) * 2.0, x))(x)
    assert gradient.tolist() == [200.0, 200.0]


def test_without_a_tape_it_is_the_function():
    assert float(hundredfold(jnp.array(3.0))) == 9.0
    assert float(hundredfold(3.0)) == 9.0


def test_under_transforms_of_jax():
    x = jnp.array(3.0)
    assert float(jax.grad(hundredfold)(x)) == 100.0
    assert float(jax.jit(jax.grad(lambda x: hundredfold(x) * x))(x)) == 309.0
    (gradient,) = slope(lambda x: jax.jit(lambda y: hundredfold(y) * 2.0)(x), x)
    assert float(gradient) == 200.0
    (gradient,) = slope(lambda x: jax.lax.scan(lambda c, _: (hundredfold(c), None), x, None, length=2)[0], x)
    assert float(gradient) == 10000.0


def test_second_order_goes_through_the_gradient_function():
    @custom_gradient
    def function(z):
        return z * z * z, lambda upstream: upstream * z * 10.0

    x = jnp.array(2.0)
    with GradientTape() as outer:
        outer.watch(x)
        with GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
    assert float(first) == 20.0
    assert float(outer.gradient(first, x)) == 10.0


def test_second_order_of_one_persistent_tape():
    @custom_gradient
    def function(z):
        return z * z * z, lambda upstream: upstream * z * 10.0

    x = jnp.array(2.0)
    with GradientTape(persistent=True) as tape:
        tape.watch(x)
        first = tape.gradient(function(x), x)
    assert float(tape.gradient(first, x)) == 10.0


def test_custom_gradients_inside_each_other():
    @custom_gradient
    def outer(x):
        return hundredfold(x) + 1.0, lambda upstream: upstream * 7.0

    assert float(slope(outer, jnp.array(2.0))[0]) == 7.0
    assert float(slope(lambda x: hundredfold(outer(x)), jnp.array(2.0))[0]) == 700.0


def test_several_arguments_and_results():
    @custom_gradient
    def function(pair, c, *, scale):
        a, b = pair["a"], pair["b"]

        def gradient(of_sum, of_product):
            return of_sum * 1.0, of_product * 2.0, (of_sum + of_product) * scale

        return {"sum": a + b, "product": a * b * c}, gradient

    a, b, c = (jnp.array(v) for v in (2.0, 3.0, 4.0))
    with GradientTape() as tape:
        tape.watch([a, b, c])
        out = function({"a": a, "b": b}, c, scale=10.0)
        y = out["product"] * 5.0 + out["sum"]
    # Results come in the order of the leaves: "product" before "sum".
    assert [float(g) for g in tape.gradient(y, [a, b, c])] == [5.0, 2.0, 60.0]


def test_numbers_are_arguments_too():
    @custom_gradient
    def function(x, factor):
        return x * factor, lambda upstream: (upstream * 3.0, None)

    assert float(slope(lambda x: function(x, 2.0), jnp.array(5.0))[0]) == 3.0


def test_unused_results_have_zero_gradients():
    @custom_gradient
    def two(x):
        def gradient(first, second):
            assert float(second) == 0.0
            return first * 2.0

        return (x * 1.0, x * 3.0), gradient

    assert float(slope(lambda x: two(x)[0], jnp.array(5.0))[0]) == 2.0


def test_an_identity_may_clip_its_gradient():
    @custom_gradient
    def clipped(x):
        return x, lambda upstream: jnp.clip(upstream, -1.0, 1.0)

    x = jnp.array([1.0, 2.0, 3.0])
    (gradient,) = slope(lambda x: clipped(x) * jnp.array([5.0, 0.5, -3.0]), x)
    assert gradient.tolist() == [1.0, 0.5, -1.0]
    (gradient,) = jax.jit(lambda x: slope(lambda x: clipped(x) * jnp.array([5.0, 0.5, -3.0]), x))(x)
    assert gradient.tolist() == [1.0, 0.5, -1.0]


@pytest.mark.parametrize("gradients", [[], [1.0, 2.0]])
def test_wrong_number_of_gradients(gradients):
    @custom_gradient
    def function(x):
        return x * 1.0, lambda upstream: gradients

    with pytest.raises(ArgumentError, match=f"expected to return 1 gradients, but returned {len(gradients)} instead"):
        slope(function, jnp.array(1.0))


FITTING = {
    "float16": lambda g: g.astype(jnp.float16) * 3,
    "integers": lambda g: jnp.array([3, 3]),
    "NumPy": lambda g: np.array([3.0, 3.0]),
    "rows": lambda g: SparseRows(jnp.array([3.0, 3.0]), jnp.array([0, 1])),
}
OTHERS = {
    "a number": lambda g: 1.0,
    "a scalar": jnp.sum,
    "another shape": lambda g: jnp.ones((3, 2)),
    "complex": lambda g: g * 1j,
    "a string": lambda g: "no",
    "rows of a larger array": lambda g: SparseRows(jnp.ones(1), jnp.array([2]), (3,)),
}


def of_argument(rule):
    @custom_gradient
    def function(x):
        return x * 2.0, rule

    def program(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = function(x) + jnp.sin(function(x))
        return tape.gradient(y, x)

    return program


def of_variable(rule):
    variable = mr.Variable([1.0, 2.0])

    @custom_gradient
    def function(x):
        return x * variable, lambda g, variables: (None, [rule(g)])

    def program(x):
        with GradientTape() as tape:
            y = function(x)
        return tape.gradient(y, variable)

    return program


def under_jax(rule):
    @custom_gradient
    def function(x):
        return x * 2.0, rule

    return jax.grad(lambda x: jnp.sum(function(x)))


@pytest.mark.parametrize("make", [of_argument, of_variable, under_jax])
@pytest.mark.parametrize("kind", FITTING)
def test_gradients_have_the_dtype_of_the_argument(make, kind):
    gradient = make(FITTING[kind])(jnp.array([0.0, 0.0]))
    assert make is under_jax or isinstance(gradient, jax.Array)
    assert (str(gradient.dtype), gradient.tolist()) == ("float32", [3.0 + 3.0 * (make is of_argument)] * 2)


@pytest.mark.parametrize("make", [of_argument, of_variable, under_jax])
@pytest.mark.parametrize("kind", OTHERS)
def test_gradients_have_the_shape_of_the_argument(make, kind):
    with pytest.raises(ArgumentError, match=r"the gradient with respect to (.*), float32\[2\], is "):
        make(OTHERS[kind])(jnp.array([0.0, 0.0]))


def test_errors_in_the_gradient_function_come_through():
    @custom_gradient
    def function(x):
        def gradient(upstream):
            raise RuntimeError("not here")

        return x * 1.0, gradient

    with pytest.raises(RuntimeError, match="not here"):
        slope(function, jnp.array(1.0))


@pytest.mark.long
def test_recomputation():
    w = jnp.array([[0.5, -0.2], [0.1, 0.9]])

    @custom_gradient
    def recomputed(x):
        def block(x):
            return jnp.tanh(x @ w) * x

        def gradient(upstream):
            with GradientTape() as tape:
                tape.watch(x)
                y = block(x)
            return tape.gradient(y, x, output_gradients=upstream)

        return block(x), gradient

    x = jnp.array([[1.0, 2.0]])
    (gradient,) = slope(lambda x: jnp.sum(recomputed(x)), x)
    np.testing.assert_allclose(gradient, jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w) * x))(x), rtol=1e-6)


def test_keeps_the_name_and_docstring():
    @custom_gradient
    def named(x):
        """Says what it does."""
        return x, lambda upstream: upstream

    assert (named.__name__, named.__doc__) == ("named", "Says what it does.")


@pytest.mark.parametrize("times", [1, 2])
def test_implicit_derivatives_of_solvers(times):
    """JAX keys `custom_root` by an object without a hash, so its calls are not cached."""

    def root(x):
        return lax.custom_root(lambda y: y * y - x, jnp.float32(1.0), lambda f, y: jnp.sqrt(x), lambda g, y: y / g(1.0))

    x = jnp.float32(4.0)
    for _ in range(times):
        with GradientTape() as tape:
            tape.watch(x)
            y = root(x)
        assert (float(y), float(tape.gradient(y, x))) == (2.0, float(jax.grad(root)(x)))


def test_replicas_return_one_value_each_of_a_merged_result():
    """A public program reads `run(...).values` of a custom gradient around `merge_call`, which TensorFlow has."""
    strategy = MirroredStrategy(jax.devices()[:2])

    @custom_gradient
    def total(x):
        merged = get_replica_context().merge_call(lambda _, parts: sum(parts.values), args=(x,))
        return merged, lambda upstream: upstream

    values = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(1.0 + context.replica_id_in_sync_group)
    )
    result = strategy.run(total, args=(values,))
    assert [float(one) for one in result.values] == [3.0, 3.0]


def merged_total():
    @custom_gradient
    def total(x):
        merged = get_replica_context().merge_call(
            lambda strategy, parts: strategy.reduce("SUM", parts, axis=None), (x,)
        )
        return merged, lambda upstream: 10.0 * upstream

    return total


def test_a_compiled_replica_function_merges_in_a_custom_gradient():
    strategy = MirroredStrategy(jax.devices()[:2])
    total = merged_total()

    def replica(factor):
        x = factor * (get_replica_context().replica_id_in_sync_group + 1.0)
        with GradientTape() as tape:
            tape.watch(x)
            inside = total(x)
        return total(x), inside, tape.gradient(inside, x)

    factor = jnp.asarray(2.0)
    eager, compiled = strategy.run(replica, (factor,)), function(lambda f: strategy.run(replica, (f,)))(factor)
    for result in (eager, compiled):
        assert [[float(one) for one in strategy.experimental_local_results(each)] for each in result] == [
            [6.0, 6.0],
            [6.0, 6.0],
            [10.0, 10.0],
        ]


def test_a_tape_around_a_compiled_run_refuses_the_merged_custom_gradient():
    strategy = MirroredStrategy(jax.devices()[:2])
    total = merged_total()

    def replica(x):
        return total(x * (get_replica_context().replica_id_in_sync_group + 1.0))

    @function
    def step(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)
        return tape.gradient(y, x)

    with pytest.raises(TapeError, match="open the tape inside the function given to run"):
        step(jnp.asarray(2.0))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jitted"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_rule_calls_a_jitted_helper_that_reads_the_replica_id(devices, compiled, wrap):
    strategy = MirroredStrategy(jax.devices()[:devices], num_replicas=2)

    @jax.jit
    def own(g):
        return g * (get_replica_context().replica_id_in_sync_group + 1.0)

    @jax.custom_vjp
    def marked(x):
        return x * 1.0

    marked.defvjp(lambda x: (x * 1.0, None), lambda _, g: (own(g),))
    loss = wrap(lambda x: jnp.sum(marked(x)))

    def replica(x):
        with GradientTape() as tape:
            tape.watch(x)
            y = loss(x)
        return tape.gradient(y, x)

    run = lambda x: strategy.run(replica, (x,))  # noqa: E731
    result = (function(run) if compiled else run)(jnp.ones(2))
    assert [np.asarray(one).tolist() for one in result.values] == [[1.0, 1.0], [2.0, 2.0]]
