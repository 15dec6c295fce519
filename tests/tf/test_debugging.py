from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import mirrored.tf as tf

FAILS: list[Callable[[], Any]] = [
    lambda: tf.debugging.assert_equal([1, 2], [1, 3]),
    lambda: tf.debugging.assert_none_equal([1, 2], [3, 2]),
    lambda: tf.debugging.assert_less([1, 3], 3),
    lambda: tf.debugging.assert_less_equal([1, 4], 3),
    lambda: tf.debugging.assert_greater([4, 3], 3),
    lambda: tf.debugging.assert_greater_equal([2, 3], 3),
    lambda: tf.debugging.assert_near([1.0], [1.1]),
    lambda: tf.debugging.assert_positive([0.0]),
    lambda: tf.debugging.assert_negative([0.0]),
    lambda: tf.debugging.assert_non_negative([-1.0]),
    lambda: tf.debugging.assert_non_positive([1.0]),
    lambda: tf.debugging.Assert(False, ["data"]),
    lambda: tf.debugging.Assert(False, ["data", tf.constant("text"), tf.constant([1, 2])]),
    lambda: tf.debugging.check_numerics([float("nan")], "message"),
    lambda: tf.debugging.assert_all_finite([float("inf")], "message"),
    lambda: tf.debugging.assert_rank([1], 2),
    lambda: tf.debugging.assert_rank_at_least([1], 2),
    lambda: tf.debugging.assert_rank_in([1], [0, 2]),
    lambda: tf.debugging.assert_scalar([1]),
    lambda: tf.debugging.assert_same_float_dtype([tf.ones([1]), tf.ones([1], tf.float16)]),
    lambda: tf.debugging.assert_shapes([([1, 2], ("n",)), ([1], ("n",))]),
    lambda: tf.debugging.assert_shapes([([1, 2], (3,))]),
    lambda: tf.debugging.assert_shapes([([1, 2], (2, 1))]),
]


@pytest.mark.parametrize("check", FAILS)
def test_what_does_not_hold(check: Callable[[], Any]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="rule:"):
        check()


def test_the_message_comes_first() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="tf.debugging.assert_equal: my words"):
        tf.debugging.assert_equal(1, 2, message="my words")


@pytest.mark.parametrize(
    "check", [lambda: tf.debugging.assert_type([1], tf.float32), lambda: tf.debugging.assert_integer([1.0])]
)
def test_wrong_types(check: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="tensor is tf.int32|expected integers"):
        check()


def test_compiled_checks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    @tf.function
    def run(x: Any) -> Any:
        tf.debugging.assert_positive(x, message="must be positive")
        return x

    with caplog.at_level(logging.ERROR):
        jax.block_until_ready(run(tf.constant(1.0)))
        jax.effects_barrier()
        assert not caplog.records
        jax.block_until_ready(run(tf.constant(-1.0)))
        jax.effects_barrier()
    assert "tf.debugging.assert_positive failed in compiled code: must be positive" in caplog.text


def test_an_assertion_of_a_constant_fails_only_in_the_branch_that_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    @tf.function
    def run(x: Any) -> Any:
        if x > 0:
            tf.debugging.Assert(False, ["positive", x])
        return tf.cond(x < -1, lambda: tf.debugging.assert_equal(1, 2) or x, lambda: x)

    for value, found in ((0.0, []), (1.0, ["Assert"]), (-2.0, ["assert_equal"])):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            jax.block_until_ready(run(tf.constant(value)))
            jax.effects_barrier()
        assert [one.getMessage().split(" failed")[0] for one in caplog.records] == [f"tf.debugging.{x}" for x in found]


def test_nans_can_be_made_errors() -> None:
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(FloatingPointError, match="nan"):
            tf.math.log(-1.0)
    finally:
        tf.debugging.disable_check_numerics()
    assert tf.math.is_nan(tf.math.log(-1.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_the_default_tolerance_is_ten_epsilon_of_the_dtype(dtype: str) -> None:
    one, eps = tf.ones([2], dtype), float(jnp.finfo(dtype).eps)
    tf.debugging.assert_near(one, one * (1 + 8 * eps))
    with pytest.raises(tf.errors.InvalidArgumentError, match="within the tolerance"):
        tf.debugging.assert_near(one, one * (1 + 40 * eps))
