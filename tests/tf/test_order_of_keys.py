"""Functions that compute rows or branches keep the order of the keys of dicts, in their arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirrored import tf

X = [1.0, 2.0, 3.0]


def _pair(x: Any) -> dict[str, Any]:
    return {"z": x * 2, "a": x}


def _swapped(row: dict[str, Any]) -> dict[str, Any]:
    assert list(row) == ["z", "a"]
    return {"z": row["a"], "a": row["z"]}


def _of_rows(x: Any) -> Any:
    return tf.vectorized_map(_swapped, _pair(x))


def _mapped(x: Any) -> Any:
    return tf.map_fn(_swapped, _pair(x), fn_output_signature={"z": tf.float32, "a": tf.float32})


def _scanned(x: Any) -> Any:
    start = {"z": tf.constant(0.0), "a": tf.constant(0.0)}
    return tf.scan(lambda total, row: {"z": total["z"] + row, "a": row}, x, initializer=start)


def _looped(x: Any) -> Any:
    state = {"z": x, "a": x}
    for _ in tf.range(tf.size(x)):
        state = {"z": state["z"] + 1.0, "a": state["a"] * 2.0}
    return state


def _branched(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        result = _pair(x)
    else:
        result = _pair(-x)
    return result


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "vectorized_map": _of_rows,
    "map_fn": _mapped,
    "scan": _scanned,
    "cond": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: _pair(x), lambda: _pair(-x)),
    "switch_case": lambda x: tf.switch_case(tf.size(x) - 2, [lambda: _pair(x), lambda: _pair(-x)]),
    "for": _looped,
    "if": _branched,
    "recompute_grad": lambda x: tf.recompute_grad(_pair)(x),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_the_order_of_insertion(name: str, compiled: bool) -> None:
    function = tf.function(FUNCTIONS[name]) if compiled else FUNCTIONS[name]
    assert list(function(tf.constant(X))) == ["z", "a"]


def test_rows_keep_their_values() -> None:
    result = tf.vectorized_map(_swapped, _pair(tf.constant(X)))
    assert result["z"].numpy().tolist() == X
    assert result["a"].numpy().tolist() == [2 * x for x in X]


def test_a_saved_function_returns_the_order_of_insertion(tmp_path: Path) -> None:
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x: Any) -> Any:
            return _pair(x)

    tf.saved_model.save(Module(), str(tmp_path / "saved"))
    assert list(tf.saved_model.load(str(tmp_path / "saved"))(tf.constant(X))) == ["z", "a"]
