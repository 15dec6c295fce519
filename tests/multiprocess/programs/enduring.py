"""Makes 2,000 steps over many epochs, with checkpoints and values between workers: ``enduring.py FOLDER``."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path

from training import Run

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager

strategy = mr.MultiWorkerMirroredStrategy()
run = Run(strategy)
distributed = strategy.experimental_distribute_dataset(run.dataset)
compiled = mr.function(run.step)
manager = CheckpointManager(Checkpoint(variables=run.variables, optimizer=run.optimizer, seen=run.seen), sys.argv[1])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


found, step = [], 0
while step < 2000:
    for batch in distributed:  # 5 steps, the last one over an uneven batch
        step += 1
        (run.step if step % 50 == 0 else compiled)(batch)
        if step % 100 == 0:
            manager.save(step)
            float(run.seen.numpy())
        if step in (1000, 1500, 2000):
            manager.wait()
            gc.collect()
            found.append([len(os.listdir("/proc/self/fd")), resident_bytes(), threading.active_count()])
print("RESULT", json.dumps(found), flush=True)
