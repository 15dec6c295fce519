"""`tf.DeviceSpec`: device names in parts. Values are TensorFlow's."""

from __future__ import annotations

import dataclasses

import pytest

import mirrored.tf as tf

WRITTEN = [
    ({}, ""),
    (
        {"job": "ps", "replica": 1, "task": 2, "device_type": "cpu", "device_index": 0},
        "/job:ps/replica:1/task:2/device:CPU:0",
    ),
    ({"device_type": "GPU"}, "/device:GPU:*"),
    ({"device_index": 3}, ""),
    ({"replica": "1"}, "/replica:1"),
]
READ = [
    ("", {}),
    ("/job:foo/CPU:0", {"job": "foo", "device_type": "CPU", "device_index": 0}),
    ("/cpu:*", {"device_type": "CPU"}),
    (
        "/job:w/replica:1/task:2/device:GPU:3",
        {"job": "w", "replica": 1, "task": 2, "device_type": "GPU", "device_index": 3},
    ),
]
BAD = [("/foo:0", "Unknown attribute 'foo'"), ("/cpu:a", "not a number"), ("/cpu:0/gpu:1", "Multiple device types")]


@pytest.mark.parametrize(("parts", "text"), WRITTEN)
def test_names_are_written(parts, text):
    assert tf.DeviceSpec(**parts).to_string() == text


@pytest.mark.parametrize(("text", "parts"), READ)
def test_names_are_read(text, parts):
    read = tf.DeviceSpec.from_string(text)
    assert read == tf.DeviceSpec(**parts)
    assert hash(read) == hash(tf.DeviceSpec(**parts))


@pytest.mark.parametrize(("text", "words"), BAD)
def test_names_that_are_none(text, words):
    with pytest.raises(ValueError, match=words):
        tf.DeviceSpec.from_string(text)


def test_parts_are_replaced_and_merged():
    spec = tf.DeviceSpec.from_string("/job:a/cpu:0")
    assert spec.make_merged_spec(tf.DeviceSpec(job="b", task=3)).to_string() == "/job:b/task:3/device:CPU:0"
    assert spec.replace(device_type="gpu", device_index=1).to_string() == "/job:a/device:GPU:1"
    assert spec.parse_from_string("/job:y/gpu:3").to_string() == "/job:y/device:GPU:3"
    assert repr(tf.DeviceSpec(job="x")) == (
        "<DeviceSpec(job=x, replica=None, task=None, device_type=None, device_index=None)>"
    )
    with pytest.raises(dataclasses.FrozenInstanceError, match="job"):
        spec.job = "z"


def test_a_spec_places_tensors():
    with tf.device(tf.DeviceSpec(device_type="CPU", device_index=1)):
        assert tf.ones([]).device.id == 1
    with tf.device(tf.DeviceSpec(device_type="CPU")):
        assert tf.ones([]).device.id == 0


def test_a_spec_of_the_device_of_a_tensor():
    device = tf.constant(1.0).device
    assert tf.DeviceSpec.from_string(device).to_string() == "/job:localhost/replica:0/task:0/device:CPU:0"
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = [tf.DeviceSpec.from_string(x.device) for x in strategy.run(lambda: tf.constant(1.0)).values]
    assert found == [tf.DeviceSpec.from_string(name) for name in strategy.extended.worker_devices]
