"""Hand-written JAX: `jit(shard_map)` with donated state and one sum of all gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from spec import BETA_1, BETA_2, CHAIN, EPSILON, LEARNING_RATE, Workload, chain

from contenders import jax_ops as ops
from contenders.hlo import all_reduces, memory
from contenders.job import Job


def adam(p: Any, m: Any, v: Any, g: Any, rate: Any, decay: float = 0.0) -> tuple[Any, Any, Any]:
    """One update of one parameter; with a weight decay it is AdamW's."""
    m = m + (1 - BETA_1) * (g - m)
    v = v + (1 - BETA_2) * (g * g - v)
    if decay:
        p = p * (1 - LEARNING_RATE * decay)
    return p - rate * m / (jnp.sqrt(v) + EPSILON), m, v


def rate_at(t: Any) -> Any:
    """The learning rate, corrected for bias."""
    return LEARNING_RATE * jnp.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)


def accumulated(value_and_grad: Any, params: Any, x: Any, y: Any, micro_batches: int) -> Any:
    """Loss and gradients summed over micro-batches."""
    if micro_batches == 1:
        return value_and_grad(params, x, y)

    def body(total: Any, one: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, value_and_grad(params, *one)), None

    zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    return jax.lax.scan(body, zero, tuple(split(a, micro_batches) for a in (x, y)))[0]


def split(a: Any, micro_batches: int) -> Any:
    """A batch as micro-batches: a leading dimension more."""
    return a.reshape(micro_batches, -1, *a.shape[1:])


def step_of(workload: Workload, *, micro_batches: int = 1, axis: str | None = "dp") -> Any:
    """From the state (parameters, both moments, count of steps) and a batch to the new state and the loss.

    With several micro-batches, their gradients are accumulated in a scan. Without an axis there is no all-reduce.
    """

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return ops.loss(workload.network.logits(ops, params, x), y) / workload.terms

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        params, m, v, t = state
        loss, grads = accumulated(jax.value_and_grad(loss_of), params, x, y, micro_batches)
        if axis is not None:
            loss, grads = jax.lax.psum((loss, grads), axis)
        t = t + 1
        new = {k: adam(params[k], m[k], v[k], grads[k], rate_at(t), workload.decay) for k in params}
        parts = tuple({k: one[i] for k, one in new.items()} for i in range(3))
        return (*parts, t), loss

    return step


def train(workload: Workload, devices: int, *, micro_batches: int = 1) -> Job:
    """A training step."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("dp",), axis_types=(AxisType.Auto,))
    equal, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("dp"))
    # Nobody writes an all-reduce for one device; XLA would keep it.
    step = step_of(workload, micro_batches=micro_batches, axis="dp" if devices > 1 else None)
    params = workload.parameters()
    zeros = {k: np.zeros_like(p) for k, p in params.items()}
    state = jax.device_put((params, zeros, zeros, np.float32(0)), equal)
    held = [jax.tree.map(lambda a: jnp.array(a, copy=True), state)]
    x, y = (jax.device_put(a, sharded) for a in workload.examples())
    specs = dict(in_specs=(PartitionSpec(), PartitionSpec("dp"), PartitionSpec("dp")), out_specs=PartitionSpec())
    jitted = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs), donate_argnums=0)

    def launch() -> Any:
        held[0], loss = jitted(held[0], x, y)
        return loss

    def facts() -> dict[str, Any]:
        compiled = jitted.lower(held[0], x, y).compile()
        return {"all_reduces": all_reduces(compiled.as_text()), **memory(compiled)}

    return Job(lambda: float(launch()), launch, jax.block_until_ready, facts=facts, weights=lambda: held[0][0])


def eager_tape(workload: Workload, devices: int) -> Job:
    """The eager chain by `jax.grad` without `jit`."""
    x, w, b = (jnp.float32(value) for value in (0.05, 1.003, 1e-4))
    gradient = jax.grad(lambda x: chain(x, w, b, jnp.sin, jnp.tanh))
    return Job(lambda: float(gradient(x)), steps=CHAIN)


def all_reduce(workload: Workload, devices: int, mib: int) -> Job:
    """`psum` of one buffer."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("dp",), axis_types=(AxisType.Auto,))
    sharded = NamedSharding(mesh, PartitionSpec("dp"))
    x = jax.device_put(np.zeros((devices, mib << 18), np.float32), sharded)
    jitted = jax.jit(
        jax.shard_map(
            lambda v: jax.lax.psum(v, "dp"),
            mesh=mesh,
            in_specs=PartitionSpec("dp"),
            out_specs=PartitionSpec("dp"),
            check_vma=False,
        )
    )
    return Job(lambda: jax.block_until_ready(jitted(x)))
