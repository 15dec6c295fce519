"""`tf.signal`."""

from __future__ import annotations

import numpy as np

from tf.op_cases import case, f

C = np.array([1, 2, 3 + 1j, 4], np.complex64)
R = f(1, 2, 3, 5)
M = np.arange(6, dtype=np.float32).reshape(2, 3)
CUBE = np.arange(8, dtype=np.complex64).reshape(2, 2, 2)
ANGLE = 2 * np.pi * np.arange(4) / 4
DCT = np.array([2 * np.sum(R * np.cos(np.pi * k * (2 * np.arange(4) + 1) / 8)) for k in range(4)])
SCALE = np.array([np.sqrt(1 / 16)] + [np.sqrt(1 / 8)] * 3)


def undoes(window):
    """With half-overlapping windows of 4, the products of both windows add up to 1."""
    both = np.asarray(window(4)) * (0.5 - 0.5 * np.cos(ANGLE))
    return np.allclose(both[:2] + both[2:], 1)


CASES = [
    case("signal.fft", np.fft.fft(C), C),
    case("signal.fft2d", np.fft.fft2(CUBE), CUBE),
    case("signal.fft3d", np.fft.fftn(CUBE), CUBE),
    case("signal.ifft", np.fft.ifft(C), C),
    case("signal.ifft2d", np.fft.ifft2(CUBE), CUBE),
    case("signal.ifft3d", np.fft.ifftn(CUBE), CUBE),
    case("signal.fftshift", np.fft.fftshift(R), R),
    case("signal.ifftshift", np.fft.ifftshift(M, 1), M, axes=[1]),
    case("signal.rfft", np.fft.rfft(R), R),
    case("signal.rfft", np.fft.rfft(R, 6), R, fft_length=[6]),
    case("signal.rfft2d", np.fft.rfft2(M), M),
    case("signal.rfft3d", np.fft.rfftn(CUBE.real), CUBE.real.copy()),
    case("signal.irfft", R, np.fft.rfft(R).astype(np.complex64)),
    case("signal.irfft2d", M, np.fft.rfft2(M).astype(np.complex64), fft_length=[2, 3], rtol=1e-4),
    case("signal.irfft3d", CUBE.real, np.fft.rfftn(CUBE.real).astype(np.complex64), rtol=1e-4),
    case("signal.fftnd", np.fft.fftn(CUBE, (2, 2), (0, 2)), CUBE, fft_length=[2, 2], axes=[0, 2], rtol=1e-4),
    case("signal.ifftnd", np.fft.ifftn(CUBE), CUBE),
    case("signal.rfftnd", np.fft.rfftn(M, axes=(0,)), M, axes=[0]),
    case("signal.irfftnd", M, np.fft.rfftn(M).astype(np.complex64), fft_length=M.shape, rtol=1e-4),
    case("signal.inverse_stft_window_fn", undoes, 2),
    case("signal.dct", DCT, R, rtol=1e-4),
    case("signal.dct", DCT * SCALE, R, norm="ortho", rtol=1e-4),
    case("signal.idct", R, (DCT * SCALE).astype(np.float32), norm="ortho", rtol=1e-4),
    case("signal.idct", R * 8, DCT.astype(np.float32), rtol=1e-4),  # unscaled in both directions: 2n times the input
    case("signal.hann_window", 0.5 - 0.5 * np.cos(ANGLE), 4),
    case("signal.hann_window", np.hanning(5), 5, periodic=False),
    case("signal.hamming_window", 0.54 - 0.46 * np.cos(ANGLE), 4),
    case("signal.frame", [[0, 1, 2], [2, 3, 4]], f(0, 1, 2, 3, 4), 3, 2),
    case("signal.frame", [[0, 1, 2], [2, 3, 9]], f(0, 1, 2, 3), 3, 2, pad_end=True, pad_value=9.0),
    case("signal.overlap_and_add", [0, 1, 5, 4, 5], f([[0, 1, 2], [3, 4, 5]]), 2),
    case(
        "signal.stft",
        [np.fft.rfft(R * (0.5 - 0.5 * np.cos(ANGLE)))],
        R,
        frame_length=4,
        frame_step=4,
    ),
]
