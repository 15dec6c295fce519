"""Calls of `tf.compat.v1` whose results were recorded on TensorFlow: ``IMPL=tf python compat_v1_cases.py > file``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

A = np.array([[1.0, 2.0], [3.0, 0.5]], "float32")
B = np.array([[0.0, 1.0], [1.0, 0.0]], "float32")
P = np.array([[0.2, 0.7], [0.9, 0.4]], "float32")
W = np.array([[1.0], [0.0]], "float32")
IMAGE = np.arange(16, dtype="float32").reshape(1, 4, 4, 1)
KERNEL = np.ones((2, 2, 1, 1), "float32")
ONES = [1, 1, 1, 1]
HALF = [1, 2, 2, 1]
OF_PAIRS = ("absolute_difference", "mean_squared_error", "hinge_loss", "sigmoid_cross_entropy", "softmax_cross_entropy")
STEPS = (0, 3, 7, 12, 25)


def losses(v1: Any) -> dict[str, Callable[[], Any]]:
    module, kinds = v1.losses, v1.losses.Reduction
    found: dict[str, Callable[[], Any]] = {}
    for name in OF_PAIRS:
        weights = W[:, 0] if name == "softmax_cross_entropy" else W
        for label, options in {
            "mean": {},
            "weighted": {"weights": weights},
            "sum": {"reduction": kinds.SUM},
            "mean of weights": {"weights": weights, "reduction": kinds.MEAN},
            "none": {"reduction": kinds.NONE},
        }.items():
            found[f"{name}: {label}"] = lambda name=name, options=options: getattr(module, name)(B, A, **options)
    return found | {
        "huber_loss": lambda: [
            module.huber_loss(B, A),
            module.huber_loss(B, A, W, 0.5),
            module.huber_loss(B, A, delta=2.0),
        ],
        "log_loss": lambda: [module.log_loss(B, P), module.log_loss(B, P, W, 1e-3)],
        "smoothing": lambda: [
            module.sigmoid_cross_entropy(B, A, 1.0, 0.1),
            module.softmax_cross_entropy(B, A, label_smoothing=0.2),
        ],
        "sparse": lambda: [
            module.sparse_softmax_cross_entropy([1, 0], A),
            module.sparse_softmax_cross_entropy([[1], [0]], A, weights=[1.0, 0.0]),
        ],
    }


def decays(v1: Any) -> dict[str, Callable[[], Any]]:
    calls: dict[str, tuple[str, tuple[Any, ...]]] = {
        "polynomial": ("polynomial_decay", (10,)),
        "polynomial in cycles": ("polynomial_decay", (10, 0.01, 2.0, True)),
        "natural": ("natural_exp_decay", (10, 0.5)),
        "natural in stairs": ("natural_exp_decay", (10, 0.5, True)),
        "inverse": ("inverse_time_decay", (10, 0.5)),
        "inverse in stairs": ("inverse_time_decay", (10, 0.5, True)),
    }
    return {
        label: lambda name=name, rest=rest: [getattr(v1.train, name)(0.1, step, *rest)() for step in STEPS]
        for label, (name, rest) in calls.items()
    }


def older_parameters(v1: Any) -> dict[str, Callable[[], Any]]:
    return {
        "reduce_sum": lambda: v1.reduce_sum(A, reduction_indices=[1], keep_dims=True),
        "reduce_mean": lambda: v1.reduce_mean(A, 1),
        "argmax": lambda: [v1.argmax(A, 1), v1.argmax(A, dimension=0), v1.arg_max(A, 1), v1.arg_min(A, 0)],
        "casts": lambda: [v1.to_float([1]), v1.to_int32([1.5])],
        "expand_dims": lambda: [v1.expand_dims(A, dim=0), v1.squeeze(A[None], squeeze_dims=[0])],
        "math": lambda: [v1.log(A), v1.is_nan(A), v1.floordiv(7, 2), v1.div_no_nan(1.0, 0.0), v1.diag([1.0, 2.0])],
        "names": lambda: [v1.transpose(A, [1, 0], "n"), v1.pad(A, [[1, 0], [0, 0]], "CONSTANT", "n", 2.0)],
        "like": lambda: [v1.zeros_like(A), v1.ones_like(A, "int32"), v1.shape(A), v1.size(A)],
        "gather": lambda: v1.gather(A, [0], axis=1),
        "constant": lambda: [v1.constant(1.0, shape=[2]), v1.constant([1, 2], "float32", [2, 1])],
        "where": lambda: [v1.where([True, False], A, B), v1.where(A > 1, A, B), v1.where([False, True])],
        "conv2d": lambda: [
            v1.nn.conv2d(IMAGE, KERNEL, ONES, "SAME"),
            v1.nn.conv2d(IMAGE, filter=KERNEL, strides=ONES, padding="VALID"),
        ],
        "pooling": lambda: [
            v1.nn.max_pool(IMAGE, HALF, HALF, "SAME"),
            v1.nn.avg_pool(value=IMAGE, ksize=HALF, strides=HALF, padding="SAME"),
        ],
        "softmax": lambda: [v1.nn.softmax(A, dim=0), v1.nn.softmax_cross_entropy_with_logits_v2(labels=B, logits=A)],
        "moments": lambda: list(v1.nn.moments(A, [0], keep_dims=True)),
        "dropout": lambda: v1.nn.dropout(A, keep_prob=1.0),
        "in_top_k": lambda: v1.nn.in_top_k(A, [0, 1], 1),
    }


def cases(v1: Any) -> dict[str, Callable[[], Any]]:
    return losses(v1) | decays(v1) | older_parameters(v1)


def plain(value: Any) -> Any:
    return [plain(one) for one in value] if isinstance(value, list) else np.asarray(value).tolist()


if __name__ == "__main__":
    if os.environ.get("IMPL") == "tf":
        import tensorflow as tf
    else:
        import mirrored.tf as tf
    print(json.dumps({name: plain(call()) for name, call in cases(tf.compat.v1).items()}, indent=1))
