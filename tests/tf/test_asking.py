"""What is asked about tensors and the moment."""

from __future__ import annotations

import logging
import time

import jax
import numpy as np
import pytest

import mirrored.tf as tf


def test_static_values():
    found = []

    @tf.function
    def ask(x):
        found.append((tf.get_static_value(tf.shape(x)), tf.get_static_value(x), tf.get_static_value(3.0)))
        found.append((tf.is_symbolic_tensor(x), tf.inside_function()))
        return x

    ask(tf.ones([2, 3]))
    known, unknown, number = found[0]
    assert (known.tolist(), unknown, float(number)) == ([2, 3], None, 3.0)
    assert found[1] == (True, True)
    assert (tf.is_symbolic_tensor(tf.ones(2)), tf.inside_function()) == (False, False)
    assert tf.get_static_value(tf.constant([1, 2])).tolist() == [1, 2]
    assert tf.get_static_value(tf.constant("12")) == b"12"
    assert tf.get_static_value(tf.constant(["a\0"])).tolist() == [b"a\0"]


def test_specs_of_values():
    assert tf.type_spec_from_value(np.ones((2, 3), np.float32)) == tf.TensorSpec([2, 3], tf.float32)
    assert tf.type_spec_from_value(7) == tf.TensorSpec([], tf.int32)


def test_names_and_times():
    assert tf.get_current_name_scope() == ""
    with tf.name_scope("outer"), tf.name_scope("inner"):
        assert tf.get_current_name_scope() == "outer/inner"
    assert tf.get_logger() is logging.getLogger("mirrored")
    assert time.time() - 60 < tf.timestamp() <= time.time()


def test_traceback_filtering():
    before = jax.config.jax_traceback_filtering
    try:
        tf.debugging.disable_traceback_filtering()
        assert not tf.debugging.is_traceback_filtering_enabled()
        tf.debugging.enable_traceback_filtering()
        assert tf.debugging.is_traceback_filtering_enabled()
    finally:
        jax.config.update("jax_traceback_filtering", before)


@pytest.mark.parametrize("values", [np.ones(2), "text", 3])
def test_no_list_of_values(values):
    with pytest.raises(TypeError, match="Expected a list or tuple of values, found .*: write"):
        tf.debugging.assert_proper_iterable(values)


def test_lists_of_values():
    tf.debugging.assert_proper_iterable([np.ones(2)])
