from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored._jax.inlining import captured_arrays, digest_of


def digest(function, *args):
    closed = jax.make_jaxpr(function)(*args)
    return digest_of(closed.jaxpr, closed.consts)


def program(x):
    return jax.lax.scan(lambda c, _: (jax.nn.relu(c) * 2.0, jnp.sum(c)), x, length=3)


def test_the_same_program_has_the_same_digest():
    assert digest(program, jnp.ones(3)) == digest(lambda x: program(x), jnp.zeros(3))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: jax.lax.scan(lambda c, _: (jax.nn.relu(c) * 2.5, jnp.sum(c)), x, length=3),
        lambda x: jax.lax.scan(lambda c, _: (jax.nn.relu(c) * 2.0, jnp.sum(c)), x, length=4),
        lambda x: jax.lax.scan(lambda c, _: (jax.nn.gelu(c) * 2.0, jnp.sum(c)), x, length=3),
        lambda x: jax.lax.scan(lambda c, _: (jax.nn.relu(c) * 2.0, jnp.sum(c)), x, length=3)[::-1],
    ],
    ids=["literal", "parameter", "operation", "order of results"],
)
def test_another_program_has_another(other):
    assert digest(program, jnp.ones(3)) != digest(other, jnp.ones(3))


def test_types_and_captured_constants_count():
    assert digest(program, jnp.ones(3)) != digest(program, jnp.ones(4))
    a, b = np.arange(3.0, dtype=np.float32), np.arange(3.0, dtype=np.float32)
    same, other = (lambda x: x + a), (lambda x: x + b)
    assert digest(same, jnp.ones(3)) == digest(other, jnp.ones(3))
    b[1] = 7
    assert digest(same, jnp.ones(3)) != digest(other, jnp.ones(3))


def test_constants_of_programs_inside_count():
    a, b = np.arange(3.0, dtype=np.float32), np.ones(3, np.float32)
    same, other = jax.jit(lambda x: x + a), jax.jit(lambda x: x + b)
    assert digest(lambda x: same(x), jnp.ones(3)) != digest(lambda x: other(x), jnp.ones(3))


def test_captured_arrays_of_jax_are_found_wherever_they_are():
    a = jnp.arange(3.0)
    inner = jax.jit(lambda x: x + a)
    for function in (lambda x: x + a, lambda x: inner(x), lambda x: jax.lax.scan(lambda c, _: (c + a, c), x, length=2)):
        closed = jax.make_jaxpr(function)(jnp.ones(3))
        (found,) = captured_arrays(closed.jaxpr, closed.consts)
        np.testing.assert_array_equal(found, a)


def test_which_value_goes_where_counts():
    x = jnp.ones(3)
    assert digest(lambda x, y: x - y, x, x) != digest(lambda x, y: y - x, x, x)


@pytest.mark.multiprocess
@pytest.mark.long
def test_another_process_gives_the_same():
    text = (
        "import jax, jax.numpy as jnp\nfrom mirrored._jax.inlining import digest_of\n"
        "def f(x):\n    return jax.lax.cond(x.sum() > 0, jax.nn.silu, jax.checkpoint(jnp.sin), x)\n"
        "closed = jax.make_jaxpr(jax.grad(lambda x: f(x).sum()))(jnp.ones(3))\n"
        "print(digest_of(closed.jaxpr, closed.consts))"
    )
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", text], env={**environment, "PYTHONHASHSEED": seed}, stdout=-1, text=True
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate(timeout=50)[0] for run in runs)
    assert first == second != ""
