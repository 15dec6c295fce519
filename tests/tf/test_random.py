from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirrored.tf as tf
from mirrored.checkpoint import Checkpoint
from mirrored.checkpoint.memory import begin_snapshot, restore_snapshot
from mirrored.elastic.snapshots import packed, unpacked
from mirrored.tf._ops import generator


def draw(count: int = 2) -> list[float]:
    return [float(tf.random.normal([])) for _ in range(count)]


def test_a_seed_gives_the_same_numbers_again() -> None:
    tf.random.set_seed(3)
    first = draw()
    tf.random.set_seed(3)
    assert draw() == first
    tf.random.set_seed(4)
    assert draw() != first
    assert len(set(first)) == 2


def test_compiled_functions_draw_anew_and_follow_the_seed() -> None:
    step = tf.function(lambda: tf.random.uniform([]))
    tf.random.set_seed(3)
    first = [float(step()) for _ in range(3)]
    tf.random.set_seed(3)
    assert [float(step()) for _ in range(3)] == first
    assert len(set(first)) == 3


def test_eager_and_compiled_draw_the_same() -> None:
    def draw_two() -> Any:
        return tf.random.normal([2]), tf.random.normal([2])

    tf.random.set_seed(1)
    eager = draw_two()
    tf.random.set_seed(1)
    compiled = tf.function(draw_two)()
    np.testing.assert_allclose(eager, compiled, rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_replicas_draw_different_numbers_and_the_same_ones_in_any_mode(wrap: Callable[..., Any]) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    tf.random.set_seed(5)
    outside = draw(1)
    found = wrap(lambda: strategy.run(lambda: tf.random.normal([])))().values
    assert len({*map(float, found), *outside}) == 3
    tf.random.set_seed(5)
    again = strategy.run(lambda: tf.random.normal([])).values
    np.testing.assert_allclose(found, again, rtol=1e-6)


@pytest.mark.long
def test_the_numbers_do_not_depend_on_the_number_of_devices() -> None:
    def first_of(devices: list[str]) -> list[float]:
        strategy = tf.distribute.MirroredStrategy(devices, num_replicas=4)
        tf.random.set_seed(6)
        return [float(one) for one in tf.function(lambda: strategy.run(lambda: tf.random.uniform([])))().values]

    assert first_of(["CPU:0"]) == first_of(["CPU:0", "CPU:1"])
    assert len(set(first_of(["CPU:0"]))) == 4


def test_a_seed_of_the_operation() -> None:
    tf.random.set_seed(1)
    first = float(tf.random.normal([], seed=9))
    tf.random.set_seed(1)
    assert float(tf.random.normal([], seed=9)) == first
    tf.random.set_seed(1)
    assert float(tf.random.normal([], seed=8)) != first


def test_stateless_numbers_depend_on_the_seed_alone() -> None:
    once, again = (tf.random.stateless_normal([3], seed=[1, 2]) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert not np.array_equal(once, tf.random.stateless_normal([3], seed=[1, 3]))
    with pytest.raises(ValueError, match=r"seed must have shape \[2\]"):
        tf.random.stateless_normal([3], seed=1)
    with pytest.raises(ValueError, match="Must specify maxval"):
        tf.random.uniform([3], dtype=tf.int32)


@pytest.mark.long
def test_generators() -> None:
    a, b = tf.random.Generator.from_seed(7), tf.random.Generator.from_seed(7)
    np.testing.assert_array_equal(a.normal([2]), b.normal([2]))
    c = tf.random.Generator(copy_from=a)
    np.testing.assert_array_equal(a.uniform([2]), c.uniform([2]))
    a.reset_from_seed(7)
    d = tf.random.Generator.from_seed(7)
    d.skip(1)
    a.normal([])
    np.testing.assert_array_equal(a.truncated_normal([2]), d.truncated_normal([2]))
    e = tf.random.Generator.from_state(a.state)
    np.testing.assert_array_equal(a.uniform_full_int([2]), e.uniform_full_int([2]))
    left, right = a.split(2)
    assert not np.array_equal(left.normal([2]), right.normal([2]))
    assert a.make_seeds(3).shape == (2, 3)
    assert a.binomial([4], 10.0, 0.5).dtype == tf.int32
    assert a.algorithm == "threefry"
    assert a.key.shape == (2,)
    assert tf.random.Generator.from_non_deterministic_state().state.shape == (3,)
    assert tf.random.Generator.from_key_counter(5, [1, 0]).state.shape == (3,)
    with pytest.raises(ValueError, match="copy_from or state"):
        tf.random.Generator()


@pytest.mark.parametrize(
    ("key", "counter", "state"),
    [
        (5, [1, 0], [0, 5, 1]),
        (5, 3, [0, 5, 3]),
        (np.int64(7 << 32 | 5), np.array([1, 0]), [7, 5, 1]),
        (-1, [2**32 - 1], [2**32 - 1, 2**32 - 1, 2**32 - 1]),
        (2**64 - 2, [0, 0], [2**32 - 1, 2**32 - 2, 0]),
    ],
)
def test_the_whole_key_and_counter_are_used(key: Any, counter: Any, state: list[int]) -> None:
    assert tf.random.Generator.from_key_counter(key, counter).state.numpy().tolist() == state


@pytest.mark.parametrize(("key", "counter"), [(5, [0, 1]), (5, [2**32]), (5, -1), (2**64, [0])])
def test_a_key_or_counter_that_does_not_fit_is_refused(key: int, counter: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="a key of 64 bits and a counter of 32 bits"):
        tf.random.Generator.from_key_counter(key, counter)


def test_a_generator_made_in_scope_is_mirrored() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        generator = tf.random.Generator.from_seed(7)
    first, second = strategy.run(lambda: generator.uniform([])).values
    assert float(first) != float(second)
    left, right = (component.numpy() for component in generator.state.values)
    np.testing.assert_array_equal(left, right)
    assert left[2] == 1


def test_the_global_generator_is_apart_from_functions_without_a_generator() -> None:
    tf.random.set_seed(1)
    expected = tf.random.normal([2]).numpy(), tf.random.normal([2], seed=3).numpy()
    tf.random.set_global_generator(tf.random.Generator.from_seed(2))
    tf.random.set_seed(1)
    np.testing.assert_array_equal(tf.random.normal([2]), expected[0])
    np.testing.assert_array_equal(tf.random.normal([2], seed=3), expected[1])
    assert tf.random.get_global_generator().state.numpy().tolist() == [0, 2, 0]
    assert tf.random.get_global_generator() is tf.random.get_global_generator()


def test_dropout_keeps_the_mean() -> None:
    y = tf.nn.dropout(tf.ones([1000]), rate=0.3)
    assert abs(float(tf.reduce_mean(y)) - 1) < 0.1
    with pytest.raises(ValueError, match=r"in the range \[0, 1\)"):
        tf.nn.dropout(tf.ones([2]), rate=1.0)


def test_a_variable_may_start_from_random_numbers_inside_a_function() -> None:
    made: list[Any] = []

    @tf.function
    def run() -> Any:
        if not made:
            made.append(tf.Variable(lambda: tf.random.normal([2])))
        return made[0] * 1.0

    np.testing.assert_array_equal(run(), made[0])


def test_a_generator_is_reset_to_a_key_and_a_counter() -> None:
    first = tf.random.Generator.from_key_counter(5, [2])
    other = tf.random.Generator.from_seed(1)
    other.reset_from_key_counter(5, [2])
    assert (first.normal([2]).numpy() == other.normal([2]).numpy()).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="reset_from_key_counter"):
        other.reset_from_key_counter(2**65, 0)


@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_integers_without_bounds_cover_the_dtype(dtype: str) -> None:
    drawn = tf.random.Generator.from_seed(1).uniform([1000], minval=None, dtype=dtype)
    limits = np.iinfo(dtype)
    assert drawn.dtype == dtype
    assert (drawn < limits.min / 2 + limits.max / 2).numpy().mean() == pytest.approx(0.5, abs=0.1)
    assert int(drawn.max()) - int(drawn.min()) > 0.95 * (limits.max - limits.min)


@pytest.mark.parametrize(
    "options", [{"dtype": "int32"}, {"dtype": "int32", "minval": None, "maxval": 5}, {"minval": None}]
)
def test_bounds_that_are_missing(options: dict[str, Any]) -> None:
    for draw_uniform in (
        tf.random.Generator.from_seed(1).uniform,
        tf.random.uniform,
        lambda *args, **kwargs: tf.random.stateless_uniform(*args, [1, 2], **kwargs),
    ):
        with pytest.raises(ValueError, match=r"minval|maxval"):
            draw_uniform([2], **options)


def test_the_bounds_of_an_empty_draw_are_not_compared() -> None:
    assert tf.random.uniform([0], maxval=0, dtype=tf.int32).shape == (0,)


def test_shuffling_a_number_returns_it() -> None:
    assert tf.random.shuffle(tf.constant(5)).numpy() == 5


def drawn_everywhere(strategy: Any) -> list[Any]:
    """Numbers of all global streams: outside `run`, in it, and of Keras' training steps."""
    inside = strategy.run(lambda: tf.random.normal([])).values
    return [*draw(1), *map(float, inside), generator._global.words_of_step().tolist()]


@pytest.mark.parametrize("first", ["waiting", "drawn"])
@pytest.mark.first(1)
def test_snapshots_of_elastic_jobs_contain_the_global_streams(first: str) -> None:
    generator._global.leave()  # forgets the streams of other tests
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    tf.random.set_seed(5)
    begin = drawn_everywhere(strategy)
    manifest = begin_snapshot(Checkpoint(step=0)).finish()
    expected = drawn_everywhere(strategy)
    head, parts = packed(manifest)
    manifest = unpacked(head, np.concatenate(parts))
    generator._global.leave()  # as when the workers change: another strategy, and the seed of the beginning
    tf.random.set_seed(5)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    if first == "drawn":
        assert drawn_everywhere(strategy) == begin
    restore_snapshot(Checkpoint(step=0), manifest)
    manifest = begin_snapshot(Checkpoint(step=0)).finish()
    assert drawn_everywhere(strategy) == expected
    restore_snapshot(Checkpoint(step=0), manifest)
    assert drawn_everywhere(strategy) == expected


def test_the_global_streams_begin_anew_when_a_process_leaves_its_job() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    first = tf.random.get_global_generator()
    drawn_everywhere(strategy)
    streams = generator._global.variables()
    generator._leave()
    drawn_everywhere(strategy)
    assert not {id(one) for one in streams} & {id(one) for one in generator._global.variables()}
    assert tf.random.get_global_generator() is not first


def _range() -> tf.data.Dataset:
    return tf.data.Dataset.range(30)


UNSEEDED = {
    "shuffle": lambda: _range().shuffle(30),
    "shuffle of a stream": lambda: _range().filter(lambda x: True).shuffle(30),
    "random": lambda: tf.data.Dataset.random().take(5),
    "random_map": lambda: _range().random_map(lambda x, rng: rng.integers(2**30)),
    "sample_from_datasets": lambda: tf.data.Dataset.sample_from_datasets([_range(), _range().map(lambda x: -x)]),
    "flat_map": lambda: tf.data.Dataset.range(2).flat_map(lambda x: tf.data.Dataset.range(9).shuffle(9)),
    "rejection_resample": lambda: _range().rejection_resample(lambda x: x % 2, [0.2, 0.8]).map(lambda c, x: x),
}


@pytest.mark.parametrize("make", UNSEEDED.values(), ids=UNSEEDED)
def test_the_global_seed_decides_the_orders_of_datasets_without_a_seed(make):
    def program(seed):
        tf.random.set_seed(seed)
        datasets = [make(), make()]
        return [[int(x) for x in one] for one in [*datasets, datasets[0]]]

    first, other = program(1), program(2)
    assert program(1) == first
    assert first[0] != first[1]
    assert first[0] != other[0]


def test_the_seed_of_keras_decides_the_orders_of_datasets():
    def program(seed):
        tf.keras.utils.set_random_seed(seed)
        return [int(x) for x in _range().shuffle(30)]

    assert program(1) == program(1) != program(2)


def test_files_without_a_seed_are_shuffled_by_the_global_seed(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.txt").touch()

    def program(seed):
        tf.random.set_seed(seed)
        return list(tf.data.Dataset.list_files(str(tmp_path / "*")).as_numpy_iterator())

    assert program(1) == program(1) != program(2)


def test_datasets_that_functions_make_use_up_no_seed_of_the_program():
    """An input thread may call the function ahead, sooner or later."""

    def program(elements):
        tf.random.set_seed(1)
        made = tf.data.Dataset.range(9).flat_map(lambda x: tf.data.Dataset.range(9).shuffle(9))
        read = [int(x) for x in made.take(elements)]
        return read, [int(x) for x in _range().shuffle(30)]

    few, many = program(0), program(81)
    assert few[1] == many[1]
    assert many[0][:9] != many[0][9:18]


SHORT = {
    "normal": lambda dtype: tf.random.normal([100_000], dtype=dtype),
    "stateless_normal": lambda dtype: tf.random.stateless_normal([100_000], [1, 2], dtype=dtype),
    "Generator": lambda dtype: tf.random.Generator.from_seed(1).normal([100_000], dtype=dtype),
    "truncated_normal": lambda dtype: tf.random.truncated_normal([100_000], dtype=dtype),
    "random_normal_initializer": lambda dtype: tf.random_normal_initializer(0.0, 1.0)([100_000], dtype),
    "GlorotNormal": lambda dtype: tf.initializers.GlorotNormal()([100_000, 1], dtype),
    "gamma": lambda dtype: tf.random.gamma([100_000], 1.0, dtype=dtype) - 1,
}


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SHORT)
def test_draws_of_16_bits_have_the_moments_of_the_distribution(name: str, dtype: str) -> None:
    """JAX draws 128 values of bfloat16; the mean of its normals is -0.012, and none is above 2.6."""
    tf.random.set_seed(1)
    drawn = SHORT[name](dtype)
    assert drawn.dtype == dtype
    values = np.asarray(drawn, np.float64)
    values /= values.std()
    assert abs(values.mean()) < 5 / np.sqrt(values.size)
    assert len(np.unique(values)) > 500


def test_an_algorithm_that_does_not_exist_is_refused() -> None:
    assert tf.random.Generator.from_seed(1, alg="philox").normal([2]).shape == (2,)
    with pytest.raises(ValueError, match="unsupported value foo"):
        tf.random.Generator.from_seed(1, alg="foo")


@pytest.mark.parametrize("inside", [False, True], ids=["outside of run", "in run"])
def test_the_first_draw_before_a_loop_over_a_dataset_repeats_no_effects(inside: bool) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"], num_replicas=2)
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
    begun: list[int] = []

    @tf.function
    def epoch() -> int:
        begun.append(len(begun))
        if inside:
            strategy.run(lambda: tf.random.uniform([]))
        else:
            tf.random.uniform([])
        return sum(1 for _ in dataset)

    generator._global.leave()  # forgets the streams of other tests
    assert [epoch(), epoch()] == [2, 2]
    assert begun == [0, 1]
