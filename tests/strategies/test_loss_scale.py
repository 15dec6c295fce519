"""Losses averaged over one replica's examples, whose gradients the optimizer sums: warned of; right ones are not."""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import mirrored as mr
from mirrored.errors import LossScaleWarning

BATCH, FEATURES, CLASSES, REPLICAS = 24, 3, 5, 4
SCALE = jnp.float32(0.5)
LAYOUTS = pytest.mark.parametrize("devices", [2, 4], ids=["2x2", "4x1"])
ALL_LAYOUTS = pytest.mark.parametrize("devices", [1, 2, 3, 4], ids=["1x4", "2x2", "uneven", "4x1"])


def logits(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def squares(w: Any, x: Any, y: Any) -> Any:
    """``[batch, classes]``."""
    return (logits(w, x) - jax.nn.one_hot(y, CLASSES)) ** 2


def entropies(w: Any, x: Any, y: Any) -> Any:
    """``[batch]``."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(w, x), y)


def replicas() -> int:
    return mr.get_strategy().num_replicas_in_sync


def adapted(w: Any, inner: Any, steps: int = 1) -> Any:
    """The weights after steps on a loss of the replica's own examples, as in meta-learning (MAML)."""
    for _ in range(steps):
        w = w - 0.1 * jax.grad(inner)(w)
    return w


WRONG = {
    "mean after a step on a mean": lambda w, x, y: jnp.mean(
        entropies(adapted(w, lambda w: jnp.mean(entropies(w, x, y))), x, y)
    ),
    "mean after a step on an average_loss": lambda w, x, y: jnp.mean(
        entropies(adapted(w, lambda w: mr.losses.average_loss(entropies(w, x, y))), x, y)
    ),
    "jnp.mean of everything": lambda w, x, y: jnp.mean(squares(w, x, y)),
    "mean over axis 0": lambda w, x, y: jnp.sum(jnp.mean(squares(w, x, y), axis=0)),
    "mean over features, then over the batch": lambda w, x, y: jnp.mean(jnp.mean(squares(w, x, y), axis=1)),
    "mean of optax losses": lambda w, x, y: entropies(w, x, y).mean(),
    "mean of optax l2 losses": lambda w, x, y: optax.l2_loss(logits(w, x), jax.nn.one_hot(y, CLASSES)).mean(),
    "mean of optax huber losses": lambda w, x, y: optax.huber_loss(logits(w, x)[:, 0], y * 1.0).mean(),
    "sum by the local batch size": lambda w, x, y: jnp.sum(entropies(w, x, y)) / x.shape[0],
    "sum by len": lambda w, x, y: jnp.sum(squares(w, x, y)) / len(x),
    "mean times one": lambda w, x, y: 1.0 * jnp.mean(entropies(w, x, y)),
    "mean with a penalty": lambda w, x, y: jnp.mean(entropies(w, x, y)) + 0.01 * jnp.sum(w**2) / REPLICAS,
    "mean of a jitted loss": lambda w, x, y: jnp.mean(jax.jit(entropies)(w, x, y)),
    "mean of a vmapped loss": lambda w, x, y: jnp.mean(
        jax.vmap(lambda a, b: optax.softmax_cross_entropy_with_integer_labels(jnp.tanh(a @ w), b))(x, y)
    ),
    "mean of a checkpointed loss": lambda w, x, y: jnp.mean(jax.checkpoint(entropies)(w, x, y)),
    "mean of two views": lambda w, x, y: jnp.mean(jnp.concatenate([entropies(w, x, y), entropies(w, -x, y)])),
    "mean of a stack": lambda w, x, y: jnp.mean(jnp.stack([squares(w, x, y), squares(w, -x, y)], axis=1)),
    "negative log likelihood": lambda w, x, y: (
        -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(w, x)), y[:, None], axis=1))
    ),
}
RIGHT = {
    "average_loss after a step on a mean": lambda w, x, y: mr.losses.average_loss(
        entropies(adapted(w, lambda w: jnp.mean(entropies(w, x, y))), x, y)
    ),
    "average_loss after two steps on means": lambda w, x, y: mr.losses.average_loss(
        squares(adapted(w, lambda w: jnp.mean(squares(w, x, y)), steps=2), x, y).mean(axis=1)
    ),
    "average_loss times a captured array": lambda w, x, y: SCALE * mr.losses.average_loss(entropies(w, x, y)),
    "average_loss": lambda w, x, y: mr.losses.average_loss(entropies(w, x, y)),
    "average_loss of means over features": lambda w, x, y: mr.losses.average_loss(squares(w, x, y).mean(axis=1)),
    "weighted sum by the global batch size": lambda w, x, y: jnp.sum(entropies(w, x, y) * 2.0 / 2.0) / BATCH,
    "mean divided by replicas": lambda w, x, y: jnp.mean(squares(w, x, y)) / replicas(),
    "sum by the global batch size": lambda w, x, y: jnp.sum(entropies(w, x, y)) / BATCH,
    "sum": lambda w, x, y: jnp.sum(entropies(w, x, y)),
    "sum of two views": lambda w, x, y: (
        jnp.sum(jnp.concatenate([entropies(w, x, y), entropies(w, -x, y)])) / (2 * BATCH)
    ),
    "sum of means over features": lambda w, x, y: jnp.sum(squares(w, x, y).mean(axis=1)) / BATCH,
    "mean over features as large as a batch": lambda w, x, y: (
        jnp.sum(jnp.mean(jnp.broadcast_to(entropies(w, x, y)[:, None], (len(x), len(x))), axis=1)) / BATCH
    ),
    "a penalty that is a mean over weights": lambda w, x, y: (
        mr.losses.average_loss(entropies(w, x, y)) + jnp.mean(w**2) / replicas()
    ),
    "centred by the mean of the batch": lambda w, x, y: mr.losses.average_loss(
        (logits(w, x)[:, 0] - logits(w, x)[:, 0].mean()) ** 2
    ),
    "normalised by the statistics of the batch": lambda w, x, y: mr.losses.average_loss(
        (((x @ w) - jnp.mean(x @ w, axis=0)) / jnp.std(x @ w, axis=0)).sum(axis=1) ** 2
    ),
}


def centred(w: Any, x: Any, activation: Any) -> Any:
    return mr.losses.average_loss(activation((x @ w) - 0.5) ** 2)


# With two examples per replica the coefficient 0.5, which many derivatives contain, is 1 / (per-replica batch size).
RIGHT_FOR_TWO = {
    "relu": lambda w, x, y: centred(w, x, jax.nn.relu),
    "maximum": lambda w, x, y: centred(w, x, lambda z: jnp.maximum(z, 0)),
    "gelu": lambda w, x, y: centred(w, x, jax.nn.gelu),
    "abs": lambda w, x, y: centred(w, x, jnp.abs),
    "sort and median": lambda w, x, y: centred(w, x, lambda z: z - jnp.median(z, axis=1, keepdims=True)),
    "hard_sigmoid": lambda w, x, y: centred(w, x, jax.nn.hard_sigmoid),
    "clip": lambda w, x, y: centred(w, x, lambda z: jnp.clip(z, -1, 1)),
    "an array of halves": lambda w, x, y: centred(w, x, lambda z: z * jnp.full(z.shape, 0.5)),
    "dropout": lambda w, x, y: centred(w, x, lambda z: jnp.where(z > 0, z / jnp.full(z.shape, 0.5), 0)),
    "half a sum": lambda w, x, y: 0.5 * jnp.sum(entropies(w, x, y)),
    "a sum weighted by halves": lambda w, x, y: jnp.sum(entropies(w, x, y) * 0.5),
    "optax l2 loss": lambda w, x, y: jnp.sum(optax.l2_loss(logits(w, x)[:, 0], y * 1.0)) / 8,
    "huber": lambda w, x, y: jnp.sum(optax.huber_loss(logits(w, x)[:, 0], y * 1.0)) / 8,
}
WRONG_FOR_TWO = {
    "mean": WRONG["jnp.mean of everything"],
    "half a mean": lambda w, x, y: 0.5 * jnp.mean(entropies(w, x, y)),
    "mean of relu": lambda w, x, y: jnp.mean(jax.nn.relu(x @ w) ** 2),
}


def examples(size: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(size, FEATURES)).astype("float32"), rng.integers(0, CLASSES, size)


def batch(strategy: Any, size: int = BATCH) -> Any:
    return next(iter(strategy.experimental_distribute_dataset([examples(size)])))


def start() -> jax.Array:
    return jnp.full((FEATURES, CLASSES), 0.1) * jnp.arange(CLASSES)


def strategy_of(devices: int, **options: Any) -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS, **options)


def taped(loss_of: Any) -> Any:
    w, update = mr.Variable(start()), mr.optimizers.SGD(0.1)

    def step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = loss_of(w.read_value(), x, y)
        update.apply_gradients([(tape.gradient(loss, w), w)])
        return loss

    return step


def by_jax_grad(loss_of: Any) -> Any:
    w, update = mr.Variable(start()), mr.optimizers.Optimizer(optax.adam(0.1))

    def step(x: Any, y: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(w.read_value(), x, y)
        update.apply_gradients([(gradient, w)])
        return loss

    return step


class Model(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(start())


def by_nnx(loss_of: Any) -> Any:
    model = Model()
    update = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(x: Any, y: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: loss_of(model.w[...], x, y))(model)
        update.update(model, gradients)
        return loss

    return step


def by_keras(loss_of: Any) -> Any:
    layer, update = keras.layers.Dense(CLASSES, use_bias=False), keras.optimizers.SGD(0.1)
    layer.build((None, FEATURES))
    update.build(layer.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        with mr.GradientTape() as tape:
            loss = loss_of(jnp.asarray(layer.kernel.value), x, y)
        update.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return loss

    return step


def by_equinox(loss_of: Any) -> Any:
    class Module(eqx.Module):
        w: Any

    module, update = mr.mirror(Module(start())), mr.optimizers.Optimizer(optax.sgd(0.1))

    def step(x: Any, y: Any) -> Any:
        loss, gradients = eqx.filter_value_and_grad(lambda m: loss_of(m.w, x, y))(mr.unmirror(module))
        update.apply_gradients([(gradients, module)])
        return loss

    return step


def run(make: Any, loss_of: Any, strategy: Any, size: int = BATCH) -> None:
    with strategy.scope():
        step = make(loss_of)
    mr.function(lambda x, y: strategy.run(step, args=(x, y))).lower(*batch(strategy, size))


@LAYOUTS
@pytest.mark.parametrize("make", [taped, by_jax_grad])
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.sampled(3)
@pytest.mark.first(6)
def test_wrong_losses_are_warned_of(name, make, devices):
    with pytest.warns(LossScaleWarning, match=r"averaged over the 6 examples of one replica: the step is 4 times"):
        run(make, WRONG[name], strategy_of(devices))


@LAYOUTS
@pytest.mark.parametrize("make", [taped, by_jax_grad])
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.sampled(3)
@pytest.mark.first(5)
def test_right_losses_are_not_warned_of(name, make, devices):
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(make, RIGHT[name], strategy_of(devices))


@pytest.mark.parametrize("make", [taped, by_jax_grad])
@pytest.mark.parametrize("name", RIGHT_FOR_TWO)
@pytest.mark.first(7)
def test_coefficients_are_not_taken_for_means_over_two_examples(name, make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(make, RIGHT_FOR_TWO[name], strategy_of(4), size=8)


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [taped, by_jax_grad])
@pytest.mark.parametrize("name", WRONG_FOR_TWO)
def test_means_over_two_examples_are_warned_of(name, make):
    with pytest.warns(LossScaleWarning, match="averaged over the 2 examples of one replica"):
        run(make, WRONG_FOR_TWO[name], strategy_of(4), size=8)


@pytest.mark.parametrize(
    "show",
    [lambda loss: jax.debug.print("{}", loss), lambda loss: jax.debug.callback(lambda _: None, loss)],
    ids=["print", "callback"],
)
def test_a_step_may_have_equations_without_results(show):
    def loss_of(w: Any, x: Any, y: Any) -> Any:
        loss = entropies(w, x, y)
        show(loss)
        jax.jit(show)(loss)
        return jnp.sum(loss) / BATCH

    run(taped, loss_of, strategy_of(2))


@pytest.mark.parametrize("make", [by_nnx, by_keras, by_equinox])
@pytest.mark.first(1)
def test_every_optimizer_that_sums_warns(make):
    with pytest.warns(LossScaleWarning):
        run(make, WRONG["mean of optax losses"], strategy_of(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(make, RIGHT["average_loss"], strategy_of(2))


def test_deterministic_sums_warn_too():
    with pytest.warns(LossScaleWarning, match="SGD.apply_gradients sums the gradients of 4 replicas"):
        run(taped, WRONG["jnp.mean of everything"], strategy_of(2, deterministic=True))


def all_reduced(op: str, gradients: Any) -> Any:
    return jax.tree.map(lambda total: jnp.clip(total, -9.0, 9.0), mr.get_replica_context().all_reduce(op, gradients))


def reduced_first(op: str) -> Any:
    """A step whose gradients are reduced before the optimizer sums them."""

    def make(loss_of: Any) -> Any:
        w, optimizer = mr.Variable(start()), mr.optimizers.SGD(0.1)

        def step(x: Any, y: Any) -> Any:
            with mr.GradientTape() as tape:
                loss = loss_of(w, x, y)
            optimizer.apply_gradients([(all_reduced(op, tape.gradient(loss, w)), w)])
            return loss

        return step

    return make


def nnx_reduced_first(op: str) -> Any:
    def make(loss_of: Any) -> Any:
        model = Model()
        update = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

        def step(x: Any, y: Any) -> Any:
            loss, gradients = nnx.value_and_grad(lambda model: loss_of(model.w[...], x, y))(model)
            update.update(model, all_reduced(op, gradients))
            return loss

        return step

    return make


def keras_reduced_first(op: str) -> Any:
    def make(loss_of: Any) -> Any:
        layer, update = keras.layers.Dense(CLASSES, use_bias=False), keras.optimizers.SGD(0.1)
        layer.build((None, FEATURES))
        update.build(layer.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            with mr.GradientTape() as tape:
                loss = loss_of(jnp.asarray(layer.kernel.value), x, y)
            update.apply(all_reduced(op, tape.gradient(loss, layer.trainable_variables)), layer.trainable_variables)
            return loss

        return step

    return make


REDUCED_FIRST = pytest.mark.parametrize("make", [reduced_first, nnx_reduced_first, keras_reduced_first])


@ALL_LAYOUTS
@REDUCED_FIRST
@pytest.mark.parametrize(("name", "op"), [("mean of optax losses", "MEAN"), ("average_loss", "SUM")])
@pytest.mark.first(3)
def test_gradients_that_are_reduced_twice_are_warned_of(make, name, op, devices):
    loss_of = {**WRONG, **RIGHT}[name]
    with pytest.warns(LossScaleWarning, match="omit the all_reduce"):
        run(make(op), loss_of, strategy_of(devices))


@ALL_LAYOUTS
@REDUCED_FIRST
@pytest.mark.first(4)
def test_a_mean_over_replicas_that_is_summed_is_right(make, devices):
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(make("MEAN"), RIGHT["average_loss"], strategy_of(devices))


def test_gradients_that_are_divided_by_the_replicas_are_right():
    def make(loss_of: Any) -> Any:
        w, update = mr.Variable(start()), mr.optimizers.SGD(0.1)

        def step(x: Any, y: Any) -> None:
            gradient = jax.grad(loss_of)(w.read_value(), x, y)
            update.apply_gradients([(gradient / REPLICAS, w)])

        return step

    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(make, WRONG["jnp.mean of everything"], strategy_of(2))


@pytest.mark.long
def test_one_replica_may_average():
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(taped, WRONG["jnp.mean of everything"], mr.MirroredStrategy(jax.devices()[:1]))


@pytest.mark.parametrize("driven", [False, True], ids=["batch", "loop"])
@ALL_LAYOUTS
@pytest.mark.first(1)
@pytest.mark.long
def test_a_function_of_which_all_batches_are_uneven_is_checked_too(devices, driven):
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=REPLICAS)
    batches = [np.ones((BATCH - 3, FEATURES), np.float32)] * 2
    seen: list[Any] = []

    def warned(loss: Any) -> list[str]:
        with strategy.scope():
            w = mr.Variable(np.ones((FEATURES, CLASSES), np.float32))
            optimizer = mr.optimizers.SGD(0.1)

        def replica(x: Any) -> None:
            with mr.GradientTape() as tape:
                value = loss(logits(w, x))
            seen.append(value)
            optimizer.apply_gradients([(tape.gradient(value, w), w)])

        def over(dataset: Any) -> None:
            for x in dataset:
                strategy.run(replica, args=(x,))

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            dataset = strategy.experimental_distribute_dataset(batches)
            if driven:
                mr.function(over)(dataset)
            else:
                step = mr.function(lambda x: strategy.run(replica, args=(x,)))
                for x in dataset:
                    step(x)
        return [str(one.message) for one in found if one.category is LossScaleWarning]

    [message] = warned(jnp.mean)
    assert "averaged over the" in message
    assert warned(lambda values: mr.losses.average_loss(jnp.mean(values, axis=1))) == []
    assert len(seen) == 2 * 2 * REPLICAS  # the values of the steps, and none of the trace
    assert all(np.isfinite(float(value)) for value in seen)


def test_an_uneven_function_that_cannot_be_traced_runs_eagerly():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    step = mr.function(lambda x: strategy.run(lambda x: float(jnp.sum(x)) if float(jnp.sum(x)) > 0 else 0.0, args=(x,)))
    [x] = strategy.experimental_distribute_dataset([np.ones((3, 1), np.float32)])
    assert [float(part) for part in strategy.local_results(step(x))] == [2.0, 1.0]


@pytest.mark.long
def test_an_uneven_function_that_takes_numbers_from_a_generator_takes_each_once():
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    numbers = iter(range(9))
    step = mr.function(lambda x: strategy.run(lambda x: jnp.sum(x) * 0 + next(numbers), args=(x,)))
    [x] = strategy.experimental_distribute_dataset([np.ones((3, 1), np.float32)])
    assert [float(part) for part in strategy.local_results(step(x))] == [0.0, 1.0]


@pytest.mark.parametrize("source", ["iterator", "nested iterator", "generator", "random"])
@pytest.mark.first(1)
@pytest.mark.long
def test_an_uneven_function_that_reaches_iterators_is_checked_and_takes_each_element_once(source):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    values = [float(value) for value in range(1, 9)]
    random = np.random.default_rng(0)
    taken: list[float] = []

    class Source:
        def __init__(self) -> None:
            self.inner = zip(values, values, strict=True)

    reached: Any = {
        "iterator": lambda: iter(values),
        "nested iterator": Source,
        "generator": lambda: (value for value in values),
        "random": lambda: random,
    }[source]()

    def take() -> float:
        if source == "random":
            return float(reached.random())
        return next(reached.inner)[0] if source == "nested iterator" else next(reached)

    def warned(loss: Any) -> list[str]:
        with strategy.scope():
            w = mr.Variable(np.ones((FEATURES, CLASSES), np.float32))
            optimizer = mr.optimizers.SGD(0.1)

        def replica(x: Any, factor: Any) -> None:
            with mr.GradientTape() as tape:
                value = loss(logits(w, x * factor))
            optimizer.apply_gradients([(tape.gradient(value, w), w)])

        @mr.function
        def step(x: Any) -> None:
            number = take()
            taken.append(number)
            strategy.run(replica, args=(x, jnp.float32(number)))

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for x in strategy.experimental_distribute_dataset([np.ones((BATCH - 3, FEATURES), np.float32)] * 2):
                step(x)
        return [str(one.message) for one in found if one.category is LossScaleWarning]

    [message] = warned(jnp.mean)
    assert "averaged over the" in message
    assert warned(lambda values: mr.losses.average_loss(jnp.mean(values, axis=1))) == []
    again = np.random.default_rng(0)
    numbers = [number for number in taken]
    expected = [again.random() for _ in range(4)] if source == "random" else values[:4]
    np.testing.assert_array_equal(numbers[-4:] if source == "random" else numbers, expected)


@LAYOUTS
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.first(1)
@pytest.mark.long
def test_accumulators_divide_by_the_examples_of_all_replicas(devices, reduction, micro_batches):
    """`add` and `apply` of a mean over one replica's examples, in one program, give the step of the global mean."""
    strategy = strategy_of(devices)
    with strategy.scope():
        w = mr.Variable(start())
        accumulator = mr.GradientAccumulator([w], reduction=reduction)
    optimizer = mr.optimizers.SGD(0.1)

    def replica_step(x: Any, y: Any) -> None:
        for part_x, part_y in zip(jnp.split(x, micro_batches), jnp.split(y, micro_batches), strict=True):
            with mr.GradientTape() as tape:
                losses = entropies(w.read_value(), part_x, part_y)
                loss = losses.mean() if reduction == "mean" else losses.sum()
            accumulator.add([tape.gradient(loss, w)], count=len(part_x))
        accumulator.apply(optimizer)

    step = mr.function(lambda x, y: strategy.run(replica_step, args=(x, y)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        step(*batch(strategy))
    x, y = examples()
    expected = start() - 0.1 * jax.grad(lambda w: entropies(w, x, y).mean())(start())
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("devices", [1, 3, 4], ids=["1x4", "uneven", "4x1"])
@pytest.mark.first(1)
@pytest.mark.long
def test_accumulators_warn_of_parts_of_the_global_mean(devices):
    """The accumulator divides by the examples of all replicas; `average_loss` has done so, too."""
    strategy = strategy_of(devices)
    with strategy.scope():
        w = mr.Variable(start())
        accumulator = mr.GradientAccumulator([w])

    def run(loss_of: Any) -> None:
        def replica_step(x: Any, y: Any) -> None:
            with mr.GradientTape() as tape:
                loss = loss_of(entropies(w.read_value(), x, y))
            accumulator.add([tape.gradient(loss, w)], count=len(x))

        mr.function(lambda x, y: strategy.run(replica_step, args=(x, y))).lower(*batch(strategy))

    for wrong in (mr.losses.average_loss, mr.losses.compute_average_loss, lambda losses: losses.mean() / replicas()):
        with pytest.warns(LossScaleWarning, match=r"add .* 24 examples of all replicas: .* 4 times too small"):
            run(wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossScaleWarning)
        run(lambda losses: losses.mean())
        run(lambda losses: mr.losses.average_loss(losses) * replicas())
        run(lambda losses: 0.5 * losses.mean())
