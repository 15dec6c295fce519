from __future__ import annotations

import jax
import numpy as np
import pytest

from mirrored._jax.arrays import as_array, put, put_rows, put_shards
from mirrored.errors import ArgumentError
from mirrored.topology.device_assignment import make_device_assignment


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64, jax.numpy.bfloat16]
)
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_it_does_what_device_put_does(dtype: type, devices: int) -> None:
    layout = make_device_assignment([f"CPU:{i}" for i in range(devices)])
    rows = np.arange(24).reshape(8, 3).astype(dtype)
    for values in (rows, rows[:, ::2], np.asfortranarray(rows), rows.reshape(4, 2, 3), rows[:, :0]):
        ours, theirs = put_rows(values, layout.sharded, layout.devices), jax.device_put(values, layout.sharded)
        assert (ours.dtype, ours.shape, ours.sharding) == (theirs.dtype, theirs.shape, theirs.sharding)
        assert ours.committed == theirs.committed
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert [(shard.device, shard.index) for shard in ours.addressable_shards] == [
            (shard.device, shard.index) for shard in theirs.addressable_shards
        ]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_rows_may_share_memory(devices: int) -> None:
    layout = make_device_assignment([f"CPU:{i}" for i in range(devices)])
    row, column = np.float32([1, 2]), np.arange(8, dtype=np.float32)[:, None]
    for values in (np.float32(3), row, column):
        for shape in ((8, 2), (16, 8, 2)):
            rows = np.broadcast_to(values, shape)
            assert np.array_equal(np.asarray(put_rows(rows, layout.sharded, layout.devices)), rows)
    part = np.arange(4.0, dtype=np.float32)
    placed = put_shards([part] * devices, layout.sharded, layout.devices)
    part[:] = 0
    assert np.array_equal(np.asarray(placed), np.tile(np.arange(4), devices))


def test_the_result_is_an_ordinary_array() -> None:
    layout = make_device_assignment(["CPU:0", "CPU:1"])
    placed = put_rows(np.arange(6.0, dtype=np.float32).reshape(2, 3), layout.sharded, layout.devices)
    assert jax.jit(lambda x: x.sum())(placed) == 15.0
    assert jax.jit(lambda x: x * 2, donate_argnums=0)(placed).tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


@pytest.mark.parametrize("value", [np.int64([1, 2**31]), np.int64([-(2**40)]), np.uint64([2**32])])
def test_integers_that_need_64_bits_do_not_wrap(value: np.ndarray) -> None:
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    transfers = as_array, lambda x: put(x, device), lambda x: put(x, None), lambda x: put_rows(x, sharding, [device])
    for transfer in transfers:
        with pytest.raises(ArgumentError, match=r"do not fit into u?int32\n.*64-bit mode"):
            transfer(value)
        with jax.enable_x64(True):
            np.testing.assert_array_equal(transfer(value), value)
        np.testing.assert_array_equal(transfer(value // 2**20), value // 2**20)
    assert as_array(value[:0]).shape == (0,)
    for where in (device, None):
        with pytest.raises(ArgumentError, match="do not fit into"):
            put(value[-1], where)


@pytest.mark.parametrize("on_default", [False, True])
def test_the_byte_order_does_not_change_the_values(on_default: bool) -> None:
    assert put(np.arange(3).astype(">i4"), None if on_default else jax.devices()[0]).tolist() == [0, 1, 2]
