"""Components of sync-on-read variables in checkpoints of deterministic programs, beside their aggregate."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.checkpoint import Checkpoint, CheckpointReader
from mirrored.checkpoint.json_state import encode
from mirrored.checkpoint.leaves import GeneratorLeaf
from mirrored.checkpoint.manifest import read_manifest
from mirrored.checkpoint.saved import Saved

# The shares of this sum, and the mean of three of these means, round to other values.
VALUES = {"SUM": [21.1, 20.7, 21.2], "MEAN": [0.98349875, 0.1, 0.7], "ONLY_FIRST_REPLICA": [1.0, 2.0, 3.0]}


def variable(aggregation: str, devices: int, replicas: int = 3, deterministic: bool = True) -> Any:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas, deterministic=deterministic)
    with strategy.scope():
        return mr.Variable(np.zeros(2, np.float32), synchronization="ON_READ", aggregation=aggregation)


def saved(aggregation: str, path: Path, deterministic: bool = True) -> tuple[Any, str]:
    made = variable(aggregation, 3, deterministic=deterministic)
    for one, value in zip(made.values, VALUES[aggregation], strict=True):
        one.assign([value, -value])
    return made, Checkpoint(v=made).write(path)


def components(one: Any) -> list[bytes]:
    return [np.asarray(part.read_value()).tobytes() for part in one.values]


@pytest.mark.first(1)
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("aggregation", VALUES)
def test_the_same_number_of_replicas_continue_with_the_same_bits(aggregation, devices, tmp_path):
    source, path = saved(aggregation, tmp_path / "c")
    target = variable(aggregation, devices)
    Checkpoint(v=target).restore(path).assert_consumed()
    assert components(target) == components(source)
    assert np.asarray(target).tobytes() == np.asarray(source).tobytes()


@pytest.mark.parametrize("aggregation", VALUES)
def test_others_see_the_aggregate(aggregation, tmp_path):
    source, path = saved(aggregation, tmp_path / "c")
    reader = CheckpointReader(path)
    assert (reader.names, reader.shapes) == (("v",), {"v": (2,)})
    np.testing.assert_array_equal(reader.read("v"), np.asarray(source))
    assert read_manifest(path).shape_and_dtype == {"v": ((2,), "float32")}
    for target in (variable(aggregation, 2, replicas=2), mr.Variable(np.zeros(2, np.float32))):
        Checkpoint(v=target).restore(path).assert_consumed()
        np.testing.assert_allclose(np.asarray(target), np.asarray(source), rtol=1e-6)


def test_other_strategies_store_the_aggregate_alone(tmp_path):
    _, path = saved("SUM", tmp_path / "c", deterministic=False)
    assert read_manifest(path).leaves["v"].components is None


def test_components_that_wait_for_their_variable_are_saved_again(tmp_path):
    source, _ = saved("SUM", tmp_path / "a")
    waiting = Checkpoint(parts={}, step=0)
    waiting.restore(Checkpoint(parts={"v": source}, step=1).write(tmp_path / "b")).expect_partial()
    late = Checkpoint(parts={}, step=0)
    late.restore(waiting.write(tmp_path / "c"))
    late.parts["v"] = variable("SUM", 2)
    assert components(late.parts["v"]) == components(source)


class HalfSet:
    """An iterator of two streams whose `set_state` raises after it has moved the first one."""

    def __init__(self, at: int) -> None:
        self.at = {"a": at, "b": at}

    def get_state(self) -> Any:
        return dict(self.at)

    def set_state(self, state: Any) -> None:
        self.at["a"] = state["a"]
        if state["b"] > 10:
            raise ValueError("no such position")
        self.at["b"] = state["b"]


def test_a_position_that_an_iterator_refuses_midway_is_undone(tmp_path):
    path = Checkpoint(v=mr.Variable(2.0), iterator=HalfSet(20)).write(tmp_path / "c")
    v, iterator = mr.Variable(1.0), HalfSet(3)
    with pytest.raises(ValueError, match="no such position"):
        Checkpoint(v=v, iterator=iterator).restore(path)
    assert iterator.at == {"a": 3, "b": 3}
    assert float(v.numpy()) == 1.0


def test_a_state_that_a_random_generator_refuses_midway_is_undone():
    generator, other = (np.random.Generator(np.random.MT19937(seed)) for seed in (0, 1))
    before = copy.deepcopy(generator).random(5)
    state = other.bit_generator.state
    del state["state"]["pos"]
    with pytest.raises(KeyError):
        GeneratorLeaf(generator).put(Saved("position", value=encode(state, "test")))
    np.testing.assert_array_equal(generator.random(5), before)


@pytest.mark.parametrize("spawned", [0, 1, 3])
@pytest.mark.parametrize("seed", [0, None, [1, 2**70], np.array([1, 2])])
def test_a_random_generator_continues_to_spawn_other_generators(seed: Any, spawned: int, tmp_path: Path) -> None:
    """It spawned those of the beginning again, silently: NumPy's state does not have their number."""
    generator = np.random.default_rng(seed).spawn(2)[1]
    generator.spawn(2)
    path = Checkpoint(generator=generator).write(tmp_path / "c")
    expected = [one.random() for one in (generator, *generator.spawn(2))]
    for restored in (generator, np.random.default_rng(seed).spawn(2)[1], np.random.default_rng(5)):
        restored.spawn(spawned)
        Checkpoint(generator=restored).restore(path).assert_consumed()
        assert [one.random() for one in (restored, *restored.spawn(2))] == expected


def test_a_generator_without_a_seed_sequence_and_one_of_an_earlier_version_are_restored() -> None:
    legacy = np.random.Generator(np.random.RandomState(3)._bit_generator)
    assert legacy.bit_generator.seed_seq is None
    saved = GeneratorLeaf(legacy).read()
    assert "seed_sequence" not in saved.value
    expected = legacy.random()
    generator = np.random.Generator(np.random.MT19937(1))
    generator.spawn(1)
    undo = GeneratorLeaf(generator).put(saved)
    assert generator.random() == expected
    assert generator.bit_generator.seed_seq.n_children_spawned == 1
    undo()
    GeneratorLeaf(legacy).put(GeneratorLeaf(generator).read())
    assert legacy.random() == np.random.Generator(np.random.MT19937(1)).random()
    assert legacy.bit_generator.seed_seq.n_children_spawned == 1


def test_an_undone_restore_leaves_the_number_of_spawned_generators() -> None:
    first, generator = np.random.default_rng(0), np.random.default_rng(1)
    first.spawn(4)
    generator.spawn(1)
    seeds = generator.bit_generator.seed_seq
    GeneratorLeaf(generator).put(GeneratorLeaf(first).read())()
    assert generator.bit_generator.seed_seq is seeds
    assert generator.bit_generator.seed_seq.n_children_spawned == 1
