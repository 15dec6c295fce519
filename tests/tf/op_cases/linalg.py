"""Linear algebra and clipping."""

from __future__ import annotations

import numpy as np

from tf.op_cases import case, f, i

A = f([[4, 1], [1, 3]])
B = f([[1, 2], [3, 5]])
R = f([[1, 2, 3], [4, 5, 6]])
V = f(1, 2)
C = np.array([[1, 1j], [0, 2]], np.complex64)
LOW = np.linalg.cholesky(A)


def _decomposes(result):
    values, vectors = (np.asarray(one) for one in result)
    return np.allclose(vectors @ np.diag(values) @ vectors.T, A, atol=1e-5) and values[0] <= values[1]


def _orthogonal(result):
    q, r = (np.asarray(one) for one in result)
    return np.allclose(q @ r, R.T, atol=1e-5) and np.allclose(q.T @ q, np.eye(2), atol=1e-5)


def _singular(result):
    s, u, v = (np.asarray(one) for one in result)
    return np.allclose(u @ np.diag(s) @ v.T, R, atol=1e-5)


def _factors(result):
    packed, order = (np.asarray(one) for one in result)
    low, up = np.tril(packed, -1) + np.eye(2), np.triu(packed)
    return np.allclose(low @ up, B[order], atol=1e-5)


def _general(result):
    values, vectors = (np.asarray(one) for one in result)
    return np.allclose(B @ vectors, vectors * values, atol=1e-5) and values.dtype == np.complex64


GRID = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
INSIDE = np.tri(3, 4, -2) + (1 - np.tri(3, 4, 2)) > 0  # all elements but the diagonals from -1 to 2
# The diagonals from -1 to 2 of GRID, recorded with TensorFlow 2.21.
ALIGNED = {
    "RIGHT_LEFT": [[0, 3, 8], [2, 7, 12], [1, 6, 11], [5, 10, 0]],
    "LEFT_RIGHT": [[3, 8, 0], [2, 7, 12], [1, 6, 11], [0, 5, 10]],
    "LEFT_LEFT": [[3, 8, 0], [2, 7, 12], [1, 6, 11], [5, 10, 0]],
    "RIGHT_RIGHT": [[0, 3, 8], [2, 7, 12], [1, 6, 11], [0, 5, 10]],
}

CASES = [
    case("linalg.eig", _general, B),
    case("linalg.eigvals", lambda found: np.allclose(np.sort(np.asarray(found).real), np.linalg.eigvals(B)), B),
    case("linalg.adjoint", C.conj().T, C),
    case("linalg.cholesky", LOW, A),
    case("linalg.cholesky", LOW, f([[4, 9], [1, 3]])),  # what is above the diagonal is not read
    case("linalg.cross", [-3, 6, -3], f(1, 2, 3), f(4, 5, 6)),
    case("linalg.det", np.float32(11.0), A),
    case("linalg.eigh", _decomposes, A),
    case("linalg.eigh", _decomposes, f([[4, 9], [1, 3]])),
    case("linalg.eigvalsh", np.linalg.eigvalsh(A), A),
    case("linalg.eigvalsh", np.linalg.eigvalsh(A), f([[4, 9], [1, 3]])),
    case("linalg.expm", [[np.e, 0], [0, 1]], f([[1, 0], [0, 0]])),
    case("linalg.inv", np.linalg.inv(A), A),
    case("linalg.inv", np.linalg.inv(C).conj().T, C, adjoint=True),
    case("linalg.logdet", np.log(11.0), A),
    case("linalg.lu", _factors, B),
    case("linalg.slogdet", [-1.0, 0.0], B, rtol=1e-4),
    case("matmul", B @ A, B, A),
    case("matmul", R @ R.T, R, R, transpose_b=True),
    case("matmul", R.T @ R, R, R, transpose_a=True),
    case(
        "matmul",
        np.full((2, 2), 30000, np.int32),
        *[np.full((2, 3), 100, np.int8)] * 2,
        transpose_b=True,
        output_type=np.int32,
    ),
    case("matmul", C.conj().T @ C, C, C, adjoint_a=True),
    case("matmul", [[[7, 10], [15, 22]]], f([[[1, 2], [3, 4]]]), f([[1, 2], [3, 4]])),
    case("linalg.matvec", B @ V, B, V),
    case("linalg.matvec", B.T @ V, B, V, transpose_a=True),
    case("linalg.matrix_transpose", R.T, R),
    case("einsum", B @ A, "ij,jk->ik", B, A),
    case("einsum", 7.0, "ii->", A),
    case("tensordot", B @ A, B, A, axes=1),
    case("tensordot", np.sum(A * B), A, B, axes=[[0, 1], [0, 1]]),
    case("linalg.diag", [[[1, 0], [0, 2]], [[3, 0], [0, 4]]], f([[1, 2], [3, 4]])),
    case("linalg.diag", [[0, 1, 0], [0, 0, 2], [0, 0, 0]], V, k=1),
    case("linalg.diag", [[9, 9, 9], [1, 9, 9], [9, 2, 9]], V, k=-1, padding_value=9.0),
    case("linalg.diag_part", [1, 5], R),
    case("linalg.diag_part", [2, 6], R, k=1),
    case("linalg.set_diag", [[7, 2, 3], [4, 8, 6]], R, f(7, 8)),
    # Bands of diagonals: values recorded with TensorFlow 2.21.
    case("linalg.diag", [[4, 2, 0], [0, 5, 3], [0, 0, 0]], i([[1, 2, 3], [4, 5, 0]]), k=(0, 1)),
    case("linalg.diag", [[1, 0, 0], [5, 2, 0], [0, 6, 3]], i([[1, 2, 3], [4, 5, 6]]), k=(-1, 0), align="LEFT_RIGHT"),
    case(
        "linalg.diag",
        [[4, 1, 9, 9], [9, 5, 2, 9], [9, 9, 6, 3]],
        i([[1, 2, 3], [4, 5, 6]]),
        k=(0, 1),
        num_rows=3,
        num_cols=4,
        padding_value=9,
    ),
    case("linalg.diag", [[0, 0], [1, 0], [0, 2]], V, k=-1, num_rows=3),
    case("linalg.diag", [[0, 1, 0], [0, 0, 2]], V, k=1, num_cols=3),
    case("linalg.diag_part", [[2, 6], [1, 5], [4, 9]], R, k=(-1, 1), padding_value=9.0),
    *[case("linalg.diag_part", packed, GRID, k=(-1, 2), align=align) for align, packed in ALIGNED.items()],
    *[
        case("linalg.set_diag", GRID, GRID * INSIDE, f(packed), k=(-1, 2), align=align)
        for align, packed in ALIGNED.items()
    ],
    case("linalg.tensor_diag", [[1, 0], [0, 2]], V),
    case("linalg.tensor_diag_part", [[0, 5], [10, 15]], np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)),
    case("linalg.band_part", [[1, 2, 0], [4, 5, 6]], R, 1, 1),
    case("linalg.band_part", [[1, 2, 3], [0, 5, 6]], R, 0, -1),
    case("linalg.trace", 7.0, A),
    case("linalg.solve", np.linalg.solve(B, A), B, A, rtol=1e-4),
    case("linalg.solve", np.linalg.solve(B.T, A), B, A, adjoint=True, rtol=1e-4),
    case("linalg.triangular_solve", np.linalg.solve(LOW, B), LOW, B),
    case("linalg.triangular_solve", np.linalg.solve(LOW.T, B), LOW, B, adjoint=True),
    case("linalg.cholesky_solve", np.linalg.solve(A, B), LOW, B, rtol=1e-4),
    *[
        case(f"linalg.{name}", np.stack([np.linalg.solve(one, B)] * count), np.stack([LOW] * count), B, rtol=1e-4)
        for name, one in {"triangular_solve": LOW, "cholesky_solve": A}.items()
        for count in (1, 2, 3)
    ],
    case("linalg.lstsq", np.linalg.lstsq(R.T, f([[1], [2], [4]]), rcond=None)[0], R.T, f([[1], [2], [4]]), rtol=1e-2),
    case(
        "linalg.lstsq",
        np.linalg.lstsq(R.T, f([[1], [2], [4]]), rcond=None)[0],
        R.T,
        f([[1], [2], [4]]),
        fast=False,
        rtol=1e-3,
    ),
    case("linalg.pinv", np.linalg.pinv(R), R, rtol=1e-3),
    case("linalg.qr", _orthogonal, R.T),
    case("linalg.svd", _singular, R),
    case("linalg.svd", np.linalg.svd(R, compute_uv=False), R, compute_uv=False),
    case("linalg.matrix_rank", 1, f([[1, 2], [2, 4]])),
    case("norm", np.sqrt(91.0), R),
    case("norm", [6, 15], R, ord=1, axis=1),
    case("norm", [4, 5, 6], R, ord=np.inf, axis=0),
    case("norm", [[5.0]], f([[3, 4]]), axis=1, keepdims=True),
    case("linalg.normalize", ([[0.6, 0.8]], [[5.0]]), f([[3, 4]])),
    case("linalg.global_norm", 13.0, [f(3, 4), None, f([12.0])]),
    case("linalg.global_norm", 13.0, [np.complex64([3 + 4j]), f([12.0])]),  # TensorFlow refuses complex tensors
    case("clip_by_value", [[-1, -1], [0, 1]], f([[-10, -1], [0, 10]]), clip_value_min=-1, clip_value_max=1),
    case("clip_by_value", [2, 3], f(1, 5), f(2, 2), f(3, 3)),
    case("clip_by_value", [1, 200], np.array([1, 200], np.uint8), -1, 256),
    case("clip_by_value", [1, 3], i(0, 5), 0.9, 3.5),
    case("clip_by_norm", [0.6, 0.8], f(3, 4), 1.0),
    case("clip_by_norm", [3, 4], f(3, 4), 10.0),
    case("clip_by_norm", [[0.6, 0.8], [0.1, 0]], f([[3, 4], [0.1, 0]]), 1.0, axes=[1]),
    case("clip_by_norm", [0, 0], f(0, 0), 1.0),
    case("clip_by_norm", [0, 0], f(3, 4), 0.0),
    case("clip_by_norm", np.array([0.6 + 0.8j, 0]), np.complex64([3 + 4j, 0]), 1.0),
    case("clip_by_norm", np.array([[0.6 + 0.8j], [0.1j]]), np.complex64([[3 + 4j], [0.1j]]), 1.0, axes=[1]),
    case("clip_by_global_norm", ([np.array([0.3 + 0.4j]), [1.2]], 13.0), [np.complex64([3 + 4j]), f([12.0])], 1.3),
    case("clip_by_global_norm", ([[0.3, 0.4], None, [1.2]], 13.0), [f(3, 4), None, f([12.0])], 1.3),
    case("clip_by_global_norm", ([[0, 0], None, [0]], 13.0), [f(3, 4), None, f([12.0])], 0.0),
    case("clip_by_global_norm", ([[0, 0]], 5.0), [f(3, 4)], 0),
    case("clip_by_global_norm", ([[0, 0]], 0.0), [f(0, 0)], 2.0),
    case("clip_by_global_norm", ([[3, 4]], 5.0), [f(3, 4)], 10),
    case("linalg.tridiagonal_matmul", [[5], [13], [8]], [f(1, 2, 0), f(3, 4, 3), f(0, 1, 1)], f([[1], [2], [2]])),
]
