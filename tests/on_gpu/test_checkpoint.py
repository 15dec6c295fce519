"""Saving from and restoring to a GPU, onto another number of virtual replicas."""

from __future__ import annotations

import jax
import pytest

from mirrored.checkpoint import Checkpoint
from mirrored.testing import assert_close_by_norm, assert_same_bits
from on_gpu.programs import REPLICAS, Training

pytestmark = pytest.mark.gpu


def checkpoint_of(training):
    return Checkpoint(w=training.w, v=training.v, optimizer=training.optimizer)


def test_a_restored_training_goes_on_to_the_bit(tmp_path):
    first = Training(REPLICAS, deterministic=True)
    first.train(3)
    path = checkpoint_of(first).save(tmp_path / "c")
    second = Training(REPLICAS, deterministic=True, scale=0.0)
    second.train(1)
    checkpoint_of(second).restore(path).assert_consumed()
    assert_same_bits(second.state(), first.state())
    first.train(3)
    second.train(3)
    assert_same_bits(second.state(), first.state())


def test_it_is_restored_onto_another_number_of_replicas(tmp_path):
    with jax.default_matmul_precision("highest"):
        first, second = Training(REPLICAS), Training(2, scale=0.0)
        first.train(3)
        second.train(1)
        checkpoint_of(second).restore(checkpoint_of(first).save(tmp_path / "c")).assert_consumed()
        assert_same_bits(second.state(), first.state())
        first.train(2)
        second.train(2)
        assert_close_by_norm(second.state(), first.state(), 1e-3)
