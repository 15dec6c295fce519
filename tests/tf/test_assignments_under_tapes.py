"""Variables that `tf.recompute_grad` and `merge_call` assign under a tape have the same values as without one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf

Sync, Aggregation = tf.VariableSynchronization, tf.VariableAggregation
KINDS: dict[str, dict[str, Any]] = {
    "mirrored": {},
    **{
        f"on read, {one.name}": {"synchronization": Sync.ON_READ, "aggregation": one}
        for one in (Aggregation.SUM, Aggregation.MEAN, Aggregation.ONLY_FIRST_REPLICA)
    },
}
STRATEGIES: dict[str, Callable[[], Any]] = {
    "default": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:1"),
    "1 replica": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    "1 replica, deterministic": lambda: tf.distribute.MirroredStrategy(["CPU:0"], deterministic=True),
    "2 replicas": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "3 replicas on 2 devices": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=3),
}
Body = Callable[[Any], Any]


def merged(body: Body) -> Body:
    def merging(x: Any) -> Any:
        y = body(x)
        return y + tf.distribute.get_replica_context().merge_call(lambda _, one: one, args=(tf.reduce_sum(x),))

    return merging


WRAPPERS: dict[str, Callable[[Body], Body]] = {
    "recomputed": tf.recompute_grad,
    "recomputed twice": lambda body: tf.recompute_grad(tf.recompute_grad(body)),
    "recomputed in a branch": lambda body: lambda x: tf.cond(x[0] < 1, lambda: tf.recompute_grad(body)(x), lambda: x),
    "in a branch, recomputed": lambda body: tf.recompute_grad(lambda x: tf.cond(x[0] < 1, lambda: body(x), lambda: x)),
    "in a loop, recomputed": lambda body: tf.recompute_grad(
        lambda x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, body(x)), (0, x), maximum_iterations=1)[1]
    ),
    "before a merge": merged,
}


@pytest.mark.first(20)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("where", STRATEGIES)
def test_assigned_values_are_those_of_the_plain_function(where: str, wrap: Any, name: str, kind: str) -> None:
    """On one replica a sync-on-read variable lost all elements but the first, silently."""

    def outcome(wrapper: Callable[[Body], Body], num_tapes: int) -> list[Any]:
        strategy = STRATEGIES[where]()
        with strategy.scope():
            v = tf.Variable([1.0, 2.0, 3.0], trainable=False, **KINDS[kind])
            count = tf.Variable([3.0, 4.0], trainable=False, **KINDS[kind])

        def body(x: Any) -> Any:
            v.assign_add([1.0, 2.0, 4.0])
            count.assign(count + 1.0)
            return x * tf.cast(v, tf.float32)

        def replica() -> Any:
            x = tf.constant([0.0, 1.0, 2.0])
            if not num_tapes:
                return wrapper(body)(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = wrapper(body)(x)
            tape.gradient(y, x)
            return y

        step = wrap(lambda: strategy.run(replica))
        results = [np.asarray(one) for _ in range(2) for one in strategy.experimental_local_results(step())]
        components = itertools.chain(*(strategy.experimental_local_results(one) for one in (v, count)))
        return [*results, v.numpy(), count.numpy(), *(np.asarray(one) for one in components)]

    expected = outcome(WRAPPERS[name] if name == "before a merge" else lambda body: body, 0)
    found = outcome(WRAPPERS[name], 1)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert found[-1].shape == (2,)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_merge_under_a_tape_assigns_components(num_replicas: int) -> None:
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        w = mr.Variable([1.0, 2.0])
        total = mr.Variable([0.0, 0.0], trainable=False, synchronization="on_read", aggregation="sum")

    def merge(_: Any, x: Any) -> Any:
        strategy.extended.update(total, lambda variable, one: variable.assign_add(one), args=(x,))
        return x

    def replica() -> Any:
        with mr.GradientTape() as tape:
            y = mr.get_replica_context().merge_call(merge, args=(w * 2.0,))
        return tape.gradient(y, w)

    for _ in range(2):
        strategy.run(replica)
    np.testing.assert_array_equal(total.numpy(), jnp.asarray([4.0, 8.0]) * num_replicas)
    assert [one.shape for one in strategy.experimental_local_results(total)] == [(2,)] * num_replicas
