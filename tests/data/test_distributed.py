from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import mirrored as mr
from mirrored.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    ArraySpec,
    AutoShardPolicy,
    Dataset,
    InputContext,
    InputOptions,
    InputReplicationMode,
    Options,
    PerReplicaSpec,
)
from mirrored.errors import ArgumentError, EndOfDataError, InputError, StructureError, TransformationError


def strategy_of(replicas: int, devices: int | None = None) -> Any:
    return mr.MirroredStrategy([f"CPU:{i}" for i in range(devices or replicas)], num_replicas=replicas)


def shown(strategy: Any, elements: Any) -> list[Any]:
    """Returns one list per element, with one list per replica."""
    return [[np.asarray(share).tolist() for share in strategy.local_results(element)] for element in elements]


class TestShares:
    # Recorded with TensorFlow 2.21.
    @pytest.mark.parametrize(
        ("replicas", "size", "batch", "expected"),
        [
            (2, 6, 3, [[[0, 1], [2]], [[3, 4], [5]]]),
            (2, 9, 4, [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]),
            (4, 10, 6, [[[0, 1], [2, 3], [4, 5], []], [[6], [7], [8], [9]]]),
            (3, 7, 3, [[[0], [1], [2]], [[3], [4], [5]], [[6], [], []]]),
            (2, 3, 1, [[[0], []], [[1], []], [[2], []]]),
            (4, 9, 6, [[[0, 1], [2, 3], [4, 5], []], [[6], [7], [8], []]]),
        ],
    )
    def test_are_those_of_tensorflow(self, replicas: int, size: int, batch: int, expected: list[Any]) -> None:
        strategy = strategy_of(replicas)
        distributed = strategy.experimental_distribute_dataset(Dataset.range(size).batch(batch))
        assert shown(strategy, distributed) == expected
        assert shown(strategy, distributed) == expected

    def test_lie_on_the_devices_of_their_replicas(self) -> None:
        strategy = strategy_of(4)
        for batch in (8, 6):
            element = next(iter(strategy.experimental_distribute_dataset(Dataset.range(batch).batch(batch))))
            places = [next(iter(share.devices())) for share in element.values]
            assert places == [strategy.device_assignment.device_of(replica) for replica in range(4)]

    def test_equal_shares_are_one_array_over_all_devices(self) -> None:
        strategy = strategy_of(4, devices=2)
        element = next(iter(strategy.experimental_distribute_dataset(Dataset.range(8).batch(8))))
        stacked = element.stacked(strategy.device_assignment)
        assert element.is_stacked
        assert stacked.shape == (4, 2)
        assert stacked.sharding == strategy.device_assignment.sharded

    def test_one_replica_gets_plain_arrays(self) -> None:
        elements = list(strategy_of(1).experimental_distribute_dataset(Dataset.range(5).batch(2)))
        assert all(isinstance(element, jax.Array) for element in elements)
        assert [element.tolist() for element in elements] == [[0, 1], [2, 3], [4]]

    def test_keep_the_structure(self) -> None:
        strategy = strategy_of(2)
        dataset = Dataset.from_tensor_slices(({"a": [1, 2, 3, 4]}, [[5.0], [6.0], [7.0], [8.0]])).batch(4)
        features, labels = next(iter(strategy.experimental_distribute_dataset(dataset)))
        assert shown(strategy, [features["a"], labels]) == [[[1, 2], [3, 4]], [[[5.0], [6.0]], [[7.0], [8.0]]]]

    def test_bytes_stay_on_the_host(self) -> None:
        strategy = strategy_of(2)
        element = next(
            iter(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(["a", "b", "c"]).batch(4)))
        )
        assert [share.tolist() for share in element.values] == [[b"a", b"b"], [b"c"]]

    def test_may_stay_on_the_host(self) -> None:
        options = InputOptions(experimental_fetch_to_device=False)
        element = next(iter(strategy_of(2).experimental_distribute_dataset(Dataset.range(4).batch(4), options)))
        assert {device for share in element.values for device in share.devices()} == {jax.devices("cpu")[0]}

    @pytest.mark.parametrize("replicas", [0, 1, 2])
    def test_integers_that_need_64_bits_are_refused(self, replicas: int) -> None:
        strategy = strategy_of(replicas) if replicas else mr.get_strategy()
        numbers = Dataset.range(2**40, 2**40 + 4)
        with pytest.raises(ArgumentError, match="do not fit into int32"):
            next(iter(strategy.experimental_distribute_dataset(numbers.batch(2))))
        with pytest.raises(ArgumentError, match="do not fit into int32"):
            next(iter(strategy.distribute_datasets_from_function(lambda _: numbers)))

    @pytest.mark.parametrize("policy", list(AutoShardPolicy))
    def test_on_one_worker_no_policy_changes_them(self, policy: AutoShardPolicy) -> None:
        options = Options()
        options.experimental_distribute.auto_shard_policy = policy
        strategy = strategy_of(2)
        dataset = Dataset.range(8).batch(4).with_options(options)
        assert shown(strategy, strategy.experimental_distribute_dataset(dataset)) == [
            [[0, 1], [2, 3]],
            [[4, 5], [6, 7]],
        ]


class TestSteps:
    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_partial_and_empty_shares_are_computed(self, compiled: bool) -> None:
        strategy = strategy_of(4)

        def step(x: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(lambda share: share.sum() * 2.0, args=(x,)), axis=None)

        call = mr.function(step) if compiled else step
        sums = [float(call(x)) for x in strategy.experimental_distribute_dataset(Dataset.range(9).batch(4))]
        assert sums == [12.0, 44.0, 16.0]

    def test_a_padded_epoch_is_compiled_once(self) -> None:
        strategy = strategy_of(2)

        @mr.function
        def step(batch: Any, mask: Any) -> Any:
            shares = strategy.run(lambda x, real: (x * real).sum(), args=(batch, mask))
            return strategy.reduce("SUM", shares, axis=None)

        dataset = Dataset.from_tensor_slices(np.arange(11, dtype=np.float32)).batch(4)
        distributed = strategy.experimental_distribute_dataset(dataset, InputOptions(last_batch="pad"))
        assert sum(float(step(*element)) for _ in range(2) for element in distributed) == 2 * sum(range(11))
        assert step.trace_count == 1

    def test_inside_a_tape_and_a_scope(self) -> None:
        strategy = strategy_of(2)
        with strategy.scope(), mr.GradientTape() as tape:
            element = next(iter(strategy.experimental_distribute_dataset(Dataset.range(4).batch(4))))
        assert shown(strategy, [element]) == [[[0, 1], [2, 3]]]
        assert tape.watched_variables() == ()


class TestIterator:
    def dataset(self) -> Any:
        return strategy_of(2).experimental_distribute_dataset(Dataset.range(4).batch(2))

    def test_ends_by_stop_iteration(self) -> None:
        reading = iter(self.dataset())
        assert iter(reading) is reading
        assert len(list(reading)) == 2
        with pytest.raises(StopIteration):
            next(reading)

    def test_get_next_says_that_it_ended(self) -> None:
        reading = iter(self.dataset())
        reading.get_next()
        reading.get_next()
        with pytest.raises(EndOfDataError, match="End of sequence"):
            reading.get_next()

    def test_get_next_as_optional(self) -> None:
        strategy = strategy_of(2)
        reading = iter(strategy.experimental_distribute_dataset(Dataset.range(4).batch(4)))
        first, second = reading.get_next_as_optional(), reading.get_next_as_optional()
        assert first.has_value()
        assert shown(strategy, [first.get_value()]) == [[[0, 1], [2, 3]]]
        assert not second.has_value()
        with pytest.raises(EndOfDataError, match="has no value"):
            second.get_value()

    def test_refuses_to_be_used_inside_a_replica(self) -> None:
        strategy = strategy_of(2)
        reading = iter(self.dataset())
        with pytest.raises(ValueError, match=r"should be called from outside of replica_fn(.|\n)*args=\(next"):
            strategy.run(lambda: next(reading))

    def test_refuses_to_be_used_after_close(self) -> None:
        with iter(self.dataset()) as reading:
            next(reading)
        with pytest.raises(InputError, match=r"after close\(\)"):
            next(reading)

    def test_does_not_trace_a_compiled_step_again(self) -> None:
        strategy, step = strategy_of(2), mr.function(lambda x: x)
        distributed = strategy.experimental_distribute_dataset(Dataset.range(8).batch(4))
        for _ in range(3):
            for element in distributed:
                step(element)
        assert step.trace_count == 1

    def test_elements_in_flight_do_not_change_later_ones(self) -> None:
        strategy = strategy_of(2)
        kept = list(strategy.experimental_distribute_dataset(Dataset.range(64).shuffle(64, seed=1).batch(4)))
        again = list(strategy.experimental_distribute_dataset(Dataset.range(64).shuffle(64, seed=1).batch(4)))
        assert shown(strategy, kept) == shown(strategy, again)


class TestSpecs:
    def test_of_global_batches(self) -> None:
        distribute = strategy_of(2).experimental_distribute_dataset
        unknown, known = (ArraySpec((size,), np.dtype("int64")) for size in (None, 2))
        assert distribute(Dataset.range(8).batch(4)).element_spec == PerReplicaSpec((unknown, unknown))
        full = distribute(Dataset.range(8).batch(4, drop_remainder=True))
        assert full.element_spec == iter(full).element_spec == PerReplicaSpec((known, known))

    def test_of_one_replica(self) -> None:
        spec = strategy_of(1).experimental_distribute_dataset(Dataset.range(8).batch(4)).element_spec
        assert spec == ArraySpec((None,), np.dtype("int64"))

    def test_cardinality(self) -> None:
        assert strategy_of(2).experimental_distribute_dataset(Dataset.range(9).batch(4)).cardinality == 3
        assert strategy_of(2).distribute_datasets_from_function(lambda _: Dataset.range(9).batch(2)).cardinality == 3
        assert strategy_of(2).experimental_distribute_dataset([np.ones((4, 1))] * 5).cardinality == 5

    @pytest.mark.parametrize(
        ("dataset", "expected"),
        [
            (Dataset.range(10).batch(4), 2),
            (Dataset.range(8).batch(4), 2),
            (Dataset.range(3).batch(4), 1),
            (Dataset.range(0).batch(4), 0),
            (Dataset.range(10).batch(4, drop_remainder=True), 2),
            (Dataset.range(10).padded_batch(4).prefetch(1), 2),
            (Dataset.range(10).batch(4).repeat(3), 6),
            (Dataset.range(10).batch(4).shuffle(3, seed=1), UNKNOWN_CARDINALITY),
            (Dataset.range(10).batch(4).map(lambda x: x[x > 4]), UNKNOWN_CARDINALITY),
            (Dataset.from_generator(lambda: iter([np.ones(4)] * 2)), UNKNOWN_CARDINALITY),
            ([np.ones(4), np.ones(3)], UNKNOWN_CARDINALITY),
        ],
    )
    def test_cardinality_without_dropped_batches(self, dataset: Any, expected: int) -> None:
        distributed = strategy_of(2).experimental_distribute_dataset(dataset, InputOptions(last_batch="drop"))
        assert distributed.cardinality == expected
        assert expected in (UNKNOWN_CARDINALITY, len(list(distributed)))
        endless = Dataset.range(10).batch(4).repeat()
        distributed = strategy_of(2).experimental_distribute_dataset(endless, InputOptions(last_batch="drop"))
        assert distributed.cardinality == INFINITE_CARDINALITY

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("full", [False, True])
    def test_of_padded_batches(self, replicas: int, full: bool) -> None:
        strategy = strategy_of(replicas)
        dataset = Dataset.range(8).map(lambda x: {"x": x}).batch(4, drop_remainder=full)
        distributed = strategy.experimental_distribute_dataset(dataset, InputOptions(last_batch="pad"))
        batch, mask = distributed.element_spec
        size = 4 // replicas if full else None
        parts = [ArraySpec((size,), np.dtype(name)) for name in ("int64", "bool")]
        assert [batch["x"], mask] == [part if replicas == 1 else PerReplicaSpec((part,) * 2) for part in parts]
        found, its_mask = next(iter(distributed))
        for value, part in ((found["x"], parts[0]), (its_mask, parts[1])):
            local = strategy.experimental_local_results(value)[0]
            assert (part.accepts(local), local.shape) == (True, (4 // replicas,))
        assert local.dtype == parts[1].dtype


class TestFromFunction:
    def test_consecutive_elements_go_to_consecutive_replicas(self) -> None:
        strategy, seen = strategy_of(2), []

        def make(context: InputContext) -> Dataset:
            seen.append((context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync))
            return Dataset.range(9).batch(2)

        distributed = strategy.distribute_datasets_from_function(make)
        assert seen == [(1, 0, 2)]
        expected = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]
        assert shown(strategy, distributed) == shown(strategy, distributed) == expected
        assert seen == [(1, 0, 2)]

    @pytest.mark.parametrize("kind", ["static", "dynamic", "list", "mapped"])
    @pytest.mark.parametrize(("replicas", "batches"), [(2, 3), (2, 4), (4, 5), (4, 3), (1, 3)])
    def test_every_batch_is_used_whatever_is_known_of_its_shape(self, replicas: int, batches: int, kind: str) -> None:
        numbers = Dataset.range(2 * batches)
        make = {
            "static": lambda: numbers.batch(2, drop_remainder=True),
            "dynamic": lambda: numbers.batch(2),
            "list": lambda: [np.arange(2) + 2 * i for i in range(batches)],
            "mapped": lambda: numbers.batch(2, drop_remainder=True).map(lambda x: x + 0),
        }[kind]
        strategy = strategy_of(replicas)
        distributed = strategy.distribute_datasets_from_function(lambda _: make())
        rows = shown(strategy, distributed)
        assert [share for row in rows for share in row if share] == [[2 * i, 2 * i + 1] for i in range(batches)]
        assert [len(row) for row in rows] == [replicas] * -(-batches // replicas)
        if kind != "list":
            assert distributed.cardinality == len(rows)

    @pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (0, 2), (2, 2)])
    def test_pipelines_of_unequal_length_are_read_to_the_end(self, sizes: tuple[int, int]) -> None:
        strategy = strategy_of(2)
        options = InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA)

        def make(context: InputContext) -> Dataset:
            return Dataset.range(2 * sizes[context.input_pipeline_id]).batch(2, drop_remainder=True)

        distributed = strategy.distribute_datasets_from_function(make, options)
        rows = shown(strategy, distributed)
        assert len(rows) == distributed.cardinality == max(sizes)
        for replica, size in enumerate(sizes):
            shares = [row[replica] for row in rows]
            assert shares == [[2 * i, 2 * i + 1] if i < size else [] for i in range(max(sizes))]

    @pytest.mark.parametrize("size", [4, 5])
    def test_an_incomplete_row_of_scalars_is_left_out_with_a_warning(
        self, size: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        strategy = strategy_of(2)
        distributed = strategy.distribute_datasets_from_function(lambda _: Dataset.range(size))
        assert distributed.cardinality == 2
        assert shown(strategy, distributed) == [[0, 1], [2, 3]]
        assert ("drops 1 element(s)" in caplog.text) == (size == 5)

    def test_shapes_may_differ_between_replicas(self) -> None:
        strategy = strategy_of(2)
        distributed = strategy.distribute_datasets_from_function(lambda _: Dataset.range(5).batch(3))
        assert shown(strategy, distributed) == [[[0, 1, 2], [3, 4]]]

    def test_one_pipeline_per_replica(self) -> None:
        strategy, seen = strategy_of(2), []
        options = InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA)

        def make(context: InputContext) -> Dataset:
            seen.append((context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync))
            return Dataset.range(1, 4).map(lambda x: x * (context.input_pipeline_id + 1))

        assert shown(strategy, strategy.distribute_datasets_from_function(make, options)) == [[1, 2], [2, 4], [3, 6]]
        assert seen == [(2, 0, 2), (2, 1, 2)]
        strategy.distribute_datasets_from_function(lambda context: make(context))
        assert seen[2:] == [(1, 0, 2)]

    def test_context(self) -> None:
        context = InputContext(3, 1, 6)
        assert context.get_per_replica_batch_size(12) == 2
        assert str(context) == "tf.distribute.InputContext(input pipeline id 1, total: 3)"
        with pytest.raises(ValueError, match="13 is not divisible by `num_replicas_in_sync` 6"):
            context.get_per_replica_batch_size(13)

    def test_refuses_what_is_no_dataset(self) -> None:
        with pytest.raises(ArgumentError, match="cannot be iterated"):
            strategy_of(2).distribute_datasets_from_function(lambda _: 3)


class TestRefusals:
    @pytest.mark.parametrize("name", ["map", "batch", "shuffle", "repeat", "take", "with_options"])
    def test_transformations_are_sent_before_the_distribution(self, name: str) -> None:
        distributed = strategy_of(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(TransformationError, match=rf"experimental_distribute_dataset\(dataset\.{name}\("):
            getattr(distributed, name)
        with pytest.raises(TransformationError, match=name):
            getattr(iter(distributed), name)

    def test_other_names_are_ordinary_attribute_errors(self) -> None:
        distributed = strategy_of(2).experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(AttributeError, match="no attribute 'foo'"):
            _ = distributed.foo

    def test_an_unbatched_dataset(self) -> None:
        distributed = strategy_of(2).experimental_distribute_dataset(Dataset.range(4))
        with pytest.raises(StructureError, match=r"is not batched(.|\n)*\.batch\(global_batch_size\)"):
            list(distributed)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (3, "cannot be iterated"),
            (iter([np.zeros(2)]), "can be read only once"),
            (np.zeros((4, 2)), r"without a batch size(.|\n)*InputOptions\(batch_size=n\)"),
            ({"x": np.zeros(4)}, "without a batch size"),
        ],
    )
    def test_what_is_no_dataset(self, data: Any, message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            strategy_of(2).experimental_distribute_dataset(data)

    def test_distributing_twice(self) -> None:
        strategy = strategy_of(2)
        distributed = strategy.experimental_distribute_dataset(Dataset.range(4).batch(2))
        with pytest.raises(ArgumentError, match="already distributed"):
            strategy.experimental_distribute_dataset(distributed)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (lambda: InputOptions(last_batch="trim"), "last_batch='trim'"),  # type: ignore[arg-type]
            (lambda: InputOptions(prefetch=-1), "prefetch=-1\n.*prefetch must be at least 0"),
            (lambda: InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA), "only supported in"),
            (lambda: InputOptions(experimental_place_dataset_on_device=True), "the replication mode PER_REPLICA"),
            (lambda: Options(), "options must be a mirrored.data.InputOptions"),
        ],
    )
    def test_options_that_mean_nothing(self, options: Callable[[], Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            strategy_of(2).experimental_distribute_dataset(Dataset.range(4).batch(2), options())

    def test_options_that_mean_nothing_for_functions(self) -> None:
        per_replica = InputOptions(
            experimental_place_dataset_on_device=True,
            experimental_replication_mode=InputReplicationMode.PER_REPLICA,
        )
        for options, message in (
            (per_replica, "can not be set together"),
            (InputOptions(last_batch="pad"), "applies to global batches"),
        ):
            with pytest.raises(ArgumentError, match=message):
                strategy_of(2).distribute_datasets_from_function(lambda _: Dataset.range(4).batch(2), options)


@pytest.mark.parametrize("from_dataset", [False, True])
@pytest.mark.parametrize(
    "rows",
    [
        np.array(["a", "b"]),
        np.array([b"a", b"b"]),
        np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"),
        np.array([1, 2], "timedelta64[s]"),
        np.array([(1,), (2,)], [("x", "i4")]),
        np.array([None, {}], object),
    ],
    ids=lambda rows: str(rows.dtype),
)
def test_arrays_of_dtypes_that_jax_does_not_have_stay_on_the_host(rows: np.ndarray, from_dataset: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    data = Dataset.from_tensor_slices(rows).batch(2) if from_dataset else [rows]
    batch = next(iter(strategy.experimental_distribute_dataset(data)))
    for part, row in zip(batch.values, rows, strict=True):
        assert type(part) is np.ndarray
        assert part.tolist() == [row] if rows.dtype.fields is None else part["x"].tolist() == [row["x"]]


@pytest.mark.parametrize("replicas", [1, 2])
def test_numbers_beside_texts_are_on_the_devices_in_batches_of_every_size(replicas: int) -> None:
    batches = [{"id": np.array([b"a"] * size, object), "x": np.linspace(0, 1, size)} for size in (4, 3)]
    strategy = strategy_of(replicas)
    for batch in strategy.experimental_distribute_dataset(batches):
        parts = strategy.local_results(batch["x"])
        assert [(isinstance(part, jax.Array), part.dtype) for part in parts] == [(True, np.float32)] * replicas
        names = strategy.local_results(batch["id"])[0]
        assert type(names) is np.ndarray
    whole = next(iter(strategy.experimental_distribute_dataset(batches)))
    sums = strategy.local_results(strategy.run(lambda element: element["x"].sum(), args=({"x": whole["x"]},)))
    assert np.isclose(sum(map(float, sums)), 2)
