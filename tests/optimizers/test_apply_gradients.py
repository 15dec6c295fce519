"""`apply_gradients` in every context: sums over replicas, clips the sum, and changes no state on errors."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mirrored as mr
from mirrored.compilation import function
from mirrored.errors import ArgumentError, ContextError, ReplicaDivergenceError, StructureError, VariableError
from mirrored.optimizers import SGD, Adam, Optimizer
from mirrored.values.sparse_rows import SparseRows, as_pytree
from optimizers.steps import step_of


@as_pytree
class IndexedSlices(SparseRows):
    pass


_OF_DICTS = r"its keys, not its values(.|\n)*for dicts write Adam.apply_gradients\(\[\(gradients, variables\)\]\)"


def _replica_number() -> Any:
    """1.0 on the first replica, 2.0 on the second, ..."""
    return jnp.asarray(mr.get_replica_context().replica_id_in_sync_group, jnp.float32) + 1.0


def _sum_of_numbers(replicas: int) -> float:
    return replicas * (replicas + 1) / 2


@pytest.mark.parametrize("dense_shape", [None, (3, 2)], ids=["unknown", "known"])
@pytest.mark.first(5)
def test_sparse_rows_are_added(way, dense_shape):
    with way.strategy.scope():
        v = mr.Variable(jnp.zeros((3, 2)))
        optimizer = SGD(1.0)
    rows, indices = np.ones((2, 2), np.float32), np.array([1, 1])
    step_of(way, lambda: optimizer.apply_gradients([(IndexedSlices(rows, indices, dense_shape), v)]))()
    replicas = way.strategy.num_replicas_in_sync
    np.testing.assert_array_equal(v.numpy(), [[0, 0], [-2 * replicas, -2 * replicas], [0, 0]])


def test_sparse_rows_of_another_shape_are_refused():
    v = mr.Variable(jnp.zeros((3, 2)))
    with pytest.raises(StructureError, match="IndexedSlices"):
        SGD(1.0).apply_gradients([(IndexedSlices(np.ones((1, 2), np.float32), np.array([0]), (4, 2)), v)])


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(("options", "expected"), [({}, 0.8), ({"clipnorm": 1.5}, 0.85)])
def test_an_int_is_a_gradient_as_a_float_is(options, expected, tree):
    v = mr.Variable(1.0)
    SGD(0.1, **options).apply_gradients([({"v": 2}, {"v": v}) if tree else (2, v)])
    assert float(v.numpy()) == pytest.approx(expected)


@pytest.mark.first(6)
def test_replicas_gradients_are_summed(way):
    with way.strategy.scope():
        variable = mr.Variable([0.0, 0.0])
        optimizer = SGD(0.5)
    gradient = jnp.array([1.0, 2.0])
    step = step_of(way, lambda: optimizer.apply_gradients([(gradient * _replica_number(), variable)]))
    step()
    step()
    expected = -np.array([1.0, 2.0]) * _sum_of_numbers(way.num_replicas)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.ways(replicas=(2, 4))
def test_slots_are_mirrored_and_the_same_everywhere(way):
    with way.strategy.scope():
        variable = mr.Variable(1.0)
        optimizer = Adam(0.1)
    step = step_of(way, lambda: optimizer.apply_gradients([(_replica_number(), variable)]))
    step()
    total = _sum_of_numbers(way.num_replicas)
    slots = optimizer.slots(variable)
    assert sorted(slots) == ["mu", "nu"]
    np.testing.assert_allclose(slots["mu"].numpy(), 0.1 * total, rtol=1e-6)
    np.testing.assert_allclose(slots["nu"].numpy(), 0.001 * total**2, rtol=1e-5)
    for made in optimizer.variables:
        assert made.strategy is way.strategy
        assert len({copy.numpy().tobytes() for copy in made.values}) == 1


@pytest.mark.ways(replicas=(1, 2, 4))
@pytest.mark.parametrize("options", [{"clipvalue": 2.5}, {"clipnorm": 2.5}, {"global_clipnorm": 2.5}])
@pytest.mark.first(9)
def test_clipping_acts_on_the_sum(way, options):
    with way.strategy.scope():
        variable = mr.Variable(0.0)
        optimizer = SGD(1.0, **options)
    step = step_of(way, lambda: optimizer.apply_gradients([(_replica_number(), variable)]))
    step()
    np.testing.assert_allclose(variable.numpy(), -min(2.5, _sum_of_numbers(way.num_replicas)), rtol=1e-6)


@pytest.mark.ways(replicas=(2,))
def test_a_transform_sees_the_sum_of_extra_arguments(way):
    transform = optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, *, value: (jax.tree.map(lambda u: -u * value, updates), state),
    )
    with way.strategy.scope():
        variable = mr.Variable(0.0)
        optimizer = Optimizer(transform)

    def replica_step() -> None:
        optimizer.apply_gradients([(jnp.array(1.0), variable)], extra_args={"value": _replica_number()})

    way.compile(lambda: way.strategy.run(replica_step))()
    assert float(variable.numpy()) == -2.0 * 3.0


@pytest.mark.ways(replicas=(2, 4))
@pytest.mark.first(3)
def test_aggregation_can_be_skipped(way):
    with way.strategy.scope():
        variable = mr.Variable(0.0)
        optimizer = Adam(0.25)

    def replica_step() -> None:
        (total,) = mr.get_replica_context().all_reduce("sum", [_replica_number()])
        optimizer.apply_gradients([(total, variable)], skip_gradients_aggregation=True)
        optimizer.apply_gradients([(total, variable)], experimental_aggregate_gradients=False)

    way.compile(lambda: way.strategy.run(replica_step))()
    np.testing.assert_allclose(
        optimizer.slots(variable)["mu"].numpy(), 0.19 * _sum_of_numbers(way.num_replicas), rtol=1e-6
    )
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.ways(modes=("eager", "compiled"), replicas=(1, 2))
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", lambda stacked: 2.0 * jnp.max(stacked, axis=0)])
def test_the_aggregation_of_a_variable_does_not_apply_to_its_updates(way, aggregation):
    with way.strategy.scope():
        summed, skipped = (mr.Variable(4.0, aggregation=aggregation) for _ in range(2))
        optimizer = SGD(0.5)

    def replica_step() -> None:
        optimizer.apply_gradients([(jnp.float32(2.0), summed)])
        optimizer.apply_gradients([(jnp.float32(2.0), skipped)], skip_gradients_aggregation=True)

    way.compile(lambda: way.strategy.run(replica_step))()
    assert (float(summed.numpy()), float(skipped.numpy())) == (4.0 - way.num_replicas, 3.0)


@pytest.mark.ways(replicas=(2,))
@pytest.mark.parametrize("aggregation", ["NONE", "MEAN"])
def test_gradients_that_differ_are_refused_when_aggregation_is_skipped(way, aggregation):
    with way.strategy.scope():
        variable = mr.Variable(1.0, aggregation=aggregation)
        optimizer = SGD(0.5)
        optimizer.build([variable])

    def replica_step() -> None:
        optimizer.apply_gradients([(_replica_number(), variable)], skip_gradients_aggregation=True)

    with pytest.raises(ReplicaDivergenceError, match="would differ between replicas"):
        way.compile(lambda: way.strategy.run(replica_step))()
    assert float(variable.numpy()) == 1.0
    assert int(optimizer.iterations.numpy()) == 0


@pytest.mark.first(6)
@pytest.mark.ways(modes=("eager", "compiled"), replicas=(1, 2, 4))
@pytest.mark.parametrize("make", [SGD, Adam])
def test_a_variable_made_out_of_scope_is_updated_once_when_aggregation_is_skipped(way, make):
    variable, alone = mr.Variable(4.0), mr.Variable(4.0)
    optimizer, optimizer_alone = make(0.5), make(0.5)

    def replica_step() -> tuple[jax.Array, jax.Array]:
        optimizer.apply_gradients([(jnp.float32(2.0), variable)], skip_gradients_aggregation=True)
        before = variable.read_value()
        variable.assign(before * 2.0)
        (total,) = mr.get_replica_context().all_reduce("sum", [jnp.float32(1.0)])
        optimizer.apply_gradients([(total, variable)], skip_gradients_aggregation=True)
        return before, variable.read_value()

    optimizer_alone.apply_gradients([(2.0, alone)])
    expected = [float(alone.numpy())]
    alone.assign(alone * 2.0)
    optimizer_alone.apply_gradients([(float(way.num_replicas), alone)])
    expected.append(float(alone.numpy()))
    results = way.compile(lambda: way.strategy.run(replica_step))()
    np.testing.assert_allclose(float(variable.numpy()), expected[1], rtol=1e-6)
    for result, value in zip(results, expected, strict=True):
        components = way.strategy.experimental_local_results(result)
        np.testing.assert_allclose(components, [value] * way.num_replicas, rtol=1e-6)
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.ways(modes=("eager",), replicas=(1, 2, 4))
def test_the_gradient_of_a_variable_made_out_of_scope_is_on_the_replicas_device(way):
    variable, optimizer = mr.Variable(jnp.ones(3)), Adam(0.5)
    with way.strategy.scope():
        mirrored = mr.Variable(jnp.ones(3))
    x = way.strategy.experimental_distribute_values_from_function(lambda _: jnp.ones(3))

    def replica_step(x: jax.Array) -> jax.Array:
        with mr.GradientTape() as tape:
            loss = (variable * x * variable).sum()
        gradient = tape.gradient(loss, variable)
        optimizer.apply_gradients([(gradient, variable)], skip_gradients_aggregation=True)
        return gradient + x + mirrored

    results = way.strategy.experimental_local_results(way.strategy.run(replica_step, args=(x,)))
    np.testing.assert_allclose(results, [[4.0] * 3] * way.num_replicas)
    np.testing.assert_allclose(variable.numpy(), [0.5] * 3, rtol=1e-4)


@pytest.mark.ways(modes=("eager", "compiled"), replicas=(2,))
def test_a_merge_under_a_tape_assigns_a_variable_made_out_of_scope_after_its_update(way):
    variable = mr.Variable(4.0)
    optimizer = SGD(0.5)
    optimizer.build([variable])

    def merge(strategy: mr.Strategy, x: Any) -> Any:
        variable.assign(7.0)
        optimizer.iterations.assign(5)
        return strategy.reduce("SUM", x, axis=None)

    def replica_step() -> jax.Array:
        optimizer.apply_gradients([(jnp.float32(2.0), variable)], skip_gradients_aggregation=True)
        x = _replica_number()
        with mr.GradientTape() as tape:
            tape.watch(x)
            mr.get_replica_context().merge_call(merge, args=(x,))
        return variable.read_value()

    result = way.compile(lambda: way.strategy.run(replica_step))()
    assert [float(one) for one in way.strategy.experimental_local_results(result)] == [7.0, 7.0]
    assert (float(variable.numpy()), int(optimizer.iterations.numpy())) == (7.0, 5)


@pytest.mark.ways(modes=("eager", "compiled"), replicas=(2,))
def test_gradients_that_differ_are_refused_for_a_variable_made_out_of_scope_when_aggregation_is_skipped(way):
    variable = mr.Variable(1.0)
    optimizer = SGD(0.5)

    def replica_step() -> None:
        optimizer.apply_gradients([(_replica_number(), variable)], skip_gradients_aggregation=True)

    with pytest.raises(ReplicaDivergenceError, match=r"made outside of strategy\.scope\(\)\) .* would differ"):
        way.compile(lambda: way.strategy.run(replica_step))()
    assert float(variable.numpy()) == 1.0


@pytest.mark.first(6)
@pytest.mark.ways(modes=("eager", "compiled"), replicas=(1, 2, 4))
@pytest.mark.parametrize("in_scope", [True, False])
def test_cross_replica_context_sums_what_run_returned(way, in_scope):
    with way.strategy.scope():
        variable, other = mr.Variable(0.0), mr.Variable(0.0)
        optimizer = SGD(0.5)

    def step() -> None:
        gradients = way.strategy.run(lambda: [_replica_number(), _replica_number() * 2.0])
        pairs = list(zip(gradients, [variable, other], strict=True))
        if in_scope:
            with way.strategy.scope():
                optimizer.apply_gradients(pairs)
        else:
            optimizer.apply_gradients(pairs)

    way.compile(step)()
    total = _sum_of_numbers(way.num_replicas)
    np.testing.assert_allclose([variable.numpy(), other.numpy()], [-0.5 * total, -total], rtol=1e-6)
    assert optimizer.iterations.strategy is way.strategy


@pytest.mark.ways(modes=("eager",), replicas=(2,))
def test_a_plain_gradient_in_cross_replica_context_is_taken_as_it_is(way):
    with way.strategy.scope():
        variable = mr.Variable(0.0)
        SGD(0.5).apply_gradients([(1.0, variable)])
    assert float(variable.numpy()) == -0.5


@pytest.mark.ways(replicas=(2,))
def test_an_optimizer_made_outside_the_scope_counts_once(way):
    optimizer = SGD(0.5)
    with way.strategy.scope():
        variable = mr.Variable(0.0)
    step = step_of(way, lambda: optimizer.apply_gradients([(jnp.array(1.0), variable)]))
    step()
    assert int(optimizer.iterations.numpy()) == 1
    assert optimizer.iterations.strategy is way.strategy
    assert float(variable.numpy()) == -1.0


@pytest.mark.ways(replicas=(1, 2, 4))
def test_variables_without_a_gradient_are_named_once(way):
    with way.strategy.scope():
        used, unused = mr.Variable(1.0, name="used"), mr.Variable(1.0, name="unused")
        optimizer = SGD(0.5)

    def replica_step() -> None:
        optimizer.apply_gradients([(jnp.array(1.0), used), (None, unused)])

    step = way.compile(lambda: way.strategy.run(replica_step))
    with pytest.warns(UserWarning, match="no gradient for unused") as caught:
        step()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
    assert float(unused.numpy()) == 1.0
    assert float(used.numpy()) == 1.0 - way.num_replicas


@pytest.mark.ways(replicas=(1, 2))
@pytest.mark.parametrize(
    ("pairs", "error", "match"),
    [
        (lambda v, w: [(None, v)], ArgumentError, "No gradients provided for any variable: v"),
        (lambda v, w: [], ArgumentError, "No gradients provided for any variable: the list is empty"),
        (lambda v, w: [(jnp.ones(3), v)], StructureError, r"v: float32\[3\] for float32\[2\]"),
        (lambda v, w: [(jnp.ones(2), v), (jnp.ones(2), w)], StructureError, r"w: float32\[2\] for float32\[\]"),
        (lambda v, w: [(jnp.ones(2, jnp.int32), v)], StructureError, r"v: int32\[2\] for float32\[2\]"),
        (lambda v, w: [(jnp.ones(2, jnp.complex64), v)], StructureError, r"v: complex64\[2\] for float32\[2\]"),
        (lambda v, w: [("one", w)], StructureError, "the string 'one' in place of a gradient"),
        (lambda v, w: [(b"one", w)], StructureError, "w: a bytes for"),
        (lambda v, w: [(jnp.ones(2), v), (jnp.ones(2), v)], ArgumentError, "variable 'v' was passed twice"),
        (lambda v, w: [jnp.ones(2)], StructureError, "at position 0"),
        (lambda v, w: [(v, jnp.ones(2))], StructureError, "each element must be a pair"),
        (lambda v, w: zip({"v": jnp.ones(2)}, {"v": v}, strict=True), StructureError, _OF_DICTS),
        (lambda v, w: zip({"v": jnp.ones(2)}, [v], strict=True), StructureError, _OF_DICTS),
        (lambda v, w: zip([jnp.ones(2)], {"v": v}, strict=True), StructureError, _OF_DICTS),
    ],
)
@pytest.mark.sampled(3)
@pytest.mark.first(11)
def test_errors_leave_everything_as_it_was(way, pairs, error, match):
    with way.strategy.scope():
        v, w = mr.Variable([1.0, 2.0], name="v"), mr.Variable(3.0, name="w")
        optimizer = Adam(0.5)
        optimizer.apply_gradients([(jnp.ones(2), v), (1.0, w)])
    before = [variable.numpy() for variable in (v, w, *optimizer.variables)]
    with pytest.raises(error, match=match):
        step_of(way, lambda: optimizer.apply_gradients(pairs(v, w)))()
    for variable, value in zip((v, w, *optimizer.variables), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "complex64"])
def test_per_replica_gradients_of_another_kind_of_dtype_are_refused(dtype, compiled):
    strategy = mr.MirroredStrategy(["CPU:0"], num_replicas=2)
    with strategy.scope():
        v, optimizer = mr.Variable(1.0, name="v"), SGD(0.1)

    def step():
        gradient = strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group + jnp.ones((), dtype))
        with strategy.scope():
            optimizer.apply_gradients([(gradient, v)])

    with pytest.raises(StructureError, match=rf"v: components of dtype {dtype} for float32\[\]"):
        (mr.function(step) if compiled else step)()
    with pytest.raises(StructureError, match="v: components of dtype int64 for"), strategy.scope():
        optimizer.apply_gradients([(mr.PerReplica([np.float32(1.0), np.int64(1)]), v)])
    assert float(v) == 1.0
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize("in_run", [False, True])
@pytest.mark.parametrize("of", ["integers", "sync-on-read"])
def test_a_variable_that_no_optimizer_can_update_may_have_no_gradient(of, in_run):
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        v, optimizer = mr.Variable(jnp.ones(2)), Adam(0.1)
        options = {} if of == "integers" else {"synchronization": "on_read", "aggregation": "mean"}
        other = mr.Variable(3 if of == "integers" else 3.0, name="other", **options)

    def update():
        optimizer.apply_gradients([(None, other), (jnp.ones(2), v)])

    with pytest.warns(UserWarning, match="no gradient for other"):
        strategy.run(update) if in_run else update()
    assert v.numpy().tolist() == pytest.approx([0.9, 0.9])
    assert other.numpy() == 3
    assert not any("other" in slot.name for slot in optimizer.variables)


def test_variables_that_cannot_be_trained_are_refused():
    with pytest.raises(VariableError, match="variable 'n' is int32"):
        SGD(0.1).apply_gradients([(1.0, mr.Variable(1, name="n"))])
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        local = mr.Variable(1.0, name="local", synchronization=mr.VariableSynchronization.ON_READ)
        with pytest.raises(VariableError, match="variable 'local' is sync-on-read"):
            SGD(0.1).build([local])


@pytest.mark.ways(modes=("eager",), replicas=(2,))
def test_per_replica_gradients_have_no_place_inside_a_replica(way):
    with way.strategy.scope():
        variable = mr.Variable(0.0, name="v")
        optimizer = SGD(0.5)
    gradients = way.strategy.run(_replica_number)
    with pytest.raises(ArgumentError, match="per-replica values, and their aggregation"), way.strategy.scope():
        optimizer.apply_gradients([(gradients, variable)], skip_gradients_aggregation=True)
    with pytest.raises(StructureError, match="v: a PerReplica value"):
        mr.MirroredStrategy(["CPU:0"]).run(lambda: optimizer.apply_gradients([(gradients, variable)]))


def test_a_gradient_can_be_a_variable_of_unknown_shape():
    gradient, variable = mr.Variable([2.0, 4.0], shape=[None]), mr.Variable([1.0, 1.0])
    SGD(0.5).apply_gradients([(gradient, variable)])
    assert variable.numpy().tolist() == [0.0, -1.0]
    with pytest.raises(StructureError, match=r"float32\[2\] for float32\[1\]"):
        SGD(0.5).apply_gradients([(gradient, mr.Variable([1.0]))])


@pytest.mark.ways(modes=("compiled", "folded"), replicas=(4, 8))
@pytest.mark.first(1)
def test_all_gradients_go_into_one_reduction(way):
    with way.strategy.scope():
        variables = [mr.Variable(jnp.ones((3, k + 1)), name=f"v{k}") for k in range(5)]
        optimizer = Adam(0.1, global_clipnorm=1.0)
    gradients = [jnp.ones((3, k + 1)) for k in range(5)]

    def replica_step() -> None:
        number = _replica_number()
        optimizer.apply_gradients([(g * number, v) for g, v in zip(gradients, variables, strict=True)])

    step = function(lambda: way.strategy.run(replica_step))
    step()
    text = step.lower().compile().as_text()
    assert text.count(" all-reduce(") + text.count(" all-reduce-start(") == 1
    assert step.trace_count == 1


def test_an_eager_step_compiles_its_update_once():
    variable = mr.Variable(jnp.ones(3))
    optimizer = Adam(0.1)
    optimizer.apply_gradients([(jnp.ones(3), variable)])
    for _ in range(3):
        optimizer.apply_gradients([(jnp.ones(3), variable)])
    assert [compiled._cache_size() for compiled in optimizer._compute._of_plan.values()] == [1]


def test_two_variables_never_share_a_buffer():
    value = jnp.ones(3)
    first, second = mr.Variable(value), mr.Variable(value)
    optimizer = Adam(0.1)
    gradient = jnp.ones(3)
    optimizer.apply_gradients([(gradient, first), (gradient, second)])
    everything = [first, second, *optimizer.variables]
    pointers = {variable.read_value().unsafe_buffer_pointer() for variable in everything}
    assert len(pointers) == len(everything)


@pytest.mark.ways(replicas=(1, 2))
def test_it_may_be_called_under_an_open_tape(way):
    with way.strategy.scope():
        variable = mr.Variable(3.0)
        optimizer = Adam(0.1)

    def replica_step() -> Any:
        with mr.GradientTape(persistent=True) as tape:
            loss = variable * variable
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return tape.gradient(loss, variable)

    gradient = way.compile(lambda: way.strategy.run(replica_step))()
    assert float(way.strategy.local_results(gradient)[0]) == 6.0
    np.testing.assert_allclose(variable.numpy(), 2.9, rtol=1e-5)
    assert int(optimizer.iterations.numpy()) == 1


@pytest.mark.ways(replicas=(1, 2))
def test_minimize_and_apply(way):
    with way.strategy.scope():
        variable = mr.Variable(1.0)
        optimizer = SGD(0.5)

    def replica_step() -> None:
        optimizer.minimize(lambda: variable * 2.0, [variable])
        with mr.GradientTape() as tape:
            loss = variable * 2.0
        optimizer.minimize(loss, lambda: [variable], tape=tape)
        optimizer.apply([jnp.array(1.0)])
        optimizer.apply([jnp.array(1.0)], [variable])

    way.compile(lambda: way.strategy.run(replica_step))()
    assert float(variable.numpy()) == 1.0 - 3.0 * way.num_replicas


def test_minimize_and_apply_refuse():
    variable = mr.Variable(1.0)
    optimizer = SGD(0.5)
    with pytest.raises(ArgumentError, match="without a tape"):
        optimizer.minimize(jnp.array(1.0), [variable])
    with pytest.raises(ArgumentError, match="2 gradients were passed for 1 variables"):
        optimizer.apply([1.0, 2.0], [variable])
    assert float(variable.numpy()) == 1.0


def _two_variables(strategy: Any) -> Any:
    with strategy.scope():
        return mr.Variable([1.0, 1.0], name="a"), mr.Variable([1.0, 1.0], name="b"), SGD(1.0)


@pytest.mark.parametrize("filtered", [False, True], ids=["None in the list", "left out of the list"])
def test_replicas_without_a_gradient_count_as_zeros(filtered: bool) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    a, b, optimizer = _two_variables(strategy)

    def replica_step() -> None:
        first = mr.get_replica_context().replica_id_in_sync_group == 0
        with mr.GradientTape() as tape:
            loss = jnp.sum(a * 2.0) if first else jnp.sum(b * 3.0)
        pairs = list(zip(tape.gradient(loss, [a, b]), [a, b], strict=True))
        optimizer.apply_gradients([pair for pair in pairs if not (filtered and pair[0] is None)])

    strategy.run(replica_step)
    assert a.numpy().tolist() == [-1.0, -1.0]
    assert b.numpy().tolist() == [-2.0, -2.0]


def test_gradients_belong_together_by_their_variable() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    a, b, optimizer = _two_variables(strategy)

    def replica_step() -> None:
        pairs = [(jnp.full(2, 1.0), a), (jnp.full(2, 10.0), b)]
        optimizer.apply_gradients(pairs[:: 1 if mr.get_replica_context().replica_id_in_sync_group == 0 else -1])

    strategy.run(replica_step)
    assert (a.numpy()[0], b.numpy()[0]) == (-1.0, -19.0)


@pytest.mark.parametrize("make", [iter, lambda pairs: (pair for pair in pairs)], ids=["iterator", "generator"])
def test_an_iterator_that_replicas_share_is_refused(make: Any) -> None:
    """The first replica would take all pairs, and the others' gradients would count as zeros."""
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    a, b, optimizer = _two_variables(strategy)
    pairs = [(jnp.ones(2), a), (jnp.ones(2), b)]
    shared = make(pairs)
    with pytest.raises(
        ArgumentError, match="the replicas passed the same .* object, which the first one has exhausted"
    ):
        strategy.run(lambda: optimizer.apply_gradients(shared))
    assert a.numpy().tolist() == [1.0, 1.0]
    strategy.run(lambda: optimizer.apply_gradients(make(pairs)))
    assert a.numpy().tolist() == [-1.0, -1.0]


def test_no_replica_has_a_gradient() -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    a, b, optimizer = _two_variables(strategy)
    with pytest.raises(ArgumentError, match="No gradients provided for any variable: a, b"):
        strategy.run(lambda: optimizer.apply_gradients([(None, a), (None, b)]))
    with pytest.warns(UserWarning, match="no gradient for b"):
        strategy.run(lambda: optimizer.apply_gradients([(jnp.ones(2), a), (None, b)]))


@pytest.mark.parametrize("look_up", ["table[ids]", "jnp.take"])
def test_embeddings_on_an_empty_share(look_up: str) -> None:
    strategy = mr.MirroredStrategy(jax.devices()[:2])
    with strategy.scope():
        table, optimizer = mr.Variable(jnp.ones((3, 2)), name="table"), SGD(1.0)

    def replica_step(ids: Any) -> None:
        with mr.GradientTape() as tape:
            rows = table[ids] if look_up == "table[ids]" else jnp.take(table.read_value(), ids, axis=0)
            loss = mr.losses.average_loss(jnp.sum(rows, -1))
        optimizer.apply_gradients(zip(tape.gradient(loss, [table]), [table], strict=True))

    shares = mr.PerReplica((jnp.array([0, 0]), jnp.zeros((0,), jnp.int32)))
    strategy.run(replica_step, args=(shares,))
    np.testing.assert_allclose(table.numpy(), [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", [lambda: mr.optimizers.SGD(0.1), lambda: mr.optimizers.Adam(0.1)], ids=["sgd", "adam"])
@pytest.mark.first(2)
def test_a_complex_variable_descends(way, make):
    with way.strategy.scope():
        c = mr.Variable(jnp.asarray(1 + 1j, jnp.complex64))
        optimizer = make()

    def replica_step():
        with mr.GradientTape() as tape:
            loss = jnp.abs(c.value()) ** 2 / way.strategy.num_replicas_in_sync
        optimizer.apply_gradients(zip(tape.gradient(loss, [c]), [c], strict=True))

    step = step_of(way, replica_step)
    for _ in range(3):
        step()
    now = complex(c.numpy())
    assert abs(now.real - now.imag) < 1e-6  # real and imaginary part are alike, and both shrink
    assert 0 < now.real < 0.8


def test_a_component_is_no_variable():
    with mr.MirroredStrategy(["CPU:0"], num_replicas=2).scope():
        v = mr.Variable(1.0, name="v")
    with pytest.raises(VariableError, match="one replica's copy of the variable 'v"):
        SGD(0.1).apply_gradients([(1.0, v.values[1])])


@pytest.mark.parametrize("wrap", [lambda step: step, function], ids=["eager", "compiled"])
@pytest.mark.parametrize("where", ["replica", "cross-replica"])
@pytest.mark.parametrize("other", [("CPU:2", "CPU:3"), ("CPU:0", "CPU:1")], ids=["other devices", "same devices"])
def test_an_optimizer_with_state_in_another_strategy_is_refused(wrap, where, other):
    first, second = mr.MirroredStrategy(["CPU:0", "CPU:1"]), mr.MirroredStrategy(other)
    with first.scope():
        optimizer, v = mr.optimizers.Adam(0.1), mr.Variable(jnp.ones(3))
    with second.scope():
        w = mr.Variable(jnp.ones(3))
    optimizer.apply_gradients([(jnp.ones(3), v)])

    def update():
        optimizer.apply_gradients([(jnp.ones(3), w)])

    def step():
        update() if where == "cross-replica" else second.run(update)

    with pytest.raises(ContextError, match="remedy: create one optimizer for each strategy"):
        wrap(step)()
    assert int(optimizer.iterations) == 1
    np.testing.assert_array_equal(w, np.ones(3))
