"""Generated programs: a tape gives the same results as `jax.grad` and `jax.jacobian`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrored.tape import GradientTape

# Each is at most one primitive in the forward and backward pass, so un-jitted jax.grad runs the same operations.
EXACT_BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": lambda a, b: jnp.maximum(a, b),
    "where": lambda a, b: jnp.where(a > b, a, b),
}
EXACT_UNARY = {
    "neg": lambda a: -a,
    "twice": lambda a: a * 2.0,
    "half": lambda a: 0.5 * a,
    "shifted": lambda a: a + 1.5,
    "from one": lambda a: 1.0 - a,
    "reversed": lambda a: a[::-1],
    "rolled": lambda a: jnp.concatenate([a[1:], a[:1]]),
    "abs": abs,
}
SMOOTH = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "exp": lambda a: jnp.exp(jnp.clip(a, -3, 3)),
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "mean": lambda a: a - jnp.mean(a),
    "softmax": jax.nn.softmax,
    "cumsum": jnp.cumsum,
    "scan": lambda a: jax.lax.scan(lambda c, x: (c + x * 0.5, c * x), 0.0, a)[1],
    "cond": lambda a: jax.lax.cond(a[0] > 0, lambda: a * 2.0, lambda: a * a),
    "jit": lambda a: jax.jit(lambda b: b * a)(a),
    "checkpoint": jax.checkpoint(lambda a: jnp.sin(a) * a),
    "quotient": lambda a: a / (1.0 + a * a),
    "power": lambda a: a**2 - a**3 * 0.1,
}

# Those that use their operand more than once; JAX adds up three and more cotangents in an order of its own.
TWICE = ("mean", "jit", "checkpoint", "power")
OF_TWO_USES = {name: function for name, function in SMOOTH.items() if name != "quotient"}

MANY = 1_000


@st.composite
def programs(draw, unary, binary, length=8, uses=MANY, counts=None):
    """A function of two vectors: each step makes a value from earlier ones, none used more than `uses` times.

    `counts` says how often an operation uses its operand, where that is not once.
    """
    counts = counts or {}
    steps, left = [], [uses, uses]
    counted = [0, 1]  # where the uses of each value count: to JAX's derivatives `a + 1.5` may be `a`

    def operand(count):
        free = [i for i, root in enumerate(counted) if left[root] >= count]
        if not free:
            return None
        index = draw(st.sampled_from(free))
        left[counted[index]] -= count
        return index

    for _ in range(draw(st.integers(2, length))):
        name = draw(st.sampled_from(sorted(binary) if draw(st.booleans()) else sorted(unary)))
        where = [operand(counts.get(name, 1)) for _ in range(1 if name in unary else 2)]
        if None in where:
            continue
        steps.append((name, *where))
        counted.append(len(left))
        left.append(uses)
        if name == "shifted":
            counted[-1] = counted[where[0]]
            left[counted[-1]] += 1

    def function(x, y):
        values = [x, y]
        for name, *where in steps:
            values.append((unary if len(where) == 1 else binary)[name](*[values[i] for i in where]))
        return values[-1] if uses < MANY else values[-1] + values[-2]

    return function


vectors = st.lists(
    st.floats(-2, 2, width=32, allow_subnormal=False).map(lambda v: round(v, 3)), min_size=3, max_size=3
).map(lambda v: np.asarray(v, np.float32))


def gradients(function, x, y):
    with GradientTape() as tape:
        tape.watch([x, y])
        total = jnp.sum(function(x, y))
    return tape.gradient(total, [x, y], unconnected_gradients="zero")


def one_by_one(function, *args):
    """Returns the results of the traced function, with every operation run separately."""
    closed = jax.make_jaxpr(function)(*args)
    with jax.disable_jit():
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *args)


@given(programs(EXACT_UNARY, EXACT_BINARY, length=12, uses=2), vectors, vectors)
@settings(max_examples=60, deadline=None)
@pytest.mark.long
def test_same_operations_same_bits(function, x, y):
    """Sums of two, since the order of longer ones is JAX's own affair, another one in 0.12 than in 0.10."""
    x, y = jnp.asarray(x), jnp.asarray(y)
    expected = jax.grad(lambda x, y: jnp.sum(function(x, y)), (0, 1))(x, y)
    for ours, theirs in zip(gradients(function, x, y), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@given(programs(EXACT_UNARY, EXACT_BINARY, length=12, uses=2), vectors, vectors)
@settings(max_examples=20, deadline=None)
@pytest.mark.long
def test_same_operations_same_bits_in_compiled_code(function, x, y):
    """Runs every operation of the two traced programs separately, because XLA may fuse compiled ones differently."""

    def plain(x, y):
        return jax.grad(lambda x, y: jnp.sum(function(x, y)), (0, 1))(x, y)

    def ours(x, y):
        return gradients(function, x, y)

    for a, b in zip(one_by_one(ours, x, y), one_by_one(plain, x, y), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@given(
    programs({**EXACT_UNARY, **OF_TWO_USES}, EXACT_BINARY, length=8, uses=2, counts=dict.fromkeys(TWICE, 2)),
    vectors,
    vectors,
)
@settings(max_examples=25, deadline=None)
@pytest.mark.long
def test_same_bits_of_any_function(function, x, y):
    """As above, for functions whose derivatives take several operations, traced functions of JAX's among them."""

    def plain(x, y):
        return jax.grad(lambda x, y: jnp.sum(function(x, y)), (0, 1))(x, y)

    for a, b in zip(one_by_one(lambda x, y: gradients(function, x, y), x, y), one_by_one(plain, x, y), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@given(programs({**EXACT_UNARY, **SMOOTH}, EXACT_BINARY, length=6), vectors, vectors)
@settings(max_examples=25, deadline=None)
@pytest.mark.long
def test_compiled_gradients_are_those_of_jax(function, x, y):
    """To rounding: the programs differ in how they are cut into calls, and XLA fuses what it finds in one piece."""
    ours = jax.jit(lambda x, y: gradients(function, x, y))(x, y)
    expected = jax.jit(jax.grad(lambda x, y: jnp.sum(function(x, y)), (0, 1)))(x, y)
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@given(programs({**EXACT_UNARY, **SMOOTH}, EXACT_BINARY, length=5), vectors, vectors)
@settings(max_examples=15, deadline=None)
@pytest.mark.long
def test_jacobians(function, x, y):
    x, y = jnp.asarray(x), jnp.asarray(y)
    with GradientTape() as tape:
        tape.watch([x, y])
        z = function(x, y)
    ours = tape.jacobian(z, [x, y], unconnected_gradients="zero")
    for a, b in zip(ours, jax.jacobian(function, (0, 1))(x, y), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


@given(programs({**EXACT_UNARY, **SMOOTH}, EXACT_BINARY, length=4), vectors, vectors)
@settings(max_examples=10, deadline=None)
@pytest.mark.long
def test_second_derivatives(function, x, y):
    x, y = jnp.asarray(x), jnp.asarray(y)
    with GradientTape() as outer:
        outer.watch([x, y])
        slope, _ = gradients(function, x, y)
        total = jnp.sum(slope * slope)
    ours = outer.gradient(total, [x, y], unconnected_gradients="zero")

    def plain(x, y):
        return jnp.sum(jax.grad(lambda x: jnp.sum(function(x, y)))(x) ** 2)

    for a, b in zip(ours, jax.grad(plain, (0, 1))(x, y), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-3)
