from __future__ import annotations

import sys

import jax
import pytest

from mirrored.cluster.joining import _SETTINGS, check_fingerprints, fingerprint
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


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, "XLA_FLAGS is ''"),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, "the variable NVIDIA_TF32_OVERRIDE is '' .* and '0' on worker 1"),
        ({"LIBTPU_INIT_ARGS": "--xla_tpu_x=1"}, "the variable LIBTPU_INIT_ARGS"),
    ],
)
def test_variables_that_change_numbers_count(environment, told):
    with pytest.raises(DisagreementError, match=told):
        check_fingerprints("here", [fingerprint({}), fingerprint(environment)], NAMES)


def test_keys_that_are_drawn_with_another_offset_count():
    mine, before = fingerprint({}), jax.config.jax_random_seed_offset
    jax.config.update("jax_random_seed_offset", 1)
    try:
        other = fingerprint({})
    finally:
        jax.config.update("jax_random_seed_offset", before)
    with pytest.raises(DisagreementError, match="the setting jax_random_seed_offset"):
        check_fingerprints("here", [mine, other], NAMES)


def test_every_setting_is_one_of_jax():
    """One that no JAX has would compare None with None."""
    newer = {"jax_accurate_erf_inv", "jax_use_hlo_logistic_lowering"}  # than JAX 0.10
    assert {name for name in _SETTINGS if not hasattr(jax.config, name)} <= newer


def test_a_framework_that_one_worker_has_not_imported_is_not_compared(monkeypatch):
    monkeypatch.delitem(sys.modules, "flax", raising=False)
    without = fingerprint({})
    monkeypatch.setitem(sys.modules, "flax", object())
    mine = fingerprint({})
    assert "the version of flax" in mine
    check_fingerprints("here", [mine, without], NAMES)
    check_fingerprints("here", [without, mine], NAMES)
    with pytest.raises(DisagreementError, match="the version of flax"):
        check_fingerprints("here", [mine, {**mine, "the version of flax": "0.1"}], NAMES)
