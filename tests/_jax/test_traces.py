"""Probes of what `traces` relies on in JAX: the current trace and its parents, loose tracers, their equations."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from mirrored._jax import caches, traces
from mirrored._jax.boxes import BoxTracer
from mirrored._jax.traces import CaptureTracer, NotConstant, evaluate

X = jnp.arange(3.0)


def looking(transform, look):
    """What `look` returns for the argument of a function under a transform."""
    found = []

    def function(x):
        found.append(look(x))
        return jnp.sum(x * 2.0)

    transform(function)(X)
    return found[0]


STAGING = {
    "jit": jax.jit,
    "make_jaxpr": jax.make_jaxpr,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, r: (f(c) + c, None), x, None, length=1),
    "checkpoint": jax.checkpoint,
    "grad in jit": lambda f: jax.jit(lambda x: jax.jit(jax.grad(f))(x)),
}
DIFFERENTIATING = {"grad": jax.grad, "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)), "vjp": lambda f: jax.grad(f)}


def test_outside_of_transforms_everything_is_eager():
    assert traces.is_eager()
    assert traces.is_eval(traces.current_trace())
    assert traces.is_eval_below(traces.current_trace())
    assert not traces.is_staging(traces.current_trace())
    assert not traces.is_outermost_staging(traces.current_trace())


@pytest.mark.parametrize("name", STAGING)
def test_a_staging_trace_is_known(name):
    assert looking(STAGING[name], lambda x: (traces.is_eager(), isinstance(x, traces.Tracer))) == (False, True)
    assert looking(STAGING[name], lambda x: traces.is_differentiated(x)) is False
    below = looking(STAGING[name], lambda x: traces.is_eval_below(traces.current_trace()))
    assert below is False


@pytest.mark.parametrize("name", DIFFERENTIATING)
def test_a_differentiating_trace_is_known(name):
    def look(x):
        trace = traces.current_trace()
        return (
            traces.is_eager(),
            traces.is_staging(trace),
            traces.belongs_to(x, trace),
            traces.is_differentiated(x),
            traces.is_eval_below(trace),
            traces.is_staging_above(trace, trace),
        )

    assert looking(DIFFERENTIATING[name], look) == (False, False, True, True, True, False)


def test_differentiation_of_a_staged_value_is_not_that_of_an_array():
    assert looking(lambda f: jax.jit(jax.grad(f)), traces.is_differentiated) is False


def test_the_parents_of_a_trace_are_known_where_jax_knows_them():
    def look(x):
        outer = traces.current_trace()
        found = []

        def inner(y):
            here = traces.current_trace()
            found.append((traces.parent_of(here) is outer, traces.is_staging_above(here, outer)))
            return jnp.sum(y * x)

        jax.grad(inner)(X)
        return found[0]

    assert looking(jax.jit, look) == (True, False)
    assert looking(jax.grad, look) == (True, False)


def test_a_trace_is_replaced_and_put_back():
    base = traces.current_trace()

    @jax.jit
    def traced(x):
        here = traces.current_trace()
        traces.put_trace(base)
        assert traces.is_eager()
        known = jnp.ones(2) + 1.0
        traces.put_trace(here)
        assert traces.current_trace() is here
        assert not isinstance(known, jax.core.Tracer)
        with traces.eager():
            assert traces.is_eager()
            assert not isinstance(jnp.ones(2) * 3.0, jax.core.Tracer)
        assert traces.current_trace() is here
        return x

    traced(1.0)


def test_the_settings_of_a_trace_are_one_hashable_value():
    before = traces.trace_settings()
    with jax.default_matmul_precision("float32"):
        assert hash(traces.trace_settings()) != hash(before)
        assert traces.trace_settings() != before
    assert traces.trace_settings() == before


def test_the_settings_of_a_program_contain_no_token():
    before, bare = traces.trace_settings(), traces.program_settings()
    previous, previous_replica = caches.current(), caches.replica_holder.value
    caches.put("one")
    caches.put_replica("two")
    try:
        with_tokens = traces.trace_settings()
        assert with_tokens != before
        assert traces.program_settings() == bare
        assert traces.trace_settings() == with_tokens
        with jax.default_matmul_precision("float32"):
            assert traces.program_settings() != bare
    finally:
        caches.put(previous)
        caches.put_replica(previous_replica)


class Passing(jax.core.Trace):
    """A trace that applies each primitive eagerly, as a tape does."""

    def process_primitive(self, primitive, args, params, /):
        with traces.eager():
            return primitive.bind(*args, **params)


def test_traces_with_one_identity_share_traces_of_jitted_functions():
    def sizes(share):
        jitted, counts = jax.jit(lambda x: x + 1.0), []
        for _ in range(4):
            trace = Passing()
            if share:
                traces.share_identity(trace)
            before = traces.current_trace()
            traces.put_trace(trace)
            try:
                jitted(X)
            finally:
                traces.put_trace(before)
            counts.append(jitted._cache_size())
        return counts

    shared = sizes(True)
    assert shared[-1] <= shared[0], "each trace of a tape leaves an entry in the caches of jitted functions"


# Capture tracers

ENTERING = {
    "closed over": lambda f: f,
    "jit": jax.jit,
    "jit in jit": lambda f: jax.jit(lambda x: jax.jit(f)(x)),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "cond": lambda f: lambda x: jax.lax.cond(jnp.sum(x) > 0, f, lambda y: y, x),
    "while": lambda f: lambda x: jax.lax.while_loop(lambda c: jnp.sum(c) < 9.0, f, x),
    "checkpoint": jax.checkpoint,
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x))),
    "vmap": jax.vmap,
}


@pytest.mark.parametrize("name", ENTERING)
def test_a_capture_tracer_is_a_constant_of_the_outermost_program(name):
    source = object()
    captured = CaptureTracer((), jnp.float32, source)
    closed = jax.make_jaxpr(ENTERING[name](lambda x: x * captured))(X)
    (constant,) = [one for one in closed.consts if isinstance(one, CaptureTracer)]
    assert constant is captured, "a captured variable could not be replaced by an argument"
    assert constant.source is source
    values = [jnp.float32(5.0) if one is captured else one for one in closed.consts]
    with_value = ENTERING[name](lambda x: x * 5.0)(X)
    np.testing.assert_array_equal(jax.core.eval_jaxpr(closed.jaxpr, values, X)[0], with_value)


def test_a_capture_tracer_says_what_it_stands_for():
    captured = CaptureTracer((2,), jnp.float32, "w")
    assert "Captured(float32[2] of w)" in repr(captured).replace("f32", "float32")
    assert type(captured) is not BoxTracer
    assert captured.full_lower() is captured


def test_an_empty_part_of_a_capture_tracer_stays_connected_to_it():
    captured = CaptureTracer((3,), jnp.float32, "w")
    for part in (lambda: captured[:0], lambda: captured.at[:0].get()):
        closed = jax.make_jaxpr(part)()
        assert [one for one in closed.consts if one is captured], "its gradient would be None"


def test_closure_convert_makes_an_argument_of_a_capture_tracer():
    captured = CaptureTracer((3,), jnp.float32, "w")
    found = []

    def traced(x):
        _, hoisted = jax.closure_convert(lambda y: y * captured, x)
        found.extend(hoisted)
        return x

    jax.make_jaxpr(traced)(X)
    assert [one for one in found if one is captured], "functions of JAX that convert closures would embed it"


# Constants while tracing


def test_what_depends_on_constants_alone_is_known_while_tracing() -> None:
    found = []

    @jax.jit
    def traced(x):
        constant = jnp.arange(3) * 2 + np.array([1, 1, 1])
        found.append((type(constant), evaluate(jnp.where(constant > 2, constant, 0))))
        with pytest.raises(NotConstant):
            evaluate(constant + x)
        return constant

    assert traced(1).tolist() == [1, 3, 5]
    ((kind, value),) = found
    assert issubclass(kind, jax.core.Tracer)
    assert not isinstance(value, jax.core.Tracer)
    assert value.tolist() == [0, 3, 5]


def test_captured_values_are_known_to_who_knows_their_source() -> None:
    captured = CaptureTracer((2,), jnp.float32, "source")
    found = []

    def traced(x):
        doubled = captured * 2.0
        with pytest.raises(NotConstant):
            evaluate(doubled)
        found.append(evaluate(doubled, {"source": jnp.array([1.0, 4.0])}.__getitem__))
        return doubled + x

    jax.make_jaxpr(traced)(1.0)
    assert found[0].tolist() == [2.0, 8.0]


def test_the_index_of_a_replica_is_that_of_the_first() -> None:
    found = []

    def traced(x):
        index = jax.lax.axis_index("replica")
        with pytest.raises(NotConstant):
            evaluate(index)
        found.append(evaluate(index + 3, lambda source: source))
        return x + index

    jax.make_jaxpr(traced, axis_env=[("replica", 2)])(1.0)
    assert found == [3]


def _called(x):
    return io_callback(lambda one: one, jax.ShapeDtypeStruct((), jnp.float32), x)


def _printed(x):
    jax.debug.print("{}", x)
    return x + 1


EFFECTS = {
    "host call": _called,
    "print in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda _, y: _printed(y), x),
    "collective": lambda x: jax.lax.psum(x, "replica"),
    "index of a replica in a loop": lambda x: jax.lax.fori_loop(
        0, 2, lambda _, y: y + jax.lax.axis_index("replica"), x
    ),
}


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_effects_happen_in_runs_and_not_while_tracing(effect, capfd) -> None:
    """A host call's answer became a constant of the program, and a collective raised an error about its axis."""

    def traced(x):
        value = effect(jnp.float32(1.0))
        with pytest.raises(NotConstant):
            evaluate(value)
        return x + value

    jax.make_jaxpr(traced, axis_env=[("replica", 2)])(1.0)
    jax.effects_barrier()
    assert not capfd.readouterr().out


def test_values_that_are_no_tracers_are_themselves() -> None:
    array = jnp.ones(2)
    assert evaluate(array) is array
    assert evaluate("text") == "text"


def test_a_chain_of_operations_may_be_longer_than_the_recursion_limit() -> None:
    found = []

    def traced(x):
        known = jnp.zeros(())
        for _ in range(sys.getrecursionlimit()):
            known, x = known + 1, x + 1
        found.append(evaluate(known))
        with pytest.raises(NotConstant):
            evaluate(x)
        return x

    jax.make_jaxpr(traced)(1.0)
    assert found == [sys.getrecursionlimit()]


@pytest.mark.parametrize("custom", ["relu", "custom_jvp", "custom_vjp"])
def test_evaluates_calls_with_custom_derivatives(custom):
    functions = {"relu": jax.nn.relu, "custom_jvp": jax.custom_jvp(jnp.abs), "custom_vjp": jax.custom_vjp(jnp.abs)}
    functions["custom_jvp"].defjvps(lambda tangent, _result, _x: tangent)
    functions["custom_vjp"].defvjp(lambda x: (jnp.abs(x), None), lambda _, cotangent: (cotangent,))
    found = []

    @jax.jit
    def traced():
        found.append(evaluate(functions[custom](jnp.array([0.0, 2.0]) + 1.0)))
        return 0

    traced()
    assert found[0].tolist() == [1.0, 3.0]
