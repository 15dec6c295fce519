"""How concrete functions describe their arguments and results, as recorded on TensorFlow 2.21."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mirrored.tf as tf
from mirrored.errors import ArgumentError
from tf.concrete_function_cases import cases, described

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "concrete_function_tf_2_21.json").read_text("utf-8"))


@pytest.mark.first(15)
@pytest.mark.parametrize("name", list(RECORDED))
def test_descriptions_are_those_of_tensorflow(name):
    made = cases(tf)  # keeps the objects of its methods
    concrete = made[name]()
    got, wanted = described(tf, concrete), dict(RECORDED[name])
    if concrete.program is None:  # an unknown size: `repr` does not trace the function
        assert got.pop("start").startswith("<concrete function")
        assert wanted.pop("start")
    assert got == wanted


def test_every_case_is_recorded():
    assert set(cases(tf)) == set(RECORDED)


def test_per_replica_results_have_a_spec_of_each_component():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def step(x):
        return {"per": strategy.run(lambda one: one + replica(), args=(x,)), "one": x}

    def replica():
        return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)

    concrete = step.get_concrete_function(tf.TensorSpec([2]))
    assert [one.name for one in concrete.outputs] == ["Identity:0", "Identity_1:0", "Identity_2:0"]
    assert len(concrete.structured_outputs["per"].components) == 2
    assert concrete.output_shapes["one"] == tf.TensorShape([2])


def test_the_signature_of_a_distributed_dataset():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    batch = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))))
    concrete = tf.function(lambda x: strategy.run(lambda one: one + 1, args=(x,))).get_concrete_function(batch)
    (spec,), _ = concrete.structured_input_signature
    assert [one.shape.as_list() for one in spec.components] == [[2], [2]]
    assert [one.name for one in concrete.inputs] == ["x:0", "x_1:0"]


def test_the_graph_is_refused():
    concrete = tf.function(lambda x: x).get_concrete_function(tf.TensorSpec([]))
    with pytest.raises(AttributeError, match=r"has no graph(.|\n)*function.lower"):
        _ = concrete.graph
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = concrete.no_such


def test_a_result_that_depends_on_unknown_sizes_is_refused():
    """The two unknown sizes must be equal: nothing says so before the function is called."""
    product = tf.function(lambda x, y: tf.matmul(x, y))
    concrete = product.get_concrete_function(tf.TensorSpec([None, None]), tf.TensorSpec([None, 2]))
    assert concrete.inputs[0].shape.as_list() == [None, None]
    assert "x: float32[any,any]" in repr(concrete)
    assert str(concrete) == repr(concrete)
    with pytest.raises(ArgumentError, match="pass shapes without None"):
        _ = concrete.structured_outputs
