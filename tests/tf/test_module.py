from __future__ import annotations

from typing import Any

import pytest

import mirrored.tf as tf


class Dense(tf.Module):
    def __init__(self, size: int, name: str | None = None) -> None:
        super().__init__(name=name)
        self.w = tf.Variable(tf.ones([size, size]), name="w")
        self.steps = tf.Variable(0, trainable=False, name="steps")

    def __call__(self, x: Any) -> Any:
        return tf.matmul(x, self.w)


class TwoLayers(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = {"b": Dense(2), "a": [Dense(3)]}
        self.own = tf.Variable(1.0, name="own")
        self.again = self.layers["b"].w

    @tf.Module.with_name_scope
    def build(self) -> Any:
        with tf.name_scope("inner"):
            return tf.Variable(1.0, name="late")


def test_variables_are_found_in_order_and_once() -> None:
    model = TwoLayers()
    a, b = model.layers["a"][0], model.layers["b"]
    assert list(map(id, model.variables)) == list(map(id, (b.w, model.own, a.steps, a.w, b.steps)))
    assert list(map(id, model.trainable_variables)) == list(map(id, (b.w, model.own, a.w)))
    assert list(map(id, model.non_trainable_variables)) == list(map(id, (a.steps, b.steps)))
    assert model.submodules == (a, b)


def test_names() -> None:
    assert TwoLayers().name == "two_layers"
    assert Dense(1, name="chosen").name == "chosen"
    assert TwoLayers().name_scope.name == "two_layers"
    with pytest.raises(ValueError, match="not a valid module name"):
        Dense(1, name="no name")


def test_variables_made_in_a_scope_carry_its_name() -> None:
    assert TwoLayers().build().name.startswith("two_layers/inner/late")
    with tf.name_scope("outer") as full:
        assert full == "outer/"
        assert tf.Variable(1.0, name="v").name.startswith("outer/v")
        with tf.name_scope(""):
            assert tf.Variable(1.0, name="v").name.startswith("v")
    assert tf.Variable(1.0, name="v").name.startswith("v")


@pytest.mark.parametrize("compiled", [False, True])
def test_replicas_that_wait_within_a_shared_scope_stay_themselves(compiled: bool) -> None:
    """The first replica to leave the scope closed that of another one, and continued as that replica."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    class Net(tf.Module):
        @tf.Module.with_name_scope
        def __call__(self, x: Any) -> Any:
            return tf.distribute.get_replica_context().all_reduce("SUM", x)

    net = Net()

    def replica() -> Any:
        before = tf.distribute.get_replica_context().replica_id_in_sync_group
        net(tf.constant(1.0))
        return tf.stack([before, tf.distribute.get_replica_context().replica_id_in_sync_group])

    def step() -> Any:
        return strategy.run(replica)

    found = (tf.function(step) if compiled else step)()
    assert [one.numpy().tolist() for one in strategy.experimental_local_results(found)] == [[0, 0], [1, 1]]


def test_a_scope_may_be_entered_again_while_it_is_open() -> None:
    scope = tf.name_scope("s")
    with scope, scope:
        assert tf.Variable(1.0, name="v").name.startswith("s/s/v")
    with scope:
        assert tf.Variable(1.0, name="v").name.startswith("s/v")


def test_a_module_trains() -> None:
    model = Dense(2)
    x = tf.ones([1, 2])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    (gradient,) = tape.gradient(loss, model.trainable_variables)
    assert gradient.shape == (2, 2)
