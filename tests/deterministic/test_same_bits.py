"""`deterministic=True`: the same final weights, bit for bit, however the replicas are spread over devices."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

TRAINING = pathlib.Path(__file__).with_name("training.py")


def final_weights(model: str, dtype: str, replicas: int, devices: int) -> str:
    """The hash that one training process prints."""
    source = pathlib.Path(__file__).parents[2] / "src"
    environment = {**os.environ, "MIRRORED_VIRTUAL_DEVICES": str(devices), "PYTHONPATH": str(source)}
    environment.pop("XLA_FLAGS", None)
    ended = subprocess.run(
        [sys.executable, str(TRAINING), model, dtype, str(replicas), str(devices)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.strip()


def hashes(model: str, dtype: str, replicas: int, devices: tuple[int, ...]) -> set[str]:
    """One training per device count; the hashes that came out."""
    return {final_weights(model, dtype, replicas, count) for count in devices}


@pytest.mark.multiprocess
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", ["multiplied", "transformer"])
@pytest.mark.long
def test_eight_replicas_have_the_same_bits_on_one_and_four_devices(model: str) -> None:
    assert len(hashes(model, "float32", 8, (1, 4))) == 1


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("replicas", "devices"), [(8, (1, 2, 4, 8)), (6, (1, 2, 3, 6))], ids=["8", "6"])
@pytest.mark.parametrize("model", ["mlp", "convnet", "transformer", "multiplied", "divided"])
def test_same_bits_on_any_number_of_devices(model: str, dtype: str, replicas: int, devices: tuple[int, ...]) -> None:
    assert len(hashes(model, dtype, replicas, devices)) == 1
