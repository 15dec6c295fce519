"""A function over a distributed dataset: the loop runs as Python, each step compiled once."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import tf


def epoch_of(strategy: Any, v: Any, seen: list[int]) -> Any:
    """The documentation's loop: run and reduce for each batch."""

    @mr.function
    def epoch(dataset: Any) -> Any:
        total, count = 0.0, 0
        for x in dataset:

            def replica(x: Any) -> Any:
                seen.append(1)
                summed = mr.get_replica_context().all_reduce(mr.ReduceOp.SUM, x.sum())
                v.assign_add(summed)
                return summed

            total += strategy.reduce(mr.ReduceOp.MEAN, strategy.run(replica, args=(x,)), axis=None)
            count += 1
        return total / count

    return epoch


@pytest.mark.first(1)
@pytest.mark.parametrize("replicas", [2, 4])
def test_each_step_is_compiled_once(replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        v = mr.Variable(0.0)
    dataset = strategy.distribute_dataset([np.full((4, 2), i, np.float32) for i in range(5)])
    seen: list[int] = []
    epoch = epoch_of(strategy, v, seen)
    assert [float(epoch(dataset)) for _ in range(3)] == [16.0] * 3
    assert float(v) == 3 * 80.0
    assert epoch.trace_count == 1
    assert len(seen) == 1


def test_an_iterator_is_driven_too() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.full((2, 1), i, np.float32) for i in range(4)])

    @mr.function
    def two_steps(iterator: Any) -> Any:
        return [
            strategy.reduce("SUM", strategy.run(lambda x: x.sum(), args=(next(iterator),)), axis=None) for _ in "ab"
        ]

    iterator = iter(dataset)
    assert [[float(s) for s in two_steps(iterator)] for _ in range(2)] == [[0, 2], [4, 6]]


def scaled_by(factors: list[float]) -> Any:
    """A function that closes over an object of its own."""
    return lambda x: x.sum() * factors[0]


def test_a_function_that_closes_over_each_batch_runs_eagerly_after_a_while() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.full((2, 1), i, np.float32) for i in range(12)])

    @mr.function
    def epoch(dataset: Any) -> float:
        total = 0.0
        for x in dataset:
            total += float(strategy.reduce("SUM", strategy.run(scaled_by([1.0]), args=(x,)), axis=None))
        return total

    assert epoch(dataset) == sum(2 * i for i in range(12))
    assert epoch.trace_count <= 8


class Model:
    """A callable object that is compared by identity."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return x.sum() * self.factor


@dataclasses.dataclass
class Unhashable:
    """A callable object without a hash."""

    factor: float

    def __call__(self, x: Any) -> Any:
        return x.sum() * self.factor


def of_method(factor: float) -> Any:
    forward = Model(factor).forward
    return lambda x: forward(x)


def of_default(factor: float) -> Any:
    return lambda x, own=factor: x.sum() * own


def of_keyword_default(factor: float) -> Any:
    def replica(x: Any, *, own: float = factor) -> Any:
        return x.sum() * own

    return replica


def of_helper_with_default(factor: float) -> Any:
    helper = of_default(factor)
    return lambda x: helper(x)


def of_partial(factor: float) -> Any:
    return functools.partial(lambda own, x, other: x.sum() * own * other, factor, other=1.0)


def of_decorated(factor: float) -> Any:
    @functools.wraps(of_decorated)
    def replica(x: Any) -> Any:
        return x.sum() * factor

    return replica


def of_recursive_helper(factor: float) -> Any:
    def total(tree: Any) -> Any:
        return sum(map(total, tree)) if isinstance(tree, list) else tree.sum() * factor

    return lambda x: total([x * 0.5, [x * 0.5]])


def of_attribute(factor: float) -> Any:
    def replica(x: Any) -> Any:
        return x.sum() * replica.factor  # type: ignore[attr-defined]

    replica.factor = factor  # type: ignore[attr-defined]
    return replica


def of_helper_with_attribute(factor: float) -> Any:
    helper = of_attribute(factor)
    return lambda x: helper(x)


def of_tuple_of_functions(factor: float) -> Any:
    functions = (of_default(factor), {"other": [lambda x: x.sum() * 0]})
    return lambda x: functions[0](x) + functions[1]["other"][0](x)


def of_module(factor: float) -> Any:
    """A function with the same code for every module, and other globals."""
    module = MODULES.setdefault(factor, {"factor": factor})
    if "replica" not in module:
        exec(compile("def replica(x):\n    return x.sum() * factor\n", f"module{factor}.py", "exec"), module)
    return module["replica"]


MODULES: dict[float, Any] = {}
BUFFER = np.zeros(1, np.float32)
STATE: dict[str, Any] = {"scales": [0.0]}


def of_refilled_buffer(factor: float) -> Any:
    buffer = BUFFER
    buffer[:] = factor
    return lambda x: (x * buffer).sum()


def of_changed_dict(factor: float) -> Any:
    state = STATE
    state["scales"][0] = factor
    return lambda x: x.sum() * state["scales"][0]


def of_method_of_dataclass(factor: float) -> Any:
    return Unhashable(factor).__call__


BY_VALUE = [of_default, of_keyword_default, of_helper_with_default, of_partial, of_decorated, of_recursive_helper]
BY_VALUE += [of_attribute, of_helper_with_attribute, of_tuple_of_functions, of_module]
BY_VALUE += [of_refilled_buffer, of_changed_dict]
BY_OBJECT = [of_method, of_method_of_dataclass, Unhashable]


@pytest.mark.parametrize("make", [*BY_VALUE, *BY_OBJECT], ids=lambda make: make.__name__)
def test_a_replica_function_is_compiled_for_each_of_its_values(make: Callable[[float], Any]) -> None:
    """The programs of the first values ran with all others, silently."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    @mr.function
    def epoch(iterator: Any, factors: list[float]) -> list[float]:
        results = []
        for factor, x in zip(factors, iterator, strict=False):
            result = strategy.run(make(factor), args=(x,))
            results.append(float(strategy.reduce("SUM", result, axis=None)))
        return results

    factors = [1.0, 2.0, 3.0]
    dataset = strategy.distribute_dataset([np.ones((2, 1), np.float32)] * len(factors))
    for _ in range(2):
        found = epoch(iter(dataset), factors)
        assert found == [2.0, 4.0, 6.0]
    if make in BY_VALUE:
        assert epoch.trace_count == len(factors)


@dataclasses.dataclass(frozen=True)
class Scale:
    """A callable object whose `==` finds 2 equal to 2.0, and 0.0 to -0.0."""

    factor: float

    def __call__(self, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize(("one", "two"), [(2, 2.0), (0.0, -0.0), (True, 1)])
def test_callable_objects_are_compared_by_the_types_and_bits_of_their_contents(one: Any, two: Any) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.ones((2, 1), np.int32 if one == 2 else np.float32)] * 2)

    @mr.function
    def epoch(iterator: Any) -> list[Any]:
        return [
            np.asarray(strategy.run(Scale(factor), args=(x,)).values[0])
            for factor, x in zip((one, two), iterator, strict=True)
        ]

    found = epoch(iter(dataset))
    assert epoch.trace_count == 2
    expected = [np.asarray(jax.numpy.ones((1, 1), found[0].dtype) * factor) for factor in (one, two)]
    assert [(x.dtype, x.tobytes()) for x in found] == [(x.dtype, x.tobytes()) for x in expected]


def test_what_a_trace_appends_to_a_list_causes_no_other_trace() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.ones((2, 1), np.float32)] * 3)
    notes: dict[str, list[int]] = {"traced": []}

    @mr.function
    def epoch(dataset: Any) -> list[float]:
        def replica(x: Any) -> Any:
            notes["traced"].append(1)
            return x.sum()

        return [float(strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)) for x in dataset]

    assert [epoch(dataset) for _ in range(2)] == [[2.0] * 3] * 2
    assert (epoch.trace_count, len(notes["traced"])) == (1, 1)


def test_objects_in_the_key_of_a_program_are_kept_alive() -> None:
    """Their identities are in the key: the next object can have the identity of one that has been deleted."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.ones((2, 1), np.float32)] * 6)

    @mr.function
    def epoch(dataset: Any) -> list[float]:
        factors: Any = None
        found: list[float] = []

        def replica(x: Any) -> Any:
            return x.sum() * factors[0]

        for _ in range(6):
            factors = None
            factors = [float(len(found))]
            for x in dataset:
                found.append(float(strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)))
                break
        return found

    assert epoch(dataset) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@dataclasses.dataclass
class CountingTrainer:
    """A dataclass whose counters the loop changes between two runs of its method."""

    weight: Any
    steps: int = 0
    losses: list[float] = dataclasses.field(default_factory=list)

    def step(self, x: Any) -> Any:
        return x.sum() * self.weight


def test_a_method_of_an_object_that_the_loop_changes_is_traced_once() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2)
    with strategy.scope():
        trainer = CountingTrainer(mr.Variable(2.0))

    @mr.function
    def epoch(dataset: Any) -> None:
        for x in dataset:
            trainer.losses.append(float(strategy.reduce("SUM", strategy.run(trainer.step, args=(x,)), axis=None)))
            trainer.steps += 1

    epoch(strategy.distribute_dataset([np.ones((2, 1), np.float32)] * 12))
    assert trainer.losses == [4.0] * 12
    assert epoch.trace_count == 1


def test_a_list_of_objects_that_do_not_compare_is_traced_once() -> None:
    class Elementwise:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> Any:
            return np.array([True, False])

    strategy = mr.MirroredStrategy(jax.devices()[:1], num_replicas=2)
    held = [Elementwise()]

    @mr.function
    def epoch(dataset: Any) -> Any:
        return [strategy.run(lambda x: x.sum() * len(held), args=(x,)) for x in dataset]

    epoch(strategy.distribute_dataset([np.ones((2, 1), np.float32)] * 12))
    assert epoch.trace_count == 1


@pytest.mark.parametrize("given", ["dataset", "iterator", "in a dict", "by keyword"])
def test_what_precedes_the_loop_runs_once(given: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    dataset = strategy.distribute_dataset([np.full((2, 1), i, np.float32) for i in range(3)])
    generator, epochs, made = np.random.default_rng(0), [], []

    @mr.function
    def epoch(data: Any) -> list[float]:
        epochs.append(generator.random())
        if not made:
            made.append(mr.Variable(2.0))
        totals = []
        for x in data["data"] if given == "in a dict" else data:
            sums = strategy.run(lambda x: x.sum() * made[0], args=(x,))
            totals.append(float(strategy.reduce("SUM", sums, axis=None)))
        return totals

    for _ in range(2):
        data: Any = iter(dataset) if given == "iterator" else dataset
        totals = epoch(data=data) if given == "by keyword" else epoch({"data": data} if given == "in a dict" else data)
        assert totals == [0.0, 4.0, 8.0]
    again = np.random.default_rng(0)
    assert epochs == [again.random(), again.random()]
    assert len(made) == 1


@pytest.mark.parametrize("creates", [False, True], ids=["", "creates a variable"])
def test_what_precedes_a_loop_over_a_dataset_of_the_object_runs_once(creates: bool) -> None:
    """Or twice, if it creates variables, which stay."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])

    class Trainer:
        def __init__(self) -> None:
            self.dataset = strategy.distribute_dataset([np.ones((2, 1), np.float32)] * 2)
            self.epochs, self.history, self.params = 0, list[int](), dict[str, Any]()

        @mr.function
        def epoch(self) -> float:
            self.epochs += 1
            self.history.append(self.epochs)
            if creates and not self.params:
                self.params["scale"] = mr.Variable(2.0)
            total = 0.0
            for x in self.dataset:
                sums = strategy.run(lambda x: x.sum() * self.params.get("scale", 2.0), args=(x,))
                total += float(strategy.reduce("SUM", sums, axis=None))
            return total

    trainer = Trainer()
    assert [trainer.epoch(), trainer.epoch()] == [8.0, 8.0]
    assert trainer.history == ([1, 2, 3] if creates else [1, 2])


def test_a_function_that_takes_no_elements_of_its_dataset_is_compiled_from_the_second_call_on() -> None:
    executions = []

    @mr.function
    def scaled(dataset: Any, x: Any) -> Any:
        executions.append(x)
        return x * len(dataset)

    dataset = mr.data.Dataset.range(4)
    assert [float(scaled(dataset, jnp.float32(x))) for x in range(4)] == [0, 4, 8, 12]
    assert (len(executions), scaled.trace_count) == (2, 1)
    assert float(scaled(mr.data.Dataset.range(5), jnp.float32(1))) == 5


def test_a_function_takes_the_elements_that_a_compiled_function_takes_for_it() -> None:
    executions = []

    @mr.function
    def total(dataset: Any) -> float:
        return sum(float(x) for x in dataset)

    @mr.function
    def epoch(dataset: Any) -> float:
        executions.append(None)
        return total(dataset)

    dataset = mr.data.Dataset.range(4)
    assert [epoch(dataset) for _ in range(3)] == [6, 6, 6]
    assert len(executions) == 3


def test_what_another_thread_assigns_while_the_code_before_the_loop_is_traced_stays() -> None:
    class Log:
        def __init__(self) -> None:
            self.written, self.begins, self.ends = 0, threading.Event(), threading.Event()

        def write(self) -> None:
            for _ in range(2):  # in the trace and in the call
                assert self.begins.wait(60)
                self.begins.clear()
                self.written += 1
                self.ends.set()

    log, dataset = Log(), mr.data.Dataset.range(2)

    class Trainer:
        epochs = 0

        @mr.function
        def epoch(self) -> list[int]:
            self.epochs += 1
            log.begins.set()
            assert log.ends.wait(60)
            log.ends.clear()
            return [int(x) for x in dataset]

    trainer, writing = Trainer(), threading.Thread(target=log.write)
    writing.start()
    assert trainer.epoch() == [0, 1]
    writing.join()
    assert (trainer.epochs, log.written) == (1, 2)


def test_an_error_before_the_loop_leaves_a_function_of_a_dataset_as_it_is() -> None:
    executions = []

    @mr.function
    def epoch(dataset: Any, name: str) -> list[int]:
        if name not in ("train", "validation"):
            raise KeyError(name)
        executions.append(name)
        return [int(x) for x in dataset]

    dataset = mr.data.Dataset.range(2)
    for name in ("other", "train", "other", "validation"):
        if name == "other":
            with pytest.raises(KeyError, match="other"):
                epoch(dataset, name)
        else:
            assert epoch(dataset, name) == [0, 1]
    assert executions == ["train", "validation"]


@pytest.mark.parametrize("decorate", [mr.function, tf.function], ids=["mirrored", "tf"])
@pytest.mark.parametrize("is_copied", [False, True], ids=["method", "method of a copy"])
def test_a_method_that_iterates_over_a_dataset_compiles_its_runs(decorate: Any, is_copied: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    seen: list[int] = []

    class Trainer:
        factor = 2.0

        def step(self, x: Any) -> Any:
            seen.append(1)
            return x.sum() * self.factor

        @decorate
        def epoch(self, dataset: Any) -> list[float]:
            totals = []
            for x in dataset:
                total = strategy.reduce("SUM", strategy.run(self.step, args=(x,)), axis=None)
                totals.append(float(total))
            return totals

    trainer = copy.deepcopy(Trainer()) if is_copied else Trainer()
    dataset = strategy.distribute_dataset([np.full((2, 1), i, np.float32) for i in range(3)])
    assert [trainer.epoch(dataset) for _ in range(2)] == [[0.0, 4.0, 8.0]] * 2
    assert len(seen) == 1
