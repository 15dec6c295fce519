"""A jaxpr's equations written into another program are those that applying it would give."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from mirrored._jax.boxes import Box
from mirrored._jax.inlining import apply_jaxpr, has_callbacks, stage
from mirrored._jax.source_lines import source_line
from mirrored.tape import GradientTape


def _relu(x: Any, scale: Any) -> Any:
    return jax.nn.relu(x * scale) / scale


def _loop(x: Any, scale: Any) -> Any:
    return lax.scan(lambda c, y: (c + y * scale, jnp.sin(c)), jnp.zeros(()), x)


def _branch(x: Any, scale: Any) -> Any:
    return lax.cond(x[0] > 0, lambda y: jnp.where(y > scale, y, 0.0), lambda y: -y, x)


def _named(x: Any, scale: Any) -> Any:
    with jax.named_scope("inside"):
        return jnp.einsum("i,j->ij", x, x) @ x + scale


def _bound(function: Any, applied: Any, like: Any) -> Any:
    """The program of ``function(x, 64)`` with its jaxpr applied inside another function."""
    inner = jax.make_jaxpr(function)(like, np.float32(2))

    def outer(x: Any) -> Any:
        with jax.named_scope("outside"):
            return applied(inner.jaxpr, inner.consts, [x + 1, jnp.float32(64)])

    return jax.make_jaxpr(outer)(like)


def _anew(jaxpr: Any, constants: Any, args: Any) -> Any:
    return jax.core.eval_jaxpr(jaxpr, constants, *args)


@pytest.mark.parametrize("function", [_relu, _loop, _branch, _named], ids=lambda f: f.__name__)
def test_equations_are_those_of_applying_it(function: Any) -> None:
    like = jnp.arange(4.0)
    copied, anew = _bound(function, apply_jaxpr, like), _bound(function, _anew, like)
    assert str(copied) == str(anew)
    for one, other in zip(copied.jaxpr.eqns, anew.jaxpr.eqns, strict=True):
        assert str(one.source_info.name_stack) == str(other.source_info.name_stack)
        assert source_line(one) == source_line(other)


def test_name_scopes_nest() -> None:
    program = _bound(_named, apply_jaxpr, jnp.arange(4.0))
    assert "outside/inside" in {str(eqn.source_info.name_stack) for eqn in program.jaxpr.eqns}


def test_a_value_that_is_known_here_is_folded_as_applying_it_would() -> None:
    inner = jax.make_jaxpr(lambda x, n: x / n)(jnp.float32(1), 2)
    program = jax.make_jaxpr(lambda x: apply_jaxpr(inner.jaxpr, inner.consts, [x, 64]))(jnp.float32(1))
    assert [eqn.primitive.name for eqn in program.jaxpr.eqns] == ["div"]


def test_a_shard_map_is_not_traced_again() -> None:
    times = []
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    def body(x: Any) -> Any:
        times.append(1)
        return lax.psum(x, "d")

    inner = jax.make_jaxpr(jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec()))(
        jnp.arange(4.0)
    )
    (equation,) = inner.jaxpr.eqns
    program = jax.make_jaxpr(lambda x: apply_jaxpr(inner.jaxpr, inner.consts, [x]))(jnp.arange(4.0))
    assert program.jaxpr.eqns[0].params["jaxpr"] is equation.params["jaxpr"]
    summed = jax.jit(lambda x: apply_jaxpr(inner.jaxpr, inner.consts, [x])[0])(jnp.arange(4.0))
    assert summed.tolist() == [2.0, 4.0]
    assert len(times) == 1


def test_what_is_passed_through_stays_the_same_object() -> None:
    constant = jnp.arange(3.0)
    inner = jax.make_jaxpr(lambda x: (x, constant, 2.0, x + constant))(constant)
    seen: list[Any] = []

    def outer(x: Any) -> Any:
        seen[:] = [x, *apply_jaxpr(inner.jaxpr, inner.consts, [x])]
        return seen[-1]

    jax.make_jaxpr(outer)(constant)
    assert seen[1] is seen[0]
    assert seen[2] is inner.consts[0]
    assert float(seen[3]) == 2.0


def test_a_state_that_is_written_in_place() -> None:
    from_ref = jax.make_jaxpr(lambda ref: ref[...] * 2)

    def outer(x: Any) -> Any:
        ref = jax.new_ref(x)
        inner = from_ref(ref)
        ref[...] += 1
        return apply_jaxpr(inner.jaxpr, inner.consts, [ref])[0]

    assert float(jax.jit(outer)(jnp.float32(3))) == 8.0


def test_a_box_of_an_eager_tape_becomes_a_constant() -> None:
    inner = jax.make_jaxpr(lambda a, b: a * b)(1.0, 1.0)
    x = jnp.float32(3)
    with GradientTape() as tape:
        tape.watch(x)
        y = x * 2
        assert type(y) is Box
        z = jax.jit(lambda a: apply_jaxpr(inner.jaxpr, inner.consts, [a, y])[0])(jnp.float32(5))
    assert float(z) == 30.0
    assert float(tape.gradient(z, x)) == 10.0


def test_runs_at_once_outside_of_programs() -> None:
    inner = jax.make_jaxpr(lambda a: jnp.sin(a) + 1)(1.0)
    (result,) = apply_jaxpr(inner.jaxpr, inner.consts, [jnp.float32(0)])
    assert float(result) == 1.0


def test_equations_keep_their_own_lines() -> None:
    program = _bound(_relu, apply_jaxpr, jnp.arange(4.0))
    lines, start = inspect.getsourcelines(_relu)
    ours = [source_line(eqn) for eqn in program.jaxpr.eqns if eqn.primitive.name in ("mul", "div")]
    assert ours == [f"test_inlining.py:{start + len(lines) - 1}"] * 2


# Traces a function once


def test_a_staged_function_is_applied_to_other_constants_and_inputs() -> None:
    constant = jnp.array([5.0, 6.0, 7.0])
    staged = stage(lambda x: [x * constant, jnp.sum(x)], [jax.ShapeDtypeStruct((3,), jnp.float32)])
    assert staged.num_inputs == 1
    assert [one is constant for one in staged.constants] == [True]
    product, total = staged([constant * 2.0], [jnp.ones(3)])
    assert (product.tolist(), float(total)) == ([10.0, 12.0, 14.0], 3.0)
    (again,) = staged.giving([1])([constant], [jnp.ones(3)])
    assert float(again) == 3.0
    assert [aval.shape for aval in staged.closed.out_avals] == [(3,), ()]


def test_a_staged_function_may_reduce_over_the_axes_of_its_caller() -> None:
    shapes = [jax.ShapeDtypeStruct((), jnp.float32)]
    staged = stage(lambda x: [jax.lax.psum(x, "replica")], shapes, axes=[("replica", 2)])
    assert jax.vmap(lambda x: staged((), [x])[0], axis_name="replica")(jnp.array([1.0, 2.0])).tolist() == [3.0, 3.0]


def as_a_root(f: Any) -> Any:
    """Evaluates `f` in `custom_root`, whose equation keeps its jaxpr in an object (from JAX 0.12)."""
    return lambda x: jax.lax.custom_root(lambda v: v - f(x), x, lambda g, v: v - g(v), lambda g, y: y)


@pytest.mark.parametrize("enter", [lambda f: f, jax.jit, lambda f: lambda x: jax.lax.map(f, x), as_a_root])
def test_callbacks_into_python_are_seen_at_any_depth(enter: Any) -> None:
    def called(x: Any) -> Any:
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    assert has_callbacks(jax.make_jaxpr(enter(called))(jnp.ones(2)))
    assert not has_callbacks(jax.make_jaxpr(enter(jnp.sin))(jnp.ones(2)))
