"""A position saved after any number of elements, also at the end of the data or of an epoch, continues exactly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirrored as mr
from data.readings import assert_resumes_everywhere, plain, read
from mirrored.data import Dataset
from mirrored.errors import InputError, StructureError


def _even(x: Any) -> Any:
    if np.sum(x) % 2:
        raise ValueError("odd")
    return x


STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "batch": lambda d: d.batch(2),
    "batch and drop": lambda d: d.batch(2, drop_remainder=True),
    "padded batch": lambda d: d.padded_batch(3),
    "rebatch": lambda d: d.batch(2).rebatch(3),
    "rebatch to less": lambda d: d.batch(3).rebatch(2),
    "rebatch to one": lambda d: d.batch(4).rebatch(1),
    "rebatch and drop": lambda d: d.batch(2).rebatch(3, drop_remainder=True),
    "rebatch to several": lambda d: d.batch(2).rebatch([3, 0, 1]),
    "ignore errors": lambda d: d.map(_even).ignore_errors(),
    "ignore errors of a stream": lambda d: d.filter(lambda x: True).map(_even).ignore_errors(),
    "unbatch": lambda d: d.batch(2).unbatch(),
    "window": lambda d: d.window(3, shift=2).flat_map(lambda one: one.batch(3)),
    "windows that are full": lambda d: d.window(3, shift=1, drop_remainder=True).flat_map(lambda one: one.batch(3)),
    "filter": lambda d: d.filter(lambda x: np.sum(x) % 3 != 0),
    "no element": lambda d: d.filter(lambda x: False),
    "map": lambda d: d.filter(lambda x: True).map(lambda x: x + 1),
    "random map": lambda d: d.filter(lambda x: True).random_map(lambda x, rng: x + rng.integers(9)),
    "take": lambda d: d.filter(lambda x: True).take(4),
    "skip": lambda d: d.filter(lambda x: True).skip(2),
    "shuffle": lambda d: d.filter(lambda x: True).shuffle(3),
    "shuffle by position": lambda d: d.shuffle(3),
    "repeat": lambda d: d.filter(lambda x: True).repeat(2),
    "repeat by position": lambda d: d.repeat(2),
    "concatenate": lambda d: d.filter(lambda x: True).concatenate(d),
    "zip": lambda d: Dataset.zip((d.filter(lambda x: True), d)).map(lambda a, b: a + b),
    "interleave": lambda d: d.interleave(lambda x: Dataset.from_tensors(x).repeat(2), cycle_length=2),
    "cache": lambda d: d.filter(lambda x: True).cache(),
    "prefetch": lambda d: d.filter(lambda x: True).prefetch(2),
    "prefetch by position": lambda d: d.prefetch(2),
    "scan": lambda d: d.scan(np.int64(0), lambda state, x: (state + 1, x + state)),
    "take while": lambda d: d.take_while(lambda x: np.max(x) < 5),
    "choose": lambda d: Dataset.choose_from_datasets([d, d.map(lambda x: -x)], Dataset.range(2).repeat()),
}


def build(steps: list[str], size: int) -> Dataset:
    dataset = Dataset.range(size)
    for name in steps:
        dataset = STEPS[name](dataset)
    return dataset


def part(dataset: Dataset, state: Any, count: int) -> tuple[list[Any], Any]:
    """Reads up to `count` elements from a position."""
    with iter(dataset) as reading:
        if state is not None:
            reading.set_state(state)
        found = [plain(element) for element in itertools.islice(reading, count)]
        return found, json.loads(json.dumps(reading.get_state()))


@pytest.mark.parametrize("size", [0, 1, 4, 7])
@pytest.mark.parametrize("name", sorted(STEPS))
@pytest.mark.first(64)
def test_every_step_resumes_everywhere(name: str, size: int) -> None:
    assert_resumes_everywhere(build([name], size))
    assert_resumes_everywhere(build([name, "repeat"], size))


@pytest.mark.long
@settings(deadline=None, max_examples=80)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
    size=st.integers(0, 9),
    counts=st.lists(st.integers(0, 6), max_size=4),
)
def test_a_chain_of_restarts_reads_what_one_run_reads(steps: list[str], size: int, counts: list[int]) -> None:
    """Every part runs in a "new process": another dataset, whose shuffles draw other seeds until they are restored."""
    try:
        first = build(steps, size)
        start = part(first, None, 0)[1]
        whole = part(first, start, 10_000)[0]
    except ValueError:  # elements that cannot be batched: of different shapes
        return
    found, state = [], start
    for count in [*counts, 10_000, 1]:
        more, state = part(build(steps, size), state, count)
        found += more
    assert found == whole


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_rebatch_regroups_all_rows(size: int, drop: bool) -> None:
    lengths = [3, 0, 1, 4, 0]
    batches = np.split(np.arange(8), np.cumsum(lengths)[:-1])
    dataset = Dataset.from_generator(lambda: iter(batches)).map(lambda x: {"a": x, "b": (x * 2,)})
    expected = [list(range(i, min(i + size, 8))) for i in range(0, 8, size)]
    expected = [rows for rows in expected if len(rows) == size or not drop]
    assert [element["a"] for element in read(dataset.rebatch(size, drop))] == expected
    assert_resumes_everywhere(dataset.rebatch(size, drop))
    assert_resumes_everywhere(dataset.rebatch(size, drop).repeat(2))


@pytest.mark.parametrize(
    ("sizes", "count", "drop", "expected"),  # recorded with TensorFlow 2.21
    [
        ([2, 1, 0], 10, False, [[0, 1], [2], [], [3, 4], [5], [], [6, 7], [8], [], [9]]),
        ([2, 1, 0], 9, False, [[0, 1], [2], [], [3, 4], [5], [], [6, 7], [8], []]),
        ([0, 3], 9, False, [[], [0, 1, 2], [], [3, 4, 5], [], [6, 7, 8], []]),
        ([3, 0, 0], 6, False, [[0, 1, 2], [], [], [3, 4, 5], [], []]),
        ([3, 0], 8, False, [[0, 1, 2], [], [3, 4, 5], [], [6, 7]]),
        ([3, 0], 8, True, [[0, 1, 2], [], [3, 4, 5], []]),
        ([3, 2], 9, True, [[0, 1, 2], [3, 4], [5, 6, 7]]),
        ([3], 7, False, [[0, 1, 2], [3, 4, 5], [6]]),
    ],
)
def test_rebatch_to_several_sizes(sizes: list[int], count: int, drop: bool, expected: list[list[int]]) -> None:
    dataset = Dataset.range(count).batch(4).rebatch(sizes, drop)
    assert read(dataset) == expected
    assert read(Dataset.range(count).batch(4).rebatch(np.array(sizes), drop)) == expected
    assert_resumes_everywhere(dataset)
    assert_resumes_everywhere(dataset.repeat(2))


def test_the_spec_of_several_sizes() -> None:
    def dims(sizes: list[int], drop: bool) -> tuple[int | None, ...]:
        return tuple(Dataset.range(9).batch(4).rebatch(sizes, drop).element_spec.shape)

    assert (dims([3, 1], True), dims([3, 3], False), dims([3, 3], True)) == ((None,), (None,), (3,))


@pytest.mark.parametrize("sizes", [0, -1, [], [0], [0, 0], [-1, 2]])
def test_sizes_that_are_refused(sizes: Any) -> None:
    with pytest.raises(mr.errors.ArgumentError, match="batch_size must be at least"):
        Dataset.range(9).batch(4).rebatch(sizes)


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("prepared", [lambda d: d, lambda d: d.filter(lambda x: True)], ids=["indexed", "sequential"])
def test_errors_of_elements_are_ignored(prepared: Callable[[Dataset], Dataset], threads: int | None) -> None:
    mapped = prepared(Dataset.range(7)).map(_even, num_parallel_calls=threads)
    assert read(mapped.ignore_errors()) == [0, 2, 4, 6]
    assert read(mapped.ignore_errors().batch(3)) == [[0, 2, 4], [6]]
    assert read(mapped.ignore_errors().repeat(2)) == [0, 2, 4, 6] * 2
    assert mapped.ignore_errors().cardinality() == mr.data.UNKNOWN_CARDINALITY
    assert_resumes_everywhere(mapped.ignore_errors())


KINDS: dict[str, Callable[[Dataset], Dataset]] = {
    "indexed": lambda d: d.map(_even),
    "in threads": lambda d: d.map(_even, num_parallel_calls=2),
    "stream": lambda d: d.filter(lambda x: True).map(_even),
    "indexed before a stream": lambda d: d.map(_even).filter(lambda x: True),
}
TENS = Dataset.range(10, 14)
AROUND: dict[str, tuple[Callable[[Dataset], Dataset], list[int]]] = {
    "choose": (lambda d: Dataset.choose_from_datasets([d, TENS], Dataset.range(2).repeat()), [0, 10, 11, 2, 12, 13, 4]),
    "choices": (lambda d: Dataset.choose_from_datasets([TENS] * 5, d), [10, 10, 10]),
    "sample": (lambda d: Dataset.sample_from_datasets([d, TENS], seed=0), [0, 2, 4, 10, 11, 12, 13]),
    "concatenate": (lambda d: d.concatenate(TENS.filter(lambda x: True)), [0, 2, 4, 10, 11, 12, 13]),
    "concatenate after": (lambda d: TENS.filter(lambda x: True).concatenate(d), [10, 11, 12, 13, 0, 2, 4]),
    "flat_map to it": (lambda d: Dataset.range(2).flat_map(lambda n: d.map(lambda x: x + 6 * n)), [0, 2, 4, 6, 8, 10]),
    "flat_map of it": (lambda d: d.flat_map(lambda n: Dataset.range(n, n + 2)), [0, 1, 2, 3, 4, 5]),
    "interleave": (lambda d: d.interleave(lambda n: Dataset.range(n, n + 2), 2), [0, 2, 1, 3, 4, 5]),
    "interleave to it": (
        lambda d: Dataset.range(2).interleave(lambda n: d.map(lambda x: x + 6 * n), 2),
        [0, 6, 2, 8, 4, 10],
    ),
    "prefetch": (lambda d: d.prefetch(2), [0, 2, 4]),
    "repeat": (lambda d: d.repeat(2), [0, 2, 4, 0, 2, 4]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.first(8)
def test_errors_before_other_steps_are_ignored(around: str, kind: str) -> None:
    step, expected = AROUND[around]
    dataset = step(KINDS[kind](Dataset.range(5))).ignore_errors()
    found = read(dataset)
    assert (sorted(found) if around == "sample" else found) == expected
    assert_resumes_everywhere(dataset)


def _then_an_error() -> Any:
    yield np.int64(1)
    raise ValueError("damaged")


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize(
    "ending",
    [Dataset.from_generator(_then_an_error), Dataset.range(5).map(_even).scan(0, lambda state, x: (state, x))],
    ids=["generator", "scan"],
)
def test_elements_after_the_end_of_a_generator_are_not_lost_silently(ending: Dataset, stop: bool) -> None:
    choices = Dataset.range(2).repeat()
    mixed = Dataset.choose_from_datasets([ending, Dataset.range(3)], choices, stop_on_empty_dataset=stop)
    for dataset in (ending, mixed, ending.prefetch(1), Dataset.zip((ending, Dataset.range(9)))):
        with pytest.raises(ValueError, match=r"odd|damaged") as caught:
            read(dataset.ignore_errors())
        assert "call ignore_errors before this step" in str(caught.value.__notes__)


ZIPPED: dict[str, Callable[[Dataset, Dataset], Any]] = {
    "the first": lambda bad, good: (bad, good),
    "the last": lambda bad, good: (good, bad),
    "both": lambda bad, good: (bad, good.map(lambda x: _even(x + (x == 2)))),
}


@pytest.mark.parametrize("order", ZIPPED)
@pytest.mark.parametrize("good", ["indexed", "stream"])
@pytest.mark.parametrize("bad", ["indexed", "in threads", "stream"])
def test_zip_leaves_out_all_elements_at_the_place_of_an_error(order: str, good: str, bad: str) -> None:
    """As in TensorFlow, which advances all datasets to keep them in step."""

    def numbers(kind: str) -> Dataset:
        return Dataset.range(7).filter(lambda x: True) if kind == "stream" else Dataset.range(7)

    damaged = numbers(bad).map(_even, num_parallel_calls=2 if bad == "in threads" else None)
    dataset = Dataset.zip(ZIPPED[order](damaged, numbers(good))).ignore_errors()
    left = [0, 4, 6] if order == "both" else [0, 2, 4, 6]
    expected = [(x, x) for x in left]
    assert read(dataset) == expected
    assert_resumes_everywhere(dataset)


def test_a_batch_that_cannot_be_split_is_left_out() -> None:
    batches = [([2, 3], [2]), ([0, 1], [0, 1]), ([2, 3], [2]), ([2], []), ([4, 5], [4, 5]), ([], [1])]
    rows = Dataset.from_generator(lambda: iter([tuple(map(np.asarray, one)) for one in batches])).unbatch()
    assert [a for a, _ in read(rows.ignore_errors())] == [0, 1, 4, 5]
    assert_resumes_everywhere(rows.ignore_errors())
    with pytest.raises(mr.errors.StructureError, match="the leaves before it 2"):
        read(rows)


def test_a_batch_with_an_error_is_ignored() -> None:
    """Recorded with TensorFlow 2.21: the rest of such a batch is left out, too."""
    numbers = Dataset.from_tensor_slices([0, 2, 3, 4, 6]).map(_even)
    assert read(numbers.batch(2).ignore_errors()) == [[0, 2], [6]]
    first = Dataset.from_tensor_slices([1, 2]).map(_even).ignore_errors()
    assert first.element_spec.dtype == np.int32


@pytest.mark.parametrize(("count", "expected"), [(1, []), (2, [1]), (4, [1, 3]), (-1, [])])
def test_a_finite_repeat_goes_on_after_an_epoch_without_elements(count: int, expected: list[int]) -> None:
    """As in TensorFlow, where only an infinite `repeat` ends there."""
    calls: list[int] = []

    def elements() -> Any:
        calls.append(0)
        yield from [np.int64(len(calls) - 1)] * ((len(calls) - 1) % 2)

    assert read(Dataset.from_generator(elements).repeat(count)) == expected


@pytest.mark.parametrize("cycle", [1, 2])
@pytest.mark.parametrize("bad", [{0}, {1}, {1, 2}, {3, 4}])
def test_inputs_that_cannot_be_opened_are_ignored(bad: set[int], cycle: int) -> None:
    def opened(number: Any) -> Dataset:
        if int(number) in bad:
            raise ValueError("damaged file")
        return Dataset.range(10 * int(number), 10 * int(number) + 3)

    dataset = Dataset.range(5).interleave(opened, cycle).ignore_errors()
    assert sorted(read(dataset)) == [10 * n + i for n in range(5) if n not in bad for i in range(3)]
    assert_resumes_everywhere(dataset)


def test_faults_of_the_program_are_not_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        read(Dataset.range(3).map(lambda x: x + object()).ignore_errors())
    assert read(Dataset.range(2).map(_even).ignore_errors(log_warning=True)) == [0]
    assert "left out an element: ValueError('odd')" in caplog.text


def test_the_leaves_of_a_rebatched_element_have_equal_dims() -> None:
    uneven = Dataset.from_generator(lambda: iter([(np.arange(4), np.arange(3))]))
    with pytest.raises(mr.errors.StructureError, match=r"Dataset\.rebatch"):
        read(uneven.rebatch(2))


def test_a_restored_end_of_rebatched_data_has_no_further_step() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def begin() -> Any:
        return iter(strategy.experimental_distribute_dataset(Dataset.range(8).batch(2).rebatch(4)))

    reading = begin()
    assert len(list(reading)) == 2
    restored = begin()
    restored.set_state(json.loads(json.dumps(reading.get_state())))
    assert list(restored) == []


@pytest.mark.parametrize(("sizes", "left"), [(3, 8), ([3, 0, 2], 4), ([3, 0, 2], 3)])
def test_a_position_in_a_batch_that_no_longer_exists_is_refused(sizes: Any, left: int) -> None:
    """With as many batches as precede the position the iteration ended, silently."""

    def begin(size: int) -> Any:
        return iter(Dataset.range(size).batch(4).rebatch(sizes))

    reading = begin(12)
    for _ in range(3):
        next(reading)
    restored = begin(left)

    def resumed() -> list[Any]:
        restored.set_state(reading.get_state())
        return list(restored)

    with pytest.raises(InputError, match="fewer elements than when the position was saved"):
        resumed()


def test_rebatch_regroups_texts() -> None:
    texts = Dataset.from_tensor_slices(np.array([b"a", b"bc", b"", b"d"], object)).batch(3)
    assert read(texts.rebatch(2)) == [[b"a", b"bc"], [b"", b"d"]]


DRAWN: dict[str, Callable[[], Dataset]] = {
    "flat_map": lambda: Dataset.range(4).flat_map(lambda n: Dataset.range(n * 5, n * 5 + 5).shuffle(5)),
    "interleave": lambda: Dataset.range(4).interleave(
        lambda n: Dataset.range(n * 5, n * 5 + 5).filter(lambda x: True).shuffle(3), cycle_length=2
    ),
    "random_map": lambda: Dataset.range(4).flat_map(
        lambda n: Dataset.range(5).random_map(lambda x, rng: x + rng.integers(1000))
    ),
    "two levels": lambda: Dataset.range(2).flat_map(
        lambda n: Dataset.range(n * 2, n * 2 + 2).flat_map(lambda m: Dataset.range(m * 5, m * 5 + 5).shuffle(5))
    ),
    "group_by_window": lambda: Dataset.range(20).group_by_window(
        lambda x: x % 2, lambda key, window: window.shuffle(5), 5
    ),
    "one dataset for all": lambda: (lambda inner: Dataset.range(4).flat_map(lambda n: inner))(
        Dataset.range(5).shuffle(5)
    ),
}


@pytest.mark.parametrize("after", ["alone", "shuffle", "repeat", "window", "cache"])
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_inner_datasets_without_a_seed_resume(name: str, after: str) -> None:
    """Every part runs in a "new process", where the inner shuffles draw other seeds."""

    def made() -> Dataset:
        return STEPS.get(after, lambda one: one)(DRAWN[name]())

    first = made()
    start = part(first, None, 0)[1]
    whole = part(first, start, 10_000)[0]
    assert len(whole) >= 20 or after == "window"
    for count in (0, 1, 4, 5, 7, 12, len(whole)):
        head, state = part(made(), start, count)
        assert head + part(made(), state, 10_000)[0] == whole


def test_inner_datasets_without_a_seed_differ_in_every_epoch_and_program() -> None:
    dataset = DRAWN["flat_map"]()
    assert len({tuple(read(one)) for one in (dataset, dataset, DRAWN["flat_map"](), DRAWN["flat_map"]())}) == 4


def test_a_position_without_the_seeds_of_inner_datasets_is_restored() -> None:
    def made() -> Dataset:
        return Dataset.range(3).shuffle(3, seed=1).flat_map(lambda n: Dataset.range(n * 5, n * 5 + 5))

    head, state = part(made(), None, 7)
    assert state["pipeline"].startswith("Interleaved")
    del state["seeds"][0]
    assert head + part(made(), state, 100)[0] == read(made())


NAMES: dict[str, tuple[Callable[[Dataset], Dataset], str, str]] = {
    "map": (lambda d: d.map(lambda x: x), "Mapped", "StreamMapped"),
    "random_map": (lambda d: d.random_map(lambda x, rng: x), "RandomMapped", "StreamRandomMapped"),
    "take": (lambda d: d.take(2), "Sliced", "Limited"),
    "skip": (lambda d: d.skip(2), "Sliced", "Strided"),
    "shard": (lambda d: d.shard(2, 1), "Sliced", "Strided"),
    "repeat": (lambda d: d.repeat(2), "Repeated", "StreamRepeated"),
    "batch": (lambda d: d.batch(2), "Batched2", "StreamBatched2"),
    "padded_batch": (lambda d: d.padded_batch(2), "PaddedBatched2", "StreamBatched2"),
    "shuffle": (lambda d: d.shuffle(2), "Shuffled", "StreamShuffled"),
    "cache": (lambda d: d.cache(), "Cached", "StreamCached"),
    "zip": (lambda d: Dataset.zip((d,)), "Zipped", "StreamZipped"),
    "shuffle of infinite data": (
        lambda d: d.repeat().shuffle(2),
        "StreamShuffled < Repeated",
        "StreamShuffled < StreamRepeated",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_the_steps_in_saved_positions(name: str) -> None:
    """A checkpoint of an earlier version contains them, and is restored only in a dataset with the same ones."""
    step, indexed, sequential = NAMES[name]
    for source, expected, below in (
        (Dataset.range(4), indexed, "RangeSource"),
        (Dataset.range(4).filter(lambda x: True), sequential, "Filtered < RangeSource"),
    ):
        state = iter(step(source).prefetch(2)).get_state()
        assert state["pipeline"] == f"{expected} < {below}"


@pytest.mark.parametrize(
    "batches",
    [
        (np.array([2**60 + 1], np.int64), np.array([1], np.uint64)),
        ((np.array([1], np.int32),), (np.array([0.5], np.float32),)),
        (np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32)),
        (np.zeros((1, 2), np.float32), np.zeros(1, np.float32)),
        ({"a": np.zeros(1)}, {"b": np.zeros(1)}),
        (np.zeros(1), np.array([b"a"], object)),
    ],
    ids=["signs", "kinds", "shapes", "ranks", "keys", "text"],
)
def test_rebatch_joins_only_batches_that_are_alike(batches: tuple[Any, Any]) -> None:
    with pytest.raises(StructureError, match=r"Dataset\.rebatch: .*part 0 .*part 1"):
        read(Dataset.from_generator(lambda: iter(batches)).rebatch(2))


def test_rebatch_joins_texts_of_different_lengths() -> None:
    batches = [np.array(["a"]), np.array(["long"])]
    assert read(Dataset.from_generator(lambda: iter(batches)).rebatch(2)) == [["a", "long"]]


def test_the_parts_of_a_batch_of_two_epochs_are_alike() -> None:
    def other_dtypes(number: Any, rng: np.random.Generator) -> Any:
        return number.astype([np.int64, np.uint64][rng.integers(2)])

    epochs = Dataset.from_tensors(np.int64(2**60 + 1)).random_map(other_dtypes, seed=0).repeat(8)
    with pytest.raises(
        StructureError, match=r"Dataset\.batch: .*u?int64\[1\] in part 0 of the batch and u?int64\[1\] in"
    ):
        read(epochs.batch(8))


@pytest.mark.parametrize("source", ["indexed", "stream", "map in a generator"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((2,), [(0, [0, 1]), (2, [4, 5]), (3, [6, 7])]),
        ((2, 1), [(0, [0, 1]), (1, [1, 2]), (4, [4, 5]), (5, [5, 6]), (6, [6, 7]), (7, [7])]),
        ((2, 4), [(0, [0, 1]), (1, [4, 5])]),
        ((2, 1, 2), [(0, [0, 2]), (2, [2, 4]), (4, [4, 6]), (5, [5, 7]), (6, [6]), (7, [7])]),
    ],
)
def test_an_error_leaves_out_the_windows_that_contain_it(source: str, arguments: Any, expected: Any) -> None:
    """As in TensorFlow's source; the windows after it were others, so that `zip` paired them with wrong elements."""

    def checked(x: Any) -> Any:
        if x == 3:
            raise OSError("damaged")
        return x

    numbers = Dataset.range(8) if source == "indexed" else Dataset.range(8).filter(lambda x: True)
    damaged = numbers.map(checked)
    if source == "map in a generator":
        damaged = Dataset.from_generator(lambda: map(checked, range(8)))
    windows = damaged.window(*arguments)
    pairs = Dataset.zip((Dataset.range(9), windows)).ignore_errors()
    assert [(int(number), read(window)) for number, window in pairs] == expected
    assert [read(window) for window in windows.ignore_errors()] == [window for _, window in expected]
    joined = Dataset.zip((Dataset.range(9), windows.flat_map(lambda w: w.batch(2)))).ignore_errors()
    assert read(joined) == expected
    assert_resumes_everywhere(joined)


def test_windows_of_what_cannot_go_on_after_an_error_raise_it() -> None:
    for ending in (Dataset.from_generator(_then_an_error), Dataset.range(5).map(_even).scan(0, lambda s, x: (s, x))):
        for size in (1, 2, 3):
            with pytest.raises(ValueError, match=r"odd|damaged") as caught:
                list(ending.window(size).ignore_errors())
            assert "call ignore_errors before this step" in str(caught.value.__notes__)


def _checked(kind: type[Exception]) -> Callable[[Any], Any]:
    def checked(x: Any) -> Any:
        if x == 3:
            raise kind("damaged")
        return x

    return checked


@pytest.mark.parametrize("arguments", [(2,), (2, 4), (2, 4, 2), (3, 5, 2)])
@pytest.mark.parametrize("source", ["indexed", "stream", "map in a generator", "generator behind map"])
def test_an_error_of_any_element_is_raised_without_ignore_errors(source: str, arguments: Any) -> None:
    """An error between two windows was left out, and the data ended there, if a generator had ended at it."""
    checked = _checked(OSError)
    damaged = {
        "indexed": Dataset.range(8).map(checked),
        "stream": Dataset.range(8).filter(lambda x: True).map(checked),
        "map in a generator": Dataset.from_generator(lambda: map(checked, range(8))),
        "generator behind map": Dataset.from_generator(lambda: map(int, (checked(x) for x in range(8)))),
    }[source]
    with pytest.raises(OSError, match="damaged"):
        list(damaged.window(*arguments))


@pytest.mark.parametrize("kind", [TypeError, NameError, AttributeError, AssertionError])
def test_an_error_of_the_program_between_two_windows_is_raised(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="damaged"):
        list(Dataset.range(8).map(_checked(kind)).window(2, shift=4).ignore_errors())


def test_windows_in_inner_datasets_keep_places_before_ignore_errors() -> None:
    windows = Dataset.range(1).flat_map(lambda _: Dataset.range(8).map(_checked(OSError)).window(2)).ignore_errors()
    assert [read(window) for window in windows] == [[0, 1], [4, 5], [6, 7]]


def test_windows_before_a_cache_keep_places_before_ignore_errors() -> None:
    windows = Dataset.range(8).map(_checked(OSError)).window(2).flat_map(lambda window: window.batch(2)).cache()
    pairs = Dataset.zip((Dataset.range(9), windows)).ignore_errors()
    assert [(int(number), window.tolist()) for number, window in pairs] == [(0, [0, 1]), (2, [4, 5]), (3, [6, 7])]


def test_a_cache_is_not_complete_after_an_error() -> None:
    """The next epochs were read from a cache without the element, so that their windows were others."""
    cached = Dataset.range(8).filter(lambda x: True).map(_checked(OSError)).cache()
    for _ in range(2):
        assert [read(window) for window in cached.window(2).ignore_errors()] == [[0, 1], [4, 5], [6, 7]]
        pairs = Dataset.zip((Dataset.range(8), cached)).ignore_errors()
        assert [(int(a), int(b)) for a, b in pairs] == [(a, a) for a in range(8) if a != 3]
        with pytest.raises(OSError, match="damaged"):
            list(cached)
