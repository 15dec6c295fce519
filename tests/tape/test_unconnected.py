"""A variable on which a target does not depend has no gradient: None in eager and in compiled code."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import mirrored as mr

# The bodies take two values and return two results, of which the first depends on the first value only.


def called(v: Any, w: Any) -> Any:
    return jax.jit(lambda a, b: (a * a, b * b))(v, w)


def rematerialized(v: Any, w: Any) -> Any:
    return jax.checkpoint(lambda a, b: (jnp.sin(a), jnp.sin(b)))(v, w)


def scanned(v: Any, w: Any) -> Any:
    (a, b), (each, _) = lax.scan(lambda c, x: ((c[0] * v * x, c[1] * w * x), c), (1.0, 1.0), jnp.ones(3))
    return a + jnp.sum(each), b


def counted(v: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, c: (c[0] * v, jnp.sin(c[1]) * w), (1.0, 1.0))


def branched(v: Any, w: Any) -> Any:
    return lax.cond(jnp.sum(jnp.ones(2)) > 1, lambda a, b: (a * a, b * b), lambda a, b: (a, b), v, w)


@jax.custom_jvp
def squares(v: Any, w: Any) -> Any:
    return v * v, w * w


squares.defjvp(lambda values, tangents: (squares(*values), tuple(2 * x * dx for x, dx in zip(values, tangents))))  # noqa: B905


@jax.custom_vjp
def cubes(v: Any, w: Any) -> Any:
    return v**3, w**3


cubes.defvjp(
    lambda v, w: (cubes(v, w), (v, w)),
    lambda values, given: tuple(3 * x * x * g for x, g in zip(values, given)),  # noqa: B905
)


def custom_jvp(v: Any, w: Any) -> Any:
    return squares(v, w)


def custom_vjp(v: Any, w: Any) -> Any:
    return cubes(v, w)


def custom_in_scan(v: Any, w: Any) -> Any:
    return lax.scan(lambda c, _: (squares(c[0] * v, c[1] * w), None), (1.0, 1.0), length=2)[0]


def nested(v: Any, w: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        return jax.jit(lambda c: lax.cond(x > 0, lambda a, b: cubes(a * v, b), lambda a, b: (a, b * w), *c))(carry), x

    return lax.scan(jax.checkpoint(step), (1.0, 1.0), jnp.arange(3.0))[0]


def gathered(v: Any, w: Any) -> Any:
    """The index is an integer, through which no gradient flows."""
    index = jnp.asarray(w, jnp.int32) % 2
    return jnp.stack([v, v * 2.0])[index], w


def stopped(v: Any, w: Any) -> Any:
    return jax.jit(lambda a, b: (a * lax.stop_gradient(b), b))(v, w)


BODIES = {
    one.__name__: one
    for one in (
        called,
        rematerialized,
        scanned,
        counted,
        branched,
        custom_jvp,
        custom_in_scan,
        nested,
        gathered,
        stopped,
    )
}
FORMS = ("eager", "tape inside", "tape around", "run of a function")
LAYOUTS = {"none": None, "1/1": (1, 1), "2/1": (1, 2), "2/2": (2, 2), "4/2": (2, 4)}


def known(gradients: Any) -> list[bool]:
    return [gradient is not None for gradient in gradients]


def gradients_of(body: Any, form: str, layout: tuple[int, int] | None, **options: Any) -> tuple[Any, Any]:
    """Returns the gradients of the body's two results by two variables."""
    strategy = (
        None if layout is None else mr.MirroredStrategy([f"CPU:{i}" for i in range(layout[0])], num_replicas=layout[1])
    )
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        v, w = mr.Variable(2.0), mr.Variable(3.0)

    def call() -> Any:
        return body(v.read_value(), w.read_value())

    inner = mr.function(call) if form == "run of a function" else call

    def work() -> Any:
        return call() if strategy is None else strategy.reduce("MEAN", strategy.run(inner), axis=None)

    forward = mr.function(work) if form == "tape around" else work

    def step() -> Any:
        with mr.GradientTape(persistent=True) as tape:
            first, second = forward()
        return [tape.gradient(one, [v, w], **options) for one in (first, second)]

    return tuple((mr.function(step) if form == "tape inside" else step)())


CASES = [
    pytest.param(LAYOUTS[layout], form, id=f"{layout}-{form}")
    for layout in LAYOUTS
    for form in FORMS
    if layout != "none" or form != "run of a function"
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(("layout", "form"), CASES)
@pytest.mark.first(4)
def test_each_result_has_a_gradient_to_its_own_value_only(body: Any, layout: Any, form: str) -> None:
    first, second = gradients_of(body, form, layout)
    assert (known(first), known(second)) == ([True, False], [False, True])


@pytest.mark.parametrize("form", ["eager", "tape inside"])
def test_a_custom_vjp_rule_gives_a_gradient_to_each_argument(form: str) -> None:
    first, second = gradients_of(lambda v, w: cubes(v, w), form, None)
    assert [[float(one) for one in gradients] for gradients in (first, second)] == [[12.0, 0.0], [0.0, 27.0]]


@pytest.mark.parametrize("form", ["eager", "tape inside", "tape around"])
@pytest.mark.first(2)
def test_zero_instead_of_none(form: str) -> None:
    first, second = gradients_of(scanned, form, (2, 2), unconnected_gradients="zero")
    assert [[float(one) > 0.0 for one in gradients] for gradients in (first, second)] == [[True, False], [False, True]]


def test_a_carry_that_moves_reaches_every_place() -> None:
    """The number of iterations counts as unknown: the second carry is the first value at first, later the second."""

    def moved(v: Any, w: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: (c[0] + c[1], c[2], w), (v, v, v))[:2]

    first, second = gradients_of(moved, "eager", None)
    assert [None if one is None else float(one) for one in (*first, *second)] == [3.0, 1.0, 0.0, 1.0]


def test_a_value_in_a_mutable_reference_reaches_its_reads() -> None:
    @jax.jit
    def stored(v: Any, w: Any) -> Any:
        reference = jax.new_ref(jnp.zeros(()))
        reference[...] = v * 2.0
        return reference[...], w * 3.0

    first, second = gradients_of(stored, "eager", None)
    assert (float(first[0]), float(second[1])) == (2.0, 3.0)


# Collectives: every replica runs the backward pass of each, but a variable that the target does not depend on has none.


def reduced(v: Any, w: Any) -> Any:
    total = mr.get_replica_context().all_reduce("SUM", w * 1.0)
    return v * v, total * w


def reduced_together(v: Any, w: Any) -> Any:
    return tuple(mr.get_replica_context().all_reduce("SUM", [v * v, w * w]))


def merged(v: Any, w: Any) -> Any:
    return mr.get_replica_context().merge_call(lambda _, a, b: (a, b), args=(v * v, w * w))


@pytest.mark.parametrize("body", [reduced, reduced_together, merged])
@pytest.mark.parametrize("layout", ["1/1", "2/1", "2/2", "4/2"])
@pytest.mark.parametrize("form", ["tape around run", "tape in replicas", "compiled"])
@pytest.mark.first(18)
def test_through_collectives(body: Any, layout: str, form: str) -> None:
    devices, replicas = LAYOUTS[layout] or (1, 1)
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)
    with strategy.scope():
        v, w = mr.Variable(2.0), mr.Variable(3.0)
    if form == "tape around run":
        first, second = gradients_of(lambda v, w: body(v, w), "eager", (devices, replicas))
        assert (known(first), known(second)) == ([True, False], [False, True])
        return

    def replica() -> Any:
        with mr.GradientTape(persistent=True) as tape:
            results = body(v.read_value(), w.read_value())
        return [tape.gradient(one, [v, w]) for one in results]

    def step() -> Any:
        return strategy.run(replica)

    first, second = (mr.function(step) if form == "compiled" else step)()
    assert (known(first), known(second)) == ([True, False], [False, True])


def test_a_replica_whose_target_does_not_use_a_collective_gives_the_gradient_of_the_others() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(2.0)

    def replica() -> Any:
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            total = context.all_reduce("SUM", v * 1.0)
            target = total * 5.0 if context.replica_id_in_sync_group == 0 else jnp.ones(())
        return tape.gradient(target, v)

    assert [float(one) for one in strategy.local_results(strategy.run(replica))] == [5.0, 5.0]


# Assignments.


def assigned_before(v: Any, w: Any) -> Any:
    v.assign(w * 3.0)
    return v * 2.0, w * 1.0


def assigned_after(v: Any, w: Any) -> Any:
    first = v * 2.0
    w.assign(first)
    return first, w * 1.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("body", [assigned_before, assigned_after])
@pytest.mark.parametrize("aggregation", ["NONE", "MEAN"])
@pytest.mark.parametrize("layout", ["1/1", "2/1", "2/2", "4/2"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.first(5)
def test_after_an_assignment(body: Any, aggregation: str, layout: str, form: str) -> None:
    devices, replicas = LAYOUTS[layout] or (1, 1)
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)
    with strategy.scope():
        v, w = (mr.Variable(start, aggregation=aggregation) for start in (2.0, 3.0))
    inner = mr.function(lambda: body(v, w)) if form == "run of a function" else lambda: body(v, w)

    def work() -> Any:
        return strategy.reduce("MEAN", strategy.run(inner), axis=None)

    forward = mr.function(work) if form == "tape around" else work

    def step() -> Any:
        with mr.GradientTape(persistent=True) as tape:
            first, second = forward()
        return [tape.gradient(one, [v, w]) for one in (first, second)]

    first, second = (mr.function(step) if form == "tape inside" else step)()
    assert (known(first), known(second)) == ([True, False], [False, True])
