"""`tf.linalg`: functions that create, replace and extract diagonals of matrices."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, HostArray, Operand, StaticInts
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._static import static_ints
from mirrored.tf._table import op
from mirrored.tf._tensors import without_cutting

_ALIGNMENTS: Final = ("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT")


class _Band(NamedTuple):
    """The diagonals from `lowest` to `highest` of matrices with `rows` rows and `columns` columns.

    A packed band is [..., diagonals, longest], the highest diagonal first.
    """

    lowest: int
    highest: int
    rows: int
    columns: int
    align: str

    @property
    def longest(self) -> int:
        """The number of elements of the longest diagonal."""
        return max(0, min(self.rows + min(self.highest, 0), self.columns - max(self.lowest, 0)))

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """The shape of a matrix's packed diagonals: ``(longest,)`` for one diagonal, else ``(count, longest)``."""
        count = self.highest - self.lowest + 1
        return (self.longest,) if count == 1 else (count, self.longest)

    def start(self, offset: HostArray) -> HostArray:
        """Returns the position of a diagonal's first element in its packed row, which depends on the alignment."""
        above, below = self.align.split("_")
        length = np.minimum(self.rows + np.minimum(offset, 0), self.columns - np.maximum(offset, 0))
        right = np.where(offset >= 0, above == "RIGHT", below == "RIGHT")
        return np.where(right, self.longest - length, 0)

    def places(self) -> tuple[HostArray, HostArray, HostArray]:
        """Returns for each element of a matrix whether it is in the band, and its row and column in the packed band."""
        row, column = np.indices((self.rows, self.columns))
        offset = column - row
        inside = (offset >= self.lowest) & (offset <= self.highest)
        along = np.minimum(row, column) + self.start(offset)
        return inside, np.where(inside, self.highest - offset, 0), np.where(inside, along, 0)

    def elements(self) -> tuple[HostArray, HostArray, HostArray]:
        """Returns for each entry of the packed band whether it is used, and its row and column in the matrix."""
        number, along = np.indices((self.highest - self.lowest + 1, self.longest))
        offset = self.highest - number
        step = along - self.start(offset)
        row, column = step + np.maximum(-offset, 0), step + np.maximum(offset, 0)
        used = (step >= 0) & (row < self.rows) & (column < self.columns)
        return used, np.where(used, row, 0), np.where(used, column, 0)


def _offsets(called: str, k: StaticInts, align: str) -> tuple[int, int]:
    """Returns the offsets of the lowest and the highest diagonal that the argument `k` selects."""
    if align not in _ALIGNMENTS:
        raise InvalidArgumentError.of(
            called,
            found=f"`align` is {align!r}",
            rule=f"`align` must be one of {', '.join(_ALIGNMENTS)}",
            remedy="pass one of them",
        )
    ends = static_ints(k, called=called, argument="k")
    if len(ends) not in (1, 2) or ends[0] > ends[-1]:
        raise InvalidArgumentError.of(
            called,
            found=f"`k` is {k!r}",
            rule="`k` must be the number of a diagonal, or the lowest and the highest number of a band",
            remedy="pass for example k=0, or k=(-1, 1)",
        )
    return ends[0], ends[-1]


def _band_of(called: str, matrix: jax.Array, k: StaticInts, align: str) -> _Band:
    lowest, highest = _offsets(called, k, align)
    rows, columns = matrix.shape[-2:]
    for offset in (lowest, highest):
        if not (-rows < offset < columns or offset == 0):
            raise InvalidArgumentError.of(
                called,
                found=f"`k` is {k!r}; the matrices have {rows} rows and {columns} columns",
                rule=f"a diagonal of these matrices has a number from {1 - rows} to {columns - 1}",
                remedy="pass the number of a diagonal that the matrices have",
            )
    return _Band(lowest, highest, rows, columns, align)


def _filled(matrix: jax.Array, diagonal: jax.Array, band: _Band) -> jax.Array:
    """Returns matrices in which a band of diagonals is replaced by packed diagonals."""
    packed = diagonal.reshape((*matrix.shape[:-2], band.highest - band.lowest + 1, band.longest))
    inside, number, along = band.places()
    return jnp.where(inside, packed[..., number, along], matrix) if band.longest else matrix


def _padding(called: str, value: Operand, dtype: DTypeLike) -> jax.Array:
    if not isinstance(value, (int, float)) or value != 0:
        value = without_cutting(called, "padding_value", value, dtype)
    return jnp.asarray(value, dtype)


@op("linalg.diag")
def diag(
    diagonal: jax.Array,
    name: str | None = None,
    k: StaticInts = 0,
    num_rows: int = -1,
    num_cols: int = -1,
    padding_value: Operand = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Creates matrices that have given elements on the `k`-th diagonal, or on several diagonals.

    Args:
        diagonal: [..., length] for one diagonal, [..., diagonals, length] for several, the highest first.
        name: Ignored.
        k: The number of the diagonal, positive above the main one; or the lowest and highest of a band.
        num_rows: The number of rows; -1 means as few as fit, for square matrices if `num_cols` is also -1.
        num_cols: The number of columns.
        padding_value: The value of all other elements.
        align: To which side shorter diagonals are aligned in `diagonal`: "RIGHT_LEFT" aligns those above the main
            diagonal to the right, those below to the left.

    Raises:
        InvalidArgumentError: The sizes do not fit the diagonals.
    """
    lowest, highest = _offsets("tf.linalg.diag", k, align)
    least_rows, least_columns = diagonal.shape[-1] - min(highest, 0), diagonal.shape[-1] + max(lowest, 0)
    side = max(least_rows, least_columns)
    if num_rows == num_cols == -1:
        rows, columns = side, side
    else:
        rows, columns = (least_rows if num_rows == -1 else num_rows), (least_columns if num_cols == -1 else num_cols)
    band = _Band(lowest, highest, rows, columns, align)
    count = highest - lowest + 1
    if band.longest != diagonal.shape[-1] or (count > 1 and diagonal.shape[-2:-1] != (count,)):
        raise InvalidArgumentError.of(
            "tf.linalg.diag",
            found=f"the diagonals of shape {diagonal.shape} were passed for k={k!r} of {rows} x {columns} matrices",
            rule=f"the diagonals of such matrices have the shape [..., {', '.join(map(str, band.packed_shape))}]",
            remedy="pass as many diagonals as `k` names, or omit num_rows and num_cols",
        )
    leading = diagonal.shape[:-1] if count == 1 else diagonal.shape[:-2]
    padding = _padding("tf.linalg.diag", padding_value, diagonal.dtype)
    return _filled(jnp.full((*leading, rows, columns), padding), diagonal, band)


@op("linalg.diag_part")
def diag_part(
    input: jax.Array,
    name: str | None = None,
    k: StaticInts = 0,
    padding_value: Operand = 0,
    align: str = "RIGHT_LEFT",
) -> jax.Array:
    """Returns the elements on the `k`-th diagonal of matrices, or on several diagonals.

    Args:
        input: [..., rows, columns].
        name: Ignored.
        k: The number of the diagonal, positive above the main one; or the lowest and highest of a band, whose
            diagonals are stacked along a new axis, the highest first.
        padding_value: The value after or before the elements of shorter diagonals.
        align: To which side shorter diagonals are aligned: "RIGHT_LEFT" aligns those above the main diagonal to the
            right, those below to the left.

    Raises:
        InvalidArgumentError: The matrices do not have these diagonals.
    """
    band = _band_of("tf.linalg.diag_part", input, k, align)
    if not band.longest:
        return jnp.zeros((*input.shape[:-2], *band.packed_shape), input.dtype)
    used, row, column = band.elements()
    packed = jnp.where(used, input[..., row, column], _padding("tf.linalg.diag_part", padding_value, input.dtype))
    return packed.reshape((*input.shape[:-2], *band.packed_shape))


@op("linalg.set_diag")
def set_diag(
    input: jax.Array, diagonal: jax.Array, name: str | None = None, k: StaticInts = 0, align: str = "RIGHT_LEFT"
) -> jax.Array:
    """Returns matrices in which given elements replace the `k`-th diagonal, or several diagonals.

    Arguments are those of `diag_part`; `diagonal` has the shape of its result.

    Raises:
        InvalidArgumentError: The matrices do not have these diagonals, or `diagonal` has another shape.
    """
    band = _band_of("tf.linalg.set_diag", input, k, align)
    shape = (*input.shape[:-2], *band.packed_shape)
    if diagonal.shape != shape:
        raise InvalidArgumentError.of(
            "tf.linalg.set_diag",
            found=f"`diagonal` has the shape {diagonal.shape}, the matrices {input.shape}",
            rule=f"the diagonals k={k!r} of these matrices have the shape {shape}",
            remedy="pass all their elements; shorter diagonals are padded as `align` says",
        )
    return _filled(input, diagonal, band)


@op("linalg.tensor_diag")
def tensor_diag(diagonal: jax.Array) -> jax.Array:
    """Returns a tensor of twice the rank that has given elements on its diagonal, and zeros elsewhere."""
    return jnp.diag(diagonal.reshape(-1)).reshape(diagonal.shape * 2)


@op("linalg.tensor_diag_part")
def tensor_diag_part(input: jax.Array) -> jax.Array:
    """Returns the diagonal of a tensor of shape ``[a, ..., z, a, ..., z]``: a tensor of half the rank.

    Raises:
        InvalidArgumentError: The second half of the shape is not like the first.
    """
    half = input.ndim // 2
    if input.ndim == 0 or input.shape[:half] != input.shape[half:]:
        raise InvalidArgumentError.of(
            "tf.linalg.tensor_diag_part",
            found=f"a tensor of shape {input.shape}",
            rule="the rank must be even, and the second half of the dimensions equal to the first",
            remedy="use tf.linalg.diag_part for the diagonals of matrices",
        )
    size = math.prod(input.shape[:half])
    found: jax.Array = jnp.diagonal(input.reshape(size, size)).reshape(input.shape[:half])
    return found
