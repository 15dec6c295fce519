"""A tape around a run records what replicas do with an argument itself, before any operation has made another array.

The tape knows a watched array by its identity; a collective or a merge must record it as it records results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import DeviceError

X = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
A = np.asarray([0.3, 1.2], np.float32)


def context() -> Any:
    return mr.get_replica_context()


def reduced(op: str, value: Any) -> Any:
    return context().all_reduce(op, value)


def merged(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return context().merge_call(function, args, kwargs)


def batch_reduced(strategy: Any, x: Any) -> Any:
    one, other = strategy.extended.batch_reduce_to("SUM", [(x, x), (x, x)])
    return one * other


def product(values: Any) -> Any:
    return values[0] * values[1]


Body = Callable[[Any, Any], Any]
# For each body the function of the replicas, and the same of all replicas' x, [R, 2], and `a` broadcast to it.
BODIES: dict[str, tuple[Body, Body]] = {
    "argument": (lambda x, a: x * a, lambda x, a: x * a),
    "sum": (lambda x, a: reduced("SUM", x) * a, lambda x, a: x.sum(0) * a),
    "sum of a shared array": (lambda x, a: reduced("SUM", a) * x, lambda x, a: a.sum(0) * x),
    "mean": (lambda x, a: reduced("MEAN", a) * a, lambda x, a: a.mean(0) * a),
    "list": (lambda x, a: product(reduced("SUM", [x, a])), lambda x, a: x.sum(0) * a.sum(0)),
    "the same twice": (lambda x, a: product(reduced("SUM", [x, x])), lambda x, a: x.sum(0) ** 2),
    "gather": (lambda x, a: context().all_gather(x, 0).sum() * a, lambda x, a: x.sum() * a),
    "custom reduction of a shared array": (
        lambda x, a: reduced(lambda rows: jnp.sum(rows**2, 0), a) * x,
        lambda x, a: (a**2).sum(0) * x,
    ),
    "gather of a shared array": (lambda x, a: context().all_gather(a, 0).sum() * x, lambda x, a: a.sum() * x),
    "custom": (lambda x, a: reduced(lambda rows: jnp.max(rows, 0), x) * x, lambda x, a: x.max(0) * x),
    "merge that reduces": (
        lambda x, a: merged(lambda s, x: s.reduce("SUM", x, axis=None), x) * x,
        lambda x, a: x.sum(0) * x,
    ),
    "merge with keywords": (
        lambda x, a: merged(lambda s, x, *, a: s.reduce("SUM", x, axis=None) * a, x, a=a),
        lambda x, a: x.sum(0) * a,
    ),
    "merge that reduces to": (
        lambda x, a: merged(lambda s, x: s.extended.reduce_to("MEAN", x, x), x) * x,
        lambda x, a: x.mean(0) * x,
    ),
    "merge that reduces batches": (lambda x, a: merged(batch_reduced, x) * a, lambda x, a: x.sum(0) ** 2 * a),
    "merge that gathers": (
        lambda x, a: merged(lambda s, x: s.gather(x, axis=0).sum(), x) * a,
        lambda x, a: x.sum() * a,
    ),
    "merge that reads": (
        lambda x, a: merged(lambda s, x: sum(s.experimental_local_results(x)), x) * a,
        lambda x, a: x.sum(0) * a,
    ),
    "merge that returns": (lambda x, a: merged(lambda s, x: x, x) * merged(lambda s, a: a, a), lambda x, a: x * a),
    "merge that runs": (
        lambda x, a: merged(lambda s, x, a: s.run(lambda x, a: reduced("SUM", x) * a, args=(x, a)), x, a),
        lambda x, a: x.sum(0) * a,
    ),
    "jit": (lambda x, a: reduced("SUM", jax.jit(lambda x: x)(x)) * a, lambda x, a: x.sum(0) * a),
    "reshape": (lambda x, a: reduced("SUM", x.reshape(2)) * jnp.asarray(a), lambda x, a: x.sum(0) * a),
}


@pytest.mark.first(24)
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), [(2, 2), (1, 3), (2, 3), (4, 4)])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_arguments(mode: str, devices: int, replicas: int, body: str, deterministic: bool) -> None:
    names = [f"CPU:{k}" for k in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    function, wanted = BODIES[body]
    weights = jnp.asarray([1.0, 2.0])
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(X[context.replica_id_in_sync_group])
    )
    a = jnp.asarray(A)

    def loss(xs: Any, a: Any) -> Any:
        losses = strategy.run(lambda x, a: jnp.sum(function(x, a) * weights), args=(xs, a))
        return strategy.reduce("SUM", losses, axis=None)

    with mr.GradientTape() as tape:
        tape.watch([xs, a])
        result = (mr.function(loss) if mode == "compiled" else loss)(xs, a)
    of_xs, of_a = tape.gradient(result, [xs, a], unconnected_gradients="zero")

    def reference(x: Any, a: Any) -> Any:
        return jnp.sum(jnp.broadcast_to(wanted(x, a + jnp.zeros_like(x)), x.shape) * weights)

    wanted_of_x, wanted_of_a = jax.grad(reference, (0, 1))(jnp.asarray(X[:replicas]), a)
    found = np.stack(strategy.experimental_local_results(of_xs))
    np.testing.assert_allclose(found, wanted_of_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_a, wanted_of_a, rtol=1e-5, atol=1e-6)


def squares(*arrays: Any) -> Any:
    return sum(jnp.sum(one**2) for one in arrays)


# The loss of a replica whose own tape takes gradients, of which the tape around the run takes the gradient.
INNER = {
    "beside the loss": lambda own, of_x, of_a: own,
    "in the loss": lambda own, of_x, of_a: own + squares(of_x, of_a),
}


# Merges that combine components of several devices. An eager run refuses gradients of their gradients.
COMBINING = ("merge that gathers", "merge that reads")
WITH_OWN_TAPES = [name for name in BODIES if name != "merge with keywords"]  # whose `a` is then one per replica


@pytest.mark.first(38)
@pytest.mark.parametrize(("devices", "replicas"), [(2, 3), (3, 4)])
@pytest.mark.parametrize("body", WITH_OWN_TAPES)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("kind", ["variable", "array"])
@pytest.mark.parametrize("mode", ["compiled", "deterministic", "eager"])
def test_gradients_around_tapes_of_the_replicas(
    mode: str, devices: int, replicas: int, body: str, inner: str, kind: str
) -> None:
    names = [f"CPU:{k}" for k in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=mode == "deterministic")
    function, wanted = BODIES[body]
    weights = jnp.asarray([1.0, 2.0])
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(X[context.replica_id_in_sync_group])
    )
    a = jnp.asarray(A)
    with strategy.scope():
        variable = mr.Variable(A)

    def replica(x: Any, a: Any) -> Any:
        scale = 1.0 + context().replica_id_in_sync_group
        a = variable.read_value() if kind == "variable" else a
        with mr.GradientTape(persistent=True) as own:
            own.watch([x, a])
            loss = scale * jnp.sum(function(x, a) * weights)
        return INNER[inner](loss, *own.gradient(loss, [x, a], unconnected_gradients="zero"))

    def loss(xs: Any, a: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(xs, a)), axis=None)

    sources = [xs, variable if kind == "variable" else a]
    if (mode, inner) == ("eager", "in the loss") and body in COMBINING:
        with mr.GradientTape() as tape:
            tape.watch([xs, a])
            with pytest.raises(DeviceError, match="or compile the step"):
                loss(xs, a)
        return
    with mr.GradientTape() as tape:
        tape.watch([xs, a])
        result = (loss if mode == "eager" else mr.function(loss))(xs, a)
    of_xs, of_a = tape.gradient(result, sources, unconnected_gradients="zero")

    def of_replicas(x: Any, a: Any) -> Any:
        scales = 1.0 + jnp.arange(replicas, dtype=jnp.float32)[:, None]
        return jnp.sum(scales * jnp.broadcast_to(wanted(x, a), x.shape) * weights)

    def reference(x: Any, a: Any) -> Any:
        rows = a + jnp.zeros_like(x)
        return INNER[inner](of_replicas(x, rows), *jax.grad(of_replicas, (0, 1))(x, rows))

    wanted_of_x, wanted_of_a = jax.grad(reference, (0, 1))(jnp.asarray(X[:replicas]), a)
    found = np.stack(strategy.experimental_local_results(of_xs))
    np.testing.assert_allclose(found, wanted_of_x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_a, wanted_of_a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_returns_a_watched_argument(devices: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=2)
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(X[context.replica_id_in_sync_group])
    )
    a = jnp.asarray(A)
    with mr.GradientTape() as tape:
        tape.watch([xs, a])
        same_xs, same_a = strategy.run(lambda x, a: (x, a), args=(xs, a))
        result = jnp.sum(strategy.reduce("SUM", same_xs, axis=None) ** 2 * same_a)
    of_xs, of_a = tape.gradient(result, [xs, a])
    total = X[:2].sum(0)
    for one in strategy.experimental_local_results(of_xs):
        np.testing.assert_allclose(one, 2 * total * A, rtol=1e-6)
    np.testing.assert_allclose(of_a, total**2, rtol=1e-6)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("reduces", [False, True])
def test_gradients_of_variables_under_an_outer_tape_are_on_all_devices(replicas: int, reduces: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=replicas)
    with strategy.scope():
        w = mr.Variable(2.0)
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(1.0 + context.replica_id_in_sync_group)
    )
    with mr.GradientTape() as outer:
        with mr.GradientTape() as inner:
            inner.watch(xs)
            losses = strategy.run(lambda x: jnp.sin(x * w), args=(xs,))
            target = strategy.reduce("SUM", losses, axis=None) if reduces else losses
        of_w, of_xs = inner.gradient(target, [w, xs])
        assert of_w.devices() == w.read_value().devices()
        total = of_w * 3.0 + strategy.reduce("SUM", of_xs, axis=None)
    rows = 1.0 + jnp.arange(replicas)

    def reference(w: Any) -> Any:
        of_w, of_rows = jax.grad(lambda w, rows: jnp.sum(jnp.sin(rows * w)), (0, 1))(w, rows)
        return of_w * 3.0 + jnp.sum(of_rows)

    np.testing.assert_allclose(total, reference(2.0), rtol=1e-5)
    np.testing.assert_allclose(outer.gradient(total, w), jax.grad(reference)(2.0), rtol=1e-5)


# Bodies in which a transform of JAX closes over `a`, which is concrete: JAX keeps it inside of the transform's program.
CLOSING: dict[str, tuple[Body, Body]] = {
    **BODIES,
    "jitted closure": (lambda x, a: jax.jit(lambda x: x * a)(x), lambda x, a: x * a),
    "loop that closes": (
        lambda x, a: jax.lax.scan(lambda carry, _: (carry * a, None), x, None, length=2)[0],
        lambda x, a: x * a**2,
    ),
    "jitted sum": (lambda x, a: jax.jit(lambda x: reduced("SUM", x) * a)(x), lambda x, a: x.sum(0) * a),
    "jitted sum of a shared array": (
        lambda x, a: jax.jit(lambda x: reduced("SUM", a) * x)(x),
        lambda x, a: a.sum(0) * x,
    ),
}
LAYOUTS = [(2, 3), (1, 3), (2, 2), (4, 4)]


def closed_over_rows(strategy: Any, kind: str) -> Any:
    """Returns the per-replica value with the rows of X, in one of its forms."""
    if kind == "without devices":
        return mr.PerReplica([jnp.asarray(row) for row in X[: strategy.num_replicas_in_sync]])
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.asarray(X[context.replica_id_in_sync_group])
    )
    if kind == "of an eager run":
        return strategy.run(lambda x: x * 1.0, args=(xs,))
    if kind == "of a compiled run":
        return mr.function(lambda xs: strategy.run(lambda x: x * 1.0, args=(xs,)))(xs)
    return xs


def check_closure(
    strategy: Any, body: str, xs: Any, gradients: Callable[[Callable[[], Any], list[Any]], list[Any]]
) -> None:
    """Compares the gradients of a compiled function that closes over `xs` and `a` with those of plain JAX."""
    function, wanted = CLOSING[body]
    weights, a = jnp.asarray([1.0, 2.0]), jnp.asarray(A)

    def loss() -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(function(x, a) * weights), args=(xs,)), axis=None)

    of_xs, of_a = gradients(loss, [xs, a])

    def reference(x: Any, a: Any) -> Any:
        return jnp.sum(jnp.broadcast_to(wanted(x, a + jnp.zeros_like(x)), x.shape) * weights)

    rows = jnp.asarray(X[: strategy.num_replicas_in_sync])
    wanted_of_x, wanted_of_a = jax.grad(reference, (0, 1))(rows, a)
    found = np.stack(strategy.experimental_local_results(of_xs))
    np.testing.assert_allclose(found, wanted_of_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_a, wanted_of_a, rtol=1e-5, atol=1e-6)


def taped(loss: Callable[[], Any], sources: list[Any]) -> Any:
    with mr.GradientTape() as tape:
        tape.watch(sources)
        result = loss()
    return tape.gradient(result, sources, unconnected_gradients="zero")


def tape_in_function(loss: Callable[[], Any], sources: list[Any]) -> Any:
    return mr.function(lambda: taped(loss, sources))()


def tape_around_traced_function(loss: Callable[[], Any], sources: list[Any]) -> Any:
    """The program is traced before a tape watches the values over which it closes."""
    compiled = mr.function(loss)
    compiled()
    with mr.GradientTape():
        compiled()
    return taped(compiled, sources)


def tapes_around_tapes(loss: Callable[[], Any], sources: list[Any]) -> Any:
    compiled = mr.function(loss)
    with mr.GradientTape() as outer:
        outer.watch(sources)
        with mr.GradientTape() as inner:
            inner.watch(sources)
            result = compiled()
    of_outer = outer.gradient(result, sources, unconnected_gradients="zero")
    of_inner = inner.gradient(result, sources, unconnected_gradients="zero")
    for one, other in zip(of_outer[0].values, of_inner[0].values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_outer[1], of_inner[1], rtol=1e-5, atol=1e-6)
    return of_outer


WHERE = {"in": tape_in_function, "around": tape_around_traced_function, "tapes around": tapes_around_tapes}


@pytest.mark.first(6)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
@pytest.mark.parametrize(
    "body", ["sum of a shared array", *(name for name in CLOSING if name != "sum of a shared array")]
)
def test_gradients_of_closed_over_values(
    body: str, devices: int, replicas: int, deterministic: bool, where: str
) -> None:
    names = [f"CPU:{k}" for k in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    check_closure(strategy, body, closed_over_rows(strategy, "of components"), WHERE[where])


@pytest.mark.first(9)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", ["without devices", "of an eager run", "of a compiled run"])
def test_gradients_of_forms_of_closed_over_values(kind: str, where: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=3, deterministic=True)
    check_closure(strategy, "jitted closure", closed_over_rows(strategy, kind), WHERE[where])


# Functions of a strategy, a per-replica value and an array over which code outside of replicas, or of merges, closes.
Program = Callable[[Any, Any, Any], Any]


def summed_products(strategy: Any, read: Callable[[Any], Any], xs: Any, a: Any) -> Any:
    return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(merged(read) * x * a), args=(xs,)), axis=None)


READS: dict[str, tuple[Program, Body]] = {
    "merge that reduces": (
        lambda s, xs, a: summed_products(s, lambda s: s.reduce("SUM", xs, axis=None), xs, a),
        lambda x, a: jnp.sum(x.sum(0) * x * a),
    ),
    "merge that gathers": (
        lambda s, xs, a: summed_products(s, lambda s: jnp.sum(s.gather(xs, axis=0)), xs, a),
        lambda x, a: jnp.sum(x.sum() * x * a),
    ),
    "merge that runs": (
        lambda s, xs, a: summed_products(s, lambda s: s.run(lambda x: x * a, args=(xs,)), xs, a),
        lambda x, a: jnp.sum((x * a) ** 2),
    ),
    "gather": (
        lambda s, xs, a: jnp.sum(s.gather(xs, axis=0) ** 2) * jnp.sum(a),
        lambda x, a: jnp.sum(x**2) * jnp.sum(a),
    ),
    "reduce": (
        lambda s, xs, a: jnp.sum(s.reduce("SUM", xs, axis=None) ** 2 * a),
        lambda x, a: jnp.sum(x.sum(0) ** 2 * a),
    ),
    "component": (
        lambda s, xs, a: s.reduce("SUM", s.run(lambda x: jnp.sum(x * xs.values[0] * a), args=(xs,)), axis=None),
        lambda x, a: jnp.sum(x * x[0] * a),
    ),
}


@pytest.mark.first(6)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("read", READS)
def test_gradients_of_reads_of_closed_over_values(
    read: str, devices: int, replicas: int, deterministic: bool, where: str
) -> None:
    names = [f"CPU:{k}" for k in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=replicas, deterministic=deterministic)
    program, wanted = READS[read]
    xs, a = closed_over_rows(strategy, "of components"), jnp.asarray(A)
    of_xs, of_a = WHERE[where](lambda: program(strategy, xs, a), [xs, a])
    wanted_of_x, wanted_of_a = jax.grad(wanted, (0, 1))(jnp.asarray(X[:replicas]), a)
    found = np.stack(strategy.experimental_local_results(of_xs))
    np.testing.assert_allclose(found, wanted_of_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_a, wanted_of_a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("devices", "replicas"), [(2, 3), (1, 2)])
def test_gradients_of_gradients_of_closed_over_values(devices: int, replicas: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{k}" for k in range(devices)], num_replicas=replicas)
    xs = closed_over_rows(strategy, "of components")
    compiled = mr.function(lambda: strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x**3), args=(xs,)), axis=None))
    with mr.GradientTape() as outer:
        outer.watch(xs)
        with mr.GradientTape() as inner:
            inner.watch(xs)
            result = compiled()
        first = inner.gradient(result, xs)
        squares = strategy.run(lambda row: jnp.sum(row**2), args=(first,))
        result = result + strategy.reduce("SUM", squares, axis=None)
    wanted = jax.grad(lambda x: jnp.sum(x**3) + jnp.sum((3 * x**2) ** 2))(X[:replicas])
    np.testing.assert_allclose(np.stack(outer.gradient(result, xs).values), wanted, rtol=1e-4)
