"""Programs catch the errors of `gather` and `all_gather` by TensorFlow's class, and find its words in them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError

SHAPES = {
    "sizes": ([1, 1], [1, 2], "Dimension 1 in both shapes must be equal"),
    "ranks": ([1], [1, 2], "Ranks of all input tensors should match"),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("method", ["gather", "all_gather"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_shapes_that_do_not_fit_raise_an_invalid_argument_error(shapes: str, method: str, compiled: bool) -> None:
    one, other, words = SHAPES[shapes]
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = strategy.experimental_distribute_values_from_function(
        lambda context: tf.ones([one, other][context.replica_id_in_sync_group])
    )

    def replica(part: Any) -> Any:
        context: Any = tf.distribute.get_replica_context()
        return context.all_gather(part, axis=0)

    function = tf.function if compiled else (lambda same: same)

    def step() -> Any:
        if method == "gather":
            return function(lambda: strategy.gather(value, axis=0))()
        return strategy.run(function(replica), args=(value,))

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"Shape mismatch: {words}") as caught:
        step()
    error = caught.value
    assert isinstance(error, ArgumentError)
    assert error.found.startswith("axis=0 for ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
