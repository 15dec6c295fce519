"""Gradients of collectives in eager replicas: targets that depend on some of them, nested tapes, Jacobians.

Usage: ``tapes.py part``; `outcomes` is also called in one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mirrored as mr

X = np.arange(32, dtype=np.float32).reshape(8, 4) / 10


def collective(kind: str, loss: Any, losses: Any) -> Any:
    context = mr.get_replica_context()
    match kind:
        case "sum" | "mean":
            return context.all_reduce(kind.upper(), loss)
        case "gather":
            return context.all_gather(loss[None], axis=0)
        case "merge":
            return context.merge_call(lambda strategy, value: strategy.reduce("SUM", value, axis=None), args=(loss,))
        case "constant":
            return context.all_reduce("SUM", jnp.float32(3))
        case _:
            return mr.losses.average_loss(losses)


def first_order(w: Any, kind: str, target: str, persistent: bool) -> Callable[[Any], Any]:
    def replica(rows: Any) -> Any:
        with mr.GradientTape(persistent=persistent) as tape:
            losses = jnp.sin(rows @ w) ** 2
            own = jnp.sum(losses)
            joined = jnp.sum(collective(kind, own, losses))
            value = {"own": own, "joined": joined, "both": own + joined}[target]
        found = [tape.gradient(value, w)]
        if persistent:
            found += [tape.gradient(own, w), tape.gradient(joined, w)]
        return sum(mr.get_replica_context().all_reduce("SUM", jnp.zeros(4) if one is None else one) for one in found)

    return replica


def nested(w: Any, kind: str, target: str, inner_persistent: bool) -> Callable[[Any], Any]:
    def replica(rows: Any) -> Any:
        with mr.GradientTape() as outer:
            with mr.GradientTape(persistent=inner_persistent) as inner:
                losses = jnp.sin(rows @ w) ** 2
                own = jnp.sum(losses)
                joined = jnp.sum(collective(kind, own, losses))
                value = {"own": own, "joined": joined, "both": own + joined}[target]
            norm = jnp.sum(inner.gradient(value, w) ** 2) if kind != "constant" or target != "joined" else own
        return mr.get_replica_context().all_reduce("SUM", outer.gradient(norm, w))

    return replica


def jacobian(w: Any) -> Callable[[Any], Any]:
    def replica(rows: Any) -> Any:
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            y = context.all_reduce("SUM", jnp.sum(jnp.sin(rows * w), 0))
        return context.all_reduce("SUM", jnp.sum(tape.jacobian(y, w), 0))

    return replica


# Functions of a mirrored variable, a sync-on-read variable, a mirrored one, the replicas' losses and their mean.
MERGED: dict[str, Callable[..., Any]] = {
    "reads a mirrored variable": lambda mean, total, scale, own, loss: loss * scale,
    "assigns": lambda mean, total, scale, own, loss: (mean.assign(loss), loss)[1],
    "reads and assigns": lambda mean, total, scale, own, loss: (mean.assign(loss * scale), loss)[1],
    "reads what it has assigned": lambda mean, total, scale, own, loss: (mean.assign_add(loss), loss * mean)[1],
    "reads a sync-on-read variable": lambda mean, total, scale, own, loss: loss * total,
    "assigns the components of one": lambda mean, total, scale, own, loss: (total.assign(own), loss)[1],
    "reads the components that it has assigned": lambda mean, total, scale, own, loss: (
        total.assign_add(own),
        loss * total,
    )[1],
}


def merging(w: Any, variables: tuple[Any, ...], body: Callable[..., Any], before: bool) -> Callable[[Any], Any]:
    mean, total, _ = variables

    def merged(strategy: mr.Strategy, own: Any) -> Any:
        return body(*variables, own, strategy.reduce("MEAN", own, axis=None))

    def replica(rows: Any) -> Any:
        context = mr.get_replica_context()
        total.assign_add(jnp.sum(rows))
        with mr.GradientTape() as tape:
            own = jnp.sum(jnp.sin(rows @ w))
            if before:  # an assignment of the replicas, which the merge finds
                mean.assign(context.all_reduce("SUM", jax.lax.stop_gradient(own)))
            value = context.merge_call(merged, args=(own,)) * jnp.sum(rows)
        gradient = context.all_reduce("SUM", tape.gradient(value, w))
        totals = context.all_gather(total.read_value()[None], axis=0)
        return jnp.concatenate([gradient, mean.read_value()[None], totals])

    return replica


def outcomes(strategy: mr.Strategy, part: str) -> dict[str, list[float]]:
    """Returns the results of the programs of one part: one collective, or ``variables``."""
    with strategy.scope():
        w = mr.Variable(np.ones(4, np.float32), name="w")
        mean = mr.Variable(0.5, trainable=False)
        total = mr.Variable(0.0, trainable=False, synchronization="ON_READ", aggregation="SUM")
        scale = mr.Variable(2.0, trainable=False)
    [batch] = strategy.experimental_distribute_dataset([X])
    programs = {
        f"{make.__name__} {kind} {target} {persistent}": make(w, kind, target, persistent)
        for make in (first_order, nested)
        for kind in (part,)
        for target in ("own", "joined", "both")
        for persistent in (False, True)
        if part != "variables" and (make is first_order or not persistent)
    }
    if part == "sum":
        programs["jacobian"] = jacobian(w)
    for name, body in MERGED.items() if part == "variables" else ():
        for before in (False, True):
            programs[f"merge that {name} {before}"] = merging(w, (mean, total, scale), body, before)
    return {
        name: np.asarray(strategy.experimental_local_results(strategy.run(replica, args=(batch,)))[0]).tolist()
        for name, replica in programs.items()
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(outcomes(mr.MultiWorkerMirroredStrategy(deterministic=True), sys.argv[1])), flush=True)
