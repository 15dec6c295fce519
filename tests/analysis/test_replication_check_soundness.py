"""Random programs, executed on 4 devices: values that the check proves replicated must be bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from mirrored.analysis.replication_check import Origin, check_replication
from mirrored.topology.device_assignment import AXIS

DEVICES, SIZE = 4, 4
Operation = Callable[[Any, Any], Any]


def keyed_noise(a: Any, b: Any) -> Any:
    return a + jax.random.uniform(jax.random.key(jnp.int32(b[0])), (SIZE,))


def bounded(a: Any) -> Any:
    return jnp.clip(jnp.nan_to_num(a), -3.0, 3.0)


OPERATIONS: list[Operation] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: jnp.where(a > 0, a, b),
    lambda a, b: jnp.tanh(a),
    lambda a, b: a[::-1] + jnp.argmax(b),
    lambda a, b: lax.psum(a, AXIS),
    lambda a, b: lax.pmax(a * b, AXIS),
    lambda a, b: lax.all_gather(a, AXIS)[1] + lax.pmean(b, AXIS),
    lambda a, b: lax.psum_scatter(a, AXIS, tiled=True) + b,
    lambda a, b: lax.ppermute(a, AXIS, [(0, 1), (1, 2), (2, 3), (3, 0)]),
    lambda a, b: lax.all_to_all(a, AXIS, 0, 0) + b,
    lambda a, b: a + lax.axis_index(AXIS),
    lambda a, b: lax.psum(a, AXIS, axis_index_groups=[[0, 1], [2, 3]]),
    lambda a, b: lax.cond(jnp.sum(a) > 0, lambda c: c * 2, lambda c: c - 1, b),
    lambda a, b: lax.scan(lambda c, t: (c * 0.5 + t, c[0]), a, b)[0],
    lambda a, b: lax.scan(lambda c, t: ((c[1], c[0] + t), c[0][0]), (a, a), b)[1],
    lambda a, b: lax.fori_loop(0, 3, lambda _, c: (c[1], c[0], c[2] + b), (a, a * 2, a))[0],
    lambda a, b: lax.while_loop(lambda c: jnp.sum(c[1]) < 5.0, lambda c: (c[0] + 1, c[1] + 1), (a, b))[0],
    lambda a, b: jax.jit(lambda c, d: (d, c + 1.0))(a, b)[0],
    lambda a, b: jax.grad(lambda c: jnp.sum(jnp.sin(c) * b))(a),
    lambda a, b: jax.checkpoint(jnp.cos)(a) + jax.nn.relu(b),
    keyed_noise,
]


def random_body(seed: int, length: int = 14) -> Callable[..., list[Any]]:
    rng = np.random.default_rng(seed)
    plan = [(int(rng.integers(len(OPERATIONS))), *map(int, rng.integers(2 + i, size=2))) for i in range(length)]

    def body(w: Any, x: Any) -> list[Any]:
        values = [w, x[0]]
        for operation, a, b in plan:
            values.append(bounded(OPERATIONS[operation](values[a], values[b])))
        return [value[None] for value in values]

    return body


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sampled(3)
@pytest.mark.first(1)
def test_what_is_proven_equal_is_equal_on_all_devices(seed: int) -> None:
    body = random_body(seed)
    w = np.linspace(-1, 1, SIZE, dtype=np.float32)
    x = np.random.default_rng(seed).normal(size=(DEVICES, SIZE)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), (AXIS,), axis_types=(AxisType.Auto,))
    shared, own = PartitionSpec(), PartitionSpec(AXIS)
    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(shared, own), out_specs=own, check_vma=False))
    closed = jax.make_jaxpr(body, axis_env=[(AXIS, DEVICES)])(w, x[:1])
    analysis = check_replication(closed, [Origin("w", False), Origin("x", True)])
    proven = [not analysis.varies(out) for out in closed.jaxpr.outvars]
    equal = [len({row.tobytes() for row in np.asarray(value)}) == 1 for value in run(w, x)]
    assert [claim for claim, fact in zip(proven, equal, strict=True) if claim and not fact] == []
    assert any(proven)
    assert not all(proven)
