"""`ReplicaContext`: all_reduce, all_gather, merge_call."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mirrored as mr
from mirrored.errors import ArgumentError, ContextError, MergeError, StructureError
from strategies.programs import fid, parts, per_replica, rid

few = pytest.mark.ways(replicas=(4,))


def context():
    return mr.get_replica_context()


def run(way, replica, *args):
    return way.compile(lambda *a: way.strategy.run(replica, args=a))(*args)


@pytest.fixture
def two():
    return mr.MirroredStrategy(["CPU:0", "CPU:1"])


# all_reduce


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.first(12)
def test_all_reduce(way, op):
    n = way.num_replicas
    total = sum(2.0 * r + 1 for r in range(n))
    result = run(way, lambda: context().all_reduce(op, 2 * fid() + 1))
    assert parts(way.strategy, result) == [total if op == "SUM" else total / n] * n


@few
def test_all_reduce_of_a_structure(way):
    def replica():
        tree = {"a": fid(), "b": [fid() + 1, jnp.ones(2)], "c": (jnp.asarray(rid(), jnp.int32), None, 2.0), "d": []}
        return context().all_reduce("SUM", tree)

    result = run(way, replica)
    ids = sum(range(way.num_replicas))
    assert parts(way.strategy, result["a"])[0] == ids
    assert parts(way.strategy, result["b"][0])[0] == ids + way.num_replicas
    assert parts(way.strategy, result["b"][1])[0] == [way.num_replicas] * 2
    assert parts(way.strategy, result["c"][0])[0] == ids
    assert parts(way.strategy, result["c"][2])[0] == 2.0 * way.num_replicas
    assert (result["c"][1], result["d"]) == (None, [])


@few
def test_reduced_and_gathered_dicts_keep_the_order_of_their_keys(way):
    def replica():
        tree = {"w": jnp.ones(1), "b": {"z": fid()[None], "a": None}}
        gathered = {"w": jnp.ones(1), "b": {"z": fid()[None], "a": jnp.ones(2)}}
        for found in (context().all_reduce("SUM", tree), context().all_gather(gathered, 0)):
            assert (list(found), list(found["b"])) == (["w", "b"], ["z", "a"])

    run(way, replica)


@few
def test_all_reduce_keeps_shapes_and_dtypes(way):
    def replica():
        # Times the id: XLA's CPU compiler (jaxlib 0.10.2) aborts on an all-reduce of a complex constant.
        shapes = [((2, 0), jnp.float32), ((3,), jnp.bfloat16), ((1, 2), jnp.int32), ((2,), jnp.complex64)]
        return context().all_reduce("SUM", [jnp.ones(*one) * jnp.asarray(rid(), one[1]) for one in shapes])

    results = [result.values[0] for result in run(way, replica)]
    assert [(r.shape, str(r.dtype)) for r in results] == [
        ((2, 0), "float32"),
        ((3,), "bfloat16"),
        ((1, 2), "int32"),
        ((2,), "complex64"),
    ]


@few
def test_integer_mean_is_fractional(way):
    n = way.num_replicas
    result = run(way, lambda: context().all_reduce("MEAN", jnp.asarray(rid(), jnp.int32)))
    assert parts(way.strategy, result) == [(n - 1) / 2] * n


@pytest.mark.parametrize("op", ["MAX", None, 4], ids=str)
def test_all_reduce_refuses_what_is_no_reduction(two, op):
    with pytest.raises(ArgumentError, match="ReduceOp"):
        two.run(lambda: context().all_reduce(op, fid()))


@few
def test_all_reduce_under_a_transform_inside_the_replica(way):
    """Compiled, on every layout. In eager runs a loop is a program of one replica, which cannot wait for others."""
    x = per_replica(way.strategy, [1.0 + r for r in range(way.num_replicas)])

    def replica(y):
        return lax.scan(lambda c, _: (context().all_reduce("SUM", c), None), y, None, length=2)[0]

    if not way.is_eager:
        total = sum(1.0 + r for r in range(way.num_replicas))
        assert parts(way.strategy, run(way, replica, x)) == [total * way.num_replicas] * way.num_replicas
        return
    with pytest.raises(MergeError, match=r"in a jitted function, loop or branch[\s\S]*mirrored.function"):
        run(way, replica, x)


def test_all_reduce_in_a_loop_of_a_compiled_step_at_an_uneven_batch():
    """The error advised to compile the step, which was compiled."""
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def replica(x):
        return lax.scan(lambda c, _: (context().all_reduce("SUM", c), None), jnp.sum(x), None, length=2)[0]

    step = mr.function(lambda x: strategy.run(replica, args=(x,)))
    rows = mr.data.Dataset.from_tensor_slices(np.ones(7, np.float32)).batch(4)
    even, uneven = strategy.experimental_distribute_dataset(rows)
    assert parts(strategy, step(even)) == [8.0, 8.0]
    with pytest.raises(MergeError, match=r"batches of equal shapes \(last_batch='pad' or 'drop'\)"):
        step(uneven)
    options = mr.InputOptions(last_batch="pad")
    assert len([step(batch) for batch, _ in strategy.experimental_distribute_dataset(rows, options)]) == 2


def test_all_reduce_outside_any_strategy():
    assert float(context().all_reduce("SUM", jnp.float32(2.0))) == 2.0


# all_gather


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@few
@pytest.mark.first(7)
def test_all_gather_along_each_axis(way, axis):
    single = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    result = run(way, lambda: context().all_gather(single + 10 * fid(), axis))
    expected = np.concatenate([single + 10.0 * r for r in range(way.num_replicas)], axis)
    assert parts(way.strategy, result) == [expected.tolist()] * way.num_replicas


@few
def test_all_gather_of_a_structure(way):
    result = run(way, lambda: context().all_gather([jnp.full(1, fid()), {"k": jnp.full((2, 1), fid())}], axis=0))
    ids = [1.0 * r for r in range(way.num_replicas)]
    assert parts(way.strategy, result[0])[1] == ids
    assert parts(way.strategy, result[1]["k"])[1] == [[i] for i in ids for _ in range(2)]


def test_all_gather_of_uneven_sizes(two):
    result = two.run(lambda: context().all_gather(jnp.full(rid() + 1, fid()), 0))
    assert parts(two, result) == [[0.0, 1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("value", "axis"),
    [(lambda: fid(), 0), (lambda: jnp.ones((1, 2)), 2), (lambda: jnp.ones(1), -2)],
    ids=["scalar", "above", "below"],
)
def test_all_gather_refuses_scalars_and_axes_out_of_range(two, value, axis):
    with pytest.raises(ArgumentError, match=rf"all_gather: axis={axis} for a value of shape"):
        two.run(lambda: context().all_gather(value(), axis))


# merge_call


@few
def test_how_arguments_arrive_and_results_leave(way):
    seen = []
    shared = object()

    def merge(strategy, a, b, k=None):
        seen.append((strategy is way.strategy, type(a), b, type(k["z"]), mr.in_cross_replica_context()))
        return a, strategy.reduce("MEAN", a, axis=None), b, shared

    def replica():
        return context().merge_call(merge, args=(fid(), "same"), kwargs={"k": {"z": [rid()][0] * 1}})

    a, mean, text, same = run(way, replica)
    n = way.num_replicas
    assert len(seen) == 1
    assert (seen[0][0], seen[0][2], seen[0][4]) == (True, "same", True)
    assert issubclass(seen[0][1], mr.PerReplica)
    assert parts(way.strategy, a) == [1.0 * r for r in range(n)]
    assert np.unique(parts(way.strategy, mean)).tolist() == [(n - 1) / 2]
    assert (text, same is shared) == ("same", True)


@pytest.mark.ways(modes=("eager", "folded"), replicas=(4,))
def test_the_merge_runs_once_after_all_have_arrived(way):
    log = []

    def replica():
        log.append("before")
        context().merge_call(lambda strategy: log.append("merge"))
        log.append("after")

    run(way, replica)
    local = way.num_replicas if way.is_eager else way.num_replicas // way.num_devices
    assert log == ["before"] * local + ["merge"] + ["after"] * local


@few
def test_merges_in_sequence(way):
    def replica():
        def total(strategy, x):
            return strategy.reduce("SUM", x, axis=None)

        first = context().merge_call(total, args=(fid() + 1,))
        return context().merge_call(total, args=(first * (fid() + 1),)) + fid()

    n = way.num_replicas
    ranks = n * (n + 1) / 2
    assert parts(way.strategy, run(way, replica)) == [ranks**2 + r for r in range(n)]


@few
def test_run_and_gather_inside_a_merge(way):
    def replica():
        def merge(strategy, x):
            again = strategy.run(lambda y: y + 10 * fid(), args=(x,))
            return strategy.gather(x, axis=0), again

        return context().merge_call(merge, args=(jnp.full(1, fid()),))

    gathered, again = run(way, replica)
    n = way.num_replicas
    assert np.unique(parts(way.strategy, gathered), axis=0)[0].tolist() == [1.0 * r for r in range(n)]
    assert parts(way.strategy, again) == [[11.0 * r] for r in range(n)]


@few
def test_variables_in_a_merge_are_those_of_the_run(way):
    with way.strategy.scope():
        v = mr.Variable(1.0)

    def replica():
        v.assign_add(1.0)

        def merge(strategy):
            v.assign(v * 10)
            strategy.run(lambda: v.assign_add(1.0))
            return v.read_value()

        return context().merge_call(merge), v.read_value()

    merged, read = run(way, replica)
    assert np.unique(parts(way.strategy, merged)).tolist() == [21.0]
    assert parts(way.strategy, read) == [21.0] * way.num_replicas
    assert float(v) == 21.0


@few
def test_an_exception_in_a_merge_reaches_the_caller_and_changes_nothing(way):
    with way.strategy.scope():
        v = mr.Variable(1.0)

    def merge(strategy):
        v.assign(5.0)
        strategy.run(lambda: v.assign(6.0))
        raise ZeroDivisionError("in the merge")

    with pytest.raises(ZeroDivisionError, match="in the merge"):
        run(way, lambda: context().merge_call(merge))
    assert float(v) == 1.0
    assert parts(way.strategy, run(way, fid)) == [1.0 * r for r in range(way.num_replicas)]


@few
def test_an_exception_in_a_run_inside_a_merge(way):
    def inner():
        raise ZeroDivisionError("nested")

    with pytest.raises(ZeroDivisionError, match="nested"):
        run(way, lambda: context().merge_call(lambda strategy: strategy.run(inner)))


@pytest.mark.ways(modes=("folded",), replicas=(4,))
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: jax.jit(f)(x),
        lambda f, x: lax.cond(x > 0, f, f, x),
        lambda f, x: jax.vmap(f)(x[None]),
        lambda f, x: jax.grad(lambda y: f(y))(x),
    ],
    ids=["jit", "cond", "vmap", "grad"],
)
def test_merges_under_transforms_are_refused_where_replicas_share_a_process(way, transform):
    with pytest.raises(MergeError, match=r"merge_call\(merge\): it was called under a JAX transform"):
        run(way, lambda: transform(lambda x: context().merge_call(merge, args=(x,)), fid()))


def merge(strategy, x):
    return strategy.reduce("SUM", x, axis=None)


def test_a_merge_in_a_thread_of_the_users_own_is_refused(two):
    errors = []

    def replica():
        def other(here):
            with here, pytest.raises(ContextError, match="it was called outside its run") as caught:
                here.merge_call(merge, args=(jnp.ones(()),))
            errors.append(caught.value)

        thread = threading.Thread(target=other, args=(context(),))
        thread.start()
        thread.join()

    two.run(replica)
    assert len(errors) == 2


def test_a_context_entered_by_hand_only_says_where_it_is(two):
    with mr.ReplicaContext(two, 1):
        assert (rid(), context().num_replicas_in_sync, mr.in_cross_replica_context()) == (1, 2, False)
        with pytest.raises(ContextError, match="it was called outside its run"):
            context().all_reduce("SUM", jnp.ones(()))
    assert rid() == 0


def test_contexts_are_not_usable_after_the_run(two):
    kept = []
    two.run(lambda: kept.append(context()))
    for use in (
        lambda: kept[0].merge_call(lambda strategy: 1),
        lambda: kept[0].all_reduce("SUM", jnp.ones(())),
        lambda: kept[0].all_gather(jnp.ones(1), 0),
    ):
        with pytest.raises(ContextError, match="it was called outside its run"):
            use()


def test_contexts_of_another_strategy_are_refused():
    one, other = mr.MirroredStrategy(["CPU:0", "CPU:1"]), mr.MirroredStrategy(["CPU:2", "CPU:3"])
    kept = []
    one.run(lambda: kept.append(context()))
    with pytest.raises(ContextError, match="the context of another strategy's replica"):
        other.run(lambda: kept[0].all_reduce("SUM", jnp.ones(())))


# Attributes


@few
def test_attributes(way):
    ids, counts = run(way, lambda: (jnp.asarray(rid()), jnp.asarray(context().num_replicas_in_sync)))
    assert parts(way.strategy, ids) == list(range(way.num_replicas))
    assert parts(way.strategy, counts) == [way.num_replicas] * way.num_replicas


def test_devices_and_repr(two):
    devices = two.run(lambda: context().devices[0])
    assert [device[-5:] for device in devices.values] == ["CPU:0", "CPU:1"]
    seen = []
    two.run(lambda: seen.append(repr(context())))
    mr.function(lambda: two.run(lambda: seen.append(repr(context()))))()
    assert seen == [
        "ReplicaContext(replica 0 of 2)",
        "ReplicaContext(replica 1 of 2)",
        "ReplicaContext(replica traced of 2)",
    ]


def test_the_default_context():
    default = context()
    assert default.strategy is mr.get_strategy()
    assert (default.num_replicas_in_sync, default.replica_id_in_sync_group) == (1, 0)
    assert default.merge_call(lambda s, a, k: (s is mr.get_strategy(), a + k), args=(7,), kwargs={"k": 1}) == (True, 8)
    assert default.all_gather(jnp.ones(2), 0).tolist() == [1.0, 1.0]


def test_branching_on_the_replica_id_names_the_alternatives():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        mr.function(lambda: strategy.run(lambda: 1 if rid() == 0 else 2))()
    note = "".join(caught.value.__notes__)
    assert "replica_id_in_sync_group" in note
    assert "jnp.where" in note
    assert "lax.cond" in note


@pytest.mark.parametrize("taped", [False, True], ids=["plain", "under a tape"])
def test_all_reduce_of_values_that_some_replicas_lack(taped):
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    def replica_step():
        context = mr.get_replica_context()
        first = context.replica_id_in_sync_group == 0
        one, other = jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])
        if not taped:
            return context.all_reduce("SUM", [one, None, None] if first else [None, other, None])
        with mr.GradientTape() as tape:
            tape.watch([one, other])
            sums = context.all_reduce("SUM", [one, None, None] if first else [None, other, None])
            loss = jnp.sum(sums[0] * 3.0 + sums[1] * 5.0)
        return [*sums, tape.gradient(loss, one if first else other)]

    results = strategy.run(replica_step)
    local = [strategy.experimental_local_results(result) for result in results[:2]]
    assert [[part.tolist() for part in parts] for parts in local] == [[[1.0, 2.0]] * 2, [[10.0, 20.0]] * 2]
    assert results[2] is None
    if taped:
        gradients = strategy.experimental_local_results(results[3])
        assert [gradient.tolist() for gradient in gradients] == [[6.0, 6.0], [10.0, 10.0]]


def test_all_reduce_of_structures_that_differ(two):
    def replica_step():
        first = mr.get_replica_context().replica_id_in_sync_group == 0
        return mr.get_replica_context().all_reduce("SUM", [jnp.ones(2)] * (2 if first else 3))

    with pytest.raises(StructureError, match=r"\(\[\*, \*\]\), and replica 1 with the structure PyTreeDef\(\[\*, \*, "):
        two.run(replica_step)


def test_a_gradient_through_a_collective_that_another_tape_of_an_eager_run_records(two):
    """It was said to be in a jitted function; under a tape around the run the remedy ended in a bare AssertionError."""
    with two.scope():
        w = mr.Variable(2.0)

    def gradient():
        y = jax.grad(lambda z: context().all_reduce("SUM", z) ** 2)(3.0 * w)
        return y**2

    def inside():
        with mr.GradientTape() as tape:
            loss = gradient()
        return tape.gradient(loss, w)

    def around():
        with mr.GradientTape() as tape:
            loss = two.reduce("SUM", two.run(gradient), axis=None)
        return tape.gradient(loss, w)

    expected = parts(two, mr.function(lambda: two.run(inside))())
    with pytest.raises(MergeError, match="in a gradient .* that another tape records"):
        two.run(inside)
    with pytest.raises(MergeError, match="in a gradient .* that another tape records"):
        around()
    with jax.disable_jit():
        assert parts(two, two.run(inside)) == expected
        with pytest.raises(MergeError, match="open the tape inside the function given to run"):
            around()
    assert float(mr.function(around)()) == sum(expected)
