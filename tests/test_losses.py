from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.compilation import function
from mirrored.errors import ArgumentError, ContextError, StructureError
from mirrored.losses import average_loss, compute_average_loss, scale_regularization_loss
from mirrored.values.distributed_values import PerReplica

LOSSES = np.arange(1.0, 14.0, dtype=np.float32) ** 2
WEIGHTS = np.linspace(0.0, 2.0, 13, dtype=np.float32)


def _shares(way: Any, array: np.ndarray, sizes: list[int]) -> PerReplica:
    parts = np.split(array, np.cumsum(sizes)[:-1])
    devices = [way.strategy.device_assignment.device_of(r) for r in range(way.num_replicas)]
    return PerReplica(
        [jax.device_put(p, d) for p, d in zip(parts, devices, strict=True)], way.strategy.device_assignment
    )


def _sizes(total: int, replicas: int) -> list[int]:
    """Uneven, with an empty share where there are several replicas."""
    sizes = [0] * replicas
    sizes[0], sizes[-1] = total - total // 3, total // 3 + (0 if replicas > 1 else total - total // 3)
    return sizes


@pytest.mark.ways(modes=("eager",))
@pytest.mark.parametrize("weights", [None, WEIGHTS, WEIGHTS > 0.7], ids=["plain", "weights", "mask"])
@pytest.mark.first(4)
def test_uneven_shares_sum_to_the_mean(way, weights):
    sizes = _sizes(13, way.num_replicas)
    args = [_shares(way, LOSSES, sizes)] + ([] if weights is None else [_shares(way, weights, sizes)])
    parts = way.strategy.run(average_loss, args=args)
    total = sum(float(part) for part in way.strategy.local_results(parts))
    np.testing.assert_allclose(total, np.average(LOSSES, weights=weights), rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.sampled(6)
def test_even_shares_on_every_way(way, weighted):
    losses = np.arange(16, dtype=np.float32).reshape(16, 1) * np.ones((1, 3), np.float32)
    weights = np.linspace(0.0, 1.0, 16).astype(np.float32)

    @way.compile
    def step(losses: Any, weights: Any) -> Any:
        parts = way.strategy.run(lambda x, w: average_loss(x, w if weighted else None), args=(losses, weights))
        return way.strategy.reduce("SUM", parts, axis=None)

    (batch,) = list(way.strategy.experimental_distribute_dataset([(losses, weights)]))
    expected = np.average(losses.mean(1), weights=weights if weighted else None)
    np.testing.assert_allclose(step(*batch), expected, rtol=1e-6)


@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.sampled(3)
@pytest.mark.first(1)
def test_the_gradient_is_that_of_the_global_mean(way):
    """Also where weights depend on the variable: nothing flows through the divisor."""
    x = np.linspace(-1.0, 2.0, 8).astype(np.float32)
    with way.strategy.scope():
        variable = mr.Variable(0.5)

    def replica_step(x: Any) -> Any:
        with mr.GradientTape() as tape:
            value = variable.read_value()
            loss = average_loss((value * x - 1.0) ** 2, jnp.abs(value * x))
        return tape.gradient(loss, variable)

    @way.compile
    def step(x: Any) -> Any:
        return way.strategy.reduce("SUM", way.strategy.run(replica_step, args=(x,)), axis=None)

    def reference(value: Any) -> Any:
        weights = jnp.abs(value * x)
        return jnp.sum((value * x - 1.0) ** 2 * weights) / jax.lax.stop_gradient(jnp.sum(weights))

    (batch,) = list(way.strategy.experimental_distribute_dataset([x]))
    np.testing.assert_allclose(step(batch), jax.grad(reference)(0.5), rtol=1e-5)


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(2, 4))
def test_without_weights_a_compiled_step_reduces_nothing(way):
    @function
    def step(x: Any) -> Any:
        return way.strategy.run(average_loss, args=(x,))

    (batch,) = list(way.strategy.experimental_distribute_dataset([np.ones(8, np.float32)]))
    parts = way.strategy.local_results(step(batch))
    assert [float(part) for part in parts] == [1.0 / way.num_replicas] * way.num_replicas
    text = step.lower(batch).compile().as_text()
    assert "all-reduce" not in text
    assert "all-gather" not in text


@pytest.mark.ways(modes=("eager",), replicas=(1, 4))
def test_cross_replica_context_gives_the_mean(way):
    sizes = _sizes(13, way.num_replicas)
    losses, weights = _shares(way, LOSSES, sizes), _shares(way, WEIGHTS, sizes)
    with way.strategy.scope():
        np.testing.assert_allclose(average_loss(losses, weights), np.average(LOSSES, weights=WEIGHTS), rtol=1e-6)
        np.testing.assert_allclose(average_loss(losses), LOSSES.mean(), rtol=1e-6)
        np.testing.assert_allclose(average_loss(jnp.asarray(LOSSES)), LOSSES.mean(), rtol=1e-6)


def test_per_replica_losses_outside_of_every_scope():
    losses = mr.PerReplica((jnp.ones(2), jnp.ones(1)))
    with pytest.raises(ContextError, match=r"outside of every scope\n.*\n.*with strategy.scope\(\)"):
        average_loss(losses)
    with pytest.raises(ContextError, match="a per-replica value was passed"):
        average_loss(jnp.ones(2), losses)


def test_without_a_strategy():
    np.testing.assert_allclose(average_loss(LOSSES), LOSSES.mean(), rtol=1e-6)
    np.testing.assert_allclose(average_loss(LOSSES, WEIGHTS), np.average(LOSSES, weights=WEIGHTS), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(average_loss)(LOSSES), LOSSES.mean(), rtol=1e-6)
    assert float(average_loss(jnp.array([1, 2]))) == 1.5


def test_weights_count_for_every_element_of_an_example():
    per_token = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    example_weights = np.array([1.0, 0.0, 2.0, 0.5], np.float32)
    token_mask = per_token % 2 == 0
    expected = np.average(per_token, weights=np.broadcast_to(example_weights[:, None], (4, 3)))
    np.testing.assert_allclose(average_loss(per_token, example_weights), expected, rtol=1e-6)
    np.testing.assert_allclose(average_loss(per_token, token_mask), per_token[token_mask].mean(), rtol=1e-6)


def test_a_mean_over_nothing_is_zero_and_has_zero_gradient():
    assert float(average_loss(jnp.zeros(0))) == 0.0
    assert float(average_loss(jnp.ones(3), jnp.zeros(3))) == 0.0
    gradient = jax.grad(lambda x: average_loss(x * jnp.ones(3), jnp.zeros(3)))(2.0)
    assert float(gradient) == 0.0


@pytest.mark.parametrize("average", [average_loss, compute_average_loss])
def test_a_share_without_examples_has_gradients(average):
    v = mr.Variable(jnp.ones(4))
    with mr.GradientTape() as tape:
        loss = average(jnp.sum(jnp.zeros((0, 4)) + v, axis=-1))
    assert float(loss) == 0.0
    assert jnp.array_equal(tape.gradient(loss, v), jnp.zeros(4))


def test_bfloat16_losses_are_counted_exactly():
    losses = jnp.ones(1001, jnp.bfloat16)
    assert average_loss(losses).dtype == jnp.bfloat16
    assert float(average_loss(losses)) == 1.0
    assert float(average_loss(losses, jnp.ones(1001, jnp.bfloat16))) == 1.0


def test_more_elements_than_fit_into_an_int32():
    tokens, example = jax.ShapeDtypeStruct((2, 1 << 15, 1 << 16), jnp.bfloat16), jax.ShapeDtypeStruct((2,), jnp.float32)
    assert jax.eval_shape(average_loss, tokens).shape == ()
    assert jax.eval_shape(average_loss, tokens, example).shape == ()
    assert compute_average_loss(jnp.ones(4), global_batch_size=1 << 31) == 2.0**-29


@pytest.mark.parametrize("count", [3, 49, (1 << 24) + 1, (1 << 31) - 65, (1 << 31) - 1])
def test_the_divisor_is_rounded_as_an_integer(count):
    totals = jnp.linspace(0.1, 7.3, 5)
    for total in totals:
        assert compute_average_loss(total[None], global_batch_size=count) == total / count


def test_what_it_refuses():
    with pytest.raises(ArgumentError, match="per_example is a scalar"):
        average_loss(1.0)
    with pytest.raises(StructureError, match=r"sample_weight of shape \(2,\) for per_example of shape \(3,\)"):
        average_loss(jnp.ones(3), jnp.ones(2))
    with pytest.raises(StructureError, match="a prefix of the shape of the losses"):
        average_loss(jnp.ones(3), jnp.ones((3, 1)))


class TestComputeAverageLoss:
    def test_without_a_strategy(self):
        assert float(compute_average_loss(jnp.array([1.0, 2.0]))) == 1.5
        assert float(compute_average_loss(jnp.array([1.0, 2.0]), global_batch_size=4)) == 0.75
        assert float(compute_average_loss(jnp.array([1.0, 2.0]), sample_weight=jnp.array([1.0, 0.0]))) == 0.5
        assert float(compute_average_loss(jnp.array([1.0, 2.0]), global_batch_size=0)) == 0.0

    @pytest.mark.ways(replicas=(2,))
    def test_in_replicas(self, way):
        def replica_step() -> Any:
            losses = jnp.array([1.0, 2.0])
            return [
                compute_average_loss(losses),
                compute_average_loss(losses, global_batch_size=8),
                compute_average_loss(losses, sample_weight=jnp.array([1.0, 0.0])),
                scale_regularization_loss(jnp.array([3.0])),
            ]

        results = way.compile(lambda: way.strategy.run(replica_step))()
        for values in way.strategy.local_results(results):
            np.testing.assert_allclose(values, [0.75, 0.375, 0.25, 1.5])

    def test_weights_of_a_neighbouring_rank_fit_as_in_tensorflow(self):
        losses = jnp.array([1.0, 2.0])
        assert float(compute_average_loss(losses, sample_weight=jnp.array([[1.0], [0.0]]))) == 0.5
        assert float(compute_average_loss(losses[:, None], sample_weight=jnp.array([1.0, 0.0]))) == 0.5
        assert float(compute_average_loss(losses, sample_weight=2.0)) == 3.0

    @pytest.mark.ways(modes=("eager",), replicas=(2,))
    def test_cross_replica_context_is_refused(self, way):
        with way.strategy.scope():
            with pytest.raises(ContextError, match="compute_average_loss: it was called in cross-replica context"):
                compute_average_loss(jnp.ones(2))
            with pytest.raises(ContextError, match="scale_regularization_loss: it was called in cross-replica context"):
                scale_regularization_loss(1.0)
            assert float(compute_average_loss(jnp.ones(2), global_batch_size=2)) == 1.0

    def test_what_it_refuses(self):
        with pytest.raises(ArgumentError, match="per_example is a scalar"):
            compute_average_loss(1.0)
        for wrong in (1.5, -1, jnp.array([2, 2])):
            with pytest.raises(ArgumentError, match="a batch size must be a nonnegative integer"):
                compute_average_loss(jnp.ones(2), global_batch_size=wrong)
        with pytest.raises(StructureError, match=r"shape \(3,\) for per_example_loss of shape \(2,\)"):
            compute_average_loss(jnp.ones(2), sample_weight=jnp.ones(3))


MASKS = {"ints": [1, 1, 0], "bools": [True, True, False], "floats": [1.0, 1.0, 0.0]}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("helper", [mr.losses.average_loss, mr.losses.compute_average_loss])
@pytest.mark.parametrize("given", ["argument", "closure"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.sampled(3)
@pytest.mark.first(5)
def test_masked_entries_contribute_exactly_zero(helper, mask, bad, given, compiled):
    losses, closed_over = jnp.array([1.0, 2.0, bad]), jnp.asarray(mask)

    def step(losses, mask):
        with mr.GradientTape() as tape:
            tape.watch(losses)
            loss = helper(losses, closed_over if given == "closure" else mask)
        return loss, tape.gradient(loss, losses)

    loss, gradient = (mr.function(step) if compiled else step)(losses, jnp.asarray(mask))
    count = 2 if helper is mr.losses.average_loss else 3
    assert float(loss) == pytest.approx(3 / count)
    np.testing.assert_allclose(gradient, [1 / count, 1 / count, 0.0])
    expected = jax.grad(lambda x: helper(x, jnp.asarray(mask)))(losses)
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.first(3)
def test_masked_entries_on_replicas(way):
    losses = jnp.array([1.0, jnp.nan, 3.0])
    mask = jnp.array([True, False, True])
    parts = way.compile(lambda: way.strategy.run(mr.losses.average_loss, args=(losses, mask)))()
    total = way.strategy.reduce("SUM", parts, axis=None)
    assert float(total) == pytest.approx(2.0)


def test_a_weight_of_zero_keeps_its_own_gradient():
    weights = jnp.array([0.0, 2.0])
    gradient = jax.grad(lambda w: mr.losses.compute_average_loss(jnp.array([3.0, 5.0]), w))(weights)
    np.testing.assert_allclose(gradient, [1.5, 2.5])


@pytest.mark.parametrize("helper", [mr.losses.average_loss, mr.losses.compute_average_loss])
def test_losses_of_half_precision_are_summed_in_float32(helper):
    loss = helper(jnp.full((800,), 200.0, jnp.float16))
    assert (float(loss), loss.dtype) == (200.0, jnp.float16)


@pytest.mark.first(5)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_strict_promotion_refuses_only_the_promotions_of_the_program(dtype, compiled):
    """The library's own float32 accumulators were refused for losses of another dtype."""
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])

    def step():
        def replica():
            losses = jnp.ones(4, dtype)
            weights = jnp.ones(4, jnp.float32)
            return [
                average_loss(losses),
                average_loss(losses, weights),
                compute_average_loss(losses, sample_weight=weights, global_batch_size=8),
                scale_regularization_loss(losses),
            ]

        return [strategy.reduce("SUM", one, axis=None) for one in strategy.run(replica)]

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        found = (function(step) if compiled else step)()
        expected = jnp.result_type(float) if dtype == "int32" else jnp.dtype(dtype)
        assert [one.dtype for one in found] == [expected] * 4
        assert list(map(float, found)) == [1.0, 1.0, 1.0, 4.0]
