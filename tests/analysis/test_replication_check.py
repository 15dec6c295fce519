"""The replication check: which programs keep values replicated, which do not, and how the check explains those."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mirrored.analysis.replication_check import Origin, ReplicationCheck, check_replication
from mirrored.topology.device_assignment import AXIS

WEIGHTS, BATCH, NUMBER = "variable 'w'", "the batch (argument 0, 'x')", "replica_id_in_sync_group"
Body = Callable[[Any, Any], Any]

W = np.ones((3, 2), np.float32)
X = np.ones((4, 3), np.float32)


def study(body: Body, devices: int = 4) -> tuple[ReplicationCheck, list[Any]]:
    closed = jax.make_jaxpr(body, axis_env=[(AXIS, devices)])(W, X)
    return check_replication(closed, [Origin(WEIGHTS, False), Origin(BATCH, True)]), list(closed.jaxpr.outvars)


def loss(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def gradient(w: Any, x: Any) -> Any:
    return lax.pmean(jax.grad(loss)(w, x), AXIS)


def momentum(w: Any, x: Any) -> Any:
    return 0.9 * w + gradient(w, x)


def weight_decay(w: Any, x: Any) -> Any:
    return w - 0.1 * (gradient(w, x) + 1e-4 * w)


def moving_average(w: Any, x: Any) -> Any:
    return 0.99 * w + 0.01 * lax.pmean(jnp.mean(x) * jnp.ones_like(w), AXIS)


def clipped_by_global_norm(w: Any, x: Any) -> Any:
    g = gradient(w, x)
    norm = jnp.sqrt(jnp.sum(g**2))
    return w - g * jnp.where(norm > 1.0, 1.0 / norm, 1.0)


def scan_of_reduced_carries(w: Any, x: Any) -> Any:
    def turn(carry: Any, row: Any) -> Any:
        return carry - lax.pmean(jax.grad(loss)(carry, row[None]), AXIS), jnp.sum(row)

    return lax.scan(turn, w, x)[0]


def cond_on_reduced(w: Any, x: Any) -> Any:
    return lax.cond(lax.psum(jnp.sum(x), AXIS) > 0, lambda a: a * 2, lambda a: a, w)


def while_on_reduced(w: Any, x: Any) -> Any:
    total = lax.psum(jnp.sum(x), AXIS)
    return lax.while_loop(lambda c: jnp.sum(c) < total, lambda c: c * 2, w)


def gathered(w: Any, x: Any) -> Any:
    return w + jnp.sum(lax.all_gather(x, AXIS))


def maximum(w: Any, x: Any) -> Any:
    return w + lax.pmax(jnp.max(x), AXIS) - lax.pmin(jnp.min(x), AXIS)


def under_jit(w: Any, x: Any) -> Any:
    return jax.jit(momentum)(w, x)


def under_checkpoint(w: Any, x: Any) -> Any:
    return w - lax.pmean(jax.grad(lambda v: jax.checkpoint(loss)(v, x))(w), AXIS)


def through_custom_rules(w: Any, x: Any) -> Any:
    return jax.nn.relu(w) + jax.nn.gelu(gradient(w, x))


def shared_dropout(w: Any, x: Any) -> Any:
    return w * jax.random.bernoulli(jax.random.key(0), 0.5, w.shape)


def summed_over_groups_of_everything(w: Any, x: Any) -> Any:
    return lax.psum(x[:3, :2], (AXIS,)) + w


def carried_beside_the_batch(w: Any, x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, c: (c[0] * 0.9, c[1] + x), (w, x))[0]


def inner_vmap(w: Any, x: Any) -> Any:
    return w - jnp.sum(jax.vmap(lambda row: lax.psum(row, AXIS))(x))


def scatter_and_gather_back(w: Any, x: Any) -> Any:
    part = lax.psum_scatter(jnp.ravel(jax.grad(loss)(w, x))[:4], AXIS, tiled=True)
    return w + jnp.sum(lax.all_gather(part, AXIS, tiled=True))


def solved_by_conjugate_gradients(w: Any, x: Any) -> Any:
    curvature = lambda v: lax.psum(x.T @ (x @ v), AXIS) + v  # noqa: E731
    return w - jax.scipy.sparse.linalg.cg(curvature, gradient(w, x), maxiter=3)[0]


def jitted_pair(w: Any, x: Any) -> Any:
    return jax.jit(lambda a, b: (a * 2, b * 2))(w, x)[0]


SYNCHRONOUS = [
    momentum,
    weight_decay,
    moving_average,
    clipped_by_global_norm,
    scan_of_reduced_carries,
    cond_on_reduced,
    while_on_reduced,
    gathered,
    maximum,
    under_jit,
    under_checkpoint,
    through_custom_rules,
    shared_dropout,
    summed_over_groups_of_everything,
    carried_beside_the_batch,
    inner_vmap,
    scatter_and_gather_back,
    solved_by_conjugate_gradients,
    jitted_pair,
]


@pytest.mark.parametrize("body", SYNCHRONOUS, ids=lambda body: body.__name__)
def test_synchronous_program_is_proven(body: Body) -> None:
    analysis, (result,) = study(body)
    assert not analysis.varies(result)
    assert analysis.same([result])
    assert analysis.explain([result]) == ""


# Programs whose copies diverge: (body, label of the origin, last operation).


def unreduced_gradient(w: Any, x: Any) -> Any:
    return w - jax.grad(loss)(w, x)


def number_of_the_replica(w: Any, x: Any) -> Any:
    return w * lax.axis_index(AXIS)


def loss_added_after_reduction(w: Any, x: Any) -> Any:
    return w - (gradient(w, x) + loss(w, x))


def drifting_scan_carry(w: Any, x: Any) -> Any:
    return lax.scan(lambda c, row: (c + jnp.sum(row), None), w, x)[0]


def drifting_second_carry(w: Any, x: Any) -> Any:
    def turn(carry: Any, row: Any) -> Any:
        a, b, c = carry
        return (b, c, c + jnp.sum(row)), None

    return lax.scan(turn, (w, w, w), x)[0][0]


def scanned_rows(w: Any, x: Any) -> Any:
    return w + jnp.sum(lax.scan(lambda c, row: (c, row * 2), 0.0, x)[1])


def cond_on_batch(w: Any, x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, lambda a: a * 2, lambda a: a, w)


def cond_into_batch(w: Any, x: Any) -> Any:
    return lax.cond(jnp.sum(w) > 0, lambda a, b: a * jnp.sum(b), lambda a, b: a, w, x)


def while_on_batch(w: Any, x: Any) -> Any:
    limit = jnp.sum(x)
    return lax.while_loop(lambda c: jnp.sum(c) < limit, lambda c: c * 2, w)


def while_on_a_drifting_counter(w: Any, x: Any) -> Any:
    step = jnp.sum(x)
    return lax.while_loop(lambda c: c[1] < 9.0, lambda c: (c[0] * 2, c[1] + step), (w, 0.0))[0]


def dropout_by_number(w: Any, x: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index(AXIS))
    return w * jax.random.bernoulli(key, 0.5, w.shape)


def permuted(w: Any, x: Any) -> Any:
    return w + jnp.sum(lax.ppermute(x, AXIS, [(0, 1), (1, 0)]))


def permuted_weights(w: Any, x: Any) -> Any:
    return lax.ppermute(w, AXIS, [(0, 1)])


def reduced_within_groups(w: Any, x: Any) -> Any:
    return w + lax.psum(jnp.sum(x), AXIS, axis_index_groups=[[0, 1], [2, 3]])


def reduced_then_local_added(w: Any, x: Any) -> Any:
    return lax.psum(w, AXIS) + jnp.sum(x)


def argmax_of_batch(w: Any, x: Any) -> Any:
    return w + jnp.argmax(jnp.sum(x, 0))


def unreduced_batch_norm(w: Any, x: Any) -> Any:
    mean, variance = jnp.mean(x), jnp.var(x)
    return 0.9 * w + 0.1 * (mean * lax.rsqrt(variance + 1e-3))


def masked_by_batch(w: Any, x: Any) -> Any:
    return jnp.where(x[:3, :2] > 0, w, 0.0)


def from_a_callback(w: Any, x: Any) -> Any:
    return jax.pure_callback(lambda a: np.asarray(a), jax.ShapeDtypeStruct(W.shape, jnp.float32), w)


def indexed_by_batch(w: Any, x: Any) -> Any:
    return w * w[jnp.int32(x[0, 0])]


def scattered_by_batch(w: Any, x: Any) -> Any:
    return w.at[jnp.int32(x[0, 0])].set(1.0)


def reduce_scattered(w: Any, x: Any) -> Any:
    return w + jnp.sum(lax.psum_scatter(x, AXIS))


def exchanged(w: Any, x: Any) -> Any:
    return w + jnp.sum(lax.all_to_all(x, AXIS, 0, 0))


def hidden_in_jit(w: Any, x: Any) -> Any:
    return jax.jit(lambda a, b: jax.jit(unreduced_gradient)(a, b) * 2)(w, x)


def hidden_in_checkpoint(w: Any, x: Any) -> Any:
    return jax.grad(lambda v: jax.checkpoint(loss)(v, x))(w)


def hidden_number(w: Any, x: Any) -> Any:
    return jax.jit(lambda a: a * lax.axis_index(AXIS))(w)


def hidden_in_a_solver(w: Any, x: Any) -> Any:
    return lax.custom_linear_solve(lambda v: v * (lax.axis_index(AXIS) + 1.0), w, lambda f, b: f(b), symmetric=True)


def hidden_in_a_composite(w: Any, x: Any) -> Any:
    return lax.composite(lambda v: v * (lax.axis_index(AXIS) + 1.0), "scaled")(w)


def clipped_before_reduction(w: Any, x: Any) -> Any:
    norm = jnp.sqrt(jnp.sum(jax.grad(loss)(w, x) ** 2))
    return w - gradient(w, x) / norm


def custom_gradient_local(w: Any, x: Any) -> Any:
    return w - jax.nn.relu(jnp.mean(x))


DRIFTING = [
    (unreduced_gradient, BATCH, "sub"),
    (number_of_the_replica, NUMBER, "mul"),
    (loss_added_after_reduction, BATCH, "sub"),
    (drifting_scan_carry, BATCH, "scan"),
    (drifting_second_carry, BATCH, "scan"),
    (scanned_rows, BATCH, "add"),
    (cond_on_batch, BATCH, "cond with a varying branch index"),
    (cond_into_batch, BATCH, "cond"),
    (while_on_batch, BATCH, "while with a varying number of iterations"),
    (while_on_a_drifting_counter, BATCH, "while with a varying number of iterations"),
    (dropout_by_number, NUMBER, "mul"),
    (permuted, BATCH, "add"),
    (permuted_weights, "ppermute gives every device its own part", "ppermute"),
    (reduced_within_groups, BATCH, "add"),
    (reduced_then_local_added, BATCH, "add"),
    (argmax_of_batch, BATCH, "add"),
    (unreduced_batch_norm, BATCH, "add"),
    (masked_by_batch, BATCH, "select_n"),
    (from_a_callback, "pure_callback, whose result is unknown", "pure_callback"),
    (indexed_by_batch, BATCH, "mul"),
    (scattered_by_batch, BATCH, "scatter"),
    (reduce_scattered, BATCH, "add"),
    (exchanged, BATCH, "add"),
    (hidden_in_jit, BATCH, "mul"),
    (hidden_in_checkpoint, BATCH, "transpose"),
    (hidden_number, NUMBER, "mul"),
    (hidden_in_a_solver, NUMBER, "mul"),
    (hidden_in_a_composite, "an operation inside composite", "composite scaled"),
    (clipped_before_reduction, BATCH, "sub"),
    (custom_gradient_local, BATCH, "sub"),
]


@pytest.mark.parametrize(("body", "origin", "end"), DRIFTING, ids=lambda case: getattr(case, "__name__", None))
def test_drifting_program_is_refused_with_its_path(body: Body, origin: str, end: str) -> None:
    analysis, (result,) = study(body)
    assert analysis.varies(result)
    assert not analysis.same([result])
    path = analysis.path(result)
    assert path[0].what == origin
    assert path[-1].what.split(", ")[-1] == end
    assert 2 <= len(path) <= 8
    assert all(step.where is None or step.where.startswith("test_replication_check.py:") for step in path)
    assert path[-1].where is not None
    assert analysis.explain([result]).splitlines()[0].strip().startswith(origin)


def test_primitive_that_keeps_its_jaxpr_in_an_object_hides_no_source() -> None:
    def body(w: Any, x: Any) -> Any:
        root = lax.custom_root(lambda v: v - lax.axis_index(AXIS), 0.0, lambda f, v: v - f(v), lambda g, y: y)
        return w + root

    analysis, (result,) = study(body)
    assert analysis.varies(result)
    assert not analysis.same([result])
    assert analysis.path(result)[-1].what.split(", ")[-1] == "add"


def test_path_names_the_lines_of_user_code() -> None:
    analysis, (result,) = study(reduced_then_local_added)
    line = reduced_then_local_added.__code__.co_firstlineno + 1
    assert analysis.explain([result]) == (
        f"   {BATCH} f32[4,3]\n-> reduce_sum, add f32[3,2] (test_replication_check.py:{line})"
    )


def test_long_path_is_cut_in_the_middle() -> None:
    def body(w: Any, x: Any) -> Any:
        w = w + jnp.sum(x)
        w = jnp.sin(w)
        w = jnp.cos(w)
        w = jnp.tanh(w)
        w = jnp.exp(w)
        w = jnp.sin(w)
        w = jnp.cos(w)
        w = jnp.tanh(w)
        return jnp.exp(w)

    analysis, (result,) = study(body)
    path = [step.what for step in analysis.path(result)]
    assert path == [BATCH, "reduce_sum, add", "sin", "cos", "... 3 more ...", "cos", "tanh", "exp"]


def test_literal_and_passed_through_inputs() -> None:
    closed = jax.make_jaxpr(lambda w, x: (1.0, w, x), axis_env=[(AXIS, 4)])(W, X)
    analysis = check_replication(closed, [Origin(WEIGHTS, False), Origin(BATCH, True)])
    assert [analysis.varies(out) for out in closed.jaxpr.outvars] == [False, False, True]
    assert [step.what for step in analysis.path(closed.jaxpr.outvars[2])] == [BATCH]


def test_constants_are_the_same_everywhere() -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    analysis, (result,) = study(lambda w, x: w + jnp.asarray(table))
    assert not analysis.varies(result)


def test_one_device_without_an_axis_never_varies() -> None:
    closed = jax.make_jaxpr(unreduced_gradient)(W, X)
    analysis = check_replication(closed, [Origin(WEIGHTS, False), Origin(BATCH, True)], axis=None)
    assert analysis.same(closed.jaxpr.outvars)


def test_other_axes_do_not_make_a_value_equal() -> None:
    def body(w: Any, x: Any) -> Any:
        return w + lax.psum(jnp.sum(x), "model"), w + lax.axis_index("model"), w + lax.psum(jnp.sum(x), (AXIS, "model"))

    closed = jax.make_jaxpr(body, axis_env=[(AXIS, 4), ("model", 2)])(W, X)
    analysis = check_replication(closed, [Origin(WEIGHTS, False), Origin(BATCH, True)])
    assert [analysis.varies(out) for out in closed.jaxpr.outvars] == [True, False, False]


def test_mutable_references_are_not_trusted() -> None:
    def body(w: Any, x: Any) -> Any:
        ref = jax.new_ref(w)
        ref[...] = x[:3, :2]
        return ref[...]

    analysis, (result,) = study(body)
    assert analysis.varies(result)


def test_the_proof_of_a_transformer_step_is_quick_beside_its_trace() -> None:
    def block(x: Any, w: Any) -> Any:
        q, k, v = x @ w, x @ w.T, jnp.tanh(x @ w)
        p = jax.nn.softmax(q @ k.T)
        h = jax.nn.gelu(p @ v + x)
        return (h - jnp.mean(h)) * lax.rsqrt(jnp.var(h) + 1e-5)

    def whole(w: Any, x: Any) -> Any:
        for _ in range(30):
            x = block(x, w)
        return jnp.mean(x**2)

    def body(w: Any, x: Any) -> Any:
        return w - lax.pmean(jax.grad(whole)(w, x), AXIS)

    start = time.perf_counter()
    closed = jax.make_jaxpr(body, axis_env=[(AXIS, 4)])(np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))
    tracing = time.perf_counter() - start
    assert len(closed.jaxpr.eqns) > 2_500
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        analysis = check_replication(closed, [Origin(WEIGHTS, False), Origin(BATCH, True)])
        assert analysis.same([closed.jaxpr.outvars[0]])
        seconds.append(time.perf_counter() - start)
    # It takes about a thirtieth of this limit on an idle machine.
    assert min(seconds) < tracing / 3


# Several virtual replicas, traced one after another into one body.


def study_locals(
    replica: Callable[[Any, Any, int], Any], local: int = 2, devices: int = 4
) -> tuple[ReplicationCheck, Any]:
    """Traces virtual replicas, each with a batch. `replica` returns its operands for the merge and a final function."""

    def body(w: Any, *shares: Any) -> Any:
        brought, finishes = zip(*(replica(w, x, k) for k, x in enumerate(shares)), strict=True)
        merged = lax.psum(sum(brought[1:], brought[0]), AXIS) if devices > 1 else sum(brought[1:], brought[0])
        return [finish(merged) for finish in finishes]

    axes = [(AXIS, devices)] if devices > 1 else []
    closed = jax.make_jaxpr(body, axis_env=axes)(W, *[X] * local)
    shares = [Origin(f"the batch, share of local replica {k}", devices > 1) for k in range(local)]
    inputs = [Origin(WEIGHTS, False), *shares]
    return check_replication(closed, inputs, axis=AXIS if devices > 1 else None), closed.jaxpr.outvars


def plain_update(w: Any, x: Any, k: int) -> Any:
    return jax.grad(loss)(w, x), lambda g: 0.9 * w - g


def jitted_update(w: Any, x: Any, k: int) -> Any:
    helper = jax.jit(lambda a, g: jnp.where(g > 0, a, a - g))  # a new function each time, so a new jaxpr object
    return jax.grad(loss)(w, x), lambda g: helper(w, g)


def jitted_update_beside_local_values(w: Any, x: Any, k: int) -> Any:
    helper = jax.jit(lambda a, g, own: (a - g, own * 2))
    return jax.grad(loss)(w, x), lambda g: helper(w, g, x)[0]


def scanned_update(w: Any, x: Any, k: int) -> Any:
    return jax.grad(loss)(w, x), lambda g: lax.scan(lambda c, _: (c * 0.9 - g, None), w, None, length=3)[0]


def branching_update(w: Any, x: Any, k: int) -> Any:
    return jax.grad(loss)(w, x), lambda g: lax.cond(jnp.sum(g) > 0, lambda a: a - g, lambda a: a, w)


def update_with_table(w: Any, x: Any, k: int) -> Any:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    return jax.grad(loss)(w, x), lambda g: w - g * jnp.asarray(table)


def custom_rule_update(w: Any, x: Any, k: int) -> Any:
    return jax.grad(loss)(w, x), lambda g: jax.nn.relu(jax.nn.gelu(w - g))


def seeded_update(w: Any, x: Any, k: int) -> Any:
    return jax.grad(loss)(w, x), lambda g: w - g * jax.random.normal(jax.random.key(7), w.shape)


def passing_jit_update(w: Any, x: Any, k: int) -> Any:
    return jax.grad(loss)(w, x), lambda g: jax.jit(lambda a, b: (b, a, 1.0))(x, w - g)[0]


CONGRUENT = [
    plain_update,
    jitted_update,
    jitted_update_beside_local_values,
    scanned_update,
    branching_update,
    update_with_table,
    custom_rule_update,
    seeded_update,
    passing_jit_update,
]


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("replica", CONGRUENT, ids=lambda replica: replica.__name__)
def test_local_replicas_compute_one_value(replica: Callable[[Any, Any, int], Any], devices: int) -> None:
    analysis, results = study_locals(replica, local=3, devices=devices)
    assert not any(map(analysis.varies, results))
    assert analysis.same(results)
    assert analysis.explain(results) == ""


def by_local_number(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: w - g * float(k)


def by_own_share(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: w - g * jnp.mean(x)


def own_share_in_jit(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: jax.jit(lambda a, b: a - jnp.mean(b))(w, x)


def another_operation(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: jnp.sin(g) if k else jnp.cos(g)


def another_table(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: g * jnp.asarray(np.full((3, 2), k, np.float32))


def called_back(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: jax.pure_callback(lambda a: np.asarray(a), jax.ShapeDtypeStruct((3, 2), "f4"), g)


def negative_zero(w: Any, x: Any, k: int) -> Any:
    return jnp.ones_like(w), lambda g: g / (-0.0 if k else 0.0)


def own_share_through(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any, int], Any]:
    return lambda w, x, k: (jnp.ones_like(w), lambda g: w + call(jnp.sum(x), jnp.sum(w)))


@jax.custom_vjp
def straight_through(a: Any) -> Any:
    return a


straight_through.defvjp(lambda a: (a, ()), lambda _, g: (jnp.clip(g, -1, 1),))


@jax.custom_jvp
def straight_forward(a: Any) -> Any:
    return a


straight_forward.defjvp(lambda primals, tangents: (primals[0], tangents[0]))

# Calls, loops and branches that return the first argument unchanged: the result has the value number of the argument.
PASSING: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda a, b: jax.jit(lambda a, b: a)(a, b),
    "nested jit": lambda a, b: jax.jit(lambda a, b: jax.jit(lambda a, b: (b, a))(a, b)[1])(a, b),
    "jit that returns it twice, and a literal": lambda a, b: sum(jax.jit(lambda a, b: (3.0, a, b, a))(a, b)),
    "custom_vjp": lambda a, b: straight_through(a),
    "custom_jvp": lambda a, b: straight_forward(a),
    "checkpoint": lambda a, b: jax.checkpoint(lambda a, b: (b, a))(a, b)[1],
    "scan": lambda a, b: lax.scan(lambda c, _: ((c[0], c[0] + c[1]), c[0]), (a, b), None, length=2)[0][0],
    "scan of no iteration": lambda a, b: lax.scan(lambda c, _: (c, None), a, None, length=0)[0],
    "stacked by scan": lambda a, b: lax.scan(lambda c, _: (c, a), b, None, length=2)[1][1],
    "while": lambda a, b: lax.while_loop(lambda c: c[1] < 9, lambda c: (c[0], c[1] + 1), (a, b))[0],
    "condition of while": lambda a, b: lax.while_loop(lambda c: c[0], lambda c: (c[1], c[1]), (a > 0, b > 99))[0],
    "cond": lambda a, b: lax.cond(b > 0, lambda a, b: a, lambda a, b: a, a, b),
    "index of cond": lambda a, b: lax.cond(jax.jit(lambda a, b: a)(a > 0, b), lambda: b, lambda: 2 * b),
    "vmap": lambda a, b: jax.vmap(straight_through)(a[None])[0],
    "optimization_barrier": lambda a, b: lax.optimization_barrier((b, a))[1],
}


@pytest.mark.parametrize("call", PASSING.values(), ids=PASSING)
def test_a_call_that_returns_its_argument_unchanged_is_explained(call: Callable[[Any, Any], Any]) -> None:
    analysis, results = study_locals(own_share_through(call), devices=1)
    assert not analysis.same(results)
    assert "share of local replica 0 on one replica, the batch, share of local replica 1" in analysis.explain(results)
    between_devices, (result,) = study(lambda w, x: w + call(jnp.sum(x), jnp.sum(w)))
    assert between_devices.varies(result)
    assert BATCH in between_devices.path(result)[0].what
    analysis, results = study_locals(lambda w, x, k: (w, lambda g: g + call(jnp.sum(g), jnp.sum(w))), devices=1)
    assert analysis.same(results)


DIVERGENT = [
    (by_local_number, "the constant 0.0 on one replica, the constant 1.0 on another replica of the same device"),
    (by_own_share, "share of local replica 0 on one replica, the batch, share of local replica 1 on another"),
    (own_share_in_jit, "share of local replica 0 on one replica, the batch, share of local replica 1 on another"),
    (another_operation, "cos f32[3,2]"),
    (another_table, "a constant of shape (3, 2), of which each replica has its own"),
    (called_back, "pure_callback f32[3,2]"),
    (negative_zero, "the constant 0.0 on one replica, the constant -0.0 on another replica of the same device"),
]


@pytest.mark.parametrize(("replica", "origin"), DIVERGENT, ids=lambda case: getattr(case, "__name__", None))
def test_local_replicas_that_diverge_are_refused(replica: Callable[[Any, Any, int], Any], origin: str) -> None:
    analysis, results = study_locals(replica, devices=1)
    assert not any(map(analysis.varies, results))
    assert not analysis.same(results)
    assert origin in analysis.explain(results).splitlines()[0]


def test_replica_that_reduced_only_over_devices_is_refused() -> None:
    def body(w: Any, x0: Any, x1: Any) -> Any:
        return [w - lax.psum(jnp.sum(x), AXIS) for x in (x0, x1)]

    closed = jax.make_jaxpr(body, axis_env=[(AXIS, 4)])(W, X, X)
    analysis = check_replication(closed, [Origin(WEIGHTS, False), Origin("own share", True), Origin("own share", True)])
    results = closed.jaxpr.outvars
    assert not any(map(analysis.varies, results))
    assert not analysis.same(results)
    path = analysis.divergence(results)
    assert path[0].what == "own share, of which each replica has its own"
    assert path[-1].what == "reduce_sum, psum, sub"


def test_one_local_replica_that_updates_by_its_share_is_found() -> None:
    analysis, results = study_locals(lambda w, x, k: (w, lambda g: g if k < 2 else g + jnp.sum(x)), local=3)
    assert not analysis.same(results)
    assert "share of local replica 2" in analysis.explain(results)


def test_inputs_of_equal_identity_are_one_value() -> None:
    closed = jax.make_jaxpr(lambda a, b, c: (a + 1, b + 1, c + 1))(1.0, 1.0, 1.0)
    inputs = [Origin("a", False, "w"), Origin("b", False, "w"), Origin("c", False)]
    a, b, c = closed.jaxpr.outvars
    analysis = check_replication(closed, inputs)
    assert analysis.same([a, b])
    assert not analysis.same([a, c])


@pytest.mark.parametrize(
    "separate", [lax.optimization_barrier, jax.device_put], ids=["optimization_barrier", "device_put"]
)
@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["at the top", "in jit"])
def test_an_operation_on_each_operand_on_its_own_keeps_the_others_replicated(separate: Any, inside: Any) -> None:
    analysis, (barred, own) = study(inside(lambda w, x: separate((w + 1, jnp.sum(x)))))
    assert not analysis.varies(barred)
    assert analysis.varies(own)
    assert BATCH in analysis.path(own)[0].what
