"""A workload as a training script on one device, for `mirrored plan`: `plan_step.py W2`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from contenders.mirrored_compiled import train
from spec import WORKLOADS

if __name__ == "__main__":
    job = train(WORKLOADS[sys.argv[1]], 1)
    while True:
        job.call()
