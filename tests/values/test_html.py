"""HTML for notebooks: well-formed tables that show where values are; and the `repr`s of the same objects."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects the cells of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def read(value: object) -> Reader:
    reader = Reader()
    reader.feed(value._repr_html_())
    assert reader.open == []
    return reader


@pytest.fixture
def strategy():
    return mr.MirroredStrategy(["CPU:1", "CPU:3"], num_replicas=4)


def test_a_strategy_shows_its_devices_and_their_replicas(strategy):
    seen = read(strategy)
    assert seen.texts[0] == "MirroredStrategy: 4 replicas on 2 devices"
    assert seen.rows == [["device", "hardware", "replicas"], ["CPU:1", "cpu", "0 1"], ["CPU:3", "cpu", "2 3"]]
    assert read(mr.OneDeviceStrategy("CPU:0")).texts[0] == "OneDeviceStrategy: 1 replica on 1 device"


def test_the_default_strategy_is_text():
    assert read(mr.get_strategy()).texts == ["Strategy(one replica, on JAX's default device)"]


def test_a_per_replica_value_shows_where_each_component_is(strategy):
    ids = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + jnp.zeros(2))
    seen = read(ids)
    assert seen.texts[0] == "PerReplica of 4 replicas"
    assert seen.rows[1] == ["0", "CPU:1", "float32[2]", "[0., 0.]"]
    assert seen.rows[4] == ["3", "CPU:3", "float32[2]", "[3., 3.]"]


def test_components_that_are_no_arrays_are_shown(strategy):
    names = strategy.experimental_distribute_values_from_function(lambda context: "<b>")
    assert read(names).rows[1][:2] == ["0", "host"]
    assert "<b>" in read(names).rows[1][3]


def test_keys_of_random_generators_are_shown(strategy):
    keys = strategy.run(lambda: jax.random.key(0))
    assert read(keys).rows[1][2] == "key<fry>[]"


def test_a_mirrored_variable_shows_its_copies_and_its_value_once(strategy):
    with strategy.scope():
        w = mr.Variable([1.0, 2.5], name="w")
    seen = read(w)
    assert seen.texts[0] == "Variable 'w': float32[2], mirrored on 2 devices"
    assert seen.rows[1:] == [["CPU:1", "0 1"], ["CPU:3", "2 3"]]
    assert seen.texts[-1] == "value: [1. , 2.5]"


def test_a_sync_on_read_variable_shows_each_component(strategy):
    with strategy.scope():
        seen = mr.Variable(0.0, synchronization="ON_READ", aggregation="SUM", name="seen")
    strategy.run(lambda: seen.assign_add(mr.get_replica_context().replica_id_in_sync_group + 1.0))
    shown = read(seen)
    assert shown.rows[1:] == [["0", "CPU:1", "1."], ["1", "CPU:1", "2."], ["2", "CPU:3", "3."], ["3", "CPU:3", "4."]]
    assert shown.texts[-1] == "aggregation: VariableAggregation.SUM"


@pytest.mark.parametrize("options", [{}, {"synchronization": "ON_READ", "aggregation": "SUM"}])
def test_a_variable_without_strategy_shows_its_device(options):
    seen = read(mr.Variable(2.0, name="<plain>", **options))
    assert seen.texts[0].startswith("Variable '<plain>': float32[]")
    assert "CPU:0" in seen.rows[1]
    assert any("2." in text for text in seen.texts)


def test_a_key_is_a_value():
    assert read(mr.Variable(jax.random.key(7), name="key")).texts[-1] == "value: [0, 7]"


def test_large_values_are_counted_and_not_printed():
    assert read(mr.Variable(jnp.zeros((1000, 2)), name="w")).texts[-1] == "value: (2,000 elements)"


def test_a_lost_variable_says_so():
    v = mr.Variable(1.0, name="v")
    v.lose("the step failed")
    assert read(v).texts == ["<Variable 'v' shape=() dtype=float32 (lost)>"]


def test_display_in_compiled_code_records_nothing(strategy):
    shown = []
    with strategy.scope():
        w = mr.Variable([1.0, 2.5], name="w")

    @mr.function
    def step(x):
        shown.extend(one._repr_html_() for one in (w, x, strategy))
        result = strategy.run(lambda x: shown.append(w._repr_html_()) or 2 * x, args=(x,))
        shown.append(result._repr_html_())
        return result

    x = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + jnp.zeros(2))
    assert [float(one[0]) for one in step(x).values] == [0.0, 2.0, 4.0, 6.0]
    assert "being traced" in shown[0]
    assert [re.sub("<.*?>", "", one) for one in shown if "PerReplica" in one] == [
        "&lt;PerReplica of 4 replicas: float32[2] (traced)&gt;"
    ] * 2


def test_display_during_an_eager_run(strategy):
    shown = []
    with strategy.scope():
        w = mr.Variable([1.0, 2.5], name="w")
    strategy.run(lambda: shown.append(w._repr_html_()))
    assert len(shown) == 4


def test_datasets_show_the_leaves_of_their_elements(strategy):
    dataset = mr.data.Dataset.from_tensor_slices({"x": np.ones((8, 3), np.float32), "y": np.ones(8, np.int32)})
    seen = read(dataset.batch(4))
    assert seen.texts[0] == "Dataset Batched, 2 elements"
    assert seen.rows[1:] == [["['x']", "ArraySpec(float32[None, 3])"], ["['y']", "ArraySpec(int32[None])"]]
    distributed = strategy.experimental_distribute_dataset(dataset.batch(4))
    assert read(distributed).texts[0] == "DistributedDataset over 4 replicas"
    assert [row[0] for row in read(distributed).rows[1:]] == ["['x']", "['y']"]


def test_an_error_of_a_function_of_the_dataset_is_shown():
    seen = read(mr.data.Dataset.range(3).map(lambda x: 1 // 0))
    assert seen.texts[-1] == "elements not known: ZeroDivisionError: integer division or modulo by zero"


def test_plain_reprs(strategy):
    dataset = mr.data.Dataset.range(8).batch(4)
    with iter(strategy.experimental_distribute_dataset(dataset)) as iterator:
        next(iterator)
        assert repr(iterator) == "<DistributedIterator over 4 replicas, 4 examples read>"
    assert repr(iter(dataset)) == "<DatasetIterator of Batched>"
    assert repr(mr.checkpoint.Checkpoint(w=mr.Variable(1.0), step=0)) == "Checkpoint(w, step)"
    assert repr(mr.progress([1, 2], description="epoch 1")) == "<Progress 'epoch 1' of 2 steps>"
    assert repr(mr.progress(iter([1, 2]), description="epoch 1")) == "<Progress 'epoch 1'>"
