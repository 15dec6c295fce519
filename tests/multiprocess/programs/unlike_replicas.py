"""Eager replicas that do not do the same: ``unlike_replicas.py``; gives what does not depend on the workers."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import mirrored as mr


def _replica() -> int:
    return mr.get_replica_context().replica_id_in_sync_group


def _numbers(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    with strategy.scope():
        mean = mr.Variable(0.0, aggregation="MEAN", name="mean")
        total = mr.Variable(0.0, aggregation="SUM", name="total")
        count = mr.Variable(0, aggregation="SUM", name="count")
        first = mr.Variable(0.0, aggregation="ONLY_FIRST_REPLICA", name="first")

    def assign() -> None:
        loss = float(jnp.float32(_replica() + 1))
        mean.assign(loss)
        total.assign(loss)
        count.assign_add(3 if _replica() else 2)
        first.assign(loss)

    strategy.run(assign)
    found = {variable.name: float(variable.numpy()) for variable in (mean, total, count, first)}
    strategy.run(lambda: mean.assign(4.0))
    try:
        strategy.run(lambda: total.assign(5.0))
    except mr.errors.VariableError as error:  # one number, and not one per replica
        found["refused"] = error.found
    return {**found, "equal": float(mean.numpy())}


def _missing_gradients(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    with strategy.scope():
        a, b, c = (mr.Variable(jnp.ones(3), name=name) for name in "abc")

    def gradients() -> Any:
        with mr.GradientTape() as tape:  # each replica uses a head of its own
            loss = jnp.sum(b) * 10.0 if _replica() else jnp.sum(a)
        return mr.get_replica_context().all_reduce("SUM", tape.gradient(loss, [a, b, c]))

    reduced = strategy.run(gradients)
    return {
        "gradients": [
            None if one is None else np.asarray(strategy.experimental_local_results(one)[0]).tolist() for one in reduced
        ]
    }


def _updates_of_one_name(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """Each replica has the gradient of one of three variables with one name; nothing updates the third."""
    with strategy.scope():
        variables = [mr.Variable(1.0, name="w") for _ in range(3)]
        optimizer = mr.optimizers.Optimizer(optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.5)))

    def update() -> None:
        gradients = [None, jnp.float32(10.5), None] if _replica() else [jnp.float32(0.5), None, None]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the third variable
        strategy.run(update)
    return {"updated": [float(variable.numpy()) for variable in variables]}


def _updates_in_another_order(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """The replicas pass their pairs in different orders; one replica lacks a gradient of bfloat16."""
    with strategy.scope():
        a, b, c = variables = [mr.Variable(jnp.ones(2), name=name) for name in ("a", "b", "c")]
        optimizer = mr.optimizers.SGD(1.0, momentum=0.5)

    def update() -> None:
        pairs = [(jnp.full(2, 1.0), a), (jnp.full(2, 10.0), b), (jnp.full(2, 4.0, jnp.bfloat16), c)]
        optimizer.apply_gradients([(None, c), *reversed(pairs[:2])] if _replica() else pairs)

    strategy.run(update)
    return {"in another order": [variable.numpy()[0].item() for variable in variables]}


def _generated_names(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """A worker has created more variables without a name than the other, and they assign variables in other orders."""
    for _ in range(jax.process_index()):
        mr.Variable(0.0)
    plain = mr.Variable(2.0)
    with strategy.scope():
        variables = [mr.Variable(0.0) for _ in range(4)]

    def assign() -> None:
        for variable in reversed(variables) if _replica() else variables:
            variable.assign(plain * 2.0)

    strategy.run(assign)
    total = mr.function(lambda: strategy.run(lambda: plain + sum(variables)))()
    return {"unnamed": float(strategy.experimental_local_results(total)[0])}


def _under_a_tape(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """The tape of one replica records an all-reduce of arrays that the other one lacks."""
    with strategy.scope():
        weight = mr.Variable(jnp.ones(3), name="weight")

    def reduced() -> Any:
        with mr.GradientTape():
            return mr.get_replica_context().all_reduce("SUM", [weight * 2.0 if _replica() else None])[0]

    return {"taped": np.asarray(strategy.experimental_local_results(strategy.run(reduced))[0]).tolist()}


def _gathered_keys(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """Each replica has as many PRNG keys as the others, or more of them."""

    def keys(most: int) -> Any:
        return jax.random.split(jax.random.key(_replica()), most if _replica() else 1)

    def all_gathered(most: int) -> Any:
        return mr.get_replica_context().all_gather(keys(most), axis=0)

    found = [strategy.gather(strategy.run(keys, args=(most,)), axis=0) for most in (1, 2)]
    found += [strategy.experimental_local_results(strategy.run(all_gathered, args=(most,)))[0] for most in (1, 2)]
    return {"keys": [np.asarray(jax.random.key_data(one)).tolist() for one in found]}


def _equal_to_arguments(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """Replica 1 makes numbers that are the same objects as arguments, the other one makes others."""

    def numbers(count: int, is_last: bool, rate: float) -> dict[str, Any]:
        own = 3 if _replica() else 2
        context = mr.get_replica_context()
        merged = context.merge_call(lambda _, n: strategy.reduce("SUM", n, axis=None), args=(own,))
        return {"count": own, "rate": 0.5 if _replica() else 0.25, "given": [count, is_last, rate], "merged": merged}

    found = strategy.run(numbers, args=(3, True, 0.5))
    return {
        "given": found["given"],
        "sums": [float(strategy.reduce("SUM", found[name], axis=None)) for name in ("count", "rate")],
        "merged": float(strategy.experimental_local_results(found["merged"])[0]),
    }


def _from_a_merge(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """Replica 1 makes a number that is the same object as the result of a merge."""

    def number() -> Any:
        step = mr.get_replica_context().merge_call(lambda _: 7)
        return step, 7 if _replica() else 8

    step, own = strategy.run(number)
    return {"step": step, "sum": float(strategy.reduce("SUM", own, axis=None))}


def _from_a_merge_of_one_worker(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    """The function of a merge returns a number on one worker, and None or an array on the others."""

    def merged(other: Any) -> Any:
        mr.get_replica_context().merge_call(lambda _: other if jax.process_index() else 7)
        return jnp.float32(_replica())

    results = [strategy.run(lambda: merged(None)), strategy.run(lambda: merged(jnp.ones(())))]
    return {"of one worker": [float(strategy.reduce("SUM", one, axis=None)) for one in results]}


def outcome(strategy: mr.MirroredStrategy) -> dict[str, Any]:
    return {
        **_numbers(strategy),
        **_missing_gradients(strategy),
        **_updates_of_one_name(strategy),
        **_updates_in_another_order(strategy),
        **_generated_names(strategy),
        **_under_a_tape(strategy),
        **_gathered_keys(strategy),
        **_equal_to_arguments(strategy),
        **_from_a_merge(strategy),
        **_from_a_merge_of_one_worker(strategy),
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(outcome(mr.MultiWorkerMirroredStrategy())), flush=True)
