"""Workers with other numbers of XLA's threads, which a job reports: ``unequal.py deterministic|ordinary``."""

from __future__ import annotations

import json
import os
import sys
import warnings

import mirrored as mr

os.environ["NPROC"] = str(1 + json.loads(os.environ["TF_CONFIG"])["task"]["index"])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        mr.MultiWorkerMirroredStrategy(deterministic=sys.argv[1] == "deterministic")
        result = [str(one.message) for one in caught if "threads" in str(one.message)]
    except mr.errors.DisagreementError as error:
        result = [type(error).__name__, error.found]
print("RESULT", json.dumps(result), flush=True)
