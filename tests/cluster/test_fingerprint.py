from __future__ import annotations

import jax
import pytest

from mirrored.cluster.fingerprint import check_fingerprints, fingerprint
from mirrored.errors import DisagreementError

NAMES = ["host0:1", "host1:1", "host2:1"]


def test_equal_workers_pass():
    mine = fingerprint({})
    assert mine["the version of jax"] == jax.__version__
    check_fingerprints("here", [mine, dict(mine), dict(mine)], NAMES)


def test_the_first_that_differs_is_named():
    mine = fingerprint({})
    other = {**mine, "the version of jax": "0.9.0", "XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}
    with pytest.raises(
        DisagreementError, match=r"the version of jax .* on worker 0 \(host0:1\) and '0.9.0' on worker 2"
    ):
        check_fingerprints("here", [mine, mine, other], NAMES)


def test_settings_that_change_numbers_count():
    mine = fingerprint({})
    with jax.enable_x64(True):
        other = fingerprint({})
    with pytest.raises(DisagreementError, match=r"the setting jax_enable_x64 is 'False' .* 'True' on worker 1"):
        check_fingerprints("here", [mine, other], NAMES)


def test_a_worker_may_have_devices_and_dumps_of_its_own():
    few = fingerprint({"XLA_FLAGS": "--xla_b=1 --xla_force_host_platform_device_count=2 --xla_a=2"})
    many = fingerprint({"XLA_FLAGS": "--xla_a=2 --xla_b=1 --xla_dump_to=/somewhere"})
    assert few == many
    assert few["XLA_FLAGS"] == "--xla_a=2 --xla_b=1"
