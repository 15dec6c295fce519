"""Variables as indices of arrays: they select what their value selects, in every context."""

from __future__ import annotations

import functools
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
# They need a concrete value: in compiled code they raise JAX's errors for traced arrays.
OF_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "np.add": lambda x, v: np.add(x, v),
    "np.subtract reversed": lambda x, v: np.subtract(v, x),
    "np.exp": lambda _, v: np.exp(v),
    "np.add.reduce": lambda x, v: np.add.reduce(x, axis=0) + np.add.reduce(np.ravel(v)),
    "np.maximum.outer": lambda x, v: np.maximum.outer(x, v),
    "np.add out": lambda x, v: np.add(x, v, out=np.zeros_like(x)),
    "np.isnan": lambda _, v: np.isnan(v),
    "np.where": lambda x, v: np.where(x > 1, v, x),
    "np.allclose": lambda _, v: np.allclose(v, v),
    "np.stack": lambda _, v: np.stack([v, v]),
}
OF_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "jnp.arange": lambda _, v: jnp.arange(v),
    "jnp.arange between": lambda _, v: jnp.arange(0, 4, v),
    "jnp.eye": lambda _, v: jnp.eye(v),
    "jnp.zeros": lambda _, v: jnp.zeros((v, 2)),
    "jnp.linspace": lambda _, v: jnp.linspace(0.0, 1.0, v),
    "jnp.split": lambda x, v: jnp.split(x, v),
    "jnp.repeat": lambda x, v: jnp.repeat(x, v, axis=0),
    "jnp.tile": lambda x, v: jnp.tile(x, v),
    "jnp.sum axis": lambda x, v: jnp.sum(x, axis=v),
    "reshape": lambda x, v: x.reshape(v, -1),
    "one_hot": lambda x, v: jax.nn.one_hot(jnp.arange(2), v),
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
@pytest.mark.first(2)
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


@pytest.mark.parametrize("context", ["cross-replica", "tape", "eager run"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.first(8)
def test_functions_of_numpy_and_of_integers_take_variables(kind: str, context: str) -> None:
    strategy = mr.MirroredStrategy(["CPU:0", "CPU:1"])
    variable = made(kind, strategy)
    if kind == "vector":
        uses, value, x = OF_VALUES, np.array([0, 2]), HOST[:, :2]
    else:
        uses, value, x = OF_VALUES | OF_INTEGERS, np.array(1), HOST
    for name, use in uses.items():
        result = computed(context, strategy, functools.partial(use, x, variable))
        np.testing.assert_array_equal(result, np.asarray(use(x, jnp.asarray(value))), err_msg=name)


def test_an_operator_of_numpy_gives_the_result_of_jax() -> None:
    variable = made("scalar", mr.MirroredStrategy(["CPU:0", "CPU:1"]))
    for result in (HOST + variable, HOST[0, 1] * variable, HOST == variable, HOST @ HOST.T - variable):
        assert isinstance(result, jax.Array)
    own = HOST.copy()
    own += variable
    np.testing.assert_array_equal(own, HOST + 1)


@pytest.mark.parametrize("name", ["jnp.arange", "jnp.arange between", "jnp.split"])
def test_functions_of_integers_take_arrays_that_a_tape_tracks(name: str) -> None:
    with mr.GradientTape() as tape:
        tape.watch(x := jnp.asarray(1.0))
        result = OF_INTEGERS[name](HOST, x * 1.0)
    np.testing.assert_array_equal(result, OF_INTEGERS[name](HOST, jnp.asarray(1.0)))


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
