"""`tf.nn`: activations, losses, convolutions, pooling. Convolutions are checked against loops in NumPy."""

from __future__ import annotations

import math

import numpy as np

from tf.op_cases import case, f, i

X = f(-2.0, -0.5, 0.0, 1.5)
SIG = 1 / (1 + np.exp(-X))
LOGITS = f([[1, 2, 3], [1, 0, -1]])
SOFT = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
HOT = f([[0, 0, 1], [1, 0, 0]])
IMAGE = np.arange(2 * 5 * 4 * 2, dtype=np.float32).reshape(2, 5, 4, 2) / 10
KERNEL = (np.arange(3 * 2 * 2 * 3, dtype=np.float32).reshape(3, 2, 2, 3) - 10) / 10
LINE = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
VOLUME = np.arange(27, dtype=np.float32).reshape(1, 3, 3, 3, 1)


def convolved(x, w, strides, padding, dilation=1):
    """Cross-correlation over [n, *space, c] with [*space, in, out], by loops."""
    rank = w.ndim - 2
    reach = [(w.shape[d] - 1) * dilation + 1 for d in range(rank)]
    pads = [(0, 0)]
    for d in range(rank):
        out = -(-x.shape[1 + d] // strides[d])
        total = max((out - 1) * strides[d] + reach[d] - x.shape[1 + d], 0) if padding == "SAME" else 0
        pads.append((total // 2, total - total // 2))
    x = np.pad(x, [*pads, (0, 0)])
    sizes = [(x.shape[1 + d] - reach[d]) // strides[d] + 1 for d in range(rank)]
    out = np.zeros((x.shape[0], *sizes, w.shape[-1]), np.float32)
    for place in np.ndindex(*sizes):
        for tap in np.ndindex(*w.shape[:rank]):
            where = tuple(p * s + t * dilation for p, s, t in zip(place, strides, tap, strict=True))
            out[(slice(None), *place)] += x[(slice(None), *where)] @ w[tap]
    return out


def transposed(x, w, shape, strides, padding):
    """The transpose of `convolved`, by scattering: filters are [*space, out, in]."""
    rank = w.ndim - 2
    lows = []
    for d in range(rank):
        total = max((x.shape[1 + d] - 1) * strides[d] + w.shape[d] - shape[1 + d], 0) if padding == "SAME" else 0
        lows.append(total // 2)
    out = np.zeros(shape, np.float32)
    for place in np.ndindex(*x.shape[1 : 1 + rank]):
        for tap in np.ndindex(*w.shape[:rank]):
            where = tuple(p * s + t - low for p, s, t, low in zip(place, strides, tap, lows, strict=True))
            if all(0 <= one < size for one, size in zip(where, shape[1:], strict=False)):
                out[(slice(None), *where)] += x[(slice(None), *place)] @ w[tap].T
    return out


def pooled(x, size, stride, reduce):
    out = np.zeros((x.shape[0], (x.shape[1] - size) // stride + 1, (x.shape[2] - size) // stride + 1, x.shape[3]))
    for r, c in np.ndindex(*out.shape[1:3]):
        out[:, r, c] = reduce(x[:, r * stride : r * stride + size, c * stride : c * stride + size], axis=(1, 2))
    return out


MEAN, VARIANCE = IMAGE.mean((0, 1, 2)), IMAGE.var((0, 1, 2))
WEIGHTS = f(1, 2, 1, 0)

CASES = [
    case("nn.crelu", [0, 1, 2, 0], f(-2, 1)),
    case("nn.elu", np.where(X > 0, X, np.expm1(X)), X),
    case("nn.gelu", [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in X], X),
    case("nn.gelu", [-0.04540231, -0.15428593, 0, 1.3995716], X, approximate=True, rtol=1e-4),
    case("nn.leaky_relu", [-0.4, -0.1, 0, 1.5], X),
    case("nn.leaky_relu", [-1, -0.25, 0, 1.5], X, alpha=0.5),
    case("nn.leaky_relu", [-1, -0.25, 0, 1.5], X, alpha=np.array(0.5)),
    case("nn.leaky_relu", [-1.0, 3.0], i(-2, 3), alpha=0.5),
    case("nn.log_softmax", np.log(SOFT), LOGITS),
    case("nn.relu", [0, 0, 0, 1.5], X),
    case("nn.relu6", [0, 6, 3], f(-1, 9, 3)),
    case("nn.selu", 1.05070098 * np.where(X > 0, X, 1.67326324 * np.expm1(X)), X),
    case("nn.softmax", SOFT, LOGITS),
    case("nn.softmax", SOFT.T, LOGITS.T.copy(), axis=0),
    case("nn.softplus", np.log1p(np.exp(X)), X),
    case("nn.softsign", X / (1 + np.abs(X)), X),
    case("nn.sigmoid", SIG, X),
    case("math.log_sigmoid", np.log(SIG), X),
    case("nn.silu", X * SIG, X),
    case("nn.silu", X / (1 + np.exp(-2 * X)), X, beta=2.0),
    case("nn.bias_add", LOGITS + f(1, 2, 3), LOGITS, f(1, 2, 3)),
    case("nn.bias_add", IMAGE + f(1, 2, 3, 4, 5)[:, None, None], IMAGE, f(1, 2, 3, 4, 5), data_format="NCHW"),
    case("nn.l2_loss", 7.0, f(1, 2, 3)),
    case("nn.l2_loss", 15.0, np.complex64([3 + 4j, 1 - 2j])),  # TensorFlow refuses complex tensors
    case("nn.l2_normalize", [0.6, 0.8], f(3, 4)),
    case("nn.l2_normalize", [[0.6, 0.8], [0, 1]], f([[3, 4], [0, 2]]), axis=1),
    case("nn.moments", [MEAN, VARIANCE], IMAGE, [0, 1, 2], rtol=1e-4),
    case("nn.weighted_moments", [2.0, 0.5], f(1, 2, 3, 9), [0], WEIGHTS),
    case("nn.weighted_moments", [1 + 1j, 1 + 0j], np.complex64([1, 1 + 2j]), [0], f(1, 1)),
    case(
        "nn.batch_normalization",
        (IMAGE - MEAN) / np.sqrt(VARIANCE + 1e-3) * 2 + 1,
        IMAGE,
        MEAN,
        VARIANCE,
        f(1, 1),
        f(2, 2),
        1e-3,
    ),
    case("nn.batch_normalization", (X - 1) / 2, X, 1.0, 4.0, None, None, 0.0),
    case(
        "nn.local_response_normalization",
        [[[[1 / math.sqrt(1 + 1 + 4), 2 / math.sqrt(1 + 1 + 4 + 9), 3 / math.sqrt(1 + 4 + 9)]]]],
        f([[[[1, 2, 3]]]]),
        depth_radius=1,
    ),
    case("nn.embedding_lookup", [[3, 4], [1, 2], [3, 4]], f([[1, 2], [3, 4]]), i(1, 0, 1)),
    case("nn.embedding_lookup", [[1, 2]], [f([[1, 2], [3, 4]])], i([0])),
    case("nn.embedding_lookup", [[3, 4], [5, 6]], [f([[1, 2], [3, 4]]), f([[5, 6]])], i(1, 2)),
    case("nn.embedding_lookup", [[0.6, 0.8]], f([[1, 2], [3, 4]]), i([1]), max_norm=1.0),
    case("nn.space_to_depth", [[[[1, 2, 3, 4]]]], f([[[[1], [2]], [[3], [4]]]]), 2),
    case("nn.space_to_depth", [[[[1]], [[2]], [[3]], [[4]]]], f([[[[1, 2], [3, 4]]]]), 2, data_format="NCHW"),
    case("nn.depth_to_space", [[[[1], [2]], [[3], [4]]]], f([[[[1, 2, 3, 4]]]]), block_size=2),
    case("nn.softmax_cross_entropy_with_logits", -np.log(SOFT)[[0, 1], [2, 0]], labels=HOT, logits=LOGITS),
    case(
        "nn.softmax_cross_entropy_with_logits",
        [0.16984604, 0.82474494],
        f([[1, 0, 0], [0, 0.8, 0.2]]),
        f([[4, 2, 1], [0, 5, 1]]),
        rtol=1e-4,
    ),  # the documentation's example
    case("nn.sparse_softmax_cross_entropy_with_logits", -np.log(SOFT)[[0, 1], [2, 0]], i(2, 0), LOGITS),
    case(
        "nn.sigmoid_cross_entropy_with_logits",
        np.log1p(np.exp(X)) - X * 0.25,
        labels=f(0.25, 0.25, 0.25, 0.25),
        logits=X,
    ),
    case("nn.weighted_cross_entropy_with_logits", 3 * -np.log(SIG), f(1, 1, 1, 1), X, pos_weight=3.0),
    case("nn.log_poisson_loss", np.exp(X) - 2 * X, f(2, 2, 2, 2), X),
    case(
        "nn.log_poisson_loss",
        [math.exp(1) - 2 + 2 * math.log(2) - 2 + 0.5 * math.log(4 * math.pi)],
        f([2.0]),
        f([1.0]),
        compute_full_loss=True,
    ),
    case("nn.conv1d", convolved(LINE, KERNEL[:, 0], (2,), "SAME"), LINE, KERNEL[:, 0].copy(), stride=2, padding="SAME"),
    case("nn.conv2d", convolved(IMAGE, KERNEL, (1, 1), "VALID"), IMAGE, KERNEL, 1, "VALID", rtol=1e-4),
    case(
        "nn.conv2d",
        convolved(IMAGE, KERNEL, (2, 1), "SAME"),
        IMAGE,
        KERNEL,
        strides=[1, 2, 1, 1],
        padding="SAME",
        rtol=1e-4,
    ),
    case("nn.conv2d", convolved(IMAGE, KERNEL, (1, 1), "VALID", 2), IMAGE, KERNEL, 1, "VALID", dilations=2, rtol=1e-4),
    case(
        "nn.conv2d",
        convolved(np.pad(IMAGE, [(0, 0), (1, 0), (0, 2), (0, 0)]), KERNEL, (1, 1), "VALID"),
        IMAGE,
        KERNEL,
        1,
        [[0, 0], [1, 0], [0, 2], [0, 0]],
        rtol=1e-4,
    ),
    case(
        "nn.conv2d",
        convolved(IMAGE, KERNEL, (1, 1), "VALID").transpose(0, 3, 1, 2),
        IMAGE.transpose(0, 3, 1, 2).copy(),
        KERNEL,
        1,
        "VALID",
        data_format="NCHW",
        rtol=1e-4,
    ),
    case(
        "nn.conv3d",
        convolved(VOLUME, np.ones((2, 2, 2, 1, 1), np.float32), (1, 1, 1), "VALID"),
        VOLUME,
        np.ones((2, 2, 2, 1, 1), np.float32),
        [1, 1, 1, 1, 1],
        "VALID",
    ),
    case("nn.convolution", convolved(LINE, KERNEL[:, 0], (1,), "VALID"), LINE, KERNEL[:, 0].copy(), rtol=1e-4),
    case(
        "nn.atrous_conv2d",
        convolved(IMAGE, KERNEL, (1, 1), "SAME", 2),
        IMAGE,
        KERNEL,
        rate=2,
        padding="SAME",
        rtol=1e-4,
    ),
    case(
        "nn.depthwise_conv2d",
        np.concatenate(
            [convolved(IMAGE[..., c : c + 1], KERNEL[:, :, c : c + 1], (1, 1), "SAME") for c in range(2)], -1
        ),
        IMAGE,
        KERNEL,
        [1, 1, 1, 1],
        "SAME",
        rtol=1e-4,
    ),
    case(
        "nn.separable_conv2d",
        np.concatenate(
            [convolved(IMAGE[..., c : c + 1], KERNEL[:, :, c : c + 1], (1, 1), "VALID") for c in range(2)], -1
        )
        @ np.arange(12, dtype=np.float32).reshape(6, 2),
        IMAGE,
        KERNEL,
        np.arange(12, dtype=np.float32).reshape(1, 1, 6, 2),
        [1, 1, 1, 1],
        "VALID",
        rtol=1e-4,
    ),
    case(
        "nn.conv1d_transpose",
        transposed(LINE, np.ones((3, 1, 2), np.float32), (1, 12, 1), (2,), "SAME"),
        LINE,
        np.ones((3, 1, 2), np.float32),
        output_shape=[1, 12, 1],
        strides=2,
    ),
    case(
        "nn.conv2d_transpose",
        transposed(IMAGE, KERNEL.transpose(0, 1, 3, 2), (2, 10, 7, 3), (2, 2), "SAME"),
        IMAGE,
        KERNEL.transpose(0, 1, 3, 2).copy(),
        [2, 10, 7, 3],
        [1, 2, 2, 1],
        padding="SAME",
        rtol=1e-4,
    ),
    case(
        "nn.conv2d_transpose",
        transposed(IMAGE, KERNEL.transpose(0, 1, 3, 2), (2, 7, 5, 3), (1, 1), "VALID"),
        IMAGE,
        KERNEL.transpose(0, 1, 3, 2).copy(),
        [2, 7, 5, 3],
        1,
        padding="VALID",
        rtol=1e-4,
    ),
    case(
        "nn.conv3d_transpose",
        transposed(VOLUME, np.ones((2, 2, 2, 1, 1), np.float32), (1, 6, 6, 6, 1), (2, 2, 2), "SAME"),
        VOLUME,
        np.ones((2, 2, 2, 1, 1), np.float32),
        [1, 6, 6, 6, 1],
        2,
    ),
    case(
        "nn.conv_transpose",
        transposed(LINE, np.ones((3, 1, 2), np.float32), (1, 6, 1), (1,), "SAME"),
        LINE,
        np.ones((3, 1, 2), np.float32),
        [1, 6, 1],
        1,
    ),
    case("nn.max_pool1d", [[[2, 3], [6, 7], [10, 11]]], LINE, ksize=2, strides=2, padding="VALID"),
    case("nn.avg_pool1d", [[[1, 2], [5, 6], [9, 10]]], LINE, 2, 2, "SAME"),
    case("nn.avg_pool1d", [[[1.0, 2.0], [3.0, 4.0]]], f([[[0, 1], [2, 3], [3, 4]]]), 2, 2, "SAME"),
    case("nn.max_pool2d", pooled(IMAGE, 2, 1, np.max), IMAGE, [2, 2], 1, "VALID"),
    case("nn.avg_pool2d", pooled(IMAGE, 3, 1, np.mean), IMAGE, 3, [1, 1, 1, 1], "VALID"),
    case("nn.max_pool3d", [[[[[26]]]]], VOLUME, 3, 1, "VALID"),
    case("nn.avg_pool3d", [[[[[13]]]]], VOLUME, 3, 1, "VALID"),
    case("nn.max_pool", pooled(IMAGE, 2, 2, np.max), IMAGE, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"),
    case("nn.max_pool", [[[[2], [5]]]], f(range(6)).reshape(1, 1, 2, 3), [1, 1, 1, 3], [1, 1, 1, 3], "VALID"),
    case("nn.avg_pool", pooled(IMAGE, 2, 2, np.mean), IMAGE, 2, 2, padding="VALID"),
    case("nn.pool", [[[4, 5], [6, 7], [8, 9], [10, 11]]], LINE, [2], "MAX", dilations=[2]),
    case("nn.dropout", lambda y: set(np.unique(np.asarray(y))) == {0.0, 2.0}, np.ones(100, np.float32), rate=0.5),
    case("nn.dropout", X, X, rate=0.0),
    case(
        "nn.dropout",
        lambda y: all(len(set(row)) == 1 for row in np.asarray(y)),
        np.ones((20, 3), np.float32),
        0.5,
        [None, 1],
    ),
    case(
        "nn.experimental.stateless_dropout",
        lambda y: set(np.unique(np.asarray(y))) == {0.0, 4.0},
        np.ones(100, np.float32),
        0.75,
        seed=[1, 2],
    ),
]
