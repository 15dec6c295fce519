"""Warnings of eager runs."""

from __future__ import annotations

import warnings

import jax
import pytest

import mirrored as mr
from mirrored.strategies import eager


@pytest.mark.parametrize(
    ("platform", "flags", "warns"),
    [
        ("gpu", "", True),
        ("gpu", "--xla_gpu_autotune_level=0", True),
        ("gpu", "--xla_gpu_deterministic_ops=true", False),
        ("cpu", "", False),
    ],
)
def test_kernels_of_gpus_that_are_not_reproducible(monkeypatch, platform, flags, warns):
    monkeypatch.setenv("XLA_FLAGS", flags)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        eager.warn_of_kernels(platform)
    assert [one.category for one in caught] == [UserWarning] * warns
    assert all("mirrored.function" in str(one.message) for one in caught)


@pytest.mark.parametrize("deterministic", [False, True])
def test_only_deterministic_runs_look_for_such_kernels(monkeypatch, deterministic):
    asked = []
    monkeypatch.setattr(eager, "warn_of_kernels", asked.append)
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2, deterministic=deterministic)
    strategy.run(lambda: 1.0)
    assert asked == [jax.devices()[0].platform] * deterministic
