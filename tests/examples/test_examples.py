"""The examples do what they say: each learns, and what has a single-device twin equals it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import mirrored as mr

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.stem for path in EXAMPLES.glob("*.py"))
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib.*"),
]


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def replicas(count: int) -> mr.MirroredStrategy:
    return mr.MirroredStrategy(jax.devices()[:count])


def test_digits_custom_loop(tmp_path: Path) -> None:
    example = load("digits_custom_loop")
    losses, accuracy, model = example.train(3, replicas(4))
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy > 0.85
    example.draw(losses, model, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.slow
def test_char_transformer() -> None:
    example = load("char_transformer")
    losses, parameters = example.train(25, replicas(4))
    assert losses[-1] < losses[0] - 0.8
    assert example.write(parameters, "The ", 3).startswith("The ")


@pytest.mark.slow
def test_gan_two_tapes() -> None:
    example = load("gan_two_tapes")
    history, generator = example.train(4, replicas(2))
    assert np.isfinite(history).all()
    images, drawn = example.load()[..., 0], example.sample(generator, 256)
    likeness = np.corrcoef(images.mean(0).ravel(), drawn.mean(0).ravel())[0, 1]
    assert likeness > 0.5


def test_diabetes_fit() -> None:
    history, explained, predictions = load("diabetes_fit").train(25, replicas(2))
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert explained > 0.3
    assert predictions.shape == (88, 1)


@pytest.mark.slow
def test_nnx_digits_equals_one_device() -> None:
    example = load("nnx_digits")
    losses, model = example.train(6, replicas(4), noise=False)
    expected, alone = example.train_on_one_device(6)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(model.out.kernel[...], alone.out.kernel[...], atol=1e-4)
    assert example.accuracy_of(model) == pytest.approx(example.accuracy_of(alone), abs=0.01)


@pytest.mark.slow
def test_nnx_digits_learns_with_noise() -> None:
    example = load("nnx_digits")
    _, model = example.train(120, replicas(2))
    assert example.accuracy_of(model) > 0.95


def test_equinox_spirals_equals_one_device() -> None:
    example = load("equinox_spirals")
    losses, model = example.train(20, replicas(4))
    expected, alone = example.train_on_one_device(20)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    points = example.load()[0]
    np.testing.assert_allclose(example.predict(model, points), example.predict(alone, points), atol=1e-3)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_are_short_and_shown(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"{name}.py" in page
    assert f"pictures/{name}.png" in page
    picture = EXAMPLES / "pictures" / f"{name}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 60_000
