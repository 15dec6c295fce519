"""`BatchNorm(axis_name=...)` of NNX and Linen, and `nnx.metrics.Welford`, over replicas equal those of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import mirrored as mr
from fresh_process import run_python
from mirrored.checkpoint import Checkpoint

LAYOUTS = pytest.mark.parametrize("devices", [1, 2, 4], ids=["1x4", "2x2", "4x1"])
COMPILED = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
STEPS, ROWS = 2, 12


class Normalized(nnx.Module):
    def __init__(self, axis_name: str | None, **options: Any) -> None:
        rngs = nnx.Rngs(0)
        self.inner = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.5, axis_name=axis_name, rngs=rngs, **options)
        self.outer = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.outer(jnp.tanh(self.norm(self.inner(x))))[:, 0]


def batches(rows: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).normal(2.0, 3.0, size=(STEPS, rows, 3)).astype("float32"))


def losses_of(model: Any, x: Any) -> Any:
    return (model(x) - jnp.sin(x.sum(axis=1))) ** 2


def state_of(model: Any) -> Any:
    return nnx.as_pure(nnx.state(model))


def on_one_device(rows: int, **options: Any) -> tuple[list[float], Any]:
    model = Normalized(None, **options)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    losses = []
    for x in batches(rows):
        loss, gradients = nnx.value_and_grad(lambda model, x: losses_of(model, x).mean())(model, x)
        optimizer.update(model, gradients)
        losses.append(float(loss))
    return losses, state_of(model)


def on_replicas(strategy: Any, rows: int, compiled: bool, taped: bool, **options: Any) -> tuple[list[float], Any]:
    with strategy.scope():
        model = Normalized("batch", **options)
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def replica_step(x: Any) -> Any:
        if taped:
            with mr.GradientTape() as tape:
                loss = mr.losses.average_loss(losses_of(model, x))
            gradients = tape.gradient(loss, nnx.state(model, nnx.Param))
        else:
            loss, gradients = nnx.value_and_grad(lambda model: mr.losses.average_loss(losses_of(model, x)))(model)
        optimizer.update(model, gradients)
        return loss

    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x,)), axis=None)

    step = mr.function(step) if compiled else step
    losses = [float(step(x)) for x in strategy.experimental_distribute_dataset(batches(rows))]
    return losses, state_of(mr.unmirror(model))


def assert_equal(found: tuple[list[float], Any], expected: tuple[list[float], Any]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found[1], expected[1])


@LAYOUTS
@COMPILED
@pytest.mark.parametrize("rows", [ROWS, ROWS - 2], ids=["even", "uneven"])
@pytest.mark.first(1)
@pytest.mark.long
def test_an_axis_name_of_batch_norm_stands_for_all_replicas(rows: int, compiled: bool, devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=4)
    assert_equal(on_replicas(strategy, rows, compiled, taped=True), on_one_device(rows))


@COMPILED
@pytest.mark.first(1)
@pytest.mark.long
def test_the_transforms_of_nnx_and_the_slow_variance_are_supported_too(compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2], num_replicas=4)
    options = {"use_fast_variance": False}
    assert_equal(on_replicas(strategy, ROWS, compiled, taped=False, **options), on_one_device(ROWS, **options))


@pytest.mark.long
def test_masked_rows_do_not_count() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        norm = nnx.BatchNorm(3, axis_name="batch", rngs=nnx.Rngs(0))
    [x] = batches(8)[:1]
    mask = (np.arange(8) < 5)[:, None]
    [parts] = strategy.experimental_distribute_dataset([(x, mask)])
    out = strategy.gather(strategy.run(lambda x, mask: norm(x, mask=mask), args=parts), axis=0)
    expected = nnx.BatchNorm(3, rngs=nnx.Rngs(0))(x[:5])
    np.testing.assert_allclose(out[:5], expected, atol=1e-5)


@pytest.mark.long
def test_one_replica_and_axes_of_jax_are_left_alone() -> None:
    x = batches(8)[0]
    expected = nnx.BatchNorm(3, rngs=nnx.Rngs(0))(x)
    single = mr.MirroredStrategy(jax.devices()[:1])
    with single.scope():
        norm = nnx.BatchNorm(3, axis_name="batch", rngs=nnx.Rngs(0))
    np.testing.assert_allclose(single.run(lambda: norm(x)), expected, atol=1e-6)
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    inside = lambda part: nnx.BatchNorm(3, axis_name="rows", rngs=nnx.Rngs(0))(part)  # noqa: E731
    mapped = strategy.run(lambda: jax.vmap(inside, axis_name="rows")(x[:, None]))
    np.testing.assert_allclose(strategy.local_results(mapped)[0][:, 0], expected, atol=1e-5)


def test_groups_of_replicas_are_refused() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        norm = nnx.BatchNorm(3, axis_name="batch", axis_index_groups=[[0], [1]], rngs=nnx.Rngs(0))
    with pytest.raises(mr.errors.ContextError, match="omit axis_index_groups"):
        strategy.run(lambda: norm(jnp.ones((2, 3))))


class NormalizedByLinen(nn.Module):
    axis_name: str | None = None
    force_float32_reductions: bool = True

    @nn.compact
    def __call__(self, x: Any, mask: Any = None) -> Any:
        options = {"axis_name": self.axis_name, "force_float32_reductions": self.force_float32_reductions}
        x = nn.BatchNorm(use_running_average=False, momentum=0.5, **options)(nn.Dense(4)(x), mask=mask)
        return nn.Dense(1)(jnp.tanh(x))[:, 0]


def linen_step(model: NormalizedByLinen, state: Any, x: Any, loss_of: Any, reduced: Any = lambda tree: tree) -> Any:
    """A step of gradient descent on the state ``(params, batch_stats)``."""
    params, batch_stats = state

    def loss_and_stats(params: Any) -> Any:
        out, updates = model.apply({"params": params, "batch_stats": batch_stats}, x, mutable=["batch_stats"])
        return loss_of((out - jnp.sin(x.sum(axis=1))) ** 2), updates["batch_stats"]

    (loss, batch_stats), gradients = jax.value_and_grad(loss_and_stats, has_aux=True)(params)
    return (jax.tree.map(lambda p, g: p - 0.1 * g, params, reduced(gradients)), batch_stats), loss


def linen_state() -> Any:
    variables = NormalizedByLinen("batch").init(jax.random.key(0), batches(ROWS)[0])
    return variables["params"], variables["batch_stats"]


def linen_on_one_device(rows: int) -> tuple[list[float], Any]:
    state, losses = linen_state(), []
    for x in batches(rows):
        state, loss = linen_step(NormalizedByLinen(), state, x, jnp.mean)
        losses.append(float(loss))
    return losses, state


@LAYOUTS
@COMPILED
@pytest.mark.parametrize("rows", [ROWS, ROWS - 2], ids=["even", "uneven"])
@pytest.mark.first(1)
@pytest.mark.long
def test_an_axis_name_of_linens_batch_norm_stands_for_all_replicas(rows: int, compiled: bool, devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=4)

    def replica_step(state: Any, x: Any) -> Any:
        reduced = lambda tree: mr.get_replica_context().all_reduce("SUM", tree)  # noqa: E731
        return linen_step(NormalizedByLinen("batch"), state, x, mr.losses.average_loss, reduced)

    def step(state: Any, x: Any) -> Any:
        state, loss = strategy.run(replica_step, args=(state, x), out_specs=(P(), P("replica")))
        return state, strategy.reduce("SUM", loss, axis=None)

    step = mr.function(step) if compiled else step
    state, losses = linen_state(), []
    for x in strategy.experimental_distribute_dataset(batches(rows)):
        state, loss = step(state, x)
        losses.append(float(loss))
    assert_equal((losses, state), linen_on_one_device(rows))


def test_batch_statistics_of_linen_without_an_axis_name_would_differ_between_replicas() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    replica_step = lambda state, x: linen_step(NormalizedByLinen(), state, x, mr.losses.average_loss)[0][1]  # noqa: E731
    [x] = strategy.experimental_distribute_dataset(batches(ROWS)[:1])
    with pytest.raises(mr.errors.ReplicaDivergenceError):
        mr.function(lambda: strategy.run(replica_step, args=(linen_state(), x), out_specs=P()))()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.first(1)
@pytest.mark.long
def test_masked_rows_do_not_count_in_linen(force: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    [x], mask = batches(8)[:1], (np.arange(8) < 5).astype("int32")[:, None]
    variables = NormalizedByLinen().init(jax.random.key(0), x)
    [parts] = strategy.experimental_distribute_dataset([(x, mask)])

    def outputs(model: NormalizedByLinen, x: Any, mask: Any = None) -> Any:
        return model.apply(variables, x, mask, mutable=["batch_stats"])[0]

    out = strategy.gather(strategy.run(lambda *args: outputs(NormalizedByLinen("batch", force), *args), parts), axis=0)
    np.testing.assert_allclose(out[:5], outputs(NormalizedByLinen(), x[:5]), atol=1e-5)


LINEN_IN_A_SCOPE = """
import mirrored as mr
mr.config.set_virtual_devices(2)
strategy = mr.MirroredStrategy()
with strategy.scope():
    {imports}
    from mirrored import patches
    print("flax.linen.normalization._compute_stats" in patches.applied("flax"))
"""


@pytest.mark.parametrize("imports", ["import flax.linen", "import flax.nnx"])
@pytest.mark.first(1)
@pytest.mark.long
def test_linen_is_connected_also_when_a_scope_is_open_as_it_is_imported(imports: str) -> None:
    done = run_python(LINEN_IN_A_SCOPE.format(imports=imports))
    assert done.stdout.split() == ["True"], done.stderr


@COMPILED
@LAYOUTS
@pytest.mark.first(3)
def test_welford_combines_the_replicas(compiled: bool, devices: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:devices], num_replicas=4)
    with strategy.scope():
        metric = nnx.metrics.Welford("loss")

    def step(x: Any) -> None:
        strategy.run(lambda x: metric.update(loss=x), args=(x,))

    step = mr.function(step) if compiled else step
    for x in strategy.experimental_distribute_dataset(batches(ROWS)):
        step(x)
    plain = nnx.metrics.Welford("loss")
    for x in batches(ROWS):
        plain.update(loss=jnp.asarray(x))
    expected = plain.compute()
    read = [metric, mr.unmirror(metric), nnx.clone(metric), nnx.merge(*nnx.split(metric))]
    results = [one.compute() for one in read] + [mr.function(metric.compute)()]
    results += strategy.local_results(strategy.run(metric.compute))[:1]
    for found in results:
        for name in ("mean", "standard_error_of_mean", "standard_deviation"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5)
    metric.reset()
    assert float(metric.compute().mean) == 0.0


@COMPILED
@pytest.mark.long
def test_welford_is_restored_from_a_checkpoint(compiled: bool, tmp_path: Path) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        metric, restored = nnx.metrics.Welford("loss"), nnx.metrics.Welford("loss")

    def step(x: Any, metric: Any = metric) -> None:
        strategy.run(lambda x: metric.update(loss=x), args=(x,))

    [first, second] = [batches(8)[0], batches(8)[0] * 2 + 1]
    [x, y] = strategy.experimental_distribute_dataset([first, second])
    (mr.function(step) if compiled else step)(x)
    Checkpoint(metric=metric).write(tmp_path / "metric")
    Checkpoint(metric=restored).restore(tmp_path / "metric")
    step(y, restored)
    plain = nnx.metrics.Welford("loss")
    for values in (first, second):
        plain.update(loss=jnp.asarray(values))
    np.testing.assert_allclose(restored.compute().standard_deviation, plain.compute().standard_deviation, rtol=1e-5)


@pytest.mark.long
def test_welford_takes_empty_parts() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:4])
    with strategy.scope():
        metric = nnx.metrics.Welford("loss")
    values = np.array([1.0, 4.0], np.float32)
    for x in strategy.experimental_distribute_dataset([values]):
        strategy.run(lambda x: metric.update(loss=x), args=(x,))
    assert float(metric.compute().mean) == 2.5
    assert float(metric.compute().standard_deviation) == 1.5


def test_welford_made_outside_the_scope_is_refused() -> None:
    metric = nnx.metrics.Welford("loss")
    with pytest.raises(mr.errors.ContextError, match=r"outside strategy\.scope\(\)"):
        mr.MirroredStrategy(jax.devices()[:2]).run(lambda: metric.update(loss=jnp.ones(2)))


@COMPILED
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.first(2)
def test_welford_leaves_out_masked_values(compiled: bool, replicas: int) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[: min(replicas, 2)], num_replicas=replicas)
    with strategy.scope():
        metrics = nnx.MultiMetric(loss=nnx.metrics.Welford("loss"))

    def step(x: Any, mask: Any) -> None:
        strategy.run(lambda x, mask: metrics.update(loss=1.0 / x, mask=mask), args=(x, mask))  # The padding is inf.

    step = mr.function(step) if compiled else step
    parts = [np.arange(1.0, 7.0, dtype=np.float32), np.arange(7.0, 9.0, dtype=np.float32)]
    for x, mask in strategy.experimental_distribute_dataset(parts, mr.InputOptions(last_batch="pad")):
        step(x, mask)
    values = 1 / np.concatenate(parts)
    found = metrics.compute()["loss"]
    np.testing.assert_allclose([found.mean, found.standard_deviation], [values.mean(), values.std()], rtol=1e-5)
    assert int(metrics.loss.count[...]) == 8


def test_welford_takes_a_mask_of_each_row() -> None:
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        metric = nnx.metrics.Welford("x")
    strategy.run(lambda: metric.update(x=jnp.array([[1.0, 3.0], [9.0, 9.0]]), mask=jnp.array([[True], [False]])))
    assert (float(metric.compute().mean), float(metric.compute().standard_deviation)) == (2.0, 1.0)


@COMPILED
@pytest.mark.parametrize("per_feature", [False, True])
def test_a_replica_whose_rows_are_all_masked_keeps_its_statistics(per_feature: bool, compiled: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        norm = nnx.BatchNorm(2, momentum=0.5, rngs=nnx.Rngs(0))
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    mask = np.array([True, True, False, False])[:, None]
    if per_feature:
        mask = np.array([[True, True], [True, True], [False, True], [False, True]])
    [parts] = strategy.experimental_distribute_dataset([(x, mask)])

    def step(x: Any, mask: Any) -> Any:
        return strategy.run(lambda x, mask: (norm(x, mask=mask), norm.mean[...]), args=(x, mask))

    outputs, means = (mr.function(step) if compiled else step)(*parts)
    assert all(np.isfinite(np.asarray(one)).all() for one in strategy.local_results(outputs))
    first, second = (np.asarray(one).tolist() for one in strategy.local_results(means))
    assert first == [0.5, 1.0]
    assert second == ([0.0, 3.0] if per_feature else [0.0, 0.0])
    assert np.isfinite(np.asarray(norm.var[...])).all()
