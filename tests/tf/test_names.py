from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import mirrored.tf as tf
from mirrored.tf._missing import KNOWN
from mirrored.tf._names import LAZY, NAMES


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("log", "tf.math.log"),
        ("reduce_summ", "tf.reduce_sum"),
        ("nn.reduce_mean", "tf.reduce_mean"),
        ("conv2d", "tf.nn.conv2d"),
        ("distribute.MirorredStrategy", "tf.distribute.MirroredStrategy"),
    ],
)
def test_a_missing_name_names_the_nearest(path: str, nearest: str) -> None:
    with pytest.raises(
        AttributeError, match=f"tf.{path}: mirrored.tf has no such name(.|\n)*closest name is {nearest}"
    ):
        resolve(path)


def test_a_name_like_no_other() -> None:
    with pytest.raises(AttributeError, match=r"use jax.numpy, jax.nn or jax.lax"):
        _ = tf.qqqqqqqqqq


@pytest.mark.parametrize("path", sorted(KNOWN))
def test_what_is_left_out_says_what_to_use(path: str) -> None:
    assert path not in NAMES
    with pytest.raises(AttributeError, match="omits it"):
        resolve(path)


@pytest.mark.parametrize("path", ["distribute.TPUStrategy", "distribute.experimental.ParameterServerStrategy"])
def test_other_strategies_name_the_alternative(path: str) -> None:
    with pytest.raises(AttributeError, match=r"use tf.distribute.(Multi\w+)?MirroredStrategy"):
        resolve(path)


def test_namespaces_are_modules() -> None:
    assert importlib.import_module("mirrored.tf.nn") is tf.nn
    assert sys.modules["mirrored.tf.random"].uniform is tf.random.uniform
    assert repr(tf.math) == "<module 'mirrored.tf.math'>"
    assert "relu" in dir(tf.nn)
    assert not hasattr(tf.nn, "__path__")


@pytest.mark.parametrize("path", sorted(set(LAZY) - {"keras"}))  # Keras has tests of its own
def test_parts_that_are_loaded_on_first_use(path: str) -> None:
    assert resolve(path) is not None


def test_names_that_mean_the_same_are_the_same() -> None:
    assert tf.abs is tf.math.abs
    assert tf.nn.softmax is tf.math.softmax
    assert tf.linalg.matmul is tf.matmul


def test_the_version_followed() -> None:
    assert tf.__version__ == tf.version.VERSION == "2.21.0"


def resolve(path: str) -> object:
    found: object = tf
    for part in path.split("."):
        found = getattr(found, part)
    return found


def test_what_is_left_out_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming_from_tensorflow.md").read_text(encoding="utf-8")
    assert [name for name in KNOWN if f"`tf.{name}`" not in page] == []


def test_dir_lists_the_names_that_are_loaded_on_first_use():
    for path in LAZY:
        parent, _, leaf = path.rpartition(".")
        assert leaf in dir(resolve(parent) if parent else tf), path
