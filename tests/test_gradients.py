from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored import tf
from mirrored.collectives.reduce_op import ReduceOp
from mirrored.compilation import function
from mirrored.errors import ArgumentError, ContextError, StructureError
from mirrored.gradients import GradientAccumulator, aggregate_gradients
from mirrored.optimizers import SGD, Adam

A, B = jnp.array([1.0, 2.0]), jnp.array([3.0, 5.0])


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ReduceOp.SUM, [[4.0, 7.0], [1.0, 2.0], None]),
        ("sum", [[4.0, 7.0], [1.0, 2.0], None]),
        (ReduceOp.MEAN, [[2.0, 3.5], [0.5, 1.0], None]),
        (lambda stacked: jnp.max(stacked, 0), [[3.0, 5.0], [1.0, 2.0], None]),
    ],
)
def test_none_counts_as_zero(op, expected):
    result = aggregate_gradients([[A, None, None], [B, A, None]], op=op)
    assert result[2] is None
    for gradient, wanted in zip(result[:2], expected[:2], strict=True):
        np.testing.assert_allclose(gradient, wanted)


def test_sparse_gradients_become_dense():
    one = tf.IndexedSlices(jnp.asarray([[1.0], [2.0]]), jnp.asarray([0, 2]), (5, 1))
    two = tf.IndexedSlices(jnp.asarray([[10.0], [20.0]]), jnp.asarray([1, 2]), (5, 1))
    ones = jnp.ones((5, 1))
    (total,) = aggregate_gradients([[one], [two], [ones], [None]])
    assert total.ravel().tolist() == [2.0, 11.0, 23.0, 1.0, 1.0]
    accumulator = GradientAccumulator([mr.Variable(ones), mr.Variable(1.0)])
    accumulator.add([one, None], count=2)
    assert accumulator.result()[0].ravel().tolist() == [1.0, 0.0, 2.0, 0.0, 0.0]
    with pytest.raises(ArgumentError, match="no dense_shape"):
        aggregate_gradients([[tf.IndexedSlices(one.values, one.indices)]])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_means_of_16_bit_gradients_are_computed_in_float32(dtype):
    large = jnp.full((2,), 40000.0, dtype)
    (mean, mixed) = aggregate_gradients([[large, large], [large, A]], "mean")
    assert (mean.dtype, mixed.dtype) == (dtype, jnp.float32)
    assert mean.tolist() == large.tolist()
    np.testing.assert_array_equal(mixed, (large.astype("f4") + A) / 2)


def test_structures_are_kept():
    result = aggregate_gradients([{"w": A, "b": (None, B)}, {"w": B, "b": (None, B)}, {"w": A, "b": (None, None)}])
    np.testing.assert_allclose(result["w"], 2 * A + B)
    assert result["b"][0] is None
    np.testing.assert_allclose(result["b"][1], 2 * B)
    assert list(result) == ["w", "b"]


def test_what_it_refuses():
    with pytest.raises(ArgumentError, match="the list is empty"):
        aggregate_gradients([])
    with pytest.raises(StructureError, match="at position 1"):
        aggregate_gradients([[A], [A, B]])
    with pytest.raises(StructureError, match="for gradient 0"):
        aggregate_gradients([[A], [jnp.ones(3)]])
    with pytest.raises(ArgumentError, match="MEDIAN"):
        aggregate_gradients([[A], [A]], op="MEDIAN")


def _mean_loss(w: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(w * x) - 0.3) ** 2)


X = np.random.default_rng(0).normal(size=(24,)).astype(np.float32)


@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.sampled(4)
@pytest.mark.first(1)
@pytest.mark.long
def test_uneven_micro_batches_give_the_gradient_of_the_whole(way, reduction):
    """Shares of 2, 3 and 1 rows per replica: one step over all of them, exactly."""
    sizes = [2, 3, 1]
    n = way.num_replicas
    with way.strategy.scope():
        w, never = mr.Variable(0.7, name="w"), mr.Variable(1.0, name="never")
        accumulator = GradientAccumulator([w, never], reduction=reduction)
        optimizer = SGD(1.0)

    def micro_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = _mean_loss(w, x) * (1.0 if reduction == "mean" else x.shape[0])
        accumulator.add(tape.gradient(loss, [w, never]), count=x.shape[0])

    step = way.compile(lambda x: way.strategy.run(micro_step, args=(x,)))
    apply = way.compile(lambda: way.strategy.run(lambda: accumulator.apply(optimizer)))
    whole = X[: 6 * n]
    for _ in range(2):
        before = float(w.numpy())
        batches = np.split(whole, np.cumsum([size * n for size in sizes])[:-1])
        for x in way.strategy.experimental_distribute_dataset(batches):
            step(x)
        apply()
        expected = jax.grad(_mean_loss)(before, whole)
        np.testing.assert_allclose(before - w.numpy(), expected, rtol=1e-5, atol=1e-7)
    assert float(never.numpy()) == 1.0


@pytest.mark.ways(modes=("eager",), replicas=(2, 4))
@pytest.mark.first(1)
@pytest.mark.long
def test_shares_may_differ_between_replicas(way):
    with way.strategy.scope():
        w = mr.Variable(0.7)
        accumulator = GradientAccumulator([w])

    def micro_step(x: Any) -> None:
        with mr.GradientTape() as tape:
            loss = jnp.sum((jnp.tanh(w * x) - 0.3) ** 2) / max(x.shape[0], 1)
        accumulator.add(tape.gradient(loss, [w]), count=x.shape[0])

    for x in way.strategy.experimental_distribute_dataset([X[:7], X[7:12]]):
        way.strategy.run(micro_step, args=(x,))
    result = way.strategy.run(accumulator.result)
    expected = jax.grad(_mean_loss)(0.7, X[:12])
    for (gradient,) in way.strategy.local_results(result):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    with way.strategy.scope():
        np.testing.assert_allclose(accumulator.result()[0], expected, rtol=1e-5)
        accumulator.apply(SGD(1.0))
        np.testing.assert_allclose(accumulator.result()[0], 0.0)
    np.testing.assert_allclose(w.numpy(), 0.7 - expected, rtol=1e-5)


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(4, 8))
@pytest.mark.sampled(3)
@pytest.mark.first(1)
def test_one_reduction_for_all_micro_batches(way):
    with way.strategy.scope():
        variables = [mr.Variable(jnp.ones(k + 1), name=f"v{k}") for k in range(3)]
        accumulator = GradientAccumulator(variables)
        optimizer = Adam(0.1, clipnorm=1.0)

    def replica_step(x: Any) -> None:
        for part in range(3):
            with mr.GradientTape() as tape:
                loss = sum(jnp.sum(jnp.sin(v.read_value() * x[part])) for v in variables)
            accumulator.add(tape.gradient(loss, variables), count=1)
        accumulator.apply(optimizer)

    step = function(lambda x: way.strategy.run(replica_step, args=(x,)))
    (batch,) = list(way.strategy.experimental_distribute_dataset([np.ones((3 * way.num_replicas,), np.float32)]))
    step(batch)
    text = step.lower(batch).compile().as_text()
    assert text.count(" all-reduce(") + text.count(" all-reduce-start(") == 1


def test_nothing_added_is_a_zero_gradient():
    w = mr.Variable([1.0, 2.0])
    accumulator = GradientAccumulator([w])
    np.testing.assert_array_equal(accumulator.result()[0], [0.0, 0.0])
    accumulator.add([jnp.ones(2)], count=0)
    np.testing.assert_array_equal(accumulator.result()[0], [0.0, 0.0])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_micro_batch_without_examples_adds_nothing_although_its_mean_is_nan(compiled):
    w = mr.Variable([1.0, 2.0])
    accumulator = GradientAccumulator([w])
    add = (mr.function if compiled else lambda fn: fn)(lambda gradient, count: accumulator.add([gradient], count))
    add(jnp.asarray([2.0, 4.0]), jnp.float32(3.0))
    add(jnp.full(2, jnp.nan), jnp.float32(0.0))
    assert accumulator.result()[0].tolist() == [2.0, 4.0]


def test_a_count_that_is_no_number_changes_nothing():
    accumulator = GradientAccumulator([mr.Variable([1.0, 2.0])])
    with pytest.raises(StructureError, match=r"the count has the shape \(1,\)"):
        accumulator.add([jnp.ones(2)], count=jnp.ones(1))
    assert [one.numpy().tolist() for one in accumulator.variables] == [[0.0, 0.0], 0.0]


def test_a_variable_of_an_open_shape_has_the_gradients_of_its_value():
    accumulator = GradientAccumulator([mr.Variable([1.0, 2.0], shape=[None])])
    accumulator.add([jnp.ones(2)], count=2)
    assert accumulator.result()[0].tolist() == [1.0, 1.0]


def test_bfloat16_gradients_are_added_in_float32():
    w = mr.Variable(jnp.zeros((), jnp.bfloat16))
    accumulator = GradientAccumulator([w])
    accumulator.add([jnp.ones((), jnp.bfloat16)], count=256)
    accumulator.add([jnp.full((), 3.0, jnp.bfloat16)], count=1)
    assert accumulator.result()[0].dtype == jnp.bfloat16
    assert float(accumulator.variables[0].numpy()) == 259.0


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_apply_and_reset_are_one_assignment(optimizer, monkeypatch):
    v, w = mr.Variable(1.0), mr.Variable(1.0)
    own, expected = optimizer(0.1), optimizer(0.1)
    accumulator = GradientAccumulator([v])
    accumulator.add([2.0], count=1)

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(GradientAccumulator, "reset", interrupted)
        with pytest.raises(KeyboardInterrupt):
            accumulator.apply(own)
    assert (float(v), float(accumulator.result()[0])) == (1.0, 2.0)
    for _ in range(2):
        accumulator.apply(own)
        assert all(float(one) == 0.0 for one in accumulator.variables)
        expected.apply_gradients([(2.0, w)])
        assert (float(v), int(own.iterations)) == (float(w), int(expected.iterations))
        accumulator.add([2.0], count=1)


class _Decaying(SGD):
    def apply_gradients(self, grads_and_vars, *args, **options):
        pairs = list(grads_and_vars)
        result = super().apply_gradients(pairs, *args, **options)
        for _, variable in pairs:
            variable.assign(variable * 0.5)
        return result


class _InTwoSteps:
    def __init__(self, rate):
        self.rate = rate

    def apply_gradients(self, grads_and_vars, skip_gradients_aggregation=False):
        for gradient, variable in grads_and_vars:
            variable.assign_sub(0.5 * variable)
            variable.assign_sub(self.rate * gradient)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("optimizer", "expected"), [(_Decaying, 0.25), (_InTwoSteps, 0.0)])
def test_apply_with_an_optimizer_that_reads_what_it_has_assigned(optimizer, expected, compiled):
    v = mr.Variable(1.0)
    accumulator = GradientAccumulator([v])
    accumulator.add([0.5], count=1)
    own = optimizer(1.0)

    def step():
        accumulator.apply(own)

    (mr.function(step) if compiled else step)()
    assert float(v) == expected
    assert all(float(one) == 0.0 for one in accumulator.variables)


@pytest.mark.long
def test_what_the_accumulator_refuses():
    accumulator = GradientAccumulator([mr.Variable(1.0), mr.Variable([1.0, 2.0])])
    with pytest.raises(StructureError, match="gradients of shapes"):
        accumulator.add([jnp.array(1.0)], count=1)
    with pytest.raises(StructureError, match=r"\[\(\), \(3,\)\]"):
        accumulator.add([jnp.array(1.0), jnp.ones(3)], count=1)
    assert all(float(np.abs(v.numpy()).max()) == 0.0 for v in accumulator.variables)
    with pytest.raises(ArgumentError, match="reduction='max'"):
        GradientAccumulator([], reduction="max")


@pytest.mark.parametrize("nested", [False, True])
def test_a_dict_has_the_order_of_its_keys_in_lists_of_gradients(nested):
    w_out, bias = mr.Variable(1.0), mr.Variable(2.0)
    mask = mr.Variable(0.0, trainable=False)
    variables = (
        {"w_out": [mask, {"z": w_out}], "bias": bias} if nested else {"w_out": w_out, "mask": mask, "bias": bias}
    )
    accumulator = GradientAccumulator(variables)
    accumulator.add([1.0, 10.0], count=1)
    assert accumulator.result() == [1.0, 10.0]
    accumulator.add(
        {"w_out": [None, {"z": 3.0}], "bias": 30.0} if nested else {"w_out": 3.0, "mask": None, "bias": 30.0}, 1
    )
    assert accumulator.result() == [2.0, 20.0]
    accumulator.apply(SGD(1.0))
    assert (float(w_out), float(bias)) == (-1.0, -18.0)


class _Interrupted(SGD):
    calls = 0

    def apply_gradients(self, grads_and_vars, *args, **options):
        super().apply_gradients(grads_and_vars, *args, **options)
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt


def test_an_interrupted_override_of_apply_gradients_changes_nothing():
    v = mr.Variable(1.0)
    accumulator = GradientAccumulator([v])
    accumulator.add([0.5], count=1)
    own = _Interrupted(1.0)
    with pytest.raises(KeyboardInterrupt):
        accumulator.apply(own)
    assert (float(v), float(accumulator.variables[0])) == (1.0, 0.5)
    accumulator.apply(own)
    assert (float(v), float(accumulator.variables[0])) == (0.5, 0.0)


@pytest.mark.ways(replicas=(2,))
def test_micro_batches_are_added_in_replicas_not_in_merges(way):
    with way.strategy.scope():
        accumulator = GradientAccumulator([mr.Variable(1.0)])

    def step():
        mr.get_replica_context().merge_call(lambda strategy: accumulator.add([jnp.ones(())], count=1))

    with pytest.raises(ContextError, match=r"GradientAccumulator\.add: it was called in cross-replica context"):
        way.compile(lambda: way.strategy.run(step))()
