"""Probes: what the shims over jaxprs rely on, on whatever JAX is installed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mirrored._jax.jaxprs import Branch, Call, Equalising, Kind, Plain, Scan, ValueSource, While, constants_of, kind_of
from mirrored._jax.source_lines import source_line
from mirrored.topology.device_assignment import AXIS


def kinds(fn: Any, *args: Any) -> list[Kind]:
    closed = jax.make_jaxpr(fn, axis_env=[(AXIS, 4)])(*args)
    return [kind_of(eqn, AXIS) for eqn in closed.jaxpr.eqns]


def test_scan_says_its_constants_and_carries() -> None:
    def fn(w: Any, x: Any) -> Any:
        return lax.scan(lambda c, row: ((c[0] + row * w, c[1] * 2), row), (0.0, w), x)

    (scan,) = [kind for kind in kinds(fn, 1.0, np.ones(3, "f4")) if isinstance(kind, Scan)]
    assert (scan.num_consts, scan.num_carries) == (1, 2)
    assert len(scan.jaxpr.invars) == 4


def test_while_says_its_constants() -> None:
    def fn(limit: Any, step: Any, x: Any) -> Any:
        return lax.while_loop(lambda c: c < limit, lambda c: c + step * step, x)

    (loop,) = [kind for kind in kinds(fn, 1.0, 2.0, 3.0) if isinstance(kind, While)]
    assert (loop.num_cond_consts, loop.num_body_consts) == (1, 1)


@jax.custom_vjp
def with_rule(x: Any) -> Any:
    return x * 2


with_rule.defvjp(lambda x: (x * 2, None), lambda _, g: (g,))


@pytest.mark.parametrize(
    "fn", [jax.jit(jnp.sin), jax.checkpoint(jnp.sin), jax.nn.relu, with_rule], ids=["jit", "remat", "jvp", "vjp"]
)
def test_calls_are_entered(fn: Any) -> None:
    assert [type(kind) for kind in kinds(fn, 1.0)] == [Call]


def test_cond_has_branches() -> None:
    (branch,) = [
        kind for kind in kinds(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), 1.0) if isinstance(kind, Branch)
    ]
    assert len(branch.branches) == 2


@pytest.mark.parametrize("collective", [lax.psum, lax.pmax, lax.pmin, lax.all_gather])
def test_collectives_that_make_equal(collective: Any) -> None:
    assert kinds(lambda x: collective(x, AXIS), np.ones(4, "f4")) == [Equalising()]
    assert isinstance(kinds(lambda x: collective(x, (AXIS,)), np.ones(4, "f4"))[0], Equalising)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: lax.axis_index(AXIS),
        lambda x: lax.ppermute(x, AXIS, [(0, 1)]),
        lambda x: lax.psum_scatter(x, AXIS),
        lambda x: lax.all_to_all(x, AXIS, 0, 0),
        lambda x: lax.psum(x, AXIS, axis_index_groups=[[0, 1], [2, 3]]),
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((4,), "f4"), x),
    ],
    ids=["axis_index", "ppermute", "psum_scatter", "all_to_all", "groups", "callback"],
)
def test_sources_of_difference(fn: Any) -> None:
    assert isinstance(kinds(fn, np.ones(4, "f4"))[0], ValueSource)


def test_ordinary_operations_are_plain() -> None:
    assert kinds(lambda x: jnp.sin(x) + 1, 1.0) == [Plain(), Plain()]


def test_unknown_higher_order_operations_show_their_jaxprs() -> None:
    (plain,) = kinds(lax.composite(lambda x: x * 2, name="twice"), np.ones(3, "f4"))
    assert isinstance(plain, Plain)
    assert len(plain.jaxprs) == 1


def test_a_linear_solve_is_a_call_of_its_solver() -> None:
    def fn(b: Any) -> Any:
        return lax.custom_linear_solve(lambda v: v * 2, b, lambda f, b: b / 2)

    (solve,) = kinds(fn, np.ones(3, "f4"))
    assert isinstance(solve, Call)
    assert [eqn.primitive.name for eqn in solve.jaxpr.jaxpr.eqns] == ["div"]


def test_constants_of_a_closed_jaxpr() -> None:
    table = np.arange(3, dtype="f4")
    closed = jax.make_jaxpr(lambda x: x + jnp.asarray(table))(table)
    assert len(constants_of(closed)) == len(closed.jaxpr.constvars)


def test_source_line_is_the_users() -> None:
    closed = jax.make_jaxpr(lambda x: jnp.sin(x))(1.0)
    line = test_source_line_is_the_users.__code__.co_firstlineno + 1
    assert source_line(closed.jaxpr.eqns[0]) == f"test_jaxprs.py:{line}"
