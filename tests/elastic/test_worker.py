"""The main loop of a worker, before it joins its first membership epoch."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import flax.nnx
import keras
from mirrored._jax import distributed
from mirrored.elastic.worker import Worker

made_before = keras.layers.Rescaling(1.0)

class Link:
    def check(self):
        pass

    def arrive(self, steps, described):
        raise InterruptedError

try:
    Worker(Link()).run(lambda place, snapshots: None)
except InterruptedError:
    pass
print(distributed.has_devices())
for _ in range(2):
    print(keras.layers.Rescaling(1.0).name)
    distributed.reset_for_another_job()
"""


@pytest.mark.long
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_layers_that_the_program_has_made_before_the_first_scope_keep_their_names() -> None:
    """Otherwise a model with such a layer would have two of one name when the training function is called again."""
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert ran.stdout.split() == ["False", "rescaling_1", "rescaling_1"], ran.stderr[-2000:]
