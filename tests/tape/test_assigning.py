"""A tape treats the result of an assignment as the variable."""

from __future__ import annotations

import contextlib
import functools

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_the_gradient_of_the_new_value_is_one(method, compiled):
    v = mr.Variable(2.0)

    def gradient():
        with mr.GradientTape() as tape:
            y = getattr(v, method)(1.0) * 2.0
        return tape.gradient(y, v)

    assert float((mr.function(gradient) if compiled else gradient)()) == 2.0


def test_it_adds_up_with_reads_before_and_after():
    v = mr.Variable(3.0)
    with mr.GradientTape() as tape:
        before = v * 1.0
        y = before + 10.0 * v.assign_add(1.0) + 100.0 * v
    assert float(y) == 3.0 + 40.0 + 400.0
    assert float(tape.gradient(y, v)) == 111.0


def test_what_was_assigned_has_no_part_in_it():
    v, x = mr.Variable(3.0), jnp.array(2.0)
    with mr.GradientTape() as tape:
        tape.watch(x)
        y = v.assign(x * x) * 5.0
    assert [None if g is None else float(g) for g in tape.gradient(y, [x, v])] == [None, 5.0]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_in_replicas(compiled):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(2.0, aggregation="MEAN")

    def replica():
        index = jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, jnp.float32)
        with mr.GradientTape() as tape:
            y = v.assign_add(index) * (index + 1.0)
        return y, tape.gradient(y, v)

    y, gradient = strategy.run(mr.function(replica) if compiled else replica)
    assert [float(one) for one in strategy.local_results(y)] == [2.5, 5.0]
    assert [float(one) for one in strategy.local_results(gradient)] == [1.0, 2.0]


STRATEGIES = {
    "two devices": lambda: mr.MirroredStrategy(["CPU:0", "CPU:1"]),
    "folded": lambda: mr.MirroredStrategy(["CPU:0"], num_replicas=2),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("devices", sorted(STRATEGIES))
def test_a_merge_that_assigns_leaves_the_tape_of_the_replica_whole(compiled, devices):
    strategy = STRATEGIES[devices]()
    with strategy.scope():
        v = mr.Variable(2.0)
        seen = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM")
    plain = mr.Variable(1.0)

    def merge(strategy, value):
        total = strategy.reduce("SUM", value, axis=None)
        strategy.extended.update(v, lambda v, t: v.assign_add(t), args=(total,))
        strategy.extended.update(v, lambda v: v.assign_add(v))
        strategy.extended.update(seen, lambda s, t: s.assign_add(t), args=(value,))
        plain.assign(total)
        return total

    def replica():
        index = jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, jnp.float32)
        with mr.GradientTape() as tape:
            y = v * (index + 1.0)
            total = mr.get_replica_context().merge_call(merge, args=(y,))
            z = total * v * 1.0
        return total, z, tape.gradient(z, v)

    def step():
        return strategy.run(replica)

    total, z, gradient = (mr.function(step) if compiled else step)()
    assert float(v.read_value()) == 16.0
    assert [float(one.read_value()) for one in seen.values] == [2.0, 4.0]
    assert float(plain.read_value()) == 6.0
    assert [float(one) for one in strategy.local_results(total)] == [6.0, 6.0]
    assert [float(one) for one in strategy.local_results(z)] == [96.0, 96.0]
    # z_r = (1 v + 2 v) w with w = v after the merge: every replica's own part of the sum, times both replicas' 16, + 6.
    assert [float(one) for one in strategy.local_results(gradient)] == [16.0 * 2 + 6.0, 16.0 * 4 + 6.0]


def test_a_merge_that_fails_leaves_variables_as_they_were():
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        v = mr.Variable(2.0)

    def merge(strategy, value):
        v.assign(5.0)
        raise KeyError("in the merge")

    def replica():
        with mr.GradientTape():
            return mr.get_replica_context().merge_call(merge, args=(v * 1.0,))

    with pytest.raises(KeyError, match="in the merge"):
        strategy.run(replica)
    assert float(v.read_value()) == 2.0
    assert strategy.run(lambda: v.assign_add(1.0)) is not None
    assert float(v.read_value()) == 3.0


# A tape around code that assigns variables: it records a function or a run as one operation.

LAYOUTS = {"none": None, "1/1": (1, 1), "2/1": (1, 2), "2/2": (2, 2), "4/2": (2, 4)}
KINDS = {
    "mirrored": {},
    "mean": {"aggregation": "MEAN"},
    "sync-on-read": {"synchronization": "ON_READ", "aggregation": "MEAN", "trainable": True},
}


def assigned_value(v, w):
    w.assign(v * v)
    return w * v


def returned_value(v, w):
    return w.assign(v * v) * v


def added(v, w):
    w.assign_sub(w.read_value())
    return w.assign_add(v * v) * v


def projected(v, w):
    w.assign(jnp.clip(w.read_value(), -1.0, 1.0) * 4.0)
    return w * v


BODIES = {one.__name__: one for one in (assigned_value, returned_value, added, projected)}


FORMS = ("eager", "tape inside", "tape around", "run of a function")
CASES = [
    pytest.param(LAYOUTS[layout], KINDS[kind], form, id=f"{layout}-{kind}-{form}")
    for layout in LAYOUTS
    for kind in KINDS
    for form in FORMS
    if layout != "none" or (kind == "mirrored" and form != "run of a function")
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(("layout", "kind", "form"), CASES)
@pytest.mark.first(7)
def test_a_tape_around_what_assigns_sees_reads_of_the_variable(body, layout, kind, form):
    """The derivatives by v and w of ``w * v`` where w has been set to 4: w and v."""
    strategy = (
        None if layout is None else mr.MirroredStrategy([f"CPU:{i}" for i in range(layout[0])], num_replicas=layout[1])
    )
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        v, w = mr.Variable(2.0), mr.Variable(3.0, **kind)
    call = functools.partial(body, v, w)
    inner = mr.function(call) if form == "run of a function" else call

    def work():
        return call() if strategy is None else strategy.reduce("MEAN", strategy.run(inner), axis=None)

    forward = mr.function(work) if form == "tape around" else work

    def step():
        with mr.GradientTape() as tape:
            y = forward()
        return y, tape.gradient(y, [v, w])

    y, (by_v, by_w) = (mr.function(step) if form == "tape inside" else step)()
    assert (float(y), float(by_v), float(by_w)) == (8.0, 4.0, 2.0)
    assert by_w.shape == ()
    assert float(w) == 4.0


def test_a_tape_around_several_steps_of_one_call():
    v, w = mr.Variable(2.0), mr.Variable(3.0)

    def step(x):
        y = w * v * x
        w.assign(v * v)
        return y

    several = mr.function(step, steps_per_call=2)
    with mr.GradientTape() as tape:
        y = sum(several([(jnp.float32(1.0),)] * 2))
    assert float(y) == 3.0 * 2.0 + 4.0 * 2.0
    assert [float(one) for one in tape.gradient(y, [v, w])] == [3.0 + 4.0, 2.0 + 2.0]


@pytest.mark.parametrize("form", ["eager", "compiled", "function under a tape"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.first(2)
def test_a_watched_per_replica_value_has_a_gradient_through_run(form, replicas):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"][: min(replicas, 2)], num_replicas=replicas)
    rows = np.arange(8, dtype=np.float32)
    batch = next(iter(strategy.experimental_distribute_dataset([rows])))

    def work(x):
        return strategy.reduce("SUM", strategy.run(lambda x: jnp.sum(x * x), args=(x,)), axis=None)

    forward = mr.function(work) if form == "function under a tape" else work

    def step(x):
        with mr.GradientTape() as tape:
            tape.watch(x)
            y = forward(x)
        return tape.gradient(y, x)

    gradient = (mr.function(step) if form == "compiled" else step)(batch)
    parts = [np.asarray(part) for part in strategy.local_results(gradient)]
    np.testing.assert_array_equal(np.concatenate(parts), 2 * rows)
