"""`tf.signal`: Fourier transforms, windows, framing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.fft as sfft
import numpy as np

from mirrored.tf._dtypes import array_dtype
from mirrored.tf._static import static_int, static_ints
from mirrored.tf._table import op, rows
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
    called = f"tf.signal.{name}"

    def run(input_tensor: Any, fft_length: Any = None, name: str | None = None) -> jax.Array:
        del name
        sizes = None if fft_length is None else static_ints(fft_length, called=called, argument="fft_length")
        return transform(as_tensor(input_tensor), s=sizes, axes=tuple(range(-rank, 0)))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"`{called}` over the last {rank} axes."
    op(f"signal.{name}")(run)


for _rank, _suffix in {1: "", 2: "2d", 3: "3d"}.items():
    _real(f"rfft{_suffix}", jnp.fft.rfftn, _rank)
    _real(f"irfft{_suffix}", jnp.fft.irfftn, _rank)


@op("signal.dct")
def dct(
    input: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> jax.Array:
    """The discrete cosine transform (type 2) of the last axis."""
    del name
    if type != 2 or axis != -1:
        raise NotImplementedError("tf.signal.dct: type 2 over the last axis is what mirrored.tf has")
    return sfft.dct(as_tensor(input), n=n, norm=norm)


@op("signal.idct")
def idct(
    input: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None, name: str | None = None
) -> jax.Array:
    """The inverse of `dct` with norm="ortho"; without it, of the unscaled one (times 2n, as in TensorFlow)."""
    del name
    if type != 2 or axis != -1:
        raise NotImplementedError("tf.signal.idct: type 2 over the last axis is what mirrored.tf has")
    value = as_tensor(input)
    result = sfft.idct(value, n=n, norm=norm)
    return result if norm == "ortho" else result * (2 * result.shape[-1])


def _window(name: str, a: float, b: float) -> Callable[..., jax.Array]:
    def window(window_length: Any, periodic: bool = True, dtype: Any = "float32", name: str | None = None) -> jax.Array:
        del name
        length = static_int(window_length, called="tf.signal", argument="window_length")
        points = length + (1 if periodic and length % 2 == 0 else 0)
        angle = 2 * np.pi * np.arange(length) / max(points - 1, 1)
        values = a - b * np.cos(angle) if length > 1 else np.ones(length)
        return as_tensor(values.astype(array_dtype(dtype)))

    window.__name__ = window.__qualname__ = name
    window.__doc__ = f"A window {a} - {b} cos(...), periodic or symmetric."
    return op(f"signal.{name}")(window)


_hann_window = _window("hann_window", 0.5, 0.5)
_window("hamming_window", 0.54, 0.46)


@op("signal.frame")
def frame(
    signal: Any,
    frame_length: Any,
    frame_step: Any,
    pad_end: bool = False,
    pad_value: Any = 0,
    axis: Any = -1,
    name: str | None = None,
) -> jax.Array:
    """Overlapping windows of an axis, as a new axis before it."""
    del name
    value = as_tensor(signal)
    where = static_int(axis, called="tf.signal.frame", argument="axis") % value.ndim
    length = static_int(frame_length, called="tf.signal.frame", argument="frame_length")
    step = static_int(frame_step, called="tf.signal.frame", argument="frame_step")
    total = value.shape[where]
    count = -(-total // step) if pad_end else max(0, 1 + (total - length) // step)
    missing = (count - 1) * step + length - total
    if pad_end and missing > 0:
        widths = [(0, 0)] * value.ndim
        widths[where] = (0, missing)
        value = jnp.pad(value, widths, constant_values=pad_value)
    index = np.arange(count)[:, None] * step + np.arange(length)
    return jnp.take(value, index, axis=where)


@op("signal.overlap_and_add")
def overlap_and_add(signal: Any, frame_step: Any, name: str | None = None) -> jax.Array:
    """The sum of overlapping frames: [..., frames, length] to [..., samples]."""
    del name
    value = as_tensor(signal)
    frames, length = value.shape[-2:]
    step = static_int(frame_step, called="tf.signal.overlap_and_add", argument="frame_step")
    index = np.arange(frames)[:, None] * step + np.arange(length)
    out = jnp.zeros((*value.shape[:-2], (frames - 1) * step + length), value.dtype)
    return out.at[..., index].add(value)


@op("signal.stft")
def stft(
    signals: Any,
    frame_length: Any,
    frame_step: Any,
    fft_length: Any = None,
    window_fn: Any = None,
    pad_end: bool = False,
    name: str | None = None,
) -> jax.Array:
    """The short-time Fourier transform, with a Hann window by default."""
    del name
    length = static_int(frame_length, called="tf.signal.stft", argument="frame_length")
    framed = frame(signals, length, frame_step, pad_end=pad_end)
    window = _hann_window(length) if window_fn is None else window_fn(length, dtype=framed.dtype)
    size = 1 << (length - 1).bit_length() if fft_length is None else int(fft_length)
    return jnp.fft.rfft(framed * window, n=size)
