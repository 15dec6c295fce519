"""`tf.test.compute_gradient`: the Jacobians of a function by a tape and by finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import Operand
from mirrored.tape import GradientTape
from mirrored.tf._tensors import as_tensor

Matrix = np.ndarray[Any, Any]
_DELTA: Final = 1.0 / 1024


def compute_gradient(
    f: Callable[..., jax.Array], x: Sequence[Operand], delta: float | None = None
) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
    """Computes the Jacobians of a function twice: with a gradient tape, and with finite differences.

    Args:
        f: A function from tensors to a tensor.
        x: Its arguments, a list or tuple.
        delta: The step of the finite differences; 1/1024 by default.

    Returns:
        Two tuples with a matrix ``[y.size, x.size]`` per argument: by a tape, and by finite differences. A complex
        number counts as two real numbers, its real and its imaginary part.

    Raises:
        ValueError: `x` is not a list or tuple.

    Example:
        >>> import mirrored.tf as tf
        >>> by_tape, by_differences = tf.test.compute_gradient(lambda x: x * x, [tf.constant([1.0, 2.0])])
        >>> by_tape[0].tolist()
        [[2.0, 0.0], [0.0, 4.0]]

    TensorFlow: `tf.test.compute_gradient`.
    """
    if not isinstance(x, (list, tuple)):
        raise ValueError(
            f"`x` must be a list or tuple of values convertible to a Tensor (arguments to `f`), not a {type(x)}"
        )
    arguments = [as_tensor(one) for one in x]
    step = _DELTA if delta is None else delta
    numerical = tuple(_by_differences(f, arguments, place, step) for place in range(len(arguments)))
    return _by_tape(f, arguments), numerical


def _by_tape(f: Callable[..., jax.Array], arguments: list[jax.Array]) -> tuple[Matrix, ...]:
    with GradientTape() as tape:
        tape.watch(arguments)
        y = _as_reals(as_tensor(f(*arguments)))
    rows = tape.jacobian(y, arguments, unconnected_gradients="zero")
    matrices = []
    for row, argument in zip(rows, arguments, strict=True):
        matrix = np.asarray(row).reshape(y.size, argument.size)
        # JAX's gradient with respect to z = a + ib is dy/da - i dy/db.
        parts = np.stack([matrix.real, -matrix.imag], -1) if jnp.iscomplexobj(argument) else matrix
        matrices.append(parts.reshape(y.size, -1))
    return tuple(matrices)


def _by_differences(f: Callable[..., jax.Array], arguments: list[jax.Array], place: int, delta: float) -> Matrix:
    argument = np.array(arguments[place])
    columns = []
    for index in np.ndindex(argument.shape):
        for direction in (1.0, 1.0j) if np.iscomplexobj(argument) else (1.0,):
            ends = []
            for sign in (1, -1):
                moved = argument.copy()
                moved[index] += moved.dtype.type(sign * direction * delta)
                given = [*arguments[:place], jnp.asarray(moved), *arguments[place + 1 :]]
                ends.append(np.asarray(_as_reals(as_tensor(f(*given)))))
            columns.append((ends[0] - ends[1]) / (2 * delta))
    rows = _as_reals(as_tensor(f(*arguments))).size
    return np.stack(columns, -1) if columns else np.zeros((rows, 0), np.float32)


def _as_reals(y: jax.Array) -> jax.Array:
    """Flattens a tensor to a vector of real numbers; each complex number becomes its real and imaginary parts."""
    flat = jnp.ravel(y)
    return jnp.ravel(jnp.stack([flat.real, flat.imag], -1)) if jnp.iscomplexobj(flat) else flat
