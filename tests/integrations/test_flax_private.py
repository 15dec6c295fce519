"""Probes of what Flax NNX keeps private and the bridge relies on; a message says what breaks without it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from mirrored import integrations
from mirrored.integrations.flax import private


@pytest.fixture(autouse=True)
def bare() -> Iterator[None]:
    """NNX without the patches."""
    integrations.disconnect("flax")
    yield
    integrations.connect("flax")


def linear() -> nnx.Linear:
    return nnx.Linear(2, 3, rngs=nnx.Rngs(0))


# Variables


def test_the_slot_of_a_variable_holds_its_value() -> None:
    variable, value = nnx.Param(jnp.ones(2)), object()
    assert private.raw_value_slot.__get__(variable).tolist() == [1.0, 1.0]
    private.raw_value_slot.__set__(variable, value)
    assert private.raw_value_slot.__get__(variable) is value, "no variable of mirrored can back an NNX variable"


def test_the_metadata_of_a_variable_is_not_a_copy() -> None:
    variable = nnx.Param(jnp.ones(2), tag="mine")
    assert private.metadata_of(variable)["tag"] == "mine", "hooks of a backed variable are not called"
    assert private.metadata_of(variable) is private.metadata_of(variable)
    assert variable.get_metadata() == private.metadata_of(variable)


def test_a_variable_is_made_from_its_metadata() -> None:
    variable = nnx.BatchStat(jnp.ones(2), tag="mine")
    made = type(variable).from_metadata(jnp.zeros(2), variable.get_metadata())
    assert type(made) is nnx.BatchStat
    assert (made.tag, made[...].tolist()) == ("mine", [0.0, 0.0]), "`unmirror` loses what a variable is"


def test_variables_of_metrics_have_their_type() -> None:
    assert isinstance(nnx.metrics.Average().total, private.MetricState), "metrics are not summed over replicas"
    assert not isinstance(linear().kernel, private.MetricState)


def test_methods_of_variables_take_an_index_by_name() -> None:
    variable = nnx.Param(jnp.arange(3.0))
    variable.set_value(jnp.float32(7.0), index=1)
    assert variable.get_value(index=slice(1, 3)).tolist() == [7.0, 2.0], "a backed variable ignores the index"
    assert variable.get_raw_value().tolist() == [0.0, 7.0, 2.0]


def test_transforms_ask_whether_a_variable_can_be_updated() -> None:
    assert isinstance(inspect.getattr_static(nnx.Variable, "_can_update"), property)
    variable = nnx.Param(jnp.ones(2))

    def change(x: jax.Array) -> jax.Array:
        variable.set_value(x)
        return x

    with pytest.raises(Exception, match="different trace level"):
        jax.jit(change)(jnp.ones(2))


# Trace levels


def test_objects_record_the_trace_in_which_they_were_created() -> None:
    level = private.tracers.current_jax_trace()
    assert private.trace_of_module(linear()) == level
    assert private.trace_of_variable(nnx.Param(jnp.ones(2))) == level
    found = []

    def traced(x: jax.Array) -> jax.Array:
        found.append(private.tracers.current_jax_trace() == level)
        found.append(private.trace_of_module(linear()) == private.tracers.current_jax_trace())
        found.append(private.trace_of_variable(nnx.Param(x)) == private.tracers.current_jax_trace())
        return x

    jax.jit(traced)(1.0)
    assert found == [False, True, True], "objects could be changed in a trace that outlives them"


def test_a_record_of_a_trace_can_be_marked() -> None:
    level = private.tracers.current_jax_trace()
    level.of_function = True
    assert level.of_function, "NNX objects of a compiled function cannot be changed after it"


def test_a_module_of_a_finished_trace_may_be_changed_once_it_is_moved() -> None:
    made = []

    def traced(x: jax.Array) -> jax.Array:
        made.append(linear())
        return x

    jax.jit(traced)(1.0)
    (module,) = made
    with pytest.raises(Exception, match="different trace level"):
        module.extra = 1
    private.move_to_current_trace(module)
    module.extra = 1
    assert private.trace_of_module(module) == private.tracers.current_jax_trace()


def test_assignments_to_modules_are_checked_by_methods_that_are_replaced() -> None:
    assert list(inspect.signature(nnx.Pytree._setattr).parameters) == ["self", "name", "value"]
    assert len(inspect.signature(nnx.Pytree._check_valid_context).parameters) == 2
    assert list(inspect.signature(nnx.Pytree.__delattr__).parameters) == ["self", "name"]


def test_capture_sets_an_attribute_of_modules_while_it_runs() -> None:
    module, found = linear(), []
    nnx.capture(lambda module: found.append(vars(module).get(private.CAPTURES)), nnx.Intermediate)(module)
    ((variable,),) = found
    assert isinstance(variable, nnx.Intermediate), "replicas that wait for each other in nnx.capture mix their values"
    assert private.CAPTURES not in vars(module)


# Random state and results of transforms


def test_splitting_and_restoring_keys_call_the_functions_that_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in private.REPLACING + private.RESTORING:
        function = getattr(private.random_state, name)
        wrapped = lambda *args, name=name, function=function, **kwargs: (  # noqa: E731
            called.append(name) or function(*args, **kwargs)
        )
        monkeypatch.setattr(private.random_state, name, wrapped)
    rngs = nnx.Rngs(0)
    with nnx.split_rngs(rngs, splits=2), nnx.fork_rngs(nnx.Rngs(1)):
        assert rngs.default.key.shape == rngs.default.count.shape == (2,)
    assert rngs.default.key.shape == ()
    splitting, forking, restoring = private.REPLACING + private.RESTORING
    assert called == [splitting, forking, restoring, restoring], "split keys are stored for all replicas"


def test_results_of_transforms_come_from_the_function_that_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    from_tree = private.results.from_tree
    monkeypatch.setattr(
        private.results, "from_tree", lambda *args, **kwargs: made.append(from_tree(*args, **kwargs)) or made[-1]
    )
    model = nnx.jit(linear)()
    assert any(one is model for one in jax.tree.leaves(made[-1], is_leaf=lambda one: one is model))


def test_a_transform_clears_and_sets_the_attributes_of_modules_in_the_function_that_is_wrapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []
    unflatten = private.graphs.unflatten

    def recording(*args: object, outer_index_outer_ref: dict[int, object] | None = None, **kwargs: object) -> object:
        seen.extend((outer_index_outer_ref or {}).values())
        return unflatten(*args, outer_index_outer_ref=outer_index_outer_ref, **kwargs)

    monkeypatch.setattr(private.graphs, "unflatten", recording)
    model = linear()
    nnx.jit(lambda model, x: model(x))(model, jnp.ones((1, 2)))
    assert any(one is model for one in seen), "a refused `nnx.jit` leaves the model without its attributes"


# Statistics


def test_normalization_layers_call_the_function_that_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []
    compute = private.normalization._compute_stats
    parameters = ["x", "axes", "dtype", "axis_name", "axis_index_groups", "use_mean", "use_fast_variance", "mask"]
    assert list(inspect.signature(inspect.unwrap(compute)).parameters) == parameters

    def wrapped(*args: object, **kwargs: object) -> object:
        calls.append(kwargs)
        return compute(*args, **kwargs)

    monkeypatch.setattr(private.normalization, "_compute_stats", wrapped)
    nnx.BatchNorm(2, rngs=nnx.Rngs(0))(jnp.ones((3, 2)))
    assert len(calls) == 1


def test_linen_computes_statistics_by_a_function_of_the_same_form() -> None:
    compute = private.linen_normalization._compute_stats
    parameters = ["x", "axes", "dtype", "axis_name", "axis_index_groups", "use_mean", "use_fast_variance", "mask"]
    assert list(inspect.signature(inspect.unwrap(compute)).parameters)[:8] == parameters


def test_axes_of_statistics_are_positive_and_without_repetitions() -> None:
    assert private.canonical_axes(3, 0) == (0,)
    assert sorted(private.canonical_axes(3, (0, -1, 2))) == [0, 2]
