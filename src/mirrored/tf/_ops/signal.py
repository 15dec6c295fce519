"""`tf.signal`: Fourier and cosine transforms, window functions, and framing of signals."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.fft as sfft
import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from mirrored._typing import DTypeLike, HostArray, Operand
from mirrored.errors import ArgumentTypeError
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError, UnimplementedError
from mirrored.tf._table import Int, Ints, op, rows
from mirrored.tf._tensors import as_tensor


def _over(transform: Callable[..., jax.Array], rank: int) -> Callable[[jax.Array], jax.Array]:
    return lambda input: transform(input, axes=tuple(range(-rank, 0)))


rows(
    {
        "signal.fft": ("input", jnp.fft.fft),
        "signal.fft2d": ("input", _over(jnp.fft.fftn, 2)),
        "signal.fft3d": ("input", _over(jnp.fft.fftn, 3)),
        "signal.ifft": ("input", jnp.fft.ifft),
        "signal.ifft2d": ("input", _over(jnp.fft.ifftn, 2)),
        "signal.ifft3d": ("input", _over(jnp.fft.ifftn, 3)),
        "signal.fftshift": ("x axes=None", jnp.fft.fftshift),
        "signal.ifftshift": ("x axes=None", jnp.fft.ifftshift),
    }
)


def _real(name: str, transform: Callable[..., jax.Array], rank: int) -> None:
    def run(input_tensor: jax.Array, fft_length: Ints | None = None) -> jax.Array:
        return transform(input_tensor, s=fft_length, axes=tuple(range(-rank, 0)))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Computes `tf.signal.{name}` over the last {rank} axes."
    op(f"signal.{name}")(run)


for _rank, _suffix in {1: "", 2: "2d", 3: "3d"}.items():
    _real(f"rfft{_suffix}", jnp.fft.rfftn, _rank)
    _real(f"irfft{_suffix}", jnp.fft.irfftn, _rank)


# Cosine transforms are sums over x[m] of cosines at m or m + 1/2 (and k or k + 1/2 in the output).
# Source: N. Ahmed, T. Natarajan, K. R. Rao, Discrete Cosine Transform, IEEE Trans. Computers C-23, 1974; the four types
# by Fourier transforms as in J. Makhoul, A Fast Cosine Transform in One and Two Dimensions, IEEE Trans. ASSP 28, 1980.


def _type_1(x: jax.Array, orthonormal: bool) -> jax.Array:
    return jnp.fft.rfft(jnp.concatenate([x, x[..., -2:0:-1]], axis=-1)).real


def _type_2(x: jax.Array, orthonormal: bool) -> jax.Array:
    return sfft.dct(x, norm="ortho" if orthonormal else None)


def _type_3(x: jax.Array, orthonormal: bool) -> jax.Array:
    return sfft.idct(x, norm="ortho") if orthonormal else sfft.idct(x) * (2 * x.shape[-1])


def _type_4(x: jax.Array, orthonormal: bool) -> jax.Array:
    """Computes the type 4 discrete cosine transform (DCT-IV) from a DCT-II of twice the length."""
    length = x.shape[-1]
    found = _type_2(_resized(x, 2 * length), False)[..., 1::2]
    return found * (2 * length) ** -0.5 if orthonormal else found


_COSINE_TRANSFORMS = {1: _type_1, 2: _type_2, 3: _type_3, 4: _type_4}
_INVERSES = {1: 1, 2: 3, 3: 2, 4: 4}


def _resized(x: jax.Array, length: int) -> jax.Array:
    kept = x[..., :length]
    return jnp.pad(kept, [(0, 0)] * (x.ndim - 1) + [(0, length - kept.shape[-1])])


@op("signal.dct")
def dct(input: jax.Array, type: int = 2, n: Int | None = None, axis: int = -1, norm: str | None = None) -> jax.Array:
    """Computes the discrete cosine transform along the last axis.

    Args:
        input: f32 or f64[..., samples].
        type: 1, 2, 3 or 4.
        n: The length of the transform: truncates or zero-pads the samples. Default: the number of samples.
        axis: -1.
        norm: "ortho" for an orthonormal transform, which type 1 does not have.

    Raises:
        InvalidArgumentError: `type`, `n` or `norm` is invalid, or type 1 is combined with "ortho" or fewer than 2
            samples.
        UnimplementedError: The axis is not the last one.
        ArgumentTypeError: The input is not a real tensor of 32 or 64 bits.
    """
    return _cosine("tf.signal.dct", input, type, n, axis, norm, _COSINE_TRANSFORMS.get(type))


@op("signal.idct")
def idct(input: jax.Array, type: int = 2, n: Int | None = None, axis: int = -1, norm: str | None = None) -> jax.Array:
    """Computes the inverse discrete cosine transform along the last axis.

    With ``norm="ortho"``, this is the inverse of `dct`; otherwise 2n times the inverse (2n - 2 times for type 1).

    Arguments and errors are those of `dct`.
    """
    inverse = _COSINE_TRANSFORMS[_INVERSES[type]] if type in _INVERSES else None
    return _cosine("tf.signal.idct", input, type, n, axis, norm, inverse)


def _cosine(
    called: str, value: jax.Array, kind: int, length: int | None, axis: int, norm: str | None,
    transform: Callable[[jax.Array, bool], jax.Array] | None,
) -> jax.Array:  # fmt: skip
    if axis != -1:
        raise UnimplementedError.of(
            called,
            found=f"axis={axis} was passed",
            rule="axis must be -1, as in TensorFlow: cosine transforms are computed over the last axis",
            remedy="move the axis to the end with tf.transpose, and back afterwards",
        )
    if value.dtype not in (jnp.float32, jnp.float64):
        raise ArgumentTypeError(
            called,
            found=f"the tensor has dtype {value.dtype}",
            rule="the tensor must contain real numbers: float32 or float64",
            remedy="convert it with tf.cast(x, tf.float32)",
        )
    _check_cosine(called, value.shape, kind, length, norm)
    assert transform is not None
    value = value if length is None else _resized(value, length)
    return transform(value, norm == "ortho") if value.shape[-1] else value


def _check_cosine(called: str, shape: tuple[int, ...], kind: int, n: int | None, norm: str | None) -> None:
    wrong = (
        (not shape, "the tensor is a scalar", "the tensor must have an axis of samples", "pass [..., samples]"),
        (n is not None and n < 1, f"n={n} was passed", "n must be 1 or more", "omit n to use all samples"),
        (kind not in _INVERSES, f"type={kind!r} was passed", "type must be 1, 2, 3 or 4", "pass one of them"),
        (norm not in (None, "ortho"), f"norm={norm!r} was passed", 'norm must be None or "ortho"', "pass one of them"),
        (
            kind == 1 and norm == "ortho",
            'norm="ortho" was passed with type=1',
            "norm must be None with type=1, which has no normalization",
            "omit norm, or use another type",
        ),
        (
            kind == 1 and len(shape) > 0 and shape[-1] < 2,
            f"a tensor of shape {list(shape)} was passed with type=1",
            "with type=1 there must be 2 samples or more",
            "pass more samples, or use another type",
        ),
    )
    for is_wrong, found, rule, remedy in wrong:
        if is_wrong:
            raise InvalidArgumentError.of(called, found=found, rule=rule, remedy=remedy)


def _window(name: str, symmetric: Callable[[int], HostArray]) -> Callable[..., jax.Array]:
    def window(window_length: Int, periodic: bool = True, dtype: DTypeLike = "float32") -> jax.Array:
        points = window_length + (periodic and window_length % 2 == 0)
        return as_tensor(symmetric(points)[:window_length].astype(array_dtype(dtype)))

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"Returns the window `tf.signal.{name}`, periodic or symmetric."
    return op(f"signal.{name}")(window)


hann_window = _window("hann_window", np.hanning)
_window("hamming_window", np.hamming)


@op("signal.frame")
def frame(
    signal: jax.Array, frame_length: Int, frame_step: Int, pad_end: bool = False, pad_value: Operand = 0, axis: Int = -1
) -> jax.Array:
    """Splits a signal along an axis into overlapping frames of equal length.

    From [..., samples], the result is [..., frames, frame_length].
    """
    where = normalize_axis_index(axis, signal.ndim)
    if frame_step < 1:
        raise InvalidArgumentError.of(
            "tf.signal.frame",
            found=f"`frame_step` is {frame_step}",
            rule="`frame_step` must be 1 or more: frames begin that many samples apart",
            remedy="pass frame_step=frame_length for frames that do not overlap",
        )
    total = signal.shape[where]
    count = -(-total // frame_step) if pad_end else max(0, 1 + (total - frame_length) // frame_step)
    missing = (count - 1) * frame_step + frame_length - total
    if pad_end and missing > 0:
        widths = [(0, missing if one == where else 0) for one in range(signal.ndim)]
        signal = jnp.pad(signal, widths, constant_values=pad_value)
    return jnp.take(signal, _places(count, frame_length, frame_step), axis=where)


def _places(frames: int, length: int, step: int) -> HostArray:
    return np.arange(frames)[:, None] * step + np.arange(length)


@op("signal.overlap_and_add")
def overlap_and_add(signal: jax.Array, frame_step: Int) -> jax.Array:
    """Reconstructs a signal by adding overlapping frames, which begin `frame_step` samples apart.

    From [..., frames, length], the result is [..., samples].
    """
    frames, length = signal.shape[-2:]
    out = jnp.zeros((*signal.shape[:-2], (frames - 1) * frame_step + length), signal.dtype)
    return out.at[..., _places(frames, length, frame_step)].add(signal)


@op("signal.stft")
def stft(
    signals: jax.Array,
    frame_length: Int,
    frame_step: Int,
    fft_length: Int | None = None,
    window_fn: Callable[..., jax.Array] | None = hann_window,
    pad_end: bool = False,
) -> jax.Array:
    """Computes the short-time Fourier transform of signals, by default with a Hann window.

    With ``window_fn=None``, no window is applied.
    """
    # Not `jax.scipy.signal.stft`, which scales the result, and pads other frames.
    framed = frame(signals, frame_length, frame_step, pad_end=pad_end)
    window = 1 if window_fn is None else window_fn(frame_length, dtype=framed.dtype)
    return jnp.fft.rfft(framed * window, n=fft_length or 1 << (frame_length - 1).bit_length())
