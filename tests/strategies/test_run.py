"""`Strategy.run`: what goes in, how it runs, what comes out."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ArgumentError, ContextError, MergeError, StructureError
from mirrored.testing import assert_same_bits
from strategies.programs import fid, parts, per_replica, rid

few = pytest.mark.ways(replicas=(4,))
Pair = collections.namedtuple("Pair", ["a", "b"])
SHARED = object()


# Arguments and results


def test_replica_ids(way):
    step = way.compile(lambda: way.strategy.run(lambda: fid() + 1.0))
    assert parts(way.strategy, step()) == [r + 1.0 for r in range(way.num_replicas)]


@few
def test_positional_and_keyword_arguments(way):
    a = per_replica(way.strategy, [1.0 * i for i in range(way.num_replicas)])
    b = per_replica(way.strategy, [10.0 * i for i in range(way.num_replicas)])
    step = way.compile(lambda a, b: way.strategy.run(lambda x, y: x + 2 * y + 2, args=[a], kwargs={"y": b}))
    assert parts(way.strategy, step(a, b)) == [21.0 * r + 2.0 for r in range(way.num_replicas)]


@few
def test_deep_arguments_are_split_and_structures_kept(way):
    x = per_replica(way.strategy, [[1.0 * i, 2.0] for i in range(way.num_replicas)])

    def replica(tree, plain):
        return {"sum": Pair(jnp.sum(tree["x"][0]), tree["x"][1]), "list": [plain * tree["x"][0], (None, "text")]}

    step = way.compile(lambda x: way.strategy.run(replica, args=({"x": [x, 3]}, jnp.float32(2.0))))
    result = step(x)
    assert type(result["sum"]) is Pair
    assert parts(way.strategy, result["sum"].a) == [r + 2.0 for r in range(way.num_replicas)]
    assert result["sum"].b == 3
    assert parts(way.strategy, result["list"][0]) == [[2.0 * r, 4.0] for r in range(way.num_replicas)]
    assert result["list"][1] == (None, "text")


@few
def test_the_very_same_object_stays_itself(way):
    x = jnp.ones(3)
    step = way.compile(lambda: way.strategy.run(lambda: (SHARED, None, "a", 5, 1.5, x)))
    shared, none, text, integer, number, array = step()
    assert shared is SHARED
    assert (none, text, integer, number) == (None, "a", 5, 1.5)
    assert isinstance(array, jax.Array)


@few
def test_plain_values_reach_every_replica(way):
    step = way.compile(lambda x: way.strategy.run(lambda a, b, c: a * (fid() + 1) + b[0] + c, args=(x, np.ones(2), 1)))
    expected = [[r + 3.0, 2 * (r + 1) + 2.0] for r in range(way.num_replicas)]
    assert parts(way.strategy, step(jnp.array([1.0, 2.0]))) == expected


@few
def test_a_plain_argument_handed_back_is_itself_or_per_replica_when_changed(way):
    x = jnp.ones(2)
    step = way.compile(lambda x: way.strategy.run(lambda a: (a, a + 0), args=(x,)))
    same, changed = step(x)
    assert isinstance(same, jax.Array)
    assert isinstance(changed, mr.PerReplica)


@few
def test_results_of_replicas_are_per_replica_even_where_equal(way):
    with way.strategy.scope():
        v = mr.Variable(2.0)

    def replica():
        total = mr.get_replica_context().all_reduce("SUM", jnp.ones(2))
        return v.read_value(), v + 1, jnp.ones(2), total

    results = way.compile(lambda: way.strategy.run(replica))()
    assert [type(result) for result in results] == [mr.PerReplica] * 4
    assert parts(way.strategy, results[3]) == [[float(way.num_replicas)] * 2] * way.num_replicas


@few
def test_results_feed_the_next_run(way):
    def step(x):
        for _ in range(3):
            x = way.strategy.run(lambda a: a * 2 + 1, args=(x,))
        return x

    x = way.strategy.run(fid)
    assert parts(way.strategy, way.compile(step)(x)) == [8.0 * r + 7 for r in range(way.num_replicas)]


@pytest.mark.ways(modes=("eager", "compiled"), replicas=(1,))
def test_one_replica_returns_exactly_what_the_function_returns(way):
    result = way.compile(lambda: way.strategy.run(lambda: {"x": fid() + 1.0, "y": [jnp.ones(2)], "z": SHARED}))()
    assert isinstance(result["x"], jax.Array)
    assert result["y"][0].tolist() == [1.0, 1.0]
    assert result["z"] is SHARED


@dataclasses.dataclass
class Batch:
    x: jax.Array
    kind: str


jax.tree_util.register_dataclass(Batch, data_fields=["x"], meta_fields=["kind"])


@few
def test_dataclass_pytrees(way):
    batch = Batch(per_replica(way.strategy, [[1.0 * r] for r in range(way.num_replicas)]), "train")
    step = way.compile(lambda b: way.strategy.run(lambda one: Batch(one.x + 1, one.kind + "ed"), args=(b,)))
    result = step(batch)
    assert result.kind == "trained"
    assert parts(way.strategy, result.x) == [[r + 1.0] for r in range(way.num_replicas)]


@pytest.mark.ways(modes=("eager",), replicas=(4,))
def test_eager_replicas_run_in_order_each_on_its_own_device(way):
    seen = []

    def replica(x):
        seen.append((int(rid()), threading.current_thread() is threading.main_thread()))
        return x + 1, jnp.ones(())

    given, made = way.strategy.run(replica, args=(jnp.ones(2),))
    assert seen == [(r, False) for r in range(4)]
    for result in (given, made):
        assert [c.devices() for c in way.strategy.local_results(result)] == [
            {d} for d in way.strategy.device_assignment.devices
        ]


@pytest.mark.ways(modes=("eager",), replicas=(4,))
def test_eager_replicas_may_branch_print_and_differ_in_shape(way):
    def replica():
        return jnp.zeros(rid()) if rid() % 2 else None

    result = way.strategy.run(replica)
    assert [None if c is None else c.shape for c in result.values] == [None, (1,), None, (3,)]


def test_ragged_arguments_run_eagerly_with_one_notice(caplog):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    ragged = strategy.run(lambda: jnp.ones(rid() + 1))
    step = mr.function(lambda x: strategy.run(lambda y: jnp.sum(y), args=(x,)), name="step")
    with caplog.at_level(logging.WARNING, logger="mirrored"):
        assert parts(strategy, step(ragged)) == [1.0, 2.0]
        assert parts(strategy, step(ragged)) == [1.0, 2.0]
    notices = [message for message in caplog.messages if "last_batch='pad'" in message]
    assert len(notices) == 1
    assert step.trace_count == 0


# Errors


@pytest.mark.parametrize("args", [3, None, jnp.ones(2), "ab", {"a": 1}], ids=["int", "None", "array", "str", "dict"])
def test_args_must_be_a_list_or_tuple(args):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(ArgumentError, match=r"Strategy\.run: args=[\s\S]*args=\(x,\)"):
        strategy.run(lambda *a: a, args=args)


@few
def test_an_exception_keeps_its_type_and_leaves_no_thread(way):
    seen = []

    def replica():
        seen.append(1)
        mr.get_replica_context().merge_call(lambda strategy: None)
        raise ZeroDivisionError("from the replica")

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="from the replica"):
        way.compile(lambda: way.strategy.run(replica))()
    assert threading.active_count() == before
    assert mr.get_strategy().device_assignment is None
    assert not mr.in_cross_replica_context()
    assert parts(way.strategy, way.strategy.run(fid)) == [1.0 * r for r in range(way.num_replicas)]


@pytest.mark.ways(modes=("eager",), replicas=(4,))
def test_the_first_failing_replica_stops_the_run(way):
    seen = []

    def replica():
        seen.append(rid())
        if rid() == 1:
            raise KeyError("boom")

    with pytest.raises(KeyError, match="boom"):
        way.strategy.run(replica)
    assert seen == [0, 1]


@pytest.mark.ways(modes=("eager",), replicas=(2,))
@pytest.mark.parametrize(
    "result",
    [lambda r: {f"k{r}": 1}, lambda r: list(range(r)), lambda r: (1, 2) if r else [1, 2]],
    ids=["keys", "lengths", "tuple and list"],
)
def test_structures_that_differ_are_refused(way, result):
    with pytest.raises(StructureError, match=r"Strategy\.run: replica 0 returned [\s\S]*and replica 1 returned"):
        way.strategy.run(lambda: result(rid()))


def test_results_that_are_no_arrays_are_refused_in_compiled_code():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with pytest.raises(StructureError, match="the replicas returned object, object for the same leaf"):
        mr.function(lambda: strategy.run(object))()


@few
def test_nothing_is_half_assigned_after_an_error(way):
    with way.strategy.scope():
        a, b = mr.Variable(0.0, aggregation="MEAN"), mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    plain = mr.Variable(0.0)

    def replica():
        a.assign(fid() + 1)
        b.assign_add(1.0)
        if not way.is_eager:
            plain.assign(5.0)
        mr.get_replica_context().merge_call(lambda strategy: a.assign_add(1.0, read_value=False))
        raise KeyError("late")

    with pytest.raises(KeyError, match="late"):
        way.compile(lambda: way.strategy.run(replica))()
    assert (float(a), float(b), float(plain)) == (0.0, 0.0, 0.0)


def test_a_keyboard_interrupt_unwinds_all_replicas():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(0.0)
    cleaned = []

    def replica():
        try:
            v.assign(5.0)
            if rid() == 1:
                raise KeyboardInterrupt
            mr.get_replica_context().merge_call(lambda s: None)
        finally:
            cleaned.append(rid())

    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        strategy.run(replica)
    assert sorted(cleaned) == [0, 1]
    assert threading.enumerate() == before
    assert float(v) == 0.0


# Contexts


@few
def test_the_context_inside(way):
    seen = []

    def replica():
        context = mr.get_replica_context()
        seen.append(
            (
                context.num_replicas_in_sync,
                context.strategy is way.strategy,
                mr.in_cross_replica_context(),
                mr.has_strategy(),
                mr.get_strategy() is way.strategy,
            )
        )

    way.compile(lambda: way.strategy.run(replica))()
    assert set(seen) == {(way.num_replicas, True, False, True, True)}


CROSS_REPLICA = {
    "run": lambda s, x: s.run(lambda: 1),
    "scope": lambda s, x: s.scope().__enter__(),
    "reduce": lambda s, x: s.reduce("SUM", x, axis=None),
    "gather": lambda s, x: s.gather(x, axis=0),
    "extended.reduce_to": lambda s, x: s.extended.reduce_to("SUM", x, "CPU:0"),
    "experimental_distribute_dataset": lambda s, x: s.experimental_distribute_dataset([np.ones(4)]),
    "distribute_datasets_from_function": lambda s, x: s.distribute_datasets_from_function(lambda c: [np.ones(4)]),
    "experimental_distribute_values_from_function": lambda s, x: s.distribute_values_from_function(lambda c: 1),
}


@pytest.mark.parametrize("method", CROSS_REPLICA)
@pytest.mark.ways(modes=("eager", "compiled"), replicas=(2,))
def test_cross_replica_methods_are_refused_inside_a_replica(way, method):
    x = per_replica(way.strategy, [[1.0], [2.0]])
    use = CROSS_REPLICA[method]
    with pytest.raises(ContextError, match=rf"Strategy\.{method}: it was called inside a replica[\s\S]*merge_call"):
        way.compile(lambda: way.strategy.run(lambda: use(way.strategy, x)))()


# Functions and runs


@pytest.mark.ways(modes=("compiled", "folded"))
def test_the_function_given_to_run_is_traced_once_per_local_replica(way):
    traces = []

    def replica(x):
        traces.append(1)
        return x * 2

    step = way.compile(lambda x: way.strategy.run(replica, args=(x,)))
    for shift in range(3):
        x = per_replica(way.strategy, [1.0 * i + shift for i in range(way.num_replicas)])
        expected = [2.0 * (i + shift) for i in range(way.num_replicas)]
        assert parts(way.strategy, step(x)) == expected
    assert len(traces) == way.num_replicas // way.num_devices
    assert step.trace_count == 1


@pytest.mark.parametrize("num_replicas", [1, 2, 8])
def test_run_of_a_function_is_compiled_as_a_whole(num_replicas):
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    with strategy.scope():
        v = mr.Variable(0.0, aggregation="MEAN")
    traces = []

    @mr.function
    def replica(x):
        traces.append(1)
        v.assign_add(x)
        return fid() + x

    x = per_replica(strategy, [1.0 * i for i in range(num_replicas)])
    for count in range(1, 4):
        result = strategy.run(replica, args=(x,))
        assert parts(strategy, result) == [2.0 * i for i in range(num_replicas)]
        assert float(v) == pytest.approx(count * (num_replicas - 1) / 2)
    assert len(traces) == replica.trace_count == 1


def test_run_of_a_function_with_a_signature():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    @mr.function(input_signature=[jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)])
    def replica(x, scale):
        return jnp.sum(x) * scale

    x = per_replica(strategy, [np.ones(2, np.float32), np.zeros(2, np.float32)])
    assert parts(strategy, strategy.run(replica, args=(x,), kwargs={"scale": 3.0})) == [6.0, 0.0]
    with pytest.raises(ArgumentError, match=r"argument 1 is float32\[1\][\s\S]*float32\[\]"):
        strategy.run(replica, args=(x, jnp.ones(1)))


@few
def test_a_function_inside_a_replica_joins_it(way):
    with way.strategy.scope():
        v = mr.Variable(0.0, aggregation="SUM")

    @mr.function
    def inner(x):
        total = mr.get_replica_context().all_reduce("SUM", x)
        v.assign_add(x)
        return total

    step = way.compile(lambda x: way.strategy.run(lambda y: inner(y) + y, args=(x,)))
    total = sum(range(way.num_replicas))
    x = per_replica(way.strategy, [1.0 * i for i in range(way.num_replicas)])
    assert parts(way.strategy, step(x)) == [total + 1.0 * i for i in range(way.num_replicas)]
    assert float(v) == total
    assert inner.trace_count == 0


def test_closures_made_anew_at_each_call_of_a_step_cost_one_trace():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    traces = []

    @mr.function
    def step(x, scale):
        def replica(y):
            traces.append(1)
            return y * scale

        return strategy.run(replica, args=(x,))

    x = per_replica(strategy, [1.0, 2.0])
    for scale in (2.0, 3.0, 4.0):
        assert parts(strategy, step(x, jnp.float32(scale))) == [scale, 2 * scale]
    assert len(traces) == step.trace_count == 1


def test_both_orders_of_function_and_run_cost_the_same():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(jnp.zeros(8))

    def replica(x):
        v.assign_add(mr.get_replica_context().all_reduce("MEAN", x))

    outside = mr.function(lambda x: strategy.run(replica, args=(x,)))
    inside = mr.function(replica)
    x = strategy.run(lambda: jnp.ones(8))
    steps = {"outside": lambda: outside(x), "inside": lambda: strategy.run(inside, args=(x,))}
    seconds = {name: [] for name in steps}
    for _ in range(30):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(5):
                step()
            seconds[name].append(time.perf_counter() - start)
    ratio = min(seconds["inside"][3:]) / min(seconds["outside"][3:])
    assert 1 / 3 < ratio < 3
    assert outside.trace_count == inside.trace_count == 1


def test_run_takes_run_options():
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    assert parts(strategy, strategy.run(fid, options=object())) == [0.0, 1.0]


@pytest.mark.usefixtures("eager_functions")
def test_functions_run_eagerly_in_runs_too():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    seen = []
    step = mr.function(lambda: strategy.run(mr.function(lambda: seen.append(int(rid())))))
    step()
    assert seen == [0, 1]


@pytest.fixture
def eager_functions():
    mr.run_functions_eagerly(True)
    yield
    mr.run_functions_eagerly(False)


@pytest.mark.first(5)
def test_eager_and_compiled_give_the_same_numbers(way):
    with way.strategy.scope():
        v = mr.Variable(jnp.arange(3.0))

    def replica(x):
        g = mr.get_replica_context().all_reduce("SUM", x * v)
        v.assign(0.9 * v + g)
        return g

    step = way.compile(lambda x: way.strategy.run(replica, args=(x,)))
    x = per_replica(way.strategy, [[2.0 ** (i % 3)] * 3 for i in range(way.num_replicas)])
    for _ in range(3):
        step(x)
    factor = 0.9 + sum(2.0 ** (i % 3) for i in range(way.num_replicas))
    np.testing.assert_allclose(v.numpy(), np.arange(3.0) * factor**3, rtol=1e-5)
    assert_same_bits([copy.numpy() for copy in v.values], [v.numpy()] * way.num_replicas)


# Many steps


def test_a_long_loop_of_asynchronous_steps_ends():
    strategy = mr.MirroredStrategy([f"CPU:{i}" for i in range(8)])
    with strategy.scope():
        v = mr.Variable(jnp.zeros(64))

    def replica():
        v.assign_add(mr.get_replica_context().all_reduce("MEAN", jnp.ones(64) + fid()), read_value=False)

    step = mr.function(lambda: strategy.run(replica))
    for _ in range(300):
        step()
    assert float(v[0]) == 300 * 4.5


# Lock-step


@pytest.mark.ways(modes=("eager", "folded"), replicas=(4,))
def test_unequal_merges_are_refused(way):
    """In compiled code the branch is made by the trace: which local replica comes second is known to Python."""
    turns = []

    def replica():
        turns.append(1)
        if len(turns) % 2:
            mr.get_replica_context().all_reduce("SUM", jnp.ones(()))

    before = threading.active_count()
    with pytest.raises(
        MergeError, match=r"replica 0 waits at ReplicaContext\.all_reduce, but replicas \[1.*\] returned"
    ):
        way.compile(lambda: way.strategy.run(replica))()
    assert threading.active_count() == before


@pytest.mark.ways(modes=("eager", "folded"), replicas=(4,))
def test_different_merges_are_refused(way):
    turns = []

    def replica():
        turns.append(1)
        context = mr.get_replica_context()
        return context.all_reduce("SUM", jnp.ones(1)) if len(turns) % 2 else context.all_gather(jnp.ones(1), 0)

    with pytest.raises(MergeError, match=r"called ReplicaContext\.all_reduce while replica 1 called .*all_gather"):
        way.compile(lambda: way.strategy.run(replica))()


@pytest.mark.ways(modes=("eager", "folded"), replicas=(4,))
def test_jax_settings_reach_every_replica(way):
    seen = []

    def replica():
        device = jax.config.jax_default_device
        seen.append((jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64, jax.config.jax_debug_nans))
        return jnp.arange(2) if device is None or device in jax.devices() else None

    with jax.default_matmul_precision("highest"), jax.enable_x64(True), jax.debug_nans(True):
        result = way.compile(lambda: way.strategy.run(replica))()
        assert result.values[0].dtype == jnp.int64
    assert set(seen) == {("highest", True, True)}


@pytest.mark.first(4)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_collectives_in_a_block_with_64_bits(devices, compiled, deterministic):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=3, deterministic=deterministic)

    def replica():
        with jax.enable_x64(True):
            wide = jnp.ones(2, jnp.float64) * (1 + 1e-12)
            context = mr.get_replica_context()
            return context.all_reduce("SUM", wide), context.all_gather(wide, axis=0)

    run = lambda: strategy.run(replica)  # noqa: E731
    for result, number in zip((mr.function(run) if compiled else run)(), (3, 1), strict=True):
        for local in strategy.experimental_local_results(result):
            np.testing.assert_allclose(np.asarray(local), number * (1 + 1e-12), rtol=1e-15)


@pytest.mark.ways(modes=("folded",), replicas=(2,))
def test_the_default_device_reaches_folded_replicas(way):
    seen = []
    with jax.default_device(jax.devices()[3]):
        way.compile(lambda: way.strategy.run(lambda: seen.append(jax.config.jax_default_device)))()
    assert seen == [jax.devices()[3]] * 2


def test_an_object_that_is_called_by_a_compiled_function_is_run_compiled():
    traced = []

    class Doubling:
        @mr.function
        def __call__(self, x):
            traced.append(x)
            return x * 2

    strategy, doubling = mr.MirroredStrategy(["CPU:0", "CPU:1"]), Doubling()
    for _ in range(3):
        assert float(strategy.reduce("SUM", strategy.run(doubling, (jnp.float32(3.0),)), axis=None)) == 12.0
    assert len(traced) == 1


@pytest.mark.parametrize("make", [lambda: mr.MirroredStrategy(["CPU:0"]), lambda: mr.OneDeviceStrategy("CPU:0")])
def test_an_exception_in_the_only_replica_leaves_variables_as_before(make):
    """Each way of assigning: directly, by an optimizer, by a compiled function, of both kinds of variables."""
    strategy = make()
    with strategy.scope():
        v, compiled, u = mr.Variable(1.0), mr.Variable([1.0, 2.0]), mr.Variable(1.0)
        total = mr.Variable(3.0, synchronization="ON_READ", aggregation="SUM")
        optimizer = mr.optimizers.Adam(0.1)
    double = mr.function(lambda: compiled.assign(2 * compiled))
    handed_out = compiled.read_value()

    def step(fails):
        v.assign(5.0)
        v.assign_add(1.0)
        assert float(v) == 6.0
        double()
        double()
        total.assign_add(1.0)
        optimizer.apply_gradients([(jnp.float32(1.0), u)])
        if fails:
            raise ZeroDivisionError("late")
        return float(v)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="late"):
            strategy.run(step, args=(True,))
        found = [float(v), float(total.read_value()), float(u), int(optimizer.iterations.numpy())]
        assert found == [1.0, 3.0, 1.0, 0]
        assert_same_bits(compiled.numpy(), np.array([1.0, 2.0], np.float32))
    assert strategy.run(step, args=(False,)) == 6.0
    assert [float(v), float(total.read_value()), int(optimizer.iterations.numpy())] == [6.0, 4.0, 1]
    assert_same_bits(compiled.numpy(), np.array([4.0, 8.0], np.float32))
    double()
    assert_same_bits(np.asarray(handed_out), np.array([1.0, 2.0], np.float32))
    with pytest.raises(ZeroDivisionError, match="late"):
        strategy.run(step, args=(True,))
    assert_same_bits(compiled.numpy(), np.array([8.0, 16.0], np.float32))


def test_an_exception_in_the_default_strategy_undoes_nothing():
    v = mr.Variable(1.0)

    def step():
        v.assign(2.0)
        raise ZeroDivisionError("late")

    with pytest.raises(ZeroDivisionError, match="late"):
        mr.get_strategy().run(step)
    assert float(v) == 2.0


@pytest.mark.long
@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_eager_runs_of_several_threads_lose_no_update(num_replicas):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=num_replicas)
    with strategy.scope():
        v, u = mr.Variable(0.0), mr.Variable(0.0)
    errors = []

    def step():
        v.assign(v + 1.0)
        u.assign_sub(1.0)

    def loop():
        try:
            for _ in range(20):
                strategy.run(step)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert (float(v), float(u)) == (60.0, -60.0)
