"""Variables as indices of arrays: they select what their value selects, in every context."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mirrored as mr
from mirrored.errors import ValuesError

HOST = np.arange(12.0, dtype=np.float32).reshape(4, 3)
USES: dict[str, Callable[[Any, Any], Any]] = {
    "x[v]": lambda x, v: x[v],
    "x[v, 1]": lambda x, v: x[v, 1],
    "x[:, v]": lambda x, v: x[:, v],
    "x[..., v]": lambda x, v: x[..., v],
    "x[None, v]": lambda x, v: x[None, v],
    "x[v, v]": lambda x, v: x[v, v],
}
OF_ARRAYS: dict[str, Callable[[Any, Any], Any]] = {
    "at set": lambda x, v: x.at[v].set(0.0),
    "at add": lambda x, v: x.at[v, 0].add(1.0),
    "take": lambda x, v: jnp.take(x, v, axis=0),
    "dynamic index": lambda x, v: jax.lax.dynamic_index_in_dim(x, jnp.max(v)),
}
IN_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "x[:v]": lambda x, v: x[:v],
    "x[v:, :v]": lambda x, v: x[v:, :v],
    "list": lambda _, v: [7.0, 8.0, 9.0][v],
    "range": lambda _, v: list(range(v)),
    "operator.index": lambda _, v: operator.index(v),
}
OUTSIDE, IN_RUN = ["cross-replica", "tape", "function"], ["eager run", "compiled run", "virtual replicas"]
KINDS = ["scalar", "vector", "on read", "plain"]


def made(kind: str, strategy: mr.Strategy) -> Any:
    if kind == "plain":
        return mr.Variable(1)
    with strategy.scope():
        if kind == "on read":
            return mr.Variable(1, synchronization="on_read", aggregation="only_first_replica")
        if kind == "component":
            return mr.Variable(1).values[0]
        return mr.Variable(jnp.array([0, 2]) if kind == "vector" else 1)


def computed(context: str, strategy: mr.Strategy, use: Callable[[], Any]) -> Any:
    """Calls `use` in a context; returns the result of the last replica as NumPy arrays."""
    if context == "tape":
        with mr.GradientTape():
            result = use()
    elif context in ("cross-replica", "function"):
        result = (mr.function(use) if context == "function" else use)()
    else:
        step = lambda: strategy.run(use)  # noqa: E731
        result = strategy.local_results((step if context == "eager run" else mr.function(step))())[-1]
    return jax.tree.map(np.asarray, result)


@pytest.mark.parametrize(
    ("kind", "context"),
    [*itertools.product(KINDS, OUTSIDE + IN_RUN), *itertools.product(["component"], OUTSIDE)],
)
@pytest.mark.first(9)
def test_a_variable_selects_what_its_value_selects(kind: str, context: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0"] if context == "virtual replicas" else ["CPU:0", "CPU:1"], num_replicas=2)
    variable = made(kind, strategy)
    x = jnp.asarray(HOST)
    uses = USES | OF_ARRAYS
    mine = computed(context, strategy, lambda: {name: use(x, variable) for name, use in uses.items()})
    value = np.array([0, 2]) if kind == "vector" else np.array(1)
    for name, use in uses.items():
        np.testing.assert_array_equal(mine[name], use(x, value), err_msg=name)


@pytest.mark.parametrize("kind", ["scalar", "on read", "plain", "component"])
@pytest.mark.parametrize("x", [HOST, jnp.asarray(HOST)], ids=["numpy", "jax"])
def test_slices_ranges_and_lists_take_variables(x: Any, kind: str) -> None:
    variable = made(kind, mr.MirroredStrategy(["CPU:0", "CPU:1"]))
    for name, use in (USES | IN_PYTHON).items():
        np.testing.assert_array_equal(use(x, variable), use(x, 1), err_msg=name)


def test_replicas_select_by_their_own_components() -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        position = mr.Variable(0, synchronization="on_read", aggregation="sum")
    x = jnp.asarray(HOST)

    def replica() -> Any:
        position.assign(mr.get_replica_context().replica_id_in_sync_group + 1)
        return x[position]

    for run in (strategy.run, lambda fn: mr.function(lambda: strategy.run(fn))()):
        assert [part.tolist() for part in strategy.local_results(run(replica))] == [[3, 4, 5], [6, 7, 8]]


def test_a_gradient_flows_to_the_selected_rows() -> None:
    with mr.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        row, table = mr.Variable(1, trainable=False), mr.Variable(HOST)
    with mr.GradientTape() as tape:
        loss = (table.read_value()[row] ** 2).sum() + (table[row]).sum()
    expected = np.zeros_like(HOST)
    expected[1] = 2 * HOST[1] + 1
    np.testing.assert_array_equal(tape.gradient(loss, table), expected)


def test_values_of_the_strategy_as_indices() -> None:
    x = jnp.asarray(HOST)
    np.testing.assert_array_equal(x[mr.Mirrored(jnp.asarray(1), 2)], HOST[1])
    for table in (x, HOST, [1, 2, 3]):
        with pytest.raises(ValuesError, match=r"strategy\.run"):
            table[mr.PerReplica((jnp.asarray(1), jnp.asarray(2)))]
