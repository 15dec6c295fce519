"""Control flow, nest, printing, assertions and initializers: entries that take functions or give no tensors."""

from __future__ import annotations

import numpy as np

import mirrored.tf as tf
from tf.op_cases import b, case, f, i


def nothing(found):
    return found is None


def square(x):
    return tf.square(x)


def fans(low, high, shape=(40, 30)):
    def check(result):
        array = np.asarray(result)
        return array.shape == shape and low <= array.std() <= high

    return check


def made(shape, check):
    def run(initializer):
        return check(np.asarray(initializer(shape)))

    return run


ROWS = f([[1, 2], [3, 4], [5, 6]])
HOLDS = [
    case(f"debugging.assert_{name}", nothing, *args)
    for name, args in {
        "equal": (i(1, 2), i(1, 2)),
        "none_equal": (i(1, 2), i(2, 1)),
        "less": (f(1, 2), 3.0),
        "less_equal": (f(1, 3), 3.0),
        "greater": (f(4, 5), 3.0),
        "greater_equal": (f(3, 5), 3.0),
        "positive": (f(1, 2),),
        "negative": (f(-1, -2),),
        "non_negative": (f(0, 2),),
        "non_positive": (f(0, -2),),
        "near": (f(1, 2), f(1, 2.0000002)),
        "rank": (ROWS, 2),
        "rank_at_least": (ROWS, 1),
        "rank_in": (ROWS, (1, 2)),
        "type": (ROWS, "float32"),
        "integer": (i(1, 2),),
        "shapes": ([(ROWS, ("n", 2)), (f(1, 2, 3), ("n",))],),
    }.items()
]

CASES = [
    *HOLDS,
    case("debugging.Assert", nothing, b(1, 1), [1]),
    case("debugging.check_numerics", ROWS, ROWS, "finite"),
    case("debugging.assert_all_finite", ROWS, ROWS, "finite"),
    case("debugging.assert_scalar", 1.0, 1.0),
    case("debugging.assert_same_float_dtype", lambda found: found == "float32", [ROWS], traced=False),
    case("debugging.is_numeric_tensor", lambda found: found is False, "text", traced=False),
    case("debugging.enable_check_numerics", nothing, traced=False),
    case("debugging.disable_check_numerics", nothing, traced=False),
    case("print", nothing, "a case of the table:", ROWS),
    case("cond", 2.0, b(1), lambda: tf.constant(2.0), lambda: tf.constant(3.0)),
    case("case", 3.0, [(b(0), lambda: tf.constant(2.0))], default=lambda: tf.constant(3.0)),
    case("switch_case", 30.0, i(1), [lambda: tf.constant(10.0), lambda: tf.constant(30.0)]),
    case("while_loop", (5, 32.0), lambda n, x: n < 5, lambda n, x: (n + 1, 2 * x), (0, 1.0)),
    case("map_fn", ROWS**2, square, ROWS),
    case("vectorized_map", ROWS**2, square, ROWS),
    case("foldl", [9, 12], lambda total, row: total + row, ROWS),
    case("foldl", [23.0], lambda total, row: total * 2 + row[:1], ROWS, initializer=f([1.0])),
    case("foldr", [35.0], lambda total, row: total * 2 + row[:1], ROWS, initializer=f([1.0])),
    case("scan", [[1, 2], [4, 6], [9, 12]], lambda total, row: total + row, ROWS),
    case("scan", [[9, 12], [8, 10], [5, 6]], lambda total, row: total + row, ROWS, reverse=True),
    case("recompute_grad", lambda function: float(function(3.0)) == 9.0, square, traced=False),
    case("grad_pass_through", lambda function: float(function(3.0)) == 9.0, square, traced=False),
    case("nest.is_nested", lambda found: found is True, [1], traced=False),
    case("nest.flatten", lambda found: found == [1, None, 2], {"b": 2, "a": (1, None)}, traced=False),
    case("nest.pack_sequence_as", lambda found: found == {"b": 6, "a": [5]}, {"b": 2, "a": [1]}, [5, 6], traced=False),
    case(
        "nest.map_structure", lambda found: found == [4, (6,)], lambda x, y: x + y, [1, (2,)], [3, (4,)], traced=False
    ),
    case("nest.assert_same_structure", nothing, [1, (2,)], [3, (4,)], traced=False),
    case("zeros_initializer", made((2, 3), lambda x: (x == 0).all()), traced=False),
    case("ones_initializer", made((2, 3), lambda x: (x == 1).all()), traced=False),
    case("constant_initializer", made((2, 3), lambda x: (x == 7).all()), 7, traced=False),
    case("random_normal_initializer", made((40, 30), fans(1.8, 2.2)), stddev=2.0, traced=False),
    case("random_uniform_initializer", made((40, 30), lambda x: x.min() >= 1 and x.max() < 2), 1, 2, traced=False),
    case("initializers.TruncatedNormal", made((40, 30), lambda x: np.abs(x).max() <= 2), stddev=1.0, traced=False),
    case("initializers.VarianceScaling", made((40, 30), fans(0.29, 0.34)), scale=4.0, traced=False),
    case("initializers.GlorotNormal", made((40, 30), fans(0.155, 0.182)), traced=False),
    case(
        "initializers.GlorotUniform", made((40, 30), lambda x: 0.28 < np.abs(x).max() <= (6 / 70) ** 0.5), traced=False
    ),
    case("initializers.HeNormal", made((40, 30), fans(0.205, 0.24)), traced=False),
    case("initializers.HeUniform", made((40, 30), lambda x: 0.37 < np.abs(x).max() <= (6 / 40) ** 0.5), traced=False),
    case("initializers.LecunNormal", made((40, 30), fans(0.145, 0.17)), traced=False),
    case(
        "initializers.LecunUniform", made((40, 30), lambda x: 0.26 < np.abs(x).max() <= (3 / 40) ** 0.5), traced=False
    ),
    case("initializers.Orthogonal", made((4, 4), lambda x: np.allclose(x @ x.T, np.eye(4), atol=1e-5)), traced=False),
    case("initializers.Identity", made((2, 3), lambda x: (x == np.eye(2, 3)).all()), traced=False),
]
