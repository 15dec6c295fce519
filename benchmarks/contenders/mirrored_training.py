"""The same training written with mirrored: scope, run, GradientTape, assign."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from spec import CHAIN, Workload, chain

import mirrored as mr
import mirrored.tf as tf
from contenders import jax_ops as ops
from contenders.hlo import all_reduces, memory
from contenders.jax_hand_written import adam, rate_at, split
from contenders.job import Job


def accumulated(gradients: Any, params: dict[str, mr.Variable], x: Any, y: Any, micro_batches: int) -> Any:
    """Loss and gradients summed over micro-batches, each with a tape of its own."""
    if micro_batches == 1:
        return gradients(x, y)

    def body(total: Any, one: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradients(*one)), None

    zero = (jnp.float32(0), [jnp.zeros_like(p.value()) for p in params.values()])
    return jax.lax.scan(body, zero, tuple(split(a, micro_batches) for a in (x, y)))[0]


def train(
    workload: Workload,
    devices: int,
    *,
    deterministic: bool = False,
    compiled: bool = True,
    steps_per_call: int = 1,
    strategy: mr.Strategy | None = None,
    replicas: int | None = None,
    micro_batches: int = 1,
    donate: bool = True,
) -> Job:
    """A training step, or several in one call; on the given strategy's devices, or on so many of this process.

    With more `replicas` than devices they are virtual; gradients of several micro-batches are accumulated in a scan.
    """
    replicas = replicas or devices
    strategy = strategy or mr.MirroredStrategy(
        jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic
    )
    with strategy.scope():
        params = {k: mr.Variable(p, name=k) for k, p in workload.parameters().items()}
        m = {k: mr.Variable(np.zeros_like(p.numpy()), trainable=False) for k, p in params.items()}
        v = {k: mr.Variable(np.zeros_like(p.numpy()), trainable=False) for k, p in params.items()}
        t = mr.Variable(0.0, trainable=False)
    traces = []

    def gradients(x: Any, y: Any) -> tuple[Any, Any]:
        with mr.GradientTape() as tape:
            values = {k: p.read_value() for k, p in params.items()}
            loss = ops.loss(workload.network.logits(ops, values, x), y) / workload.terms
        return loss, tape.gradient(loss, list(params.values()))

    def replica_step(x: Any, y: Any) -> Any:
        traces.append(1)
        loss, grads = accumulated(gradients, params, x, y, micro_batches)
        grads = mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, grads)
        rate = rate_at(t.assign_add(1.0))
        for (k, p), g in zip(params.items(), grads, strict=True):
            new = adam(p.value(), m[k].value(), v[k].value(), g, rate, workload.decay)
            for variable, value in zip((p, m[k], v[k]), new, strict=True):
                variable.assign(value)
        return loss

    def step(x: Any, y: Any) -> Any:
        return strategy.reduce(mr.ReduceOp.SUM, strategy.run(replica_step, args=(x, y)), axis=None)

    share = workload.batch // replicas
    x, y = (
        strategy.distribute_values_from_function(lambda c, a=a: a[c.replica_id_in_sync_group * share :][:share])
        for a in workload.examples()
    )
    if steps_per_call > 1:
        many = mr.function(step, steps_per_call=steps_per_call)
        batches = [(x, y)] * steps_per_call
        return Job(lambda: float(many(batches)[0]), steps=steps_per_call)

    def weights() -> dict[str, Any]:
        return {k: p.numpy() for k, p in params.items()}

    if not compiled:
        return Job(lambda: float(step(x, y)), weights=weights)
    jitted = mr.function(step, donate=donate)

    def facts() -> dict[str, Any]:
        program = jitted.lower(x, y).compile()
        return {"all_reduces": all_reduces(program.as_text()), "traces": len(traces), **memory(program)}

    return Job(
        lambda: float(jitted(x, y)),
        lambda: jitted(x, y),
        jax.block_until_ready,
        facts=facts,
        weights=weights,
        state={"params": params, "m": m, "v": v, "t": t},
    )


def eager_tape(workload: Workload, devices: int, sin: Any = tf.sin, tanh: Any = tf.tanh) -> Job:
    """The eager chain, by the operations of the facade: TensorFlow's program with another import line."""
    x, w, b = mr.Variable(0.05), jnp.float32(1.003), jnp.float32(1e-4)

    def call() -> float:
        with mr.GradientTape() as tape:
            y = chain(x, w, b, sin, tanh)
        return float(tape.gradient(y, x))

    return Job(call, steps=CHAIN)


def all_reduce(workload: Workload, devices: int, mib: int, *, deterministic: bool = False) -> Job:
    """`all_reduce` of one buffer in replica context."""
    strategy = mr.MirroredStrategy(jax.devices()[:devices], deterministic=deterministic)
    x = strategy.distribute_values_from_function(lambda c: np.zeros(mib << 18, np.float32))

    def reduce(x: Any) -> Any:
        return mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, x)

    jitted = mr.function(lambda x: strategy.run(reduce, args=(x,)))
    return Job(lambda: jax.block_until_ready(jitted(x)))
