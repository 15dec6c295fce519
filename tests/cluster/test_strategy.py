"""MultiWorkerMirroredStrategy with one worker, and what it says of several."""

from __future__ import annotations

import json

import pytest

import mirrored as mr


def test_one_task_behaves_as_mirrored_strategy(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = mr.MultiWorkerMirroredStrategy()
    with strategy.scope():
        v = mr.Variable(1.0)
    assert strategy.cluster_resolver is not None
    assert strategy.num_replicas_in_sync == len(v.values)
    assert float(strategy.reduce("SUM", strategy.run(lambda: v + 1.0), axis=None)) == 2.0 * len(v.values)


def test_several_workers_are_refused_by_name(monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(mr.errors.ContextError, match=r"2 workers \(a:1, b:1\)"):
        mr.MultiWorkerMirroredStrategy()
