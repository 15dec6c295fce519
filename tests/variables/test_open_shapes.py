"""Tests that only the functions that use a variable of unknown dimensions are traced again when its shape changes."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import mirrored as mr
import mirrored.tf as tf
from mirrored.variables.open_shapes import OpenShapes


def open_variable(rows=2):
    return mr.Variable(jnp.ones((rows, 3)), shape=[None, 3])


def test_a_function_that_does_not_use_the_variable_keeps_its_program():
    v, w = open_variable(), mr.Variable(1.0)
    other, total = mr.function(lambda: w + 1), mr.function(lambda: jnp.sum(v.read_value()))
    other(), total()
    for rows in (4, 2, 4):
        v.assign(jnp.ones((rows, 3)))
        assert (float(other()), float(total())) == (2.0, 3.0 * rows)
    assert (other.trace_count, total.trace_count) == (1, 2)
    assert total.retrace_reason.endswith("the shape of a variable changed from (2, 3) to (4, 3)")


USES = {
    "read": lambda v: jnp.sum(v.read_value()),
    "number of elements": lambda v: v.size / 1.0,
    "shape of a component": lambda v: v.component_shape[0] * 3.0,
    "assignment": lambda v: jnp.sum(v.assign(jnp.ones(v.component_shape))),
    "in a jitted helper": lambda v: jax.jit(lambda x: x * v.size)(1.0),
    "in a loop": lambda v: jax.lax.fori_loop(0, 1, lambda _, x: x + v.size, 0.0),
}


def in_init_scope(read):
    def use(v):
        with tf.init_scope():
            return read(v).shape[0] * 3.0

    return use


USES |= {
    "value read in init_scope": in_init_scope(lambda v: v.read_value()),
    "NumPy array read in init_scope": in_init_scope(lambda v: v.numpy()),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_use_of_the_shape_counts(use):
    v = open_variable()
    step = mr.function(lambda: use(v))
    for rows in (2, 4, 2):
        v.assign(jnp.ones((rows, 3)))
        assert float(step()) == 3.0 * rows
    assert step.trace_count == 2


@pytest.mark.parametrize("synchronization", ["ON_WRITE", "ON_READ"])
@pytest.mark.parametrize("use", [USES["read"], USES["number of elements"]], ids=["read", "number of elements"])
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_the_uses_of_replicas_count(synchronization, use, outside):
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=4)
    with strategy.scope():
        ones = jnp.ones((2, 3))
        v = mr.Variable(ones, shape=[None, 3], synchronization=synchronization, aggregation="MEAN")

    def run():
        return strategy.run(lambda: jnp.asarray(use(v), jnp.float32))

    step = run if outside else mr.function(run)
    for rows in (2, 4):
        with strategy.scope():
            v.assign(jnp.ones((rows, 3)))
        assert [float(one) for one in strategy.experimental_local_results(step())] == [3.0 * rows] * 4


def test_a_program_uses_further_variables_after_another_retrace():
    first, second = open_variable(), open_variable()
    used = [first]
    step = mr.function(lambda x: sum(jnp.sum(v.read_value()) for v in used) + 0 * jnp.sum(x))
    one, two = jnp.ones(1), jnp.ones(2)
    assert float(step(one)) == 6.0
    second.assign(jnp.ones((4, 3)))
    used.append(second)
    assert (float(step(one)), step.trace_count) == (6.0, 1)  # a list is a constant of the trace
    assert (float(step(two)), step.trace_count) == (18.0, 2)
    assert (float(step(one)), step.trace_count) == (6.0, 2)
    second.assign(jnp.ones((1, 3)))
    assert (float(step(one)), step.trace_count) == (6.0, 2)
    assert (float(step(two)), step.trace_count) == (9.0, 3)
    first.assign(jnp.ones((1, 3)))
    assert (float(step(two)), step.trace_count) == (6.0, 4)


def test_a_call_with_flattened_arguments_finds_the_program_of_the_shape():
    v = open_variable()
    step = mr.function(lambda *, scale: jnp.sum(v.read_value()) * scale)
    for rows in (2, 4, 2, 4):
        v.assign(jnp.ones((rows, 3)))
        assert float(step(scale=2.0)) == 6.0 * rows
    assert step.trace_count == 2


def test_a_variable_that_the_function_creates():
    made = []

    @mr.function
    def step():
        if not made:
            made.append(open_variable())
        return jnp.sum(made[0].read_value())

    assert float(step()) == 6.0
    traces = step.trace_count
    made[0].assign(jnp.ones((4, 3)))
    assert (float(step()), step.trace_count) == (12.0, traces + 1)


def test_other_variables_come_and_go_without_a_trace():
    v = open_variable()
    step = mr.function(lambda: jnp.sum(v.read_value()))
    step()
    other = open_variable()
    step()
    del other
    step()
    assert step.trace_count == 1


def test_a_program_does_not_keep_a_variable_of_which_it_uses_only_the_shape():
    holder = [open_variable()]
    step = mr.function(lambda: jnp.float32(holder[0].size))
    assert float(step()) == 6.0
    reference = weakref.ref(holder[0])
    holder[0] = None
    gc.collect()
    assert reference() is None
    assert (float(step()), step.trace_count) == (6.0, 1)


def test_the_program_of_a_call_under_a_tape_is_for_the_current_shape():
    v = open_variable()

    @mr.function
    def step():
        v.assign(2 * v)
        return jnp.sum(v.read_value())

    for rows in (2, 4, 2):
        v.assign(jnp.ones((rows, 3)))
        with mr.GradientTape() as tape:
            total = step()
        assert (float(total), tape.gradient(total, v).shape) == (6.0 * rows, (rows, 3))


def test_a_repeated_call_looks_at_one_program(monkeypatch):
    """It looked at the programs of all newer shapes first: 1 us for each, in every call."""
    v = open_variable()
    step = mr.function(lambda: jnp.sum(v.read_value()))
    for rows in (2, 4, 6, 2):
        v.assign(jnp.ones((rows, 3)))
        step()
    looks, changed = [], OpenShapes.changed
    monkeypatch.setattr(OpenShapes, "changed", lambda shapes: looks.append(shapes) or changed(shapes))
    assert (float(step()), step.trace_count, len(looks)) == (6.0, 3, 1)
