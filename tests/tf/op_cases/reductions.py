"""Reductions, scans, sorting and counting."""

from __future__ import annotations

import numpy as np

from tf.op_cases import b, case, f, i

M = f([[1, 2, 3], [4, 5, 9]])

NAN = float("nan")

CASES = [
    # Recorded with TensorFlow 2.21.
    case("math.argmax", 2, f(1, NAN, 3)),
    case("math.argmax", 2, f(NAN, NAN, 3)),
    case("math.argmax", 0, f(NAN, NAN)),
    case("math.argmin", 2, f(1, NAN, 0)),
    case("math.reduce_max", lambda y: bool(np.isnan(y)), f(1, NAN, 3)),
    case("math.reduce_euclidean_norm", lambda y: y.dtype == np.int32 and int(y) == 1, i(1, 1)),
    case("math.approx_max_k", [[5, 4], [0, 2]], f(5, 1, 4, 3), 2),
    case("math.approx_min_k", [[[1, 0]], [[1, 0]]], f([[5, 0], [1, 3]]), 1, reduction_dimension=0),
    case("math.reduce_all", [True, False], b([[1, 1], [1, 0]]), axis=1),
    case("math.reduce_any", [[True, False]], b([[1, 0], [0, 0]]), axis=0, keepdims=True),
    case("math.reduce_euclidean_norm", 5.0, f(3, 4)),
    case("math.reduce_logsumexp", np.log(np.exp(M).sum(1)), M, 1),
    case("math.reduce_max", [4, 5, 9], M, axis=0),
    case("math.reduce_mean", 4.0, M),
    case("math.reduce_mean", [2.0, 6.0], M, axis=[1]),
    case("math.reduce_mean", 1, i(1, 2)),  # integers stay integers, as the documentation says
    case("math.reduce_mean", -1, i(-1, -2)),
    case("math.reduce_min", [1, 4], M, axis=-1),
    case("math.reduce_prod", 1080.0, M),
    case("math.reduce_std", np.std(M, axis=0), M, axis=0),
    case("math.reduce_sum", 24.0, M),
    case("math.reduce_sum", [[5, 7, 12]], M, axis=0, keepdims=True),
    case("math.reduce_sum", 24.0, M, axis=(0, 1)),
    case("math.reduce_sum", 24.0, M, axis=i(0, 1).tolist(), name="total"),
    case("math.reduce_variance", np.var(M, axis=1), M, axis=1),
    case("math.argmax", [1, 1, 1], M),
    case("math.argmax", [2, 2], M, axis=-1, output_type="int32"),
    case("math.argmin", [0, 0], M, axis=1),
    case("math.count_nonzero", [1, 2], f([[0, 1, 0], [1, 1, 0]]), axis=1),
    case("math.cumsum", [[1, 3, 6], [4, 9, 18]], M, axis=1),
    case("math.cumsum", [0, 1, 3], f(1, 2, 3), exclusive=True),  # the documentation's examples
    case("math.cumsum", [6, 5, 3], f(1, 2, 3), reverse=True),
    case("math.cumsum", [5, 3, 0], f(1, 2, 3), exclusive=True, reverse=True),
    case("math.cumprod", [1, 2, 6], f(1, 2, 3)),
    case("math.cumprod", [6, 3, 1], f(1, 2, 3), exclusive=True, reverse=True),
    case("math.cumulative_logsumexp", np.log(np.cumsum(np.exp(f(1, 2, 3)))), f(1, 2, 3)),
    case(
        "math.cumulative_logsumexp",
        [np.finfo(np.float32).min, *np.log(np.cumsum(np.exp(f(1, 2))))],
        f(1, 2, 3),
        exclusive=True,
    ),
    case("sort", [1, 10, 26.9, 62.3, 166.32], f(1, 10, 26.9, 62.3, 166.32)[::-1].copy()),
    case("sort", [[3, 2, 1], [9, 5, 4]], M, direction="DESCENDING"),
    case("argsort", [0, 3, 1, 2, 5, 4], f(1, 10, 26.9, 2.8, 166.32, 62.3)),  # the documentation's example
    case("math.top_k", ([9, 5], [2, 1]), f(1, 5, 9), k=2),
    case("math.in_top_k", [True, False], i(1, 0), f([[0.1, 0.8, 0.1], [0.2, 0.5, 0.3]]), 2),
    case("math.in_top_k", [False, False, False], i(-1, 3, 1), f([[1, 2, 3], [1, 2, 3], [-np.inf, 2, 1]]), 1),
    case("math.bincount", [2, 1, 1], i([[1, 2], [0, 0]]), axis=0, traced=False),
    case("math.bincount", [0, 1, 1], np.array([1, 2], np.uint8), traced=False),
    case("math.bincount", [0, 6, 4, 4, 2, 3], i(1, 1, 2, 3, 2, 4, 4, 5, 1, 1, 1, 1, 2, 3, 5, 3, 3, 2, 5), traced=False),
    case("math.bincount", [0.0, 1.5, 2.0], i(1, 2, 1), weights=f(0.5, 2.0, 1.0), minlength=3, maxlength=3),
    case("math.bincount", [[0, 1, 1, 1], [2, 0, 1, 0]], i([[1, 2, 3], [0, 0, 2]]), axis=-1, minlength=4, maxlength=4),
    case("math.bincount", [1, 1], i(0, 1, 0, 0), binary_output=True, traced=False),
    case(
        "math.confusion_matrix",
        [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]],
        i(1, 2, 4),
        i(2, 2, 4),
        num_classes=5,
    ),  # the documentation's example
    case("math.zero_fraction", 0.5, f(0, 1, 0, 2)),
    case("histogram_fixed_width", [2, 1, 1, 0, 2], f(-1, 0, 1.5, 2, 5, 15), [0.0, 5.0], nbins=5),
    case("histogram_fixed_width_bins", [0, 0, 1, 2, 4, 4], f(-1, 0, 1.5, 2, 5, 15), [0.0, 5.0], nbins=5),
    case("searchsorted", [1, 4, 2], f(-1, 3.5, 5, 8), f(0, 9, 5)),
    case("searchsorted", [[1, 2], [0, 3]], f([[1, 2, 3], [4, 5, 6]]), f([[1, 2], [3, 6]]), side="right"),
]
