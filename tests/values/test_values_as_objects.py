"""Per-replica values as Python objects: formatted, copied, pickled, and empty ones."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import StructureError, ValuesError


@pytest.fixture(params=[(2, 4), (1, 4), (2, 2)], ids=["2x2", "1x4", "2x1"])
def strategy(request: pytest.FixtureRequest) -> mr.MirroredStrategy:
    devices, replicas = request.param
    return mr.MirroredStrategy(jax.devices()[:devices], num_replicas=replicas)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_an_empty_result_has_one_component_per_replica(strategy, compiled):
    def step() -> Any:
        return strategy.run(lambda: jnp.zeros((0, 3)))

    result = (mr.function(step) if compiled else step)()
    assert len(result) == strategy.num_replicas_in_sync
    parts = strategy.local_results(result)
    assert [part.shape for part in parts] == [(0, 3)] * strategy.num_replicas_in_sync
    assert [part.device for part in parts] == [strategy.device_assignment.device_of(r) for r in range(len(parts))]
    assert strategy.gather(result, 0).shape == (0, 3)


def test_formatting_names_the_reduction(strategy):
    loss = strategy.run(lambda: jnp.ones(()))
    assert f"{loss}" == str(loss)
    with pytest.raises(ValuesError, match=r"strategy\.reduce"):
        f"{loss:.3f}"


def test_copies_are_the_value_and_pickling_says_what_to_send(strategy):
    for value in (strategy.run(lambda: jnp.ones(2)), mr.function(lambda: strategy.run(lambda: jnp.ones(2)))()):
        assert copy.copy(value) is value
        assert copy.deepcopy({"loss": value})["loss"] is value
        with pytest.raises(ValuesError, match=r"np\.asarray\(part\)"):
            pickle.dumps(value)


def test_a_forgotten_mirror_is_named():
    params = {"w": jnp.ones(2)}
    for pairs in ([(params, params)], zip([jnp.ones(2)], [jnp.ones(2)], strict=True)):
        with pytest.raises(StructureError, match=r"mirrored\.mirror\(params\)"):
            mr.optimizers.SGD(0.1).apply_gradients(pairs)


def test_the_package_has_a_version_and_lists_public_names_only():
    assert mr.__version__.count(".") == 2
    assert not {"importlib", "sys", "types", "Any", "Callable", "set_bridges"} & set(dir(mr))
    assert all(name in mr.__all__ or hasattr(mr, name) for name in dir(mr))


@pytest.mark.parametrize("where", ["while tracing", "afterwards"])
def test_printing_a_value_of_a_trace_shows_its_shape(strategy, where):
    """As pytest prints the variables of a test that has failed."""
    printed, kept = [], []

    def merged(strategy: Any, value: Any) -> None:
        kept.append(value)  # the components of one device's replicas

    def replica() -> Any:
        value = jnp.ones((2, 3))
        mr.get_replica_context().merge_call(merged, args=(value,))
        return value, "text"

    @mr.function
    def step() -> Any:
        result = strategy.run(replica)
        kept.extend([result[0], mr.PerReplica([jnp.ones(1), jnp.ones(2)])])
        printed.extend(map(repr, kept))
        return result[0]

    step()
    replicas = strategy.num_replicas_in_sync
    expected = [f"<PerReplica of {replicas} replicas: float32[2,3] (traced)>"] * 2
    expected.append("<PerReplica of 2 replicas: float32[1], float32[2] (traced)>")
    assert (printed if where == "while tracing" else list(map(repr, kept))) == expected


def test_printing_copies_of_a_variable_where_they_are_not_known(strategy):
    with strategy.scope():
        v = mr.Variable(1.0, name="v")
    copies, printed = v.values, []
    mr.function(lambda: printed.append(repr(copies[1])))()
    strategy.run(lambda: printed.append(repr(copies[1])))
    jax.jit(lambda: printed.append(repr(copies[1])))()
    ends = [text.rsplit(" ", 1)[-1] for text in printed]
    assert all(text.startswith("<Variable 'v/replica_1' shape=() dtype=float32 device=") for text in printed)
    own = ["run)>", "value=1.0>"] + ["run)>"] * (strategy.num_replicas_in_sync - 2)
    assert ends == ["traced)>", *own, "value=1.0>"]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_comparing_with_an_array_or_number_is_refused_and_with_objects_is_identity(strategy, compiled):
    def step() -> Any:
        return strategy.run(lambda: mr.get_replica_context().replica_id_in_sync_group * 0.0)

    value, other = [(mr.function(step) if compiled else step)() for _ in range(2)]
    mirrored = mr.Mirrored(jnp.zeros(()), num_replicas=strategy.num_replicas_in_sync)
    for one in (0, 0.0, True, 0j, np.float32(0), np.zeros(()), jnp.zeros(()), mr.Variable(0.0), mirrored):
        for compare in (operator.eq, operator.ne):
            for pair in ((value, one), (one, value)):
                with pytest.raises(ValuesError, match=r"strategy\.reduce"):
                    compare(*pair)
    assert value == value
    assert value != other
    assert value != "0"
    assert value is not None
    assert value in [other, value]
    assert value not in [other]
    assert {value: 1, other: 2}[other] == 2
