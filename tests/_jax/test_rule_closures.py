"""Derivative rules that close over traced values, in programs that are differentiated later; and probes of JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives

import mirrored as mr
from mirrored._jax.closures import CustomCalls, closed_over_inputs, custom_calls
from mirrored._jax.inlining import program_of
from mirrored._jax.jaxprs import aval_of
from mirrored._jax.rule_closures import closed_over_p
from mirrored.errors import TapeError

X = jnp.arange(1.0, 4.0)
K = jnp.float32(2.0)
Function = Callable[[Any], Any]


def by_rules(function: Any, forward: Any, backward: Any, **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = jax.custom_vjp(function, **options)
    made.defvjp(forward, backward)  # type: ignore[attr-defined]
    return made


def forward_rule(k: Any) -> Function:
    return by_rules(lambda z: 2 * z, lambda z: (z * k, z * k), lambda saved, ct: (ct * saved,))


def function_and_forward_rule(k: Any) -> Function:
    return by_rules(lambda z: jnp.round(z) * k, lambda z: (jnp.round(z) * k, z), lambda z, ct: (ct * z,))


def all_functions(k: Any) -> Function:
    return by_rules(lambda z: z * k, lambda z: (z * k, z), lambda z, ct: (ct * k * z,))


def backward_rule(k: Any) -> Function:
    return by_rules(lambda z: 2 * z, lambda z: (2 * z, z), lambda z, ct: (ct * k * z,))


def nondifferentiated(k: Any) -> Function:
    function = by_rules(
        *(lambda n, z: z * k * n, lambda n, z: (z * k * n, None), lambda n, _, ct: (ct * k * n,)), nondiff_argnums=(0,)
    )
    return partial(function, 3)


def symbolic_zeros(k: Any) -> Function:
    function = jax.custom_vjp(lambda z, y: z * k + y)

    def forward(z: Any, y: Any) -> Any:
        return z.value * k + y.value, (z.value, y.value if y.perturbed else None)

    function.defvjp(forward, lambda saved, ct: (ct * k * saved[0], None), symbolic_zeros=True)
    return lambda z: function(z, jnp.ones_like(z))


def integers(k: Any) -> Function:
    function = by_rules(
        lambda z, n: (z * k, n + 1), lambda z, n: ((z * k, n + 1), n), lambda n, cts: (cts[0] * k * n, None)
    )
    return lambda z: function(z, jnp.int32(2))[0]


def own_function(k: Any) -> Function:
    function = jax.custom_vjp(lambda z: z * k)
    function.defvjp(lambda z: (function(z), z), lambda z, ct: (ct * k * z,))
    return function


def nested(k: Any) -> Function:
    inner = all_functions(k)
    return by_rules(lambda z: inner(z) + k, lambda z: (inner(z) + k, z), lambda z, ct: (inner(ct) * k * z,))


def jvp_rule(k: Any) -> Function:
    function = jax.custom_jvp(lambda z: z * k)
    function.defjvp(lambda primals, tangents: (function(*primals), tangents[0] * k * primals[0]))
    return function


def jvp_rule_alone(k: Any) -> Function:
    function = jax.custom_jvp(lambda z: 2 * z)
    function.defjvp(lambda primals, tangents: (2 * primals[0], tangents[0] * k * primals[0]))
    return function


def rules_per_argument(k: Any) -> Function:
    function = jax.custom_jvp(lambda z, y: z * y * k)
    function.defjvps(lambda tangent, result, z, y: tangent * k * z, None)
    return lambda z: function(z, z)


def jvp_with_symbolic_zeros(k: Any) -> Function:
    function = jax.custom_jvp(lambda z, y: z * k + y)

    def rule(primals: Any, tangents: Any) -> Any:
        is_zero = isinstance(tangents[1], jax.custom_derivatives.SymbolicZero)
        return function(*primals), tangents[0] * k * (2 * primals[0] if is_zero else 3)

    function.defjvp(rule, symbolic_zeros=True)
    return lambda z: function(z, jnp.ones_like(z))


VJPS = (
    forward_rule,
    function_and_forward_rule,
    all_functions,
    backward_rule,
    nondifferentiated,
    symbolic_zeros,
    integers,
    own_function,
    nested,
)
JVPS = (jvp_rule, jvp_rule_alone, rules_per_argument, jvp_with_symbolic_zeros)


def in_scan(function: Function) -> Function:
    return lambda z: lax.scan(lambda carry, _: (function(carry), None), z, None, length=2)[0]


WRAPPERS: dict[str, Callable[[Function], Function]] = {
    "jit": jax.jit,
    "cond": lambda function: lambda z: lax.cond(z.sum() > 0, function, lambda z: z, z),
    "none": lambda function: function,
    "jit in jit": lambda function: jax.jit(lambda z: 2 * jax.jit(function)(z)),
    "scan": in_scan,
    "scan in jit": lambda function: jax.jit(in_scan(function)),
    "fori_loop": lambda function: lambda z: lax.fori_loop(0, 2, lambda _, value: function(value), z),
    "map": lambda function: partial(lax.map, function),
    "vmap": jax.vmap,
    "checkpoint": jax.checkpoint,
    "checkpoint in jit": lambda function: jax.jit(jax.checkpoint(function)),
}
# JAX itself has no such program: under `jit` and `cond` it does not find what JVP rules close over, and in loops what
# backward rules close over. The same functions without `jit` have the same gradient.
UNWRAPPED = {
    "jit": WRAPPERS["none"],
    "cond": WRAPPERS["none"],
    "jit in jit": lambda function: lambda z: 2 * function(z),
    "scan": lambda function: lambda z: function(function(z)),
    "scan in jit": lambda function: lambda z: function(function(z)),
    "fori_loop": lambda function: lambda z: function(function(z)),
    "map": WRAPPERS["none"],
    "checkpoint in jit": jax.checkpoint,
}


def losses(kind: Any, wrapper: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The loss, and the one that JAX differentiates."""
    of_jax = UNWRAPPED.get(wrapper, WRAPPERS[wrapper])
    return (
        lambda z, k: jnp.sum(WRAPPERS[wrapper](kind(k))(z)),
        lambda z, k: jnp.sum(of_jax(kind(k))(z)),
    )


def by_tape(loss: Any, z: Any, k: Any) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(z)
        value = loss(z, k)
    return tape.gradient(value, z)


WAYS: dict[str, Callable[[Any], Any]] = {
    "function": lambda loss: mr.function(partial(by_tape, loss))(X, K),
    "computed value": lambda loss: mr.function(lambda z, k: by_tape(loss, z, k + k))(X, K / 2),
    "stop_gradient": lambda loss: mr.function(lambda z, k: by_tape(loss, z, lax.stop_gradient(k)))(X, K),
    "eager tape": lambda loss: by_tape(loss, X, K),
    "jax.jit": lambda loss: jax.jit(partial(by_tape, loss))(X, K),
    "around a function": lambda loss: by_tape(mr.function(loss), X, K),
    "jax.grad in a function": lambda loss: mr.function(jax.grad(loss))(X, K),
}


@pytest.mark.first(12)
@pytest.mark.parametrize("caller", WAYS)
@pytest.mark.parametrize("kind", [*VJPS, *JVPS])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.sampled(24)
def test_rules_that_close_over_an_array_have_the_gradients_of_jax(wrapper: str, kind: Any, caller: str) -> None:
    loss, of_jax = losses(kind, wrapper)
    np.testing.assert_allclose(WAYS[caller](loss), jax.jit(jax.grad(of_jax))(X, K), rtol=1e-5)


# Without the rule that distinguishes symbolic zeros: whether a second derivative in a loop has them depends on the
# version of JAX.
@pytest.mark.parametrize("caller", ["function", "eager tape"])
@pytest.mark.parametrize("kind", [*VJPS, *(kind for kind in JVPS if kind is not jvp_with_symbolic_zeros)])
@pytest.mark.parametrize("wrapper", ["jit", "cond", "scan in jit"])
@pytest.mark.sampled(12)
def test_rules_that_close_over_an_array_have_second_derivatives(wrapper: str, kind: Any, caller: str) -> None:
    loss, of_jax = losses(kind, wrapper)

    def squared(loss: Any, z: Any, k: Any) -> Any:
        return jnp.sum(by_tape(loss, z, k) ** 2) + jnp.sum(z)

    def by_jax(z: Any, k: Any) -> Any:
        return jnp.sum(jax.grad(of_jax)(z, k) ** 2) + jnp.sum(z)

    np.testing.assert_allclose(WAYS[caller](partial(squared, loss)), jax.grad(by_jax)(X, K), rtol=1e-5)


LAYOUTS: dict[str, Callable[[], mr.MirroredStrategy]] = {
    "1 device": lambda: mr.MirroredStrategy(["CPU:0"]),
    "2 devices": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"]),
    "2 replicas per device": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4),
    "deterministic": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"], deterministic=True),
    "padded": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=3),
}


def in_run(strategy: mr.MirroredStrategy, loss: Any, caller: str, read: Callable[[Any], Any]) -> Any:
    """The gradient of the sum of the losses of the replicas, with a tape or `jax.grad` inside or around the run."""
    with strategy.scope():
        w = mr.Variable(X)

    def total(function: Any, *args: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(function, args=args), axis=None)

    def step(k: Any) -> Any:
        if caller == "inside":
            return total(lambda k: by_tape(loss, 1.0 * w.read_value(), read(k)), k)
        if caller == "jax.grad around":
            return jax.grad(lambda z: total(lambda z, k: loss(z, read(k)), z, k))(X)
        with mr.GradientTape() as tape:
            value = total(lambda k: loss(w.read_value(), read(k)), k)
        return tape.gradient(value, w)

    k = strategy.experimental_distribute_values_from_function(lambda context: K + context.replica_id_in_sync_group)
    return step(k) if caller == "eager" else mr.function(step)(k)


def replica_id(_: Any) -> Any:
    context = mr.get_replica_context()
    assert context is not None
    return K + context.replica_id_in_sync_group


@pytest.mark.first(7)
@pytest.mark.parametrize("caller", ["around", "inside", "eager", "jax.grad around"])
@pytest.mark.parametrize("read", [lambda k: k, replica_id], ids=["data", "replica id"])
@pytest.mark.parametrize("kind", [*VJPS, *JVPS])
@pytest.mark.parametrize("wrapper", ["none", "jit", "scan"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sampled(80)
def test_rules_that_close_over_values_of_a_replica_have_the_gradients_of_jax(
    layout: str, wrapper: str, kind: Any, read: Any, caller: str
) -> None:
    strategy = LAYOUTS[layout]()
    loss, of_jax = losses(kind, wrapper)
    expected = sum(jax.jit(jax.grad(of_jax))(X, K + i) for i in range(strategy.num_replicas_in_sync))
    np.testing.assert_allclose(in_run(strategy, loss, caller, read), expected, rtol=1e-5)


CLOSING = (forward_rule, function_and_forward_rule, all_functions, nested, jvp_rule, symbolic_zeros)


@pytest.mark.parametrize("caller", [mr.function, jax.jit, lambda step: step], ids=["function", "jax.jit", "eager"])
@pytest.mark.parametrize("kind", CLOSING)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.sampled(12)
def test_a_value_over_which_a_rule_closes_has_no_gradient(wrapper: str, kind: Any, caller: Any) -> None:
    loss, of_jax = losses(kind, wrapper)

    def step(z: Any, k: Any) -> Any:
        with mr.GradientTape(persistent=True) as tape:
            tape.watch((z, k))
            value = loss(z, k * k)
        with pytest.raises(TapeError, match="closes over a watched value"):
            tape.gradient(value, k)
        return tape.gradient(value, z)

    np.testing.assert_allclose(caller(step)(X, K), jax.jit(jax.grad(of_jax))(X, K * K), rtol=1e-5)


def test_a_value_over_which_only_the_backward_rule_closes_has_second_derivatives() -> None:
    @mr.function
    def step(z: Any, k: Any) -> Any:
        with mr.GradientTape() as outer:
            outer.watch(k)
            gradient = by_tape(lambda z, k: jnp.sum(jax.jit(backward_rule(k))(z)), z, k)
        return outer.gradient(gradient, k)

    np.testing.assert_allclose(step(X, K), jnp.sum(X), rtol=1e-6)


def test_rules_are_traced_in_advance_only_in_compiled_functions_and_under_tapes() -> None:
    calls: list[str] = []

    def forward(z: Any) -> Any:
        calls.append("forward")
        return z, None

    function = by_rules(lambda z: z, forward, lambda _, ct: (ct,))
    jax.jit(lambda z: function(z))(X)
    assert not calls
    mr.function(lambda z: function(z))(X)
    assert calls == ["forward"]


def test_a_rule_that_raises_raises_only_if_the_call_is_differentiated() -> None:
    def forward(z: Any) -> Any:
        raise NotImplementedError("no derivative")

    function = jax.jit(by_rules(lambda z: z, forward, lambda _, ct: (ct,)))
    np.testing.assert_array_equal(mr.function(function)(X), X)
    with pytest.raises(TapeError, match="no derivative"):
        mr.function(lambda z: by_tape(lambda z, k: jnp.sum(function(z)), z, K))(X)


def test_a_rule_that_assigns_a_variable_assigns_it_only_if_the_call_is_differentiated() -> None:
    count = mr.Variable(0.0, trainable=False)

    def forward(z: Any) -> Any:
        count.assign_add(1.0)
        return z, None

    function = by_rules(lambda z: z, forward, lambda _, ct: (ct,))
    mr.function(function)(X)
    assert float(count.read_value()) == 0.0
    mr.function(lambda z: by_tape(lambda z, k: jnp.sum(function(z)), z, K))(X)
    assert float(count.read_value()) == 1.0


@pytest.mark.parametrize("kind", [forward_rule, jvp_rule_alone])
def test_the_values_are_operands_of_the_call_that_closures_finds(kind: Any) -> None:
    @mr.function
    def trace(z: Any, k: Any) -> Any:
        program = program_of(lambda z, k: [jax.jit(kind(k))(z)], [aval_of(z), aval_of(k)])
        (call,) = [one for one in program.jaxpr.eqns if one.primitive is primitives.jit_p]
        assert custom_calls(call.params) is CustomCalls.CLOSING_OVER
        assert any(one.primitive is closed_over_p for one in call.params["jaxpr"].eqns)
        assert closed_over_inputs(program) == [1]
        return z

    trace(X, K)


def test_the_mark_is_an_identity_without_a_derivative() -> None:
    mark: Callable[..., Any] = closed_over_p.bind
    np.testing.assert_array_equal(jax.jit(mark)(X), X)
    np.testing.assert_array_equal(jax.vmap(mark)(X), X)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(mark(x) * x))(X), X)
