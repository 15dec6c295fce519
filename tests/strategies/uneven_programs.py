"""Programs whose results must not depend on the devices: collectives, state, gradients and calls of Python.

Each takes a strategy and a function that compiles (or not), and returns a structure of NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import mirrored as mr

Compile = Callable[[Any], Any]
PROGRAMS: dict[str, Callable[[Any, Compile], Any]] = {}
ON_READ = mr.VariableSynchronization.ON_READ


def program(function: Callable[[Any, Compile], Any]) -> Callable[[Any, Compile], Any]:
    PROGRAMS[function.__name__] = function
    return function


def values_of(strategy: Any, dtype: Any = np.float32, shape: tuple[int, ...] = (3,)) -> Any:
    """Different values on every replica, with fractions that round in sums."""

    def one(context: Any) -> Any:
        rng = np.random.default_rng(context.replica_id_in_sync_group)
        return (rng.normal(size=shape) * 10).astype(dtype)

    return strategy.experimental_distribute_values_from_function(one)


def parts(strategy: Any, value: Any) -> list[Any]:
    return [np.asarray(part) for part in strategy.experimental_local_results(value)]


def ran(strategy: Any, compile_: Compile, replica: Any, *args: Any) -> Any:
    return compile_(lambda *own: strategy.run(replica, args=own))(*args)


@program
def collectives(strategy: Any, compile_: Compile) -> Any:
    def replica(x: Any, n: Any) -> Any:
        context = mr.get_replica_context()
        reduced = [
            context.all_reduce(op, x) for op in ("sum", "mean", lambda all_: all_.min(0), lambda all_: all_.max(0))
        ]
        whole = [context.all_reduce("sum", n), context.all_reduce("mean", n), context.all_reduce(lambda a: a.max(0), n)]
        return reduced, whole, context.all_gather(x, 0), context.all_gather(x[None], 1)

    negative = values_of(strategy, np.int32)
    out = ran(strategy, compile_, replica, values_of(strategy), negative)
    return jax.tree.map(lambda one: parts(strategy, one), out, is_leaf=lambda one: isinstance(one, mr.PerReplica))


@program
def extremes_of_negative_numbers(strategy: Any, compile_: Compile) -> Any:
    def replica() -> Any:
        context = mr.get_replica_context()
        own = -1.0 - context.replica_id_in_sync_group
        lowest, highest = (context.all_reduce(op, own) for op in (lambda a: a.min(0), lambda a: a.max(0)))
        return lowest, highest, context.all_reduce("sum", jnp.int32(-2) - context.replica_id_in_sync_group)

    return [parts(strategy, one) for one in ran(strategy, compile_, replica)]


@program
def negative_zeros(strategy: Any, compile_: Compile) -> Any:
    def replica() -> Any:
        return mr.get_replica_context().all_reduce("sum", jnp.asarray([-0.0, 0.0]))

    return [np.signbit(part) for part in parts(strategy, ran(strategy, compile_, replica))]


@program
def zeros_divide(strategy: Any, compile_: Compile) -> Any:
    """Values from 1: a slot with zeros for inputs would divide by zero, and its loop would not end."""

    def replica(x: Any) -> Any:
        x = jnp.abs(x[0]) + 1
        grown = jax.lax.while_loop(lambda y: y < 1e6, lambda y: y * 2, x)
        return mr.get_replica_context().all_reduce("sum", grown / x + jnp.log(x))

    return parts(strategy, ran(strategy, compile_, replica, values_of(strategy)))


@program
def reductions_outside_run(strategy: Any, compile_: Compile) -> Any:
    def step(x: Any, n: Any) -> Any:
        x = strategy.run(lambda own: own * 1.5, args=(x,))
        reduced = [strategy.reduce(op, x, axis=axis) for op in ("sum", "mean") for axis in (None, 0, -1)]
        custom = [strategy.reduce(op, x, axis=None) for op in (lambda a: a.min(0), lambda a: jnp.median(a, axis=0))]
        return reduced, custom, strategy.reduce("sum", n, axis=None), strategy.gather(x, 0), strategy.gather(x, axis=1)

    out = compile_(step)(values_of(strategy, shape=(3, 2)), values_of(strategy, np.int8))
    return jax.tree.map(np.asarray, out)


@program
def merge_calls(strategy: Any, compile_: Compile) -> Any:
    def merged(strategy: Any, x: Any) -> Any:
        total = strategy.reduce("sum", x, axis=None)
        again = strategy.run(lambda own: own - total, args=(x,))
        return total, again, strategy.gather(x, 0), len(x.values), strategy.reduce("mean", again, axis=None)

    def replica(x: Any) -> Any:
        return mr.get_replica_context().merge_call(merged, args=(x,))

    out = ran(strategy, compile_, replica, values_of(strategy))
    return [parts(strategy, one) if isinstance(one, mr.PerReplica) else np.asarray(one) for one in out]


@program
def gradients_inside(strategy: Any, compile_: Compile) -> Any:
    with strategy.scope():
        w = mr.Variable(jnp.asarray([0.3, -1.7, 2.1]))

    def replica(x: Any) -> Any:
        context = mr.get_replica_context()
        with mr.GradientTape() as tape:
            tape.watch(x)
            gathered = context.all_gather(x * w, 0)
            mean = context.all_reduce("mean", jnp.sin(x * w))
            top = context.all_reduce(lambda a: a.max(0), x * w)
            loss = jnp.sum(gathered**2) * 0.01 + jnp.sum(mean * x) + jnp.sum(top)
        to_w, to_x = tape.gradient(loss, (w, x))
        return context.all_reduce("sum", to_w), to_x, loss

    return [parts(strategy, one) for one in ran(strategy, compile_, replica, values_of(strategy))]


@program
def gradients_outside(strategy: Any, compile_: Compile) -> Any:
    with strategy.scope():
        w = mr.Variable(jnp.asarray([0.3, -1.7, 2.1]))
        own = mr.Variable(jnp.asarray(0.7), synchronization=ON_READ, aggregation=mr.VariableAggregation.MEAN)

    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            losses = strategy.run(lambda a: jnp.sum(jnp.sin(a * w) * own), args=(x,))
            loss = strategy.reduce("mean", losses, axis=None)
        return loss, tape.gradient(loss, [w, own])

    return jax.tree.map(np.asarray, compile_(step)(values_of(strategy)))


@program
def gradients_of_infinite_derivatives(strategy: Any, compile_: Compile) -> Any:
    """The last replica's derivative is infinite: in an empty slot, whose cotangent is zero, it would be NaN."""
    with strategy.scope():
        w = mr.Variable(1.0)
    last = strategy.num_replicas_in_sync - 1

    def replica() -> Any:
        index = mr.get_replica_context().replica_id_in_sync_group
        return jnp.sqrt(w * jnp.where(index == last, 0.0, 1.0))

    def step() -> Any:
        with mr.GradientTape() as tape:
            loss = strategy.reduce("sum", strategy.run(lambda: jnp.sqrt(w - 1.0)), axis=None)
        return tape.gradient(loss, w), strategy.reduce("sum", strategy.run(replica), axis=None)

    return jax.tree.map(np.asarray, compile_(step)())


@program
def per_replica_state(strategy: Any, compile_: Compile) -> Any:
    with strategy.scope():
        kinds = mr.VariableAggregation
        own = [
            mr.Variable(jnp.zeros(2), synchronization=ON_READ, aggregation=kind)
            for kind in (kinds.SUM, kinds.MEAN, kinds.ONLY_FIRST_REPLICA)
        ]
        alone = mr.Variable(jnp.int32(3), synchronization=ON_READ, aggregation=kinds.NONE)

    def replica(x: Any) -> Any:
        for variable in own:
            variable.assign_add(x[:2])
        alone.assign_add(mr.get_replica_context().replica_id_in_sync_group)
        return alone.read_value()

    def step(x: Any) -> Any:
        before = strategy.run(replica, args=(x,))
        inside = [variable.read_value() for variable in own]
        own[1].assign(jnp.asarray([5.0, 7.0]))
        return before, inside

    x = values_of(strategy)
    before, inside = compile_(step)(x)
    compile_(lambda: own[0].assign(jnp.asarray([6.0, 1.0])))()
    ran(strategy, compile_, replica, x)
    own[2].values[-1].assign(jnp.asarray([9.0, 9.0]))
    components = [[np.asarray(one.read_value()) for one in variable.values] for variable in (*own, alone)]
    texts = [len(repr(variable).splitlines()) for variable in own]
    return parts(strategy, before), jax.tree.map(np.asarray, inside), components, [v.numpy() for v in own], texts


@program
def random_numbers(strategy: Any, compile_: Compile) -> Any:
    def replica(key: Any) -> Any:
        index = mr.get_replica_context().replica_id_in_sync_group
        return jax.random.normal(jax.random.fold_in(key, index), (2,)), index

    draws, ids = ran(strategy, compile_, replica, jax.random.key(3))
    return parts(strategy, draws), parts(strategy, ids)


@program
def calls_of_python(strategy: Any, compile_: Compile) -> Any:
    seen: list[int] = []
    printed: list[float] = []

    def note(index: Any) -> Any:
        seen.append(int(index))
        return np.float32(index) + 0.5

    def replica(x: Any) -> Any:
        index = mr.get_replica_context().replica_id_in_sync_group
        jax.debug.callback(lambda value: printed.append(round(float(value), 3)), x[0])
        noted = io_callback(note, jax.ShapeDtypeStruct((), jnp.float32), index)
        pure = jax.pure_callback(lambda value: np.float32(value) * 2, jax.ShapeDtypeStruct((), jnp.float32), noted)

        def body(carry: Any, _: Any) -> Any:
            jax.debug.callback(lambda value: printed.append(round(float(value), 3)), carry)
            return carry + 1, mr.get_replica_context().all_reduce("sum", carry) if compiled else carry

        compiled = not isinstance(index, int)
        total = jax.lax.scan(body, x[1], None, length=2)[0] if compiled else x[1] + 2
        if not compiled:
            printed.extend([round(float(x[1]), 3), round(float(x[1] + 1), 3)])
        return noted, pure, total

    out = ran(strategy, compile_, replica, values_of(strategy))
    results = [parts(strategy, one) for one in out]
    jax.effects_barrier()
    return results, sorted(seen), sorted(printed)


@program
def loops_with_collectives(strategy: Any, compile_: Compile) -> Any:
    def replica(x: Any) -> Any:
        context = mr.get_replica_context()

        def body(carry: Any, _: Any) -> Any:
            total = context.all_reduce("mean", jnp.sin(carry))
            everyone = context.all_gather(carry[None], 0)
            return carry * 0.5 + total, everyone.sum(0)

        loss = lambda x: sum(jnp.sum(one) for one in jax.lax.scan(body, x, None, length=3))  # noqa: E731
        return jax.grad(loss)(x)

    return parts(strategy, ran(strategy, compile_, replica, values_of(strategy)))


@program
def values_as_objects(strategy: Any, compile_: Compile) -> Any:
    x = ran(strategy, compile_, lambda own: own + 1, values_of(strategy))
    again = jax.tree.map(lambda leaf: leaf * 2, x)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    rows = len(leaves) if leaves[0].ndim == 1 else len(leaves[0])
    counts = len(x), len(x.values), rows, len(repr(x).splitlines())
    return parts(strategy, again), counts, ran(strategy, compile_, lambda own: own - 1, again).values


def plainly(function: Any) -> Any:
    return function


@program
def gradients_with_respect_to_per_replica_values(strategy: Any, compile_: Compile) -> Any:
    def step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = strategy.run(lambda own: jnp.sum(own**3), args=(x,))
            loss = strategy.reduce("mean", y, axis=None) + jnp.sum(strategy.gather(x, 0) ** 2)
        return tape.gradient(loss, x)

    return parts(strategy, compile_(step)(values_of(strategy)))


@program
def declared_results_and_nested_functions(strategy: Any, compile_: Compile) -> Any:
    equal, own = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("replica")

    @compile_
    def inner(x: Any) -> Any:
        return strategy.run(lambda a: a * 2, args=(x,))

    def replica(x: Any) -> Any:
        return mr.get_replica_context().all_reduce("sum", x), x

    step = compile_(lambda x: strategy.run(replica, args=(inner(x),), out_specs=(equal, own)))
    total, x = step(values_of(strategy))
    return np.asarray(total), parts(strategy, x)


@program
def values_that_a_function_closes_over(strategy: Any, compile_: Compile) -> Any:
    x = ran(strategy, compile_, lambda own: own * 2, values_of(strategy))
    others = {"y": values_of(strategy)}

    @compile_
    def step() -> Any:
        seen = jax.tree.map(lambda leaf: leaf + 1, others)["y"]
        total = strategy.reduce("sum", x, axis=0)
        return strategy.run(lambda a, b, c: a * b + c, args=(x, seen, total)), strategy.gather(x, 0)

    own, whole = step()
    return parts(strategy, own), np.asarray(whole)


@program
def control_flow_outside_run(strategy: Any, compile_: Compile) -> Any:
    def step(x: Any) -> Any:
        x = jax.lax.cond(jnp.sum(strategy.gather(x, 0)) > 1e9, lambda a: a, lambda a: jax.tree.map(jnp.negative, a), x)
        x = jax.lax.fori_loop(0, 2, lambda _, a: strategy.run(lambda own: own * 0.5 + 1, args=(a,)), x)
        return x, strategy.reduce("mean", x, axis=None), jax.jit(lambda a: strategy.experimental_local_results(a))(x)

    if compile_ is plainly:
        return ()
    x, mean, results = compile_(step)(values_of(strategy))
    return parts(strategy, x), np.asarray(mean), [np.asarray(one) for one in results]


@program
def state_in_merges_under_tapes(strategy: Any, compile_: Compile) -> Any:
    with strategy.scope():
        seen = mr.Variable(jnp.zeros(()), synchronization=ON_READ, aggregation=mr.VariableAggregation.SUM)
        mean = mr.Variable(jnp.zeros(()), trainable=False)

    def merged(strategy: Any, x: Any) -> Any:
        mean.assign(strategy.reduce("mean", x, axis=None))
        return strategy.reduce("sum", x, axis=None)

    def replica(x: Any) -> Any:
        with mr.GradientTape() as tape:
            tape.watch(x)
            own = jnp.sum(jnp.cos(x))
            seen.assign_add(own)
            total = mr.get_replica_context().merge_call(merged, args=(own,))
            product = total * own
        return tape.gradient(product, x), total

    gradient, total = ran(strategy, compile_, replica, values_of(strategy))
    components = [np.asarray(one.read_value()) for one in seen.values]
    return parts(strategy, gradient), parts(strategy, total), components, mean.numpy(), seen.numpy()


@program
def variables_created_in_run(strategy: Any, compile_: Compile) -> Any:
    made: list[Any] = []

    def replica(x: Any) -> Any:
        if not made:
            made.append(mr.Variable(jnp.zeros(3), synchronization=ON_READ, aggregation=mr.VariableAggregation.SUM))
        made[0].assign_add(x)
        return made[0].read_value()

    step = compile_(lambda x: strategy.run(replica, args=(x,)))
    with strategy.scope():
        out = [parts(strategy, step(values_of(strategy))) for _ in range(2)]
    return out, made[0].numpy(), [np.asarray(one.read_value()) for one in made[0].values]


@program
def uneven_batches(strategy: Any, compile_: Compile) -> Any:
    """The last batch is shorter: some replicas get fewer examples or none; padded, a mask marks the real ones."""
    rows = np.arange(2 * strategy.num_replicas_in_sync + 3, dtype=np.float32)
    dataset = mr.data.Dataset.from_tensor_slices(rows).batch(2 * strategy.num_replicas_in_sync)
    found = []
    for last in ("split", "drop"):
        step = compile_(lambda x: strategy.run(lambda own: jnp.sum(own) / 7 + own.shape[0], args=(x,)))
        options = mr.data.InputOptions(last_batch=last)
        found += [parts(strategy, step(x)) for x in strategy.experimental_distribute_dataset(dataset, options)]
    options = mr.data.InputOptions(last_batch="pad")
    masked = compile_(lambda x, mask: strategy.run(lambda a, m: jnp.sum(jnp.where(m, a, 0)), args=(x, mask)))
    found += [parts(strategy, masked(*batch)) for batch in strategy.experimental_distribute_dataset(dataset, options)]
    made = strategy.distribute_datasets_from_function(
        lambda context: mr.data.Dataset.from_tensor_slices(rows[: 4 * (len(rows) // 4)]).batch(4)
    )
    doubled = compile_(lambda x: strategy.run(lambda own: own * 2, args=(x,)))
    return found, [parts(strategy, doubled(x)) for x in made]


@program
def unequal_structures(strategy: Any, compile_: Compile) -> Any:
    def replica(x: Any, key: Any) -> Any:
        context = mr.get_replica_context()
        flags = x > 0
        everyone = context.all_gather(flags[None], 0)
        none = context.all_reduce("sum", {"a": x, "b": None})
        return everyone, none["a"], key, x.astype(jnp.bfloat16), jnp.zeros((0, 2)), "text", x.astype(jnp.complex64) * 1j

    keys = strategy.experimental_distribute_values_from_function(
        lambda context: jax.random.key(context.replica_id_in_sync_group)
    )
    flags, total, key, half, empty, text, imaginary = ran(strategy, compile_, replica, values_of(strategy), keys)
    data = [np.asarray(jax.random.key_data(one)) for one in strategy.experimental_local_results(key)]
    whole = compile_(lambda a: strategy.reduce("sum", a, axis=None))(imaginary)
    halves = compile_(lambda a: strategy.reduce("mean", a, axis=None))(half)
    shapes = [one.shape for one in parts(strategy, empty)]
    return (
        parts(strategy, flags),
        parts(strategy, total),
        data,
        shapes,
        text == "text",
        np.asarray(whole),
        (
            np.asarray(halves.astype(jnp.float32)),
            [part.astype(np.float32) for part in parts(strategy, half)],
        ),
    )
