"""The examples do what they say: each learns, and what has a single-device twin equals it."""

from __future__ import annotations

import importlib.util
import re
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
    pytest.mark.long,
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


def test_audio_instruments() -> None:
    example = load("audio_instruments")
    losses, parameters = example.train(25, replicas(4))
    assert losses[-1] < 0.8 * losses[0]
    confusion = example.confusion_of(parameters, 100)
    assert confusion.sum() == 100
    assert np.trace(confusion) > 40  # One of four by chance.


def test_graph_rings_equals_one_device() -> None:
    example = load("graph_rings")
    losses, _ = example.train(6, replicas(4))
    expected, _ = example.train(6, replicas(1))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_graph_rings_have_the_labelled_ring() -> None:
    edges, kinds = load("graph_rings").graphs(20, seed=0)
    for one, kind in zip(edges, kinds, strict=True):
        np.testing.assert_array_equal(one, one.T)
        assert one.sum() / 2 == len(one)  # One cycle: as many edges as nodes.
        while (leaves := one.sum(0) == 1).any():
            one = one[~leaves][:, ~leaves]
        assert len(one) == (6 if kind else 4)


@pytest.mark.slow
def test_graph_rings_learns() -> None:
    example = load("graph_rings")
    _, parameters = example.train(300, replicas(4))
    assert example.accuracy_of(parameters) > 0.8


@pytest.mark.slow
def test_digits_diffusion_makes_digits() -> None:
    example = load("digits_diffusion")
    losses, parameters = example.train(600, replicas(4))
    assert losses[0] == pytest.approx(1.0, abs=0.1)  # The network sees no noise at first.
    assert losses[-1] < 0.4
    assert example.likeness_of(parameters) > 0.8


def test_pendulum_control_equals_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("pendulum_control")
    monkeypatch.setattr(example, "TIME_STEPS", 20)
    costs, _ = example.train(3, replicas(4))
    expected, _ = example.train(3, replicas(1))
    np.testing.assert_allclose(costs, expected, rtol=1e-3)


@pytest.mark.slow
def test_pendulum_control_learns() -> None:
    example = load("pendulum_control")
    costs, policy = example.train(200, replicas(4))
    assert np.mean(costs[-10:]) < 0.5 * costs[0]
    assert example.upright_of(policy) > 0.5


def test_contrastive_digits_equals_one_device() -> None:
    example = load("contrastive_digits")
    losses, _ = example.train(5, replicas(4))
    expected, _ = example.train(5, replicas(1))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


@pytest.mark.slow
def test_contrastive_digits_learns() -> None:
    example = load("contrastive_digits")
    _, parameters = example.train(200, replicas(4))
    arrays = mr.unmirror(parameters)
    untrained = example.make_parameters()
    before = example.neighbour_accuracy(lambda x: example.embedding_of(untrained, x))
    after = example.neighbour_accuracy(lambda x: example.embedding_of(arrays, x))
    assert after > before + 0.05


def test_lora_digits_changes_the_adapters_only() -> None:
    example = load("lora_digits")
    strategy = replicas(4)
    (first, second), accuracies, network, adapters = example.experiment(40, strategy)
    assert first[-1] < 0.5 * first[0]
    assert second[-1] < 0.7 * second[0]
    assert accuracies["upright, adapters off"] == accuracies["upright"]
    assert accuracies["turned, adapted"] > accuracies["turned, not adapted"] + 0.2
    assert example.size_of(adapters) < 0.02 * example.size_of(network)


@pytest.mark.slow
def test_text_sources() -> None:
    history, model = load("text_sources").train(4, replicas(2))
    assert history["accuracy"][-1] > 0.8
    assert history["val_accuracy"][-1] > 0.4
    assert model.output_shape == (None, 5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_are_short_and_shown(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"{name}.py" in page
    assert f"pictures/{name}.png" in page
    assert re.search(rf"^\| \[{name}\.py\].*\| \d+ s \| .+ \|$", page, re.MULTILINE)
    picture = EXAMPLES / "pictures" / f"{name}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 60_000
