"""`tf.image`."""

from __future__ import annotations

import colorsys

import numpy as np

from tf.op_cases import case, f

SMALL = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
RGB = f([[[0.2, 0.4, 0.6], [0.9, 0.1, 0.5]]])
HSV = f([[colorsys.rgb_to_hsv(*pixel) for pixel in RGB[0].tolist()]])
BYTES = np.array([[[10, 200, 30]]], np.uint8)
PAIRS = ([1, 1, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID")
RAMP = np.arange(16, dtype=np.float32).reshape(4, 4, 1)


def hue_turned(pixel, by):
    h, s, v = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb((h + by) % 1, s, v)


def less_saturated(pixel, factor):
    h, s, v = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb(h, s * factor, v)


def flips(axis):
    def check(result):
        array = np.asarray(result)
        return bool((array == SMALL).all() or (array == np.flip(SMALL, axis)).all())

    return check


def shifted(result):
    return len(np.unique(np.round(np.asarray(result) - RAMP, 4))) == 1


def scaled(result):
    centred = (np.asarray(result) - RAMP.mean()) / (RAMP - RAMP.mean())
    return bool(np.ptp(centred) < 1e-3 and 0.5 <= centred.mean() < 2)


def same_value(result):  # saturation and hue leave the brightest channel alone
    return bool(np.allclose(np.asarray(result).max(-1), RGB.max(-1), atol=1e-5))


def part(result):
    array = np.asarray(result)
    return array.shape == (2, 3, 1) and bool((np.diff(array[:, :, 0], axis=1) == 1).all())


SEED = [1, 2]

CASES = [
    case("image.ResizeMethod", lambda names: names.BILINEAR == "bilinear", traced=False),
    case("image.resize", [[[0.0], [0.5], [1.5], [2.0]]], f([[[0], [2]]]), [1, 4]),
    case("image.resize", [[[0], [0], [2], [2]]], f([[[0], [2]]]), [1, 4], method="nearest"),
    case("image.resize", [[[[2.5]]]], RAMP[None, :2, :2].copy(), [1, 1]),
    case("image.resize", lambda y: np.asarray(y).shape == (2, 2, 1), RAMP, [2, 9], preserve_aspect_ratio=True),
    case("image.flip_left_right", SMALL[:, ::-1], SMALL),
    case("image.flip_up_down", SMALL[::-1], SMALL),
    case("image.transpose", SMALL.transpose(1, 0, 2), SMALL),
    case("image.rot90", np.rot90(SMALL), SMALL),
    case("image.rot90", np.rot90(SMALL, 3), SMALL, k=3),
    case("image.convert_image_dtype", BYTES / 255.0, BYTES, "float32"),
    case("image.convert_image_dtype", [[[51, 102, 153], [229, 25, 127]]], RGB, dtype="uint8", saturate=True),
    case("image.convert_image_dtype", [[[10 * 128, 200 * 128, 30 * 128]]], BYTES, "int16"),
    case("image.rgb_to_grayscale", RGB @ f([[0.2989], [0.587], [0.114]]), RGB),
    case("image.grayscale_to_rgb", np.repeat(RAMP, 3, -1), RAMP),
    case("image.adjust_brightness", SMALL + 0.1, SMALL, delta=0.1),
    case("image.adjust_brightness", [[[60, 250, 80]]], BYTES, 50 / 255),
    case("image.adjust_contrast", (SMALL - SMALL.mean((0, 1))) * 2 + SMALL.mean((0, 1)), SMALL, 2.0),
    case("image.adjust_gamma", RGB**2 * 3, RGB, gamma=2.0, gain=3.0),
    case("image.rgb_to_hsv", HSV, RGB),
    case("image.hsv_to_rgb", RGB, HSV),
    case("image.adjust_hue", [[hue_turned(p, 0.2) for p in RGB[0].tolist()]], RGB, 0.2),
    case("image.adjust_saturation", [[less_saturated(p, 0.5) for p in RGB[0].tolist()]], RGB, 0.5),
    case("image.central_crop", RAMP[1:3, 1:3], RAMP, 0.5),
    case("image.crop_to_bounding_box", RAMP[1:3, 2:4], RAMP, 1, 2, 2, 2),
    case("image.pad_to_bounding_box", np.pad(SMALL, [(1, 0), (0, 2), (0, 0)]), SMALL, 1, 0, 3, 4),
    case("image.resize_with_crop_or_pad", np.pad(RAMP[1:3], [(0, 0), (1, 1), (0, 0)]), RAMP, 2, 6),
    case("image.convert_image_dtype", [0, 0, 0, 255], np.int16([0, 5, -5, 32767]), "uint8", saturate=True),
    case("image.resize_with_pad", np.pad(RAMP, [(0, 0), (1, 1), (0, 0)]), RAMP, 4, 6),
    # Recorded with TensorFlow 2.21: sizes and offsets are rounded down.
    case(
        "image.resize_with_pad",
        f([[0, 0.7, 1.5, 2.3, 3], [4, 4.7, 5.5, 6.3, 7], [8, 8.7, 9.5, 10.3, 11], [0] * 5, [0] * 5])[..., None],
        RAMP[:3],
        5,
        5,
    ),
    case(
        "image.resize_with_pad",
        f([[0, 0.75, 0, 0], [0, 3.25, 0, 0], [0, 5.75, 0, 0], [0, 8.25, 0, 0]])[..., None],
        np.arange(10, dtype=np.float32).reshape(5, 2, 1),
        4,
        4,
    ),
    case("image.per_image_standardization", (RAMP - RAMP.mean()) / RAMP.std(), RAMP),
    case("image.per_image_standardization", np.zeros((2, 2, 1)), np.full((2, 2, 1), 7, np.float32)),
    case("image.extract_patches", [[[[1, np.nan], [np.nan, 2], [2, 3]]]], f([[[[1], [np.nan], [2], [3]]]]), *PAIRS),
    case("image.total_variation", 4 * 3 * 4.0 + 4 * 3 * 1.0, RAMP),
    case("image.psnr", 20.0, RAMP * 0, RAMP * 0 + 0.1, max_val=1.0),
    case("image.image_gradients", ([[[[2]], [[0]]]], [[[[0]], [[0]]]]), f([[[[1]], [[3]]]])),
    case("image.random_flip_left_right", flips(1), SMALL),
    case("image.random_flip_up_down", flips(0), SMALL),
    case("image.random_contrast", scaled, RAMP, 0.5, 2.0),
    case("image.random_saturation", same_value, RGB, 0.5, 1.0),
    case("image.random_brightness", shifted, RAMP, 0.3),
    case("image.random_hue", same_value, RGB, 0.3),
    case("image.stateless_random_flip_left_right", flips(1), SMALL, seed=SEED),
    case("image.stateless_random_flip_up_down", flips(0), SMALL, seed=SEED),
    case("image.stateless_random_contrast", scaled, RAMP, 0.5, 2.0, seed=SEED),
    case("image.stateless_random_saturation", same_value, RGB, 0.5, 1.0, seed=SEED),
    case("image.stateless_random_brightness", shifted, RAMP, 0.3, seed=SEED),
    case("image.stateless_random_hue", same_value, RGB, 0.3, seed=SEED),
    case("image.random_crop", part, RAMP, [2, 3, 1]),
    case("image.stateless_random_crop", part, RAMP, [2, 3, 1], seed=SEED),
    case(
        "image.extract_patches",
        [[[[0, 1, 4, 5], [2, 3, 6, 7]], [[8, 9, 12, 13], [10, 11, 14, 15]]]],
        RAMP[None],
        sizes=[1, 2, 2, 1],
        strides=[1, 2, 2, 1],
        rates=[1, 1, 1, 1],
        padding="VALID",
    ),
]
