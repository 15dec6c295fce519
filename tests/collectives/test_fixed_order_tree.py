"""The same bits on any number of devices: generated training programs, run as compiled steps do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr
from collectives.spmd import group_of, over_devices, reduction
from mirrored.collectives import AllReduce, OrderedTree, ReduceOp
from mirrored.collectives.summation import tree_sum
from mirrored.testing import count_work

Layer = Callable[[Any, Any, Any], Any]
WIDTH = 8

LAYERS: dict[str, Layer] = {
    "dense": lambda w, h, key: jax.nn.relu(h @ w),
    "scale": lambda w, h, key: h * w[0] * 1.7,
    "softmax": lambda w, h, key: jax.nn.softmax(h @ w * 0.3),
    "norm": lambda w, h, key: (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-3) * w[0],
    "gate": lambda w, h, key: jax.nn.sigmoid(h @ w) * jnp.tanh(h) + h,
    "dropout": lambda w, h, key: h * jax.random.bernoulli(key, 0.8, h.shape) / 0.8 + w[1],
    "attention": lambda w, h, key: jax.nn.softmax((h @ w) @ h.T / 3) @ h,
    "gelu": lambda w, h, key: h + jax.nn.gelu(h @ w) @ w.T,
    "scan": lambda w, h, key: lax.scan(lambda c, row: (jnp.tanh(c @ w + row),) * 2, h[0], h)[1],
}
PROGRAMS = [
    (("scale",), jnp.float32),
    (("dense", "scale"), jnp.float32),
    (("gate", "softmax", "scale"), jnp.bfloat16),
    (("norm", "attention", "gelu", "dropout"), jnp.float32),
    (("norm", "attention", "dropout"), jnp.bfloat16),
    (("scan", "gate", "scale"), jnp.float32),
]


def local_gradients(program: tuple[str, ...], dtype: Any) -> Callable[[Any, Any, Any], Any]:
    def loss(weights: Any, x: Any, key: Any) -> Any:
        h = x.astype(dtype)
        for i, (layer, w) in enumerate(zip(program, weights, strict=False)):
            h = LAYERS[layer](w, h, jax.random.fold_in(key, i)).astype(dtype)
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return jax.grad(loss)


def train(program: tuple[str, ...], dtype: Any, devices: int, replicas: int, steps: int = 4) -> list[str]:
    """The hash of all weights after each step of momentum, from a step compiled for this many devices."""
    group, algorithm = group_of(devices, replicas), OrderedTree()
    gradients = local_gradients(program, dtype)

    def body(x: Any, weights: Any, slots: Any, seed: Any) -> Any:
        first = 0 if group.axis is None else lax.axis_index(group.axis) * group.local
        keys = [jax.random.fold_in(jax.random.key(seed), first + k) for k in range(group.local)]
        locals_ = [gradients(weights, x[k], keys[k]) for k in range(group.local)]
        means = algorithm.reduce_arrays(ReduceOp.MEAN, [list(one) for one in zip(*locals_, strict=True)], group)
        slots = [(0.9 * slot + mean).astype(dtype) for slot, mean in zip(slots, means, strict=True)]
        return [(w - 0.1 * slot).astype(dtype) for w, slot in zip(weights, slots, strict=True)], slots

    step = over_devices(body, devices, stacked=1, bit_identical=algorithm.requires_bit_identity)
    rng = np.random.default_rng(7)
    weights = [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) * 0.5, dtype) for _ in program]
    weights.append(jnp.zeros((0, 3), dtype))  # a parameter without elements
    slots = [jnp.zeros_like(w) for w in weights]
    x = rng.normal(size=(replicas, 4, WIDTH)).astype("f4")
    hashes = []
    for seed in range(steps):
        weights, slots = step(x, weights, slots, seed)
        hashes.append(hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in weights)).hexdigest())
    return hashes


def name(value: Any) -> str:
    return "-".join(value) if isinstance(value, tuple) else jnp.dtype(value).name


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("program", "dtype"), PROGRAMS, ids=name)
def test_training_has_the_same_bits_on_1_2_4_and_8_devices(program: tuple[str, ...], dtype: Any) -> None:
    expected = train(program, dtype, 8, 8)
    assert len(set(expected)) == len(expected)
    for devices in (1, 2, 4):
        assert train(program, dtype, devices, 8) == expected, f"on {devices} devices"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("program", "dtype"), PROGRAMS[1:3], ids=name)
@pytest.mark.long
def test_training_has_the_same_bits_on_1_2_3_and_6_devices(program: tuple[str, ...], dtype: Any) -> None:
    expected = train(program, dtype, 6, 6)
    for devices in (1, 2, 3):
        assert train(program, dtype, devices, 6) == expected, f"on {devices} devices"


@pytest.mark.parametrize(("replicas", "splits"), [(8, (1, 2, 4, 8)), (6, (1, 2, 3, 6)), (12, (1, 2, 3, 4, 6))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.sampled(3)
@pytest.mark.first(1)
def test_sum_is_the_tree_over_replicas_in_order(replicas: int, splits: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(1)
    array = jnp.asarray(rng.normal(size=(replicas, 33)) * 10.0 ** rng.integers(-3, 4, size=(replicas, 33)), dtype)
    rows = [np.asarray(row, np.float32) for row in array]
    expected = jnp.asarray(tree_sum(rows)).astype(dtype)
    for devices in splits:
        (result,) = reduction(OrderedTree(), ReduceOp.SUM, devices, replicas, 1)(array)
        assert {np.asarray(row).tobytes() for row in result} == {np.asarray(expected).tobytes()}, devices


def test_the_order_of_a_plain_all_reduce_shows() -> None:
    """What the tree is for: the default sums in another order on 1 device than by its own tree on 3."""
    rng = np.random.default_rng(2)
    array = (rng.normal(size=(6, 4096)) * 10.0 ** rng.integers(-3, 4, size=(6, 4096))).astype("f4")
    bits = {
        np.asarray(reduction(AllReduce(), ReduceOp.SUM, devices, 6, 1)(array)[0][0]).tobytes()
        for devices in (1, 2, 3, 6)
    }
    assert len(bits) > 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_tape_records_the_sum_of_floats_beside_integers(devices: int, compiled: bool) -> None:
    names = [f"CPU:{i}" for i in range(devices)]
    strategy = mr.MirroredStrategy(names, num_replicas=2, deterministic=True)

    def replica() -> Any:
        x = jnp.float32(2.0)
        with mr.GradientTape() as tape:
            tape.watch(x)
            parts = {"count": jnp.int32(3), "loss": x * x, "flags": jnp.zeros(0, jnp.int8)}
            total = mr.get_replica_context().all_reduce("SUM", parts)
            y = total["loss"] / total["count"]
        return tape.gradient(y, x)

    step = lambda: strategy.run(replica)  # noqa: E731
    gradients = (mr.function(step) if compiled else step)()
    np.testing.assert_allclose(strategy.experimental_local_results(gradients), [4 / 3] * 2, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_gradient_through_the_reduction_has_the_same_bits(devices: int) -> None:
    group, algorithm = group_of(devices, 8), OrderedTree()
    rng = np.random.default_rng(3)
    x, u = (rng.normal(size=(8, 50)).astype("f4") for _ in range(2))

    def body(x: Any, u: Any) -> Any:
        def reduced(components: list[Any]) -> list[Any]:
            return algorithm.all_reduce(ReduceOp.SUM, [components], group)[0]

        _, pullback = jax.vjp(reduced, [x[k] for k in range(group.local)])
        return jnp.stack(pullback([u[k] * 1.1 for k in range(group.local)])[0])

    result = over_devices(body, devices, stacked=2, bit_identical=algorithm.requires_bit_identity, equal=False)(x, u)
    expected = tree_sum(list(u * np.float32(1.1)))
    assert {np.asarray(row).tobytes() for row in result} == {expected.tobytes()}


@pytest.mark.long
def test_an_eager_step_compiles_nothing_once_it_is_warm():
    """The branches of the sum's conditional are cached by identity: made anew, each step compiled two programs."""
    strategy = mr.MirroredStrategy(jax.devices()[:2], deterministic=True)
    with strategy.scope():
        w = mr.Variable(jnp.ones(3))

    def replica_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss(x @ w)  # sums the number of examples under the tape
        w.assign(w - 0.1 * mr.get_replica_context().all_reduce("SUM", tape.gradient(loss, w)))

    x = strategy.run(lambda: jnp.ones((2, 3)))
    for _ in range(2):
        strategy.run(replica_step, args=(x,))
    with count_work() as counted:
        strategy.run(replica_step, args=(x,))
    assert (counted.traces, counted.compilations) == (0, 0)
