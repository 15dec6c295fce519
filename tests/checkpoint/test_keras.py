"""Keras models, optimizers and metrics in checkpoints."""

from __future__ import annotations

import contextlib
import os
import types

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from checkpoint.earlier_versions import as_by_earlier_version, save_as_by_earlier_version
from mirrored.checkpoint import Checkpoint, CheckpointManager, CheckpointReader, keras_slots
from mirrored.errors import ArgumentError, CheckpointMismatchError
from mirrored.integrations.keras import keras

# Keras' own `numpy()` calls NumPy in a way that NumPy 2 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


class Training:
    def __init__(self, replicas):
        self.strategy = mr.MirroredStrategy(jax.devices()[:replicas]) if replicas else None
        layers = keras.layers
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            self.model = keras.Sequential(
                [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
            )
            self.optimizer, self.metric = keras.optimizers.Adam(0.01), keras.metrics.Mean()
        self.checkpoint = Checkpoint(model=self.model, optimizer=self.optimizer, metric=self.metric)

    def step(self):
        def replica_step():
            with mr.GradientTape() as tape:
                loss = jnp.sum(self.model(np.ones((3, 4), np.float32), training=True) ** 2)
            self.metric.update_state(loss)
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

        self.strategy.run(replica_step)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    training = Training(2)
    training.step()
    training.step()
    return training, training.checkpoint.save(tmp_path_factory.mktemp("keras") / "c")


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.first(1)
@pytest.mark.long
def test_restores_on_any_number_of_replicas(saved, replicas):
    source, path = saved
    target = Training(replicas)
    target.checkpoint.restore(path).assert_consumed()
    for here, there in zip(target.model.trainable_variables, source.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())
    for here, there in zip(target.optimizer.variables, source.optimizer.variables, strict=True):
        np.testing.assert_array_equal(here.numpy(), there.numpy())
    np.testing.assert_allclose(float(target.metric.result()), float(source.metric.result()), rtol=1e-6)
    assert all(one.mirrored.num_replicas == replicas for one in target.optimizer.variables)


@pytest.mark.long
def test_restores_without_a_strategy(saved):
    source, path = saved
    target = Training(0)
    target.checkpoint.restore(path).assert_consumed()
    for here, there in zip(target.model.variables, source.model.variables, strict=True):
        if "seed" not in here.path:
            np.testing.assert_allclose(here.numpy(), there.numpy(), rtol=1e-6)


@pytest.mark.long
def test_names_do_not_depend_on_how_many_layers_were_made_before(saved):
    _, path = saved
    names = CheckpointReader(path).names
    assert {"model/layers/0/kernel", "model/layers/1/moving_mean", "model/layers/3/bias"} <= set(names)
    assert {
        "optimizer/iteration",
        "optimizer/slots/0/0_momentum",
        "optimizer/slots/0/1_velocity",
        "metric/total",
    } <= set(names)


def test_subclassed_model_goes_by_attributes(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.layers.Dense(3)
            self.blocks = [keras.layers.Dense(2)]

        def call(self, x):
            return self.blocks[0](self.encoder(x))

    source, target = Net(), Net()
    for net in (source, target):
        net(np.ones((1, 2), np.float32))
    path = Checkpoint(source).write(tmp_path / "c")
    assert set(CheckpointReader(path).names) == {
        "encoder/kernel", "encoder/bias", "blocks/0/kernel", "blocks/0/bias"
    }  # fmt: skip
    Checkpoint(target).restore(path).assert_consumed()
    np.testing.assert_array_equal(target.encoder.kernel.numpy(), source.encoder.kernel.numpy())


class Scale(keras.layers.Layer):
    """Creates its weight in the constructor, so that a model has state before it is built."""

    def __init__(self, value):
        super().__init__()
        self.w = self.add_weight(shape=(3,), initializer=keras.initializers.Constant(value), name="w")

    def call(self, x):
        return x * self.w


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("as_root", [True, False])
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.first(4)
def test_unbuilt_sequential_model_with_state(as_root, built, replicas, tmp_path):
    def model_and_checkpoint(first):
        with mr.MirroredStrategy([f"CPU:{n}" for n in range(replicas)]).scope():
            model = keras.Sequential(
                [Scale(first), keras.layers.Dropout(0.3, seed=first), Scale(first + 1), keras.layers.Dense(1)]
            )
        return model, Checkpoint(model) if as_root else Checkpoint(model=model)

    def state(model):
        return [
            np.asarray(one) for one in (*model.weights, *(layer.seed_generator.state for layer in model.layers[1:2]))
        ]

    source, checkpoint = model_and_checkpoint(1)
    source(np.ones((2, 3), np.float32))
    path = checkpoint.write(tmp_path / "c")
    target, checkpoint = model_and_checkpoint(7)
    if built:
        target(np.ones((2, 3), np.float32))
    status = checkpoint.restore(path)
    target.build((2, 3))
    status.assert_consumed()
    for ours, saved_value in zip(state(target), state(source), strict=True):
        np.testing.assert_array_equal(ours, saved_value)


@pytest.mark.parametrize(
    "root",
    [
        lambda: keras.optimizers.Adam(0.1),
        lambda: mr.optimizers.Adam(0.1),
        lambda: mr.Variable(1.0),
        lambda: keras.Variable(1.0),
        lambda: jnp.ones(2),
    ],
    ids=["keras optimizer", "optimizer", "variable", "keras variable", "array"],
)
def test_roots_that_need_a_name_are_refused(root):
    with pytest.raises(ArgumentError, match="pass it by name"):
        Checkpoint(root())


def drawing(replicas):
    strategy = mr.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5, seed=5)])
    ones = np.ones((2, 8), np.float32)
    return model, lambda: np.asarray(strategy.gather(strategy.run(lambda: model(ones, training=True)), axis=0))


@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 4), (4, 2), (2, 4), (1, 2)])
@pytest.mark.first(1)
def test_dropout_goes_on_with_a_mask_of_its_own_on_each_replica(tmp_path, before, after):
    source, draw = drawing(before)
    draw()
    path = Checkpoint(model=source).write(tmp_path / "c")
    target, draw_again = drawing(after)
    Checkpoint(model=target).restore(path).assert_consumed()
    goes_on = draw()
    restored = draw_again()
    rows = 2 * min(before, after)
    np.testing.assert_array_equal(restored[:rows], goes_on[:rows])
    masks = {restored[2 * replica : 2 * replica + 2].tobytes() for replica in range(after)}
    assert len(masks) == after


def test_seeds_that_replicas_have_drawn_from_unequally_are_restored_as_they_were(tmp_path):
    source, draw = drawing(2)
    seeds = source.layers[0].seed_generator.state.mirrored
    with seeds.strategy.scope():
        seeds.values[1].assign(np.array([77, 3], np.uint32))
    path = Checkpoint(model=source).write(tmp_path / "c")
    target, draw_again = drawing(2)
    Checkpoint(model=target).restore(path).assert_consumed()
    np.testing.assert_array_equal(draw_again(), draw())


def test_a_value_assigned_to_the_state_of_a_seed_generator_is_shared_out(tmp_path):
    model, _ = drawing(2)
    state = model.layers[0].seed_generator.state
    for assign in (state.assign, state.mirrored.assign):
        assign(np.array([7, 1], np.uint32))
        parts = [np.asarray(one.read_value() if hasattr(one, "read_value") else one) for one in state.components]
        assert parts[0].tolist() == [7, 1]
        assert (parts[1][1], parts[1][0] != 7) == (1, True)


class Attributes(keras.Model):
    """A model whose variables have generated names: attributes, one of them private, and an item of a list."""

    def __init__(self, value):
        super().__init__()
        self.a, self.b = mr.Variable(value), mr.Variable(2 * value)
        self.w = mr.Variable(5 * value, name="w")
        self._hidden = self.add_weight(shape=(), initializer="zeros")
        self._hidden.assign(3 * value)
        self.items = [mr.Variable(4 * value)]
        self.inner = keras.layers.Dense(1)
        self.inner.build((None, 2))

    def values(self):
        return [float(one) for one in (self.a, self.b, self._hidden, self.items[0], self.w)]


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("as_root", [False, True])
def test_variables_without_names_go_by_attributes(tmp_path, others, as_root):
    def checkpoint(model):
        return Checkpoint(model) if as_root else Checkpoint(model=model)

    path = checkpoint(Attributes(1.0)).save(tmp_path / "c")
    names = {name.removeprefix("model/") for name in CheckpointReader(path).names}
    assert {"a", "b", "w", "_hidden", "items/0", "inner/kernel"} <= names
    assert not [name for name in names if "ariable" in name]
    # The number of variables that the program has created must not matter: Keras counts them in generated names.
    kept = [mr.Variable(0.0) for _ in range(others)]
    model = Attributes(-1.0)
    checkpoint(model).restore(path).assert_consumed()
    assert model.values() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(kept) == others


def test_keras_optimizer_built_in_another_order_is_refused(tmp_path):
    def make(order):
        v, u = (keras.Variable(np.full(2, value, np.float32), name=name) for name, value in (("v", 1.0), ("u", 5.0)))
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build([{"v": v, "u": u}[name] for name in order])
        return Checkpoint(v=v, u=u, optimizer=optimizer), v, u, optimizer

    checkpoint, v, u, optimizer = make("vu")
    optimizer.apply([jnp.ones(2), 10 * jnp.ones(2)], [v, u])
    path = checkpoint.save(tmp_path / "c")
    checkpoint, v, u, optimizer = make("uv")
    before = [np.asarray(one) for one in (v.value, u.value, *(one.value for one in optimizer.variables))]
    with pytest.raises(CheckpointMismatchError, match="with the variables u, v in this order, and in .* with v, u"):
        checkpoint.restore(path)
    after = [np.asarray(one) for one in (v.value, u.value, *(one.value for one in optimizer.variables))]
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    make("vu")[0].restore(path).assert_consumed()


def stepped(optimizer):
    v, u = (keras.Variable(np.full(2, value, np.float32), name=name) for name, value in (("v", 1.0), ("v_u", 5.0)))
    optimizer.build([v, u])
    optimizer.apply([jnp.ones(2), jnp.full(2, 10.0)], [v, u])
    return Checkpoint(v=v, u=u, optimizer=optimizer), [v, u, *optimizer.variables]


OPTIMIZERS = keras.optimizers


@pytest.mark.first(8)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda: OPTIMIZERS.SGD(0.1, momentum=0.9), lambda: OPTIMIZERS.RMSprop(0.1)),
        (lambda: OPTIMIZERS.RMSprop(0.1), lambda: OPTIMIZERS.Lion(0.1)),
        (lambda: OPTIMIZERS.SGD(0.1, momentum=0.9), lambda: OPTIMIZERS.Lion(0.1)),
        (lambda: OPTIMIZERS.Lion(0.1), lambda: OPTIMIZERS.SGD(0.1, momentum=0.9)),
        (
            lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.SGD(0.1, momentum=0.9)),
            lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Lion(0.1)),
        ),
        (lambda: OPTIMIZERS.Adam(0.1), lambda: OPTIMIZERS.Ftrl(0.1)),
        (lambda: OPTIMIZERS.Adafactor(0.1), lambda: OPTIMIZERS.Adam(0.1)),
        (lambda: OPTIMIZERS.RMSprop(0.1), lambda: OPTIMIZERS.RMSprop(0.1, centered=True, use_ema=True)),
    ],
)
@pytest.mark.parametrize("is_built", [True, False])
def test_slots_of_another_keras_optimizer_are_refused(before, after, is_built, tmp_path):
    path = stepped(before())[0].save(tmp_path / "c")
    checkpoint, variables = stepped(after())
    if not is_built:
        checkpoint.optimizer, variables = after(), variables[:2]
    values = [np.asarray(one.value) for one in variables]
    with pytest.raises(CheckpointMismatchError, match="same class|slots/0") as raised:
        checkpoint.restore(path)
    assert "nothing was restored" in str(raised.value)
    for one, two in zip(values, variables, strict=True):
        np.testing.assert_array_equal(one, np.asarray(two.value))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda: OPTIMIZERS.Adam(0.1), lambda: OPTIMIZERS.AdamW(0.1)),
        (lambda: OPTIMIZERS.Adam(0.1), lambda: OPTIMIZERS.Adam(0.1, amsgrad=True)),
        (lambda: OPTIMIZERS.SGD(0.1), lambda: OPTIMIZERS.Adam(0.1)),
        (lambda: OPTIMIZERS.SGD(0.1, momentum=0.9), lambda: OPTIMIZERS.SGD(0.2, momentum=0.9, nesterov=True)),
    ],
)
def test_slots_that_a_keras_optimizer_has_in_common_are_restored(before, after, tmp_path):
    source, there = stepped(before())
    target, here = stepped(after())
    target.restore(source.save(tmp_path / "c")).expect_partial()
    for one, two in zip(there, here, strict=False):
        np.testing.assert_array_equal(one.value, two.value)


def test_keras_slots_that_an_earlier_version_named_by_position_are_restored(tmp_path, monkeypatch):
    source, there = stepped(OPTIMIZERS.Adam(0.1))
    with monkeypatch.context() as patch:
        patch.setattr(keras_slots, "_kind", lambda name, prefixes: [])
        path = as_by_earlier_version(source.save(tmp_path / "c"))
    assert "optimizer/slots/0/1" in CheckpointReader(path).names
    for build in (True, False):
        target, here = stepped(OPTIMIZERS.Adam(0.2))
        if not build:
            target.optimizer = OPTIMIZERS.Adam(0.2)
        target.restore(path).assert_consumed()
        for one, two in zip(there, [*here[:2], *target.optimizer.variables], strict=True):
            np.testing.assert_array_equal(one.value, two.value)


def nested(checkpoint):
    parts = {name: getattr(checkpoint, name) for name in ("v", "u", "optimizer")}
    return types.SimpleNamespace(model=types.SimpleNamespace(**parts))


ELSEWHERE = {
    "a part": lambda training: Checkpoint(model=training.model, optimizer=training.model.optimizer),
    "a part of a part": lambda training: Checkpoint(model=training.model, a=types.SimpleNamespace(b=training)),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("elsewhere", ELSEWHERE)
@pytest.mark.parametrize("is_former", [True, False])
def test_keras_slots_of_an_optimizer_that_had_another_path_are_restored(elsewhere, is_former, tmp_path, monkeypatch):
    source, there = stepped(OPTIMIZERS.Adam(0.1))
    before = nested(source)
    with monkeypatch.context() as patch:
        if is_former:
            patch.setattr(keras_slots, "_kind", lambda name, prefixes: [])
        saved = (
            Checkpoint(model=before.model) if elsewhere == "a part" else Checkpoint(a=types.SimpleNamespace(b=before))
        )
        path = saved.save(tmp_path / "c")
    if is_former:
        as_by_earlier_version(path)
    target, here = stepped(OPTIMIZERS.Adam(0.2))
    ELSEWHERE[elsewhere](nested(target)).restore(path).assert_consumed()
    for one, two in zip(there, here, strict=True):
        np.testing.assert_array_equal(one.value, two.value)


@pytest.mark.parametrize("is_other_order", [True, False])
def test_keras_slots_that_do_not_fit_are_refused_under_another_path_too(is_other_order, tmp_path):
    source = nested(stepped(OPTIMIZERS.SGD(0.1, momentum=0.9))[0])
    path = Checkpoint(model=source.model).save(tmp_path / "c")
    target = nested(stepped(OPTIMIZERS.RMSprop(0.1))[0]).model
    if is_other_order:
        target.optimizer = OPTIMIZERS.SGD(0.1, momentum=0.9)
        target.optimizer.build([target.u, target.v])
    with pytest.raises(CheckpointMismatchError, match="in this order" if is_other_order else "slot 0 of"):
        Checkpoint(model=target, optimizer=target.optimizer).restore(path)


class Helper(mr.tf.Module):
    """State of a model that is no layer."""

    def __init__(self):
        super().__init__()
        self.scale = mr.tf.Variable(1.0, trainable=False)
        self.table = np.ones(2)


class WithHelpers(keras.Model):
    def __init__(self):
        super().__init__()
        self.helper, self.listed = Helper(), [Helper()]
        self.shared = self.listed[0]
        self.generator = np.random.default_rng(0)
        self.step_optimizer = mr.optimizers.Adam(0.1)
        self.dense = keras.layers.Dense(1)
        self.itself = types.SimpleNamespace(model=self)

    def call(self, x):
        return self.dense(x)


@pytest.mark.first(1)
@pytest.mark.parametrize("as_root", [True, False])
def test_variables_of_objects_in_attributes_of_a_model_are_saved(as_root, tmp_path, monkeypatch):
    def checkpoint(model):
        return Checkpoint(model) if as_root else Checkpoint(model=model)

    def made():
        model = WithHelpers()
        model(np.ones((1, 2), np.float32))
        model.step_optimizer.build([model.helper.scale])
        return model

    model, other = made(), made()
    model.helper.scale.assign(2.0)
    model.listed[0].scale.assign(3.0)
    model.step_optimizer.slots(model.helper.scale)["mu"].assign(4.0)
    path = checkpoint(model).write(tmp_path / "c")
    recent = "helper/scale", "step_optimizer/slots/{}helper/scale/mu"
    prefix = "" if as_root else "model/"
    names = CheckpointReader(path).names
    assert {prefix + one.format(prefix) for one in recent} | {f"{prefix}listed/0/scale"} <= set(names)
    assert not any("table" in name and "helper" in name or "generator" in name or "itself" in name for name in names)
    checkpoint(other).restore(path).assert_consumed()
    assert (float(other.helper.scale.numpy()), float(other.listed[0].scale.numpy())) == (2.0, 3.0)
    assert float(other.step_optimizer.slots(other.helper.scale)["mu"].numpy()) == 4.0
    with monkeypatch.context() as patch:  # an earlier version
        patch.setattr("mirrored.checkpoint.objects._is_foreign", lambda value: False)
        save_as_by_earlier_version(checkpoint(model), tmp_path / "former")
    manager = CheckpointManager(checkpoint(made()), tmp_path / "former")
    assert manager.restore_latest() == 1


class OptimizerFirst(keras.Model):
    def __init__(self):
        super().__init__()
        self.optimizer_of_helpers = mr.optimizers.Adam(0.1)
        self.first, self.second = Helper(), Helper()
        self.optimizer_of_helpers.build([self.first.scale, self.second.scale])


def test_slots_have_the_names_of_variables_in_later_attributes(tmp_path):
    model, other = OptimizerFirst(), OptimizerFirst()
    model.optimizer_of_helpers.slots(model.second.scale)["mu"].assign(4.0)
    path = Checkpoint(model=model).write(tmp_path / "c")
    slots = "model/optimizer_of_helpers/slots/model"
    assert {f"{slots}/first/scale/mu", f"{slots}/second/scale/mu"} <= set(CheckpointReader(path).names)
    Checkpoint(model=other).restore(path).assert_consumed()
    assert float(other.optimizer_of_helpers.slots(other.second.scale)["mu"].numpy()) == 4.0


@pytest.mark.parametrize(("names", "is_refused"), [(["beta", "alpha"], True), (["one", "two"], False)])
def test_keras_slots_of_variables_without_their_model_go_by_names(names, is_refused, tmp_path):
    def program(names):
        variables = [keras.Variable(np.ones(2, np.float32), name=name) for name in names]
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
        optimizer.build(variables)
        return variables, optimizer

    variables, optimizer = program(["alpha", "beta"])
    optimizer.apply([np.full(2, 1.0, np.float32), np.full(2, 10.0, np.float32)], variables)
    path = Checkpoint(optimizer=optimizer).write(tmp_path / "c")
    _, other = program(names)
    if is_refused:
        with pytest.raises(CheckpointMismatchError, match=":beta, :alpha in this order"):
            Checkpoint(optimizer=other).restore(path)
    else:
        Checkpoint(optimizer=other).restore(path).assert_consumed()


def test_variables_of_keras_keep_64_bits(tmp_path):
    """Keras converts the value to an array in the context of the restore."""
    number = 3141592653589
    with jax.enable_x64(True):
        variable = keras.Variable(number, dtype="int64")
    path = Checkpoint(n=variable).save(tmp_path / "c")
    with jax.enable_x64(True):
        variable.assign(0)
    Checkpoint(n=variable).restore(path).assert_consumed()
    assert variable.numpy().dtype == np.int64
    assert int(variable.numpy()) == number
