"""A restored array has the type of the one that it replaces: its width, and whether the type is weak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointManager


@pytest.mark.parametrize("is_committed", [False, True])
def test_weak_types_stay(tmp_path: Path, is_committed: bool) -> None:
    """After the restore, a program of bfloat16 computed in float32."""

    def state(value: float) -> dict[str, Any]:
        arrays = {"weak": jnp.asarray(value), "many": jnp.full(3, value), "strong": jnp.asarray(value, jnp.float32)}
        return {k: jax.device_put(a, jax.devices()[1]) if is_committed else a for k, a in arrays.items()}

    path = Checkpoint(state=state(0.5)).save(tmp_path / "c")
    restored = state(0.0)
    Checkpoint(state=restored).restore(path).assert_consumed()
    for name, array in state(0.5).items():
        assert restored[name].weak_type == array.weak_type
        assert restored[name].committed == is_committed
        assert restored[name].tolist() == array.tolist()
        if is_committed:
            assert restored[name].devices() == {jax.devices()[1]}
    half = jnp.ones((), jnp.bfloat16)
    assert (jax.device_put(half, jax.devices()[int(is_committed)]) * restored["weak"]).dtype == jnp.bfloat16


def test_arrays_of_64_bits_stay_outside_of_their_context(tmp_path: Path) -> None:
    """They became 32-bit arrays of other numbers."""

    def state(number: int) -> dict[str, Any]:
        with jax.enable_x64(True):
            return {
                "float": jnp.asarray(number / 3, jnp.float64),
                "integer": jnp.asarray(number, jnp.int64),
                "committed": jax.device_put(np.int64(number), jax.devices()[1]),
                "variable": mr.Variable(np.int64(number)),
                "mirrored": mirrored(number),
            }

    def mirrored(number: int) -> Any:
        with mr.MirroredStrategy(jax.devices()[:2]).scope():
            return mr.Variable(np.int64(number))

    path = Checkpoint(state=state(3141592653589)).save(tmp_path / "c")
    restored = state(0)
    Checkpoint(state=restored).restore(path).assert_consumed()
    for name, value in restored.items():
        found = np.asarray(value.numpy() if isinstance(value, mr.Variable) else value)
        assert found.dtype.itemsize == 8
        assert found == (3141592653589 / 3 if name == "float" else 3141592653589)


@pytest.mark.parametrize("is_wide", [False, True])
def test_the_width_of_the_save_counter_is_no_mismatch(tmp_path: Path, is_wide: bool) -> None:
    """A checkpoint of a program with `jax_enable_x64` could not be restored without it, and vice versa."""
    with jax.enable_x64(is_wide):
        saved = CheckpointManager(Checkpoint(w=mr.Variable(np.float32(2.0))), tmp_path)
        saved.save(1)
        saved.wait()
    with jax.enable_x64(not is_wide):
        restored = Checkpoint(w=mr.Variable(np.float32(0.0)))
        manager = CheckpointManager(restored, tmp_path / "other")
        restored.restore(saved.latest_checkpoint).assert_consumed()
        assert (float(restored.w.numpy()), int(restored.save_counter.numpy())) == (2.0, 1)
        manager.save(2)
        manager.wait()
        assert int(restored.save_counter.numpy()) == 2
        assert manager.restore_latest() == 2
