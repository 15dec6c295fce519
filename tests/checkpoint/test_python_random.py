"""The state of Python's random generators in checkpoints."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint.earlier_versions import as_by_earlier_version
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.leaves import GeneratorLeaf
from mirrored.checkpoint.manifest import read_manifest
from mirrored.checkpoint.saved import Saved
from mirrored.errors import ArgumentError, CheckpointMismatchError


class Sampler:
    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.epoch = 1


class Shuffler(random.Random):
    """A generator with state of its own."""

    def __init__(self, seed: int, epoch: int = 0) -> None:
        super().__init__(seed)
        self.epoch = epoch


class Slotted(random.Random):
    __slots__ = ()


PLACES: dict[str, Callable[[Any], Any]] = {
    "part": lambda generator: generator,
    "attribute": Sampler,
    "list": lambda generator: [3, generator],
    "deque": lambda generator: deque([generator]),
    "tuple": lambda generator: (generator,),
    "dict": lambda generator: {"a": {"b": generator}},
    "attribute of an attribute": lambda generator: Sampler(Sampler(generator)),
}


def drawn(generator: random.Random) -> list[float]:
    return [generator.gauss(), generator.random(), generator.gauss(), float(generator.randrange(10**30))]


@pytest.mark.parametrize("draws", [0, 1, 2])
@pytest.mark.parametrize("make", [random.Random, Shuffler, Slotted])
@pytest.mark.parametrize("place", PLACES)
def test_a_random_generator_continues(place: str, make: Any, draws: int, tmp_path: Path) -> None:
    """In attributes it was neither saved nor warned of; as a part it was refused."""
    generator, other = make(1), make(2)
    for _ in range(draws):
        generator.gauss()  # every second one is kept for the next call
    path = Checkpoint(part=PLACES[place](generator)).write(tmp_path / "c")
    expected = drawn(generator)
    Checkpoint(part=PLACES[place](other)).restore(path).assert_consumed()
    assert drawn(other) == expected


def test_attributes_of_a_subclass_are_state_as_before(tmp_path: Path) -> None:
    generator, other = Shuffler(1, epoch=5), Shuffler(2)
    path = Checkpoint(a=generator, b=Sampler(generator)).write(tmp_path / "c")
    assert set(read_manifest(path).leaves) >= {"a/epoch", "a/%state"}
    Checkpoint(a=other, b=Sampler(other)).restore(path).assert_consumed()
    assert (other.epoch, other.getstate()) == (5, generator.getstate())


def test_the_state_is_readable_data(tmp_path: Path) -> None:
    path = Checkpoint(generator=random.Random(1)).write(tmp_path / "c")
    value = json.loads(json.dumps(read_manifest(path).leaves["generator"].value))
    version, numbers, pending = value["state"]["__tuple__"]
    assert (value["bit_generator"], version, pending) == ("random.Random", 3, None)
    assert tuple(numbers["__tuple__"]) == random.Random(1).getstate()[1]


@pytest.mark.parametrize("make", [lambda seed: Sampler(random.Random(seed)), Shuffler])
def test_checkpoints_of_earlier_versions_lack_the_state(make: Any, tmp_path: Path) -> None:
    """They can be restored, and the generator stays as it is."""
    earlier = Sampler(None)
    earlier.epoch = 7
    path = as_by_earlier_version(Checkpoint(part=earlier).write(tmp_path / "c"))
    assert [name for name in read_manifest(path).leaves if name.startswith("part")] == ["part/epoch"]
    part = make(3)
    Checkpoint(part=part).restore(path).assert_existing_objects_matched()
    generator = part if isinstance(part, Shuffler) else part.generator
    assert (part.epoch, generator.getstate()) == (7, random.Random(3).getstate())


class Position:
    def __init__(self, state: Any) -> None:
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


GENERATORS: dict[str, Callable[[], Any]] = {
    "Python": lambda: random.Random(0),
    "NumPy": lambda: np.random.default_rng(0),
    "legacy": lambda: np.random.RandomState(0),
    "number": lambda: Position(3),
    "list": lambda: Position([3]),
}


@pytest.mark.parametrize("saved", GENERATORS)
@pytest.mark.parametrize("here", ["Python", "NumPy"])
def test_the_state_of_another_kind_is_refused(saved: str, here: str, tmp_path: Path) -> None:
    path = Checkpoint(generator=GENERATORS[saved]()).write(tmp_path / "c")
    checkpoint = Checkpoint(generator=GENERATORS[here]())
    if saved == here:
        checkpoint.restore(path).assert_consumed()
        return
    with pytest.raises(CheckpointMismatchError, match=r"generator  a position in the checkpoint, a position of "):
        checkpoint.restore(path)


def test_a_generator_without_state_is_refused() -> None:
    with pytest.raises(ArgumentError, match="holds no state"):
        Checkpoint(generator=random.SystemRandom())


def test_a_generator_that_is_created_later_is_restored(tmp_path: Path) -> None:
    generator = random.Random(1)
    path = Checkpoint(generator=generator, step=1).write(tmp_path / "c")
    checkpoint = Checkpoint(step=0)
    checkpoint.restore(path)
    checkpoint.generator = random.Random(2)
    assert checkpoint.generator.getstate() == generator.getstate()


def test_a_state_that_a_generator_refuses_is_undone() -> None:
    generator = random.Random(1)
    before = generator.getstate()
    with pytest.raises(ValueError, match="state with version 9"):
        GeneratorLeaf(generator).put(
            Saved("position", value={"bit_generator": "random.Random", "state": {"__tuple__": [9, [], None]}})
        )
    assert generator.getstate() == before
    other = GeneratorLeaf(random.Random(2)).read()
    GeneratorLeaf(generator).put(other)()
    assert generator.getstate() == before
