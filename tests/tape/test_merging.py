"""Tapes inside replicas that differentiate through merges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import TapeError
from mirrored.tape import GradientTape

LAYOUTS = {
    "two devices": {"devices": ["CPU:0", "CPU:1"]},
    "two on one device": {"devices": ["CPU:0"], "num_replicas": 2},
    "four on two devices": {"devices": ["CPU:0", "CPU:1"], "num_replicas": 4},
}


@pytest.fixture(params=LAYOUTS, ids=list(LAYOUTS))
def strategy(request):
    return mr.MirroredStrategy(**LAYOUTS[request.param])


@pytest.fixture(params=["eager", "compiled"])
def compiled(request):
    return request.param == "compiled"


def on_replicas(strategy, compiled, function):
    """Returns each result of `function(context, replica number from 1)` as a list over replicas."""

    def replica():
        context = mr.get_replica_context()
        return function(context, jnp.asarray(context.replica_id_in_sync_group, jnp.float32) + 1.0)

    run = (lambda: strategy.run(replica)) if not compiled else mr.function(lambda: strategy.run(replica))
    n = strategy.num_replicas_in_sync

    def values(result):
        local = strategy.local_results(result)
        return [np.asarray(one).tolist() for one in (local if len(local) == n else local * n)]

    return [values(result) for result in run()]


@pytest.mark.parametrize(("op", "scale"), [("SUM", 1.0), ("MEAN", None)])
@pytest.mark.first(6)
def test_gradient_of_a_reduction_is_the_reduced_upstream_gradient(strategy, compiled, op, scale):
    n = strategy.num_replicas_in_sync
    scale = scale or 1 / n

    def function(context, k):
        x = jnp.float32(42.0)
        with GradientTape() as tape:
            tape.watch(x)
            y = context.all_reduce(op, x) * (2 * k - 1)
        return y, tape.gradient(y, x)

    values, gradients = on_replicas(strategy, compiled, function)
    weights = [2.0 * k + 1 for k in range(n)]
    np.testing.assert_allclose(values, [42.0 * n * scale * weight for weight in weights])
    np.testing.assert_allclose(gradients, [sum(weights) * scale] * n)


@pytest.mark.first(3)
def test_gradient_of_a_gather_is_the_sum_of_the_slices(strategy, compiled):
    n = strategy.num_replicas_in_sync

    def function(context, k):
        x = jnp.array([[3.0], [5.0]]) * k
        with GradientTape() as tape:
            tape.watch(x)
            y = jnp.sum(context.all_gather(x, axis=1) * k)
        return (tape.gradient(y, x),)

    (gradients,) = on_replicas(strategy, compiled, function)
    total = sum(range(1, n + 1))
    assert gradients == [[[total], [total]]] * n


@pytest.mark.first(3)
def test_a_merge_that_is_not_linear_and_its_second_derivative(strategy, compiled):
    def merged(strategy, value):
        return strategy.reduce("SUM", value, axis=None) ** 2

    def function(context, k):
        x = k * 1.0
        with GradientTape() as outer:
            outer.watch(x)
            with GradientTape() as inner:
                inner.watch(x)
                y = context.merge_call(merged, args=(x * x,))
            first = inner.gradient(y, x)
        return y, first, outer.gradient(first, x)

    values, first, second = on_replicas(strategy, compiled, function)
    ids = np.arange(1.0, strategy.num_replicas_in_sync + 1)
    total, n = np.sum(ids**2), len(ids)
    np.testing.assert_allclose(values, total**2)
    # y_r = s^2 for every r, s = sum of x_q^2; each replica's gradient is that of the sum of all y over its own x.
    np.testing.assert_allclose(first, n * 4 * total * ids, rtol=1e-5)
    # Each replica's own tape adds up, for its x, the derivatives of every replica's gradient.
    jacobian = n * (4 * total * np.eye(n) + 8 * np.outer(ids, ids))
    np.testing.assert_allclose(second, jacobian.sum(0), rtol=1e-5)


def test_a_persistent_tape_through_a_reduction(strategy, compiled):
    n = strategy.num_replicas_in_sync

    def function(context, k):
        x = k * 1.0
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = context.all_reduce("SUM", x * x)
            z = y * y
        return tape.gradient(y, x), tape.gradient(z, x), tape.gradient(z, y)

    of_y, of_z, z_of_y = on_replicas(strategy, compiled, function)
    ids = np.arange(1.0, n + 1)
    total = np.sum(ids**2)
    np.testing.assert_allclose(of_y, n * 2 * ids)
    np.testing.assert_allclose(of_z, n * 2 * total * 2 * ids)
    np.testing.assert_allclose(z_of_y, [2 * total] * n)


@pytest.mark.first(2)
def test_a_persistent_tape_differentiates_the_gradient_of_a_merge(strategy, compiled):
    def merged(strategy, value):
        return strategy.reduce("SUM", value, axis=None) ** 3

    def function(context, k):
        x = k * 1.0
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = context.merge_call(merged, args=(x,))
            first = tape.gradient(y, x)
        return first, tape.gradient(first, x)

    first, second = on_replicas(strategy, compiled, function)
    n = strategy.num_replicas_in_sync
    total = n * (n + 1) / 2
    np.testing.assert_allclose(first, [n * 3 * total**2] * n)
    np.testing.assert_allclose(second, [n * n * 6 * total] * n)


@pytest.mark.parametrize("outside", [True, False])
def test_a_tape_of_one_replica_is_used_by_that_replica(strategy, outside):
    tapes = {}

    def record():
        context = mr.get_replica_context()
        x = jnp.float32(3.0)
        with GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = context.all_reduce("SUM", x * x)
        tapes[int(context.replica_id_in_sync_group)] = lambda: tape.gradient(y, x)

    strategy.run(record)
    own = strategy.run(lambda: tapes[int(mr.get_replica_context().replica_id_in_sync_group)]())
    assert [float(one) for one in strategy.local_results(own)] == [6.0 * len(tapes)] * len(tapes)
    with pytest.raises(TapeError, match="the tape of replica 1 has recorded ReplicaContext.all_reduce"):
        tapes[1]() if outside else strategy.run(lambda: tapes[1]())


def test_every_replica_takes_the_way_back_through_a_merge(strategy, compiled):
    n = strategy.num_replicas_in_sync

    def function(context, k):
        x, w = k * 1.0, k * 1.0
        with GradientTape() as tape:
            tape.watch([x, w])
            reduced = context.all_reduce("SUM", x)
            y = w * 3.0  # The reduced value is not used.
        of_x, of_w = tape.gradient(y, [x, w], unconnected_gradients="zero")
        return of_x, of_w, reduced

    of_x, of_w, _ = on_replicas(strategy, compiled, function)
    assert of_x == [0.0] * n
    assert of_w == [3.0] * n


def test_a_tape_per_replica_over_mirrored_variables(strategy, compiled):
    with strategy.scope():
        v, unused = mr.Variable(2.0), mr.Variable(1.0)

    def function(context, k):
        with GradientTape() as tape:
            y = v * v * k
        of_v, nothing = tape.gradient(y, [v, unused])
        assert nothing is None
        assert tape.watched_variables()[0] is v
        return (of_v,)

    (gradients,) = on_replicas(strategy, compiled, function)
    assert gradients == [4.0 * (k + 1) for k in range(strategy.num_replicas_in_sync)]


@pytest.mark.first(3)
def test_a_tape_around_run_sees_inside_it(strategy, compiled):
    with strategy.scope():
        v = mr.Variable(2.0)
    n = strategy.num_replicas_in_sync

    def step():
        x = jnp.float32(3.0)
        with GradientTape(persistent=True) as tape:
            tape.watch(x)

            def replica(x):
                k = jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, jnp.float32) + 1.0
                return v * v * k * x

            loss = strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)
        return loss, tape.gradient(loss, v), tape.gradient(loss, x)

    loss, of_v, of_x = (mr.function(step) if compiled else step)()
    total = n * (n + 1) / 2
    assert float(loss) == 12.0 * total
    assert float(of_v) == 12.0 * total
    assert float(of_x) == 4.0 * total


@pytest.mark.first(2)
def test_second_order_and_jacobians_inside_replicas(strategy, compiled):
    with strategy.scope():
        v = mr.Variable(3.0)

    def function(context, k):
        with GradientTape() as outer:
            with GradientTape() as inner:
                y = v**3
            first = inner.gradient(y, v)
        x = jnp.stack([k, k + 1.0])
        with GradientTape() as tape:
            tape.watch(x)
            z = x * x * v
        return first, outer.gradient(first, v), tape.jacobian(z, x)

    first, second, jacobian = on_replicas(strategy, compiled, function)
    n = strategy.num_replicas_in_sync
    assert first == [27.0] * n
    assert second == [18.0] * n
    assert jacobian == [[[6.0 * k, 0.0], [0.0, 6.0 * (k + 1)]] for k in range(1, n + 1)]


AROUND: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda strategy, per, w: strategy.reduce("SUM", per, axis=None).sum() * w,
    "mean": lambda strategy, per, w: strategy.reduce("MEAN", per, axis=None).sum() * w,
    "sum over examples": lambda strategy, per, w: strategy.reduce("SUM", per, axis=0) * w,
    "gather": lambda strategy, per, w: jnp.sum(strategy.gather(per, axis=0) * w),
    "inside a function": lambda strategy, per, w: jax.jit(lambda r: r.sum() * w)(
        strategy.reduce("SUM", per, axis=None)
    ),
    "into another run": lambda strategy, per, w: strategy.reduce(
        "SUM", strategy.run(lambda r: r.sum() * w, args=(strategy.reduce("SUM", per, axis=None),)), axis=None
    ),
}


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("local", [1, 2], ids=["one per device", "two per device"])
@pytest.mark.parametrize(
    ("name", "ragged"), [*((name, False) for name in AROUND), ("sum over examples", True), ("gather", True)]
)
@pytest.mark.sampled(8)
@pytest.mark.first(2)
def test_what_a_tape_around_run_sees_meets_variables_again(compiled, devices, local, name, ragged):
    n = devices * local
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(devices)], num_replicas=n)
    rows = np.arange(1.0, 2.0 * n + (0.0 if ragged and n > 1 else 1.0), dtype=np.float32)
    with strategy.scope():
        v, w = mr.Variable(3.0), mr.Variable(2.0)
    shares = [jnp.asarray(rows[2 * k : 2 * k + 2]) for k in range(n)]
    x = mr.PerReplica(shares) if n > 1 else shares[0]

    def step(x):
        with GradientTape() as tape:
            loss = AROUND[name](strategy, strategy.run(lambda part: part * v, args=(x,)), w)
        return loss, *tape.gradient(loss, [v, w])

    with strategy.scope():
        loss, of_v, of_w = (mr.function(step) if compiled else step)(x)
    scale = {"mean": 1.0 / n, "into another run": float(n)}.get(name, 1.0)
    total = scale * float(rows.sum())
    expected = [6.0 * total, 2.0 * total, 3.0 * total]
    np.testing.assert_allclose([float(loss), float(of_v), float(of_w)], expected, rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("recording", "described"),
    [
        (0, "1 tape records it in replica 0 and no tape records"),
        (1, "no tape records it in replica 0 and 1 tape records"),
    ],
)
def test_a_tape_in_some_replicas_only_cannot_record_a_merge(recording: int, described: str, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    order = iter(range(100))

    def replica() -> object:
        context = mr.get_replica_context()
        if next(order) % 2 == recording:
            with mr.GradientTape() as tape:
                tape.watch(x := jnp.ones(2))
                return context.all_reduce("SUM", x * 2)
        return context.all_reduce("SUM", jnp.ones(2) * 2)

    run = mr.function(lambda: strategy.run(replica)) if compiled else lambda: strategy.run(replica)
    with pytest.raises(mr.errors.MergeError, match=f"{described} it in replica 1"):
        run()


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", ["mirrored", "sync-on-read"])
def test_an_assignment_in_a_merge_has_no_derivative(strategy, compiled, kind):
    options = {"synchronization": "ON_READ", "aggregation": "SUM"} if kind == "sync-on-read" else {}
    with strategy.scope():
        v = mr.Variable(0.0, trainable=False, **options)
    connected = []

    def merged(strategy, x):
        total = strategy.reduce("SUM", x, axis=None)
        if kind == "mirrored":
            v.assign(total)
        else:
            strategy.extended.update(v, lambda own, t: own.assign(t), args=(x,))
        return v.read_value() * 3.0, total + v.read_value()

    def replica(context, number):
        with GradientTape(persistent=True) as tape:
            tape.watch(number)
            assigned, both = context.merge_call(merged, args=(number,))
        connected.append(tape.gradient(assigned, number) is not None)
        return assigned, tape.gradient(both, number)

    n = strategy.num_replicas_in_sync
    total = n * (n + 1) / 2
    assert on_replicas(strategy, compiled, replica) == [[3 * total] * n, [float(n)] * n]
    assert not any(connected)


@pytest.mark.first(3)
def test_a_merge_under_a_tape_combines_its_operands_with_a_sync_on_read_variable(strategy, compiled):
    with strategy.scope():
        v = mr.Variable(1.0, synchronization="ON_READ", aggregation="SUM")

    def replica(context, number):
        with GradientTape() as tape:
            tape.watch(number)
            y = context.merge_call(lambda s, x: s.reduce("SUM", x, axis=None) * v.read_value(), args=(number,))
        return tape.gradient(y, number)

    n = strategy.num_replicas_in_sync
    # The components sum up to `n`, and each of the `n` results depends on the number.
    assert on_replicas(strategy, compiled, lambda *given: (replica(*given),)) == [[float(n * n)] * n]


# A function of a merge, and the same of the stacked operands `x: f32[replicas, 2]` and `count: i32[replicas, 1]`.
COMBINED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum by count": (
        lambda s, x, count, v: s.reduce("SUM", x, axis=None) / s.reduce("SUM", count, axis=None),
        lambda x, count: x.sum(0) / count.sum(0),
    ),
    "one reduction": (
        lambda s, x, count, v: (lambda both: both[0] / both[1])(s.reduce("SUM", (x, count), axis=None)),
        lambda x, count: x.sum(0) / count.sum(0),
    ),
    "mean of examples": (
        lambda s, x, count, v: s.reduce("MEAN", x, axis=0) * s.reduce("MEAN", count, axis=[0]),
        lambda x, count: x.mean() * count.mean(),
    ),
    "gathers": (
        lambda s, x, count, v: s.gather(x, 0) * s.gather(count, 0).sum(),
        lambda x, count: x.ravel() * count.sum(),
    ),
    "reduce_to": (
        lambda s, x, count, v: s.extended.reduce_to("SUM", x, v) / s.reduce("SUM", count, axis=None),
        lambda x, count: x.sum(0) / count.sum(0),
    ),
    "a variable": (
        lambda s, x, count, v: s.reduce("SUM", x, axis=None) * s.reduce("SUM", count, axis=None) * v,
        lambda x, count: x.sum(0) * count.sum(0) * 0.5,
    ),
    "an assigned variable": (
        lambda s, x, count, v: s.reduce("SUM", x, axis=None) * v.assign(s.reduce("SUM", count, axis=None)[0] / 2.0),
        lambda x, count: x.sum(0) * count.sum(0) / 2.0,
    ),
}


@pytest.mark.first(10)
@pytest.mark.parametrize("name", COMBINED)
def test_a_merge_under_a_tape_combines_reductions_of_floats_and_integers(strategy, compiled, name):
    merged, stacked = COMBINED[name]
    with strategy.scope():
        v = mr.Variable(0.5, trainable=False)

    def replica(context, number):
        x, count = jnp.full(2, number), jnp.full(1, 2, jnp.int32)
        with GradientTape() as tape:
            tape.watch(x)
            result = context.merge_call(lambda s, x, count: merged(s, x, count, v), args=(x, count))
        return result, tape.gradient(result, x)

    n = strategy.num_replicas_in_sync
    results, gradients = on_replicas(strategy, compiled, replica)
    x, count = jnp.stack([jnp.full(2, i + 1.0) for i in range(n)]), jnp.full((n, 1), 2)
    for result in results:
        np.testing.assert_allclose(result, stacked(x, count), rtol=1e-6)
    # Each of the `n` results depends on every replica's operands.
    expected = jax.grad(lambda x: n * jnp.sum(stacked(x, count)))(x)
    np.testing.assert_allclose(gradients, expected, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("product", [False, True])
def test_a_tape_around_an_eager_run_records_the_gradient_of_a_merge(devices: int, product: bool) -> None:
    """The cotangents of the replicas are on their devices, and JAX adds them on one."""
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=2)
    with strategy.scope():
        v = mr.Variable([2.0, 1.0])
    x = np.asarray([[1.0, 3.0], [0.5, -1.0]], np.float32)
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(x[context.replica_id_in_sync_group])
    )

    def merged(strategy: Any, value: Any) -> Any:
        total = strategy.reduce("SUM", value, axis=None)
        return total * strategy.reduce("MEAN", value, axis=None) if product else total

    def replica(own: Any) -> Any:
        own = own * 1.0
        with GradientTape() as inner:
            inner.watch(own)
            loss = jnp.sum(jnp.sin(mr.get_replica_context().merge_call(merged, args=(own * v,))) * own)
        return jnp.sum(inner.gradient(loss, own) ** 2)

    with GradientTape() as tape:
        result = strategy.reduce("SUM", strategy.run(replica, args=(xs,)), axis=None)

    def loss_of(x: Any, v: Any) -> Any:
        total = jnp.sum(x * v, 0)
        return jnp.sum(jnp.sin(total * total / 2 if product else total) * x)

    wanted = jax.grad(lambda v: jnp.sum(jax.grad(loss_of)(x, v) ** 2))(jnp.asarray([2.0, 1.0]))
    np.testing.assert_allclose(tape.gradient(result, v), wanted, rtol=1e-5)
