"""Collectives of JAX over an axis name in `run`: refused with the remedy in every layout, at the first call.

The mesh of a compiled run has one axis, of devices. Over it, results would depend on the number of replicas per device,
and an eager run has no axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import ContextError
from strategies.programs import parts

AXIS = "replica"
X = jnp.arange(4.0).reshape(2, 2)


def summed_in_a_rule(x: Any) -> Any:
    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    identity.defvjp(lambda x: (x, None), lambda _, cotangent: (lax.psum(cotangent, AXIS),))
    return jax.grad(lambda x: jnp.sum(identity(x)))(x)


USES: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: lax.psum(x, AXIS),
    "psum of 1": lambda x: x / lax.psum(1, AXIS),
    "pmean": lambda x: lax.pmean(x, AXIS),
    "pmax": lambda x: lax.pmax(x, (AXIS,)),
    "all_gather": lambda x: lax.all_gather(x, AXIS),
    "axis_index": lambda x: x + lax.axis_index(AXIS),
    "axis_size": lambda x: x * lax.axis_size(AXIS),
    "ppermute": lambda x: lax.ppermute(x, AXIS, [(0, 1)]),
    "all_to_all": lambda x: lax.all_to_all(x, AXIS, 0, 0),
    "psum_scatter": lambda x: lax.psum_scatter(x, AXIS),
    "another name": lambda x: lax.psum(x, "batch"),
    "in jit": jax.jit(lambda x: lax.psum(x, AXIS)),
    "in scan": lambda x: lax.scan(lambda c, row: (c + lax.psum(row, AXIS), None), x[0], x)[0],
    "in grad": jax.grad(lambda x: jnp.sum(lax.psum(x, AXIS))),
    "in a rule": summed_in_a_rule,
}
LAYOUTS = [(1, 1), (2, 2), (1, 2), (2, 3)]
layouts = pytest.mark.parametrize(("devices", "replicas"), LAYOUTS, ids=["1", "2", "1x2", "3 on 2"])


def runs(function: Callable[[Any], Any], devices: int, replicas: int, *, compiled: bool) -> tuple[Any, Any]:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    step = lambda x: strategy.run(function, args=(x,))  # noqa: E731
    return strategy, mr.function(step) if compiled else step


@pytest.mark.first(60)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@layouts
@pytest.mark.parametrize("use", USES)
def test_an_axis_name_is_refused_with_the_remedy_in_every_layout(use, devices, replicas, compiled):
    _, run = runs(USES[use], devices, replicas, compiled=compiled)
    with pytest.raises(ContextError, match=r"inside run, the replicas are not a mesh axis") as caught:
        run(X)
    assert "all_reduce('SUM', x) for jax.lax.psum" in str(caught.value)
    assert isinstance(caught.value.__cause__, (NameError, NotImplementedError))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@layouts
def test_vmap_binds_an_axis_of_this_name(devices, replicas, compiled):
    function = jax.vmap(lambda row: lax.psum(row, AXIS), axis_name=AXIS)
    strategy, run = runs(function, devices, replicas, compiled=compiled)
    assert parts(strategy, run(X)) == [[[2.0, 4.0]] * 2] * replicas


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@layouts
def test_the_remedy_gives_the_same_result_in_every_layout(devices, replicas, compiled):
    def replica(x: Any) -> Any:
        context = mr.get_replica_context()
        mine = x[0, 1] + context.replica_id_in_sync_group
        return context.all_reduce("SUM", mine), context.all_gather(mine[None], axis=0)

    strategy, run = runs(replica, devices, replicas, compiled=compiled)
    total, gathered = run(X)
    numbers = [1.0 + i for i in range(replicas)]
    assert parts(strategy, total) == [sum(numbers)] * replicas
    assert parts(strategy, gathered) == [numbers] * replicas


@pytest.mark.parametrize("error", [NameError("name 'y' is not defined"), NotImplementedError("later")], ids=repr)
def test_other_errors_of_these_types_are_raised_unchanged(error):
    def replica(_: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        runs(replica, 1, 2, compiled=False)[1](X)
    assert caught.value is error


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@layouts
def test_blocks_of_ensure_compile_time_eval(devices, replicas, compiled):
    """On uneven layouts the message was about an axis name that the program does not have."""

    def function(x):
        with jax.ensure_compile_time_eval():
            scale = jnp.sum(jnp.ones(3))
        return mr.get_replica_context().all_reduce("SUM", jnp.sum(x) * scale)

    strategy, run = runs(function, devices, replicas, compiled=compiled)
    expected = 3.0 * float(jnp.sum(X)) * replicas
    assert float(strategy.experimental_local_results(run(X))[0]) == expected
    strategy, run = runs(function, devices, replicas, compiled=compiled)
    with jax.ensure_compile_time_eval():
        if replicas % devices == 0:
            assert float(strategy.experimental_local_results(run(X))[0]) == expected
        else:
            with pytest.raises(ContextError, match="run was called in a block of jax.ensure_compile_time_eval"):
                run(X)
