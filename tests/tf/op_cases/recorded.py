"""Cases whose values TensorFlow computed: `python -P tests/tf/op_cases/recorded.py` records them in its environment.

Each line of `CALLS` is run by TensorFlow then, and by mirrored.tf in the tests; the values are in `recorded.npz`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).with_name("recorded.npz")


def drawn(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def spectrum(*shape: int) -> np.ndarray:
    return (drawn(*shape, seed=1) + 1j * drawn(*shape, seed=2)).astype(np.complex64)


PICTURE = drawn(2, 9, 8, 3, low=0)
OTHER = np.clip(PICTURE + 0.1 * drawn(2, 9, 8, 3, seed=3), 0, 1)
BIG = drawn(2, 41, 46, 1, low=0)
BIGGER = drawn(3, 182, 177, 2, low=0)
BYTES = np.random.default_rng(5).integers(0, 256, (20, 20, 3)).astype(np.uint8)
CORNERS = np.sort(drawn(12, 2, 2, low=-0.1, high=1.1), axis=1).reshape(12, 4)
SCORES = drawn(12, seed=9)
SQUARE = drawn(3, 4, 4) + 3 * np.eye(4, dtype=np.float32)
POSITIVE = SQUARE @ SQUARE.transpose(0, 2, 1)
TURNS = np.array([1, 0, 3, 2], np.int32)
LABELS = np.array([[1, 2, 2, 3], [2, 1, 0, 0]], np.int32)
SAMPLED = (np.array([3, 5, 7], np.int32), drawn(2, 1, low=0.1), drawn(3, low=0.1))
TWO = (np.array([3, 5, 7], np.int32), drawn(2, 2, low=0.1), drawn(3, low=0.1))


def call(op: str, *args: Any, **options: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """One line. Arrays among the arguments are traced when the case runs compiled."""
    return op, args, options


CALLS = [
    call("image.rgb_to_yiq", PICTURE),
    call("image.yiq_to_rgb", PICTURE),
    call("image.rgb_to_yuv", PICTURE),
    call("image.yuv_to_rgb", PICTURE),
    call("image.sobel_edges", PICTURE),
    call("image.ssim", PICTURE, OTHER, 1.0, filter_size=5),
    call("image.ssim", PICTURE, OTHER, 1.0, filter_size=7, return_index_map=True),
    call("image.ssim", BYTES, BYTES[::-1], 255),
    call("image.ssim_multiscale", BIG, BIG * 0.9, 1.0, filter_size=2),
    call("image.ssim_multiscale", BIGGER, np.clip(BIGGER + 0.05, 0, 1), 1.0),
    call("image.crop_and_resize", PICTURE, CORNERS, np.arange(12, dtype=np.int32) % 2, [4, 5]),
    call("image.crop_and_resize", PICTURE, CORNERS[:3], np.zeros(3, np.int32), [1, 3], method="nearest"),
    call(
        "image.crop_and_resize",
        PICTURE,
        CORNERS[:3, [2, 1, 0, 3]],
        np.ones(3, np.int32),
        [3, 1],
        extrapolation_value=-1.0,
    ),
    call("image.draw_bounding_boxes", PICTURE, CORNERS.reshape(2, 6, 4), drawn(4, 3, low=0)),
    call("image.draw_bounding_boxes", PICTURE[..., :1], CORNERS.reshape(2, 6, 4), None),
    call("image.non_max_suppression", CORNERS, SCORES, 6, iou_threshold=0.2),
    call("image.non_max_suppression", CORNERS[:, [2, 1, 0, 3]], SCORES, 20, score_threshold=-0.2),
    call("image.non_max_suppression_with_scores", CORNERS, SCORES, 12, soft_nms_sigma=0.5, score_threshold=0.05),
    call("image.non_max_suppression_with_scores", CORNERS, SCORES, 5, iou_threshold=0.1),
    call("image.non_max_suppression_padded", CORNERS, SCORES, 15, pad_to_max_output_size=True, iou_threshold=0.3),
    call("image.non_max_suppression_padded", CORNERS, SCORES, 15, iou_threshold=0.3),
    call("image.non_max_suppression_overlaps", drawn(12, 12, low=0), SCORES, 7, overlap_threshold=0.6),
    call("linalg.sqrtm", POSITIVE),
    call("linalg.lu_reconstruct", SQUARE, np.tile(TURNS, (3, 1))),
    call("linalg.lu_solve", SQUARE, np.tile(TURNS, (3, 1)), drawn(3, 4, 2)),
    call("linalg.lu_solve", SQUARE[0], TURNS, drawn(4, 2)),
    call("linalg.lu_matrix_inverse", SQUARE, np.tile(TURNS, (3, 1))),
    call("linalg.tridiagonal_solve", drawn(2, 3, 5) + 2 * np.eye(3, dtype=np.float32)[1, :, None], drawn(2, 5, 3)),
    call("linalg.tridiagonal_solve", drawn(3, 5) + 2 * np.eye(3, dtype=np.float32)[1, :, None], drawn(5)),
    call(
        "linalg.tridiagonal_solve",
        [drawn(4), drawn(5) + 3, drawn(4, seed=1)],
        drawn(2, 5),
        diagonals_format="sequence",
        transpose_rhs=True,
    ),
    call("linalg.tridiagonal_solve", SQUARE, drawn(3, 4), diagonals_format="matrix"),
    call("linalg.eigh_tridiagonal", drawn(6), drawn(5)),
    call("linalg.eigh_tridiagonal", drawn(6), drawn(5), select="i", select_range=(1, 3)),
    call("linalg.banded_triangular_solve", drawn(2, 3, 5) + 2, drawn(2, 5, 2)),
    call("linalg.banded_triangular_solve", drawn(3, 5) + 2, drawn(5, 2), lower=False),
    call("linalg.banded_triangular_solve", drawn(3, 5) + 2, drawn(5, 2), adjoint=True),
    call("signal.kaiser_window", 9),
    call("signal.kaiser_window", 8, beta=5.0),
    call("signal.kaiser_bessel_derived_window", 10),
    call("signal.vorbis_window", 8),
    call("signal.inverse_stft", spectrum(2, 5, 9), 16, 8),
    call("signal.inverse_stft", spectrum(2, 5, 9), 12, 5, window_fn=None),
    call("signal.inverse_stft", spectrum(2, 5, 5), 12, 4, fft_length=8),
    call("signal.mdct", drawn(2, 40), 8),
    call("signal.mdct", drawn(2, 37), 12, pad_end=True, norm="ortho", window_fn=None),
    call("signal.inverse_mdct", drawn(2, 5, 8)),
    call("signal.inverse_mdct", drawn(2, 5, 8), norm="ortho", window_fn=None),
    call("signal.linear_to_mel_weight_matrix"),
    call("signal.linear_to_mel_weight_matrix", 12, 65, 16000, 80.0, 7600.0),
    call("signal.mfccs_from_log_mel_spectrograms", drawn(2, 7, 20)),
    call("nn.max_pool_with_argmax", PICTURE, 2, 2, "SAME"),
    call("nn.max_pool_with_argmax", PICTURE, [1, 3, 2, 1], [1, 2, 1, 1], "VALID", include_batch_in_index=True),
    call("nn.dilation2d", PICTURE, drawn(3, 2, 3), [1, 2, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
    call("nn.dilation2d", PICTURE, drawn(2, 2, 3), [1, 1, 1, 1], "VALID", "NHWC", [1, 2, 3, 1]),
    call("nn.erosion2d", PICTURE, drawn(3, 2, 3), [1, 1, 2, 1], "SAME", "NHWC", [1, 1, 1, 1]),
    call("nn.atrous_conv2d_transpose", drawn(2, 7, 8, 3), drawn(3, 3, 2, 3), [2, 7, 8, 2], 2, "SAME"),
    call("space_to_batch_nd", drawn(2, 5, 4, 3), [2, 2], [[0, 1], [1, 1]]),
    call("space_to_batch", drawn(2, 6, 3), [3], [[0, 0]]),
    call("batch_to_space", drawn(12, 3, 2, 3), [2, 3], [[1, 0], [0, 2]]),
    call("required_space_to_batch_paddings", [7, 9], [2, 4], base_paddings=[[1, 0], [0, 0]]),
    call("unravel_index", np.array([3, 17, 23], np.int32), [2, 3, 4]),
    call("random.all_candidate_sampler", np.array([[1], [2]], np.int64), 1, 5, True),
    call(
        "nn.sampled_softmax_loss",
        drawn(9, 4),
        drawn(9),
        np.array([[1], [5]], np.int64),
        drawn(2, 4),
        3,
        9,
        sampled_values=SAMPLED,
    ),
    call(
        "nn.sampled_softmax_loss",
        drawn(9, 4),
        drawn(9),
        np.array([[1, 2], [5, 0]], np.int64),
        drawn(2, 4),
        3,
        9,
        sampled_values=TWO,
        num_true=2,
        remove_accidental_hits=False,
    ),
    call(
        "nn.nce_loss", drawn(9, 4), drawn(9), np.array([[1], [5]], np.int64), drawn(2, 4), 3, 9, sampled_values=SAMPLED
    ),
    call(
        "nn.nce_loss",
        drawn(9, 4),
        drawn(9),
        np.array([[1], [5]], np.int64),
        drawn(2, 4),
        3,
        9,
        sampled_values=SAMPLED,
        remove_accidental_hits=True,
    ),
    call("nn.ctc_loss", LABELS, drawn(7, 2, 5), np.array([4, 2], np.int32), np.array([7, 5], np.int32), blank_index=0),
    call(
        "nn.ctc_loss",
        LABELS,
        drawn(2, 7, 5),
        np.array([4, 2], np.int32),
        np.array([7, 6], np.int32),
        blank_index=-1,
        logits_time_major=False,
    ),
    call("nn.sufficient_statistics", drawn(3, 4, 5), [0, 2]),
    call("nn.sufficient_statistics", drawn(3, 4, 5), [1], shift=0.5, keepdims=True),
    call("nn.normalize_moments", np.float32(15), drawn(4), drawn(4) + 2, None),
    call("nn.normalize_moments", np.float32(15), drawn(4), drawn(4) + 2, np.float32(0.5)),
]


def flat(result: Any) -> list[np.ndarray]:
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [np.asarray(part) for part in parts if part is not None]


def cases() -> list[Any]:
    """The calls with what was recorded for them."""
    from tf.op_cases import case

    with np.load(RECORDED) as recorded:
        found = []
        for index, (op, args, options) in enumerate(CALLS):
            values = [recorded[f"{index}.{part}"] for part in range(int(recorded[f"{index}"]))]
            single = bool(recorded[f"{index}.single"])
            none = [None] * int(recorded[f"{index}.none"])
            expected = values[0] if single else [*values, *none]
            traced = op not in OPEN_SIZES or "pad_to_max_output_size" in options
            found.append(case(op, expected, *args, traced=traced, rtol=2e-4, **options))
        return found


# Their results have as many entries as are left, which a traced program cannot know.
OPEN_SIZES = {
    "image.non_max_suppression",
    "image.non_max_suppression_with_scores",
    "image.non_max_suppression_overlaps",
    "image.non_max_suppression_padded",
}


def record() -> None:
    """Runs every call on TensorFlow."""
    import tensorflow as tf  # the environment of the oracle

    values: dict[str, Any] = {}
    for index, (op, args, options) in enumerate(CALLS):
        function: Any = tf
        for part in op.split("."):
            function = getattr(function, part)
        result = function(
            *tf.nest.map_structure(lambda x: tf.constant(x) if isinstance(x, np.ndarray) else x, args), **options
        )
        parts = flat(result)
        values[f"{index}"] = len(parts)
        values[f"{index}.single"] = not isinstance(result, (list, tuple))
        values[f"{index}.none"] = 0 if values[f"{index}.single"] else len(result) - len(parts)
        values.update({f"{index}.{place}": part for place, part in enumerate(parts)})
    np.savez_compressed(RECORDED, **values)


CASES = cases() if RECORDED.exists() and __name__ != "__main__" else []

if __name__ == "__main__":
    record()
