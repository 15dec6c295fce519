"""MultiWorkerMirroredStrategy in one process, and what it refuses there. With several: tests/multiprocess."""

from __future__ import annotations

import json

import jax
import pytest

import mirrored as mr
from mirrored.cluster.strategy import warn_of_models


def test_one_task_behaves_as_mirrored_strategy(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = mr.MultiWorkerMirroredStrategy()
    with strategy.scope():
        v = mr.Variable(1.0)
    assert strategy.cluster_resolver is not None
    assert strategy.num_replicas_in_sync == len(v.values)
    assert float(strategy.reduce("SUM", strategy.run(lambda: v + 1.0), axis=None)) == 2.0 * len(v.values)


def test_one_task_has_the_virtual_devices_that_were_asked_for(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("MIRRORED_VIRTUAL_DEVICES", str(len(jax.devices())))
    assert mr.MultiWorkerMirroredStrategy().num_replicas_in_sync == len(jax.devices())


def test_replicas_may_share_a_device(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = mr.MultiWorkerMirroredStrategy(num_replicas=4, deterministic=True)
    assert strategy.num_replicas_in_sync == 4
    assert strategy.deterministic


def test_several_workers_are_refused_once_jax_has_started(monkeypatch):
    assert jax.devices()
    cluster = {"cluster": {"worker": ["localhost:47321", "localhost:47322"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(mr.errors.ContextError, match="JAX has initialized its devices already"):
        mr.MultiWorkerMirroredStrategy()


def test_devices_of_different_models_are_warned_of():
    warn_of_models(["NVIDIA H100"] * 3)
    with pytest.warns(UserWarning, match="worker 0 has 'NVIDIA H100' devices, and worker 2 'NVIDIA A100'"):
        warn_of_models(["NVIDIA H100", "NVIDIA H100", "NVIDIA A100"])
