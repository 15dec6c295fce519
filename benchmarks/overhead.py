"""What the programming model costs: a compiled step beside hand-written `jit(shard_map)`, in one process.

    python benchmarks/overhead.py [--rounds 60] [--json FILE]

Both train the same MLP with Adam on the same batch over the same devices. Times are paired round by round; the figure
is the median ratio with a 95 % interval. Also counted: all-reduce operations in the optimised HLO, and traces.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MIRRORED_VIRTUAL_DEVICES", "4")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from pairing import Paired, pair
from rich.console import Console
from rich.table import Table

import mirrored as mr

LEARNING_RATE, BETA_1, BETA_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


@dataclasses.dataclass(frozen=True)
class Workload:
    """One MLP at one batch size, with the ratio that it must not exceed."""

    name: str
    sizes: tuple[int, ...]
    batch: int
    devices: int
    calls: int
    target: float


WORKLOADS = (
    Workload("784-128-10 at 64", (784, 128, 10), 64, 1, 40, 1.05),
    Workload("784-128-10 at 64", (784, 128, 10), 64, 4, 40, 1.05),
    Workload("784-1024-1024-10 at 512", (784, 1024, 1024, 10), 512, 1, 4, 1.02),
    Workload("784-1024-1024-10 at 512", (784, 1024, 1024, 10), 512, 4, 4, 1.02),
)


def initial(work: Workload) -> dict[str, np.ndarray]:
    """The same weights for both."""
    rng = np.random.default_rng(0)
    params = {}
    for i, (n_in, n_out) in enumerate(zip(work.sizes, work.sizes[1:], strict=False)):
        params[f"w{i}"] = (rng.standard_normal((n_in, n_out)) / np.sqrt(n_in)).astype(np.float32)
        params[f"b{i}"] = np.zeros(n_out, np.float32)
    return params


def batch_of(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The same batch for both."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((work.batch, work.sizes[0])).astype(np.float32)
    return x, rng.integers(0, work.sizes[-1], work.batch).astype(np.int32)


def loss_of(params: Any, x: Any, y: Any, layers: int, batch: int) -> Any:
    """This share's part of the global mean."""
    for i in range(layers):
        x = x @ params[f"w{i}"] + params[f"b{i}"]
        x = jax.nn.relu(x) if i < layers - 1 else x
    logp = jax.nn.log_softmax(x)
    return -jnp.take_along_axis(logp, y[:, None], -1).sum() / batch


def adam(p: Any, m: Any, v: Any, g: Any, rate: Any) -> tuple[Any, Any, Any]:
    """One Adam update of one parameter."""
    m = m + (1 - BETA_1) * (g - m)
    v = v + (1 - BETA_2) * (g * g - v)
    return p - rate * m / (jnp.sqrt(v) + EPSILON), m, v


def rate_at(t: Any) -> Any:
    """The bias-corrected learning rate."""
    return LEARNING_RATE * jnp.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)


def hand_written(work: Workload) -> tuple[Callable[[], None], Callable[[], str], Callable[[], Any]]:
    """`jit(shard_map)` with donated state and one fused psum."""
    layers = len(work.sizes) - 1
    mesh = Mesh(np.array(jax.devices()[: work.devices]), ("dp",), axis_types=(AxisType.Auto,))
    equal, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("dp"))

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        params, m, v, t = state
        loss, grads = jax.value_and_grad(loss_of)(params, x, y, layers, work.batch)
        loss, grads = jax.lax.psum((loss, grads), "dp")
        t = t + 1
        new = {k: adam(params[k], m[k], v[k], grads[k], rate_at(t)) for k in params}
        return (
            {k: n[0] for k, n in new.items()},
            {k: n[1] for k, n in new.items()},
            {k: n[2] for k, n in new.items()},
            t,
        ), loss

    params = initial(work)
    zeros = {k: np.zeros_like(p) for k, p in params.items()}
    state = jax.device_put((params, zeros, zeros, np.float32(0)), equal)
    state = jax.tree.map(lambda a: jnp.array(a, copy=True), state)
    x, y = (jax.device_put(a, sharded) for a in batch_of(work))
    specs = dict(in_specs=(PartitionSpec(), PartitionSpec("dp"), PartitionSpec("dp")), out_specs=PartitionSpec())
    train = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs), donate_argnums=0)
    hlo = train.lower(state, x, y).compile().as_text()
    held = [state]

    def one() -> None:
        held[0], loss = train(held[0], x, y)
        loss.block_until_ready()

    return one, lambda: hlo, lambda: held[0][0]


def ours(work: Workload) -> tuple[Callable[[], None], Callable[[], str], Callable[[], Any], Callable[[], int]]:
    """The same training with scope, run, GradientTape and assign."""
    layers = len(work.sizes) - 1
    strategy = mr.MirroredStrategy(jax.devices()[: work.devices])
    with strategy.scope():
        params = {k: mr.Variable(p, name=k) for k, p in initial(work).items()}
        m = {k: mr.Variable(np.zeros_like(p.numpy()), trainable=False) for k, p in params.items()}
        v = {k: mr.Variable(np.zeros_like(p.numpy()), trainable=False) for k, p in params.items()}
        t = mr.Variable(0.0, trainable=False)
    calls = []

    def replica_step(x: Any, y: Any) -> Any:
        calls.append(1)
        with mr.GradientTape() as tape:
            loss = loss_of({k: p.read_value() for k, p in params.items()}, x, y, layers, work.batch)
        names = list(params)
        grads = tape.gradient(loss, [params[k] for k in names])
        grads = mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, grads)
        rate = rate_at(t.assign_add(1.0))
        for k, g in zip(names, grads, strict=True):
            for variable, value in zip(
                (params[k], m[k], v[k]), adam(params[k].value(), m[k].value(), v[k].value(), g, rate), strict=True
            ):
                variable.assign(value)
        return loss

    @mr.function
    def step(x: Any, y: Any) -> Any:
        return strategy.reduce(mr.ReduceOp.SUM, strategy.run(replica_step, args=(x, y)), axis=None)

    xs, ys = batch_of(work)
    share = work.batch // work.devices
    x, y = (
        strategy.distribute_values_from_function(lambda c, a=a: a[c.replica_id_in_sync_group * share :][:share])
        for a in (xs, ys)
    )

    def one() -> None:
        step(x, y).block_until_ready()

    return (
        one,
        lambda: step.lower(x, y).compile().as_text(),
        lambda: {k: p.numpy() for k, p in params.items()},
        lambda: len(calls),
    )


def all_reduces(hlo: str) -> int:
    """How many all-reduce operations an optimised HLO has."""
    return sum(" all-reduce(" in line or " all-reduce-start(" in line for line in hlo.splitlines())


def measure(work: Workload, rounds: int) -> dict[str, Any]:
    """Times both on one workload, and checks that they computed the same."""
    theirs_step, theirs_hlo, theirs_params = hand_written(work)
    ours_step, ours_hlo, ours_params, traces = ours(work)
    paired: Paired = pair(ours_step, theirs_step, rounds=rounds, calls=work.calls)
    a, b = ours_params(), theirs_params()
    drift = max(float(np.linalg.norm(a[k] - np.asarray(b[k])) / np.linalg.norm(b[k])) for k in a if k.startswith("w"))
    counts = all_reduces(ours_hlo()), all_reduces(theirs_hlo())
    low, high = paired.interval
    return {
        "workload": work.name,
        "devices": work.devices,
        "ours_ms": 1e3 * sorted(paired.ours_seconds)[rounds // 2],
        "theirs_ms": 1e3 * sorted(paired.theirs_seconds)[rounds // 2],
        "ratio": paired.ratio,
        "low": low,
        "high": high,
        "target": work.target,
        "met": paired.ratio <= work.target,
        "all_reduces": counts,
        "replica_traces": traces(),
        "weights_differ_by": drift,
    }


def main() -> None:
    """Measures all workloads and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results = [measure(work, options.rounds) for work in WORKLOADS]
    table = Table(
        "workload", "devices", "ours ms", "hand-written ms", "ratio", "95 %", "target", "met", "all-reduces", "traces"
    )
    for r in results:
        table.add_row(
            r["workload"],
            str(r["devices"]),
            f"{r['ours_ms']:.3f}",
            f"{r['theirs_ms']:.3f}",
            f"{r['ratio']:.3f}",
            f"{r['low']:.3f} to {r['high']:.3f}",
            str(r["target"]),
            "yes" if r["met"] else "no",
            "{} / {}".format(*r["all_reduces"]),
            str(r["replica_traces"]),
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
