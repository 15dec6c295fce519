"""Trains on all workers: ``train.py deterministic|any replicas ways...``; 0 replicas: one per device."""

from __future__ import annotations

import json
import sys

from training import outcomes

import mirrored as mr

order, replicas, *ways = sys.argv[1:]
strategy = mr.MultiWorkerMirroredStrategy(num_replicas=int(replicas) or None, deterministic=order == "deterministic")
print("RESULT", json.dumps(outcomes(strategy, *ways)), flush=True)
