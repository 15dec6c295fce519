"""Functions to differentiate by a tape and by `jax.grad`, whose results must be bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

Function = Callable[..., Any]

X = np.array([0.3, -1.2, 2.0, 0.7], np.float32)
M = np.array([[1.0, 0.2, -0.5], [0.1, 2.0, 0.3], [-0.4, 0.6, 1.5]], np.float32)
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
POSITIVE = np.array([0.3, 1.2, 2.0, 0.7], np.float32)


@jax.custom_jvp
def log1pexp(x: Any) -> Any:
    return jnp.log(1.0 + jnp.exp(x))


@log1pexp.defjvp
def _log1pexp_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    if x.size > 1000:  # a rule may look at its arguments
        raise AssertionError
    return log1pexp(x), (1 - 1 / (1 + jnp.exp(x))) * t


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x * 1.0


clipped.defvjp(lambda x: (x * 1.0, None), lambda _, ct: (jnp.clip(ct, -1.0, 1.0),))


def sum_of(function: Function) -> Function:
    return lambda *args: jnp.sum(function(*args))


def carried(x: Any) -> Any:
    scale = x * 2.0

    def body(carry: Any, row: Any) -> Any:
        new = jnp.tanh(carry * scale + row)
        return new, new * x

    last, rows = lax.scan(body, jnp.zeros(4), jnp.ones((5, 4)))
    return jnp.sum(last) + jnp.sum(rows**2)


def lstm(w: Any) -> Any:
    xs = jnp.asarray(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2, 1))

    def step(state: Any, x: Any) -> Any:
        h, c = state
        gates = jnp.concatenate([x, h], -1) @ w
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    (h, _), _ = lax.scan(step, (jnp.zeros((2, 2)), jnp.zeros((2, 2))), xs)
    return jnp.sum(h * h)


def looped(x: Any) -> Any:
    return jnp.sum(lax.fori_loop(0, 3, lambda i, y: y * x + i, x))


def branched(x: Any) -> Any:
    y = x * 3.0
    first = lax.cond(x[0] > 0, lambda a: a * y, lambda a: a - y, x)
    return jnp.sum(lax.switch(jnp.int32(1), [lambda: first, lambda: first * y, lambda: y]))


def dropped(x: Any) -> Any:
    key = jax.random.key(0)
    keep = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.sum(jnp.where(keep, x * x, 0.0) + jax.random.normal(key, x.shape) * x)


def looked_up(x: Any) -> Any:
    order = jnp.argsort(x)
    high = (x > 0).astype(jnp.int32)
    return jnp.sum(x[order] * jnp.arange(4.0)) + jnp.sum(x * high) + x[jnp.argmax(x)] * 2.0


def embedded(w: Any) -> Any:
    return jnp.sum(jnp.tanh(w[jnp.array([0, 2, 0, 3])]) ** 2)


def scattered(x: Any) -> Any:
    return jnp.sum(x.at[1].set(x[0] * 2).at[2].add(x[3]).at[0].multiply(x[1]) ** 2)


def spectrum(x: Any) -> Any:
    return jnp.sum(jnp.abs(jnp.fft.rfft(x)) ** 2 * jnp.arange(3.0))


def solved(m: Any) -> Any:
    spd = m @ m.T + 3.0 * jnp.eye(3)
    values, vectors = jnp.linalg.eigh(spd)
    return jnp.sum(jnp.linalg.solve(spd, m)) + jnp.sum(values * vectors[0] ** 2) + jnp.linalg.slogdet(spd)[1]


def attention(w: Any) -> Any:
    scores = jax.nn.softmax(w @ w.T / 2.0)
    return jnp.sum(jnp.einsum("ij,jk->ik", scores, w) ** 2)


def convolved(w: Any) -> Any:
    image = jnp.asarray(np.linspace(0, 1, 32, dtype=np.float32).reshape(1, 4, 8, 1))
    kernel = w.reshape(2, 2, 1, 3)
    out = lax.conv_general_dilated(image, kernel, (1, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.sum(jax.nn.relu(out) ** 2)


def mixed_precision(x: Any) -> Any:
    low = x.astype(jnp.bfloat16)
    return jnp.sum((low * low + jnp.bfloat16(1)).astype(jnp.float32) * x)


def rounded(x: Any) -> Any:
    return jnp.sum(x * jnp.round(x * 3.0) + jnp.floor(x))


def several(x: Any) -> Any:
    a, b, c = jnp.split(x[:3] * x[1:], 3)
    _ = jnp.exp(c)
    return jnp.sum(a + 2.0 * b)


def nested_jit(x: Any) -> Any:
    inner = jax.jit(lambda y: jnp.sin(y) * x)
    outer = jax.jit(lambda y: inner(y) + inner(y * 2.0))
    return jnp.sum(outer(x))


def rematerialized(x: Any) -> Any:
    block = jax.checkpoint(lambda y: jnp.sin(jnp.sin(y * x)))
    return jnp.sum(block(block(x)))


def mapped(x: Any) -> Any:
    outer = x * 2.0
    return jnp.sum(jax.vmap(lambda a: jnp.dot(outer, x) * a)(x)) + jnp.sum(lax.map(lambda a: a * outer, x))


def differentiated(x: Any) -> Any:
    return jnp.sum(jax.grad(lambda y: jnp.sum(jnp.sin(y) * x))(x * 2.0))


def while_free(x: Any) -> Any:
    """A loop of unknown length on integers only."""
    count = lax.while_loop(lambda n: n < 5, lambda n: n + 2, jnp.int32(x.shape[0] - 4))
    return jnp.sum(x**2) * count


def printed(x: Any) -> Any:
    jax.debug.callback(lambda value: None, x)
    return jnp.sum(x * x)


def losses(x: Any) -> Any:
    labels = jnp.array([0, 1])
    logits = x.reshape(2, 2)
    return (
        jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        + jnp.sum(optax.sigmoid_binary_cross_entropy(x, jnp.array([0.0, 1.0, 1.0, 0.0])))
        + jnp.sum(optax.huber_loss(x, jnp.zeros(4)))
        + optax.global_norm([x, logits])
    )


ELEMENTWISE = {
    name: sum_of(function)
    for name, function in {
        "exp": jnp.exp,
        "sin": jnp.sin,
        "tanh": jnp.tanh,
        "abs": jnp.abs,
        "relu": jax.nn.relu,
        "gelu": jax.nn.gelu,
        "silu": jax.nn.silu,
        "elu": jax.nn.elu,
        "softplus": jax.nn.softplus,
        "sigmoid": jax.nn.sigmoid,
        "logsumexp": jax.nn.logsumexp,
        "log_softmax": lambda x: jax.nn.log_softmax(x) * x,
        "operators": lambda x: (2.0 * x - x / 3 + 1 - (1 - x) * x) / (4.0 + x**2) - (-x) ** 3,
        "arctan2": lambda x: jnp.arctan2(x, x[::-1]),
        "maximum": lambda x: jnp.maximum(x, x[::-1]) * jnp.minimum(x, 0.5),
        "where": lambda x: jnp.where(x > 0, x * x, x * 10.0),
        "cumsum": lambda x: jnp.cumsum(x) * x,
        "sort": lambda x: jnp.sort(x) * jnp.arange(4.0),
        "custom_jvp": log1pexp,
        "custom_vjp": lambda x: clipped(x) * jnp.array([5.0, 0.5, -3.0, 1.0]),
        "stop_gradient": lambda x: lax.stop_gradient(x) * x,
        "methods": lambda x: x.reshape(2, 2).T.ravel() * x.sum() + x.mean() * x.max(),
        "indexing": lambda x: x[1:] * x[:-1] + x[0] - x[-1],
        "erf_inv": lambda x: lax.erf_inv(x / 3.0),
        "complex_abs": lambda x: jnp.abs(x + 1j * x[::-1]) ** 2 + jnp.real(jnp.exp(1j * x)),
    }.items()
}

OF_X: dict[str, Function] = {
    **ELEMENTWISE,
    "log": lambda x: jnp.sum(jnp.log(jnp.abs(x))),
    "scan": carried,
    "fori_loop": looped,
    "cond": branched,
    "random": dropped,
    "integers": looked_up,
    "scatter": scattered,
    "fft": spectrum,
    "bfloat16": mixed_precision,
    "round": rounded,
    "several_outputs": several,
    "nested_jit": nested_jit,
    "checkpoint": rematerialized,
    "vmap": mapped,
    "grad_inside": differentiated,
    "while_on_integers": while_free,
    "callback": printed,
    "optax": losses,
}
OF_W: dict[str, Function] = {"attention": attention, "convolution": convolved, "embedding": embedded}
PROGRAMS: dict[str, tuple[Function, np.ndarray]] = {
    **{name: (function, X) for name, function in OF_X.items()},
    **{name: (function, W) for name, function in OF_W.items()},
    "linalg": (solved, M),
    "lstm": (lstm, np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)),
}
