from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from mirrored._jax.placement import movable, near_first

FIRST, SECOND = jax.devices()[:2]


def test_a_movable_array_has_the_same_buffer_on_the_same_device() -> None:
    array = jax.device_put(jnp.arange(3.0), SECOND)
    moved = movable(array)
    assert (moved.committed, array.committed) == (False, True)
    assert moved.devices() == array.devices() == {SECOND}
    assert moved.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert moved.tolist() == [0, 1, 2]


def test_movable_arrays_of_several_devices_can_be_combined() -> None:
    apart = [jax.device_put(jnp.arange(3.0), device) for device in (FIRST, SECOND)]
    with pytest.raises(ValueError, match="incompatible devices"):
        apart[0] + apart[1]
    assert (movable(apart[0]) + movable(apart[1])).tolist() == [0, 2, 4]
    # Committed operands determine the device.
    assert (movable(apart[0]) + apart[1]).devices() == {SECOND}


def test_a_movable_array_is_computed_with_on_the_default_device() -> None:
    moved = movable(jax.device_put(jnp.arange(3.0), SECOND))
    with jax.default_device(SECOND):
        assert (moved * 2).devices() == {SECOND}


@pytest.mark.parametrize("value", [None, 3, "text", jax.random.key(0), jnp.ones(2)])
def test_everything_else_is_returned_unchanged(value: object) -> None:
    assert movable(value) is value


def test_an_array_on_several_devices_is_returned_unchanged() -> None:
    mesh = jax.sharding.Mesh([FIRST, SECOND], "d")
    whole = jax.device_put(jnp.arange(4.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    assert movable(whole) is whole


def test_arrays_are_moved_to_the_first_committed_one() -> None:
    apart = [jnp.zeros(1), *(jax.device_put(jnp.ones(1), device) for device in (SECOND, FIRST))]
    moved = near_first(apart)
    assert moved is not None
    assert moved[0] is apart[0]
    assert moved[1] is apart[1]
    assert sum(moved).devices() == {SECOND}
    assert near_first([jnp.zeros(1)]) is None
    assert jax.jit(lambda x: near_first([x]) is None)(1.0)
