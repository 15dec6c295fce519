"""Deferred restoration: state that does not exist yet during a restore is restored when it is created."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import shutil
import types
import weakref

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr
import mirrored.tf as tf
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader, restoring
from mirrored.errors import CheckpointMismatchError
from mirrored.integrations.keras import keras
from mirrored.optimizers import Optimizer
from mirrored.variables.state_lock import together, with_storage_rollback

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    pytest.mark.timeout(300),
]
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3, "tanh")
        self.normalized = keras.layers.BatchNormalization()
        self.blocks = [keras.layers.Dense(3, "tanh"), keras.layers.Dropout(0.5)]
        self.last = keras.layers.Dense(1)

    def call(self, x, training=False):
        x = self.normalized(self.first(x), training=training)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class OwnBuild(keras.Model):
    """Creates its layers in `build`, and a weight of its own."""

    def build(self, shape):
        self.inner = keras.layers.Dense(3, "tanh")
        self.inner.build(shape)
        self.kernel = self.add_weight(shape=(3, 1), name="kernel")

    def call(self, x):
        return self.inner(x) @ jnp.asarray(self.kernel.value)


def sequential():
    layers = keras.layers
    return keras.Sequential(
        [layers.Dense(3, "tanh"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)]
    )


MODELS = {"sequential": sequential, "subclassed": Subclassed, "own build": OwnBuild}
LAYOUTS = {"no strategy": 0, "2 devices": 2}


def in_layout(replicas):
    strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
    return strategy, strategy.scope() if strategy else contextlib.nullcontext()


def made(kind, replicas):
    strategy, scope = in_layout(replicas)
    with scope:
        model = MODELS[kind]()
        optimizer = keras.optimizers.Adam(0.1)
    return strategy, model, optimizer


def custom_step(strategy, model, optimizer, compiled):
    """One step of a custom loop."""
    strategy = strategy or mr.get_strategy()

    def replica_step(x, y):
        with mr.GradientTape() as tape:
            loss = mr.losses.average_loss((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = lambda x, y: strategy.run(replica_step, args=(x, y))  # noqa: E731
    return mr.function(step) if compiled else step


def values(model, optimizer=None):
    variables = [*model.variables, *(optimizer.variables if optimizer else ())]
    return [np.asarray(variable.value) for variable in variables]


def same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Trained models, each with its checkpoint."""
    found = {}
    for kind in MODELS:
        _, model, optimizer = made(kind, 1)
        model(X)
        optimizer.build(model.trainable_variables)
        for number, variable in enumerate([*model.variables, *optimizer.variables]):
            if jnp.issubdtype(variable.dtype, jnp.floating):
                variable.assign(jnp.full(variable.shape, 0.01 * (number + 1), variable.dtype))
        optimizer.learning_rate.assign(0.0)  # a step leaves the weights what they are
        path = Checkpoint(model=model, optimizer=optimizer).save(tmp_path_factory.mktemp("saved") / "c")
        found[kind] = path, values(model), values(model, optimizer)
    return found


WAYS_TO_BUILD = {
    "called": lambda model: model(X),
    "built": lambda model: model.build((None, 4)),
    "predict": lambda model: model.predict(X, verbose=0),
    "in a compiled function": lambda model: mr.function(lambda x: model(x))(jnp.asarray(X)),
    "in an eager run": lambda model: mr.get_strategy().run(model, args=(jnp.asarray(X),)),
    "in a compiled run": lambda model: mr.function(lambda x: mr.get_strategy().run(model, args=(x,)))(jnp.asarray(X)),
}


@pytest.mark.parametrize(
    ("kind", "layout", "building"),
    [
        *(("sequential", layout, building) for layout in LAYOUTS for building in WAYS_TO_BUILD),
        *((kind, "2 devices", building) for kind in ("subclassed", "own build") for building in WAYS_TO_BUILD),
    ],
)
@pytest.mark.sampled(4)
@pytest.mark.first(1)
def test_an_unbuilt_keras_model_is_restored_when_it_is_built(saved, kind, layout, building):
    if building == "built" and kind == "subclassed":
        building = "called"  # Keras builds such a model by calling it
    path, expected, _ = saved[kind]
    strategy, model, _ = made(kind, LAYOUTS[layout])
    status = Checkpoint(model=model).restore(path).expect_partial()
    with strategy.scope() if strategy else contextlib.nullcontext():
        WAYS_TO_BUILD[building](model)
    status.assert_existing_objects_matched()
    same(values(model), expected)


def test_the_first_result_is_of_the_restored_weights(saved):
    path, expected, _ = saved["own build"]
    _, model, _ = made("own build", 0)
    Checkpoint(model=model).restore(path).expect_partial()
    output = mr.function(lambda x: model(x))(jnp.asarray(X))
    same(values(model), expected)
    np.testing.assert_array_equal(output, mr.function(lambda x: model(x))(jnp.asarray(X)))


@pytest.mark.parametrize(
    ("kind", "layout", "compiled"),
    [
        ("sequential", "no strategy", True),
        ("sequential", "2 devices", False),
        ("sequential", "2 devices", True),
        ("subclassed", "2 devices", True),
        ("own build", "2 devices", False),
    ],
)
@pytest.mark.sampled(4)
@pytest.mark.long
def test_the_slots_of_an_optimizer_are_restored_before_its_first_step(saved, kind, layout, compiled):
    path, expected, all_expected = saved[kind]
    strategy, model, optimizer = made(kind, LAYOUTS[layout])
    status = Checkpoint(model=model, optimizer=optimizer).restore(path).expect_partial()
    custom_step(strategy, model, optimizer, compiled)(jnp.asarray(X[:2]), jnp.asarray(Y[:2]))
    status.assert_consumed()
    same(values(model), expected)
    assert int(np.asarray(optimizer.iterations.value)) == int(all_expected[len(expected)]) + 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.first(1)
def test_fit_goes_on_from_a_restored_model_and_optimizer(tmp_path, layout):
    def compiled():
        keras.utils.set_random_seed(1)
        strategy, scope = in_layout(LAYOUTS[layout])
        with scope:
            model = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
        return model

    straight, first = compiled(), compiled()
    straight.fit(X, Y, batch_size=4, epochs=4, shuffle=False, verbose=0)
    first.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    path = Checkpoint(model=first).save(tmp_path / "c")
    second = compiled()
    keras.utils.set_random_seed(7)
    status = Checkpoint(model=second).restore(path).expect_partial()
    second.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    status.assert_consumed()
    same(values(second), values(straight))


def test_a_checkpoint_that_is_dropped_still_restores(saved):
    path, expected, _ = saved["sequential"]
    _, model, _ = made("sequential", 1)
    Checkpoint(model=model).restore(path).expect_partial()
    gc.collect()
    model(X)
    same(values(model), expected)


def test_what_waits_does_not_keep_a_model_alive(saved):
    _, model, _ = made("sequential", 1)
    Checkpoint(model=model).restore(saved["sequential"][0]).expect_partial()
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_assert_consumed_tells_the_truth_before_and_after(saved):
    path, _, _ = saved["sequential"]
    _, model, optimizer = made("sequential", 2)
    status = Checkpoint(model=model, optimizer=optimizer).restore(path)
    with pytest.raises(CheckpointMismatchError, match="model/layers/0/kernel"):
        status.assert_consumed()
    status.assert_existing_objects_matched()
    assert "model/layers/0/kernel" in status.unexpected
    model.build((None, 4))
    status.assert_consumed()
    assert status.unexpected == status.missing == ()


def test_another_shape_is_refused_when_it_is_created(saved):
    path, _, _ = saved["sequential"]
    _, model, _ = made("sequential", 1)
    Checkpoint(model=model).restore(path).expect_partial()
    with pytest.raises(CheckpointMismatchError, match=r"model/layers/0/kernel +float32\[4, 3\] in the checkpoint"):
        model(np.ones((2, 5), np.float32))


def test_trained_weights_are_not_restored_a_second_time(saved):
    path, _, _ = saved["sequential"]
    _, model, _ = made("sequential", 1)
    Checkpoint(model=model).restore(path).expect_partial()
    model(X)
    for variable in model.trainable_variables:
        variable.assign(jnp.full(variable.shape, 5.0))
    made("sequential", 1)[1](X)  # other variables, created meanwhile
    assert all((np.asarray(variable.value) == 5.0).all() for variable in model.trainable_variables)


@pytest.mark.long
def test_a_later_restore_takes_precedence(saved, tmp_path):
    _, other, _ = made("sequential", 1)
    other(X)
    later = Checkpoint(model=other).save(tmp_path / "later")
    _, model, _ = made("sequential", 1)
    checkpoint = Checkpoint(model=model)
    checkpoint.restore(saved["sequential"][0]).expect_partial()
    Checkpoint(model=model).restore(later).expect_partial()
    model(X)
    same(values(model), values(other))


@pytest.mark.long
def test_a_manager_resumes_with_a_model_that_is_built_later(saved, tmp_path):
    _, source, _ = made("subclassed", 1)
    source(X)
    CheckpointManager(Checkpoint(model=source), tmp_path).save(3)
    _, model, _ = made("subclassed", 1)
    assert CheckpointManager(Checkpoint(model=model), tmp_path).restore_latest(partial=True) == 3
    model(X)
    same(values(model), values(source))


@pytest.mark.long
def test_a_layer_that_is_added_later_is_restored(saved):
    path, expected, _ = saved["sequential"]
    model = keras.Sequential()
    Checkpoint(model=model).restore(path).expect_partial()
    for layer in sequential().layers:
        model.add(layer)
    model(X)
    same(values(model), expected)


@pytest.mark.long
def test_a_compiled_optimizer_of_later_is_restored(tmp_path):
    source = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    source.compile(keras.optimizers.Adam(0.25), "mse")
    source.fit(X, Y, verbose=0)
    path = Checkpoint(model=source).save(tmp_path / "c")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    status = Checkpoint(model=model).restore(path).expect_partial()
    model.compile(keras.optimizers.Adam(0.001), "mse")
    model.optimizer.build(model.trainable_variables)
    same(values(model, model.optimizer), values(source, source.optimizer))
    del status


# Other objects


class Lazy:
    """A plain object that creates its variables in its first call."""

    def __init__(self):
        self.w = None

    def __call__(self, x):
        if self.w is None:
            self.w = mr.Variable(jnp.ones(4), name="w")
        return x * self.w.read_value()


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_plain_object_that_makes_its_variables_when_called(tmp_path, replicas, compiled):
    source = Lazy()
    source(1.0)
    source.w.assign(jnp.arange(4.0))
    path = Checkpoint(model=source).save(tmp_path / "c")
    strategy = mr.MirroredStrategy(jax.devices()[:replicas])
    target = Lazy()
    status = Checkpoint(model=target).restore(path).expect_partial()
    step = lambda: strategy.run(lambda: target(2.0))  # noqa: E731
    results = strategy.local_results((mr.function(step) if compiled else step)())
    for result in results:
        np.testing.assert_array_equal(result, 2.0 * np.arange(4.0))
    status.assert_consumed()


def test_variables_in_plain_lists_and_dicts(tmp_path):
    path = Checkpoint(a=[mr.Variable(1.0), mr.Variable(2.0)], b={"x": mr.Variable(3.0)}).save(tmp_path / "c")
    a, b = [], {}
    status = Checkpoint(a=a, b=b).restore(path).expect_partial()
    a.extend([mr.Variable(0.0), mr.Variable(0.0)])
    b["x"] = mr.Variable(0.0)
    assert (float(a[0].numpy()), float(a[1].numpy()), float(b["x"].numpy())) == (1.0, 2.0, 3.0)
    del status


def test_a_module_made_inside_a_compiled_function(tmp_path):
    class Net(tf.Module):
        def __call__(self, x):
            if not hasattr(self, "w"):
                self.w = tf.Variable(tf.ones([2]))
            return x * self.w

    source = Net()
    source(1.0)
    source.w.assign([3.0, 4.0])
    path = tf.train.Checkpoint(net=source).save(str(tmp_path / "c"))
    target = Net()
    status = tf.train.Checkpoint(net=target).restore(path)
    assert tf.function(lambda x: target(x))(tf.constant(1.0)).tolist() == [3.0, 4.0]
    status.assert_consumed()


@pytest.mark.first(1)
@pytest.mark.parametrize("replicas", [0, 2])
def test_nnx_modules_that_come_later(tmp_path, replicas):
    class Net(nnx.Module):
        pass

    def with_head(seed):
        model.head = nnx.Linear(4, 2, rngs=nnx.Rngs(seed))

    _, scope = in_layout(replicas)
    with scope:
        source = model = Net()
        with_head(0)
        path = Checkpoint(model=source).save(tmp_path / "c")
        model = Net()
        status = Checkpoint(model=model).restore(path)
        with_head(1)
    np.testing.assert_array_equal(model.head(X), source.head(X))
    status.assert_consumed()


@pytest.mark.first(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_slots_of_our_optimizers_for_variables_that_come_later(tmp_path, compiled):
    def training():
        strategy = mr.MirroredStrategy(jax.devices()[:2])
        with strategy.scope():
            return strategy, Lazy(), mr.optimizers.Adam(0.1)

    def step(strategy, model, optimizer):
        def replica_step():
            with mr.GradientTape() as tape:
                loss = jnp.sum(model(2.0) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, model.w), model.w)])

        return mr.function(lambda: strategy.run(replica_step)) if compiled else lambda: strategy.run(replica_step)

    source = training()
    one = step(*source)
    one()
    one()
    path = Checkpoint(model=source[1], optimizer=source[2]).save(tmp_path / "c")
    one()
    target = training()
    status = Checkpoint(model=target[1], optimizer=target[2]).restore(path).expect_partial()
    step(*target)()
    np.testing.assert_array_equal(target[1].w.numpy(), source[1].w.numpy())
    status.assert_consumed()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.first(1)
def test_a_save_before_the_model_is_built_keeps_what_waits(saved, tmp_path, layout):
    path, _, _ = saved["subclassed"]
    _, model, optimizer = made("subclassed", LAYOUTS[layout])
    checkpoint = Checkpoint(model=model, optimizer=optimizer)
    checkpoint.restore(path).expect_partial()
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    for step in (1, 2, 3):  # the first ones are removed meanwhile
        manager.save(step)
    manager.wait()
    whole = CheckpointReader(path)
    kept = CheckpointReader(manager.latest_checkpoint)
    assert kept.names == whole.names
    for name in set(whole.names) - {"save_counter"}:
        if "seed" not in name:  # of which there is one for each replica
            np.testing.assert_array_equal(kept.read(name), whole.read(name))
    _, other, its_optimizer = made("subclassed", LAYOUTS[layout])
    again = CheckpointManager(Checkpoint(model=other, optimizer=its_optimizer), tmp_path)
    assert again.restore_latest() == 3
    again.save(4)
    other(X)
    again.save(5)
    again.wait()
    assert CheckpointReader(again.latest_checkpoint).names == whole.names
    its_optimizer.build(other.trainable_variables)
    expected = saved["subclassed"]
    same(values(other), expected[1])
    same(values(other, its_optimizer), expected[2])
    assert again.restored.assert_consumed()


@pytest.mark.long
def test_what_waits_outlives_the_checkpoint_that_it_is_from(saved, tmp_path, caplog):
    source, expected, _ = saved["sequential"]
    for is_saved_first in (True, False):
        path = shutil.copytree(source, tmp_path / f"copy-{is_saved_first}")
        _, model, _ = made("sequential", 1)
        checkpoint = Checkpoint(model=model)
        checkpoint.restore(path).expect_partial()
        if is_saved_first:
            checkpoint.write(tmp_path / "c")
        shutil.rmtree(path)
        if is_saved_first:
            model(X)
            same(values(model), expected)
            assert not caplog.records
        else:
            checkpoint.write(tmp_path / "c")
            checkpoint.write(tmp_path / "c")
            assert caplog.text.count("cannot be read any more") == 1
            assert "model/layers/0/kernel" not in CheckpointReader(tmp_path / "c").names


def test_parts_that_the_program_does_not_have_are_not_carried_on(saved, tmp_path):
    _, model, _ = made("sequential", 1)
    checkpoint = Checkpoint(model=model)
    checkpoint.restore(saved["sequential"][0]).expect_partial()
    names = CheckpointReader(checkpoint.write(tmp_path / "c")).names
    assert names
    assert all(name.startswith(("model/", "save_counter")) for name in names)


def test_what_is_carried_on_and_never_comes_does_not_fail_a_strict_restore(tmp_path):
    """Fine-tuning: the head of the checkpoint that it began with is not in the program."""
    path = Checkpoint(model={"body": mr.Variable(1.0), "head": mr.Variable(2.0)}).write(tmp_path / "trained")
    body, head = mr.Variable(0.0), mr.Variable(5.0)
    checkpoint = Checkpoint(model={"body": body, "new_head": head})
    checkpoint.restore(path).expect_partial()
    CheckpointManager(checkpoint, tmp_path / "run").save(1)
    restored = CheckpointManager(Checkpoint(model={"body": body, "new_head": head}), tmp_path / "run")
    for variable in (body, head):
        variable.assign(0.0)
    assert restored.restore_latest() == 1
    assert (body.numpy(), head.numpy()) == (1.0, 5.0)
    assert restored.restored.unexpected == ("model/head",)
    with pytest.raises(CheckpointMismatchError, match="model/head"):
        restored.restored.assert_consumed()


@pytest.mark.long
def test_a_restore_that_fails_leaves_what_waits(tmp_path):
    pretrained = Checkpoint(params={"w": mr.Variable(5.0)}, step=mr.Variable(1.0)).write(tmp_path / "pretrained")
    unfit = Checkpoint(params={"w": mr.Variable(6.0)}, step=mr.Variable([1.0, 2.0])).write(tmp_path / "unfit")
    checkpoint = Checkpoint(params={}, step=mr.Variable(0.0))
    checkpoint.restore(pretrained).expect_partial()
    late = mr.Variable(0.0)
    with pytest.raises(CheckpointMismatchError, match="step"):
        checkpoint.restore(unfit)
    vars(checkpoint)["_parts"]["params"]["w"] = late
    assert float(late.numpy()) == 5.0
    assert float(checkpoint.step.numpy()) == 1.0


def test_last_value_that_was_awaited_ends_the_restore(tmp_path):
    path = Checkpoint(a=mr.Variable(1.0)).save(tmp_path / "c")
    later = Checkpoint()
    status = later.restore(path)
    later.a = mr.Variable(7.0)
    assert float(later.a) == 1.0
    status.assert_consumed()
    later.a = mr.Variable(7.0)  # nothing waits any more
    assert float(later.a) == 7.0


@pytest.mark.long
def test_views_of_parts_are_pytrees_as_what_they_show(tmp_path):
    saved = {"z": mr.Variable(1.0), "a": mr.Variable(5.0)}
    path = Checkpoint(params=saved, parts=[mr.Variable(2.0), mr.Variable(6.0)]).write(tmp_path / "c")
    params, parts = {"z": mr.Variable(0.0), "b": mr.Variable(3.0)}, []
    checkpoint = Checkpoint(params=params, parts=parts)
    checkpoint.restore(path)
    checkpoint.parts.append(mr.Variable(0.0))
    for view, shown in ((checkpoint.params, params), (checkpoint.parts, parts)):
        assert type(view) is not type(shown)
        assert jax.tree_util.tree_leaves_with_path(view) == jax.tree_util.tree_leaves_with_path(shown)
    with mr.GradientTape() as tape:
        loss = sum(v**2 for v in checkpoint.params.values())
    gradients = tape.gradient(loss, checkpoint.params)
    assert [*gradients] == ["z", "b"]
    assert {**jax.tree.map(lambda v, g: float(v) + float(g), checkpoint.params, gradients)} == {"z": 3.0, "b": 9.0}
    by_other_order = Checkpoint(params=dict(reversed(params.items())))
    by_other_order.restore(path)
    assert jax.tree.structure(by_other_order.params) == jax.tree.structure(checkpoint.params)
    assert jax.tree.map(float, checkpoint.parts)[0] == 2.0


def test_parts_for_which_nothing_waits_are_returned_as_they_are(tmp_path):
    shared = mr.Variable(4.0)
    path = Checkpoint(
        params={"a": mr.Variable(1.0)},
        parts=[mr.Variable(2.0)],
        later={"b": mr.Variable(3.0), "c": shared},
        alias=[shared],
    ).write(tmp_path / "c")
    params, parts, later, alias = {"a": mr.Variable(0.0)}, [], {}, []
    checkpoint = Checkpoint(params=params, parts=parts, later=later, alias=alias)
    checkpoint.restore(path).expect_partial()
    assert checkpoint.params is params
    assert jax.tree.map(lambda v, g: float(v) + g, checkpoint.params, {"a": 1.0}) == {"a": 2.0}
    assert checkpoint.later is not later
    checkpoint.parts.append(mr.Variable(0.0))
    assert float(parts[0]) == 2.0
    assert checkpoint.parts is parts
    checkpoint.later["b"] = mr.Variable(0.0)
    assert float(later["b"]) == 3.0
    assert checkpoint.alias is not alias, "its value has its name in another part"
    checkpoint.alias.append(mr.Variable(0.0))
    assert float(alias[0]) == 4.0


@pytest.mark.parametrize("is_module", [True, False])
@pytest.mark.first(1)
def test_what_waits_may_be_copied_and_pickled(is_module, tmp_path):
    def make(value):
        variable = mr.Variable(value)
        if not is_module:
            return variable, variable
        module = mr.tf.Module()
        module.w = variable
        return module, variable

    path = Checkpoint(net=make(5.0)[0], extra=mr.Variable(1.0)).write(tmp_path / "c")
    net, variable = make(0.0)
    checkpoint = Checkpoint(net=net)
    checkpoint.restore(path).expect_partial()
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        own = copied.w if is_module else copied
        assert own is not variable
        assert float(own.numpy()) == 5.0
        Checkpoint(net=copied).restore(path).expect_partial()
        again = pickle.loads(pickle.dumps(copied))
        assert float((again.w if is_module else again).numpy()) == 5.0


def test_the_error_of_one_checkpoint_leaves_the_values_of_another(tmp_path):
    first = Checkpoint(d={"w": mr.Variable(np.zeros(2))}, x=1).write(tmp_path / "first")
    second = Checkpoint(d={"w": mr.Variable(5.0)}, x=1).write(tmp_path / "second")
    parts = [{}, {}]
    checkpoints = [Checkpoint(d=part, x=0) for part in parts]
    for one, path in zip(checkpoints, (first, second), strict=True):
        one.restore(path).expect_partial()
    a, b = mr.Variable(np.zeros(3)), mr.Variable(0.0)
    parts[0]["w"], parts[1]["w"] = a, b
    with pytest.raises(CheckpointMismatchError):
        a.numpy()
    assert float(b.numpy()) == 5.0
    with pytest.raises(CheckpointMismatchError):
        a.numpy()


ASSIGNED = {
    "eagerly": lambda strategy, v, new: v.assign(new),
    "together": lambda strategy, v, new: together(lambda: v.assign(new)),
    "in a function": lambda strategy, v, new: mr.function(lambda: v.assign(new, read_value=False))(),
    "in a compiled run": lambda strategy, v, new: mr.function(
        lambda: strategy.run(lambda: v.assign(new, read_value=False))
    )(),
    "under a tape": lambda strategy, v, new: under_tape(mr.function(lambda: v.assign(new, read_value=False))),
}


def under_tape(function):
    with mr.GradientTape():
        function()


@pytest.mark.parametrize("assigned", ASSIGNED)
def test_an_assignment_clears_the_error_of_a_restore(assigned, tmp_path):
    path = Checkpoint(d={"w": mr.Variable(np.zeros(2))}, x=1).write(tmp_path / "c")
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    parts = {}
    checkpoint = Checkpoint(d=parts, x=0)
    checkpoint.restore(path).expect_partial()
    with strategy.scope():
        parts["w"] = v = mr.Variable(np.zeros(3), aggregation="MEAN")
    with pytest.raises(CheckpointMismatchError):
        v.numpy()
    ASSIGNED[assigned](strategy, v, jnp.ones(3))
    assert v.numpy().tolist() == [1.0] * 3


def test_the_error_of_a_restore_stays_if_the_assignment_is_rolled_back(tmp_path):
    path = Checkpoint(d={"w": mr.Variable(np.zeros(2))}, x=1).write(tmp_path / "c")
    parts = {}
    checkpoint = Checkpoint(d=parts, x=0)
    checkpoint.restore(path).expect_partial()
    parts["w"] = v = mr.Variable(np.zeros(3))

    def fail():
        together(lambda: v.assign(jnp.ones(3)))
        raise KeyError

    with pytest.raises(CheckpointMismatchError):
        v.numpy()
    with pytest.raises(KeyError):
        with_storage_rollback(fail)
    with pytest.raises(CheckpointMismatchError):
        v.numpy()


class Pair(tf.Module):
    """An object whose variables are created one by one."""

    def __init__(self, **values):
        super().__init__()
        for name, value in values.items():
            setattr(self, name, mr.Variable(value))


def saved_pair(path, **values):
    return Checkpoint(m=Pair(**values)).write(path)


def test_a_restore_leaves_what_an_earlier_one_waits_for(tmp_path):
    """As in TensorFlow: the newest restore that has an object's value wins."""
    first = saved_pair(tmp_path / "first", x=1.0, y=2.0, z=3.0)
    second, third = saved_pair(tmp_path / "second", x=10.0, z=30.0), saved_pair(tmp_path / "third", x=100.0)
    module = Pair(x=0.0)
    checkpoint = Checkpoint(m=module)
    for path, expected in ((first, 1.0), (second, 10.0), (third, 100.0)):
        checkpoint.restore(path).expect_partial()
        assert float(module.x.numpy()) == expected
    module.z = mr.Variable(0.0)
    assert float(module.z.numpy()) == 30.0
    module.y = mr.Variable(0.0)
    assert float(module.y.numpy()) == 2.0
    module.x = module.y = mr.Variable(7.0)
    assert float(module.x.numpy()) == 7.0, "each value is restored once"


@pytest.mark.long
def test_what_earlier_restores_wait_for_is_saved_too(tmp_path):
    module = Pair(x=0.0)
    checkpoint = Checkpoint(m=module)
    checkpoint.restore(saved_pair(tmp_path / "first", x=1.0, y=2.0)).expect_partial()
    checkpoint.restore(saved_pair(tmp_path / "second", x=10.0, z=30.0)).expect_partial()
    path = checkpoint.write(tmp_path / "third")
    whole = Pair(x=0.0, y=0.0, z=0.0)
    Checkpoint(m=whole).restore(path).assert_consumed()
    assert [float(one.numpy()) for one in (whole.x, whole.y, whole.z)] == [10.0, 2.0, 30.0]


def test_a_failed_restore_leaves_what_earlier_ones_wait_for(tmp_path):
    module = Pair(x=0.0)
    checkpoint = Checkpoint(m=module)
    checkpoint.restore(saved_pair(tmp_path / "first", x=1.0, y=2.0)).expect_partial()
    with pytest.raises(CheckpointMismatchError):
        checkpoint.restore(saved_pair(tmp_path / "second", x=[1.0, 2.0], y=20.0))
    module.y = mr.Variable(0.0)
    assert float(module.y.numpy()) == 2.0


@pytest.mark.parametrize("notices", [True, False])
@pytest.mark.parametrize("builds", [True, False])
@pytest.mark.first(1)
def test_slots_are_restored_from_an_earlier_restore_than_their_variables(tmp_path, builds, notices):
    """The step counter had the saved value, and the slots, which were made around its restore, had zeros."""
    trained, optimizer = Pair(x=[1.0], y=[2.0]), Optimizer(optax.adam(0.1))
    optimizer.apply_gradients([(np.ones(1, np.float32), trained.x), (np.ones(1, np.float32), trained.y)])
    whole = Checkpoint(m=trained, optimizer=optimizer).write(tmp_path / "whole")
    saved = {
        name: leaf.read().value for name, leaf in Checkpoint(optimizer=optimizer, m=trained).graph().leaves.items()
    }
    module, optimizer = (
        Pair(x=[0.0]) if notices else types.SimpleNamespace(x=mr.Variable([0.0])),
        Optimizer(optax.adam(0.1)),
    )
    checkpoint = Checkpoint(m=module, optimizer=optimizer)
    checkpoint.restore(whole).expect_partial()
    if not notices:
        module.y = mr.Variable([0.0])
    checkpoint.restore(saved_pair(tmp_path / "model", x=[10.0], y=[20.0])).expect_partial()
    if notices:
        module.y = mr.Variable([0.0])
    assert float(module.y.numpy()[0]) == 20.0
    if builds:
        optimizer.build([module.x, module.y])
    found = {name: leaf.read().value for name, leaf in checkpoint.graph().leaves.items() if name.startswith("opt")}
    assert found == {name: value for name, value in saved.items() if name in found} != {}
    assert len(found) == 6
    assert checkpoint._restoration is None


@pytest.mark.long
def test_restores_of_the_same_names_do_not_add_up(tmp_path):
    """An evaluator restores one checkpoint after another, and never creates the state of the training."""
    module = Pair(x=0.0)
    checkpoint = Checkpoint(m=module)
    for number in range(3):
        checkpoint.restore(saved_pair(tmp_path / f"c{number}", x=float(number), y=2.0)).expect_partial()
    assert len(checkpoint._restoration._restorations) == 1
    shutil.rmtree(tmp_path / "c0")
    module.y = mr.Variable(0.0)
    assert float(module.y.numpy()) == 2.0
    assert checkpoint._restoration is None


def test_a_variable_that_was_created_between_two_restores_is_restored_from_the_first(tmp_path):
    first, second = ({"x": mr.Variable(1.0), "y": mr.Variable(2.0)}, {"x": mr.Variable(10.0)})
    paths = [Checkpoint(d=one).write(tmp_path / str(len(one))) for one in (first, second)]
    held = {"x": mr.Variable(0.0)}
    checkpoint = Checkpoint(d=held)
    checkpoint.restore(paths[0]).expect_partial()
    held["y"] = mr.Variable(0.0)
    checkpoint.restore(paths[1]).expect_partial()
    assert (float(held["x"].numpy()), float(held["y"].numpy())) == (10.0, 2.0)


def lazy_checkpoint(tmp_path):
    source = Lazy()
    source(1.0)
    source.w.assign(jnp.arange(4.0))
    return Checkpoint(model=source).save(tmp_path / "c")


def test_a_plain_object_is_restored_by_a_checkpoint_that_is_dropped(tmp_path):
    target = Lazy()
    Checkpoint(model=target).restore(lazy_checkpoint(tmp_path)).expect_partial()
    gc.collect()
    np.testing.assert_array_equal(target(1.0), np.arange(4.0))
    assert vars(target).keys() == {"w"}


def test_what_waits_does_not_keep_a_plain_object_alive(tmp_path):
    target = Lazy()
    Checkpoint(model=target).restore(lazy_checkpoint(tmp_path)).expect_partial()
    reference = weakref.ref(target)
    del target
    gc.collect()
    assert reference() is None


def test_views_of_lists_are_copied_and_extended_by_themselves(tmp_path):
    path = Checkpoint(parts=[mr.Variable(1.0), mr.Variable(2.0)]).write(tmp_path / "c")
    parts = [mr.Variable(0.0)]
    checkpoint = Checkpoint(parts=parts)
    checkpoint.restore(path).expect_partial()
    copied = checkpoint.parts.copy()
    copied.append("another")
    assert len(parts) == 1
    view = checkpoint.parts
    view.extend(view)
    view += view
    assert len(parts) == len(view) == 4


class _Layer(tf.Module):
    def build(self):
        self.w, self.b = tf.Variable([0.0]), tf.Variable([0.0])


def test_new_attributes_of_a_model_are_read_together(tmp_path, monkeypatch):
    def program():
        model = tf.Module()
        model.layers = [_Layer() for _ in range(5)]
        return model

    def built(model):
        for layer in model.layers:
            layer.build()
        return model

    saved, model = built(program()), program()
    for number, layer in enumerate(saved.layers):
        layer.b.assign([float(number)])
    path = Checkpoint(model=saved).save(tmp_path / "c")
    reads, read = [], restoring.read_leaves
    status = Checkpoint(model=model).restore(path)
    monkeypatch.setattr(restoring, "read_leaves", lambda *a: (reads.append(len(a[2])), read(*a))[1])
    assert [layer.b.numpy().tolist() for layer in built(model).layers] == [[float(number)] for number in range(5)]
    status.assert_consumed()
    assert [count for count in reads if count] == [10]


def test_a_new_attribute_that_is_assigned_at_once_counts_as_restored(tmp_path):
    saved, model = _Layer(), _Layer()
    saved.build()
    path = Checkpoint(model=saved).save(tmp_path / "c")
    status = Checkpoint(model=model).restore(path)
    model.build()
    model.w.assign([7.0])
    status.assert_consumed()
    assert model.w.numpy().tolist() == [7.0]


class _FlexibleDense(tf.Module):
    """As in TensorFlow's guide to modules: the first call creates the variable."""

    def __init__(self, out_features):
        super().__init__()
        self.is_built, self.out_features = False, out_features

    def __call__(self, x):
        if not self.is_built:
            self.w = tf.Variable(tf.ones([x.shape[-1], self.out_features]))
            self.is_built = True
        return x @ self.w


@pytest.mark.parametrize("nested", [False, True], ids=["part", "nested"])
def test_numbers_of_a_module_that_is_not_built_are_configuration(tmp_path, nested):
    def program():
        module = _FlexibleDense(3)
        return Checkpoint(model=types.SimpleNamespace(inner=module) if nested else module), module

    x = jnp.ones((1, 2))
    checkpoint, module = program()
    module(x)
    module.w.assign(5.0 * module.w)
    CheckpointManager(checkpoint, tmp_path).save(1)
    checkpoint, module = program()
    manager = CheckpointManager(checkpoint, tmp_path)
    assert manager.restore_latest(partial=True) == 1
    assert module(x).tolist() == [[10.0, 10.0, 10.0]]
    manager.restored.assert_consumed()


def test_a_number_beside_saved_arrays_is_reported_as_missing(tmp_path):
    class Statistics:
        def __init__(self):
            self.mean = jnp.zeros(2)

    path = Checkpoint(statistics=Statistics()).save(tmp_path / "c")
    statistics = Statistics()
    statistics.count = 0
    status = Checkpoint(statistics=statistics).restore(path).expect_partial()
    assert status.missing == ("statistics/count",)


@pytest.mark.parametrize("event", ["kept alone", "renamed", "copied", "iterated"])
def test_a_new_attribute_is_restored_whatever_happens_to_its_object_before_its_first_use(event, tmp_path):
    saved = _Layer()
    saved.build()
    for variable in (saved.w, saved.b):
        variable.assign([7.0])
    path = Checkpoint(model=saved).save(tmp_path / "c")
    model = _Layer()
    Checkpoint(model=model).restore(path).expect_partial()
    model.build()
    if event == "kept alone":
        found = [model.w, model.b]
        del model
        gc.collect()
    elif event == "renamed":
        model.v, model.c = model.w, model.b
        del model.w, model.b
        found = [model.v, model.c]
    elif event == "copied":
        made = copy.deepcopy(model)
        found = [made.w, made.b, model.w, model.b]
    else:
        found = [one for one in vars(model).values() if isinstance(one, tf.Variable) and one.numpy().tolist()]
        assert len(found) == 2
    assert [one.numpy().tolist() for one in found] == [[7.0]] * len(found)
