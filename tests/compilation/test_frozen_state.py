"""Iterators and random generators that a compiled function reaches."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import queue
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from flax import nnx

import mirrored as mr
import mirrored.tf as tf
from mirrored.errors import ArgumentError, EndOfDataError
from mirrored.integrations.keras.calls import prepare
from mirrored.integrations.keras.conversion import converted_by

numbers_of_module = np.random.default_rng(0)
iterator_of_module = iter([1.0, 2.0])


def drawn_by_helper() -> float:
    return float(numbers_of_module.normal())


def generator() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0)


class Model:
    """State in attributes."""

    def __init__(self) -> None:
        self.rows, self.random, self.elements = iter([1.0, 2.0]), random.Random(0), iter(mr.data.Dataset.range(3))

    @mr.function
    def take_row(self) -> Any:
        return np.float32(next(self.rows))

    @mr.function
    def draw(self) -> Any:
        return np.float32(self.random.random())

    @mr.function
    def take_element(self) -> Any:
        return next(self.elements)

    @mr.function
    def neither(self, x: Any) -> Any:
        return x + 1


def closing_over(value: Any, use: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: np.float32(use(value))


FROZEN: dict[str, Callable[[], Any]] = {
    "generator": closing_over(generator(), next),
    "iterator of a list": closing_over(iter([1.0, 2.0]), next),
    "zip": closing_over(zip((1.0, 2.0), (1.0, 2.0), strict=True), lambda pairs: next(pairs)[0]),
    "count": closing_over(itertools.count(), next),
    "iterator in a list": closing_over([iter([1.0, 2.0])], lambda pair: next(pair[0])),
    "iterator of the module": lambda: np.float32(next(iterator_of_module)),
    "generator of NumPy": closing_over(np.random.default_rng(0), lambda rng: rng.normal()),
    "MT19937": closing_over(np.random.Generator(np.random.MT19937(0)), lambda rng: rng.normal()),
    "RandomState": closing_over(np.random.RandomState(0), lambda rng: rng.normal()),
    "random.Random": closing_over(random.Random(0), lambda rng: rng.random()),
    "generator of a helper": lambda: np.float32(drawn_by_helper()),
    "module random": lambda: np.float32(random.random()),
    "module numpy.random": lambda: np.float32(np.random.normal()),
}


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no other thread could draw from the modules' generators."""
    monkeypatch.setattr("threading.active_count", lambda: 1)


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.usefixtures("one_thread")
def test_python_state_that_would_be_frozen_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="the same at every call"):
        mr.function(FROZEN[name])()


@pytest.mark.filterwarnings("ignore:Python iterable type")
@pytest.mark.parametrize("value", [generator(), iter([1.0]), map(float, [1])], ids=lambda value: type(value).__name__)
def test_iterators_passed_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="a Python iterator"):
        mr.function(lambda i: np.float32(next(i)))(value)


def test_random_generators_passed_are_refused_where_they_are_drawn_from() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ArgumentError, match="the function drew random numbers from the argument"):
        mr.function(lambda rng: np.float32(rng.normal()))(rng)
    assert float(mr.function(lambda rng: np.float32(1))(rng)) == 1


def test_state_in_attributes() -> None:
    model = Model()
    with pytest.raises(ArgumentError, match="self.rows"):
        model.take_row()
    with pytest.raises(ArgumentError, match="self.random"):
        model.draw()
    assert [int(model.take_element()) for _ in range(3)] == [0, 1, 2]
    assert float(model.neither(np.float32(1))) == 2


def test_random_initial_values_are_not_refused() -> None:
    rng, made = np.random.default_rng(0), []

    @mr.function
    def step() -> Any:
        if not made:
            made.append(mr.Variable(rng.normal(size=3)))
        return made[0].read_value() + 1

    assert step().tolist() == step().tolist()


def test_an_open_file_is_not_refused(tmp_path: Any) -> None:
    with (tmp_path / "log").open("w") as log:
        print_to = mr.function(lambda: print("traced", file=log))
        print_to()
    assert (tmp_path / "log").read_text() == "traced\n"


TAKES: dict[str, Callable[[Any], Any]] = {"next": next, "get_next": lambda it: it.get_next()}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("passed", [True, False], ids=["passed", "captured"])
@pytest.mark.parametrize(("function", "dataset"), [(mr.function, mr.data.Dataset), (tf.function, tf.data.Dataset)])
def test_every_call_takes_another_element(function: Any, dataset: Any, passed: bool, take: str) -> None:
    iterator = iter(dataset.range(3))
    if passed:
        taking = function(lambda i: TAKES[take](i))
        step = lambda: taking(iterator)  # noqa: E731
    else:
        step = function(lambda: TAKES[take](iterator))
    found: list[int] = []
    end = tf.errors.OutOfRangeError if dataset is tf.data.Dataset else EndOfDataError
    for _ in range(3):
        found.append(int(step()))
    assert found == [0, 1, 2]
    with pytest.raises(end, match="End of sequence"):
        step()


def test_steps_over_an_iterator_train_on_every_element() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    iterator = iter(tf.data.Dataset.range(4))
    with strategy.scope():
        total = mr.Variable(0.0)

    @tf.function
    def step(iterator: Any) -> None:
        element = tf.cast(next(iterator), tf.float32)
        strategy.run(
            lambda x: total.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", x)), args=(element,)
        )

    for _ in range(4):
        step(iterator)
    with pytest.raises(tf.errors.OutOfRangeError):
        step(iterator)
    assert float(total) == 2 * (0 + 1 + 2 + 3)


def test_a_loop_over_what_is_left() -> None:
    iterator = iter(tf.data.Dataset.range(6))

    @tf.function
    def rest(iterator: Any) -> Any:
        total = tf.constant(0)
        for element in iterator:
            total += tf.cast(element, tf.int32)
        return total

    next(iterator)
    assert int(rest(iterator)) == 15
    with pytest.warns(UserWarning, match="runs no steps"):
        assert int(rest(iterator)) == 0


def test_a_dataset_is_shuffled_anew_at_every_call() -> None:
    def orders(compiled: bool) -> list[list[int]]:
        dataset = mr.data.Dataset.range(8).shuffle(8, seed=1)
        epoch = lambda: [int(element) for element in dataset]  # noqa: E731
        run = mr.function(epoch) if compiled else epoch
        return [[int(n) for n in run()] for _ in range(3)]

    assert orders(compiled=True) == orders(compiled=False)
    assert len(set(map(tuple, orders(compiled=True)))) == 3


def test_the_optional_next_element() -> None:
    iterator = iter(tf.data.Dataset.range(1))
    step = tf.function(lambda: iterator.get_next_as_optional())
    first, second = step(), step()
    assert int(first.get_value()) == 0
    assert not second.has_value()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the optional has no value"):
        second.get_value()


@pytest.mark.parametrize(
    "use",
    [
        lambda take: mr.function(take, steps_per_call=2)([(np.float32(1),)] * 2),
        lambda take: mr.function(take).lower(np.float32(1)),
        lambda take: mr.function(take).get_concrete_function(np.float32(1)),
    ],
    ids=["steps_per_call", "lower", "get_concrete_function"],
)
def test_where_there_must_be_a_program_elements_are_passed(use: Any) -> None:
    iterator = iter(mr.data.Dataset.range(9))
    with pytest.raises(ArgumentError, match="take the elements outside"):
        use(lambda x: x + next(iterator))


class Holder:
    """A generator in an attribute."""

    def __init__(self) -> None:
        self.batches = (element for element in mr.data.Dataset.range(3))


@pytest.mark.parametrize("use", [next, list], ids=["next", "loop"])
def test_a_generator_over_a_dataset_in_an_attribute_is_refused_by_name(use: Callable[[Any], Any]) -> None:
    holder = Holder()
    step = mr.function(lambda: use(holder.batches))
    with pytest.raises(ArgumentError, match=r"the generator .*holder'\.batches .* was closed"):
        step()


def test_a_generator_over_a_dataset_in_the_closure_of_a_helper_is_no_end_of_the_callers_loop() -> None:
    batches = (element for element in mr.data.Dataset.range(3))
    helpers = [[lambda: next(batches)]]
    step = mr.function(lambda: helpers[0][0]())
    for found in ("a generator that iterates over a dataset cannot be used", "generator .* raised StopIteration"):
        with pytest.raises(ArgumentError, match=found):
            step()


def test_a_generator_over_a_dataset_made_inside_is_driven() -> None:
    step = mr.function(lambda: next(element for element in mr.data.Dataset.range(3)))
    assert [int(step()), int(step())] == [0, 0]


def popped_queue() -> Callable[[], Any]:
    rows: queue.Queue[float] = queue.Queue()
    for row in (1.0, 2.0, 3.0):
        rows.put(row)
    return closing_over(rows, lambda rows: rows.get())


class Buffer:
    """A user's own buffer: its method takes the elements."""

    def __init__(self) -> None:
        self.rows = collections.deque([1.0, 2.0, 3.0])

    def take(self) -> float:
        return self.rows.popleft()


class Shared:
    """Data in attributes of the class."""

    rows = collections.deque([1.0, 2.0, 3.0])

    def take(self) -> float:
        return self.rows.popleft()


@dataclasses.dataclass(slots=True)
class Slotted:
    """Data in slots."""

    rows: list[float]


class Network(keras.Model):
    """A model of a library whose method takes elements."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.rows = keras.layers.Dense(1), collections.deque([1.0, 2.0, 3.0])

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.sum(x))
        return self.dense(x) * self.rows.popleft()


class Module(nnx.Module):
    """Another one."""

    def __init__(self) -> None:
        self.data = types.SimpleNamespace(rows=generator())

    def __call__(self) -> float:
        return next(self.data.rows)


def network() -> Callable[[], Any]:
    model = Network()
    model(np.ones((2, 3), np.float32))
    return lambda: model(np.ones((2, 3), np.float32))


rows_of_module = [1.0, 2.0, 3.0]
settings = types.ModuleType("settings_of_a_user")
settings.rows = [1.0, 2.0, 3.0]  # type: ignore[attr-defined]

TAKEN: dict[str, Callable[[], Callable[[], Any]]] = {
    "popleft": lambda: closing_over(collections.deque([1.0, 2.0]), lambda rows: rows.popleft()),
    "pop": lambda: closing_over([1.0, 2.0], lambda rows: rows.pop()),
    "drained": lambda: closing_over([1.0, 2.0], lambda rows: sum(rows.pop() for _ in range(2))),
    "rotated": lambda: closing_over(collections.deque([1.0, 2.0]), lambda rows: (rows.rotate(), rows[0])[1]),
    "dict": lambda: closing_over({"a": 1.0, "b": 2.0}, lambda rows: rows.pop("a")),
    "set": lambda: closing_over({1.0, 2.0}, lambda rows: rows.pop()),
    "queue": popped_queue,
    "of the module": lambda: lambda: np.float32(rows_of_module.pop()),
    "of a Keras model": network,
    "of a class": lambda: lambda: np.float32(Shared.rows.popleft()),
    "of an object's class": lambda: closing_over(Shared(), lambda shared: shared.take()),
    "in slots": lambda: closing_over(Slotted([1.0, 2.0]), lambda slotted: slotted.rows.pop()),
    "of another module": lambda: lambda: np.float32(settings.rows.pop()),
    "argument": lambda: functools.partial(lambda rows: np.float32(rows.popleft()), collections.deque([1.0, 2.0])),
    "buffer": lambda: closing_over(Buffer(), lambda buffer: buffer.take()),
    "buffer in a list": lambda: closing_over([Buffer()], lambda buffers: buffers[0].take()),
}


@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
def test_elements_taken_from_a_captured_container_are_refused(name: str) -> None:
    step = mr.function(TAKEN[name]())
    for _ in range(2):  # nothing is lost by the refused call
        with pytest.raises(ArgumentError, match="removed elements from (.|\n)*the same at every call"):
            step()


@pytest.mark.parametrize("wraps", ["AutoGraph", "the user"])
def test_elements_that_a_wrapped_method_takes_are_refused(wraps: str) -> None:
    class Taking(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.rows = collections.deque([1.0, 2.0, 3.0])

        def call(self, x: Any) -> Any:
            return x * self.rows.popleft()

    if wraps == "AutoGraph":
        with converted_by(lambda function: function):
            prepare(Taking)
    else:
        call = Taking.call
        Taking.call = functools.wraps(call)(lambda *args: call(*args))  # type: ignore[method-assign]
    model = Taking()
    with pytest.raises(ArgumentError, match="removed elements from (.|\n)*the same at every call"):
        mr.function(lambda: model(np.ones((2, 3), np.float32)))()


def test_what_a_trace_appends_is_not_refused() -> None:
    traces: list[int] = []
    kept = {"count": 0}

    @mr.function
    def step(x: Any) -> Any:
        traces.append(1)
        kept["count"] += 1
        return x + 1

    assert float(step(np.float32(1))) == 2
    assert (traces, kept) == ([1], {"count": 1})


def test_initial_values_may_be_taken_from_a_list() -> None:
    values, made = [np.ones(2)], []

    @mr.function
    def step() -> Any:
        if not made:
            made.append(mr.Variable(values.pop()))
        return made[0].read_value() + 1

    assert step().tolist() == step().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("take", [lambda rows: rows.popleft(), lambda rows: rng_of(rows)], ids=["popleft", "random"])
def test_a_step_that_also_creates_slots_is_refused(take: Callable[[Any], Any]) -> None:
    rows = collections.deque([1.0, 2.0, 3.0])
    weight, optimizer = mr.Variable(1.0), mr.optimizers.Adam(0.1)

    @mr.function
    def step() -> None:
        optimizer.apply_gradients([(np.float32(take(rows)), weight)])

    with pytest.raises(ArgumentError, match="the same at every call"):
        step()


numbers = np.random.default_rng(0)


def rng_of(_: Any) -> float:
    return float(numbers.normal())


def test_a_driven_function_takes_each_element_once() -> None:
    rows = collections.deque([10.0, 20.0, 30.0])
    iterator = iter(mr.data.Dataset.range(3))
    step = mr.function(lambda: rows.popleft() + float(next(iterator)))
    assert [step() for _ in range(3)] == [10.0, 21.0, 32.0]


def nested_in_attributes() -> tuple[Any, Callable[[Any], Any]]:
    trainer = types.SimpleNamespace(data=types.SimpleNamespace(batches=generator()))
    return trainer, lambda trainer: trainer.data.batches


def nested_in_a_closure() -> tuple[Any, Callable[[Any], Any]]:
    batches = generator()
    helpers = {"batches": [lambda: batches]}
    return helpers, lambda helpers: helpers["batches"][0]()


class Loader:
    """A user's own iterator."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> float:
        self.position += 1
        if self.position > 3:
            raise StopIteration
        return float(self.position)


def nested(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    return types.SimpleNamespace(parts={"data": [value]}), lambda owner: owner.parts["data"][0]


NESTED: dict[str, Callable[[], tuple[Any, Callable[[Any], Any]]]] = {
    "attributes": nested_in_attributes,
    "closure": nested_in_a_closure,
    "iterator of a list": lambda: nested(iter([1.0, 2.0, 3.0])),
    "zip": lambda: nested(zip([1.0, 2.0, 3.0], [1, 2, 3], strict=True)),
    "map": lambda: nested(map(float, [1, 2, 3])),
    "count": lambda: nested(itertools.count()),
    "chain": lambda: nested(itertools.chain([1.0, 2.0], [3.0, 4.0])),
    "generator of a generator": lambda: nested(one for one in generator()),
    "loader": lambda: nested(Loader()),
    "slots": lambda: (Slotted(iter([1.0, 2.0, 3.0])), lambda owner: owner.rows),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(
    "use", [next, lambda rows: sum(1 for _ in zip(rows, range(9), strict=False))], ids=["next", "for"]
)
@pytest.mark.parametrize("name", NESTED)
def test_nested_iterators_that_move_are_refused(name: str, use: Callable[[Any], Any]) -> None:
    owner, find = NESTED[name]()
    step = mr.function(lambda: (use(find(owner)), np.float32(1))[1])
    with pytest.raises(ArgumentError, match="a Python iterator"):
        step()


@pytest.mark.parametrize("name", NESTED)
def test_nested_iterators_that_stay_are_not_refused(name: str) -> None:
    owner, find = NESTED[name]()
    step = mr.function(lambda: np.float32(find(owner) is not None))
    assert float(step()) == 1


class WithConfig:
    """Has a generator, and a configuration with an attribute of the same name."""

    def __init__(self) -> None:
        self.data = (1.0 for _ in itertools.count())
        next(self.data)  # it stops at the same instruction, with the same values, after each element
        self.config = types.SimpleNamespace(data=2.0)
        self.same = self
        self.flag = True

    @property
    def own(self) -> WithConfig:
        return self

    def directly(self) -> Any:
        return next(self.data) if self.config.data else None

    def by_an_attribute(self) -> Any:
        return next(self.same.data)

    def by_a_property(self) -> Any:
        return next(self.own.data)

    def by_another_name(self) -> Any:
        other = self
        return next(other.data)

    def by_a_choice(self) -> Any:
        return next((self if self.flag else self.config).data)


def test_an_iterator_whose_name_is_read_of_another_object_only_is_not_refused() -> None:
    model = WithConfig()
    assert float(mr.function(lambda x: x * model.config.data)(np.float32(3))) == 6


@pytest.mark.parametrize(
    "use", [WithConfig.directly, WithConfig.by_an_attribute, WithConfig.by_a_property, WithConfig.by_another_name,
            WithConfig.by_a_choice]
)  # fmt: skip
def test_an_iterator_in_an_attribute_that_the_code_may_read_is_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentError, match="self.data, a Python iterator"):
        mr.function(types.MethodType(use, WithConfig()))()


def test_an_iterator_in_a_module_of_a_library_is_refused() -> None:
    module = Module()
    with pytest.raises(ArgumentError, match="a Python iterator"):
        mr.function(lambda: np.float32(module()))()


def test_nested_random_generators_are_refused() -> None:
    owner = types.SimpleNamespace(augment=types.SimpleNamespace(rng=np.random.default_rng(0)))
    with pytest.raises(ArgumentError, match="drew random numbers"):
        mr.function(lambda: np.float32(owner.augment.rng.normal()))()


def test_a_nested_generator_over_a_dataset_does_not_end_a_loop() -> None:
    owner = types.SimpleNamespace(data=types.SimpleNamespace(batches=(one for one in mr.data.Dataset.range(3))))
    step = mr.function(lambda: sum(1 for _ in owner.data.batches))
    with pytest.raises(ArgumentError, match="the generator .* was closed when tracing the function ended"):
        step()


class Reporting:
    """Has records, of which a thread takes one while a step is traced."""

    def __init__(self, records: Any) -> None:
        self.log, self.rows = records, collections.deque([1.0, 2.0, 3.0])
        self.traced, self.taken = threading.Event(), threading.Event()
        self.kept: Any = None
        threading.Thread(target=self.write, daemon=True).start()

    def write(self) -> None:
        assert self.traced.wait(60)
        self.kept = self.log.get() if isinstance(self.log, queue.Queue) else self.log.pop()
        self.taken.set()
        threading.Event().wait(20)  # it lives on after the trace

    def wait(self) -> None:
        self.traced.set()
        assert self.taken.wait(60)

    def row(self) -> float:
        self.wait()
        return self.rows.popleft()

    def reported(self) -> float:
        self.wait()
        self.log.put(object())
        return 1.0


def filled(kind: type[Any]) -> Any:
    records = kind()
    for _ in range(3):
        records.put(object()) if isinstance(records, queue.Queue) else records.append(object())
    return records


def size(records: Any) -> int:
    return records.qsize() if isinstance(records, queue.Queue) else len(records)


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, collections.deque, list])
def test_another_thread_may_take_elements_that_the_function_does_not_use(kind: type[Any]) -> None:
    """They were put back, so that the thread got them twice, and the call raised an error."""
    owner = Reporting(filled(kind))
    step = mr.function(lambda: (owner.wait(), np.float32(len(owner.rows)))[1])
    assert float(step()) == 3
    assert size(owner.log) == 2


def test_another_thread_may_take_records_from_a_queue_to_which_the_function_adds() -> None:
    owner = Reporting(filled(queue.Queue))
    assert float(mr.function(lambda: np.float32(owner.reported()))()) == 1
    assert size(owner.log) == 3


def test_elements_that_a_method_removes_are_noticed_beside_another_thread() -> None:
    owner = Reporting(filled(queue.Queue))
    with pytest.raises(ArgumentError, match="removed elements from .*rows"):
        mr.function(lambda: np.float32(owner.row()))()
    assert (len(owner.rows), size(owner.log)) == (3, 2)


def test_elements_that_a_method_takes_from_a_queue_are_noticed_beside_another_thread() -> None:
    owner = Reporting(collections.deque([object()]))
    commands = types.SimpleNamespace(waiting=filled(queue.Queue))
    with pytest.raises(ArgumentError, match="removed elements from .*waiting"):
        mr.function(lambda: (owner.wait(), commands.waiting.get(), np.float32(1))[2])()
    assert size(commands.waiting) == 3
