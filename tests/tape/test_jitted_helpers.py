"""Persistent traced helpers that read a variable: every tape, replica and moment gets its own variable's gradient.

JAX keeps the trace of such a helper, with what stood for the variable when it was traced first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import TransformError

Read = Callable[[], Any]
Helper = Callable[[Any], Any]
W = np.float32(1.3)
X = np.array([0.3, 0.5, 0.9, 1.4], np.float32)


def body(w: Read) -> Helper:
    return lambda x: jnp.sin(x * w())


def in_jit(w: Read) -> Helper:
    return jax.jit(body(w))


def in_checkpoint(w: Read) -> Helper:
    return jax.checkpoint(body(w))


def in_nested_jit(w: Read) -> Helper:
    inner = jax.jit(body(w))
    return jax.jit(lambda x: inner(x) + inner(2 * x))


def in_jitted_checkpoint(w: Read) -> Helper:
    return jax.jit(jax.checkpoint(body(w)))


def in_scan(w: Read) -> Helper:
    def step(carry: Any, _: None) -> tuple[Any, None]:
        return jnp.sin(carry * w()), None

    return lambda x: lax.scan(step, x, length=3)[0]


def in_cond(w: Read) -> Helper:
    one, other = body(w), lambda x: x
    return lambda x: lax.cond(jnp.sum(x) > -1e9, one, other, x)


def beside_custom_jvp(w: Read) -> Helper:
    @jax.custom_jvp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defjvp(lambda primals, tangents: (jnp.sin(*primals), tangents[0] * jnp.cos(*primals)))
    return jax.jit(lambda x: sine(x * w()))


def in_vmap(w: Read) -> Helper:
    return jax.vmap(jax.jit(body(w)))


MAKERS = (in_jit, in_checkpoint, in_nested_jit, in_jitted_checkpoint, in_scan, in_cond, beside_custom_jvp, in_vmap)
helpers = pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)


def expected(make: Callable[[Read], Helper], x: Any, *, scale: float = 1.0) -> Any:
    """The gradient by JAX of the summed result, with respect to the weight."""
    return jax.grad(lambda w: jnp.sum(make(lambda: w)(scale * x)))(W)


def taped(helper: Helper, v: mr.Variable, x: Any) -> Any:
    with mr.GradientTape() as tape:
        loss = jnp.sum(helper(x))
    return tape.gradient(loss, v)


def two_tapes(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    return [taped(helper, v, x), taped(helper, v, x)]


def with_another_read(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    def decayed() -> Any:
        with mr.GradientTape() as tape:
            loss = jnp.sum(helper(x)) + 0.5 * v * v
        return tape.gradient(loss, v) - v

    return [decayed(), decayed()]


def evaluated_first(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    metric = jnp.sum(helper(x))
    return [taped(helper, v, x) + 0.0 * metric]


def evaluated_between(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    first = taped(helper, v, x)
    metric = jnp.sum(helper(x))
    return [first, taped(helper, v, x) + 0.0 * metric]


def inner_tape(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    with mr.GradientTape() as outer:
        before = jnp.sum(helper(x))
        with mr.GradientTape() as inner:
            inside = jnp.sum(helper(x))
        around = before + jnp.sum(helper(x))
    return [inner.gradient(inside, v), outer.gradient(around, v) / 2]


def twice_under_one_tape(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    with mr.GradientTape() as tape:
        loss = jnp.sum(helper(x)) + jnp.sum(helper(x)) + jnp.sum(helper(x))
    return [tape.gradient(loss, v) / 3]


def paused(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    with mr.GradientTape() as tape:
        with tape.stop_recording():
            metric = jnp.sum(helper(x))
        loss = jnp.sum(helper(x)) + metric
    return [tape.gradient(loss, v)]


def after_a_reset(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    with mr.GradientTape() as tape:
        metric = jnp.sum(helper(x))
        tape.reset()
        loss = jnp.sum(helper(x))
    return [tape.gradient(loss, v) + 0.0 * metric]


def watched_late(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    with mr.GradientTape(watch_accessed_variables=False) as tape:
        metric = jnp.sum(helper(x))
        tape.watch(v)
        loss = jnp.sum(helper(x))
    return [tape.gradient(loss, v) + 0.0 * metric]


def assigned_under_a_tape(helper: Helper, v: mr.Variable, x: Any) -> list[Any]:
    before = jnp.sum(helper(x))
    with mr.GradientTape():
        v.assign(0.5 * W)
        v.assign(2.0 * v)
        jnp.sum(helper(x))
    return [taped(helper, v, x) + 0.0 * before]


SCENES = (
    *(two_tapes, with_another_read, evaluated_first, evaluated_between, inner_tape, twice_under_one_tape, paused),
    *(after_a_reset, watched_late, assigned_under_a_tape),
)
scenes = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
NEEDS_A_TRACE = {evaluated_first, evaluated_between, paused, assigned_under_a_tape}


@scenes
@helpers
@pytest.mark.sampled(8)
@pytest.mark.first(2)
def test_every_tape_has_the_gradient(make, scene):
    v = mr.Variable(W, name="v")
    step = mr.function(lambda x: scene(make(v.read_value), v, x))
    helper = make(v.read_value)
    kept = mr.function(lambda x: scene(helper, v, x))
    for found in (step(X), kept(X), kept(X)):
        np.testing.assert_allclose(found, [expected(make, X)] * len(found), rtol=1e-5)
    if scene not in NEEDS_A_TRACE:  # outside tapes and functions JAX would bake the value in: that is refused
        np.testing.assert_allclose(scene(helper, v, X), [expected(make, X)] * len(found), rtol=1e-5)
    np.testing.assert_allclose(kept(2 * X), [expected(make, 2 * X)] * len(found), rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (1, 3), (2, 4)], ids=["1", "2", "1x3", "2x2"])
@helpers
@pytest.mark.sampled(8)
@pytest.mark.first(2)
def test_every_replica_has_the_gradient(make, devices, replicas, compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable(W, name="v")
    helper = make(v.read_value)

    def replica(x: Any) -> Any:
        first = taped(helper, v, x)
        summed = mr.get_replica_context().all_reduce("SUM", first)
        return first, summed, taped(helper, v, x)

    def step(x: Any) -> Any:
        return strategy.run(replica, args=(x,))

    run = mr.function(step) if compiled else step
    parts = strategy.experimental_distribute_values_from_function(lambda context: X + context.replica_id_in_sync_group)
    first, summed, second = (strategy.experimental_local_results(result) for result in run(parts))
    want = [expected(make, X + i) for i in range(replicas)]
    np.testing.assert_allclose(first, want, rtol=1e-5)
    np.testing.assert_allclose(second, want, rtol=1e-5)
    np.testing.assert_allclose(summed, [sum(want)] * replicas, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("make", [in_jit, in_checkpoint], ids=lambda make: make.__name__)
def test_gradients_of_micro_batches_accumulate(make, compiled):
    v = mr.Variable(W, name="v")
    accumulator, optimizer = mr.GradientAccumulator([v]), mr.optimizers.SGD(1.0)
    helper = make(v.read_value)

    def step(xs: Any) -> None:
        for i in range(2):
            with mr.GradientTape() as tape:
                loss = jnp.mean(helper(xs[i]))
            accumulator.add(tape.gradient(loss, [v]), count=2)
        accumulator.apply(optimizer)

    (mr.function(step) if compiled else step)(X.reshape(2, 2))
    np.testing.assert_allclose(v, W - expected(make, X) / 4, rtol=1e-5)


@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (1, 2), (2, 4)], ids=["1", "1x2", "2x2"])
def test_a_helper_reads_the_value_that_a_merge_has_assigned(devices, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable(1.0, name="v")
    helper = jax.jit(lambda x: x * v)

    def add(_: Any) -> None:
        v.assign_add(1.0)

    def replica() -> Any:
        seen = [helper(1.0)]
        for _ in range(2):
            mr.get_replica_context().merge_call(add)
            seen.append(helper(1.0))
        return jnp.stack(seen)

    def step() -> Any:
        before = helper(1.0)
        inside = strategy.run(replica)
        return before, inside, helper(1.0), strategy.run(lambda: helper(1.0))

    before, inside, after, again = mr.function(step)()
    assert (float(before), float(after)) == (1.0, 3.0)
    for part in strategy.experimental_local_results(inside):
        assert part.tolist() == [1.0, 2.0, 3.0]
    assert [float(part) for part in strategy.experimental_local_results(again)] == [3.0] * replicas


@pytest.mark.parametrize("assigns", [True, False])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 4)], ids=["1x2", "2x2"])
def test_a_helper_in_a_merge_under_an_eager_tape_must_not_keep_a_value(devices, replicas, assigns):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable(1.0, trainable=False)
    reading, given = jax.jit(lambda x: x * v), jax.jit(lambda x, value: x * value)

    def merged(strategy, x, number):
        total = strategy.reduce("SUM", x, axis=None)
        if assigns:
            v.assign(number)
        with pytest.raises(TransformError, match="in a merge_call under a tape"):
            reading(total)
        return given(total, v.read_value())  # the remedy

    def replica(number):
        x = jnp.asarray(2.0)
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = mr.get_replica_context().merge_call(merged, args=(x, number))
        return y, tape.gradient(y, x)

    for number in (3.0, 5.0):
        if not assigns:
            v.assign(number)
        y, gradient = (strategy.experimental_local_results(one) for one in strategy.run(replica, args=(number,)))
        # Each of the results depends on each replica's operand. Equal ones of one device may be one array.
        assert {float(one) for one in y} == {2.0 * replicas * number}
        assert {float(one) for one in gradient} == {replicas * number}


def called_in_a_tape(strategy, helper, x):
    with mr.GradientTape() as tape:
        tape.watch(x)
        return helper(x)


def called_in_an_update(strategy, helper, x):
    with strategy.scope():
        target = mr.Variable(0.0, trainable=False)
    return strategy.extended.update(target, lambda variable, x: variable.assign(helper(x)), args=(x,))


CALLS_IN_A_MERGE: dict[str, Callable[..., Any]] = {
    "jit": lambda strategy, helper, x: helper(x),
    "scan": lambda strategy, helper, x: lax.scan(lambda total, _: (helper(total), None), x, None, length=1)[0],
    "vmap": lambda strategy, helper, x: jax.vmap(helper)(x[None])[0],
    "tape": called_in_a_tape,
    "update": called_in_an_update,
}
KINDS_OF_VARIABLES: dict[str, dict[str, Any]] = {
    "mirrored": {},
    "sync-on-read": {"synchronization": "ON_READ", "aggregation": "SUM"},
    "plain": {},
}


@pytest.mark.parametrize("kind", KINDS_OF_VARIABLES)
@pytest.mark.parametrize("call", CALLS_IN_A_MERGE)
@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 4)], ids=["1x2", "2x2"])
def test_a_traced_function_in_a_merge_under_an_eager_tape_must_not_keep_a_value(devices, replicas, call, kind):
    """Each of these had the value of the first call in later calls."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope() if kind != "plain" else contextlib.nullcontext():
        v = mr.Variable(1.0, trainable=False, **KINDS_OF_VARIABLES[kind])
    helper = jax.jit(lambda x: x * v.read_value())

    def replica():
        x = jnp.asarray(2.0)
        with mr.GradientTape() as tape:
            tape.watch(x)
            return mr.get_replica_context().merge_call(
                lambda strategy, x: CALLS_IN_A_MERGE[call](strategy, helper, strategy.reduce("SUM", x, axis=None)),
                args=(x,),
            )

    with pytest.raises(TransformError, match="was read under a JAX transform in a merge_call under a tape"):
        strategy.run(replica)


@pytest.mark.parametrize(("devices", "replicas"), [(1, 2), (2, 4)], ids=["1x2", "2x2"])
def test_a_helper_reads_its_own_replicas_component(devices, replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", trainable=False, name="v")
    helper = jax.jit(lambda x: x + v)

    def replica() -> Any:
        v.assign_add(jnp.float32(mr.get_replica_context().replica_id_in_sync_group))
        return helper(0.0)

    def read() -> Any:
        return helper(0.0)

    results = mr.function(lambda: strategy.run(replica))()
    assert [float(part) for part in strategy.experimental_local_results(results)] == list(range(replicas))
    results = mr.function(lambda: strategy.run(read))()
    assert [float(part) for part in strategy.experimental_local_results(results)] == list(range(replicas))


@pytest.mark.parametrize("tapes", [1, 2])
def test_a_replica_traces_a_helper_that_reads_nothing_once_per_tape(tapes):
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=3)
    with strategy.scope():
        v = mr.Variable(W, name="v")
    traces = 0

    def counted(x: Any, w: Any) -> Any:
        nonlocal traces
        traces += 1
        return x * w

    helper = jax.jit(counted)

    def loss(x: Any) -> Any:
        return helper(helper(x, v.read_value()), v.read_value())

    def replica() -> Any:
        for _ in range(tapes):
            x = mr.get_replica_context().all_reduce("SUM", helper(X, X))
            gradient = taped(loss, v, x)
        return gradient

    mr.function(lambda: strategy.run(replica))()
    assert traces == 3 * (1 + tapes)  # once for the shapes outside tapes, and once per tape


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("devices", "replicas"), [(1, 1), (2, 2), (1, 2), (2, 3)], ids=["1", "2", "1x2", "3 on 2"])
@helpers
@pytest.mark.sampled(8)
@pytest.mark.first(4)
def test_every_tape_has_the_gradient_through_an_attribute_that_it_has_just_set(make, devices, replicas, compiled):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)
    with strategy.scope():
        v = mr.Variable(W, name="v")
    module = types.SimpleNamespace()
    helper = make(lambda: module.mask)

    def gradient(x: Any, scale: float) -> Any:
        with mr.GradientTape() as tape:
            module.mask = scale * v
            loss = jnp.sum(helper(x))
        return tape.gradient(loss, v)

    def step(x: Any) -> Any:
        return strategy.run(lambda x: [gradient(x, scale) for scale in (1.0, 2.0)], args=(x,))

    run = mr.function(step) if compiled else step
    parts = strategy.experimental_distribute_values_from_function(lambda context: X + context.replica_id_in_sync_group)
    for scale, found in zip((1.0, 2.0), run(parts), strict=True):
        want = [jax.grad(lambda w, i=i, c=scale: jnp.sum(make(lambda: c * w)(X + i)))(W) for i in range(replicas)]
        np.testing.assert_allclose(strategy.experimental_local_results(found), want, rtol=1e-5)


def test_a_tape_traces_a_helper_that_reads_once_more_and_no_more():
    v = mr.Variable(W, name="v")
    traces = 0

    def counted(x: Any) -> Any:
        nonlocal traces
        traces += 1
        return x * v

    helper = jax.jit(counted)

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            for _ in range(10):
                x = helper(x)
            loss = jnp.sum(x)
        return tape.gradient(loss, v)

    mr.function(step)(X)
    assert traces == 2  # with the first read tapes are told apart; the trace under way is not used again


@pytest.mark.long
def test_threads_do_not_share_the_trace_of_a_helper_over_a_tracked_array() -> None:
    """Between a trace and its eviction another thread may run: without a token per thread it would get that trace."""
    own = threading.local()

    @jax.jit
    def helper(x: Any) -> Any:
        square = own.square
        return jnp.sin(x) * square

    wrong: list[tuple[float, float]] = []

    def work(number: int) -> None:
        for _ in range(8):
            x = jnp.float32(number + 1)
            with mr.GradientTape() as tape:
                tape.watch(x)
                own.square = x * x
                y = helper(x)
            gradient, expected = tape.gradient(y, x), jnp.cos(x) * x * x + 2 * x * jnp.sin(x)
            if abs(float(gradient) - float(expected)) > 1e-4:
                wrong.append((float(gradient), float(expected)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.long
def test_the_tapes_of_successive_threads_share_traces() -> None:
    traces: list[int] = []

    @jax.jit
    def helper(x: Any) -> Any:
        traces.append(1)
        return x * x

    def work() -> None:
        x = jnp.float32(3.0)
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = helper(x)
        assert float(tape.gradient(y, x)) == 6.0

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(traces) == 1
