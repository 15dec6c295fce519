from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from mirrored import config
from mirrored.errors import DeviceError
from mirrored.topology.device_assignment import AXIS, DeviceAssignment, make_device_assignment


@pytest.fixture
def virtual_gpus():
    config.set_virtual_devices(8, kind="GPU")
    yield
    config.set_virtual_devices(8)


@pytest.mark.parametrize(
    "name",
    [
        "CPU:1",
        "cpu:1",
        "/cpu:1",
        "/CPU:1",
        "/device:CPU:1",
        "device:cpu:1",
        "/job:localhost/replica:0/task:0/device:CPU:1",
        "/job:localhost/task:0/cpu:1",
        "/replica:0/task:0/device:cpu:1",
    ],
)
def test_every_spelling_of_tensorflow_names_the_device(name):
    assert make_device_assignment([name]).devices == (jax.devices()[1],)


def test_jax_devices_and_names_may_be_mixed():
    assert make_device_assignment([jax.devices()[2], "CPU:0"]).devices == (jax.devices()[2], jax.devices()[0])


@pytest.mark.parametrize("devices", [None, [], ()])
def test_default_is_every_cpu_device_when_there_is_no_accelerator(devices):
    layout = make_device_assignment(devices)
    assert layout.devices == tuple(jax.devices())
    assert (layout.num_replicas, layout.local, layout.is_folded) == (8, 1, False)


def test_an_array_of_devices_is_a_list_of_devices():
    assert make_device_assignment(np.array(jax.devices()[:2])).devices == tuple(jax.devices()[:2])


def test_replica_lives_on_device_r_div_k():
    layout = make_device_assignment(["CPU:3", "CPU:1"], num_replicas=6)
    assert layout.local == 3
    assert [layout.device_of(r).id for r in range(6)] == [3, 3, 3, 1, 1, 1]
    assert layout.name_of(4) == "/job:localhost/replica:0/task:0/device:CPU:1"
    assert list(layout.replicas_on(jax.devices()[1])) == [3, 4, 5]
    assert layout.addressable_replicas == (0, 1, 2, 3, 4, 5)


def test_mesh_is_auto_and_shardings_place_replicas_in_order():
    layout = make_device_assignment(["CPU:2", "CPU:0"], num_replicas=4)
    assert layout.mesh.axis_names == (AXIS,) == ("mirrored_replica",)
    assert layout.mesh.axis_types == (AxisType.Auto,)
    assert layout.replicated.spec == PartitionSpec()
    stacked = jax.device_put(np.arange(4), layout.sharded)
    where = {shard.device.id: shard.data.tolist() for shard in stacked.addressable_shards}
    assert where == {2: [0, 1], 0: [2, 3]}
    everywhere = jax.device_put(np.arange(2), layout.replicated)
    assert {shard.device.id for shard in everywhere.addressable_shards} == {0, 2}


def test_layouts_compare_by_value_and_hash():
    first, second = make_device_assignment(["CPU:0", "CPU:1"]), make_device_assignment(jax.devices()[:2])
    assert first == second
    assert hash(first) == hash(second)
    assert first != make_device_assignment(["CPU:1", "CPU:0"])
    assert first != make_device_assignment(["CPU:0", "CPU:1"], num_replicas=4)
    assert first.mesh is first.mesh


def test_repr_shows_where_replicas_live():
    assert (
        repr(make_device_assignment(["CPU:0", "CPU:5"], 4))
        == "DeviceAssignment(4 replicas on 2 devices: CPU:0 {0 1}, CPU:5 {2 3})"
    )
    assert repr(make_device_assignment(["CPU:0"])) == "DeviceAssignment(1 replica on 1 device: CPU:0 {0})"


def test_virtual_gpus_answer_to_gpu_names(virtual_gpus):
    layout = make_device_assignment(["GPU:0", "/gpu:1"])
    assert layout.devices == tuple(jax.devices()[:2])
    assert layout.name_of(1) == "/job:localhost/replica:0/task:0/device:GPU:1"
    assert make_device_assignment().num_devices == 8
    assert make_device_assignment(["CPU:3"]).devices == (jax.devices()[3],)


def test_a_device_named_twice_shows_both_spellings():
    with pytest.raises(DeviceError, match=r"CPU:1 is named twice: 'CPU:1' and '/cpu:1'") as caught:
        make_device_assignment(["CPU:0", "CPU:1", "/cpu:1"])
    assert 'MirroredStrategy(["CPU:1"], num_replicas=3)' in caught.value.remedy


@pytest.mark.parametrize("name", ["CPU:8", "GPU:0", "/job:localhost/replica:0/task:1/device:CPU:0", "TPU:0"])
def test_an_unknown_device_names_what_exists(name):
    with pytest.raises(DeviceError, match=r"(?s)is not on this machine.*remedy: name one of these"):
        make_device_assignment([name])


def test_an_unknown_device_lists_the_devices_there_are():
    with pytest.raises(DeviceError, match=r'"GPU:0"|GPU:0') as caught:
        make_device_assignment(["GPU:0"])
    assert caught.value.rule == 'the machine has "CPU:0" ... "CPU:7"'
    assert "set_virtual_devices(n, kind='GPU')" in caught.value.remedy


@pytest.mark.parametrize(
    "name", ["", "GPU", "CPU:", "CPU:x", "CPU:-1", "gpu0", "XPU:0", "CPU:0 ", "/device:CPU:0/task:0"]
)
def test_a_string_that_names_no_device_shows_the_spelling(name):
    with pytest.raises(DeviceError, match=r'(?s)is not a device name.*named like "GPU:0"'):
        make_device_assignment([name])


@pytest.mark.parametrize("device", [0, None, b"CPU:0", ("CPU", 0)])
def test_a_device_of_a_wrong_type_is_refused(device):
    with pytest.raises(DeviceError, match=r"the device list contains[\s\S]*a string or a jax.Device"):
        make_device_assignment(["CPU:0", device])


@pytest.mark.parametrize("devices", ["CPU:0", 4, {"CPU:0"}])
def test_devices_that_are_no_list_are_refused(devices):
    with pytest.raises(DeviceError, match="devices must be a list of device"):
        make_device_assignment(devices)


def test_a_single_device_object_is_refused():
    with pytest.raises(DeviceError, match="put it into a list"):
        make_device_assignment(jax.devices()[0])


def test_mixed_kinds_say_which_is_which(monkeypatch):
    cpu, gpu = jax.devices()[:2]
    kinds = {cpu: "CPU", gpu: "GPU"}
    monkeypatch.setattr("mirrored.topology.device_assignment.kind_of", kinds.__getitem__)
    monkeypatch.setattr("mirrored.topology.device_assignment.name_device", lambda device: f"{kinds[device]}:0")
    with pytest.raises(DeviceError, match=r"1 CPU \(CPU:0\) and 1 GPU \(GPU:0\)[\s\S]*of one kind"):
        make_device_assignment([cpu, gpu])


@pytest.mark.parametrize("count", [0, -4, True, 2.0, "4"])
def test_a_number_of_replicas_that_is_no_count_is_refused(count):
    with pytest.raises(DeviceError, match="num_replicas must be an int, at least the number of devices"):
        make_device_assignment(["CPU:0"], num_replicas=count)


@pytest.mark.parametrize(
    ("devices", "replicas", "shown"),
    [
        (3, 8, "CPU:0 {0 1 2}, CPU:1 {3 4 5}, CPU:2 {6 7}"),
        (4, 6, "CPU:0 {0 1}, CPU:1 {2 3}, CPU:2 {4}, CPU:3 {5}"),
        (2, 5, "CPU:0 {0 1 2}, CPU:1 {3 4}"),
    ],
)
def test_replicas_that_the_devices_do_not_divide_differ_by_one(devices, replicas, shown):
    layout = make_device_assignment([f"CPU:{i}" for i in range(devices)], num_replicas=replicas)
    assert repr(layout) == f"DeviceAssignment({replicas} replicas on {devices} devices: {shown})"
    assert layout.is_uneven
    assert [r for device in layout.devices for r in layout.replicas_on(device)] == list(range(replicas))
    assert all(r in layout.replicas_on(layout.device_of(r)) for r in range(replicas))


def test_fewer_replicas_than_devices_are_refused():
    with pytest.raises(DeviceError, match="num_replicas=2 on 8 devices") as caught:
        make_device_assignment(num_replicas=2)
    assert "pass 2 devices, or num_replicas=8 or more" in caught.value.remedy


def test_errors_name_the_caller_and_pickle():
    with pytest.raises(DeviceError, match=r"^OneDeviceStrategy: ") as caught:
        make_device_assignment(["CPU:99"], called="OneDeviceStrategy")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert isinstance(again, ValueError)


def test_layout_is_frozen():
    layout = make_device_assignment(["CPU:0"])
    assert isinstance(layout, DeviceAssignment)
    with pytest.raises(AttributeError, match="cannot assign"):
        layout.num_replicas = 2
