"""`tf.signal`: window functions, N-dimensional FFTs, inverse STFT, MDCT, mel scales and mel-frequency coefficients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np

from mirrored._typing import DTypeLike, HostArray
from mirrored.tf._dtypes import array_dtype
from mirrored.tf._errors import InvalidArgumentError
from mirrored.tf._ops.signal import dct, frame, hann_window, overlap_and_add
from mirrored.tf._static import static_int
from mirrored.tf._table import Int, Ints, op
from mirrored.tf._tensors import as_tensor

Window = Callable[..., jax.Array]


def _of_any_axes(name: str, transform: Callable[..., jax.Array]) -> None:
    def run(
        input_tensor: jax.Array, fft_length: Ints | None = None, axes: Ints | None = None, norm: str | None = None
    ) -> jax.Array:
        return transform(input_tensor, s=fft_length, axes=axes, norm=norm)

    run.__name__ = run.__qualname__ = name
    what = "over the given axes; by default all, or the last `len(fft_length)` ones"
    run.__doc__ = f"Computes `tf.signal.{name}` {what}."
    op(f"signal.{name} {name}")(run)


for _name, _transform in {
    "fftnd": jnp.fft.fftn, "ifftnd": jnp.fft.ifftn, "rfftnd": jnp.fft.rfftn, "irfftnd": jnp.fft.irfftn,
}.items():  # fmt: skip
    _of_any_axes(_name, _transform)


@op("signal.kaiser_window")
def kaiser_window(window_length: Int, beta: float = 12.0, dtype: DTypeLike = "float32") -> jax.Array:
    """Returns a Kaiser window, a window function of `window_length` samples.

    Source: J. Kaiser, R. Schafer, On the use of the I0-sinh window for spectrum analysis, IEEE Trans. ASSP 28, 1980.
    """
    return as_tensor(np.kaiser(window_length, float(beta)).astype(array_dtype(dtype)))


@op("signal.kaiser_bessel_derived_window")
def kaiser_bessel_derived_window(window_length: Int, beta: float = 12.0, dtype: DTypeLike = "float32") -> jax.Array:
    """Returns a Kaiser-Bessel derived window of even length, a window function for `mdct`.

    The squares of its overlapping halves add up to 1.
    """
    sums = np.cumsum(np.kaiser(window_length // 2 + 1, float(beta)))
    half = np.sqrt(sums[:-1] / sums[-1])
    return as_tensor(np.concatenate([half, half[::-1]]).astype(array_dtype(dtype)))


@op("signal.vorbis_window")
def vorbis_window(window_length: Int, dtype: DTypeLike = "float32") -> jax.Array:
    """Returns the window function of the Vorbis codec, with `window_length` samples."""
    values = np.sin(np.pi / 2 * np.sin(np.pi / window_length * (np.arange(window_length) + 0.5)) ** 2)
    return as_tensor(values.astype(array_dtype(dtype)))


@op("signal.inverse_stft_window_fn")
def inverse_stft_window_fn(frame_step: Int, forward_window_fn: Window = hann_window) -> Window:
    """Returns the window function with which `inverse_stft` inverts an `stft` that used `forward_window_fn`."""

    def window(frame_length: SupportsIndex, dtype: DTypeLike = "float32") -> jax.Array:
        length = static_int(frame_length, called="tf.signal.inverse_stft_window_fn", argument="frame_length")
        forward = forward_window_fn(length, dtype=dtype)
        overlaps = -(-length // frame_step)
        squares = jnp.pad(forward**2, (0, overlaps * frame_step - length)).reshape((overlaps, frame_step))
        return forward / jnp.tile(squares.sum(0), overlaps)[:length]

    return window


@op("signal.inverse_stft")
def inverse_stft(
    stfts: jax.Array,
    frame_length: Int,
    frame_step: Int,
    fft_length: Int | None = None,
    window_fn: Window | None = hann_window,
) -> jax.Array:
    """Computes the inverse of the short-time Fourier transform `stft`.

    From c64[..., frames, fft_length // 2 + 1], the result is [..., samples].

    Args:
        stfts: The result of `stft`.
        frame_length: Window length in samples.
        frame_step: Samples between the starts of two windows.
        fft_length: Default: the next power of two from `frame_length`.
        window_fn: The window that multiplies each frame; None for no window. `inverse_stft_window_fn` returns the one
            that inverts an `stft`.
    """
    frames = jnp.fft.irfft(stfts, n=fft_length or 1 << (frame_length - 1).bit_length())[..., :frame_length]
    frames = jnp.pad(frames, [(0, 0)] * (frames.ndim - 1) + [(0, frame_length - frames.shape[-1])])
    window = 1 if window_fn is None else window_fn(frame_length, dtype=frames.dtype)
    return overlap_and_add(frames * window, frame_step)


@op("signal.mdct")
def mdct(
    signals: jax.Array,
    frame_length: Int,
    window_fn: Window | None = vorbis_window,
    pad_end: bool = False,
    norm: str | None = None,
) -> jax.Array:
    """Computes the modified discrete cosine transform of signals.

    From f32[..., samples], the result is f32[..., frames, frame_length // 2].

    Args:
        signals: The samples.
        frame_length: A multiple of 4; frames start every half frame length.
        window_fn: The window; None for a constant one.
        pad_end: Whether to zero-pad the last frame.
        norm: None or "ortho".

    Raises:
        InvalidArgumentError: `frame_length` is not a multiple of 4.

    Source: J. Princen, A. Bradley, Analysis/synthesis filter bank design based on time domain aliasing cancellation,
    IEEE Trans. ASSP 34, 1986.
    """
    if frame_length % 4:
        raise InvalidArgumentError.of(
            "tf.signal.mdct",
            found=f"frame_length={frame_length} was passed",
            rule="frame_length must be a multiple of 4: a frame is split into four equal parts",
            remedy="pass a multiple of 4",
        )
    frames = frame(signals, frame_length, frame_length // 2, pad_end=pad_end)
    frames = frames * _window(window_fn, frame_length, frames.dtype)
    a, b, c, d = jnp.split(frames, 4, axis=-1)
    folded = jnp.concatenate([-c[..., ::-1] - d, a - b[..., ::-1]], axis=-1)
    return dct(folded, type=4, norm=norm)


@op("signal.inverse_mdct")
def inverse_mdct(mdcts: jax.Array, window_fn: Window | None = vorbis_window, norm: str | None = None) -> jax.Array:
    """Computes the inverse of the modified discrete cosine transform `mdct` with the same window.

    The input is [..., frames, frame_length // 2].
    """
    half = mdcts.shape[-1]
    found = dct(mdcts, type=4, norm=norm) * (0.5 / half if norm is None else 1)
    first, second = jnp.split(found, 2, axis=-1)
    frames = jnp.concatenate([second, -second[..., ::-1], -first[..., ::-1], -first], axis=-1)
    return overlap_and_add(frames * _window(window_fn, 2 * half, frames.dtype), half)


def _window(window_fn: Window | None, length: int, dtype: DTypeLike) -> Any:
    return 0.5**0.5 if window_fn is None else window_fn(length, dtype=dtype)


@op("signal.linear_to_mel_weight_matrix")
def linear_to_mel_weight_matrix(
    num_mel_bins: Int = 20,
    num_spectrogram_bins: Int = 129,
    sample_rate: SupportsFloat = 8000,
    lower_edge_hertz: SupportsFloat = 125.0,
    upper_edge_hertz: SupportsFloat = 3800.0,
    dtype: DTypeLike = "float32",
) -> jax.Array:
    """Returns the matrix that converts a spectrum with linear frequencies to the mel scale.

    The weights are triangular, f32[num_spectrogram_bins, num_mel_bins].

    Args:
        num_mel_bins: Number of triangles.
        num_spectrogram_bins: Number of spectrum bins, from 0 Hz to half the sample rate.
        sample_rate: Samples per second.
        lower_edge_hertz: Lower edge of the first triangle.
        upper_edge_hertz: Upper edge of the last triangle.
        dtype: The dtype of the weights.

    Raises:
        InvalidArgumentError: The edges do not satisfy ``0 <= lower < upper <= sample_rate / 2``.

    Source: the mel scale of HTK, 1127 ln(1 + f / 700 Hz).
    """
    if not 0 <= float(lower_edge_hertz) < float(upper_edge_hertz) <= float(sample_rate) / 2:
        raise InvalidArgumentError.of(
            "tf.signal.linear_to_mel_weight_matrix",
            found=f"the edges {lower_edge_hertz} and {upper_edge_hertz} Hz, and sample_rate={sample_rate}, were passed",
            rule="0 <= lower_edge_hertz < upper_edge_hertz <= sample_rate / 2: the spectrum ends there",
            remedy="pass edges in this order, inside the spectrum",
        )
    places = _mel(np.linspace(0, float(sample_rate) / 2, num_spectrogram_bins)[1:, None])
    edges = np.linspace(_mel(float(lower_edge_hertz)), _mel(float(upper_edge_hertz)), num_mel_bins + 2)
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (places - lower) / (centre - lower), (upper - places) / (upper - centre)
    weights = np.maximum(0, np.minimum(rising, falling))
    return as_tensor(np.pad(weights, [(1, 0), (0, 0)]).astype(array_dtype(dtype)))


def _mel(hertz: float | HostArray) -> Any:
    return 1127 * np.log1p(hertz / 700)


@op("signal.mfccs_from_log_mel_spectrograms")
def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: jax.Array) -> jax.Array:
    """Computes mel-frequency cepstral coefficients (MFCCs) from the logarithms of mel spectrograms.

    The result has the shape of the input, f32[..., mel bins].
    """
    return dct(log_mel_spectrograms, type=2) * (2 * log_mel_spectrograms.shape[-1]) ** -0.5  # type: ignore[no-any-return]
