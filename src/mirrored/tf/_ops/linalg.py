"""`tf.linalg`: matrix products, decompositions and norms, `tf.einsum` and `tf.tensordot`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from mirrored._typing import Array, DTypeLike, HostArray, Operand
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops import kinks
from mirrored.tf._ops.math import saturate_cast, squared_magnitude
from mirrored.tf._ops.real_numbers import refuse_complex
from mirrored.tf._table import Axes, Common, op, reported, rows, tensors
from mirrored.tf._tensors import as_tensor

_Pairs: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Array | HostArray


def _swap(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(_swap(x))


def _from_lower(x: jax.Array) -> jax.Array:
    """Builds Hermitian matrices from the lower triangles of `x`; ignores the elements above the diagonal."""
    return jnp.tril(x) + _adjoint(jnp.tril(x, -1))


_hermitian: Final = jax.custom_jvp(_from_lower)
# TensorFlow's gradient of a Cholesky factor is that for changes of both triangles.
_hermitian.defjvp(lambda primals, tangents: (_hermitian(*primals), (tangents[0] + _adjoint(tangents[0])) / 2))


def _cholesky(x: jax.Array) -> jax.Array:
    """Computes the Cholesky factors of Hermitian matrices; reads the lower triangles only."""
    return jnp.linalg.cholesky(_hermitian(x))  # type: ignore[no-any-return]


def _log_determinant(matrix: jax.Array) -> jax.Array:
    """Computes log-determinants of Hermitian positive definite matrices; returns NaN for other matrices."""
    diagonal = jnp.diagonal(_cholesky(matrix), axis1=-2, axis2=-1)
    return 2 * jnp.sum(jnp.log(jnp.real(diagonal)), axis=-1)


def _eigh(x: jax.Array) -> Any:
    """Computes eigenvalues and eigenvectors of Hermitian matrices; reads the lower triangles only."""
    return jnp.linalg.eigh(_from_lower(x))


def _eigvalsh(x: jax.Array) -> jax.Array:
    """Computes the eigenvalues of Hermitian matrices; reads the lower triangles only."""
    return jnp.linalg.eigvalsh(_from_lower(x))  # type: ignore[no-any-return]


def _lu(x: jax.Array) -> Any:
    packed, _, permutation = jax.lax.linalg.lu(x)
    return packed, permutation


rows(
    {
        "linalg.adjoint": ("matrix", _adjoint),
        "linalg.cholesky": ("input", _cholesky),
        "linalg.cross": ("a b", jnp.cross),
        "linalg.det": ("input", jnp.linalg.det),
        "linalg.eigh": ("tensor", _eigh),
        "linalg.eigvalsh": ("tensor", _eigvalsh),
        "linalg.expm": ("input", jsl.expm),
        "linalg.logdet": ("matrix", _log_determinant),
        "linalg.lu": ("input", _lu),
        "linalg.pinv": ("a rcond>rtol:Any=None validate_args>=False", jnp.linalg.pinv),
        "linalg.slogdet": ("input", jnp.linalg.slogdet),
    }
)


@op("linalg.inv")
def inv(input: jax.Array, adjoint: bool = False) -> jax.Array:
    """Computes the inverses of matrices or, with `adjoint`, the inverses of the conjugate transposes."""
    return jnp.linalg.inv(_adjoint(input) if adjoint else input)  # type: ignore[no-any-return]


@op("matmul linalg.matmul")
def matmul(
    a: Common,
    b: Common,
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
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise InvalidArgumentError.of(
            "tf.matmul",
            found="a matrix is both transposed and adjoint",
            rule="only one of `transpose` and `adjoint` may be True for an operand",
            remedy="omit `transpose`: `adjoint` transposes, too",
        )
    if min(a.ndim, b.ndim) < 2:
        raise ValueError("both sides must have at least two dimensions (tf.linalg.matvec multiplies by a vector)")
    left = _swap(a) if transpose_a else _adjoint(a) if adjoint_a else a
    right = _swap(b) if transpose_b else _adjoint(b) if adjoint_b else b
    return jnp.matmul(left, right, preferred_element_type=None if output_type is None else array_dtype(output_type))


@op("linalg.matvec")
def matvec(
    a: jax.Array,
    b: jax.Array,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
) -> jax.Array:
    """Multiplies matrices in the last two axes of a tensor by vectors in the last axis of another tensor."""
    return matmul(a, b[..., None], transpose_a=transpose_a, adjoint_a=adjoint_a)[..., 0]


@op("linalg.matrix_transpose")
def matrix_transpose(a: jax.Array, name: str | None = None, conjugate: bool = False) -> jax.Array:
    """Transposes the last two axes of a tensor."""
    return _adjoint(a) if conjugate else _swap(a)


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
def tensordot(a: Common, b: Common, axes: _Pairs) -> jax.Array:
    """Computes the contraction of two tensors over given pairs of axes."""
    return jnp.tensordot(a, b, axes=axes if isinstance(axes, (int, list, tuple)) else np.asarray(axes).tolist())


@op("linalg.band_part")
def band_part(input: jax.Array, num_lower: Operand, num_upper: Operand) -> jax.Array:
    """Returns matrices in which elements outside a band around the main diagonal are set to zero.

    The band has `num_lower` subdiagonals and `num_upper` superdiagonals; -1 keeps all of them.
    """
    row, column = np.indices(input.shape[-2:])
    keep = ((num_lower < 0) | (row - column <= num_lower)) & ((num_upper < 0) | (column - row <= num_upper))
    return jnp.where(keep, input, jnp.zeros((), input.dtype))  # a Python 0 would make booleans integers


@op("linalg.trace")
def trace(x: jax.Array) -> jax.Array:
    """Computes the sum of the main diagonal of matrices in the last two axes."""
    return jnp.trace(x, axis1=-2, axis2=-1)


@op("linalg.solve")
def solve(matrix: Common, rhs: Common, adjoint: bool = False) -> jax.Array:
    """Solves the linear systems ``matrix @ x = rhs`` for x."""
    return jnp.linalg.solve(_adjoint(matrix) if adjoint else matrix, rhs)  # type: ignore[no-any-return]


def _batched_like(matrix: jax.Array, rhs: jax.Array) -> jax.Array:
    """Broadcasts `rhs` to the leading axes of `matrix`, because JAX could take `rhs` for a batch of vectors."""
    if rhs.ndim < 2 or rhs.ndim >= matrix.ndim:
        return rhs
    return jnp.broadcast_to(rhs, (*matrix.shape[: matrix.ndim - rhs.ndim], *rhs.shape))


@op("linalg.triangular_solve")
def triangular_solve(matrix: Common, rhs: Common, lower: bool = True, adjoint: bool = False) -> jax.Array:
    """Solves the linear systems ``matrix @ x = rhs`` for x, with triangular matrices."""
    return jsl.solve_triangular(matrix, _batched_like(matrix, rhs), lower=lower, trans="C" if adjoint else "N")


@op("linalg.cholesky_solve")
def cholesky_solve(chol: Common, rhs: Common) -> jax.Array:
    """Solves the linear systems ``A @ x = rhs`` for x, given the Cholesky factor of A."""
    return jsl.cho_solve((chol, True), _batched_like(chol, rhs))


@op("linalg.lstsq")
def lstsq(matrix: Common, rhs: Common, l2_regularizer: float = 0.0, fast: bool = True) -> jax.Array:
    """Solves the (regularized) linear least-squares problem ``min |matrix @ x - rhs|`` for x.

    With `fast` or a regularizer, it solves the normal equations.
    """
    if not fast and not l2_regularizer:
        return jnp.linalg.lstsq(matrix, rhs)[0]
    adjoint, (rows, columns) = _adjoint(matrix), matrix.shape[-2:]
    if rows < columns:  # the solution of the smallest norm
        gram = matrix @ adjoint + l2_regularizer * jnp.eye(rows, dtype=matrix.dtype)
        return adjoint @ jnp.linalg.solve(gram, rhs)  # type: ignore[no-any-return]
    gram = adjoint @ matrix + l2_regularizer * jnp.eye(columns, dtype=matrix.dtype)
    return jnp.linalg.solve(gram, adjoint @ rhs)  # type: ignore[no-any-return]


class QR(NamedTuple):
    """The result of `tf.linalg.qr`: an orthogonal matrix q and an upper triangular matrix r."""

    q: jax.Array
    r: jax.Array


@op("linalg.qr")
def qr(input: jax.Array, full_matrices: bool = False) -> QR:
    """Computes the QR decomposition of matrices."""
    return QR(*jnp.linalg.qr(input, mode="complete" if full_matrices else "reduced"))


@op("linalg.svd")
def svd(tensor: jax.Array, full_matrices: bool = False, compute_uv: bool = True) -> Any:
    """Computes the singular value decomposition of matrices: singular values s, and matrices u and v.

    As in TensorFlow, v itself is returned, of which NumPy returns the adjoint. With ``compute_uv=False``, s alone
    is returned.
    """
    if not compute_uv:
        return jnp.linalg.svd(tensor, compute_uv=False)
    u, s, vh = jnp.linalg.svd(tensor, full_matrices=full_matrices)
    return s, u, _adjoint(vh)


@op("linalg.matrix_rank")
def matrix_rank(a: jax.Array, tol: Operand = None, validate_args: bool = False) -> jax.Array:
    """Computes the rank of matrices: the number of singular values above a tolerance."""
    return jnp.linalg.matrix_rank(a, tol).astype(jnp.int32)  # type: ignore[no-any-return]


@op("norm linalg.norm")
def norm(tensor: jax.Array, ord: Any = "euclidean", axis: Axes = None, keepdims: bool | None = None) -> jax.Array:
    """Computes the norm of vectors (one axis), of matrices (two axes) or of all elements (axis None)."""
    kind = None if ord in ("euclidean", "fro") else ord
    # Of these norms, only the absolute values matter, whose derivative at 0 is 0 in TensorFlow and 1 in JAX.
    value = kinks.absolute(tensor) if isinstance(kind, (int, float)) and abs(kind) != 2 else tensor
    if axis is not None:
        return jnp.linalg.norm(value, kind, axis=axis, keepdims=bool(keepdims))  # type: ignore[no-any-return]
    found = jnp.linalg.norm(value.reshape(-1), kind)
    return found.reshape((1,) * tensor.ndim) if keepdims else found  # type: ignore[no-any-return]


@op("linalg.normalize")
def normalize(tensor: jax.Array, ord: str | float = "euclidean", axis: Axes = None) -> tuple[jax.Array, jax.Array]:
    """Divides a tensor by its norm, and returns the result and the norm."""
    length = norm(tensor, ord, axis, True)
    return tensor / length, length


@op("linalg.global_norm")
def global_norm(t_list: Iterable[Operand]) -> jax.Array:
    """Computes the Euclidean norm of all elements of a list of tensors; None entries are skipped."""
    squares = [jnp.sum(squared_magnitude(as_tensor(one))) for one in t_list if one is not None]
    return jnp.sqrt(sum(squares[1:], squares[0])) if squares else as_tensor(0.0)


@op("clip_by_value")
def clip_by_value(t: jax.Array, clip_value_min: jax.Array, clip_value_max: jax.Array) -> jax.Array:
    """Clips each element of a tensor to a minimum and a maximum; the minimum wins if it exceeds the maximum."""
    refuse_complex(t, clip_value_min, clip_value_max)
    highest, lowest = _bound(clip_value_max, t.dtype, jnp.floor), _bound(clip_value_min, t.dtype, jnp.ceil)
    return _of_one_shape("tf.clip_by_value", t, kinks.maximum(kinks.minimum(t, highest), lowest))


def _of_one_shape(called: str, t: jax.Array, clipped: jax.Array) -> jax.Array:
    """Returns the tensor `clipped`; raises an error if the clipping bounds broadcast `t` to a larger shape."""
    if clipped.shape == t.shape:
        return clipped
    raise InvalidArgumentError.of(
        called,
        found=f"the bounds broadcast the tensor of shape {t.shape} to {clipped.shape}",
        rule="the bounds must be scalars, or broadcast to the shape of the tensor",
        remedy="reshape the bounds with tf.reshape",
    )


def _bound(value: jax.Array, dtype: Any, rounded: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Converts a clipping bound to `dtype`; for integers, rounds it with `rounded` and clips it to their range."""
    if value.dtype == dtype or not jnp.issubdtype(dtype, jnp.integer):
        return value.astype(dtype)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return saturate_cast(value, dtype)
    most = jnp.asarray(np.iinfo(dtype).max, dtype)  # no float32 equals the maximum of int32
    return jnp.where(value >= float(np.iinfo(dtype).max), most, saturate_cast(rounded(value), dtype))


@op("clip_by_norm")
def clip_by_norm(t: jax.Array, clip_norm: Operand, axes: Axes = None) -> jax.Array:
    """Scales a tensor down so that its L2 norm is at most `clip_norm`."""
    refuse_complex(clip_norm)
    square = jnp.sum(squared_magnitude(t), axis=axes, keepdims=True)
    positive = square > 0  # the square root has no derivative at 0
    length = jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), square)
    return _of_one_shape("tf.clip_by_norm", t, t * clip_norm / kinks.maximum(length, clip_norm))


@op("clip_by_global_norm")
def clip_by_global_norm(
    t_list: Sequence[Operand], clip_norm: jax.Array, use_norm: jax.Array | None = None
) -> tuple[list[jax.Array | None], jax.Array]:
    """Scales tensors down by one common factor so that their global norm is at most `clip_norm`.

    Returns the tensors, and the global norm before.
    """
    refuse_complex(clip_norm, use_norm)
    length = global_norm(t_list) if use_norm is None else use_norm
    bound = clip_norm.astype(length.dtype)  # an array: the quotient by a Python zero raises an exception
    scale = bound * kinks.minimum(1.0 / length, 1.0 / bound)
    scale = jnp.where(jnp.isfinite(length), scale, jnp.nan)
    return [None if one is None else as_tensor(one) * scale.astype(as_tensor(one).dtype) for one in t_list], length


@op("linalg.tridiagonal_matmul")
def tridiagonal_matmul(
    diagonals: Operand | Iterable[Operand], rhs: jax.Array, diagonals_format: str = "compact"
) -> jax.Array:
    """Multiplies tridiagonal matrices, given by their three diagonals, by the matrices `rhs`.

    The superdiagonal (last entry ignored), main diagonal and subdiagonal (first entry ignored) of n rows are a tensor
    [..., 3, n], or with ``diagonals_format="sequence"`` three tensors [..., n].
    """
    if diagonals_format not in ("compact", "sequence"):
        raise InvalidArgumentError.of(
            "tf.linalg.tridiagonal_matmul",
            found=f"`diagonals_format` is {diagonals_format!r}",
            rule="`diagonals_format` must be 'compact' or 'sequence'",
            remedy="pass (superdiagonal, main diagonal, subdiagonal), each with as many entries as rows",
        )
    if diagonals_format == "compact":
        packed = as_tensor(diagonals)
        if packed.shape[-2:] != (3, rhs.shape[-2]):
            raise InvalidArgumentError.of(
                "tf.linalg.tridiagonal_matmul",
                found=f"`diagonals` has the shape {packed.shape}, `rhs` {rhs.shape}",
                rule="with diagonals_format='compact', `diagonals` must have the shape [..., 3, rows]",
                remedy="pass diagonals_format='sequence' for three tensors [..., rows]",
            )
        diagonals = [packed[..., place, :] for place in range(3)]
    upper, main, lower = (as_tensor(one) for one in diagonals)
    zero = jnp.zeros_like(rhs[..., :1, :])
    after = jnp.concatenate([rhs[..., 1:, :], zero], axis=-2)
    before = jnp.concatenate([zero, rhs[..., :-1, :]], axis=-2)
    return upper[..., None] * after + main[..., None] * rhs + lower[..., None] * before
