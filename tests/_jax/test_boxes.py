"""Probes of what boxes rely on in JAX, of the primitives that tapes handle specially, and of symbolic dimensions."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import set_current_trace, take_current_trace

from mirrored._jax import boxes
from mirrored._jax.boxes import Box, BoxTracer, InconclusiveDimensionOperation, ReadTracer
from mirrored._jax.jaxprs import aval_of


class Owner:
    """Stands for a tape's trace that is recording, or not."""

    def __init__(self, recording: bool) -> None:
        self.recorder = object() if recording else None
        self.functions: list[object] = []

    def mark_stale(self, functions):
        self.functions += functions


def test_every_attribute_of_an_array_is_one_of_a_box():
    array = jnp.arange(3.0)
    box = Box(Owner(False), array, 1)
    deliberate = {"__class__", "__dict__", "__del__", "__slots__", "__init__", "__new__", "__annotations__"}
    missing = {name for name in dir(array) if not hasattr(type(box), name)} - deliberate
    assert missing == set()


def test_a_box_is_an_array_and_no_tracer():
    box = Box(Owner(True), jnp.arange(3.0), 1)
    assert isinstance(box, jax.Array)
    assert not isinstance(box, jax.core.Tracer)
    assert boxes.payload_of(box) is box.payload
    assert boxes.payload_of(3) == 3
    assert boxes.has_payload(box)
    assert not boxes.has_payload(box.payload)
    with pytest.raises(TypeError, match="unhashable"):
        hash(box)


@pytest.mark.parametrize("recording", [False, True])
def test_outside_any_trace_jax_gets_the_payload(recording):
    box = Box(Owner(recording), jnp.arange(3.0), 1)
    assert jnp.sin(box).tolist() == jnp.sin(box.payload).tolist()
    assert type(jax.jit(lambda a: a * 2)(box)) is boxes.Array


def test_under_a_transform_a_recording_tape_gets_a_stand_in_and_hears_of_it():
    owner = Owner(True)
    box = Box(owner, jnp.arange(3.0), 1)

    def function(a):
        return a * box

    program = jax.make_jaxpr(function)(2.0)
    (constant,) = program.consts
    assert type(constant) is BoxTracer
    assert constant.resolved() is box
    assert function in owner.functions


def test_under_a_transform_a_box_of_a_finished_tape_is_its_payload():
    box = Box(Owner(False), jnp.arange(3.0), 1)
    (constant,) = jax.make_jaxpr(lambda a: a * box)(2.0).consts
    assert constant is box.payload
    assert jax.make_jaxpr(lambda a: box)(2.0).consts[0] is box.payload


def test_a_read_is_resolved_when_it_is_used():
    class Counter:
        name = "counter"
        count = 0.0

        def read_value(self):
            self.count += 1.0
            return jnp.full(2, self.count)

    counter = Counter()
    program = jax.make_jaxpr(lambda a: a * ReadTracer(counter, aval_of(jnp.zeros(2))))(2.0)
    (constant,) = program.consts
    assert "counter" in repr(constant)
    assert counter.count == 0.0
    for expected in (1.0, 2.0):
        np.testing.assert_array_equal(constant.full_lower(), [expected] * 2)


def test_another_object_over_the_same_buffer():
    array = jnp.arange(3.0)
    other = boxes.another_object(array)
    assert other is not array
    assert other.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    box = Box(Owner(True), array, 7)
    again = boxes.another_object(box)
    assert (again is box, again.key, again.payload is array) == (False, 7, True)
    assert boxes.another_object("text") == "text"


def test_current_trace_is_left_as_it_was():
    box = Box(Owner(True), jnp.arange(3.0), 1)
    with take_current_trace() as before:
        pass
    jnp.sum(box)
    with take_current_trace() as after, set_current_trace(after):
        assert after is before


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (lambda x: jax.lax.while_loop(lambda c: c < 9.0, lambda c: c + 1.0, x), boxes.while_p),
        (lambda x: jax.device_put(x, jax.devices()[0]), boxes.device_put_p),
        (jax.lax.stop_gradient, boxes.stop_gradient_p),
    ],
    ids=["while", "device_put", "stop_gradient"],
)
def test_jax_applies_the_primitives_that_tapes_know(function, primitive):
    (equation,) = jax.make_jaxpr(function)(1.0).eqns
    assert equation.primitive is primitive, "a tape would treat it like any other operation"


def test_a_question_about_an_unknown_size_is_refused_by_its_error():
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(InconclusiveDimensionOperation, match="is inconclusive"):
        jax.make_jaxpr(lambda x: jnp.zeros(3) if x.shape[0] > 7 else x)(jax.ShapeDtypeStruct((size,), jnp.float32))
