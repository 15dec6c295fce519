from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mirrored.topology.slots import Slots

LAYOUTS = [(devices, replicas) for devices in range(1, 9) for replicas in range(devices, 18)]


@pytest.mark.parametrize(("devices", "replicas"), LAYOUTS)
def test_every_replica_has_one_slot_and_devices_hold_consecutive_ones(devices, replicas):
    slots = Slots(devices, replicas)
    held = [range(slots.first_on(d), slots.first_on(d) + slots.number_on(d)) for d in range(devices)]
    assert [replica for own in held for replica in own] == list(range(replicas))
    assert {len(own) for own in held} <= {slots.local - 1, slots.local}
    assert all(len(own) >= 1 for own in held)
    for replica in range(replicas):
        device, local = divmod(slots.of(replica), slots.local)
        assert (device, held[device][local]) == (slots.device_of(replica), replica)
        assert int(slots.replica_at(device, local)) == replica


@pytest.mark.first(6)
@pytest.mark.parametrize("several", [np, jnp])
@pytest.mark.parametrize(("devices", "replicas"), [(3, 8), (4, 6), (2, 5), (4, 5), (3, 7), (2, 4)])
def test_rows_and_slots_convert_into_each_other(devices, replicas, several):
    slots = Slots(devices, replicas)
    rows = several.arange(2 * replicas).reshape(replicas, 2)
    stacked = slots.stacked(rows)
    assert type(stacked) is type(rows)
    assert stacked.shape == (slots.count, 2)
    assert all((stacked[slots.of(r)] == rows[r]).all() for r in range(replicas))
    assert (slots.rows(stacked) == rows).all()


def test_a_padded_slot_repeats_the_one_before():
    slots = Slots(3, 8)
    assert slots.stacked(np.arange(8)).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7]
    assert [int(slots.replica_at(2, k)) for k in range(3)] == [6, 7, 7]
    assert [int(slots.replica_at(jnp.asarray(2), k)) for k in range(3)] == [6, 7, 7]
    own = jnp.asarray([6.0, 7.0, jnp.nan])
    assert slots.repeated(own, False).tolist() == [6, 7, 7]
    assert slots.repeated(jnp.arange(3.0), True).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("is_real", "gradient"), [(True, [1, 1, 1]), (False, [1, 1, 0])])
def test_no_gradient_flows_from_a_padded_slot_to_the_row_that_it_repeats(is_real, gradient):
    total = lambda own: jnp.sum(Slots(3, 8).repeated(own, is_real) * jnp.asarray([1.0, 1.0, 1.0]))  # noqa: E731
    assert jax.grad(total)(jnp.ones(3)).tolist() == gradient


def test_no_gradient_flows_from_a_stacked_padded_slot_to_the_row_that_it_repeats():
    total = lambda rows: jnp.sum(Slots(3, 8).stacked(rows))  # noqa: E731
    assert jax.grad(total)(jnp.ones(8)).tolist() == [1] * 8


def test_typed_keys_have_rows_too():
    keys = jax.random.split(jax.random.key(0), 5)
    slots = Slots(2, 5)
    assert (jax.random.key_data(slots.rows(slots.stacked(keys))) == jax.random.key_data(keys)).all()
