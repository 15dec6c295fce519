"""Which draws of a generator are equal, on which replicas and after which restore: recorded on TensorFlow 2.21.

Numbers are called by letters in the order of their first appearance, because TensorFlow's algorithm is another one.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf

STRATEGIES: dict[str, Callable[[], Any]] = {
    "none": tf.distribute.get_strategy,
    "one device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "1 replica": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
    "2 replicas": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    "4 replicas": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
}
MODES: dict[str, Callable[[Callable[[], Any]], Any]] = {"eager": lambda f: f, "compiled": tf.function}


class Letters:
    """Names each new array by the next letter."""

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def of(self, value: Any) -> str:
        return self._known.setdefault(np.asarray(value).tobytes(), string.ascii_letters[len(self._known)])


def made(strategy: Any, seed: int = 1) -> tf.random.Generator:
    with strategy.scope():
        return tf.random.Generator.from_seed(seed)


def drawn(strategy: Any, generator: Any, letters: Letters, wrap: Callable[..., Any], times: int = 2) -> str:
    """Returns one word per draw, with one letter per replica."""
    function = wrap(lambda: generator.uniform_full_int([2], dtype=tf.int32))
    draws = [strategy.experimental_local_results(strategy.run(function)) for _ in range(times)]
    return " ".join("".join(letters.of(one) for one in draw) for draw in draws)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.long
def test_a_replica_draws_the_same_numbers_on_any_number_of_replicas(mode: str) -> None:
    letters = Letters()
    found = {}
    for name, make in STRATEGIES.items():
        strategy = make()
        found[name] = drawn(strategy, made(strategy), letters, MODES[mode])
    assert found == {
        "none": "a b",
        "one device": "c d",
        "1 replica": "c d",
        "2 replicas": "ce df",
        "4 replicas": "cegh dfij",
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.first(1)
@pytest.mark.long
def test_replicas_draw_in_turn_from_a_generator_made_outside_the_scope(mode: str) -> None:
    letters = Letters()
    found = {}
    for name, make in STRATEGIES.items():
        found[name] = drawn(make(), tf.random.Generator.from_seed(1), letters, MODES[mode])
    assert found == {
        "none": "a b",
        "one device": "a b",
        "1 replica": "a b",
        "2 replicas": "ab cd",
        "4 replicas": "abcd efgh",
    }


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("nested", [False, True], ids=["in run", "around run"])
@pytest.mark.first(1)
def test_a_compiled_run_advances_a_generator_made_outside_by_all_its_draws(nested: bool, replicas: int) -> None:
    """Afterwards it draws what it would draw after an eager run; the replicas draw in turns."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], num_replicas=replicas)
    letters, generator, other = Letters(), tf.random.Generator.from_seed(1), tf.random.Generator.from_seed(1)
    assert (
        "".join(letters.of(other.uniform_full_int([2])) for _ in range(2 * replicas + 1))
        == "abcdefghi"[: 2 * replicas + 1]
    )

    def replica() -> Any:
        return generator.uniform_full_int([2]), generator.uniform_full_int([2])

    step = tf.function(lambda: strategy.run(replica)) if nested else lambda: strategy.run(tf.function(replica))
    first, second = step()
    assert "".join(letters.of(one) for one in first.values) == "abcd"[:replicas]
    assert "".join(letters.of(one) for one in second.values) == "abcdefgh"[replicas : 2 * replicas]
    assert letters.of(generator.uniform_full_int([2])) == "abcdefghi"[2 * replicas]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.first(1)
@pytest.mark.long
def test_draws_outside_run_advance_the_stream_of_all_replicas(mode: str) -> None:
    letters = Letters()
    found = {}
    for name, make in STRATEGIES.items():
        strategy = make()
        generator = made(strategy)
        with strategy.scope():
            before = [letters.of(generator.uniform_full_int([2], dtype=tf.int32)) for _ in range(2)]
            inside = drawn(strategy, generator, letters, MODES[mode])
            after = letters.of(generator.uniform_full_int([2], dtype=tf.int32))
        found[name] = f"{''.join(before)} {inside} {after}"
    assert found == {
        "none": "ab c d e",
        "one device": "ab f g e",
        "1 replica": "ab f g e",
        "2 replicas": "ab fh gi e",
        "4 replicas": "ab fhjk gilm e",
    }


# The draws of the generator that was saved, and of the one that was restored from it, twice.
RESTORED = {
    "none": ("a b", {"none": "a b", "1 replica": "c d", "2 replicas": "ce df", "4 replicas": "cegh dfij"}),
    "1 replica": ("a c", {"none": "b d", "1 replica": "a c", "2 replicas": "ae cf", "4 replicas": "aegh cfij"}),
    "2 replicas": ("ab de", {"none": "c f", "1 replica": "a d", "2 replicas": "ab de", "4 replicas": "abgh deij"}),
    "4 replicas": (
        "abcd fghi",
        {"none": "e j", "1 replica": "a f", "2 replicas": "ab fg", "4 replicas": "abcd fghi"},
    ),
}


@pytest.mark.parametrize("saved", RESTORED)
@pytest.mark.first(1)
def test_replicas_draw_the_same_numbers_after_a_restore(saved: str, tmp_path: Path) -> None:
    letters = Letters()
    of_saved, of_restored = RESTORED[saved]
    for name, expected in of_restored.items():
        first, second = STRATEGIES[saved](), STRATEGIES[name]()
        source, target = made(first, 1), made(second, 10)
        words: tuple[list[str], list[str]] = ([], [])
        for step in range(2):
            path = tf.train.Checkpoint(g=source).write(str(tmp_path / f"{name}{step}"))
            words[0].append(drawn(first, source, letters, MODES["eager"], 1))
            tf.train.Checkpoint(g=target).restore(path)
            words[1].append(drawn(second, target, letters, MODES["eager"], 1))
        assert (" ".join(words[0]), " ".join(words[1])) == (of_saved, expected)


@pytest.mark.long
def test_seeds_copies_and_splits_follow_the_replica() -> None:
    letters = Letters()
    found = {}
    for name, make in STRATEGIES.items():
        strategy = make()
        generator = made(strategy)
        seeds = strategy.experimental_local_results(strategy.run(functools.partial(generator.make_seeds, 2)))
        generator.reset_from_seed(1)
        with strategy.scope():
            parts = [tf.random.Generator(copy_from=generator), *generator.split(2)]
        draws = [drawn(strategy, one, letters, MODES["eager"], 1) for one in (*parts, generator)]
        found[name] = " ".join(["".join(map(letters.of, seeds)), *draws])
    assert found == {
        "none": "e a b c d",
        "one device": "j f g h i",
        "1 replica": "j f g h i",
        "2 replicas": "jo fk gl hm in",
        "4 replicas": "joxy fkpq glrs hmtu invw",
    }


@pytest.mark.long
def test_functions_without_a_generator_draw_on_replica_0_what_one_replica_draws() -> None:
    letters = Letters()
    found = {}
    for name, make in STRATEGIES.items():
        strategy = make()
        tf.random.set_seed(5)
        draws = [strategy.run(lambda: tf.random.uniform([2])) for _ in range(2)]
        found[name] = " ".join("".join(map(letters.of, strategy.experimental_local_results(one))) for one in draws)
    # On TensorFlow, too, for the first draw; its replicas then take their seeds from one sequence.
    assert found == {
        "none": "a b",
        "one device": "a b",
        "1 replica": "a b",
        "2 replicas": "ac bd",
        "4 replicas": "acef bdgh",
    }
