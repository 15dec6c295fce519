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


@pytest.mark.parametrize("order", ["import mirrored.tf as tf, keras", "import keras, mirrored.tf as tf"])
@pytest.mark.first(1)
def test_keras_on_another_backend_is_not_connected(order: str) -> None:
    program = """
import warnings
import numpy as np
assert keras.ops.convert_to_numpy(keras.random.uniform((1,))).shape == (1,)
for expected in (1, 0):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tf.distribute.OneDeviceStrategy("CPU:0").scope():
            pass
    assert sum("keras uses the backend 'numpy'" in str(one.message) for one in caught) == expected
"""
    run = run_python(f"{order}\n{program}", KERAS_BACKEND="numpy")
    assert run.returncode == 0, run.stderr


def test_the_package_is_read_without_its_import() -> None:
    run = run_python(
        "import mirrored.tf, importlib.util, pkgutil, sys\n"
        "loader = importlib.util.find_spec('keras').loader\n"
        "assert loader.is_package('keras') and loader.get_filename('keras').endswith('__init__.py')\n"
        "assert 'import' in loader.get_source('keras') and 'keras' not in sys.modules\n"
        "assert pkgutil.get_data('keras', '__init__.py')"
    )
    assert run.returncode == 0, run.stderr
