"""Type stub of `tf.signal`, written by tools/tf_stubs.py."""

from collections.abc import Callable
from typing import Any, SupportsFloat, SupportsIndex

from jax import Array

from mirrored._typing import DTypeLike, StaticInts
from mirrored.tf import Tensor

def dct(
    input: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def fft(input: Any, name: str | None = None) -> Tensor: ...
def fft2d(input: Any, name: str | None = None) -> Any: ...
def fft3d(input: Any, name: str | None = None) -> Any: ...
def fftnd(
    input_tensor: Any,
    fft_length: StaticInts | None = None,
    axes: StaticInts | None = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def fftshift(x: Any, axes: Any = None, name: str | None = None) -> Tensor: ...
def frame(
    signal: Any,
    frame_length: SupportsIndex,
    frame_step: SupportsIndex,
    pad_end: bool = False,
    pad_value: Any = 0,
    axis: SupportsIndex = -1,
    name: str | None = None,
) -> Tensor: ...
def hamming_window(
    window_length: SupportsIndex, periodic: bool = True, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor: ...
def hann_window(
    window_length: SupportsIndex, periodic: bool = True, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor: ...
def idct(
    input: Any,
    type: int = 2,
    n: SupportsIndex | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def ifft(input: Any, name: str | None = None) -> Tensor: ...
def ifft2d(input: Any, name: str | None = None) -> Any: ...
def ifft3d(input: Any, name: str | None = None) -> Any: ...
def ifftnd(
    input_tensor: Any,
    fft_length: StaticInts | None = None,
    axes: StaticInts | None = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def ifftshift(x: Any, axes: Any = None, name: str | None = None) -> Tensor: ...
def inverse_mdct(
    mdcts: Any, window_fn: Callable[..., Array] | None = ..., norm: str | None = None, name: str | None = None
) -> Tensor: ...
def inverse_stft(
    stfts: Any,
    frame_length: SupportsIndex,
    frame_step: SupportsIndex,
    fft_length: SupportsIndex | None = None,
    window_fn: Callable[..., Array] | None = ...,
    name: str | None = None,
) -> Tensor: ...
def inverse_stft_window_fn(
    frame_step: SupportsIndex, forward_window_fn: Callable[..., Array] = ..., name: str | None = None
) -> Callable[..., Tensor]: ...
def irfft(input_tensor: Any, fft_length: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def irfft2d(input_tensor: Any, fft_length: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def irfft3d(input_tensor: Any, fft_length: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def irfftnd(
    input_tensor: Any,
    fft_length: StaticInts | None = None,
    axes: StaticInts | None = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def kaiser_bessel_derived_window(
    window_length: SupportsIndex, beta: float = 12.0, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor: ...
def kaiser_window(
    window_length: SupportsIndex, beta: float = 12.0, dtype: DTypeLike = "float32", name: str | None = None
) -> Tensor: ...
def linear_to_mel_weight_matrix(
    num_mel_bins: SupportsIndex = 20,
    num_spectrogram_bins: SupportsIndex = 129,
    sample_rate: SupportsFloat = 8000,
    lower_edge_hertz: SupportsFloat = 125.0,
    upper_edge_hertz: SupportsFloat = 3800.0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Tensor: ...
def mdct(
    signals: Any,
    frame_length: SupportsIndex,
    window_fn: Callable[..., Array] | None = ...,
    pad_end: bool = False,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: Any, name: str | None = None) -> Tensor: ...
def overlap_and_add(signal: Any, frame_step: SupportsIndex, name: str | None = None) -> Tensor: ...
def rfft(input_tensor: Any, fft_length: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def rfft2d(input_tensor: Any, fft_length: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def rfft3d(input_tensor: Any, fft_length: StaticInts | None = None, name: str | None = None) -> Tensor: ...
def rfftnd(
    input_tensor: Any,
    fft_length: StaticInts | None = None,
    axes: StaticInts | None = None,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor: ...
def stft(
    signals: Any,
    frame_length: SupportsIndex,
    frame_step: SupportsIndex,
    fft_length: SupportsIndex | None = None,
    window_fn: Callable[..., Array] | None = ...,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor: ...
def vorbis_window(window_length: SupportsIndex, dtype: DTypeLike = "float32", name: str | None = None) -> Tensor: ...
