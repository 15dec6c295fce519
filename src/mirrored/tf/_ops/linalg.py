"""`tf.linalg`: matrix products, decompositions and norms, `tf.einsum` and `tf.tensordot`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from mirrored._typing import Array, DTypeLike, HostArray, Operand, StaticInts
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._static import static_axis
from mirrored.tf._table import op, reported, rows, tensors
from mirrored.tf._tensors import as_tensor

_Axes: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Array | HostArray


def _swap(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(_swap(x))


def _lu(x: jax.Array) -> Any:
    packed, pivots, permutation = jax.lax.linalg.lu(x)
    del pivots
    return packed, permutation


rows(
    {
        "linalg.adjoint": ("matrix", _adjoint),
        "linalg.cholesky": ("input", jnp.linalg.cholesky),
        "linalg.cross": ("a b", jnp.cross),
        "linalg.det": ("input", jnp.linalg.det),
        "linalg.eigh": ("tensor", jnp.linalg.eigh),
        "linalg.eigvalsh": ("tensor", jnp.linalg.eigvalsh),
        "linalg.expm": ("input", jsl.expm),
        "linalg.inv": ("input", jnp.linalg.inv),
        "linalg.logdet": ("matrix", lambda matrix: jnp.linalg.slogdet(matrix)[1]),
        "linalg.lu": ("input", _lu),
        "linalg.slogdet": ("input", jnp.linalg.slogdet),
    }
)


@op("matmul linalg.matmul")
def matmul(
    a: Operand,
    b: Operand,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: DTypeLike | None = None,
    grad_a: bool = False,
    grad_b: bool = False,
) -> jax.Array:
    """Multiplies matrices in the last two axes of tensors; leading axes broadcast.

    Args:
        a: The left matrices.
        b: The right matrices.
        transpose_a: Whether to transpose `a`.
        transpose_b: Whether to transpose `b`.
        adjoint_a: Whether to transpose and conjugate `a`.
        adjoint_b: Whether to transpose and conjugate `b`.
        a_is_sparse: Ignored.
        b_is_sparse: Ignored.
        output_type: The dtype in which products are summed and returned, for instance int32 for int8 matrices.
        grad_a: Ignored.
        grad_b: Ignored.
    """
    del a_is_sparse, b_is_sparse, grad_a, grad_b
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("Only one of `transpose` and `adjoint` can be True for a side of tf.matmul.")
    left, right = tensors(a, b)
    with reported("tf.matmul", [left, right]):
        if min(left.ndim, right.ndim) < 2:
            raise ValueError("both sides must have at least two dimensions (tf.linalg.matvec multiplies by a vector)")
        left = _swap(left) if transpose_a else _adjoint(left) if adjoint_a else left
        right = _swap(right) if transpose_b else _adjoint(right) if adjoint_b else right
        kind = None if output_type is None else array_dtype(output_type)
        return jnp.matmul(left, right, preferred_element_type=kind)


@op("linalg.matvec")
def matvec(
    a: Operand,
    b: Operand,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
) -> jax.Array:
    """Multiplies matrices in the last two axes of a tensor by vectors in the last axis of another."""
    del a_is_sparse, b_is_sparse
    return matmul(a, as_tensor(b)[..., None], transpose_a=transpose_a, adjoint_a=adjoint_a)[..., 0]


@op("linalg.matrix_transpose")
def matrix_transpose(a: Operand, name: str | None = None, conjugate: bool = False) -> jax.Array:
    """Transposes the last two axes of a tensor."""
    return _adjoint(as_tensor(a)) if conjugate else _swap(as_tensor(a))


@op("einsum linalg.einsum")
def einsum(equation: str, *inputs: Operand, **kwargs: object) -> jax.Array:
    """Computes a tensor contraction given by an Einstein summation equation, such as ``"ij,jk->ik"``."""
    unknown = set(kwargs) - {"name", "optimize"}
    if unknown:
        raise TypeError(f"Invalid keyword arguments for this function: {', '.join(sorted(unknown))}")
    values = tensors(*inputs)
    with reported("tf.einsum", values):
        return jnp.einsum(equation, *values)


@op("tensordot linalg.tensordot")
def tensordot(a: Operand, b: Operand, axes: _Axes) -> jax.Array:
    """Computes the contraction of two tensors over given pairs of axes."""
    left, right = tensors(a, b)
    pairs = np.asarray(axes).tolist() if not isinstance(axes, (int, list, tuple)) else axes
    with reported("tf.tensordot", [left, right]):
        return jnp.tensordot(left, right, axes=pairs)


@op("linalg.diag")
def diag(
    diagonal: Operand,
    name: str | None = None,
    k: int = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: Operand = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Returns matrices that have given elements on the `k`-th diagonal, and zeros elsewhere by default.

    A positive `k` is above the main diagonal, a negative one below.
    """
    del align
    values = as_tensor(diagonal)
    side = values.shape[-1] + abs(k)
    rows_, columns = (side if num_rows < 0 else num_rows), (side if num_cols < 0 else num_cols)
    index = np.arange(values.shape[-1])
    out = jnp.full((*values.shape[:-1], rows_, columns), jnp.asarray(padding_value, values.dtype))
    return out.at[..., index + max(-k, 0), index + max(k, 0)].set(values)


@op("linalg.diag_part")
def diag_part(
    input: Operand, name: str | None = None, k: int = 0, padding_value: object = 0, align: str = "RIGHT_LEFT"
) -> jax.Array:
    """Returns the elements on the `k`-th diagonal of matrices.

    A positive `k` is above the main diagonal, a negative one below.
    """
    del padding_value, align
    return jnp.diagonal(as_tensor(input), offset=k, axis1=-2, axis2=-1)  # type: ignore[no-any-return]


@op("linalg.set_diag")
def set_diag(
    input: Operand, diagonal: Operand, name: str | None = None, k: int = 0, align: str = "RIGHT_LEFT"
) -> jax.Array:
    """Returns matrices in which the `k`-th diagonal is replaced by given elements.

    A positive `k` is above the main diagonal, a negative one below.
    """
    del align
    value = as_tensor(input)
    index = np.arange(as_tensor(diagonal).shape[-1])
    return value.at[..., index + max(-k, 0), index + max(k, 0)].set(as_tensor(diagonal))


@op("linalg.tensor_diag")
def tensor_diag(diagonal: Operand) -> jax.Array:
    """Returns a tensor of twice the rank that has given elements on its diagonal, and zeros elsewhere."""
    values = as_tensor(diagonal)
    return jnp.diag(values.reshape(-1)).reshape(values.shape * 2)


@op("linalg.band_part")
def band_part(input: Operand, num_lower: Operand, num_upper: Operand) -> jax.Array:
    """Returns matrices in which elements outside a band around the main diagonal are set to zero.

    The band has `num_lower` subdiagonals and `num_upper` superdiagonals; -1 keeps all of them.
    """
    value = as_tensor(input)
    row, column = np.indices(value.shape[-2:])
    keep = ((num_lower < 0) | (row - column <= num_lower)) & ((num_upper < 0) | (column - row <= num_upper))
    return jnp.where(keep, value, 0)


@op("linalg.trace")
def trace(x: Operand) -> jax.Array:
    """Computes the sum of the main diagonal of matrices in the last two axes."""
    return jnp.trace(as_tensor(x), axis1=-2, axis2=-1)


@op("linalg.solve")
def solve(matrix: Operand, rhs: Operand, adjoint: bool = False) -> jax.Array:
    """Solves the linear systems ``matrix @ x = rhs`` for x."""
    left, right = tensors(matrix, rhs)
    with reported("tf.linalg.solve", [left, right]):
        return jnp.linalg.solve(_adjoint(left) if adjoint else left, right)  # type: ignore[no-any-return]


@op("linalg.triangular_solve")
def triangular_solve(matrix: Operand, rhs: Operand, lower: bool = True, adjoint: bool = False) -> jax.Array:
    """Solves the linear systems ``matrix @ x = rhs`` for x, with triangular matrices."""
    left, right = tensors(matrix, rhs)
    return jsl.solve_triangular(left, right, lower=lower, trans="C" if adjoint else "N")


@op("linalg.cholesky_solve")
def cholesky_solve(chol: Operand, rhs: Operand) -> jax.Array:
    """Solves the linear systems ``A @ x = rhs`` for x, given the Cholesky factor of A."""
    factor, right = tensors(chol, rhs)
    return jsl.cho_solve((factor, True), right)


@op("linalg.lstsq")
def lstsq(matrix: Operand, rhs: Operand, l2_regularizer: float = 0.0, fast: bool = True) -> jax.Array:
    """Solves the (regularized) linear least-squares problem ``min |matrix @ x - rhs|`` for x.

    With `fast` or a regularizer, it solves the normal equations.
    """
    left, right = tensors(matrix, rhs)
    if not fast and not l2_regularizer:
        return jnp.linalg.lstsq(left, right)[0]
    gram = _adjoint(left) @ left + l2_regularizer * jnp.eye(left.shape[-1], dtype=left.dtype)
    return jnp.linalg.solve(gram, _adjoint(left) @ right)  # type: ignore[no-any-return]


@op("linalg.pinv")
def pinv(a: Operand, rcond: Operand = None, validate_args: bool = False) -> jax.Array:
    """Computes the Moore-Penrose pseudo-inverse of matrices."""
    del validate_args
    return jnp.linalg.pinv(as_tensor(a), rtol=rcond)


class QR(NamedTuple):
    """The result of `tf.linalg.qr`: an orthogonal matrix q and an upper triangular matrix r."""

    q: jax.Array
    r: jax.Array


@op("linalg.qr")
def qr(input: Operand, full_matrices: bool = False) -> QR:
    """Computes the QR decomposition of matrices."""
    return QR(*jnp.linalg.qr(as_tensor(input), mode="complete" if full_matrices else "reduced"))


@op("linalg.svd")
def svd(tensor: Operand, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """Computes the singular value decomposition of matrices: singular values s, and matrices u and v.

    As in TensorFlow, v itself is returned, of which NumPy returns the adjoint. With ``compute_uv=False``, s alone
    is returned.
    """
    value = as_tensor(tensor)
    if not compute_uv:
        return jnp.linalg.svd(value, compute_uv=False)
    u, s, vh = jnp.linalg.svd(value, full_matrices=full_matrices)
    return s, u, _adjoint(vh)


@op("linalg.matrix_rank")
def matrix_rank(a: Operand, tol: Operand = None, validate_args: bool = False) -> jax.Array:
    """Computes the rank of matrices: the number of singular values above a tolerance."""
    del validate_args
    return jnp.linalg.matrix_rank(as_tensor(a), tol).astype(jnp.int32)  # type: ignore[no-any-return]


@op("norm linalg.norm")
def norm(
    tensor: Operand, ord: Any = "euclidean", axis: StaticInts | None = None, keepdims: bool | None = None
) -> jax.Array:
    """Computes the norm of vectors (one axis), of matrices (two axes) or of all elements (axis None)."""
    value, where = as_tensor(tensor), static_axis(axis, called="tf.norm")
    keep = bool(keepdims)
    if ord in ("euclidean", "fro") or (ord == 2 and not isinstance(where, tuple)):
        return jnp.sqrt(jnp.sum(jnp.real(value * jnp.conj(value)), axis=where, keepdims=keep))
    if isinstance(where, tuple) and len(where) == 2:
        return jnp.linalg.norm(value, ord=ord, axis=where, keepdims=keep)  # type: ignore[no-any-return]
    size = jnp.abs(value)
    if ord == np.inf:
        return jnp.max(size, axis=where, keepdims=keep)
    return jnp.sum(size**ord, axis=where, keepdims=keep) ** (1.0 / ord)  # type: ignore[no-any-return]


@op("linalg.normalize")
def normalize(
    tensor: Operand, ord: str | float = "euclidean", axis: StaticInts | None = None
) -> tuple[jax.Array, jax.Array]:
    """Divides a tensor by its norm, and returns the result and the norm."""
    length = norm(tensor, ord=ord, axis=axis, keepdims=True)
    return as_tensor(tensor) / length, length


@op("linalg.global_norm")
def global_norm(t_list: Iterable[Operand]) -> jax.Array:
    """Computes the Euclidean norm of all elements of a list of tensors; None entries are skipped."""
    squares = [jnp.sum(jnp.square(as_tensor(one))) for one in t_list if one is not None]
    return jnp.sqrt(sum(squares[1:], squares[0])) if squares else as_tensor(0.0)


@op("clip_by_value")
def clip_by_value(t: Operand, clip_value_min: Operand, clip_value_max: Operand) -> jax.Array:
    """Clips each element of a tensor to the range between two values."""
    value = as_tensor(t)
    low, high = as_tensor(clip_value_min).astype(value.dtype), as_tensor(clip_value_max).astype(value.dtype)
    with reported("tf.clip_by_value", [value, low, high]):
        return jnp.clip(value, low, high)


@op("clip_by_norm")
def clip_by_norm(t: Operand, clip_norm: Operand, axes: StaticInts | None = None) -> jax.Array:
    """Scales a tensor down so that its L2 norm is at most `clip_norm`."""
    value = as_tensor(t)
    square = jnp.sum(
        jnp.square(value), axis=static_axis(axes, called="tf.clip_by_norm", argument="axes"), keepdims=True
    )
    positive = square > 0
    length = jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), square)
    return value * clip_norm / jnp.maximum(length, clip_norm)  # type: ignore[no-any-return]


@op("clip_by_global_norm")
def clip_by_global_norm(
    t_list: Sequence[Operand], clip_norm: Operand, use_norm: Operand = None
) -> tuple[list[jax.Array | None], jax.Array]:
    """Scales tensors down by one common factor so that their global norm is at most `clip_norm`.

    Returns the tensors, and the global norm before.
    """
    length = global_norm(t_list) if use_norm is None else as_tensor(use_norm)
    bound = as_tensor(clip_norm).astype(length.dtype)  # an array: the quotient by a Python zero raises an exception
    scale = bound * jnp.minimum(1.0 / length, 1.0 / bound)
    scale = jnp.where(jnp.isfinite(length), scale, jnp.nan)
    return [None if one is None else as_tensor(one) * scale.astype(as_tensor(one).dtype) for one in t_list], length


@op("linalg.tridiagonal_matmul")
def tridiagonal_matmul(diagonals: Iterable[Operand], rhs: Operand, diagonals_format: str = "sequence") -> jax.Array:
    """Multiplies a tridiagonal matrix, given by its three diagonals, by the matrix `rhs`."""
    if diagonals_format != "sequence":
        raise ValueError("mirrored.tf supports only diagonals_format='sequence': pass (superdiag, maindiag, subdiag)")
    upper, main, lower = (as_tensor(one) for one in diagonals)
    right = as_tensor(rhs)
    zero = jnp.zeros_like(right[..., :1, :])
    after = jnp.concatenate([right[..., 1:, :], zero], axis=-2)
    before = jnp.concatenate([zero, right[..., :-1, :]], axis=-2)
    return upper[..., None] * after + main[..., None] * right + lower[..., None] * before
