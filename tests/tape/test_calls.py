"""Special calls on a tape: transfers, functions with custom derivatives, of JAX or closing over watched arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mirrored as mr
from mirrored.errors import TapeError

X = jnp.asarray(2.0)


def by_defjvp(slope: float) -> Any:
    function = jax.custom_jvp(jnp.sign)
    function.defjvp(lambda primals, tangents: (jnp.sign(primals[0]), slope * tangents[0]))
    return function


def by_defjvps(slope: float) -> Any:
    function = jax.custom_jvp(jnp.sign)
    function.defjvps(lambda tangent, _result, _x: slope * tangent)
    return function


def by_custom_vjp(slope: float) -> Any:
    function = jax.custom_vjp(jnp.sign)
    function.defvjp(lambda x: (jnp.sign(x), None), lambda _, cotangent: (slope * cotangent,))
    return function


def slope_of(function: Any) -> float:
    with mr.GradientTape() as tape:
        tape.watch(X)
        y = function(X)
    return float(tape.gradient(y, X))


@pytest.mark.parametrize("make", [by_defjvp, by_defjvps, by_custom_vjp])
def test_each_custom_derivative_of_a_function_of_jax_has_its_own_rule(make: Any) -> None:
    assert [slope_of(make(1.0)), slope_of(make(5.0))] == [1.0, 5.0]


@pytest.mark.parametrize("make", [jax.custom_jvp, jax.custom_vjp])
def test_a_rule_of_a_function_of_jax_can_be_replaced(make: Any) -> None:
    function = make(jnp.sign)
    found = []
    for slope in (1.0, 5.0):
        if make is jax.custom_jvp:
            function.defjvps(lambda tangent, _result, _x, slope=slope: slope * tangent)
        else:
            function.defvjp(lambda x: (jnp.sign(x), None), lambda _, cotangent, slope=slope: (slope * cotangent,))
        found.append(slope_of(function))
    assert found == [1.0, 5.0]


def test_a_rule_that_reads_a_variable_reads_its_present_value() -> None:
    slope = mr.Variable(1.0, trainable=False)
    function = jax.custom_jvp(jnp.sign)
    function.defjvps(lambda tangent, _result, _x: slope * tangent)
    found = [slope_of(function)]
    slope.assign(5.0)
    assert [*found, slope_of(function)] == [1.0, 5.0]


# A function with a custom derivative that closes over a watched array, through a jitted function, inside `jit`.

W, Y = jnp.array([2.0, 2.0]), jnp.array([1.0, 2.0])
scaled = jax.jit(lambda v: v * W)


@jax.custom_jvp
def of_closure(v: Any) -> Any:
    return scaled(v)


of_closure.defjvp(lambda primals, tangents: (scaled(primals[0]), 3.0 * tangents[0]))


def gradient(program: Any, which: Any, source: Any, **kept: Any) -> Any:
    with mr.GradientTape(**kept) as tape:
        tape.watch([W, Y])
        results = program(Y)
    return tape.gradient(results[which], source)


@pytest.mark.parametrize("persistent", [False, True])
def test_each_result_of_a_program_with_closures_has_its_own_gradient(persistent: bool) -> None:
    program = jax.jit(lambda v: (jnp.argmax(v), of_closure(v), 10.0 * v, v > 1, 5.0 * v))
    found = [gradient(program, which, Y, persistent=persistent).tolist() for which in (1, 2, 4)]
    assert found == [[3.0, 3.0], [10.0, 10.0], [5.0, 5.0]]


CLOSED_OVER = {
    "jit": jax.jit(lambda v: (W * of_closure(v),)),
    "nested jit": jax.jit(lambda v: (jax.jit(lambda u: W * u)(of_closure(v)),)),
    "scan": jax.jit(lambda v: (lax.scan(lambda c, _: (W * of_closure(c), None), v, None, length=2)[0],)),
    "while_loop": lambda v: lax.while_loop(lambda state: state[1] < 2, lambda state: (of_closure(state[0]), 2), (v, 0)),
}


@pytest.mark.parametrize("name", CLOSED_OVER)
def test_an_array_over_which_a_function_with_a_rule_closes_is_refused(name: str) -> None:
    with pytest.raises(TapeError, match="closes over"):
        gradient(CLOSED_OVER[name], 0, W)


BESIDE = {
    "jit": jax.jit(lambda v: (W * v, of_closure(v))),
    "nested jit": jax.jit(lambda v: jax.jit(lambda u: (W * u, jnp.sum(of_closure(u))))(v)),
    "checkpoint": jax.checkpoint(lambda v: (W * v, of_closure(v))),
    "stop_gradient": jax.jit(lambda v: (W * v + lax.stop_gradient(of_closure(v)), v)),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", BESIDE)
def test_a_result_beside_that_of_such_a_function_has_its_gradient(name: str, persistent: bool) -> None:
    assert gradient(BESIDE[name], 0, W, persistent=persistent).tolist() == [1.0, 2.0]
    assert gradient(BESIDE[name], 0, Y, persistent=persistent).tolist() == [2.0, 2.0]
    if name != "stop_gradient":
        with pytest.raises(TapeError, match="closes over"):
            gradient(BESIDE[name], slice(None), W)


def test_the_argument_of_such_a_program_has_the_gradient_of_the_rule() -> None:
    assert gradient(CLOSED_OVER["jit"], 0, Y).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_numpy_operand_of_a_function_that_closes_over_a_watched_array_may_be_refilled(persistent: bool) -> None:
    x, batch = jnp.ones(1024), np.full(1024, 2.0, np.float32)
    with mr.GradientTape(persistent=persistent) as tape:
        tape.watch(x)
        y = jax.jit(lambda batch: jnp.sum(batch * x))(batch)
    batch[:] = 100.0
    np.testing.assert_array_equal(tape.gradient(y, x), np.full(1024, 2.0))


# Transfers between devices.


@pytest.mark.parametrize("devices", [2, 4])
def test_jacobians_move_back_to_devices_that_do_not_divide_the_rows(devices: int) -> None:
    mesh = Mesh(np.array(jax.devices()[:devices]), ("i",))
    x = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec("i")))
    with mr.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with mr.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = jax.device_put(x, jax.devices()[0])[:3] ** 3
        jacobian = tape.jacobian(y, x)
        gradient = tape.gradient(y, x)
    np.testing.assert_array_equal(jacobian, 3 * np.eye(3, 4) * np.arange(4.0) ** 2)
    for slope in (jacobian, gradient):
        assert outer.gradient(slope, x).tolist() == [0.0, 6.0, 12.0, 0.0]
    assert gradient.sharding.is_equivalent_to(x.sharding, 1)


def test_a_transfer_of_several_arrays_has_the_gradients_of_those_that_the_target_uses() -> None:
    one, other = jnp.ones(2), jnp.ones(2)
    with mr.GradientTape() as tape:
        tape.watch([one, other])
        moved, _ = jax.device_put((one, other), jax.devices()[1])
    gradients = tape.gradient(moved, [one, other])
    assert gradients[0].tolist() == [1.0, 1.0]
    assert gradients[0].device == one.device
    assert gradients[1] is None
