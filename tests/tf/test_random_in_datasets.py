"""Random numbers in functions of datasets: one stream per element, apart from the program's, whatever threads do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.data import global_seed
from mirrored.errors import InputError
from mirrored.tf._ops import generator as generators

N = 30


def uniform(_: Any) -> Any:
    return tf.random.uniform([])


@tf.function  # type: ignore[untyped-decorator]
def compiled_uniform(_: Any) -> Any:
    return tf.random.uniform([])


def from_generator() -> Callable[[Any], Any]:
    generator = tf.random.Generator.from_seed(5)
    return lambda _: generator.uniform([])


def from_seed_generator() -> Callable[[Any], Any]:
    generator = tf.keras.random.SeedGenerator(5)
    return lambda _: tf.keras.random.uniform((), seed=generator)


FUNCTIONS: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "tf.random": lambda: uniform,
    "with a seed": lambda: lambda _: tf.random.uniform([], seed=3),
    "tf.function": lambda: compiled_uniform,
    "Generator": from_generator,
    "Keras": lambda: lambda _: tf.keras.random.uniform(()),
    "SeedGenerator": from_seed_generator,
}


@pytest.fixture
def no_global_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators._global, "seed", None)
    monkeypatch.setattr(global_seed.GlobalSeed, "seed", None)
    monkeypatch.setattr(global_seed.GlobalSeed, "resets", global_seed.GlobalSeed.resets + 1)


def numbers(dataset: Any) -> list[float]:
    return [float(one) for one in dataset]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_parallel_calls_draw_different_numbers_that_repeat(kind: str) -> None:
    found = []
    for calls in (8, tf.data.AUTOTUNE, None):
        tf.random.set_seed(7)
        dataset = tf.data.Dataset.range(N).map(FUNCTIONS[kind](), num_parallel_calls=calls)
        found.append(numbers(dataset))
    assert len(set(found[0])) == N
    assert found[0] == found[1] == found[2]


def test_functions_and_the_program_draw_from_different_streams() -> None:
    def run(read: int) -> tuple[list[float], list[float]]:
        tf.random.set_seed(7)
        dataset = iter(tf.data.Dataset.range(N).map(uniform).prefetch(4))
        data = [float(next(dataset)) for _ in range(read)]
        program = [float(tf.random.uniform([])) for _ in range(5)]
        return data + numbers(dataset), program

    first, second = run(1), run(20)
    assert first == second
    assert not set(first[0]) & set(first[1])


@pytest.mark.parametrize("seed", [None, 7])
def test_a_restored_position_repeats_the_numbers(seed: int | None) -> None:
    def made() -> Any:
        return tf.data.Dataset.range(N).map(uniform).repeat(2).batch(5)

    if seed is not None:
        tf.random.set_seed(seed)
    reading = iter(made())
    next(reading)
    position = reading.get_state()
    expected = [np.asarray(one).tolist() for one in reading]
    restored = iter(made())
    restored.set_state(position)
    assert [np.asarray(one).tolist() for one in restored] == expected


@pytest.mark.usefixtures("no_global_seed")
@pytest.mark.parametrize("kind", ["with a seed", "Generator", "SeedGenerator"])
def test_a_position_repeats_the_numbers_of_a_seed_in_a_process_that_has_read_other_datasets(kind: str) -> None:
    def made(others: int) -> Any:
        function = FUNCTIONS[kind]()
        for _ in range(others):
            numbers(tf.data.Dataset.range(N).map(function))
        return tf.data.Dataset.range(N).map(function)

    assert numbers(made(0)) == numbers(made(0))  # as in two new processes
    for before, after in ((0, 1), (1, 0)):
        reading = iter(made(before))
        next(reading)
        position = json.loads(json.dumps(reading.get_state()))
        expected = numbers(reading)
        restored = iter(made(after))
        restored.set_state(position)
        assert numbers(restored) == expected


@pytest.mark.usefixtures("no_global_seed")
@pytest.mark.parametrize("kind", ["with a seed", "Generator", "SeedGenerator"])
def test_a_pipeline_that_draws_before_a_restored_one_has_other_numbers(kind: str) -> None:
    def made() -> tuple[Any, Any]:
        function = FUNCTIONS[kind]()
        return tf.data.Dataset.range(N).map(function), tf.data.Dataset.range(N).map(function)

    training, validation = made()
    numbers(training)
    expected = numbers(validation)
    reading = iter(training)
    next(reading)
    position = json.loads(json.dumps(reading.get_state()))
    rest = numbers(reading)
    training, validation = made()
    restored = iter(training)
    restored.set_state(position)
    assert numbers(validation) == expected
    assert numbers(restored) == rest


@pytest.mark.parametrize("kind", ["tf.random", "Generator", "SeedGenerator"])
def test_datasets_with_one_generator_draw_different_numbers(kind: str) -> None:
    function = FUNCTIONS[kind]()
    first, second = (numbers(tf.data.Dataset.range(N).map(function)) for _ in range(2))
    assert not set(first) & set(second)


@pytest.mark.usefixtures("no_global_seed")
def test_datasets_that_functions_read_repeat_the_numbers_of_a_seed() -> None:
    def read(_: Any) -> Any:
        own = tf.data.Dataset.range(2).map(FUNCTIONS["with a seed"]())
        return tf.stack([*own, *own.cache(), *own])

    found = []
    for calls in (8, None):
        rows = [np.asarray(one).tolist() for one in tf.data.Dataset.range(N).map(read, num_parallel_calls=calls)]
        assert len({number for row in rows for number in row}) == 6 * N
        found.append(rows)
    assert found[0] == found[1]


@pytest.mark.usefixtures("no_global_seed")
def test_datasets_made_before_a_job_repeat_their_passes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_seed, "_counts_before", [global_seed.counts()])
    dataset = tf.data.Dataset.range(N).shuffle(N, seed=1).map(lambda x: (x, FUNCTIONS["with a seed"]()(x)))
    found = []
    for _ in range(2):
        found.append([[(int(x), float(y)) for x, y in dataset] for _ in range(2)])
        global_seed._restore_first_counts()  # as of a process that leaves a job, and joins the next one
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_epochs_uses_and_pipelines_have_different_numbers() -> None:
    noise = tf.data.Dataset.range(N).map(uniform)
    inner = tf.data.Dataset.range(4).flat_map(lambda _: tf.data.Dataset.range(5).map(uniform))
    both = [float(part) for pair in tf.data.Dataset.zip((noise, noise)) for part in pair]
    others = numbers(tf.data.Dataset.range(N).map(uniform))
    found = numbers(noise) + numbers(noise.repeat(2)) + numbers(inner) + both + others
    assert len(set(found)) == len(found)


def test_every_draw_of_an_element_differs() -> None:
    dataset = tf.data.Dataset.range(5).map(lambda _: tf.map_fn(uniform, tf.zeros([3])))
    found = np.stack(list(dataset)).ravel().tolist()
    assert len(set(found)) == 15


def test_a_generator_in_a_dataset_keeps_its_state() -> None:
    generator = tf.random.Generator.from_seed(5)
    before = generator.state.numpy().tolist()
    numbers(tf.data.Dataset.range(3).map(lambda _: generator.uniform([])))
    assert generator.state.numpy().tolist() == before


def test_an_eager_run_reads_a_dataset_that_draws() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = tf.data.Dataset.range(8).map(uniform).batch(2).prefetch(2)

    def count() -> int:
        return sum(1 for _ in dataset)

    assert strategy.experimental_local_results(strategy.run(count)) == (4,)


def test_random_layers_in_a_dataset_transform_every_image_differently() -> None:
    augment = tf.keras.layers.RandomBrightness(0.5, value_range=(0.0, 1.0))
    images = np.full((N, 2, 2, 1), 0.5, np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(images)
    mapped = dataset.map(lambda one: augment(one, training=True), num_parallel_calls=8)
    assert len({float(np.mean(one)) for one in mapped}) > N - 3


def noise() -> Any:
    return tf.data.Dataset.range(N).map(uniform)


@pytest.mark.parametrize("seed", [None, 7])
def test_datasets_derived_anew_in_each_epoch_draw_other_numbers(seed: int | None) -> None:
    if seed is not None:
        tf.random.set_seed(seed)
    dataset = noise()
    found = [*numbers(dataset.take(N)), *numbers(dataset.take(N)), *numbers(dataset), *numbers(dataset.map(float))]
    assert len(set(found)) == 4 * N


@pytest.mark.parametrize("kind", ["tf.random", "with a seed", "tf.function", "Keras"])
def test_setting_the_seed_again_repeats_the_numbers_of_a_dataset(kind: str) -> None:
    dataset = tf.data.Dataset.range(N).map(FUNCTIONS[kind]())
    numbers(dataset)
    found = []
    for _ in range(2):
        tf.random.set_seed(7)
        found.append([numbers(dataset), numbers(dataset)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_functions_use_up_no_seed_of_the_orders() -> None:
    def order(drawing: bool) -> list[float]:
        tf.random.set_seed(7)
        if drawing:
            numbers(noise())
        return numbers(tf.data.Dataset.range(N).shuffle(N))

    assert order(True) == order(False)


@pytest.mark.parametrize("seed", [None, 7])
def test_a_position_repeats_the_numbers_in_a_program_that_has_read_less(seed: int | None) -> None:
    def begin() -> Any:
        if seed is not None:
            tf.random.set_seed(seed)
        return noise(), noise()

    first, second = begin()
    numbers(first), numbers(second)
    reading = iter(second)
    next(reading)
    position = reading.get_state()
    expected = numbers(reading), numbers(second.take(N))
    _, second = begin()
    restored = iter(second)
    restored.set_state(position)
    assert (numbers(restored), numbers(second.take(N))) == expected


def test_a_position_that_does_not_fit_leaves_the_numbers() -> None:
    dataset = noise()
    reading = iter(dataset)
    first = float(next(reading))
    state = iter(noise()).get_state()
    with pytest.raises(InputError):
        reading.set_state({**state, "position": {"next_index": 1000}, "count": N, "cardinality": N})
    before = numbers(reading)
    reading = iter(dataset)
    draws = {**iter(dataset).get_state()["draws"], "pass": 0, "next_iteration": 1}
    reading.set_state({**reading.get_state(), "draws": draws})
    assert [first, *before] == numbers(reading)


@pytest.mark.parametrize("seed", [None, 7])
def test_datasets_that_functions_read_draw_by_element(seed: int | None) -> None:
    shared = tf.data.Dataset.range(2).map(uniform)

    def read(_: Any) -> Any:
        own = tf.data.Dataset.range(2).map(uniform)
        return tf.stack([*own, *shared, *own])

    found = []
    for calls in (8, None):
        if seed is not None:
            tf.random.set_seed(seed)
        rows = [np.asarray(one).tolist() for one in tf.data.Dataset.range(N).map(read, num_parallel_calls=calls)]
        assert len({number for row in rows for number in row}) == 6 * N
        found.append(rows)
    assert (found[0] == found[1]) == (seed is not None)


def test_restored_caches_keep_the_numbers() -> None:
    def made() -> Any:
        return noise().cache().repeat(2)

    reading = iter(made())
    next(reading)
    position = reading.get_state()
    expected = numbers(reading)
    assert len(set(expected)) == N
    restored = iter(made())
    restored.set_state(position)
    assert numbers(restored) == expected


def test_a_position_of_a_pass_that_began_before_the_seed_was_set_is_followed_by_other_numbers() -> None:
    dataset = noise()
    numbers(dataset)
    reading = iter(dataset)
    tf.random.set_seed(7)
    numbers(dataset)
    position = reading.get_state()
    passed = numbers(reading)
    reading = iter(dataset)
    reading.set_state(position)
    assert numbers(reading) == passed
    assert not set(numbers(dataset)) & set(passed)


def test_datasets_that_a_function_of_map_makes_are_shuffled_alike_as_in_tensorflow() -> None:
    tf.random.set_seed(3)
    dataset = tf.data.Dataset.range(3).map(
        lambda _: tf.data.Dataset.range(20).shuffle(20).batch(20).get_single_element()
    )
    orders = [list(map(int, order)) for order in dataset.as_numpy_iterator()]
    assert orders[0] == orders[1] == orders[2] != sorted(orders[0])
