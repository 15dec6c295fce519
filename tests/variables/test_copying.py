"""`copy` and `pickle` of variables, and of what holds them: it works, or says what to do instead."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
import mirrored.tf as tf

LAYOUTS = [None, (1, 1), (2, 2), (1, 2)]


def make(layout: tuple[int, int] | None, value: Any = (1.0, 2.0), **options: Any) -> mr.Variable:
    if layout is None:
        return mr.Variable(value, **options)
    devices, replicas = layout
    with mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas).scope():
        return mr.Variable(value, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["eager", "under a tape", "in scope"])
@pytest.mark.first(7)
def test_a_deep_copy_has_the_same_value_and_strategy_and_state_of_its_own(layout, how):
    v = make(layout, name="v", aggregation="MEAN", trainable=False)
    if how == "under a tape":
        with mr.GradientTape() as tape:
            tape.watch(v)
            twin = copy.deepcopy(v)
    elif how == "in scope" and layout is not None:
        with v.strategy.scope():
            twin = copy.deepcopy(v)
    else:
        twin = copy.deepcopy({"list": [v, v]})["list"][1]
    mr.function(lambda: v.assign_add([1.0, 1.0]))()
    assert (twin.tolist(), v.tolist()) == ([1.0, 2.0], [2.0, 3.0])
    mr.function(lambda: twin.assign([7.0, 8.0]))()
    assert (twin.tolist(), v.tolist()) == ([7.0, 8.0], [2.0, 3.0])
    assert type(twin) is type(v)
    for name in (
        "name",
        "shape",
        "dtype",
        "trainable",
        "aggregation",
        "synchronization",
        "strategy",
        "device_assignment",
    ):
        assert getattr(twin, name) == getattr(v, name), name
    if layout is not None:
        assert [one.device for one in twin.values] == [one.device for one in v.values]
        twin.strategy.run(lambda: twin.assign([0.0, 0.0]))
        assert [one.numpy().tolist() for one in twin.values] == [[0.0, 0.0]] * layout[1]


def test_a_deep_copy_of_components_keeps_each_of_them():
    v = make((2, 2), 0.0, synchronization="ON_READ", aggregation="SUM")
    v.strategy.run(lambda: v.assign_add(mr.get_replica_context().replica_id_in_sync_group + 1.0))
    twin = copy.deepcopy(v)
    v.assign(0.0)
    assert [float(one) for one in twin.values] == [1.0, 2.0]


def test_a_deep_copy_of_random_keys():
    v = mr.Variable(jax.random.key(3))
    twin = copy.deepcopy(v)
    assert jax.random.key_data(twin.read_value()).tolist() == jax.random.key_data(jax.random.key(3)).tolist()


def test_a_shallow_copy_shares_the_state():
    """A second object over the same buffer would hold a deleted one after the next compiled step."""
    v = make((2, 2))
    alias = copy.copy(v)
    mr.function(lambda: v.assign_add([1.0, 1.0]))()
    assert alias.tolist() == [2.0, 3.0]
    assert alias is v


@pytest.mark.parametrize("layout", [(1, 1), (2, 2)])
@pytest.mark.parametrize("how", ["run", "function", "jit"])
def test_copies_are_refused_where_the_value_is_not_in_storage(layout, how):
    v = make(layout)
    ways = {"run": v.strategy.run, "function": lambda call: mr.function(call)(), "jit": lambda call: jax.jit(call)()}
    if (layout, how) == ((1, 1), "run"):
        assert v.strategy.run(lambda: copy.deepcopy(v)).tolist() == [1.0, 2.0]  # one replica assigns in storage
        return
    with pytest.raises(mr.errors.ContextError, match="copy it outside"):
        ways[how](lambda: copy.deepcopy(v) and None)


@pytest.mark.parametrize("layout", [(1, 1), (2, 2)])
def test_variables_of_a_strategy_are_not_pickled(layout):
    v = make(layout)
    for value in (v, {"v": [v]}, v.values[0]):
        with pytest.raises(mr.errors.ArgumentTypeError, match=r"variable\.numpy\(\)"):
            pickle.dumps(value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_variables_are_pickled_as_in_tensorflow(protocol):
    v = mr.Variable(jnp.ones(2, jnp.bfloat16), name="v", trainable=False, aggregation="SUM")
    data = pickle.dumps(v, protocol)
    v.assign_add([1, 1])
    with mr.OneDeviceStrategy("CPU:0").scope():
        twin = pickle.loads(data)
    assert type(twin) is mr.Variable
    assert twin.strategy is None
    assert (twin.name, twin.trainable, twin.aggregation, twin.dtype) == ("v", False, v.aggregation, jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(twin, np.float32), [1.0, 1.0])


def test_plain_variables_of_random_keys_are_not_pickled():
    with pytest.raises(mr.errors.ArgumentTypeError, match="key_data"):
        pickle.dumps(mr.Variable(jax.random.key(0)))


def test_a_deep_copied_tree_is_mirrored():
    with mr.MirroredStrategy(jax.devices()[:2]).scope():
        params = mr.mirror({"w": jnp.ones(2), "b": jnp.zeros(())})
    twin = copy.deepcopy(params)
    mr.assign(twin, {"w": jnp.zeros(2), "b": jnp.ones(())})
    assert params["w"].tolist() == [1.0, 1.0]
    assert len(twin["w"].values) == 2
    assert pickle.loads(pickle.dumps(mr.unmirror(params)))["w"].tolist() == [1.0, 1.0]


def test_strategies_are_places():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    assert copy.copy(strategy) is strategy
    assert copy.deepcopy([strategy])[0] is strategy
    for one in (strategy, mr.OneDeviceStrategy("CPU:0")):
        with pytest.raises(mr.errors.ArgumentTypeError, match="create the strategy in the other process"):
            pickle.dumps(one)


@mr.function
def doubled(x):
    return 2 * x


def test_compiled_functions_are_copied_and_pickled_as_functions_are():
    assert copy.copy(doubled) is doubled
    assert copy.deepcopy({"step": doubled})["step"] is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    with pytest.raises((pickle.PicklingError, AttributeError), match="doubled|lambda"):
        pickle.dumps(mr.function(lambda x: x))


class Counter:
    def __init__(self, make: Any) -> None:
        self.step = make(self)
        self.first, self.v = self.step, mr.Variable(0.0)

    def add(self, x: float = 1.0) -> Any:
        return self.v.assign_add(x)

    @mr.function
    def method(self) -> Any:
        return self.add()

    def __call__(self) -> Any:
        return self.add()


def closing_over(model: Counter) -> Any:
    add = model.add
    return mr.function(lambda: model.v.assign_add(0.5) + add(0.5))


@pytest.mark.parametrize(
    "make",
    [
        lambda model: mr.function(model.add),
        lambda model: tf.function(model.add),
        lambda model: mr.function(functools.partial(model.add, 1.0)),
        lambda model: mr.function(model),
        lambda model: model.method,
        closing_over,
    ],
    ids=["bound", "facade", "partial", "callable", "method", "closure"],
)
@pytest.mark.parametrize("part", ["step", "object"])
def test_compiled_methods_of_a_copy_assign_the_variables_of_the_copy(make, part):
    model = Counter(make)
    model.step()
    twin = copy.deepcopy(model) if part == "object" else copy.deepcopy([model.step, model])[1]
    assert twin.step is twin.first
    assert twin.step is not model.step
    twin.step()
    assert [model.v.numpy(), twin.v.numpy()] == [1.0, 2.0]
    model.step()
    assert [model.v.numpy(), twin.v.numpy()] == [2.0, 2.0]
    assert copy.copy(model).step is model.step


@pytest.mark.parametrize("function_first", [False, True])
@pytest.mark.parametrize("through_helper", [False, True])
def test_a_closure_over_a_variable_uses_its_copy(function_first, through_helper):
    class Model:
        def __init__(self):
            v = mr.Variable(0.0)
            add = (lambda x: v.assign_add(x)) if through_helper else None
            if not function_first:
                self.v = v
            self.step = mr.function((lambda: add(1.0)) if through_helper else (lambda: v.assign_add(1.0)))
            self.v = v

    model = Model()
    twin = copy.deepcopy(model)
    twin.step()
    assert (float(model.v), float(twin.v)) == (0.0, 1.0)
    assert copy.deepcopy(model.step) is model.step, "a function that is copied alone keeps its variables"


def test_a_copied_method_keeps_its_options():
    model = Counter(lambda model: mr.function(model.add, input_signature=[jax.ShapeDtypeStruct((), jnp.float32)]))
    assert float(copy.deepcopy(model).step(2)) == 2.0
    with pytest.raises(mr.errors.SignatureError, match="add"):
        copy.deepcopy(model).step(jnp.ones(2))


def test_a_concrete_function_is_not_copied_with_the_variables_that_it_assigns():
    concrete = doubled.get_concrete_function(jnp.ones(2))
    assert copy.deepcopy([concrete])[0] is concrete
    model = Counter(lambda model: mr.function(model.add))
    model.concrete = model.step.get_concrete_function()
    with pytest.raises(mr.errors.ArgumentError, match="copy the object before get_concrete_function"):
        copy.deepcopy(model)
