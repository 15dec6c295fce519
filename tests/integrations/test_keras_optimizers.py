"""Optimizers of Keras in a run: those that assign variables when they are built, and those that wrap others."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.integrations.keras import keras

LAYOUTS = {"one": (["CPU:0"], 1), "two on one device": (["CPU:0"], 2), "two": (["CPU:0", "CPU:1"], 2)}
WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
Make = Callable[[], Any]


def _over(inner: Any) -> Any:
    """Returns an optimizer that uses `inner` for all variables."""
    return keras.optimizers.MultiOptimizer(lambda variable: inner)


def _scaled(inner: Any) -> Any:
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=1.0)


def _schedule_free() -> Any:
    return keras.optimizers.ScheduleFreeAdamW(0.1)


@WAYS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wrap", [None, _scaled, _over])
@pytest.mark.sampled(4)
def test_an_optimizer_that_assigns_when_it_is_built(
    wrap: Callable[[Any], Any] | None, layout: str, compiled: bool
) -> None:
    devices, replicas = LAYOUTS[layout]
    strategy = mr.MirroredStrategy(devices, num_replicas=replicas)
    with strategy.scope():
        weight = keras.Variable(np.float32(3.0))
        optimizer = _schedule_free() if wrap is None else wrap(_schedule_free())
    gradient = jnp.float32(1.0 / replicas)

    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(gradient, weight)]))

    step = mr.function(step) if compiled else step
    for _ in range(4):
        step()
    assert float(np.asarray(weight)) == pytest.approx(2.7350006)  # as in Keras without a strategy


@pytest.mark.first(1)
@WAYS
@pytest.mark.parametrize(("wrap", "count"), [(lambda inner: inner, 4), (_scaled, 8), (_over, None)])
def test_an_optimizer_that_reads_variables_when_it_is_built_refuses_those_assigned_before(
    wrap: Callable[[Any], Any], count: int | None, compiled: bool
) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight = keras.Variable(np.float32(3.0))
        optimizers = wrap(_schedule_free()), keras.optimizers.Adam(0.1)

    def step(optimizer: Any, assigned: float | None = 1.0) -> None:
        def replica() -> None:
            if assigned is not None:
                weight.assign(assigned)
            optimizer.apply_gradients([(jnp.float32(0.5), weight)])

        (mr.function(lambda: strategy.run(replica)) if compiled else lambda: strategy.run(replica))()

    for _ in range(2):
        with pytest.raises(mr.errors.ContextError, match="build it before the first step"):
            step(optimizers[0])
    step(optimizers[0], None)
    assert float(np.asarray(weight)) == pytest.approx(2.9, rel=1e-5)  # built from 3, not from zeros
    assert count in (None, len(optimizers[0].variables))
    step(optimizers[1])
    assert float(np.asarray(weight)) == pytest.approx(0.9, rel=1e-5)


@pytest.mark.first(3)
@WAYS
@pytest.mark.parametrize("wrap", [lambda inner: inner, _scaled, _over, lambda inner: _scaled(_over(inner))])
def test_averages_overwrite_variables_without_a_gradient(wrap: Callable[[Any], Any], compiled: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        one, other = keras.Variable(np.float32(0.0)), keras.Variable(np.float32(0.0))
        inner = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
        optimizer = wrap(inner)
    half = jnp.float32(0.5)

    def step(gradient: Any) -> None:
        strategy.run(lambda: optimizer.apply_gradients([(half, one), (gradient, other)]))

    run = mr.function(step) if compiled else step
    for gradient in (half, half):
        run(gradient)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        run(None)
    assert float(np.asarray(other)) == -1.75  # the values are -1, -2, -2


@pytest.mark.first(1)
@pytest.mark.parametrize("wrap", [lambda inner: inner, _scaled, _over, lambda inner: _scaled(_over(inner))])
def test_an_eager_update_follows_a_rate_that_is_a_function(wrap: Callable[[Any], Any]) -> None:
    strategy, rate = mr.MirroredStrategy(["CPU:0"], num_replicas=2), [1.0]
    with strategy.scope():
        weight = keras.Variable(np.float32(1.0))
        optimizer = wrap(keras.optimizers.SGD(lambda: rate[0]))
    for value, expected in ((1.0, 0.0), (1.0, -1.0), (0.0, -1.0), (2.0, -3.0)):
        rate[0] = value
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))
        assert float(np.asarray(weight)) == expected


@pytest.mark.parametrize("setting", ["clipvalue", "weight_decay"])
def test_an_eager_update_follows_the_settings_of_the_optimizers_in_a_multi_optimizer(setting: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight = keras.Variable(np.float32(4.0))
        inner = keras.optimizers.SGD(1.0)
        optimizer = _scaled(_over(inner))
    for expected in (3.0, 2.0):
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))
        assert float(np.asarray(weight)) == expected
    setattr(inner, setting, 0.25)
    strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))
    assert float(np.asarray(weight)) == (1.75 if setting == "clipvalue" else 0.5)


@WAYS
@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("wrap", [_over, lambda inner: _scaled(_over(inner))])
def test_a_multi_optimizer_takes_variables_of_mirrored(wrap: Callable[[Any], Any], built: bool, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight = mr.Variable(1.0)
        optimizer = wrap(keras.optimizers.SGD(1.0))
        if built:
            optimizer.build([weight])

    def step() -> None:
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))

    (mr.function(step) if compiled else step)()
    assert float(weight) == 0.0


_FACTORS = [1.0]


class _Configured(keras.optimizers.SGD):  # type: ignore[misc]
    """Scales gradients by numbers that it finds in its attributes."""

    by_class: dict[str, float] = {}

    def __init__(self, place: str) -> None:
        super().__init__(1.0)
        self.place = place
        self.by_name = {"inner": [1.0]}
        if place == "object":
            self.by_object = types.SimpleNamespace(factor=1.0)
        type(self).by_class["factor"] = 1.0

    def set(self, factor: float) -> None:
        if self.place == "dict":
            self.by_name["inner"][0] = factor
        elif self.place == "object":
            self.by_object.factor = factor
        elif self.place == "global":
            _FACTORS[:] = [factor]
        else:
            self.by_class["factor"] = factor

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        found = {
            "dict": lambda: self.by_name["inner"][0],
            "object": lambda: self.by_object.factor,
            "global": lambda: _FACTORS[0],
        }
        factor = found.get(self.place, lambda: self.by_class["factor"])()
        super().update_step(gradient * factor, variable, learning_rate)


@pytest.mark.first(1)
@pytest.mark.parametrize("wrap", [lambda inner: inner, _scaled])
@pytest.mark.parametrize("place", ["dict", "object", "class", "global"])
def test_an_eager_update_follows_what_a_class_of_the_user_reads(wrap: Callable[[Any], Any], place: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight = keras.Variable(np.float32(0.0))
        inner = _Configured(place)
        optimizer = wrap(inner)
    for factor, expected in ((1.0, -1.0), (2.0, -3.0), (0.0, -3.0), (1.0, -4.0)):
        inner.set(factor)
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))
        assert float(np.asarray(weight)) == expected


class _Named(keras.optimizers.SGD):  # type: ignore[misc]
    """Has a constructor and a configuration of its own, and updates as its base class."""

    label: str

    def __init__(self, label: str) -> None:
        super().__init__(1.0)
        self.label = label

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label": self.label}


@pytest.mark.parametrize("wrap", [lambda inner: inner, _scaled])
def test_an_eager_update_is_compiled_for_a_class_that_only_has_a_constructor(wrap: Callable[[Any], Any]) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight, optimizer = keras.Variable(np.float32(0.0)), wrap(_Named("mine"))
    strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))
    assert float(np.asarray(weight)) == -1.0
    assert len(vars(optimizer)["_mirrored_updates"]) == 1


def test_an_eager_update_calls_a_method_that_an_optimizer_has_of_its_own() -> None:
    strategy, rate = mr.MirroredStrategy(["CPU:0"], num_replicas=2), [1.0]
    with strategy.scope():
        weight, optimizer = keras.Variable(np.float32(0.0)), keras.optimizers.SGD(1.0)
    update_step = optimizer.update_step
    optimizer.update_step = lambda gradient, variable, _: update_step(gradient, variable, rate[0])
    for value, expected in ((1.0, -1.0), (0.0, -1.0), (2.0, -3.0)):
        rate[0] = value
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.5), weight)]))
        assert float(np.asarray(weight)) == expected


@WAYS
@pytest.mark.parametrize("wrap", [lambda inner: inner, _over])
def test_apply_takes_iterators(wrap: Callable[[Any], Any], compiled: bool) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weights = [keras.Variable(np.float32(value)) for value in (1.0, 2.0)]
        optimizer = wrap(keras.optimizers.SGD(1.0))
    gradients = [jnp.float32(0.5), jnp.float32(1.0)]
    step = lambda: strategy.run(lambda: optimizer.apply(iter(gradients), (one for one in weights)))  # noqa: E731
    (mr.function(step) if compiled else step)()
    assert [float(np.asarray(weight)) for weight in weights] == [0.0, 0.0]


def test_a_setting_that_changes_in_each_update_does_not_keep_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrored.integrations.keras.optimizers._MOST_COMPILED", 2)
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight, optimizer = keras.Variable(np.float32(0.0)), keras.optimizers.SGD(1.0)
    for step in range(4):
        optimizer.clipvalue = float(step + 1)
        strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(5.0), weight)]))
    assert float(np.asarray(weight)) == -10.0
    assert len(vars(optimizer)["_mirrored_updates"]) == 2


def test_an_eager_update_follows_the_variables_without_weight_decay() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        weight, optimizer = keras.Variable(np.float32(4.0), name="w"), keras.optimizers.SGD(1.0, weight_decay=0.5)
        optimizer.build([weight])
    strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.0), weight)]))
    assert float(np.asarray(weight)) == 2.0
    optimizer.built = False  # Keras refuses the call for a built optimizer
    optimizer.exclude_from_weight_decay(var_names=["w"])
    optimizer.built = True
    strategy.run(lambda: optimizer.apply_gradients([(jnp.float32(0.0), weight)]))
    assert float(np.asarray(weight)) == 2.0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("how", ["reversed", "other variables", "missing"])
@pytest.mark.filterwarnings("ignore::mirrored.errors.OutOfScopeWarning", "ignore:Gradients do not exist")
def test_gradients_of_replicas_are_paired_by_their_variables(how: str, inside: bool, compiled: bool) -> None:
    """Replica 1 passes its pairs in another order, or lacks the gradient that replica 0 has."""
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope() if inside else contextlib.nullcontext():
        a, b = (keras.Variable(np.zeros(2, np.float32), name=name) for name in "ab")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([a, b])

    def replica() -> None:
        last = mr.get_replica_context().replica_id_in_sync_group
        first_local = mr.get_replica_context().local_index == 0
        pairs = [(jnp.full(2, 1.0 + last), a), (jnp.full(2, 10.0 + 10 * last), b)]
        if how == "reversed":
            pairs = pairs if first_local else pairs[::-1]
        elif how == "other variables":
            pairs = pairs[:1] if first_local else pairs[1:]
        else:
            pairs = [(None, a), pairs[1]] if first_local else [pairs[0], (None, b)]
        optimizer.apply_gradients(pairs)

    step = lambda: strategy.run(replica)  # noqa: E731
    (mr.function(step) if compiled else step)()
    expected = {"reversed": (-3.0, -30.0), "other variables": (-1.0, -20.0), "missing": (-2.0, -10.0)}[how]
    assert (float(a.numpy()[0]), float(b.numpy()[0])) == expected


def test_the_warning_names_an_updated_variable_that_was_made_outside_of_the_scope() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        inside = [keras.Variable(np.zeros(2, np.float32), name=name) for name in ("unused", "used")]
    outside = keras.Variable(np.zeros(2, np.float32), name="outside")
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([*inside, outside])
    pairs = [(jnp.ones(2), inside[1]), (jnp.ones(2), outside)]
    with pytest.warns(mr.errors.OutOfScopeWarning, match="variable 'outside' and the others"):
        strategy.run(lambda: optimizer.apply_gradients(pairs))
