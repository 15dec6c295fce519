"""`tf.linalg`: eigenvalues, matrix square roots, and solvers for factored and banded linear systems."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from mirrored._typing import Operand
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._table import Common, op, rows, tensors
from mirrored.tf._tensors import as_tensor


@jax.custom_jvp
def _root(matrix: jax.Array) -> jax.Array:
    flat = matrix.reshape((-1, *matrix.shape[-2:]))
    found = jnp.stack([_complex_root(one) for one in flat]).reshape(matrix.shape)
    if jnp.iscomplexobj(matrix):
        return found
    # A negative eigenvalue has no real root; a small one, of the size of rounding errors, is taken for 0. Both parts
    # are measured by a norm, the largest absolute row sum: the elements of a root may be smaller than it by a factor n.
    norm, imaginary = (
        jnp.max(jnp.sum(jnp.abs(one), axis=-1, keepdims=True), axis=-2, keepdims=True) for one in (found, found.imag)
    )
    rounding = 4 * np.sqrt(matrix.shape[-1] * float(np.finfo(found.real.dtype).eps))
    return jnp.where(imaginary > rounding * norm, jnp.nan, found.real)


def _complex_root(matrix: jax.Array) -> jax.Array:
    """Computes the square root of one matrix; uses eigenvalues if `sqrtm` returns NaN for a Hermitian matrix."""
    found = jsl.sqrtm(matrix)  # divides by sums of eigenvalues of the root

    def from_eigenvalues() -> jax.Array:
        values, vectors = jnp.linalg.eigh(matrix)
        root: jax.Array = (vectors * jnp.sqrt(values.astype(found.dtype))) @ jnp.conj(vectors.T)
        return root

    fails = jnp.any(jnp.isnan(found)) & jnp.all(matrix == jnp.conj(matrix.T))
    chosen: jax.Array = jax.lax.cond(fails, from_eigenvalues, lambda: found)
    return chosen


@_root.defjvp
def _root_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Computes the JVP of the matrix square root R of A: solves ``R dR + dR R = dA`` for dR."""
    root, change = _root(primals[0]), tangents[0]
    eye = jnp.eye(root.shape[-1], dtype=root.dtype)
    left = jnp.einsum("...ij,kl->...ikjl", root, eye)  # R dR
    right = jnp.einsum("ij,...lk->...ikjl", eye, root)  # dR R
    system = (left + right).reshape((*root.shape[:-2], eye.size, eye.size))
    solved = jnp.linalg.solve(system, change.reshape((*change.shape[:-2], eye.size, 1)))
    return root, solved.reshape(change.shape)


rows(
    {
        "linalg.eig eig": ("tensor", jnp.linalg.eig),
        "linalg.eigvals eigvals": ("tensor", jnp.linalg.eigvals),
        "linalg.sqrtm matrix_square_root": ("input", _root),
    }
)


@op("linalg.lu_reconstruct")
def lu_reconstruct(lower_upper: jax.Array, perm: jax.Array, validate_args: bool = False) -> jax.Array:
    """Computes matrices from their LU factors, which `tf.linalg.lu` returned."""
    lower = jnp.tril(lower_upper, -1) + jnp.eye(lower_upper.shape[-1], dtype=lower_upper.dtype)
    return _reordered(lower @ jnp.triu(lower_upper), jnp.argsort(perm, axis=-1))


@op("linalg.lu_solve")
def lu_solve(lower_upper: Common, perm: jax.Array, rhs: Common, validate_args: bool = False) -> jax.Array:
    """Solves linear systems, given the LU factors of their matrices from `tf.linalg.lu`.

    `rhs` is [..., n, right-hand sides].
    """
    # Not `jax.scipy.linalg.lu_solve`, which takes pivots in place of a permutation.
    leading = jnp.broadcast_shapes(lower_upper.shape[:-2], rhs.shape[:-2])
    packed = jnp.broadcast_to(lower_upper, (*leading, *lower_upper.shape[-2:]))
    sides = jnp.broadcast_to(rhs, (*leading, *rhs.shape[-2:]))
    order = jnp.broadcast_to(perm, packed.shape[:-1])
    between = jsl.solve_triangular(packed, _reordered(sides, order), lower=True, unit_diagonal=True)
    return jsl.solve_triangular(packed, between)


@op("linalg.lu_matrix_inverse")
def lu_matrix_inverse(lower_upper: jax.Array, perm: jax.Array, validate_args: bool = False) -> jax.Array:
    """Computes the inverses of matrices, given their LU factors from `tf.linalg.lu`."""
    return lu_solve(lower_upper, perm, jnp.eye(lower_upper.shape[-1], dtype=lower_upper.dtype))


def _reordered(matrix: jax.Array, order: jax.Array) -> jax.Array:
    return jnp.take_along_axis(matrix, order[..., None], axis=-2)


@op("linalg.tridiagonal_solve")
def tridiagonal_solve(
    diagonals: Operand,
    rhs: jax.Array,
    diagonals_format: str = "compact",
    transpose_rhs: bool = False,
    conjugate_rhs: bool = False,
    name: str | None = None,
    partial_pivoting: bool = True,
    perturb_singular: bool = False,
) -> jax.Array:
    """Solves linear systems with tridiagonal matrices.

    Args:
        diagonals: "compact": [..., 3, n]: the superdiagonal (last entry ignored), the main diagonal, the subdiagonal
            (first entry ignored). "sequence": a list of the three; the outer ones have n or n - 1 entries. "matrix":
            [..., n, n].
        rhs: [..., n] or [..., n, right-hand sides].
        diagonals_format: "compact", "sequence" or "matrix".
        transpose_rhs: Whether the last two axes of `rhs` are swapped.
        conjugate_rhs: Whether `rhs` is conjugated.
        name: Ignored.
        partial_pivoting: Ignored: XLA chooses.
        perturb_singular: Must be False.

    Raises:
        InvalidArgumentError: The format is unknown, or `perturb_singular` is set.
    """
    if perturb_singular:
        raise InvalidArgumentError.of(
            "tf.linalg.tridiagonal_solve",
            found="perturb_singular=True was passed",
            rule="`perturb_singular` must be False: mirrored does not perturb singular systems",
            remedy="omit it, and add a small number to the main diagonal of a singular system",
        )
    above, main, below = _padded_diagonals(diagonals, diagonals_format)
    vector = rhs.ndim == main.ndim and not transpose_rhs
    sides = rhs[..., None] if vector else jnp.swapaxes(rhs, -1, -2) if transpose_rhs else rhs
    sides = jnp.conj(sides) if conjugate_rhs else sides
    found = jax.lax.linalg.tridiagonal_solve(below, main, above, sides)
    return found[..., 0] if vector else found


def _padded_diagonals(diagonals: Operand, form: str) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the superdiagonal, main diagonal and subdiagonal of matrices, each zero-padded to n entries."""
    if form == "compact":
        packed = as_tensor(diagonals)
        above, main, below = packed[..., 0, :], packed[..., 1, :], packed[..., 2, :]
    elif form == "sequence":
        above, main, below = tensors(*diagonals)
    elif form == "matrix":
        matrix = as_tensor(diagonals)
        above, main, below = (jnp.diagonal(matrix, offset, -2, -1) for offset in (1, 0, -1))
    else:
        raise InvalidArgumentError.of(
            "tf.linalg.tridiagonal_solve",
            found=f"`diagonals_format` is {form!r}",
            rule='`diagonals_format` must be "compact", "sequence" or "matrix"',
            remedy="pass one of them",
        )
    size = main.shape[-1]
    above = _lengthened(above[..., : size - 1], after=1)
    below = _lengthened(below[..., below.shape[-1] - (size - 1) :], before=1)
    return above, main, below


def _lengthened(line: jax.Array, before: int = 0, after: int = 0) -> jax.Array:
    return jnp.pad(line, [(0, 0)] * (line.ndim - 1) + [(before, after)])


@op("linalg.eigh_tridiagonal")
def eigh_tridiagonal(
    alpha: Common,
    beta: Common,
    eigvals_only: bool = True,
    select: str = "a",
    select_range: Any = None,
    tol: object = None,
) -> Any:
    """Computes the eigenvalues of a Hermitian tridiagonal matrix in ascending order.

    With ``eigvals_only=False``, also computes its eigenvectors.

    Args:
        alpha: [n]: the main diagonal.
        beta: [n - 1]: the superdiagonal.
        eigvals_only: Whether to return only eigenvalues.
        select: "a" for all, "i" for those with indices in `select_range`, ends included.
        select_range: Two indices.
        tol: Ignored: the result is as exact as the dtype allows.

    Raises:
        InvalidArgumentError: `select` is neither "a" nor "i".

    TensorFlow: "v", a range of values, returns a result of unknown size; here, compute all and select from them.
    """
    if select not in ("a", "i"):
        raise InvalidArgumentError.of(
            "tf.linalg.eigh_tridiagonal",
            found=f"`select` is {select!r}",
            rule='`select` must be "a" for all eigenvalues or "i" for those with indices in select_range',
            remedy="compute all and filter them: e = tf.linalg.eigh_tridiagonal(a, b); e[(e > low) & (e <= high)]",
        )
    # Not `jax.scipy.linalg.eigh_tridiagonal`, which has no gradient and refuses a complex superdiagonal.
    matrix = jnp.diag(alpha) + jnp.diag(beta, 1) + jnp.diag(jnp.conj(beta), -1)
    kept = slice(None) if select == "a" else slice(int(select_range[0]), int(select_range[1]) + 1)
    if eigvals_only:
        return jnp.linalg.eigvalsh(matrix)[kept]
    values, vectors = jnp.linalg.eigh(matrix)
    return values[kept], vectors[:, kept]


@op("linalg.banded_triangular_solve")
def banded_triangular_solve(bands: Common, rhs: Common, lower: bool = True, adjoint: bool = False) -> jax.Array:
    """Solves linear systems with triangular matrices that have few nonzero diagonals.

    Args:
        bands: [..., k, n]. For a lower triangle, the main diagonal comes first, followed by the subdiagonals, whose
            first entries are ignored. For an upper triangle, the main diagonal comes last, after the superdiagonals,
            whose last entries are ignored.
        rhs: [..., n, right-hand sides].
        lower: Whether the triangle is the lower one.
        adjoint: Whether to solve with the adjoint.
    """
    count, size = bands.shape[-2:]
    matrix = jnp.zeros((*bands.shape[:-2], size, size), bands.dtype)
    for away in range(count):
        places = jnp.arange(size - away)
        if lower:
            matrix = matrix.at[..., places + away, places].set(bands[..., away, away:])
        else:
            matrix = matrix.at[..., places, places + away].set(bands[..., count - 1 - away, : size - away])
    leading = jnp.broadcast_shapes(matrix.shape[:-2], rhs.shape[:-2])
    matrix = jnp.broadcast_to(matrix, (*leading, size, size))
    sides = jnp.broadcast_to(rhs, (*leading, *rhs.shape[-2:]))
    return jsl.solve_triangular(matrix, sides, trans="C" if adjoint else "N", lower=lower)
