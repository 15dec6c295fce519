"""A value that a function closes over has a gradient, or requesting it is an error. It is never silently zero."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import PartitionSpec

import mirrored as mr
from mirrored.errors import TapeError, TransformError

Read = Callable[[], Any]
X = np.array([0.3, 0.5, 0.9], np.float32)
W = np.float32(1.3)


def by_custom_vjp(w: Read) -> Callable[[Any], Any]:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        return jnp.sin(x * w())

    function.defvjp(lambda x: (jnp.sin(x * w()), x), lambda x, upstream: (upstream * jnp.cos(x * w()) * w(),))
    return function


def by_custom_jvp(w: Read) -> Callable[[Any], Any]:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.sin(x * w())

    @function.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return function(*primals), tangents[0] * jnp.cos(primals[0] * w()) * w()

    return function


def by_custom_jvp_with_own_rule(w: Read) -> Callable[[Any], Any]:
    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.sin(x * w())

    function.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), tangents[0]))
    return function


def by_jax_custom_gradient(w: Read) -> Callable[[Any], Any]:
    return jax.custom_gradient(lambda x: (jnp.sin(x * w()), lambda upstream: upstream * jnp.cos(x * w()) * w()))


def by_custom_gradient(w: Read) -> Callable[[Any], Any]:
    return mr.custom_gradient(lambda x: (jnp.sin(x * w()), lambda upstream: upstream * jnp.cos(x * w()) * w()))


def by_partial_of_jax(w: Read) -> Callable[[Any], Any]:
    polynomial = functools.partial(jnp.polyval, w() * jnp.ones(2))
    function = jax.custom_jvp(polynomial)
    function.defjvp(functools.partial(jax.jvp, polynomial))
    return function


REFUSED: dict[str, Callable[[Read, Any], Any]] = {
    "custom_vjp": lambda w, x: by_custom_vjp(w)(x),
    "custom_jvp": lambda w, x: by_custom_jvp(w)(x),
    "custom_gradient of jax": lambda w, x: by_jax_custom_gradient(w)(x),
    "custom_vjp of a constant": lambda w, x: by_custom_vjp(w)(jnp.ones(3)) * x,
    "custom_jvp of a constant": lambda w, x: by_custom_jvp(w)(jnp.ones(3)) * x,
    "custom_jvp of a partial function of jax": lambda w, x: by_partial_of_jax(w)(x),
    "custom_jvp of a partial function of jax, of a constant": lambda w, x: by_partial_of_jax(w)(jnp.ones(3)) * x,
    "custom_vjp in jit": lambda w, x: jax.jit(by_custom_vjp(w))(x),
    "custom_jvp in jit": lambda w, x: jax.jit(by_custom_jvp(w))(x),
    "custom_jvp in jit, own rule": lambda w, x: jax.jit(by_custom_jvp_with_own_rule(w))(x),
    "custom_vjp in vmap": lambda w, x: jax.vmap(by_custom_vjp(w))(x),
    "custom_vjp in scan": lambda w, x: lax.scan(lambda c, _: (by_custom_vjp(w)(c), None), x, None, length=2)[0],
    "custom_jvp in scan": lambda w, x: lax.scan(lambda c, _: (by_custom_jvp(w)(c), None), x, None, length=2)[0],
    "custom_vjp in cond": lambda w, x: lax.cond(x[0] > 9, lambda c: c, by_custom_vjp(w), x),
    "custom_vjp in checkpoint": lambda w, x: jax.checkpoint(by_custom_vjp(w))(x),
}


def of_array(program: Callable[[Read, Any], Any], w: Any, x: Any, **kept: Any) -> Any:
    with mr.GradientTape(**kept) as tape:
        tape.watch([w, x])
        y = jnp.sum(program(lambda: w, x * 1.0))
    return tape, y, [w, x]


def of_computed(program: Callable[[Read, Any], Any], w: Any, x: Any, **kept: Any) -> Any:
    with mr.GradientTape(**kept) as tape:
        tape.watch([w, x])
        scaled = w * 1.0
        y = jnp.sum(program(lambda: scaled, x * 1.0))
    return tape, y, [w, x]


def of_variable(program: Callable[[Read, Any], Any], w: mr.Variable, x: Any, **kept: Any) -> Any:
    with mr.GradientTape(**kept) as tape:
        tape.watch(x)
        y = jnp.sum(program(w.read_value, x * 1.0))
    return tape, y, [w, x]


def gradients(kind: str, mode: str, program: Callable[[Read, Any], Any], *, wanted: tuple[int, ...] = (0, 1)) -> Any:
    variable = mr.Variable(W)

    def step(w: Any, x: Any) -> Any:
        if kind == "variable":
            tape, y, sources = of_variable(program, variable, x)
        else:
            tape, y, sources = (of_array if kind == "array" else of_computed)(program, w, x)
        return tape.gradient(y, [sources[i] for i in wanted])

    run = {"eager": step, "compiled": mr.function(step), "nested": under_another_tape(step)}[mode]
    return run(jnp.asarray(W), jnp.asarray(X))


def under_another_tape(step: Callable[..., Any]) -> Callable[..., Any]:
    def nested(*args: Any) -> Any:
        with mr.GradientTape():
            return step(*args)

    return nested


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["eager", "compiled", "nested"])
@pytest.mark.parametrize("kind", ["array", "computed", "variable"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.first(6)
def test_a_rule_that_knows_nothing_of_the_closed_over_value(name: str, kind: str, mode: str) -> None:
    with pytest.raises((TapeError, TransformError), match="closes over|closed-over|was read under a JAX transform"):
        gradients(kind, mode, REFUSED[name])


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("kind", ["array", "computed"])
def test_our_own_custom_gradient_refuses_arrays(kind: str, mode: str) -> None:
    with pytest.raises(TapeError, match="closes over"):
        gradients(kind, mode, lambda w, x: by_custom_gradient(w)(x))


@pytest.mark.parametrize("mode", ["eager", "compiled", "nested"])
@pytest.mark.parametrize("kind", ["array", "computed", "variable"])
@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp", "custom_gradient of jax"])
@pytest.mark.first(14)
def test_the_argument_alone_has_the_gradient_of_the_rule(name: str, kind: str, mode: str) -> None:
    (found,) = gradients(kind, mode, REFUSED[name], wanted=(1,))
    np.testing.assert_allclose(found, np.cos(X * W) * W, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("name", ["custom_vjp", "custom_jvp"])
def test_stop_gradient_says_that_nothing_is_lost(name: str, mode: str) -> None:
    of_w, of_x = gradients("computed", mode, lambda w, x: REFUSED[name](lambda: lax.stop_gradient(w()), x))
    assert of_w is None
    np.testing.assert_allclose(of_x, np.cos(X * W) * W, rtol=1e-5)


def test_the_operand_may_be_closed_over_too() -> None:
    w = jnp.asarray(X)
    with mr.GradientTape() as tape:
        tape.watch(w)
        y = by_custom_vjp(lambda: w)(w)
    with pytest.raises(TapeError, match="closes over"):
        tape.gradient(y, w)


def test_other_results_of_the_same_program_are_not_affected() -> None:
    w, x = jnp.asarray(W), jnp.asarray(X)
    with mr.GradientTape() as tape:
        tape.watch([w, x])
        scaled = w * 2.0
        by_custom_vjp(lambda: scaled)(x)
        y = scaled * x
    assert float(tape.gradient(y, w)) == pytest.approx(float(2 * X.sum()))


def convert(w: Read, x: Any) -> Any:
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def apply(function: Any, x: Any, *hoisted: Any) -> Any:
        return function(x, *hoisted)

    apply.defvjp(
        lambda function, x, *hoisted: (function(x, *hoisted), (x, hoisted)),
        lambda function, kept, upstream: jax.vjp(function, kept[0], *kept[1])[1](upstream),
    )
    converted, hoisted = jax.closure_convert(lambda x: jnp.sin(x * w()), x)
    return apply(converted, x, *hoisted)


def on_a_mesh(w: Read, x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    spec = PartitionSpec()
    mapped = jax.shard_map(lambda x: jnp.sin(x * w()), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return mapped(x)


def rooted(w: Read, x: Any) -> Any:
    def solve(f: Any, start: Any) -> Any:
        return lax.fori_loop(0, 20, lambda _, z: z - f(z) / (2 * z), start)

    return lax.custom_root(lambda z: z * z - w() * x - 2.0, jnp.ones(3), solve, lambda g, y: y / g(jnp.ones(3)))


def solved(w: Read, x: Any) -> Any:
    def divide(matvec: Any, b: Any) -> Any:
        return b / matvec(jnp.ones(3))

    return lax.custom_linear_solve(lambda z: z * (w() + 3.0), x, divide, divide, symmetric=True)


def vmapped_by_rule(w: Read, x: Any) -> Any:
    function = jax.custom_batching.custom_vmap(lambda x: jnp.sin(x * w()))
    function.def_vmap(lambda size, batched, x: (jnp.sin(x * w()), True))
    return jax.vmap(function)(x)


DIFFERENTIATED: dict[str, Callable[[Read, Any], Any]] = {
    "closure_convert": convert,
    "shard_map": on_a_mesh,
    "shard_map in jit": lambda w, x: jax.jit(lambda x: on_a_mesh(w, x))(x),
    "custom_root": rooted,
    "custom_linear_solve": solved,
    "custom_vmap": vmapped_by_rule,
    "scan": lambda w, x: lax.scan(lambda c, a: (jnp.sin(c * w()), c * w() * a), x, jnp.arange(3.0))[1],
    "associative_scan": lambda w, x: lax.associative_scan(lambda a, b: a * w() + b, x),
    "map": lambda w, x: lax.map(lambda a: jnp.sin(a * w()), x),
    "fori_loop": lambda w, x: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c * w()), x),
    "switch": lambda w, x: lax.switch(1, [lambda c: c, lambda c: jnp.sin(c * w())], x),
    "checkpoint": lambda w, x: jax.checkpoint(lambda x: jnp.sin(x * w()))(x),
    "nested jit": lambda w, x: jax.jit(lambda x: jax.jit(lambda x: jnp.sin(x * w()))(x))(x),
    "linearize": lambda w, x: jax.linearize(lambda x: jnp.sin(x * w()), x)[1](jnp.ones(3)),
    "vjp": lambda w, x: jax.vjp(lambda x: jnp.sin(x * w()), x)[1](jnp.ones(3))[0],
    "jvp": lambda w, x: jax.jvp(lambda x: jnp.sin(x * w()), (x,), (jnp.ones(3),))[1],
    "jacfwd": lambda w, x: jax.jacfwd(lambda x: jnp.sin(x * w()))(x),
    "eval_jaxpr": lambda w, x: jaxpr_as_fun(jax.make_jaxpr(lambda x: jnp.sin(x * w()))(x))(x)[0],
    "linear_transpose": lambda w, x: jax.linear_transpose(lambda t: t * w(), x)(x)[0],
}


@pytest.mark.parametrize("mode", ["eager", "compiled", "nested"])
@pytest.mark.parametrize("kind", ["computed", "variable"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
@pytest.mark.sampled(8)
@pytest.mark.first(4)
def test_closed_over_values_have_the_gradients_of_jax(name: str, kind: str, mode: str) -> None:
    program = DIFFERENTIATED[name]
    expected = jax.grad(lambda w, x: jnp.sum(program(lambda: w, x)), (0, 1))(jnp.asarray(W), jnp.asarray(X))
    for found, wanted in zip(gradients(kind, mode, program), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)


def test_a_rule_in_jit_that_reads_a_variable_names_the_remedy():
    w = mr.Variable(2.0)

    @jax.custom_vjp
    def scaled(x):
        return x * w.read_value()

    scaled.defvjp(lambda x: (scaled(x), w.read_value()), lambda saved, cotangent: (cotangent * saved,))
    x = jnp.float32(3.0)
    with mr.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = jax.jit(lambda x: scaled(x) * w.read_value())(x)
    assert float(tape.gradient(y, x)) == 4.0
    with pytest.raises(
        TapeError, match=r"reads a watched variable(.|\n)*remedy: pass the value as an argument of the function"
    ):
        tape.gradient(y, w)
