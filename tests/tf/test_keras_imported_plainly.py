"""Programs that write `import keras` next to `import mirrored.tf as tf`, the idiom of Keras 3 on TensorFlow."""

from __future__ import annotations

import pytest

from fresh_process import run_python

TRAINING = """
import sys
import numpy as np
assert "mirrored.integrations.keras" in sys.modules
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((8, 3), "f4")
model.fit(tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(4), verbose=0)
numbers = []
for _ in range(2):
    keras.utils.set_random_seed(5)
    numbers.append(float(tf.random.normal([])))
assert numbers[0] == numbers[1]
assert tf.keras.Model is keras.Model
"""
IMPORTS = {
    "after": "import mirrored.tf as tf, sys\nassert 'keras' not in sys.modules\nimport keras",
    "before": "import keras, mirrored.tf as tf",
    "in a scope": "import mirrored.tf as tf\nwith tf.distribute.MirroredStrategy().scope(): import keras",
}


@pytest.mark.parametrize("order", IMPORTS)
@pytest.mark.first(1)
def test_fit_takes_datasets_and_seeds_are_those_of_tf_random(order: str) -> None:
    run = run_python(f"{IMPORTS[order]}\n{TRAINING}", KERAS_BACKEND="jax")
    assert run.returncode == 0, run.stderr
