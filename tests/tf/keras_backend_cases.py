"""Calls of `tf.keras.backend`, and their results on TensorFlow 2.21 with Keras 3.15.

`python tests/tf/keras_backend_cases.py` prints the results, with TensorFlow installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np


def cases(tf: Any) -> dict[str, Callable[[], Any]]:
    """Calls of `tf.keras.backend`, by name."""
    K, T = tf.keras.backend, tf.constant
    x = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]], "f4")
    y = np.array([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4]], "f4")
    i = np.array([[2, 0], [1, 1]])
    im = np.arange(32, dtype="f4").reshape(1, 4, 4, 2)

    def var(f):
        v = K.variable([1.0, 2.0])
        f(v)
        return K.get_value(v)

    return {
        "abs": lambda: K.abs(x),
        "all": lambda: K.all(x > 0, axis=1),
        "any": lambda: K.any(x > 0, axis=0, keepdims=True),
        "arange": lambda: K.arange(1, 5),
        "argmax": lambda: K.cast(K.argmax(x), "int32"),
        "argmin": lambda: K.cast(K.argmin(x, axis=0), "int32"),
        "batch_dot": lambda: K.batch_dot(T(x), T(y), axes=1),
        "batch_flatten": lambda: K.batch_flatten(T(im)),
        "batch_get_value": lambda: K.batch_get_value([K.variable(1.0), K.variable(2.0)])[1],
        "batch_set_value": lambda: var(lambda v: K.batch_set_value([(v, [3.0, 4.0])])),
        "batch_normalization": lambda: K.batch_normalization(
            T(x), T([0.0, 0, 0]), T([1.0, 1, 1]), T([0.0, 0, 0]), T([1.0, 1, 1])
        ),
        "bias_add": lambda: K.bias_add(T(x), T([1.0, 2.0, 3.0])),
        "binary_crossentropy": lambda: K.binary_crossentropy(T([[0.0, 1.0, 1.0]]), T(y[:1])),
        "categorical_crossentropy": lambda: K.categorical_crossentropy(T([[0.0, 1.0, 0.0], [0, 0, 1]]), T(y)),
        "sparse_categorical_crossentropy": lambda: K.sparse_categorical_crossentropy(T([1, 2]), T(y)),
        "binary_focal_crossentropy": lambda: K.binary_focal_crossentropy(T([[0.0, 1.0, 1.0]]), T(y[:1])),
        "categorical_focal": lambda: K.categorical_focal_crossentropy(T([[0.0, 1.0, 0.0], [0, 0, 1]]), T(y)),
        "cast": lambda: K.cast(x, "int32"),
        "cast_to_floatx": lambda: K.cast_to_floatx([1, 2]),
        "clip": lambda: K.clip(x, -1.0, 1.0),
        "concatenate": lambda: K.concatenate([T(x), T(y)]),
        "constant": lambda: K.constant([1, 2]),
        "conv1d": lambda: K.conv1d(T(im[0]), T(np.ones((2, 2, 1), "f4"))),
        "conv2d": lambda: K.conv2d(T(im), T(np.ones((2, 2, 2, 1), "f4"))),
        "conv2d_transpose": lambda: K.conv2d_transpose(T(im), T(np.ones((2, 2, 1, 2), "f4")), (1, 5, 5, 1)),
        "depthwise": lambda: K.depthwise_conv2d(T(im), T(np.ones((2, 2, 2, 1), "f4"))),
        "cos": lambda: K.cos(x),
        "sin": lambda: K.sin(x),
        "count_params": lambda: K.count_params(K.zeros((2, 3))),
        "cumprod": lambda: K.cumprod(x),
        "cumsum": lambda: K.cumsum(x, axis=1),
        "dot": lambda: K.dot(T(x), T(y.T)),
        "dot3": lambda: K.dot(T(im), T(np.ones((2, 3), "f4"))),
        "dropout": lambda: K.shape(K.dropout(T(x), 0.5)),
        "dtype": lambda: K.dtype(T(x)),
        "elu": lambda: K.elu(x),
        "epsilon": lambda: K.epsilon(),
        "equal": lambda: K.equal(x, 1.0),
        "eval": lambda: K.eval(K.variable(2.0)),
        "exp": lambda: K.exp(x),
        "expand_dims": lambda: K.expand_dims(x, 1),
        "eye": lambda: K.eye(2),
        "flatten": lambda: K.flatten(x),
        "floatx": lambda: K.floatx(),
        "foldl": lambda: K.foldl(lambda a, b: a + b, T(x)),
        "foldr": lambda: K.foldr(lambda a, b: a - b, T(x)),
        "gather": lambda: K.gather(T(x), T([1, 0])),
        "get_uid": lambda: K.get_uid("qq"),
        "greater": lambda: K.greater(x, 0),
        "greater_equal": lambda: K.greater_equal(x, 0.5),
        "hard_sigmoid": lambda: K.hard_sigmoid(T(x)),
        "image_data_format": lambda: K.image_data_format(),
        "in_top_k": lambda: K.in_top_k(T(y), T([1, 0]), 1),
        "int_shape": lambda: K.int_shape(T(x)),
        "is_sparse": lambda: K.is_sparse(T(x)),
        "is_keras_tensor": lambda: K.is_keras_tensor(tf.keras.Input((2,))),
        "l2_normalize": lambda: K.l2_normalize(T(x), axis=1),
        "less": lambda: K.less(x, 0),
        "less_equal": lambda: K.less_equal(x, 0),
        "log": lambda: K.log(y),
        "map_fn": lambda: K.map_fn(lambda a: a * 2, T(x)),
        "max": lambda: K.max(x, axis=-1),
        "maximum": lambda: K.maximum(x, y),
        "mean": lambda: K.mean(T(x), axis=[0]),
        "mean_bool": lambda: K.mean(K.equal(x, 1.0)),
        "mean_int": lambda: K.mean(T(i, "int32")),
        "min": lambda: K.min(x),
        "minimum": lambda: K.minimum(x, y),
        "moving": lambda: var(lambda v: K.moving_average_update(v, T([0.0, 0.0]), 0.9)),
        "ndim": lambda: K.ndim(T(x)),
        "not_equal": lambda: K.not_equal(x, 1.0),
        "one_hot": lambda: K.one_hot(i, 3),
        "ones": lambda: K.eval(K.ones((2,))),
        "ones_like": lambda: K.ones_like(x),
        "permute": lambda: K.permute_dimensions(x, (1, 0)),
        "pool2d": lambda: K.pool2d(T(im), (2, 2)),
        "pool2d_avg": lambda: K.pool2d(T(im), (2, 2), pool_mode="avg"),
        "pow": lambda: K.pow(y, 2),
        "prod": lambda: K.prod(x, axis=1),
        "random_normal": lambda: K.shape(K.random_normal((2, 3))),
        "random_uniform": lambda: K.shape(K.random_uniform(K.shape(T(x)))),
        "random_bernoulli": lambda: K.shape(K.random_bernoulli((2, 3), 0.5)),
        "truncated_normal": lambda: K.shape(K.truncated_normal((2, 3))),
        "random_normal_variable": lambda: K.shape(K.random_normal_variable((2,), 0.0, 1.0)),
        "random_uniform_variable": lambda: K.shape(K.random_uniform_variable((2,), 0.0, 1.0)),
        "relu": lambda: K.relu(x, alpha=0.1, max_value=2.0),
        "relu0": lambda: K.relu(x),
        "repeat": lambda: K.repeat(T(x), 2),
        "repeat_elements": lambda: K.repeat_elements(T(x), 2, 1),
        "reshape": lambda: K.reshape(x, (3, 2)),
        "resize_images": lambda: K.resize_images(T(im), 2, 2, "channels_last"),
        "reverse": lambda: K.reverse(x, 1),
        "rnn": lambda: K.rnn(lambda a, s: (a + s[0], [a + s[0]]), T(im[0]), [T(np.zeros((4, 2), "f4"))])[1],
        "rnn_unroll": lambda: K.rnn(
            lambda a, s: (a + s[0], [a + s[0]]), T(im[0]), [T(np.zeros((4, 2), "f4"))], unroll=True
        )[0],
        "round": lambda: K.round(x),
        "separable": lambda: K.separable_conv2d(T(im), T(np.ones((2, 2, 2, 1), "f4")), T(np.ones((1, 1, 2, 1), "f4"))),
        "set_value": lambda: var(lambda v: K.set_value(v, [5.0, 6.0])),
        "shape": lambda: K.shape(x),
        "sigmoid": lambda: K.sigmoid(x),
        "sign": lambda: K.sign(x),
        "softmax": lambda: K.softmax(T(x)),
        "softplus": lambda: K.softplus(x),
        "softsign": lambda: K.softsign(x),
        "pad2": lambda: K.spatial_2d_padding(T(im)),
        "pad1": lambda: K.temporal_padding(T(im[0])),
        "sqrt": lambda: K.sqrt(x),
        "square": lambda: K.square(x),
        "squeeze": lambda: K.squeeze(x[:, :1], 1),
        "stack": lambda: K.stack([x, y]),
        "std": lambda: K.std(T(x), axis=0),
        "stop_gradient": lambda: K.stop_gradient(T(x)),
        "sum": lambda: K.sum(x, axis=-1, keepdims=True),
        "sum_bool": lambda: K.sum(K.cast(x > 0, "float32")),
        "switch": lambda: K.switch(T(True), lambda: T(1.0), lambda: T(2.0)),
        "switch_t": lambda: K.switch(T(x > 0), T(x), T(y)),
        "tanh": lambda: K.tanh(x),
        "tile": lambda: K.tile(x, [1, 2]),
        "to_dense": lambda: K.to_dense(T(x)),
        "transpose": lambda: K.transpose(x),
        "update": lambda: var(lambda v: K.update(v, [7.0, 8.0])),
        "update_add": lambda: var(lambda v: K.update_add(v, [1.0, 1.0])),
        "update_sub": lambda: var(lambda v: K.update_sub(v, [1.0, 1.0])),
        "var": lambda: K.var(T(x)),
        "zeros": lambda: K.eval(K.zeros((2, 2))),
        "zeros_like": lambda: K.zeros_like(x),
        "variable": lambda: K.variable(3.0).numpy(),
    }


def results(tf: Any) -> dict[str, list[Any]]:
    """The dtype and the values of the result of each case."""
    computed = {name: np.asarray(case()) for name, case in cases(tf).items()}
    return {name: [str(value.dtype), value.tolist()] for name, value in computed.items()}


if __name__ == "__main__":
    import tensorflow

    print(json.dumps(results(tensorflow), separators=(",", ":")))
