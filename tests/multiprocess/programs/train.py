"""Trains on all workers: ``train.py [deterministic] [replicas]``."""

from __future__ import annotations

import json
import sys

from training import outcomes

import mirrored as mr

replicas = int(sys.argv[2]) if len(sys.argv) > 2 else None
strategy = mr.MultiWorkerMirroredStrategy(num_replicas=replicas, deterministic=sys.argv[1] == "deterministic")
print("RESULT", json.dumps(outcomes(strategy)), flush=True)
